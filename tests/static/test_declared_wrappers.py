"""Unanalyzed wrappers whose effects the configuration declares: the events, and the affected objects."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

#: A training that leaves a part of its step to ``finish``, of which only the name is known.
TRAIN = """\
import torch
from torch import nn
from tools.amp import finish

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    {before}
    with torch.autocast("cuda"):
        loss = nn.functional.mse_loss(model(x), y)
    {step}
"""
CLEAR = "optimizer.zero_grad()"
SCALED = "scaler.scale(loss).backward()"


def found(step: str, does: str, before: str = CLEAR) -> list[str]:
    """Return the codes of the findings if the wrapper has the effects ``does``."""
    source = TRAIN.format(before=before, step=step.replace("; ", "\n    "))
    options = Settings(helpers={"tools.amp.finish": tuple(does.split())})
    return [finding.code for finding in check_source(source, "train.py", options)]


@pytest.mark.parametrize(
    ("step", "does", "codes"),
    [
        # A whole step of training.
        ("finish(scaler, loss, optimizer)", "scales backward steps updates", []),
        ("finish(loss, optimizer, scaler)", "scales backward unscales clips steps updates", []),
        ("finish(optimizer=optimizer, loss=loss, scaler=scaler)", "scales backward steps updates", []),
        ("finish(scaler, loss, optimizer)", "scales backward clips steps updates", ["AMP201"]),
        ("finish(scaler, loss, optimizer)", "scales backward steps", ["AMP206"]),
        ("finish(scaler, loss, optimizer)", "backward steps updates", ["AMP203"]),
        ("finish(scaler, loss, optimizer)", "scales backward unscales clips steps", ["AMP206"]),
        ("finish(loss=loss, optimizer=optimizer, scaler=scaler)", "scales backward steps", ["AMP206"]),
        # A part of the step.
        ("finish(scaler, loss).backward(); scaler.step(optimizer); scaler.update()", "scales", []),
        ("finish(scaler, loss).backward(); optimizer.step()", "scales", ["AMP204"]),
        (f"{SCALED}; finish(optimizer, scaler); scaler.step(optimizer); scaler.update()", "unscales", []),
        (f"{SCALED}; finish(optimizer)", "steps", ["AMP204"]),
        (f"{SCALED}; finish(optimizer, scaler)", "steps updates", []),
        (f"{SCALED}; finish(optimizer, scaler)", "steps", ["AMP206"]),
        (f"{SCALED}; finish(optimizer, scaler); scaler.update()", "steps", []),
        (f"{SCALED}; scaler.step(optimizer); finish(scaler)", "updates", []),
        ("scaled = scaler.scale(loss); finish(scaled); scaler.step(optimizer); scaler.update()", "backward", []),
        ("finish(loss); scaler.step(optimizer); scaler.update()", "backward", ["AMP203"]),
        # Objects that are clipped: parameters, else a module, else an optimizer's parameters.
        (f"{SCALED}; finish(model.parameters()); scaler.step(optimizer); scaler.update()", "clips", ["AMP201"]),
        (f"{SCALED}; finish(model); scaler.step(optimizer); scaler.update()", "clips", ["AMP201"]),
        (f"{SCALED}; finish(optimizer); scaler.step(optimizer); scaler.update()", "clips", ["AMP201"]),
        (
            f"{SCALED}; scaler.unscale_(optimizer); finish(model); scaler.step(optimizer); scaler.update()",
            "clips",
            [],
        ),
        (f"{SCALED}; finish(model, optimizer, scaler); scaler.step(optimizer); scaler.update()", "unscales clips", []),
        # A wrapper call without the arguments that an event needs is like any other call.
        (f"{SCALED}; finish(model); scaler.step(optimizer); scaler.update()", "unscales clips", []),
        (f"{SCALED}; finish(1.0); scaler.step(optimizer); scaler.update()", "clips", []),
        (f"{SCALED}; finish(*[optimizer]); scaler.step(optimizer); scaler.update()", "clips", []),
        (f"{SCALED}; finish(**{{'optimizer': optimizer}}); scaler.step(optimizer); scaler.update()", "clips", []),
    ],
)
def test_what_a_wrapper_does_to_what_it_is_given(step: str, does: str, codes: list[str]) -> None:
    assert found(step, does) == codes


@pytest.mark.parametrize("cleared", ["finish(optimizer)", "finish(model)", "finish(module=model)"])
def test_a_wrapper_that_clears(cleared: str) -> None:
    step = f"{SCALED}; scaler.step(optimizer); scaler.update()"
    assert found(step, "clears", cleared) == []
    assert found(step, "clears", "pass") == ["AMP215"]


#: The same with an optimizer that is known only by its name.
UNKNOWN = """\
import torch
from tools.amp import finish


def train(model, loader, {name}):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        {name}.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x, y)
        finish(loss, {name}, scaler)
"""


@pytest.mark.parametrize(
    ("name", "does", "codes"),
    [
        ("opt", "scales backward steps updates", []),
        ("opt", "scales backward steps", ["AMP206"]),
        ("optimizer_g", "scales backward steps", ["AMP206"]),
        ("Optim", "scales backward clips steps updates", ["AMP201"]),
        ("rest", "scales backward steps", []),
    ],
)
def test_what_an_argument_is_called(name: str, does: str, codes: list[str]) -> None:
    source = UNKNOWN.format(name=name)
    options = Settings(helpers={"tools.amp.finish": tuple(does.split())})
    assert [finding.code for finding in check_source(source, "train.py", options)] == codes
    assert check_source(source, "train.py") == []


def test_findings_stand_where_the_wrapper_is_called() -> None:
    step = f"{SCALED}; finish(optimizer); scaler.step(optimizer); scaler.update()"
    source = TRAIN.format(before=CLEAR, step=step.replace("; ", "\n    "))
    (finding,) = check_source(source, "train.py", Settings(helpers={"tools.amp.finish": ("clips",)}))
    row = source.split("\n")[finding.line - 1]
    assert row[finding.site.column : finding.site.end_column] == "finish(optimizer)"
    assert finding.message.startswith("`finish` clips gradients")


#: Two optimizers. Only the gradients of the first are unscaled before the wrapper clips.
TWO = """\
import torch
from torch import nn
from tools.amp import finish

first, second = nn.Linear(8, 1), nn.Linear(8, 1)
optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
other = torch.optim.SGD(second.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    other.zero_grad()
    with torch.autocast("cuda"):
        loss = nn.functional.mse_loss(first(x) + second(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    finish({given})
    scaler.step(optimizer)
    scaler.step(other)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("given", "codes"),
    [
        ("first", []),
        ("second", ["AMP201"]),
        ("optimizer", []),
        ("other", ["AMP201"]),
        ("first.parameters()", []),
        ("second.parameters()", ["AMP201"]),
    ],
)
def test_a_wrapper_clips_only_the_gradients_of_its_argument(given: str, codes: list[str]) -> None:
    options = Settings(helpers={"tools.amp.finish": ("clips",)})
    assert [finding.code for finding in check_source(TWO.format(given=given), "train.py", options)] == codes


def test_a_wrapper_that_clears_does_nothing_with_a_scaler() -> None:
    step = f"{SCALED}; scaler.step(optimizer); finish(optimizer, scaler)"
    assert found(step, "clears", "pass") == ["AMP206"]
    assert found(f"{step}; scaler.update()", "clears", "pass") == []
