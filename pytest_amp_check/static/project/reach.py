"""What may come into a file from others: through what it imports, what imports it, and what that imports."""

from __future__ import annotations

import ast
import os
import warnings

from ..sources import patterns, programs, source_files
from .entering import Entering
from .entering import entering as entering_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .project import Project

#: Files that one which is named imports, directly or not, which are asked for what enters autocast.
REACH = 400
#: What a file mentions that may make a model cast.
MENTIONS = (b"autocast", b"MixedPrecision")


def entering(project: Project, path: str, tree: ast.Module) -> Entering:
    """What may enter autocast for a file, whose syntax tree is given: it, what it imports, and what imports it.

    A model may be of any class of the tree.
    """
    here = os.path.abspath(path)
    found = entering_in(tree)._replace(within=frozenset())
    project.whole = True
    if not project.knows_all():
        below, above, others = _on_disk(project, here), set[str](), _beside(here)
    else:
        others = {os.path.abspath(other) for other in project.autocast} - {here}
        below = others & project.imports_of({here}) if others else set()
        above = {other for other in others if here in _reached_from(project, other)}
    for other in below | above | others:
        known = _entering_of(project, other)
        found = Entering(
            found.names | known.names if other in below else found.names,
            found.modules | known.modules,
            found.within | known.within if other in above else found.within,
            found.everywhere or (known.everywhere and other in below | above),
        )
    return found


def _entering_of(project: Project, path: str) -> Entering:
    """What enters autocast in a file: everything may, where it does not parse."""
    known = project.entered.get(path)
    if known is None:
        known = Entering(everywhere=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                known = entering_in(ast.parse(programs.code(path, source_files.load(path))))
        except (source_files.Unreadable, SyntaxError, ValueError, RecursionError):
            pass
        project.entered[path] = known
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
                if any(word in source_files.load_or_nothing(other) for word in MENTIONS):
                    found.add(other)
    return found


def _beside(here: str) -> set[str]:
    """The files that mention autocast in the directory of a file that is alone: models lie beside what trains them."""
    directory = os.path.dirname(here)
    names = os.listdir(directory) if os.path.isdir(directory) else []
    files = {os.path.join(directory, name) for name in names if name.endswith(".py")} - {here}
    return {file for file in files if b"autocast" in source_files.load_or_nothing(file)}


def _reached_from(project: Project, path: str) -> set[str]:
    """A file and all that it imports, directly or not."""
    known = project.below.get(path)
    if known is None:
        known = project.below[path] = project.imports_of({path})
    return known


def is_near_float16(project: Project, path: str) -> bool:
    """Whether a file, one that imports it, or what one of these imports speaks of float16.

    Who uses a file that nobody imports, or one that is alone, is not known: then whether any does.
    """
    here, float16 = os.path.abspath(path), project.float16
    if here in float16 or not float16 or not project.files or not project.knows_all():
        return bool(float16)
    project.whole = True
    above, work = {here}, [here]
    while work:
        at = work.pop()
        if not float16.isdisjoint(_reached_from(project, at)):
            return True
        for other in _importers(project).get(_stem(at), ()):
            if other not in above and at in project.imported_by(other):
                above.add(other)
                work.append(other)
    return len(above) == 1


def _importers(project: Project) -> dict[str, list[str]]:
    """The files that import something under a name, by that name; those that do so by names that a run knows, too.

    Every file of the tree is looked at for this, once.
    """
    if not project.named:
        for file in project.files:
            data = source_files.load_or_nothing(file)
            for module, name, _ in patterns.imported(data):
                for last in {module.rpartition(b".")[2], name} - {b""}:
                    project.named.setdefault(last.decode("utf-8", "replace"), []).append(file)
    return project.named


def _stem(path: str) -> str:
    """The last part of the name that a file is imported by."""
    stem = os.path.basename(path).removesuffix(".py")
    return stem if stem != "__init__" else os.path.basename(os.path.dirname(path))
