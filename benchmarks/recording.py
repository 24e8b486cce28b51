"""What recording costs: training steps with and without the recorder, in turns, and with each costly part.

    python benchmarks/recording.py [--milliseconds 20] [--pairs 20]

Prints the median of the paired ratios. The step is the same, on the same data, and is made long enough for the machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pytest_amp_check import record

#: Steps before each timing, and steps of one: events are judged in bulk, once in about that many steps.
WARM = 4
TIMED = 32


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


def seconds(step: Callable[[], None], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        step()
    return (time.perf_counter() - start) / times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--milliseconds", type=float, default=20.0, help="how long a step lasts at least")
    parser.add_argument("--pairs", type=int, default=20, help="how often both are timed; a quarter as often with parts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    width = 64
    step = Trainer(width)
    while seconds(step, 3) * 1000 < options.milliseconds:
        width += 32
        step = Trainer(width)
    model = step.model
    params = sum(1 for _ in model.parameters())
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread, {params} parameters of width {width}")
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (
        ("recorded", {}),
        ("with norms", {"norms": True}),
        ("with dtypes", {"dtypes": True}),
        ("with numerics", {"numerics": True}),
        ("with memory", {"memory": True}),
    )
    for name, parts in kinds:
        ratios, bare = [], []
        pairs = options.pairs if not parts else options.pairs // 4
        for _ in range(pairs):
            # What is seen for the first time costs more, and Python adapts anew to what was patched or put back.
            seconds(step, WARM)
            without = seconds(step, TIMED)
            with record(model, **parts):
                seconds(step, WARM)
                ratios.append(seconds(step, TIMED) / without)
            bare.append(without)
        low, high = statistics.quantiles(ratios, n=4)[0], statistics.quantiles(ratios, n=4)[2]
        print(
            f"{name}: {statistics.median(ratios):.3f} of the time without (quartiles {low:.3f} to {high:.3f};"
            f" a step without takes {statistics.median(bare) * 1000:.1f} ms; {pairs} pairs)"
        )


if __name__ == "__main__":
    main()
