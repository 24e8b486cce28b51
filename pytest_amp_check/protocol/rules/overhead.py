"""AMP7xx: what mixed precision is made to do more often than it needs to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..events import OVERHEAD, SCALER_STEP, Event, Program
from ..rule import INFO, STATIC, Fault, Rule

#: How weights are cast anew -> label.
_CASTS = {"region": "cast:each-turn", "cache": "cast:no-cache"}


def _recast(event: Event, program: Program) -> Iterator[tuple[str, Mapping[str, str]]]:
    label = _CASTS.get(event.facts.get("how", ""))
    if label is not None:
        yield label, {}


def _each_step(program: Program) -> Iterator[tuple[str, Event, Mapping[str, str], tuple[Event, ...]]]:
    for graph in program.graphs:
        events = [node.event for node in graph.nodes if node.event is not None]
        steps = [event for event in events if event.kind == SCALER_STEP and _waits(event, program)]
        for event in events if steps else ():
            owners = event.facts.get("owners") or ()
            if event.kind == OVERHEAD and event.facts.get("how") == "scale":
                if any(step.subject == event.subject and _beside(event, step) for step in steps):
                    yield "scale:told", event, {}, ()
            elif event.facts.get("zeros") and any(step.object in owners and _turns(event, step) for step in steps):
                yield "zero:zeros", event, {}, ()


def _waits(step: Event, program: Program) -> bool:
    """Whether a step in a loop is that of a scaler whose numbers are not on the CPU anyway, as far as is known."""
    looping = any(key > 0 for key in step.facts.get("loops", ()))
    return looping and step.subject is not None and program.things[step.subject].facts.get("device") != "cpu"


def _turns(event: Event, step: Event) -> bool:
    """Whether an event and a step stand in the same loop."""
    return bool(event.facts["loops"] == step.facts["loops"])


def _beside(event: Event, step: Event) -> bool:
    """Whether an event happens as often as a step."""
    return _turns(event, step) and set(event.guards) <= set(step.guards)


_IMPORTS = """\
import torch
from torch import nn

"""

REDUNDANT_AMP_OVERHEAD = Rule(
    "AMP701",
    "redundant-amp-overhead",
    INFO,
    "Weights are cast, the loss scale is copied to the CPU, or gradients are zeroed, more often than needed.",
    faults={
        "cast:each-turn": Fault(
            "`{context}` is entered in each turn of a loop that runs `{module}`, so its weights are cast anew each "
            "time: enter autocast once, around the loop"
        ),
        "cast:no-cache": Fault(
            "`{context}` keeps no weights that it has cast, and `{module}` runs in a loop in it, so its weights are "
            "cast anew, and kept for backward, each time: leave out `cache_enabled=False`"
        ),
        "scale:told": Fault(
            "`{call}()` copies the loss scale from the device in every step only to report it, and the program waits "
            "for that: report it once in many steps"
        ),
        "zero:zeros": Fault(
            "`{call}(set_to_none=False)` writes zeros that the next backward adds to, and keeps the gradients during "
            "forward: leave `set_to_none` at its default"
        ),
    },
    default=False,
    readers=STATIC,
    on={OVERHEAD: _recast},
    whole=_each_step,
    why="""\
An autocast region casts each float32 weight once and keeps the copy until the outermost region is left. A region that
is entered anew in each time step, or one with `cache_enabled=False`, casts the same weights again and again, and each
copy stays in memory until backward. `get_scale()` copies a number from the device, which waits until the device is
done. `set_to_none=False` fills gradients with zeros that backward then adds to, and holds their memory through forward.
None of these changes a result, except that an optimizer also steps parameters whose gradient is zero. Found is what is
plain in source: a loop with its region and its backward in view, a scale that is only reported. Left out are regions
around different layers (2 microseconds each), reads of the scale that a program computes with, `loss.item()`, frozen
float32 weights that could be cast once (rounding them may not be wanted), and sizes that Tensor Cores cannot use.
""",
    harm="""\
A Linear layer run 16 times before one backward: 32 casts of weight and bias with a region in each turn or with
`cache_enabled=False`, 2 with one region around. Zeroed gradients of a model with 24 parameters: 24 additions in each
backward, and 1.1 MB of gradients alive during forward, of which neither is there with `set_to_none=True`.
""",
    bad=_IMPORTS
    + """\
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
    good=_IMPORTS
    + """\
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
    fix="Enter autocast once around the loop, report the scale now and then, and let `zero_grad()` set None.",
    sources=(
        "PyTorch documentation: GradScaler.get_scale, which incurs a CPU-GPU sync",
        "PyTorch documentation: Performance Tuning Guide, zero_grad() with set_to_none",
        "PyTorch source: aten/src/ATen/autocast_mode.cpp, casts are kept until the outermost region ends",
        "pytorch-lightning issue 21611",
        "measured: casts and additions counted by a dispatch mode, torch 2.13",
    ),
    silent=(
        (
            "each turn runs backward by itself",
            """\
import torch
from torch import nn

def train(model, loader, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        (
            "the region around is what keeps the weights",
            """\
import torch
from torch import nn

def train(cell, batches, optimizer, loss_fn):
    for x, y in batches:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            for t in range(16):
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    x = cell(x)
            loss = loss_fn(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
        ),
        (
            "each turn runs another layer",
            """\
import torch
from torch import nn

def train(layers, batches, optimizer, loss_fn):
    for x, y in batches:
        for layer in layers:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                x = layer(x)
        loss = loss_fn(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
        ),
        (
            "without gradients nothing is kept",
            """\
import torch
from torch import nn

def train(model, teacher, batches, optimizer, loss_fn):
    for x, _ in batches:
        with torch.no_grad():
            for _ in range(4):
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    x = teacher(x)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_fn(model(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
        ),
        (
            "an evaluation does not run backward",
            """\
import torch
from torch import nn

def evaluate(model, loader, count):
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            count(model(x), y)

def train(model, loader, held_out, optimizer, loss_fn, count):
    for epoch in range(10):
        evaluate(model, held_out, count)
        for x, y in loader:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        (
            "the weights change in the region, so that nothing may be kept",
            """\
import torch
from torch import nn

def adapt(model, tasks, optimizer, loss_fn):
    for x, y in tasks:
        with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
            for _ in range(4):
                x = model(x)
                model.load_state_dict(torch.load("fast.pt"))
            loss = loss_fn(x, y)
        loss.backward()
        optimizer.step()
""",
        ),
        (
            "the scale is compared, to tell whether the step was skipped",
            """\
import torch
from torch import nn

def train(model, loader, optimizer, scheduler, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= before:
            scheduler.step()
""",
        ),
        (
            "the scale is reported once in a hundred steps",
            """\
import torch
from torch import nn

def train(model, loader, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if i % 100 == 0:
            print(i, scaler.get_scale())
""",
        ),
        (
            "the loss is reported too, which waits for the device anyway",
            """\
import torch
from torch import nn

def train(model, loader, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"{i}: {loss:.4f} at the scale {scaler.get_scale()}")
""",
        ),
        (
            "a scaler on the CPU copies nothing",
            """\
import torch
from torch import nn

def train(model, loader, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cpu")
    for x, y in loader:
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(scaler.get_scale())
""",
        ),
        (
            "the scale is reported once an epoch",
            """\
import torch
from torch import nn

def train(model, loader, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        print(epoch, scaler.get_scale())
""",
        ),
        (
            "a captured graph writes to the same gradients each time",
            """\
import torch
from torch import nn

def train(model, static, loader, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
            loss = loss_fn(model(static), static)
        scaler.scale(loss).backward()
    for x in loader:
        static.copy_(x)
        graph.replay()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=False)
""",
        ),
        (
            "gradients that code reads must not be None",
            """\
import torch
from torch import nn

def train(model, loader, optimizer, loss_fn, total):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for p in model.parameters():
            total.add_(p.grad.abs().sum())
        scaler.step(optimizer)
        scaler.update()
""",
        ),
    ),
)

RULES: tuple[Rule, ...] = (REDUNDANT_AMP_OVERHEAD,)
