"""Gradients of another loss: of a generator in the discriminator, and of scaled gradients themselves."""

# mypy: allow-untyped-calls

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from programs import run_program
from torch import nn

from pytest_amp_check import record

pytestmark = pytest.mark.usefixtures("patched_once")


@pytest.mark.parametrize("is_cleared_late", [True, False])
def test_gradients_of_the_generators_loss(*, is_cleared_late: bool) -> None:
    torch.manual_seed(0)
    gen, disc = nn.Linear(4, 4), nn.Linear(4, 1)
    opt_g, opt_d = torch.optim.SGD(gen.parameters(), lr=0.1), torch.optim.SGD(disc.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    with record() as run:
        for _ in range(2):
            x = torch.randn(8, 4)
            opt_g.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                fake = gen(x)
                loss_g = -disc(fake).mean()
            scaler.scale(loss_g).backward()
            scaler.step(opt_g)
            if not is_cleared_late:
                opt_d.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss_d = disc(fake.detach()).mean() - disc(x).mean()
            scaler.scale(loss_d).backward()
            scaler.step(opt_d)
            scaler.update()
            if is_cleared_late:
                opt_d.zero_grad()
    assert {finding.label for finding in run.findings} == ({"backward@leftover"} if is_cleared_late else set())


@pytest.mark.parametrize(
    ("scale", "is_applied", "labels"),
    [(2.0**4, True, ["not-finite:derivative"]), (2.0**4, False, []), (1.0, True, [])],
    ids=["an applied step", "a skipped step", "a finite product"],
)
def test_a_product_with_scaled_gradients_that_overflows(scale: float, is_applied: bool, labels: list[str]) -> None:
    """A scaler checks the gradients of parameters, and not what a program computes from them."""
    weight = nn.Parameter(torch.full((2,), 0.5))
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    with record() as run, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using backward.* with create_graph=True")
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scaler.scale((weight**3).sum()).backward(create_graph=True)
        # The second derivative of 6 * 0.5 times the scale.
        assert weight.grad is not None
        torch.autograd.grad(weight.grad, weight, grad_outputs=torch.full((2,), 1e38))
        weight.grad = weight.grad.detach() if is_applied else torch.full((2,), float("inf"))
        scaler.step(optimizer)
        scaler.update()
    assert run.failure is None, run.failure
    assert [finding.label for finding in run.findings] == labels


@pytest.mark.parametrize(("loss", "is_found"), [("direction", False), ("length", True)])
def test_a_loss_of_scaled_gradients_counts_if_it_depends_on_their_length(loss: str, is_found: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    x = torch.randn(4, 4, requires_grad=True)
    with record() as run:
        (slopes,) = torch.autograd.grad(scaler.scale(model(x).sum()), x, create_graph=True)
        if loss == "direction":
            slopes = nn.functional.normalize(slopes, dim=-1)
        scaler.scale(slopes[:, 0].sum()).backward()
    assert run.failure is None, run.failure
    assert [finding.label for finding in run.findings] == ["penalty@scaled"] * is_found


DERIVED = """\
import torch
from torch import nn

weight = nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)


def loss():
    return weight.square().sum()


def overflow(loss, **options):
    return torch.autograd.grad(loss, weight, grad_outputs=torch.tensor(1e38), **options)[0]{mark}


for i in range(2):
    optimizer.zero_grad()
    {derive}
    scaler.scale(loss(){factor}).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("derive", "factor", "count"),
    [
        ("overflow(scaler.scale(loss()))", "", 1),
        # A call at one location is reported once, and before a step only the first overflow.
        ("overflow(scaler.scale(loss())); overflow(scaler.scale(loss()))", "", 1),
        ("torch.autograd.grad(scaler.scale(loss()), weight); overflow(scaler.scale(loss()))", "", 1),
        # The loss is not scaled, or the result is finite.
        ("overflow(1e5 * loss())", "", 0),
        ("torch.autograd.grad(scaler.scale(loss()), weight)", "", 0),
        # With a graph the result may enter a loss whose gradients the scaler checks.
        ("overflow(scaler.scale(loss()), create_graph=True)", "", 0),
        # The scaler skips the step.
        ("overflow(scaler.scale(loss()))", " * float('inf')", 0),
    ],
)
def test_an_overflow_of_derivatives_that_no_scaler_checks(derive: str, factor: str, count: int, tmp_path: Path) -> None:
    program = DERIVED.format(derive=derive, factor=factor, mark="  # AMP802" * count)
    run = run_program(program, tmp_path / "train.py")
    assert [finding.label for finding in run.findings] == ["not-finite:derivative"] * count


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("surrogate", ["sum", "dot", "gradient"])
def test_scaled_gradients_of_cached_representations_scale_the_loss_that_they_weigh(
    surrogate: str, *, is_shared: bool
) -> None:
    """The second pass of GradCache: the gradients of the representations, which are scaled, weigh the outputs."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    temperature = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with record() as run:
        for _ in range(3):
            x = torch.randn(8, 4)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                kept = model(x).detach().float().requires_grad_()
            loss = (kept @ kept.t()).square().mean() * (temperature if is_shared else 1.0)
            scaler.scale(loss).backward()
            assert kept.grad is not None
            with torch.autocast("cpu", dtype=torch.float16):
                output = model(x).float()
            if surrogate == "gradient":
                output.backward(kept.grad)
            else:
                weighed = torch.dot(output.flatten(), kept.grad.flatten()) if surrogate == "dot" else output * kept.grad
                weighed.sum().backward()
            scaler.step(optimizer)
            scaler.update()
    assert run.findings == []


@pytest.mark.parametrize("needs_input_gradients", [True, False])
def test_an_unscaled_loss_beside_a_scaled_one_of_the_same_parameters_is_found(*, needs_input_gradients: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with record() as run:
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                x = torch.randn(8, 4, requires_grad=needs_input_gradients)
                loss, other = model(x).square().mean(), (model(x) * x.detach()).mean()
            scaler.scale(loss).backward()
            other.float().backward()
            scaler.step(optimizer)
            scaler.update()
    assert {finding.code for finding in run.findings} == {"AMP203"}


@pytest.mark.parametrize("unscales", [True, False])
def test_a_number_of_gradients_may_be_that_of_the_unscaled_ones(*, unscales: bool) -> None:
    torch.manual_seed(0)
    one, two = nn.Linear(4, 4), nn.Linear(4, 2)
    opt_one, opt_two = torch.optim.SGD(one.parameters(), lr=0.1), torch.optim.SGD(two.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with record() as run:
        for _ in range(3):
            opt_one.zero_grad()
            opt_two.zero_grad()
            x = torch.randn(8, 4)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = one(x).float().square().mean() + two(x).float().square().mean()
            scaler.scale(loss).backward()
            if unscales:
                scaler.unscale_(opt_one)
            max(float(p.grad.abs().max()) for p in one.parameters() if p.grad is not None)
            scaler.step(opt_one)
            scaler.step(opt_two)
            scaler.update()
    assert {finding.code for finding in run.findings} == (set() if unscales else {"AMP202"})
