"""What a recording holds is freed as the program frees it: a step's values are not kept for the steps after it."""

# mypy: allow-untyped-calls

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp_check import record

#: Largest number of calls without gradients that a recording keeps, because the next loss may need them.
ASIDE = 4
References = list["weakref.ref[torch.Tensor]"]


@pytest.fixture(autouse=True)
def no_cycles() -> Iterator[None]:
    """Prepare inputs. Let only references count: garbage that waits for a search for cycles is held."""
    READY[:] = [torch.ones(2, 4) for _ in range(300)]
    gc.collect()
    gc.disable()
    yield
    gc.enable()


#: Made before a recording begins, which could otherwise make them again instead of holding them.
READY: list[torch.Tensor] = []


def inputs(noted: References) -> torch.Tensor:
    made = READY.pop()
    noted.append(weakref.ref(made))
    return made


def alive(noted: References) -> int:
    return sum(reference() is not None for reference in noted)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))


def test_an_evaluation_that_keeps_its_outputs_frees_its_inputs() -> None:
    net, noted = model(), list[Any]()
    outputs = []
    with record() as run:
        for _ in range(40):
            with torch.no_grad():
                outputs.append(net(inputs(noted)))
        # The latest call has not been followed by another.
        assert alive(noted) <= ASIDE + 1
    assert run.failure is None
    assert len(outputs) == 40


def test_the_input_of_a_result_that_is_dropped_is_freed_before_the_next_backward() -> None:
    net, noted, seen = model(), list[Any](), []
    with record() as run:
        net(inputs(noted))
        loss = net(torch.ones(2, 4)).sum()
        loss.register_hook(lambda grad: seen.append(alive(noted)))
        loss.backward()
    assert run.failure is None
    assert seen == [0]


def test_the_inputs_of_results_that_are_dropped_do_not_add_up() -> None:
    """An evaluation with gradients has no backward pass at which calls could be dropped."""
    net, noted = model(), list[Any]()
    with record() as run:
        for _ in range(300):
            net(inputs(noted))
        assert alive(noted) < 150
    assert run.failure is None


@pytest.mark.parametrize("kept", [1, 3, 6])
def test_results_of_earlier_steps_that_the_program_keeps_hold_few_inputs(kept: int) -> None:
    net, noted = model(), list[Any]()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses: list[torch.Tensor] = []
    with record() as run:
        for _ in range(12):
            optimizer.zero_grad()
            loss = net(inputs(noted)).sum()
            loss.backward()
            optimizer.step()
            losses = [*losses, loss][-kept:]
            del loss
        assert alive(noted) <= min(kept, 4) + 1
    assert run.failure is None


def plain(net: nn.Module, optimizer: Any, noted: References) -> None:
    net(inputs(noted)).sum().backward()
    optimizer.step()


def scaled(net: nn.Module, optimizer: Any, noted: References) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = net(inputs(noted)).float().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def not_finite(net: nn.Module, optimizer: Any, noted: References) -> None:
    (net(inputs(noted)).sum() * float("inf")).backward()
    optimizer.step()


def penalized(net: nn.Module, optimizer: Any, noted: References) -> None:
    x = inputs(noted).requires_grad_()
    (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    noted.append(weakref.ref(slope))
    slope.square().sum().backward()
    optimizer.step()


def evaluated(net: nn.Module, optimizer: Any, noted: References) -> None:
    with torch.no_grad():
        net(inputs(noted))


STEPS = [plain, scaled, not_finite, penalized, evaluated]


@pytest.mark.parametrize("step", STEPS)
def test_a_run_holds_nothing_of_the_program_after_its_end(step: Callable[..., None]) -> None:
    net, noted = model(), list[Any]()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with record() as run:
        for _ in range(3):
            optimizer.zero_grad()
            step(net, optimizer, noted)
    assert run.failure is None
    gc.collect()
    assert alive(noted) == 0
    # The run is still there to be read.
    assert run.steps_total in (0, 3)


@pytest.mark.parametrize("step", [plain, scaled, penalized])
def test_one_step_is_held_at_a_time(step: Callable[..., None]) -> None:
    net, noted = model(), list[Any]()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with record() as run:
        for _ in range(6):
            optimizer.zero_grad()
            step(net, optimizer, noted)
            del noted[:-2]
            assert alive(noted) <= 2
        optimizer.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        assert alive(noted) == 0
    assert run.failure is None


def test_a_region_that_is_left_leaves_no_mode_behind() -> None:
    """A search for overflows sees each op of a region, which would slow down all ops after it."""
    if "torch._dynamo" in sys.modules:
        # A process that compiles code searches nothing.
        torch._dynamo.reset()
    net, counts = model(), []
    with record() as run:
        with torch.autocast("cpu", dtype=torch.float16):
            result = net(READY.pop())
            counts.append(torch._C._len_torch_dispatch_stack())
        counts.append(torch._C._len_torch_dispatch_stack())
        result.float().sum().backward()
    assert run.failure is None
    assert counts == [1, 0]
