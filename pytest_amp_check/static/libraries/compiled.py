"""Functions passed to torch.compile with parts that disable autocast."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol import torch_api
from ..interpreter.functions import inline_call
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.source_text import expression_text
from ..interpreter.tensors import in_region, mark_region, unknown_tensor
from ..interpreter.values.definitions import Args, FunctionValue, Keywords
from ..interpreter.values.tensors import TensorValue, tensors_in
from ..interpreter.values.value import Value
from .arguments import first_or_named, make_object
from .distributed import ISLAND, has_matmul_without_autocast
from .modules.wrappers import wrap_module


class CompiledFunction(FunctionValue):
    """A compiled function that multiplies matrices in a block with disabled autocast."""

    kind = "compiled function"

    __slots__ = ()


def _call_compile(
    interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    made = wrap_module(interp, entry, args, keywords, node)
    inner = first_or_named(args, keywords, entry.parameters[0])
    if isinstance(inner, FunctionValue) and has_matmul_without_autocast(inner.function.node, inner.function.module):
        return CompiledFunction(inner.function, inner.frame, inner.receiver, inner.wrappers)
    return made


def _call_compiled(interp: Interpreter, func: CompiledFunction, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Call a compiled function. The backward of the result uses the autocast region around this call."""
    value = inline_call(interp, func, args, keywords, node)
    if not in_region(interp):
        return value
    tracked_object = make_object(interp, "module", node)
    tracked_object.attributes.compiled, tracked_object.attributes.kind = True, ISLAND
    parts = tensors_in(value)
    made = TensorValue.join(parts) if parts else unknown_tensor(value)
    forward = interp.emit(e.Forward, node, tracked_object.key, cached=False, names={"module": expression_text(node)})
    made.forwards = made.forwards._replace(first_event=forward)
    mark_region(interp, made)
    return made


def register(handlers: HandlerTable) -> None:
    handlers.torch_roles[torch_api.COMPILE] = _call_compile
    handlers.calls[CompiledFunction.kind] = _call_compiled
    handlers.methods[CompiledFunction.kind] = handlers.methods[FunctionValue.kind]
