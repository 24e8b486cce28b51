"""AMP103 backward-in-autocast."""

from __future__ import annotations

from ...events import AUTOCAST_ENTER, BACKWARD, Event, Program
from ...fix import SAFE
from ...rule import BOTH, WARNING, Labels, Rule, ViolationKind


def _check_float8(event: Event, program: Program) -> Labels:
    if event.attributes.get("float8"):
        yield "backward@float8", {}


RULE = Rule(
    "AMP103",
    "backward-in-autocast",
    WARNING,
    "backward() or the optimizer's step runs inside an autocast region.",
    detected_by=BOTH,
    applicability=SAFE,
    event_checks={BACKWARD: _check_float8},
    prescan_words=("autocast",),
    violations={
        "backward@region": ViolationKind(
            "`{call}` runs inside an autocast region, so the gradients of float32 islands are computed in low"
            " precision: leave the region before the backward pass",
            trace_kinds=(AUTOCAST_ENTER,),
            any_precision=True,
            concerns_training=True,
        ),
        "step@region": ViolationKind(
            "`{call}` runs inside an autocast region, so an optimizer that multiplies matrices computes its update"
            " in low precision: leave the region before the step",
            trace_kinds=(AUTOCAST_ENTER,),
            yields_where_detected=("backward@region",),
            any_precision=True,
        ),
        "backward@float8": ViolationKind(
            "`{call}` runs inside TransformerEngine's autocast, which brings the scaling factors of its forward up to"
            " date where it is left: leave it before the backward pass",
            any_precision=True,
        ),
    },
    rationale="""\
Backward ops run in the dtypes that their forward ops used, with or without autocast. In eager mode, for a model that
is all autocast, a backward inside the region therefore changes nothing, which is why this is a warning. It is wrong
where the forward left autocast on purpose: the backward of a float32 island, of a custom autograd function, a double
backward or a compiled graph meets an autocast that its forward did not have. And an optimizer built on matmuls (Muon,
Shampoo, SOAP) computes its update in low precision. TransformerEngine's own `autocast` (`fp8_autocast` before) gathers
the scaling factors and the history of maxima of what ran in it, and brings them up to date, over all processes, where
it is left: it asks for the backward outside. That runs in float8 wherever its forward did. A test that steps no
optimizer trains nothing, and is not told.
""",
    harm="""\
The gradients of an `enabled=False` island were off by 3.8e-4 (float16) and 3.1e-3 (bfloat16), and at the scale 65536
they were inf, where outside the region they are finite: steps are skipped for no reason. The update of
`torch.optim.Muon` inside a region differed by 2.0 %. Without islands the gradients are bit-identical.
""",
    bad_example="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 32), nn.Linear(32, 2)

    def forward(self, x):
        hidden = torch.relu(self.body(x))
        with torch.autocast("cpu", enabled=False):
            return self.head(hidden.float())


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()  # AMP103
    scaler.step(optimizer)
    scaler.update()
""",
    good_example="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 32), nn.Linear(32, 2)

    def forward(self, x):
        hidden = torch.relu(self.body(x))
        with torch.autocast("cpu", enabled=False):
            return self.head(hidden.float())


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    fix_advice="Dedent backward, unscale, clip and step out of the `with torch.autocast(...)` block: only the "
    "forward and"
    " the loss belong inside.",
    sources=(
        "PyTorch documentation: torch.autocast, docs.pytorch.org/docs/stable/amp.html",
        (
            "PyTorch documentation: Automatic Mixed Precision examples, "
            "docs.pytorch.org/docs/stable/notes/amp_examples.html: backward passes under autocast are not "
            "recommended"
        ),
        "pytorch/pytorch pull request 71169: backward reuses the dtypes of the forward",
        "pytorch/pytorch issue 153044: a compiled backward under autocast",
        "TransformerEngine documentation: Using FP8 with Transformer Engine, Handling backward pass",
        "measured with torch 2.13 on the CPU",
    ),
)
