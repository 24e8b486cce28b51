"""Index of a file: its functions and classes, and the used names that may be relevant to the protocol."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable

from ...protocol import torch_api
from ...protocol.fast_namedtuple import NamedTuple
from ...protocol.frameworks import LOW_VALUES
from .assignments import stored_names
from .bindings import catches_import
from .generated_constructors import add_constructor
from .module import Class, Function, FunctionNode, ImportedName, Module
from .roles import RoleCollector
from .syntax import children, tail_name, walk
from .syntax_marks import (
    AVERAGING,
    COUNTING,
    FILLING,
    FLOAT16_MAX,
    NUMBER_TYPES,
    SCALING,
    is_area,
    is_doubled,
    is_large,
    is_product,
    is_square,
    number_marks,
    weights_old_value,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Maximum number of targets of an alias. A name with more targets is data: otherwise each function that uses the name
#: would have the names of all targets.
MAX_ALIAS_TARGETS = 64


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


class NameIndexer:
    """Walk over the tree of a module that finds its functions and classes, the names in them, and roles of expressions.

    ``roles`` collects the roles.
    """

    __slots__ = ("module", "roles")

    def __init__(self, module: Module, roles: RoleCollector) -> None:
        self.module = module
        self.roles = roles

    def index_names(self, tree: ast.Module) -> None:
        """Find all functions and classes, their names and the roles of expressions, in one walk over the tree."""
        whole = _Scope(tree, None, set(), None, set(), None)
        scopes: list[_Scope] = [whole]
        found: dict[Function | Class, set[str]] = {}
        # The most frequent kinds of node are tested here, the others by a table.
        roles = self.roles
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
                        if type(child.value) in NUMBER_TYPES and not 1 <= child.value <= FLOAT16_MAX:  # type: ignore[attr-defined]
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
        names = Counter(cls.name for cls in self.module.classes.values())
        classes = {cls.name: cls for cls in self.module.classes.values() if names[cls.name] == 1}
        for scope in scopes:
            _add_owners(scope, classes)
        self._add_aliases([each.used_names for each in scopes])
        for scope in scopes:
            # After the aliases: the parameters of a signature may have another name.
            if scope.used_names >= _SIGNATURE_NAMES and not _calls_parameters(scope.node):
                scope.used_names.discard("parameters")
        self.module.used_names = frozenset(whole.used_names)
        self.module.identifiers = self.module.used_names.union(owners, *found.values())
        for holder, inner in found.items():
            holder.used_names = frozenset(inner)

    def _define_scope(self, node: ast.AST, scope: _Scope, parent: ast.AST) -> _Scope:
        """Create the function or class of a node and return its scope."""
        if isinstance(node, ast.ClassDef):
            add_constructor(
                node, {cls.name: cls.node for cls in self.module.classes.values()} if node.decorator_list else {}
            )
            cls = self.module.classes[node] = Class(node, self.module)
            return _Scope(node, cls, set(), None, set(), scope)
        assert isinstance(node, FunctionNode)
        function = self.module.functions[node] = Function(
            node, self.module, scope.cls if parent is scope.node else None
        )
        self.module.functions_by_name.setdefault(function.name, []).append(function)
        if isinstance(node, ast.Lambda):
            scope.used_names.add(function.name)
        elif function.cls is not None:
            function.cls.methods.setdefault(function.name, function)
        return _Scope(node, None, set(), function, set(), scope)

    def _note_annotated(self, node: ast.AnnAssign, scope: _Scope) -> None:
        """Record the aliases of a constant of the file with an annotation."""
        if node.value is not None and isinstance(node.target, ast.Name) and isinstance(scope.node, ast.Module):
            self.module.aliases.setdefault(node.target.id, set()).update(_names_of_torch(node.value))

    def _note_assignment(self, node: ast.Assign, scope: _Scope) -> None:
        """Record aliases of a function or a class: ``ac = torch.autocast`` or ``ac = partial(autocast, "cuda")``."""
        self.roles.note_assignment(node)
        value = node.value
        sources = _call_sources(value)
        words = set(filter(None, map(tail_name, sources)))
        if isinstance(scope.node, ast.Module):
            # A choice or a table inside a function is data of the function, which has these names itself.
            words |= _names_of_torch(value)
        if is_large(value) and any(isinstance(target, ast.Subscript) for target in node.targets):
            scope.used_names.add(FILLING)
        if isinstance(value, ast.BinOp) and weights_old_value(node.targets[0], value):
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
                self.module.aliases.setdefault(target.id, set()).update(words)
            elif stored and isinstance(target, ast.Attribute) and target.attr not in stored:
                # A function or a dtype in an attribute: ``self.loss = lambda x, y: bce(x, y)``,
                # ``self.forward = self.run``, ``self.dtype = torch.float16 if half else torch.float32``.
                self.module.aliases.setdefault(target.attr, set()).update(stored)

    def _note_counting(self, node: ast.AugAssign | ast.BinOp, scope: _Scope) -> None:
        if isinstance(node, ast.AugAssign) or isinstance(node.op, ast.Mod):
            scope.used_names.add(COUNTING)
        elif (
            is_square(node)
            or is_area(node)
            or (type(node.op) in (ast.Mult, ast.Div) and (is_product(node.left) or is_product(node.right)))
            or (type(node.op) is ast.MatMult and is_doubled(node.left))
        ):
            scope.used_names.add(SCALING)

    def _note_handler(self, node: ast.ExceptHandler, scope: _Scope) -> None:
        if catches_import(node):
            self.module.fallback_nodes.update(walk(node))

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
                self.module.rebound_names.setdefault(outer.node, set()).update(assigned)
            outer = outer.outer

    def _note_yield(self, node: ast.AST, scope: _Scope) -> None:
        scope.used_names.add("yield")
        if scope.function is not None:
            scope.function.is_generator = True

    def _note_import(self, node: ast.AST, alias: ast.alias, seen: set[str]) -> None:
        last = alias.name.rpartition(".")[2]
        seen.add(last)
        if alias.asname:
            self.module.aliases.setdefault(alias.asname, set()).add(last)
        if isinstance(node, ast.ImportFrom):
            imported = ImportedName(node.module or "", alias.name, node.level)
            if alias.name == "*":
                self.module.star_imports.append(imported._replace(name=""))
            else:
                self.module.imports[alias.asname or alias.name] = imported
        else:
            self.module.imports[alias.asname or alias.name.partition(".")[0]] = ImportedName(alias.name, "", 0)

    def _add_aliases(self, holders: list[set[str]]) -> None:
        """Add the targets of each alias to the scopes that use the alias."""
        aliases = {
            name: meant - {name} for name, meant in self.module.aliases.items() if len(meant) <= MAX_ALIAS_TARGETS
        }
        for holder in holders:
            todo = [name for name in holder if name in aliases]
            while todo:
                for meant in aliases.get(todo.pop(), ()):
                    if meant not in holder:
                        holder.add(meant)
                        todo.append(meant)


def build_module(path: str, text: str, tree: ast.Module) -> Module:
    """Return the module of a parsed file, with its functions, classes, names and roles."""
    module, roles = Module(path, text, tree), RoleCollector()
    NameIndexer(module, roles).index_names(tree)
    module.role_by_text = roles.resolve_roles()
    module.role_names = frozenset(text.rpartition(".")[2] for text in module.role_by_text)
    return module


#: Names in code that reads the parameters of a function, which have the name of a module's parameters.
_SIGNATURE_NAMES = frozenset({"parameters", "signature"})


def _calls_parameters(node: ast.AST) -> bool:
    """Return True if code calls the method ``parameters``: the attribute of a signature is no method."""
    return any(isinstance(each, ast.Call) and tail_name(each.func) == "parameters" for each in walk(node))


#: Kinds of node that are a scope with names of their own.
_SCOPES = frozenset((ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef))
#: Functions that record other kinds of node.
_NODE_HANDLERS: dict[type[ast.AST], Callable[[NameIndexer, Any, _Scope], None]] = {
    ast.AnnAssign: NameIndexer._note_annotated,
    ast.Assign: NameIndexer._note_assignment,
    ast.AugAssign: NameIndexer._note_counting,
    ast.BinOp: NameIndexer._note_counting,
    ast.ExceptHandler: NameIndexer._note_handler,
    ast.Global: NameIndexer._note_outer_names,
    ast.keyword: NameIndexer._note_keyword,
    ast.Nonlocal: NameIndexer._note_outer_names,
    ast.Yield: NameIndexer._note_yield,
    ast.YieldFrom: NameIndexer._note_yield,
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
