"""Comparison of the times of two commands, run alternately, so that a machine that slows down affects both."""

from __future__ import annotations

import math
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class Timing(NamedTuple):
    """Medians in seconds over all pairs, the median and the range of the paired ratios, and the ratio of CPU time."""

    first: float
    second: float
    ratio: float
    least: float
    most: float
    busy: float

    def __str__(self) -> str:
        return f"{self.ratio:.2f} (pairs: {self.least:.2f} to {self.most:.2f}; of CPU time {self.busy:.2f})"


class Run(NamedTuple):
    """The wall-clock seconds of a command, and the CPU seconds of the command and its child processes."""

    seconds: float
    busy: float


def run(command: Sequence[str], codes: tuple[int, ...] = (0, 1)) -> Run:
    """Run a command and return its times. An unexpected exit code ends the benchmark."""
    # If Python may not write bytecode, each run would include the compilation.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start, worked = time.perf_counter(), _worked()
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    taken = Run(time.perf_counter() - start, _worked() - worked)
    if done.returncode not in codes:
        sys.exit(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}")
    return taken


def _worked() -> float:
    """Return the CPU seconds of all finished child processes."""
    times = os.times()
    return times.children_user + times.children_system


def compare(
    first: Sequence[str],
    second: Sequence[str],
    *,
    pairs: int,
    times: int = 1,
    codes: tuple[int, ...] = (0, 1),
    warm_up: bool = True,
) -> Timing:
    """Run both commands alternately, ``pairs`` times ``times``, after a warm-up that is not counted."""
    if warm_up:
        run(first, codes)
        run(second, codes)
    samples: list[tuple[Run, Run]] = []
    for _ in range(pairs):
        repeats = [(run(first, codes), run(second, codes)) for _ in range(times)]
        samples.append((_mean(a for a, _ in repeats), _mean(b for _, b in repeats)))
    ratios = [a.seconds / b.seconds for a, b in samples]
    return Timing(
        statistics.median(a.seconds for a, _ in samples),
        statistics.median(b.seconds for _, b in samples),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        statistics.median(a.busy / b.busy if b.busy else math.nan for a, b in samples),
    )


def _mean(runs: Iterable[Run]) -> Run:
    return Run(*(statistics.fmean(figures) for figures in zip(*runs, strict=True)))


def installed(name: str) -> list[str]:
    """Return the command with this name in the interpreter's environment."""
    path = Path(sysconfig.get_path("scripts")) / (f"{name}.exe" if os.name == "nt" else name)
    if not path.exists():
        sys.exit(
            f"{name} is not installed beside {sys.executable}: install this project with `pip install -e '.[dev]'`"
        )
    return [str(path)]


def machine() -> str:
    """Return a description of the machine."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{platform.system()}, {os.cpu_count()} CPUs ({model}), {python}"
