"""The assertion that the same steps train the same in float32."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from ..record.regions import LOW
from .comparison import (
    UNREPEATABLE,
    autocast_off,
    check_tolerance,
    copy_parameters,
    format_count,
    format_percent,
    play_steps,
)
from .replay import Replay, ReplayWatch

#: Smallest update size, as a share of the average update, for the comparison of one parameter. Smaller updates would be
#: compared with their own noise.
_STILL = 0.1
#: Factor by which rounding errors that add up may exceed a single rounding error.
_NOISE = 16.0


def assert_matches_fp32(
    replay: Replay,
    *,
    rtol: float,
    atol: float = 1e-6,
    updates: float = 0.2,
    what: Literal["both", "loss", "parameters"] = "both",
) -> None:
    """Fail if the steps differ from the same steps in float32: same state, seeds and data, no autocast, loss scale 1.

    Losses (the result of the step; else the unscaled backward losses) may differ by ``atol + rtol * |float32|`` at
    every step. The update of each parameter, from first to last step, may differ in norm by ``updates`` of its float32
    update plus ``atol`` per element. Parameters that hardly move are compared with a tenth of the average update. The
    same limit holds for the gradients of each optimizer's first step. Elements whose gradients are zero but for
    rounding, such as the bias of attention keys, or change their sign by it, are not compared: Adam makes full steps
    of their noise. A loss that is not finite is not compared where the scaler skips its step and steps again later.

    Updates and gradients show mistakes that a loss hides, such as clipping scaled gradients, but are noisier. A correct
    trainer of ours differed by 4 % after eight steps whose losses agreed to 0.01 %. Steps that the scaler skipped are
    also skipped in float32. Raise ValueError if there is nothing to compare.
    """
    __tracebackhide__ = True
    check_tolerance(rtol, atol, updates)
    if what not in ("both", "loss", "parameters"):
        raise ValueError(f'what is {what!r}: pass "loss", "parameters" or "both"')
    with replay.rewind():
        start = copy_parameters(replay)
        amp = play_steps(replay, gradients=what != "loss")
        amp_end = copy_parameters(replay)
        if not amp.dtypes:
            raise ValueError(
                "the steps enter no enabled autocast region, so float32 would be the same run: "
                "put the forward pass under torch.autocast"
            )
        fp32, fp32_end = _play_in_float32(replay, amp, gradients=what != "loss")
        _require_finite(fp32.losses)
        # The gradients are compared first, because losses differ only after the updates from these gradients.
        difference = _gradient_difference(amp, fp32, updates) if what != "loss" else ""
        if what != "parameters" and not difference:
            difference = _loss_difference(_leave_out_overflows(amp), fp32.losses, rtol, atol)
        noise = _noisy_elements(replay, amp, fp32) if what != "loss" else {}
        errors = _update_errors(start, amp_end, fp32_end, noise, updates, atol)
        if what != "loss" and not difference and any(error > allowed for _, error, allowed, _ in errors):
            difference = f"after {replay.steps} steps the parameters have moved elsewhere than in float32"
        if not difference:
            return
        replay.start_snapshot.restore()
        repeated = play_steps(replay)
        if _loss_difference(repeated.losses, amp.losses, rtol, atol) and what != "parameters":
            raise AssertionError(UNREPEATABLE)
    skipped = sum(amp.skipped_steps)
    left_out = f"\nThe scaler skipped {format_count(skipped, 'step')}, left out in float32 as well." if skipped else ""
    reasons = "\n".join(f"  - {reason}" for reason in _precision_reasons(amp))
    raise AssertionError(
        f"{difference} (rtol={rtol:g}, atol={atol:g}, updates={updates:g})\n"
        f"{_loss_table(amp.losses, fp32.losses, rtol, atol)}{_worst_updates(errors)}{left_out}\n"
        f"Usual reasons:\n{reasons}"
    )


def _play_in_float32(replay: Replay, amp: ReplayWatch, *, gradients: bool) -> tuple[ReplayWatch, dict[str, Tensor]]:
    """Run the steps with autocast off. Return the watch and the parameters after the steps.

    Autocast may be what casts the inputs of frozen low-precision weights, such as the base of adapters. If the steps
    fail without it, they run again with these weights in float32.
    """
    __tracebackhide__ = True
    refusal: RuntimeError | None = None
    for region in (contextlib.nullcontext, _frozen_in_float32):
        replay.start_snapshot.restore()
        watch = ReplayWatch(replay, gradients=gradients, skips=amp.skipped_steps, scale=1.0)
        with region(replay), autocast_off(), watch.observe():
            try:
                watch.play_calls(range(replay.steps))
            except RuntimeError as error:
                refusal = refusal or error
                continue
        return watch, copy_parameters(replay)
    assert refusal is not None
    raise AssertionError(
        f"the steps do not run with autocast off: {refusal}\n"
        "Something casts to a low precision by hand (`.half()`, `.to(torch.float16)`, `dtype=`): "
        "let autocast choose, or cast with `.to(weight.dtype)`."
    ) from refusal


@contextlib.contextmanager
def _frozen_in_float32(replay: Replay) -> Iterator[None]:
    """Open a region in which frozen parameters and buffers in low precision are in float32."""
    modules = [module for model in replay.find_state().models.values() for module in model.modules()]
    frozen = [p for module in modules for p in module._parameters.values() if p is not None and not p.requires_grad]
    parameters = {id(p): (p, p.data) for p in frozen if p.dtype in LOW}
    buffers = [
        (module, name, buffer)
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None and buffer.dtype in LOW
    ]
    try:
        for p, data in parameters.values():
            p.data = data.float()
        for module, name, buffer in buffers:
            module._buffers[name] = buffer.float()
        yield
    finally:
        for p, data in parameters.values():
            p.data = data
        for module, name, buffer in buffers:
            module._buffers[name] = buffer


def _loss_difference(amp: Sequence[float | None], fp32: Sequence[float | None], rtol: float, atol: float) -> str:
    """Return the first difference between the losses in words, or ""."""
    if all(loss is None for loss in amp):
        raise ValueError(
            'the step returns no loss and runs nothing backward: return the loss, or pass what="parameters"'
        )
    for number, (one, other) in enumerate(zip(amp, fp32, strict=True), 1):
        if one is not None and other is not None and _differs(one, other, rtol, atol):
            return (
                f"the losses part at step {number} of {len(amp)}: {one:.6g} under autocast, {other:.6g} in float32, "
                f"{format_percent(abs(one - other) / abs(other) if other else math.inf)} apart"
            )
    return ""


def _leave_out_overflows(amp: ReplayWatch) -> list[float | None]:
    """Return the losses without those that are not finite at a call whose step a scaler skipped.

    A scale that begins too high overflows in the gradients of a penalty as well, and so in the loss. Losses that stay
    infinite are no such beginning: the scaler steps no more.
    """
    closed = [window for windows in amp.closed_windows() for window in windows]
    applied = [window.step_call for window in closed if window.step_call is not None and not window.is_skipped]
    skipped = {window.step_call for window in closed if window.is_skipped}
    last = max(applied, default=-1)
    return [
        None if loss is not None and not math.isfinite(loss) and call in skipped and call < last else loss
        for call, loss in enumerate(amp.losses)
    ]


def _differs(one: float, other: float, rtol: float, atol: float) -> bool:
    """Return True if two losses differ by more than the tolerance. A NaN is equal to a NaN."""
    if math.isfinite(one) and math.isfinite(other):
        return abs(one - other) > atol + rtol * abs(other)
    return one != other and not (math.isnan(one) and math.isnan(other))


def _gradient_difference(amp: ReplayWatch, fp32: ReplayWatch, allowed: float) -> str:
    """Return the difference of the gradients at an optimizer's first step, or "".

    Adam's updates would hide a factor.
    """
    for key, windows in amp.windows.items():
        pairs = [
            (window.step_grads, other.step_grads)
            for window, other in zip(windows, fp32.windows.get(key, []), strict=False)
            if window.step_grads and other.step_grads and not window.is_skipped
        ]
        if not pairs:
            continue
        used, wanted = pairs[0]
        size = math.sqrt(sum(float((each.double() ** 2).sum()) for each in wanted.values()))
        norm = math.sqrt(sum(float((each.double() ** 2).sum()) for each in used.values()))
        both = used.keys() & wanted.keys()
        error = math.sqrt(sum(float(((used[each].double() - wanted[each].double()) ** 2).sum()) for each in both))
        if not error <= allowed * size:
            return f"the first update is made from gradients of norm {norm:.3g}, in float32 of {size:.3g}"
    return ""


def _require_finite(losses: Sequence[float | None]) -> None:
    """Raise AssertionError if a float32 loss is not finite: equal losses would then prove nothing."""
    for number, loss in enumerate(losses, 1):
        if loss is not None and not math.isfinite(loss):
            raise AssertionError(
                f"the loss of step {number} is {loss} in float32 as well, so the precision is not the reason: look for "
                "a learning rate that is too large, or a batch that is not finite (run.assert_finite())"
            )


def _loss_table(amp: Sequence[float | None], fp32: Sequence[float | None], rtol: float, atol: float) -> str:
    """Return a table of the losses around the first difference, and of the last step."""
    rows = [(number, one, other) for number, (one, other) in enumerate(zip(amp, fp32, strict=True), 1)]
    known = [(number, one, other) for number, one, other in rows if one is not None and other is not None]
    first = next((n for n, (_, one, other) in enumerate(known) if _differs(one, other, rtol, atol)), 0)
    shown = [*known[max(0, first - 1) : first + 3], *known[-1:]]
    lines = [f"  {number:>5}  {one:>12.6g}  {other:>12.6g}" for number, one, other in dict.fromkeys(shown)]
    return "\n".join([f"  {'step':>5}  {'autocast':>12}  {'float32':>12}", *lines, ""]) if lines else ""


def _noisy_elements(replay: Replay, amp: ReplayWatch, fp32: ReplayWatch) -> dict[str, Tensor]:
    """Return for each parameter the elements whose gradients are within the rounding error of low precision.

    The rounding error is that of a gradient of average size. Elements without gradients are not among them. One
    gradient within the error, of another sign than in float32, is enough: Adam makes a full step of it.
    """
    eps = max(torch.finfo(dtype).eps for dtype in amp.dtypes)
    largest = [_largest_gradients(watch) for watch in (amp, fp32)]
    values = list(largest[1].values())
    count = sum(value.numel() for value in values)
    average = math.sqrt(sum(float((value.double() ** 2).sum()) for value in values) / count) if count else 0.0
    noise = {}
    for name, p in replay.find_state().parameters().items():
        used, wanted = (each.get(id(p)) for each in largest)
        if used is not None and wanted is not None:
            noise[name] = (used <= _NOISE * eps * average) & (wanted <= eps * average) & (used > 0)
            for one, other in _gradient_pairs(amp, fp32, id(p)):
                noise[name] |= (torch.maximum(one.abs(), other.abs()) <= _NOISE * eps * average) & (one * other < 0)
    averages = {name: p for name, p in replay.find_state().parameters().items() if name not in noise}
    return {
        **noise,
        **{name: mask for name, p in averages.items() if (mask := _noise_of_average(name, p, noise)) is not None},
    }


def _noise_of_average(name: str, average: Tensor, noise: Mapping[str, Tensor]) -> Tensor | None:
    """Return the noisy elements of the parameters of which a parameter without gradients may be an average.

    A copy of a model, such as a moving average or a target network, has the same names behind its own.
    """
    parts = name.split(".")
    for start in range(len(parts)):
        ending = ".".join(parts[start:])
        masks = [
            mask
            for other, mask in noise.items()
            if (other == ending or other.endswith(f".{ending}")) and mask.shape == average.shape
        ]
        if masks:
            return torch.stack(masks).any(dim=0)
    return None


def _gradient_pairs(amp: ReplayWatch, fp32: ReplayWatch, key: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the gradients of a parameter at each applied step in both runs."""
    for optimizer, windows in amp.windows.items():
        for window, other in zip(windows, fp32.windows.get(optimizer, []), strict=False):
            if not window.is_skipped and key in window.step_grads and key in other.step_grads:
                yield window.step_grads[key], other.step_grads[key]


def _largest_gradients(watch: ReplayWatch) -> dict[int, Tensor]:
    """Return the largest magnitude of each element's gradient at the applied steps, by ``id`` of the parameter."""
    largest: dict[int, Tensor] = {}
    for window in (window for windows in watch.windows.values() for window in windows if not window.is_skipped):
        for key, gradient in window.step_grads.items():
            size = gradient.abs()
            largest[key] = torch.maximum(largest[key], size) if key in largest else size
    return largest


def _update_errors(
    begin: Mapping[str, Tensor],
    amp: Mapping[str, Tensor],
    fp32: Mapping[str, Tensor],
    noise: Mapping[str, Tensor],
    rtol: float,
    atol: float,
) -> list[tuple[str, float, float, float]]:
    """Return (name, error, allowed error, reference size) of each parameter's update, largest relative error first.

    The elements in ``noise`` are not compared.
    """
    moves = {name: _without(noise.get(name), fp32[name].double() - start.double()) for name, start in begin.items()}
    elements = sum(move.numel() for move in moves.values())
    average = math.sqrt(sum(float((move**2).sum()) for move in moves.values()) / max(1, elements))
    errors = []
    for name, move in moves.items():
        size = max(float(move.norm()), _STILL * average * math.sqrt(move.numel()))
        error = float(_without(noise.get(name), amp[name].double() - fp32[name].double()).norm())
        error = math.inf if math.isnan(error) else error
        errors.append((name, error, rtol * size + atol * math.sqrt(move.numel()), size))
    return sorted(errors, key=lambda each: -(each[1] / each[3] if each[3] else math.inf if each[1] else 0.0))


def _without(excluded: Tensor | None, values: Tensor) -> Tensor:
    return values if excluded is None else values.masked_fill(excluded.to(values.device), 0.0)


def _worst_updates(errors: Sequence[tuple[str, float, float, float]]) -> str:
    worst = [f"{name} {format_percent(error / size if size else 0.0)}" for name, error, _, size in errors[:3] if error]
    return f"Updates that differ most from float32's: {', '.join(worst)}." if worst else ""


def _precision_reasons(amp: ReplayWatch) -> Iterator[str]:
    if torch.float16 in amp.dtypes and not amp.skipped_steps:
        yield "float16 without a GradScaler loses small gradients: train with torch.amp.GradScaler, or in bfloat16"
    if amp.skipped_steps:
        yield (
            "gradients are clipped, logged or edited while they are still scaled: "
            "call scaler.unscale_(optimizer) before"
        )
    yield (
        "an operation that needs float32's range or precision runs in half (a hand-written loss, a mean of squares, "
        "a small eps): run it under torch.autocast(device, enabled=False) on `.float()` inputs"
    )
    yield "the loss is computed outside autocast from half-precision outputs: move it inside, or use `.float()`"
    yield "weights change inside one long region, which keeps using its cached copies: one region a forward pass"
