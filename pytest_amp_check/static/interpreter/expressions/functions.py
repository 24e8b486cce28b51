"""Lambdas, yields and awaited expressions."""

from __future__ import annotations

import ast
import re

from ....protocol import events as e
from ..interpreter import Interpreter
from ..source_text import expression_text
from ..values.definitions import FunctionValue
from ..values.value import NONE, Value
from .iteration import element_of, is_buffer_of_batches


def evaluate_lambda(interp: Interpreter, node: ast.Lambda) -> Value:
    interp.captured_frames.append(interp.state.frame)
    return FunctionValue(interp.state.frame.module.functions[node], interp.state.frame)


def evaluate_wrapped(interp: Interpreter, node: ast.Starred | ast.Await) -> Value:
    return interp.evaluate(node.value)


def evaluate_yield(interp: Interpreter, node: ast.Yield) -> Value:
    return _record_yield(interp, interp.evaluate(node.value) if node.value is not None else NONE, node)


def evaluate_yield_from(interp: Interpreter, node: ast.YieldFrom) -> Value:
    """Evaluate ``yield from`` as a loop with one yield, so one graph node yields all values."""
    iterable = interp.evaluate(node.value)
    frame, head = interp.state.frame, interp.builder.add_node()
    frame.yields_microbatches = frame.yields_microbatches or iterable.microbatches
    interp.builder.add_edge(interp.state.current_node, head)
    interp.state.current_node = head
    sent = _record_yield(interp, element_of(interp, iterable, node.value), node)
    interp.builder.add_edge(interp.state.current_node, head)
    return sent


def _report_yielded_region(interp: Interpreter, value: Value, node: ast.Yield | ast.YieldFrom) -> None:
    """Report an autocast that a context manager passes to its `with` block and does not enter.

    A `with` block in this file that binds the autocast may enter it.
    """
    function, module = interp.state.frame.function, interp.state.frame.module
    if function is None or not function.is_context_manager or interp.state.open_regions or node.value is None:
        return
    if not any(option.role == "autocast" for option in value.alternatives()):
        return
    if re.search(rf"\bwith\b.{{0,200}}\b{function.name}\(.{{0,200}}\bas\b", module.text) is None:
        interp.emit(e.ScopeLost, node.value, None, how="handed-out", names={"context": expression_text(node.value)})


def _record_yield(interp: Interpreter, value: Value, node: ast.Yield | ast.YieldFrom) -> Value:
    if any(loop.over_microbatches and loop.frame is interp.state.frame for loop in interp.state.loops):
        interp.state.frame.yields_microbatches = True
    # The batches that a generator has collected are those of one window of its user.
    value.microbatches = value.microbatches or is_buffer_of_batches(interp, value)
    _report_yielded_region(interp, value, node)
    if interp.state.frame.on_yield is not None:
        interp.state.frame.on_yield(value)
    return interp.fresh_unknown(node, "sent")
