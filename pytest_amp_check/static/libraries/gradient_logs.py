"""Functions that log gradients from hooks, so inside of the backward pass."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol import torch_api
from ...protocol.source_text import access_text
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.source_text import expression_text
from ..interpreter.values.definitions import Args, Keywords
from ..interpreter.values.value import NONE, Const, Value
from .arguments import bind_arguments, items_or_self, literal_value, tracked_object_of
from .syntax_queries import first_argument

#: Values of the parameter ``log`` that include gradients; the first is the default.
_LOGS_GRADIENTS = ("gradients", "all")


def _call_gradient_log(
    interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    bound = bind_arguments(entry.parameters, args, keywords)
    if literal_value(bound.get("log", Const(_LOGS_GRADIENTS[0]))) in _LOGS_GRADIENTS:
        for model in items_or_self(bound.get("models", NONE)):
            module = tracked_object_of(model)
            key = module.key if module is not None else None
            names = {"call": expression_text(node), "module": access_text(first_argument(node))}
            interp.emit(e.GradLog, node, key, names=names)
    return interp.fresh_unknown(node)


def register(handlers: HandlerTable) -> None:
    handlers.torch_roles[torch_api.GRADIENT_LOG] = _call_gradient_log
