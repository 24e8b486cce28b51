"""What may come into a file from others: through what it imports, what imports it, and what that imports."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Iterator

from ..sources import programs, source_files
from ..sources.patterns import BY_HAND
from ..sources.tokens import refuse_dense
from .entering import Entering, is_low
from .entering import entering as entering_in
from .project import Project, package_top
from .syntax import tail, walk

#: Files that one which is named imports, directly or not, which are asked for what enters autocast.
REACH = 400
#: What a file mentions that may make a model cast.
MENTIONS = (b"autocast", *BY_HAND)


def entering(project: Project, path: str, tree: ast.Module) -> Iterator[Entering]:
    """What may enter autocast for a file, whose syntax tree is given: it, what it imports, and what imports it.

    A model may be of any class of the tree. Each answer holds those before it: whoever knows enough asks no further,
    since reading another file takes longer than all else.
    """
    here = os.path.abspath(path)
    found = entering_in(tree)._replace(within=frozenset())
    yield found
    project.whole = True
    if not project.knows_all():
        below, above, others = _on_disk(project, here), set[str](), _beside(here)
    else:
        others = {os.path.abspath(other) for other in project.autocast} - {here}
        below = others & project.imports_of({here}) if others else set()
        above = {other for other in others if here in _reached_from(project, other)}
    # What it has to do with first: it is the likelier to tell.
    near = sorted(below | above)
    for other in (*near, *sorted(others.difference(near))):
        known = _entering_of(project, other)
        found = Entering(
            found.names | known.names if other in below else found.names,
            found.modules | known.modules,
            found.within | known.within if other in above else found.within,
            found.everywhere or (known.everywhere and other in below | above),
        )
        yield found


def _entering_of(project: Project, path: str) -> Entering:
    """What enters autocast in a file: everything may, where it does not parse."""
    known = project.entered.get(path)
    if known is None:
        tree = _parsed(path, project.largest)
        known = project.entered[path] = Entering(everywhere=True) if tree is None else entering_in(tree)
    return known


def _on_disk(project: Project, here: str) -> set[str]:
    """The files that mention autocast among those that a file imports, directly or not, wherever they lie."""
    reached, work = {here}, [here]
    found: set[str] = set()
    while work and len(reached) < REACH:
        path = work.pop()
        # What the first file asked for, the others ask for, too.
        for other in project.look_at_imports(path):
            if other not in reached:
                reached.add(other)
                work.append(other)
                if any(word in source_files.load_or_nothing(other, project.largest) for word in MENTIONS):
                    found.add(other)
    return found


def _beside(here: str) -> set[str]:
    """The files that may cast in the directory of a file that is alone: models lie beside what trains them."""
    directory = os.path.dirname(here)
    names = os.listdir(directory) if os.path.isdir(directory) else []
    files = {os.path.join(directory, name) for name in names if name.endswith(".py")} - {here}
    return {file for file in files if any(word in source_files.load_or_nothing(file) for word in MENTIONS)}


def _reached_from(project: Project, path: str) -> set[str]:
    """A file and all that it imports, directly or not."""
    known = project.below.get(path)
    if known is None:
        known = project.below[path] = project.imports_of({path})
    return known


def is_near_float16(project: Project, path: str, tree: ast.Module) -> bool:
    """Whether a file, whose syntax tree is given, one that imports it, or what one of these imports is in float16.

    Who uses a file that nobody imports is not known: then whether any beside it is. Of one that is looked at alone,
    any may be. What trains its own modules, and says nothing of float16, trains them in float32. A library for which a
    file is an example or a test may work in float16 without that file.
    """
    here = os.path.abspath(path)
    if here in project.float16:
        project.low[here] = is_low(tree)
    if project.low.get(here):
        return True
    if _trains(tree):
        return False
    others = project.float16 - {here}
    project.whole = project.whole or project.knows_all()
    if not others or not project.files or not project.knows_all():
        return any(_is_low(project, other) for other in sorted(others))
    above, users, work = {here}, 0, [here]
    while work:
        at = work.pop()
        # A package offers what lies in it, and uses it no more than those who import the package for something else.
        if at == here or not _only_offers(at):
            users += 1
            reached = [other for other in others & _reached_from(project, at) if _is_in_reach(other, here)]
            if any(_is_low(project, other) for other in sorted(reached)):
                return True
        for other in project.importers.of(_stem(at), project.members):
            if other not in above and at in project.imported_by(other):
                above.add(other)
                work.append(other)
    beside = {other for other in others if os.path.dirname(other) == os.path.dirname(here)}
    return users == 1 and any(_is_low(project, other) for other in sorted(beside))


def _only_offers(path: str) -> bool:
    """Whether a file gives others what it imports, and does nothing with that itself."""
    if os.path.basename(path) != "__init__.py":
        return False
    return re.search(rb"^[ \t]*(?:class|def)\s", source_files.load_or_nothing(path), re.MULTILINE) is None


def _trains(tree: ast.Module) -> bool:
    """Whether a file defines modules and runs their backward itself."""
    nodes = walk(tree)
    return any(isinstance(node, ast.FunctionDef) and node.name == "forward" for node in nodes) and any(
        isinstance(node, ast.Call) and tail(node.func) == "backward" for node in nodes
    )


def _is_in_reach(other: str, here: str) -> bool:
    """Whether what is imported as a file is may import another: that it lies where that one's imports begin."""
    directory = os.path.dirname(other)
    top = package_top(directory)
    return here.startswith((top if top != directory else os.path.dirname(top)) + os.sep)


def _is_low(project: Project, path: str) -> bool:
    """Whether a file, which mentions float16, may compute in it: any may that does not parse."""
    known = project.low.get(path)
    if known is None:
        tree = _parsed(path, project.largest)
        known = project.low[path] = tree is None or is_low(tree)
    return known


def _parsed(path: str, largest: int) -> ast.Module | None:
    """The syntax tree of a file; None where it cannot be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = programs.code(path, programs.load(path, largest))
            refuse_dense(code.decode("utf-8", "replace"), largest)
            return ast.parse(code)
    except (source_files.Unreadable, SyntaxError, ValueError, RecursionError):
        return None


def _stem(path: str) -> str:
    """The last part of the name that a file is imported by."""
    stem = os.path.basename(path).removesuffix(".py")
    return stem if stem != "__init__" else os.path.basename(os.path.dirname(path))
