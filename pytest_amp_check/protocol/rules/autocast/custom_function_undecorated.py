"""AMP107 custom-function-undecorated."""

from __future__ import annotations

from ...events import AUTOCAST_ENTER, BACKWARD, CUSTOM_FUNCTION, MODULE_CAST, Program
from ...rule import ERROR, INFO, STATIC, WARNING, Rule, Verdicts, ViolationKind


def _check_custom_functions(program: Program) -> Verdicts:
    """Functions that break where they are used, once something runs backward and enters autocast."""
    events = list(program.iter_events())
    trains = any(event.kind == BACKWARD for event in events)
    enters = trains and any(event.kind == AUTOCAST_ENTER and event.attributes["enabled"] for event in events)
    enters = enters and not any(
        event.kind == MODULE_CAST and event.attributes["dtype"] != "float32" for event in events
    )
    for event in events:
        if event.kind == CUSTOM_FUNCTION and (not event.attributes["applied"] or enters):
            yield f"function:{event.attributes['how']}", event, {}, ()


RULE = Rule(
    "AMP107",
    "custom-function-undecorated",
    WARNING,
    "An autograd.Function used under autocast lacks custom_fwd or custom_bwd.",
    detected_by=STATIC,
    program_checks={CUSTOM_FUNCTION: _check_custom_functions},
    prescan_words=("autocast", "custom_fwd", "custom_bwd"),
    violations={
        "function:undecorated": ViolationKind(
            "`{function}` multiplies a low-precision gradient with a float32 input in its backward, which raises"
            " under autocast: decorate its `forward` with `torch.amp.custom_fwd` and its `backward` with"
            " `torch.amp.custom_bwd`"
        ),
        "function:forward-alone": ViolationKind(
            "`{function}` has `custom_fwd` and no `custom_bwd`, so its backward runs without autocast and raises:"
            " decorate its `backward` with `torch.amp.custom_bwd` of the same device type"
        ),
        "function:backward-alone": ViolationKind(
            "`{function}` has `custom_bwd` and no `custom_fwd`, which raises an AttributeError in every backward:"
            " decorate its `forward` with `torch.amp.custom_fwd` of the same device type",
            ERROR,
        ),
        "function:devices": ViolationKind(
            "`custom_fwd` and `custom_bwd` of `{function}` name different device types, so its backward runs"
            " without the autocast of its forward: give both the same"
        ),
        "function:foreign": ViolationKind(
            "`{function}` gives `{call}` inputs as autocast leaves them, low-precision ones beside float32 ones, which"
            " code outside of torch seldom takes: decorate its `forward` with"
            " `torch.amp.custom_fwd(cast_inputs=torch.float32)` and its `backward` with `torch.amp.custom_bwd`",
            INFO,
        ),
        "function:foreign-output": ViolationKind(
            "`{function}` gives `{call}` an input that autocast may have made low-precision beside a float32 tensor"
            " for the result, which code outside of torch seldom takes: decorate its `forward` with"
            " `torch.amp.custom_fwd(cast_inputs=torch.float32)` and its `backward` with `torch.amp.custom_bwd`",
            INFO,
        ),
    },
    rationale="""\
The forward of a custom Function runs in the autocast region that its caller stands in: a matmul gives a low-precision
output and leaves its float32 inputs as they are. Its backward runs outside of the region, where nothing casts, and is
given a low-precision gradient beside the float32 inputs that it has saved. `custom_fwd` takes note of the state in
which forward runs, and `custom_bwd` runs backward in that state; each needs the other, for the same device type. A
C++ or CUDA op is on no list of autocast: it is given whatever dtypes its inputs have, which
`cast_inputs=torch.float32` makes one.
""",
    harm="""\
Measured with `y = x.mm(w.t())` in a region of float16, with float32 `x` and `w`: without decorators, with `custom_fwd`
alone and with two device types the backward raises `RuntimeError: expected m1 and m2 to have the same dtype, but got:
c10::Half != float`. With `custom_bwd` alone it raises `AttributeError: ... object has no attribute
'_fwd_used_autocast'`, with or without autocast. With both decorators the gradients are float32.
""",
    bad_example="""\
import torch


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):  # AMP107
        ctx.save_for_backward(x, weight)
        return x.mm(weight.t())

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad.mm(weight), grad.t().mm(x)


weight = torch.nn.Parameter(torch.randn(2, 8))
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = Linear.apply(torch.randn(4, 8), weight).float().square().mean()
try:
    loss.backward()
except RuntimeError as error:
    print(error)
""",
    good_example="""\
import torch


class Linear(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x.mm(weight.t())

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad.mm(weight), grad.t().mm(x)


weight = torch.nn.Parameter(torch.randn(2, 8))
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = Linear.apply(torch.randn(4, 8), weight).float().square().mean()
try:
    loss.backward()
except RuntimeError as error:
    print(error)
""",
    fix_advice="Decorate forward with `torch.amp.custom_fwd(device_type=...)`, and backward with `custom_bwd` alike.",
    sources=(
        (
            "PyTorch documentation: Automatic Mixed Precision examples, "
            "docs.pytorch.org/docs/stable/notes/amp_examples.html, section Autocast and Custom Autograd Functions"
        ),
        "PyTorch source: torch/amp/autocast_mode.py, custom_fwd and custom_bwd",
        "measured with torch 2.13 on the CPU",
    ),
)
