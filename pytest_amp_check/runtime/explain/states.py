"""Related tensors with two dtypes: gradients and parameters, optimizer states and parameters, sums of integers."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import torch

from ...protocol.source_text import SourceText
from ..record.recorder import Recorder
from ..record.source.call_texts import SiteText
from .clashes import operand_history
from .explanation import Explanation, RaisedError
from .gradients import find_stepped_optimizer
from .naming import format_parameter_names
from .operands import Operand, dtype_name, failed_operation, operand_expressions
from .origins import Origin
from .values import find_dtype, find_tensor


def explain_gradient_dtype(raised: RaisedError, recorder: Recorder) -> Sequence[Explanation] | None:
    """Explain a gradient whose dtype differs from the dtype of its parameter."""
    node, scope = raised.user_frame.find_operation(), raised.user_frame.scope
    if not isinstance(node, ast.Assign) or scope is None or not isinstance(node.targets[0], ast.Attribute):
        return None
    owner = node.targets[0].value
    first, second = find_dtype(owner, scope), find_dtype(node.value, scope)
    if first is None or second is None:
        return None
    operand = Operand(
        f"`{SourceText(node.value)}`",
        second,
        None,
        Origin(node.value, scope, raised.frames[: _user_frame_count(raised)]),
        is_module_state=False,
    )
    because, path = operand_history(raised, recorder, [operand], None)
    names = {
        "call": str(SourceText(node.targets[0])),
        "first": dtype_name(first),
        "tensor": operand.description,
        "tensor_name": str(SourceText(owner)),
        "because": because,
    }
    return [Explanation("raised:gradient-dtype", raised.site, names, path)]


def _user_frame_count(raised: RaisedError) -> int:
    return raised.frames.index(raised.user_frame) + 1


def explain_integer_result(raised: RaisedError, recorder: Recorder) -> Sequence[Explanation] | None:
    """Explain floating-point values that are written into integers."""
    node, scope = raised.user_frame.find_operation(), raised.user_frame.scope
    found = (
        []
        if node is None or scope is None
        else [(part, find_tensor(part, scope)) for part in operand_expressions(node, scope)]
    )
    integer_expression = next(
        (part for part, value in found if value is not None and not value.is_floating_point()), None
    )
    kind = None if integer_expression is None or scope is None else find_dtype(integer_expression, scope)
    if integer_expression is None or kind is None:
        return None
    names = {"call": str(SourceText(integer_expression)), "first": dtype_name(kind)}
    return [Explanation("raised:integers", raised.site, names)]


def explain_numpy_dtype(raised: RaisedError, recorder: Recorder) -> Sequence[Explanation] | None:
    """Explain a tensor of a dtype that NumPy does not support."""
    low = next((operand for operand in failed_operation(raised).operands if operand.is_low), None)
    if low is None:
        return None
    because, path = operand_history(raised, recorder, [low], recorder.region_left_by(raised.error))
    names = {"tensor": low.text, "dtype": dtype_name(low.dtype), "because": because}
    return [Explanation("raised:numpy", raised.site, names, path)]


def explain_optimizer_state(raised: RaisedError, recorder: Recorder) -> Sequence[Explanation] | None:
    """Explain an optimizer state whose dtype differs from the dtype of its parameter."""
    for frame in reversed(raised.frames):
        optimizer = frame.python_frame.f_locals.get("self")
        if isinstance(optimizer, torch.optim.Optimizer):
            for p, state in optimizer.state.items():
                for key, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor) and key != "step" and value.dtype is not p.dtype:
                        names = {
                            "call": failed_operation(raised).text,
                            "key": f"{key}",
                            "first": dtype_name(value.dtype),
                            "tensor": f"{format_parameter_names([p], raised.frames)} in {dtype_name(p.dtype)}",
                        }
                        return [Explanation("raised:state-dtype", raised.site, names)]
    return None


def explain_partial_sharding(raised: RaisedError, recorder: Recorder) -> Sequence[Explanation] | None:
    """Explain an optimizer with both sharded and unsharded parameters."""
    tracked = find_stepped_optimizer(raised, recorder)
    if tracked is None:
        return None
    unsharded_params = [p for p in tracked.params if not hasattr(p, "device_mesh")]
    if not unsharded_params or len(unsharded_params) == len(tracked.params):
        return None
    names: dict[str, object] = {
        "optimizer": tracked.name,
        "parameters": format_parameter_names(unsharded_params, raised.frames),
    }
    return [Explanation("raised:half-sharded", raised.site, names)]


def explain_empty_state(raised: RaisedError, recorder: Recorder) -> list[Explanation]:
    """Explain a live scaler that loads the state of a disabled scaler."""
    return [Explanation("raised:empty-state", raised.site, {"call": SiteText(raised.site)})]
