"""Trained modules that are cast to a low dtype and back between two steps."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

SOURCE = """
import copy
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
def evaluate(model, x):
    DOWN
    with torch.no_grad():
        result = model(x).float().mean()
    UP
    return result
for epoch in range(9):
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        STEP
    EVALUATE
"""
MESSAGE = (
    "rounds trained parameters to {}, and the cast back does not restore them: cast `copy.deepcopy` of the model, or "
    "run it in `torch.autocast` without a cast"
)


def program(
    down: str, up: str, *, step: str = "optimizer.step()", evaluate: str = "if epoch % 3 == 2: evaluate(model, x)"
) -> str:
    source = SOURCE
    for place, text in {"DOWN": down, "UP": up, "STEP": step, "EVALUATE": evaluate}.items():
        source = source.replace(place, text)
    return source


def found(source: str) -> list[tuple[int, str, bool]]:
    return [(each.site.line, each.message, each.certain) for each in check_source(source) if each.code == "AMP501"]


@pytest.mark.parametrize(
    ("down", "up", "dtype"),
    [
        ("model.to(torch.bfloat16)", "model.to(torch.float32)", "bfloat16"),
        ("model.to(dtype=torch.float16)", "model.to(dtype=torch.float32)", "float16"),
        ("model.half()", "model.float()", "float16"),
        ("model.bfloat16()", "model.float()", "bfloat16"),
    ],
)
def test_a_cast_for_evaluation_rounds_the_weights(down: str, up: str, dtype: str) -> None:
    assert found(program(down, up)) == [(7, f"`{down.partition('(')[0]}` {MESSAGE.format(dtype)}", False)]


def test_a_cast_around_a_save_in_the_loop_rounds_too() -> None:
    save = 'model.half(); torch.save(model.state_dict(), "low.pt"); model.float()'
    assert [line for line, _, _ in found(program("pass", "pass", evaluate=save))] == [17]


@pytest.mark.parametrize(
    "right",
    [
        program("model = copy.deepcopy(model).to(torch.bfloat16)", "pass"),
        program("model = model.to('cuda')", "model = model.to('cpu')"),
        program("kept = copy.deepcopy(model.state_dict()); model.half()", "model.float(); model.load_state_dict(kept)"),
        program("model.half()", "model.float()", step="pass"),
        program("model.half()", "model.float()", evaluate="pass").replace(
            "for epoch", "model.half()\nmodel.float()\nfor epoch"
        ),
        program("pass", "pass", evaluate="pass") + "model.half()\nmodel(x)\nmodel.float()\n",
        program("model.half()", "model.float()", evaluate="evaluate(torch.nn.Linear(8, 8), x)"),
    ],
)
def test_a_copy_or_a_module_that_is_not_trained_then_loses_nothing(right: str) -> None:
    assert found(right) == []


CHOSEN = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.layer(x)
def train(options, loader, device, resume):
    if options.pretrained:
        model = Net().to(device)
    else:
        model = Net().to(device)
    if not resume:
        CAST
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    validate(model=attempt_load(options.best, device).half())
"""


@pytest.mark.parametrize(
    ("cast", "codes"),
    [
        ("model.half().float()", ["AMP110"]),
        ("pass", ["AMP110"]),
        ("model.half()", ["AMP501"]),
        ("model.half(); other.float()", ["AMP501"]),
    ],
)
def test_one_of_two_models_that_is_cast_back_before_the_training(cast: str, codes: list[str]) -> None:
    assert [finding.code for finding in check_source(CHOSEN.replace("CAST", cast), "train.py")] == codes
