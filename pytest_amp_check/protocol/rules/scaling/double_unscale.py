"""AMP210 double-unscale."""

from __future__ import annotations

from ...events import Backward, GradDivide, ScalerStep, Unscale
from ...rule import ERROR, Cause, Rule, ViolationKind

RULE = Rule(
    "AMP210",
    "double-unscale",
    ERROR,
    "Gradients are divided by the loss scale twice.",
    effect="gradients are divided by the scale twice, so updates are too small; no error",
    effect_cases={
        "optimizer_class=sgd": "updates are too small by the scale (65536 by default): SGD hardly moves; no error",
        "optimizer_class=adam": (
            "gradients are too small by the scale (65536 by default); those that round to zero train nothing; no error"
        ),
    },
    prescan_words=("scaler",),
    violations={
        "step@divided": ViolationKind(
            "Gradients of `{optimizer}` are divided by the loss scale by hand, and `{scaler}` divides them as well: "
            "replace the division by `{scaler}.unscale_({optimizer})`",
            cause=Cause(GradDivide),
            trace_kinds=(Backward,),
        ),
        "unscale@divided": ViolationKind(
            "Gradients of `{optimizer}` are divided by the loss scale by hand, and again by "
            "`{scaler}.unscale_({optimizer})`: remove the division",
            cause=Cause(GradDivide),
        ),
        "step@borrowed": ViolationKind(
            "Gradients of `{optimizer}` are unscaled twice, because `{scaler}` unscaled another optimizer of the "
            "same parameters: unscale and step the same object, and give each parameter to one optimizer",
            trace_kinds=(Backward, Unscale, ScalerStep),
        ),
    },
    rationale="""\
`scaler.step()` unscales unless `unscale_()` was called for that very optimizer object since the last update. It does
not notice a division by hand. Nor does it notice an `unscale_()` of another object with the same parameters, such as
the optimizer inside a wrapper or a second optimizer. The gradients then shrink by the square of the scale, and float32
rounds most of them away. The check for infinities comes too late.
""",
    harm="""\
Dividing by `get_scale()` by hand and calling `scaler.step()` made SGD's update 74,000 times too small. Unscaling a
wrapped optimizer and stepping its wrapper unscales twice, because they are two objects. This case, and one parameter in
two optimizers, gave the same result: a ratio of 1.35e-5.
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
    for p in model.parameters():
        p.grad /= scaler.get_scale()  # AMP210
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
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
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    fix_advice=(
        "Leave the division to `scaler.unscale_(optimizer)`, and call it on the same optimizer object as "
        "`scaler.step()`."
    ),
    sources=(
        "torch/amp/grad_scaler.py: what is unscaled is remembered per id(optimizer)",
        "measured: update ratio 1/74,000 after a division by hand, 1.35e-5 for wrappers and shared parameters",
    ),
)
