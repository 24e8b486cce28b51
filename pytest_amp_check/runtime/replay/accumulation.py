"""The assertion that several micro-batches train like one batch of the same data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .comparison import check_tolerance, format_count, format_percent
from .replay import Backward, Replay, ReplayWatch, Window


def assert_accumulation_equivalent(
    replay: Replay, k: int, *, whole: Callable[[Any], object] | None = None, rtol: float = 0.02
) -> None:
    """Fail if ``k`` micro-batches give another update than one batch that holds them all.

    ``whole`` is the user's own step for a full batch. With ``whole``, the gradients of the first window that is not
    skipped are compared with the gradients of ``whole(joined micro-batches)`` from the same state, without dropout. The
    norm of the difference must be at most ``rtol`` of the norm for the full batch. Gradients are compared rather than
    updates, because Adam's updates hide a factor.

    Without ``whole``, autograd gives the factor of each micro-batch. The factor is the derivative of the backward root
    by the results of torch's loss functions, without the loss scale. Weighted by samples or tokens, the factors of a
    window must add up to 1 within ``rtol``. Raise ValueError if the factors decide nothing: no loss function of torch
    ran, or several losses are ambiguous.
    """
    __tracebackhide__ = True
    check_tolerance(rtol)
    if type(k) is not int or k < 2:
        raise ValueError(f"k is {k!r}: pass how many micro-batches make one update, at least 2")
    if whole is not None and not callable(whole):
        raise ValueError("whole is not a function: pass the step that trains on one full batch")
    with replay.rewind():
        watch = ReplayWatch(replay, gradients=True, criteria=whole is None, dropout=whole is None)
        with watch.observe():
            watch.play_calls(range(replay.steps))
        problem = _window_problem(replay, watch, k)
        if not problem:
            taken = [[window for window in windows if not window.is_skipped] for windows in watch.closed_windows()]
            if not all(taken):
                problem = "every update was skipped because of an overflow: use a smaller init_scale, or run more steps"
            elif whole is None:
                problem = _factor_problem(taken, k, rtol)
            else:
                problem = _whole_problem(replay, taken[0][0], k, whole, rtol)
    if problem:
        raise AssertionError(problem)


def _window_problem(replay: Replay, watch: ReplayWatch, k: int) -> str:
    """Return the problem with the ends of the windows, or ""."""
    closed = watch.closed_windows()
    if not closed:
        return (
            f"no optimizer stepped in {format_count(replay.steps, 'call')} of the step: run at least {k} "
            f"micro-batches, "
            f"and step when (i + 1) % {k} == 0"
        )
    for windows in closed:
        for window in windows:
            if window.clear_call is not None:
                return (
                    f"the gradients are cleared inside the window of {k} micro-batches, before call "
                    f"{window.clear_call + 1} runs backward: only the micro-batches after it count. "
                    "Call optimizer.zero_grad() after the optimizer's step alone"
                )
        sizes = [window.call_count if window.call_count > 1 else len(window.backwards) for window in windows]
        wrong = next(
            (
                size
                for window, size in zip(windows, sizes, strict=True)
                if k not in (size, window.call_count, len(window.backwards))
            ),
            None,
        )
        if wrong is not None:
            hint = f": `i % {k} == 0` is true for the first micro-batch; step when `(i + 1) % {k} == 0`"
            late = sizes[0] == 1 and sizes[1:2] in ([], [k])
            return (
                f"an update is made of {format_count(wrong, 'micro-batch')}, not {k}: the windows hold "
                f"{', '.join(map(str, sizes[:8]))}{', ...' if len(sizes) > 8 else ''}"
                + (hint if late else f": step the optimizer once every {k} micro-batches")
            )
    return ""


def _factor_problem(taken: Sequence[Sequence[Window]], k: int, rtol: float) -> str:
    """Return the problem with the weights of the micro-batches according to torch's loss functions, or ""."""
    ask = "pass whole=, your own step for one full batch"
    shapes = {tuple(len(window.backwards) for window in windows) for windows in taken}
    if len(shapes) > 1:
        raise ValueError(f"the optimizers step at different times, so it is not clear whose loss is whose: {ask}")
    window = taken[0][0]
    groups = _group_terms(window.backwards)
    if not groups:
        raise ValueError(f"no loss function of torch was seen, so the weight of a micro-batch is not known: {ask}")
    divided = window.grad_factor()
    by_hand = divided if abs(divided * k - 1) <= rtol else 1.0
    correct, undivided, sums = [], [], []
    for terms in groups.values():
        totals = [sum(term.weights[index] for term in terms) * by_hand for index in range(len(terms[0].weights))]
        is_each_one = all(
            term.sample_weight is not None and abs(term.sample_weight * by_hand - 1) <= rtol for term in terms
        )
        if is_each_one or any(abs(total - 1) <= rtol for total in totals):
            correct.append(terms)
        if not is_each_one and any(abs(total - k) <= rtol * k for total in totals):
            undivided.append(terms)
        sums.append(totals)
    if correct and undivided:
        raise ValueError(f"the losses of a window weigh 1 and {k}, so it is not clear which counts: {ask}")
    if undivided:
        return _ratio_message(float(k), k)
    if not correct:
        if len(sums) > 1 or len(sums[0]) > 1:
            shown = ", ".join(f"{total:.3g}" for totals in sums for total in totals[:1])
            raise ValueError(f"the losses of a window weigh {shown}, which may be right or wrong: {ask}")
        return _ratio_message(sums[0][0], k) + f". If the loss has a weight of its own, {ask}"
    terms = correct[0]
    samples = sum(term.sample_count for term in terms)
    shares = [term.weights[0] * by_hand for term in terms]
    even = all(
        abs(share - term.sample_count / samples) <= max(rtol, 1e-6) * term.sample_count / samples
        for share, term in zip(shares, terms, strict=True)
    )
    if len(terms[0].weights) == 1 and not even:
        counts = ", ".join(f"{term.sample_count:g}" for term in terms)
        return (
            f"micro-batches of {counts} samples count {', '.join(f'{share:.3g}' for share in shares)}: the mean of "
            'their means is not the mean of the full batch. Sum the losses (reduction="sum") and divide them by the '
            f"{samples:g} samples of the window"
        )
    return ""


def _group_terms(backwards: Sequence[Backward]) -> dict[tuple[str, int, int], list[Any]]:
    """Group the loss terms of a window by their position within a micro-batch."""
    groups: dict[tuple[str, int, int], list[Any]] = {}
    calls = {each.call_index for each in backwards}
    occurrences: dict[int, int] = {}
    for backward in backwards:
        occurrence = occurrences[backward.call_index] = occurrences.get(backward.call_index, -1) + 1
        for index, term in enumerate(backward.terms):
            groups.setdefault((term.name, index, occurrence if len(calls) > 1 else 0), []).append(term)
    return groups


def _ratio_message(ratio: float, k: int, doubt: str = "") -> str:
    says = f"the update is {ratio:.2f} times the full batch's"
    if abs(ratio - k) <= 0.1 * k:
        return f"{says}: the loss of each micro-batch is not divided by {k}. Write scaler.scale(loss / {k}).backward()"
    if abs(ratio * k - 1) <= 0.1:
        return f"{says}: the loss is divided by {k} twice, or only one of {k} micro-batches counts{doubt}"
    return f"{says}: the factors of its {k} micro-batches do not add up to 1{doubt}"


def _whole_problem(replay: Replay, window: Window, k: int, whole: Callable[[Any], object], rtol: float) -> str:
    """Return the difference between a window and one full batch, or ""."""
    calls = sorted({each.call_index for each in window.backwards})
    batch = _join_batches([replay.batches[call % len(replay.batches)] for call in calls])
    replay.start_snapshot.restore()
    before = ReplayWatch(replay, dropout=False)
    with before.observe():
        before.play_calls(range(calls[0]))
    full = ReplayWatch(replay, gradients=True, dropout=False)
    names = {id(p): name for name, p in replay.find_state().parameters().items()}
    with full.observe():
        full.play_function(whole, batch)
    closed = full.closed_windows()
    if not closed or len(closed[0]) != 1:
        raise ValueError(
            f"whole() stepped the optimizer {len(closed[0]) if closed else 0} times: "
            "it must train on one full batch, with one step of the same optimizer"
        )
    if closed[0][0].is_skipped:
        raise ValueError("whole() was skipped because of an overflow: start with a smaller init_scale")
    divided = window.grad_factor()
    by_hand = divided if abs(divided * k - 1) <= max(rtol, 1e-3) else 1.0
    whole_grads = closed[0][0].accumulated_grads
    window_grads = {
        key: window.accumulated_grads[key] * by_hand for key in whole_grads if key in window.accumulated_grads
    }
    pairs = [
        (name, window_grads[key].double(), whole_grads[key].double())
        for key, name in names.items()
        if key in window_grads
    ]
    size = math.sqrt(sum(float((full_batch**2).sum()) for _, _, full_batch in pairs))
    error = math.sqrt(sum(float(((one - full_batch) ** 2).sum()) for _, one, full_batch in pairs))
    if error <= rtol * size:
        return ""
    ratio = sum(float((one * full_batch).sum()) for _, one, full_batch in pairs) / size**2 if size else math.inf
    residual = math.sqrt(sum(float(((one - ratio * full_batch) ** 2).sum()) for _, one, full_batch in pairs))
    if residual <= max(rtol, 0.02) * abs(ratio) * size:
        return _ratio_message(ratio, k)
    worst = max(pairs, key=lambda pair: float((pair[1] - pair[2]).norm()))[0]
    return (
        f"the gradients of {k} micro-batches differ from the full batch's by {format_percent(error / size)} "
        f"(rtol={rtol:g}), "
        f"most in {worst}\nUsual reasons:\n"
        "  - micro-batches of different sizes, or with different numbers of tokens, all count the same: sum the losses "
        "and divide by the window's total\n"
        "  - BatchNorm sees micro-batches, not the batch: no division can make these equal\n"
        "  - whole() does not compute the same loss"
    )


def _join_batches(batches: Sequence[Any]) -> Any:
    """Join batches along the first dimension. Raise ValueError for batches of other objects than tensors."""
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, Tensor) and first.dim():
        return torch.cat(list(batches))
    if isinstance(first, Mapping):
        return {key: _join_batches([batch[key] for batch in batches]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(_join_batches(part) for part in zip(*batches, strict=True)))
    if isinstance(first, (list, tuple)):
        return type(first)(_join_batches(part) for part in zip(*batches, strict=True))
    if all(type(batch) is type(first) and bool(batch == first) for batch in batches):
        return first
    raise ValueError(f"batches that hold a {type(first).__name__} cannot be joined: pass batches of tensors")
