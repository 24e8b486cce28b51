"""Modules as they are written: their functions and classes, and which of them matter to the protocol."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...protocol.named import NamedTuple
from ...protocol.words import chain
from .roles import Roles
from .syntax import children, walk

_FUNCTIONS = frozenset((ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
_NUMBERS = frozenset((int, float))
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

#: Stand in for what is no identifier: a remainder or a counter, a number that float16 cannot hold, and one that it
#: holds as zero, or with few digits.
COUNTING = "%"
LARGE_NUMBER = "#"
SMALL_NUMBER = "~"


class Imported(NamedTuple):
    """What an import names: ``module`` with ``level`` dots before it, and ``name`` in it, "" for the module itself."""

    module: str
    name: str
    level: int


class Function:
    """A function of the project. ``cls`` is the class whose method it is."""

    __slots__ = (
        "cls",
        "contexts",
        "fragile",
        "generator",
        "manager",
        "module",
        "name",
        "node",
        "saves",
        "strong",
        "words",
    )

    def __init__(self, node: FunctionNode, module: Module, cls: Class | None) -> None:
        self.node = node
        self.module = module
        self.cls = cls
        self.name = getattr(node, "name", "<lambda>")
        self.generator = False
        #: A ``@contextmanager``.
        self.manager = "contextmanager" in self.decorator_names()
        #: Whether it is worth reading by itself.
        self.strong = False
        #: Whether it writes a checkpoint.
        self.saves = False
        #: Whether it may do what low precision spoils.
        self.fragile = False
        self.words: frozenset[str] = frozenset()
        self.contexts: frozenset[str] = frozenset()

    @property
    def qualified_name(self) -> str:
        return f"{self.cls.name}.{self.name}" if self.cls else self.name

    def decorator_names(self) -> Iterator[str]:
        """Last parts of the names of its decorators."""
        for decorator in self.decorators:
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            if isinstance(target, ast.Attribute):
                yield target.attr
            elif isinstance(target, ast.Name):
                yield target.id

    def abstract(self) -> bool:
        """Whether another class is to say what it does."""
        if "abstractmethod" in self.decorator_names():
            return True
        if isinstance(self.node, ast.Lambda):
            return False
        body = [s for s in self.node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
        raised = body[0].exc if len(body) == 1 and isinstance(body[0], ast.Raise) else None
        raised = raised.func if isinstance(raised, ast.Call) else raised
        return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"

    @property
    def decorators(self) -> list[ast.expr]:
        return [] if isinstance(self.node, ast.Lambda) else self.node.decorator_list

    def parameters(self) -> list[ast.arg]:
        args = self.node.args
        return [*args.posonlyargs, *args.args]


#: Decorators and base classes that make a class a record of its annotated fields.
RECORDS = frozenset({"dataclass", "attrs", "define", "frozen", "mutable", "NamedTuple", "TypedDict", "BaseModel"})


class Class:
    """A class of the project: its methods, and where each attribute of its objects is assigned.

    ``changed`` are the attributes that methods other than the constructor assign, ``counted`` those that grow.
    """

    __slots__ = (
        "_assigned",
        "_changed",
        "_counted",
        "_looked",
        "bases",
        "contexts",
        "methods",
        "module",
        "name",
        "node",
        "words",
    )

    def __init__(self, node: ast.ClassDef, module: Module) -> None:
        self.node = node
        self.module = module
        self.name = node.name
        self.bases = node.bases
        self.methods: dict[str, Function] = {}
        self._assigned: dict[str, list[tuple[Function, ast.expr]]] = {}
        self._changed: set[str] = set()
        self._counted: set[str] = set()
        self._looked = False
        self.words: frozenset[str] = frozenset()
        self.contexts: frozenset[str] = frozenset()

    def is_record(self) -> bool:
        """Whether its objects hold the fields that the class declares, and nothing else: a dataclass, a NamedTuple."""
        if "__init__" in self.methods:
            return False
        marks = [d.func if isinstance(d, ast.Call) else d for d in self.node.decorator_list]
        names = {(chain(m) or "").rpartition(".")[2] for m in (*marks, *self.bases)}
        return bool(names & RECORDS)

    @property
    def assigned(self) -> dict[str, list[tuple[Function, ast.expr]]]:
        self._look()
        return self._assigned

    @property
    def changed(self) -> set[str]:
        self._look()
        return self._changed

    @property
    def counted(self) -> set[str]:
        self._look()
        return self._counted

    def _look(self) -> None:
        """Look through the methods for what they assign, once somebody asks."""
        if not self._looked:
            self._looked = True
            for method in self.methods.values():
                self._attributes(method)

    def _attributes(self, method: Function) -> None:
        parameters = method.parameters()
        if not parameters:
            return
        me = parameters[0].arg
        for node in walk(method.node):
            targets: list[ast.expr]
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
                self._changed.add(node.target.attr)
                if isinstance(node.op, ast.Add):
                    self._counted.add(node.target.attr)
                continue
            if isinstance(node, ast.Assign):
                targets, value = node.targets, node.value
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                targets, value = [node.target], node.value
            else:
                continue
            for target in targets:
                pairs = [(target, value)]
                if (
                    isinstance(target, ast.Tuple)
                    and isinstance(value, ast.Tuple)
                    and len(target.elts) == len(value.elts)
                ):
                    pairs = list(zip(target.elts, value.elts, strict=True))
                for left, right in pairs:
                    if isinstance(left, ast.Attribute) and isinstance(left.value, ast.Name) and left.value.id == me:
                        self._assigned.setdefault(left.attr, []).append((method, right))
                        if method.name != "__init__":
                            self._changed.add(left.attr)


class Module:
    """A parsed source file."""

    __slots__ = (
        "_bindings",
        "_roles",
        "aliases",
        "ascii",
        "classes",
        "fragile",
        "functions",
        "identifiers",
        "imports",
        "lines",
        "named",
        "path",
        "shims",
        "stars",
        "text",
        "trains",
        "tree",
        "used",
        "uses",
        "words",
    )

    def __init__(self, path: str, text: str, tree: ast.Module) -> None:
        self.path = path
        self.text = text
        self.tree = tree
        self.ascii = text.isascii()
        self.lines: list[str] | None = None
        self.functions: dict[ast.AST, Function] = {}
        self.classes: dict[ast.AST, Class] = {}
        self.named: dict[str, list[Function]] = {}
        #: Names that stand for others: name -> last parts of what it was given.
        self.aliases: dict[str, set[str]] = {}
        #: Local names of what the file imports, wherever in it.
        self.imports: dict[str, Imported] = {}
        self.stars: list[Imported] = []
        self._bindings: dict[str, list[ast.stmt]] | None = None
        #: Functions that are there for another version of a library.
        self.shims: set[ast.AST] = set()
        self._roles = Roles()
        self._index(tree)
        #: Whether the statements of the module itself may do what low precision spoils.
        self.fragile = False
        #: Whether anything in the file trains.
        self.trains = False
        #: Texts of expressions that the file uses as scalers, optimizers or modules.
        self.uses = self._roles.settled()
        #: The last part of each.
        self.used = frozenset(text.rpartition(".")[2] for text in self.uses)

    def release(self) -> None:
        """Let go of the functions and classes, which know the module: nobody needs it any more."""
        for cls in self.classes.values():
            cls.methods.clear()
            cls._assigned.clear()
        for held in (self.functions, self.classes, self.named):
            held.clear()

    def _index(self, tree: ast.Module) -> None:
        """Find functions and classes, what each names, and how what they name is used: in one walk over the tree."""
        words: set[str] = set()
        found: dict[Function | Class, set[str]] = {}
        scopes: list[tuple[ast.AST, Class | None, set[str], Function | None]] = [(tree, None, words, None)]
        for top, cls, seen, function in scopes:
            stack = [top]
            while stack:
                node = stack.pop()
                for child in children(node):
                    kind = type(child)
                    if kind is ast.Name:
                        seen.add(child.id)  # type: ignore[attr-defined]
                    elif kind is ast.Constant:
                        value = child.value  # type: ignore[attr-defined]
                        if type(value) in _NUMBERS:
                            if abs(value) > 65504:
                                seen.add(LARGE_NUMBER)
                            elif 0 < value < 1.6e-5:
                                seen.add(SMALL_NUMBER)
                    elif kind is ast.Attribute:
                        seen.add(child.attr)  # type: ignore[attr-defined]
                        self._roles.note_attribute(child)  # type: ignore[arg-type]
                        stack.append(child)
                    elif kind is ast.Call:
                        self._roles.note_call(child)  # type: ignore[arg-type]
                        stack.append(child)
                    elif kind in _FUNCTIONS:
                        made = Function(child, self, cls if node is top else None)  # type: ignore[arg-type]
                        self.functions[child] = made
                        if made.cls is not None and kind is not ast.Lambda:
                            made.cls.methods.setdefault(made.name, made)
                        self.named.setdefault(made.name, []).append(made)
                        found[made] = set()
                        scopes.append((child, None, found[made], made))
                        if kind is ast.Lambda:
                            seen.add(made.name)
                    elif kind is ast.ClassDef:
                        new = Class(child, self)  # type: ignore[arg-type]
                        self.classes[child] = new
                        found[new] = set()
                        scopes.append((child, new, found[new], None))
                    elif kind is ast.alias:
                        self._alias_of_import(node, child, seen)  # type: ignore[arg-type]
                    else:
                        if kind is ast.Assign:
                            self._alias(child)  # type: ignore[arg-type]
                        elif kind is ast.AugAssign or (kind is ast.BinOp and type(child.op) is ast.Mod):  # type: ignore[attr-defined]
                            seen.add(COUNTING)
                        elif kind is ast.ExceptHandler:
                            if catches_import(child):  # type: ignore[arg-type]
                                self.shims.update(walk(child))
                        elif kind is ast.Yield or kind is ast.YieldFrom:
                            seen.add("yield")
                            if function is not None:
                                function.generator = True
                        stack.append(child)
        self._add_aliases([words, *found.values()])
        self.words = frozenset(words)
        self.identifiers = self.words.union(*found.values())
        for holder, inner in found.items():
            holder.words = frozenset(inner)

    def _alias_of_import(self, node: ast.AST, alias: ast.alias, seen: set[str]) -> None:
        last = alias.name.rpartition(".")[2]
        seen.add(last)
        if alias.asname:
            self.aliases.setdefault(alias.asname, set()).add(last)
        self._import(node, alias)

    def _import(self, node: ast.AST, alias: ast.alias) -> None:
        if isinstance(node, ast.ImportFrom):
            imported = Imported(node.module or "", alias.name, node.level)
            if alias.name == "*":
                self.stars.append(imported._replace(name=""))
            else:
                self.imports[alias.asname or alias.name] = imported
        else:
            self.imports[alias.asname or alias.name.partition(".")[0]] = Imported(alias.name, "", 0)

    @property
    def bindings(self) -> dict[str, list[ast.stmt]]:
        """The statements outside functions that give a name its value, those that only step in for others left out."""
        if self._bindings is None:
            sure: dict[str, list[ast.stmt]] = {}
            instead: dict[str, list[ast.stmt]] = {}
            _bind(self.tree.body, sure, instead)
            self._bindings = {**instead, **sure}
        return self._bindings

    def _alias(self, node: ast.Assign) -> None:
        """Names given to a function or a class: ``ac = torch.autocast``, ``ac = partial(autocast, "cuda")``."""
        value = node.value
        sources = [value.func, *value.args] if isinstance(value, ast.Call) else [value]
        words = {
            s.attr if isinstance(s, ast.Attribute) else s.id
            for s in sources
            if isinstance(s, (ast.Attribute, ast.Name))
        }
        for target in node.targets:
            if words and isinstance(target, ast.Name):
                self.aliases.setdefault(target.id, set()).update(words)

    def _add_aliases(self, holders: list[set[str]]) -> None:
        """Let whoever uses an alias use what it stands for."""
        aliases = {name: meant - {name} for name, meant in self.aliases.items()}
        for holder in holders:
            todo = [name for name in holder if name in aliases]
            while todo:
                for meant in aliases.get(todo.pop(), ()):
                    if meant not in holder:
                        holder.add(meant)
                        todo.append(meant)

    def column(self, line: int, offset: int) -> int:
        """The column in characters of an offset in UTF-8 bytes."""
        if self.ascii or offset <= 0:
            return offset
        if self.lines is None:
            self.lines = self.text.split("\n")
        if line > len(self.lines):
            return offset
        return len(self.lines[line - 1].encode("utf-8", "replace")[:offset].decode("utf-8", "ignore"))


def _bind(statements: list[ast.stmt], sure: dict[str, list[ast.stmt]], instead: dict[str, list[ast.stmt]]) -> None:
    """Collect what statements give values to; ``instead`` takes what an ``else`` or a handler does."""
    for statement in statements:
        if isinstance(statement, (ast.If, ast.Try)):
            _bind(statement.body, sure, instead)
            others = [*statement.orelse]
            if isinstance(statement, ast.Try):
                for handler in statement.handlers:
                    others += handler.body
                _bind(statement.finalbody, sure, instead)
            _bind(others, instead, instead)
        elif isinstance(statement, ast.With):
            _bind(statement.body, sure, instead)
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                name = alias.asname or (
                    alias.name if isinstance(statement, ast.ImportFrom) else alias.name.partition(".")[0]
                )
                sure.setdefault(name, []).append(statement)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for name in stored_names([statement])[0]:
                sure.setdefault(name, []).append(statement)


def catches_import(handler: ast.ExceptHandler) -> bool:
    """Whether a handler provides for a library that lacks a name."""
    names = {n.id for n in walk(handler.type) if isinstance(n, ast.Name)} if handler.type else {"ImportError"}
    return bool(names & {"ImportError", "ModuleNotFoundError", "AttributeError", "Exception"})


_stored: dict[int, tuple[list[ast.stmt], tuple[frozenset[str], frozenset[str]]]] = {}


def stored_names(nodes: list[ast.stmt]) -> tuple[frozenset[str], frozenset[str]]:
    """Names and attribute names that statements assign, not looking into functions that they define."""
    known = _stored.get(id(nodes))
    if known is not None and known[0] is nodes:
        return known[1]
    names: set[str] = set()
    attributes: set[str] = set()
    stack: list[ast.AST] = list(nodes)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, (ast.Store, ast.Del)):
                names.add(node.id)
        elif isinstance(node, ast.Attribute):
            if isinstance(node.ctx, ast.Store):
                attributes.add(node.attr)
            stack.append(node.value)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif not isinstance(node, ast.Lambda):
            stack.extend(children(node))
    found = frozenset(names), frozenset(attributes)
    if len(_stored) > 512:
        _stored.clear()
    _stored[id(nodes)] = nodes, found
    return found
