"""Names of modules: what the globals of a file hold, and what an import gives from another file of the tree."""

from __future__ import annotations

import ast
import os
from abc import abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Items

from ..project.module import Imported, Module
from ..project.project import is_spoken_for
from ..project.syntax import walk
from .interpreter import Interpreter
from .values import Const, Frame, ImportedValue, ModuleValue, Named, Value

BUILTINS = frozenset(
    "abs all any bool callable chain dict divmod enumerate exit filter float format getattr hasattr id int isinstance "
    "issubclass iter len list map max min next open print quit range repr reversed round set setattr sorted str sum "
    "super tuple type vars zip".split()
)
#: Imported names in the value of a global, above which it is a table of them, and not read.
LISTED = 8


class Modules(Interpreter):
    """Looks names up, through imports into other files of the tree."""

    @abstractmethod
    def read(self, statements: Items[ast.stmt]) -> None: ...

    def look_up(self, name: str) -> Value | None:
        """The value of a name where the reader is, None where it has none."""
        frame = self.state.frame
        while True:
            value = frame.vars.get(name)
            if value is not None:
                return self._loaded(frame, name) if isinstance(value, ImportedValue) else value
            if frame.parent is None:
                break
            frame = frame.parent
        home = self.home(self.state.frame.module)
        return self.global_value(home, name)

    def global_value(self, home: Frame, name: str) -> Value | None:
        """The value that a module gives a name. Another file's statements are read once their names are asked for."""
        if name not in home.vars and home is not self.globals:
            self._bind_global(home, name)
        value = home.vars.get(name)
        if isinstance(value, ImportedValue):
            return self._loaded(home, name)
        if value is None and home.module.stars and name not in BUILTINS:
            for star in home.module.stars:
                value = self._from_module(star._replace(name=name), home.module)
                if value is not None:
                    home.vars[name] = value
                    break
        return value

    def at_home(self, module: Module, act: Callable[[], Value | None]) -> Value | None:
        """What is found among the globals of a module."""
        outer, self.state.frame = self.state.frame, self.home(module)
        value = act()
        self.state.frame = outer
        return value

    def home(self, module: Module) -> Frame:
        """The globals of a file."""
        if module is self.module:
            return self.globals
        made = self.homes.get(module.path)
        if made is None:
            made = self.homes[module.path] = Frame(None, None, None, module)
        return made

    def _bind_global(self, home: Frame, name: str) -> None:
        """Read the statements of another file that give a name its value: as they were read when it was imported."""
        key = (home.module.path, name)
        statements = home.module.bindings.get(name)
        if statements is None or key in self.binding:
            return
        if any(_lists_imports(statement, home.module) for statement in statements):
            home.vars[name] = self.opaque(("global", *key), name)
            return
        self.binding.add(key)
        active, self.active = self.active, []

        def act() -> None:
            self.state.frame, self.state.guarded, self.state.trying = home, 0, 0
            self.state.path, self.state.loops, self.state.open, self.state.unwind = [], [], [], []
            self.state.maybe_open = self.state.no_grad = 0
            self.read(statements)

        self.unrecorded(act)
        self.active = active
        value = home.vars.get(name)
        if isinstance(value, Const) and isinstance(value.value, (bool, int, float)):
            # A setting: people change these, and other files may have.
            home.vars[name] = self.opaque(("global", *key), name)
        self.binding.discard(key)

    def imported(self, origin: Imported) -> Value:
        """What an import gives a name to, not looked at before somebody asks."""
        shim = self.state.shims + self.state.trying > 0
        if not is_spoken_for(origin) and self.tree.leads(origin, self.state.frame.module.path):
            return ImportedValue(origin, shim=shim)
        return _named(origin, shim=shim)

    def _loaded(self, frame: Frame, name: str) -> Value:
        """The value of an imported name, kept for the next time."""
        value = frame.vars[name]
        if isinstance(value, ImportedValue):
            # While it is looked for, it is what it would be if it were not found.
            frame.vars[name] = _named(value.origin, shim=value.shim)
            found = self._from_module(value.origin, frame.module) if self.module.trains else None
            if found is not None:
                frame.vars[name] = found
        return frame.vars[name]

    def _from_module(self, origin: Imported, importer: Module) -> Value | None:
        """What an import in a file leads to, None where that is not in the tree, or of no use."""
        path = self.tree.find(origin.module, importer.path, origin.level)
        if path is None:
            return None
        found = self._module_at(path, _dotted(origin._replace(name="")), origin.name)
        return found if found is None or not origin.name else self.member(found, origin.name)

    def _module_at(self, path: str, dotted: str, name: str = "") -> ModuleValue | None:
        """The module at a path; None where it, and what it has by a name from other files, can be of no use."""
        if not path.endswith(".py"):
            return ModuleValue(path, None, dotted)
        useful = self.tree.helps(path) or (name and self.tree.hands_on(path, name))
        module = self.tree.module(path) if useful else None
        return ModuleValue(path, module, dotted) if module is not None else None

    def member(self, value: ModuleValue, name: str) -> Value | None:
        """A name in a module, or a module in a package."""
        if value.module is not None:
            found = self.global_value(self.home(value.module), name)
            if found is not None:
                return found
        last = os.path.basename(value.path)
        if last.endswith(".py") and last != "__init__.py":
            return None
        path = self.tree.find(name, value.path if last == "__init__.py" else os.path.join(value.path, "__init__.py"), 1)
        return self._module_at(path, f"{value.name}.{name}") if path is not None else None


def _lists_imports(statement: ast.stmt, module: Module) -> bool:
    """Whether a statement gives a name a table of what other files define: reading it would read all of these."""
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
        return False
    names = {node.id for node in walk(statement.value) if isinstance(node, ast.Name)}
    return len(names & module.imports.keys()) > LISTED


def _dotted(origin: Imported) -> str:
    return "." * origin.level + ".".join(filter(None, (origin.module, origin.name)))


def _named(origin: Imported, *, shim: bool) -> Named:
    value = Named(_dotted(origin))
    value.shim = shim
    return value
