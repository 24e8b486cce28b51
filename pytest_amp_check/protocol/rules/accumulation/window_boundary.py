"""AMP304 window-boundary."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Backward, Clip, ScalerStep, Step, Window
from ...fix import UNSAFE
from ...rule import ERROR, INFO, WARNING, Cause, Certainty, Edit, Labels, Precedence, Rule, TraceContext, ViolationKind
from ...source_text import count_from_one

_LABELS = {
    "zero": "zero@window",
    "early": "window:off-by-one",
    "single": "window:single",
    "unused": "window:unused",
}


def _check_window_boundary(event: Window, program: Program) -> Labels:
    label = _LABELS[event.how]
    window = str(event.names.get("window", ""))
    yield label, {"one_based": count_from_one(window)} if label == "window:off-by-one" else {}


RULE = Rule(
    "AMP304",
    "window-boundary",
    ERROR,
    "The borders of the accumulation window lose or mis-weight micro-batches.",
    effect="only the last micro-batch of each window trains, with its k-th share; the others are wasted; no error",
    event_checks={Window: _check_window_boundary},
    applicability=UNSAFE,
    prescan_words=(".step( backward(",),
    violations={
        "zero@window": ViolationKind(
            "Gradients of `{optimizer}` are cleared inside the accumulation window, so only its last "
            "micro-batch counts: move this statement to after the step",
            trace_kinds=(Backward,),
            in_next_iteration=True,
            precedence=Precedence(yields_to=("step@discarded",)),
            exemption="of-no-window",
            any_precision=True,
            trace_context=TraceContext(
                shows_window_end=True, edits=(Edit("move it here, after this step", (ScalerStep, Step)),)
            ),
        ),
        "zero:in-loop": ViolationKind(
            "`{optimizer}` is cleared in each iteration, but its step follows after the loop, so only "
            "the last iteration counts: move this statement to before `{header}`",
            effect="only the last iteration trains; all others are wasted; no error",
            trace_kinds=(Backward,),
            in_next_iteration=True,
            any_precision=True,
            certainty=Certainty(is_possible=True, assumption="each iteration of `{header}` is meant to count"),
            trace_context=TraceContext(edits=(Edit("move it here, before this loop", search="loop"),)),
        ),
        "clip@window": ViolationKind(
            "`{call}` clips in every micro-batch of the accumulation window, so gradients of earlier "
            "micro-batches are clipped again: move this statement to before the step, where `{window}` is true",
            WARNING,
            effect="whenever the norm exceeds the limit, early micro-batches count less than late ones; no error",
            cause=Cause(Clip),
            trace_kinds=(Backward,),
            in_next_iteration=True,
            precedence=Precedence(yields_to=("clip@scaled", "clip@scaled-callback", "clip@partly")),
            any_precision=True,
            trace_context=TraceContext(
                shows_window_end=True, edits=(Edit("move the clip here, before this step", (ScalerStep, Step)),)
            ),
        ),
        "window:off-by-one": ViolationKind(
            "`{window}` is already true for the first micro-batch, so the first window has only one: "
            "write `{one_based}` in its place",
            WARNING,
            effect="one step of each epoch is too small, and a rest of micro-batches is left at the end; no error",
        ),
        "window:one-short": ViolationKind(
            "`{window}` counts the first micro-batch as the second, so the first window has one less than the others: "
            "begin the count one lower",
            INFO,
            effect="the first step of each epoch lacks one micro-batch, and one is left over at the end; no error",
        ),
        "window:inverted": ViolationKind(
            "The optimizer steps where `{window}` is false, in all micro-batches of a window but one: step where it is "
            "true",
            WARNING,
            effect="nearly each micro-batch steps alone, with its k-th share of the gradient; no error",
            certainty=Certainty(is_possible=True, assumption="the loop is meant to accumulate gradients"),
        ),
        "window:single": ViolationKind(
            "`{engine}.accumulate()` ends a window with each micro-batch, because `{call}` got no "
            "`{parameter}`: pass `{parameter}={option}`",
            WARNING,
            effect="each micro-batch steps alone: the effective batch is smaller than intended; no error",
            certainty=Certainty(is_possible=True, assumption="`{option}` is above 1"),
            any_precision=True,
        ),
        "window:unused": ViolationKind(
            "`{engine}` divides losses by `{parameter}`, but no `{engine}.accumulate()` begins a window, so gradients "
            "are too small: run micro-batches in `with {engine}.accumulate(model):`",
            WARNING,
            effect="each micro-batch steps with a k-th of its gradient: SGD learns at a k-th of its rate; no error",
            certainty=Certainty(
                is_possible=True, assumption="`{parameter}` is above 1, and no other code begins a window"
            ),
            any_precision=True,
        ),
        "window:running-divisor": ViolationKind(
            "The loss is divided by `{divisor}`, the number of micro-batches so far, so their weights differ: "
            "divide by the number of micro-batches in the window",
            WARNING,
            effect="early micro-batches count more than late ones; no error",
            any_precision=True,
        ),
        "window:left-over": ViolationKind(
            "`{window}` leaves {left} without a step, so these gradients are lost or added to the next epoch's first "
            "window: write `{last}` in its place, which also ends a window at the last micro-batch",
            WARNING,
            effect=(
                "the last micro-batches of an epoch are not stepped with it: they are lost, or change the "
                "next epoch's step"
            ),
            any_precision=True,
        ),
    },
    rationale="""\
A clip in every iteration bounds the sum so far again and again, so early micro-batches count less than late ones.
`zero_grad()` in every iteration discards all gradients of the window except those of the last micro-batch, which is
still divided by `k`. The run costs `k` passes per step and learns from one, at a `k`-th of its weight. A condition like
`i % k == 0` with `i` counted from zero is true at once. The first step then sees one micro-batch, all later windows are
shifted, and a remainder is left at the end. If the number of micro-batches is not a multiple of `k`, even the correct
condition leaves a remainder. The micro-batches after the last full window are never stepped, or mix with the next
epoch. A counter of micro-batches as the divisor divides the losses by 1, 2, 3, ..., so the first micro-batch counts
most. Inside `accumulate()` of accelerate, `zero_grad()` acts only in the last micro-batch of a window. Before backward
it clears the micro-batches before. Its window has the length that the constructor got, or the launcher's configuration;
an option of the script that nobody passes on changes nothing but the printed numbers. A run reports cleared windows
after three windows in a row that lost the same micro-batches. It reports shifted windows in the first three windows of
an optimizer. A remainder at the end, and a counter as the divisor, are found in source only.
""",
    harm="""\
Cleared in every micro-batch, the gradient norm of the window was 0.0212 instead of 0.0409, without an error. With `i %
k == 0` the windows held 1, 4, 4, ... micro-batches and 3 were left over; the first update was 0.0147 instead of 0.0409.
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
    optimizer.zero_grad()  # AMP304
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss / k).backward()
    if (i + 1) % k == 0:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
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
    fix_advice=(
        "Clear gradients after the step, under the same condition as the step, and count micro-batches from one: `(i "
        "+ 1) % k == 0`."
    ),
    sources=(
        "PyTorch docs, Automatic Mixed Precision examples: Gradient accumulation (zero_grad stands with the step)",
        "measured: gradient norms of the window and sizes of the first update",
    ),
)
