"""Changes of the loss scale on CUDA, for every form of torch's step, and assertions about whole trainings."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pytest_amp_check import Run
from pytest_amp_check.runtime.session import Session, session

pytestmark = pytest.mark.usefixtures("patched_once")

#: Implementations of torch's optimizer steps. A fused optimizer runs its step even if the scaler skips it.
WAYS = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "SGD": torch.optim.SGD,
}
every_optimizer = pytest.mark.parametrize("way", WAYS)


class Trainer:
    """A small model on the session's device. A factor of infinity makes the gradients of a step overflow."""

    def __init__(self, session: Session, optimizer: str = "AdamW", way: str = "for-loop", **scaling: Any) -> None:
        self.session = session
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(session.device)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters(), lr=0.01, **WAYS[way])
        self.scaler = session.scaler(**{"init_scale": 1024.0, **scaling})
        self.inputs = torch.randn(16, 8, device=session.device)
        self.targets = torch.randint(4, (16,), device=session.device)

    def loss(self, factor: float = 1.0) -> Tensor:
        with self.session.autocast():
            return functional.cross_entropy(self.model(self.inputs), self.targets) * factor

    def backward(self, factor: float = 1.0) -> None:
        torch.autograd.backward(self.scaler.scale(self.loss(factor)))

    def step(self, factor: float = 1.0) -> None:
        self.backward(factor)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def weights(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def moved(self, before: list[Tensor]) -> bool:
        return not all(torch.equal(one, other) for one, other in zip(before, self.weights(), strict=True))


INF = float("inf")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@every_optimizer
def test_it_backs_off_and_grows_and_skips_are_read(half: Session, optimizer: str, way: str) -> None:
    trainer = Trainer(half, optimizer, way, growth_interval=2)
    moved = []
    with half.record(trainer.model) as run:
        for factor in (1.0, INF, INF, 1.0, 1.0, 1.0):
            before = trainer.weights()
            trainer.step(factor)
            moved.append(trainer.moved(before))
    assert moved == [True, False, False, True, True, True]
    assert [step.skipped for step in run.steps] == [not each for each in moved]
    assert [step.found_inf for step in run.steps] == [not each for each in moved]
    assert [step.scale_before for step in run.steps] == [1024.0, 1024.0, 512.0, 256.0, 256.0, 512.0]
    assert [step.scale_after for step in run.steps] == [1024.0, 512.0, 256.0, 256.0, 512.0, 512.0]
    assert [step.growth_tracker for step in run.steps] == [1, 0, 0, 1, 0, 1]
    assert run.scale_history == [(0, 1024.0), (1, 512.0), (2, 256.0), (4, 512.0)]
    assert (run.steps_total, run.skipped_total) == (6, 2)
    run.assert_no_findings()
    run.assert_scale(minimum=256, maximum=1024, max_skipped=2, recovers_within=2, grows=True)
    with pytest.raises(AssertionError, match="2 of 6 steps were skipped"):
        run.assert_scale(max_skipped=1)


@every_optimizer
def test_a_step_after_unscale_is_skipped_too(half: Session, way: str) -> None:
    trainer = Trainer(half, way=way)
    norms = []
    with half.record(trainer.model) as run:
        for factor in (1.0, INF, 1.0):
            before = trainer.weights()
            trainer.backward(factor)
            trainer.scaler.unscale_(trainer.optimizer)
            norms.append(float(nn.utils.clip_grad_norm_(trainer.model.parameters(), 0.1)))
            trainer.scaler.step(trainer.optimizer)
            trainer.scaler.update()
            trainer.optimizer.zero_grad()
            assert trainer.moved(before) == (factor == 1.0)
    assert [step.skipped for step in run.steps] == [False, True, False]
    assert run.steps[0].grad_norm == pytest.approx(norms[0])
    assert run.steps[2].grad_norm == pytest.approx(norms[2])
    run.assert_no_findings()


@every_optimizer
def test_a_step_whose_gradients_are_edited_to_be_infinite_is_not_skipped(half: Session, way: str) -> None:
    # An earlier found_inf of torch stays valid: a skip must not be inferred from the gradients.
    trainer = Trainer(half, "SGD", way)
    with half.record(trainer.model) as run:
        trainer.backward()
        trainer.scaler.unscale_(trainer.optimizer)
        for parameter in trainer.model.parameters():
            assert parameter.grad is not None
            parameter.grad.fill_(INF)
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
    assert not any(torch.isfinite(weight).any() for weight in trainer.weights())
    assert [(step.skipped, step.found_inf) for step in run.steps] == [(False, False)]
    assert [finding.code for finding in run.findings] == ["AMP218"]


def test_norms_and_magnitudes_are_of_unscaled_gradients(half: Session) -> None:
    trainer = Trainer(half)
    loss = trainer.loss()
    torch.autograd.backward(loss)
    gradients = [parameter.grad for parameter in trainer.model.parameters() if parameter.grad is not None]
    norm = float(torch.cat([gradient.flatten() for gradient in gradients]).norm())
    trainer.optimizer.zero_grad()
    with half.record(trainer.model, norms=True, numerics=True) as run:
        trainer.step()
        trainer.step(INF)
    (taken, skipped) = run.steps
    assert taken.grad_norm == pytest.approx(norm, rel=0.02)
    assert skipped.skipped
    assert taken.loss == pytest.approx(loss.item(), rel=1e-3)
    run.assert_underflow(below=0.5)


@pytest.mark.parametrize("scale", [1.0, 2.0**16, 1000.0])
def test_magnitudes_are_counted_as_on_the_cpu(where: str, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    exponents = torch.randint(-45, 20, (5000,), generator=generator)
    gradient = torch.ldexp(torch.rand(5000, generator=generator) + 1, exponents)
    gradient[:100] = 0.0
    gradient[100:110] = math.nan

    def counted(device: str) -> dict[str, Any]:
        with session(device) as place:
            given = gradient.to(place.device)
            parameters = [torch.zeros(size, device=place.device, requires_grad=True) for size in (5000, 7)]
            optimizer = torch.optim.SGD(parameters)
            scaler = place.scaler(init_scale=scale)
            with place.record(numerics=True) as run:
                loss = torch.cat([parameter * given[: len(parameter)] for parameter in parameters]).sum()
                torch.autograd.backward(scaler.scale(loss))
                scaler.step(optimizer)
        assert [step.skipped for step in run.steps] == [True]
        assert run.numerics is not None
        return run.numerics.as_dict()

    here, there = counted("cpu"), counted(where)
    assert there == here
    first = here["parameters"]["group 0.param 0"]["after"]
    assert (first["zero"], first["nan"]) == (100, 10)


def test_an_overflow_of_float16_itself_is_found(half: Session) -> None:
    # 2**17 times a gradient of one half is beyond 65504.
    layer = nn.Linear(1, 1).to(half.device)
    nn.init.constant_(layer.weight, 1.0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = half.scaler(init_scale=2.0**18)
    with half.record(layer) as run:
        for _ in range(6):
            optimizer.zero_grad()
            with half.autocast():
                output = layer(torch.full((1, 1), 0.5, device=half.device))
            torch.autograd.backward(scaler.scale(output.float().sum()))
            scaler.step(optimizer)
            scaler.update()
    # The bias has a gradient of one: scales of 2**18, 2**17 and 2**16 overflow in it.
    assert [step.skipped for step in run.steps] == [True, True, True, False, False, False]
    assert run.steps[-1].scale_after == 2.0**15


@every_optimizer
def test_bfloat16_needs_no_scaler(where: str, way: str) -> None:
    with session(where, "bfloat16") as made:
        trainer = Trainer(made, way=way)
        assert not trainer.scaler.is_enabled()
        with made.record(trainer.model, dtypes=True) as run:
            for _ in range(3):
                trainer.step()
    assert [(step.skipped, step.scaler) for step in run.steps] == [(False, None)] * 3
    run.assert_no_findings()
    run.assert_dtypes({"0": "bfloat16", "parameters": "float32", "gradients": "float32"})


@every_optimizer
def test_two_optimizers_of_one_scaler(half: Session, way: str) -> None:
    trainer = Trainer(half, way=way)
    other = nn.Linear(8, 4).to(half.device)
    second = torch.optim.SGD(other.parameters(), lr=0.01, **WAYS[way])
    before: list[Tensor] = []
    with half.record() as run:
        for factor in (1.0, INF, 1.0):
            trainer.optimizer.zero_grad()
            second.zero_grad()
            with half.autocast():
                loss = functional.cross_entropy(other(trainer.inputs), trainer.targets)
            trainer.backward()
            torch.autograd.backward(trainer.scaler.scale(loss * factor))
            trainer.scaler.step(trainer.optimizer)
            trainer.scaler.step(second)
            trainer.scaler.update()
            before = before or trainer.weights()
    # Each is skipped only for its own gradients, and the scale halves once.
    assert [step.skipped for step in run.steps] == [False, False, False, True, False, False]
    assert [scale for _, scale in run.scale_history] == [1024.0, 512.0]
    assert {step.optimizer for step in run.steps} == {"trainer.optimizer", "second"}
    assert trainer.moved(before)
    run.assert_no_findings()


@every_optimizer
def test_accumulation_is_that_of_the_full_batch(half: Session, way: str) -> None:
    trainer = Trainer(half, way=way)
    count = 0

    def micro_batch(batch: tuple[Tensor, Tensor]) -> float:
        nonlocal count
        inputs, targets = batch
        with half.autocast():
            loss = functional.cross_entropy(trainer.model(inputs), targets) / 4
        trainer.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        count += 1
        if count % 4 == 0:
            trainer.scaler.step(trainer.optimizer)
            trainer.scaler.update()
            trainer.optimizer.zero_grad()
        return loss.item()

    batches = [(trainer.inputs[at : at + 4], trainer.targets[at : at + 4]) for at in range(0, 16, 4)]
    run = half.run(micro_batch, batches, steps=8, also=[trainer.model, trainer.optimizer, trainer.scaler])
    run.assert_no_findings()
    assert run.steps_total == 2
    run.assert_accumulation_equivalent(4)


@every_optimizer
def test_training_matches_float32_and_resumes(half: Session, way: str) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(half.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **WAYS[way])  # type: ignore[arg-type]
    scaler = half.scaler(init_scale=1024.0, growth_interval=2)

    def step(batch: tuple[Tensor, Tensor]) -> float:
        optimizer.zero_grad()
        with half.autocast():
            loss = functional.cross_entropy(model(batch[0]), batch[1])
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    def save() -> bytes:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
        buffer = io.BytesIO()
        torch.save(state, buffer)
        return buffer.getvalue()

    def load(saved: bytes) -> None:
        state = torch.load(io.BytesIO(saved), map_location=half.device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state["scaler"])

    def forget_scaler(saved: bytes) -> None:
        state = torch.load(io.BytesIO(saved), map_location=half.device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    shape = (16, 8)
    batches = [(torch.randn(shape, device=half.device), torch.randint(4, (16,), device=half.device)) for _ in range(6)]
    run: Run = half.run(step, batches)
    run.assert_no_findings()
    run.assert_scale(grows=True, max_skipped=0)
    run.assert_matches_fp32(rtol=0.02)
    run.assert_resumes(save, load)
    with pytest.raises(AssertionError, match="scaler"):
        run.assert_resumes(save, forget_scaler)


def test_a_gradient_penalty(half: Session) -> None:
    trainer = Trainer(half, growth_interval=1)
    with half.record(trainer.model) as run:
        for _ in range(2):
            trainer.optimizer.zero_grad()
            loss = trainer.loss()
            scaled = torch.autograd.grad(
                trainer.scaler.scale(loss), list(trainer.model.parameters()), create_graph=True
            )
            gradients = [gradient / trainer.scaler.get_scale() for gradient in scaled]
            with half.autocast():
                penalty = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
                loss = loss + 0.1 * penalty
            trainer.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            trainer.scaler.step(trainer.optimizer)
            trainer.scaler.update()
    assert [step.skipped for step in run.steps] == [False, False]
    assert run.scale_history == [(0, 1024.0), (0, 2048.0), (1, 4096.0)]
    run.assert_no_findings()


def test_clipping_what_is_scaled_is_found(half: Session) -> None:
    trainer = Trainer(half)
    with half.record(trainer.model) as run:
        trainer.backward()
        nn.utils.clip_grad_norm_(trainer.model.parameters(), 0.1)
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
    assert [finding.code for finding in run.findings] == ["AMP201"]
    with pytest.raises(AssertionError, match="AMP201"):
        run.assert_no_findings()


@pytest.mark.gpu
def test_a_wide_model_is_timed_against_float32() -> None:
    with session("cuda") as place:
        model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(4))).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        scaler = place.scaler()

        def step(x: Tensor) -> None:
            with place.autocast():
                loss = functional.mse_loss(model(x).float(), x)
            torch.autograd.backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        run = place.run(step, [torch.randn(4096, 4096, device="cuda")], steps=3)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        assert run.assert_speedup(over_fp32=0.01, pairs=3) > 0.01
        assert all(torch.equal(p, kept) for p, kept in zip(model.parameters(), before, strict=True))
        assert scaler.is_enabled()
        with pytest.raises(AssertionError, match="times as fast as float32, not 1000 times"):
            run.assert_speedup(over_fp32=1000.0, pairs=1)
