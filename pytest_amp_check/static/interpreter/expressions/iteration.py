"""Iteration: the values that a loop over a value assigns."""

from __future__ import annotations

import ast

from ..comparisons import ItemCounts, RangeEnds, RangeSteps
from ..identity import Operation, structural_unknown
from ..interpreter import Interpreter
from ..source_text import short_text
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
