"""Modules as they are written: their functions and classes, and which of them matter to the protocol."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator

from ...protocol.named import NamedTuple
from ...protocol.words import chain
from .roles import Roles
from .syntax import bound_by_import, children, statements_in, tail, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NUMBERS = frozenset((int, float))
#: The largest number that float16 holds.
HIGHEST = 65504
#: Words without which no code gives an object attributes by names that only a run knows.
_SETTING = frozenset({"setattr", "__dict__", "vars"})
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

#: Stand in for what is no identifier: a remainder or a counter, a number that float16 cannot hold, one that is assigned
#: to items, a product of matrices that is scaled, and a number that float16 holds as zero, or with few digits.
COUNTING = "%"
LARGE_NUMBER = "#"
FILLING = "="
SCALING = "@"
SMALL_NUMBER = "~"
#: What a name stands for that is given so many different things is data, and no function by another name: each function
#: that uses it would have the words of all of them.
MEANT = 64


class Imported(NamedTuple):
    """What an import names: ``module`` with ``level`` dots before it, and ``name`` in it, "" for the module itself."""

    module: str
    name: str
    level: int


class Function:
    """A function of the project. ``cls`` is the class whose method it is."""

    __slots__ = (
        "_divides",
        "_filled",
        "_used",
        "beside",
        "cls",
        "contexts",
        "fragile",
        "generator",
        "manager",
        "module",
        "name",
        "node",
        "saves",
        "speaks",
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
        #: Whether it does its part beside other methods of its class, which use a scaler.
        self.beside = False
        #: Whether it writes a checkpoint.
        self.saves = False
        #: Whether it may do what low precision spoils.
        self.fragile = False
        self.words: frozenset[str] = frozenset()
        self.contexts: frozenset[str] = frozenset()
        #: What the calls in its body speak of (:mod:`~..interpreter.matters`), once that was asked.
        self.speaks: frozenset[str] | None = None
        self._divides: bool | None = None
        self._filled: frozenset[str] | None = None
        self._used: frozenset[str] | None = None

    def divides(self) -> bool:
        """Whether it divides something by what it is given."""
        if self._divides is None:
            given = {parameter.arg for parameter in self.parameters()}
            self._divides = any(_divisor(node) in given for node in walk(self.node))
        return self._divides

    @property
    def qualified_name(self) -> str:
        return f"{self.cls.name}.{self.name}" if self.cls else self.name

    def decorator_names(self) -> Iterator[str]:
        """Last parts of the names of its decorators."""
        for decorator in self.decorators:
            name = tail(decorator.func if isinstance(decorator, ast.Call) else decorator)
            if name:
                yield name

    def abstract(self) -> bool:
        """Whether another class is to say what it does."""
        if "abstractmethod" in self.decorator_names():
            return True
        if isinstance(self.node, ast.Lambda):
            return False
        match [s for s in self.node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]:
            case [ast.Raise(exc=ast.Name(id=raised) | ast.Call(func=ast.Name(id=raised)))]:
                return raised == "NotImplementedError"
        return False

    def attributes_filled(self) -> frozenset[str]:
        """The attributes that it sets, and those of which it uses an attribute: None has none."""
        if self._filled is None:
            attributes = [node for node in walk(self.node) if isinstance(node, ast.Attribute)]
            stored = {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
            self._filled = frozenset(stored | {a.value.attr for a in attributes if isinstance(a.value, ast.Attribute)})
        return self._filled

    def attributes_used(self) -> frozenset[str]:
        """The attributes that it speaks of, whatever they are of."""
        if self._used is None:
            self._used = frozenset([node.attr for node in walk(self.node) if isinstance(node, ast.Attribute)])
        return self._used

    @property
    def body(self) -> list[ast.stmt]:
        """Its statements: a lambda has none."""
        return [] if isinstance(self.node, ast.Lambda) else self.node.body

    @property
    def decorators(self) -> list[ast.expr]:
        return [] if isinstance(self.node, ast.Lambda) else self.node.decorator_list

    def parameters(self) -> list[ast.arg]:
        args = self.node.args
        return [*args.posonlyargs, *args.args]


def _divisor(node: ast.AST) -> str:
    """The name by which a node divides, "" where it does not."""
    match node:
        case ast.BinOp(op=ast.Div(), right=ast.Name(id=name)) | ast.AugAssign(op=ast.Div(), value=ast.Name(id=name)):
            return name
        case ast.Call(func=ast.Attribute(attr="div" | "div_"), args=[ast.Name(id=name)]):
            return name
    return ""


#: Decorators and base classes that make a class a record of its annotated fields.
RECORDS = frozenset({"dataclass", "attrs", "define", "frozen", "mutable", "NamedTuple", "TypedDict", "BaseModel"})


class Class:
    """A class of the project: its methods, and where each attribute of its objects is assigned.

    ``changed`` are the attributes that methods other than the constructor assign, ``counted`` those that grow. ``open``
    says that a method gives its objects attributes by names that only a run knows, which may be any of them.
    """

    __slots__ = (
        "_assigned",
        "_changed",
        "_counted",
        "_looked",
        "_open",
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
        self._open = False
        self.words: frozenset[str] = frozenset()
        self.contexts: frozenset[str] = frozenset()

    def is_record(self) -> bool:
        """Whether its objects hold the fields that the class declares, and nothing else: a dataclass, a NamedTuple."""
        if "__init__" in self.methods:
            return False
        marks = [d.func if isinstance(d, ast.Call) else d for d in self.node.decorator_list]
        names = {(chain(m) or "").rpartition(".")[2] for m in (*marks, *self.bases)}
        return bool(names & RECORDS)

    def fields(self) -> list[str]:
        """The names that the class declares with annotations, in their order, as a dataclass does its fields."""
        declared = (each.target for each in self.node.body if isinstance(each, ast.AnnAssign))
        return [target.id for target in declared if isinstance(target, ast.Name)]

    def own(self) -> dict[str, bool]:
        """The names of what it defines or gives its objects by itself, and whether each is only ever a number.

        What its constructor does, they say.
        """
        given: dict[str, list[ast.expr]] = {}
        for target, value in (pair for node in self.node.body for pair in _assigned(node)):
            if isinstance(target, ast.Name):
                given.setdefault(target.id, []).append(value)
        for name, values in self.assigned.items():
            given.setdefault(name, []).extend(value for _, value in values)
        own = {name: all(map(_is_number, values)) for name, values in given.items()}
        own.update(dict.fromkeys(self.methods.keys() - {"__init__"}, False))
        return own

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

    @property
    def open(self) -> bool:
        if self.module.identifiers.isdisjoint(_SETTING):
            return False
        self._look()
        return self._open

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
        if not self._open and not self.module.identifiers.isdisjoint(_SETTING):
            self._open = any(_sets_any(node, me) for node in walk(method.node))
        for node in statements_in(method.body):
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
                self._changed.add(node.target.attr)
                if isinstance(node.op, ast.Add):
                    self._counted.add(node.target.attr)
            for left, right in _assigned(node):
                if isinstance(left, ast.Attribute) and isinstance(left.value, ast.Name) and left.value.id == me:
                    self._assigned.setdefault(left.attr, []).append((method, right))
                    if method.name != "__init__":
                        self._changed.add(left.attr)


def _is_number(node: ast.expr) -> bool:
    """Whether this is a number which is like any other one: 0 and 1 say whether something is done at all."""
    return isinstance(node, ast.Constant) and type(node.value) in _NUMBERS and node.value not in (0, 1)


def _sets_any(node: ast.AST, me: str) -> bool:
    """Whether a call gives an object attributes by names that may be any."""
    match node:
        case ast.Call(ast.Name("setattr"), [ast.Name(id=given), name, _]):
            return given == me and names_any(name)
        case ast.Call(ast.Attribute(ast.Attribute(ast.Name(id=given), "__dict__"), "update")):
            return given == me
        case ast.Call(ast.Attribute(ast.Call(ast.Name("vars"), [ast.Name(id=given)]), "update")):
            return given == me
    return False


def names_any(name: ast.expr) -> bool:
    """Whether the name of an attribute may be any: it is no text, and no part of it is one."""
    return isinstance(name, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What a statement assigns to, and what, tuples taken apart."""
    targets: list[ast.expr]
    match node:
        case ast.Assign(targets=targets, value=value):
            pass
        case ast.AnnAssign(target=declared, value=ast.expr() as value):
            targets = [declared]
        case _:
            return
    for target in targets:
        match target, value:
            case ast.Tuple(elts=lefts), ast.Tuple(elts=rights) if len(lefts) == len(rights):
                yield from zip(lefts, rights, strict=True)
            case _:
                yield target, value


class _Scope(NamedTuple):
    """A module, a function or a class, by its node, and the words that are found in it."""

    node: ast.AST
    cls: Class | None
    words: set[str]
    function: Function | None


class Module:
    """A parsed source file."""

    __slots__ = (
        "_bindings",
        "_roles",
        "_times",
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
        "switches",
        "text",
        "trains",
        "tree",
        "used",
        "uses",
        "versioned",
        "words",
    )

    def __init__(self, path: str, text: str, tree: ast.Module) -> None:
        self.path = path
        self.text = text
        self.tree = tree
        self.ascii = text.isascii()
        #: Whether it may ask which version of a library is installed, or what that has.
        self.versioned = "hasattr" in text or "version" in text.lower()
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
        self._times: Counter[str] | None = None
        #: From the node of a function, or of the module, to the names that it binds once, when somebody has asked.
        self.switches: dict[ast.AST, frozenset[str]] = {}
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
        """Let go of the functions and classes, which know the module, and of its tree: nobody needs them any more."""
        for cls in self.classes.values():
            cls.methods.clear()
            cls._assigned.clear()
        for held in (self.functions, self.classes, self.named, _stored):
            held.clear()

    def _index(self, tree: ast.Module) -> None:
        """Find functions and classes, what each names, and how what they name is used: in one walk over the tree."""
        whole = _Scope(tree, None, set(), None)
        scopes: list[_Scope] = [whole]
        found: dict[Function | Class, set[str]] = {}
        # What most nodes are is looked for here, the rest in a table.
        roles = self._roles
        for scope in scopes:
            words = scope.words
            stack = [scope.node]
            while stack:
                node = stack.pop()
                for child in children(node):
                    kind = type(child)
                    if kind is ast.Name:
                        words.add(child.id)  # type: ignore[attr-defined]
                    elif kind is ast.Constant:
                        if type(child.value) in _NUMBERS and not 1 <= child.value <= HIGHEST:  # type: ignore[attr-defined]
                            words.update(_telling(child.value))  # type: ignore[attr-defined]
                    elif kind is ast.Attribute:
                        words.add(child.attr)  # type: ignore[attr-defined]
                        roles.note_attribute(child)  # type: ignore[arg-type]
                        stack.append(child)
                    elif kind is ast.Call:
                        roles.note_call(child)  # type: ignore[arg-type]
                        stack.append(child)
                    elif kind in _SCOPES:
                        held = self._define(child, scope, node)
                        scopes.append(held)
                        found[held.cls or held.function] = held.words  # type: ignore[index]
                    elif kind is ast.alias:
                        self._alias_of_import(node, child, words)  # type: ignore[arg-type]
                    else:
                        note = _NOTES.get(kind)
                        if note is not None:
                            note(self, child, scope)
                        stack.append(child)
        self._add_aliases([each.words for each in scopes])
        self.words = frozenset(whole.words)
        self.identifiers = self.words.union(*found.values())
        for holder, inner in found.items():
            holder.words = frozenset(inner)

    def _define(self, node: ast.AST, scope: _Scope, parent: ast.AST) -> _Scope:
        """The function or class that a node in a scope is."""
        if isinstance(node, ast.ClassDef):
            cls = self.classes[node] = Class(node, self)
            return _Scope(node, cls, set(), None)
        assert isinstance(node, FunctionNode)
        function = self.functions[node] = Function(node, self, scope.cls if parent is scope.node else None)
        self.named.setdefault(function.name, []).append(function)
        if isinstance(node, ast.Lambda):
            scope.words.add(function.name)
        elif function.cls is not None:
            function.cls.methods.setdefault(function.name, function)
        return _Scope(node, None, set(), function)

    def _note_assignment(self, node: ast.Assign, scope: _Scope) -> None:
        """Names given to a function or a class: ``ac = torch.autocast``, ``ac = partial(autocast, "cuda")``."""
        self._roles.note_assignment(node)
        value = node.value
        sources = [value.func, *value.args] if isinstance(value, ast.Call) else [value]
        words = set(filter(None, map(tail, sources)))
        if _is_large(value) and any(isinstance(target, ast.Subscript) for target in node.targets):
            scope.words.add(FILLING)
        for target in node.targets:
            if words and isinstance(target, ast.Name):
                self.aliases.setdefault(target.id, set()).update(words)

    def _note_counting(self, node: ast.AugAssign | ast.BinOp, scope: _Scope) -> None:
        if isinstance(node, ast.AugAssign) or isinstance(node.op, ast.Mod):
            scope.words.add(COUNTING)
        elif type(node.op) in (ast.Mult, ast.Div) and (is_product(node.left) or is_product(node.right)):
            scope.words.add(SCALING)

    def _note_handler(self, node: ast.ExceptHandler, scope: _Scope) -> None:
        if catches_import(node):
            self.shims.update(walk(node))

    def _note_yield(self, node: ast.AST, scope: _Scope) -> None:
        scope.words.add("yield")
        if scope.function is not None:
            scope.function.generator = True

    def _alias_of_import(self, node: ast.AST, alias: ast.alias, seen: set[str]) -> None:
        last = alias.name.rpartition(".")[2]
        seen.add(last)
        if alias.asname:
            self.aliases.setdefault(alias.asname, set()).add(last)
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

    def times(self, name: str) -> int:
        """How often a name stands in the text, in comments and strings, too."""
        if self._times is None:
            self._times = Counter(re.findall(r"\w+", self.text))
        return self._times[name]

    def _add_aliases(self, holders: list[set[str]]) -> None:
        """Let whoever uses an alias use what it stands for."""
        aliases = {name: meant - {name} for name, meant in self.aliases.items() if len(meant) <= MEANT}
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
        return len(self.lines[line - 1].encode()[:offset].decode("utf-8", "ignore"))


#: The kinds of node that have words of their own.
_SCOPES = frozenset((ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef))
#: What is noted of other kinds of node.
_NOTES: dict[type[ast.AST], Callable[[Module, Any, _Scope], None]] = {
    ast.Assign: Module._note_assignment,
    ast.AugAssign: Module._note_counting,
    ast.BinOp: Module._note_counting,
    ast.ExceptHandler: Module._note_handler,
    ast.Yield: Module._note_yield,
    ast.YieldFrom: Module._note_yield,
}


def is_product(node: ast.expr) -> bool:
    """Whether an expression is a product of matrices."""
    if isinstance(node, ast.BinOp):
        return type(node.op) is ast.MatMult
    return isinstance(node, ast.Call) and tail(node.func) in ("matmul", "bmm", "einsum")


def _is_large(node: ast.expr) -> bool:
    """Whether a number is written that float16 cannot hold."""
    number = node.operand if isinstance(node, ast.UnaryOp) else node
    value = number.value if isinstance(number, ast.Constant) else None
    return isinstance(value, (int, float)) and value > HIGHEST


def _telling(number: float) -> tuple[str, ...]:
    """What stands for a number that float16 does not hold as it is."""
    if abs(number) > HIGHEST:
        return (LARGE_NUMBER,)
    return (SMALL_NUMBER,) if 0 < number < 1.6e-5 else ()


def _bind(statements: list[ast.stmt], sure: dict[str, list[ast.stmt]], instead: dict[str, list[ast.stmt]]) -> None:
    """Collect what statements give values to; ``instead`` takes what an ``else`` or a handler does."""
    for statement in statements:
        match statement:
            case ast.If(body=body, orelse=others):
                _bind(body, sure, instead)
                _bind(others, instead, instead)
            case ast.Try(body=body, orelse=others, handlers=handlers, finalbody=last):
                _bind([*body, *last], sure, instead)
                _bind([*others, *(each for handler in handlers for each in handler.body)], instead, instead)
            case ast.With(body=body):
                _bind(body, sure, instead)
            case ast.Import() | ast.ImportFrom():
                for name, _ in bound_by_import(statement):
                    sure.setdefault(name, []).append(statement)
            case ast.Assign() | ast.AnnAssign() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                for name in stored_names([statement])[0]:
                    sure.setdefault(name, []).append(statement)


def catches_import(handler: ast.ExceptHandler) -> bool:
    """Whether a handler provides for a library that lacks a name."""
    names = {n.id for n in walk(handler.type) if isinstance(n, ast.Name)} if handler.type else {"ImportError"}
    return bool(names & {"ImportError", "ModuleNotFoundError", "AttributeError", "Exception"})


_stored: dict[int, tuple[list[ast.stmt], tuple[frozenset[str], frozenset[str]]]] = {}


def item_name(key: str) -> str:
    """What stands for an item among the attributes of an object: no attribute is called so."""
    return f"[{key!r}]"


def stored_names(nodes: list[ast.stmt]) -> tuple[frozenset[str], frozenset[str]]:
    """Names and attribute names that statements assign, not looking into functions that they define."""
    known = _stored.get(id(nodes))
    if known is not None and known[0] is nodes:
        return known[1]
    found = _look_for_stored(nodes)
    if len(_stored) > 512:
        _stored.clear()
    _stored[id(nodes)] = nodes, found
    return found


def _look_for_stored(nodes: list[ast.stmt]) -> tuple[frozenset[str], frozenset[str]]:
    names: set[str] = set()
    attributes: set[str] = set()
    stack: list[ast.AST] = list(nodes)
    while stack:
        match stack.pop():
            case ast.Name(id=name, ctx=context):
                if not isinstance(context, ast.Load):
                    names.add(name)
            case ast.Attribute(attr=name, value=value, ctx=context):
                if isinstance(context, ast.Store):
                    attributes.add(name)
                stack.append(value)
            case ast.Subscript(slice=ast.Constant(value=str(key)), value=value, ctx=ast.Store()):
                attributes.add(item_name(key))
                stack.append(value)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Lambda():
                pass
            case node:
                stack.extend(children(node))
    return frozenset(names), frozenset(attributes)
