"""AMP103 backward-in-autocast."""

from __future__ import annotations

from ...event_graph import Program
from ...events import AutocastEnter, Backward
from ...fix import SAFE
from ...rule import BOTH, WARNING, Labels, Precedence, Rule, ViolationKind


def _check_float8(event: Backward, program: Program) -> Labels:
    if event.float8:
        yield "backward@float8", {}


RULE = Rule(
    "AMP103",
    "backward-in-autocast",
    WARNING,
    "backward() or the optimizer's step runs inside an autocast region.",
    effect="gradients of code under `autocast(enabled=False)` in the model are rounded; without such code no harm",
    detected_by=BOTH,
    applicability=SAFE,
    event_checks={Backward: _check_float8},
    prescan_words=("autocast",),
    violations={
        "backward@region": ViolationKind(
            "`{call}` runs under autocast, so code under `enabled=False` gets low-precision "
            'gradients: put this line alone into `with torch.autocast("{region}", enabled=False):`, or move it out of '
            "the region",
            trace_kinds=(AutocastEnter,),
            precedence=Precedence(needs_training=True),
            any_precision=True,
        ),
        "gradient:in-region": ViolationKind(
            "`{call}` with `create_graph` runs under autocast, so code under `enabled=False` loses "
            'precision: put this statement into `with torch.autocast("{region}", enabled=False):`',
            effect=(
                "a penalty on these gradients is inexact in code under `autocast(enabled=False)`; without such code "
                "no harm"
            ),
            trace_kinds=(AutocastEnter,),
            precedence=Precedence(needs_training=True),
            any_precision=True,
        ),
        "step@region": ViolationKind(
            "`{call}` runs inside an autocast region, so matrix products of the optimizer run in low "
            'precision: put this line into `with torch.autocast("{region}", enabled=False):`, or move it out of the '
            "region",
            effect=(
                "updates of Muon, Shampoo and SOAP are inexact (Muon: 2 % off); those of other optimizers do not change"
            ),
            trace_kinds=(AutocastEnter,),
            precedence=Precedence(yields_where_detected=("backward@region",)),
            any_precision=True,
        ),
        "backward@float8": ViolationKind(
            "`{call}` runs inside TransformerEngine's autocast, which updates its scaling factors on "
            "exit: move it out of the region",
            effect="float8 scaling factors are updated without this backward, so gradients are less accurate",
            any_precision=True,
        ),
    },
    rationale="""\
Backward ops run in the dtypes of their forward ops, with or without autocast. In eager mode, if a model runs entirely
under autocast, a backward inside the region changes nothing. This is why the rule is a warning. It is wrong where the
forward left autocast on purpose. The backward of a float32 island, a custom autograd function or a compiled graph, or a
double backward, then runs under autocast, unlike its forward. An optimizer built on matmuls (Muon, Shampoo, SOAP)
computes its update in low precision. TransformerEngine's own `autocast` (formerly `fp8_autocast`) collects the scaling
factors and the history of maxima of its region. It updates them over all processes on exit, so the backward must run
outside. That backward still runs in float8 wherever its forward did. A test that steps no optimizer trains nothing and
is not reported.
""",
    harm="""\
The gradients of an `enabled=False` island were off by 3.8e-4 (float16) and 3.1e-3 (bfloat16). At the scale 65536 they
were inf, but finite outside the region: steps are skipped for no reason. The update of `torch.optim.Muon` inside a
region differed by 2.0 %. Without islands the gradients are bit-identical.
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
