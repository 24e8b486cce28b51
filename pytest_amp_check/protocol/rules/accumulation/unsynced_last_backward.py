"""AMP305 unsynced-last-backward."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Backward, SyncSetLate
from ...rule import ERROR, STATIC, Cause, Labels, Precedence, Rule, ViolationKind


def _check_sync_set_late(event: SyncSetLate, program: Program) -> Labels:
    yield "sync:set-late", {}


RULE = Rule(
    "AMP305",
    "unsynced-last-backward",
    ERROR,
    "The last micro-batch of a window is not averaged over the processes, so their models diverge.",
    effect="each process trains a model of its own (weights 10 % apart after ten steps), and one is saved; no error",
    detected_by=STATIC,
    event_checks={SyncSetLate: _check_sync_set_late},
    prescan_words=(".step( backward(",),
    violations={
        "sync:set-late": ViolationKind(
            "`{flag}` is set after `{forward}`, which reads it, so it acts one micro-batch late: set it before this "
            "forward",
            effect="the step's gradients are not averaged, so each process trains a model of its own; no error",
        ),
        "step@apart": ViolationKind(
            "`{loss}` runs the window's last backward under `no_sync()`, so each process steps `{optimizer}` by its "
            "own gradients: leave `no_sync()` before the last micro-batch of the window",
            cause=Cause(Backward),
            trace_kinds=(Backward,),
            precedence=Precedence(needs_every_path=True, needs_every_iteration=True),
        ),
    },
    rationale="""\
Under `no_sync()` a backward adds only to the gradients of its own process. The first backward outside `no_sync()`
averages the accumulated gradients over the processes. If the window's last backward runs under `no_sync()`, the step
uses gradients that were never averaged. Each process then trains its own model, and only one of them is saved.
`require_backward_grad_sync` is what `no_sync()` sets, and DDP reads it in the forward. Set between the forward and the
backward, it decides about the next micro-batch: the first one of a window is averaged, and the last one is not.
""",
    harm="""\
Two processes, four micro-batches a window, SGD. The condition of `no_sync()` was inverted. The gradients of the first
step differed by 106 % between the processes, and the parameters by 10 % after ten steps. With `no_sync()` around every
micro-batch the differences were 94 % and 21 %. With `no_sync()` around all but the last there was no difference.
With `require_backward_grad_sync` set after the forward, the parameters of a smaller model differed by 8 %.
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
