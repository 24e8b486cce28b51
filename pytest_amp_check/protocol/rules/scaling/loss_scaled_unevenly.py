"""AMP205 loss-scaled-unevenly."""

from __future__ import annotations

from ...events import Backward
from ...rule import ERROR, Cause, Rule, ViolationKind

RULE = Rule(
    "AMP205",
    "loss-scaled-unevenly",
    ERROR,
    "Terms of a loss, or losses of one optimizer, are multiplied by different factors.",
    effect="at the default scale the unscaled term counts 65536 times too little, so it trains nothing; no error",
    prescan_words=("scaler",),
    violations={
        "backward@uneven": ViolationKind(
            "`{call}` runs backward from a sum of terms that do not have the same loss scale: add the terms first, "
            "and scale their sum"
        ),
        "scale@scaled": ViolationKind(
            "`{call}` scales a loss that is already multiplied by a loss scale: scale it once, directly before "
            "backward",
            effect="steps are skipped until the scale is low, and the others are too large by the scale; no error",
        ),
        "step@uneven": ViolationKind(
            "`{call}` adds gradients to those of `{optimizer}` that another scaler has scaled: use one scaler for all "
            "losses of an optimizer",
            effect="each loss gets a weight that depends on both scales, which diverge at the first overflow; no error",
            cause=Cause(Backward),
            trace_kinds=(Backward,),
            exemption="one-scaler",
        ),
        "step@another": ViolationKind(
            "`{call}` divides gradients of `{optimizer}` by its own scale, but another scaler has scaled them: use "
            "the scaler that scaled the loss",
            effect="updates are wrong by the ratio of both scales, which diverge at the first overflow; no error",
            trace_kinds=(Backward,),
            exemption="same-scaler",
        ),
    },
    rationale="""\
`scaler.step()` divides every gradient by one number, the loss scale. A term that was added without the scale is divided
as well and vanishes. A loss that was scaled twice stays too large by the scale. If two scalers scale the losses of one
optimizer, the weight of each term depends on the two scales, which diverge at the first overflow.
""",
    harm="""\
A penalty that was added to the scaled loss should move parameters by 0.050. It moved them by 3.3e-4 at a scale of 256,
by 1.5e-5 at 1024 and by 0.0 at 65536. A loss that was scaled twice made SGD's update 256.0 times too large at a scale
of 256. At 65536 every step overflowed until the scale had fallen to 128, after nine skipped steps, and the update
stayed too large from then on. With two scalers at 65536 and 4096 the second loss had 0.0625 times its weight, and 16.0
times with the scales exchanged.
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
        output = model(x)
        loss = nn.functional.mse_loss(output, y)
    penalty = output.float().square().mean()
    total = scaler.scale(loss) + 0.1 * penalty
    total.backward()  # AMP205
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
        output = model(x)
        loss = nn.functional.mse_loss(output, y)
    penalty = output.float().square().mean()
    total = loss + 0.1 * penalty
    scaler.scale(total).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    fix_advice="Add the terms of a loss first and scale their sum once, with the scaler that steps the optimizer.",
    sources=(
        (
            "PyTorch docs, Automatic Mixed Precision examples: Working with multiple models, losses, and "
            "optimizers (one scaler, each loss scaled once)"
        ),
        "measured: update sizes of the same model with a term left unscaled, a loss scaled twice, and two scalers",
    ),
)
