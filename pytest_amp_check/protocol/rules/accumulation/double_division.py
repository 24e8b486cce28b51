"""AMP302 double-division."""

from __future__ import annotations

from ...event_graph import Program
from ...events import DividedTwice
from ...rule import ERROR, STATIC, Certainty, Labels, Rule, ViolationKind


def _check_divided_twice(event: DividedTwice, program: Program) -> Labels:
    label = "loss:divided-twice-by-name" if event.guessed else "loss:divided-twice"
    yield label, {"divisor": str(event.divisor), "framework": event.framework, "way": event.way}


RULE = Rule(
    "AMP302",
    "double-division",
    ERROR,
    "The loss is divided by the number of micro-batches although the framework divides it too.",
    effect="gradients are k times too small for k micro-batches: with SGD a k-th of the learning rate; no error",
    detected_by=STATIC,
    event_checks={DividedTwice: _check_divided_twice},
    prescan_words=(
        ".step( backward(",
        "update_params( AmpOptimWrapper",
        "deepspeed backward(",
        "LightningModule training_step( accumulate_grad_batches",
    ),
    violations={
        "loss:divided-twice": ViolationKind(
            "The loss is divided by `{divisor}`, and {framework} divides it again {way}: remove this division"
        ),
        "loss:divided-twice-by-name": ViolationKind(
            "The loss is divided by `{divisor}`, and {framework} divides it by its own number of micro-batches {way}: "
            "remove this division if both numbers are the same",
            certainty=Certainty(is_possible=True, assumption="both numbers of micro-batches are the same"),
        ),
    },
    rationale="""\
`accelerator.backward(loss)` divides by the `gradient_accumulation_steps` of the Accelerator, on every call, inside and
outside `accumulate()`. `engine.backward()` of DeepSpeed, `update_params()` of mmengine and the automatic optimization
of Lightning divide too. If the program also divides the loss, it is divided by `k * k`. The gradients are then `k`
times too small, and in float16 they underflow earlier. Lightning's `manual_backward()`, Fabric's and timm's backward do
not divide: there the program must.
""",
    harm="""\
With accelerate and k = 4 the norm of the window's gradients was 0.3688 instead of 1.4751, a quarter. SGD learns at a
quarter of its rate, nothing raises, and the loss still goes down.
""",
    bad_example="""\
import torch
from accelerate import Accelerator
from torch import nn

torch.manual_seed(0)
k = 4
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=k)
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = accelerator.prepare(model, optimizer)

for _ in range(16):
    x, y = torch.randn(8, 16), torch.randn(8, 1)
    with accelerator.accumulate(model):
        loss = nn.functional.mse_loss(model(x), y)
        loss = loss / k  # AMP302
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
""",
    good_example="""\
import torch
from accelerate import Accelerator
from torch import nn

torch.manual_seed(0)
k = 4
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=k)
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = accelerator.prepare(model, optimizer)

for _ in range(16):
    x, y = torch.randn(8, 16), torch.randn(8, 1)
    with accelerator.accumulate(model):
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
""",
    fix_advice=(
        "Remove the program's own division, or construct the framework's object without the number of micro-batches."
    ),
    sources=(
        "accelerate 1.15, accelerator.py: Accelerator.backward divides by gradient_accumulation_steps",
        "DeepSpeed 0.19, runtime/engine.py: backward(loss, scale_wrt_gas=True)",
        "mmengine 0.10, optim/optimizer/optimizer_wrapper.py: update_params calls scale_loss",
        ("Lightning 2.6, pytorch/loops/optimization/automatic.py: closure_loss is divided by accumulate_grad_batches"),
        "measured: gradient norms with accelerate, k = 4",
    ),
)
