"""Rules on AMP across processes, threads and captures: where the scaler, autocast or the norm is only a part's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..events import CLIP, COMM_HOOK, COMPILED, SCALER_NEW, SCALER_STEP, Event, Program
from ..fix import SAFE
from ..rule import ERROR, STATIC, WARNING, Fault, Rule

_EXAMPLES = (
    "PyTorch documentation: Automatic Mixed Precision examples, docs.pytorch.org/docs/stable/notes/amp_examples.html"
)
_AUTOCAST = "PyTorch documentation: torch.autocast, docs.pytorch.org/docs/stable/amp.html"
_FSDP = "PyTorch documentation: FullyShardedDataParallel, docs.pytorch.org/docs/stable/fsdp.html"
_COMPILER = (
    "PyTorch documentation: torch.compile and the autocast of backward,"
    " docs.pytorch.org/docs/stable/torch.compiler_backward.html"
)
_SHARDED = "PyTorch source: torch/distributed/fsdp/sharded_grad_scaler.py"
_GRAPHS = "PyTorch documentation: torch.cuda.make_graphed_callables"
_MEASURED = "measured with torch 2.13 on the CPU"
_TWO_RANKS = "measured with torch 2.13 and two gloo processes on the CPU"

#: An initial scale up to which float16 holds gradients of the size that training has.
_SMALL_SCALE = 1024.0


def _unsynchronised(event: Event, program: Program) -> Iterator[tuple[str, Mapping[str, str]]]:
    why = event.facts.get("unsynchronised")
    if why and set(program.facts.get("scaler_dtypes", ())) != {"bfloat16"}:
        yield f"step@shards-{why}", {}


def _local_clip(event: Event, program: Program) -> Iterator[tuple[str, Mapping[str, str]]]:
    if event.facts.get("local") and not event.facts.get("measures_only"):
        yield "clip@shards", {}


def _compressed(program: Program) -> Iterator[tuple[str, Event, Mapping[str, str], tuple[Event, ...]]]:
    """Hooks that cast to float16 what a scaler with a large scale has multiplied."""
    events = [node.event for graph in program.graphs for node in graph.nodes if node.event is not None]
    hooks = [event for event in events if event.kind == COMM_HOOK]
    if not hooks:
        return
    small = {event.subject for event in events if event.kind == SCALER_NEW and _is_small(event)}
    live = {thing.key for thing in program.facts.get("live_scalers", ())} - small
    steps = [event for event in events if event.kind == SCALER_STEP and event.subject in live]
    for hook in hooks:
        for step in steps:
            owns = program.things[step.object].facts.get("owns") if step.object is not None else None
            apart = owns is not None and hook.subject is not None and hook.subject not in owns
            if not apart and not _exclude(hook, step):
                yield "hook@scaled", hook, {"scaler": str(step.names.get("scaler") or "the scaler")}, (step,)
                break


def _is_small(event: Event) -> bool:
    scale = event.facts["arguments"].get("init_scale")
    return isinstance(scale, (int, float)) and scale <= _SMALL_SCALE


def _exclude(a: Event, b: Event) -> bool:
    """Whether two events stand under tests that cannot both come out so."""
    return any((key, not truth) in b.guards for key, truth in a.guards)


def _compiled(event: Event, program: Program) -> Iterator[tuple[str, Mapping[str, str]]]:
    yield "compiled@region", {}


COMPILED_BACKWARD_AUTOCAST = Rule(
    "AMP601",
    "compiled-backward-autocast",
    WARNING,
    "The backward of a compiled module with float32 islands runs under the autocast of its forward.",
    faults={
        "compiled@region": Fault(
            "`{module}` is compiled and called under autocast, so the backward of the part of it that switches autocast"
            " off runs in low precision too: enter autocast inside the compiled module, or set"
            ' `torch._functorch.config.backward_pass_autocast` to `"off"`'
        )
    },
    why="""\
`torch.compile` traces the backward of a module together with its forward, and takes for granted that backward runs
under the autocast in which forward was called. In a plain module the loss runs backward outside of the region, so a
part that switches autocast off, or has it compute in float32, keeps its float32 in both directions. Compiled, the
matmuls of that part's backward are cast to the low precision of the region, which is what the part was meant to avoid.
""",
    harm="""\
A Linear layer in `torch.autocast("cpu", enabled=False)` between two that autocast casts, compiled with `aot_eager`,
float16: the gradient of its weight differs by 2.0e-4 from that of the plain module, and is bit-equal with
`backward_pass_autocast = "off"`. With a loss multiplied by 6.6e6, 67 of its 256 elements are not finite where the
plain module has none.
""",
    bad="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.precise = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        x = torch.relu(self.body(x))
        with torch.autocast("cpu", enabled=False):
            return self.precise(x.float())


net = Net()
model = torch.compile(net, backend="aot_eager")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in torch.randn(8, 8).split(4):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)  # AMP601
        loss = nn.functional.mse_loss(out, torch.zeros(4, 4))
    loss.backward()
    optimizer.step()
""",
    good="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.precise = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = torch.relu(self.body(x))
            with torch.autocast("cpu", enabled=False):
                return self.precise(x.float())


net = Net()
model = torch.compile(net, backend="aot_eager")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in torch.randn(8, 8).split(4):
    optimizer.zero_grad()
    out = model(x)
    loss = nn.functional.mse_loss(out, torch.zeros(4, 4))
    loss.backward()
    optimizer.step()
""",
    fix="Enter autocast inside the module that is compiled, or have the compiled backward run without autocast.",
    silent=(
        (
            "no part of the module switches autocast off",
            """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


model = torch.compile(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
        (
            "the compiled backward is told to run without autocast",
            """\
import torch._functorch.config


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.precise = nn.Linear(8, 4)

    def forward(self, x):
        with torch.autocast("cuda", enabled=False):
            return self.precise(x.float())


torch._functorch.config.backward_pass_autocast = "off"
model = torch.compile(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
        (
            "the module is not compiled",
            """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.precise = nn.Linear(8, 4)

    def forward(self, x):
        with torch.autocast("cuda", enabled=False):
            return self.precise(x.float())


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
        (
            "the island multiplies no matrices",
            """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.head(x)
        with torch.autocast("cuda", enabled=False):
            return x.float().softmax(dim=-1)


model = torch.compile(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
    sources=(_COMPILER, "pytorch issue 153044", _MEASURED),
    readers=STATIC,
    on={COMPILED: _compiled},
)

FOUND_INF_NOT_SYNCHRONISED = Rule(
    "AMP602",
    "found-inf-not-synchronised",
    ERROR,
    "Each rank decides by its own shard of the gradients whether a step is skipped.",
    faults={
        "step@shards-plain": Fault(
            "`{scaler}` looks for infinities in the shard of the gradients that this rank holds, so ranks disagree"
            " about skipping a step: use `torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler`"
        ),
        "step@shards-fused": Fault(
            "`{scaler}` does not tell other ranks of infinities that the fused `{optimizer}` finds, so ranks disagree"
            " about skipping a step: construct the optimizer without `fused=True`"
        ),
    },
    why="""\
With FullyShardedDataParallel every rank holds a part of each gradient, and an infinity is in the part of one rank. A
plain GradScaler looks at the part of its own rank: that rank skips the step and halves its scale, the others step and
keep theirs. From then on the parameters are a mixture of two steps, and the ranks multiply their losses with different
scales. ShardedGradScaler reduces what was found over all ranks, except where a fused optimizer does the looking.
""",
    harm="""\
Two processes, one infinity in the shard of the second, scale 65536: with GradScaler the first rank moves its
parameters and keeps 65536 while the second stands still and has 32768. With ShardedGradScaler both stand still and
have 32768; with ShardedGradScaler and `fused=True` they part again, 65536 and 32768.
""",
    bad="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
model = FSDP(torch.nn.Linear(8, 2), device_id=torch.device("cpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for x in torch.randn(16, 8).split(8):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = torch.nn.functional.mse_loss(model(x), torch.zeros(8, 2))
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # AMP602
    scaler.update()
dist.destroy_process_group()
""",
    good="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
model = FSDP(torch.nn.Linear(8, 2), device_id=torch.device("cpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = ShardedGradScaler("cpu")
for x in torch.randn(16, 8).split(8):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = torch.nn.functional.mse_loss(model(x), torch.zeros(8, 2))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
dist.destroy_process_group()
""",
    fix="Use ShardedGradScaler with an optimizer that is not fused, or `fully_shard`, with which GradScaler is right.",
    silent=(
        (
            "DistributedDataParallel averages gradients, and an infinity with them",
            """\
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        ),
        (
            "with fully_shard the gradients are DTensors, which reduce what is found",
            """\
from torch.distributed.fsdp import fully_shard

model = Net()
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, fused=True)
scaler = torch.amp.GradScaler("cuda")
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        ),
        (
            "bfloat16 overflows on no rank",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        ),
        (
            "nothing is sharded",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy

model = FSDP(Net(), sharding_strategy=ShardingStrategy.NO_SHARD)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        ),
        (
            "the scaler is chosen as the model is wrapped",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

model = Net()
if config["fsdp"]:
    model = FSDP(model)
    scaler = ShardedGradScaler()
else:
    scaler = torch.amp.GradScaler("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        ),
    ),
    sources=(_FSDP, _SHARDED, "pytorch issue 132816", _TWO_RANKS),
    on={SCALER_STEP: _unsynchronised},
)

FSDP1_LOCAL_CLIP = Rule(
    "AMP603",
    "fsdp1-local-clip",
    ERROR,
    "Sharded gradients are clipped by the norm of one shard.",
    faults={
        "clip@shards": Fault(
            "`{call}` computes the norm of the shard that this rank holds, so each rank clips by another factor: call"
            " `clip_grad_norm_` of the FullyShardedDataParallel module"
        )
    },
    why="""\
With FullyShardedDataParallel `model.parameters()` gives the shard that a rank holds, and so do the gradients.
`torch.nn.utils.clip_grad_norm_` takes the norm of what it is given: each rank finds a smaller norm than the gradient
has, and scales its part by a factor of its own, so that the step changes its direction as well. The method
`clip_grad_norm_` of the outermost module reduces the norm over all ranks.
""",
    harm="""\
Two processes, limit 0.05: the ranks find norms of 0.083 and 0.306 where the gradient has 0.317, and multiply their
parts by 0.60 and 0.16 instead of 0.158 both. The method of the module finds 0.317 on both.
""",
    bad="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
model = FSDP(torch.nn.Linear(8, 2), device_id=torch.device("cpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.randn(16, 8).split(8):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), torch.zeros(8, 2)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # AMP603
    optimizer.step()
dist.destroy_process_group()
""",
    good="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
model = FSDP(torch.nn.Linear(8, 2), device_id=torch.device("cpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.randn(16, 8).split(8):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), torch.zeros(8, 2)).backward()
    model.clip_grad_norm_(0.1)
    optimizer.step()
dist.destroy_process_group()
""",
    fix="Call `model.clip_grad_norm_(max_norm)` on the outermost FullyShardedDataParallel module.",
    silent=(
        (
            "with fully_shard the gradients are DTensors, whose norm is that of all ranks",
            """\
from torch.distributed.fsdp import fully_shard

model = Net()
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
""",
        ),
        (
            "nothing is sharded",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy

model = FSDP(Net(), sharding_strategy=ShardingStrategy.NO_SHARD)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
""",
        ),
        (
            "DistributedDataParallel leaves whole gradients on each rank",
            """\
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
""",
        ),
        (
            "each way of wrapping has its own clip",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = Net()
if config["fsdp"]:
    model = FSDP(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    if config["fsdp"]:
        model.clip_grad_norm_(0.1)
    else:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
""",
        ),
        (
            "a test of the class decides which clip it is",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(Net()) if config["fsdp"] else Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    if not isinstance(model, FSDP):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
""",
        ),
        (
            "values are clipped one by one",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
    optimizer.step()
""",
        ),
    ),
    sources=(_FSDP + ", clip_grad_norm_", _TWO_RANKS),
    on={CLIP: _local_clip},
)

FP16_COMPRESS_WITH_SCALER = Rule(
    "AMP604",
    "fp16-compress-with-scaler",
    WARNING,
    "Gradients that are multiplied by the loss scale are cast to float16 before they are averaged.",
    faults={
        "hook@scaled": Fault(
            "`{call}` casts gradients to float16 while `{scaler}` has them multiplied by the loss scale, so those above"
            " 65504 / scale become infinite: use `bf16_compress_hook`, or a small `init_scale`"
        )
    },
    why="""\
`fp16_compress_hook` casts the gradients of DistributedDataParallel to float16 before it averages them. At that point a
GradScaler has multiplied them by the loss scale, 65536 at first, and float16 ends at 65504: every gradient above one
becomes infinite. The scaler skips these steps and halves its scale until the largest gradient of the model fits, so
that the small ones underflow as they would without a scaler.
""",
    harm="""\
One gloo process, a stack of two Linear layers whose loss gives gradients of about 10: 52 elements are infinite in the
first iteration. Of 30 steps 4 are skipped and the scale falls from 65536 to 4096; without the hook none is skipped and
the scale stays.
""",
    bad="""\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel


def train():
    model = DistributedDataParallel(nn.Linear(8, 2))
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)  # AMP604
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    for x in torch.randn(16, 8).split(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), torch.zeros(8, 2))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
train()
dist.destroy_process_group()
""",
    good="""\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train():
    model = DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    for x in torch.randn(16, 8).split(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), torch.zeros(8, 2))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
train()
dist.destroy_process_group()
""",
    fix="Compress with `bf16_compress_hook`, whose range is that of float32, or average float32 gradients.",
    silent=(
        (
            "bfloat16 has the range of float32",
            """\
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(Net())
model.register_comm_hook(None, default_hooks.bf16_compress_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        ),
        (
            "a scale so small that gradients fit",
            """\
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(Net())
model.register_comm_hook(None, default_hooks.fp16_compress_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", init_scale=128.0)
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        ),
        (
            "no scaler multiplies the gradients",
            """\
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(Net())
model.register_comm_hook(None, default_hooks.fp16_compress_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
""",
        ),
        (
            "either the hook or the scaler",
            """\
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
if not use_amp:
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16, enabled=use_amp):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        ),
    ),
    sources=("PyTorch source: torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py", _MEASURED),
    readers=STATIC,
    whole=_compressed,
)

CAPTURE_WITH_CAST_CACHE = Rule(
    "AMP605",
    "capture-with-cast-cache",
    ERROR,
    "A model is traced or captured in an autocast region that keeps the weights it has cast.",
    faults={
        "trace@cached-region": Fault(
            "`{call}` runs in an autocast region with a cache, whose cast weights the trace takes for constants,"
            " which raises: enter the region with `cache_enabled=False`"
        ),
        "graphed@cached-region": Fault(
            "`{call}` refuses an autocast region with a cache, since a graph must cast the weights at each replay:"
            " enter the region with `cache_enabled=False`"
        ),
        "graph@cached-region": Fault(
            "`{call}` captures a graph in an autocast region that has cast weights before, so its replays use those"
            " for ever: enter the region with `cache_enabled=False`, or inside the capture"
        ),
    },
    why="""\
A region keeps the low-precision copy of each weight for the next use. What traces or captures a model sees only what
runs at that time: where a copy is taken from the cache, no cast is recorded. `torch.jit.trace` runs the model twice,
finds the copies of the first run in the second one, and cannot make constants of tensors that need gradients. A CUDA
graph that is captured after a warm-up in the same region replays with the weights of that time.
""",
    harm="""\
In a region of bfloat16, `torch.jit.trace` of two Linear layers raises `RuntimeError: Cannot insert a Tensor that
requires grad as a constant`, with and without `no_grad`; with `cache_enabled=False`, or frozen weights, it traces.
`torch.cuda.make_graphed_callables` raises `RuntimeError: make_graphed_callables does not support the autocast
caching`.
""",
    bad="""\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).eval()
x = torch.randn(4, 8)
try:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        traced = torch.jit.trace(model, x)  # AMP605
    print(traced(x).dtype)
except RuntimeError as error:
    print(error)
""",
    good="""\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).eval()
x = torch.randn(4, 8)
try:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        traced = torch.jit.trace(model, x)
    print(traced(x).dtype)
except RuntimeError as error:
    print(error)
""",
    fix="Enter the region around the capture with `cache_enabled=False`.",
    applicability=SAFE,
    silent=(
        (
            "weights that need no gradients are not kept",
            """\
model = torch.nn.Linear(8, 2)
model.requires_grad_(False)
with torch.autocast("cpu", dtype=torch.bfloat16):
    traced = torch.jit.trace(model, torch.randn(4, 8))
""",
        ),
        (
            "a nested region has the cache of the one around it",
            """\
model = torch.nn.Linear(8, 2)
with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        traced = torch.jit.trace(model, torch.randn(4, 8))
""",
        ),
        (
            "what is compiled or exported is no such capture",
            """\
model = torch.nn.Linear(8, 2)
with torch.autocast("cpu", dtype=torch.bfloat16):
    exported = torch.export.export(model, (torch.randn(4, 8),))
    output = torch.compile(model)(torch.randn(4, 8))
""",
        ),
        (
            "traced outside, used inside",
            """\
model = torch.nn.Linear(8, 2)
traced = torch.jit.trace(model, torch.randn(4, 8))
with torch.autocast("cpu", dtype=torch.bfloat16):
    output = traced(torch.randn(4, 8))
""",
        ),
        (
            "a region that is entered inside the capture casts in the graph",
            """\
graph = torch.cuda.CUDAGraph()
for _ in range(3):
    with torch.autocast("cuda", dtype=torch.float16):
        model(inputs)
with torch.cuda.graph(graph):
    with torch.autocast("cuda", dtype=torch.float16):
        output = model(inputs)
""",
        ),
        (
            "float32",
            """\
model = torch.nn.Linear(8, 2)
with torch.autocast("cpu", enabled=False):
    traced = torch.jit.trace(model, torch.randn(4, 8))
""",
        ),
    ),
    sources=(_GRAPHS, _AUTOCAST + ": the example with torch.jit.trace", "pytorch issue 63552", _MEASURED),
)

AUTOCAST_NOT_IN_THREAD = Rule(
    "AMP606",
    "autocast-not-in-thread",
    WARNING,
    "A model runs in a thread to which the autocast region around does not reach.",
    faults={
        "thread@region": Fault(
            "`{call}` has another thread run a model, which autocast does not reach from here, so it runs in float32:"
            " enter the region in the function that the thread runs"
        ),
        "replicas@region": Fault(
            "`{module}` runs its replicas in threads that know of autocast but not of its dtype, so they run in float16"
            " where this region says bfloat16: enter autocast in the forward of the model that DataParallel wraps"
        ),
    },
    why="""\
Whether autocast is on, and for which dtype, belongs to the thread that has entered it. A thread that is started in a
region, or a pool that is given work there, begins with autocast off. DataParallel hands on whether autocast is on and
nothing else, so its replicas run in the default dtype of the device, which is float16 on CUDA: in a region of bfloat16
they overflow where nobody expects it.
""",
    harm="""\
In a region of bfloat16 a Linear layer gives bfloat16; in a thread that is started there, and in a pool that is given
the same call, it gives float32. DataParallel enters `torch.amp.autocast("cuda", enabled=...)` in each replica's
thread, without a dtype.
""",
    bad="""\
import threading

import torch
from torch import nn

model = nn.Linear(8, 2)
outputs = []


def predict(x):
    outputs.append(model(x))


with torch.autocast("cpu", dtype=torch.bfloat16):
    worker = threading.Thread(target=predict, args=(torch.randn(4, 8),))
    worker.start()  # AMP606
    worker.join()
print(outputs[0].dtype)
""",
    good="""\
import threading

import torch
from torch import nn

model = nn.Linear(8, 2)
outputs = []


def predict(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs.append(model(x))


worker = threading.Thread(target=predict, args=(torch.randn(4, 8),))
worker.start()
worker.join()
print(outputs[0].dtype)
""",
    fix="Enter autocast in the function that the thread runs, or in the forward of the model.",
    silent=(
        (
            "the thread's own function enters autocast",
            """\
import threading

model = torch.nn.Linear(8, 2)


def predict(x):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        outputs.append(model(x))


with torch.autocast("cuda", dtype=torch.bfloat16):
    worker = threading.Thread(target=predict, args=(inputs,))
    worker.start()
    worker.join()
""",
        ),
        (
            "the thread loads data",
            """\
import threading


def fill(batches, queue):
    for batch in batches:
        queue.append(batch)


with torch.autocast("cuda", dtype=torch.bfloat16):
    loading = threading.Thread(target=fill, args=(loader, []))
    loading.start()
    output = model(inputs)
    loading.join()
""",
        ),
        (
            "DistributedDataParallel runs in the thread that calls it",
            """\
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.linear(x)


model = torch.nn.parallel.DistributedDataParallel(Net())
with torch.autocast("cuda", dtype=torch.bfloat16):
    output = model(inputs)
""",
        ),
        (
            "float16 is what replicas run in anyway",
            """\
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.linear(x)


model = torch.nn.DataParallel(Net())
with torch.autocast("cuda", dtype=torch.float16):
    output = model(inputs)
""",
        ),
        (
            "the forward of the replicas enters autocast itself",
            """\
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 2)

    @torch.autocast("cuda", dtype=torch.bfloat16)
    def forward(self, x):
        return self.linear(x)


model = torch.nn.DataParallel(Net())
with torch.autocast("cuda", dtype=torch.bfloat16):
    output = model(inputs)
""",
        ),
    ),
    sources=(
        _AUTOCAST + ": the autocast state is thread-local",
        _EXAMPLES + ", section DataParallel in a single process",
        "PyTorch source: torch/nn/parallel/parallel_apply.py",
        _MEASURED,
    ),
)

RULES: tuple[Rule, ...] = (
    COMPILED_BACKWARD_AUTOCAST,
    FOUND_INF_NOT_SYNCHRONISED,
    FSDP1_LOCAL_CLIP,
    FP16_COMPRESS_WITH_SCALER,
    CAPTURE_WITH_CAST_CACHE,
    AUTOCAST_NOT_IN_THREAD,
)
