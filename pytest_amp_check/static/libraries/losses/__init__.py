"""Losses: criteria, methods and operators of tensors, and backward."""

from __future__ import annotations

from ...interpreter.interpreter import HandlerTable
from ..fills import set_tensor_item
from .criteria import call_loss_module
from .operators import apply_loss_operator
from .tensor_methods import call_tensor_method, get_tensor_attribute


def register(handlers: HandlerTable) -> None:
    handlers.calls["loss"] = call_loss_module
    handlers.methods["tensor"] = call_tensor_method
    handlers.attributes["tensor"] = get_tensor_attribute
    handlers.operators.append(apply_loss_operator)
    handlers.item_write_listeners.append(set_tensor_item)
