"""Where a loss, a gradient or a statistic that is not finite comes from: the step is played again, with all watched."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from ..record.active import hidden
from ..record.listeners.finite import LOSS, OF_LARGE, ONLY_LOW, PARAMETERS, SKIPPED, STATISTICS, Alarm, Cause, Pass
from .causes import OVERFLOW, Evidence, cause_of, is_low, is_of_the_scale, unexplained
from .magnitudes import is_finite
from .played import InFloat32, Played, quiet
from .snapshot import Snapshot
from .watched import BUFFER, PARAMETER, Origin, Watch, storage_of

#: The most that float16 holds: an op of larger operands is not the first that is out of range.
_MOST = torch.finfo(torch.float16).max


def explain(alarm: Alarm) -> Cause | None:
    """Plays the step again and says what it shows; None where nothing is wrong but the loss scale.

    All is put back: parameters, buffers, attributes of modules, and random generators.
    """
    modules = [call.function for call in alarm.calls.values() if isinstance(call.function, nn.Module)]
    evidence = Evidence(alarm, dict(_names(modules)))
    if alarm.what == PARAMETERS:
        return cause_of(evidence, None)
    if _in_company():
        evidence.failure = "several processes compute it together, so that none plays it again"
    if not alarm.calls or evidence.failure:
        return None if alarm.what == SKIPPED else unexplained(evidence)
    before = Snapshot([("", module) for module in modules])
    try:
        with hidden(), warnings.catch_warnings(), quiet(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            _put_weights(alarm)
            origin = _origin(alarm, modules, evidence)
            if origin is not None:
                cause = cause_of(evidence, origin)
                if alarm.what != LOSS or alarm.backward is None or not alarm.backward.scaled:
                    return cause
                if is_of_the_scale(origin, alarm.backward.scale):
                    return None
                before.restore()
                return cause._replace(excuse=_excuse(alarm, alarm.backward, origin) if cause.how == OVERFLOW else "")
    except Exception as error:  # noqa: BLE001 - what was called cannot be called so; the finding says what is known
        evidence.failure = f"{type(error).__name__}: {error}"
    finally:
        before.restore()
    return None if alarm.what == SKIPPED else unexplained(evidence)


def _put_weights(alarm: Alarm) -> None:
    with torch.no_grad():
        for parameter, kept in alarm.weights:
            parameter.data.copy_(kept)


def _excuse(alarm: Alarm, backward: Pass, origin: Origin) -> str:
    """Why a scaler may well skip an overflow: it is not there in float32, or it is one of numbers that are large."""
    if _is_finite_in_float32(alarm, backward, origin):
        return ONLY_LOW
    return OF_LARGE if any((size.greatest or 0.0) > _MOST for _, size in origin.operands) else ""


def _is_finite_in_float32(alarm: Alarm, backward: Pass, origin: Origin) -> bool:
    """Whether the loss is finite where all is computed in float32."""
    _put_weights(alarm)
    played = Played(alarm.calls)
    try:
        with InFloat32():  # type: ignore[no-untyped-call]
            played.forward()
    except Exception:  # noqa: BLE001 - code that asks for dtypes may not go on in others; the op is known all the same
        return is_low(origin)
    return all(is_finite(root) for root in played.roots(backward))


def _origin(alarm: Alarm, modules: Sequence[nn.Module], evidence: Evidence) -> Origin | None:
    watch = Watch(
        {storage_of(tensor): named for tensor, named in _tensors(modules)},
        {id(module): name for name, module in evidence.modules.items()},
        alarm.place,
    )
    played = Played(alarm.calls, watch)
    for module, name in alarm.buffers:
        # As they are now they would hide what has made them so.
        module._buffers[name].fill_(1.0 if name.endswith("var") else 0.0)  # type: ignore[union-attr]
    with watch.on(sys._getframe().f_code):
        played.forward()
        evidence.last = watch.last
        roots = played.roots(alarm.backward) if alarm.backward is not None else []
        bad = [root for root in roots if not is_finite(root)]
        if alarm.what == STATISTICS:
            return next(iter(watch.spoilt.values()), None)
        if bad:
            return watch.of(bad[0])
        if alarm.what == LOSS or alarm.backward is None:
            return None
        gradients = played.gradients(roots, alarm.backward.scale, alarm.params)
        if any(gradient is not None and not is_finite(gradient) for gradient in gradients):
            return next((origin for origin in watch.gradients if not origin.mask), None)
    return None


def _names(modules: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Modules by what they are called: those within others by their way, the outermost by nothing or their class."""
    for number, outermost in enumerate(dict.fromkeys(modules)):
        for name, module in outermost.named_modules():
            yield (name or (type(module).__name__ if number else "")), module


def _tensors(modules: Sequence[nn.Module]) -> Iterator[tuple[torch.Tensor, tuple[str, str]]]:
    for module in modules:
        for name, parameter in module.named_parameters():
            yield parameter, (PARAMETER, name)
        for name, buffer in module.named_buffers():
            yield buffer, (BUFFER, name)


def _in_company() -> bool:
    """Whether other processes take part in what would run again, and do not know of it."""
    return (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and torch.distributed.get_world_size() > 1
    )
