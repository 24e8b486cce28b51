"""Patched calls give the program what torch gives it: the same objects, the same values, the same errors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from pytest_amp_check import record

#: More calls than any listener examines at one location.
CALLS = 40
IN_PLACE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add_": lambda t, o: t.add_(o),
    "add_ with a factor": lambda t, o: t.add_(o, alpha=1e-3),
    "sub_": lambda t, o: t.sub_(o, alpha=1e-3),
    "mul_": lambda t, o: t.mul_(0.99),
    "mul_ by a tensor": lambda t, o: t.mul_(o),
    "div_": lambda t, o: t.div_(1.01),
    "lerp_": lambda t, o: t.lerp_(o, 1e-3),
    "copy_": lambda t, o: t.copy_(o),
    "fill_": lambda t, o: t.fill_(0.5),
    "zero_": lambda t, o: t.zero_(),
    "clamp_": lambda t, o: t.clamp_(-1, 1),
    "clamp_ by name": lambda t, o: t.clamp_(min=-1),
    "addcmul_": lambda t, o: t.addcmul_(o, o, value=1e-3),
    "addcdiv_": lambda t, o: t.addcdiv_(o, o + 2, value=1e-3),
    "add_ by name": lambda t, o: t.add_(other=o),
    "add_ by name with a factor": lambda t, o: t.add_(other=o, alpha=1e-3),
    "sub_ by name with a factor": lambda t, o: t.sub_(other=o, alpha=1e-3),
    "mul_ by name": lambda t, o: t.mul_(other=o),
    "lerp_ by name": lambda t, o: t.lerp_(end=o, weight=1e-3),
    "lerp_ with a weight by name": lambda t, o: t.lerp_(o, weight=1e-3),
    "addcmul_ without a factor": lambda t, o: t.addcmul_(o, o),
    "addcmul_ by name": lambda t, o: t.addcmul_(tensor1=o, tensor2=o, value=1e-3),
    "addcdiv_ with an operand by name": lambda t, o: t.addcdiv_(o, tensor2=o + 2),
    "index_add_": lambda t, o: t.index_add_(0, torch.arange(len(t)), o),
    "index_add_ by name": lambda t, o: t.index_add_(dim=0, index=torch.arange(len(t)), source=o),
    "masked_fill_": lambda t, o: t.masked_fill_(o > 0, 0.25),
    "+=": lambda t, o: t.__iadd__(o),
    "*=": lambda t, o: t.__imul__(0.5),
    "/=": lambda t, o: t.__itruediv__(2.0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", IN_PLACE)
def test_an_op_in_place_returns_its_tensor(name: str, dtype: torch.dtype) -> None:
    def run() -> list[Tensor]:
        torch.manual_seed(0)
        tensor, other = torch.randn(8).to(dtype), torch.randn(8).to(dtype)
        values = []
        for _ in range(CALLS):
            assert IN_PLACE[name](tensor, other) is tensor
            values.append(tensor.clone())
        return values

    alone = run()
    with record() as recorded:
        observed = run()
    assert recorded.failure is None
    assert all(torch.equal(one, other) for one, other in zip(alone, observed, strict=True))


REFUSED: dict[str, Callable[[Any], object]] = {
    "add_": lambda t: t.add_(),
    "add_ with only a factor": lambda t: t.add_(alpha=2),
    "mul_": lambda t: t.mul_(),
    "addcmul_": lambda t: t.addcmul_(t),
    "lerp_": lambda t: t.lerp_(t),
    "an unknown name": lambda t: t.add_(t, beta=2),
    "clamp_ without a tensor": lambda t: torch.clamp_(min=0.0),  # type: ignore[call-overload]
    "clamp_ of a list": lambda t: torch.clamp_([t], min=0.0),  # type: ignore[call-overload]
    "foreach without tensors": lambda t: torch._foreach_mul_(scalar=2.0),  # type: ignore[call-overload]
    "foreach of a generator": lambda t: torch._foreach_mul_((each for each in [t]), 2.0),  # type: ignore[call-overload]
    "foreach of no tensors": lambda t: torch._foreach_neg_([]),
    "a copy of nothing": lambda t: torch._foreach_copy_([t]),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("in_region", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", REFUSED)
def test_an_op_in_place_is_refused_with_the_error_of_torch(name: str, dtype: torch.dtype, in_region: bool) -> None:
    tensor = torch.ones(8, dtype=dtype)
    with pytest.raises((TypeError, RuntimeError)) as alone:
        REFUSED[name](tensor)
    region = torch.autocast("cpu", dtype=torch.bfloat16) if in_region else nullcontext()
    with record() as run, region, pytest.raises((TypeError, RuntimeError)) as observed:
        REFUSED[name](tensor)
    assert (type(observed.value), str(observed.value)) == (type(alone.value), str(alone.value))
    assert run.failure is None
    assert torch.equal(tensor, torch.ones(8, dtype=dtype))


@pytest.mark.parametrize("in_region", [False, True])
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_an_op_in_place_on_a_gradient_returns_the_gradient(name: str, in_region: bool) -> None:
    model = nn.Linear(8, 8)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record() as run:
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(torch.randn(4, 8)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=in_region):
                for change in IN_PLACE.values():
                    grad = getattr(model, name).grad
                    assert change(grad, torch.zeros_like(grad)) is grad
            scaler.step(optimizer)
            scaler.update()
    assert run.failure is None


def test_calls_of_a_step_return_what_torch_returns() -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1)
    average = torch.optim.swa_utils.AveragedModel(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with record() as run:
        with torch.autocast("cpu", dtype=torch.bfloat16) as region:
            loss = nn.functional.mse_loss(model(torch.ones(4, 8)).float(), torch.ones(4, 1))
        assert isinstance(region, torch.autocast)
        assert torch.equal(scaler.scale(loss), loss * 64.0)
        first, second = scaler.scale([loss, loss * 2])
        assert torch.equal(second, loss * 128.0)
        torch.autograd.backward(first)
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1e3)
        assert torch.equal(norm, torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm())
        assert nn.utils.clip_grad_value_(model.parameters(), 1e3) is None
        assert scaler.step(optimizer) is None
        scaler.update()
        assert scaler.get_scale() == 128.0
        assert optimizer.step(lambda: 2.5) == 2.5
        assert optimizer.zero_grad() is None
        scheduler.step()
        average.update_parameters(model)
        assert set(scaler.state_dict()) == {
            "scale",
            "growth_factor",
            "backoff_factor",
            "growth_interval",
            "_growth_tracker",
        }
        assert set(optimizer.state_dict()) == {"state", "param_groups"}
        assert str(model.load_state_dict(model.state_dict())) == "<All keys matched successfully>"
        (gradient,) = torch.autograd.grad(model(torch.ones(1, 8)).sum(), [model.bias])
        assert torch.equal(gradient, torch.ones(1))
        assert model.half() is model
        assert model.float() is model
        assert model.to(torch.bfloat16) is model
        assert model.requires_grad_(False) is model
    assert run.failure is None


def test_work_of_other_threads_returns_what_it_returns() -> None:
    from concurrent.futures import ThreadPoolExecutor
    from threading import Thread

    done: list[int] = []
    with record() as run, torch.autocast("cpu", dtype=torch.bfloat16):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(pow, 2, 5).result() == 32
            assert list(pool.map(abs, [-1, -2])) == [1, 2]
        thread = Thread(target=done.append, args=(1,))
        thread.start()
        thread.join()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(pow, 2, 5).result() == 32
    assert done == [1]
    assert run.failure is None
