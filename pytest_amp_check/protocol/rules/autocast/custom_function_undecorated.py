"""AMP107 custom-function-undecorated."""

from __future__ import annotations

from ...event_graph import Program
from ...events import AutocastEnter, Backward, CustomFunction, ModuleCast
from ...rule import ERROR, INFO, STATIC, WARNING, Labels, Rule, Verdicts, ViolationKind


def _check_assumed(event: CustomFunction, program: Program) -> Labels:
    """Yield an autograd Function that breaks under the autocast of an unknown caller."""
    if event.assumed:
        yield f"function:{event.how}", {}


def _check_custom_functions(program: Program) -> Verdicts:
    """Yield autograd Functions that break under autocast, if the program enters autocast and runs backward."""
    events = list(program.iter_events())
    trains = any(isinstance(event, Backward) for event in events)
    enters = trains and any(isinstance(event, AutocastEnter) and event.enabled for event in events)
    enters = enters and not any(isinstance(event, ModuleCast) and event.dtype != "float32" for event in events)
    for event in events:
        if isinstance(event, CustomFunction) and not event.assumed and (not event.applied or enters):
            yield f"function:{event.how}", event, {}, ()


RULE = Rule(
    "AMP107",
    "custom-function-undecorated",
    WARNING,
    "An autograd.Function used under autocast lacks custom_fwd or custom_bwd.",
    effect="the first backward under autocast raises and ends the training",
    detected_by=STATIC,
    event_checks={CustomFunction: _check_assumed},
    program_checks={CustomFunction: _check_custom_functions},
    prescan_words=("autocast", "custom_fwd", "custom_bwd"),
    violations={
        "function:undecorated": ViolationKind(
            "The backward of `{function}` multiplies a low-precision gradient with a float32 input, which raises "
            'under autocast: write `@torch.amp.custom_fwd(device_type="cuda")` before its `forward` and '
            '`@torch.amp.custom_bwd(device_type="cuda")` before its `backward`, below `@staticmethod`'
        ),
        "function:forward-alone": ViolationKind(
            "`{function}` has `custom_fwd` but no `custom_bwd`, so its backward runs without autocast and raises: "
            "write `@torch.amp.custom_bwd(device_type=...)` before its `backward`, with the device type of the forward"
        ),
        "function:backward-alone": ViolationKind(
            "`{function}` has `custom_bwd` but no `custom_fwd`, which raises an AttributeError in every backward: "
            "write `@torch.amp.custom_fwd(device_type=...)` before its `forward`, with the device type of the backward",
            ERROR,
            effect="every backward raises AttributeError, with or without autocast",
        ),
        "function:devices": ViolationKind(
            "`custom_fwd` and `custom_bwd` of `{function}` name different devices, so its backward runs without that "
            "autocast: give both the same device type"
        ),
        # Reported by the recorder only.
        "function:recomputed": ViolationKind(
            "The backward of `{function}` recomputes other values, because it runs in {dtype} and the forward ran in "
            "{forward}: decorate `forward` with `torch.amp.custom_fwd` and `backward` with "
            "`torch.amp.custom_bwd`, or pass the forward's `torch.get_autocast_dtype()` as `dtype`",
            effect="gradients belong to other values than the forward's, so they are inexact; no error",
        ),
        "function:foreign": ViolationKind(
            "`{call}` in `{function}` gets low-precision and float32 tensors, which few libraries outside of torch "
            'accept: write `@torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)` before its '
            '`forward` and `@torch.amp.custom_bwd(device_type="cuda")` before its `backward`',
            INFO,
            effect="the library usually raises in the first forward under autocast; float32 tests pass",
        ),
        "function:foreign-output": ViolationKind(
            "`{call}` in `{function}` may get low-precision inputs and a float32 result tensor, which few libraries "
            'accept: write `@torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)` before its '
            '`forward` and `@torch.amp.custom_bwd(device_type="cuda")` before its `backward`',
            INFO,
            effect="the library usually raises in the first forward under autocast; float32 tests pass",
        ),
    },
    rationale="""\
The forward of a custom Function runs in the autocast region of its caller: a matmul gives a low-precision output and
leaves its float32 inputs unchanged. The backward runs outside the region, where nothing casts. It gets a low-precision
gradient beside the saved float32 inputs. `custom_fwd` records the autocast state of the forward, and `custom_bwd` runs
the backward in that state. Each needs the other, for the same device type. A C++ or CUDA op is not on the lists of
autocast and gets inputs of mixed dtypes. `cast_inputs=torch.float32` gives them one dtype. A backward that enters
autocast by itself, to recompute activations, gets the default dtype of the device unless it passes that of the forward.
""",
    harm="""\
Measured with `y = x.mm(w.t())` in a region of float16, with float32 `x` and `w`. Without decorators, with `custom_fwd`
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
    fix_advice=(
        "Decorate forward with `torch.amp.custom_fwd(device_type=...)`, and backward with `torch.amp.custom_bwd` of "
        "the same device type."
    ),
    sources=(
        (
            "PyTorch documentation: Automatic Mixed Precision examples, "
            "docs.pytorch.org/docs/stable/notes/amp_examples.html, section Autocast and Custom Autograd Functions"
        ),
        "PyTorch source: torch/amp/autocast_mode.py, custom_fwd and custom_bwd",
        "measured with torch 2.13 on the CPU",
    ),
)
