"""Items of loops: loops over a few known items, and loops that do the same to each item."""

from __future__ import annotations

import ast

from ....protocol.source_text import find_access_path
from ..comparisons import ItemCounts
from ..expressions.iteration import EnumerateIterables
from ..interpreter import Interpreter
from ..loop_variables import is_used_as_object, statements_of
from ..source_text import names_in
from ..values.containers import MappingValue, SequenceValue, UnionValue
from ..values.definitions import BoundMethod, FunctionValue, Instance, PartialCall
from ..values.gradients import ParamsValue
from ..values.objects import ObjectRef
from ..values.tensors import TensorValue
from ..values.value import Const, UnknownValue, Value

#: Roles of tracked objects that a loop may iterate over.
ITERATED_ROLES = frozenset(("optimizer", "scaler"))
#: Maximum length of a literal sequence that a loop is unrolled over, and of a sequence of functions and objects.
MAX_UNROLLED_ITEMS = 4
MAX_CALLABLE_ITEMS = 12


def is_uniform_loop(interp: Interpreter, node: ast.For | ast.AsyncFor, iterable: Value) -> bool:
    """Return True if a loop does the same to each item, so that one iteration stands for all iterations."""
    return (
        _is_of_params(iterable)
        or _is_of_objects(iterable)
        or any(_is_object(interp, name) and is_used_as_object(interp, node, name) for name in names_in(node.target))
        or _chooses_object(interp, node)
    )


def _is_object(interp: Interpreter, name: str | None) -> bool:
    """Return True if the file uses a name as an optimizer or a scaler."""
    return interp.state.frame.module.role_by_text.get(name or "") in ITERATED_ROLES


def _chooses_object(interp: Interpreter, node: ast.For | ast.AsyncFor) -> bool:
    """Return True if the loop variable selects another optimizer or scaler in each iteration."""
    if not ITERATED_ROLES.intersection(interp.state.frame.module.role_by_text.values()):
        return False
    names = names_in(node.target)
    found = (_chosen_object(interp, inner) for inner in statements_of(interp, node))
    return any(chosen is not None and not names.isdisjoint(names_in(chosen.slice)) for chosen in found)


def _chosen_object(interp: Interpreter, node: ast.AST) -> ast.Subscript | None:
    """Return the container item that a statement uses as an optimizer or a scaler, or None.

    The use shows in the name that the item is assigned to, or in the call that contains the item.
    """
    chosen: ast.expr | None = None
    match node:
        case ast.Assign(value=ast.Subscript() as value, targets=targets):
            chosen = value if any(_is_object(interp, find_access_path(target)) for target in targets) else None
        case ast.Call(func=ast.Attribute(attr="step" | "unscale_"), args=[ast.Subscript() as value, *_]):
            chosen = value
        case ast.Call(func=ast.Attribute(attr="zero_grad", value=ast.Subscript() as value)):
            chosen = value
    return chosen if isinstance(chosen, ast.Subscript) else None


def few_items(interp: Interpreter, value: Value) -> list[Value] | None:
    if isinstance(value, UnknownValue) and value.iterable_kind == "enumerate":
        first, items = value.count.first_value, few_items(interp, interp.file_data(EnumerateIterables)[value.key])
        # Literal batches, as in a test, are data: a few of them do not show the effect of every iteration.
        if items is None or first is None or all(is_data(item) for item in items):
            return None
        return [SequenceValue([Const(first + index), item]) for index, item in enumerate(items)]
    if isinstance(value, MappingValue):
        # The keys give access to the values.
        held = few_items(interp, SequenceValue(list(value.items.values()), is_open=value.is_open))
        return None if held is None else [Const(key) for key in value.items]
    if not isinstance(value, SequenceValue) or not value.items:
        return None
    if len(value.items) <= MAX_CALLABLE_ITEMS and all(map(_is_hook, value.items)):
        # Hooks and stages: also a list to which other code adds some holds each of these once.
        return value.items
    if value.is_open or len(value.items) > MAX_UNROLLED_ITEMS:
        return None
    worth = (ObjectRef, UnionValue, Instance, SequenceValue, FunctionValue)
    return value.items if any(isinstance(item, worth) for item in value.items) else None


def _is_hook(value: Value) -> bool:
    """Return True for a value that the body of a loop calls, or whose methods it calls, except for a module."""
    if isinstance(value, Instance):
        return value.tracked_object is None
    return isinstance(value, (FunctionValue, PartialCall, BoundMethod))


def only_index(interp: Interpreter, value: Value) -> list[Value] | None:
    """Return the index of an inner loop over ``range(1)``, or None. An outer loop counts epochs, which users change."""
    if not isinstance(value, UnknownValue) or value.iterable_kind != "range" or value.count.first_value != 0:
        return None
    count = interp.file_data(ItemCounts).get(value.key)
    is_inner = any(loop.node is not None for loop in interp.state.loops)
    return [Const(0)] if is_inner and count is not None and count.value == 1 else None


def _is_of_params(value: Value) -> bool:
    if isinstance(value, SequenceValue) and value.items:
        return all(_is_of_params(item) for item in value.items if not isinstance(item, UnknownValue)) and any(
            _is_of_params(item) for item in value.items
        )
    return isinstance(value, ParamsValue)


def is_data(value: Value | None) -> bool:
    """Return True if a variable may hold training data."""
    if isinstance(value, UnknownValue):
        return not value.count.is_counter
    return isinstance(value, (TensorValue, SequenceValue))


def _is_of_objects(value: Value) -> bool:
    """Return True if an open sequence has one tracked object that stands for all items, as a comprehension returns."""
    if not isinstance(value, SequenceValue) or not value.is_open or len(value.items) != 1:
        return False
    (item,) = value.items
    parts = item.items if isinstance(item, SequenceValue) and not item.is_open else [item]
    return any(part.role in ITERATED_ROLES for part in parts)
