"""AMP212 clip-includes-scaled-params."""

from __future__ import annotations

from ...events import Backward, Clip, Unscale
from ...fix import SAFE
from ...rule import ERROR, Cause, Precedence, Rule, ViolationKind

RULE = Rule(
    "AMP212",
    "clip-includes-scaled-params",
    ERROR,
    "One clip covers unscaled gradients and gradients that are still multiplied by the loss scale.",
    effect="the scaled gradients dominate the norm: all updates are thousands of times too small; no error",
    applicability=SAFE,
    prescan_words=("scaler",),
    violations={
        "clip@partly": ViolationKind(
            "`{call}` clips unscaled gradients together with those of `{optimizer}`, which are still scaled: call "
            "`{scaler}.unscale_({optimizer})` before it",
            cause=Cause(Clip, every=True),
            trace_kinds=(Unscale, Backward),
        ),
        "clip@with-scaled": ViolationKind(
            "`{call}` clips unscaled gradients by a norm that includes gradients which are still scaled: clip only "
            "the parameters that the next step updates, or unscale all of them first",
            trace_kinds=(Unscale, Backward),
            precedence=Precedence(yields_to=("clip@partly",)),
        ),
    },
    rationale="""\
`unscale_()` divides the gradients of a single optimizer. A clip over the parameters of several optimizers computes one
norm over all of them, and gradients that are still multiplied by the scale dominate it. Every gradient, even a
correctly unscaled one, is then multiplied by `max_norm` over a wrong norm. Every optimizer whose parameters the clip
covers must be unscaled first.
""",
    harm="""\
With one of two optimizers unscaled the clip saw a norm of 3128 instead of 0.0653. The updates of both optimizers were
3,100 times too small, and nothing raised.
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
actor, critic = nn.Linear(16, 4), nn.Linear(16, 1)
actor_optimizer = torch.optim.AdamW(actor.parameters(), lr=1e-3)
critic_optimizer = torch.optim.AdamW(critic.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(32, 16), torch.randn(32, 4), torch.randn(32, 1)) for _ in range(8)]

for x, action, value in batches:
    actor_optimizer.zero_grad()
    critic_optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(actor(x), action) + nn.functional.mse_loss(critic(x), value)
    scaler.scale(loss).backward()
    scaler.unscale_(actor_optimizer)
    nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], max_norm=0.5)  # AMP212
    scaler.step(actor_optimizer)
    scaler.step(critic_optimizer)
    scaler.update()
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
actor, critic = nn.Linear(16, 4), nn.Linear(16, 1)
actor_optimizer = torch.optim.AdamW(actor.parameters(), lr=1e-3)
critic_optimizer = torch.optim.AdamW(critic.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(32, 16), torch.randn(32, 4), torch.randn(32, 1)) for _ in range(8)]

for x, action, value in batches:
    actor_optimizer.zero_grad()
    critic_optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(actor(x), action) + nn.functional.mse_loss(critic(x), value)
    scaler.scale(loss).backward()
    scaler.unscale_(actor_optimizer)
    scaler.unscale_(critic_optimizer)
    nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], max_norm=0.5)
    scaler.step(actor_optimizer)
    scaler.step(critic_optimizer)
    scaler.update()
""",
    fix_advice="Call `scaler.unscale_()` for every optimizer whose parameters the clip covers, or clip each one "
    "by itself.",
    sources=(
        (
            "PyTorch docs, Automatic Mixed Precision examples: Gradient clipping, and Working with multiple "
            "models, losses, and optimizers"
        ),
        "measured: the clipped norm and the updates of two optimizers, one of them unscaled",
    ),
)
