"""Reentrant checkpoints in runs: a call is reported if it keeps gradients from parameters that an optimizer steps."""

# mypy: allow-untyped-calls

from __future__ import annotations

from pathlib import Path

import pytest
from programs import run_program

pytest.importorskip("torch")

pytestmark = [
    pytest.mark.usefixtures("patched_once"),
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True"),
]

PROGRAM = """\
import functools
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.spare = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.body(x)

    def run_spare(self, x):
        return self.spare(x)


parts, head = Parts(), nn.Linear(8, 1)
body = parts.body
trained = {trained}
optimizer = torch.optim.SGD(trained, lr=0.1)


def run_body(x):
    return body(x)


for _ in range(3):
    x = torch.randn(4, 8)
    optimizer.zero_grad()
    {before}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = {call}
        loss = head(hidden).float().square().mean(){more}
    loss.backward()
    optimizer.step()
"""
ALL = "[*body.parameters(), *head.parameters()]"
REENTRANT = "use_reentrant=True"


def run(call: str, tmp_path: Path, *, before: str = "pass", trained: str = ALL, more: str = "") -> list[str]:
    source = PROGRAM.format(call=call, before=before, trained=trained, more=more)
    return [finding.message for finding in run_program(source, tmp_path / "train.py").findings]


@pytest.mark.parametrize(
    "function",
    [
        "body",
        "parts",
        "parts.forward",
        "functools.partial(body)",
        "functools.partial(run_body)",
        "lambda x: body(x)",
        "lambda x: parts.body(x)",
        # A variable of an enclosing function.
        "(lambda part: lambda x: part(x))(body)",
        "run_body",
    ],
)
def test_a_call_without_an_input_that_requires_gradients(function: str, tmp_path: Path) -> None:
    (message,) = run(f"checkpoint({function}, x, {REENTRANT})  # AMP803", tmp_path)
    assert message.startswith("`checkpoint` is a reentrant checkpoint, and none of its inputs requires a gradient")


@pytest.mark.parametrize(
    ("call", "more"),
    [
        (f"checkpoint(body, x.requires_grad_(), {REENTRANT})", ""),
        ("checkpoint(body, x, use_reentrant=False)", ""),
        (f"checkpoint(lambda x, y: body(x), x, torch.zeros(1, requires_grad=True), {REENTRANT})", ""),
        # Modules without parameters of the optimizer.
        (f"checkpoint(parts.run_spare, x, {REENTRANT})", ""),
        (f"checkpoint(lambda x: parts.spare(x), x, {REENTRANT})", ""),
        (f"checkpoint(torch.sigmoid, x, {REENTRANT})", ""),
        # Another call gives the gradients.
        (f"checkpoint(body, x, {REENTRANT})", " + body(x).float().mean()"),
    ],
)
def test_calls_that_keep_no_gradients_from_an_optimizer(call: str, more: str, tmp_path: Path) -> None:
    trained = ALL if "spare" not in call and "sigmoid" not in call else "[*head.parameters()]"
    assert run(call, tmp_path, more=more, trained=trained) == []


def test_an_optimizer_of_other_parameters(tmp_path: Path) -> None:
    assert run(f"checkpoint(body, x, {REENTRANT})", tmp_path, trained="[*head.parameters()]") == []


def test_an_optimizer_with_parameters_that_are_never_used(tmp_path: Path) -> None:
    trained = "[*parts.parameters(), *head.parameters()]"
    call = f"checkpoint(body, x, {REENTRANT})"
    assert run(call, tmp_path, trained=trained, more=" + body(x).float().mean()") == []
    assert len(run(f"{call}  # AMP803", tmp_path, trained=trained)) == 1


def test_frozen_parameters(tmp_path: Path) -> None:
    call = f"checkpoint(body, x, {REENTRANT})"
    assert run(call, tmp_path, trained="[*body.requires_grad_(False).parameters(), *head.parameters()]") == []


def test_an_evaluation(tmp_path: Path) -> None:
    # The body is not trained here, as before a stage of a training in stages.
    before = f"torch.no_grad()(checkpoint)(body, x, {REENTRANT})"
    assert run("torch.no_grad()(body)(x)", tmp_path, before=before) == []


def test_a_call_inside_of_a_backward(tmp_path: Path) -> None:
    again = f"torch.enable_grad()(checkpoint)(body, x, {REENTRANT})"
    before = (
        f"z = torch.zeros(1, requires_grad=True) * 1.0; z.register_hook(lambda grad: grad * {again}.detach().sum())"
    )
    before += "; z.sum().backward()"
    assert run("torch.no_grad()(body)(x)", tmp_path, before=before) == []
