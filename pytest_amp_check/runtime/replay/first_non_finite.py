"""The search for the origin of a non-finite loss, gradient or statistic: a replay of the step that traces all ops."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from ..record.active import hide_recorders
from ..record.non_finite.causes import INTENDED, OF_LARGE, ONLY_LOW, NonFiniteCause
from ..record.non_finite.records import LOSS, PARAMETERS, SKIPPED, STATISTICS, NonFiniteRecord, TapedBackward
from .causes import (
    INFINITY,
    OVERFLOW,
    Evidence,
    cause_of,
    cause_of_derivative,
    is_low,
    is_scale_product,
    optimized_parameters,
    unexplained_cause,
)
from .magnitudes import is_finite
from .op_trace import BUFFER, DERIVATIVE, PARAMETER, NonFiniteOrigin, OpTrace, storage_of
from .snapshot import Snapshot
from .tape_player import InFloat32, TapePlayer, suppress_output

#: Ops that do not fill in an infinity as a mask, but compute with it.
_ARITHMETIC = frozenset({"add", "div", "mul", "sub"})
#: Largest float16 number. An op with larger operands is not the first op out of range.
_MOST = torch.finfo(torch.float16).max


def explain_nonfinite(nonfinite: NonFiniteRecord) -> NonFiniteCause | None:
    """Replay the step and return the cause of a non-finite value. Return None if only the loss scale is too large.

    The replay restores parameters, buffers, attributes of modules, and random generators.
    """
    modules = [call.function for call in nonfinite.calls.values() if isinstance(call.function, nn.Module)]
    evidence = Evidence(nonfinite, dict(_named_modules(modules)))
    if nonfinite.kind == PARAMETERS:
        return cause_of(evidence, None)
    if _is_distributed():
        evidence.failure = "several processes compute it together, so that none plays it again"
    if not nonfinite.calls or evidence.failure:
        return None if nonfinite.kind == SKIPPED else unexplained_cause(evidence)
    snapshot = Snapshot([("", module) for module in modules])
    try:
        with hide_recorders(), warnings.catch_warnings(), suppress_output(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            _restore_weights(nonfinite)
            origin = _find_origin(nonfinite, modules, evidence)
            if origin is not None and origin.kind == DERIVATIVE and origin.tensor is not None:
                # The scale of scaled gradients falls, as after an overflow of the gradients themselves.
                derivative = nonfinite.derivatives[storage_of(origin.tensor)]
                return None if derivative.is_scaled else cause_of_derivative(evidence, origin, derivative)
            if origin is not None:
                cause = cause_of(evidence, origin)
                if nonfinite.kind != LOSS or nonfinite.backward is None or not nonfinite.backward.is_scaled:
                    return cause
                if is_scale_product(origin, nonfinite.backward.scale):
                    return None
                snapshot.restore()
                return cause._replace(exemption=_find_exemption(nonfinite, nonfinite.backward, origin, cause.label))
    except Exception as error:  # noqa: BLE001 - what was called cannot be called so; the finding says what is known
        evidence.failure = f"{type(error).__name__}: {error}"
    finally:
        snapshot.restore()
    return None if nonfinite.kind == SKIPPED else unexplained_cause(evidence)


def _restore_weights(nonfinite: NonFiniteRecord) -> None:
    with torch.no_grad():
        for parameter, saved in nonfinite.previous_weights:
            parameter.data.copy_(saved)


def _find_exemption(nonfinite: NonFiniteRecord, backward: TapedBackward, origin: NonFiniteOrigin, label: str) -> str:
    """Return the reason why a scaler may skip a loss, or "".

    Reasons: an overflow does not occur in float32, its operands are already too large for float16, or the program
    computes with an infinity.
    """
    if label == INFINITY and origin.name.removesuffix("_") in _ARITHMETIC:
        return INTENDED
    if label != OVERFLOW:
        return ""
    if _is_finite_in_float32(nonfinite, backward, origin):
        return ONLY_LOW
    return OF_LARGE if any((size.largest or 0.0) > _MOST for _, size in origin.operands) else ""


def _is_finite_in_float32(nonfinite: NonFiniteRecord, backward: TapedBackward, origin: NonFiniteOrigin) -> bool:
    """Return True if the loss is finite when everything is computed in float32."""
    _restore_weights(nonfinite)
    player = TapePlayer(nonfinite.calls)
    try:
        with InFloat32():  # type: ignore[no-untyped-call]
            player.run_forward()
    except Exception:  # noqa: BLE001 - code that asks for dtypes may not go on in others; the op is known all the same
        return is_low(origin)
    return all(is_finite(root) for root in player.backward_roots(backward))


def _find_origin(
    nonfinite: NonFiniteRecord, modules: Sequence[nn.Module], evidence: Evidence
) -> NonFiniteOrigin | None:
    op_trace = OpTrace(
        {
            **dict.fromkeys(nonfinite.derivatives, (DERIVATIVE, "")),
            **{storage_of(p): (PARAMETER, name) for p, name in optimized_parameters(nonfinite.optimizers)},
            **{storage_of(tensor): kind_and_name for tensor, kind_and_name in _named_tensors(modules)},
        },
        {id(module): name for name, module in evidence.modules.items()},
        nonfinite.locate,
    )
    player = TapePlayer(nonfinite.calls, op_trace)
    for module, name in nonfinite.buffers:
        # The non-finite buffers would hide the op that made them non-finite.
        buffer = module._buffers[name]
        assert buffer is not None
        buffer[~buffer.isfinite()] = 1.0 if name.endswith("var") else 0.0
    with op_trace.observe(sys._getframe().f_code):
        player.run_forward()
        evidence.last_modules = op_trace.last_modules
        roots = player.backward_roots(nonfinite.backward) if nonfinite.backward is not None else []
        bad = [root for root in roots if not is_finite(root)]
        if nonfinite.kind == STATISTICS:
            return next(iter(op_trace.nonfinite_buffers.values()), None)
        if bad:
            return op_trace.origin_of(bad[0])
        if nonfinite.kind == LOSS or nonfinite.backward is None:
            return None
        gradients = player.compute_gradients(roots, nonfinite.backward.scale, nonfinite.params)
        if any(gradient is not None and not is_finite(gradient) for gradient in gradients):
            return next((origin for origin in op_trace.gradient_origins if not origin.is_mask), None)
    return None


def _named_modules(modules: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Yield modules with names. An inner module has its path as name, the outermost module "" or its class."""
    for number, outermost in enumerate(dict.fromkeys(modules)):
        for name, module in outermost.named_modules():
            yield (name or (type(module).__name__ if number else "")), module


def _named_tensors(modules: Sequence[nn.Module]) -> Iterator[tuple[torch.Tensor, tuple[str, str]]]:
    for module in modules:
        for name, parameter in module.named_parameters():
            yield parameter, (PARAMETER, name)
        for name, buffer in module.named_buffers():
            yield buffer, (BUFFER, name)


def _is_distributed() -> bool:
    """Return True if other processes take part in the computation. They would not take part in a replay."""
    return (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and torch.distributed.get_world_size() > 1
    )
