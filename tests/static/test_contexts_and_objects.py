"""Programs that distinguish the effects of contexts, objects, classes and containers from similar effects."""

from __future__ import annotations

from textwrap import indent

from case_groups import check_each, in_groups
from marks import marks, places, shown

from pytest_amp_check import check_source

CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
#: A training loop with a placeholder between backward and step.
LOOP = """\
import contextlib

import torch

def train(model, loader, optimizer, clip, early, limits):
    scaler = torch.amp.GradScaler("cuda")
    for i, x in enumerate(loader):
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
{}        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
BETWEEN: dict[str, str] = {
    "what a method of a function gives that is not its call": f"""\
def unscale():
    scaler.unscale_(optimizer)
if unscale.ready().now:
    unscale()
{CLIP}  # AMP201
""",
    "what a stack of contexts gives that is no context": f"""\
with contextlib.ExitStack() as stack:
    rest = stack.pop_all()
    if rest.closed:
        scaler.unscale_(optimizer)
    if not rest.closed:
        {CLIP}  # AMP201
""",
    "a default for a key that nobody knows is asked for twice": f"""\
held = {{"step": optimizer}}
if held.setdefault(limits, None):
    scaler.unscale_(optimizer)
if held.setdefault(limits, None):
    {CLIP}
""",
    "what else a dict is asked for": f"""\
held = {{"step": optimizer}}
if held.fromkeys(limits).ready:
    scaler.unscale_(optimizer)
{CLIP}  # AMP201
""",
    "a list that is asked for the place of an item has it yet": f"""\
steps = [optimizer]
steps.index(optimizer, 0)
scaler.unscale_(steps[0])
{CLIP}
""",
    "an item that is put somewhere may stand at the head": f"""\
steps = [None]
steps.insert(limits, optimizer)
scaler.unscale_(steps[0])
{CLIP}
""",
    "an entry that keywords may give": f"""\
held = {{"clip": False}}
held.update(**limits)
if held["clip"]:
    {CLIP}  # AMP201
""",
    "an entry that keywords give another name than": f"""\
held = {{"clip": False}}
held.update(limit=limits)
if held["clip"]:
    {CLIP}
""",
    "a table of many numbers is data": f"""\
table = [{", ".join("0" for _ in range(65))}]
if table[3]:
    {CLIP}  # AMP201
""",
    "a table of many names is data": f"""\
table = {{{", ".join(f'"{k}": 0' for k in range(65))}}}
if table["3"]:
    {CLIP}  # AMP201
""",
    "a table of fewer numbers is known": f"""\
table = [{", ".join("0" for _ in range(64))}]
if table[3]:
    {CLIP}
""",
    "a table of fewer names is known": f"""\
table = {{{", ".join(f'"{k}": 0' for k in range(64))}}}
if table["3"]:
    {CLIP}
""",
    "a dict of what a second loop goes over": f"""\
held = {{n: scaler.unscale_(one) for n in limits for one in [optimizer]}}
{CLIP}
""",
    "what equals one of two constants equals not the other, whichever was asked for first": f"""\
if early and limits == "one":
    print("one")
if limits != "two":
    scaler.unscale_(optimizer)
if limits == "one":
    {CLIP}
""",
    "what is another constant may be a third one": f"""\
if early and limits == "one":
    print("one")
if limits == "two":
    scaler.unscale_(optimizer)
if limits != "one":
    {CLIP}  # AMP201
""",
    "a number that is shifted to one side is not the one that is shifted to the other": f"""\
if limits >> 1:
    scaler.unscale_(optimizer)
if limits << 1:
    {CLIP}  # AMP201
""",
    "a flag to which another one is added in place": f"""\
flag = early
flag |= clip
if flag:
    scaler.unscale_(optimizer)
if flag:
    {CLIP}
""",
    "a list to which a list is added in place is the same list yet": f"""\
steps = []
held = steps
steps += [optimizer]
for each in held:
    scaler.unscale_(each)
{CLIP}
""",
    "two lists as one": f"""\
for each in [optimizer] + []:
    scaler.unscale_(each)
{CLIP}
""",
    "a dict and what nobody knows, as one": f"""\
held = {{"step": optimizer}} | limits
scaler.unscale_(held["step"])
{CLIP}
""",
    "gradients divided by a number are gradients": """\
grads = [p.grad / limits for p in model.parameters()]
scaler.unscale_(optimizer)
print(len(grads))
""",
    "gradients times a number are gradients": """\
grads = [limits * p.grad for p in model.parameters()]
scaler.unscale_(optimizer)
print(len(grads))
""",
    "the first of two words, where it is none": f"""\
mode = ("clip" if early else "") or "plain"
if mode == "clip":
    scaler.unscale_(optimizer)
    {CLIP}
if mode == "plain":
    {CLIP}  # AMP201
if mode == "":
    {CLIP}
""",
}
PROGRAMS: dict[str, str] = {name: LOOP.format(indent(each, " " * 8)) for name, each in BETWEEN.items()}
PROGRAMS["what a stack calls later is not entered now"] = """\
import contextlib

import torch

def train(model, loader, optimizer, report):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        with contextlib.ExitStack() as stack:
            stack.callback(torch.autocast("cuda"), report)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
TWO = f"""\
import torch

model, beside, loader, where = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1), make_loader(), make_place()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
other = torch.optim.SGD(beside.parameters(), 0.1)
scaler = torch.amp.GradScaler("cuda")
steps = [other]
steps.insert({{place}}, optimizer)
first, second = steps
for x in loader:
    optimizer.zero_grad()
    other.zero_grad()
    with torch.autocast("cuda"):
        loss = model(x).mean() + beside(x).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(second)
    {CLIP}{{mark}}
    scaler.step(first)
    scaler.step(second)
    scaler.update()
"""
PROGRAMS["a list has the item that is put at its head there"] = TWO.format(place="0", mark="  # AMP201")
PROGRAMS["a list has the item that is put at its end there"] = TWO.format(place="1", mark="")
PROGRAMS["a list has the item that is put somewhere anywhere"] = TWO.format(place="where", mark="")
PROGRAMS["no_sync lasts no longer than a choice of contexts"] = """\
from contextlib import nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel

def train(net, loader, k):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for i, x in enumerate(loader):
        last = (i + 1) % k == 0
        with nullcontext() if last else model.no_sync():
            with torch.autocast("cuda"):
                loss = model(x).mean() / k
            scaler.scale(loss).backward()
        with model.no_sync() if last else nullcontext():
            print("once")
        with torch.autocast("cuda"):
            penalty = model(x).square().mean() / k
        scaler.scale(penalty).backward()
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
REGION = """\
import torch

class Region:
    def __init__(self):
        self.held = []

    def __enter__(self):
        region = torch.autocast("cuda")
        region.__enter__()
        self.held.append(region)

    def __exit__(self, *given):
        self.held.pop().__exit__(*given)

"""
PROGRAMS["an object closes what it has opened, wherever it finds it"] = (
    REGION
    + """\
def train(model, loader, optimizer, criterion, y):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with Region():
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
)
PROGRAMS["what is computed behind the block of an object that has opened a region is outside"] = (
    REGION
    + """\
def train(loader, optimizer, y):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with Region():
            output = model(x)
        loss = torch.nn.functional.cross_entropy(output, y)  # AMP104
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
)
PROGRAMS["a block of an object that is left by returning"] = (
    REGION
    + """\
def step(model, x, y, scaler):
    with Region():
        return torch.nn.functional.cross_entropy(model(x), y)

def train(model, loader, optimizer, y):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        loss = step(model, x, y, scaler)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
)
PROGRAMS["of several yields in a region, the first is reported"] = """\
import torch

def batches(loader, model):
    with torch.autocast("cuda"):
        for x in loader:
            yield model(x)  # AMP105
            yield model(x + 1)
"""
PROGRAMS["what a function yields that is declared in a region is its own"] = """\
import torch

def train(model, loader, optimizer):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        def batches():
            for x in loader:
                yield x
        loss = sum(model(x).mean() for x in batches())
    loss.backward()
    optimizer.step()
"""
FLOAT8 = """\
import torch
import transformer_engine.pytorch as te

body, head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)

def predict(x, recipe, flag):
    {context}:
        print("nothing")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = body(x)
    return head(features)  # AMP108
"""
PROGRAMS["behind a region of float8, nothing is cast"] = FLOAT8.format(context="with te.fp8_autocast(enabled=True)")
PROGRAMS["behind a region that may be one of float8, nothing is cast"] = FLOAT8.format(
    context="with te.fp8_autocast(enabled=True) if flag else te.fp8_autocast(enabled=False)"
)
PROGRAMS["behind a stack with a region of float8, nothing is cast"] = FLOAT8.format(
    context="""import contextlib
    with contextlib.ExitStack() as stack:
        stack.enter_context(te.fp8_autocast(enabled=True))
    if flag"""
)
PROGRAMS["in a region of float8, something may be cast"] = """\
import torch
import transformer_engine.pytorch as te

body, head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)

def predict(x, recipe, flag):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = body(x)
    with te.fp8_autocast(enabled=True):
        return head(features)
"""
PROGRAMS["a backward in a region of float8, and one behind it"] = """\
import torch
import transformer_engine.pytorch as te

def train(model, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        with te.fp8_autocast(enabled=True):
            loss = model(x).mean()
            loss.backward()  # AMP103
        penalty = model(x).square().mean()
        penalty.backward()
        optimizer.step()
"""
for given in ("False", "enabled=False", "enabled=not 1"):
    PROGRAMS[f"a backward in a region of float8 that is off: {given}"] = f"""\
import torch
import transformer_engine.pytorch as te

def train(model, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        with te.fp8_autocast({given}):
            loss = model(x).mean()
            loss.backward()
        optimizer.step()
"""
NESTED = """\
import contextlib

import torch

def train(model, loader, optimizer, flag):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda") if flag else contextlib.nullcontext():
            with torch.autocast("cuda"):
                loss = model(x).mean()
            if {test}:
                scaler.scale(loss).backward(){mark}
        if {other}:
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
PROGRAMS["a region in what may be none is left alone"] = NESTED.format(test="not flag", other="flag", mark="")
PROGRAMS["a region in what may be one leaves that open"] = NESTED.format(
    test="flag", other="not flag", mark="  # AMP103"
)
INVERTED = """\
import contextlib

import torch

body = torch.nn.Linear(8, 8)

def solve(x, flag):
    with {context}:
        return torch.linalg.inv(body(x)){mark}
"""
PROGRAMS["on the CPU, a region that may be none casts for an inverse"] = INVERTED.format(
    context='torch.autocast("cpu", dtype=torch.bfloat16) if flag else contextlib.nullcontext()', mark=""
)
PROGRAMS["elsewhere, a region that may be none casts for no inverse"] = INVERTED.format(
    context='torch.autocast("cuda", dtype=torch.bfloat16) if flag else contextlib.nullcontext()', mark="  # AMP510"
)
PROMOTED = """\
import torch

body, head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)
index = torch.tensor([1, 3])

def remember(x):
    memory = {memory}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        memory.index_add_(0, index, body(x).detach()){mark}
"""
for memory, found in {
    "torch.zeros(10, 8) + torch.zeros(10, 8, dtype=torch.bfloat16)": True,
    "torch.zeros(10, 8, dtype=torch.bfloat16) * torch.zeros(10, 8)": True,
    "torch.zeros(10, 8) - torch.zeros(10, 8)": True,
    "torch.zeros(10, 8) * 2": True,
    "2 - torch.zeros(10, 8)": True,
    "torch.zeros(10, 8, dtype=torch.long) + torch.zeros(10, 8)": True,
    "torch.zeros(10, 8) * torch.zeros(10, 8, dtype=torch.bool)": True,
    "torch.zeros(10, 8) * make(10, 8)": False,
    "make(10, 8) * torch.zeros(10, 8)": False,
    "torch.zeros(10, 8, dtype=torch.bfloat16) + torch.zeros(10, 8, dtype=torch.bfloat16)": False,
}.items():
    PROGRAMS[f"a memory of {memory}"] = PROMOTED.format(memory=memory, mark="  # AMP108" if found else "")
SEQUENTIAL = """\
import torch

{classes}
def train(loader):
    net = {last}(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        loss = net(x).mean()  # AMP110
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
PROGRAMS["a class that is a sequence of modules is one"] = SEQUENTIAL.format(
    classes="class Net(torch.nn.Sequential):\n    pass\n", last="Net"
)
PROGRAMS["a class that is a module by way of six others"] = SEQUENTIAL.format(
    classes="class A(torch.nn.Sequential):\n    pass\n\n"
    + "".join(f"class {b}({a}):\n    pass\n\n" for a, b in zip("ABCDE", "BCDEF", strict=True)),
    last="F",
)
PROGRAMS["an attribute from nowhere is one value, however it is read"] = f"""\
import torch
from elsewhere import Base

class Trainer(Base):
    def train(self, model, loader, optimizer):
        scaler = torch.amp.GradScaler("cuda")
        for x in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).mean()
            scaler.scale(loss).backward()
            ready = self.ready
            if ready(x):
                scaler.unscale_(optimizer)
            if self.ready(x):
                {CLIP}
            scaler.step(optimizer)
            scaler.update()
"""
PROGRAMS["a class has the base that its name had when it was declared"] = f"""\
import torch

class Steps:
    def go(self, scaler, optimizer):
        scaler.unscale_(optimizer)

class Trainer(Steps):
    pass

class Steps:
    def go(self, scaler, optimizer):
        print(scaler, optimizer)

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    trainer = Trainer()
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        trainer.go(scaler, optimizer)
        {CLIP}
        scaler.step(optimizer)
        scaler.update()
"""
PROGRAMS["a name that was a class is an object yet, after its class was asked for"] = f"""\
import torch

class steps:
    def go(self, scaler, optimizer):
        scaler.unscale_(optimizer)

class Trainer(steps):
    def prepare(self):
        print("ready")

steps = Trainer()

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    steps.prepare()
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        steps.go(scaler, optimizer)
        {CLIP}
        scaler.step(optimizer)
        scaler.update()
"""

#: A loop in which some iterations accumulate, and the others clip and step.
ACCUMULATING = """\
import torch

def train(model, loader, optimizer, limits, k):
    scaler = torch.amp.GradScaler("cuda")
    for i, x in enumerate(loader):
        with torch.autocast("cuda"):
            loss = model(x).mean() / k
        if {}:
            scaler.scale(loss).backward()
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
for asked in (
    "x in limits",
    "x.key > limits",
    "limits < x.key",
    "x.key == limits",
    "i % k == limits",
    "x.key is limits",
):
    PROGRAMS[f"another answer in each iteration: {asked}"] = ACCUMULATING.format(asked)
PROGRAMS["one of two optimizers, or else the other"] = """\
import torch

def train(model, beside, loader, early):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    other = torch.optim.SGD(beside.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        other.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean() + beside(x).mean()
        scaler.scale(loss).backward()
        chosen = optimizer if early else None
        each = chosen or other
        scaler.unscale_(each)
        if early:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        else:
            torch.nn.utils.clip_grad_norm_(beside.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.step(other)
        scaler.update()
"""
CHUNKS = """\
import torch

def chunks(x, k):
    {}

def train(model, loader, k):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        for chunk in chunks(x, k):
            with torch.autocast("cuda"):
                loss = model(chunk).mean()
            scaler.scale(loss).backward(){}
        scaler.step(optimizer)
        scaler.update()
"""
PROGRAMS["chunks that a generator yields"] = CHUNKS.format("yield from x.chunk(k)", "  # AMP301")

#: An inverse, which autocast casts for only on the CPU.
DEVICE = """\
import torch

body = torch.nn.Linear(8, 8)

def solve(x, rank, kind):
    device = torch.device({})
    with torch.autocast(device.type, dtype=torch.bfloat16):
        return torch.linalg.inv(body(x)){}
"""
for text in ('"cpu:%d" % rank', '"cpu:" + str(rank)', 'f"cpu:{rank}"', '"cpu:0"', '"cpu"'):
    PROGRAMS[f"a device of the CPU: {text}"] = DEVICE.format(text, "")
for text in (
    '"cuda:%d" % rank',
    '"cuda:" + str(rank)',
    'f"cuda:{rank}"',
    'f"{kind}:0"',
    'kind + ":0"',
    '"%s:0" % kind',
):
    PROGRAMS[f"a device of another type: {text}"] = DEVICE.format(text, "  # AMP510")
#: A sum of losses that is divided by a number, in a window of several micro-batches.
WINDOW = """\
import torch

def train(model, loader, optimizer, k, weight):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda"):
            losses = torch.nn.functional.cross_entropy(model(x), y, reduction="none")
            loss = {}
        scaler.scale(loss).backward(){}
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
OF_THE_ITERATION = (
    "losses.sum() / x.shape[0]",
    "losses.sum() / len(x)",
    "losses.sum() / (x.shape[0] * x.shape[1])",
    "losses.sum() / (x.shape[0] + y.shape[0])",
    "losses.sum() / (2 * x.shape[0])",
    "losses.sum() / x.size(0)",
    "losses.mean()",
)
OF_THE_WINDOW = (
    "losses.sum() / (x.shape[0] * k)",
    "losses.sum() / (k * x.shape[0])",
    "losses.sum() / x.shape[0] / k",
    "losses.sum() / k",
    "losses.mean() / k",
    "losses.mean() * (1 / k)",
    "losses.mean() * (weight / k)",
    "losses.mean() * (-1 / k)",
)
for divided in OF_THE_ITERATION:
    PROGRAMS[f"a mean over one iteration: {divided}"] = WINDOW.format(divided, "  # AMP301")
for divided in OF_THE_WINDOW:
    PROGRAMS[f"a mean over a window: {divided}"] = WINDOW.format(divided, "")

#: A buffer of some origin, to which a low-precision value is added: a float32 buffer does not accept it.
BUFFER = """\
import torch

body = torch.nn.Linear(8, 8)
index = torch.tensor([1, 3])

def remember(x, flag):
    wide, low = torch.ones(10, 8), torch.ones(10, 8, dtype=torch.bfloat16)
    {}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        memory.index_add_(0, index, body(x).detach()){}
"""
ON = 'with torch.autocast("cpu", dtype=torch.bfloat16):\n        '
OFF = 'with torch.autocast("cpu", enabled=False):\n        '
WIDE = (
    "memory = wide.t().view(10, 8)",
    "memory = torch.relu(wide)",
    "memory = wide if flag else torch.zeros(10, 8)",
    f"{OFF}memory = torch.softmax(wide, 0)",
    f"{OFF}memory = torch.nn.functional.softplus(wide)",
    f"{ON}memory = torch.nn.functional.mse_loss(low, low, reduction='none')",
    f"{ON}memory = torch.relu(wide)",
    f"{ON}memory = torch.atan2(wide, low)",
    "memory = low.float()",
    "memory = low.to(torch.float32)",
    "memory = low.type_as(wide)",
    "memory = -wide",
    "memory = wide[2:]",
)
NOT_WIDE = (
    "memory = torch.softmax(wide, 0)",
    f"{ON}memory = torch.relu(low)",
    f"{ON}memory = torch.mystery(wide)",
    f"{OFF}memory = torch.mystery(wide)",
    f"{ON}memory = wide @ wide.t()",
    f"{ON}memory = torch.nn.functional.linear(wide, wide)",
    f"{ON}memory = torch.cat([low, low])",
    f"{OFF}memory = torch.relu(low)",
    "memory = wide if flag else low",
    "memory = low if flag else wide.half()",
    "memory = wide.half()",
    "memory = wide.to(low.dtype)",
    "memory = wide.to(flag)",
    "memory = wide.mystery()",
    "memory = torch.mystery(wide) + wide",
    "memory = torch.softmax(wide, 0) + wide",
    "with torch.autocast(flag, dtype=torch.bfloat16):\n        memory = torch.atan2(wide, low) + wide",
)
for made in WIDE:
    PROGRAMS[f"a buffer of float32: {made}"] = BUFFER.format(made, "  # AMP108")
for made in NOT_WIDE:
    PROGRAMS[f"a buffer of another dtype, or of one that is not known: {made}"] = BUFFER.format(made, "")

#: An inverse of a value with a low dtype, or without a dtype.
SOLVED = """\
import torch

def solve(flag):
    wide, low = torch.zeros(8, 8), torch.zeros(8, 8, dtype=torch.bfloat16)
    count, mask = torch.zeros(8, 8, dtype=torch.long), torch.zeros(8, 8, dtype=torch.bool)
    with torch.autocast("cuda", enabled=False):
        return torch.linalg.inv({}){}
"""
NARROW = (
    *("low", "count + low", "low * mask", "low * 2", "2 * low", "-low", "low + low"),
    *("low @ low", "torch.mm(low, low)", "low if flag else low.half()"),
)
BROAD = (
    *("wide", "count + wide", "low + wide", "wide.double() * low", "low.float()", "make(low)", "make(low) + low"),
    *("wide @ wide", "low @ make(low)"),
)
for given in NARROW:
    PROGRAMS[f"an inverse of what is low: {given}"] = SOLVED.format(given, "  # AMP510")
for given in BROAD:
    PROGRAMS[f"an inverse of what is not known to be low: {given}"] = SOLVED.format(given, "")
#: A constant that float16 cannot represent, written to the result of an op in a region.
FILLED = """\
import mystery
import torch
from torch.nn import functional as F

def attend(q, k, mask, heads):
    with torch.autocast("cuda", dtype=torch.float16):
        scores = {}
        return scores.masked_fill(mask, -1e9){}
"""
LOW = (
    "torch.matmul(q, k)",
    "torch.bmm(q, k)",
    "torch.einsum('bid,bjd->bij', q, k)",
    "torch.linalg.multi_dot([q, k])",
    "F.linear(q, k)",
    "q.matmul(k)",
    "q.bmm(k)",
    "q @ k",
)
for made in LOW:
    PROGRAMS[f"what autocast makes low: {made}"] = FILLED.format(made, "  # AMP506")
for made in ("mystery.matmul(q, k)", "heads.linear(q)", "heads.addr(q)"):
    PROGRAMS[f"what autocast does not make low: {made}"] = FILLED.format(made, "")

PROGRAMS["an op that is low on a device that nobody knows"] = FILLED.replace('"cuda"', "heads.device").format(
    "torch.mv(q, k)", "  # AMP506"
)
#: A training loop with declarations before it and a placeholder between backward and step.
DECLARED = """\
import torch

{}

def train(model, loader, optimizer, make):
    scaler = {}
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
{}        scaler.step(optimizer)
        scaler.update()
"""


def declared(declaration: str, between: str, scaler: str = 'torch.amp.GradScaler("cuda")') -> str:
    return DECLARED.format(declaration, scaler, indent(between, " " * 8))


OPTIONS = """\
class Options:
    def __init__(self, optimizer, **given):
        self.mode = "plain"
        self.optimizer = optimizer
        {}
"""
OPEN = "for name, value in given.items():\n            setattr(self, name, value)"
IF_CLIP = f"options = Options(optimizer, **make())\nif options.mode == 'clip':\n    {CLIP}{{}}\n"
PROGRAMS["a default of an object that is given other values by name"] = declared(
    OPTIONS.format(OPEN), IF_CLIP.format("  # AMP201")
)
PROGRAMS["a default of an object that is given no others"] = declared(
    OPTIONS.format("print(given)"), IF_CLIP.format("")
)
PROGRAMS["an object that an object of open attributes holds"] = declared(
    OPTIONS.format(OPEN),
    f"options = Options(optimizer, **make())\nscaler.unscale_(options.optimizer)\n{CLIP}\n",
)
PROGRAMS["what a method above gives that nobody knows"] = declared(
    f"""\
from elsewhere import Base

class Steps(Base):
    def go(self, scaler, optimizer, model):
        if super().ready(model).now:
            scaler.unscale_(optimizer)
        {CLIP}  # AMP201
""",
    "Steps().go(scaler, optimizer, model)\n",
)
PROGRAMS["a method of a module that is not its forward"] = declared(
    """\
class Net(torch.nn.Module):
    def forward(self, x):
        return x

    def finish(self, scaler, optimizer):
        scaler.unscale_(optimizer)
""",
    f"Net().finish(scaler, optimizer)\n{CLIP}\n",
)
SCALER = "class Scaler(torch.amp.GradScaler):\n    def unscale_(self, optimizer):\n        {}\n"
PROGRAMS["a scaler with a method of its own that does not unscale"] = declared(
    SCALER.format("print(optimizer)"), f"scaler.unscale_(optimizer)\n{CLIP}  # AMP201\n", 'Scaler("cuda")'
)
PROGRAMS["a scaler with a method of its own that asks for torch's"] = declared(
    SCALER.format("super().unscale_(optimizer)"), f"scaler.unscale_(optimizer)\n{CLIP}\n", 'Scaler("cuda")'
)
PROGRAMS["a class that stands in a function finds what is around it"] = declared(
    "def nothing():\n    pass\n",
    f"""\
class Steps:
    def go(self):
        scaler.unscale_(optimizer)
Steps().go()
{CLIP}
""",
)
PROGRAMS["an attribute that one method leaves none, and another one sets"] = f"""\
import torch

class Trainer:
    def __init__(self, model, loader):
        self.model, self.loader = model, loader
        self.each = None

    def prepare(self):
        self.each = torch.optim.SGD(self.model.parameters(), 0.1)

    def train(self, optimizer):
        model, scaler = self.model, torch.amp.GradScaler("cuda")
        for x in self.loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).mean()
            scaler.scale(loss).backward()
            if self.each is not None:
                scaler.unscale_(optimizer)
            {CLIP}  # AMP201
            scaler.step(optimizer)
            scaler.update()
"""
PROGRAMS["a context that an object is does what leaving it does once"] = """\
import torch

class Stepping:
    def __init__(self, scaler, optimizer):
        self.scaler, self.optimizer = scaler, optimizer

    def __enter__(self):
        return self.scaler

    def __exit__(self, *given):
        self.scaler.step(self.optimizer)

def step(scaler, optimizer, loss):
    with Stepping(scaler, optimizer) as held:
        held.unscale_(optimizer)
    return loss

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        print(step(scaler, optimizer, loss))
        scaler.update()
"""
YIELDS = """\
import contextlib

import pytest
import torch

{}
"""
PROGRAMS["a stack with a region that a generator yields in"] = YIELDS.format("""\
def batches(loader):
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autocast("cuda"))
        for x in loader:
            yield x  # AMP105
""")
PROGRAMS["a stack without a region that a generator yields in"] = YIELDS.format("""\
def batches(loader, lock):
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock)
        for x in loader:
            yield x
""")
PROGRAMS["gradients that a stack disables on one path"] = YIELDS.format("""\
def train(model, optimizer, loader):
    scaler = torch.amp.GradScaler("cuda")
    for x, is_last in loader:
        for part in x:
            with contextlib.ExitStack() as stack:
                if part < 3:
                    stack.enter_context(torch.no_grad())
                    stack.enter_context(torch.autocast("cuda", dtype=torch.bfloat16))
                else:
                    stack.enter_context(torch.autocast("cuda", dtype=torch.bfloat16))
                loss = model(part).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()  # AMP503
        scaler.step(optimizer)
        scaler.update()
""")
PROGRAMS["a region within a context that a generator yields in, behind it"] = YIELDS.format("""\
def batches(loader, lock, model):
    with lock:
        for x in loader:
            with torch.autocast("cuda"):
                y = model(x)
            yield y
""")
PROGRAMS["a manager of a region that is not waited for"] = YIELDS.format("""\
@contextlib.asynccontextmanager
async def region():
    with torch.autocast("cuda"):
        yield
""")
PROGRAMS["a fixture of a region"] = YIELDS.format("""\
@pytest.fixture
def region():
    with torch.autocast("cuda"):
        yield
""")
PROGRAMS["a generator of a region is no manager of one"] = YIELDS.format("""\
def region():
    with torch.autocast("cuda"):
        yield  # AMP105
""")
FLAG = """\
import torch

def train(model, loader, optimizer, flag):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=flag):
            loss = model(x).mean()
            if {}:
                scaler.scale(loss).backward(){}
        if {}:
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
PROGRAMS["a region that a flag enables, where it does"] = FLAG.format("flag", "  # AMP103", "not flag")
PROGRAMS["a region that a flag enables, where it does not"] = FLAG.format("not flag", "", "flag")
#: A context manager of unanalyzed code, which by its name may be a region or no_sync.
FOREIGN = """\
import mystery
import torch

body, head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)

def predict(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = body(x)
    with mystery.{}():
        return head(features){}
"""
for name in ("myautocasting", "highprecision", "syncing", "amp_scope", "Half", "useAMP", "fp16", "mixed", "ctx_for"):
    PROGRAMS[f"a context that may be a region: {name}"] = FOREIGN.format(name, "")
for name in ("timer", "camping", "halfway", "Timer", "open2"):
    PROGRAMS[f"a context that is of another matter: {name}"] = FOREIGN.format(name, "  # AMP108")

NORMALISED = WINDOW.replace("            scaler.step", "            {}\n            scaler.step")
for average in ("model.weight.grad /= k", "model.weight.grad *= 1 / k"):
    PROGRAMS[f"gradients that are averaged over a window: {average}"] = NORMALISED.format(
        "losses.mean()", "", f"scaler.unscale_(optimizer)\n            {average}"
    )
PROGRAMS["gradients that are changed, and not averaged over a window"] = NORMALISED.format(
    "losses.mean()", "  # AMP301", "scaler.unscale_(optimizer)\n            model.weight.grad += 1"
)
PROGRAMS["losses that nobody knows to be of one window"] = """\
import torch

def train(model, views, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda"):
        losses = [model(view).mean() for view in views]
    for loss in losses:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""

#: Pairs of conditions: gradients are unscaled if the first is true, and clipped if the second is true.
IMPLIED = (
    ("i % limits == 0", "i % limits < 1"),
    ("i % limits == 0", "i % limits <= 0"),
    ("i % limits == 0", "not i % limits"),
    ("i % limits == 0", "not i % limits > 0"),
    ("i % limits == 0", "not i % limits >= 1"),
    ("i % limits == 0", "0 == i % limits"),
    ("i % limits == 0", "0 >= i % limits"),
    ("i % limits", "i % limits > 0"),
    ("i % limits", "0 < i % limits"),
    ("i % limits", "i % limits >= 1"),
    ("i % limits", "i % limits != 0"),
    ("(i + 1) % 4 == 3", "i % 4 == 2"),
    ("(i + 1) % 4 == 0", "i % 4 == 3"),
    ("(i + 1) % limits == 1", "i % limits == 0"),
    ("(i + 1) % limits == 0", "i % limits == limits - 1"),
    ("limits > 0", "limits"),
    ("early > limits", "limits < early"),
    ("early > limits", "not early <= limits"),
    ("early > limits", "not limits >= early"),
    ("early >= limits", "limits <= early"),
    ("early >= limits", "not early < limits"),
    ("limits > 3", "limits == 5"),
    ("limits > 3", "limits > 4"),
    ("limits > 3", "4 < limits"),
    ("limits >= 3", "limits == 3"),
    ("limits < 3", "limits == 2"),
    ("limits < 3", "limits <= 2"),
    ("limits != 3", "limits > 3"),
    ("limits == early", "early == limits"),
    ("limits == early", "not early != limits"),
    ("limits is not None", "limits is not None and early"),
    ("limits == True", "limits"),
    ("limits is False", "not limits"),
    ("early or limits", "limits"),
    ("early", "early and limits"),
    ("(early > 3) is True", "early > 3"),
    ("limits ^ early", "limits ^ early"),
    ("limits // 2", "limits // 2"),
    ("limits in early", "limits in early"),
    ("limits not in early", "not limits in early"),
    ("limits is early", "not limits is not early"),
    ("-limits", "-limits"),
    ("limits.one", "limits.one"),
    ("limits['one'].two", "limits['one'].two"),
    ("limits[1:]", "limits[1:]"),
    ("limits + 1 > early", "early < limits + 1"),
)
NOT_IMPLIED = (
    ("i % limits >= 2", "i % limits"),
    ("i % limits > 1", "i % limits"),
    ("i % limits == 0", "i % limits <= 1"),
    ("i % limits == 0", "i % limits < 2"),
    ("i % limits == 0", "i % early == 0"),
    ("(i + 1) % 4 == 3", "i % 4 == 0"),
    ("(i + 1) % limits == 0", "i % limits == 0"),
    ("i % 4 == 0", "i % 2 == 0"),
    ("early > limits", "limits > early"),
    ("early > limits", "early >= limits"),
    ("early >= limits", "limits >= early"),
    ("limits > 3", "limits == 3"),
    ("limits > 3", "limits >= 3"),
    ("limits > 3", "limits > 2"),
    ("limits < 3", "limits == 3"),
    ("limits < 3", "limits <= 3"),
    ("limits != 3", "limits > 2"),
    ("limits == 'one'", "limits == 'two'"),
    ("limits == True", "not limits"),
    ("limits is False", "limits"),
    ("early and limits", "limits"),
    ("early", "early or limits"),
    ("(early > 3) == limits", "early > 3"),
    ("(early > 3) is True", "early > 2"),
    ("limits ^ early", "limits | early"),
    ("limits // 2", "limits / 2"),
    ("limits in early", "limits is early"),
    ("-limits", "limits"),
    ("limits.one", "limits.two"),
    ("limits[0]", "limits[1]"),
    ("limits['one']", "limits.one"),
    ("limits[1:]", "limits[:1]"),
    ("limits(1)", "limits(2)"),
)
for asked, later in IMPLIED:
    PROGRAMS[f"{later}: so {asked}"] = LOOP.format(
        f"        if {asked}:\n            scaler.unscale_(optimizer)\n        if {later}:\n            {CLIP}\n"
    )
for asked, later in NOT_IMPLIED:
    unscales = f"        if {asked}:\n            scaler.unscale_(optimizer)\n"
    PROGRAMS[f"{later}: not therefore {asked}"] = LOOP.format(
        f"{unscales}        if {later}:\n            {CLIP}  # AMP201\n"
    )
#: An optimizer held by an object that may keep float32 copies of weights.
MASTER = """\
import torch

class Holder:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        self.optimizer.step()

    def {}(self):
        self.optimizer.zero_grad()

def train(loader):
    model = torch.nn.Linear(8, 8).cuda().half(){}
    holder = Holder(torch.optim.SGD(model.parameters(), 0.1))
    for x in loader:
        model(x).mean().backward()
        holder.step()
        holder.{}()
"""
PROGRAMS["what has the methods of an optimizer may keep float32 copies"] = MASTER.format("zero_grad", "", "zero_grad")
PROGRAMS["what clears in another way is no optimizer"] = MASTER.format("clear", "  # AMP501", "clear")
FOLLOWED = """\
import torch

def train(model, loader, optimizer, scheduler, before):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if {}:
            scheduler.step()
"""
PROGRAMS["a scale is compared with one that nobody knows"] = FOLLOWED.format("scaler.get_scale() >= before")
PROGRAMS["one that nobody knows is compared with a scale"] = FOLLOWED.format("before <= scaler.get_scale()")

PROGRAMS["a method of a module that is not its forward is read where it is called"] = """\
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x

    def finish(self, scaler, optimizer, model):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)

def train(model, loader, optimizer, limits):
    scaler = torch.amp.GradScaler("cuda")
    net = Net()
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        net.finish(scaler, optimizer, model)
        scaler.update()
"""
PROGRAMS["what provides for an older torch may be deprecated"] = """\
import torch

def train(model, loader, optimizer):
    if hasattr(torch.amp, "GradScaler"):
        print("new")
    scaler = torch.amp.GradScaler("cuda") if torch.__version__ >= "2.3" else torch.cuda.amp.GradScaler()
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
PROGRAMS["an attribute that another method changes is another one in each iteration"] = """\
import torch

class Trainer:
    def __init__(self, model, loader, ready):
        self.model, self.loader = model, loader
        self.ready = ready

    def toggle(self, answer):
        self.ready = answer

    def train(self, optimizer, k):
        model, scaler = self.model, torch.amp.GradScaler("cuda")
        for x in self.loader:
            with torch.autocast("cuda"):
                loss = model(x).mean() / k
            if self.ready:
                scaler.scale(loss).backward()
            else:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

Trainer(make_model(), make_loader(), make_flag()).train(make_optimizer(), 4)
"""
PROGRAMS["what is sent to a generator is not known"] = """\
import torch

def train(model, loader, optimizer, limits):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        sent = yield from limits
        if sent.ready:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
"""


@in_groups(PROGRAMS)
def test_a_program_has_exactly_its_marks(cases: dict[str, str]) -> None:
    check_each(cases, check_marks)


def check_marks(name: str, source: str) -> None:
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)
