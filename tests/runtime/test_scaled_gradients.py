"""Programs that read, divide or add up scaled values: the statements that a run reports, and those that are right."""

# mypy: allow-untyped-calls

from __future__ import annotations

from pathlib import Path

import pytest
from programs import run_program

pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("patched_once")

PROGRAM = """\
import torch
from torch import nn

first, second = (nn.Parameter(torch.tensor([1.0, 2.0])) for _ in range(2))
one, two = (torch.optim.SGD([p], lr=1e-3) for p in (first, second))
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
other = torch.amp.GradScaler("cpu", init_scale=4096.0)
numbers = []
for i in range({steps}):
    one.zero_grad()
    two.zero_grad()
    {before}
    {backward}
    {after}
    scaler.step(one)
    scaler.update()
"""


def run(
    tmp_path: Path,
    *,
    steps: int = 3,
    before: str = "pass",
    backward: str = "scaler.scale(first.square().sum()).backward()",
    after: str = "pass",
) -> None:
    """Record a program. Check that the findings are at the marked lines."""
    program = PROGRAM.format(steps=steps, before=before, backward=backward, after=after)
    run_program(program, tmp_path / "train.py")


#: A step of a second optimizer, whose gradients are not cleared before the first one is trained.
STEPPED = "second.square().sum().backward(); two.step()"


@pytest.mark.parametrize(
    ("steps", "before", "read"),
    [
        (2, "pass", "numbers.append(first.grad.norm().item())  # AMP202"),
        (2, "pass", "numbers.append(float(first.grad.abs().max()))  # AMP202"),
        (2, "pass", "numbers.append(first.grad[0].item())  # AMP202"),
        *(
            (2, "pass", f"norm = {norm}; numbers.append(norm.item())  # AMP202")
            for norm in (
                "torch.norm(input=first.grad)",
                "torch.linalg.norm(first.grad)",
                "torch.linalg.vector_norm(x=first.grad, ord=1)",
                "torch.linalg.vector_norm(first.grad)",
                "first.grad.norm(2)",
                "first.grad.norm(p=1)",
            )
        ),
        # The first step does not show whether the program reads the scale.
        (1, "pass", "numbers.append(first.grad.norm().item())"),
        (2, "pass", "numbers.append(first.grad.norm().item() / scaler.get_scale())"),
        # Numbers that do not depend on the scale, or are no gradients.
        (2, "pass", "numbers.append(bool(first.grad.norm() > 0.0))"),
        (2, "pass", "numbers.append(int(first.grad.argmax()))"),
        (2, "pass", "numbers.append(first.detach().norm().item())"),
        # Gradients of several optimizers, some of which are not scaled.
        (2, STEPPED, "numbers.append(first.grad[0].item())  # AMP202"),
        (2, STEPPED, "numbers.append(second.grad[0].item())"),
        (2, STEPPED, "norm = first.grad.norm(); numbers.append(norm.item())  # AMP202"),
        (2, STEPPED, "norm = second.grad.norm(); numbers.append(norm.item())"),
        (2, STEPPED, "numbers.append(second.grad.norm().item())"),
        (2, STEPPED, "numbers.append((first.grad.norm() + second.grad.norm()).item())  # AMP202"),
    ],
)
def test_numbers_that_are_read_before_the_step(steps: int, before: str, read: str, tmp_path: Path) -> None:
    run(tmp_path, steps=steps, before=before, after=read)


#: A step of another scaler, whose scale is 4096.
OTHER_SCALER = "other.scale(second.square().sum()).backward(); other.step(two); other.update()"


@pytest.mark.parametrize("before", ["pass", OTHER_SCALER], ids=["one scaler", "two scalers"])
@pytest.mark.parametrize(
    "change",
    [
        "first.grad.div_(1024.0)  # AMP210",
        "first.grad.mul_(1 / 1024)  # AMP210",
        # The number may be rounded.
        "first.grad.div_(1024.5)  # AMP210",
        "first.grad.div_(1030.0)",
        "first.grad.div_(2.0)",
        "first.grad.mul_(1024.0)",
        # The scale of another scaler is any other number.
        "first.grad.div_(4096.0)",
        "scaler.unscale_(one); first.grad.div_(1024.0)  # AMP210",
        "scaler.unscale_(one); first.grad.div_(4096.0)",
        "scaler.unscale_(one); first.grad.div_(2.0)",
        # The number by its name.
        "first.grad.div_(other=1024.0)  # AMP210",
        "first.grad.mul_(other=0.5)",
        "first.grad.fill_(value=0.5)  # AMP202",
        "first.grad.fill_(value=float('inf'))",
        "torch.clamp_(input=first.grad, min=-1.0, max=1.0)  # AMP202",
        "torch.relu_(input=first.grad)",
        "torch.fill_(input=first.grad, value=0.5)  # AMP202",
        "torch._foreach_mul_(self=[first.grad], scalar=0.5)",
        "torch._foreach_div_([first.grad], scalar=1024.0)  # AMP210",
        "torch._foreach_neg_(self=[first.grad])",
        "torch._foreach_sqrt_(self=(first.grad,))  # AMP202",
        "torch._foreach_copy_(self=[first.grad], src=[first.grad.clamp(-1.0, 1.0)])  # AMP202",
        "torch._foreach_copy_([first.grad], src=[first.grad * 2.0])",
        "torch._foreach_copy_([first.grad], [first.grad / 1024.0], True)  # AMP210",
        # The copied tensor is the first of several arguments.
        "first.grad.copy_(first.grad.clamp(-1.0, 1.0), True)  # AMP202",
        "first.grad.copy_(first.grad * 2.0, True)",
        "first.grad.copy_(first.grad / 1024.0, True)  # AMP210",
        # Dividing by zero leaves no factor.
        "first.grad.div_(0.0)",
    ],
)
def test_gradients_that_are_multiplied_before_the_step(before: str, change: str, tmp_path: Path) -> None:
    run(tmp_path, steps=2, before=before, after=change)


@pytest.mark.parametrize(
    "loss",
    [
        "(scaler.scale(first.sum()) + first.square().sum()).backward()  # AMP205",
        "(scaler.scale(first.sum()) + 0.5 * first.square().sum()).backward()  # AMP205",
        "(scaler.scale(first.sum()) + first.square().sum() / 2.0).backward()  # AMP205",
        "(scaler.scale(first.sum()) + scaler.scale(first.square().sum())).backward()",
        "(scaler.scale(first.sum()) + first.square().sum() * scaler.get_scale()).backward()",
        # A term times zero keeps its parameters in the graph.
        "(scaler.scale(first.sum()) + 0.0 * first.square().sum()).backward()",
        # Terms of several scalers, with and without a common optimizer.
        "(scaler.scale(first.sum()) + other.scale(first.square().sum())).backward()  # AMP205",
        "(scaler.scale(first.sum()) + other.scale(second.square().sum())).backward()",
        "(scaler.scale(first.sum()) + second.square().sum()).backward()",
        "(scaler.scale((first + second).sum()) + 0.5 * second.square().sum()).backward()  # AMP205",
    ],
)
def test_losses_with_terms_that_are_scaled_differently(loss: str, tmp_path: Path) -> None:
    run(tmp_path, steps=2, backward=loss)


@pytest.mark.parametrize(
    "loss",
    [
        "scaler.scale(scaler.scale(first.sum())).backward()  # AMP205",
        "scaler.scale(scaler.scale(first.sum()) * 0.5).backward()  # AMP205",
        "scaler.scale(first.sum() * scaler.get_scale()).backward()  # AMP205",
        "scaler.scale(first.sum() * 1024.0 + second.sum()).backward()  # AMP205",
        "scaler.scale(first.sum() * 1030.0).backward()",
        "scaler.scale(scaler.scale(first.sum()) / scaler.get_scale()).backward()",
        "scaler.scale(scaler.scale(first.sum()) * (1 / scaler.get_scale())).backward()",
        "scaler.scale(first.sum() / scaler.get_scale()).backward()",
    ],
)
def test_losses_that_are_scaled_already(loss: str, tmp_path: Path) -> None:
    run(tmp_path, steps=2, backward=loss)
