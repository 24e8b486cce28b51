"""AMP810 refused-by-torch."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Raised
from ...rule import ERROR, RUNTIME, Labels, Precedence, Rule, ViolationKind


def _check_torch_error(event: Raised, program: Program) -> Labels:
    yield event.label, event.values


RULE = Rule(
    "AMP810",
    "refused-by-torch",
    ERROR,
    "An exception of torch that mixed precision caused has ended the run.",
    effect="the run has ended here",
    detected_by=RUNTIME,
    event_checks={Raised: _check_torch_error},
    violations={
        # A scaler finds no gradient.
        "raised:new-leaf": ViolationKind(
            "`{call}` creates a new leaf of the graph, so `{loss}` gives the parameters of `{optimizer}` no "
            "gradients: compute the loss from the model's output, without `.item()`, `argmax` or new tensors"
        ),
        "raised:empty-batch": ViolationKind(
            "`{loss}` is still its initial tensor in this batch, so `{call}` finds no gradient of `{optimizer}`: skip "
            "backward, step and update for a batch that adds nothing to the loss"
        ),
        "raised:unreached": ViolationKind(
            "`{loss}` does not reach the parameters of `{optimizer}`{because}, so its step finds no gradient: compute "
            "the loss from the model of that optimizer, with gradients enabled"
        ),
        "raised:frozen": ViolationKind(
            "None of the {count} parameters of `{optimizer}` has `requires_grad`, so `{call}` finds no gradient: give "
            "the optimizer the trained parameters, or skip its step while they are frozen"
        ),
        "raised:others": ViolationKind(
            "`{loss}` reaches the parameters of {others} but not of `{optimizer}`{because}, so `{call}` finds no "
            "gradient: step the optimizer of this loss, and `{optimizer}` only after its own backward"
        ),
        "raised:strangers": ViolationKind(
            "`{loss}` reaches {others}, which `{optimizer}` does not hold, so its step finds no gradient: create the "
            "optimizer from the final model, after it is built, wrapped and loaded"
        ),
        "raised:cleared": ViolationKind(
            "`{call}` clears the gradients of `{optimizer}` between backward and step, so the step finds no gradient: "
            "clear them before backward or after the step"
        ),
        "raised:no-backward": ViolationKind(
            "`{call}` is reached without a backward pass since the last step of `{optimizer}`: skip step and update "
            "whenever backward is skipped"
        ),
        "raised:nothing-to-update": ViolationKind(
            "`{call}` has no inf check to use, because `{scaler}` unscaled or stepped no gradient since the last "
            "update: put it under the condition of the step, and step through the scaler"
        ),
        "raised:half-parameters": ViolationKind(
            "`{call}` refuses the float16 gradients of {parameters} of `{optimizer}`: "
            "keep trained parameters in float32 (`.float()`), and let autocast choose the dtypes"
        ),
        "raised:method-of-optimizer": ViolationKind(
            "`{call}` takes an optimizer, but `{given}` is a method of it: call `{scaler}.unscale_({optimizer})`, then "
            "`{given}()` itself unless a gradient is not finite, then `{scaler}.update()`"
        ),
        "raised:empty-state": ViolationKind(
            "`{call}` loads an empty state, because the scaler that saved it was disabled, as in a training without "
            "float16: load the state only if it is not empty, so that the scaler starts at its initial scale"
        ),
        "raised:not-an-optimizer": ViolationKind(
            "`{call}` takes an optimizer, but `{given}` is {kind}: pass each optimizer in a call of its own"
        ),
        # Operands.
        "raised:no-kernel": ViolationKind(
            "`{call}` has no kernel for {dtype}, the dtype of {tensor}{because}: compute it in float32, with "
            "`.float()` in a region of `torch.autocast(..., enabled=False)`"
        ),
        "raised:processor": ViolationKind(
            "`{call}` needs a low-precision kernel that this CPU does not have ({primitive}): disable autocast for it "
            "with `torch.autocast(..., enabled=False)`, or run the program on a GPU or with `--device emulate`"
        ),
        "raised:fft": ViolationKind(
            "`{call}` gets {tensor} in {dtype}{because}, but half precision needs power-of-two lengths on CUDA and "
            "fails on the CPU: transform `.float()` of it in `torch.autocast(..., enabled=False)`"
        ),
        "raised:mixed-in-region": ViolationKind(
            "`{call}` gets {operands}, and autocast does not cast its operands{because}: cast one of them with "
            "`.to(other.dtype)`, or both with `.float()`"
        ),
        "raised:wants-float32": ViolationKind(
            "`{call}` takes {wanted}, but gets {operands}{because}: call `.float()` on its inputs, or decorate the "
            "forward of its `autograd.Function` with `torch.amp.custom_fwd(cast_inputs=torch.float32)`"
        ),
        "raised:custom-bwd-alone": ViolationKind(
            "The backward of `{function}` has `custom_bwd`, but no `custom_fwd` has recorded the autocast state of "
            "its forward: decorate its `forward` with `torch.amp.custom_fwd` of the same device type"
        ),
        "raised:mixed-in-function": ViolationKind(
            "`{call}` in the backward of `{function}` gets {operands}, because only its forward ran under autocast: "
            "decorate forward and backward with `torch.amp.custom_fwd` and `torch.amp.custom_bwd`"
        ),
        "raised:mixed-weights": ViolationKind(
            "`{call}` gets {operands}, and its weights are in low precision{because}: keep the weights in float32 and "
            "run the forward under `torch.autocast`, or for inference cast the input to their dtype"
        ),
        "raised:mixed-outside": ViolationKind(
            "`{call}` runs outside autocast on {operands}{because}: run it in the region, or call `.float()` on "
            "tensors that leave the region"
        ),
        "raised:too-large": ViolationKind(
            "`{call}` gets {value}, beyond the float16 limit of 65504, but {tensor} is float16{because}: use "
            "`torch.finfo({tensor_name}.dtype).min`, or infinity, or compute it in float32"
        ),
        "raised:unsafe-loss": ViolationKind(
            "`{call}` gets probabilities in an autocast region, where their logarithm overflows: remove the sigmoid "
            "and use `binary_cross_entropy_with_logits`, or leave the region for it"
        ),
        # Dtypes that must match.
        "raised:gradient-dtype": ViolationKind(
            "`{call}`, the gradient of a tensor in {first}, is set to {tensor}{because}: convert it with "
            "`.to({tensor_name}.dtype)`, or keep float32 parameters and let autocast choose the dtypes"
        ),
        "raised:integers": ViolationKind(
            "`{call}` holds {first}, but floating values are written to it in place: make it a floating tensor "
            "(float32 for a sum), or convert the added values"
        ),
        "raised:numpy": ViolationKind("NumPy has no {dtype}, the dtype of {tensor}{because}: call `.float()` first"),
        "raised:state-dtype": ViolationKind(
            "`{call}` finds `{key}` in {first} in its state for {tensor}: cast the model before the optimizer is "
            "created, and load states into parameters of the saved dtype"
        ),
        "raised:half-sharded": ViolationKind(
            "{parameters} of `{optimizer}` are not sharded but its others are, and the scaler unscales them in one "
            "call: shard the whole model, or use a separate optimizer for the unsharded parameters"
        ),
        # Graphs, recomputation and devices.
        "raised:no-graph": ViolationKind(
            "`{loss}` has no graph, so `{call}` has nothing to differentiate: compute the loss from the model's "
            "output without `.item()`, `.detach()` or `torch.no_grad()`, and set `requires_grad` on the parameters",
            # Before torch 2.11 autocast reuses cached casts that have no gradients.
            precedence=Precedence(consequence_of="AMP109"),
        ),
        "raised:recomputed": ViolationKind(
            "The checkpointed part gave {first} in the forward and {second} in the recomputation: set the precision "
            "inside that part, the same way each time"
        ),
        "raised:sharded-dtypes": ViolationKind(
            "`{call}` shards parameters in {first} and {second} together{because}: convert them to one dtype, or wrap "
            "the parts separately"
        ),
        "raised:nan-in-backward": ViolationKind(
            "{function}, the backward of this computation, gave NaN: keep its argument away from points without a "
            "derivative (0 for a root, a norm or a logarithm), and compute it in float32"
        ),
        "raised:other-device": ViolationKind(
            "`{call}` creates a scaler for {device}, but the program runs on {asked}, so the scaler is off and "
            "float16 is not scaled: pass the device, or train in bfloat16 or float32"
        ),
        "raised:known": ViolationKind(
            "`{call}` raised torch's `{text}`: run `amp-check explain {page}` for causes and fixes"
        ),
    },
    rationale="""\
When torch notices a mistake of mixed precision, it raises. Its message names the check that failed, not the line that
is wrong. `AssertionError: No inf checks were recorded for this optimizer.` is raised at `scaler.step()`, but the
mistake is in the loss. A recorded run knows which parameters the loss has reached, which are in half precision, and
which call has given a tensor its dtype. The exception itself stays unchanged.
""",
    harm="""\
The run ends, with the `AssertionError`, `RuntimeError`, `ValueError` or `NotImplementedError` that torch raised. In 12
programs from public threads that ended like this, no message named the line to change.
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
    fix_advice="Follow the message at the line that it names; run `amp-check explain` with torch's message for more.",
    sources=(
        "torch/amp/grad_scaler.py: what step(), unscale_() and update() check",
        "pytest_amp_check/protocol/messages: each message with its sources",
        "public threads: mmsegmentation 3230, WeatherGenerator 356, AdaFace 127, Time-Series-Library 761",
    ),
)
