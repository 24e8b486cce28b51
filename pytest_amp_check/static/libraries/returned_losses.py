"""Losses that a function returns to other code after their backward, still multiplied by the loss scale."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol.sites import Site
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.source_text import receiver_text
from ..interpreter.values.tensors import TensorValue, tensors_in
from ..interpreter.values.value import Value
from ..project.module import Function
from .syntax_queries import receiver_of


class _RunTable(dict[int, tuple[TensorValue, Site, object]]):
    """Scaled losses of a graph whose backward has run: the loss, the location of the backward, and the name."""


def _note_backward(interp: Interpreter, tensor: TensorValue, node: ast.AST) -> None:
    # A loss that is scaled in the call itself keeps its name for the unscaled loss.
    if tensor.loss_scale.scaler_key >= 0 and isinstance(receiver_of(node), (ast.Name, ast.Attribute)):
        interp.graph_data(_RunTable)[id(tensor)] = (tensor, interp.site_of(node), receiver_text(node))


def _check_returned(interp: Interpreter, function: Function, value: Value) -> None:
    """Report the scaled losses in the result of a function that other code calls."""
    if function.cls is None and function.node.col_offset:
        return  # a closure, which returns to its optimizer
    run = interp.graph_data(_RunTable)
    for tensor in tensors_in(value):
        known = run.pop(id(tensor), None)
        if known is not None:
            names = {"loss": known[2], "function": function.name}
            interp.emit_at(
                e.LossRead(
                    known[1], tensor.loss_scale.scaler_key, owners=frozenset[int](), is_returned=True, names=names
                )
            )


def register(handlers: HandlerTable) -> None:
    handlers.backward_start_listeners.append(_note_backward)
    handlers.entry_end_listeners.append(_check_returned)
