"""Parsed modules: functions and classes, and the used names that may be relevant to the protocol."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator

from ...protocol import torch_api
from ...protocol.fast_namedtuple import NamedTuple
from ...protocol.frameworks import LOW_VALUES
from ...protocol.source_text import access_text
from .generated_constructors import LAST_METHODS, add_constructor, is_generated
from .roles import RoleCollector
from .syntax import bound_by_import, children, root_name, statements_in, tail_name, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    Kind = TypeVar("Kind", bound=ast.AST)

_NUMBERS = frozenset((int, float))
#: Largest finite float16.
FLOAT16_MAX = 65504
#: Words of all code that sets attributes by names known only at run time.
_ATTRIBUTE_SETTERS = frozenset({"setattr", "__dict__", "vars"})
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

#: Marks among the used names that stand for syntax. In order: a remainder or counter; a number outside float16; such a
#: number assigned to items; a scaled matrix product, or a square; a number that float16 rounds to zero or few digits;
#: an average in an attribute.
COUNTING = "%"
LARGE_NUMBER = "#"
FILLING = "="
SCALING = "@"
SMALL_NUMBER = "~"
AVERAGING = "&"
#: Maximum number of targets of an alias. A name with more targets is data: otherwise each function that uses the name
#: would have the names of all targets.
MAX_ALIAS_TARGETS = 64


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


def may_make_instance(method: Function) -> bool:
    """Return True if a class method uses its class for more than a method that makes no instance."""
    cls, todo, seen = method.cls, [method], {method.name}
    while todo:
        current = todo.pop()
        if "classmethod" not in current.decorator_names():
            continue
        me = next((parameter.arg for parameter in current.parameters()), "")
        nodes = current.nodes
        members = {id(n.value): n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
        for node in nodes:
            if not isinstance(node, ast.Name) or node.id != me:
                continue
            member = members.get(id(node))
            if member is None:
                return True
            if cls is not None and member in cls.methods and member not in seen:
                seen.add(member)
                todo.append(cls.methods[member])
    return False


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
            self._is_open = any(_sets_unknown_attribute(node, me) for node in method.nodes)
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
                        if _counts_up(left.attr, right):
                            self._counter_attributes.setdefault(left.attr, set()).add(method)


def _counts_up(name: str, value: ast.expr) -> bool:
    """Return True for a sum with the attribute itself, or the remainder of such a sum: ``(self.n + 1) % k``."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mod):
        value = value.left
    return (
        isinstance(value, ast.BinOp)
        and isinstance(value.op, ast.Add)
        and any(isinstance(side, ast.Attribute) and side.attr == name for side in (value.left, value.right))
    )


def _is_number(node: ast.expr) -> bool:
    """Return True for a number literal except 0 and 1, which often mean "off" and "on"."""
    return isinstance(node, ast.Constant) and type(node.value) in _NUMBERS and node.value not in (0, 1)


def _sets_unknown_attribute(node: ast.AST, me: str) -> bool:
    """Return True if a call sets attributes of an object by unknown names."""
    match node:
        case ast.Call(ast.Name("setattr"), [ast.Name(id=given), name, _]):
            return given == me and is_unknown_name(name)
        case ast.Call(ast.Attribute(ast.Attribute(ast.Name(id=given), "__dict__"), "update")):
            return given == me
        case ast.Call(ast.Attribute(ast.Call(ast.Name("vars"), [ast.Name(id=given)]), "update")):
            return given == me
    return False


def is_unknown_name(name: ast.expr) -> bool:
    """Return True if an attribute name is unknown: no text, and no text as a part."""
    return isinstance(name, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))


def assigned_pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets of an assignment, each with the assigned value; tuples are split.

    The targets before a star get the items of a value that is no tuple.
    """
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
            case ast.Tuple(elts=lefts), ast.Call():
                for number, left in enumerate(lefts):
                    if isinstance(left, ast.Starred):
                        break
                    item = ast.Subscript(value, ast.Constant(number), ast.Load())
                    yield left, ast.fix_missing_locations(ast.copy_location(item, value))
            case _:
                yield target, value


class _Scope(NamedTuple):
    """Scope of a module, function or class: its node, and the names used inside.

    ``members`` are the attributes of plain names, each as the name and the attribute. ``outer`` is the enclosing scope.
    """

    node: ast.AST
    cls: Class | None
    used_names: set[str]
    function: Function | None
    members: set[tuple[str, str]]
    outer: _Scope | None


def _add_owners(scope: _Scope, classes: dict[str, Class]) -> None:
    """Add the names whose attributes a scope uses, except classes of which the scope only uses a known method.

    The name of a class stands for all methods, because the instance may be used anywhere. A method that calls itself
    through the class gets no instance from that call: the analysis does not enter a function twice.
    """
    for name, attribute in scope.members:
        cls = classes.get(name)
        method = cls.methods.get(attribute) if cls is not None else None
        if method is None or (method is not scope.function and may_make_instance(method)):
            scope.used_names.add(name)


class Module:
    """Parsed source file."""

    __slots__ = (
        "_bindings",
        "_nodes",
        "_nodes_by_kind",
        "_roles",
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
        self._roles = RoleCollector()
        self._index_names(tree)
        #: True if the module-level statements may compute something that low precision spoils.
        self.may_lose_precision = False
        #: True if any code in the file trains.
        self.may_train = False
        #: True if the file enters autocast, casts to a low dtype, or lets a framework do so.
        self.makes_low = False
        #: Roles of expressions that the file uses as scalers, optimizers or modules, by source text.
        self.role_by_text = self._roles.resolve_roles()
        #: Last part of each of these texts.
        self.role_names = frozenset(text.rpartition(".")[2] for text in self.role_by_text)

    def release_references(self) -> None:
        """Release the functions and classes, which refer to the module and its tree.

        The module is unusable afterwards.
        """
        for cls in self.classes.values():
            cls.methods.clear()
            cls._assignments.clear()
            cls._counter_attributes.clear()
        for table in (self.functions, self.classes, self.functions_by_name, self._nodes_by_kind, _stored_names_cache):
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

    def _index_names(self, tree: ast.Module) -> None:
        """Find all functions and classes, their names and the roles of expressions, in one walk over the tree."""
        whole = _Scope(tree, None, set(), None, set(), None)
        scopes: list[_Scope] = [whole]
        found: dict[Function | Class, set[str]] = {}
        # The most frequent kinds of node are tested here, the others by a table.
        roles = self._roles
        for scope in scopes:
            used_names, members = scope.used_names, scope.members
            stack = [scope.node]
            while stack:
                node = stack.pop()
                for child in children(node):
                    kind = type(child)
                    if kind is ast.Name:
                        used_names.add(child.id)  # type: ignore[attr-defined]
                    elif kind is ast.Constant:
                        if type(child.value) in _NUMBERS and not 1 <= child.value <= FLOAT16_MAX:  # type: ignore[attr-defined]
                            used_names.update(number_marks(child.value))  # type: ignore[attr-defined]
                        elif child.value in LOW_VALUES:  # type: ignore[attr-defined]
                            used_names.add(child.value)  # type: ignore[attr-defined]
                    elif kind is ast.Attribute:
                        used_names.add(child.attr)  # type: ignore[attr-defined]
                        roles.note_attribute(child)  # type: ignore[arg-type]
                        if type(child.value) is ast.Name:  # type: ignore[attr-defined]
                            members.add((child.value.id, child.attr))  # type: ignore[attr-defined]
                        else:
                            stack.append(child)
                    elif kind is ast.Call:
                        roles.note_call(child)  # type: ignore[arg-type]
                        stack.append(child)
                    elif kind in _SCOPES:
                        inner_scope = self._define_scope(child, scope, node)
                        scopes.append(inner_scope)
                        found[inner_scope.cls or inner_scope.function] = inner_scope.used_names  # type: ignore[index]
                    elif kind is ast.alias:
                        self._note_import(node, child, used_names)  # type: ignore[arg-type]
                    else:
                        note = _NODE_HANDLERS.get(kind)
                        if note is not None:
                            note(self, child, scope)
                        stack.append(child)
        owners = frozenset(name for scope in scopes for name, _ in scope.members)
        names = Counter(cls.name for cls in self.classes.values())
        classes = {cls.name: cls for cls in self.classes.values() if names[cls.name] == 1}
        for scope in scopes:
            _add_owners(scope, classes)
        self._add_aliases([each.used_names for each in scopes])
        for scope in scopes:
            # After the aliases: the parameters of a signature may have another name.
            if scope.used_names >= _SIGNATURE_NAMES and not _calls_parameters(scope.node):
                scope.used_names.discard("parameters")
        self.used_names = frozenset(whole.used_names)
        self.identifiers = self.used_names.union(owners, *found.values())
        for holder, inner in found.items():
            holder.used_names = frozenset(inner)

    def _define_scope(self, node: ast.AST, scope: _Scope, parent: ast.AST) -> _Scope:
        """Create the function or class of a node and return its scope."""
        if isinstance(node, ast.ClassDef):
            add_constructor(node, {cls.name: cls.node for cls in self.classes.values()} if node.decorator_list else {})
            cls = self.classes[node] = Class(node, self)
            return _Scope(node, cls, set(), None, set(), scope)
        assert isinstance(node, FunctionNode)
        function = self.functions[node] = Function(node, self, scope.cls if parent is scope.node else None)
        self.functions_by_name.setdefault(function.name, []).append(function)
        if isinstance(node, ast.Lambda):
            scope.used_names.add(function.name)
        elif function.cls is not None:
            function.cls.methods.setdefault(function.name, function)
        return _Scope(node, None, set(), function, set(), scope)

    def _note_annotated(self, node: ast.AnnAssign, scope: _Scope) -> None:
        """Record the aliases of a constant of the file with an annotation."""
        if node.value is not None and isinstance(node.target, ast.Name) and isinstance(scope.node, ast.Module):
            self.aliases.setdefault(node.target.id, set()).update(_names_of_torch(node.value))

    def _note_assignment(self, node: ast.Assign, scope: _Scope) -> None:
        """Record aliases of a function or a class: ``ac = torch.autocast`` or ``ac = partial(autocast, "cuda")``."""
        self._roles.note_assignment(node)
        value = node.value
        sources = _call_sources(value)
        words = set(filter(None, map(tail_name, sources)))
        if isinstance(scope.node, ast.Module):
            # A choice or a table inside a function is data of the function, which has these names itself.
            words |= _names_of_torch(value)
        if _is_large(value) and any(isinstance(target, ast.Subscript) for target in node.targets):
            scope.used_names.add(FILLING)
        if isinstance(value, ast.BinOp) and _weights_old_value(node.targets[0], value):
            scope.used_names.add(AVERAGING)
        if isinstance(value, ast.Lambda):
            words = {tail_name(part.func) for part in walk(value.body) if isinstance(part, ast.Call)} - {""}
        stored = set[str]()
        if isinstance(value, (ast.Lambda, ast.Name, ast.Attribute)):
            stored = words
        elif not isinstance(value, ast.Call):
            stored = _names_of_torch(value)
        for target in node.targets:
            if words and isinstance(target, ast.Name):
                self.aliases.setdefault(target.id, set()).update(words)
            elif stored and isinstance(target, ast.Attribute) and target.attr not in stored:
                # A function or a dtype in an attribute: ``self.loss = lambda x, y: bce(x, y)``,
                # ``self.forward = self.run``, ``self.dtype = torch.float16 if half else torch.float32``.
                self.aliases.setdefault(target.attr, set()).update(stored)

    def _note_counting(self, node: ast.AugAssign | ast.BinOp, scope: _Scope) -> None:
        if isinstance(node, ast.AugAssign) or isinstance(node.op, ast.Mod):
            scope.used_names.add(COUNTING)
        elif (
            _is_square(node)
            or _is_area(node)
            or (type(node.op) in (ast.Mult, ast.Div) and (is_product(node.left) or is_product(node.right)))
            or (type(node.op) is ast.MatMult and _is_doubled(node.left))
        ):
            scope.used_names.add(SCALING)

    def _note_handler(self, node: ast.ExceptHandler, scope: _Scope) -> None:
        if catches_import(node):
            self.fallback_nodes.update(walk(node))

    def _note_keyword(self, node: ast.keyword, scope: _Scope) -> None:
        """Record a keyword with a dtype, whose value a setting may name: ``torch_dtype=getattr(torch, name)``."""
        if node.arg is not None and node.arg.endswith("dtype"):
            scope.used_names.add(node.arg)

    def _note_outer_names(self, node: ast.Global | ast.Nonlocal, scope: _Scope) -> None:
        function = scope.function
        if function is None or isinstance(function.node, ast.Lambda):
            return
        assigned = stored_names(function.node.body)[0].intersection(node.names)
        outer = scope.outer
        while assigned and outer is not None:
            if isinstance(node, ast.Nonlocal) or outer.outer is None:
                self.rebound_names.setdefault(outer.node, set()).update(assigned)
            outer = outer.outer

    def _note_yield(self, node: ast.AST, scope: _Scope) -> None:
        scope.used_names.add("yield")
        if scope.function is not None:
            scope.function.is_generator = True

    def _note_import(self, node: ast.AST, alias: ast.alias, seen: set[str]) -> None:
        last = alias.name.rpartition(".")[2]
        seen.add(last)
        if alias.asname:
            self.aliases.setdefault(alias.asname, set()).add(last)
        if isinstance(node, ast.ImportFrom):
            imported = ImportedName(node.module or "", alias.name, node.level)
            if alias.name == "*":
                self.star_imports.append(imported._replace(name=""))
            else:
                self.imports[alias.asname or alias.name] = imported
        else:
            self.imports[alias.asname or alias.name.partition(".")[0]] = ImportedName(alias.name, "", 0)

    @property
    def bindings(self) -> dict[str, list[ast.stmt]]:
        """Statements outside functions that bind each name.

        Fallback branches count only for names without another binding.
        """
        if self._bindings is None:
            certain: dict[str, list[ast.stmt]] = {}
            fallbacks: dict[str, list[ast.stmt]] = {}
            _collect_bindings(self.tree.body, certain, fallbacks)
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
        return [each for each in _iterate_statements(self.tree.body) if _fills(each, users | {name})]

    def count_word(self, name: str) -> int:
        """Return the number of occurrences of a name in the text, with comments and strings."""
        if self._word_counts is None:
            self._word_counts = Counter(re.findall(r"\w+", self.text))
        return self._word_counts[name]

    def _add_aliases(self, holders: list[set[str]]) -> None:
        """Add the targets of each alias to the scopes that use the alias."""
        aliases = {name: meant - {name} for name, meant in self.aliases.items() if len(meant) <= MAX_ALIAS_TARGETS}
        for holder in holders:
            todo = [name for name in holder if name in aliases]
            while todo:
                for meant in aliases.get(todo.pop(), ()):
                    if meant not in holder:
                        holder.add(meant)
                        todo.append(meant)

    def character_column(self, line: int, offset: int) -> int:
        """Return the column in characters for an offset in UTF-8 bytes."""
        if self.is_ascii or offset <= 0:
            return offset
        if self.lines is None:
            self.lines = self.text.split("\n")
        if line > len(self.lines):
            return offset
        return len(self.lines[line - 1].encode()[:offset].decode("utf-8", "ignore"))


#: Names in code that reads the parameters of a function, which have the name of a module's parameters.
_SIGNATURE_NAMES = frozenset({"parameters", "signature"})


def _calls_parameters(node: ast.AST) -> bool:
    """Return True if code calls the method ``parameters``: the attribute of a signature is no method."""
    return any(isinstance(each, ast.Call) and tail_name(each.func) == "parameters" for each in walk(node))


#: Kinds of node that are a scope with names of their own.
_SCOPES = frozenset((ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef))
#: Functions that record other kinds of node.
_NODE_HANDLERS: dict[type[ast.AST], Callable[[Module, Any, _Scope], None]] = {
    ast.AnnAssign: Module._note_annotated,
    ast.Assign: Module._note_assignment,
    ast.AugAssign: Module._note_counting,
    ast.BinOp: Module._note_counting,
    ast.ExceptHandler: Module._note_handler,
    ast.Global: Module._note_outer_names,
    ast.keyword: Module._note_keyword,
    ast.Nonlocal: Module._note_outer_names,
    ast.Yield: Module._note_yield,
    ast.YieldFrom: Module._note_yield,
}


def _names_of_torch(value: ast.expr) -> set[str]:
    """Return the names of dtypes, regions, losses and the like that a choice or a table of a file holds."""
    match value:
        case ast.IfExp(body=first, orelse=second):
            return _names_of_torch(first) | _names_of_torch(second)
        case ast.Dict(values=items) if len(items) <= MAX_ALIAS_TARGETS:
            return set().union(*map(_names_of_torch, items))
        case ast.Subscript(value=ast.Dict() as table):
            return _names_of_torch(table)
        case ast.Call(func=ast.Name(id="dict"), keywords=items):
            return set().union(*(_names_of_torch(item.value) for item in items))
        case _:
            return set(map(tail_name, _call_sources(value))) & _NAMES_OF_TORCH


def _call_sources(value: ast.expr) -> list[ast.expr]:
    """Return the callee and the arguments of a call, or the expression itself."""
    return [value.func, *value.args] if isinstance(value, ast.Call) else [value]


#: Last names of dtypes, and of the functions and classes of torch that have a model.
_NAMES_OF_TORCH = frozenset(name.rpartition(".")[2] for name in (*torch_api.DTYPES, *torch_api.SURFACE))


def _weights_old_value(target: ast.expr, value: ast.BinOp) -> bool:
    """Return True for ``self.mean = self.mean * a + b``, which a method repeats without a loop of its own."""
    if not isinstance(target, ast.Attribute) or not isinstance(value.op, ast.Add):
        return False
    products = [side for side in (value.left, value.right) if isinstance(side, ast.BinOp) and type(side.op) is ast.Mult]
    factors = [factor for product in products for factor in (product.left, product.right)]
    return any(isinstance(each, ast.Attribute) and each.attr == target.attr for each in factors)


def is_product(node: ast.expr) -> bool:
    """Return True if an expression is a matrix product."""
    if isinstance(node, ast.BinOp):
        return type(node.op) is ast.MatMult
    return isinstance(node, ast.Call) and tail_name(node.func) in ("matmul", "bmm", "einsum")


def _is_large(node: ast.expr) -> bool:
    """Return True if an expression is a number above the largest float16, or may be one: a negated constant's name."""
    number = node.operand if isinstance(node, ast.UnaryOp) else node
    if number is not node and is_constant_name(tail_name(number)):
        return True
    value = number.value if isinstance(number, ast.Constant) else None
    return isinstance(value, (int, float)) and value > FLOAT16_MAX


def _is_square(node: ast.BinOp) -> bool:
    """Return True for the product of a name with itself."""
    left, right = node.left, node.right
    return (
        isinstance(node.op, ast.Mult)
        and isinstance(left, ast.Name)
        and isinstance(right, ast.Name)
        and left.id == right.id
    )


def _is_area(node: ast.BinOp) -> bool:
    """Return True for the product of two differences, also with a lower bound."""
    return isinstance(node.op, ast.Mult) and all(map(_is_difference, (node.left, node.right)))


def _is_difference(node: ast.expr) -> bool:
    match node:
        case ast.BinOp(op=ast.Sub()):
            return True
        case ast.Call(func=ast.Attribute(value=ast.BinOp(op=ast.Sub()))):
            return True
    return False


def _is_doubled(node: ast.expr) -> bool:
    """Return True for a factor of a matrix product that is multiplied by 2 or -2."""
    parts = [node.left, node.right] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) else []
    numbers = [part.operand if isinstance(part, ast.UnaryOp) else part for part in parts]
    return any(isinstance(number, ast.Constant) and number.value == 2 for number in numbers)


def is_constant_name(name: str) -> bool:
    """Return True for the name of a constant: ``NEAR_INF``."""
    return len(name) > 2 and name.isupper()


def number_marks(number: float) -> tuple[str, ...]:
    """Return the marks for a number that float16 cannot represent."""
    if abs(number) > FLOAT16_MAX:
        return (LARGE_NUMBER,)
    return (SMALL_NUMBER,) if 0 < number < 1.6e-5 else ()


def _collect_bindings(
    statements: list[ast.stmt], certain: dict[str, list[ast.stmt]], fallbacks: dict[str, list[ast.stmt]]
) -> None:
    """Collect the statements that bind names; ``fallbacks`` collects statements in ``else`` blocks and handlers."""
    for statement in statements:
        match statement:
            case ast.If(body=body, orelse=others):
                _collect_bindings(body, certain, fallbacks)
                _collect_bindings(others, fallbacks, fallbacks)
            case ast.Try(body=body, orelse=others, handlers=handlers, finalbody=last):
                _collect_bindings([*body, *last], certain, fallbacks)
                _collect_bindings(
                    [*others, *(each for handler in handlers for each in handler.body)], fallbacks, fallbacks
                )
            case ast.With(body=body):
                _collect_bindings(body, certain, fallbacks)
            case ast.Import() | ast.ImportFrom():
                for name, _ in bound_by_import(statement):
                    certain.setdefault(name, []).append(statement)
            case ast.Assign() | ast.AnnAssign() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                for name in stored_names([statement])[0]:
                    certain.setdefault(name, []).append(statement)


def _iterate_statements(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the simple statements and definitions of a block, and of the blocks in it that an import executes."""
    for statement in statements:
        match statement:
            case ast.If(body=body) | ast.With(body=body):
                yield from _iterate_statements(body)
            case ast.Try(body=body, finalbody=last):
                yield from _iterate_statements([*body, *last])
            case _:
                yield statement


def _fills(statement: ast.stmt, names: set[str]) -> bool:
    """Return True if a statement stores something by one of some names: a container, or a function that fills it."""
    match statement:
        case ast.FunctionDef(decorator_list=asked) | ast.AsyncFunctionDef(decorator_list=asked):
            pass
        case ast.ClassDef(decorator_list=asked):
            pass
        case ast.Expr(value=ast.Call(func=called)):
            asked = [called]
        case ast.Assign(targets=[ast.Subscript(value=held)]):
            asked = [held]
        case _:
            return False
    return any(root_name(each.func if isinstance(each, ast.Call) else each) in names for each in asked)


def catches_import(handler: ast.ExceptHandler) -> bool:
    """Return True if a handler supports a library without the imported name."""
    names = {n.id for n in walk(handler.type) if isinstance(n, ast.Name)} if handler.type else {"ImportError"}
    return bool(names & {"ImportError", "ModuleNotFoundError", "AttributeError", "Exception"})


class StoredNames(NamedTuple):
    """Names and attributes that statements assign.

    ``grown`` are the names of lists that get further items. ``items`` are the names and keys of the assignments
    ``name["text"] = value``, ``name[0] = value`` and ``name.update(text=value)``.
    """

    names: frozenset[str]
    attributes: frozenset[str]
    grown: frozenset[str]
    items: frozenset[tuple[str, str | int]]


_stored_names_cache: dict[int, tuple[list[ast.stmt], StoredNames]] = {}
#: Methods that add items to a list.
_GROWING_METHODS = frozenset(("append", "extend", "insert"))


def item_name(key: str) -> str:
    """Return the heap name of an item, which no attribute can have."""
    return f"[{key!r}]"


def methods_called_on(function: Function, name: str) -> set[str]:
    """Return the names of the methods that a function calls on one of its variables."""
    calls = (node.func for node in function.nodes if isinstance(node, ast.Call))
    return {
        func.attr
        for func in calls
        if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == name
    }


def stored_names(nodes: list[ast.stmt]) -> StoredNames:
    """Return the names and attribute names that statements assign, without the bodies of nested functions."""
    known = _stored_names_cache.get(id(nodes))
    if known is not None and known[0] is nodes:
        return known[1]
    found = _find_stored_names(nodes)
    if len(_stored_names_cache) > 512:
        _stored_names_cache.clear()
    _stored_names_cache[id(nodes)] = nodes, found
    return found


def _find_stored_names(nodes: list[ast.stmt]) -> StoredNames:
    names: set[str] = set()
    attributes: set[str] = set()
    grown: set[str] = set()
    items: set[tuple[str, str | int]] = set()
    stack: list[ast.AST] = list(nodes)
    while stack:
        match stack.pop():
            case ast.Name(id=name, ctx=context):
                if not isinstance(context, ast.Load):
                    names.add(name)
            case ast.Attribute(attr=name, value=value, ctx=context):
                if isinstance(context, ast.Store):
                    attributes.add(name)
                elif name in _GROWING_METHODS and isinstance(value, ast.Name):
                    grown.add(value.id)
                stack.append(value)
            case ast.Subscript(slice=ast.Constant(value=str(key)), value=value, ctx=ast.Store()):
                attributes.add(item_name(key))
                if isinstance(value, ast.Name):
                    items.add((value.id, key))
                stack.append(value)
            case ast.Subscript(slice=ast.Constant(value=int(index)), value=ast.Name(id=name), ctx=ast.Store()):
                items.add((name, index))
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr="update"), args=args, keywords=[_, *_] as keywords
            ):
                items.update((name, keyword.arg) for keyword in keywords if keyword.arg is not None)
                stack += [*args, *keywords]
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                names.add(name)
                grown.add(name)
                stack.append(value)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Lambda():
                pass
            case node:
                stack.extend(children(node))
    return StoredNames(frozenset(names), frozenset(attributes), frozenset(grown), frozenset(items))
