"""Tables: dicts from which the code selects one of several known values by an unknown key.

A setting often selects a dtype, an autocast region, a loss or a function: ``{"fp16": torch.float16, ...}[args.dtype]``.
"""

from __future__ import annotations

import ast

from ....protocol.torch_api import SURFACE, canonical_name
from ..conditions import Formula, disjunction
from ..counters import equality_formula
from ..interpreter import Interpreter
from ..joins import MAX_OPTIONS, join_values
from ..values.containers import MappingValue
from ..values.definitions import ExternalName, FunctionValue, Instance
from ..values.value import NO_CONSTANT, Const, Value

#: Kinds of values that may stand in a table. Optimizers and scalers are left out: a loop over the keys of their dict
#: uses all of them, one in each iteration.
_KINDS = frozenset(
    ("named", "function", "class", "instance", "partial", "autocast", "null context", "constant", "unknown", "imported")
)


def select_from_table(
    interp: Interpreter, table: Value, index: Value, node: ast.AST, default: Value | None = None
) -> Value | None:
    """Return the union of the values that an unknown key may select from a dict, or None.

    ``default`` is the result for a key that the dict lacks. Without a default, the last value stands for all
    other keys.
    """
    if not isinstance(table, MappingValue) or table.is_open or index.value is not NO_CONSTANT:
        return None
    if not _is_table(table):
        return None
    asked = _index_node(node)
    options: dict[object, tuple[Value, list[Formula]]] = {}
    for key, value in table.items.items():
        question = ast.Compare(left=asked, ops=[ast.Eq()], comparators=[ast.Constant(key)])  # type: ignore[arg-type]
        formula = equality_formula(interp, index, Const(key), ast.copy_location(question, asked))
        options.setdefault(value.identity_key(interp.unique_number), (value, []))[1].append(formula)
    if len(options) > MAX_OPTIONS:
        return None
    values = [(value, disjunction(*formulas)) for value, formulas in options.values()]
    selected = default if default is not None else values.pop()[0]
    for value, formula in reversed(values):
        selected = join_values(interp, interp.shorten_formula(formula), value, selected, "item")
    return selected


def _is_table(table: MappingValue) -> bool:
    """Return True for a dict with a dtype, a region, a name of torch that has a model, or code that takes part.

    A registry of functions counts from the first function on.
    """
    holds_functions = any(value.kind == "function" for value in table.items.values())
    return (
        len(table.items) >= (1 if holds_functions else 2)
        and all(value.kind in _KINDS for value in table.items.values())
        and any(map(_is_known, table.items.values()))
        and not any(isinstance(key, tuple) for key in table.items)
    )


def _is_known(value: Value) -> bool:
    if isinstance(value, ExternalName):
        return bool(value.possible_dtypes) or canonical_name(value.name) in SURFACE
    if isinstance(value, FunctionValue):
        return bool(value.function.used_names)
    if isinstance(value, Instance):
        return value.tracked_object is None and any(cls.used_names for cls in value.lineage)
    return value.kind in ("autocast", "null context")


def _index_node(node: ast.AST) -> ast.expr:
    """Return the expression of the key: the index, or the first argument of ``get``."""
    match node:
        case ast.Subscript(slice=index):
            return index
        case ast.Call(args=[index, *_]):
            return index
        case _:
            return ast.copy_location(ast.Constant("key"), node)
