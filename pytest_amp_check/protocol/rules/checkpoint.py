"""AMP4xx: checkpoint, resume and schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..events import AGAIN, OPTIMIZER_LOAD, SAVE, SCALER_LOAD, SCHEDULER_STEP, Event, Graph, Program
from ..fix import SAFE
from ..rule import INFO, WARNING, Fault, Rule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _name(program: Program, what: Any) -> str:
    """What the user calls a thing that is given by its key, or by its text."""
    return program.things[what].name if isinstance(what, int) else str(what)


def _events(program: Program) -> Iterator[Event]:
    return (node.event for graph in program.graphs for node in graph.nodes if node.event is not None)


def _without_scaler(program: Program) -> Iterator[tuple[str, Event, Mapping[str, str], tuple[Event, ...]]]:
    dtypes = frozenset(program.facts.get("scaler_dtypes", ()))
    if dtypes and dtypes <= {"bfloat16"}:
        return  # a scaler over bfloat16 only has nothing to remember
    saves = (x.facts for x in _events(program) if x.kind == SAVE)
    if any(facts.get("scalers") and not facts.get("optimizers") for facts in saves):
        return  # the scaler's state is saved in a file of its own
    for event in _events(program):
        facts = event.facts
        if event.kind != SAVE or facts.get("open") or facts.get("scalers") or facts.get("whole_scalers"):
            continue
        optimizers, scalers = facts.get("optimizers", ()), facts.get("scope_scalers", ())
        if optimizers and scalers:
            names = {"optimizer": _name(program, optimizers[0]), "scaler": _name(program, scalers[0])}
            yield "save:no-scaler-object" if facts.get("objects") else "save:no-scaler", event, names, ()


def _whole_scaler(event: Event, program: Program) -> Iterator[tuple[str, Mapping[str, str]]]:
    for what in event.facts.get("whole_scalers", ()):
        yield "save:whole-scaler", {"scaler": _name(program, what)}
        return


def _not_restored(program: Program) -> Iterator[tuple[str, Event, Mapping[str, str], tuple[Event, ...]]]:
    """An optimizer's state is loaded, and no way on from there or to there loads the scaler's."""
    dtypes = frozenset(program.facts.get("scaler_dtypes", ()))
    if dtypes and dtypes <= {"bfloat16"}:
        return
    loads: dict[tuple[str, int, int], list[tuple[Graph, int, Event]]] = {}
    scalers: list[tuple[Graph, int, Event]] = []
    called = {x.site.function for x in _events(program) if x.kind == OPTIMIZER_LOAD and x.site.caller is not None}
    for graph in program.graphs:
        for index, node in enumerate(graph.nodes):
            event = node.event
            if event is None or (event.site.caller is None and event.site.function in called):
                continue  # how the function is called is in view: by itself it tells nothing
            if event.kind == OPTIMIZER_LOAD and event.facts.get("holds_scaler") and event.facts.get("scope_scalers"):
                site = event.site
                loads.setdefault((site.path, site.line, site.column), []).append((graph, index, event))
            elif event.kind == SCALER_LOAD and not event.facts.get("of_others"):
                scalers.append((graph, index, event))
    for found in loads.values():
        graphs = [graph for graph, _, _ in found]
        if any(all(graph is not other for other in graphs) for graph, _, _ in scalers):
            continue  # another function loads it
        if any(_meet(graph, a, b) for graph, a, _ in found for other, b, _ in scalers if graph is other):
            continue
        for _, _, event in found:
            names = {"optimizer": str(event.names["optimizer"]), "scaler": str(event.facts["scope_scalers"][0])}
            yield "load:no-scaler", event, names, ()


def _meet(graph: Graph, a: int, b: int) -> bool:
    """Whether a way leads from one node to the other in one call of the function."""
    return b in _reached(graph, a) or a in _reached(graph, b)


def _reached(graph: Graph, start: int) -> set[int]:
    reached = {start}
    work = [start]
    while work:
        node = graph.nodes[work.pop()]
        if node.event is not None and node.event.kind == AGAIN:
            continue
        for target, _, _ in node.ways:
            if target not in reached:
                reached.add(target)
                work.append(target)
    return reached


def _cadence(event: Event, program: Program) -> Iterator[tuple[str, Mapping[str, str]]]:
    if event.facts.get("idle"):
        yield "scheduler:micro-batch", {}
    elif event.facts.get("skipped"):
        yield "scheduler:skipped", {}


_STATE_DICT = "PyTorch docs, torch.amp.GradScaler.state_dict"

_SETUP = """\
import io

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
checkpoint = io.BytesIO()

"""

#: The first two batches overflow at the first scale, so that their steps are skipped.
_SCHEDULED = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=8)
batches = [(torch.randn(32, 16), size * torch.randn(32, 1)) for size in (100, 100, 1, 1, 1, 1, 1, 1)]

"""

_SAVES_ALL = """\
import torch

def train(model, loader, optimizer, loss_fn, path):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
    torch.save(state, path)
"""

_RESUMES = """\
import torch

def resume(path, model, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scaler.load_state_dict(state["scaler"])
    return scaler
"""

SCALER_NOT_CHECKPOINTED = Rule(
    "AMP401",
    "scaler-not-checkpointed",
    WARNING,
    "A checkpoint holds the optimizer's state but not the GradScaler's.",
    faults={
        "save:no-scaler": Fault(
            "The checkpoint holds the state of `{optimizer}` but not of `{scaler}`: "
            "save `{scaler}.state_dict()` with it, and load it on resume"
        ),
        "save:no-scaler-object": Fault(
            "The checkpoint holds the state of `{optimizer}` but not of `{scaler}`: "
            "put `{scaler}` among the objects that are saved, and load it on resume"
        ),
    },
    whole=_without_scaler,
    why="""\
The scale is a part of the training state, as the optimizer's moments are: a number found by trial, and a count of clean
steps since the last change. A resumed run that starts again at 65536 skips steps until it has found the scale once
more, or trains for thousands of steps with more underflow than before where the scale had grown far beyond. A
checkpoint that carries the optimizer is meant for resuming, so it has to carry the scaler too.
""",
    harm="""\
A run that had settled at a scale of 512 skipped 7 steps after resuming without it, one at 64 skipped 10; with it, none.
A run that had grown to 2^26 started again at 2^16. Of 48 public files that save an optimizer beside a scaler, 37 forget
the scaler.
""",
    bad=_SETUP
    + """\
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
    good=_SETUP
    + """\
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
    applicability=SAFE,
    fix='Put `"scaler": scaler.state_dict()` into the checkpoint, and call `scaler.load_state_dict()` on resume.',
    sources=(
        _STATE_DICT,
        "PyTorch recipes, Automatic Mixed Precision: Saving/Resuming",
        "measured: skipped steps after resume at scales 512 and 64; 174 AMP training files of 48 public projects",
    ),
    silent=(
        ("model, optimizer and scaler are saved", _SAVES_ALL),
        (
            "weights alone, for inference",
            """\
import torch

def train(model, loader, optimizer, loss_fn, path):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    torch.save(model.state_dict(), path)
""",
        ),
        (
            "the best model is exported beside a full checkpoint",
            """\
import torch

class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.scaler = torch.amp.GradScaler("cuda")
        self.best = float("inf")

    def train_step(self, loss):
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def save(self, epoch, loss, path):
        if loss < self.best:
            self.best = loss
            torch.save({"model": self.model.state_dict(), "epoch": epoch, "loss": loss}, path + ".best")
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        state["scaler"] = self.scaler.state_dict()
        torch.save(state, path)
""",
        ),
        (
            "the scaler's state is saved where there is a scaler",
            """\
import torch

def save(path, model, optimizer, scaler):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if scaler is not None:
        state["scaler"] = scaler.state_dict()
    torch.save(state, path)

def main(model, optimizer, loss, path, fp16):
    scaler = torch.amp.GradScaler("cuda") if fp16 else None
    if scaler is not None:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    save(path, model, optimizer, scaler)
""",
        ),
        (
            "a helper that cannot be read adds to the checkpoint",
            """\
import torch

def train(model, optimizer, loss, path, extra_state):
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), **extra_state(scaler)}, path)
""",
        ),
        (
            "accelerate saves its scaler in save_state()",
            """\
from accelerate import Accelerator

def train(model, optimizer, loader, loss_fn, path):
    accelerator = Accelerator(mixed_precision="fp16")
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(loss_fn(model(x), y))
        optimizer.step()
    accelerator.save_state(path)
""",
        ),
        (
            "Lightning checkpoints the precision plugin, and with it the scaler",
            """\
import lightning as L

def main(module, data, path):
    trainer = L.Trainer(precision="16-mixed")
    trainer.fit(module, data)
    trainer.save_checkpoint(path)
""",
        ),
        (
            "Fabric keeps the scaler in its precision plugin",
            """\
from lightning.fabric import Fabric

def train(model, optimizer, loader, loss_fn, path):
    fabric = Fabric(precision="16-mixed")
    model, optimizer = fabric.setup(model, optimizer)
    for x, y in loader:
        optimizer.zero_grad()
        fabric.backward(loss_fn(model(x), y))
        optimizer.step()
    fabric.save(path, {"model": model, "optimizer": optimizer, "precision": fabric.strategy.precision})
""",
        ),
        (
            "the state_dict of mmengine's wrapper includes the scaler's",
            """\
import torch
from mmengine.optim import AmpOptimWrapper

def train(model, optimizer, loader, path):
    wrapper = AmpOptimWrapper(optimizer=optimizer)
    for data in loader:
        with wrapper.optim_context(model):
            loss = model(data)
        wrapper.update_params(loss)
    torch.save({"model": model.state_dict(), "optimizer": wrapper.state_dict()}, path)
""",
        ),
        (
            "ignite's handler saves the state of every object in its dict, the scaler's too",
            """\
import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver

def build(model, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")

    def step(engine, batch):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(batch[0]), batch[1])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    trainer = Engine(step)
    to_save = {"model": model, "optimizer": optimizer, "trainer": trainer, "amp": scaler}
    trainer.add_event_handler(Events.EPOCH_COMPLETED, Checkpoint(to_save, DiskSaver("out")))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, Checkpoint({"model": model}, DiskSaver("best")))
    return trainer
""",
        ),
        (
            "a trainer of ignite that makes its own scaler keeps it in its state, from where it is saved",
            """import torch
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers import ModelCheckpoint

def build(model, loss_fn):
    optimizer = torch.optim.AdamW(model.parameters())
    trainer = create_supervised_trainer(model, optimizer, loss_fn, device="cuda", amp_mode="amp", scaler=True)
    to_save = {"model": model, "optimizer": optimizer, "scaler": trainer.state.scaler}
    trainer.add_event_handler(Events.EPOCH_COMPLETED, ModelCheckpoint("out", "last"), to_save)
    return trainer
""",
        ),
        (
            "a trainer of ignite that is not told to scale has no scaler",
            """import torch
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers import ModelCheckpoint

def build(model, other, loss_fn):
    plain_optimizer = torch.optim.AdamW(other.parameters())
    plain = create_supervised_trainer(other, plain_optimizer, loss_fn, device="cuda", amp_mode="amp")
    to_save = {"model": other, "optimizer": plain_optimizer}
    plain.add_event_handler(Events.EPOCH_COMPLETED, ModelCheckpoint("out", "plain"), to_save)
    optimizer = torch.optim.AdamW(model.parameters())
    scaled = create_supervised_trainer(model, optimizer, loss_fn, device="cuda", amp_mode="amp", scaler=True)
    return plain, scaled
""",
        ),
        (
            "bfloat16 has no scale to keep",
            """\
import torch

def train(model, loader, optimizer, loss_fn, path):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
""",
        ),
        (
            "a scaler that is switched off has no state",
            """\
import torch

def train(model, loader, optimizer, loss_fn, path):
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(loss_fn(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
""",
        ),
    ),
)

SCALER_STATE_INVALID = Rule(
    "AMP402",
    "scaler-state-invalid",
    WARNING,
    "The scaler's state is taken at the wrong moment, saved as a whole object, or saved and never loaded.",
    faults={
        "state@stepped": Fault(
            "`{scaler}.state_dict()` is taken between step and update, so it holds the scale of before: "
            "take it after `{scaler}.update()`"
        ),
        "save:whole-scaler": Fault(
            "The checkpoint holds `{scaler}` as a whole object, which `torch.load` refuses by default: "
            "save `{scaler}.state_dict()` instead"
        ),
        "load:no-scaler": Fault(
            "The state of `{optimizer}` is loaded from a checkpoint that also holds that of `{scaler}`, which is not: "
            "load it with `{scaler}.load_state_dict()`"
        ),
    },
    on={SAVE: _whole_scaler},
    whole=_not_restored,
    why="""\
A state that is saved and never loaded helps nobody: the resumed run starts again at 65536, as if it had not been saved.
`update()` is where an iteration's overflow becomes a smaller scale. State taken after the step but before the update
holds the scale that has just overflowed, and the resumed run overflows with it again. A scaler pickled as an object
cannot be loaded with `weights_only=True`, the default since torch 2.6, and pickling it in the middle of an iteration
raises.
""",
    harm="""\
State taken before the update of an overflowed iteration held 65536 where the run went on with 32768. A pickled scaler
loads on torch 2.4 and fails on 2.6 and later with UnpicklingError `Weights only load failed`; its `state_dict()` loads
everywhere.
""",
    bad=_SETUP
    + """\
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
    good=_SETUP
    + """\
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
    fix="Save `scaler.state_dict()`, taken after `scaler.update()`, and load it where the optimizer's state is loaded.",
    sources=(
        f"{_STATE_DICT} (called after update)",
        "PyTorch docs, torch.load: weights_only",
        "measured: the saved and the next scale around an overflow; loading a pickled scaler on torch 2.4.1 and 2.13",
    ),
    silent=(
        ("the state is taken after the update", _SAVES_ALL),
        ("the state is loaded before the first scale(): the scaler keeps it until then", _RESUMES),
        (
            "the state is taken only of an enabled scaler",
            """\
import torch

def save(path, model, optimizer, scaler):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if scaler.is_enabled():
        state["scaler"] = scaler.state_dict()
    torch.save(state, path)

def restore(path, scaler):
    state = torch.load(path)
    if scaler.is_enabled() and state.get("scaler"):
        scaler.load_state_dict(state["scaler"])
""",
        ),
        (
            "resumed on a CPU, where the scaler is disabled and loads nothing",
            """\
import torch

def resume(path):
    scaler = torch.amp.GradScaler("cuda", enabled=torch.cuda.is_available())
    scaler.load_state_dict(torch.load(path, map_location="cpu")["scaler"])
    return scaler
""",
        ),
        (
            "the state is taken before the iteration begins",
            """\
import torch

def train(model, loader, optimizer, loss_fn, path):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        torch.save({"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}, path)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        (
            "the scale is only read between step and update",
            """\
import torch

def train_step(optimizer, scheduler, scaler, loss):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scale = scaler.get_scale()
    scaler.update()
    if scaler.get_scale() >= scale:
        scheduler.step()
""",
        ),
    ),
)

SCHEDULER_CADENCE = Rule(
    "AMP403",
    "scheduler-cadence",
    INFO,
    "The learning rate moves on although the optimizer did not step.",
    faults={
        "scheduler:skipped": Fault(
            "The learning rate of `{optimizer}` moves on even where its step is skipped: "
            "step the scheduler only where `{scaler}.get_scale()` did not fall in `{scaler}.update()`"
        ),
        "scheduler:micro-batch": Fault(
            "`{call}` moves the learning rate on in every micro-batch, though the optimizer steps once in a window of "
            "several: step the scheduler where the optimizer steps",
            WARNING,
        ),
    },
    on={SCHEDULER_STEP: _cadence},
    default=False,
    why="""\
A schedule that counts optimizer steps (warm-up, one-cycle, cosine over all steps) is stepped beside
`scaler.step(optimizer)`, which may have skipped. Every skipped step then costs a part of the schedule, most of all a
warm-up, where the first overflows fall. Inside an accumulation window the schedule runs as many times too fast as the
window has micro-batches. torch warns only if the very first step is skipped, and never with a fused optimizer. The
return value of `scaler.step()` does not tell: compare the scale before and after `update()`.
""",
    harm="""\
With 1 and 3 skipped steps the schedule had moved 10 times where the optimizer had stepped 9 and 7 times. Stepped in
every micro-batch of windows of 4, a linear schedule had reached a learning rate of 0 after 25 optimizer steps, where
0.75 of it was meant to be left.
""",
    bad=_SCHEDULED
    + """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()  # AMP403
""",
    good=_SCHEDULED
    + """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scale = scaler.get_scale()
    scaler.update()
    if scaler.get_scale() >= scale:
        scheduler.step()
""",
    fix="Step the scheduler under the condition of the optimizer's step, and not after a step that was skipped.",
    sources=(
        "PyTorch docs, torch.optim: How to adjust learning rate",
        "pytorch/pytorch#67590 and Lightning-AI/pytorch-lightning#18828: schedulers and skipped steps",
        "measured: learning rates after skipped steps, and in windows of 4 micro-batches",
    ),
    silent=(
        (
            "the scale fell, so the schedule waits",
            _SCHEDULED
            + """\
skipped = 0
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    if scaler.get_scale() < before:
        skipped += 1
        continue
    scheduler.step()
""",
        ),
        (
            "a schedule of epochs counts epochs, however many of their steps were skipped",
            _SCHEDULED
            + """\
for epoch in range(2):
    for x, y in reversed(batches):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    scheduler.step()
""",
        ),
        (
            "stepped once for every window",
            _SCHEDULED
            + """\
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
for i, (x, y) in enumerate(batches[2:]):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y) / 2
    scaler.scale(loss).backward()
    if (i + 1) % 2 == 0:
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if scale <= scaler.get_scale():
            scheduler.step()
""",
        ),
        (
            "a plateau scheduler is stepped with the loss of an epoch",
            _SCHEDULED
            + """\
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
for epoch in range(2):
    total = 0.0
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total += loss.item()
    plateau.step(total)
""",
        ),
    ),
)

RULES: tuple[Rule, ...] = (SCALER_NOT_CHECKPOINTED, SCALER_STATE_INVALID, SCHEDULER_CADENCE)
