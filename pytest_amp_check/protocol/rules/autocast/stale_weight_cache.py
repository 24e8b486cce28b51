"""AMP101 stale-weight-cache."""

from __future__ import annotations

from ...event_graph import Program
from ...events import AutocastEnter, TrainerRun
from ...rule import BOTH, ERROR, WARNING, Certainty, Edit, Labels, Rule, TraceContext, ViolationKind


def _check_trainer(event: TrainerRun, program: Program) -> Labels:
    yield "training:in-region", {}


RULE = Rule(
    "AMP101",
    "stale-weight-cache",
    ERROR,
    "Parameters change inside an open autocast region, and later forwards reuse stale low-precision weights.",
    effect="until the region ends, forwards compute with the weights from before this change; no error",
    detected_by=BOTH,
    event_checks={TrainerRun: _check_trainer},
    prescan_words=("autocast",),
    violations={
        "write@region-then-forward": ViolationKind(
            "`{call}` changes parameters in an open autocast region, so the next forward uses cached "
            "old weights: write `torch.clear_autocast_cache()` after this line, or end the region before it",
            trace_kinds=(AutocastEnter,),
            in_next_iteration=True,
            trace_context=TraceContext(
                shows_earlier=True,
                edits=(Edit("or write `torch.clear_autocast_cache()` after this call", search="call in region"),),
            ),
        ),
        "training:in-region": ViolationKind(
            "`{call}` runs the training in an open autocast region, so all forwards use the weights of the start: call "
            "it outside the region, and choose the precision in the trainer's arguments",
            WARNING,
            effect="the cached low-precision copies of float32 weights never change: the loss does not fall; no error",
            certainty=Certainty(is_possible=True, assumption="trained weights are float32"),
        ),
    },
    rationale="""\
Autocast casts a float32 parameter once and keeps the low-precision copy until the **outermost** region exits. Any
region counts as outermost: a region of another device, a region with `enabled=False`, a decorator on `train()`, a
context on an ExitStack. If a parameter is written before that exit, its copy becomes stale. Every later forward in the
region then computes with the old weights. Nothing raises, and the optimizer goes on updating parameters that no forward
reads. `load_state_dict(assign=True)` is not such a write: it replaces the parameters of the module, and the new ones
have no copies.
""",
    harm="""\
A loop had its forward, backward and step inside one region. Its loss stayed at 0.5813 for all 200 steps, while the real
parameters diverged unnoticed. Their float32 loss was 30.3 with SGD and 137 with Adam; the correct loop reached 0.261
and 0.00004. Training in float16 with a scaler and in bfloat16 behaves alike, and an outer `autocast(...,
enabled=False)` is enough.
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

with torch.autocast("cpu", enabled=False):
    for step in range(10):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # AMP101
        scaler.update()
        print(step, loss.item())
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for step in range(10):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(step, loss.item())
""",
    fix_advice=(
        "Open the region inside the loop, around the forward and the loss only. If the region must stay open, "
        "construct it with `cache_enabled=False` or call `torch.clear_autocast_cache()` after each update."
    ),
    sources=(
        "PyTorch source: aten/src/ATen/autocast_mode.cpp",
        "PyTorch source: torch/amp/autocast_mode.py",
        "X-GenGroup/Flow-Factory pull request 186: training frozen by an outer autocast",
        "pytorch/pytorch issue 165068: the cast cache",
        "measured with torch 2.4 and 2.13 on the CPU",
    ),
)
