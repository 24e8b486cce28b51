"""AMP209 unscale-out-of-order."""

from __future__ import annotations

from ...events import ScalerStep, Unscale, Update
from ...rule import ERROR, Cause, Edit, Precedence, Rule, TraceContext, ViolationKind

RULE = Rule(
    "AMP209",
    "unscale-out-of-order",
    ERROR,
    "scaler.unscale_() is not followed by step() and update() before the next backward.",
    effect="scaled gradients count as unscaled: the next step is up to 65536 times too large; no error",
    prescan_words=("scaler",),
    violations={
        "backward@unscaled": ViolationKind(
            "`{scaler}.unscale_({optimizer})` is followed by a backward without an update, so scaled "
            "gradients count as unscaled: call `{scaler}.update()` also where {skip}",
            effect="the next step is 65536 times too large; if unscale_ runs before it, torch raises RuntimeError",
            effect_cases={
                "repeats=always": "torch raises RuntimeError at the unscale_ of the next iteration, which ends the run",
            },
            cause=Cause(Unscale),
            trace_kinds=(Unscale,),
            precedence=Precedence(yields_to=("unscale@window",)),
            sparing_kinds=(ScalerStep, Update),
            trace_context=TraceContext(shows_skip=True),
        ),
        "backward@unscaled-early": ViolationKind(
            "`{scaler}.unscale_({optimizer})` runs before the backward pass, so new scaled gradients count as "
            "unscaled: move it to between backward and `{scaler}.step({optimizer})`",
            cause=Cause(Unscale),
            trace_kinds=(Unscale,),
            precedence=Precedence(yields_to=("unscale@window",)),
            trace_context=TraceContext(edits=(Edit("move it here, before this step{with_clip}", (ScalerStep,)),)),
        ),
        "backward@unscaled-second": ViolationKind(
            "`{scaler}.unscale_({optimizer})` runs before another backward, which adds scaled gradients to unscaled "
            "ones: call it after the last backward, before the gradients are used",
            cause=Cause(Unscale),
            trace_kinds=(Unscale,),
            precedence=Precedence(yields_to=("unscale@window",)),
            sparing_kinds=(ScalerStep, Update),
        ),
        "backward:mixes": ViolationKind(
            "`{call}` adds scaled gradients to those of `{optimizer}`, which `{scaler}.unscale_({optimizer})` has "
            "already unscaled: run it before `unscale_`, or keep `{loss}` from "
            "the parameters of `{optimizer}`",
            trace_kinds=(Unscale,),
            # Then the early unscale_ is the cause.
            precedence=Precedence(yields_where_detected=("unscale@window",)),
        ),
        "backward@unscaled-framework": ViolationKind(
            "`{call}` unscales gradients, but a backward precedes their step, so {framework} takes scaled ones for "
            "unscaled: {advice}"
        ),
        "unscale@unscaled": ViolationKind(
            "`{scaler}.unscale_({optimizer})` is called twice for one update, so torch raises: "
            "call it once, before the gradients are first used",
            effect="torch raises RuntimeError, which ends the run",
            trace_kinds=(Unscale,),
            precedence=Precedence(
                yields_to=("unscale@window", "backward@unscaled", "backward@unscaled-early", "backward@unscaled-second")
            ),
        ),
        "unscale@stepped": ViolationKind(
            "`{scaler}.unscale_({optimizer})` comes after the step, so torch raises: "
            "move it to between backward and `{scaler}.step({optimizer})`",
            effect="torch raises RuntimeError, which ends the run",
            trace_kinds=(ScalerStep,),
            trace_context=TraceContext(edits=(Edit("move it here, before this step", (ScalerStep,)),)),
        ),
        "step@unscaled-updated": ViolationKind(
            "`{scaler}.update()` runs between unscale_ and step, so the step divides the gradients by the scale "
            "again: move it to after `{scaler}.step({optimizer})`",
            effect="gradients are divided twice: updates are 65536 times too small with SGD; no error",
            cause=Cause(Update),
            trace_context=TraceContext(edits=(Edit("move it here, after this step", (ScalerStep,)),)),
        ),
    },
    rationale="""\
`unscale_()` marks its optimizer as unscaled, and only `update()` removes the mark. A branch that leaves the iteration
in between (the norm is too large, the loss is NaN: `zero_grad(); continue`) keeps the mark. The next step then treats
freshly scaled gradients as unscaled. An `update()` between `unscale_()` and `step()` removes the mark too early, and
the gradients are divided twice.
""",
    harm="""\
After a skipped iteration without `update()` the next step was 65535.9 times too large. If that iteration also calls
`unscale_()`, torch raises RuntimeError `unscale_() has already been called on this optimizer since the last update().`,
often hours into a run, at the first bad batch. `unscale_()`, `update()`, `step()` in that order made the update 63,000
times too small.
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(32, 16), torch.randn(32, 1)) for _ in range(8)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # AMP209
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    if norm > 0.8:
        optimizer.zero_grad()
        continue
    scaler.step(optimizer)
    scaler.update()
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(32, 16), torch.randn(32, 1)) for _ in range(8)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    if norm > 0.8:
        optimizer.zero_grad()
        scaler.update()
        continue
    scaler.step(optimizer)
    scaler.update()
""",
    fix_advice="Let every path from `unscale_()` reach `update()` before the next backward, and let `step()` come "
    "before it.",
    sources=(
        "PyTorch docs, torch.amp.GradScaler.unscale_ (once per optimizer per step)",
        "Haian-Jin/LVSM#19: a skip branch without update()",
        "torch/amp/grad_scaler.py: the stage is reset by update() alone",
        "measured: update ratios after a skipped iteration and after unscale_, update, step",
    ),
)
