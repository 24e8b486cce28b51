"""Names of modules: what the globals of a file hold, and what an import gives from another file of the tree."""

from __future__ import annotations

import ast
import os

from ...protocol import surface
from ..project.module import Imported, Module
from ..project.project import is_spoken_for
from .interpreter import Interpreter
from .values import Frame, ImportedValue, ModuleValue, Named, Value
from .wording import names_in

BUILTINS = frozenset(
    "abs all any bool callable chain dict divmod enumerate exec exit filter float format getattr hasattr id int "
    "isinstance issubclass iter len list map max min next open print quit range repr reversed round set setattr sorted "
    "str sum super tuple type vars zip".split()
)
#: Imported names in the value of a global, above which it is a table of them, and not read.
LISTED = 8


def look_up(at: Interpreter, name: str) -> Value | None:
    """The value of a name where control is, None where it has none."""
    frame = at.state.frame
    while True:
        value = frame.vars.get(name)
        if value is not None:
            return _loaded(at, frame, name) if isinstance(value, ImportedValue) else value
        if frame.parent is None:
            break
        frame = frame.parent
    home = globals_of(at, at.state.frame.module)
    return _global_value(at, home, name)


def _global_value(at: Interpreter, home: Frame, name: str) -> Value | None:
    """The value that a module gives a name. Another file's statements are read once their names are asked for."""
    if name not in home.vars and home is not at.globals:
        _bind_global(at, home, name)
    value = home.vars.get(name)
    if isinstance(value, ImportedValue):
        return _loaded(at, home, name)
    if value is None and home.module.stars and name not in BUILTINS:
        value = _from_stars(at, home, name)
    return value


def _from_stars(at: Interpreter, home: Frame, name: str) -> Value | None:
    """Return what ``from module import *`` gives a name, or None. Modules that star-import one another end there."""
    key = (home.module.path, f"* {name}")
    if key in at.binding:
        return None
    at.binding.add(key)
    found = (_from_module(at, star._replace(name=name), home.module) for star in home.module.stars)
    value = next((each for each in found if each is not None), None)
    at.binding.discard(key)
    if value is not None:
        home.vars[name] = value
    return value


def globals_of(at: Interpreter, module: Module) -> Frame:
    """The globals of a file."""
    if module is at.module:
        return at.globals
    made = at.homes.get(module.path)
    if made is None:
        made = at.homes[module.path] = Frame(None, None, None, module)
    return made


def _bind_global(at: Interpreter, home: Frame, name: str) -> None:
    """Read the statements of another file that give a name its value: as they were read when it was imported."""
    key = (home.module.path, name)
    statements = home.module.bindings.get(name)
    if statements is None or key in at.binding:
        return
    if any(_lists_imports(statement, home.module) for statement in statements):
        home.vars[name] = at.opaque(("global", *key), name)
        return
    at.binding.add(key)
    active, at.active = at.active, []

    def act() -> None:
        at.state.frame, at.state.guarded, at.state.trying = home, 0, 0
        at.state.path, at.state.loops, at.state.open, at.state.unwind = [], [], [], []
        at.state.maybe_open = at.state.no_grad = 0
        at.read(statements)

    at.unrecorded(act)
    at.active = active
    value = home.vars.get(name)
    if value is not None and isinstance(value.value, (bool, int, float)):
        # A setting: people change these, and other files may have.
        home.vars[name] = at.opaque(("global", *key), name)
    at.binding.discard(key)


def imported(at: Interpreter, origin: Imported) -> Value:
    """What an import gives a name to, not looked at before somebody asks."""
    shim = at.state.shims + at.state.trying > 0
    if not is_spoken_for(origin) and at.project.leads(origin, at.state.frame.module.path):
        return ImportedValue(origin, shim=shim)
    return Named(_dotted(origin), shim=shim)


def _loaded(at: Interpreter, frame: Frame, name: str) -> Value:
    """The value of an imported name, kept for the next time."""
    value = frame.vars[name]
    if isinstance(value, ImportedValue):
        # While it is looked for, it is what it would be if it were not found.
        frame.vars[name] = Named(_dotted(value.origin), shim=value.shim)
        found = _from_module(at, value.origin, frame.module) if at.module.trains else None
        if found is not None:
            frame.vars[name] = found
    return frame.vars[name]


def _from_module(at: Interpreter, origin: Imported, importer: Module) -> Value | None:
    """What an import in a file leads to, None where that is not in the tree, or of no use."""
    path = at.project.find(origin.module, importer.path, origin.level)
    if path is None:
        return None
    found = _module_at(at, path, _dotted(origin._replace(name="")), origin.name)
    return found if found is None or not origin.name else member(at, found, origin.name)


def _module_at(at: Interpreter, path: str, dotted: str, name: str = "") -> ModuleValue | None:
    """The module at a path; None where it, and what it has by a name from other files, can be of no use."""
    if not path.endswith(".py"):
        return ModuleValue(path, None, dotted)
    useful = at.project.helps(path) or (name and at.project.hands_on(path, name))
    module = at.project.module(path) if useful else None
    return ModuleValue(path, module, dotted) if module is not None else None


def member(at: Interpreter, value: ModuleValue, name: str) -> Value | None:
    """A name in a module, or a module in a package."""
    if value.module is not None:
        found = _global_value(at, globals_of(at, value.module), name)
        if found is not None:
            return found
    last = os.path.basename(value.path)
    if last.endswith(".py") and last != "__init__.py":
        return None
    path = at.project.find(name, value.path if last == "__init__.py" else os.path.join(value.path, "__init__.py"), 1)
    return _module_at(at, path, f"{value.name}.{name}") if path is not None else None


def dotted_name(at: Interpreter, node: ast.AST) -> str | None:
    """The dotted name that an annotation or a base class stands for."""
    if isinstance(node, ast.Name):
        value = look_up(at, node.id)
        if isinstance(value, Named):
            return value.name
        return surface.BARE.get(node.id) if value is None else None
    if isinstance(node, ast.Attribute):
        head = dotted_name(at, node.value)
        return f"{head}.{node.attr}" if head else None
    return None


def _lists_imports(statement: ast.stmt, module: Module) -> bool:
    """Whether a statement gives a name a table of what other files define: reading it would read all of these."""
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
        return False
    return len(names_in(statement.value) & module.imports.keys()) > LISTED


def _dotted(origin: Imported) -> str:
    return "." * origin.level + ".".join(filter(None, (origin.module, origin.name)))
