"""Numbers that fill some elements of a tensor."""

from __future__ import annotations

import ast
from functools import partial

from ...protocol import events as e
from ...protocol import torch_api
from ...protocol.events.regions import describe_region
from ...protocol.source_text import SourceText
from ..interpreter.dtypes import is_known_low
from ..interpreter.interpreter import Interpreter
from ..interpreter.source_text import expression_text
from ..interpreter.values.tensors import TensorValue
from ..interpreter.values.value import Value
from .arguments import literal_value
from .dtype_choices import trace_origin

#: Tensor methods that fill some elements with a number.
FILLS = frozenset("masked_fill masked_fill_ fill_ index_fill index_fill_".split())


def emit_fill(interp: Interpreter, value: Value | None, tensor: TensorValue, words: object, node: ast.AST) -> None:
    number = literal_value(value)
    if not isinstance(number, (int, float)):
        return
    # Code that only decodes trains no parameter, so only a known float16 dtype is reported there.
    is_float16 = tensor.dtype_info.dtype == "float16" and is_known_low(tensor.dtype_info)
    eligible = bool(tensor.low_dtype) or is_float16 or (tensor.is_low_op_result and not interp.state.no_grad)
    dtypes = tensor.provenance.region_dtypes
    if not dtypes and not tensor.low_dtype and interp.assumed_dtype:
        dtypes = frozenset({interp.assumed_dtype})
    is_bfloat16 = bool(dtypes) and dtypes <= torch_api.FAR_REACHING
    if is_bfloat16:
        eligible = eligible and not dtypes <= torch_api.WIDE and torch_api.BFLOAT16_MAX < abs(number) < float("inf")
    names = {"call": expression_text(node), "tensor": words}
    guessed = not (tensor.low_dtype or is_float16)
    made = partial(
        e.Fill, value=float(number), eligible=eligible, dtype="bfloat16" if is_bfloat16 else "float16", names=names
    )
    event = interp.emit(made, node, guessed=guessed)
    if event is not None and interp.state.forward_depth:
        # The forward of a module is analyzed for its result, without a graph.
        interp.detached_events.setdefault((e.Fill, event.site.call_key), event)
    region = interp.state.open_regions[-1] if interp.state.open_regions else None
    if event is not None and region is not None and region.site is not None and region.enabled is not False:
        event.premises = ((region.site, describe_region(region.dtype)),)
    elif event is not None and tensor.is_low_op_result:
        event.premises = trace_origin(interp, str(words), node)


def set_tensor_item(interp: Interpreter, receiver: Value, index: Value, target: ast.Subscript, value: Value) -> None:
    """Record the write of a number to some elements of a tensor."""
    if isinstance(receiver, TensorValue):
        emit_fill(interp, value, receiver, SourceText(target.value), target)
