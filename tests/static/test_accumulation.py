"""Accumulation as users write it: windows in every spelling, divisions at every location, mistakes and correct code.

Each case is a whole program, with a mark on the line of each expected finding. The name of a case ends with the kind:
good, bad, or info, for a loss from unanalyzed code, which the finding then mentions.
"""

from __future__ import annotations

from textwrap import dedent, indent

import pytest
from case_groups import check_each, in_groups
from marks import marks, places, shown

from pytest_amp_check.static.engine import check_source

HEAD = """\
import contextlib
import math
import operator
from itertools import cycle, islice

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast

"""
CASES: list[tuple[str, str]] = []
#: Codes that are not about accumulation.
OTHERS = {"AMP401"}


def case(name: str, source: str) -> None:
    CASES.append((name, HEAD + dedent(source)))


# An outer loop around this loop is analyzed twice, because one of its variables may become a tracked object.
for _name, _divided in (("bad", ""), ("good", " / k")):
    case(
        f"an epoch that may leave the best model so far {_name}",
        f"""
def train(model, loader, optimizer, criterion, scaler, k):
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = criterion(model(x), y)
        last = (i + 1) % k == 0
        scaler.scale(loss{_divided}).backward(){"  # AMP301" if not _divided else ""}
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

def main(model, loader, k):
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), GradScaler("cuda")
    best = None
    for epoch in range(9):
        train(model, loader, optimizer, nn.CrossEntropyLoss(), scaler, k)
        best = best or model.best
""",
    )

# Ends of windows: remainders, counters, loops over micro-batches, flags.
case(
    "divmod good",
    """
def train(model, loader, optimizer, criterion, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = criterion(model(x), y) / k
        scaler.scale(loss).backward()
        window, place = divmod(i + 1, k)
        if place == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "divmod bad",
    """
def train(model, loader, optimizer, criterion, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()  # AMP301
        window, place = divmod(i + 1, k)
        if place == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "divmod unscale bad",
    """
def train(model, loader, optimizer, criterion, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = criterion(model(x), y) / k
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # AMP303
        _, rest = divmod(i + 1, k)
        if not rest:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "fmod bad",
    """
def train(model, loader, optimizer, criterion, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()  # AMP301
        if math.fmod(i + 1, k) == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "fmod good",
    """
def train(model, loader, optimizer, criterion, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = criterion(model(x), y) / k
        scaler.scale(loss).backward()
        if math.fmod(i + 1, k) == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "remainder kept in a name bad",
    """
def train(model, loader, optimizer, criterion, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        place = (i + 1) % k
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()  # AMP301
        if place == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "remainder in a name, asked in two spellings good",
    """
def train(model, loader, optimizer, criterion, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        place = i % k
        if place == 0:
            optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y) / k
        scaler.scale(loss).backward()
        if place == k - 1:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
""",
)
case(
    "is_last or modulo bad",
    """
def train(model, loader, optimizer, criterion, k):
    scaler = GradScaler("cuda")
    last = len(loader) - 1
    for i, (x, y) in enumerate(loader):
        is_last = i == last
        update = is_last or (i + 1) % k == 0
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()  # AMP301
        if update:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "is_last or modulo good",
    """
def train(model, loader, optimizer, criterion, k):
    scaler = GradScaler("cuda")
    last = len(loader) - 1
    for i, (x, y) in enumerate(loader):
        is_last = i == last
        update = is_last or (i + 1) % k == 0
        with autocast("cuda"):
            loss = criterion(model(x), y) / k
        scaler.scale(loss).backward()
        if not update:
            continue
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
)
case(
    "update after is_last or modulo bad",
    """
def train(model, loader, optimizer, criterion, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        update = (i + 1) % k == 0 or i + 1 == len(loader)
        with autocast("cuda"):
            loss = criterion(model(x), y) / k
        scaler.scale(loss).backward()
        if update:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()  # AMP303
""",
)
case(
    "property says when good",
    """
class Trainer:
    def __init__(self, model, k):
        self.model, self.k = model, k
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.scaler = GradScaler("cuda")
        self.batch_idx = 0

    @property
    def should_step(self):
        return (self.batch_idx + 1) % self.k == 0

    def fit(self, loader, criterion):
        for self.batch_idx, (x, y) in enumerate(loader):
            with autocast("cuda"):
                loss = criterion(self.model(x), y)
            self.scaler.scale(loss / self.k).backward()
            if self.should_step:
                self.scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            if self.should_step:
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
""",
)
case(
    "property says when bad",
    """
class Trainer:
    def __init__(self, model, k):
        self.model, self.k = model, k
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.scaler = GradScaler("cuda")
        self.batch_idx = 0

    @property
    def should_step(self):
        return (self.batch_idx + 1) % self.k == 0

    def fit(self, loader, criterion):
        for self.batch_idx, (x, y) in enumerate(loader):
            with autocast("cuda"):
                loss = criterion(self.model(x), y)
            self.scaler.scale(loss).backward()  # AMP301
            if self.should_step:
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
""",
)
case(
    "method says when good",
    """
class Trainer:
    def __init__(self, model, k):
        self.model, self.k = model, k
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.scaler = GradScaler("cuda")

    def _should_step(self, i):
        return (i + 1) % self.k == 0

    def fit(self, loader, criterion):
        for i, (x, y) in enumerate(loader):
            with autocast("cuda"):
                loss = criterion(self.model(x), y)
            self.scaler.scale(loss / self.k).backward()
            if self._should_step(i):
                self.scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
""",
)
case(
    "method says when bad",
    """
class Trainer:
    def __init__(self, model, k):
        self.model, self.k = model, k
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.scaler = GradScaler("cuda")

    def _should_step(self, i, total):
        if i + 1 == total:
            return True
        return (i + 1) % self.k == 0

    def fit(self, loader, criterion):
        for i, (x, y) in enumerate(loader):
            with autocast("cuda"):
                loss = criterion(self.model(x), y)
            self.scaler.scale(loss).backward()  # AMP301
            if self._should_step(i, len(loader)):
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
""",
)
case(
    "method says when, unscale bad",
    """
class Trainer:
    def __init__(self, model, k):
        self.model, self.k = model, k
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.scaler = GradScaler("cuda")

    def is_boundary(self, i):
        return i % self.k == self.k - 1

    def fit(self, loader, criterion):
        for i, (x, y) in enumerate(loader):
            with autocast("cuda"):
                loss = criterion(self.model(x), y)
            self.scaler.scale(loss / self.k).backward()
            self.scaler.unscale_(self.optimizer)  # AMP303
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            if self.is_boundary(i):
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
""",
)
case(
    "helper function says when, step in another bad",
    """
def end_of_window(step, k, n):
    return ((step + 1) % k == 0) or (step + 1 == n)

def optimizer_step(model, optimizer, scaler, max_norm):
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)

def train(model, loader, optimizer, criterion, cfg):
    scaler = GradScaler("cuda")
    for step, batch in enumerate(loader):
        with autocast("cuda"):
            loss = criterion(model(batch["x"]), batch["y"])
        scaler.scale(loss).backward()  # AMP301
        if end_of_window(step, cfg.grad_accum, len(loader)):
            optimizer_step(model, optimizer, scaler, cfg.max_norm)
""",
)
case(
    "helper function says when, step in another good",
    """
def end_of_window(step, k, n):
    return ((step + 1) % k == 0) or (step + 1 == n)

def optimizer_step(model, optimizer, scaler, max_norm):
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)

def train(model, loader, optimizer, criterion, cfg):
    scaler = GradScaler("cuda")
    for step, batch in enumerate(loader):
        with autocast("cuda"):
            loss = criterion(model(batch["x"]), batch["y"])
        loss = loss / cfg.grad_accum
        scaler.scale(loss).backward()
        if end_of_window(step, cfg.grad_accum, len(loader)):
            optimizer_step(model, optimizer, scaler, cfg.max_norm)
""",
)
case(
    "global step incremented only at window end good",
    """
def train(model, loader, optimizer, criterion, k, epochs):
    scaler = GradScaler("cuda")
    accumulated = 0
    global_step = 0
    for epoch in range(epochs):
        for x, y in loader:
            with autocast("cuda"):
                loss = criterion(model(x), y)
            scaler.scale(loss / k).backward()
            accumulated += 1
            if accumulated < k:
                continue
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            accumulated = 0
            global_step += 1
""",
)
case(
    "accumulated < k continue bad",
    """
def train(model, loader, optimizer, criterion, k, epochs):
    scaler = GradScaler("cuda")
    accumulated = 0
    for epoch in range(epochs):
        for x, y in loader:
            with autocast("cuda"):
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()  # AMP301
            accumulated += 1
            if accumulated < k:
                continue
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            accumulated = 0
""",
)
case(
    "counter by samples bad",
    """
def train(model, loader, optimizer, criterion, nominal):
    scaler = GradScaler("cuda")
    seen = 0
    for x, y in loader:
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()  # AMP301
        seen += x.size(0)
        if seen >= nominal:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            seen = 0
""",
)
case(
    "counter by samples weighted good",
    """
def train(model, loader, optimizer, criterion, nominal):
    scaler = GradScaler("cuda")
    seen = 0
    for x, y in loader:
        with autocast("cuda"):
            loss = criterion(model(x), y) * (x.size(0) / nominal)
        scaler.scale(loss).backward()
        seen += x.size(0)
        if seen >= nominal:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            seen = 0
""",
)
case(
    "yolo warm-up accumulate with last_opt_step info",
    """
def train(model, loader, optimizer, compute_loss, batch_size, epochs, nw, nbs=64):
    import numpy as np
    scaler = GradScaler("cuda")
    last_opt_step = -1
    accumulate = max(round(nbs / batch_size), 1)
    nb = len(loader)
    optimizer.zero_grad()
    for epoch in range(epochs):
        for i, (imgs, targets) in enumerate(loader):
            ni = i + nb * epoch
            if ni <= nw:
                accumulate = max(1, np.interp(ni, [0, nw], [1, nbs / batch_size]).round())
            with autocast("cuda"):
                pred = model(imgs)
                loss, items = compute_loss(pred, targets)
                loss *= 4.0
            scaler.scale(loss).backward()  # AMP301
            if ni - last_opt_step >= accumulate:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                last_opt_step = ni
""",
)
case(
    "attribute counter in method bad",
    """
class Learner:
    def __init__(self, net, cfg):
        self.net = net
        self.opt = torch.optim.SGD(net.parameters(), lr=cfg.lr)
        self.scaler = GradScaler("cuda")
        self.accum = cfg.accum
        self.count = 0
        self.criterion = nn.CrossEntropyLoss()

    def run(self, loader):
        for x, y in loader:
            self.step_batch(x, y)

    def step_batch(self, x, y):
        with autocast("cuda"):
            loss = self.criterion(self.net(x), y)
        self.scaler.scale(loss).backward()  # AMP301
        self.count += 1
        if self.count == self.accum:
            self.flush()

    def flush(self):
        self.scaler.step(self.opt)
        self.scaler.update()
        self.opt.zero_grad()
        self.count = 0
""",
)
case(
    "attribute counter in method good",
    """
class Learner:
    def __init__(self, net, cfg):
        self.net = net
        self.opt = torch.optim.SGD(net.parameters(), lr=cfg.lr)
        self.scaler = GradScaler("cuda")
        self.accum = cfg.accum
        self.count = 0
        self.criterion = nn.CrossEntropyLoss()

    def run(self, loader):
        for x, y in loader:
            self.step_batch(x, y)
        if self.count:
            self.flush()

    def step_batch(self, x, y):
        with autocast("cuda"):
            loss = self.criterion(self.net(x), y)
        self.scaler.scale(loss / self.accum).backward()
        self.count += 1
        if self.count == self.accum:
            self.flush()

    def flush(self):
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.net.parameters(), 5.0)
        self.scaler.step(self.opt)
        self.scaler.update()
        self.opt.zero_grad()
        self.count = 0
""",
)
case(
    "attribute counter update outside bad",
    """
class Learner:
    def __init__(self, net, cfg):
        self.net = net
        self.opt = torch.optim.SGD(net.parameters(), lr=cfg.lr)
        self.scaler = GradScaler("cuda")
        self.accum = cfg.accum
        self.count = 0

    def run(self, loader, criterion):
        for x, y in loader:
            with autocast("cuda"):
                loss = criterion(self.net(x), y) / self.accum
            self.scaler.scale(loss).backward()
            self.count += 1
            if self.count == self.accum:
                self.scaler.step(self.opt)
                self.opt.zero_grad()
                self.count = 0
            self.scaler.update()  # AMP303
""",
)
case(
    "islice windows good",
    """
def train(model, loader, optimizer, criterion, k, steps):
    scaler = GradScaler("cuda")
    data = cycle(loader)
    for step in range(steps):
        optimizer.zero_grad()
        for x, y in islice(data, k):
            with autocast("cuda"):
                loss = criterion(model(x), y) / k
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
""",
)
case(
    "islice windows bad",
    """
def train(model, loader, optimizer, criterion, k, steps):
    scaler = GradScaler("cuda")
    data = cycle(loader)
    for step in range(steps):
        optimizer.zero_grad()
        for x, y in islice(data, k):
            with autocast("cuda"):
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()  # AMP301
        scaler.step(optimizer)
        scaler.update()
""",
)
case(
    "range k, next good",
    """
def train(model, loader, optimizer, grad_accum_every, num_steps):
    scaler = GradScaler("cuda")
    dl = cycle(loader)
    step = 0
    while step < num_steps:
        total_loss = 0.0
        for _ in range(grad_accum_every):
            data = next(dl).cuda()
            with autocast("cuda"):
                loss = model(data)
                loss = loss / grad_accum_every
                total_loss += loss.item()
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        step += 1
""",
)
case(
    "range k, next bad",
    """
def train(model, loader, optimizer, grad_accum_every, num_steps):
    scaler = GradScaler("cuda")
    dl = cycle(loader)
    step = 0
    while step < num_steps:
        total_loss = 0.0
        for _ in range(grad_accum_every):
            x, y = next(dl)
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y)
            total_loss += loss.item()
            scaler.scale(loss).backward()  # AMP301
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        step += 1
""",
)
case(
    "range k, unscale inside bad",
    """
def train(model, loader, optimizer, grad_accum_every, num_steps):
    scaler = GradScaler("cuda")
    dl = cycle(loader)
    for step in range(num_steps):
        for _ in range(grad_accum_every):
            x, y = next(dl)
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y) / grad_accum_every
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)  # AMP303
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
)
case(
    "range k, update inside bad",
    """
def train(model, loader, optimizer, grad_accum_every, num_steps):
    scaler = GradScaler("cuda")
    dl = cycle(loader)
    for step in range(num_steps):
        for _ in range(grad_accum_every):
            x, y = next(dl)
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y) / grad_accum_every
            scaler.scale(loss).backward()
            scaler.update()  # AMP303
        scaler.step(optimizer)
        optimizer.zero_grad()
""",
)
case(
    "range k, zero_grad inside bad",
    """
def train(model, loader, optimizer, grad_accum_every, num_steps):
    scaler = GradScaler("cuda")
    dl = cycle(loader)
    for step in range(num_steps):
        for _ in range(grad_accum_every):
            x, y = next(dl)
            optimizer.zero_grad()  # AMP304
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y) / grad_accum_every
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
)
case(
    "nanogpt good",
    """
def get_batch(split):
    return torch.randint(0, 5, (4, 8)), torch.randint(0, 5, (4, 8))

gradient_accumulation_steps = 5 * 8
grad_clip = 1.0
model = nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda", enabled=True)
ctx = torch.amp.autocast(device_type="cuda", dtype=torch.float16)
X, Y = get_batch("train")
iter_num = 0
while True:
    for micro_step in range(gradient_accumulation_steps):
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > 100:
        break
""",
)
case(
    "nanogpt bad",
    """
def get_batch(split):
    return torch.randint(0, 5, (4, 8)), torch.randint(0, 5, (4, 8))

gradient_accumulation_steps = 5 * 8
grad_clip = 1.0
model = nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
ctx = torch.amp.autocast(device_type="cuda", dtype=torch.float16)
X, Y = get_batch("train")
iter_num = 0
while True:
    for micro_step in range(gradient_accumulation_steps):
        with ctx:
            logits = model(X)
            loss = F.cross_entropy(logits.view(-1, 5), Y.view(-1))
        X, Y = get_batch("train")
        scaler.scale(loss).backward()  # AMP301
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > 100:
        break
""",
)
case(
    "two critic steps per generator step good",
    """
def train(G, D, opt_g, opt_d, loader, n_critic):
    scaler = GradScaler("cuda")
    for x in loader:
        for _ in range(n_critic):
            opt_d.zero_grad()
            with autocast("cuda"):
                loss = F.softplus(D(G(x))).mean() + F.softplus(-D(x)).mean()
            scaler.scale(loss).backward()
            scaler.step(opt_d)
            scaler.update()
        opt_g.zero_grad()
        with autocast("cuda"):
            loss_g = F.softplus(-D(G(x))).mean()
        scaler.scale(loss_g).backward()
        scaler.step(opt_g)
        scaler.update()
""",
)
case(
    "chunks of a batch bad",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for batch, target in loader:
        optimizer.zero_grad()
        for x, y in zip(batch.chunk(k), target.chunk(k)):
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()  # AMP301
        scaler.step(optimizer)
        scaler.update()
""",
)
case(
    "chunks of a batch good",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for batch, target in loader:
        optimizer.zero_grad()
        xs, ys = batch.chunk(k), target.chunk(k)
        for x, y in zip(xs, ys):
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y).mean() / len(xs)
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
""",
)
case(
    "split weighted by size good",
    """
def train(model, loader, optimizer, micro):
    scaler = GradScaler("cuda")
    for batch, target in loader:
        optimizer.zero_grad()
        for x, y in zip(torch.split(batch, micro), torch.split(target, micro)):
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y) * x.shape[0] / batch.shape[0]
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
)
case(
    "slices by range bad",
    """
def train(model, loader, optimizer, micro):
    scaler = GradScaler("cuda")
    for batch, target in loader:
        optimizer.zero_grad()
        for start in range(0, len(batch), micro):
            x, y = batch[start : start + micro], target[start : start + micro]
            with autocast("cuda"):
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()  # AMP301
        scaler.step(optimizer)
        scaler.update()
""",
)
case(
    "generator of micro-batches good",
    """
def micro_batches(batch, target, k):
    for x, y in zip(batch.chunk(k), target.chunk(k)):
        yield x, y

def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for batch, target in loader:
        optimizer.zero_grad()
        for x, y in micro_batches(batch, target, k):
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y) / k
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
)
case(
    "generator of micro-batches bad",
    """
def micro_batches(batch, target, k):
    for x, y in zip(batch.chunk(k), target.chunk(k)):
        yield x, y

def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for batch, target in loader:
        optimizer.zero_grad()
        for x, y in micro_batches(batch, target, k):
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()  # AMP301
        scaler.step(optimizer)
        scaler.update()
""",
)
case(
    "is_last_microbatch flag good",
    """
def forward_backward(model, scaler, optimizer, x, y, k, is_last_microbatch):
    with autocast("cuda"):
        loss = F.cross_entropy(model(x), y) / k
    scaler.scale(loss).backward()
    if is_last_microbatch:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return loss.detach()

def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        forward_backward(model, scaler, optimizer, x, y, k, is_last_microbatch=(i + 1) % k == 0)
""",
)
case(
    "is_last_microbatch flag bad",
    """
def forward_backward(model, scaler, optimizer, x, y, is_last_microbatch):
    with autocast("cuda"):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()  # AMP301
    if is_last_microbatch:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return loss.detach()

def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        forward_backward(model, scaler, optimizer, x, y, (i + 1) % k == 0)
""",
)
case(
    "flag, unscale always bad",
    """
def forward_backward(model, scaler, optimizer, x, y, k, last):
    with autocast("cuda"):
        loss = F.cross_entropy(model(x), y) / k
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # AMP303
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if last:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        forward_backward(model, scaler, optimizer, x, y, k, last=(i + 1) % k == 0)
""",
)
NATIVE = """
class NativeScalerWithGradNormCount:
    def __init__(self):
        self._scaler = torch.amp.GradScaler("cuda")

    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, create_graph=False, update_grad=True):
        self._scaler.scale(loss).backward(create_graph=create_graph)
        if update_grad:
            if clip_grad is not None:
                self._scaler.unscale_(optimizer)
                norm = torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
            else:
                self._scaler.unscale_(optimizer)
                norm = None
            self._scaler.step(optimizer)
            self._scaler.update()
        else:
            norm = None
        return norm
"""
case(
    "native scaler wrapper good",
    NATIVE
    + """
def train_one_epoch(model, criterion, loader, optimizer, accum_iter):
    loss_scaler = NativeScalerWithGradNormCount()
    optimizer.zero_grad()
    for data_iter_step, (samples, targets) in enumerate(loader):
        with autocast("cuda"):
            loss = criterion(model(samples), targets)
        loss /= accum_iter
        loss_scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters(),
                    update_grad=(data_iter_step + 1) % accum_iter == 0)
        if (data_iter_step + 1) % accum_iter == 0:
            optimizer.zero_grad()
""",
)
case(
    "native scaler wrapper undivided bad",
    NATIVE.replace("create_graph=create_graph)", "create_graph=create_graph)  # AMP301")
    + """
def train_one_epoch(model, criterion, loader, optimizer, accum_iter):
    loss_scaler = NativeScalerWithGradNormCount()
    optimizer.zero_grad()
    for data_iter_step, (samples, targets) in enumerate(loader):
        with autocast("cuda"):
            loss = criterion(model(samples), targets)
        loss_scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters(),
                    update_grad=(data_iter_step + 1) % accum_iter == 0)
        if (data_iter_step + 1) % accum_iter == 0:
            optimizer.zero_grad()
""",
)
case(
    "native scaler wrapper zero_grad always bad",
    NATIVE
    + """
def train_one_epoch(model, criterion, loader, optimizer, accum_iter):
    loss_scaler = NativeScalerWithGradNormCount()
    for data_iter_step, (samples, targets) in enumerate(loader):
        optimizer.zero_grad()  # AMP304
        with autocast("cuda"):
            loss = criterion(model(samples), targets)
        loss = loss / accum_iter
        update_grad = (data_iter_step + 1) % accum_iter == 0
        loss_scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters(), update_grad=update_grad)
""",
)
case(
    "native scaler, MAE spelling with i % k == 0 for the schedule good",
    NATIVE
    + """
def adjust_learning_rate(optimizer, epoch):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (epoch + 1)

def train_one_epoch(model, loader, optimizer, args, epoch):
    loss_scaler = NativeScalerWithGradNormCount()
    accum_iter = args.accum_iter
    optimizer.zero_grad()
    for data_iter_step, (samples, _) in enumerate(loader):
        if data_iter_step % accum_iter == 0:
            adjust_learning_rate(optimizer, data_iter_step / len(loader) + epoch)
        with autocast("cuda"):
            loss, _, _ = model(samples, mask_ratio=args.mask_ratio)
        loss_value = loss.item()
        loss /= accum_iter
        loss_scaler(loss, optimizer, parameters=model.parameters(),
                    update_grad=(data_iter_step + 1) % accum_iter == 0)
        if (data_iter_step + 1) % accum_iter == 0:
            optimizer.zero_grad()
        torch.cuda.synchronize()
""",
)
case(
    "while iterator good",
    """
def train(model, loader, optimizer, criterion, k, max_steps):
    scaler = GradScaler("cuda")
    it = iter(loader)
    micro = 0
    while True:
        try:
            x, y = next(it)
        except StopIteration:
            break
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss / k).backward()
        micro += 1
        if micro % k == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "while iterator bad",
    """
def train(model, loader, optimizer, criterion, k, max_steps):
    scaler = GradScaler("cuda")
    it = iter(loader)
    micro = 0
    while micro < max_steps:
        try:
            x, y = next(it)
        except StopIteration:
            it = iter(loader)
            x, y = next(it)
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()  # AMP301
        micro += 1
        if micro % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "no_sync context good",
    """
from contextlib import nullcontext
from torch.nn.parallel import DistributedDataParallel as DDP

def train(model, loader, optimizer, criterion, k):
    model = DDP(model)
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        boundary = (i + 1) % k == 0
        with nullcontext() if boundary else model.no_sync():
            with autocast("cuda"):
                loss = criterion(model(x), y) / k
            scaler.scale(loss).backward()
        if boundary:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "no_sync if else undivided bad",
    """
from torch.nn.parallel import DistributedDataParallel as DDP

def train(model, loader, optimizer, criterion, k):
    model = DDP(model)
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        if (i + 1) % k != 0:
            with model.no_sync():
                with autocast("cuda"):
                    loss = criterion(model(x), y)
                scaler.scale(loss).backward()
        else:
            with autocast("cuda"):
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()  # AMP301
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "no_sync if else good",
    """
from torch.nn.parallel import DistributedDataParallel as DDP

def train(model, loader, optimizer, criterion, k):
    model = DDP(model)
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        if (i + 1) % k != 0:
            with model.no_sync():
                with autocast("cuda"):
                    loss = criterion(model(x), y) / k
                scaler.scale(loss).backward()
        else:
            with autocast("cuda"):
                loss = criterion(model(x), y) / k
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "fabric no_backward_sync good",
    """
def train(fabric, model, loader, optimizer, k):
    for i, (x, y) in enumerate(loader):
        is_accumulating = (i + 1) % k != 0
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            loss = F.cross_entropy(model(x), y)
            fabric.backward(loss / k)
        if not is_accumulating:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
""",
)
case(
    "accelerate sync_gradients good",
    """
from accelerate import Accelerator

def train(model, optimizer, loader, k):
    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=k)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
""",
)

# Locations where the loss, the gradients or the learning rate are divided.


def loop(
    loss: str,
    after: str = "",
    flush: str = "",
    backward: str = "scaler.scale(loss).backward()",
    setup: str = "",
    parameters: str = "",
    mark: str = "",
) -> str:
    """Return a trainer that steps every ``k`` micro-batches, with given statements beside backward and step."""
    return f"""
def train(model, loader, optimizer, k{parameters}):
    scaler = GradScaler("cuda")
{indent(setup, " " * 4)}
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
{indent(loss, " " * 12)}
{indent(after, " " * 8)}
        {backward}{mark}
        if (i + 1) % k == 0:
            scaler.unscale_(optimizer)
{indent(flush, " " * 12)}
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""


UNDIVIDED = "  # AMP301"
case("plain bad", loop("loss = F.cross_entropy(model(x), y)", mark=UNDIVIDED))
case("div_ good", loop("loss = F.cross_entropy(model(x), y)", "loss.div_(k)"))
case("div_ assigned good", loop("loss = F.cross_entropy(model(x), y)", "loss = loss.div_(k)"))
case("/= good", loop("loss = F.cross_entropy(model(x), y)", "loss /= k"))
case("times 1/k good", loop("loss = F.cross_entropy(model(x), y)", "loss = loss * (1 / k)"))
case("times 1.0 / 4 good", loop("loss = F.cross_entropy(model(x), y)", "loss = loss * (1.0 / 4)"))
case("times 0.25 good", loop("loss = F.cross_entropy(model(x), y)", "loss = loss * 0.25"))
case("*= weight name good", loop("loss = F.cross_entropy(model(x), y)", "loss *= weight", setup="weight = 1.0 / k"))
case(
    "weighted sum of two, constants bad",
    loop("out = model(x)\nloss = F.cross_entropy(out, y) + 0.1 * F.mse_loss(out, x)", mark=UNDIVIDED),
)
case(
    # For any alpha, the weights contain no share of the window.
    "weights that sum to one bad",
    loop(
        "out = model(x)\nloss = alpha * F.cross_entropy(out, y) + (1 - alpha) * F.mse_loss(out, x)",
        parameters=", alpha",
        mark=UNDIVIDED,
    ),
)
case(
    "one weight of both terms good",
    loop(
        "out = model(x)\nloss = alpha * F.cross_entropy(out, y) + alpha * F.mse_loss(out, x)",
        parameters=", alpha",
    ),
)
case(
    "both terms weighted then divided good",
    loop("out = model(x)\nloss = (F.cross_entropy(out, y) + 0.1 * F.mse_loss(out, x)) / k"),
)
case(
    "only the first term divided bad",
    loop("out = model(x)\nloss = F.cross_entropy(out, y) / k + F.mse_loss(out, x)", mark=UNDIVIDED),
)
case("each term divided good", loop("out = model(x)\nloss = F.cross_entropy(out, y) / k + F.mse_loss(out, x) / k"))
case(
    "divided in backward call good",
    loop("loss = F.cross_entropy(model(x), y)", backward="(scaler.scale(loss) / k).backward()"),
)
case(
    "divided in a copy that is thrown away bad",
    loop("loss = F.cross_entropy(model(x), y)", "logged = loss / k\nprint(logged.item())", mark=UNDIVIDED),
)
case(
    "gradient argument good",
    loop("loss = F.cross_entropy(model(x), y)", backward="scaler.scale(loss).backward(gradient=torch.tensor(1.0 / k))"),
)
case(
    "grad div in helper good",
    """
def average_gradients(params, n):
    for p in params:
        if p.grad is not None:
            p.grad.div_(n)
"""
    + loop("loss = F.cross_entropy(model(x), y)", flush="average_gradients(model.parameters(), k)"),
)
case(
    "grad /= in place good",
    loop(
        "loss = F.cross_entropy(model(x), y)",
        flush="for p in model.parameters():\n    if p.grad is None:\n        continue\n    p.grad /= k",
    ),
)
case(
    "grad = grad / k good",
    loop(
        "loss = F.cross_entropy(model(x), y)",
        flush="for p in model.parameters():\n    if p.grad is not None:\n        p.grad = p.grad / k",
    ),
)
case(
    "grad.data *= 1/k good",
    loop(
        "loss = F.cross_entropy(model(x), y)",
        flush="for name, p in model.named_parameters():\n    p.grad.data.mul_(1 / k)",
    ),
)
case(
    "grads in param groups good",
    loop(
        "loss = F.cross_entropy(model(x), y)",
        flush="for g in optimizer.param_groups:\n    for p in g['params']:\n        p.grad.div_(k)",
    ),
)
case(
    "foreach_div good",
    loop(
        "loss = F.cross_entropy(model(x), y)",
        flush="grads = [p.grad for p in model.parameters() if p.grad is not None]\ntorch._foreach_div_(grads, k)",
    ),
)
case(
    "parameter hook good",
    loop(
        "loss = F.cross_entropy(model(x), y)",
        setup="for p in model.parameters():\n    p.register_hook(lambda g: g / k)",
    ),
)
case(
    "post accumulate hook good",
    loop(
        "loss = F.cross_entropy(model(x), y)",
        setup="""\
def average(p):
    p.grad.div_(k)
for p in model.parameters():
    p.register_post_accumulate_grad_hook(average)
""",
    ),
)
case(
    "optimizer step pre hook good",
    loop(
        "loss = F.cross_entropy(model(x), y)",
        setup="""\
def average(opt, args, kwargs):
    for g in opt.param_groups:
        for p in g["params"]:
            p.grad.div_(k)
optimizer.register_step_pre_hook(average)
""",
    ),
)
case(
    "lr divided good",
    """
def train(model, loader, k, base):
    optimizer = torch.optim.SGD(model.parameters(), lr=base / k)
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "lr divided earlier good",
    """
def train(model, loader, k, base):
    lr = base
    lr /= k
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "lr divided in param groups good",
    loop("loss = F.cross_entropy(model(x), y)", setup="for group in optimizer.param_groups:\n    group['lr'] /= k"),
)
case(
    "lr of groups given as dicts good",
    """
def train(model, loader, k, base):
    optimizer = torch.optim.SGD([{"params": model.parameters(), "lr": base / k}])
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "criterion class of the project divides good",
    """
class AccumulatedLoss(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k
        self.inner = nn.CrossEntropyLoss()

    def forward(self, logits, target):
        return self.inner(logits, target) / self.k
"""
    + loop("loss = criterion(model(x), y)", setup="criterion = AccumulatedLoss(k)"),
)
case(
    "criterion class of the project does not divide bad",
    """
class Smoothed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, logits, target):
        return self.inner(logits, target)
"""
    + loop("loss = criterion(model(x), y)", setup="criterion = Smoothed()", mark=UNDIVIDED),
)
case(
    "criterion class of the project sums good",
    """
class Summed(nn.Module):
    def forward(self, logits, target):
        logp = F.log_softmax(logits, dim=-1)
        return -(logp * target).sum()
"""
    + loop("loss = criterion(model(x), y)", setup="criterion = Summed()"),
)
case(
    "helper divides good",
    """
def compute_loss(model, x, y, k):
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    return loss / k
"""
    + loop("loss = compute_loss(model, x, y, k)"),
)
case(
    "helper returns tuple, divides good",
    """
def compute_loss(model, x, y, k):
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    return loss / k, {"loss": loss.item()}
"""
    + loop("loss, info = compute_loss(model, x, y, k)"),
)
case(
    "helper returns tuple bad",
    """
def compute_loss(model, x, y):
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    return loss, {"loss": loss.item()}
"""
    + loop("loss, info = compute_loss(model, x, y)", mark=UNDIVIDED),
)
case(
    "helper returns dict bad",
    """
def losses_of(model, x, y):
    out = model(x)
    main = F.cross_entropy(out, y)
    aux = F.mse_loss(out, x)
    return {"loss": main + aux, "main": main}
"""
    + loop("losses = losses_of(model, x, y)", backward='scaler.scale(losses["loss"]).backward()', mark=UNDIVIDED),
)
case(
    "tokens good", loop("loss = F.cross_entropy(model(x), y, reduction='sum') / num_tokens", parameters=", num_tokens")
)
case(
    "sum over tokens of the window good",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    it = iter(loader)
    while True:
        window = [next(it) for _ in range(k)]
        num_tokens = sum((y != -100).sum() for _, y in window)
        num_tokens = num_tokens * dist.get_world_size()
        for x, y in window:
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y, reduction="sum")
            loss = loss * dist.get_world_size() / num_tokens
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
)
case(
    "window list from next bad",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    it = iter(loader)
    while True:
        window = [next(it) for _ in range(k)]
        for x, y in window:
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()  # AMP301
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
)
case(
    "per-token sum over mask good",
    loop(
        "loss = F.cross_entropy(model(x), y, reduction='none')\nloss = (loss * mask).sum() / mask.sum()",
        setup="mask = torch.ones(4)",
    ),
)
case(
    "reduction none then mean bad", loop("loss = F.cross_entropy(model(x), y, reduction='none').mean()", mark=UNDIVIDED)
)
case("reduction none then sum good", loop("loss = F.cross_entropy(model(x), y, reduction='none').sum()"))
case(
    "criterion sum object good",
    loop("loss = criterion(model(x), y)", setup="criterion = nn.CrossEntropyLoss(reduction='sum')"),
)
case(
    "criterion size_average False good",
    loop("loss = criterion(model(x), y)", setup="criterion = nn.CrossEntropyLoss(size_average=False)"),
)
case("own mean squared error bad", loop("loss = ((model(x) - y) ** 2).mean()", mark=UNDIVIDED))
case("torch.mean bad", loop("loss = torch.mean(torch.abs(model(x) - y))", mark=UNDIVIDED))
case("own sum good", loop("loss = ((model(x) - y) ** 2).sum()"))
case("own mean over elements bad", loop("out = model(x)\nloss = ((out - y) ** 2).sum() / out.numel()", mark=UNDIVIDED))
case(
    "own mean over a mask bad",
    loop("mask = (y > 0).float()\nloss = ((model(x) - y) ** 2 * mask).sum() / (mask.sum() + 1e-8)", mark=UNDIVIDED),
)
case(
    "own mean over a mask, divided good",
    loop("mask = (y > 0).float()\nloss = ((model(x) - y) ** 2 * mask).sum() / mask.sum() / k"),
)
case(
    "own mean over a mask that is known before, divided good",
    loop("mask = (y > 0).float()\nloss = ((model(x) - y) ** 2 / k * mask).sum() / mask.sum().clamp(min=1)"),
)
case(
    "a sum over what a batch says is the total of its window good",
    loop("loss = F.cross_entropy(model(x), y, reduction='sum') / y.items_in_window"),
)
case(
    "a sum over what a function counts good",
    loop("loss = F.cross_entropy(model(x), y, reduction='sum') / tokens_of_the_window(y)"),
)
case(
    "a sum over a size and the number of micro-batches good",
    loop("loss = F.cross_entropy(model(x), y, reduction='sum') / (len(x) * k)"),
)
case(
    "a sum over the size of the batch bad",
    loop("loss = F.cross_entropy(model(x), y, reduction='sum') / x.shape[0]", mark=UNDIVIDED),
)
case(
    "the mean of weighted sums bad",
    loop(
        "loss = F.cross_entropy(model(x), y, reduction='none')\n"
        "loss = ((loss * y.weight).sum(dim=[1, 2]) / y.weight.sum(dim=[1, 2])).mean()",
        mark=UNDIVIDED,
    ),
)
case(
    "a sum over the samples of the whole window good",
    """
def train(model, windows, optimizer):
    scaler = GradScaler("cuda")
    for window in windows:
        total = sum(len(y) for _, y in window)
        whole = window.targets.numel()
        for x, y in window:
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y, reduction="sum") / whole
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        print(total)
""",
)
case(
    "mean over chunks count good",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for x, y in loader:
        chunks = list(zip(x.chunk(k), y.chunk(k)))
        for cx, cy in chunks:
            with autocast("cuda"):
                loss = F.cross_entropy(model(cx), cy).mean() / len(chunks)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
)
case(
    "chunks zipped into a list bad",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for x, y in loader:
        chunks = list(zip(x.chunk(k), y.chunk(k)))
        for cx, cy in chunks:
            with autocast("cuda"):
                loss = F.cross_entropy(model(cx), cy)
            scaler.scale(loss).backward()  # AMP301
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
)
case(
    "gradcache surrogate good",
    """
def train(model, loader, optimizer, chunk):
    scaler = GradScaler("cuda")
    for x, y in loader:
        with torch.no_grad(), autocast("cuda"):
            reps = torch.cat([model(part) for part in x.split(chunk)])
        reps = reps.detach().requires_grad_()
        with autocast("cuda"):
            loss = F.cross_entropy(reps @ reps.t(), y)
        scaler.scale(loss).backward()
        cache = reps.grad
        for part, grad in zip(x.split(chunk), cache.split(chunk)):
            with autocast("cuda"):
                out = model(part)
            surrogate = torch.dot(out.flatten().float(), grad.flatten())
            surrogate.backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
)
case(
    "open_clip feature cache good",
    """
def train(model, loader, optimizer, loss_fn, accum_freq):
    scaler = GradScaler("cuda")
    for i, batch in enumerate(loader):
        images, texts = batch
        i_accum = i // accum_freq
        optimizer.zero_grad()
        if accum_freq == 1:
            with autocast("cuda"):
                out = model(images, texts)
                total_loss = loss_fn(**out)
            scaler.scale(total_loss).backward()
        else:
            with torch.no_grad():
                with autocast("cuda"):
                    out = model(images, texts)
                    for key, val in out.items():
                        if key in accum_features:
                            accum_features[key].append(val)
                        else:
                            accum_features[key] = [val]
                accum_images.append(images)
                accum_texts.append(texts)
            if ((i + 1) % accum_freq) > 0:
                continue
            optimizer.zero_grad()
            for j in range(accum_freq):
                images = accum_images[j]
                texts = accum_texts[j]
                with autocast("cuda"):
                    out = model(images, texts)
                    inputs = {}
                    for key, val in accum_features.items():
                        accumulated = accum_features[key]
                        inputs[key] = torch.cat(accumulated[:j] + [out[key]] + accumulated[j + 1:])
                    losses = loss_fn(**inputs)
                scaler.scale(losses).backward()
        scaler.step(optimizer)
        scaler.update()
        if accum_freq > 1:
            accum_features, accum_images, accum_texts = {}, [], []
""",
)
case(
    "loss is a parameter of the method good",
    """
class Scaler:
    def __init__(self, k):
        self.scaler = GradScaler("cuda")
        self.k = k
        self.n = 0

    def backward(self, loss, optimizer):
        self.scaler.scale(loss).backward()
        self.n += 1
        if self.n % self.k == 0:
            self.scaler.step(optimizer)
            self.scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "loss of unknown code, unpacked info",
    loop("loss, items = compute_loss(model(x), y)", parameters=", compute_loss", mark=UNDIVIDED),
)
case(
    "loss of a batch by unknown method info",
    """
class Trainer(Base):
    def train_step(self, batch, i):
        with autocast("cuda"):
            loss = self.compute_loss(batch)
        self.scaler.scale(loss).backward()  # AMP301
        if (i + 1) % self.k == 0:
            self.scaler.unscale_(self.optimizer)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
""",
)
case("criterion as parameter bad", loop("loss = criterion(model(x), y)", parameters=", criterion", mark=UNDIVIDED))
case("hf outputs loss bad", loop("loss = model(input_ids=x, labels=y).loss", mark=UNDIVIDED))
case("world size product good", loop("loss = F.cross_entropy(model(x), y)", "loss = loss * dist.get_world_size()"))
case(
    "divided in one branch only when accumulating good",
    loop("loss = F.cross_entropy(model(x), y)", "if k > 1:\n    loss = loss / k"),
)
case(
    "divided only for data parallel mean good",
    loop(
        "loss = F.cross_entropy(model(x), y)",
        "if n_gpu > 1:\n    loss = loss.mean()\nif k > 1:\n    loss = loss / k",
        parameters=", n_gpu",
    ),
)
case(
    "mean for data parallel only bad",
    loop(
        "loss = F.cross_entropy(model(x), y)",
        "if n_gpu > 1:\n    loss = loss.mean()",
        parameters=", n_gpu",
        mark=UNDIVIDED,
    ),
)
case("divided through torch.div good", loop("loss = F.cross_entropy(model(x), y)", "loss = torch.div(loss, k)"))
case(
    "sum of losses list over k good",
    loop("losses = [F.cross_entropy(o, y) for o in model(x)]\nloss = sum(losses) / len(losses) / k"),
)
case(
    "torch.stack mean bad",
    loop("losses = torch.stack([F.cross_entropy(o, y) for o in model(x)])\nloss = losses.mean()", mark=UNDIVIDED),
)
case(
    "two backward calls per micro-batch, one divided good",
    """
def train(model, aux, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y) / k
            extra = F.mse_loss(aux(x), y) / k
        scaler.scale(loss).backward()
        scaler.scale(extra).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "autograd.backward with division good",
    loop("loss = F.cross_entropy(model(x), y)", backward="torch.autograd.backward(scaler.scale(loss / k))"),
)
case(
    "autograd.backward undivided bad",
    loop("loss = F.cross_entropy(model(x), y)", backward="torch.autograd.backward(scaler.scale(loss))", mark=UNDIVIDED),
)
case(
    "fp32 branch divides too good",
    """
def train(model, loader, optimizer, k, fp16):
    scaler = GradScaler("cuda") if fp16 else None
    for i, (x, y) in enumerate(loader):
        with autocast("cuda", enabled=fp16):
            loss = F.cross_entropy(model(x), y)
        if k > 1:
            loss = loss / k
        if fp16:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if (i + 1) % k == 0:
            if fp16:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
            else:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            optimizer.zero_grad()
""",
)
case(
    "fp32 branch divides, fp16 not bad",
    """
def train(model, loader, optimizer, k, fp16):
    scaler = GradScaler("cuda") if fp16 else None
    for i, (x, y) in enumerate(loader):
        with autocast("cuda", enabled=fp16):
            loss = F.cross_entropy(model(x), y)
        if fp16:
            scaler.scale(loss).backward()  # AMP301
        else:
            (loss / k).backward()
        if (i + 1) % k == 0:
            if fp16:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad()
""",
)
case(
    "no amp at all bad",
    """
def train(model, loader, optimizer, k):
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        loss.backward()  # AMP301
        if (i + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
)
# Boundaries of windows, and loops that are no windows.
case(
    "zero_grad before backward under same test good",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        if i % k == 0:
            optimizer.zero_grad(set_to_none=True)
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y) / k
        scaler.scale(loss).backward()
        if i % k == k - 1 or i == len(loader) - 1:
            scaler.step(optimizer)
            scaler.update()
""",
)
case(
    "zero_grad in else of window good",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    step = 0
    for x, y in loader:
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y) / k
        scaler.scale(loss).backward()
        step += 1
        if step % k:
            continue
        scaler.step(optimizer)
        scaler.update()
        model.zero_grad(set_to_none=True)
""",
)
case(
    "zero_grad after backward, outside the test bad",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y) / k
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()  # AMP304
""",
)
case(
    "first micro-batch steps, step from enumerate bad",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for step, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y) / k
        scaler.scale(loss).backward()
        if step % k == 0 or step == len(loader) - 1:  # AMP304
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "i > 0 and i % k == 0 good",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y) / k
        scaler.scale(loss).backward()
        if i > 0 and i % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "i and i % k == 0 good",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y) / k
        scaler.scale(loss).backward()
        if i and i % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "counter off by one by own counter bad",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    step = 0
    for x, y in loader:
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y) / k
        scaler.scale(loss).backward()
        if step % k == 0:  # AMP304
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        step += 1
""",
)
case(
    "two optimizers accumulate good",
    """
def train(G, D, loader, k):
    opt_g = torch.optim.Adam(G.parameters())
    opt_d = torch.optim.Adam(D.parameters())
    scaler_g, scaler_d = GradScaler("cuda"), GradScaler("cuda")
    for i, x in enumerate(loader):
        with autocast("cuda"):
            loss_d = F.softplus(D(G(x).detach())).mean() / k
        scaler_d.scale(loss_d).backward()
        if (i + 1) % k == 0:
            scaler_d.step(opt_d)
            scaler_d.update()
            opt_d.zero_grad()
        with autocast("cuda"):
            loss_g = F.softplus(-D(G(x))).mean() / k
        scaler_g.scale(loss_g).backward()
        if (i + 1) % k == 0:
            scaler_g.step(opt_g)
            scaler_g.update()
            opt_g.zero_grad()
            opt_d.zero_grad()
""",
)
case(
    "pcgrad zeroes per task good",
    """
def train(model, tasks, loader, optimizer):
    scaler = GradScaler("cuda")
    for x, ys in loader:
        per_task = []
        for t in range(len(tasks)):
            optimizer.zero_grad()
            with autocast("cuda"):
                loss = F.mse_loss(model(x), ys[t])
            scaler.scale(loss).backward()
            per_task.append([p.grad.clone() for p in model.parameters()])
        for p, *gs in zip(model.parameters(), *per_task):
            p.grad = torch.stack(gs).mean(0)
        scaler.step(optimizer)
        scaler.update()
""",
)
case(
    "multi-scale sum of one batch good",
    """
def train(model, loader, optimizer, sizes):
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        for size in sizes:
            with autocast("cuda"):
                loss = F.cross_entropy(model(F.interpolate(x, size)), y)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
)
case(
    "monte carlo samples of one batch good",
    """
def train(model, loader, optimizer, samples):
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        for _ in range(samples):
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
)
case(
    "truncated bptt over time good",
    """
def train(model, loader, optimizer):
    scaler = GradScaler("cuda")
    for seq, target in loader:
        optimizer.zero_grad()
        state = None
        for t in range(seq.shape[0]):
            with autocast("cuda"):
                out, state = model(seq[t], state)
                loss = F.cross_entropy(out, target[t])
            scaler.scale(loss).backward()
            state = state.detach()
        scaler.step(optimizer)
        scaler.update()
""",
)
case(
    "tasks of one step good",
    """
def train(model, loaders, optimizer, steps):
    scaler = GradScaler("cuda")
    its = {name: iter(loader) for name, loader in loaders.items()}
    for step in range(steps):
        optimizer.zero_grad()
        for name, it in its.items():
            x, y = next(it)
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
)
case(
    "labelled and unlabelled batch good",
    """
def train(model, labelled, unlabelled, optimizer):
    scaler = GradScaler("cuda")
    for (x, y), u in zip(labelled, unlabelled):
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        with autocast("cuda"):
            loss_u = F.mse_loss(model(u), u)
        scaler.scale(loss_u).backward()
        scaler.step(optimizer)
        scaler.update()
""",
)
case(
    "one step per epoch over the whole loader good",
    """
def train(model, loader, optimizer, epochs):
    scaler = GradScaler("cuda")
    for epoch in range(epochs):
        optimizer.zero_grad()
        for x, y in loader:
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
)
case(
    "evaluation loop between good",
    """
def train(model, loader, val, optimizer, k):
    scaler = GradScaler("cuda")
    micro = 0
    for epoch in range(10):
        for x, y in loader:
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y) / k
            scaler.scale(loss).backward()
            micro += 1
            if micro % k == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                if (micro // k) % 100 == 0:
                    for vx, vy in val:
                        with torch.no_grad(), autocast("cuda"):
                            F.cross_entropy(model(vx), vy)
""",
)
case(
    "model moved under a flag, gradients divided good",
    """
def train(model, loader, optimizer, cfg, nhwc):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        if nhwc:
            model = model.to(memory_format=torch.channels_last)
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if (i + 1) % cfg.k == 0:
            for param in model.parameters():
                if param.grad is not None:
                    param.grad.data.div_(cfg.k)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "gradients of a list of unknown parameters divided good",
    """
def train(params, model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            for p in params:
                p.grad /= k
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "step at once or every k, as configured good",
    """
def train(model, loader, optimizer, cfg, use_amp):
    if use_amp:
        scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda", enabled=use_amp):
            loss = F.cross_entropy(model(x), y)
        if cfg.accumulate:
            loss = loss / cfg.k
        if use_amp:
            scaler.scale(loss).backward()
        else:
            loss.backward()

        def take_step():
            if use_amp:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad()

        if not cfg.accumulate:
            take_step()
        elif (i + 1) % cfg.k == 0:
            take_step()
""",
)
case(
    "communication hook of torch bad",
    """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

def train(loader, k):
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
    model.register_comm_hook(None, fp16_compress_hook)  # AMP604
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()  # AMP301
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "communication hook that averages good",
    """
def averaging_hook(state, bucket):
    tensor = bucket.buffer().div_(state.world * state.k)
    return dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0])

def train(loader, k, state):
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
    model.register_comm_hook(state, averaging_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)

# Cases from other programs.

case(
    "unknown loss, conditionally divided good",
    """
def train(task, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = task(x, y)["loss"]
        if k > 1:
            loss /= k
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "losses of a comprehension unpacked bad",
    """
criterion = nn.CrossEntropyLoss()
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            a, b = [criterion(o, t) for o, t in zip(model(x), y)]
            loss = b - a
        scaler.scale(loss).backward()  # AMP301
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "closure backward good",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        def forward():
            with autocast("cuda"):
                return F.cross_entropy(model(x), y) / k
        def backward(loss):
            scaler.scale(loss).backward()
        backward(forward())
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "window in a dataclass state bad",
    """
class State:
    def __init__(self):
        self.micro = 0

def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    state = State()
    for x, y in loader:
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()  # AMP301
        state.micro += 1
        if state.micro % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "last flag and first flag good",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    n = len(loader)
    for i, (x, y) in enumerate(loader):
        first, last = i % k == 0, (i % k == k - 1) or i == n - 1
        if first:
            optimizer.zero_grad(set_to_none=True)
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y) / min(k, n - i + i % k)
        scaler.scale(loss).backward()
        if last:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
""",
)
case(
    "step in a try with oom handling good",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        try:
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y) / k
            scaler.scale(loss).backward()
        except RuntimeError as error:
            if "out of memory" in str(error):
                torch.cuda.empty_cache()
                optimizer.zero_grad()
                continue
            raise
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "nan loss skips the micro-batch good",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y) / k
        if not torch.isfinite(loss):
            optimizer.zero_grad()
            continue
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "micro loop with nan break good",
    """
def train(model, loader, optimizer, k, steps):
    scaler = GradScaler("cuda")
    it = iter(loader)
    for step in range(steps):
        optimizer.zero_grad()
        for _ in range(k):
            x, y = next(it)
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y) / k
            if torch.isnan(loss):
                break
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
""",
)
case(
    "micro loop then return before step good",
    """
class T:
    def __init__(self, model):
        self.model = model
        self.opt = torch.optim.AdamW(model.parameters())
        self.scaler = GradScaler("cuda")

    def train_step(self, it, k):
        self.opt.zero_grad()
        for _ in range(k):
            x, y = next(it)
            with autocast("cuda"):
                loss = F.cross_entropy(self.model(x), y) / k
            self.scaler.scale(loss).backward()
            if not torch.isfinite(loss):
                return None
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.item()
""",
)
case(
    "train_step with micro loop undivided bad",
    """
class T:
    def __init__(self, model):
        self.model = model
        self.opt = torch.optim.AdamW(model.parameters())
        self.scaler = GradScaler("cuda")

    def train_step(self, batch, target):
        self.opt.zero_grad()
        for x, y in zip(batch.split(8), target.split(8)):
            with autocast("cuda"):
                loss = F.cross_entropy(self.model(x), y)
            self.scaler.scale(loss).backward()  # AMP301
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.item()
""",
)
case(
    "update per micro-batch and step after the loop with bf16 good",
    """
def train(model, loader, optimizer, k):
    it = iter(loader)
    for step in range(100):
        optimizer.zero_grad()
        for _ in range(k):
            x, y = next(it)
            with autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y) / k
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
""",
)
case(
    "per-sample gradients for privacy good",
    """
def train(model, loader, optimizer):
    scaler = GradScaler("cuda")
    for batch, target in loader:
        kept = [torch.zeros_like(p) for p in model.parameters()]
        for x, y in zip(batch.split(1), target.split(1)):
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            for p, total in zip(model.parameters(), kept):
                total.add_(p.grad)
                p.grad = None
        for p, total in zip(model.parameters(), kept):
            p.grad = total / len(batch)
        scaler.step(optimizer)
        scaler.update()
""",
)
case(
    "unscale in each micro-batch of a nested loop bad",
    """
def train(model, windows, optimizer):
    scaler = GradScaler("cuda")
    for window in windows:
        optimizer.zero_grad()
        for x, y in window:
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y) / len(window)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)  # AMP303
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
""",
)
case(
    "update in each micro-batch of a nested loop bad",
    """
def train(model, windows, optimizer):
    scaler = GradScaler("cuda")
    for window in windows:
        optimizer.zero_grad()
        for x, y in window:
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y) / len(window)
            scaler.scale(loss).backward()
            scaler.update()  # AMP303
        scaler.step(optimizer)
""",
)
case(
    "two losses of one window, one optimizer good",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    it = iter(loader)
    for step in range(100):
        optimizer.zero_grad()
        for _ in range(k):
            x, y = next(it)
            with autocast("cuda"):
                out = model(x)
                loss = F.cross_entropy(out, y) / k
                aux = F.mse_loss(out, x) / k
            scaler.scale(loss).backward(retain_graph=True)
            scaler.scale(aux).backward()
        scaler.step(optimizer)
        scaler.update()
""",
)
case(
    "discriminator and generator windows in two loops good",
    """
def train(G, D, loader, k):
    opt_g = torch.optim.Adam(G.parameters())
    opt_d = torch.optim.Adam(D.parameters())
    scaler = GradScaler("cuda")
    it = iter(loader)
    for step in range(1000):
        opt_d.zero_grad()
        for _ in range(k):
            x = next(it)
            with autocast("cuda"):
                loss_d = (F.softplus(D(G(x).detach())).mean() + F.softplus(-D(x)).mean()) / k
            scaler.scale(loss_d).backward()
        scaler.step(opt_d)
        opt_g.zero_grad()
        for _ in range(k):
            x = next(it)
            with autocast("cuda"):
                loss_g = F.softplus(-D(G(x))).mean() / k
            scaler.scale(loss_g).backward()
        scaler.step(opt_g)
        scaler.update()
""",
)
case(
    "gan windows undivided bad",
    """
def train(G, D, loader, k):
    opt_g = torch.optim.Adam(G.parameters())
    opt_d = torch.optim.Adam(D.parameters())
    scaler = GradScaler("cuda")
    it = iter(loader)
    for step in range(1000):
        opt_d.zero_grad()
        for _ in range(k):
            x = next(it)
            with autocast("cuda"):
                loss_d = F.softplus(D(G(x).detach())).mean() + F.softplus(-D(x)).mean()
            scaler.scale(loss_d).backward()  # AMP301
        scaler.step(opt_d)
        opt_g.zero_grad()
        for _ in range(k):
            x = next(it)
            with autocast("cuda"):
                loss_g = F.softplus(-D(G(x))).mean() / k
            scaler.scale(loss_g).backward()
        scaler.step(opt_g)
        scaler.update()
""",
)
case(
    "step every k by while counter good",
    """
def train(model, loader, optimizer, k, total):
    scaler = GradScaler("cuda")
    it = iter(loader)
    done = 0
    while done < total:
        pending = 0
        while pending < k:
            x, y = next(it)
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss / k).backward()
            pending += 1
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        done += 1
""",
)
case(
    "step every k by while counter bad",
    """
def train(model, loader, optimizer, k, total):
    scaler = GradScaler("cuda")
    it = iter(loader)
    done = 0
    while done < total:
        pending = 0
        while pending < k:
            x, y = next(it)
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()  # AMP301
            pending += 1
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        done += 1
""",
)
case(
    "flag as parameter of a method nobody calls here, unscale always bad",
    """
class Stepper:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.scaler = GradScaler("cuda")

    def micro_step(self, x, y, n_micro, sync):
        with autocast("cuda"):
            loss = F.cross_entropy(self.model(x), y) / n_micro
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)  # AMP303
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if sync:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
""",
)
case(
    "flag as parameter of a method nobody calls here good",
    """
class Stepper:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.scaler = GradScaler("cuda")

    def micro_step(self, x, y, n_micro, sync):
        with autocast("cuda"):
            loss = F.cross_entropy(self.model(x), y) / n_micro
        self.scaler.scale(loss).backward()
        if sync:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
""",
)
case(
    "NativeScaler read alone good",
    """
class NativeScaler:
    state_dict_key = "amp_scaler"

    def __init__(self):
        self._scaler = torch.amp.GradScaler("cuda")

    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, create_graph=False, need_update=True):
        self._scaler.scale(loss).backward(create_graph=create_graph)
        if need_update:
            if clip_grad is not None:
                assert parameters is not None
                self._scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
            self._scaler.step(optimizer)
            self._scaler.update()

    def state_dict(self):
        return self._scaler.state_dict()
""",
)
case(
    "NativeScaler that unscales always bad",
    """
class NativeScaler:
    def __init__(self):
        self._scaler = torch.amp.GradScaler("cuda")

    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, create_graph=False, need_update=True):
        self._scaler.scale(loss).backward(create_graph=create_graph)
        self._scaler.unscale_(optimizer)  # AMP303
        torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
        if need_update:
            self._scaler.step(optimizer)
            self._scaler.update()
""",
)
case(
    "dry run flag with zero_grad first good",
    """
class T:
    def __init__(self, model):
        self.model = model
        self.opt = torch.optim.AdamW(model.parameters())
        self.scaler = GradScaler("cuda")

    def run(self, x, y, dry_run=False):
        self.opt.zero_grad()
        with autocast("cuda"):
            loss = F.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        if not dry_run:
            self.scaler.step(self.opt)
            self.scaler.update()
""",
)
case(
    "step condition from an attribute set elsewhere good",
    """
class T:
    def __init__(self, model, k):
        self.model, self.k = model, k
        self.opt = torch.optim.AdamW(model.parameters())
        self.scaler = GradScaler("cuda")
        self.sync = True

    def set_step(self, i):
        self.sync = (i + 1) % self.k == 0

    def run(self, x, y):
        with autocast("cuda"):
            loss = F.cross_entropy(self.model(x), y) / self.k
        self.scaler.scale(loss).backward()
        if self.sync:
            self.scaler.unscale_(self.opt)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.opt)
            self.scaler.update()
            self.opt.zero_grad()
""",
)
case(
    "step condition of a tuple of names good",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    total = len(loader)
    for i, (x, y) in enumerate(loader):
        do_step = any([(i + 1) % k == 0, i + 1 == total])
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y) / k
        scaler.scale(loss).backward()
        if do_step:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "step in i % k in {k-1} good",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y) / k
        scaler.scale(loss).backward()
        if i % k in {k - 1}:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "bitwise or of conditions good",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        end = ((i + 1) % k == 0) | (i + 1 == len(loader))
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y) / k
        scaler.scale(loss).backward()
        if end:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "bitwise or of conditions bad",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        end = ((i + 1) % k == 0) | (i + 1 == len(loader))
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()  # AMP301
        if end:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "step index computed by floor division bad",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()  # AMP301
        if (i + 1) // k * k == i + 1:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "conditional expression flag bad",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        boundary = True if (i + 1) % k == 0 else False
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()  # AMP301
        if boundary:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "walrus flag bad",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()  # AMP301
        if (boundary := (i + 1) % k == 0):
            scaler.step(optimizer)
            scaler.update()
        if boundary:
            optimizer.zero_grad()
""",
)
case(
    "epoch-wide global index bad",
    """
def train(model, loader, optimizer, k, epochs):
    scaler = GradScaler("cuda")
    for epoch in range(epochs):
        for i, (x, y) in enumerate(loader):
            it = epoch * len(loader) + i
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()  # AMP301
            if (it + 1) % k == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
""",
)
case(
    "gradient accumulation only after a warm-up good",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        accum = 1 if i < 100 else k
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y) / accum
        scaler.scale(loss).backward()
        if (i + 1) % accum == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "update every k of a frozen phase is no window good",
    """
def train(G, D, loader, opt_g, opt_d, every):
    scaler = GradScaler("cuda")
    for i, x in enumerate(loader):
        opt_d.zero_grad()
        with autocast("cuda"):
            loss_d = F.softplus(D(x)).mean()
        scaler.scale(loss_d).backward()
        scaler.step(opt_d)
        if i % every == 0:
            opt_g.zero_grad()
            with autocast("cuda"):
                loss_g = F.softplus(-D(G(x))).mean()
            scaler.scale(loss_g).backward()
            scaler.step(opt_g)
        scaler.update()
""",
)
case(
    "lazy regularisation every k good",
    """
def train(D, loader, opt, every):
    scaler = GradScaler("cuda")
    for i, x in enumerate(loader):
        opt.zero_grad()
        with autocast("cuda"):
            loss = F.softplus(D(x)).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if i % every == 0:
            opt.zero_grad()
            with autocast("cuda"):
                reg = D(x).pow(2).mean() * every
            scaler.scale(reg).backward()
            scaler.step(opt)
            scaler.update()
""",
)

case(
    "a caught exception of a helper that only ends in finally bad",
    """
    class Trainer:
        def __init__(self, model, config):
            self.model, self.config = model, config
            self.optimizer = torch.optim.AdamW(model.parameters())
            if config.amp:
                self.scaler = GradScaler("cuda")

        def train(self, loader):
            try:
                for epoch in range(self.config.epochs):
                    if self.config.plots and not self.is_last(epoch):
                        self.validate(epoch)
            except BaseException:
                pass
            for i, (x, y) in enumerate(loader):
                with autocast("cuda"):
                    loss = F.cross_entropy(self.model(x), y)
                self.scaler.scale(loss).backward()  # AMP301
                if (i + 1) % self.config.k == 0:
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
                    self.optimizer.zero_grad()

        def validate(self, epoch):
            try:
                return self.run_validation(epoch)
            finally:
                if self.distributed:
                    pass
    """,
)


# Averaging over processes is disabled for all micro-batches except the last.

for _name, _context, _mark in (
    ("all but the last good", "contextlib.nullcontext() if last else model.no_sync()", ""),
    ("the last bad", "model.no_sync() if last else contextlib.nullcontext()", "  # AMP305"),
    ("all bad", "model.no_sync()", "  # AMP305"),
    ("nobody knows which good", "model.no_sync() if i in special else contextlib.nullcontext()", ""),
    ("as a framework has it good", "accelerator.no_sync(model)", ""),
):
    case(
        f"no_sync for {_name}",
        f"""
def train(model, loader, optimizer, k, special, accelerator):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        last = (i + 1) % k == 0
        with {_context}:
            with autocast("cuda"):
                loss = F.cross_entropy(model(x), y) / k
            scaler.scale(loss).backward(){_mark}
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
    )
case(
    "no_sync in the arm of the step bad",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    step = 0
    for x, y in loader:
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        update = (step + 1) % k == 0 or step == len(loader)
        if update:
            with model.no_sync():
                scaler.scale(loss / k).backward()  # AMP305
        else:
            scaler.scale(loss / k).backward()
        step += 1
        if update:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "no_sync in the arm of the step, and what brings no gradients together bad",
    """
def say(text):
    if dist.is_initialized() and dist.get_rank() == 0:
        print(text)

def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        update = (i + 1) % k == 0
        if update:
            with model.no_sync():
                scaler.scale(loss / k).backward()  # AMP305
        else:
            scaler.scale(loss / k).backward()
        say("a turn")
        dist.barrier()
        if update:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "no_sync in an exit stack, for all but the last good",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    it = iter(loader)
    while True:
        with contextlib.ExitStack() as stack:
            stack.enter_context(model.no_sync())
            for _ in range(k - 1):
                x, y = next(it)
                with autocast("cuda"):
                    loss = F.cross_entropy(model(x), y) / k
                scaler.scale(loss).backward()
        x, y = next(it)
        with autocast("cuda"):
            loss = F.cross_entropy(model(x), y) / k
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
)
case(
    "no_sync for the whole inner loop bad",
    """
def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    it = iter(loader)
    while True:
        with model.no_sync():
            for _ in range(k):
                x, y = next(it)
                with autocast("cuda"):
                    loss = F.cross_entropy(model(x), y) / k
                scaler.scale(loss).backward()  # AMP305
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
)
case(
    "no_sync for the whole inner loop, averaged by a helper good",
    """
def average(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)

def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    it = iter(loader)
    while True:
        with model.no_sync():
            for _ in range(k):
                x, y = next(it)
                with autocast("cuda"):
                    loss = F.cross_entropy(model(x), y) / k
                scaler.scale(loss).backward()
        average(model)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
)
case(
    "no_sync for the whole inner loop, averaged by code that is not read good",
    """
from elsewhere import average

def train(model, loader, optimizer, k):
    scaler = GradScaler("cuda")
    model.train()
    it = iter(loader)
    while True:
        with model.no_sync():
            for _ in range(k):
                x, y = next(it)
                with autocast("cuda"):
                    loss = F.cross_entropy(model(x), y) / k
                scaler.scale(loss).backward()
        average(model.parameters())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
)
case(
    "no_sync while the model only runs forward good",
    """
def train(model, loader, optimizer):
    scaler = GradScaler("cuda")
    for x, y in loader:
        with model.no_sync():
            with autocast("cuda"), torch.no_grad():
                teacher = model(x)
        with autocast("cuda"):
            loss = F.mse_loss(model(x), teacher)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
)

# Scalers in a wrapper known only by name: they scale, run backward and, when due, step.
case(
    "a wrapper from elsewhere with an argument for the update bad",
    """
def train_one_epoch(model, criterion, loader, optimizer, loss_scaler, max_norm, k):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = criterion(model(x), y)
        if not math.isfinite(loss.item()):
            raise SystemExit(1)
        norm = loss_scaler(  # AMP301
            loss, optimizer, clip_grad=max_norm, parameters=model.parameters(), update_grad=(i + 1) % k == 0)
        if (i + 1) % k == 0:
            optimizer.zero_grad()
""",
)
case(
    "a wrapper from elsewhere with an argument for the update good",
    """
def train_one_epoch(model, criterion, loader, optimizer, loss_scaler, max_norm, k):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = criterion(model(x), y)
        loss /= k
        norm = loss_scaler(
            loss, optimizer, clip_grad=max_norm, parameters=model.parameters(), update_grad=(i + 1) % k == 0)
        if (i + 1) % k == 0:
            optimizer.zero_grad()
        print(loss.item(), norm, loss_scaler.state_dict()["scale"])
""",
)
case(
    "a wrapper from elsewhere that updates each time good",
    """
def train_one_epoch(model, criterion, loader, optimizer, loss_scaler):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        loss_scaler(loss, optimizer, parameters=model.parameters())
        if (i + 1) % 100 == 0:
            print(loss.item())
""",
)
case(
    "a trainer that holds a wrapper from elsewhere bad",
    """
class Trainer:
    def __init__(self, model, optimizer, loss_scaler, config):
        self.model, self.optimizer, self.loss_scaler, self.config = model, optimizer, loss_scaler, config

    def epoch(self, loader, criterion):
        for i, (x, y) in enumerate(loader):
            with autocast("cuda"):
                loss = criterion(self.model(x), y)
            update = (i + 1) % self.config.accumulate == 0 or i + 1 == len(loader)
            self.loss_scaler(loss, self.optimizer, parameters=self.model.parameters(), need_update=update)  # AMP301
            if update:
                self.optimizer.zero_grad()
""",
)
case(
    "what scales inputs, and is given no optimizer good",
    """
def train(model, scaler, loader, optimizer, k):
    for i, (x, y) in enumerate(loader):
        scaled, scale = scaler(x, y)
        loss = F.mse_loss(model(scaled) * scale, y) / k
        loss.backward()
        if (i + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
)
case(
    "a learning rate by a nominal batch size is none by micro-batches bad",
    """
def train(model, loader, args, criterion):
    args.lr = args.base_lr * args.batch_size * args.k / 256
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()  # AMP301
        if (i + 1) % args.k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)
case(
    "a learning rate by the micro-batches and by a nominal batch size good",
    """
def train(model, loader, args, criterion):
    args.lr = args.base_lr * args.batch_size / 256 / args.k
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        if (i + 1) % args.k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
)


# Gradients cleared before any step of their window: no micro-batch counts, not even the last one.
for _name, _iteration in (
    (
        "in each iteration, one iteration before the step bad",
        "scaler.scale(loss / k).backward()\n        optimizer.zero_grad()  # AMP215",
    ),
    (
        "before each backward, so that the last counts bad",
        "optimizer.zero_grad()  # AMP304\n        scaler.scale(loss / k).backward()",
    ),
):
    case(
        f"gradients are cleared {_name}",
        f"""
def train(model, loader, criterion, k):
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), GradScaler("cuda")
    for i, (x, y) in enumerate(loader, 1):
        if i % k == 0:
            scaler.step(optimizer)
            scaler.update()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        {_iteration}
""",
    )
case(
    "gradients are cleared as the loop over a window ends bad",
    """
def train(model, loader, criterion):
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), GradScaler("cuda")
    for window in loader:
        for x, y in window:
            with autocast("cuda"):
                loss = criterion(model(x), y) / len(window)
            scaler.scale(loss).backward()
            optimizer.zero_grad()  # AMP215
        scaler.step(optimizer)
        scaler.update()
""",
)


@in_groups(CASES)
def test_accumulation(cases: dict[str, str]) -> None:
    check_each(cases, check_accumulation)


def check_accumulation(name: str, source: str) -> None:
    expected = marks(source)
    assert bool(expected) == name.endswith(("bad", "info")), "the name of the case says the opposite"
    findings = [finding for finding in check_source(source, "train.py") if finding.code not in OTHERS]
    assert places(findings) == expected, f"{shown(findings)}\n{source[len(HEAD) :]}"
    assert {finding.severity == "info" for finding in findings} <= {name.endswith("info")}


def test_the_message_for_a_wrapped_scaler_speaks_of_its_loss() -> None:
    source = dict(CASES)["a trainer that holds a wrapper from elsewhere bad"]
    (finding,) = check_source(source, "train.py")
    assert finding.message.startswith("`loss` is summed over the micro-batches")


def test_names_of_cases_are_unique() -> None:
    names = [name for name, _ in CASES]
    assert sorted(set(names)) == sorted(names)


#: A loop that only measures memory, before a training of its own.
MEASURED = """\
import torch

class Trainer:
    def __init__(self, net):
        self.net = net
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    def backward(self, images):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = self.net(images).mean()
        self.scaler.scale(loss).backward()

    def train(self, batch):
        for images in batch:
            self.opt.zero_grad()
            self.backward(images)
        {clear}
        self.backward(batch[0])
        self.scaler.step(self.opt)
        self.scaler.update()
"""


@pytest.mark.parametrize(("clear", "codes"), [("self.opt.zero_grad()", []), ("print(batch)", ["AMP304"])])
def test_gradients_that_no_step_uses_are_discarded_on_purpose(clear: str, codes: list[str]) -> None:
    assert [finding.code for finding in check_source(MEASURED.replace("{clear}", clear))] == codes
