"""Loop variables: values at the head of a loop, which stand for all iterations."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ....protocol.source_text import find_access_path
from ...project.assignments import stored_names
from ...project.syntax import root_name, statements_in
from ..interpreter import Interpreter
from ..joins import join_values
from ..source_text import short_text
from ..state import Loop
from ..values.containers import MappingValue, SequenceValue, UnionValue
from ..values.contexts import NullContext
from ..values.definitions import FunctionValue, Heap, Instance, Vars
from ..values.gradients import ParamsValue
from ..values.objects import ObjectRef
from ..values.value import Const, UnknownValue, Value
from .exits import merge_exits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def havoc_loop_variables(interp: Interpreter, body: list[ast.stmt], loop: Loop, bind: Callable[[], int | None]) -> None:
    """Havoc the variables that the loop body assigns: set them to unknown at the loop head.

    A variable with a tracked object or None instead gets a dry run of the body, which shows the value after an
    iteration. The dry run of an outer loop is one for all loops inside: with a dry run for each, the work would double
    with each level.
    """
    names, attributes, grown, items = stored_names(body)
    _open_containers(interp, grown, items, loop)
    if attributes:
        _store_foreign_counters(interp, body, names, loop)
    assigned = [name for name in names if name in interp.state.frame.vars]
    heap_keys = [key for key in interp.state.heap if key[1] in attributes] if attributes else []
    values = [*(interp.state.frame.vars[name] for name in assigned), *(interp.state.heap[key] for key in heap_keys)]
    after_vars: Vars = {}
    after_heap: Heap = {}
    if interp.statement_count < 4_000 and any(_may_become_object(value) for value in values):
        held = (outer.first_iterations.get(loop.key) for outer in reversed(interp.state.loops))
        known = next(filter(None, held), None)
        if known is not None:
            after_vars, after_heap = known
        elif not any(outer.is_dry_run for outer in interp.state.loops):
            after_vars, after_heap = _dry_run_iteration(interp, body, loop, bind)
    key = frozenset((loop.key,))
    for name in assigned:
        value = interp.state.frame.vars[name]
        interp.state.frame.vars[name] = _havoc_value(interp, value, after_vars.get(name), name, key)
    for heap_key in heap_keys:
        interp.store_attribute(
            *heap_key, _havoc_value(interp, interp.state.heap[heap_key], after_heap.get(heap_key), heap_key[1], key)
        )


def _open_containers(
    interp: Interpreter, grown: frozenset[str], items: frozenset[tuple[str, str | int]], loop: Loop
) -> None:
    """Let the empty lists that a loop body fills, and the constants that it replaces in containers, be unknown."""
    for name in grown:
        value = interp.state.frame.vars.get(name)
        if isinstance(value, SequenceValue) and not value.items:
            value.may_grow = True
    for name, key in items:
        value = interp.state.frame.vars.get(name)
        item = value.item_at(Const(key)) if isinstance(value, (MappingValue, SequenceValue)) else None
        if isinstance(value, (MappingValue, SequenceValue)) and isinstance(item, Const):
            value.set_item(key, _make_havocked(interp, item, f"{name}[{key!r}]", frozenset((loop.key,))))


def _store_foreign_counters(interp: Interpreter, body: list[ast.stmt], names: frozenset[str], loop: Loop) -> None:
    """Store the counters that a loop keeps in attributes of unknown objects: ``state.step += 1``."""
    for node in statements_in(body):
        if not isinstance(node, ast.AugAssign) or not isinstance(node.op, ast.Add):
            continue
        target = node.target
        if not isinstance(target, ast.Attribute) or find_access_path(target.value) is None:
            continue
        if root_name(target) not in interp.state.frame.vars.keys() - names:
            continue
        owner = interp.evaluate(target.value)
        if not isinstance(owner, UnknownValue) or (owner.key, target.attr) in interp.state.heap:
            continue
        interp.last_serial += 1
        key = ("havocked", interp.last_serial, target.attr)
        count = interp.unknown_value(key, short_text(target), frozenset((loop.key,)))
        count.count = count.count._replace(is_counter=isinstance(node.value, ast.Constant))
        interp.store_attribute(owner.key, target.attr, count)


def _havoc_value(interp: Interpreter, value: Value, after: Value | None, name: str, key: frozenset[int]) -> Value:
    if _may_become_object(value):
        if after is None or after is value or (isinstance(after, UnknownValue) and value.value is not None):
            return value
        formula = interp.predicate_formula(("first iteration", *key), "", frozenset())
        return join_values(interp, formula, value, after, name)
    if not isinstance(value, (Const, UnknownValue)):
        return value.as_stored()
    return _make_havocked(interp, value, name, key)


def _make_havocked(interp: Interpreter, value: Const | UnknownValue, name: str, key: frozenset[int]) -> UnknownValue:
    """Return the unknown value of a variable at the head of a loop, whose first iteration finds ``value``."""
    interp.last_serial += 1
    made = interp.unknown_value(("havocked", interp.last_serial, name), name, key)
    start = value.value
    if isinstance(start, int) and not isinstance(start, bool):
        made.count = made.count._replace(is_counter=True, first_value=start, is_iteration_count=True)
    elif value.count.is_counter:
        made.count = made.count._replace(
            is_counter=True,
            first_value=None if value.count.first_value is None else value.count.first_value + value.count.offset,
        )
    begins = value.possible_start()
    if made.count.first_value is None and begins is not None:
        made.count = made.count._replace(is_iteration_count=True, possible_start=begins)
    made.dtype_info = value.dtype_info
    return made


def _dry_run_iteration(
    interp: Interpreter, body: list[ast.stmt], loop: Loop, bind: Callable[[], int | None]
) -> tuple[dict[str, Value], dict[tuple[int, str], Value]]:
    """Analyze one iteration of a loop without recording events. Return the variables and the heap afterwards."""
    after: list[Any] = []

    def run_iteration() -> None:
        trial = Loop(loop.key, len(interp.state.unwind_actions))
        trial.is_dry_run, trial.first_iterations = True, loop.first_iterations
        interp.state.loops.append(trial)
        bind()
        interp.execute_block(body)
        merge_exits(interp, trial.continues)
        after.extend((interp.state.frame.vars, interp.state.heap))

    interp.speculate(run_iteration)
    return after[0], after[1]


def _may_become_object(value: Value) -> bool:
    """Return True if a variable that a loop assigns may hold a value that is relevant to the protocol."""
    return value.value is None or isinstance(
        value, (ObjectRef, UnionValue, Instance, NullContext, ParamsValue, FunctionValue)
    )
