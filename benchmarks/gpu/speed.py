"""Consistency of assert_speedup over five calls, on models that AMP must accelerate and on a model that AMP cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gpu.models import Decoder, Perceptron, Residual, Vision
from gpu.places import measured_place, on
from gpu.results import Row
from pytest_amp_check import run_steps
from pytest_amp_check.runtime.replay.comparison import UnavailableError

#: Number of calls, and the required speedup factor.
TIMES, FACTOR = 5, 1.2


class Case(NamedTuple):
    """A model that computes its own loss, a batch for it, and the flag that AMP is faster on Tensor Cores."""

    model: Callable[[], nn.Module]
    batch: Callable[[], Tensor]
    wins: bool


class Elementwise(nn.Module):
    """A model of only elementwise float32 arithmetic: autocast has nothing to cast."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(8):
            x = torch.sin(x * self.weight)
        return x.square().mean()


def cases(*, dry: bool) -> dict[str, Case]:
    def rows_of(batch: int, width: int) -> Callable[[], Tensor]:
        return lambda: torch.randn(batch, width, device="cuda")

    small = {
        "wide MLP": Case(lambda: Perceptron(32, 2), rows_of(4, 32), wins=True),
        "tiny MLP": Case(lambda: Perceptron(8, 2), rows_of(4, 8), wins=False),
    }
    if dry:
        return small
    return {
        "wide MLP": Case(lambda: Perceptron(4096, 3), rows_of(2048, 4096), wins=True),
        "decoder": Case(
            lambda: Decoder(8192, 1024, 1024, 4, 16),
            lambda: torch.randint(8192, (4, 1024), device="cuda"),
            wins=True,
        ),
        "ViT": Case(lambda: Vision(224, 768, 4, 12), lambda: torch.randn(32, 3, 224, 224, device="cuda"), wins=True),
        "ResNet, channels last": Case(
            lambda: Residual((2, 2, 2, 2)).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
            lambda: torch.randn(128, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last),
            wins=True,
        ),
        "tiny MLP": Case(lambda: Perceptron(8, 4), rows_of(4, 8), wins=False),
        "elementwise": Case(lambda: Elementwise(4096), rows_of(2048, 4096), wins=False),
    }


def rows(*, dry: bool) -> Iterator[Row]:
    with on(measured_place(dry=dry)):
        for what, case in cases(dry=dry).items():
            yield _unavailable(what, case) if dry else _decided(what, case)


def _recorded(case: Case) -> Callable[[], float]:
    """Record three steps. Return a function that asserts the speedup."""
    torch.manual_seed(0)
    model = case.model().to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cuda", init_scale=16.0)

    def step(batch: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss: Tensor = model(batch)
        torch.autograd.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()
        return loss

    run = run_steps(step, [case.batch()], steps=3)
    return lambda: run.assert_speedup(over_fp32=FACTOR, pairs=5)


def _decided(what: str, case: Case) -> Row:
    ask = _recorded(case)
    verdicts: list[bool] = []
    seen: list[str] = []
    for _ in range(TIMES):
        try:
            seen.append(f"{ask():.2f} times as fast")
            verdicts.append(True)
        except AssertionError as error:
            seen.append(str(error).partition("\n")[0])
            verdicts.append(False)
    agrees = verdicts == [case.wins] * TIMES
    return {"kind": "speedup", "what": what, "agrees": agrees, "seen": seen}


def _unavailable(what: str, case: Case) -> Row:
    ask = _recorded(case)
    try:
        said = f"decided: {ask()}"
        agrees = False
    except UnavailableError as error:
        said, agrees = str(error), "no CUDA device" in str(error)
    return {"kind": "without a GPU", "what": what, "agrees": agrees, "seen": said}
