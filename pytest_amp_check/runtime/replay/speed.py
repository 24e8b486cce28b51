"""The assertion that mixed precision is faster than float32."""

from __future__ import annotations

import contextlib
import math
import statistics
import time

import torch

from ..emulate.cuda import is_emulating
from .comparison import UnavailableError, autocast_off, format_count, is_number
from .replay import Replay

#: Minimum length of a timed run in seconds, so that the clock and the synchronization do not matter.
_STRETCH = 0.1


def assert_speedup(replay: Replay, *, over_fp32: float, pairs: int = 9) -> float:
    """Fail if the steps are not ``over_fp32`` times as fast as in float32 on a GPU. Return the measured factor.

    Both variants run alternately ``pairs`` times, warmed up and synchronized. The median of the paired ratios counts.
    In float32, autocast is off and scalers are disabled. Raise ``UnavailableError`` if the model is not on a CUDA
    device.
    """
    __tracebackhide__ = True
    if not is_number(over_fp32) or not 0 < over_fp32 < math.inf:
        raise ValueError(f"over_fp32 is {over_fp32!r}: pass the factor that is expected, such as 1.3")
    if type(pairs) is not int or pairs < 1:
        raise ValueError(f"pairs is {pairs!r}: pass how many times both are timed, at least 1")
    if is_emulating() or not torch.cuda.is_available():
        raise UnavailableError("no CUDA device: a speedup can only be measured on the GPU that it is meant for")
    devices = {p.device.type for p in replay.find_state().parameters().values()}
    if devices != {"cuda"}:
        raise UnavailableError(f"the model is on {' and '.join(sorted(devices))}, not on a CUDA device")
    with replay.rewind():
        # Each variant runs as often as fills the stretch: float32 may take five times as long.
        rounds = {
            half: max(1, math.ceil(_STRETCH / min(_measure_seconds(replay, half, 1) for _ in range(2))))
            for half in (True, False)
        }
        times: dict[bool, list[float]] = {True: [], False: []}
        for number in range(pairs):
            for half in (True, False) if number % 2 == 0 else (False, True):
                times[half].append(_measure_seconds(replay, half, rounds[half]) / (rounds[half] * replay.steps))
    ratio = statistics.median(fp32 / amp for amp, fp32 in zip(times[True], times[False], strict=True))
    if ratio >= over_fp32:
        return ratio
    amp, fp32 = (1e3 * statistics.median(times[half]) for half in (True, False))
    tf32 = torch.backends.cuda.matmul.allow_tf32
    raise AssertionError(
        f"mixed precision is {ratio:.2f} times as fast as float32, not {over_fp32:g} times: "
        f"{amp:.3g} ms a step against {fp32:.3g} ms "
        f"(medians of {format_count(pairs, 'pair')} on {torch.cuda.get_device_name()})\n"
        "Usual reasons:\n"
        "  - the batch or the layers are too small to fill the GPU: time with the sizes you train with\n"
        "  - sizes that are no multiple of 8, which tensor cores do not take\n"
        "  - `.item()`, `print(loss)` or a copy to the CPU in every step, so that both wait for it\n"
        "  - most of the forward pass is outside the autocast region"
        + ("\n  - TF32 is on, so float32 uses tensor cores already" if tf32 else "")
    )


def _measure_seconds(replay: Replay, half: bool, rounds: int) -> float:
    """Return the seconds that the steps take from the first state on, unchanged or in float32."""
    replay.start_snapshot.restore()
    with contextlib.ExitStack() as stack:
        if not half:
            stack.enter_context(autocast_off())
            for scaler in replay.find_state().scalers.values():
                scaler._enabled = False
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for number in range(rounds * replay.steps):
            replay.call_step(number)
        torch.cuda.synchronize()
        return time.perf_counter() - begin
