"""AMP502 fp16-without-scaler."""

from __future__ import annotations

from ...event_graph import Program
from ...events import AutocastEnter, Backward, Event, ScalerNew, Step
from ...frameworks import AUTOCAST, FRAMEWORKS
from ...rule import BOTH, WARNING, Certainty, Edit, Labels, Rule, TraceContext, ViolationKind
from ...torch_api import MAY_BE_FLOAT16


def _check_backward(event: Event, program: Program) -> Labels:
    if isinstance(event, Backward) and not event.scaling.is_scaled and event.alone and event.dtypes:
        if event.dtypes == {"float16"}:
            yield "backward:no-scaler", {}
        # A run of a test chooses its own values: a few steps on a tiny model.
        elif MAY_BE_FLOAT16.issuperset(event.dtypes) and not event.site.is_in_test():
            yield "backward:no-scaler-option", {}


def _check_disabled(event: Event, program: Program) -> Labels:
    if isinstance(event, ScalerNew) and event.off_in_float16:
        yield "scaler:off-in-float16", {}


def _check_region(event: Event, program: Program) -> Labels:
    if isinstance(event, AutocastEnter) and event.unscaled_by:
        framework = next(each for each in FRAMEWORKS.values() if each.title == event.unscaled_by)
        own = f"{framework.engine.usual_name}.autocast()" if AUTOCAST in framework.engine.methods.values() else ""
        region = f"enter `{own}` in its place" if own else f"remove it, because {framework.title} enters its own region"
        yield "region:no-scaler", {"framework": event.unscaled_by, "region": region}


_STEP = Edit(
    "write `{scaler}.step({optimizer})` and then `{scaler}.update()` in its place", (Step,), is_always_shown=True
)

RULE = Rule(
    "AMP502",
    "fp16-without-scaler",
    WARNING,
    "float16 autocast trains without gradient scaling.",
    effect="small gradients become exact zeros, more of them as the loss falls: learning stalls; no error",
    detected_by=BOTH,
    event_checks={Backward: _check_backward, AutocastEnter: _check_region, ScalerNew: _check_disabled},
    prescan_words=("autocast", "float16 MixedPrecision param_dtype"),
    violations={
        "backward:no-scaler": ViolationKind(
            "`{call}` computes gradients in float16 without a GradScaler, so small ones become zero: construct "
            '`{scaler} = {constructor}("{region}"{enabled})` once, and write `{scaler}.scale({loss}).backward()` here '
            "and `{scaler}.step({optimizer})`, `{scaler}.update()` for the step, or only `dtype=torch.bfloat16` in the "
            "region",
            trace_context=TraceContext(
                region_before=True,
                edits=(
                    Edit('write `{scaler} = {constructor}("{region}"{enabled})` {side}{passing}', search="new scaler"),
                    Edit("write `{scaler}.unscale_({optimizer})` before this clip", search="clip"),
                    _STEP,
                ),
            ),
        ),
        "backward:no-scaler-option": ViolationKind(
            "`{call}` has no GradScaler, although the region before may be in float16, where small "
            'gradients become zero: construct `{scaler} = {constructor}("{region}"{enabled})` once{float16_only} '
            "and write `{scaler}.scale({loss}).backward()` here and "
            "`{scaler}.step({optimizer})`, `{scaler}.update()` for the step",
            certainty=Certainty(is_possible=True, assumption="the run chooses float16 for the region"),
            trace_context=TraceContext(
                region_before=True,
                edits=(
                    Edit('write `{scaler} = {constructor}("{region}"{enabled})` {side}{passing}', search="new scaler"),
                    Edit("write `{scaler}.unscale_({optimizer})` before this clip", search="clip"),
                    _STEP,
                ),
            ),
        ),
        "scaler:off-in-float16": ViolationKind(
            "`{call}` is disabled, but the training computes gradients in float16, where small ones become zero: "
            "enable the scaler for float16 (`enabled=dtype == torch.float16`), or use bfloat16"
        ),
        "region:no-scaler": ViolationKind(
            "This region is float16 whatever {framework} is configured for, and {framework} scales the "
            "loss only for float16: {region}",
            certainty=Certainty(is_possible=True, assumption="{framework} is not configured for float16"),
        ),
    },
    rationale="""\
float16 has no number between 0 and 6e-8. Gradients of activations, and therefore of weights, are easily smaller, more
so as the loss falls, and become exact zeros. A GradScaler lifts them out of that range before the backward and divides
them again afterwards. bfloat16 has the range of float32 and needs no scaler. `torch.autocast` without a dtype is
float16 on "cuda", "xpu" and "mps", and bfloat16 on "cpu". Modules that are sharded with
`MixedPrecisionPolicy(param_dtype=torch.float16)` compute in float16 without any region, and need a scaler as well. A
scaler that a flag disables by mistake scales nothing, and all its calls still work: a recorded run shows both.
""",
    harm="""\
The loss was multiplied by 1, 1e-2, 1e-3 and 1e-4. The share of gradients that became exactly zero was 0.006 %, 0.42 %,
3.8 % and 51 %, and their relative error 0.0007, 0.027, 0.28 and 2.9. With a scaler no gradient became zero, and the
error was 0.0007 throughout.
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = 1e-4 * nn.functional.cross_entropy(model(x), y)
    loss.backward()  # AMP502
    optimizer.step()
    print("zero gradients:", (model[0].weight.grad == 0).float().mean().item())
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = 1e-4 * nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print("zero gradients:", (model[0].weight.grad == 0).float().mean().item())
""",
    fix_advice="Create one `torch.amp.GradScaler` and use `scaler.scale(loss).backward()`, `scaler.step(optimizer)` and"
    " `scaler.update()`, or pass `dtype=torch.bfloat16`.",
    sources=(
        (
            "PyTorch documentation: torch.autocast and GradScaler, docs.pytorch.org/docs/stable/amp.html: "
            "Gradient Scaling"
        ),
        "measured with torch 2.13 on the CPU",
    ),
)
