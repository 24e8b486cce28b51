"""Cost of recording: training steps with and without the recorder, alternately, and with each costly part.

    python benchmarks/recording.py [--milliseconds 20] [--pairs 60] [--against CHECKOUT]

The script prints the additional time of a recorded step, as the median of paired differences with its 95 % confidence
interval, and the ratio. The step is the same, on the same data, and is made long enough for the machine. The processor
time of the thread is measured, so that other load on the machine matters only through the caches. With ``--against``,
the package of another checkout, such as the commit before a change, records alternately with this checkout in the same
process. The difference between the two has less noise than either cost.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pytest_amp_check import record

#: Steps before each timing: first-time events cost more, and Python re-optimizes code after patches change. Steps of
#: one timing: events are checked in bulk, once in about this many steps.
WARM = 32
TIMED = 32
#: Number of resamples of the pairs that estimate the confidence interval of their median.
DRAWN = 1000


class Trainer:
    """Training steps of a network with normalization, clipping and a scaler. A call is one step."""

    def __init__(self, width: int, *, layers: int = 12, rows: int = 64, device: str = "cpu") -> None:
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()) for _ in range(layers)]
        self.model = nn.Sequential(*blocks, nn.Linear(width, 10)).to(device)
        self.device = device
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.scaler = torch.amp.GradScaler(device)
        self.x, self.y = torch.randn(rows, width).to(device), torch.randint(0, 10, (rows,)).to(device)

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        with torch.autocast(self.device, dtype=torch.float16):
            loss = nn.functional.cross_entropy(self.model(self.x), self.y)
        torch.autograd.backward(self.scaler.scale(loss))
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()


def milliseconds(step: Callable[[], None], times: int, warm: int) -> float:
    """Return the processor time of a step after warm-up steps from the same line.

    The recorder analyzes each source line at its first use.
    """
    start = 0.0
    for index in range(warm + times):
        if index == warm:
            start = time.thread_time()
        step()
    return (time.thread_time() - start) / times * 1000


def other_record(checkout: Path) -> Any:
    """Return ``record`` of the package in another checkout, loaded beside this package."""
    folder = checkout / "pytest_amp_check"
    where = [str(folder)]
    spec = importlib.util.spec_from_file_location(
        "other_amp_check", folder / "__init__.py", submodule_search_locations=where
    )
    if spec is None or spec.loader is None:
        raise SystemExit(f"there is no package in {folder}")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.record


def interval(differences: list[float]) -> str:
    """Return the median and its bootstrap confidence interval as text."""
    draw = random.Random(0)  # noqa: S311 - the same each time
    drawn = sorted(statistics.median(draw.choices(differences, k=len(differences))) for _ in range(DRAWN))
    low, high = drawn[DRAWN // 40], drawn[-DRAWN // 40]
    return f"{statistics.median(differences):+.3f} ms a step ({low:+.3f} to {high:+.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--milliseconds", type=float, default=20.0, help="how long a step lasts at least")
    parser.add_argument("--pairs", type=int, default=60, help="how often both are timed; a quarter as often with parts")
    parser.add_argument("--against", type=Path, help="another checkout, which is compared with this one; no parts then")
    options = parser.parse_args()
    torch.set_num_threads(1)
    width = 32
    step = Trainer(width)
    while milliseconds(step, 4, 2) < options.milliseconds:
        width += 32
        step = Trainer(width)
    model = step.model
    params = sum(1 for _ in model.parameters())
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread, {params} parameters of width {width}")

    def without() -> float:
        return milliseconds(step, TIMED, WARM)

    def recorded(by: Any, parts: dict[str, Any]) -> float:
        with by(model, **parts):
            return milliseconds(step, TIMED, WARM)

    kinds: dict[str, Callable[[], float]] = {"recorded": lambda: recorded(record, {})}
    if options.against is not None:
        other = other_record(options.against)
        kinds["recorded by the other"] = lambda: recorded(other, {})
    else:
        for part in ("norms", "dtypes", "numerics", "memory"):
            kinds[f"with {part}"] = lambda part=part: recorded(record, {part: True})  # type: ignore[misc]
    order = random.Random(0)  # noqa: S311 - the same each time
    times: dict[str, list[float]] = {name: [] for name in ("without", *kinds)}
    for pair in range(options.pairs):
        # Recordings with parts take long and differ by more, so they need fewer pairs.
        measured = {name: run for name, run in kinds.items() if not name.startswith("with ") or pair % 4 == 0}
        names = ["without", *measured]
        order.shuffle(names)
        for name in names:
            times[name].append(measured[name]() if name in measured else without())
    bare = times["without"]
    print(f"a step without takes {statistics.median(bare):.2f} ms")
    for name in kinds:
        beside = bare if len(times[name]) == len(bare) else bare[::4]
        pairs = list(zip(times[name], beside, strict=True))
        more = interval([mine - its for mine, its in pairs])
        ratio = statistics.median(mine / its for mine, its in pairs)
        print(f"{name}: {more}, {ratio:.3f} of the time without; {len(pairs)} pairs")
    if options.against is not None:
        pairs = list(zip(times["recorded"], times["recorded by the other"], strict=True))
        print(f"this beside the other: {interval([mine - its for mine, its in pairs])}")


if __name__ == "__main__":
    main()
