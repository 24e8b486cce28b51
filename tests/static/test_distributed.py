"""AMP6xx in indirect programs, and in similar correct programs: shards, replicas, threads, captures, compilation."""

from __future__ import annotations

import textwrap

import pytest
from marks import marks, places, shown

from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

START = """\
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.distributed.algorithms import ddp_comm_hooks
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 2)

    def forward(self, x):
        return self.linear(x)


class Island(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 2)

    def forward(self, x):
        with torch.autocast("cuda", enabled=False):
            return self.linear(x.float())


"""
#: One step of training with a scaler.
STEP = """\
with torch.autocast("cuda", dtype=torch.float16):
    loss = nn.functional.mse_loss(model(x), y)
optimizer.zero_grad()
scaler.scale(loss).backward()
"""

PROGRAMS = {
    # AMP602
    "a plain scaler, and a model that is wrapped in a function": """\
def wrap(net):
    return FSDP(net, device_id=0)

model = wrap(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
{STEP}
scaler.step(optimizer)  # AMP602
scaler.update()
""",
    "the class that shards the model steps with its plain scaler": """\
class Trainer:
    def __init__(self):
        self.model = FSDP(Net())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    def train(self, x, y):
        model, optimizer, scaler = self.model, self.optimizer, self.scaler
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # AMP602
        scaler.update()
""",
    "another method of the class that makes the plain scaler shards the model": """\
class Trainer:
    def __init__(self, net):
        self.scaler = torch.amp.GradScaler("cuda")  # AMP602
        self.model = self.wrap(net)

    def wrap(self, net):
        return FSDP(net)

    def step(self, loss, optimizer):
        self.scaler.scale(loss).backward()
        self.scaler.step(optimizer)
        self.scaler.update()
""",
    "no method of the class that makes the plain scaler shards the model": """\
class Trainer:
    def __init__(self, net):
        self.scaler = torch.amp.GradScaler("cuda")
        self.model = self.wrap(net)

    def wrap(self, net):
        return DDP(net)

    def step(self, loss, optimizer):
        self.scaler.scale(loss).backward()
        self.scaler.step(optimizer)
        self.scaler.update()
""",
    "the model is wrapped on request, and nothing else changes": """\
model = Net()
if args.fsdp:
    model = FSDP(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
{STEP}
scaler.step(optimizer)  # AMP602
scaler.update()
""",
    "the plain scaler steps where the model is whole": """\
model = Net()
if args.fsdp:
    model = FSDP(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=not args.fsdp)
{STEP}
scaler.step(optimizer)
scaler.update()
""",
    "another model is sharded": """\
teacher = FSDP(Net())
model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
{STEP}
scaler.step(optimizer)
scaler.update()
""",
    "a strategy that is given in its place": """\
model = FSDP(Net(), None, ShardingStrategy.NO_SHARD)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
{STEP}
scaler.step(optimizer)
scaler.update()
""",
    # AMP603
    "a clip under the test under which the model is wrapped": """\
model = Net()
if args.fsdp:
    model = FSDP(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
nn.functional.mse_loss(model(x), y).backward()
if args.fsdp:
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP603
else:
    model.clip_grad_norm_(1.0)
optimizer.step()
""",
    "a clip where the model is not wrapped": """\
model = Net()
if args.fsdp:
    model = FSDP(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
nn.functional.mse_loss(model(x), y).backward()
if not args.fsdp:
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
""",
    "a clip where the model itself is asked whether it is wrapped": """\
model = Net()
if args.fsdp:
    model = FSDP(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
nn.functional.mse_loss(model(x), y).backward()
if isinstance(model, FSDP):
    model.clip_grad_norm_(1.0)
else:
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
""",
    "a clip where the model is asked whether it is something else": """\
model = Net()
if args.fsdp:
    model = FSDP(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
nn.functional.mse_loss(model(x), y).backward()
if not isinstance(model, DDP):
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP603
optimizer.step()
""",
    "a clip where something else decides, in code that knows of shards": """\
model = Net()
if args.fsdp:
    model = FSDP(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
nn.functional.mse_loss(model(x), y).backward()
if args.strategy == "shards":
    model.clip_grad_norm_(1.0)
else:
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
""",
    "the norm is only measured": """\
model = FSDP(Net())
nn.functional.mse_loss(model(x), y).backward()
norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
""",
    "the shards of a part": """\
model = FSDP(Net())
head = nn.Linear(8, 2)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
nn.functional.mse_loss(head(model(x)), y).backward()
nn.utils.clip_grad_norm_(head.parameters(), 1.0)
nn.utils.clip_grad_norm_([*model.parameters(), *head.parameters()], 1.0)  # AMP603
optimizer.step()
""",
    # AMP604
    "a hook that is registered by its type": """\
model = DDP(Net())
ddp_comm_hooks.register_ddp_comm_hook(ddp_comm_hooks.DDPCommHookType.FP16_COMPRESS, model)  # AMP604
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
{STEP}
scaler.step(optimizer)
scaler.update()
""",
    "a hook that is wrapped": """\
model = DDP(Net())
model.register_comm_hook(None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook))  # AMP604
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
{STEP}
scaler.step(optimizer)
scaler.update()
""",
    "a hook on a model that no scaler trains": """\
teacher = DDP(Net())
teacher.register_comm_hook(None, default_hooks.fp16_compress_hook)
model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
{STEP}
scaler.step(optimizer)
scaler.update()
""",
    "a scaler that is off": """\
model = DDP(Net())
model.register_comm_hook(None, default_hooks.fp16_compress_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=False)
{STEP}
scaler.step(optimizer)
scaler.update()
""",
    # AMP605
    "callables for graphs, in a region for CUDA": """\
model = Net()
with torch.autocast("cuda", dtype=torch.float16):
    model = torch.cuda.make_graphed_callables(model, (x,))  # AMP605
""",
    "callables for graphs, in a region for another device": """\
model = Net()
with torch.autocast("cpu", dtype=torch.bfloat16):
    model = torch.cuda.make_graphed_callables(model, (x,))
""",
    "callables for graphs, in a region without a cache": """\
model = Net()
with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
    model = torch.cuda.make_graphed_callables(model, (x,))
""",
    "a graph that is captured after a warm-up in the same region": """\
model, graph = Net(), torch.cuda.CUDAGraph()
with torch.autocast("cuda", dtype=torch.float16):
    for _ in range(3):
        model(x)
    with torch.cuda.graph(graph):  # AMP605
        out = model(x)
""",
    "a graph that is captured first in its region": """\
model, graph = Net(), torch.cuda.CUDAGraph()
for _ in range(3):
    with torch.autocast("cuda", dtype=torch.float16):
        model(x)
with torch.autocast("cuda", dtype=torch.float16), torch.cuda.graph(graph):
    out = model(x)
""",
    "a trace in a region that may be switched off": """\
model = Net()
with torch.autocast("cuda", dtype=torch.float16, enabled=args.amp):
    traced = torch.jit.trace(model, x)  # AMP605
""",
    "a trace without the second run": """\
model = Net()
with torch.autocast("cuda", dtype=torch.float16):
    traced = torch.jit.trace(model, x, check_trace=False)
""",
    "a trace of a model in float16": """\
model = Net().half()
with torch.autocast("cuda", dtype=torch.float16):
    traced = torch.jit.trace(model, x)
""",
    "the old entry point has a cache of its own": """\
model = Net()
with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
    with torch.cuda.amp.autocast(dtype=torch.float16):  # AMP901
        traced = torch.jit.trace(model, x)  # AMP605
""",
    # AMP606
    "replicas in a region of bfloat16": """\
model = nn.DataParallel(Net())
with torch.autocast("cuda", dtype=torch.bfloat16):
    out = model(x)  # AMP606
""",
    "replicas of a model that is not in view": """\
model = nn.DataParallel(build(args))
with torch.autocast("cuda", dtype=torch.bfloat16):
    out = model(x)
""",
    "replicas outside of a region": """\
model = nn.DataParallel(Net())
out = model(x)
""",
    "a pool that runs a function": """\
model = Net()

def predict(x):
    return model(x)

with torch.autocast("cuda", dtype=torch.float16):
    with ThreadPoolExecutor() as pool:
        outputs = list(pool.map(predict, xs))  # AMP606
""",
    "a pool that only runs a function without a model": """\
model = Net()

def load(path):
    return torch.load(path)

with torch.autocast("cuda", dtype=torch.float16):
    with ThreadPoolExecutor() as pool:
        outputs = [model(x) for x in pool.map(load, paths)]
""",
    "a thread that is started outside of the region": """\
model = Net()
worker = threading.Thread(target=lambda: model(x))
worker.start()
with torch.autocast("cuda", dtype=torch.float16):
    out = model(x)
worker.join()
""",
    "a model that enters autocast itself": """\
class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 2)

    @torch.autocast("cuda", dtype=torch.float16)
    def forward(self, x):
        return self.linear(x)

model = Own()
with torch.autocast("cuda", dtype=torch.float16):
    worker = threading.Thread(target=lambda: model(x))
    worker.start()
    worker.join()
""",
    # AMP601
    "a module with a part whose autocast computes in float32": """\
class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 2))

    def forward(self, x):
        with torch.autocast("cuda", enabled=False):
            x = x.float()
        with torch.autocast("cuda", dtype=torch.float32):
            return x @ self.weight

model = torch.compile(Router())
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = nn.functional.mse_loss(model(x), y)  # AMP601
loss.backward()
""",
    "a module that runs another one in a region of float32": """\
class Precise(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        with torch.autocast("cuda", dtype=torch.float32):
            return self.head(x.float())

model = torch.compile(Precise())
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = nn.functional.mse_loss(model(x), y)  # AMP601
loss.backward()
""",
    "a module with a method that is decorated with autocast switched off": """\
class Decorated(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 2))

    @torch.autocast("cuda", enabled=False)
    def precise(self, x):
        return x.float() @ self.weight

    def forward(self, x):
        return self.precise(x)

model = torch.compile(Decorated())
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = nn.functional.mse_loss(model(x), y)  # AMP601
loss.backward()
""",
    "a module that compiles itself": """\
model = Island()
model.compile()
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = nn.functional.mse_loss(model(x), y)  # AMP601
loss.backward()
""",
    "a compiled function with a part that switches autocast off": """\
linear = nn.Linear(8, 2)

def precise(x):
    with torch.autocast("cuda", enabled=False):
        return x.float() @ linear.weight.float().T

def run(x, fast=False):
    if fast:
        return torch.compile(precise)(x)  # AMP601
    return precise(x)

with torch.autocast("cuda", dtype=torch.bfloat16):
    plain, compiled = run(x), run(x, fast=True)
plain.sum().backward()
compiled.sum().backward()
""",
    "a compiled function that leaves autocast as it is": """\
linear = nn.Linear(8, 2)

@torch.compile
def through(x):
    return linear(x)

step = torch.compile(lambda x: linear(x).sum())
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = through(x).sum() + step(x)
loss.backward()
""",
    "a compiled function that is called outside of every region": """\
linear = nn.Linear(8, 2)

def precise(x):
    with torch.autocast("cuda", enabled=False):
        return x.float() @ linear.weight.float().T

torch.compile(precise)(x).sum().backward()
""",
    "a compiled module whose backward is in the region too": """\
model = torch.compile(Island())
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()  # AMP103
""",
    "a compiled module that is called without autocast": """\
model = torch.compile(Island())
nn.functional.mse_loss(model(x), y).backward()
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_what_it_marks(name: str) -> None:
    source = START + PROGRAMS[name].replace("{STEP}", STEP)
    findings = [
        finding
        for finding in check_source(source, "script.py", Settings())
        if finding.code.startswith("AMP6") or finding.code in ("AMP103", "AMP901")
    ]
    assert places(findings) == marks(source), shown(findings)


FUNCTION = """\
import torch
from torch.amp import custom_bwd, custom_fwd
from torch.autograd.function import once_differentiable


class Product(torch.autograd.Function):
    @staticmethod
{forward}
    def forward(ctx, x, weight):{forward_mark}
        ctx.save_for_backward(x, weight)
        return torch.matmul(x, weight)

    @staticmethod
{backward}
    def backward(ctx, grad):{backward_mark}
        x, weight = ctx.saved_tensors
        return torch.matmul(grad, weight.t()), torch.matmul(x.t(), grad)


{use}
"""
USE = """\
weight = torch.randn(8, 4, requires_grad=True)
with torch.autocast("cuda", dtype=torch.float16):
    loss = Product.apply(x, weight).float().sum()
loss.backward()
"""
MODULE = """\
class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter({weight})

    def forward(self, x):
        return Product.apply(x, self.weight)


def train(model, loader):
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
"""
#: Decorator of forward, decorator of backward, use of the function, and the marked method.
FUNCTIONS = {
    "no decorators": ("", "", USE, "forward"),
    "once differentiable": ("", "@once_differentiable", USE, "forward"),
    "applied by another name": (
        "",
        "",
        USE.replace("Product.apply", "product").replace("with", "product = Product.apply\nwith"),
        "forward",
    ),
    "applied by a module": ("", "", MODULE.format(weight="torch.randn(8, 4)"), "forward"),
    "applied by a module to a weight of another dtype": (
        "",
        "",
        MODULE.format(weight="torch.randn(8, 4, dtype=torch.float16)"),
        "",
    ),
    "applied without gradients": ("", "", USE.replace("with ", "with torch.no_grad(), "), ""),
    "applied outside": ("", "", "weight = torch.randn(8, 4)\nProduct.apply(x, weight).sum().backward()", ""),
    "applied to what is not in view": ("", "", USE.replace("torch.randn(8, 4, requires_grad=True)", "load()"), ""),
    "a decorator that is not known": ("@guarded", "", USE, ""),
    "the old decorators": ("@torch.cuda.amp.custom_fwd", "@torch.cuda.amp.custom_bwd", USE, ""),
    "the old decorator of forward, called": ("@torch.cuda.amp.custom_fwd()", "", USE, "backward"),
    "backward alone, used by nobody": ("", '@custom_bwd(device_type="cuda")', "", "backward"),
    "two devices": ('@custom_fwd(device_type="cuda")', '@custom_bwd(device_type="xpu")', "", "backward"),
    "two devices, one in a variable": ('@custom_fwd(device_type="cuda")', "@custom_bwd(device_type=kind)", "", ""),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_custom_function_is_blamed_where_it_lacks_something(name: str) -> None:
    forward, backward, use, marked = FUNCTIONS[name]
    source = FUNCTION.format(
        forward=textwrap.indent(forward, "    "),
        backward=textwrap.indent(backward, "    "),
        forward_mark="  # AMP107" if marked == "forward" else "",
        backward_mark="  # AMP107" if marked == "backward" else "",
        use=use,
    )
    findings = check_source(source, "script.py", Settings(select=frozenset({"AMP107"})))
    assert places(findings) == marks(source), shown(findings)


@pytest.mark.parametrize("line", ["count = float('1')", "kind = type(ctx)"])
def test_a_builtin_of_the_name_of_a_dtype_is_not_taken_for_one(line: str) -> None:
    source = FUNCTION.format(forward="", backward="", forward_mark="  # AMP107", backward_mark="", use=USE)
    source = source.replace("        x, weight =", f"        {line}\n        x, weight =")
    findings = check_source(source, "script.py", Settings(select=frozenset({"AMP107"})))
    assert places(findings) == marks(source), shown(findings)


@pytest.mark.parametrize("line", ["grad = grad.float()", "grad = grad.type(torch.float)"])
def test_a_backward_that_casts_takes_care_of_dtypes(line: str) -> None:
    source = FUNCTION.format(forward="", backward="", forward_mark="", backward_mark="", use=USE)
    source = source.replace("        x, weight =", f"        {line}\n        x, weight =")
    assert not check_source(source, "script.py", Settings(select=frozenset({"AMP107"})))


#: A model whose gradients are cast to float16 if ``HOOK`` registers a hook, and the scaling of its gradients.
HOOKED = """\
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

def train(loader, net, other, option, flag):
    model, second = DDP(torch.nn.Linear(2, 2)), DDP(torch.nn.Linear(2, 2))
    {hook}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    small = torch.amp.GradScaler("cuda", init_scale=512.0)
    scaler = torch.amp.GradScaler("cuda"{arguments})
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()
        if {test}:
            loss.backward()
            optimizer.step()
        else:
            {scaler}.scale(loss).backward()
            {scaler}.step(optimizer)
            {scaler}.update()
"""
HOOK = "model.register_comm_hook(None, default_hooks.fp16_compress_hook)"
#: The replaced parts, and True if the hook is a mistake.
HOOKS: list[tuple[dict[str, str], bool]] = [
    ({}, True),
    ({"arguments": ", growth_interval=100"}, True),
    ({"arguments": ", init_scale=1025.0"}, True),
    ({"arguments": ", init_scale=1024.0"}, False),
    ({"arguments": ", init_scale=1024"}, False),
    ({"arguments": ", enabled=False"}, False),
    ({"scaler": "small"}, False),
    ({"hook": HOOK.replace("fp16", "bf16")}, False),
    ({"hook": HOOK.replace("model.", "second.")}, False),
    ({"hook": f"if flag: {HOOK}"}, True),
    ({"hook": f"if flag: {HOOK}", "test": "flag"}, False),
    ({"hook": f"if flag: {HOOK}", "test": "not flag"}, True),
    ({"hook": f"if not flag: {HOOK}", "test": "not flag"}, False),
    ({"hook": f"if flag: {HOOK}", "test": "option"}, True),
]


@pytest.mark.parametrize(("given", "wrong"), HOOKS, ids=lambda given: str(given) if isinstance(given, dict) else "")
def test_a_hook_that_casts_to_float16_is_wrong_beside_a_large_scale(given: dict[str, str], wrong: bool) -> None:
    source = HOOKED.format(**{"hook": HOOK, "arguments": "", "test": "x.empty", "scaler": "scaler", **given})
    findings = check_source(source, "script.py", Settings(select=frozenset({"AMP604"})))
    assert [finding.line for finding in findings] == [7] * wrong, shown(findings)
