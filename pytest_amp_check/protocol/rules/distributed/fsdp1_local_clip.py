"""AMP603 fsdp1-local-clip."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Clip
from ...rule import ERROR, Labels, Rule, ViolationKind


def _check_local_clip(event: Clip, program: Program) -> Labels:
    if event.local and not event.measures_only:
        yield "clip@shards", {}


RULE = Rule(
    "AMP603",
    "fsdp1-local-clip",
    ERROR,
    "Sharded gradients are clipped by the norm of one shard.",
    effect="each rank scales its shard by a factor of its own, so the step points in another direction; no error",
    event_checks={Clip: _check_local_clip},
    prescan_words=("clip_grad FullyShardedDataParallel",),
    violations={
        "clip@shards": ViolationKind(
            "`{call}` computes the norm of this rank's shard only, so each rank clips by a factor of "
            "its own: write `{module}.clip_grad_norm_({limit})` in its place, which sums over the ranks"
        )
    },
    rationale="""\
With FullyShardedDataParallel, `model.parameters()` gives only the shard of this rank, and the gradients are sharded
too. `torch.nn.utils.clip_grad_norm_` therefore computes the norm of one shard. Each rank finds a smaller norm than the
gradient has, and scales its part by its own factor. The step also changes its direction. The method `clip_grad_norm_`
of the outermost module reduces the norm over all ranks.
""",
    harm="""\
Two processes, limit 0.05, a gradient norm of 0.317. The ranks find norms of 0.083 and 0.306, and multiply their parts
by 0.60 and 0.16; both factors should be 0.158. The method of the module finds 0.317 on both.
""",
    bad_example="""\
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
    good_example="""\
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
    fix_advice="Call `model.clip_grad_norm_(max_norm)` on the outermost FullyShardedDataParallel module.",
    sources=(
        "PyTorch documentation: FullyShardedDataParallel, docs.pytorch.org/docs/stable/fsdp.html, clip_grad_norm_",
        "measured with torch 2.13 and two gloo processes on the CPU",
    ),
)
