"""AMP608 optimizer-before-sharding."""

from __future__ import annotations

from ...event_graph import Program
from ...events import LateSharding, ScalerStep, Step
from ...rule import ERROR, STATIC, Rule, Verdicts, ViolationKind


def _check_late_sharding(program: Program) -> Verdicts:
    """Yield the optimizers that are stepped although their module was sharded after them.

    Another method of the object knows the optimizer by its name.
    """
    stepped = {event.object for event in program.iter_events() if isinstance(event, (Step, ScalerStep))}
    names = {program.objects[key].name for key in stepped if key is not None}
    for event in program.iter_events():
        if not isinstance(event, LateSharding) or event.object is None:
            continue
        name = program.objects[event.object].name
        if event.object in stepped or (name.startswith("self.") and name in names):
            yield "sharded:late", event, {}, ()


RULE = Rule(
    "AMP608",
    "optimizer-before-sharding",
    ERROR,
    "An optimizer holds parameters that FSDP has replaced since.",
    effect="the optimizer updates tensors that the model no longer uses, so nothing is trained; no error",
    detected_by=STATIC,
    program_checks={LateSharding: _check_late_sharding},
    prescan_words=("fully_shard(", "FullyShardedDataParallel("),
    violations={
        "sharded:late": ViolationKind(
            "`{optimizer}` is constructed before `{call}` replaces the parameters of `{module}`, so it steps the old "
            "ones: construct it after the model is sharded"
        ),
    },
    rationale="""\
`fully_shard` replaces each parameter of a module by a shard, a new parameter. So does FullyShardedDataParallel without
`use_orig_params=True`. An optimizer keeps the parameters that it was constructed with. Made before, it holds the old
ones: they get no gradients any more, and its steps change nothing that the model computes with. The learning rate
moves, the loss is printed, and no check fails.
""",
    harm="""\
A linear layer was sharded over one gloo process after its optimizer was constructed. Four steps changed no weight. With
the optimizer constructed afterwards all weights moved.
""",
    bad_example="""\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
torch.manual_seed(0)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # AMP608
fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
before = model.weight.full_tensor().clone()

for x in torch.randn(16, 8).split(4):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("the weights move:", not torch.equal(before, model.weight.full_tensor()))
dist.destroy_process_group()
""",
    good_example="""\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
torch.manual_seed(0)
model = nn.Linear(8, 2)
fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
before = model.weight.full_tensor().clone()

for x in torch.randn(16, 8).split(4):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("the weights move:", not torch.equal(before, model.weight.full_tensor()))
dist.destroy_process_group()
""",
    fix_advice="Construct the optimizer after the last call that shards the model or a part of it.",
    sources=(
        "PyTorch documentation: fully_shard, docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
        "measured with torch 2.13 and one gloo process on the CPU",
    ),
)
