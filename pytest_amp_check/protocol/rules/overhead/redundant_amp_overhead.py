"""AMP701 redundant-amp-overhead."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Event, Overhead, ScalerStep, ZeroGrad
from ...rule import INFO, STATIC, Labels, Rule, Verdicts, ViolationKind

#: Reason of repeated weight casts -> label.
_CASTS = {"region": "cast:each-turn", "cache": "cast:no-cache"}


def _check_recast(event: Overhead, program: Program) -> Labels:
    label = _CASTS.get(event.how)
    if label is not None:
        yield label, {}


def _check_each_step(program: Program) -> Verdicts:
    for graph in program.graphs:
        events = [node.event for node in graph.nodes if node.event is not None]
        steps = [event for event in events if isinstance(event, ScalerStep) and _waits_for_device(event, program)]
        for event in events if steps else ():
            if isinstance(event, Overhead) and event.how == "scale":
                if any(step.subject == event.subject and _runs_with_each_step(event, step) for step in steps):
                    yield "scale:told", event, {}, ()
            elif (
                isinstance(event, ZeroGrad)
                and event.zeros
                and any(step.object in (event.owners or ()) and _is_in_same_loop(event, step) for step in steps)
            ):
                yield "zero:zeros", event, {}, ()


def _waits_for_device(step: Event, program: Program) -> bool:
    """Return True if a step is in a loop and its scaler is not known to be on the CPU."""
    looping = any(key > 0 for key in step.loops or ())
    return looping and step.subject is not None and program.objects[step.subject].attributes.device != "cpu"


def _is_in_same_loop(event: Event, step: Event) -> bool:
    """Return True if an event and a step are in the same loop."""
    return event.loops == step.loops


def _runs_with_each_step(event: Event, step: Event) -> bool:
    """Return True if an event happens at least as often as a step."""
    return _is_in_same_loop(event, step) and set(event.guards) <= set(step.guards)


RULE = Rule(
    "AMP701",
    "redundant-amp-overhead",
    INFO,
    "Weights are cast, the loss scale is copied to the CPU, or gradients are zeroed, more often than needed.",
    effect="same result, but slower: the casts are repeated, and each copy stays in memory until backward",
    detected_by=STATIC,
    on_by_default=False,
    event_checks={Overhead: _check_recast},
    program_checks={ScalerStep: _check_each_step},
    prescan_words=("autocast", "scaler"),
    violations={
        "cast:each-turn": ViolationKind(
            "`{context}` is entered in each iteration of a loop that runs `{module}`, so the weights are cast again "
            "each time: enter autocast once, around the loop"
        ),
        "cast:no-cache": ViolationKind(
            "`{context}` caches no cast weights, so each iteration casts the weights of `{module}` again and keeps "
            "the copies: remove `cache_enabled=False`"
        ),
        "scale:told": ViolationKind(
            "`{call}()` waits for the device in every step, only to report the loss scale: report the scale once in "
            "many steps",
            effect="same result, but slower: the CPU waits for the device in every step",
        ),
        "zero:zeros": ViolationKind(
            "`{call}(set_to_none=False)` fills gradients with zeros, which costs memory and an addition: leave "
            "`set_to_none` at its default",
            effect="slower, and more memory; same result, except that parameters without a gradient are stepped, too",
        ),
    },
    rationale="""\
An autocast region casts each float32 weight once and keeps the copy until the outermost region exits. A region that is
entered in every time step, or with `cache_enabled=False`, casts the same weights again and again. Each copy stays in
memory until backward. `get_scale()` copies a number from the device and waits until the device is done.
`set_to_none=False` fills gradients with zeros that backward then adds to, and holds their memory through forward. None
of these changes a result, except that an optimizer also steps parameters whose gradient is zero. The rule reports only
plain cases in source: a loop with its region and its backward in view, and a scale that is only reported. It leaves out
regions around different layers (2 microseconds each), reads of the scale that a program computes with, and
`loss.item()`. It also leaves out frozen float32 weights that could be cast once, because rounding them may be unwanted.
""",
    harm="""\
A Linear layer ran 16 times before one backward. A region in each iteration, or `cache_enabled=False`, cast weight and
bias 32 times; one region around the loop cast them 2 times. Zeroed gradients of a model with 24 parameters cost 24
additions in each backward, and kept 1.1 MB of gradients alive during forward. `set_to_none=True` costs neither.
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
cell, head = nn.Linear(16, 16), nn.Linear(16, 1)
optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)
for _ in range(3):
    h, y = torch.randn(4, 16), torch.randn(4, 1)
    for _ in range(16):
        with torch.autocast("cpu", dtype=torch.bfloat16):  # AMP701
            h = torch.tanh(cell(h))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(head(h), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
cell, head = nn.Linear(16, 16), nn.Linear(16, 1)
optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)
for _ in range(3):
    h, y = torch.randn(4, 16), torch.randn(4, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(16):
            h = torch.tanh(cell(h))
        loss = nn.functional.mse_loss(head(h), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    fix_advice="Enter autocast once around the loop, report the scale now and then, and let `zero_grad()` set None.",
    sources=(
        "PyTorch documentation: GradScaler.get_scale, which incurs a CPU-GPU sync",
        "PyTorch documentation: Performance Tuning Guide, zero_grad() with set_to_none",
        "PyTorch source: aten/src/ATen/autocast_mode.cpp, casts are kept until the outermost region ends",
        "pytorch-lightning issue 21611",
        "measured: casts and additions counted by a dispatch mode, torch 2.13",
    ),
)
