"""Parsed modules: functions, classes, imports and names of a file."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from ...protocol.fast_namedtuple import NamedTuple
from ...protocol.source_text import access_text
from .assignments import assigned_pairs, counts_up, sets_unknown_attribute, stored_names_cache
from .bindings import collect_bindings, fills, iterate_executed_statements
from .generated_constructors import LAST_METHODS, is_generated
from .syntax import statements_in, tail_name, walk
from .syntax_marks import NUMBER_TYPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    Kind = TypeVar("Kind", bound=ast.AST)

#: Words of all code that sets attributes by names known only at run time.
_ATTRIBUTE_SETTERS = frozenset({"setattr", "__dict__", "vars"})
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class ImportedName(NamedTuple):
    """Imported name: ``module`` with ``level`` leading dots, and ``name`` in the module, "" for the module itself."""

    module: str
    name: str
    level: int


class Function:
    """Function of the project. ``cls`` is the class that defines the method, or None."""

    __slots__ = (
        "_attributes_filled",
        "_attributes_used",
        "_divides_by_argument",
        "_nodes",
        "_stores_in_objects",
        "cls",
        "context_names",
        "effects",
        "has_scaler_siblings",
        "is_context_manager",
        "is_entry_point",
        "is_generator",
        "is_weight_entry_point",
        "may_compute_loss",
        "may_lose_precision",
        "may_save_checkpoint",
        "module",
        "name",
        "node",
        "steps_by_holders",
        "used_names",
    )

    def __init__(self, node: FunctionNode, module: Module, cls: Class | None) -> None:
        self.node = node
        self.module = module
        self.cls = cls
        self.name = getattr(node, "name", "<lambda>")
        self.is_generator = False
        #: True for a ``@contextmanager`` function.
        self.is_context_manager = "contextmanager" in self.decorator_names()
        #: True if the function is worth an analysis without a caller.
        self.is_entry_point = False
        #: An entry point only because other code may cast the weights that the function trains.
        self.is_weight_entry_point = False
        #: True if other methods of the class use a scaler.
        self.has_scaler_siblings = False
        #: True if the function writes a checkpoint.
        self.may_save_checkpoint = False
        #: True if the function computes a loss, itself or through functions of the file.
        self.may_compute_loss = False
        #: True if the function may compute something that low precision spoils.
        self.may_lose_precision = False
        self.used_names: frozenset[str] = frozenset()
        self.context_names: frozenset[str] = frozenset()
        #: Effects that the calls in the body suggest (:mod:`~..interpreter.name_effects`); None before the first use.
        self.effects: frozenset[str] | None = None
        #: True for parameters that hold an object which the function may step; filled where its body stays unanalyzed.
        self.steps_by_holders: dict[frozenset[str], bool] = {}
        self._nodes: list[ast.AST] | None = None
        self._divides_by_argument: bool | None = None
        self._stores_in_objects: bool | None = None
        self._attributes_filled: frozenset[str] | None = None
        self._attributes_used: frozenset[str] | None = None

    @property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the function, with its own node, in the order of :func:`~.syntax.walk`."""
        if self._nodes is None:
            self._nodes = walk(self.node)
        return self._nodes

    def find_nodes(self, kind: type[Kind]) -> list[Kind]:
        """Return all nodes of a type in the function."""
        return [node for node in self.nodes if isinstance(node, kind)]

    def divides_by_argument(self) -> bool:
        """Return True if the function divides by a parameter."""
        if self._divides_by_argument is None:
            parameter_names = {parameter.arg for parameter in self.parameters()}
            self._divides_by_argument = any(_divisor_name(node) in parameter_names for node in self.nodes)
        return self._divides_by_argument

    def stores_in_objects(self) -> bool:
        """Return True if the function assigns attributes or items, which exist after the call."""
        if self._stores_in_objects is None:
            self._stores_in_objects = any(
                isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store)
                for node in self.nodes
            )
        return self._stores_in_objects

    @property
    def qualified_name(self) -> str:
        return f"{self.cls.name}.{self.name}" if self.cls else self.name

    def decorator_names(self) -> Iterator[str]:
        """Yield the last parts of the names of the decorators."""
        for decorator in self.decorators:
            name = tail_name(decorator.func if isinstance(decorator, ast.Call) else decorator)
            if name:
                yield name

    def is_property(self) -> bool:
        """Return True if reading the attribute calls the method, at least the first time (a cached property)."""
        return any(name.endswith("property") for name in self.decorator_names())

    def is_abstract(self) -> bool:
        """Return True if only subclasses implement the function."""
        if "abstractmethod" in self.decorator_names():
            return True
        if isinstance(self.node, ast.Lambda):
            return False
        match [s for s in self.node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]:
            case [ast.Raise(exc=ast.Name(id=raised) | ast.Call(func=ast.Name(id=raised)))]:
                return raised == "NotImplementedError"
        return False

    def attributes_filled(self) -> frozenset[str]:
        """Return the attributes that the function sets, and those that it uses as objects other than None.

        An object with an accessed attribute is not None, and neither is one that a scaler unscales or steps.
        """
        if self._attributes_filled is None:
            attributes = [node for node in self.nodes if isinstance(node, ast.Attribute)]
            stored = {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
            accessed = {a.value.attr for a in attributes if isinstance(a.value, ast.Attribute)}
            self._attributes_filled = frozenset(stored | accessed | self._attributes_stepped())
        return self._attributes_filled

    def _attributes_stepped(self) -> set[str]:
        """Return the attributes that a scaler unscales or steps: ``scaler.step(self.optimizer)``."""
        return {
            node.args[0].attr
            for node in self.nodes
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("step", "unscale_")
            and node.args
            and isinstance(node.args[0], ast.Attribute)
        }

    def attributes_used(self) -> frozenset[str]:
        """Return the names of all attributes in the function, of any object."""
        if self._attributes_used is None:
            self._attributes_used = frozenset([node.attr for node in self.nodes if isinstance(node, ast.Attribute)])
        return self._attributes_used

    @property
    def body(self) -> list[ast.stmt]:
        """Statements of the function; empty for a lambda."""
        return [] if isinstance(self.node, ast.Lambda) else self.node.body

    @property
    def decorators(self) -> list[ast.expr]:
        return [] if isinstance(self.node, ast.Lambda) else self.node.decorator_list

    def parameters(self) -> list[ast.arg]:
        args = self.node.args
        return [*args.posonlyargs, *args.args]

    def receiver_name(self) -> str:
        """Return the name of the first parameter, which is the object in a method, or ""."""
        return next((each.arg for each in self.parameters()), "")

    def defaults(self) -> dict[str, ast.expr]:
        """Return the default values of parameters, by name."""
        args, parameters = self.node.args, self.parameters()
        last = parameters[len(parameters) - len(args.defaults) :]
        keywords = zip(args.kwonlyargs, args.kw_defaults, strict=True)
        pairs = [*zip(last, args.defaults, strict=True), *((each, given) for each, given in keywords if given)]
        return {parameter.arg: given for parameter, given in pairs}


def _divisor_name(node: ast.AST) -> str:
    """Return the name by which a node divides, or ""."""
    match node:
        case ast.BinOp(op=ast.Div(), right=ast.Name(id=name)) | ast.AugAssign(op=ast.Div(), value=ast.Name(id=name)):
            return name
        case ast.Call(func=ast.Attribute(attr="div" | "div_"), args=[ast.Name(id=name)]):
            return name
    return ""


#: Decorators and base classes that make a class a record of its annotated fields.
RECORD_MARKS = LAST_METHODS.keys() | {"NamedTuple", "TypedDict", "BaseModel"}


class Class:
    """Class of the project: methods, and the assignments to each attribute of its instances.

    ``changed_attributes`` are assigned outside the constructor, ``counter_attributes`` grow in the given methods.
    ``is_open`` says that a method may set any attribute, by a name known only at run time.
    """

    __slots__ = (
        "_assignments",
        "_changed_attributes",
        "_counter_attributes",
        "_is_open",
        "_is_searched",
        "bases",
        "context_names",
        "methods",
        "module",
        "name",
        "node",
        "used_names",
    )

    def __init__(self, node: ast.ClassDef, module: Module) -> None:
        self.node = node
        self.module = module
        self.name = node.name
        self.bases = node.bases
        self.methods: dict[str, Function] = {}
        self._assignments: dict[str, list[tuple[Function, ast.expr]]] = {}
        self._changed_attributes: set[str] = set()
        self._counter_attributes: dict[str, set[Function]] = {}
        self._is_searched = False
        self._is_open = False
        self.used_names: frozenset[str] = frozenset()
        self.context_names: frozenset[str] = frozenset()

    def is_record(self) -> bool:
        """Return True if instances hold exactly the declared fields, as in a dataclass or NamedTuple."""
        init = self.methods.get("__init__")
        if init is not None and not is_generated(init.node, self.node):
            return False
        marks = [d.func if isinstance(d, ast.Call) else d for d in self.node.decorator_list]
        names = {access_text(m).rpartition(".")[2] for m in (*marks, *self.bases)}
        return bool(names & RECORD_MARKS)

    def declared_fields(self) -> list[str]:
        """Return the annotated names in their order, which are the fields of a dataclass."""
        declared = (each.target for each in self.node.body if isinstance(each, ast.AnnAssign))
        return [target.id for target in declared if isinstance(target, ast.Name)]

    def own_names(self) -> dict[str, bool]:
        """Return the names that the class itself defines or assigns, each with True if the values are only numbers.

        The constructor is no such name: the assigned attributes stand for the constructor.
        """
        values_by_name: dict[str, list[ast.expr]] = {}
        for target, value in (pair for node in self.node.body for pair in assigned_pairs(node)):
            if isinstance(target, ast.Name):
                values_by_name.setdefault(target.id, []).append(value)
        for name, values in self.assignments.items():
            values_by_name.setdefault(name, []).extend(value for _, value in values)
        own = {name: all(map(_is_number, values)) for name, values in values_by_name.items()}
        own.update(dict.fromkeys(self.methods.keys() - {"__init__"}, False))
        return own

    @property
    def assignments(self) -> dict[str, list[tuple[Function, ast.expr]]]:
        self._search_methods()
        return self._assignments

    @property
    def changed_attributes(self) -> set[str]:
        self._search_methods()
        return self._changed_attributes

    @property
    def counter_attributes(self) -> dict[str, set[Function]]:
        self._search_methods()
        return self._counter_attributes

    @property
    def is_open(self) -> bool:
        if self.module.identifiers.isdisjoint(_ATTRIBUTE_SETTERS):
            return False
        self._search_methods()
        return self._is_open

    def _search_methods(self) -> None:
        """Search the methods for assigned attributes, on first use."""
        if not self._is_searched:
            self._is_searched = True
            for method in self.methods.values():
                self._search_method(method)

    def _search_method(self, method: Function) -> None:
        parameters = method.parameters()
        if not parameters:
            return
        me = parameters[0].arg
        if not self._is_open and not self.module.identifiers.isdisjoint(_ATTRIBUTE_SETTERS):
            self._is_open = any(sets_unknown_attribute(node, me) for node in method.nodes)
        for node in statements_in(method.body):
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
                self._changed_attributes.add(node.target.attr)
                if isinstance(node.op, ast.Add):
                    self._counter_attributes.setdefault(node.target.attr, set()).add(method)
            for left, right in assigned_pairs(node):
                if isinstance(left, ast.Attribute) and isinstance(left.value, ast.Name) and left.value.id == me:
                    self._assignments.setdefault(left.attr, []).append((method, right))
                    if method.name != "__init__":
                        self._changed_attributes.add(left.attr)
                        if counts_up(left.attr, right):
                            self._counter_attributes.setdefault(left.attr, set()).add(method)


def _is_number(node: ast.expr) -> bool:
    """Return True for a number literal except 0 and 1, which often mean "off" and "on"."""
    return isinstance(node, ast.Constant) and type(node.value) in NUMBER_TYPES and node.value not in (0, 1)


class Module:
    """Parsed source file."""

    __slots__ = (
        "_bindings",
        "_nodes",
        "_nodes_by_kind",
        "_word_counts",
        "aliases",
        "classes",
        "fallback_nodes",
        "functions",
        "functions_by_name",
        "identifiers",
        "imports",
        "is_ascii",
        "lines",
        "makes_low",
        "may_check_version",
        "may_lose_precision",
        "may_train",
        "names_bound_once",
        "path",
        "rebound_names",
        "role_by_text",
        "role_names",
        "star_imports",
        "text",
        "tree",
        "used_names",
    )

    def __init__(self, path: str, text: str, tree: ast.Module) -> None:
        self.path = path
        self.text = text
        self.tree = tree
        self.is_ascii = text.isascii()
        #: True if the file may test the installed version of a library, or the presence of a name.
        self.may_check_version = "hasattr" in text or "version" in text.lower()
        self.lines: list[str] | None = None
        self.functions: dict[ast.AST, Function] = {}
        self.classes: dict[ast.AST, Class] = {}
        self.functions_by_name: dict[str, list[Function]] = {}
        #: Aliases: name to the last parts of the assigned names.
        self.aliases: dict[str, set[str]] = {}
        #: Names that the file imports, at any level.
        self.imports: dict[str, ImportedName] = {}
        self.star_imports: list[ImportedName] = []
        self._bindings: dict[str, list[ast.stmt]] | None = None
        self._nodes: list[ast.AST] | None = None
        self._nodes_by_kind: dict[type[ast.AST], list[Any]] = {}
        self._word_counts: Counter[str] | None = None
        #: Names bound exactly once, by the node of a function or of the module, after the first use.
        self.names_bound_once: dict[ast.AST, frozenset[str]] = {}
        #: Names that functions assign in an outer scope, by ``global`` or ``nonlocal``, by the node of that scope.
        self.rebound_names: dict[ast.AST, set[str]] = {}
        #: Functions for another version of a library.
        self.fallback_nodes: set[ast.AST] = set()
        self.used_names: frozenset[str] = frozenset()
        #: Names that the file uses, in any scope.
        self.identifiers: frozenset[str] = frozenset()
        #: True if the module-level statements may compute something that low precision spoils.
        self.may_lose_precision = False
        #: True if any code in the file trains.
        self.may_train = False
        #: True if the file enters autocast, casts to a low dtype, or lets a framework do so.
        self.makes_low = False
        #: Roles of expressions that the file uses as scalers, optimizers or modules, by source text.
        self.role_by_text: dict[str, str] = {}
        #: Last part of each of these texts.
        self.role_names: frozenset[str] = frozenset()

    def release_references(self) -> None:
        """Release the functions and classes, which refer to the module and its tree.

        The module is unusable afterwards.
        """
        for cls in self.classes.values():
            cls.methods.clear()
            cls._assignments.clear()
            cls._counter_attributes.clear()
        for table in (self.functions, self.classes, self.functions_by_name, self._nodes_by_kind, stored_names_cache):
            table.clear()
        self._nodes = None

    @property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the file, with the root, in the order of :func:`~.syntax.walk`."""
        if self._nodes is None:
            self._nodes = walk(self.tree)
        return self._nodes

    def find_nodes(self, kind: type[Kind]) -> list[Kind]:
        """Return all nodes of a type in the file."""
        known: list[Kind] | None = self._nodes_by_kind.get(kind)
        if known is None:
            known = self._nodes_by_kind[kind] = [node for node in self.nodes if isinstance(node, kind)]
        return known

    @property
    def bindings(self) -> dict[str, list[ast.stmt]]:
        """Statements outside functions that bind each name.

        Fallback branches count only for names without another binding.
        """
        if self._bindings is None:
            certain: dict[str, list[ast.stmt]] = {}
            fallbacks: dict[str, list[ast.stmt]] = {}
            collect_bindings(self.tree.body, certain, fallbacks)
            self._bindings = {**fallbacks, **certain}
        return self._bindings

    def filling_statements(self, name: str) -> list[ast.stmt]:
        """Return the statements outside functions that may fill a container of the module, in their order.

        A decorator may store the decorated function: ``@register`` and ``@HOOKS.register("clip")``. A call and an
        assignment to an item fill it directly.
        """
        users = {
            function.name
            for functions in self.functions_by_name.values()
            for function in functions
            if any(isinstance(node, ast.Name) and node.id == name for node in function.nodes)
        }
        return [each for each in iterate_executed_statements(self.tree.body) if fills(each, users | {name})]

    def count_word(self, name: str) -> int:
        """Return the number of occurrences of a name in the text, with comments and strings."""
        if self._word_counts is None:
            self._word_counts = Counter(re.findall(r"\w+", self.text))
        return self._word_counts[name]

    def character_column(self, line: int, offset: int) -> int:
        """Return the column in characters for an offset in UTF-8 bytes."""
        if self.is_ascii or offset <= 0:
            return offset
        if self.lines is None:
            self.lines = self.text.split("\n")
        if line > len(self.lines):
            return offset
        return len(self.lines[line - 1].encode()[:offset].decode("utf-8", "ignore"))


def methods_called_on(function: Function, name: str) -> set[str]:
    """Return the names of the methods that a function calls on one of its variables."""
    calls = (node.func for node in function.nodes if isinstance(node, ast.Call))
    return {
        func.attr
        for func in calls
        if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == name
    }
