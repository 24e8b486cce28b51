"""The reasons for dtypes that an operation does not accept: the operands, their origins, and the state of autocast."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import torch

from ...protocol.finding import TraceStep
from ...protocol.messages.message import parse_primitive
from ..record.recorder import Recorder
from ..record.regions import LOW, LeftRegion
from .explanation import Explanation, RaisedError
from .frames import find_class_site
from .operands import Operand, Operation, dtype_name, failed_operation, find_producing_call, operand_expressions
from .values import resolve_expression

#: File in which torch runs the backward of an ``autograd.Function``.
_FUNCTION = os.path.join(os.path.dirname(torch.__file__), "autograd", "function.py")


def explain_mixed_dtypes(raised: RaisedError, recorder: Recorder) -> list[Explanation] | None:
    """Explain an operation whose operands have two dtypes."""
    failed_op = failed_operation(raised)
    region = recorder.region_left_by(raised.error)
    if len({operand.dtype for operand in failed_op.operands}) < 2:
        return _explain_float32_only(raised, recorder, failed_op, region)
    context = _running_backward(raised)
    if context is not None:
        names = {"call": failed_op.text, "operands": _format_operands(failed_op.operands)}
        function = getattr(type(context), "_forward_cls", None)
        names["function"] = getattr(function, "__name__", "an `autograd.Function`")
        site = raised.site
        if function is not None and not hasattr(context, "_fwd_used_autocast"):
            site = find_class_site(function) or site
        return [Explanation("raised:mixed-in-function", site, names, (TraceStep(raised.site, "torch refuses"),))]
    because, path = operand_history(raised, recorder, _representative_operands(failed_op.operands), region)
    weights = {operand.dtype for operand in failed_op.operands if operand.is_module_state}
    if region is not None and region.is_enabled and _covers_operands(region, failed_op.operands):
        label = "raised:mixed-in-region"
    elif weights and weights <= LOW.keys():
        label = "raised:mixed-weights"
    else:
        label = "raised:mixed-outside"
    names = {"call": failed_op.text, "operands": _format_operands(failed_op.operands), "because": because}
    return [Explanation(label, raised.site, names, path)]


def _running_backward(raised: RaisedError) -> Any:
    """Return the context of the Function whose backward raised, or None.

    The ``apply`` of a forward is a class method, and has no ``self``.
    """
    for frame in reversed(raised.frames):
        code = frame.python_frame.f_code
        if frame.path == _FUNCTION and code.co_name == "apply" and code.co_varnames[0] == "self":
            return frame.python_frame.f_locals.get("self")
    return None


def _explain_float32_only(
    raised: RaisedError, recorder: Recorder, failed_op: Operation, region: LeftRegion | None
) -> list[Explanation] | None:
    """Explain an operation that only accepts float32, but received a low-precision result of autocast."""
    low = [operand for operand in failed_op.operands if operand.is_low]
    wanted = re.search(r"expected scalar type (Float|Double) but found", str(raised.error))
    if wanted is None or not low:
        return None
    because, path = operand_history(raised, recorder, low[:1], region)
    names = {
        "call": failed_op.text,
        "wanted": {"Float": "float32", "Double": "float64"}[wanted[1]],
        "operands": _format_operands(low),
        "because": because,
    }
    return [Explanation("raised:wants-float32", raised.site, names, path)]


def explain_missing_kernel(raised: RaisedError, recorder: Recorder) -> list[Explanation] | None:
    """Explain an operation without a kernel for half precision."""
    failed_op = failed_operation(raised)
    low = next((operand for operand in failed_op.operands if operand.is_low), None)
    if low is None:
        return None
    region = recorder.region_left_by(raised.error)
    because, path = operand_history(raised, recorder, [low], region)
    names = {"call": failed_op.text, "dtype": dtype_name(low.dtype), "tensor": low.text, "because": because}
    label = "raised:fft" if raised.message.name == "fft-of-half" else "raised:no-kernel"
    return [Explanation(label, raised.site, names, path)]


def explain_missing_primitive(raised: RaisedError, recorder: Recorder) -> list[Explanation]:
    """Explain an op that oneDNN cannot run in low precision on this processor."""
    names = {"call": failed_operation(raised).text, "primitive": parse_primitive(str(raised.error))}
    return [Explanation("raised:processor", raised.site, names, ())]


def explain_large_number(raised: RaisedError, recorder: Recorder) -> list[Explanation] | None:
    """Explain a number that float16 cannot hold."""
    failed_op = failed_operation(raised)
    low = next((operand for operand in failed_op.operands if operand.dtype is torch.float16), None)
    node, scope = raised.user_frame.find_operation(), raised.user_frame.scope
    values: list[Any] = []
    if node is not None and scope is not None:
        values = [resolve_expression(part, scope) for part in operand_expressions(node, scope)]
    numbers = [
        value for value in values if isinstance(value, (int, float)) and abs(value) > torch.finfo(torch.float16).max
    ]
    if low is None or not numbers:
        return None
    because, path = operand_history(raised, recorder, [low], recorder.region_left_by(raised.error))
    names = {
        "call": failed_op.text,
        "value": f"{numbers[0]:g}",
        "tensor": low.text,
        "tensor_name": low.text.strip("`"),
        "because": because,
    }
    return [Explanation("raised:too-large", raised.site, names, path)]


def explain_unsafe_loss(raised: RaisedError, recorder: Recorder) -> list[Explanation]:
    """Explain a loss on probabilities that autocast forbids."""
    failed_op = failed_operation(raised)
    _, path = operand_history(raised, recorder, [], recorder.region_left_by(raised.error))
    return [Explanation("raised:unsafe-loss", raised.site, {"call": failed_op.text}, path)]


def _representative_operands(operands: Sequence[Operand]) -> list[Operand]:
    """Return one operand of each dtype, preferably not a module's weight or buffer; low precision first."""
    by_dtype: dict[torch.dtype, Operand] = {}
    for operand in sorted(operands, key=lambda operand: (operand.is_module_state, not operand.is_low)):
        by_dtype.setdefault(operand.dtype, operand)
    return list(by_dtype.values())


def _format_operands(operands: Sequence[Operand]) -> str:
    # One of several weights of the same dtype is enough.
    texts: dict[tuple[bool, torch.dtype] | str, str] = {}
    for operand in operands:
        key: Any = (True, operand.dtype) if operand.is_module_state else operand.text
        texts.setdefault(key, operand.description)
    *first, last = texts.values()
    return f"{', '.join(first)} and {last}" if first else last


def _covers_operands(region: LeftRegion, operands: Sequence[Operand]) -> bool:
    """Return True if a region is for the device of an operand."""
    return any(operand.value is not None and operand.value.device.type == region.device for operand in operands)


def operand_history(
    raised: RaisedError, recorder: Recorder, operands: Sequence[Operand], region: LeftRegion | None
) -> tuple[str, tuple[TraceStep, ...]]:
    """Return the origins of operands as a clause of the message, and as the trace that led to the failure."""
    reasons: list[str] = []
    steps: list[TraceStep] = []
    # If the call has left a region, autocast was active even if the recording did not see the region's start.
    autocast = region is not None or recorder.recording.program.attributes.enters_autocast
    if region is not None:
        state = f"autocast of {region.dtype} for {region.device}" if region.is_enabled else "a region without autocast"
        steps.append(TraceStep(region.site, f"{state} is entered"))
    for operand in operands:
        birth = (
            recorder.weights.low_precision.site_of(operand.value)
            if operand.is_module_state and operand.is_low
            else None
        )
        if birth is not None:
            reasons.append(f"{operand.text} was brought to {dtype_name(operand.dtype)} in line {birth.line}")
            steps.append(TraceStep(birth, f"parameters are brought to {dtype_name(operand.dtype)}"))
        elif (
            not operand.is_module_state
            and (origin := find_producing_call(operand, raised.user_frame.line, autocast=autocast)) is not None
        ):
            reasons.append(f"{operand.text} comes from {origin.text} (line {origin.trace_step.site.line})")
            steps.append(origin.trace_step)
    steps.append(TraceStep(raised.site, "torch refuses"))
    if region is not None and region.is_enabled and not reasons and operands and not _covers_operands(region, operands):
        reasons.append(f"the region is for {region.device}")
    return (f", as {' and '.join(reasons)}" if reasons else ""), tuple(steps)
