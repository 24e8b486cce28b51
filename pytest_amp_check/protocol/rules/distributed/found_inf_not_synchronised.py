"""AMP602 found-inf-not-synchronised."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Event, ScalerNew, ScalerStep
from ...rule import ERROR, WARNING, Certainty, Edit, Labels, Rule, TraceContext, ViolationKind


def _check_unsynchronized(event: Event, program: Program) -> Labels:
    why = event.unsynchronised if isinstance(event, ScalerStep) else ""
    if why and set(program.attributes.scalers.loss_dtypes) != {"bfloat16"}:
        yield f"step@shards-{why}", {}


def _check_sharding(event: Event, program: Program) -> Labels:
    if isinstance(event, ScalerNew) and event.sharding and not _is_named_at_a_step(event, program):
        yield "new:beside-shards", {"sharding": event.sharding}


def _is_named_at_a_step(new: ScalerNew, program: Program) -> bool:
    """Return True if a step with the same scaler is known to act on shards: the step is reported for certain."""
    steps = (each for each in program.iter_events() if isinstance(each, ScalerStep) and each.unsynchronised)
    sites = (program.objects[each.subject].site for each in steps if each.subject is not None)
    return any(site is not None and site.call_key == new.site.call_key for site in sites)


RULE = Rule(
    "AMP602",
    "found-inf-not-synchronised",
    ERROR,
    "Each rank decides by its own shard of the gradients whether a step is skipped.",
    effect="after the first overflow, weights and scales of the ranks differ and mix from then on; no error",
    event_checks={ScalerStep: _check_unsynchronized, ScalerNew: _check_sharding},
    prescan_words=("scaler",),
    violations={
        "step@shards-plain": ViolationKind(
            "`{scaler}` checks only the gradient shard of this rank for infinities, so ranks disagree about skipping "
            "a step: construct a `torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler()` in its place",
            trace_context=TraceContext(edits=(Edit("construct a `ShardedGradScaler()` here", search="scaler"),)),
        ),
        "step@shards-fused": ViolationKind(
            "`{scaler}` shares no infinities of the fused `{optimizer}` between ranks, so ranks disagree about "
            "skipping a step: construct the optimizer without `fused=True`"
        ),
        "new:beside-shards": ViolationKind(
            "`{call}` checks only the gradient shard of its rank, and `{sharding}` of this class shards the model: "
            "write `torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler()` where the model is sharded",
            WARNING,
            certainty=Certainty(is_possible=True),
        ),
        # Reported when the recordings of several ranks are compared.
        "step@ranks": ViolationKind(
            "`{scaler}` skipped {skipped} on {ranks} and took it on {others}, so their parameters and scales differ "
            "from then on: average gradients before unscaling, or reduce `found_inf` over all ranks, as "
            "ShardedGradScaler does"
        ),
        "update@ranks": ViolationKind(
            "`{scaler}` ended with {states}, so ranks scale their losses differently, and averaged gradients are "
            "wrong: give each rank as many batches, or set one scale on all ranks after `join()`",
            effect="averaged gradients are divided by a wrong scale, so updates are too large or too small; no error",
        ),
    },
    rationale="""\
With FullyShardedDataParallel every rank holds a part of each gradient, and an infinity may be in the part of a single
rank. A plain GradScaler checks only the part of its own rank. That rank skips the step and halves its scale; the others
step and keep their scale. From then on the parameters are a mixture of two steps, and the ranks multiply their losses
by different scales. ShardedGradScaler reduces the result of the check over all ranks, unless a fused optimizer makes
the check. Scalers also come apart if ranks have different numbers of batches under `join()`: each scaler counts its
own steps, so the scales grow in different steps.
""",
    harm="""\
Two processes, one infinity in the shard of the second, scale 65536. With GradScaler the first rank moves its parameters
and keeps 65536; the second skips the step and has 32768. With ShardedGradScaler both skip the step and have 32768. With
ShardedGradScaler and `fused=True` they differ again, 65536 and 32768.
""",
    bad_example="""\
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
    good_example="""\
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
    fix_advice=(
        "Use ShardedGradScaler with an optimizer that is not fused, or use `fully_shard`, which works with GradScaler."
    ),
    sources=(
        "PyTorch documentation: FullyShardedDataParallel, docs.pytorch.org/docs/stable/fsdp.html",
        "PyTorch source: torch/distributed/fsdp/sharded_grad_scaler.py",
        "pytorch issue 132816",
        "measured with torch 2.13 and two gloo processes on the CPU",
    ),
)
