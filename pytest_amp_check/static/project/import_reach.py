"""Reach of imports: autocast and float16 that a file gets from imports, importers, and the importers' imports."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Iterator, Mapping

from ...protocol.sites import is_test_file
from ..sources import code_blocks, source_files
from ..sources.newer_syntax import explain_rejection
from ..sources.patterns.code import Code
from ..sources.patterns.low_precision import MANUAL_LOW_WORDS
from ..sources.tokens import refuse_dense
from .import_search import iterate_imports
from .project import Project
from .region_entry import (
    AutocastEntries,
    RegionUser,
    collect_region_users,
    has_region,
    may_use_float16,
    scales_with_apex,
    trains_own_modules,
)
from .region_entry import find_autocast_entries as entering_in
from .roots import package_top
from .syntax import tail_name, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .module import Class, Module

#: Maximum number of direct and indirect imports of a named file that are searched for autocast entries.
MAX_REACHED_FILES = 400
#: Words of files that may make a model cast.
CASTING_WORDS = (b"autocast", *MANUAL_LOW_WORDS)


def iterate_autocast_entries(project: Project, path: str, tree: ast.Module) -> Iterator[AutocastEntries]:
    """Yield the autocast entries for a file: of the file with this syntax tree, of imports and of importers.

    A model may be of any class that the program may import. Each result contains the earlier results. A caller with
    enough knowledge stops, because parsing another file takes longer than all other work.
    """
    absolute = os.path.abspath(path)
    found = entering_in(tree)._replace(called_in_regions=frozenset())
    found = found._replace(is_everywhere=found.is_everywhere or found.initializes_apex)
    yield found
    has_own_apex = scales_with_apex(walk(tree))
    project.depends_on_all = True
    if not project.is_complete():
        below, above, others = _imports_on_disk(project, absolute), set[str](), _sibling_files(absolute)
    else:
        others = {os.path.abspath(other) for other in project.autocast_files} - {absolute}
        below = others & project.transitive_imports({absolute}) if others else set()
        above = {other for other in others if absolute in _imports_below(project, other)}
        others = below | above | _find_partners(project, absolute, others - below - above)
    # Related files first: they are more likely to have an entry.
    near = sorted(below | above)
    for other in (*near, *sorted(others.difference(near))):
        known = _autocast_entries_of(project, other)
        if known.initializes_apex and not has_own_apex:
            known = known._replace(is_everywhere=True)
        if known.trains_itself and other not in below | above:
            continue  # another program: it passes its modules to nobody
        if known.is_everywhere and other not in below and _is_rejected(other, project.largest):
            continue  # nothing runs a file with a syntax error; an import is mended before this file runs
        if (
            (known.is_everywhere or "" in known.modules)
            and other not in below
            and known.runs_backward
            and not _names_user(project, absolute, tree, other)
        ):
            continue  # a script with its own loop, which imports the file only as a part of a package
        found = AutocastEntries(
            found.names | known.names if other in below else found.names,
            found.modules | known.modules,
            found.called_in_regions | known.called_in_regions if other in above else found.called_in_regions,
            found.is_everywhere or (known.is_everywhere and other in below | above),
        )
        yield found


def _names_user(project: Project, start: str, tree: ast.Module, script: str) -> bool:
    """Return True if a script contains the name of a function or a class of a file, or of a user of these."""
    names = {user.name for user in collect_region_users(tree)}
    for other in iterate_users(project, start):
        if other != script:
            names.update(user.name for user in users_of(project, other) if not names.isdisjoint(user.names))
    data = source_files.load_or_nothing(script, project.largest)
    return any(name.encode() in data for name in names)


def _find_partners(project: Project, start: str, others: set[str]) -> set[str]:
    """Return the files that another import may connect with a file: imports of importers, or files that code names.

    A registry or a configuration finds the files of the same package, and the files in the folder of a script or below.
    """
    folder = os.path.dirname(start)
    above = package_top(folder)
    top = os.path.join(above, os.path.relpath(folder, above).partition(os.sep)[0]) if above != folder else folder
    found = {other for other in others if other.startswith(top + os.sep)}
    left = others - found
    for user in iterate_users(project, start) if left else ():
        found |= left & _imports_below(project, user)
    return found


def _autocast_entries_of(project: Project, path: str) -> AutocastEntries:
    """Return the autocast entries of a file; an unreadable file may enter autocast everywhere."""
    known = project.entries_by_path.get(path)
    if known is None:
        tree = parse_file(path, project.largest)
        known = project.entries_by_path[path] = (
            AutocastEntries(is_everywhere=True) if tree is None else entering_in(tree)
        )
    return known


def _is_rejected(path: str, largest: int) -> bool:
    """Return True if every Python rejects the syntax of a file, so that nothing runs the file."""
    try:
        text = code_blocks.code_bytes(path, code_blocks.load_source(path, largest)).decode("utf-8", "replace")
    except source_files.Unreadable:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        return not explain_rejection(text, error).python_version
    except (ValueError, RecursionError):
        return False
    return False


def _imports_on_disk(project: Project, start: str) -> set[str]:
    """Return the direct and indirect imports of a file, at any location, that mention autocast."""
    reached, work = {start}, [start]
    found: set[str] = set()
    while work and len(reached) < MAX_REACHED_FILES:
        path = work.pop()
        # The imports of the first file are searched for in the other files, too.
        for other in iterate_imports(project, path):
            if other not in reached:
                reached.add(other)
                work.append(other)
                if any(word in source_files.load_or_nothing(other, project.largest) for word in CASTING_WORDS):
                    found.add(other)
    return found


def _sibling_files(start: str) -> set[str]:
    """Return the files beside a single file that may cast: models often lie beside their training script."""
    directory = os.path.dirname(start)
    names = os.listdir(directory) if os.path.isdir(directory) else []
    files = {os.path.join(directory, name) for name in names if name.endswith(".py")} - {start}
    return {file for file in files if any(word in source_files.load_or_nothing(file) for word in CASTING_WORDS)}


def _imports_below(project: Project, path: str) -> set[str]:
    """Return a file with all its direct and indirect imports."""
    known = project.imports_below.get(path)
    if known is None:
        known = project.imports_below[path] = project.transitive_imports({path})
    return known


def is_near_float16(project: Project, path: str, tree: ast.Module) -> bool:
    """Return True if a file, an importer of the file, or an import of one of these may compute in float16.

    ``tree`` is the syntax tree of the file. For a file without importers, the files in the same folder count. For a
    single file, every file counts. A file that trains its own modules without a name of float16 trains in float32. A
    library may use float16 independently of examples and tests.
    """
    start = os.path.abspath(path)
    if start in project.float16_files:
        project.float16_by_path[start] = may_use_float16(tree)
    if project.float16_by_path.get(start):
        return True
    if trains_own_modules(walk(tree)):
        return False
    others = project.float16_files - {start}
    project.depends_on_all = project.depends_on_all or project.is_complete()
    if not others or not project.files or not project.is_complete():
        return any(_may_use_float16(project, other) for other in sorted(others))
    users = 0
    for current in iterate_users(project, start):
        # A package that only re-exports a file does not use it, unlike files that import the package for another
        # reason.
        if current == start or not _only_reexports(current):
            users += 1
            reached = [
                other for other in others & _imports_below(project, current) if _is_in_reach(project, other, start)
            ]
            if any(_may_use_float16(project, other) for other in sorted(reached)):
                return True
    if _is_registered(tree) and is_package_near_float16(project, path):
        return True
    beside = {other for other in others if os.path.dirname(other) == os.path.dirname(start)}
    return users == 1 and any(_may_use_float16(project, other) for other in sorted(beside))


def iterate_users(project: Project, start: str) -> Iterator[str]:
    """Yield a file, its importers, and the importers of these."""
    above, work = {start}, [start]
    while work:
        current = work.pop()
        yield current
        for other in project.importers.importers_of(_import_stem(current), project.members):
            if other not in above and current in project.direct_imports(other):
                above.add(other)
                work.append(other)


def users_of(project: Project, path: str) -> list[RegionUser]:
    """Return the classes and functions of a file, except data sets."""
    known = project.users_by_path.get(path)
    if known is None:
        tree = parse_file(path, project.largest)
        known = project.users_by_path[path] = [] if tree is None else collect_region_users(tree)
    return known


def _is_registered(tree: ast.Module) -> bool:
    """Return True if a registry gets a class or a function of a file: the training finds it there by name."""
    defined = (node for node in walk(tree) if isinstance(node, (ast.ClassDef, ast.FunctionDef)))
    return any("register" in tail_name(_called(each)) for node in defined for each in node.decorator_list)


def _called(decorator: ast.expr) -> ast.expr:
    return decorator.func if isinstance(decorator, ast.Call) else decorator


def chooses_model_dtype(project: Project, path: str) -> bool:
    """Return True if code of the package of a file, or training that uses the package, chooses the dtype of a model."""
    return next(_iterate_users_of_package(project, path, project.low_model_files), None) is not None


def chooses_model_dtype_here(project: Project, path: str) -> bool:
    """Return True if code of the package of a file chooses the dtype of a model, or regions are near."""
    top = package_top(os.path.dirname(os.path.abspath(path)))
    return top in project.low_model_files or not chooses_model_dtype(project, path)


def casts_models(project: Project, path: str) -> bool:
    """Return True if such code casts a model to a low dtype, or lets its users do so."""
    casts = next(_iterate_users_of_package(project, path, project.casting_files), None) is not None
    return casts or chooses_model_dtype(project, path)


def trains_cast_models(project: Project, path: str) -> bool:
    """Return True if code that trains makes a model low that uses the package of a file."""
    return any(
        _trains(project, other)
        for files in (project.casting_files, project.low_model_files)
        for other in _iterate_users_of_package(project, path, files)
    )


def may_choose_float16(project: Project, path: str) -> bool:
    """Return True if a choice of the dtype of a model that reaches a file is not always bfloat16."""
    project.depends_on_all = True
    return any(
        Code(source_files.load_or_nothing(other, project.largest)).may_choose_float16
        for other in _iterate_users_of_package(project, path, project.low_model_files)
    )


def trains_without_regions(project: Project) -> bool:
    """Return True if a file chooses a low dtype of a model, and no file but tests names autocast."""
    if project.trains_alone is None:
        project.trains_alone = bool(project.low_model_files) and not any(
            b"autocast" in source_files.load_or_nothing(path, project.largest)
            for path in project.autocast_files
            if not is_test_file(path)
        )
    return project.trains_alone


def computes_low_without_region(project: Project, path: str) -> bool:
    """Return True if training that uses the package of a file makes a model low by an engine or a policy.

    Without a region, nothing computes the loss of such a model in float32.
    """
    if not trains_without_regions(project):
        return False
    for other in _iterate_users_of_package(project, path, project.low_model_files):
        data = source_files.load_or_nothing(other, project.largest)
        if _LOW_TRAINING.search(data) is not None:
            return _WIDE_LOGITS.search(data) is None
    return False


def _iterate_users_of_package(project: Project, path: str, files: Mapping[str, set[str]]) -> Iterator[str]:
    """Yield those of some files that are in the package of a file, and those that train with the package.

    ``files`` are listed by the top directory of their package. A registry or a configuration may connect the training
    with the file.
    """
    start = os.path.abspath(path)
    folder = os.path.dirname(start)
    top = package_top(folder)
    package = os.path.join(folder if folder == top else os.path.join(top, folder[len(top) + 1 :].split(os.sep)[0]), "")
    yield from sorted(files.get(top, ()))
    for other_top, others in sorted(files.items()):
        # The top directories are part of what a cached result depends on; imports are not.
        project.depends_on_all = project.depends_on_all or other_top != top
        for other in sorted(others) if other_top != top else ():
            if is_test_file(other) or not _trains(project, other):
                continue
            below = _imports_below(project, other)
            if start in below or any(each.startswith(package) for each in below if each != other):
                yield other


#: Arguments of a call, with one level of calls inside.
_ARGUMENTS = rb"\(([^()\n]{0,200}(?:\([^()\n]{0,80}\)[^()\n]{0,200}){0,6})\)"
_WIDENED = re.compile(rb"\.(?:float|double)\(\)|\.to\((?:dtype ?= ?)?torch\.float(?:32)?\b")


def gets_float32(project: Project, path: str, function: str) -> bool:
    """Return True if all files that import a file cast the arguments of a function to float32 where they call it."""
    if not function.isidentifier():
        return False
    call = re.compile(rb"(?<![\w.])(?:\w+\.)?" + function.encode() + _ARGUMENTS)
    start = os.path.abspath(path)
    found: list[bytes] = []
    for other in project.importers.importers_of(_import_stem(start), project.members):
        data = source_files.load_or_nothing(other, project.largest)
        if function.encode() in data and start in project.direct_imports(other):
            found += call.findall(data)
    return bool(found) and all(_WIDENED.search(arguments) is not None for arguments in found)


def is_used_by_module(project: Project, module: Module, function: str) -> bool:
    """Return True for a method of a module, and for a function that a file with modules calls."""
    owners = [cls for cls in module.classes.values() if cls.name == function.partition(".")[0]]
    if owners:
        return any(map(_has_forward, owners))
    name = function.encode()
    if any(_has_forward(each) for each in module.classes.values()) and module.text.encode().count(name) > 1:
        return True
    start = os.path.abspath(module.path)
    for other in project.importers.importers_of(_import_stem(start), project.members):
        data = source_files.load_or_nothing(other, project.largest)
        if b"def forward(" in data and name in data and start in project.direct_imports(other):
            return True
    return False


def _has_forward(cls: Class) -> bool:
    return "forward" in cls.methods or any(tail_name(base).endswith("Module") for base in cls.bases)


#: An engine of DeepSpeed, and a policy of FSDP2 that may compute in low precision.
_LOW_TRAINING = re.compile(
    rb"deepspeed\.initialize\(|MixedPrecisionPolicy\((?![^\n]{0,80}param_dtype ?= ?torch\.float(?:32|64)\b)"
)
#: Logits that code casts to float32 before it passes them on.
_WIDE_LOGITS = re.compile(rb"logits\b[^\n=(]{0,40}" + _WIDENED.pattern)


def _trains(project: Project, path: str) -> bool:
    """Return True if a file makes an optimizer for a model, or does a part of a training step."""
    code = Code(source_files.load_or_nothing(path, project.largest))
    return code.optimizes_model or code.does_training_step


def is_package_near_float16(project: Project, path: str) -> bool:
    """Return True if a file of the same package, or training that imports a file, may compute in float16.

    A registry or a configuration may connect two files of a package that do not import each other.
    """
    start = os.path.abspath(path)
    top = _package_of(project, start)
    project.depends_on_all = True
    files = sorted(project.float16_files)
    if any(_may_use_float16(project, other) for other in files if _package_of(project, other) == top):
        return True
    training = (other for other in files if not is_test_file(other) and _trains(project, other))
    return any(start in _imports_below(project, other) and _may_use_float16(project, other) for other in training)


def is_near_region(project: Project, path: str, tree: ast.Module) -> bool:
    """Return True if a file, an importer of the file, or training in its package may enter an autocast region."""
    own = entering_in(tree)
    if (own.names or own.called_in_regions or own.is_everywhere) and has_region(tree):
        return True
    start = os.path.abspath(path)
    top = _package_of(project, start)
    project.depends_on_all = True
    for other in sorted(project.autocast_files):
        absolute = os.path.abspath(other)
        if is_test_file(other):
            continue
        is_near = start in _imports_below(project, absolute)
        if not is_near and _package_of(project, absolute) == top:
            # A registry may give the training a model. A model that enters a region around its own parts runs no other.
            is_near = Code(source_files.load_or_nothing(absolute, project.largest)).does_training_step
        if absolute != start and is_near:
            entries = _autocast_entries_of(project, absolute)
            if (entries.names or entries.called_in_regions) and _has_region(project, absolute):
                return True
    return False


def _has_region(project: Project, path: str) -> bool:
    """Return True if a file that mentions autocast does more than clear the cache of a region."""
    if b"autocast_cache" not in source_files.load_or_nothing(path, project.largest):
        return True
    tree = parse_file(path, project.largest)
    return tree is None or has_region(tree)


def _only_reexports(path: str) -> bool:
    """Return True if a file only re-exports imports and does not use them."""
    if os.path.basename(path) != "__init__.py":
        return False
    return re.search(rb"^[ \t]*(?:class|def)\s", source_files.load_or_nothing(path), re.MULTILINE) is None


def _is_in_reach(project: Project, other: str, start: str) -> bool:
    """Return True if ``start`` lies below the directory at which imports of ``other`` begin.

    Only then may a file that is imported like ``start`` import ``other``.
    """
    return start.startswith(_import_root(project, other) + os.sep)


def _package_of(project: Project, path: str) -> str:
    """Return the top directory of the package of a file, also of a package without ``__init__.py``."""
    directory = os.path.dirname(path)
    top = package_top(directory)
    root = _import_root(project, path) if top == directory else directory
    below = directory[len(root) + 1 :].split(os.sep)[0]
    return os.path.join(root, below) if below and directory.startswith(root + os.sep) else top


def _import_root(project: Project, path: str) -> str:
    root = project.import_roots.get(path)
    if root is None:
        root = project.import_roots[path] = _find_import_root(project, path)
    return root


def _find_import_root(project: Project, path: str) -> str:
    """Return the directory at which imports of a file begin.

    Without ``__init__.py`` the full name in an import shows the directory.
    """
    directory = os.path.dirname(path)
    top = package_top(directory)
    root = top if top != directory else os.path.dirname(top)
    parts = path.removesuffix(".py").split(os.sep)
    stem = os.fsencode(parts[-1])
    for importer in project.importers.importers_of(parts[-1], project.members):
        for module, name in project.importers.imports_of(importer):
            for dotted in (module, module + b"." + name):
                if not dotted.endswith(stem):
                    continue
                names = os.fsdecode(dotted).split(".")
                above = os.sep.join(parts[: -len(names)])
                if parts[-len(names) :] == names and len(above) < len(root):
                    root = above
    return root


def _may_use_float16(project: Project, path: str) -> bool:
    """Return True if a file that mentions float16 may compute in float16; True for a file that does not parse."""
    known = project.float16_by_path.get(path)
    if known is None:
        tree = parse_file(path, project.largest)
        known = project.float16_by_path[path] = tree is None or may_use_float16(tree)
    return known


def parse_file(path: str, largest: int) -> ast.Module | None:
    """Return the syntax tree of a file, or None for an unreadable file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = code_blocks.code_bytes(path, code_blocks.load_source(path, largest))
            refuse_dense(code.decode("utf-8", "replace"), largest)
            return ast.parse(code)
    except (source_files.Unreadable, SyntaxError, ValueError, RecursionError):
        return None


def _import_stem(path: str) -> str:
    """Return the last part of the module name of a file."""
    stem = os.path.basename(path).removesuffix(".py")
    return stem if stem != "__init__" else os.path.basename(os.path.dirname(path))
