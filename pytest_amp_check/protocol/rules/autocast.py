"""Rules on autocast regions: where they begin and end, what may run inside, and what their arguments mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..events import (
    AUTOCAST_ENTER,
    AUTOCAST_NEW,
    BACKWARD,
    CUSTOM_FUNCTION,
    DTYPE_CLASH,
    FORWARD,
    MODULE_CAST,
    SCALE,
    SCOPE_LOST,
    Event,
    Program,
    Symbol,
)
from ..fix import SAFE
from ..rule import BOTH, ERROR, INFO, RUNTIME, STATIC, WARNING, Fault, Rule
from ..surface import AUTOCAST_DEVICES, DTYPES, lookup

_AUTOCAST = "PyTorch documentation: torch.autocast, docs.pytorch.org/docs/stable/amp.html"
_EXAMPLES = (
    "PyTorch documentation: Automatic Mixed Precision examples, docs.pytorch.org/docs/stable/notes/amp_examples.html"
)
_SOURCE = "PyTorch source: torch/amp/autocast_mode.py"
_CACHE = "PyTorch source: aten/src/ATen/autocast_mode.cpp"
_MEASURED = "measured with torch 2.13 on the CPU"
_MEASURED_BOTH = "measured with torch 2.4 and 2.13 on the CPU"

#: Device types that torch or its users know but autocast does not. A name missing here may be a vendor's own back end.
_NO_AUTOCAST = frozenset("gpu amd fpga hip ideep lazy meta mkldnn nvidia opencl opengl rocm tpu ve vulkan".split())
#: Back ends that bring their own list of dtypes.
_OWN_DTYPES = frozenset({"npu", "privateuseone"})


def _scope_lost(event: Event, program: Program) -> Iterator[tuple[str, Mapping[str, str]]]:
    yield f"scope:{event.facts['how']}", {}


def _poisoned(event: Event, program: Program) -> Iterator[tuple[str, Mapping[str, str]]]:
    if event.facts.get("poisoned"):
        yield "forward@poisoned", {}


def _arguments(event: Event, program: Program) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Judge the arguments of an autocast as torch will: first whether they bind, then each by itself."""
    entry = lookup(event.facts["callable"])
    if entry is None:
        return
    arguments: Mapping[str, object] = event.facts["arguments"]
    if event.facts.get("excess"):
        yield "autocast:too-many", {"takes": str(len(entry.parameters))}
    for name in arguments:
        if name not in entry.parameters and not name.startswith("*"):
            yield "autocast:unknown-argument", {"argument": name, "known": ", ".join(entry.parameters)}
    device = entry.facts.get("device")
    if device is None:
        # A star may hold any argument, so a device that is not seen is not a device that is missing.
        if "device_type" in arguments:
            yield from _device(arguments["device_type"])
            device = arguments["device_type"]
        elif not any(name.startswith("*") for name in arguments):
            yield "autocast:no-device", {}
    yield from _dtype(arguments.get("dtype"), device, arguments.get("enabled", True) is False)
    yield from _enabled(arguments.get("enabled", True), entry.facts.get("device"))
    cache = arguments.get("cache_enabled")
    if cache is not None and not isinstance(cache, (bool, Symbol)):
        yield "autocast:not-a-bool", {"argument": "cache_enabled", "value": repr(cache)}


def _device(value: object) -> Iterator[tuple[str, Mapping[str, str]]]:
    if isinstance(value, Symbol):
        if value == "torch.device()":
            yield "autocast:device-object", {}
        elif value in DTYPES:
            yield "autocast:not-a-device", {"value": str(value)}
        return
    if not isinstance(value, str):
        yield "autocast:not-a-device", {"value": repr(value)}
        return
    kind, colon, index = value.partition(":")
    if not kind or kind != kind.lower() or kind in _NO_AUTOCAST or (colon and not index.isdecimal()):
        yield "autocast:unknown-device", {"device": repr(value)}
    elif colon:
        yield "autocast:indexed-device", {"device": repr(value), "kind": repr(kind)}


def _dtype(value: object, device: object, disabled: bool) -> Iterator[tuple[str, Mapping[str, str]]]:
    if value is None:
        return
    if not isinstance(value, Symbol):
        if isinstance(value, str):
            yield "autocast:string-dtype", {"value": repr(value)}
        else:
            yield "autocast:bool-dtype", {"value": repr(value), "enabled": repr(bool(value))}
        return
    if disabled or isinstance(device, Symbol) or not isinstance(device, str):
        return
    kind = device.partition(":")[0]
    dtype = DTYPES.get(value)
    # CUDA takes any dtype: autocast("cuda", dtype=torch.float32) forces its listed ops into float32 and is in use.
    if dtype in ("float32", "float64") and kind in AUTOCAST_DEVICES - _OWN_DTYPES and kind != "cuda":
        yield "autocast:unsupported-dtype", {"dtype": str(value), "device": kind}


def _enabled(value: object, device: object) -> Iterator[tuple[str, Mapping[str, str]]]:
    if isinstance(value, bool):
        return
    if isinstance(value, Symbol):
        if value in DTYPES:
            yield "autocast:dtype-as-enabled", {"value": str(value)}
        elif value == "torch.device()":
            yield "autocast:device-as-enabled", {"value": "a torch.device"}
    elif isinstance(value, str) and isinstance(device, str):
        yield "autocast:device-as-enabled", {"value": repr(value)}
    else:
        yield "autocast:not-a-bool", {"argument": "enabled", "value": repr(value)}


def _custom_functions(program: Program) -> Iterator[tuple[str, Event, Mapping[str, str], tuple[Event, ...]]]:
    """Functions that break where they are used, once something runs backward and enters autocast."""
    events = [node.event for graph in program.graphs for node in graph.nodes if node.event is not None]
    trains = any(event.kind == BACKWARD for event in events)
    enters = trains and any(event.kind == AUTOCAST_ENTER and event.facts["enabled"] for event in events)
    enters = enters and not any(event.kind == MODULE_CAST for event in events)
    for event in events:
        if event.kind == CUSTOM_FUNCTION and (not event.facts["applied"] or enters):
            yield f"function:{event.facts['how']}", event, {}, ()


def _outside(program: Program) -> Iterator[tuple[str, Event, Mapping[str, str], tuple[Event, ...]]]:
    """Losses that a live scaler scales and whose forward ran outside autocast; the forward is blamed, where known."""
    live = {thing.key for thing in program.facts.get("live_scalers", ())}
    never = not program.facts.get("enters_autocast", True)
    blamed: dict[tuple[int, int], Event] = {}
    for number, graph in enumerate(program.graphs):
        for node in graph.nodes:
            event = node.event
            if event is None:
                continue
            if event.kind == MODULE_CAST and event.facts.get("dtype") == "float16":
                return  # float16 by hand needs the scaler too
            if event.kind != SCALE or event.subject is None or event.subject not in live:
                continue
            forward = event.facts.get("forward")
            if event.facts.get("autocast") == "out" and event.facts.get("loss_in_region"):
                yield "scale@forward-outside", forward or event, {}, (event,)
            elif never and event.facts.get("float32", True):
                # Once for each function that is read by itself: which of these count is decided later.
                key = (number, event.subject)
                earlier = blamed.get(key)
                if earlier is None or _tells(event) > _tells(earlier):
                    blamed[key] = event
    for event in blamed.values():
        label = "scale@no-autocast" if event.facts.get("forward_read") else "scale@no-autocast-unknown"
        yield label, event.facts.get("forward") or event, {}, (event,)


def _tells(event: Event) -> int:
    """How much is known of the forward behind a scaled loss."""
    return bool(event.facts.get("forward")) + bool(event.facts.get("forward_read"))


def _clash(event: Event, program: Program) -> Iterator[tuple[str, Mapping[str, str]]]:
    # What a model that cannot be read gives may be float32.
    if not event.facts["guessed"]:
        dtype = event.facts["dtype"]
        yield f"clash:{event.facts['how']}", {"dtype": "low-precision" if dtype == "half" else dtype}


RULES: tuple[Rule, ...] = (
    Rule(
        "AMP101",
        "stale-weight-cache",
        ERROR,
        "Parameters change inside an open autocast region, and later forwards reuse stale low-precision weights.",
        faults={
            "write@region-then-forward": Fault(
                "`{call}` changes parameters inside an open autocast region, whose next forward reuses the"
                " low-precision copies of the old ones: enter autocast anew for each forward and leave none open around"
                " the loop"
            ),
        },
        why="""\
Autocast casts a float32 parameter once and keeps the low-precision copy until the **outermost** region exits. Any
region counts as outermost: one of another device, one with `enabled=False`, a decorator on `train()`, a context on an
ExitStack. A parameter that is written before that exit leaves its copy stale, and every later forward in the region
computes with the weights of before. Nothing raises, and the optimizer goes on updating parameters that no forward
reads.
""",
        harm="""\
A loop with its forward, backward and step inside one region showed a loss of 0.5813 for all 200 steps, while the real
parameters ran away unseen: their loss in float32 was 30.3 with SGD and 137 with Adam, where the right loop reached
0.261 and 0.00004. float16 with a scaler and bfloat16 behave alike, and an outer `autocast(..., enabled=False)` is
enough.
""",
        bad="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

with torch.autocast("cpu", enabled=False):
    for step in range(10):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # AMP101
        scaler.update()
        print(step, loss.item())
""",
        good="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for step in range(10):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(step, loss.item())
""",
        fix=(
            "Open the region inside the loop, around the forward and the loss alone; where it must stay open, construct"
            " it with `cache_enabled=False` or call `torch.clear_autocast_cache()` after each update."
        ),
        silent=(
            (
                "the region is entered anew for each iteration",
                """\
def train(model, loader, optimizer, scaler, criterion):
    for inputs, targets in loader:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
            ),
            (
                "one context object, entered and left once for each iteration",
                """\
ctx = torch.autocast("cuda", dtype=torch.bfloat16)


def train(model, loader, optimizer):
    for inputs, targets in loader:
        with ctx:
            loss = model(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
""",
            ),
            (
                "nothing is cached with cache_enabled=False",
                """\
def adapt(model, loader, optimizer):
    with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        for inputs in loader:
            loss = model(inputs).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
""",
            ),
            (
                "the cache is cleared between the write and the next forward",
                """\
def evaluate_with_average(model, average, inputs):
    with torch.autocast("cuda", dtype=torch.bfloat16), torch.no_grad():
        before = model(inputs)
        model.load_state_dict(average.state_dict())
        torch.clear_autocast_cache()
        return before, model(inputs)
""",
            ),
            (
                "bfloat16 parameters are never cast, so never cached",
                """\
model = Decoder(config).to(torch.bfloat16)
average = Decoder(config).to(torch.bfloat16)


@torch.no_grad()
def compare(inputs):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        before = model(inputs)
        model.load_state_dict(average.state_dict())
        return before, model(inputs)
""",
            ),
            (
                "frozen parameters are cast on every use and never cached",
                """\
teacher = Encoder(config).requires_grad_(False)


def distil(student, loader):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        for inputs in loader:
            target = teacher(inputs)
            teacher.load_state_dict(student.state_dict())
            (student(inputs) - target - teacher(inputs)).square().mean().backward()
""",
            ),
            (
                "a compiled forward runs without the cache",
                """\
model = torch.compile(Decoder(config))
optimizer = torch.optim.AdamW(model.parameters())
with torch.autocast("cuda", dtype=torch.bfloat16):
    for inputs, targets in loader:
        loss = model(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
            ),
            (
                "the step is the last thing in its region, so no forward sees the stale copies",
                """\
for inputs, targets in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
            ),
            (
                "validation has a region of its own",
                """\
for epoch in range(epochs):
    train_one_epoch(model, loader, optimizer, scaler)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        accuracy = sum((model(x).argmax(-1) == y).sum() for x, y in valid_loader)
""",
            ),
            (
                "a decorated forward opens and closes its region at each call",
                """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 2)

    @torch.autocast("cuda", dtype=torch.bfloat16)
    def forward(self, x, y):
        return nn.functional.cross_entropy(self.linear(x), y)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    model(x, y).backward()
    optimizer.step()
""",
            ),
        ),
        sources=(
            _CACHE,
            _SOURCE,
            "X-GenGroup/Flow-Factory pull request 186: training frozen by an outer autocast",
            "pytorch/pytorch issue 165068: the cast cache",
            _MEASURED_BOTH,
        ),
        readers=BOTH,
    ),
    Rule(
        "AMP102",
        "reentrant-autocast-instance",
        ERROR,
        "One autocast object is entered twice, so autocast stays enabled after it exits.",
        faults={
            "enter@entered": Fault(
                "`{context}` is entered while it is already open, so autocast stays enabled after both exits: create a"
                " new autocast object for the inner region"
            ),
        },
        why="""\
An autocast object stores the state to return to **on itself** when it is entered. Entered a second time before it
exits, it overwrites that with the state of inside, so the last exit restores "enabled", and the rest of the program
runs under autocast. A decorator is one such object, shared by all calls of the function: a decorated function that
calls itself, or a decorated `forward` of a class that contains instances of itself, enters it twice. Using one object
several times in sequence is fine.
""",
        harm="""\
After `with ctx: with ctx: ...` both regions have closed and `torch.is_autocast_enabled()` is still true: every later
matmul of the thread runs in low precision, losses and evaluation included, and nothing says so. The same bug class
was once a bug of PyTorch's own `enable_grad`.
""",
        bad="""\
import torch
from torch import nn

encoder, head = nn.Linear(8, 8), nn.Linear(8, 2)
ctx = torch.autocast("cpu", dtype=torch.bfloat16)


def predict(x):
    with ctx:
        hidden = encoder(x)
        with ctx:  # AMP102
            return head(hidden)


with torch.no_grad():
    predict(torch.randn(4, 8))
    print("autocast after the region:", torch.is_autocast_enabled("cpu"), head(torch.randn(4, 8)).dtype)
""",
        good="""\
import torch
from torch import nn

encoder, head = nn.Linear(8, 8), nn.Linear(8, 2)


def predict(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = encoder(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return head(hidden)


with torch.no_grad():
    predict(torch.randn(4, 8))
    print("autocast after the region:", torch.is_autocast_enabled("cpu"), head(torch.randn(4, 8)).dtype)
""",
        fix="Construct an autocast where it is entered, with `with torch.autocast(...):` in the body; share no object.",
        applicability=SAFE,
        silent=(
            (
                "one object, used again and again in sequence",
                """\
ctx = torch.autocast(device_type="cuda", dtype=torch.bfloat16)


@torch.no_grad()
def estimate_loss(model, batches):
    losses = []
    for x, y in batches:
        with ctx:
            logits, loss = model(x, y)
        losses.append(loss.item())
    return losses


for step in range(max_iters):
    if step % eval_interval == 0:
        print(estimate_loss(model, valid))
    with ctx:
        logits, loss = model(x, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
""",
            ),
            (
                "nested regions, each with an object of its own",
                """\
class Block(nn.Module):
    def forward(self, x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            x = self.attention(x)
            with torch.autocast("cuda", enabled=False):
                return self.norm(x.float())
""",
            ),
            (
                "a base class and its subclass each decorate forward: two objects",
                """\
class Base(nn.Module):
    @torch.autocast("cuda", dtype=torch.bfloat16)
    def forward(self, x):
        return self.linear(x)


class Derived(Base):
    @torch.autocast("cuda", dtype=torch.bfloat16)
    def forward(self, x):
        return super().forward(x).relu()
""",
            ),
            (
                "a recursive function that constructs its autocast in the body",
                """\
def descend(node, x):
    with torch.autocast("cuda", dtype=torch.float16):
        x = node.linear(x)
        return x if node.child is None else descend(node.child, x)
""",
            ),
            (
                "a decorated forward that does not call itself",
                """\
class Net(nn.Module):
    @torch.autocast("cuda", dtype=torch.float16)
    def forward(self, x):
        return self.head(self.body(x))
""",
            ),
            (
                "a context made anew at every call of a factory",
                """\
def amp_cm():
    return torch.autocast("cuda", dtype=torch.bfloat16)


def outer(x):
    with amp_cm():
        return inner(x)


def inner(x):
    with amp_cm():
        return linear(x)
""",
            ),
        ),
        sources=(_SOURCE, "pytorch/pytorch issue 44531: the same mistake in enable_grad", _MEASURED_BOTH),
        readers=BOTH,
    ),
    Rule(
        "AMP103",
        "backward-in-autocast",
        WARNING,
        "backward() or the optimizer's step runs inside an autocast region.",
        faults={
            "backward@region": Fault(
                "`{call}` runs inside an autocast region, so the gradients of float32 islands are computed in low"
                " precision: leave the region before the backward pass"
            ),
            "step@region": Fault(
                "`{call}` runs inside an autocast region, so an optimizer that multiplies matrices computes its update"
                " in low precision: leave the region before the step"
            ),
        },
        why="""\
Backward ops run in the dtypes that their forward ops used, with or without autocast. In eager mode, for a model that
is all autocast, a backward inside the region therefore changes nothing, which is why this is a warning. It is wrong
where the forward left autocast on purpose: the backward of a float32 island, of a custom autograd function, a double
backward or a compiled graph meets an autocast that its forward did not have. And an optimizer built on matmuls (Muon,
Shampoo, SOAP) computes its update in low precision.
""",
        harm="""\
The gradients of an `enabled=False` island were off by 3.8e-4 (float16) and 3.1e-3 (bfloat16), and at the scale 65536
they were inf, where outside the region they are finite: steps are skipped for no reason. The update of
`torch.optim.Muon` inside a region differed by 2.0 %. Without islands the gradients are bit-identical.
""",
        bad="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 32), nn.Linear(32, 2)

    def forward(self, x):
        hidden = torch.relu(self.body(x))
        with torch.autocast("cpu", enabled=False):
            return self.head(hidden.float())


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()  # AMP103
    scaler.step(optimizer)
    scaler.update()
""",
        good="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 32), nn.Linear(32, 2)

    def forward(self, x):
        hidden = torch.relu(self.body(x))
        with torch.autocast("cpu", enabled=False):
            return self.head(hidden.float())


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        applicability=SAFE,
        fix=(
            "Dedent backward, unscale, clip and step out of the `with torch.autocast(...)` block: only the forward and"
            " the loss belong inside."
        ),
        silent=(
            (
                "the canonical loop: forward and loss inside, the rest outside",
                """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
            ),
            (
                "autograd.grad as part of the forward of a penalty",
                """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        inputs.requires_grad_(True)
        score = critic(inputs)
        gradient = torch.autograd.grad(score.sum(), inputs, create_graph=True)[0]
        loss = score.mean() + (gradient.norm(dim=1) - 1).pow(2).mean()
    loss.backward()
    optimizer.step()
""",
            ),
            (
                "a custom function whose backward was written to run under autocast",
                """\
class MixedMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a.mm(b)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad.mm(b.t()), a.t().mm(grad)


for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = (MixedMatmul.apply(x, weight) - y).square().mean()
        loss.backward()
    optimizer.step()
""",
            ),
            (
                "evaluation under autocast has no backward",
                """\
@torch.no_grad()
def evaluate(model, loader, criterion):
    total = 0.0
    with torch.autocast("cuda", dtype=torch.float16):
        for inputs, targets in loader:
            total += criterion(model(inputs), targets).item()
    return total
""",
            ),
            (
                "backward and step inside a region that is switched off",
                """\
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = criterion(model(inputs), targets)
    with torch.autocast("cuda", enabled=False):
        loss.backward()
optimizer.step()
optimizer.zero_grad()
""",
            ),
            (
                "an unscaled gradient penalty that divides by the scale, as PyTorch's example does",
                """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(inputs), targets)
    scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
    inv_scale = 1.0 / scaler.get_scale()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = loss + sum((g * inv_scale).pow(2).sum() for g in scaled).sqrt()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
            ),
            (
                "activation checkpointing inside the region recomputes under the same autocast",
                """\
from torch.utils.checkpoint import checkpoint

for inputs, targets in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        hidden = checkpoint(model.body, inputs, use_reentrant=False)
        loss = criterion(model.head(hidden), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
            ),
        ),
        sources=(
            _AUTOCAST,
            _EXAMPLES + ": backward passes under autocast are not recommended",
            "pytorch/pytorch pull request 71169: backward reuses the dtypes of the forward",
            "pytorch/pytorch issue 153044: a compiled backward under autocast",
            _MEASURED,
        ),
        readers=BOTH,
    ),
    Rule(
        "AMP104",
        "loss-outside-autocast",
        WARNING,
        "The loss is computed outside autocast from a low-precision output.",
        faults={
            "loss@outside": Fault(
                "`{call}` computes the loss outside autocast, in float16, where a scaled gradient overflows: move it"
                " into the region of the forward, or give it the output as `.float()`"
            ),
            "loss@outside-bf16": Fault(
                "`{call}` computes the loss outside autocast, in bfloat16 with its 8 bits of precision: move it into"
                " the region of the forward, or give it the output as `.float()`",
                INFO,
            ),
        },
        why="""\
Inside a region autocast runs loss functions in float32. Outside, a loss of a float16 output is a float16 loss: it
rounds to 11 bits, sums overflow at 65504, and the gradient that the scaler starts the backward with, the scale
itself, does not fit in float16 once it reaches 65536. Losses whose float32 target has the shape of the output
(`mse_loss`, `l1_loss`, `binary_cross_entropy_with_logits`) are safe, since promotion makes them float32;
`cross_entropy` is not.
""",
        harm="""\
The gradient of a float16 loss at the scale 65536 is inf, so the scale could never exceed 32768: 17 of 100 steps were
skipped where 8 were with the loss inside (growth interval 5). A per-sample float16 loss times 65536 was inf outright.
""",
        bad="""\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        output = model(x)
    loss = nn.functional.cross_entropy(output, y)  # AMP104
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(loss.dtype, scaler.get_scale())
""",
        good="""\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        output = model(x)
        loss = nn.functional.cross_entropy(output, y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(loss.dtype, scaler.get_scale())
""",
        fix="Indent the loss into the autocast block, or call `.float()` on the model's output before the loss.",
        silent=(
            (
                "a float32 target of the output's shape promotes the loss to float32",
                """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        output = model(inputs)
    loss = nn.functional.mse_loss(output, targets.float())
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
            ),
            (
                "l1 and BCE with logits promote too",
                """\
with torch.autocast("cuda", dtype=torch.float16):
    logits, offsets = detector(images)
loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
loss = loss + nn.functional.l1_loss(offsets, boxes)
scaler.scale(loss).backward()
""",
            ),
            (
                "the output is float32 by the time the loss sees it",
                """\
with torch.autocast("cuda", dtype=torch.float16):
    output = model(inputs)
loss = nn.functional.cross_entropy(output.float(), targets)
scaler.scale(loss).backward()
""",
            ),
            (
                "a model prepared by accelerate returns float32",
                """\
accelerator = Accelerator(mixed_precision="fp16")
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for inputs, targets in loader:
    with accelerator.autocast():
        output = model(inputs)
    loss = nn.functional.cross_entropy(output, targets)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
""",
            ),
            (
                "a model set up by Fabric returns float32",
                """\
fabric = Fabric(precision="16-mixed")
model, optimizer = fabric.setup(model, optimizer)
for inputs, targets in fabric.setup_dataloaders(loader):
    loss = nn.functional.cross_entropy(model(inputs), targets)
    fabric.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
""",
            ),
            (
                "the model returns the loss, computed inside",
                """\
with torch.autocast("cuda", dtype=torch.float16):
    loss = model(input_ids, labels=labels).loss
scaler.scale(loss).backward()
""",
            ),
            (
                "a region switched off on purpose, with the output cast",
                """\
with torch.autocast("cuda", dtype=torch.float16):
    output = model(inputs)
    with torch.autocast("cuda", enabled=False):
        loss = nn.functional.cross_entropy(output.float(), targets)
scaler.scale(loss).backward()
""",
            ),
            (
                "both inside: forward and loss share the region",
                """\
with torch.autocast(device_type="cuda", dtype=torch.float16, enabled=use_amp):
    output = model(inputs)
    loss = criterion(output, targets)
scaler.scale(loss).backward()
""",
            ),
        ),
        sources=(_AUTOCAST + ": autocast should wrap the forward pass and the loss", _MEASURED_BOTH),
        readers=BOTH,
    ),
    Rule(
        "AMP105",
        "autocast-scope-lost",
        ERROR,
        "An autocast never covers the code it was meant for, or leaks out of it.",
        faults={
            "scope:expression": Fault(
                "`{context}` is constructed and dropped, so nothing runs under it: write it in a `with` statement"
                " around the forward pass"
            ),
            "scope:generator": Fault(
                "`{context}` decorates a generator or a coroutine, whose body runs after the region has closed: enter"
                " it with `with` inside the body, around each computation"
            ),
            "scope:yield": Fault(
                "`{context}` is still open where this function gives up control, so other code runs under it: close the"
                " region before the yield or await"
            ),
            "scope:script": Fault(
                "`{context}` decorates a function that TorchScript compiles, which drops it without a word: enter it"
                " with `with` inside the function"
            ),
        },
        why="""\
Autocast is the state of a thread, not of a piece of code. A bare call only constructs an object. A decorator closes
its region when the function returns, and a generator or coroutine returns before its body has run. A `yield` or
`await` inside a region hands the enabled state to whoever runs next, and interleaved generators restore it in the
wrong order. TorchScript does not see decorators.
""",
        harm="""\
The bodies of a decorated generator and a decorated coroutine ran in float32. Code between two `next()` calls on a
generator that yields inside a region ran in low precision, and closing two interleaved ones left autocast enabled. A
scripted forward gave float32 outputs. Nothing raised.
""",
        bad="""\
import torch
from torch import nn

model = nn.Linear(8, 2)
batches = [torch.randn(4, 8) for _ in range(2)]


@torch.autocast("cpu", dtype=torch.bfloat16)  # AMP105
def predictions():
    for batch in batches:
        yield model(batch)


def features():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for batch in batches:
            yield model(batch)  # AMP105


with torch.no_grad():
    torch.autocast("cpu", dtype=torch.bfloat16)  # AMP105
    print("bare call:", model(batches[0]).dtype)
    print("decorated generator:", [output.dtype for output in predictions()])
    print("consumer of a yield:", [model(output.float()[:, :1].expand(-1, 8)).dtype for output in features()])
""",
        good="""\
import torch
from torch import nn

model = nn.Linear(8, 2)
batches = [torch.randn(4, 8) for _ in range(2)]


def predictions():
    for batch in batches:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(batch)
        yield output


with torch.no_grad():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        print("region:", model(batches[0]).dtype)
    print("generator:", [output.dtype for output in predictions()])
    print("consumer:", [model(output.float()[:, :1].expand(-1, 8)).dtype for output in predictions()])
""",
        fix="Enter autocast in a `with` statement right around the computation, with no yield or await inside.",
        applicability=SAFE,
        silent=(
            (
                "a context manager that yields inside autocast is how one writes such a helper",
                """\
import contextlib


@contextlib.contextmanager
def mixed_precision(enabled):
    with torch.autocast("cuda", dtype=torch.float16, enabled=enabled):
        yield
""",
            ),
            (
                "a pytest fixture that yields inside autocast",
                """\
import pytest


@pytest.fixture
def bf16_region():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield
""",
            ),
            (
                "constructed first, entered later",
                """\
ctx = torch.autocast("cuda", dtype=torch.bfloat16)
for inputs in loader:
    with ctx, torch.no_grad():
        outputs.append(model(inputs))
""",
            ),
            (
                "entered on an ExitStack",
                """\
from contextlib import ExitStack


def predict(model, inputs, use_amp):
    with ExitStack() as stack:
        if use_amp:
            stack.enter_context(torch.autocast("cuda", dtype=torch.float16))
        return model(inputs)
""",
            ),
            (
                "entered and left by hand, safely",
                """\
def predict(model, inputs):
    region = torch.autocast("cuda", dtype=torch.float16)
    region.__enter__()
    try:
        return model(inputs)
    finally:
        region.__exit__(None, None, None)
""",
            ),
            (
                "a region that is closed again before each yield",
                """\
def predictions(model, loader):
    for inputs in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(inputs)
        yield output
""",
            ),
            (
                "a decorator on a plain function",
                """\
@torch.autocast("cuda", dtype=torch.bfloat16)
@torch.no_grad()
def predict(model, inputs):
    return model(inputs)
""",
            ),
            (
                "scripted, with the region written inside forward",
                """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 2)

    def forward(self, x):
        with torch.autocast("cuda", dtype=torch.float16):
            return self.linear(x)


scripted = torch.jit.script(Net())
""",
            ),
            (
                "a factory that returns the context",
                """\
def amp_cm(enabled):
    return torch.autocast("cuda", dtype=torch.bfloat16) if enabled else contextlib.nullcontext()
""",
            ),
        ),
        sources=(_AUTOCAST + ": the autocast state is thread-local", _SOURCE, _MEASURED_BOTH),
        readers=STATIC,
        on={SCOPE_LOST: _scope_lost},
    ),
    Rule(
        "AMP106",
        "autocast-bad-arguments",
        ERROR,
        "The arguments of autocast are rejected by torch, or switch it off.",
        faults={
            "autocast:no-device": Fault(
                '`{call}` has no device type, which torch requires: pass "cuda" or "cpu" first'
            ),
            "autocast:device-object": Fault(
                "`{call}` is given a torch.device, which torch rejects: pass its type, as in `device.type`"
            ),
            "autocast:not-a-device": Fault(
                '`{call}` is given {value} as its device type, which torch rejects: pass a string such as "cuda" first'
                " and the other arguments by name"
            ),
            "autocast:unknown-device": Fault(
                '`{call}` is given {device}, which is no device type that autocast knows: pass "cuda", "cpu", "xpu" or'
                ' "mps" in lower case'
            ),
            "autocast:indexed-device": Fault(
                "`{call}` is given {device}, whose index skips torch's checks for CUDA and bfloat16: pass {kind}", INFO
            ),
            "autocast:bool-dtype": Fault(
                "`{call}` is given {value} as its dtype, which fails when the region is entered: write"
                " `enabled={enabled}`"
            ),
            "autocast:string-dtype": Fault(
                "`{call}` is given the string {value} as its dtype, which fails when the region is entered: pass the"
                " dtype itself, such as `torch.float16`"
            ),
            "autocast:unsupported-dtype": Fault(
                "`{call}` is given `{dtype}`, which {device} autocast does not support, so it warns once and switches"
                " itself off: pass `torch.bfloat16` or `torch.float16`, or write `enabled=False`"
            ),
            "autocast:device-as-enabled": Fault(
                "`{call}` takes no device, so {value} lands in `enabled`: call `torch.autocast` with the device type"
            ),
            "autocast:dtype-as-enabled": Fault("`{call}` is given `{value}` as `enabled`: write `dtype={value}`"),
            "autocast:not-a-bool": Fault(
                "`{call}` is given {value} as `{argument}`, and torch takes only True or False: pass a bool"
            ),
            "autocast:too-many": Fault(
                "`{call}` takes {takes} arguments and is given more, which raises TypeError: pass them by name"
            ),
            "autocast:unknown-argument": Fault(
                "`{call}` has no argument `{argument}`, which raises TypeError: its arguments are {known}"
            ),
        },
        why="""\
`torch.autocast(device_type, dtype, enabled, cache_enabled)` wants the device type as a string and first. The old
`torch.cuda.amp.autocast(enabled, dtype, cache_enabled)` had no device and began with `enabled`, so a migration that
only changes the name moves `True` into the device or the dtype. A wrong device raises at once; a wrong dtype or
`enabled` raises when the region is entered. A dtype that the device does not support raises nothing: autocast warns
and switches itself off. `dtype=torch.float32` on CUDA is legal, and forces the listed ops into float32.
""",
        harm="""\
`autocast(device)` raises ValueError, `autocast("gpu")` RuntimeError, `autocast(True)` ValueError, `autocast("cuda",
True)` TypeError at `__enter__`, not where it is constructed. `autocast("cpu", dtype=torch.float32)` gives one
UserWarning, and the training goes on in float32. On a machine without CUDA, `torch.cuda.amp.autocast("cuda")`
switches itself off without an error and fails only on the GPU. `autocast("cuda:0")` stayed enabled on a machine that
has no CUDA.
""",
        bad="""\
import torch
from torch import nn

model = nn.Linear(8, 2)
device = torch.device("cpu")
x = torch.randn(4, 8)


def device_object():
    with torch.autocast(device, dtype=torch.bfloat16):  # AMP106
        return model(x)


def no_device():
    with torch.autocast(dtype=torch.bfloat16):  # AMP106
        return model(x)


def bool_in_the_dtype():
    with torch.autocast("cpu", True):  # AMP106
        return model(x)


def unsupported_dtype():
    with torch.autocast("cpu", dtype=torch.float32):  # AMP106
        return model(x)


for attempt in (device_object, no_device, bool_in_the_dtype, unsupported_dtype):
    try:
        print(attempt.__name__, attempt().dtype)
    except (TypeError, ValueError) as error:
        print(attempt.__name__, error)
""",
        good="""\
import torch
from torch import nn

model = nn.Linear(8, 2)
device = torch.device("cpu")
x = torch.randn(4, 8)


def device_type():
    with torch.autocast(device.type, dtype=torch.bfloat16):
        return model(x)


def named_device():
    with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
        return model(x)


def named_enabled():
    with torch.autocast("cpu", enabled=True):
        return model(x)


for attempt in (device_type, named_device, named_enabled):
    print(attempt.__name__, attempt().dtype)
""",
        applicability=SAFE,
        fix="Pass the device type as a string first (`device.type` of a torch.device) and everything else by name.",
        silent=(
            (
                "float32 on CUDA forces a float32 island",
                """\
def route(router, tokens):
    with torch.autocast("cuda", dtype=torch.float32):
        return router(tokens).softmax(dim=-1)
""",
            ),
            (
                "the device type comes from a variable",
                """\
def train_step(model, inputs, device_type, dtype):
    with torch.autocast(device_type, dtype=dtype):
        return model(inputs)
""",
            ),
            (
                "the type of a device object",
                """\
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
with torch.autocast(device_type=device.type, dtype=torch.bfloat16):
    output = model(inputs)
""",
            ),
            (
                "dtype as the second positional argument",
                """\
with torch.autocast("cuda", torch.float16, use_amp):
    output = model(inputs)
""",
            ),
            (
                "the old entry point takes enabled first",
                """\
from torch.cuda.amp import autocast

with autocast(True, torch.bfloat16):
    output = model(inputs)
""",
            ),
            (
                "switched off by name, whatever the dtype",
                """\
with torch.autocast("cpu", dtype=torch.float32, enabled=False):
    output = model(inputs)
""",
            ),
            (
                "arguments that a star hides",
                """\
def forward(self, inputs):
    with torch.autocast(**self.autocast_kwargs):
        return self.model(inputs)
""",
            ),
            (
                "the device type of a vendor's back end",
                """\
import torch_npu

with torch.autocast("npu", dtype=torch.float16):
    output = model(inputs)
""",
            ),
            (
                "another library's autocast",
                """\
from transformer_engine.pytorch import fp8_autocast as autocast

with autocast(enabled=True, fp8_recipe=recipe):
    output = model(inputs)
""",
            ),
        ),
        sources=(
            _AUTOCAST,
            _SOURCE,
            "pytorch/torchtitan: the float32 autocast of its expert router",
            _MEASURED,
        ),
        readers=BOTH,
        on={AUTOCAST_NEW: _arguments},
    ),
    Rule(
        "AMP107",
        "custom-function-undecorated",
        WARNING,
        "An autograd.Function used under autocast lacks custom_fwd or custom_bwd.",
        faults={
            "function:undecorated": Fault(
                "`{function}` multiplies a low-precision gradient with a float32 input in its backward, which raises"
                " under autocast: decorate its `forward` with `torch.amp.custom_fwd` and its `backward` with"
                " `torch.amp.custom_bwd`"
            ),
            "function:forward-alone": Fault(
                "`{function}` has `custom_fwd` and no `custom_bwd`, so its backward runs without autocast and raises:"
                " decorate its `backward` with `torch.amp.custom_bwd` of the same device type"
            ),
            "function:backward-alone": Fault(
                "`{function}` has `custom_bwd` and no `custom_fwd`, which raises an AttributeError in every backward:"
                " decorate its `forward` with `torch.amp.custom_fwd` of the same device type",
                ERROR,
            ),
            "function:devices": Fault(
                "`custom_fwd` and `custom_bwd` of `{function}` name different device types, so its backward runs"
                " without the autocast of its forward: give both the same"
            ),
        },
        why="""\
The forward of a custom Function runs in the autocast region that its caller stands in: a matmul gives a low-precision
output and leaves its float32 inputs as they are. Its backward runs outside of the region, where nothing casts, and is
given a low-precision gradient beside the float32 inputs that it has saved. `custom_fwd` takes note of the state in
which forward runs, and `custom_bwd` runs backward in that state; each needs the other, for the same device type.
""",
        harm="""\
Measured with `y = x.mm(w.t())` in a region of float16, with float32 `x` and `w`: without decorators, with `custom_fwd`
alone and with two device types the backward raises `RuntimeError: expected m1 and m2 to have the same dtype, but got:
c10::Half != float`. With `custom_bwd` alone it raises `AttributeError: ... object has no attribute
'_fwd_used_autocast'`, with or without autocast. With both decorators the gradients are float32.
""",
        bad="""\
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
        good="""\
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
        fix="Decorate forward with `torch.amp.custom_fwd(device_type=...)`, and backward with `custom_bwd` alike.",
        silent=(
            (
                "one input, one number at a time",
                """\
class Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, grad):
        (result,) = ctx.saved_tensors
        return grad * result


with torch.autocast("cuda", dtype=torch.float16):
    loss = criterion(Exponential.apply(model(inputs)), targets)
loss.backward()
""",
            ),
            (
                "two inputs, and promotion takes care of their product",
                """\
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).sum(0)


weight = torch.nn.Parameter(torch.randn(8))
with torch.autocast("cuda", dtype=torch.float16):
    loss = criterion(Scale.apply(model(inputs), weight), targets)
loss.backward()
""",
            ),
            (
                "it takes care of dtypes itself",
                """\
class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x.mm(weight.t())

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad = grad.to(weight.dtype)
        return grad.mm(weight), grad.t().mm(x.to(weight.dtype))


weight = torch.nn.Parameter(torch.randn(2, 8))
with torch.autocast("cuda", dtype=torch.float16):
    loss = criterion(Linear.apply(inputs, weight), targets)
loss.backward()
""",
            ),
            (
                "its forward is given float32, so its backward is too",
                """\
class Linear(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x.mm(weight.t())

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad.mm(weight), grad.t().mm(x)


weight = torch.nn.Parameter(torch.randn(2, 8))
with torch.autocast("cuda", dtype=torch.float16):
    loss = criterion(Linear.apply(inputs, weight), targets)
loss.backward()
""",
            ),
            (
                "all that it multiplies may come from autocast",
                """\
class Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx, queries, keys):
        ctx.save_for_backward(queries, keys)
        return queries @ keys.transpose(-2, -1)

    @staticmethod
    def backward(ctx, grad):
        queries, keys = ctx.saved_tensors
        return grad @ keys, grad.transpose(-2, -1) @ queries


with torch.autocast("cuda", dtype=torch.float16):
    loss = criterion(Scores.apply(encoder(inputs), decoder(inputs)), targets)
loss.backward()
""",
            ),
            (
                "nothing enters autocast",
                """\
class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x.mm(weight.t())

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad.mm(weight), grad.t().mm(x)


weight = torch.nn.Parameter(torch.randn(2, 8))
criterion(Linear.apply(inputs, weight), targets).backward()
""",
            ),
            (
                "the decorators of CUDA alone, and those that name it, are a pair",
                """\
class Linear(torch.autograd.Function):
    @staticmethod
    @torch.cuda.amp.custom_fwd
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x.mm(weight.t())

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad.mm(weight), grad.t().mm(x)
""",
            ),
        ),
        sources=(
            _EXAMPLES + ", section Autocast and Custom Autograd Functions",
            "PyTorch source: torch/amp/autocast_mode.py, custom_fwd and custom_bwd",
            _MEASURED,
        ),
        readers=STATIC,
        whole=_custom_functions,
    ),
    Rule(
        "AMP108",
        "dtype-clash-at-boundary",
        WARNING,
        "What autocast made low-precision meets float32 code that does not promote.",
        faults={
            "clash:module": Fault(
                "`{call}` has float32 weights and is given a {dtype} tensor where autocast is off, which raises"
                " RuntimeError: cast the tensor with `.float()` first"
            ),
            "clash:matmul": Fault(
                "`{call}` multiplies a {dtype} tensor by a float32 one where autocast is off, which raises"
                " RuntimeError: cast with `.float()` first"
            ),
            "clash:write": Fault(
                "`{target}` writes a {dtype} tensor into a float32 one by index, which raises RuntimeError: cast what"
                " is written with `.to(buffer.dtype)`"
            ),
            "clash:out": Fault(
                "`{call}` computes a {dtype} product for a float32 `out=`, which raises RuntimeError: leave `out=` out,"
                " or give it a tensor of that dtype"
            ),
            "clash:in-place": Fault(
                "`{call}` adds a product of {dtype} tensors to a float32 one in place, where autocast casts nothing,"
                " which raises RuntimeError: cast them with `.float()`, or add what `@` gives"
            ),
            "clash:mixed": Fault(
                "`{call}` joins float16 and bfloat16 tensors under autocast, which has no dtype for both and raises"
                " RuntimeError: cast one of them"
            ),
            "clash:numpy": Fault(
                "`{call}` is called on a bfloat16 tensor, a dtype that NumPy does not have, which raises TypeError:"
                " call `.float()` first"
            ),
        },
        why="""\
Autocast casts the inputs of the ops on its lists, and only inside of its regions. What leaves a region, or enters one
that is switched off, keeps its dtype, and there a matmul or a convolution refuses a low-precision input with float32
weights. Writes by index, in place, are on no list either: `index_add_`, `scatter_`, `index_put_` and `buffer[mask] = x`
refuse a source of another dtype, inside a region as well, and so do `addmm_` and matmuls with `out=`. Additions,
`where`, `cat` and slices promote or cast; only a `cat` of float16 and bfloat16 does not under the CPU's autocast.
""",
        harm="""\
A linear layer after the region: `RuntimeError: mat1 and mat2 must have the same dtype, but got BFloat16 and Float`. A
write by index: `Index put requires the source and destination dtypes match, got Float for the destination and BFloat16
for the source`, and the like of `index_add_`, `scatter_` and `masked_scatter_`. A product with `out=`: `RuntimeError:
Expected out tensor to have dtype c10::BFloat16, but got float instead`; `addmm_`: `RuntimeError: self and mat2 must
have the same dtype, but got Float and BFloat16`. NumPy: `TypeError: Got unsupported
ScalarType BFloat16`. A test without autocast passes.
""",
        bad="""\
import torch
from torch import nn

body, head = nn.Linear(8, 8), nn.Linear(8, 2)
index = torch.tensor([1, 3])


def predict(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = body(x)
    return head(features)  # AMP108


def remember(x):
    memory = torch.zeros(10, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        memory.index_add_(0, index, body(x).detach())  # AMP108


for act in (predict, remember):
    try:
        act(torch.randn(2, 8))
        print(act.__name__, "ran")
    except RuntimeError as error:
        print(act.__name__, error)
""",
        good="""\
import torch
from torch import nn

body, head = nn.Linear(8, 8), nn.Linear(8, 2)
index = torch.tensor([1, 3])


def predict(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = body(x)
    return head(features.float())


def remember(x):
    memory = torch.zeros(10, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        memory.index_add_(0, index, body(x).detach().to(memory.dtype))


for act in (predict, remember):
    act(torch.randn(2, 8))
    print(act.__name__, "ran")
""",
        fix="Cast with `.float()` where a tensor leaves the region, or with `.to(buffer.dtype)` where it is written.",
        silent=(
            (
                "cast before it leaves",
                """\
body, head = nn.Linear(8, 8), nn.Linear(8, 2)
with torch.autocast("cuda", dtype=torch.float16):
    features = body(inputs)
    with torch.autocast("cuda", enabled=False):
        outputs = head(features.float())
features = features.float()
outputs = head(features)
""",
            ),
            (
                "slices, where and additions cast or promote",
                """\
body = nn.Linear(8, 8)
memory = torch.zeros(10, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = body(inputs)
    memory[:4] = y
    memory[0] = y[0]
    memory.add_(y)
    memory = torch.where(memory > 0, memory, y)
total = memory + y
both = torch.cat((memory, y))
""",
            ),
            (
                "CUDA's scatter_add promotes where it is not in place",
                """\
body = nn.Linear(8, 8)
memory = torch.zeros(10, 8)
with torch.autocast("cuda", dtype=torch.float16):
    memory = memory.scatter_add(0, index, body(inputs))
""",
            ),
            (
                "sums with out= cast, and products of float32 stay float32",
                """\
body = nn.Linear(8, 8)
memory, weight = torch.zeros(8, 8), torch.randn(8, 8)
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = body(inputs)
    torch.add(y, y, out=memory)
    torch.mm(weight, weight, out=memory)
    memory.addmm_(weight, weight)
    memory = torch.addmm(memory, y, weight)
    product = y.new_zeros(8, 8)
    torch.mm(y, y, out=product)
""",
            ),
            (
                "one number that is written through a mask",
                """\
body = nn.Linear(8, 8)
memory = torch.zeros(10, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = body(inputs)
    memory[memory > 1] = y.mean()
""",
            ),
            (
                "a buffer of the tensor's own dtype",
                """\
body = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = body(inputs)
    memory = torch.zeros(10, 8, dtype=y.dtype)
    memory.index_add_(0, index, y)
    memory = y.new_zeros(10, 8)
    memory.index_add_(0, index, y)
""",
            ),
            (
                "NumPy has float16",
                """\
body = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = body(inputs)
array = y.detach().cpu().numpy()
""",
            ),
            (
                "cast before NumPy",
                """\
body = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.bfloat16):
    y = body(inputs)
array = y.detach().float().cpu().numpy()
""",
            ),
            (
                "a model that is in low precision itself",
                """\
body, head = nn.Linear(8, 8), nn.Linear(8, 2)
head.half()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    features = body(inputs)
outputs = head(features)
""",
            ),
            (
                "a model whose forward is not in view may enter autocast itself",
                """\
body = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    features = body(inputs)
outputs = decoder(features)
""",
            ),
            (
                "autocast on one way only",
                """\
body, head = nn.Linear(8, 8), nn.Linear(8, 2)
if use_amp:
    with torch.autocast("cuda", dtype=torch.float16):
        outputs = head(body(inputs))
else:
    outputs = head(body(inputs))
""",
            ),
        ),
        sources=(_AUTOCAST, "PyTorch source: ATen/autocast_mode.h", _MEASURED),
        readers=STATIC,
        on={DTYPE_CLASH: _clash},
    ),
    Rule(
        "AMP109",
        "nograd-poisons-cast-cache",
        ERROR,
        "A forward without gradients leaves weight copies in the cast cache that the training forward then reuses.",
        faults={
            "forward@poisoned": Fault(
                "`{module}` ran without gradients before in this autocast region, and its cached low-precision weights"
                " have none: call `torch.clear_autocast_cache()` before this forward, or give each its own region"
            ),
        },
        why="""\
Autocast keeps the low-precision copy of each weight until its outermost region ends. Before torch 2.11 a copy that was
made under `torch.no_grad()` is kept as well, without its link to the weight. A forward with gradients in the same
region takes that copy, and the weight gets no gradient. Since torch 2.11 the cache is not filled there, and nothing is
wrong.
""",
        harm="""\
On torch 2.4.1 and 2.10 backward raised RuntimeError `element 0 of tensors does not require grad`, or ran and left 0.44,
0.07, None and None as the gradients of four parameters. Reentrant checkpointing of reused weights gave a relative
gradient error of 56 % on 2.4.1. On 2.11 and 2.13 all is right.
""",
        bad="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
x = torch.randn(64, 16)

optimizer.zero_grad()
with torch.autocast("cpu", dtype=torch.bfloat16):
    with torch.no_grad():
        target = model(x + 0.1)
    loss = nn.functional.mse_loss(model(x), target)  # AMP109
loss.backward()
optimizer.step()
""",
        good="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
x = torch.randn(64, 16)

optimizer.zero_grad()
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    target = model(x + 0.1)
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = nn.functional.mse_loss(model(x), target)
loss.backward()
optimizer.step()
""",
        fix="Give the forward without gradients an autocast region of its own, or clear the cast cache after it.",
        silent=(
            (
                "the cache is cleared in between",
                """\
import torch
from torch import nn

model = nn.Linear(16, 1)
x = torch.randn(64, 16)
with torch.autocast("cpu", dtype=torch.bfloat16):
    with torch.no_grad():
        target = model(x + 0.1)
    torch.clear_autocast_cache()
    loss = nn.functional.mse_loss(model(x), target)
loss.backward()
""",
            ),
            (
                "a region without a cache",
                """\
import torch
from torch import nn

model = nn.Linear(16, 1)
x = torch.randn(64, 16)
with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
    with torch.no_grad():
        target = model(x + 0.1)
    loss = nn.functional.mse_loss(model(x), target)
loss.backward()
""",
            ),
            (
                "the model without gradients is another one",
                """\
import torch
from torch import nn

teacher, student = nn.Linear(16, 1), nn.Linear(16, 1)
x = torch.randn(64, 16)
with torch.autocast("cpu", dtype=torch.bfloat16):
    with torch.no_grad():
        target = teacher(x)
    loss = nn.functional.mse_loss(student(x), target)
loss.backward()
""",
            ),
            (
                "the forward with gradients comes first",
                """\
import torch
from torch import nn

model = nn.Linear(16, 1)
x = torch.randn(64, 16)
with torch.autocast("cpu", dtype=torch.bfloat16):
    output = model(x)
    with torch.no_grad():
        target = model(x + 0.1)
    loss = nn.functional.mse_loss(output, target)
loss.backward()
""",
            ),
        ),
        sources=(
            _CACHE,
            "pytorch/pytorch issues 105211, 112583 and 165068: the cast cache and no_grad",
            "measured with torch 2.4.1, 2.10, 2.11 and 2.13 on the CPU",
        ),
        readers=RUNTIME,
        on={FORWARD: _poisoned},
    ),
    Rule(
        "AMP110",
        "forward-outside-autocast",
        WARNING,
        "The loss that a scaler scales was computed without autocast.",
        faults={
            "scale@no-autocast": Fault(
                "`{scaler}` scales a loss although nothing enters autocast, so the training runs in float32: wrap the"
                " forward pass and the loss in `torch.autocast`"
            ),
            "scale@no-autocast-unknown": Fault(
                "`{scaler}` scales a loss and no autocast is in sight: unless the model enters it by itself, wrap the"
                " forward pass and the loss in `torch.autocast`",
                INFO,
            ),
            "scale@forward-outside": Fault(
                "`{scaler}` scales a loss whose forward pass ran before the autocast region, so the model runs in"
                " float32: move the call of the model into the region"
            ),
        },
        why="""\
A GradScaler does not make a training mixed: autocast does. Without a region around the model's forward every matmul
runs in float32, and the scaler multiplies and divides gradients that were never in danger. A region around the loss
alone is no better, since autocast runs losses in float32 anyway. The training is right, but slow and large, and
nothing shows it.
""",
        harm="""\
Twenty steps of Adam in float32 were bit-identical with and without the scaler, which adds a pass over all gradients
and a wait for the device at each step. What is lost is the reason to use AMP: in a stack of Linear and GELU layers
autocast cut the saved activations from 4.0 to 2.4 MiB, and float32 matmuls do not use the half-precision units of a
GPU.
""",
        bad="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 32), nn.Linear(32, 2)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)  # AMP110
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        good="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 32), nn.Linear(32, 2)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        fix="Put the forward and the loss in `with torch.autocast(device, dtype=torch.float16):`, or drop the scaler.",
        silent=(
            (
                "the model's forward is decorated",
                """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 2)

    @torch.autocast("cuda", dtype=torch.float16)
    def forward(self, x):
        return self.linear(x)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x).float(), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
            ),
            (
                "the model's forward opens the region",
                """\
class Net(nn.Module):
    def __init__(self, use_amp):
        super().__init__()
        self.use_amp = use_amp
        self.linear = nn.Linear(8, 2)

    def forward(self, x, y):
        with torch.autocast("cuda", dtype=torch.float16, enabled=self.use_amp):
            return nn.functional.cross_entropy(self.linear(x), y)


model = Net(use_amp=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    scaler.scale(model(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
            ),
            (
                "a helper enters autocast",
                """\
def compute_loss(model, criterion, inputs, targets):
    with torch.autocast("cuda", dtype=torch.float16):
        return criterion(model(inputs), targets)


scaler = torch.amp.GradScaler("cuda")
for inputs, targets in loader:
    optimizer.zero_grad()
    loss = compute_loss(model, criterion, inputs, targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
            ),
            (
                "the caller enters autocast",
                """\
scaler = torch.amp.GradScaler("cuda")


def forward(model, batch):
    return model(batch["inputs"], batch["targets"])


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = forward(model, batch)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
            ),
            (
                "autocast through a context of another name",
                """\
amp_cm = torch.autocast("cuda", dtype=torch.float16) if use_amp else contextlib.nullcontext()
scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
for inputs, targets in loader:
    optimizer.zero_grad()
    with amp_cm:
        loss = criterion(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
            ),
            (
                "a scaler that is disabled by its literal argument",
                """\
scaler = torch.amp.GradScaler("cuda", enabled=False)
for inputs, targets in loader:
    optimizer.zero_grad()
    loss = criterion(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
            ),
            (
                "a float16 model under float32 masters of its own needs the scaler and no autocast",
                """\
model = Net().half()
masters = [p.detach().clone().float().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.SGD(masters, lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for inputs, targets in loader:
    loss = criterion(model(inputs.half()).float(), targets)
    scaler.scale(loss).backward()
    for master, p in zip(masters, model.parameters()):
        master.grad, p.grad = p.grad.float(), None
    scaler.step(optimizer)
    scaler.update()
    for master, p in zip(masters, model.parameters()):
        p.data.copy_(master.data)
""",
            ),
            (
                "apex patches the functions of torch itself",
                """\
from apex import amp

model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
for inputs, targets in loader:
    optimizer.zero_grad()
    loss = criterion(model(inputs), targets)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
""",
            ),
            (
                "DeepSpeed casts the model and scales by itself",
                """\
engine, optimizer, _, _ = deepspeed.initialize(model=model, config={"fp16": {"enabled": True}})
for inputs, targets in loader:
    loss = criterion(engine(inputs), targets)
    engine.backward(loss)
    engine.step()
""",
            ),
        ),
        sources=(
            _AUTOCAST + ": autocast and GradScaler work together, and are modular",
            _EXAMPLES,
            _MEASURED,
        ),
        # A run tells of a place that scales for the second time: what is scaled once may be a trial.
        readers=BOTH,
        whole=_outside,
    ),
)
