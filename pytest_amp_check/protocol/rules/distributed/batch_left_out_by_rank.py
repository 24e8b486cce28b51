"""AMP607 batch-left-out-by-rank."""

from __future__ import annotations

from ...events import LEFT_OUT, Event, Program
from ...rule import ERROR, STATIC, Labels, Rule, ViolationKind


def _check_left_out(event: Event, program: Program) -> Labels:
    yield "left-out@rank", {}


RULE = Rule(
    "AMP607",
    "batch-left-out-by-rank",
    ERROR,
    "One rank leaves out a batch whose loss is not finite, while the others wait for its gradients.",
    detected_by=STATIC,
    event_checks={LEFT_OUT: _check_left_out},
    prescan_words=("backward( isnan", "backward( isinf", "backward( isfinite"),
    violations={
        "left-out@rank": ViolationKind(
            "`{call}` asks for the batch of this rank alone, and where it leaves out the backward the other ranks wait"
            " in theirs, which averages the gradients of `{module}`: run backward all the same, as a GradScaler skips"
            " the step on every rank, or let all ranks leave the batch out, by an `all_reduce` of the answer"
        ),
        # Given where the recordings of several ranks are laid beside each other.
        "backward@ranks": ViolationKind(
            "`{call}` began {counts}, though each averages gradients over the ranks, so that those of different"
            " batches meet, and a rank waits for one that never comes: run every backward on every rank, as a"
            " GradScaler skips the step on all of them, or let all leave the batch out, by an `all_reduce` of why"
        ),
    },
    rationale="""\
DistributedDataParallel averages the gradients of all ranks inside backward, and FullyShardedDataParallel gathers the
parameters there as well: each rank waits until all have come to the same place. A rank that goes on with its next batch
because its own loss is NaN never comes there. What it sends next is taken for the answer that the others wait for, so
that gradients of different batches are averaged from then on, and in the end, or at the next buffer that is broadcast,
a rank waits for ever. There is no need to leave the batch out: an average with one NaN in it is NaN on all ranks, each
scaler finds it, and all skip the same step.
""",
    harm="""\
Two processes with gloo, 8 batches each, of which one of the second rank has a loss that is NaN. With BatchNorm, whose
buffers are broadcast, the first rank waited in the backward of that batch until the timeout ended it. Without
buffers both went on, with the batches of one averaged with the next ones of the other, and the first waited for ever in
its last. With the backward left in, both made the 8 steps, of which the scalers skipped that one, and ended with the
same parameters.
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
    fix_advice="Leave the test out, as the scaler skips such a step on every rank; or `all_reduce` the answer, so "
    "that every"
    " rank leaves the same batch out.",
    sources=(
        "PyTorch documentation: DistributedDataParallel, notes/ddp: all processes must run the same backwards",
        "measured with torch 2.13 and two gloo processes on the CPU",
    ),
)
