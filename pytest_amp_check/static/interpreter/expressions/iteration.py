"""Iteration: the values that a loop over a value assigns."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ...project.syntax import walk
from ..comparisons import ItemCounts, RangeEnds, RangeSteps
from ..identity import Operation, structural_unknown
from ..interpreter import Interpreter
from ..source_text import names_in, short_text
from ..values.containers import MappingValue, SequenceValue
from ..values.definitions import GeneratorValue
from ..values.gradients import ParamsValue
from ..values.objects import ObjectRef, StateDict
from ..values.value import Const, UnknownValue, Value, iterable_kind_of

#: Iterables of consecutive numbers: ``range(...)`` and ``itertools.count(...)``.
COUNTED = ("range", "count")


def iterated_value(value: Value) -> Value:
    """Return the values that a loop iterates over: for a dict, the keys."""
    return (
        SequenceValue([Const(key) for key in value.items], is_open=value.is_open)
        if isinstance(value, MappingValue)
        else value
    )


#: Maximum number of names of attributes that a loop or a comprehension is unrolled over.
MAX_NAMES = 12


def names_of_attributes(value: Value, target: ast.expr, body: Iterable[ast.AST]) -> list[Value] | None:
    """Return the items of a list of names if a loop gets an attribute by each of them, or None for another list.

    A checkpoint is often built so: ``{name: getattr(self, name).state_dict() for name in ("model", "optimizer")}``.
    """
    if not isinstance(value, SequenceValue) or value.is_open or not isinstance(target, ast.Name):
        return None
    if not 0 < len(value.items) <= MAX_NAMES or not all(isinstance(item.value, str) for item in value.items):
        return None
    for node in (part for top in body for part in walk(top)):
        match node:
            case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Name(id=name), *_]) if name == target.id:
                return value.items
    return None


class BatchBuffers(dict[int, int]):
    """Lists in which a loop over data puts its batches: number of the list -> key of the loop."""


def note_batch(interp: Interpreter, buffer: SequenceValue, item: Value) -> None:
    """Record a list in which the innermost loop over data puts what it assigns to its variable."""
    loop = next((loop for loop in reversed(interp.state.loops) if loop.node is not None), None)
    if loop is None or not isinstance(loop.node, (ast.For, ast.AsyncFor)):
        return
    assigned = [interp.state.frame.vars.get(name) for name in names_in(loop.node.target)]
    parts = item.items if isinstance(item, SequenceValue) else [item]
    if any(isinstance(part, UnknownValue) and part.origin.is_loop_element and part in assigned for part in parts):
        interp.file_data(BatchBuffers)[interp.unique_number(buffer)] = loop.key


def is_buffer_of_batches(interp: Interpreter, value: Value) -> bool:
    """Return True for a list in which an open loop over data has put its batches, until there are enough of them."""
    if not isinstance(value, SequenceValue) or not value.is_open:
        return False
    key = interp.file_data(BatchBuffers).get(interp.unique_number(value))
    return any(loop.key == key for loop in interp.state.loops)


def representative_of(interp: Interpreter, value: Value, node: ast.expr) -> Value:
    """Return one element that stands for all elements. Loops over the same value get the same element."""
    if isinstance(value, SequenceValue) and len(value.items) == 1:
        return value.items[0]
    if isinstance(value, (GeneratorValue, ParamsValue)):
        return element_of(interp, value, node)
    if isinstance(value, UnknownValue) and value.iterable_kind == "enumerate":
        return SequenceValue(
            [
                _loop_index(interp, value, node, "index"),
                representative_of(interp, interp.file_data(EnumerateIterables)[value.key], node),
            ]
        )
    if isinstance(value, ObjectRef) and (itself := value.loop_element()) is not None:
        return itself
    if isinstance(value, SequenceValue):
        known = value.loop_element()
        # Each loop may build another list of the same items, as the methods of a dict do.
        return (
            known
            if known is not None
            else structural_unknown(interp, Operation.EACH, tuple(value.items), short_text(node))
        )
    return structural_unknown(interp, Operation.EACH, (value,), short_text(node))


def element_of(interp: Interpreter, value: Value, node: ast.AST) -> Value:
    """Return the value that a loop over a value assigns in each iteration."""
    known = value.loop_element()
    if known is not None:
        return known
    resume = interp.handlers.loop_elements.get(value.kind)
    if resume is not None:
        return resume(interp, value, node)
    if isinstance(value, UnknownValue) and value.iterable_kind == "enumerate":
        return SequenceValue(
            [
                _loop_index(interp, value, node, "index"),
                element_of(interp, interp.file_data(EnumerateIterables)[value.key], node),
            ]
        )
    if isinstance(value, UnknownValue) and value.iterable_kind == "zip":
        return SequenceValue([element_of(interp, each, node) for each in interp.file_data(ZipIterables)[value.key]])
    made = (
        _loop_index(interp, value, node, "element")
        if iterable_kind_of(value) in COUNTED
        else interp.fresh_unknown(node, "element")
    )
    made.origin = made.origin._replace(
        is_loop_element=not iterable_kind_of(value), is_from_gradient=value.origin.is_from_gradient
    )
    return made.with_dtype_info(value.dtype_info.part_info)


def element_for(interp: Interpreter, value: Value, target: ast.expr, node: ast.AST) -> Value:
    """Return the value that a loop over a value assigns to a target in each iteration.

    An entry of a state dict stands for the whole state, as loops copy it entry by entry.
    """
    element = element_of(interp, value, node)
    if isinstance(value, StateDict) and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        return SequenceValue([element, value])
    return element


def _loop_index(interp: Interpreter, value: Value, node: ast.AST, name: str) -> UnknownValue:
    """Return the number that a loop over a range or an enumeration assigns."""
    made = interp.fresh_unknown(node, name)
    for notes in (interp.file_data(RangeEnds), interp.file_data(RangeSteps), interp.file_data(ItemCounts)):
        if isinstance(value, UnknownValue) and value.key in notes:
            notes[made.key] = notes[value.key]
    made.count = made.count._replace(
        is_counter=True,
        is_iteration_count=True,
        is_loop_index=True,
        first_value=value.count.first_value,
        possible_start=value.count.possible_start,
        added_to_start=value.count.added_to_start,
    )
    return made


class EnumerateIterables(dict[int, Value]):
    """Iterables of ``enumerate(...)`` calls, by the key of the call's value."""


class ZipIterables(dict[int, list[Value]]):
    """Iterables of ``zip(...)`` calls that the analysis must run, by the key of the call's value."""
