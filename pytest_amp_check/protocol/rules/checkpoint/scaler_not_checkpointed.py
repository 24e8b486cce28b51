"""AMP401 scaler-not-checkpointed."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Backward, Event, OptimizerLoad, Save, ScalerNew
from ...fix import SAFE
from ...frameworks import FRAMEWORKS
from ...rule import INFO, WARNING, Certainty, Edit, Rule, TraceContext, Verdicts, ViolationKind
from ...severities import SEVERITIES
from ...sites import Site


def _check_saves(program: Program) -> Verdicts:
    dtypes = frozenset(program.attributes.scalers.loss_dtypes)
    if dtypes and dtypes <= {"bfloat16"}:
        return  # a scaler of bfloat16 only has no state worth saving
    saves = [event for event in program.iter_events() if isinstance(event, Save)]
    if any(event.scalers and not event.optimizers for event in saves):
        return  # a separate file holds the scaler's state
    for event in saves:
        if event.open or event.scalers or event.whole_scalers or _is_without_scaler(event, saves, program):
            continue
        if event.engine is not None and event.optimizers:
            yield "save:no-engine-scaler", event, _describe_engine(program, event, event.engine), ()
            continue
        remade = program.attributes.scalers.recreated_names
        scalers = [x for x in event.scope_scalers if x not in remade]
        if event.optimizers and scalers:
            names = {"optimizer": program.name_of(event.optimizers[0]), **_name_scaler(program, scalers[0])}
            label = "save:no-scaler-object" if event.objects else "save:no-scaler"
            if event.by_name:
                yield "save:no-scaler-argument", event, names, ()
                continue
            # The scaler may have no name where the checkpoint is written.
            made = next((x for x in program.iter_events() if _is_construction(x, scalers[0], program)), None)
            trace = (made, event) if made is not None and made.site.line != event.site.line else ()
            yield label if program.attributes.resumes else "save:no-scaler-unresumed", event, names, trace


def _name_scaler(program: Program, scaler: int | str) -> dict[str, str]:
    """Return the message values of a scaler that a key or a name identifies, and that may be None."""
    name = program.name_of(scaler)
    may_be_none = any(scaler in (each.key, each.name) and each.attributes.may_be_none for each in program.objects)
    return {
        "scaler": name,
        "kept_scaler": name,
        "if_any": " if the scaler is not None" if may_be_none else "",
    }


def _describe_engine(program: Program, event: Save, engine: int) -> dict[str, str]:
    """Return the message values of a checkpoint without the scaler in an attribute of a framework's object."""
    attributes = program.objects[engine].attributes
    framework = FRAMEWORKS[attributes.framework or ""]
    name = program.objects[engine].name or framework.engine.usual_name
    doubts = (attributes.doubt or WARNING, WARNING if program.attributes.resumes else INFO)
    return {
        "optimizer": program.name_of(event.optimizers[0]),
        "engine": name,
        "scaler": f"{name}.{framework.engine.scaler_attribute}",
        "severity": max(doubts, key=SEVERITIES.index),
    }


def _is_construction(event: Event, scaler: int | str, program: Program) -> bool:
    """Return True if an event constructs a scaler, which a key or a name identifies."""
    if not isinstance(event, ScalerNew) or event.subject is None:
        return False
    return program.name_of(scaler) == program.name_of(event.subject)


def _check_kept_scalers(program: Program) -> Verdicts:
    """Yield scalers of classes whose checkpoints a framework writes, without the attributes of the class."""
    dtypes = frozenset(program.attributes.scalers.loss_dtypes)
    if dtypes and dtypes <= {"bfloat16"}:
        return
    events = list(program.iter_events())
    if any(isinstance(event, Save) and event.scalers for event in events):
        return
    # Scalers that a method constructs in several branches are one scaler. Each call of the method counts by itself,
    # because the findings of an entry point that another one calls are left out.
    methods: set[tuple[str, str, Site | None]] = set()
    for event in events:
        scaler = event.subject if isinstance(event, ScalerNew) and "framework" in event.names else None
        method = (event.site.path, event.site.function, event.site.caller)
        if scaler is not None and program.objects[scaler].attributes.enabled is not False and method not in methods:
            methods.add(method)
            yield "new:not-saved", event, {}, ()


def _is_without_scaler(event: Save, saves: list[Save], program: Program) -> bool:
    """Return True if a checkpoint is written only where no scaler is used.

    Either the condition chooses a backward pass of unscaled losses, or a flag that switches a scaler on also decides
    which of two checkpoints is written, and the other one holds the scaler's state.
    """
    guards = set(event.guards)
    if not guards:
        return False
    opposite = {(key, not truth) for key, truth in guards}
    backwards = [each for each in program.iter_events() if isinstance(each, Backward)]
    scaled = [set(each.guards) for each in backwards if each.subject is not None]
    plain = set[tuple[int, bool]]().union(*(each.guards for each in backwards if each.subject is None))
    if scaled and any((key, not truth) in plain for key, truth in opposite.intersection(*scaled)):
        return True
    flags = {key for each in program.objects for key in each.attributes.enabling or ()}
    flags &= {key for key, _ in opposite}
    return any(other.scalers and any(key in flags for key, _ in opposite.intersection(other.guards)) for other in saves)


_LOAD = Edit(
    'write `if {if_loaded}: {scaler}.load_state_dict({checkpoint}["scaler"])` after this line{passing}',
    search="load",
    is_always_shown=True,
)

RULE = Rule(
    "AMP401",
    "scaler-not-checkpointed",
    WARNING,
    "A checkpoint holds the optimizer's state but not the GradScaler's.",
    effect="each resume starts at the initial scale (65536 by default): steps are skipped until it fits; no error",
    applicability=SAFE,
    program_checks={Save: _check_saves, ScalerNew: _check_kept_scalers},
    prescan_words=("scaler",),
    violations={
        "save:no-scaler": ViolationKind(
            "The checkpoint holds the state of `{optimizer}` but not of `{scaler}`: add `{kept_scaler}.state_dict()` "
            'to it, under the key `"scaler"`{if_any}, and load it where a run resumes',
            trace_context=TraceContext(background_kinds=(ScalerNew,), edits=(_LOAD,)),
        ),
        "save:no-scaler-object": ViolationKind(
            "The checkpoint holds the state of `{optimizer}` but not of `{scaler}`: add `{scaler}` to "
            "the saved objects, and load it on resume",
            trace_context=TraceContext(
                background_kinds=(ScalerNew,), edits=(Edit("load the state of `{scaler}` here, too", (OptimizerLoad,)),)
            ),
        ),
        "save:no-scaler-unresumed": ViolationKind(
            "The checkpoint holds the state of `{optimizer}` but not of `{scaler}`, and no analyzed "
            'code loads it: add `{scaler}.state_dict()` to it, under the key `"scaler"`{if_any}, if runs are resumed',
            INFO,
            effect=(
                "none until a run is resumed; then steps are skipped until the scale (65536 by default) fits again"
            ),
            trace_context=TraceContext(background_kinds=(ScalerNew,)),
        ),
        "save:no-engine-scaler": ViolationKind(
            "The checkpoint holds the state of `{optimizer}` but not of `{scaler}`: save and load with "
            "`{engine}.save_state` and `load_state`, or add the state of `{scaler}` where it is not None",
            certainty=Certainty(is_possible=True, assumption="mixed precision is float16"),
        ),
        "save:no-scaler-argument": ViolationKind(
            "`{function}` gets `{optimizer}` to save but not `{scaler}`, whose state a resumed run "
            "needs: pass `{scaler}` too, save `{scaler}.state_dict()` there, and load it on resume",
            INFO,
            effect=(
                "none until a run is resumed; then steps are skipped until the scale (65536 by default) fits again"
            ),
            certainty=Certainty(
                is_possible=True, assumption="`{function}` saves what it is given, and nothing else saves `{scaler}`"
            ),
        ),
        "new:not-saved": ViolationKind(
            "{framework} saves the optimizer but not the scaler of this class: add the scaler's `state_dict()` to the "
            "checkpoint in `{method}`, and load it on resume",
            certainty=Certainty(is_possible=True, assumption="no other code adds the scaler to the checkpoint"),
        ),
    },
    rationale="""\
The scale is part of the training state, like the optimizer's moments. The state holds a number found by trial, and a
count of clean steps since the last change. A resumed run that starts again at 65536 skips steps until it has found the
scale again. If the scale had grown far beyond 65536, the run trains for thousands of steps with more underflow than
before. A checkpoint with the optimizer's state is meant for resuming, so it must also hold the scaler's state. If no
file of the project loads an optimizer's state, nothing is resumed yet, and the finding is info. apex.amp keeps such a
scale, too: `amp.state_dict()` returns it.
""",
    harm="""\
A run that had settled at a scale of 512 skipped 7 steps after resuming without it, one at 64 skipped 10; with it, none.
A run that had grown to 2^26 started again at 2^16. Of 48 public files that save an optimizer beside a scaler, 37 forget
the scaler.
""",
    bad_example="""\
import io

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
checkpoint = io.BytesIO()

for epoch in range(2):
    for _ in range(4):
        x, y = torch.randn(32, 16), torch.randn(32, 1)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    checkpoint.seek(0)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)  # AMP401
""",
    good_example="""\
import io

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
checkpoint = io.BytesIO()

for epoch in range(2):
    for _ in range(4):
        x, y = torch.randn(32, 16), torch.randn(32, 1)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
    checkpoint.seek(0)
    torch.save(state, checkpoint)

checkpoint.seek(0)
scaler.load_state_dict(torch.load(checkpoint)["scaler"])
""",
    fix_advice='Put `"scaler": scaler.state_dict()` into the checkpoint, and call `scaler.load_state_dict()` on '
    "resume.",
    sources=(
        "PyTorch docs, torch.amp.GradScaler.state_dict",
        "PyTorch recipes, Automatic Mixed Precision: Saving/Resuming",
        "measured: skipped steps after resume at scales 512 and 64; 174 AMP training files of 48 public projects",
    ),
)
