"""Why an operation was given dtypes that it does not take: which operands, from where, and whether autocast was on."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch

from ...protocol.finding import Step
from ...protocol.messages.message import primitive_of
from ..record.recorder import Recorder
from ..record.regions import LOW, Left
from .explanation import Explanation, Raised
from .operands import Operand, Operation, came_from, dtype_name, operation, parts
from .values import resolve

#: Where torch runs the backward of an ``autograd.Function``.
_FUNCTION = os.path.join(os.path.dirname(torch.__file__), "autograd", "function.py")


def mixed(raised: Raised, recorder: Recorder) -> list[Explanation] | None:
    """Explain an operation whose operands have two dtypes."""
    done = operation(raised)
    region = recorder.regions_left(raised.error)
    if len({operand.dtype for operand in done.operands}) < 2:
        return _one_dtype(raised, recorder, done, region)
    if any(frame.path == _FUNCTION and _runs_backward(frame.frame) for frame in raised.frames):
        names = {"call": done.text, "operands": _listed(done.operands)}
        return [Explanation("raised:mixed-in-function", raised.site, names)]
    because, path = history(raised, recorder, _telling(done.operands), region)
    weights = {operand.dtype for operand in done.operands if operand.held}
    if region is not None and region.enabled and _covers(region, done.operands):
        label = "raised:mixed-in-region"
    elif weights and weights <= LOW.keys():
        label = "raised:mixed-weights"
    else:
        label = "raised:mixed-outside"
    names = {"call": done.text, "operands": _listed(done.operands), "because": because}
    return [Explanation(label, raised.site, names, path)]


def _runs_backward(frame: FrameType) -> bool:
    """Whether a frame of torch runs the backward of a function: that of its forward is a method of the class."""
    return frame.f_code.co_name == "apply" and frame.f_code.co_varnames[0] == "self"


def _one_dtype(raised: Raised, recorder: Recorder, done: Operation, region: Left | None) -> list[Explanation] | None:
    """Explain an operation that takes float32 alone, and was given what autocast has made half."""
    low = [operand for operand in done.operands if operand.is_low]
    wanted = re.search(r"expected scalar type (Float|Double) but found", str(raised.error))
    if wanted is None or not low:
        return None
    because, path = history(raised, recorder, low[:1], region)
    names = {
        "call": done.text,
        "wanted": {"Float": "float32", "Double": "float64"}[wanted[1]],
        "operands": _listed(low),
        "because": because,
    }
    return [Explanation("raised:wants-float32", raised.site, names, path)]


def no_kernel(raised: Raised, recorder: Recorder) -> list[Explanation] | None:
    """Explain an operation that has no kernel for half precision."""
    done = operation(raised)
    low = next((operand for operand in done.operands if operand.is_low), None)
    if low is None:
        return None
    region = recorder.regions_left(raised.error)
    because, path = history(raised, recorder, [low], region)
    names = {"call": done.text, "dtype": dtype_name(low.dtype), "tensor": low.text, "because": because}
    label = "raised:fft" if raised.message.name == "fft-of-half" else "raised:no-kernel"
    return [Explanation(label, raised.site, names, path)]


def missing_primitive(raised: Raised, recorder: Recorder) -> list[Explanation]:
    """Explain an op that oneDNN cannot run in low precision on this processor."""
    names = {"call": operation(raised).text, "primitive": primitive_of(str(raised.error))}
    return [Explanation("raised:processor", raised.site, names, ())]


def too_large(raised: Raised, recorder: Recorder) -> list[Explanation] | None:
    """Explain a number that float16 cannot hold."""
    done = operation(raised)
    low = next((operand for operand in done.operands if operand.dtype is torch.float16), None)
    node, scope = raised.user.operation(), raised.user.scope
    values: list[Any] = []
    if node is not None and scope is not None:
        values = [resolve(part, scope) for part in parts(node, scope)]
    numbers = [
        value for value in values if isinstance(value, (int, float)) and abs(value) > torch.finfo(torch.float16).max
    ]
    if low is None or not numbers:
        return None
    because, path = history(raised, recorder, [low], recorder.regions_left(raised.error))
    names = {
        "call": done.text,
        "value": f"{numbers[0]:g}",
        "tensor": low.text,
        "tensor_name": low.text.strip("`"),
        "because": because,
    }
    return [Explanation("raised:too-large", raised.site, names, path)]


def unsafe_loss(raised: Raised, recorder: Recorder) -> list[Explanation]:
    """Explain a loss on probabilities that autocast forbids."""
    done = operation(raised)
    _, path = history(raised, recorder, [], recorder.regions_left(raised.error))
    return [Explanation("raised:unsafe-loss", raised.site, {"call": done.text}, path)]


def _telling(operands: Sequence[Operand]) -> list[Operand]:
    """Of each dtype the first operand that no module holds, low ones first; else those that one holds."""
    found: dict[torch.dtype, Operand] = {}
    for operand in sorted(operands, key=lambda operand: (operand.held, not operand.is_low)):
        found.setdefault(operand.dtype, operand)
    return list(found.values())


def _listed(operands: Sequence[Operand]) -> str:
    # Of several weights of one dtype the first says enough.
    shown: dict[tuple[bool, torch.dtype] | str, str] = {}
    for operand in operands:
        key: Any = (True, operand.dtype) if operand.held else operand.text
        shown.setdefault(key, operand.words)
    *first, last = shown.values()
    return f"{', '.join(first)} and {last}" if first else last


def _covers(region: Left, operands: Sequence[Operand]) -> bool:
    """Whether a region is for the device that the operands are on."""
    return any(operand.value is not None and operand.value.device.type == region.device for operand in operands)


def history(
    raised: Raised, recorder: Recorder, operands: Sequence[Operand], region: Left | None
) -> tuple[str, tuple[Step, ...]]:
    """Where operands came from: in words, and as the steps that led to the failure."""
    said: list[str] = []
    steps: list[Step] = []
    # What the recording has not seen entered is in force all the same where the call has left a region.
    autocast = region is not None or bool(recorder.recording.program.facts["enters_autocast"])
    if region is not None:
        state = f"autocast of {region.dtype} for {region.device}" if region.enabled else "a region without autocast"
        steps.append(Step(region.site, f"{state} is entered"))
    for operand in operands:
        birth = recorder.weights.births.of(operand.value) if operand.held and operand.is_low else None
        if birth is not None:
            said.append(f"{operand.text} was brought to {dtype_name(operand.dtype)} in line {birth.line}")
            steps.append(Step(birth, f"parameters are brought to {dtype_name(operand.dtype)}"))
        elif not operand.held and (origin := came_from(operand, raised.user.line, autocast=autocast)) is not None:
            said.append(f"{operand.text} comes from {origin.text} (line {origin.step.site.line})")
            steps.append(origin.step)
    steps.append(Step(raised.site, "torch refuses"))
    if region is not None and region.enabled and not said and operands and not _covers(region, operands):
        said.append(f"the region is for {region.device}")
    return (f", as {' and '.join(said)}" if said else ""), tuple(steps)
