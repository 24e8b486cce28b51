"""AMP504 bce-under-autocast."""

from __future__ import annotations

from ...event_graph import Program
from ...events import AutocastEnter, Loss
from ...rule import BOTH, ERROR, WARNING, Labels, Rule, ViolationKind


def _check_surrounding_region(event: Loss, program: Program) -> Labels:
    severity = event.ambient
    if severity is not None and event.function == "binary_cross_entropy":
        yield "bce@framework", {"severity": severity}
    if event.in_forward and event.device and event.function == "binary_cross_entropy":
        yield "bce@region-cpu" if event.device in ("cpu", "mps") else "bce@region", {}


RULE = Rule(
    "AMP504",
    "bce-under-autocast",
    ERROR,
    "binary_cross_entropy or BCELoss runs inside an autocast region.",
    effect="the first forward on CUDA raises RuntimeError and ends the run",
    detected_by=BOTH,
    event_checks={Loss: _check_surrounding_region},
    prescan_words=("autocast", "LightningModule binary_cross_entropy(", "LightningModule BCELoss("),
    violations={
        "bce@region": ViolationKind(
            "`{call}` runs under autocast, where torch raises RuntimeError: put this line into "
            '`with torch.autocast("{region}", enabled=False):`, with `{output}.float()` for `{output}`, or use '
            "`binary_cross_entropy_with_logits` without the sigmoid before it",
            trace_kinds=(AutocastEnter,),
        ),
        "bce@region-cpu": ViolationKind(
            "`{call}` runs under autocast, on probabilities already rounded to 0 or 1: use "
            "`binary_cross_entropy_with_logits` and no sigmoid before it",
            WARNING,
            effect="confident predictions give a loss of 100 and NaN gradients; no error",
        ),
        "bce@framework": ViolationKind(
            "`{call}` runs under autocast if Lightning's `precision` is mixed, where torch raises "
            'RuntimeError: put this line into `with torch.autocast("{region}", enabled=False):`, with '
            "`{output}.float()` for `{output}`, or use `binary_cross_entropy_with_logits` without the sigmoid before it"
        ),
    },
    rationale="""\
Binary cross entropy takes the logarithm of a probability and of its complement. A low-precision sigmoid rounds to
exactly 1 for ordinary logits (about 8 in float16), so the complement is 0 and its logarithm infinite. CUDA, XPU and
MTIA autocast therefore refuse the op. CPU autocast runs it in float32, MPS in float16; both run without an error on
rounded probabilities. The variant with logits computes both at once, safely.
""",
    harm="""\
On CUDA: `RuntimeError: torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.` In
float16 on the CPU a saturated sigmoid gave a loss of 100 and NaN gradients; the variant with logits gave 20 and
gradients of 0.5.
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64, 1)).float()

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        probability = torch.sigmoid(model(x))
        loss = nn.functional.binary_cross_entropy(probability, y)  # AMP504
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64, 1)).float()

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    fix_advice=(
        "Return logits from the model and use `BCEWithLogitsLoss`. If probabilities are needed, compute the loss in "
        "an `enabled=False` region on `.float()` inputs."
    ),
    sources=(
        (
            "PyTorch documentation: Autocast Op Reference, docs.pytorch.org/docs/stable/amp.html#autocast-op-"
            "reference: prefer binary_cross_entropy_with_logits over binary_cross_entropy"
        ),
        "PyTorch source: aten/src/ATen/autocast_mode.cpp",
        "measured with torch 2.13 on the CPU",
    ),
)
