"""Exits of blocks: the actions that leaving a block runs, and the join of several exits."""

from __future__ import annotations

import ast

from ..interpreter import Interpreter
from ..joins import join_values
from ..values.value import NO_CONSTANT, Value


def mark_skip(interp: Interpreter, source_text: str, node: ast.AST) -> None:
    """Add a graph node that records a statement that may skip the rest of an iteration."""
    skip_node = interp.builder.add_node()
    interp.builder.add_edge(interp.state.current_node, skip_node)
    interp.builder.nodes[skip_node].skip_statement = source_text, interp.site_of(node)
    interp.state.current_node = skip_node


def run_unwind_actions(interp: Interpreter, base: int) -> None:
    """Run the actions of the open blocks above ``base``: exits of ``with`` statements and ``finally`` blocks."""
    saved = interp.state.unwind_actions
    for i in range(len(saved) - 1, base - 1, -1):
        if interp.state.current_node is None:
            break
        interp.state.unwind_actions = saved[:i]
        saved[i]()
    interp.state.unwind_actions = saved


def merge_exits(
    interp: Interpreter,
    ends: list[tuple[int, dict[str, Value], dict[tuple[int, str], Value]]],
    *,
    joins_values: bool = True,
) -> None:
    """Join other exits of a block into the current path.

    Without ``joins_values`` the values of the first path stand, as for a fallback to another version of a library.
    """
    for cur, variables, exit_heap in ends:
        state = interp.state
        if state.current_node is None:
            state.current_node, state.frame.vars, state.heap = cur, variables, exit_heap
            continue
        own_vars = state.frame.vars
        heap, own_heap = _complete_heaps(interp, exit_heap, state.heap)
        differing = [name for name, value in variables.items() if joins_values and _differs(own_vars.get(name), value)]
        differing_attributes = [
            key for key, value in heap.items() if joins_values and _differs(own_heap.get(key), value)
        ]
        state.frame.vars, state.heap = {**variables, **own_vars}, {**heap, **own_heap}
        if not (differing or differing_attributes):
            state.current_node = interp.builder.join_nodes((state.current_node, cur))
            continue
        # The predicate keeps the value of an exit together with the events before the exit.
        predicate = interp.predicate_for(("exit", interp.graph.name, cur), "", interp.current_loops()).key
        left_here = ("test", predicate)
        for name in differing:
            state.frame.vars[name] = join_values(interp, left_here, variables[name], own_vars[name], name)
        for key in differing_attributes:
            state.heap[key] = join_values(interp, left_here, heap[key], own_heap[key], key[1])
        joined = interp.builder.add_node()
        for node, truth in ((cur, True), (state.current_node, False)):
            interp.builder.add_edge(node, joined, predicate, truth)
        state.current_node = joined


def _complete_heaps(
    interp: Interpreter, heap: dict[tuple[int, str], Value], other: dict[tuple[int, str], Value]
) -> tuple[dict[tuple[int, str], Value], dict[tuple[int, str], Value]]:
    """Return two heaps, each with the initial values of the attributes that only the other heap has."""
    initial = {key: interp.initial_values[key] for key in heap.keys() ^ other.keys() if key in interp.initial_values}
    return ({**initial, **heap}, {**initial, **other}) if initial else (heap, other)


def _differs(value: Value | None, other: Value) -> bool:
    """Return True if a join must keep both values: an object and another value, or a constant and another value.

    Other pairs are numbers and tensors, for which the value of the main path stands.
    """
    if value is None or value is other or value.value is other.value is not NO_CONSTANT:
        return False
    return value.is_relevant or other.is_relevant or value.value is not NO_CONSTANT
