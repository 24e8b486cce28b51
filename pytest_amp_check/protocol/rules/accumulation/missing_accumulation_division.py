"""AMP301 missing-accumulation-division."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Backward, Event, Undivided
from ...fix import UNSAFE
from ...rule import INFO, STATIC, WARNING, Cause, Certainty, Labels, Rule, TraceContext, ViolationKind


def _is_division_vague(event: Event | None) -> bool:
    return isinstance(event, Backward) and event.division.is_vague


def _check_undivided(event: Undivided, program: Program) -> Labels:
    yield "loss:ignores-window", {}


RULE = Rule(
    "AMP301",
    "missing-accumulation-division",
    WARNING,
    "The losses of an accumulation window are summed, not averaged.",
    effect="gradients are k times too large for k micro-batches: with SGD a k-fold learning rate, with Adam little",
    effect_cases={
        "optimizer_class=sgd": (
            "gradients are k times too large for k micro-batches, which acts as a k-fold learning rate; no error"
        ),
        "optimizer_class=adam": (
            "gradients are k times too large for k micro-batches; Adam evens it out, but clipping and logs are off"
        ),
    },
    detected_by=STATIC,
    applicability=UNSAFE,
    event_checks={Undivided: _check_undivided},
    prescan_words=(".step( backward(", "loss of a Trainer"),
    violations={
        "loss:ignores-window": ViolationKind(
            "`{loss}` ignores `num_items_in_batch`, so neither it nor transformers' Trainer divides by the "
            "micro-batches: set `self.model_accepts_loss_kwargs = False` in `__init__`, after `super().__init__(...)`, "
            "and the Trainer divides it",
            any_precision=True,
            certainty=Certainty(
                is_possible=True,
                assumption=(
                    "the model's `forward` takes `**kwargs`, as most of transformers do, and "
                    "`gradient_accumulation_steps` is above 1"
                ),
            ),
        ),
        "step@undivided": ViolationKind(
            "`{loss}` is summed over the micro-batches of an accumulation window, not averaged: divide "
            "it before backward{divided}, and retune the learning rate",
            cause=Cause(Backward, concerns_loss=True, label_overrides=((_is_division_vague, "step@undivided-vague"),)),
            trace_kinds=(Backward,),
            in_next_iteration=True,
            exemption="divided-elsewhere",
            any_precision=True,
            trace_context=TraceContext(shows_window_end=True),
        ),
        "step@undivided-vague": ViolationKind(
            "`{loss}` comes from unanalyzed code and is summed over the micro-batches of an "
            "accumulation window: if it is a mean, divide it before backward{divided}, and retune the "
            "learning rate",
            INFO,
            cause=Cause(Backward, concerns_loss=True),
            trace_kinds=(Backward,),
            in_next_iteration=True,
            trace_context=TraceContext(shows_window_end=True),
        ),
    },
    rationale="""\
`backward()` adds to `.grad`. Accumulation should give the gradients of one large batch. With `k` micro-batches for one
step and a loss that is a mean over its own micro-batch, the gradients are `k` times too large. The learning rate is in
effect multiplied by `k`, a clip bites `k` times harder, and the scale overflows earlier. If all losses are sums, or are
divided by the total number of samples or tokens, the code is correct. The Trainer of transformers (since 4.46) leaves
the division to a model whose `forward` takes `**kwargs`: a `compute_loss` that returns a mean and ignores
`num_items_in_batch` is then summed over the window.
""",
    harm="""\
SGD's update was exactly 2.000, 4.000 and 8.000 times too large for k = 2, 4 and 8. Adam and AdamW normalise it away
(1.000001), so only clipping, weight decay and the loss scale are off there. With micro-batches of 100, 5, 50 and 2
items even the mean of means is wrong (relative gradient error 1.21). The sum of losses over the total number of items
is correct to 1.4e-7.
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(8, 16), torch.randn(8, 1)) for _ in range(16)]
k = 4

for i, (x, y) in enumerate(batches):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()  # AMP301
    if (i + 1) % k == 0:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(8, 16), torch.randn(8, 1)) for _ in range(16)]
k = 4

for i, (x, y) in enumerate(batches):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss / k).backward()
    if (i + 1) % k == 0:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    fix_advice="Divide each micro-batch's loss by the number of micro-batches: `scaler.scale(loss / k).backward()`.",
    sources=(
        ("PyTorch docs, Automatic Mixed Precision examples: Gradient accumulation (loss = loss / iters_to_accumulate)"),
        "Hugging Face, 'Fixing gradient accumulation' (October 2024): unequal micro-batches",
        "measured: update ratios for k = 2, 4, 8 with SGD, Adam and AdamW",
    ),
)
