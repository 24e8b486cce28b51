"""Cost of recording for training steps: time, synchronizations with the GPU, and retained memory."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from recording import Trainer
from torch.profiler import ProfilerActivity, profile

from gpu.places import measured_place, on
from gpu.results import Row
from pytest_amp_check import record

#: Step lengths in milliseconds, the length at which each part of a recording is timed, and pairs of timings for each.
MILLISECONDS, EACH, PAIRS = (5, 20, 80), 20, 3
#: Steps of a timing, warm-up steps, and warm-up steps of a recording: the recorder reads each source line at its first
#: use, and searches the forward passes of steps 0 and 10 for hidden overflows.
TIMED, WARM, FIRST = 12, 2, 12
#: The parts of a recording.
PARTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dtypes": {"dtypes": True},
    "numerics": {"numerics": True},
    "memory": {"memory": True},
}
#: Calls that wait for the device: CUDA functions, and in a dry run the ops that would call these functions.
WAITING_CALLS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
WAITING_OPS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal")
#: Steps over which waits are counted, and the limit of waits per step: the recorder fetches many numbers at a time.
COUNTED, WAITS = 64, 1 / 16
#: Bytes that a recording may retain at its end.
HELD = 2**20


def _seconds(step: Callable[[], object], times: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def _trainer_of_duration(milliseconds: float, device: str) -> Trainer:
    """Return a trainer whose step takes ``milliseconds`` on this machine, by growing its batch."""
    rows = 64
    while True:
        trainer = Trainer(width=512, rows=rows, device=device)
        taken = _seconds(trainer, WARM) * 1000
        taken = _seconds(trainer, WARM) * 1000
        if taken >= milliseconds:
            return trainer
        # While launching kernels takes longer than running them, more rows cost nothing.
        rows = math.ceil(rows * min(16.0, max(1.5, milliseconds / taken)))


def rows(*, dry: bool) -> Iterator[Row]:
    device = "cuda"
    with on(measured_place(dry=dry)):
        yield from _synchronisations(Trainer(width=16, layers=2, rows=4, device=device), on_cuda=not dry)
        yield from _held(Trainer(width=16, layers=2, rows=4, device=device), on_cuda=not dry)
        if dry:
            yield from _times("a small step", Trainer(width=64, rows=8, device=device), 1, [*PARTS])
            return
        for milliseconds in MILLISECONDS:
            names = [*PARTS] if milliseconds == EACH else ["plain"]
            yield from _times(f"{milliseconds} ms", _trainer_of_duration(milliseconds, device), PAIRS, names)


def _times(what: str, trainer: Trainer, pairs: int, names: list[str]) -> Iterator[Row]:
    for name in names:
        parts = PARTS[name]
        ratios, bare = [], []
        for _ in range(pairs):
            _seconds(trainer, WARM)
            bare.append(_seconds(trainer, TIMED))
            with record(trainer.model, **parts):
                _seconds(trainer, FIRST)
                ratios.append(_seconds(trainer, TIMED) / bare[-1])
        yield {
            "kind": name,
            "what": what,
            "added": statistics.median(ratios) - 1,
            "step in ms": statistics.median(bare) * 1000,
            "pairs": pairs,
        }


def _waits(step: Callable[[], object], *, on_cuda: bool) -> Counter[str]:
    """Count the waits for the device over some steps."""
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_cuda]
    with profile(activities=activities) as profiled:
        for _ in range(COUNTED):
            step()
    waiting = WAITING_CALLS if on_cuda else WAITING_OPS
    # The raw Kineto events: profiled.events() builds a tree, which takes several times as long as the steps.
    recorder: Any = profiled.profiler
    return Counter(name for name in (event.name() for event in recorder.kineto_results.events()) if name in waiting)


def _synchronisations(trainer: Trainer, *, on_cuda: bool) -> Iterator[Row]:
    for _ in range(WARM):
        trainer()
    without = _waits(trainer, on_cuda=on_cuda)
    for name, parts in PARTS.items():
        with record(trainer.model, **parts):
            # First-time events are examined more closely.
            for _ in range(WARM):
                trainer()
            counted = _waits(trainer, on_cuda=on_cuda)
        counted.subtract(without)
        added = {event: count / COUNTED for event, count in counted.items() if count > 0}
        yield {
            "kind": _kind("synchronisations", name),
            "what": name,
            # Without a GPU the recorder reads each loss in the memory of the processor, and waits for nothing.
            "agrees": sum(added.values()) <= WAITS + (not on_cuda),
            "added": added,
        }


def _alive(*, on_cuda: bool) -> int:
    """Return the bytes of all live tensors."""
    gc.collect()
    if on_cuda:
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    storages = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
        for each in gc.get_objects()
        if type(each) in (torch.Tensor, torch.nn.Parameter)
    }
    return sum(storages.values())


def _held(trainer: Trainer, *, on_cuda: bool) -> Iterator[Row]:
    for name, parts in PARTS.items():
        for _ in range(WARM):
            trainer()
        before = _alive(on_cuda=on_cuda)
        with record(trainer.model, **parts) as run:
            for _ in range(COUNTED):
                trainer()
        held = _alive(on_cuda=on_cuda) - before
        kind = _kind("held", name)
        yield {"kind": kind, "what": name, "agrees": held <= HELD, "bytes": held, "steps": run.steps_total}


def _kind(what: str, part: str) -> str:
    """Return the row kind. Claims are about plain recordings; the other recordings are measured too."""
    return what if part == "plain" else f"{what} with {part}"
