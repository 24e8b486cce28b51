"""AMP305 unsynced-last-backward."""

from __future__ import annotations

from ...events import BACKWARD
from ...rule import ERROR, STATIC, Rule, ViolationKind

RULE = Rule(
    "AMP305",
    "unsynced-last-backward",
    ERROR,
    "The last micro-batch of a window runs backward under no_sync(), so the processes go apart.",
    detected_by=STATIC,
    prescan_words=(".step( backward(",),
    violations={
        "step@apart": ViolationKind(
            "`{loss}` runs backward under `no_sync()` as the last one before `{optimizer}` is stepped, so each process "
            "applies gradients of its own: leave `no_sync()` before the last micro-batch of the window",
            cause_kinds=(BACKWARD,),
            trace_kinds=(BACKWARD,),
            needs_every_path=True,
        ),
    },
    rationale="""\
Under `no_sync()` a backward adds to the gradients of its own process alone. It is the first backward outside of it
that averages over the processes what has gathered. Where the window's last backward runs under `no_sync()`, the step is
made of gradients that nobody has averaged: each process trains a model of its own, only one of which is saved.
""",
    harm="""\
Two processes, four micro-batches a window, SGD: with the condition of `no_sync()` the wrong way round, the gradients of
the first step differed by 106 % from process to process, and the parameters by 10 % after ten steps; with `no_sync()`
around every micro-batch by 94 % and 21 %. With `no_sync()` around all but the last, by nothing.
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
        last = (i + 1) % k == 0
        with model.no_sync() if last else nullcontext():
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y) / k
            scaler.scale(loss).backward()  # AMP305
        if last:
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
    fix_advice="Enter `no_sync()` for all micro-batches of a window but the last.",
    sources=(
        "PyTorch docs, DistributedDataParallel.no_sync",
        "measured: two processes with gloo, differences of gradients and parameters",
    ),
)
