"""AMP402 scaler-state-invalid."""

from __future__ import annotations

from ...event_graph import Graph, Program
from ...events import Again, Event, OptimizerLoad, Save, ScalerLoad, ScalerStep
from ...rule import WARNING, Labels, Precedence, Rule, Verdicts, ViolationKind


def _check_whole_scaler(event: Save, program: Program) -> Labels:
    for what in event.whole_scalers:
        yield "save:whole-scaler", {"scaler": program.name_of(what)}
        return


def _check_not_restored(program: Program) -> Verdicts:
    """Yield loads of an optimizer's state without a load of the scaler's state on the same path."""
    dtypes = frozenset(program.attributes.scalers.loss_dtypes)
    if dtypes and dtypes <= {"bfloat16"}:
        return
    loads: dict[tuple[str, int, int], list[tuple[Graph, int, OptimizerLoad]]] = {}
    scalers: list[tuple[Graph, int, Event]] = []
    called = {
        x.site.function for x in program.iter_events() if isinstance(x, OptimizerLoad) and x.site.caller is not None
    }
    for graph in program.graphs:
        for index, node in enumerate(graph.nodes):
            event = node.event
            if event is None or (event.site.caller is None and event.site.function in called):
                continue  # an analyzed caller exists, so the entry point shows nothing new
            if isinstance(event, OptimizerLoad) and event.holds_scaler and event.scope_scalers:
                site = event.site
                loads.setdefault((site.path, site.line, site.column), []).append((graph, index, event))
            elif isinstance(event, ScalerLoad) and not event.of_others:
                scalers.append((graph, index, event))
    for found in loads.values():
        graphs = [graph for graph, _, _ in found]
        if any(all(graph is not other for other in graphs) for graph, _, _ in scalers):
            continue  # another function loads it
        if any(_are_on_one_path(graph, a, b) for graph, a, _ in found for other, b, _ in scalers if graph is other):
            continue
        for _, _, event in found:
            names = {"optimizer": str(event.names["optimizer"]), "scaler": str(event.scope_scalers[0])}
            yield "load:no-scaler", event, names, ()


def _are_on_one_path(graph: Graph, a: int, b: int) -> bool:
    """Return True if a path connects the two nodes within one call of the function."""
    return b in _find_reachable(graph, a) or a in _find_reachable(graph, b)


def _find_reachable(graph: Graph, start: int) -> set[int]:
    reached = {start}
    work = [start]
    while work:
        node = graph.nodes[work.pop()]
        if isinstance(node.event, Again):
            continue
        for target, _, _ in node.edges:
            if target not in reached:
                reached.add(target)
                work.append(target)
    return reached


RULE = Rule(
    "AMP402",
    "scaler-state-invalid",
    WARNING,
    "The scaler's state is taken at the wrong moment, saved as a whole object, or saved and never loaded.",
    effect="each resume starts at the initial scale (65536 by default): steps are skipped until it fits; no error",
    event_checks={Save: _check_whole_scaler},
    program_checks={OptimizerLoad: _check_not_restored},
    prescan_words=("scaler",),
    violations={
        "state@stepped": ViolationKind(
            "`{scaler}.state_dict()` is taken between step and update, so it holds the old scale: take it after "
            "`{scaler}.update()`",
            effect=(
                "after an overflow the checkpoint holds the scale that has overflowed: a resumed run skips a step again"
            ),
            trace_kinds=(ScalerStep,),
            precedence=Precedence(needs_update=True),
        ),
        "save:whole-scaler": ViolationKind(
            "The checkpoint holds `{scaler}` as a whole object, which `torch.load` refuses by default: "
            "save `{scaler}.state_dict()` instead",
            effect="from torch 2.6 on, loading the checkpoint raises UnpicklingError",
        ),
        "load:no-scaler": ViolationKind(
            "`{optimizer}` is loaded from a checkpoint but `{scaler}` is not, so the loss scale starts "
            "at its initial value: load it with `{scaler}.load_state_dict()`"
        ),
    },
    rationale="""\
A state that is saved and never loaded has no effect: the resumed run starts again at 65536. After an
overflow, `update()` reduces the scale. State taken after the step but before the update holds the scale that has
just overflowed, and the resumed run overflows with it again. A scaler pickled as an object cannot be loaded with
`weights_only=True`, the default since torch 2.6. Pickling it in the middle of an iteration raises.
""",
    harm="""\
State taken before the update of an overflowed iteration held 65536; the run itself went on with 32768. A pickled scaler
loads on torch 2.4 and fails on 2.6 and later with UnpicklingError `Weights only load failed`; its `state_dict()` loads
everywhere.
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

for _ in range(4):
    x, y = torch.randn(32, 16), torch.randn(32, 1)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    state["scaler"] = scaler.state_dict()  # AMP402
    checkpoint.seek(0)
    torch.save(state, checkpoint)
    scaler.update()
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

for _ in range(4):
    x, y = torch.randn(32, 16), torch.randn(32, 1)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    state["scaler"] = scaler.state_dict()
    checkpoint.seek(0)
    torch.save(state, checkpoint)
""",
    fix_advice=(
        "Save `scaler.state_dict()`, taken after `scaler.update()`, and load it together with the optimizer's state."
    ),
    sources=(
        "PyTorch docs, torch.amp.GradScaler.state_dict (called after update)",
        "PyTorch docs, torch.load: weights_only",
        ("measured: the saved and the next scale around an overflow; loading a pickled scaler on torch 2.4.1 and 2.13"),
    ),
)
