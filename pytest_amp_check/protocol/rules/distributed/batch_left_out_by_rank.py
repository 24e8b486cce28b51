"""AMP607 batch-left-out-by-rank."""

from __future__ import annotations

from ...event_graph import Program
from ...events import LeftOut
from ...rule import ERROR, STATIC, Labels, Rule, ViolationKind


def _check_left_out(event: LeftOut, program: Program) -> Labels:
    yield "left-out@rank", {}


RULE = Rule(
    "AMP607",
    "batch-left-out-by-rank",
    ERROR,
    "One rank skips a batch with a non-finite loss, while the others wait for its gradients.",
    effect="gradients of different batches mix from then on, and at the last batch a rank waits forever",
    detected_by=STATIC,
    event_checks={LeftOut: _check_left_out},
    prescan_words=("skipped backward",),
    violations={
        "left-out@rank": ViolationKind(
            "`{call}` checks only this rank's batch, so after a skipped backward other ranks wait for gradients of "
            "`{module}`: run every backward (the GradScaler skips bad steps), or `all_reduce` the check"
        ),
        # Reported when the recordings of several ranks are compared.
        "backward@ranks": ViolationKind(
            "`{call}` began {counts}, but each backward averages gradients over all ranks, so different batches mix "
            "and a rank hangs: run every backward on every rank, or `all_reduce` the decision to skip"
        ),
    },
    rationale="""\
DistributedDataParallel averages the gradients of all ranks inside backward, and FullyShardedDataParallel also gathers
the parameters there. Each rank waits until all ranks reach the same collective call. A rank that skips a batch because
its own loss is NaN never reaches that call. The other ranks take its next message for the missing one, so gradients of
different batches are averaged from then on. At the last batch, or at the next buffer broadcast, a rank waits forever.
Skipping the batch is unnecessary. An average with one NaN in it is NaN on all ranks, each scaler finds it, and all skip
the same step.
""",
    harm="""\
Two processes with gloo, 8 batches each; one batch of the second rank has a NaN loss. With BatchNorm, whose buffers are
broadcast, the first rank waited in the backward of that batch until the timeout ended it. Without buffers both went on,
and one rank's batches were averaged with the other rank's next batches. The first rank then waited forever in its last
batch. With the backward left in, both made the 8 steps, the scalers skipped that one, and both ended with the same
parameters.
""",
    bad_example="""\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(batches):
    model = DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for x in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), torch.zeros(8, 2))
        if torch.isnan(loss):  # AMP607
            continue
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
train(torch.randn(16, 8).split(8))
dist.destroy_process_group()
""",
    good_example="""\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(batches):
    model = DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for x in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), torch.zeros(8, 2))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
train(torch.randn(16, 8).split(8))
dist.destroy_process_group()
""",
    fix_advice=(
        "Remove the check, because the scaler skips such a step on every rank; or `all_reduce` its result, so that "
        "every rank skips the same batch."
    ),
    sources=(
        "PyTorch documentation: DistributedDataParallel, notes/ddp: all processes must run the same backwards",
        "measured with torch 2.13 and two gloo processes on the CPU",
    ),
)
