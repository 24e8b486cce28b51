"""Global and imported names: the globals of a file, and the values that imports bind from other project files."""

from __future__ import annotations

import ast
import os

from ...protocol import torch_api
from ..project.module import ImportedName, Module
from ..project.project import is_library_import
from ..project.syntax_marks import is_constant_name, number_marks
from .interpreter import Interpreter
from .source_text import names_in
from .values.containers import MappingValue, SequenceValue
from .values.definitions import ExternalName, Frame, Instance, LazyImport, ModuleValue
from .values.value import EMPTY, NONE, Const, UnknownValue, Value

BUILTINS = frozenset(
    "abs all any bool callable chain dict divmod enumerate exec exit filter float format getattr hasattr id int "
    "isinstance issubclass iter len list map max min next open print quit range repr reversed round set setattr sorted "
    "str sum super tuple type vars zip".split()
)
#: Maximum number of imported names in the value of a global. A larger table of imports is not analyzed.
MAX_LISTED_IMPORTS = 8
#: Maximum number of statements that fill a registry. A larger registry keeps what its first statement holds.
MAX_FILLING_STATEMENTS = 16


def look_up(interp: Interpreter, name: str) -> Value | None:
    """Return the value of a name in the current frame, or None."""
    frame = interp.state.frame
    while True:
        value = frame.vars.get(name)
        if value is not None:
            if frame.rebound_names and name in frame.rebound_names and isinstance(value, Const):
                return _rebound_value(interp, frame, value, name)
            return _load_import(interp, frame, name) if isinstance(value, LazyImport) else value
        if frame.parent is None:
            break
        frame = frame.parent
    home = globals_of(interp, interp.state.frame.module)
    return _global_value(interp, home, name)


def _rebound_value(interp: Interpreter, frame: Frame, value: Const, name: str) -> UnknownValue:
    """Return the value of a name that other functions assign: a constant is only the first value.

    A number may be another one in each iteration. All else is the same question everywhere, as for a setting.
    """
    is_number = type(value.value) in (int, float)
    loops = interp.current_loops() if is_number else EMPTY
    made = interp.unknown_value(("rebound", frame.module.path, frame.name, name, loops), name, loops)
    made.count = made.count._replace(is_counter=type(value.value) is int)
    return made


def _global_value(interp: Interpreter, home: Frame, name: str) -> Value | None:
    """Return the value of a global, or None. The statements of another file run when their names are needed."""
    if name not in home.vars and home is not interp.globals:
        _bind_global(interp, home, name)
    value = home.vars.get(name)
    if home.rebound_names and name in home.rebound_names and isinstance(value, Const):
        return _rebound_value(interp, home, value, name)
    if isinstance(value, LazyImport):
        return _load_import(interp, home, name)
    if value is None and home.module.star_imports and name not in BUILTINS:
        value = _find_in_star_imports(interp, home, name)
    return value


def _find_in_star_imports(interp: Interpreter, home: Frame, name: str) -> Value | None:
    """Return the value that ``from module import *`` binds to a name, or None. Import cycles end the search.

    Files without the name are not parsed: a package may star-import all of its files.
    """
    key = (home.module.path, f"* {name}")
    if key in interp.pending_names:
        return None
    interp.pending_names.add(key)
    found = (
        _load_from_module(interp, star._replace(name=name), home.module)
        for star in home.module.star_imports
        if _may_star_bind(interp, star, home.module, name)
    )
    value = next((each for each in found if each is not None), None)
    interp.pending_names.discard(key)
    if value is not None:
        home.vars[name] = value
    return value


def _may_star_bind(interp: Interpreter, star: ImportedName, importer: Module, name: str) -> bool:
    """Return True if the file or package of a star import may bind a name."""
    path = interp.project.find_import(star.module, importer.path, star.level)
    if path is None or not path.endswith(".py") or os.path.basename(path) == "__init__.py":
        # A package may also have a module of this name.
        return path is not None
    interp.project.dependencies.add(path)
    return interp.project.helper_exports.may_bind(path, name)


def globals_of(interp: Interpreter, module: Module) -> Frame:
    """Return the frame of the globals of a file."""
    if module is interp.module:
        return interp.globals
    made = interp.globals_by_path.get(module.path)
    if made is None:
        made = interp.globals_by_path[module.path] = Frame(None, None, None, module)
    return made


def _bind_global(interp: Interpreter, home: Frame, name: str) -> None:
    """Execute the statements of another file that bind a name, as the import did."""
    key = (home.module.path, name)
    statements = home.module.bindings.get(name)
    if statements is None or key in interp.pending_names:
        return
    if any(_lists_imports(statement, home.module) for statement in statements):
        home.vars[name] = interp.unknown_value(("global", *key), name)
        return
    interp.pending_names.add(key)
    active, interp.active_functions = interp.active_functions, []

    def execute_bindings(statements: list[ast.stmt]) -> None:
        interp.state.frame, interp.state.try_depth, interp.state.fallback_try_depth = home, 0, 0
        interp.state.path_condition, interp.state.loops, interp.state.open_regions, interp.state.unwind_actions = (
            [],
            [],
            [],
            [],
        )
        interp.state.possible_regions = interp.state.no_grad = 0
        interp.execute_block(statements)

    interp.without_events(lambda: execute_bindings(statements))
    value = home.vars.get(name)
    if isinstance(value, (MappingValue, SequenceValue, Instance)):
        # An import also executes what fills a registry.
        filling = home.module.filling_statements(name)
        if 0 < len(filling) <= MAX_FILLING_STATEMENTS:
            interp.without_events(lambda: execute_bindings(filling))
            value = home.vars.get(name)
    interp.active_functions = active
    if value is not None and isinstance(value.value, (bool, int, float)):
        # A setting: users change settings, and other files may assign them.
        home.vars[name] = interp.unknown_value(("global", *key), name)
    interp.pending_names.discard(key)


def import_value(interp: Interpreter, origin: ImportedName) -> Value:
    """Return the value of an imported name. An import from the project stays unresolved until the first use."""
    version_fallback = interp.state.fallback_depth + interp.state.fallback_try_depth > 0
    if not is_library_import(origin) and interp.project.is_local_import(origin, interp.state.frame.module.path):
        return LazyImport(origin, version_fallback=version_fallback)
    return ExternalName(_dotted_import(origin), version_fallback=version_fallback)


def _load_import(interp: Interpreter, frame: Frame, name: str) -> Value:
    """Return the value of an imported name, and keep the resolved value in the frame."""
    value = frame.vars[name]
    if isinstance(value, LazyImport):
        # During the search, the name has the value of a failed search.
        frame.vars[name] = ExternalName(
            _dotted_import(value.imported_name), version_fallback=value.version_fallback, is_of_project=True
        )
        is_read = interp.module.may_train or interp.module.makes_low or interp.loads_any_file
        found = _load_from_module(interp, value.imported_name, frame.module) if is_read else None
        if found is None or isinstance(found, UnknownValue):
            found = _imported_number(interp, value.imported_name, frame.module) or found
        if found is not None:
            frame.vars[name] = found
    return frame.vars[name]


def load_any_import(interp: Interpreter, name: str, module: Module) -> Value | None:
    """Return the value of a name that a module imports from the project, also from a file without relevant code."""
    origin = module.imports.get(name)
    if origin is None:
        return None
    outer, interp.loads_any_file = interp.loads_any_file, True
    found = interp.without_events(lambda: _load_from_module(interp, origin, module) or NONE)
    interp.loads_any_file = outer
    return found


def _imported_number(interp: Interpreter, origin: ImportedName, importer: Module) -> Value | None:
    """Return a number beyond float16 that another file of the project defines, such as the fill of a mask, or None."""
    if not (interp.assumed_dtype or is_constant_name(origin.name)):
        return None
    path = interp.project.find_import(origin.module, importer.path, origin.level) if origin.name else None
    return constant_at(interp, path, origin.name) if path is not None else None


def constant_at(interp: Interpreter, path: str, name: str) -> Value | None:
    """Return the number beyond float16 that a file of the project assigns to a name, once and for all, or None."""
    if not path.endswith(".py"):
        return None
    interp.project.dependencies.add(path)
    number = interp.project.helper_exports.number_at(path, name)
    return Const(number) if number is not None and number_marks(number) else None


def is_version_flag(interp: Interpreter, name: str) -> bool:
    """Return True if a name is a constant of another file of the project that compares the version of a library."""
    module = interp.state.frame.module
    origin = module.imports.get(name)
    if origin is None or not is_constant_name(origin.name) or not isinstance(look_up(interp, name), ExternalName):
        return False
    path = interp.project.find_import(origin.module, module.path, origin.level)
    if path is None or not path.endswith(".py"):
        return False
    interp.project.dependencies.add(path)
    return interp.project.helper_exports.asks_version_at(path, origin.name)


def _load_from_module(interp: Interpreter, origin: ImportedName, importer: Module) -> Value | None:
    """Return the value that an import refers to, or None if it is outside the project or not relevant."""
    path = interp.project.find_import(origin.module, importer.path, origin.level)
    if path is None:
        return None
    found = _module_at(interp, path, _dotted_import(origin._replace(name="")), origin.name)
    return found if found is None or not origin.name else module_member(interp, found, origin.name)


def _module_at(interp: Interpreter, path: str, dotted: str, name: str = "") -> ModuleValue | None:
    """Return the module at a path. None if neither the module nor its re-exports under ``name`` are relevant."""
    if not path.endswith(".py"):
        return ModuleValue(path, None, dotted)
    # A file that trains nothing uses other files only for what low inputs spoil.
    follows = interp.module.may_train and (
        interp.project.is_relevant_file(path) or (name and interp.project.leads_to_relevant_file(path, name))
    )
    useful = (
        interp.loads_any_file or follows or (interp.module.makes_low and interp.project.may_round_inputs(path, name))
    )
    module = interp.project.module_at(path) if useful else None
    return ModuleValue(path, module, dotted) if module is not None else None


def module_member(interp: Interpreter, value: ModuleValue, name: str) -> Value | None:
    """Return the value of a name in a module, or a module of a package, or None."""
    if value.module is not None:
        found = _global_value(interp, globals_of(interp, value.module), name)
        if found is not None:
            return found
    last = os.path.basename(value.path)
    if last.endswith(".py") and last != "__init__.py":
        return None
    path = interp.project.find_import(
        name, value.path if last == "__init__.py" else os.path.join(value.path, "__init__.py"), 1
    )
    return _module_at(interp, path, f"{value.name}.{name}") if path is not None else None


def dotted_name(interp: Interpreter, node: ast.AST) -> str | None:
    """Return the dotted name of an annotation or a base class, or None."""
    if isinstance(node, ast.Name):
        value = look_up(interp, node.id)
        if isinstance(value, ExternalName):
            return value.name
        return torch_api.BARE.get(node.id) if value is None else None
    if isinstance(node, ast.Attribute):
        head = dotted_name(interp, node.value)
        return f"{head}.{node.attr}" if head else None
    return None


def _lists_imports(statement: ast.stmt, module: Module) -> bool:
    """Return True if a statement binds a table of names from other files. Its analysis would load all these files."""
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
        return False
    return len(names_in(statement.value) & module.imports.keys()) > MAX_LISTED_IMPORTS


def _dotted_import(origin: ImportedName) -> str:
    return "." * origin.level + ".".join(filter(None, (origin.module, origin.name)))
