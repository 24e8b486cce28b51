"""Recording does not wait for the GPU: values of a step are fetched later, and are still the step's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_amp_check.runtime.session import Session

pytestmark = pytest.mark.usefixtures("patched_once")

#: Ops that return a number or a shape, so that a program waits for the device.
WAITING = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default, torch.ops.aten.equal.default}


class Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that counts the ops that wait for the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in WAITING
        return func(*args, **(kwargs or {}))


def trainer(half: Session, *, fused: bool, growth_interval: int = 3) -> tuple[nn.Module, Callable[..., Tensor]]:
    """Return a model and a function that runs a step and returns the loss. A factor of infinity causes an overflow."""
    model = nn.Linear(8, 1).to(half.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    scaler = half.scaler(init_scale=1024.0, growth_interval=growth_interval)
    inputs = torch.randn(4, 8, device=half.device)

    def step(factor: float = 1.0) -> Tensor:
        optimizer.zero_grad()
        with half.autocast():
            loss: Tensor = model(inputs).float().square().mean() * factor
        torch.autograd.backward(scaler.scale(loss))
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        return loss.detach()

    return model, step


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_waits_as_often_as_without(half: Session, fused: bool) -> None:
    model, step = trainer(half, fused=fused)
    step()
    with Waits() as without:
        for _ in range(8):
            step()
    with half.record(model) as run:
        # First-time events may be examined more closely.
        step()
        with Waits() as recorded:
            for _ in range(8):
                step()
    assert recorded.count == without.count
    # A fused optimizer's own step waits for nothing: the scaler leaves the check to the kernel.
    assert (without.count == 0) == fused
    assert run.steps_total == 9


def test_what_is_read_later_is_what_was_there(half: Session) -> None:
    _, step = trainer(half, fused=True)
    losses, kept = [], []
    with half.record() as run:
        for factor in (1.0, float("inf"), 1.0, 1.0, 1.0, 1.0):
            loss = step(factor)
            kept.append(loss)
            losses.append(loss.clone())
        for loss in kept:
            # A program may reuse the memory of its losses.
            loss.zero_()
    assert [recorded.loss for recorded in run.steps] == [float(loss) for loss in losses]
    assert [recorded.skipped for recorded in run.steps] == [False, True, False, False, False, False]
    assert [recorded.scale_before for recorded in run.steps] == [1024.0, 1024.0, 512.0, 512.0, 512.0, 1024.0]
    assert [recorded.growth_tracker for recorded in run.steps] == [1, 0, 1, 2, 0, 1]


def test_it_can_be_asked_at_any_time(half: Session) -> None:
    _, step = trainer(half, fused=True)
    with half.record() as run:
        step()
        first = run.steps[0]
        step(float("inf"))
        assert run.skipped_total == 1
        step()
        assert [recorded.scale_after for recorded in run.steps] == [1024.0, 512.0, 512.0]
        assert (first.scale_after, first.skipped, first.loss is not None) == (1024.0, False, True)
        assert run.scale_history == [(0, 1024.0), (1, 512.0)]
    run.assert_scale(max_skipped=1)


def test_a_long_run_keeps_few_numbers_waiting(half: Session) -> None:
    _, step = trainer(half, fused=True, growth_interval=2000)
    with half.record() as run:
        for number in range(120):
            step(float("inf") if number % 40 == 20 else 1.0)
        waiting = len(run._recorder.recording.deferred_values._pending_numbers)
    assert waiting <= 300
    assert [recorded.index for recorded in run.steps if recorded.skipped] == [20, 60, 100]
    assert run.skipped_total == 3
