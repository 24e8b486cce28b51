"""Loops: ``for`` and ``while``, and the micro-batches of a window."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from ....protocol import events as e
from ....protocol.events import Event
from ..expressions.assignments import assign_target
from ..expressions.conditional import condition_formula
from ..expressions.iteration import (
    element_for,
    is_buffer_of_batches,
    iterated_value,
    names_of_attributes,
    representative_of,
)
from ..interpreter import Interpreter
from ..joins import for_each_alternative, split_on
from ..microbatches import (
    draws_from_iterator,
    is_index_selecting,
    names_assigned_beside,
    names_microbatches,
    names_read,
    reads_gradients,
)
from ..source_text import loop_text
from ..state import Loop
from ..values.containers import UnionValue
from ..values.definitions import GeneratorValue
from ..values.value import NONE, Const, Value, iterable_kind_of
from .exceptions import drop_raises_in_training
from .exits import merge_exits
from .loop_items import few_items, is_data, is_uniform_loop, only_index
from .loop_variables import havoc_loop_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    _Key = TypeVar("_Key")


def execute_for(interp: Interpreter, node: ast.For | ast.AsyncFor) -> None:
    iterated = interp.evaluate(node.iter)
    if isinstance(iterated, UnionValue) and any(few_items(interp, each) for each in iterated.alternatives()):
        # ``for hook in hooks or [Default()]``
        for_each_alternative(interp, iterated, lambda each: _execute_for_over(interp, node, each))
    else:
        _execute_for_over(interp, node, iterated)


def _execute_for_over(interp: Interpreter, node: ast.For | ast.AsyncFor, iterated: Value) -> Value:
    """Execute a loop over a value, and return None as a value: a statement has no result."""
    items, iterable = (
        (
            few_items(interp, iterated)
            or names_of_attributes(iterated, node.target, node.body)
            or only_index(interp, iterated)
        ),
        iterated_value(iterated),
    )
    if items is None and is_uniform_loop(interp, node, iterable):
        # A body that does the same to every parameter or optimizer runs once, with a representative.
        _unroll_loop(interp, node, [representative_of(interp, iterable, node.iter)], is_uniform=True)
        return NONE
    if items is not None:
        _unroll_loop(interp, node, items)
        return NONE
    over_microbatches = (
        iterable.microbatches
        or is_buffer_of_batches(interp, iterable)
        or (
            iterable_kind_of(iterable) == "range"
            and not is_index_selecting(node.body, node.target)
            and _draws_own_data(interp, node)
        )
    )

    def bind_target() -> int | None:
        assign_target(interp, node.target, element_for(interp, iterable, node.target, node.iter), is_new=False)
        return iterable.end_node if isinstance(iterable, GeneratorValue) else None

    _execute_loop(interp, node, bind_target, None, over_microbatches=over_microbatches)
    return NONE


def _unroll_loop(
    interp: Interpreter, node: ast.For | ast.AsyncFor, items: list[Value], *, is_uniform: bool = False
) -> None:
    """Execute the body of a loop once for each of a few known items, or once with a representative of all items."""
    breaks: list[tuple[int, dict[str, Value], dict[tuple[int, str], Value]]] = []
    for number, item in enumerate(items):
        if interp.state.current_node is None:
            break
        loop = Loop(-1, len(interp.state.unwind_actions))
        loop.iteration = number
        if is_uniform:
            loop.uniform_node, loop.first_node = node, len(interp.builder.nodes)
        interp.state.loops.append(loop)
        base = len(interp.state.path_condition)
        assign_target(interp, node.target, item)
        interp.execute_block(node.body)
        del interp.state.path_condition[base:]
        interp.state.loops.pop()
        merge_exits(interp, [*loop.continues])
        breaks.extend(loop.breaks)
    interp.execute_block(node.orelse)
    merge_exits(interp, breaks)


def execute_while(interp: Interpreter, node: ast.While) -> None:
    _execute_loop(
        interp,
        node,
        lambda: None,
        node.test,
        over_microbatches=any(loop.node for loop in interp.state.loops) and draws_from_iterator(node.body),
    )


def _draws_own_data(interp: Interpreter, node: ast.For | ast.AsyncFor) -> bool:
    """Return True if each iteration of a loop draws its own data instead of using the data of the outer iteration."""
    if draws_from_iterator(node.body):
        return True
    outer = interp.state.loops[-1] if interp.state.loops else None
    if outer is None or outer.node is None or outer.frame is not interp.state.frame:
        return False
    return not any(
        is_data(interp.state.frame.vars.get(name))
        for name in names_read(node.body) & names_assigned_beside(outer.node, node)
    )


def _execute_loop(
    interp: Interpreter,
    node: ast.For | ast.AsyncFor | ast.While,
    bind: Callable[[], int | None],
    test: ast.expr | None,
    *,
    over_microbatches: bool,
) -> None:
    if interp.state.current_node is None:
        return
    body, orelse = node.body, node.orelse
    loop = Loop(_loop_key(interp, node), len(interp.state.unwind_actions))
    loop.node, loop.frame = node, interp.state.frame
    head_site = interp.site_of(node.test if isinstance(node, ast.While) else node.iter)
    interp.graph.loops[loop.key] = (loop_text(node), head_site)
    loop.is_named_microbatches = not over_microbatches and names_microbatches(node)
    loop.over_microbatches = (over_microbatches or loop.is_named_microbatches) and not reads_gradients(body)
    savepoint = interp.builder.set_savepoint(interp.state.current_node)
    havoc_loop_variables(interp, body, loop, bind)
    head = interp.builder.add_node()
    asked_first = interp.predicates.predicate_for(("first iteration", loop.key), "", None, frozenset())
    asked_first.asks_first_iteration = True
    first = asked_first.key
    _start_iteration(interp, head, first, True)
    interp.builder.loop_heads.append((head, loop.key))
    before_vars, before_heap = interp.state.frame.vars, interp.state.heap
    interp.state.frame.vars, interp.state.heap = dict(before_vars), dict(before_heap)
    interp.state.loops.append(loop)
    base = len(interp.state.path_condition)
    interp.state.current_node = head
    interp.state.current_node, after_loop = (
        split_on(interp, condition_formula(interp, test)) if test is not None else _enter_data_loop(interp, head, first)
    )
    exit_node = after_loop
    after_loop = interp.builder.join_nodes((after_loop, bind()))
    raising = [(nodes, len(nodes)) for nodes in interp.state.raising_nodes]
    interp.execute_block(body)
    drop_raises_in_training(interp, raising)
    del interp.state.path_condition[base:]
    merge_exits(interp, loop.continues)
    if loop.last_iteration_predicates and exit_node is not None and test is None:
        _leave_after_last_iteration(interp, loop, head, exit_node)
    _start_iteration(interp, head, first, False)
    open_ended = _defers_step(interp, head, loop)
    after = (interp.state.current_node, interp.state.frame.vars, interp.state.heap)
    interp.state.loops.pop()
    for outer in interp.state.loops:
        if outer.is_dry_run:
            outer.first_iterations[loop.key] = after[1:]
    interp.state.current_node = after_loop
    if (
        not open_ended
        and interp.builder.event_count != savepoint.event_count
        and interp.predicates.counts_iterations(loop.key)
    ):
        interp.emit(e.LoopExit, body[0])
    if after[0] is not None:
        interp.state.frame.vars, interp.state.heap = {**before_vars, **after[1]}, {**before_heap, **after[2]}
        if test is not None:
            _keep_earlier_values(interp, before_vars, before_heap)
    else:
        interp.state.frame.vars, interp.state.heap = dict(before_vars), dict(before_heap)
    # The jumps of the loop itself are done; jumps in the ``else`` belong to an outer loop.
    interp.builder.jump_count = savepoint.jump_count
    interp.execute_block(orelse)
    merge_exits(interp, loop.breaks)
    if open_ended:
        interp.emit(e.LoopExit, body[0], complete=True)
    interp.state.current_node = interp.builder.rollback_if_empty(savepoint, interp.state.current_node)


def _keep_earlier_values(interp: Interpreter, variables: dict[str, Value], heap: dict[tuple[int, str], Value]) -> None:
    """Keep the earlier values of what the body of a ``while`` loop sets to constants: the body may not run at all."""
    state = interp.state
    state.frame.vars.update((name, variables[name]) for name in _replaced_constants(variables, state.frame.vars))
    earlier = {**interp.initial_values, **heap}
    state.heap.update((key, earlier[key]) for key in _replaced_constants(earlier, state.heap))


def _replaced_constants(before: Mapping[_Key, Value], after: Mapping[_Key, Value]) -> list[_Key]:
    """Return the keys of the values that are constants after the body of a loop, and other values before it."""
    return [key for key, value in after.items() if isinstance(value, Const) and before.get(key, value) is not value]


def _loop_key(interp: Interpreter, node: ast.AST) -> int:
    """Return the number of the loop at a location, for the current iterations of the unrolled outer loops."""
    location = (interp.location_key(node), tuple((loop.key, loop.iteration) for loop in interp.state.loops))
    key = interp.loop_keys.get(location)
    if key is None:
        interp.last_serial += 1
        key = interp.loop_keys[location] = interp.last_serial
    return key


def _enter_data_loop(interp: Interpreter, head: int, first: int) -> tuple[int, int]:
    """Return the entry and exit nodes of a loop over data. The loop runs at least once: empty data train nothing."""
    entry, after_loop = interp.builder.add_node(), interp.builder.add_node()
    interp.builder.add_edge(head, entry)
    interp.builder.add_edge(head, after_loop, first, False)
    return entry, after_loop


def _leave_after_last_iteration(interp: Interpreter, loop: Loop, head: int, exit_node: int) -> None:
    """Leave a loop only after the iteration that the code itself recognizes as the last."""
    if interp.state.current_node is None:
        return
    (key, truth), *others = loop.last_iteration_predicates.items()
    for other, other_truth in others:
        for one, its, two, theirs in ((key, truth, other, other_truth), (other, other_truth, key, truth)):
            interp.graph.predicates[one].implications += [(its, two, theirs), (not its, two, not theirs)]
    nodes = interp.builder.nodes
    nodes[head].edges = [edge for edge in nodes[head].edges if edge[0] != exit_node]
    again = interp.builder.add_node()
    interp.builder.add_edge(interp.state.current_node, exit_node, key, truth)
    interp.builder.add_edge(interp.state.current_node, again, key, not truth)
    interp.state.current_node = again


def _defers_step(interp: Interpreter, head: int, loop: Loop) -> bool:
    """Return True if a loop runs backward and leaves the step to the code after the loop.

    Mark the events of such a loop.
    """
    events = [node.event for node in interp.builder.nodes[head:] if node.event is not None]
    backwards = [event for event in events if isinstance(event, e.Backward)]
    if not backwards or any(
        event.scaling.may_have_scaled_gradient or event.scaling.may_be_scaled_by_caller for event in backwards
    ):
        return False
    if any(
        isinstance(event, (e.ScalerStep, e.Step)) or (isinstance(event, e.Handoff) and e.STEPS in event.about)
        for event in events
    ):
        return False
    for event in events:
        if isinstance(event, e.LoopExit):
            # The window that contains the inner loop continues.
            event.within = True
        elif isinstance(event, e.Backward) and (loop.over_microbatches or not event.inside):
            event.inside = e.MICRO if loop.over_microbatches else e.LOOSE
            event.guessed = loop.is_named_microbatches
    if not loop.over_microbatches and loop.node is not None and not reads_gradients(loop.node.body):
        _mark_discarding_clears(loop, events)
    return True


def _mark_discarding_clears(loop: Loop, events: list[Event]) -> None:
    """Mark the clears before a backward in each iteration: they discard what the earlier iterations have added."""
    for number, event in enumerate(events):
        if not isinstance(event, e.ZeroGrad) or not event.loops or event.loops[-1] != loop.key:
            continue
        if any(isinstance(later, e.Backward) for later in events[number:]):
            event.discards = True


def _start_iteration(interp: Interpreter, head: int, first: int, truth: bool) -> None:
    """Add the edge to a loop head with the truth of the predicate "first iteration"."""
    if interp.state.current_node is not None:
        before = interp.builder.add_node()
        interp.builder.add_edge(interp.state.current_node, before)
        interp.builder.nodes[before].forgotten_predicates |= 1 << first
        interp.builder.add_edge(before, head, first, truth)
