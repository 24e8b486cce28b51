"""What recording costs: training steps with and without the recorder, in turns, and with each costly part.

    python benchmarks/recording.py [--milliseconds 20] [--pairs 60] [--against CHECKOUT]

Prints what recording adds to a step, as the median of paired differences and where that lies with a certainty of 95 %,
and the ratio. The step is the same, on the same data, and is made long enough for the machine. What is counted is the
processor time of the thread, so that other work of the machine counts only as far as it takes the caches. With
``--against``, the package of another checkout, as of the commit before a change, records in turns with this one, in the
same process: what they differ in is told with less noise than either.
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

#: Steps before each timing: what is seen for the first time costs more, and Python adapts anew to what was patched or
#: put back. Steps of one timing: events are judged in bulk, once in about that many steps.
WARM = 32
TIMED = 32
#: How often a sample is drawn from the pairs to see how far their median may be off.
DRAWN = 1000


class Trainer:
    """Training steps of a network with normalisation, clipping and a scaler: a call is one step."""

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
    """The processor time of a step, after others from the same place: each place is read when it is first seen."""
    start = 0.0
    for turn in range(warm + times):
        if turn == warm:
            start = time.thread_time()
        step()
    return (time.thread_time() - start) / times * 1000


def other_record(checkout: Path) -> Any:
    """``record`` of the package in another checkout, beside that of this one."""
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
    """The median, and where that of all pairs that could have been lies, by drawing from these again."""
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
    for turn in range(options.pairs):
        # Those with parts take long, and differ by more.
        turns = {name: run for name, run in kinds.items() if not name.startswith("with ") or turn % 4 == 0}
        names = ["without", *turns]
        order.shuffle(names)
        for name in names:
            times[name].append(turns[name]() if name in turns else without())
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
