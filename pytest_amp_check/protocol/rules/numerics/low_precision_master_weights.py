"""AMP501 low-precision-master-weights."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Event, LowParameter, ModuleCast, OptimizerNew
from ...rule import BOTH, ERROR, INFO, WARNING, Certainty, Edit, Labels, Rule, TraceContext, Verdicts, ViolationKind


def _check_trained_casts(program: Program) -> Verdicts:
    trained = program.attributes.training.trained_modules
    scaled = program.attributes.training.scaled_modules
    if scaled is None:
        scaled = trained if program.attributes.scalers.live_scalers else set()
    for graph in program.graphs:
        for node in graph.nodes:
            event = node.event
            if not isinstance(event, ModuleCast) or event.subject not in trained:
                continue
            if not program.attributes.training.frozen_under.get(event.subject, frozenset()).isdisjoint(event.guards):
                continue
            if not event.trained:
                if event.returns and event.dtype in ("float16", "bfloat16"):
                    yield "cast:returned", event, {"dtype": event.dtype}, ()
                continue  # a cast for inference, of a module that other code trains
            dtype, how = event.dtype, event.how
            optimizer = _find_optimizer(program, event)
            by_unknown = event.subject in program.attributes.training.trained_by_unknown
            if by_unknown and dtype in ("float16", "bfloat16") and how != "checkpoint":
                yield "cast:trained-by-unknown", event, {"dtype": dtype}, optimizer
            elif dtype == "float16" and event.subject in scaled and event.with_scaler:
                yield f"{how}:trained-scaled", event, {"dtype": dtype}, optimizer
            elif dtype in ("float16", "bfloat16"):
                refused = _REFUSED if dtype == "bfloat16" and event.subject in scaled and event.with_scaler else ""
                yield f"{how}:trained", event, {"dtype": dtype, "refused": refused}, optimizer


def _find_optimizer(program: Program, cast: ModuleCast) -> tuple[Event, ...]:
    """Return the construction of the optimizer that trains the module of a cast, at another line than the cast."""
    for event in program.iter_events():
        if isinstance(event, OptimizerNew) and event.subject is not None and not event.found:
            owns = program.with_submodules(program.objects[event.subject].attributes.owns or ())
            if cast.subject in owns and event.site.call_key != cast.site.call_key:
                return (event,)
    return ()


def _check_computed_parameters(event: LowParameter, program: Program) -> Labels:
    yield f"parameter:{event.how}", {"dtype": event.dtype}


#: torch 2.13 has no bfloat16 among the kernels of `_amp_foreach_non_finite_check_and_unscale_` on CUDA.
_REFUSED = ", and GradScaler cannot unscale their gradients on CUDA"

#: The finding does not depend on the line that constructs the optimizer.
_SHOWS_OPTIMIZER = TraceContext(background_kinds=(OptimizerNew,))
#: Without a scaler, bfloat16 is the safe dtype of a region.
_SHOWS_FORWARD = TraceContext(
    background_kinds=(OptimizerNew,),
    edits=(
        Edit('run this forward in `with torch.autocast("cuda", dtype=torch.bfloat16):`', search="forward of module"),
    ),
)


RULE = Rule(
    "AMP501",
    "low-precision-master-weights",
    WARNING,
    "Trained parameters are stored in float16 or bfloat16.",
    effect="updates that are small beside a weight are lost (1/256 in bfloat16): learning stalls; no error",
    effect_cases={
        "dtype=float16": "updates below 1/2048 of a weight are lost: learning slows down, and then stalls; no error",
        "dtype=bfloat16": "updates below 1/256 of a weight are lost: learning slows down, and then stalls; no error",
    },
    detected_by=BOTH,
    event_checks={LowParameter: _check_computed_parameters},
    program_checks={ModuleCast: _check_trained_casts},
    prescan_words=("low-precision weights",),
    violations={
        "cast:trained": ViolationKind(
            "`{call}` stores trained parameters in {dtype}, where small updates round to "
            'nothing{refused}: leave out {dtype} here, and run the forward in `torch.autocast("cuda", '
            "dtype=torch.bfloat16)`, at twice the memory of the weights",
            trace_context=_SHOWS_FORWARD,
        ),
        "cast:trained-scaled": ViolationKind(
            "`{call}` stores trained parameters in {dtype}, whose gradients GradScaler refuses to "
            'unscale: leave out {dtype} here, and run the forward in `torch.autocast("cuda", '
            "dtype=torch.{dtype})`, at twice the memory of the weights",
            ERROR,
            effect=(
                "the first step raises ValueError (Attempting to unscale FP16 gradients), unless the optimizer is fused"
            ),
            trace_context=_SHOWS_OPTIMIZER,
        ),
        "cast:trained-by-unknown": ViolationKind(
            "`{call}` stores trained parameters in {dtype}, where small updates vanish unless the "
            "optimizer keeps float32 copies: leave out {dtype} here, and run the forward in "
            '`torch.autocast("cuda", dtype=torch.bfloat16)`, at twice the memory of the weights',
            certainty=Certainty(
                is_possible=True, assumption="the optimizer keeps no float32 copies of these parameters"
            ),
            trace_context=_SHOWS_FORWARD,
        ),
        "cast:returned": ViolationKind(
            "`{call}` rounds trained parameters to {dtype}, and the cast back does not restore them: cast "
            "`copy.deepcopy` of the model, or run it in `torch.autocast` without a cast",
            effect="each cast moves the weights a little (2e-5 to 8e-5 in bfloat16), and training goes on from there",
            certainty=Certainty(is_possible=True, assumption="the model is trained again after the cast back"),
        ),
        "parameter:computed": ViolationKind(
            "`{call}` makes a trained parameter in the {dtype} of the layer it is computed from, where small updates "
            "vanish: compute it from `.float()`",
            INFO,
        ),
        "parameter:saved": ViolationKind(
            "`{call}` saves the weights in {dtype} beside the optimizer's state, so a run that resumes goes on from "
            "rounded weights: save them as they are, and a low copy for inference in another file",
            effect="each resume rounds the weights, by 2e-5 to 8e-5 in bfloat16, and small updates are lost; no error",
            certainty=Certainty(is_possible=True, assumption="a run resumes from this checkpoint"),
        ),
        "made:trained": ViolationKind(
            "`{module}` is created with trained parameters in {dtype}, where small updates round to "
            "nothing{refused}: leave out {dtype} here, and run the forward in "
            '`torch.autocast("cuda", dtype=torch.bfloat16)`, at twice the memory of the weights',
            trace_context=_SHOWS_FORWARD,
        ),
        "made:trained-scaled": ViolationKind(
            "`{module}` is created with trained parameters in {dtype}, whose gradients GradScaler "
            "refuses to unscale: leave out {dtype} here, and run the forward in "
            '`torch.autocast("cuda", dtype=torch.{dtype})`, at twice the memory of the weights',
            ERROR,
            effect=(
                "the first step raises ValueError (Attempting to unscale FP16 gradients), unless the optimizer is fused"
            ),
            trace_context=_SHOWS_OPTIMIZER,
        ),
        "adapter:trained": ViolationKind(
            "`{call}` stores the trained adapters in {dtype}, where small updates round to nothing: call "
            "`cast_training_params(model, torch.float32)` of diffusers afterwards, or cast what requires gradients",
            trace_context=_SHOWS_OPTIMIZER,
        ),
        "adapter:trained-scaled": ViolationKind(
            "`{call}` stores the trained adapters in {dtype}, whose gradients GradScaler refuses to unscale: call "
            "`cast_training_params(model, torch.float32)` of diffusers afterwards, or cast what requires gradients",
            ERROR,
            effect=(
                "the first step raises ValueError (Attempting to unscale FP16 gradients), unless the optimizer is fused"
            ),
            trace_context=_SHOWS_OPTIMIZER,
        ),
        "before:trained": ViolationKind(
            "`{optimizer}` trains parameters that were {dtype} before the recording, where small "
            "updates round to nothing{refused}: keep them in float32, and run the forward in "
            "`torch.autocast`"
        ),
        "before:trained-scaled": ViolationKind(
            "`{optimizer}` trains parameters that were {dtype} before the recording, whose gradients "
            "GradScaler refuses to unscale: keep them in float32, and run the forward in "
            "`torch.autocast`",
            ERROR,
            effect=(
                "the first step raises ValueError (Attempting to unscale FP16 gradients), unless the optimizer is fused"
            ),
        ),
        "trainer:trained": ViolationKind(
            "`{call}` stores trained parameters in {dtype}, where small updates round to nothing: write "
            '`precision="{mixed}"`',
            certainty=Certainty(
                is_possible=True, assumption="the optimizer keeps no float32 copies of these parameters"
            ),
            trace_context=_SHOWS_OPTIMIZER,
        ),
        "setting:trained": ViolationKind(
            "`{call}` stores trained parameters in {dtype}, where small updates round to nothing: write `{instead}`",
            certainty=Certainty(
                is_possible=True, assumption="the optimizer keeps no float32 copies of these parameters"
            ),
        ),
        "checkpoint:trained": ViolationKind(
            '`{call}` with `{keyword}="auto"` stores trained parameters in the dtype of the checkpoint, '
            "which is often low: write `{keyword}=torch.float32`, and run the forward in "
            '`torch.autocast("cuda", dtype=torch.bfloat16)`',
            certainty=Certainty(is_possible=True, assumption="the checkpoint is stored in float16 or bfloat16"),
            trace_context=_SHOWS_OPTIMIZER,
        ),
        "default:trained": ViolationKind(
            "`{call}` makes {dtype} the dtype of trained parameters, where small updates round to "
            "nothing{refused}: leave out this line, and run the forward in "
            '`torch.autocast("cuda", dtype=torch.bfloat16)`, at twice the memory of the weights',
            trace_context=_SHOWS_OPTIMIZER,
        ),
        "default:trained-scaled": ViolationKind(
            "`{call}` makes {dtype} the dtype of trained parameters, whose gradients GradScaler refuses "
            'to unscale: leave out this line, and run the forward in `torch.autocast("cuda", '
            "dtype=torch.{dtype})`, at twice the memory of the weights",
            ERROR,
            effect=(
                "the first step raises ValueError (Attempting to unscale FP16 gradients), unless the optimizer is fused"
            ),
            trace_context=_SHOWS_OPTIMIZER,
        ),
    },
    rationale="""\
Mixed precision means low-precision compute on **float32 weights**. A weight in bfloat16 has 8 bits and a weight in
float16 has 11. An update smaller than half the gap to the next representable number is rounded away, and late in
training most updates are. With a GradScaler, float16 parameters have float16 gradients, and `unscale_` raises on them;
a fused optimizer does not even raise. On CUDA a GradScaler cannot unscale bfloat16 gradients
(`"_amp_foreach_non_finite_check_and_unscale_cuda" not implemented for 'BFloat16'`). The same holds for layers that are
created with `dtype=`, for `from_pretrained(torch_dtype=...)` and for a model that a Trainer's `compute_loss` casts. A
parameter that a module adds to a layer, and computes from the weights of the layer, has their dtype as well. A trained
model that is cast for evaluation and cast back before the next step is rounded each time. Frozen weights and inference
lose nothing in low precision. Neither does a model that is cast after its last step. DeepSpeed updates float32 copies,
so it loses nothing either. The same holds for an optimizer class of the project that makes such copies.
""",
    harm="""\
The weights had a standard deviation of 0.02. One step left 32 % of the bfloat16 weights unchanged at the learning rate
1e-4, and 88 % at 1e-5 (float16: 4.6 % and 38 %). A bfloat16 parameter of 1.0 was still 1.0 after 100 Adam steps of
1e-3. A cast to bfloat16 and back moved the weights by 2e-5 to 8e-5. In float16, Adam's epsilon of 1e-8 is 0: a gradient
of 0 made the parameter NaN. With a scaler: `ValueError: Attempting to unscale FP16 gradients.`
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(64, 64)
model = model.to(torch.bfloat16)  # AMP501
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x, y = torch.randn(32, 64, dtype=torch.bfloat16), torch.randn(32, 64, dtype=torch.bfloat16)

before = model.weight.detach().clone()
for _ in range(10):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x).float(), y.float())
    loss.backward()
    optimizer.step()
print("unchanged weights:", (model.weight == before).float().mean().item())
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x, y = torch.randn(32, 64), torch.randn(32, 64)

before = model.weight.detach().clone()
for _ in range(10):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
print("unchanged weights:", (model.weight == before).float().mean().item())
""",
    fix_advice="Drop the cast or the dtype, keep the parameters in float32 and run the forward under `torch.autocast`.",
    sources=(
        (
            "PyTorch documentation: torch.autocast and GradScaler, docs.pytorch.org/docs/stable/amp.html: do not "
            "call half() or bfloat16() on the model"
        ),
        "PyTorch source: torch/amp/grad_scaler.py",
        "measured with torch 2.4 and 2.13 on the CPU",
    ),
)
