"""Float32 copies of low-precision parameters, which optimizers of a project keep or programs make."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ..interpreter.classes.lineage import lineage_of
from ..interpreter.interpreter import Interpreter
from ..project.module import Class, Function
from ..project.syntax import tail_name, walk

#: Methods that convert a tensor, by themselves or if an argument names the dtype.
_CONVERSIONS = frozenset(("float", "double"))
_CASTS = frozenset(("to", "type"))
#: Functions and methods that make a copy of a tensor, or room for one.
_COPYING = frozenset(("Parameter", "clone", "empty_like", "deepcopy"))
_WIDE_DTYPES = frozenset(("float", "double", "float32", "float64"))


class _ClassesWithCopies(dict[Class, bool]):
    """Optimizer classes, each with True if it keeps float32 copies."""


def keeps_float32_copies(interp: Interpreter, cls: Class) -> bool:
    """Return True if an optimizer class, or a base in the project, keeps float32 copies of the parameters.

    A conversion that a step does not store, such as ``p32 = p.float()``, lasts for one step only: its result is rounded
    to the parameter again.
    """
    known = interp.file_data(_ClassesWithCopies)
    if cls not in known:
        methods = [method for owner in lineage_of(interp, cls) for method in owner.methods.values()]
        stepping = {"step"}.union(*(method.attributes_used() for method in methods if method.name == "step"))
        known[cls] = any(
            _keeps_conversion(method, is_step=method.name in stepping)
            for method in methods
            if not method.attributes_used().isdisjoint(_WIDE_DTYPES)
        )
    return known[cls]


def _keeps_conversion(method: Function, *, is_step: bool) -> bool:
    if not is_step:
        return any(map(_converts, method.nodes))
    return any(
        any(map(_outlives_call, node.targets)) and any(map(_converts, walk(node.value)))
        for node in method.nodes
        if isinstance(node, ast.Assign)
    )


def _outlives_call(target: ast.expr) -> bool:
    """Return True for ``state["copy"]`` and ``self.copies``."""
    return isinstance(target, (ast.Subscript, ast.Attribute))


def copies_parameters(nodes: Iterable[ast.AST]) -> bool:
    """Return True if code makes copies of the parameters over which it loops, as ``[p.float() for p in params]``."""
    targets: set[str] = set()
    copied: set[str] = set()
    for node in nodes:
        match node:
            case ast.For(target=target, iter=over) | ast.comprehension(target=target, iter=over):
                if any("param" in (name := tail_name(part)) or "weight" in name for part in walk(over)):
                    targets |= {part.id for part in walk(target) if isinstance(part, ast.Name)}
            case ast.Call(func=func, args=args) if tail_name(func) in _COPYING or _converts(node):
                copied |= _names_in(func).union(*map(_names_in, args[:1]))
    return not targets.isdisjoint(copied)


def _names_in(node: ast.AST) -> set[str]:
    return {part.id for part in walk(node) if isinstance(part, ast.Name)}


def _converts(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr in _CONVERSIONS:
        return not node.args
    given = (*node.args, *(keyword.value for keyword in node.keywords))
    return node.func.attr in _CASTS and any(tail_name(argument) in _WIDE_DTYPES for argument in given)
