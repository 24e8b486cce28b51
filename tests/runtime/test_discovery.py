"""``record(search=True)``: the trained model is found, and its names appear in the collected data."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pytest_amp_check import Run, record  # noqa: E402


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        return self.head(self.encoder(x).relu())


class Critic(nn.Linear):
    pass


def train(models: list[nn.Module], wrap: Any = lambda model: model) -> Run:
    """Run two steps of each model; no variable of the caller names the models."""
    torch.manual_seed(0)
    pairs = [(wrap(model), torch.optim.SGD(model.parameters(), lr=0.1)) for model in models]
    with record(dtypes=True, numerics=True, search=True) as run:
        for _ in range(2):
            for model, optimizer in pairs:
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = model(torch.ones(2, 4)).square().mean()
                torch.autograd.backward(loss)
                optimizer.step()
    return run


def test_the_model_of_the_optimizer_is_found() -> None:
    run = train([Net()])
    assert run.dtypes is not None and run.numerics is not None
    data = run.dtypes.as_dict()
    assert data["modules"] == {"": "bfloat16", "encoder": "bfloat16", "head": "bfloat16"}
    weights = {"encoder.weight", "encoder.bias", "head.weight", "head.bias"}
    assert set(data["parameters"]) == set(data["gradients"]) == weights
    assert set(run.numerics.as_dict()["parameters"]) == weights
    run.assert_dtypes({"encoder": "bfloat16", "parameters:head.*": "float32"})


def test_the_outermost_module_is_meant() -> None:
    class Wrapper(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.inside = model

        def forward(self, x: Any) -> Any:
            return self.inside(x)

    run = train([Net()], Wrapper)
    assert run.dtypes is not None
    assert set(run.dtypes.as_dict()["modules"]) == {"", "inside", "inside.encoder", "inside.head"}


def test_several_models_have_distinct_names() -> None:
    run = train([Net(), Critic(4, 1), Critic(4, 1)])
    assert run.dtypes is not None
    names = set(run.dtypes.as_dict()["parameters"])
    assert {"Net.encoder.weight", "Critic.weight", "Critic2.bias"} <= names


def test_a_model_that_is_given_is_not_searched_for() -> None:
    model, other = Net(), Critic(4, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    with record(model, dtypes=True, search=True) as run:
        torch.autograd.backward((model(torch.ones(2, 4)) + other(torch.ones(2, 4))).sum())
        optimizer.step()
    assert run.dtypes is not None
    assert set(run.dtypes.as_dict()["modules"]) == {"", "encoder", "head"}


def test_parameters_without_a_module_keep_their_places() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with record(dtypes=True, search=True) as run:
        torch.autograd.backward(weight.sum())
        optimizer.step()
    assert run.dtypes is not None
    assert run.dtypes.as_dict()["parameters"] == {"group 0.param 0": "float32"}


def test_modules_that_are_made_by_halves_do_no_harm() -> None:
    half = Net.__new__(Net)
    run = train([Net()])
    assert run.failure is None
    assert run.dtypes is not None
    assert set(run.dtypes.as_dict()["modules"]) == {"", "encoder", "head"}
    assert isinstance(half, Net)
