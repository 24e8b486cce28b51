"""AMP213 nonfinite-error-in-clip."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Anomaly, Unscale
from ...fix import UNSAFE
from ...frameworks import FRAMEWORKS
from ...rule import WARNING, Labels, Rule, TraceContext, Verdicts, ViolationKind


def _check_anomaly_mode(program: Program) -> Verdicts:
    """Yield anomaly detection in a program with a live scaler."""
    live = program.attributes.scalers.live_scalers
    for event in program.iter_events() if live else ():
        if isinstance(event, Anomaly) and not event.idle:
            named = event.names.get("scaler") or live[0].name or "the scaler"
            yield "anomaly-nonfinite", event, {"scaler": str(named)}, ()


def _check_default(event: Unscale, program: Program) -> Labels:
    """Yield a clip of a framework that raises on infinite gradients by default."""
    if not event.nonfinite_error or event.subject is None:
        return
    scaler = program.objects[event.subject].attributes
    framework = FRAMEWORKS[scaler.framework] if scaler.framework else None
    # Most trainings of an engine of unknown precision have no scaler, and then an error is right.
    if framework is not None and not scaler.doubt:
        yield "clip-nonfinite-default", {"framework": framework.title}


RULE = Rule(
    "AMP213",
    "nonfinite-error-in-clip",
    WARNING,
    "Overflows that a scaler skips are turned into crashes.",
    effect="the first overflow, usually within a few iterations, ends the run; the scaler would skip one step",
    applicability=UNSAFE,
    event_checks={Unscale: _check_default},
    program_checks={Anomaly: _check_anomaly_mode},
    prescan_words=("scaler",),
    violations={
        "clip-nonfinite": ViolationKind(
            "`error_if_nonfinite=True` makes `{call}` raise on every overflow that `{scaler}` would only skip: remove "
            "the argument and leave infinities to `{scaler}.step({optimizer})`",
            trace_kinds=(Unscale,),
            trace_context=TraceContext(shows_scaler=True),
        ),
        "clip-nonfinite-default": ViolationKind(
            "`{call}` raises by default on every overflow that the scaler of {framework} would only "
            "skip: pass `error_if_nonfinite=False` to it",
        ),
        "raise-nonfinite": ViolationKind(
            "`{call}` ends the program on every overflow that `{scaler}` would only skip: leave infinities to "
            "`{scaler}.step({optimizer})`, or stop only after many skipped steps in a row",
            trace_kinds=(Unscale,),
            trace_context=TraceContext(shows_scaler=True),
        ),
        "anomaly-nonfinite": ViolationKind(
            "`{call}` makes backward raise on the NaN of an overflow, which `{scaler}` would only skip: "
            "remove it, or search for the NaN with autocast and the scaler disabled",
            trace_context=TraceContext(shows_scaler=True),
        ),
    },
    rationale="""\
Overflow is how a dynamic scale finds its value: it happens in the first iterations and again each time the scale has
grown. The scaler records it in `unscale_()`, skips the step and halves the scale. With `error_if_nonfinite=True` the
clip that follows raises before the scaler can do so. Fabric's `clip_gradients(max_norm=...)` has this argument, and it
is true by default. A `raise` or an `assert` on non-finite gradients has the same
effect. So does anomaly detection, which raises on the first NaN in backward. An overflow is an infinity at first, but
it becomes NaN when it is multiplied by zero or subtracted.
""",
    harm="""\
The first overflow, usually within the first few iterations, ends the run with RuntimeError `The total norm of order 2.0
for gradients from `parameters` is non-finite, so it cannot be clipped.` The same loop without the argument skips one
step and goes on. `torch.autograd.set_detect_anomaly(True)` ended it in the first step, with RuntimeError `Function
'AddmmBackward0' returned nan values in its 0th output.`
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(32, 16), 100 * torch.randn(32, 1)) for _ in range(8)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)  # AMP213
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
batches = [(torch.randn(32, 16), 100 * torch.randn(32, 1)) for _ in range(8)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    fix_advice=(
        "Remove `error_if_nonfinite=True`, the check or the anomaly detection; `scaler.step()` skips the step, and "
        "`scaler.update()` lowers the scale."
    ),
    sources=(
        "torch/nn/utils/clip_grad.py: clip_grad_norm_ raises on a non-finite norm",
        "measured: a crash on the first overflow after unscale_",
    ),
)
