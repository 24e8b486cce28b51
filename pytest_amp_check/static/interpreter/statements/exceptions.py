"""Exceptions: ``try`` statements, and the paths from a raised exception to its handlers."""

from __future__ import annotations

import ast

from ....protocol import events as e
from ....protocol.source_text import SourceText
from ...project.bindings import catches_import
from ..interpreter import Interpreter, in_frame
from ..values.definitions import Heap, Jump, Vars
from .exits import mark_skip, merge_exits


def execute_try(interp: Interpreter, node: ast.Try) -> None:
    is_fallback = any(catches_import(handler) for handler in node.handlers)
    interp.state.fallback_try_depth += is_fallback
    before_vars, before_heap = dict(interp.state.frame.vars), dict(interp.state.heap)
    raised: list[int] = [interp.state.current_node] if interp.state.current_node is not None else []
    outside = [(nodes, len(nodes)) for nodes in interp.state.raising_nodes]
    if outside and interp.state.first_tried_statement is node:
        # Every exception raised in the outer body is raised in this statement.
        outside[-1] = outside[-1][0], 0
    base = len(interp.state.unwind_actions)
    if node.finalbody:
        frame, handler_count = interp.state.frame, len(interp.state.raising_nodes)
        interp.state.unwind_actions = [
            *interp.state.unwind_actions,
            lambda: in_frame(interp, frame, lambda: _execute_finally_on_exit(interp, node, handler_count)),
        ]
    interp.state.raising_nodes.append(raised)
    interp.state.try_depth += bool(node.handlers)
    is_in_loop = bool(node.handlers) and any(loop.node is not None for loop in interp.state.loops)
    interp.state.caught_in_loop += is_in_loop
    depth, entered = interp.state.region_depth, interp.state.regions_entered
    interp.state.first_tried_statement = node.body[0]
    interp.execute_block(node.body)
    interp.state.try_depth -= bool(node.handlers)
    interp.state.caught_in_loop -= is_in_loop
    interp.state.raising_nodes.pop()
    if interp.state.current_node is not None:
        interp.execute_block(node.orelse)
    interp.state.fallback_try_depth -= is_fallback
    interp.state.fallback_depth += is_fallback
    ends = [(interp.state.current_node, interp.state.frame.vars, interp.state.heap)]
    in_try = {**before_vars, **interp.state.frame.vars}
    for handler in node.handlers:
        _enter_handler(interp, _raising_nodes(interp, raised), in_try, before_heap)
        if interp.state.regions_entered != entered:
            interp.emit(e.AutocastExit, handler, depth=depth)
        _execute_handler(interp, handler)
        ends.append((interp.state.current_node, interp.state.frame.vars, interp.state.heap))
    interp.state.unwind_actions = interp.state.unwind_actions[:base]
    interp.state.fallback_depth -= is_fallback
    # No later condition asks if the body raised. The values come from the body of the ``try``.
    live = [(cur, variables, heap) for cur, variables, heap in ends if cur is not None]
    interp.state.current_node = None
    merge_exits(interp, live, joins_values=not is_fallback)
    if not live and node.finalbody and raised and not node.handlers:
        _execute_finally_after_raise(interp, node, raised)
        return
    escaping = [(nodes, before, len(nodes)) for nodes, before in outside]
    happened = interp.builder.event_count
    interp.execute_block(node.finalbody)
    # The analysis runs ``finally`` once more for all exceptions together. A run for each nested ``try`` doubles the
    # cost per level.
    if escaping and not interp.state.is_unwinding_error and interp.builder.event_count != happened:
        _exception_edges(
            interp,
            node,
            escaping,
            raised[:1] if node.handlers else raised,
            depth if interp.state.regions_entered != entered else None,
        )


def _enter_handler(interp: Interpreter, raising: list[int], in_try: Vars, before_heap: Heap) -> None:
    """Join the paths to a handler. A path that raises explicitly keeps its own values."""
    state = interp.state
    explicit: list[Jump] = []
    for node in raising:
        found = state.raised_values.get(interp.builder.nodes[node])
        if found is not None and found[0] is state.frame:
            explicit.append((node, {**in_try, **found[1]}, {**before_heap, **found[2]}))
    own = {node for node, _, _ in explicit}
    state.current_node = interp.builder.join_nodes(node for node in raising if node not in own)
    state.frame.vars, state.heap = dict(in_try), dict(before_heap)
    merge_exits(interp, explicit)


def _execute_finally_on_exit(interp: Interpreter, node: ast.Try, handler_count: int) -> None:
    """Execute a ``finally`` block on a jump. Exceptions inside go to the outer ``handler_count`` handlers."""
    handlers = interp.state.raising_nodes
    interp.state.raising_nodes = handlers[:handler_count]
    interp.execute_block(node.finalbody)
    interp.state.raising_nodes = handlers


def _execute_handler(interp: Interpreter, handler: ast.ExceptHandler) -> None:
    if interp.state.current_node is not None:
        caught = f" {SourceText(handler.type)}" if handler.type is not None else ""
        mark_skip(interp, f"except{caught}", handler)
    if handler.name:
        interp.state.frame.vars[handler.name] = interp.fresh_unknown(handler, handler.name)
    interp.state.handler_depth += 1
    interp.execute_block(handler.body)
    interp.state.handler_depth -= 1


#: Events that allocate memory and may therefore raise an out-of-memory error.
_MEMORY_EVENTS = (e.Forward, e.Scale, e.Backward)


def _raising_nodes(interp: Interpreter, nodes: list[int]) -> list[int]:
    """Return the graph nodes of a ``try`` body after which an exception may occur.

    Unscaling, clipping, steps, updates and clearing allocate no new memory. Until the next computation, only explicit
    ``raise`` statements count.
    """
    kept: list[int] = []
    stepped: list[int] = []
    updated: list[int] = []
    for node in nodes:
        event = interp.builder.nodes[node].event
        if isinstance(event, e.Update):
            stepped.clear()
        elif isinstance(event, e.ZeroGrad):
            updated.clear()
        elif isinstance(event, _MEMORY_EVENTS):
            kept += updated
            updated.clear()
        if event is not None and (stepped or isinstance(event, (e.ScalerStep, e.Unscale))):
            stepped.append(node)
        elif event is not None and (updated or isinstance(event, (e.Step, e.Update))):
            updated.append(node)
        else:
            kept.append(node)
    return kept + stepped + updated


def _execute_finally_after_raise(interp: Interpreter, node: ast.Try, raised: list[int]) -> None:
    interp.state.current_node = interp.builder.join_nodes(raised)
    interp.execute_block(node.finalbody)
    if interp.state.raising_nodes and interp.state.current_node is not None:
        interp.state.raising_nodes[-1].append(interp.state.current_node)
        # Count an event: the node is still needed, and the graph builder must not remove the path to the node.
        interp.builder.event_count += 1
    interp.state.current_node = None


def _exception_edges(
    interp: Interpreter, node: ast.Try, escaping: list[tuple[list[int], int, int]], raised: list[int], depth: int | None
) -> None:
    """Route exceptions from a ``try`` body through its ``finally`` block to the outer handlers.

    ``depth`` is the region depth outside the statement, or None if the body entered no region.
    """
    after = interp.state.current_node, interp.state.frame.vars, interp.state.heap
    interp.state.frame.vars, interp.state.heap = dict(after[1]), dict(after[2])
    nodes, before, end = escaping[-1]
    leading = list(dict.fromkeys([*nodes[before:end], *raised]))
    for nodes, before, end in escaping:
        del nodes[before:end]
    if interp.state.loops and any(_is_step_node(interp, candidate) for candidate in leading):
        leading = _explicit_raises(interp, leading)
    interp.state.current_node = interp.builder.join_nodes(_raising_nodes(interp, leading))
    if depth is not None:
        interp.emit(e.AutocastExit, node.finalbody[0], depth=depth)
    interp.state.is_unwinding_error = True
    interp.execute_block(node.finalbody)
    interp.state.is_unwinding_error = False
    if interp.state.current_node is not None:
        for nodes, _, _ in escaping:
            nodes.append(interp.state.current_node)
    interp.state.current_node, interp.state.frame.vars, interp.state.heap = after


def drop_raises_in_training(interp: Interpreter, raising: list[tuple[list[int], int]]) -> None:
    """Drop the exception edges of a loop that trains: an outer handler restarts training or stops the program.

    Edges from explicit ``raise`` statements stay.
    """
    for nodes, before in raising:
        if any(_is_step_node(interp, node) for node in nodes[before:]):
            nodes[before:] = _explicit_raises(interp, nodes[before:])


def _is_step_node(interp: Interpreter, node: int) -> bool:
    event = interp.builder.nodes[node].event
    return isinstance(event, (e.ScalerStep, e.Step))


def _explicit_raises(interp: Interpreter, nodes: list[int]) -> list[int]:
    """Return the raising nodes at which the code itself raises an exception."""
    return [node for node in nodes if interp.builder.nodes[node].event is None]
