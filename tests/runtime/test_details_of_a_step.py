"""One training step with a float16 scaler and one more statement: the label and the message of what is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from pytest_amp_check import record

PROGRAM = """\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Watched(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        {in_backward}
        return grad


sizes = []
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
{setup}
for turn in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(torch.ones(4, 8)).float(), torch.ones(4, 1))
    loss = Watched.apply(loss)
    {before}
    scaler.scale(loss).backward()
    {after}
    scaler.step(optimizer)
    scaler.update()
"""


def found(
    tmp_path: Path, *, setup: str = "pass", before: str = "pass", after: str = "pass", in_backward: str = "pass"
) -> list[tuple[str, str]]:
    """Return label and beginning of the message of each finding."""
    path = tmp_path / "train.py"
    path.write_text(PROGRAM.format(setup=setup, before=before, after=after, in_backward=in_backward), encoding="utf-8")
    with record() as run:
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), {"__name__": "__main__"})  # noqa: S102 - ours
    assert run.failure is None
    return [(finding.label, finding.message.partition(":")[0]) for finding in run.findings]


SCALED = "while they are still multiplied by the loss scale"
EDITED = ("edit@scaled", f"Gradients of `optimizer` are edited {SCALED}")
READ = ("read@scaled", f"Gradients of `optimizer` are read {SCALED}")
READS = "sizes.append(grad.abs().max().item())"
HOOK = "model.weight.register_hook(lambda grad: {})"


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("model.weight.grad.clamp_(-1, 1)", EDITED),
        ("model.weight.grad.add_(1e-3)", EDITED),
        ("model.weight.grad[0] = 0.5", EDITED),
        ("nn.utils.clip_grad_value_(model.parameters(), 1.0)", ("clip@scaled", "`nn.utils.clip_grad_value_` clips")),
        ("nn.utils.clip_grad_norm_(max_norm=1.0, parameters=model.parameters())", ("clip@scaled", "`nn.utils.clip_gr")),
        ("optimizer.step()", ("plain-step@scaled", "`optimizer.step()` applies gradients that are still multiplied")),
        ("model.weight.grad.mul_(0.5)", None),
        ("scaler.unscale_(optimizer); model.weight.grad.clamp_(-1, 1)", None),
        ("scaler.unscale_(optimizer); nn.utils.clip_grad_value_(model.parameters(), 1.0)", None),
        ("model.weight.grad.isfinite().all().item()", None),
        ("print(model.weight.grad.shape)", None),
        ("print(loss.item())", None),
    ],
)
def test_after_the_backward(after: str, expected: tuple[str, str] | None, tmp_path: Path) -> None:
    findings = found(tmp_path, after=after)
    if expected is None:
        assert findings == []
    else:
        ((label, message),) = findings
        assert label == expected[0]
        assert message.startswith(expected[1])


@pytest.mark.parametrize(
    ("before", "label", "message"),
    [
        ("loss = scaler.scale(loss)", "scale@scaled", "`scaler.scale` scales a loss that is already multiplied"),
        ("loss = scaler.scale(outputs=loss)", "scale@scaled", "`scaler.scale` scales a loss that is already"),
        ("loss.backward(retain_graph=True)", "step@raw", "`loss` runs backward without the loss scale"),
    ],
)
def test_before_the_backward(before: str, label: str, message: str, tmp_path: Path) -> None:
    ((found_label, found_message),) = found(tmp_path, before=before)
    assert found_label == label
    assert found_message.startswith(message)


@pytest.mark.parametrize(
    ("setup", "in_backward", "expected"),
    [
        (HOOK.format(READS), "pass", [READ]),
        # Numbers that other code reads during the backward.
        (HOOK.format("grad * 1.0"), READS, []),
        ("pass", READS, []),
        (HOOK.format("print(grad.shape)"), "pass", []),
        (HOOK.format("sizes.append(grad.max().item() / scaler.get_scale())"), "pass", []),
    ],
)
def test_hooks(setup: str, in_backward: str, expected: list[tuple[str, str]], tmp_path: Path) -> None:
    assert found(tmp_path, setup=setup, in_backward=in_backward) == expected
