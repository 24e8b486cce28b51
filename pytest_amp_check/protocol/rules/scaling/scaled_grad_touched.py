"""AMP202 scaled-grad-touched."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Backward, Event, GradEdit, GradLog, LossRead, ScalerStep, Unscale
from ...rule import ERROR, INFO, Cause, Edit, Rule, TraceContext, Verdicts, ViolationKind
from ...scaled_steps import find_scaled_step, name_scaler


def _check_gradient_logs(program: Program) -> Verdicts:
    """Yield loggers that read gradients in the backward pass of a scaled loss."""
    for log in program.iter_events():
        if isinstance(log, GradLog):
            step = find_scaled_step(program, log)
            if step is not None:
                optimizer = str(step.names.get("optimizer") or "the optimizer")
                yield "log:scaled", log, {"scaler": name_scaler(program, step), "optimizer": optimizer}, (step,)


def _check_loss_reads(program: Program) -> Verdicts:
    """Yield numbers of scaled losses that nothing divides by the loss scale."""
    for read in program.iter_events():
        if isinstance(read, LossRead) and not read.undone and read.subject is not None:
            scaler = program.objects[read.subject].attributes
            if scaler.enabled is not False and read.is_returned:
                yield "loss:returned", read, {}, ()
            elif scaler.enabled is not False:
                yield "loss:scaled-framework" if scaler.framework else "loss:scaled", read, {}, ()


def _is_in_backward(event: Event | None) -> bool:
    return isinstance(event, GradEdit) and event.in_backward


#: A second unscale_ before the same step raises.
_EARLIER_UNSCALE = Edit("move this call {to}, because a second one would raise", search="unscale")

RULE = Rule(
    "AMP202",
    "scaled-grad-touched",
    ERROR,
    "Gradients are edited or read while they are still multiplied by the loss scale.",
    effect=(
        "the values are multiplied by the scale (65536 by default), and jump with it; the step itself does not change"
    ),
    program_checks={GradLog: _check_gradient_logs, LossRead: _check_loss_reads},
    prescan_words=("scaler", "LightningModule on_after_backward("),
    violations={
        "edit@scaled": ViolationKind(
            "Gradients of `{optimizer}` are edited before they are unscaled, so the step divides the "
            "edit by the scale: write `{scaler}.unscale_({optimizer})` before the edit, outside of a loop over "
            "parameters",
            effect=(
                "the step divides the edit by the scale (65536 by default), so that hardly anything of it is "
                "left; no error"
            ),
            trace_kinds=(Backward,),
            cause=Cause(label_overrides=((_is_in_backward, "edit@backward"),)),
            sparing_kinds=(Unscale,),
            trace_context=TraceContext(edits=(_EARLIER_UNSCALE,)),
        ),
        "edit@backward": ViolationKind(
            "`{call}` bounds gradients in the backward pass, where they are multiplied by the loss scale: multiply the "
            "bound by `{scaler}.get_scale()`, or clip the gradients of the parameters after `{scaler}.unscale_()`",
            effect="the bound acts 65536 times too early, and hides overflows from the scaler; no error",
            trace_kinds=(Backward,),
        ),
        "read@scaled": ViolationKind(
            "Gradients of `{optimizer}` are read while they are still multiplied by the loss scale: "
            "write `{scaler}.unscale_({optimizer})` before, outside of a loop over parameters, or divide the values by "
            "`{scaler}.get_scale()`",
            INFO,
            trace_kinds=(Backward,),
            cause=Cause(only_reads=True),
            sparing_kinds=(Unscale,),
            trace_context=TraceContext(edits=(_EARLIER_UNSCALE,)),
        ),
        "log:scaled": ViolationKind(
            '`{call}` logs gradients that are still multiplied by the loss scale: pass `log="parameters"` here, and '
            "log gradients yourself after `{scaler}.unscale_({optimizer})`",
            INFO,
            effect=(
                "logged gradients are multiplied by the scale (65536 by default), and jump with it; training "
                "does not change"
            ),
            trace_context=TraceContext(
                edits=(
                    Edit(
                        "before this step{unscaling}, write `wandb.log({{n: p.grad.norm() for n, p in "
                        "{module}.named_parameters() if p.grad is not None}})`",
                        (ScalerStep,),
                    ),
                )
            ),
        ),
        "loss:scaled": ViolationKind(
            "`{loss}` is still multiplied by the loss scale where `.{method}()` reads it: read the unscaled loss, or "
            "divide by `{scaler}.get_scale()`",
            INFO,
        ),
        "loss:scaled-framework": ViolationKind(
            "`{loss}` is still multiplied by the loss scale where `.{method}()` reads it: read the unscaled loss", INFO
        ),
        "loss:returned": ViolationKind(
            "`{function}` returns `{loss}`, which is still multiplied by the loss scale after its backward pass: keep "
            "the unscaled loss under another name, and return that",
            INFO,
            effect=(
                "the caller gets the loss multiplied by the scale (65536 by default); training changes only "
                "if it uses it"
            ),
        ),
        "edit@scaled-framework": ViolationKind(
            "Gradients of `{optimizer}` are edited while {framework} keeps them multiplied by the loss scale: {advice}",
            effect=(
                "the step divides the edit by the scale (65536 by default), so that hardly anything of it is "
                "left; no error"
            ),
        ),
        "read@scaled-framework": ViolationKind(
            "Gradients of `{optimizer}` are read while {framework} keeps them multiplied by the loss scale: {advice}",
            INFO,
        ),
    },
    rationale="""\
Between the scaled backward and `unscale_()` a gradient is the true gradient times the loss scale. An edit at this point
(weight decay, noise, a clamp, a replacement for NaN) is divided by the scale afterwards and vanishes. An edit that
replaces infinities hides the overflow from the scaler. A norm that is only logged is wrong by the same factor
and jumps whenever the scale changes.
""",
    harm="""\
Manual weight decay or noise on scaled gradients contributed 0.0 instead of 5.4e-4; a hook clamping to 0.01 moved
parameters by 6.3e-8 instead of 2.6e-3. `grad.nan_to_num_()` before the step put a parameter at -5.2e32 after one step,
because the overflow became the largest finite number and was applied. With zeros in its place the parameters never
moved and the scale never backed off. Logged norms and scaled losses were 65536 times too large.
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
        p.grad.add_(p.detach(), alpha=0.1)  # AMP202
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
    for p in model.parameters():
        p.grad.add_(p.detach(), alpha=0.1)
    scaler.step(optimizer)
    scaler.update()
""",
    fix_advice="Call `scaler.unscale_(optimizer)` before gradients are edited or logged.",
    sources=(
        "PyTorch docs, Automatic Mixed Precision examples: Working with unscaled gradients",
        "measured: nan_to_num_, weight decay, clamping hooks and logged norms on scaled and on unscaled gradients",
    ),
)
