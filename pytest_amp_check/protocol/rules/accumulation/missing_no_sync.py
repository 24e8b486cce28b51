"""AMP306 missing-no-sync."""

from __future__ import annotations

from ...events import Backward
from ...rule import INFO, STATIC, Cause, Rule, ViolationKind

RULE = Rule(
    "AMP306",
    "missing-no-sync",
    INFO,
    "DistributedDataParallel averages the gradients after every micro-batch, not once for each step.",
    effect="same result, but slower: gradients cross the network after each micro-batch, not once per step",
    detected_by=STATIC,
    on_by_default=False,
    prescan_words=(".step( backward(",),
    violations={
        "backward@averaged": ViolationKind(
            "`{loss}` runs backward outside `no_sync()` in each micro-batch, so gradients of `{module}` are averaged "
            "every time: enter `no_sync()` for all micro-batches but the last",
            cause=Cause(Backward),
            trace_kinds=(Backward,),
            in_next_iteration=True,
        ),
    },
    rationale="""\
A backward through `DistributedDataParallel` sends the gradients of all parameters to all processes. A window steps only
the sum of its micro-batches, and the average of a sum is the sum of the averages. One average in the last backward is
therefore enough. The result is the same except for rounding; only network time is lost.
""",
    harm="""\
Two processes with gloo, windows of four micro-batches, four steps. Without `no_sync()`: 16 all-reduces and 8.7 MB of
gradients. With `no_sync()` around all micro-batches but the last: 4 all-reduces and 2.2 MB, and the same parameters to
12 digits.
""",
    bad_example="""\
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

def train(net, loader, k):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y) / k
        scaler.scale(loss).backward()  # AMP306
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
    good_example="""\
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

def train(net, loader, k):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        last = (i + 1) % k == 0
        with nullcontext() if last else model.no_sync():
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y) / k
            scaler.scale(loss).backward()
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
    fix_advice="Enter `no_sync()` around forward and backward of all micro-batches of a window but the last.",
    sources=(
        "PyTorch docs, DistributedDataParallel.no_sync",
        "measured: two processes with gloo, all-reduces counted by a communication hook",
    ),
)
