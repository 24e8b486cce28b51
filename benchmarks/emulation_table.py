"""Cost of ``emulate_cuda()``: of entering and leaving, and of each op, compared with the same ops without emulation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from paired import machine
from torch import nn

from pytest_amp_check.runtime.emulate.cuda import emulate_cuda


def microseconds(call: Callable[[], object], times: int) -> float:
    """Return the mean time over ``times`` calls."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times * 1e6


def paired(call: Callable[[], object], *, autocast: bool, times: int = 2000, pairs: int = 15) -> tuple[float, float]:
    """Return medians in microseconds, without and with emulation, measured alternately."""
    plain, emulated = [], []
    for _ in range(pairs):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            plain.append(microseconds(call, times))
        with emulate_cuda(), torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            emulated.append(microseconds(call, times))
    return statistics.median(plain), statistics.median(emulated)


def training_step() -> Callable[[], object]:
    """Return a function that runs one step of a small perceptron without a scaler, some milliseconds on a CPU."""
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(256, 256)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).float().square().mean().backward()
        optimizer.step()

    return step


def main() -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {machine()}")
    start = time.perf_counter()
    with emulate_cuda():
        pass
    print(f"first region, with what torch imports for it: {time.perf_counter() - start:.2f} s")
    entered, left = [], []
    for _ in range(50):
        start = time.perf_counter()
        with emulate_cuda():
            inside = time.perf_counter()
            entered.append(inside - start)
            end = time.perf_counter()
        left.append(time.perf_counter() - end)
    print(f"enter {statistics.median(entered) * 1e3:.1f} ms, leave {statistics.median(left) * 1e3:.1f} ms")
    small, weight, low = torch.randn(8, 8), nn.Parameter(torch.randn(8, 8)), torch.randn(8, 8).bfloat16()
    print(f"{'microseconds per call':34}{'plain':>9}{'emulated':>10}{'added':>8}")
    for name, call, autocast in (
        ("add, no autocast", lambda: small + small, False),
        ("x.device", lambda: small.device, False),
        ("mm, no autocast", lambda: torch.mm(small, small), False),
        ("add, autocast", lambda: small + small, True),
        ("mm of low tensors, autocast", lambda: torch.mm(low, low), True),
        ("linear with a cached weight", lambda: nn.functional.linear(low, weight), True),
        ("softmax of a float32, autocast", lambda: small.softmax(1), True),
    ):
        plain, emulated = paired(call, autocast=autocast)
        print(f"{name:34}{plain:9.2f}{emulated:10.2f}{emulated - plain:8.2f}")
    plain, emulated = paired(training_step(), autocast=True, times=10, pairs=9)
    print(f"{'training step (bfloat16)':34}{plain:9.0f}{emulated:10.0f}{emulated - plain:8.0f}")


if __name__ == "__main__":
    main()
