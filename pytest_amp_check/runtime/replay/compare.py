"""Assertions that run the same steps again with one thing changed: precision, batching, a restart, or the clock."""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ..emulate.cuda import emulating
from .replay import Backward, Replay, Watch, Window
from .snapshot import random_state

#: A parameter that moves less than this share of the average is compared with that share, not with its own noise.
_STILL = 0.1
#: Seconds that one timed stretch lasts at least, so that the clock and the synchronisation do not show.
_STRETCH = 0.1


class Unavailable(Exception):
    """An assertion cannot be decided on this machine; the text says what is missing."""


def assert_matches_fp32(
    replay: Replay,
    *,
    rtol: float,
    atol: float = 1e-6,
    updates: float = 0.2,
    what: Literal["both", "loss", "parameters"] = "both",
) -> None:
    """The steps give what they give in float32: same state, seeds and data, every autocast region off, loss scale 1.

    Losses (what the step returns; else what ran backward, unscaled) may differ by ``atol + rtol * |float32|`` at every
    step. The update of each parameter, from first to last step, may differ in norm by ``updates`` of its float32 update
    plus ``atol`` an element; parameters that hardly move are measured against a tenth of the average update. So may the
    gradients that each optimizer's first step gets. Both show mistakes that a loss hides, such as clipping scaled
    gradients, but are noisier: a right trainer of ours was 4 % off after eight steps whose losses agreed to 0.01 %.
    Steps that the scaler skipped are left out in float32 too. Raises ValueError if there is nothing to compare.
    """
    __tracebackhide__ = True
    _check_tolerance(rtol, atol, updates)
    if what not in ("both", "loss", "parameters"):
        raise ValueError(f'what is {what!r}: pass "loss", "parameters" or "both"')
    with replay.rewound():
        begin = _copies(replay)
        amp = _played(replay, gradients=what != "loss")
        amp_end = _copies(replay)
        if not amp.dtypes:
            raise ValueError(
                "the steps enter no enabled autocast region, so float32 would be the same run: "
                "put the forward pass under torch.autocast"
            )
        replay.start.restore()
        fp32 = Watch(replay, gradients=what != "loss", skips=amp.skipped, scale=1.0)
        with _autocast_off(), fp32.on():
            try:
                fp32.play(range(replay.steps))
            except RuntimeError as error:
                raise AssertionError(
                    f"the steps do not run with autocast off: {error}\n"
                    "Something casts to a low precision by hand (`.half()`, `.to(torch.float16)`, `dtype=`): "
                    "let autocast choose, or cast with `.to(weight.dtype)`."
                ) from error
        fp32_end = _copies(replay)
        # The gradients first: losses part only after the updates that these make.
        parted = _parted_gradients(amp, fp32, updates) if what != "loss" else ""
        if what != "parameters" and not parted:
            parted = _parted_losses(amp.losses, fp32.losses, rtol, atol)
        errors = _update_errors(begin, amp_end, fp32_end, updates, atol)
        if what != "loss" and not parted and any(error > allowed for _, error, allowed, _ in errors):
            parted = f"after {replay.steps} steps the parameters have moved elsewhere than in float32"
        if not parted:
            return
        replay.start.restore()
        again = _played(replay)
        if _parted_losses(again.losses, amp.losses, rtol, atol) and what != "parameters":
            raise AssertionError(_UNREPEATABLE)
    skipped = sum(amp.skipped)
    left_out = f"\nThe scaler skipped {_count(skipped, 'step')}, left out in float32 as well." if skipped else ""
    reasons = "\n".join(f"  - {reason}" for reason in _precision_reasons(amp))
    raise AssertionError(
        f"{parted} (rtol={rtol:g}, atol={atol:g}, updates={updates:g})\n"
        f"{_loss_table(amp.losses, fp32.losses, rtol, atol)}{_worst_updates(errors)}{left_out}\n"
        f"Usual reasons:\n{reasons}"
    )


def assert_accumulation_equivalent(
    replay: Replay, k: int, *, whole: Callable[[Any], object] | None = None, rtol: float = 0.02
) -> None:
    """``k`` micro-batches give the update of one batch that holds them all.

    With ``whole``, the user's own step for a full batch, the gradients that the optimizer gets for the first window
    that is not skipped are compared with those of ``whole(joined micro-batches)`` from the same state, dropout off, by
    the norm of the difference: at most ``rtol`` of the full batch's. Gradients rather than updates, since Adam's
    updates hide a factor.

    Without it, the factor of each micro-batch is read from autograd: the derivative of what runs backward by what
    torch's loss functions returned, without the loss scale. Weighted by samples or tokens, the factors of a window
    must add up to 1 within ``rtol``. Raises ValueError where that decides nothing: no loss function of torch is seen,
    or several losses leave it open.
    """
    __tracebackhide__ = True
    _check_tolerance(rtol)
    if type(k) is not int or k < 2:
        raise ValueError(f"k is {k!r}: pass how many micro-batches make one update, at least 2")
    if whole is not None and not callable(whole):
        raise ValueError("whole is not a function: pass the step that trains on one full batch")
    with replay.rewound():
        watch = Watch(replay, gradients=True, criteria=whole is None, dropout=whole is None)
        with watch.on():
            watch.play(range(replay.steps))
        problem = _window_problem(replay, watch, k)
        if not problem:
            taken = [[window for window in windows if not window.skipped] for windows in watch.closed()]
            if not all(taken):
                problem = "every update was skipped because of an overflow: use a smaller init_scale, or run more steps"
            elif whole is None:
                problem = _factor_problem(taken, k, rtol)
            else:
                problem = _whole_problem(replay, taken[0][0], k, whole, rtol)
    if problem:
        raise AssertionError(problem)


def assert_resumes(
    replay: Replay,
    save: Callable[..., Any],
    load: Callable[[Any], object],
    *,
    at: int | None = None,
    rtol: float = 0.0,
) -> None:
    """Training that is saved after ``at`` steps and loaded into a fresh state goes on as if it had not stopped.

    ``load(save())``, or, if ``save`` takes an argument, ``save(path); load(path)`` with a path in a temporary folder.
    ``at`` defaults to the end of the update nearest to the middle. Between the two, everything that the step holds goes
    back to before the first step, as in a new process. Losses, parameters, buffers, and the states of optimizer, scaler
    and scheduler must come out the same, bit for bit, or within ``rtol``.
    """
    __tracebackhide__ = True
    _check_tolerance(rtol)
    for name, function in (("save", save), ("load", load)):
        if not callable(function):
            raise ValueError(f"{name} is {function!r}, not a function: pass your own save and load functions")
    if replay.steps < 2:
        raise ValueError("one step cannot be resumed in between: run at least 2 steps")
    if at is not None and (type(at) is not int or not 1 <= at < replay.steps):
        raise ValueError(f"at is {at!r}: pass after how many steps to save, from 1 to {replay.steps - 1}")
    with replay.rewound(), tempfile.TemporaryDirectory(prefix="amp-check-") as folder:
        straight = _played(replay)
        straight_end = _parts(replay)
        at = _middle(straight, replay.steps) if at is None else at
        replay.start.restore()
        resumed = Watch(replay)
        with resumed.on():
            resumed.play(range(at))
        before = _parts(replay)
        checkpoint = _saved(save, os.path.join(folder, "checkpoint.pt"))
        saved = _parts(replay)
        replay.start.restore()
        load(checkpoint)
        loaded = _parts(replay)
        with resumed.on():
            resumed.play(range(at, replay.steps))
        resumed_end = _parts(replay)
        first = _first_difference(straight.losses, resumed.losses, rtol)
        ends = _different(straight_end, resumed_end, rtol, outcome=True)
    if first is None and not ends:
        return
    if first is not None and first < at:
        raise AssertionError(_UNREPEATABLE)
    raise AssertionError(_resume_message(replay.steps, at, before, saved, loaded, straight, resumed, first, ends))


def assert_speedup(replay: Replay, *, over_fp32: float, pairs: int = 9) -> float:
    """The steps are ``over_fp32`` times as fast as in float32, on a GPU; the measured factor.

    Both run in turns, warmed up, synchronised, ``pairs`` times; the median of the paired ratios counts. In float32
    autocast is off and scalers are disabled. Raises :class:`Unavailable` where the model is not on a CUDA device.
    """
    __tracebackhide__ = True
    if not _is_number(over_fp32) or not 0 < over_fp32 < math.inf:
        raise ValueError(f"over_fp32 is {over_fp32!r}: pass the factor that is expected, such as 1.3")
    if type(pairs) is not int or pairs < 1:
        raise ValueError(f"pairs is {pairs!r}: pass how many times both are timed, at least 1")
    if emulating() or not torch.cuda.is_available():
        raise Unavailable("no CUDA device: a speedup can only be measured on the GPU that it is meant for")
    devices = {p.device.type for p in replay.found().parameters().values()}
    if devices != {"cuda"}:
        raise Unavailable(f"the model is on {' and '.join(sorted(devices))}, not on a CUDA device")
    with replay.rewound():
        warm = min(_timed(replay, half, 1) for half in (True, False) for _ in range(2))
        rounds = max(1, math.ceil(_STRETCH / warm))
        times: dict[bool, list[float]] = {True: [], False: []}
        for number in range(pairs):
            for half in (True, False) if number % 2 == 0 else (False, True):
                times[half].append(_timed(replay, half, rounds) / (rounds * replay.steps))
    ratio = statistics.median(fp32 / amp for amp, fp32 in zip(times[True], times[False], strict=True))
    if ratio >= over_fp32:
        return ratio
    amp, fp32 = (1e3 * statistics.median(times[half]) for half in (True, False))
    tf32 = torch.backends.cuda.matmul.allow_tf32
    raise AssertionError(
        f"mixed precision is {ratio:.2f} times as fast as float32, not {over_fp32:g} times: "
        f"{amp:.3g} ms a step against {fp32:.3g} ms "
        f"(medians of {_count(pairs, 'pair')} on {torch.cuda.get_device_name()})\n"
        "Usual reasons:\n"
        "  - the batch or the layers are too small to fill the GPU: time with the sizes you train with\n"
        "  - sizes that are no multiple of 8, which tensor cores do not take\n"
        "  - `.item()`, `print(loss)` or a copy to the CPU in every step, so that both wait for it\n"
        "  - most of the forward pass is outside the autocast region"
        + ("\n  - TF32 is on, so float32 uses tensor cores already" if tf32 else "")
    )


_UNREPEATABLE = (
    "the same steps from the same state gave other losses when they ran again, so nothing can be compared: "
    "pass what is missing in state=[...], seed generators of your own, and pass data as batches; on a GPU, "
    "torch.use_deterministic_algorithms(True) makes kernels repeat themselves"
)


def _check_tolerance(rtol: float, atol: float = 0.0, updates: float = 0.0) -> None:
    for name, value in (("rtol", rtol), ("atol", atol), ("updates", updates)):
        if not _is_number(value) or not 0 <= value < math.inf:
            raise ValueError(f"{name} is {value!r}: pass a number that is not negative, such as 0.01")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _played(replay: Replay, *, gradients: bool = False) -> Watch:
    """All steps from the present state, watched."""
    watch = Watch(replay, gradients=gradients)
    with watch.on():
        watch.play(range(replay.steps))
    return watch


def _copies(replay: Replay) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in replay.found().parameters().items()}


@contextlib.contextmanager
def _autocast_off() -> Iterator[None]:
    """A region in which every autocast region is entered as if it said ``enabled=False``, made before or in it."""
    kind: Any = torch.amp.autocast_mode.autocast
    original = kind.__enter__

    def enter(region: Any) -> Any:
        enabled, region._enabled = region._enabled, False
        try:
            return original(region)
        finally:
            region._enabled = enabled

    with contextlib.ExitStack() as stack:
        stack.callback(setattr, kind, "__enter__", original)
        kind.__enter__ = enter
        for device in ("cpu", "cuda", "mps", "xpu"):
            if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _parted_losses(amp: Sequence[float | None], fp32: Sequence[float | None], rtol: float, atol: float) -> str:
    """Where the losses part, or nothing."""
    if all(loss is None for loss in amp):
        raise ValueError(
            'the step returns no loss and runs nothing backward: return the loss, or pass what="parameters"'
        )
    for number, (one, other) in enumerate(zip(amp, fp32, strict=True), 1):
        if one is not None and other is not None and not abs(one - other) <= atol + rtol * abs(other):
            return (
                f"the losses part at step {number} of {len(amp)}: {one:.6g} under autocast, {other:.6g} in float32, "
                f"{_percent(abs(one - other) / abs(other) if other else math.inf)} apart"
            )
    return ""


def _parted_gradients(amp: Watch, fp32: Watch, allowed: float) -> str:
    """Whether an optimizer's first step gets other gradients, or nothing: Adam's updates would hide a factor."""
    for key, windows in amp.windows.items():
        pairs = [
            (window.used, other.used)
            for window, other in zip(windows, fp32.windows.get(key, []), strict=False)
            if window.used and other.used and not window.skipped
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


def _loss_table(amp: Sequence[float | None], fp32: Sequence[float | None], rtol: float, atol: float) -> str:
    """The steps around the first one that differs, and the last one."""
    rows = [(number, one, other) for number, (one, other) in enumerate(zip(amp, fp32, strict=True), 1)]
    known = [(number, one, other) for number, one, other in rows if one is not None and other is not None]
    first = next((n for n, (_, one, other) in enumerate(known) if not abs(one - other) <= atol + rtol * abs(other)), 0)
    shown = [*known[max(0, first - 1) : first + 3], *known[-1:]]
    lines = [f"  {number:>5}  {one:>12.6g}  {other:>12.6g}" for number, one, other in dict.fromkeys(shown)]
    return "\n".join([f"  {'step':>5}  {'autocast':>12}  {'float32':>12}", *lines, ""]) if lines else ""


def _update_errors(
    begin: Mapping[str, Tensor], amp: Mapping[str, Tensor], fp32: Mapping[str, Tensor], rtol: float, atol: float
) -> list[tuple[str, float, float, float]]:
    """For each parameter the error of its update, what is allowed, and what the update is measured against."""
    moves = {name: (fp32[name].double() - start.double()) for name, start in begin.items()}
    elements = sum(move.numel() for move in moves.values())
    average = math.sqrt(sum(float((move**2).sum()) for move in moves.values()) / max(1, elements))
    errors = []
    for name, move in moves.items():
        size = max(float(move.norm()), _STILL * average * math.sqrt(move.numel()))
        error = float((amp[name].double() - fp32[name].double()).norm())
        error = math.inf if math.isnan(error) else error
        errors.append((name, error, rtol * size + atol * math.sqrt(move.numel()), size))
    return sorted(errors, key=lambda each: -(each[1] / each[3] if each[3] else math.inf if each[1] else 0.0))


def _worst_updates(errors: Sequence[tuple[str, float, float, float]]) -> str:
    worst = [f"{name} {_percent(error / size if size else 0.0)}" for name, error, _, size in errors[:3] if error]
    return f"Updates that differ most from float32's: {', '.join(worst)}." if worst else ""


def _precision_reasons(amp: Watch) -> Iterator[str]:
    if torch.float16 in amp.dtypes and not amp.skipped:
        yield "float16 without a GradScaler loses small gradients: train with torch.amp.GradScaler, or in bfloat16"
    if amp.skipped:
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


def _window_problem(replay: Replay, watch: Watch, k: int) -> str:
    """What is wrong with the places where the windows end, or nothing."""
    closed = watch.closed()
    if not closed:
        return (
            f"no optimizer stepped in {_count(replay.steps, 'call')} of the step: run at least {k} micro-batches, "
            f"and step when (i + 1) % {k} == 0"
        )
    for windows in closed:
        for window in windows:
            if window.cleared is not None:
                return (
                    f"the gradients are cleared inside the window of {k} micro-batches, before call "
                    f"{window.cleared + 1} runs backward: only the micro-batches after it count. "
                    "Call optimizer.zero_grad() after the optimizer's step alone"
                )
        sizes = [window.calls if window.calls > 1 else len(window.backwards) for window in windows]
        wrong = next(
            (
                size
                for window, size in zip(windows, sizes, strict=True)
                if k not in (size, window.calls, len(window.backwards))
            ),
            None,
        )
        if wrong is not None:
            hint = f": `i % {k} == 0` is true for the first micro-batch; step when `(i + 1) % {k} == 0`"
            late = sizes[0] == 1 and sizes[1:2] in ([], [k])
            return (
                f"an update is made of {_count(wrong, 'micro-batch')}, not {k}: the windows hold "
                f"{', '.join(map(str, sizes[:8]))}{', ...' if len(sizes) > 8 else ''}"
                + (hint if late else f": step the optimizer once every {k} micro-batches")
            )
    return ""


def _factor_problem(taken: Sequence[Sequence[Window]], k: int, rtol: float) -> str:
    """What is wrong with the weights of the micro-batches, or nothing, by torch's loss functions alone."""
    ask = "pass whole=, your own step for one full batch"
    shapes = {tuple(len(window.backwards) for window in windows) for windows in taken}
    if len(shapes) > 1:
        raise ValueError(f"the optimizers step at different times, so it is not clear whose loss is whose: {ask}")
    window = taken[0][0]
    groups = _terms(window.backwards)
    if not groups:
        raise ValueError(f"no loss function of torch was seen, so the weight of a micro-batch is not known: {ask}")
    divided = window.divided()
    by_hand = divided if abs(divided * k - 1) <= rtol else 1.0
    right, undivided, sums = [], [], []
    for terms in groups.values():
        totals = [sum(term.weights[way] for term in terms) * by_hand for way in range(len(terms[0].weights))]
        each = all(term.each is not None and abs(term.each * by_hand - 1) <= rtol for term in terms)
        if each or any(abs(total - 1) <= rtol for total in totals):
            right.append(terms)
        if not each and any(abs(total - k) <= rtol * k for total in totals):
            undivided.append(terms)
        sums.append(totals)
    if right and undivided:
        raise ValueError(f"the losses of a window weigh 1 and {k}, so it is not clear which counts: {ask}")
    if undivided:
        return _ratio_message(float(k), k)
    if not right:
        if len(sums) > 1 or len(sums[0]) > 1:
            shown = ", ".join(f"{total:.3g}" for totals in sums for total in totals[:1])
            raise ValueError(f"the losses of a window weigh {shown}, which may be right or wrong: {ask}")
        return _ratio_message(sums[0][0], k) + f". If the loss has a weight of its own, {ask}"
    terms = right[0]
    samples = sum(term.count for term in terms)
    shares = [term.weights[0] * by_hand for term in terms]
    even = all(
        abs(share - term.count / samples) <= max(rtol, 1e-6) * term.count / samples
        for share, term in zip(shares, terms, strict=True)
    )
    if len(terms[0].weights) == 1 and not even:
        counts = ", ".join(f"{term.count:g}" for term in terms)
        return (
            f"micro-batches of {counts} samples count {', '.join(f'{share:.3g}' for share in shares)}: the mean of "
            'their means is not the mean of the full batch. Sum the losses (reduction="sum") and divide them by the '
            f"{samples:g} samples of the window"
        )
    return ""


def _terms(backwards: Sequence[Backward]) -> dict[tuple[str, int, int], list[Any]]:
    """The terms of a window's losses, together where they stand at the same place of a micro-batch."""
    groups: dict[tuple[str, int, int], list[Any]] = {}
    calls = {each.call for each in backwards}
    seen: dict[int, int] = {}
    for backward in backwards:
        turn = seen[backward.call] = seen.get(backward.call, -1) + 1
        for place, term in enumerate(backward.terms):
            groups.setdefault((term.name, place, turn if len(calls) > 1 else 0), []).append(term)
    return groups


def _ratio_message(ratio: float, k: int, doubt: str = "") -> str:
    says = f"the update is {ratio:.2f} times the full batch's"
    if abs(ratio - k) <= 0.1 * k:
        return f"{says}: the loss of each micro-batch is not divided by {k}. Write scaler.scale(loss / {k}).backward()"
    if abs(ratio * k - 1) <= 0.1:
        return f"{says}: the loss is divided by {k} twice, or only one of {k} micro-batches counts{doubt}"
    return f"{says}: the factors of its {k} micro-batches do not add up to 1{doubt}"


def _whole_problem(replay: Replay, window: Window, k: int, whole: Callable[[Any], object], rtol: float) -> str:
    """What differs between a window and one full batch, or nothing."""
    calls = sorted({each.call for each in window.backwards})
    batch = _joined([replay.batches[call % len(replay.batches)] for call in calls])
    replay.start.restore()
    before = Watch(replay, dropout=False)
    with before.on():
        before.play(range(calls[0]))
    full = Watch(replay, gradients=True, dropout=False)
    names = {id(p): name for name, p in replay.found().parameters().items()}
    with full.on():
        full.once(whole, batch)
    closed = full.closed()
    if not closed or len(closed[0]) != 1:
        raise ValueError(
            f"whole() stepped the optimizer {len(closed[0]) if closed else 0} times: "
            "it must train on one full batch, with one step of the same optimizer"
        )
    if closed[0][0].skipped:
        raise ValueError("whole() was skipped because of an overflow: start with a smaller init_scale")
    divided = window.divided()
    by_hand = divided if abs(divided * k - 1) <= max(rtol, 1e-3) else 1.0
    wanted = closed[0][0].accumulated
    got = {key: window.accumulated[key] * by_hand for key in wanted if key in window.accumulated}
    pairs = [(name, got[key].double(), wanted[key].double()) for key, name in names.items() if key in got]
    size = math.sqrt(sum(float((full_batch**2).sum()) for _, _, full_batch in pairs))
    error = math.sqrt(sum(float(((one - full_batch) ** 2).sum()) for _, one, full_batch in pairs))
    if error <= rtol * size:
        return ""
    ratio = sum(float((one * full_batch).sum()) for _, one, full_batch in pairs) / size**2 if size else math.inf
    left = math.sqrt(sum(float(((one - ratio * full_batch) ** 2).sum()) for _, one, full_batch in pairs))
    if left <= max(rtol, 0.02) * abs(ratio) * size:
        return _ratio_message(ratio, k)
    worst = max(pairs, key=lambda pair: float((pair[1] - pair[2]).norm()))[0]
    return (
        f"the gradients of {k} micro-batches differ from the full batch's by {_percent(error / size)} (rtol={rtol:g}), "
        f"most in {worst}\nUsual reasons:\n"
        "  - micro-batches of different sizes, or with different numbers of tokens, all count the same: sum the losses "
        "and divide by the window's total\n"
        "  - BatchNorm sees micro-batches, not the batch: no division can make these equal\n"
        "  - whole() does not compute the same loss"
    )


def _joined(batches: Sequence[Any]) -> Any:
    """Batches as one, joined along the first dimension."""
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, Tensor) and first.dim():
        return torch.cat(list(batches))
    if isinstance(first, Mapping):
        return {key: _joined([batch[key] for batch in batches]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(_joined(part) for part in zip(*batches, strict=True)))
    if isinstance(first, (list, tuple)):
        return type(first)(_joined(part) for part in zip(*batches, strict=True))
    if all(type(batch) is type(first) and bool(batch == first) for batch in batches):
        return first
    raise ValueError(f"batches that hold a {type(first).__name__} cannot be joined: pass batches of tensors")


def _middle(straight: Watch, steps: int) -> int:
    """After which step to save: the end of the update nearest to the middle."""
    ends = {window.stepped + 1 for windows in straight.closed() for window in windows if window.stepped is not None}
    return min((end for end in ends if end < steps), key=lambda end: abs(2 * end - steps), default=steps // 2)


def _saved(save: Callable[..., Any], path: str) -> Any:
    """What load() is to get: the path that save() wrote to, or what it returned, as it is at that moment."""
    if _takes_path(save):
        save(path)
        return path
    checkpoint = save()
    if checkpoint is None:
        raise ValueError("save() returned nothing: return the checkpoint, or take the path to write it to")
    try:
        return copy.deepcopy(checkpoint)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"what save() returned cannot be copied ({error}): return a dict of state_dicts") from error


def _takes_path(save: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(save).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return any(each.default is each.empty or isinstance(each.default, (str, os.PathLike)) for each in positional[:1])


_Parts = dict[tuple[str, str], dict[str, Any]]


def _parts(replay: Replay) -> _Parts:
    """Copies of everything that training consists of, by kind and name."""
    found = replay.found()
    parts: _Parts = {}
    for name, model in found.models.items():
        parts["model", name] = _flat({**dict(model.named_parameters()), **dict(model.named_buffers())})
    for name, optimizer in found.optimizers.items():
        parts["optimizer", name] = _flat(optimizer.state_dict())
    for name, scaler in found.scalers.items():
        tracker = {"growth_tracker": scaler._get_growth_tracker()}
        parts["scaler", name] = {"scale": scaler.get_scale(), **tracker} if scaler.is_enabled() else {}
    for name, scheduler in found.schedulers.items():
        parts["scheduler", name] = _flat(scheduler.state_dict())
    for name, generator in found.generators.items():
        parts["generator", name] = {"state": generator.get_state()}
    for name, state in random_state().items():
        parts["random", name] = _flat({"state": state})
    parts["gradients", ""] = _flat({name: p.grad for name, p in found.parameters().items() if p.grad is not None})
    parts["values", ""] = dict(found.values)
    return parts


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """The plain values and copies of the tensors in nested containers, by their path."""
    if isinstance(value, Tensor):
        return {path: value.detach().clone()}
    if isinstance(value, Mapping):
        pairs = [(f"{path}.{key}" if path else str(key), each) for key, each in value.items()]
    elif isinstance(value, (list, tuple)):
        pairs = [(f"{path}[{number}]", each) for number, each in enumerate(value)]
    elif hasattr(value, "tobytes"):
        return {path: value.tobytes()}
    else:
        return {path: value} if isinstance(value, (bool, int, float, str, bytes, type(None))) else {}
    return {name: leaf for key, each in pairs for name, leaf in _flat(each, key).items()}


def _different(one: _Parts, other: _Parts, rtol: float, *, outcome: bool = False) -> dict[tuple[str, str], list[str]]:
    """The parts that differ, with the names of the values that do; as an outcome, only those that decide training."""
    aside = ("generator", "gradients", "random", "values") if outcome else ()
    found: dict[tuple[str, str], list[str]] = {}
    for key in [*one, *(key for key in other if key not in one)]:
        left, right = one.get(key, {}), other.get(key, {})
        names = [name for name in {**left, **right} if not _same(left.get(name), right.get(name), rtol)]
        if names and key[0] not in aside:
            found[key] = names
    return found


def _same(one: Any, other: Any, rtol: float) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        other = other.to(one.device)
        if rtol and one.is_floating_point():
            return torch.allclose(one, other, rtol=rtol, atol=0.0, equal_nan=True)
        return bool(((one == other) | (one.isnan() & other.isnan())).all())
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=rtol)
    return type(one) is type(other) and bool(one == other)


def _first_difference(one: Sequence[float | None], other: Sequence[float | None], rtol: float) -> int | None:
    pairs = enumerate(zip(one, other, strict=True))
    return next((number for number, (left, right) in pairs if not _same(left, right, rtol)), None)


def _resume_message(
    steps: int,
    at: int,
    before: _Parts,
    saved: _Parts,
    loaded: _Parts,
    straight: Watch,
    resumed: Watch,
    first: int | None,
    ends: Mapping[tuple[str, str], Sequence[str]],
) -> str:
    """What is missing after loading, or what else may be the matter."""
    missing = _different(saved, loaded, 0.0)
    values = missing.pop(("values", ""), [])
    if first is not None:
        seen = (
            f"the loss of step {first + 1} is {resumed.losses[first]!r}, without the restart {straight.losses[first]!r}"
        )
    else:
        (kind, name), names = next(iter(ends.items()))
        seen = f"after step {steps}, {kind} `{name}` differs in {_listed(names)}"
    lines = [f"training saved after {_count(at, 'step')} does not go on as it was: {seen}"]
    if changed := _different(before, saved, 0.0):
        lines.append(f"save() itself changes {_listed([_label(*key) for key in changed])}: it must only read.")
    if missing:
        lines.append("Not restored by load():")
        for key, names in missing.items():
            lines.append(
                f"  - {_label(*key)}{_change(key[0], saved.get(key, {}), loaded.get(key, {}), names)}. {_remedy(*key)}"
            )
    if values:
        shown = [
            f"`{name}` ({saved['values', ''].get(name)!r} when saved, {loaded['values', ''].get(name)!r} now)"
            for name in values
        ]
        lines.append(
            f"Plain values that were not restored either: {', '.join(shown[:5])}. Save those that the step uses."
        )
    if len(lines) == 1:
        lines.append(
            "All that the step is seen to hold was restored: what differs is outside it, such as the position in the "
            "data, or the kernels do not repeat themselves; then pass rtol."
        )
    return "\n".join(lines)


def _label(kind: str, name: str) -> str:
    if kind == "random":
        return f"the random state of {name}"
    return "the gradients of an open window" if kind == "gradients" else f"the {kind} `{name}`"


def _change(kind: str, saved: Mapping[str, Any], loaded: Mapping[str, Any], names: Sequence[str]) -> str:
    """The values that differ, where they say something."""
    if kind in ("generator", "random"):
        return ""
    plain = [name for name in names if isinstance(saved.get(name), (bool, int, float)) and name in loaded]
    shown = [f"{name} {saved[name]!r}, now {loaded[name]!r}" for name in plain[:3]]
    lost = [name for name in names if name not in loaded]
    if lost:
        shown.append(f"lost: {_listed(lost)}")
    return f" ({'; '.join(shown) or _listed(names)})"


_RANDOM = {
    "torch": ("torch.get_rng_state()", "torch.set_rng_state(...)"),
    "torch.cuda": ("torch.cuda.get_rng_state_all()", "torch.cuda.set_rng_state_all(...)"),
    "torch.mps": ("torch.mps.get_rng_state()", "torch.mps.set_rng_state(...)"),
    "random": ("random.getstate()", "random.setstate(...)"),
    "numpy.random": ("numpy.random.get_state()", "numpy.random.set_state(...)"),
}


def _remedy(kind: str, name: str) -> str:
    """What to save and load."""
    if kind == "random":
        get, put = _RANDOM[name]
        return f'Save "{name}": {get}, and load it with {put}'
    if kind == "generator":
        return f'Save "{name}": {name}.get_state(), and load it with {name}.set_state(...)'
    if kind == "gradients":
        return "They are in no checkpoint: save after the optimizer has stepped"
    return f'Save "{name}": {name}.state_dict(), and load it with {name}.load_state_dict(...)'


def _timed(replay: Replay, half: bool, rounds: int) -> float:
    """Seconds that the steps take, as they are or in float32, from the first state on."""
    replay.start.restore()
    with contextlib.ExitStack() as stack:
        if not half:
            stack.enter_context(_autocast_off())
            for scaler in replay.found().scalers.values():
                scaler._enabled = False
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for number in range(rounds * replay.steps):
            replay.call(number)
        torch.cuda.synchronize()
        return time.perf_counter() - begin


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _count(number: int, what: str) -> str:
    plural = "es" if what.endswith("ch") else "s"
    return f"{number} {what}{'' if number == 1 else plural}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
