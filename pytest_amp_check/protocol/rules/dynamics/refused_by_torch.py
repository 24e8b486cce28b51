"""AMP810 refused-by-torch."""

from __future__ import annotations

from ...events import RAISED, Event, Program
from ...rule import ERROR, RUNTIME, Labels, Rule, ViolationKind


def _check_torch_error(event: Event, program: Program) -> Labels:
    yield event.attributes["label"], event.attributes["values"]


RULE = Rule(
    "AMP810",
    "refused-by-torch",
    ERROR,
    "An exception of torch that mixed precision led to has ended the run, for the reason that is named.",
    detected_by=RUNTIME,
    event_checks={RAISED: _check_torch_error},
    violations={
        # A scaler finds no gradient.
        "raised:new-leaf": ViolationKind(
            "`{call}` makes a new leaf of the graph, so that `{loss}` reaches none of the parameters of `{optimizer}`, "
            "whose step finds no gradient: compute the loss from the model's output, without `.item()`, `argmax` or "
            "new tensors"
        ),
        "raised:empty-batch": ViolationKind(
            "`{loss}` of this batch is still the tensor that it was initialised with, so that `{call}` finds no "
            "gradient of `{optimizer}`: skip backward, step and update of a batch that adds nothing to the loss"
        ),
        "raised:unreached": ViolationKind(
            "`{loss}` reaches none of the parameters of `{optimizer}`{because}, whose step finds no gradient: compute "
            "it from the model that the optimizer holds, with gradients on"
        ),
        "raised:frozen": ViolationKind(
            "None of the {count} parameters of `{optimizer}` has `requires_grad`, so that `{call}` finds no gradient: "
            "give the optimizer the parameters that are trained, or skip its step while they are frozen"
        ),
        "raised:others": ViolationKind(
            "`{loss}` reaches the parameters of {others} and none of `{optimizer}`{because}, so that `{call}` finds no "
            "gradient: step the optimizer that the loss feeds, and `{optimizer}` only after a backward of its own"
        ),
        "raised:strangers": ViolationKind(
            "`{loss}` reaches {others}, which `{optimizer}` does not hold, so that its step finds no gradient: make "
            "the optimizer from the parameters of the final model, after it was built, wrapped and loaded"
        ),
        "raised:cleared": ViolationKind(
            "`{call}` clears the gradients of `{optimizer}` between backward and step, which finds none: clear them "
            "before backward or after the step"
        ),
        "raised:no-backward": ViolationKind(
            "`{call}` is reached without a backward pass since `{optimizer}` was stepped last: leave step and update "
            "out where backward is left out"
        ),
        "raised:nothing-to-update": ViolationKind(
            "`{call}` has nothing to decide by, as no `unscale_()` or `step()` of `{scaler}` found a gradient since "
            "its last update: put it under the condition of the step, and step through the scaler"
        ),
        "raised:half-parameters": ViolationKind(
            "`{call}` refuses gradients in float16, which are those of {parameters} of `{optimizer}`, made before the "
            "run was recorded: keep what is trained in float32, `.float()`, and let autocast choose the dtypes"
        ),
        # Operands.
        "raised:no-kernel": ViolationKind(
            "`{call}` has no kernel for {dtype}, which {tensor} has{because}: compute it in float32, with `.float()` "
            "in a region of `torch.autocast(..., enabled=False)`"
        ),
        "raised:processor": ViolationKind(
            "`{call}` needs a kernel in low precision that this CPU does not have ({primitive}): turn autocast off for "
            "it with `torch.autocast(..., enabled=False)`, or run the program on a GPU or with `--device emulate`"
        ),
        "raised:fft": ViolationKind(
            "`{call}` is given {tensor} in {dtype}, which CUDA transforms only at lengths that are powers of two, and "
            "the CPU not at all{because}: transform `.float()` of it in `torch.autocast(..., enabled=False)`"
        ),
        "raised:mixed-in-region": ViolationKind(
            "`{call}` gets {operands}, and autocast does not cast its operands{because}: cast one of them with "
            "`.to(other.dtype)`, or both with `.float()`"
        ),
        "raised:wants-float32": ViolationKind(
            "`{call}` takes {wanted}, and gets {operands}{because}: call `.float()` on what it is given, or decorate "
            "the forward of its `autograd.Function` with `torch.amp.custom_fwd(cast_inputs=torch.float32)`"
        ),
        "raised:custom-bwd-alone": ViolationKind(
            "The backward of `{function}` asks by `custom_bwd` in what state of autocast its forward ran, which no "
            "`custom_fwd` has noted: decorate its `forward` with `torch.amp.custom_fwd` of the same device type"
        ),
        "raised:mixed-in-function": ViolationKind(
            "`{call}` in the backward of an `autograd.Function` gets {operands}, as its forward ran under autocast and "
            "it does not: decorate forward and backward with `torch.amp.custom_fwd` and `torch.amp.custom_bwd`"
        ),
        "raised:mixed-weights": ViolationKind(
            "`{call}` gets {operands}, where the weights are in low precision{because}: keep the weights in float32 "
            "and run the forward under `torch.autocast`, or for inference cast the input to their dtype"
        ),
        "raised:mixed-outside": ViolationKind(
            "`{call}` runs outside of autocast on {operands}{because}: run it in the region, or call `.float()` on "
            "what leaves the region"
        ),
        "raised:too-large": ViolationKind(
            "`{call}` is given {value}, beyond 65504 where float16 ends, and {tensor} is float16{because}: use "
            "`torch.finfo({tensor_name}.dtype).min`, or infinity, or compute it in float32"
        ),
        "raised:unsafe-loss": ViolationKind(
            "`{call}` takes probabilities in an autocast region, where their logarithm overflows: leave the sigmoid "
            "out and use `binary_cross_entropy_with_logits`, or leave the region for it"
        ),
        # What belongs together.
        "raised:gradient-dtype": ViolationKind(
            "`{call}`, the gradient of a tensor in {first}, is given {tensor}{because}: convert it with "
            "`.to({tensor_name}.dtype)`, or keep float32 parameters and let autocast choose the dtypes"
        ),
        "raised:integers": ViolationKind(
            "`{call}` holds {first}, and is to take floating values in place: make it a floating tensor, float32 for a "
            "sum, or convert what is added"
        ),
        "raised:numpy": ViolationKind(
            "{tensor} is in {dtype}{because}, which NumPy does not have: call `.float()` before"
        ),
        "raised:state-dtype": ViolationKind(
            "`{call}` finds `{key}` in {first} in its state for {tensor}: cast the model before the optimizer is made, "
            "and load states into parameters of the dtype that they were saved with"
        ),
        "raised:half-sharded": ViolationKind(
            "{parameters} of `{optimizer}` are not sharded and its others are, and the scaler unscales them in one "
            "call: shard the whole model, or give what is not sharded an optimizer of its own"
        ),
        # Passes and precision.
        "raised:no-graph": ViolationKind(
            "`{loss}` has no graph, so that `{call}` has nothing to run through: compute it from the model's output "
            "without `.item()`, `.detach()` or `torch.no_grad()`, from parameters that have `requires_grad`",
            # Casts without gradients that autocast has kept: before torch 2.11 it hands them out again.
            consequence_of="AMP109",
        ),
        "raised:recomputed": ViolationKind(
            "The checkpointed part gave {first} in the forward and {second} when it was computed again in backward: "
            "decide about precision inside of it, in the same way each time"
        ),
        "raised:sharded-dtypes": ViolationKind(
            "`{call}` shards parameters in {first} and {second} together{because}: bring them to one dtype, or wrap "
            "the parts separately"
        ),
        "raised:nan-in-backward": ViolationKind(
            "{function}, the backward of what is computed here, gave NaN: keep its argument away from the point where "
            "it has no derivative (0 for a root, a norm or a logarithm), and compute it in float32"
        ),
        "raised:other-device": ViolationKind(
            "`{call}` makes a scaler for {device}, and the program runs on {asked}, where that scaler switches itself "
            "off and float16 is not scaled: give it the device, or train in bfloat16 or float32"
        ),
        "raised:known": ViolationKind(
            "`{call}` ended in torch's `{text}`: see `amp-check explain {page}` for what leads there and what to do"
        ),
    },
    rationale="""\
Where mixed precision goes wrong in a way that torch notices, it raises, and its message says which check failed, not
which line is wrong: `AssertionError: No inf checks were recorded for this optimizer.` is raised at `scaler.step()`, and
the mistake is in the loss. A run that was recorded knows what the loss has reached, which parameters are in half
precision, and which call has given a tensor its dtype. The exception itself stays as it is.
""",
    harm="""\
The run ends, with the `AssertionError`, `RuntimeError`, `ValueError` or `NotImplementedError` that torch raised. Of 12
programs from public threads that ended so, none of the messages named the line to change.
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")


def boundary_loss(output, target):
    wrong = [(o.argmax() != t).float().item() for o, t in zip(output, target)]
    return torch.tensor(wrong, requires_grad=True).mean()  # AMP810


for _ in range(3):
    x, y = torch.randn(8, 16), torch.randint(4, (8,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = boundary_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")


def boundary_loss(output, target):
    right = output.softmax(dim=1).gather(1, target[:, None])
    return (1 - right).mean()


for _ in range(3):
    x, y = torch.randn(8, 16), torch.randint(4, (8,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = boundary_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    fix_advice="Do what the message says at the line that it names; `amp-check explain` of torch's message says more.",
    sources=(
        "torch/amp/grad_scaler.py: what step(), unscale_() and update() check",
        "pytest_amp_check/protocol/messages: each message with its sources",
        "public threads: mmsegmentation 3230, WeatherGenerator 356, AdaFace 127, Time-Series-Library 761",
    ),
)
