"""Programs beside those in ``runtime_programs``: each mistake is reported on its line, and nothing else is reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from marks import marks, places, shown
from runtime_programs import RIGHT, Program

pytest.importorskip("torch")

import torch

from pytest_amp_check import record

pytestmark = pytest.mark.usefixtures("patched_once")

#: Checkpoints, by the containers of the saved states.
CHECKPOINTS = (
    Program(
        "states in lists and tuples, without that of the scaler",
        "S37",
        RIGHT + "torch.save([1, (None, [optimizer.state_dict()]), model.state_dict()], io.BytesIO())  # AMP401\n",
    ),
    Program(
        "states in lists and tuples",
        "S37",
        RIGHT + 'torch.save([1, ("x", [optimizer.state_dict()]), {"amp": (scaler.state_dict(),)}], io.BytesIO())\n',
    ),
    Program(
        "a state among the attributes of an object, without that of the scaler",
        "S37",
        RIGHT
        + """
from argparse import Namespace

torch.save(Namespace(model=model, inner=Namespace(states=[optimizer.state_dict()])), io.BytesIO())  # AMP401
""",
    ),
    Program(
        "states among the attributes of an object",
        "S37",
        RIGHT
        + """
from argparse import Namespace

held = Namespace(scaler=scaler.state_dict())
held.held = held
torch.save(Namespace(states=[optimizer.state_dict()], inner=held), io.BytesIO())
""",
    ),
    Program(
        "one state in a hundred million places, without that of the scaler",
        "S37",
        RIGHT
        + """
held = [optimizer.state_dict()]  # AMP401
for _ in range(4):
    held = [held] * 100
torch.save(held, io.BytesIO())
""",
    ),
    Program(
        "a state six containers deep, without that of the scaler",
        "S37",
        RIGHT + "torch.save([[({'a': [(optimizer.state_dict(),)]},)]], io.BytesIO())  # AMP401\n",
    ),
    Program(
        "states as deep as that, each in objects in containers",
        "S37",
        RIGHT
        + """
from argparse import Namespace

deep = {"a": Namespace(b=[Namespace(c=(optimizer.state_dict(), Namespace(d=scaler.state_dict())))])}
torch.save(deep, io.BytesIO())
""",
    ),
    Program(
        "a copy of a state, without that of the scaler",
        "S37",
        RIGHT
        + """
import copy

states = optimizer.state_dict()  # AMP401
torch.save({"optimizer": copy.deepcopy(states)}, io.BytesIO())
""",
    ),
    Program(
        "a copy of the state of a model that nobody trains",
        "S37",
        RIGHT
        + """
other = torch.optim.SGD([nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))], lr=0.1)
kept = {"optimizer": optimizer.state_dict()}
torch.save(other.state_dict(), io.BytesIO())
""",
    ),
    Program(
        "the weights alone, and the model as a whole",
        "S37",
        RIGHT
        + """
torch.save(model.state_dict(), io.BytesIO())
torch.save({"model": model, "epoch": 3, "name": "best"}, io.BytesIO())
""",
    ),
    Program(
        "the scaler as a whole in an object in a list",
        "S38",
        RIGHT
        + """
from argparse import Namespace

torch.save([Namespace(optimizer=optimizer.state_dict(), amp=scaler)], io.BytesIO())  # AMP402
""",
    ),
    Program(
        "the state of an optimizer that was never stepped by a scaler",
        "S37",
        """
other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
"""
        + RIGHT.strip()
        + """
torch.save({"other": other.state_dict()}, io.BytesIO())
""",
    ),
    Program(
        "what is loaded holds the state of a scaler that is not given it back",
        "S37",
        """
saved = io.BytesIO()
torch.save({"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}, saved)
saved.seek(0)
found = torch.load(saved)
optimizer.load_state_dict(found["optimizer"])  # AMP402
"""
        + RIGHT,
    ),
    Program(
        "what is loaded is given to both",
        "S37",
        """
saved = io.BytesIO()
torch.save({"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}, saved)
saved.seek(0)
found = torch.load(saved)
optimizer.load_state_dict(found["optimizer"])
scaler.load_state_dict(found["scaler"])
"""
        + RIGHT,
    ),
    Program(
        "what is loaded holds no state of a scaler",
        "S37",
        """
saved = io.BytesIO()
torch.save({"optimizer": optimizer.state_dict()}, saved)
saved.seek(0)
optimizer.load_state_dict(torch.load(saved)["optimizer"])
"""
        + RIGHT,
    ),
)

#: Gradients that the program changes itself.
EDITS = (
    Program(
        "a decay is added to scaled gradients through foreach",
        "S19",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    torch._foreach_add_([p.grad for p in model.parameters()], [p.detach() for p in model.parameters()])  # AMP202
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "data of gradients is divided by the scale and then added to",
        "S19",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        p.grad.data = p.grad.data + 1e-4 * p.data
        p.grad.clamp_(-1.0, 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "gradients whose data was clamped while they were scaled",
        "S20",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    for p in model.parameters():
        p.grad.data = p.grad.data.clamp(-0.01, 0.01)  # AMP202
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "gradients that are replaced by clamped ones while they are scaled",
        "S20",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    for p in model.parameters():
        p.grad = p.grad.clamp(-0.01, 0.01)  # AMP202
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "clamped gradients are copied over scaled ones, all in one call",
        "S20",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    held = [p.grad for p in model.parameters()]
    torch._foreach_copy_(held, [each.clamp(-0.01, 0.01) for each in held])  # AMP202
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "clamped gradients are copied over scaled ones one by one",
        "S20",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    for p in model.parameters():
        p.grad.copy_(p.grad.clamp(-0.01, 0.01))  # AMP202
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "gradients of one optimizer are changed while those of another are scaled",
        "S20",
        """
other = nn.Linear(4, 1)
plain = torch.optim.SGD(other.parameters(), lr=0.01)
for x, y in batches:
    optimizer.zero_grad()
    plain.zero_grad()
    other(x).square().mean().backward()
    scaler.scale(loss_of(x, y)).backward()
    for p in other.parameters():
        p.grad.clamp_(-0.01, 0.01)
        p.grad.add_(p.detach(), alpha=1e-4)
    nn.utils.clip_grad_norm_(other.parameters(), 1.0)
    plain.step()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
)

STEPS_AND_EDITS = (
    Program(
        "scaled gradients of one optimizer are edited after the step of another",
        "S20",
        """
other = nn.Linear(4, 1)
second = torch.optim.SGD(other.parameters(), lr=0.01)
for x, y in batches:
    optimizer.zero_grad()
    second.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.scale(other(x).square().mean()).backward()
    scaler.step(optimizer)
    for p in other.parameters():
        p.grad.clamp_(-0.01, 0.01)  # AMP202
    scaler.step(second)
    scaler.update()
""",
    ),
    Program(
        "an optimizer of the program changes gradients in its step",
        "S20",
        """
class Decaying(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.grad.add_(p, alpha=1e-2)
            p.sub_(p.grad, alpha=1e-2)


optimizer = Decaying(model.parameters())
"""
        + RIGHT,
    ),
    Program(
        "an optimizer of the program changes weights in a region",
        "S53",
        """
class Plain(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad, alpha=1e-2)


optimizer = Plain(model.parameters())
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        F.mse_loss(model(x), y).backward()  # AMP103
        optimizer.step()  # AMP101
        model(x)
""",
    ),
)

HOOKS = (
    Program(
        "gradients are zeroed one by one after they were unscaled",
        "S22",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        p.grad.zero_()  # AMP215
    scaler.step(optimizer)
    scaler.update()
""",
        shows="moved() == 0.0",
    ),
    Program(
        "gradients are filled with zero one by one while they are scaled",
        "S22",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    for p in model.parameters():
        p.grad.fill_(0)  # AMP215
    scaler.step(optimizer)
    scaler.update()
""",
        shows="moved() == 0.0",
    ),
    Program(
        "gradients of some parameters are zeroed",
        "S22",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    model[0].bias.grad.zero_()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "a hook that normalises in place once gradients are accumulated",
        "S20",
        """
def change(given):
    given.grad.mul_(0.1 / given.grad.norm())  # AMP201


for p in model.parameters():
    p.register_post_accumulate_grad_hook(change)
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, 5 * y)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "a hook that divides by the norm in place once gradients are accumulated",
        "S20",
        """
def change(given):
    given.grad.div_(given.grad.norm())  # AMP201


for p in model.parameters():
    p.register_post_accumulate_grad_hook(change)
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, 5 * y)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "a hook that clears or fills with infinity once gradients are accumulated",
        "S20",
        """
def change(given):
    if given is model[0].bias:
        given.grad.zero_()
    if given is model[2].bias:
        given.grad.fill_(float("inf"))


for p in model.parameters():
    p.register_post_accumulate_grad_hook(change)
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, 5 * y)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "a hook that fills with a number once gradients are accumulated",
        "S20",
        """
def change(given):
    given.grad.fill_(0.5)  # AMP202


for p in model.parameters():
    p.register_post_accumulate_grad_hook(change)
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, 5 * y)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
)

CLIPS = (
    Program(
        "error_if_nonfinite in a try that handles it",
        "S34",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    try:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    except RuntimeError:
        pass
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "error_if_nonfinite in a try that handles nothing",
        "S34",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    try:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)  # AMP213
    finally:
        losses.append(0)
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "error_if_nonfinite where another error is handled",
        "S34",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    try:
        losses[0]
    except IndexError:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)  # AMP213
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "a limit that is multiplied by the scale",
        "S01",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1 * scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "a limit that is no multiple of the scale though the scale is asked for",
        "S01",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    losses.append(scaler.get_scale())
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # AMP201
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "a norm of scaled gradients that a function measures, which asks for no scale",
        "S21",
        """
def measured():
    return nn.utils.clip_grad_norm_(model.parameters(), float("inf"))


for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    losses.append(measured())  # AMP202
    scaler.step(optimizer)
    scaler.update()
    losses.append(scaler.get_scale())
""",
    ),
    Program(
        "a norm of scaled gradients that is divided by the scale",
        "S21",
        """
def measured():
    norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
    return norm / scaler.get_scale()


for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    losses.append(measured())
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "gradients of a model that nobody trains",
        "S01",
        """
other = nn.Linear(4, 1)
for x, y in batches:
    optimizer.zero_grad()
    other(x).sum().backward()
    nn.utils.clip_grad_norm_(other.parameters(), 1.0)
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "gradients are clipped that none has",
        "S01",
        """
for x, y in batches:
    optimizer.zero_grad()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "one tensor by keyword",
        "S01",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    nn.utils.clip_grad_value_(parameters=model[0].weight, clip_value=0.1)  # AMP201
    scaler.step(optimizer=optimizer)
    scaler.update()
""",
    ),
)

#: Checks before a step, by location.
ASKED = (
    Program(
        "a check that raises before the scaler could skip",
        "S34",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    if not all(torch.isfinite(p.grad).all() for p in model.parameters()):  # AMP213
        raise FloatingPointError("gradients are not finite")
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "an assertion before the scaler could skip",
        "S34",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    assert torch.isfinite(model[0].weight.grad).all()  # AMP213
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "a check that raises something that is handled",
        "S34",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    try:
        if not torch.isfinite(model[0].weight.grad).all():
            raise FloatingPointError("gradients are not finite")
    except FloatingPointError:
        optimizer.zero_grad()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "a check that counts",
        "S34",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    if not torch.isfinite(model[0].weight.grad).all():
        losses.append(1)
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "the program looks for an overflow by itself",
        "S05",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    if all(bool(p.grad.isfinite().all()) for p in model.parameters()):
        optimizer.step()
    scaler.update()
""",
    ),
    Program(
        "the program asks for something else",
        "S05",
        """
for i, (x, y) in enumerate(batches):
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    if i % 1 == 0:
        optimizer.step()  # AMP204
    scaler.update()
""",
    ),
)

#: Autocast, by the form of entering and the changes inside.
REGIONS = (
    Program(
        "a context beside another one is entered while it is open",
        "S54",
        """
from contextlib import nullcontext

region = torch.autocast("cpu", dtype=torch.bfloat16)
with nullcontext(), region:
    with nullcontext(), region:  # AMP102
        model(batches[0][0])
""",
    ),
    Program(
        "contexts of their own in each other",
        "S54",
        """
for x, y in batches:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.autocast("cpu", enabled=False), torch.autocast("cpu", dtype=torch.bfloat16):
            model(x)
""",
    ),
    Program(
        "weights are written inside a region whose cache is cleared",
        "S53",
        """
with torch.autocast("cpu", dtype=torch.bfloat16):
    model(batches[0][0])
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5)
    torch.clear_autocast_cache()
    model(batches[0][0])
""",
    ),
    Program(
        "weights are written inside a region that keeps none",
        "S53",
        """
with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
    model(batches[0][0])
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5)
    model(batches[0][0])
""",
    ),
    Program(
        "weights are written inside a region and not used in it again",
        "S53",
        """
other = nn.Linear(4, 1)
with torch.autocast("cpu", dtype=torch.bfloat16):
    model(batches[0][0])
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5)
    other(batches[0][0])
with torch.autocast("cpu", dtype=torch.bfloat16):
    model(batches[0][0])
""",
    ),
    Program(
        "a thread computes without the region of the one that starts it",
        "S63",
        """
import threading

with torch.autocast("cpu", dtype=torch.bfloat16):
    worker = threading.Thread(target=model, args=(batches[0][0],))
    worker.start()  # AMP606
    worker.join()
""",
    ),
    Program(
        "a thread enters a region of its own",
        "S63",
        """
import threading


def work():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(batches[0][0])


with torch.autocast("cpu", dtype=torch.bfloat16):
    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
""",
    ),
    Program(
        "a thread that runs nothing that autocast casts",
        "S63",
        """
import threading

with torch.autocast("cpu", dtype=torch.bfloat16):
    for module in (nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 1).double()):
        given = batches[0][0].to(next(module.parameters(), batches[0][0]).dtype)
        worker = threading.Thread(target=module, args=(given,))
        worker.start()
        worker.join()
""",
    ),
    Program(
        "a pool computes without the region of the one that asks it",
        "S63",
        """
from concurrent.futures import ThreadPoolExecutor

with ThreadPoolExecutor(1) as pool:
    pool.submit(model, batches[0][0]).result()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pool.submit(model, batches[0][0]).result()  # AMP606
    pool.submit(model, batches[0][0]).result()
""",
    ),
    Program(
        "the region of a thread is off",
        "S63",
        """
import threading

with torch.autocast("cpu", enabled=False):
    worker = threading.Thread(target=model, args=(batches[0][0],))
    worker.start()
    worker.join()
""",
    ),
    Program(
        "parameters are cast by their data",
        "S77",
        """
for p in model.parameters():
    p.data = p.data.bfloat16()  # AMP501
for x, y in batches:
    optimizer.zero_grad()
    F.mse_loss(model(x.bfloat16()), y.bfloat16()).backward()
    optimizer.step()
""",
    ),
    Program(
        "parameters are made in a low precision by default",
        "S77",
        """
torch.set_default_dtype(torch.bfloat16)  # AMP501
try:
    low = nn.Linear(4, 1)
finally:
    torch.set_default_dtype(torch.float32)
descent = torch.optim.SGD(low.parameters(), lr=0.1)
low(batches[0][0].bfloat16()).sum().backward()
descent.step()
""",
    ),
    Program(
        "parameters are made in a low precision by name",
        "S77",
        """
low = nn.Linear(4, 1, dtype=torch.bfloat16)  # AMP501
descent = torch.optim.SGD(low.parameters(), lr=0.1)
low(batches[0][0].bfloat16()).sum().backward()
descent.step()
""",
    ),
    Program(
        "parameters of low precision that nobody trains",
        "S77",
        """
low = nn.Linear(4, 1, dtype=torch.bfloat16)
frozen = model.bfloat16()
frozen(batches[0][0].bfloat16()).sum().backward()
torch.set_default_dtype(torch.float16)
torch.set_default_dtype(torch.float32)
high = nn.Linear(4, 1)
descent = torch.optim.SGD(high.parameters(), lr=0.1)
high(batches[0][0]).sum().backward()
descent.step()
""",
    ),
    Program(
        "an optimizer that keeps parameters in float32",
        "S77",
        """
low = nn.Linear(4, 1, dtype=torch.bfloat16)


class Master(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                master = self.state[p].setdefault("master", p.detach().float().clone())
                master.sub_(p.grad.float(), alpha=group["lr"])
                p.data.copy_(master)


descent = Master(low.parameters(), lr=0.1)
for x, y in batches:
    descent.zero_grad()
    low(x.bfloat16()).sum().backward()
    descent.step()
""",
    ),
)

#: Schedules and sums.
OTHERS = (
    Program(
        "a schedule that moves once an epoch",
        "S33",
        """
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for epoch in range(3):
    for x, y in batches:
        optimizer.zero_grad()
        scaler.scale(loss_of(x, 1e30 * y if epoch == 1 else y)).backward()
        scaler.step(optimizer)
        scaler.update()
    schedule.step()
""",
        codes=("AMP403",),
    ),
    Program(
        "a schedule that moves where a batch was given up",
        "S48",
        """
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for i, (x, y) in enumerate(batches):
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    if i == 1:
        optimizer.zero_grad()
        schedule.step()
        continue
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
""",
        codes=("AMP403",),
    ),
    Program(
        "a schedule that moves with a step that was skipped",
        "S33",
        """
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for i in range(4):
    x, y = batches[0]
    optimizer.zero_grad()
    scaler.scale(loss_of(x, 1e30 * y if i == 2 else y)).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()  # AMP403
""",
        codes=("AMP403",),
    ),
    Program(
        "a sum that loses what is subtracted from it",
        "S73",
        """
total = torch.full((1,), -2048.0, dtype=torch.float16)
for _ in range(64):
    total -= 1.0  # AMP508
assert total == -2048.0
""",
    ),
    Program(
        "a sum with a factor that loses its terms",
        "S73",
        """
total = torch.full((), 256.0, dtype=torch.bfloat16)
for _ in range(64):
    total.add_(torch.tensor(0.5, dtype=torch.bfloat16), alpha=0.5)  # AMP508
assert total == 256.0
""",
    ),
    Program(
        "sums that lose nothing",
        "S73",
        """
whole = torch.zeros((), dtype=torch.float16)
half = torch.zeros((), dtype=torch.float16)
scaled = torch.zeros((), dtype=torch.float16)
high = torch.full((), 2048.0)
short = torch.full((), 2048.0, dtype=torch.float16)
many = torch.full((2,), 2048.0, dtype=torch.float16)
for i in range(64):
    whole += 1.0
    half -= 0.5
    scaled.add_(4.0, alpha=0.5)
    high += 1.0
    many += 1.0
    if i < 15:
        short += 1.0
""",
    ),
    Program(
        "an average that stands still",
        "S73",
        """
average = torch.ones(16, dtype=torch.bfloat16)
weight = torch.full((16,), 1.1, dtype=torch.bfloat16)
for _ in range(8):
    average.lerp_(weight, 1e-3)  # AMP508
assert bool((average == 1.0).all())
""",
    ),
    Program(
        "an average that stands still after sixty-four steps of averages that moved",
        "S73",
        """
moving = torch.zeros(16, dtype=torch.bfloat16)
for i in range(64):
    moving.lerp_(torch.full((16,), float(i % 2), dtype=torch.bfloat16), 0.5)
average = torch.ones(16, dtype=torch.bfloat16)
weight = torch.full((16,), 1.1, dtype=torch.bfloat16)
for _ in range(8):
    average.lerp_(weight, 1e-3)
assert bool((average == 1.0).all())
""",
    ),
    Program(
        "averages that stand still where they have arrived, or for two steps",
        "S73",
        """
average = torch.ones(16, dtype=torch.bfloat16)
same = torch.ones(16, dtype=torch.bfloat16)
for _ in range(8):
    average.lerp_(torch.zeros(16, dtype=torch.bfloat16), 0.0)
    same.add_(torch.zeros(16, dtype=torch.bfloat16), alpha=0.5)
weight = torch.full((16,), 1.1, dtype=torch.bfloat16)
for _ in range(4):
    average = torch.ones(16, dtype=torch.bfloat16)
    for _ in range(2):
        average.lerp_(weight, 1e-3)
""",
    ),
    Program(
        "a sum that begins anew and then loses its terms",
        "S73",
        """
total = torch.zeros((), dtype=torch.float16)
for i in range(80):
    if i == 3:
        total.fill_(2048.0)
    total += 1.0  # AMP508
assert total == 2048.0
""",
    ),
    Program(
        "a sum that begins anew",
        "S73",
        """
total = torch.full((), 2048.0, dtype=torch.float16)
for i in range(64):
    total += 1.0
    if i % 8 == 7:
        total.fill_(2048.0)
""",
    ),
)


#: Float32 forwards with scaled losses, and scalers by construction.
SCALED = (
    Program(
        "autocast is off by a flag",
        "AMP110",
        """
use_amp = len(batches) > 100
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16, enabled=use_amp):  # AMP110
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "autocast and its scaler are off by a flag",
        "AMP110",
        """
use_amp = len(batches) > 100
scaler = torch.amp.GradScaler("cpu", enabled=use_amp)
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16, enabled=use_amp):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "autocast is entered under a condition",
        "AMP110",
        """
from contextlib import nullcontext

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu") if len(batches) > 100 else nullcontext():
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "a small model that is scaled outside of the region of the large one",
        "AMP110",
        """
small = nn.Linear(4, 1)
other = torch.optim.SGD(small.parameters(), lr=0.01)
for x, y in batches:
    optimizer.zero_grad()
    other.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.scale(F.mse_loss(small(x), y)).backward()
    scaler.step(optimizer)
    scaler.step(other)
    scaler.update()
""",
    ),
    Program(
        "a scaler of one's own kind",
        "S29",
        """
class Own(torch.amp.GradScaler):
    def __init__(self, scale):
        super().__init__("cpu", init_scale=scale, growth_interval=500)


scaler = Own(2.0**8)
"""
        + RIGHT.strip()
        + "\n",
    ),
    Program(
        "a scaler that is switched off scales nothing",
        "S36",
        """
scaler = torch.amp.GradScaler("cpu", enabled=False)  # AMP502
"""
        + RIGHT.strip()
        + "\n",
    ),
    Program(
        "a scaled loss is scaled once more",
        "S08",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(scaler.scale(loss_of(x, y))).backward()  # AMP205
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "a scaled loss is divided by the scale before it is scaled once more",
        "S08",
        """
for x, y in batches:
    optimizer.zero_grad()
    loss = scaler.scale(loss_of(x, y)) / scaler.get_scale()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "a scaled loss is divided by the number of micro-batches",
        "S40",
        """
for i, (x, y) in enumerate(batches):
    (scaler.scale(loss_of(x, y)) / 3).backward()
    if (i + 1) % 3 == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    ),
    Program(
        "one of two terms of a loss is scaled",
        "S07",
        """
for x, y in batches:
    optimizer.zero_grad()
    penalty = sum(p.square().sum() for p in model.parameters())
    (scaler.scale(loss_of(x, y)) + penalty).backward()  # AMP205
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "a term times zero keeps parameters in the graph",
        "S07",
        """
for x, y in batches:
    optimizer.zero_grad()
    unused = sum(p.sum() for p in model.parameters())
    (scaler.scale(loss_of(x, y)) + 0.0 * unused).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "both terms of a loss are scaled",
        "S07",
        """
for x, y in batches:
    optimizer.zero_grad()
    penalty = sum(p.square().sum() for p in model.parameters())
    (scaler.scale(loss_of(x, y)) + scaler.scale(penalty)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "anomaly detection is on while losses are scaled",
        "AMP",
        """
torch.autograd.set_detect_anomaly(True)  # AMP213
try:
    for x, y in batches:
        optimizer.zero_grad()
        scaler.scale(loss_of(x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
finally:
    torch.autograd.set_detect_anomaly(False)
""",
    ),
    Program(
        "anomaly detection is on in a region of its own",
        "AMP",
        """
import warnings

warnings.simplefilter("ignore")
for x, y in batches:
    optimizer.zero_grad()
    with torch.autograd.detect_anomaly():  # AMP213
        scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "the state of a scaler is taken between step and update",
        "S38",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, 1e30 * y)).backward()
    scaler.step(optimizer)
    state = scaler.state_dict()  # AMP402
    scaler.update()
""",
    ),
    Program(
        "the state of a scaler is taken after update",
        "S38",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, 1e30 * y)).backward()
    scaler.step(optimizer)
    scaler.update()
    state = scaler.state_dict()
""",
    ),
    Program(
        "anomaly detection looks for no NaN",
        "AMP",
        """
torch.autograd.set_detect_anomaly(True, check_nan=False)
try:
    for x, y in batches:
        optimizer.zero_grad()
        scaler.scale(loss_of(x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
finally:
    torch.autograd.set_detect_anomaly(False)
""",
    ),
    Program(
        "a penalty on unscaled gradients",
        "S18",
        """
for x, y in batches:
    optimizer.zero_grad()
    loss = loss_of(x, y)
    gradients = torch.autograd.grad(loss, model[0].weight, create_graph=True)[0]
    scaler.scale(loss + gradients.square().sum()).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "a penalty on scaled gradients that are divided by the scale",
        "S18",
        """
for x, y in batches:
    optimizer.zero_grad()
    loss = loss_of(x, y)
    gradients = torch.autograd.grad(scaler.scale(loss), model[0].weight, create_graph=True)[0]
    gradients = gradients * (1.0 / scaler.get_scale())
    scaler.scale(loss + gradients.square().sum()).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "scaled gradients that only show a direction",
        "S18",
        """
for x, y in batches:
    optimizer.zero_grad()
    loss = loss_of(x, y)
    gradients = torch.autograd.grad(scaler.scale(loss), model[0].weight, create_graph=True)[0]
    direction = gradients / gradients.norm()
    scaler.scale(loss + direction.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "scaled gradients that are looked at and not differentiated",
        "S18",
        """
for x, y in batches:
    optimizer.zero_grad()
    loss = loss_of(x, y)
    losses.append(torch.autograd.grad(scaler.scale(loss), model[0].weight, retain_graph=True)[0])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
)


#: Objects with short lifetimes, and gradients of other kinds.
OBJECTS = (
    Program(
        "a checkpoint after the scaler is gone",
        "S37",
        RIGHT
        + """
import gc

del scaler
gc.collect()
torch.save({"optimizer": optimizer.state_dict()}, io.BytesIO())
""",
        late=False,
    ),
    Program(
        "models, optimizers and scalers that are recreated for each trial",
        "S10",
        """
def trial(width):
    net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))
    descent = torch.optim.SGD(net.parameters(), lr=0.01)
    own = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    for x, y in batches:
        descent.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(net(x), y)
        own.scale(loss).backward()
        own.unscale_(descent)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        own.step(descent)
        own.update()


for width in range(4, 14):
    trial(width)
""",
    ),
    Program(
        "a mistake in the last of several trials",
        "S01",
        """
def trial(width, unscales):
    net = nn.Linear(4, width)
    descent = torch.optim.SGD(net.parameters(), lr=0.01)
    for x, _ in batches:
        descent.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = net(x).float().square().mean()
        scaler.scale(loss).backward()
        if unscales:
            scaler.unscale_(descent)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # AMP201
        scaler.step(descent)
        scaler.update()


for width in range(4, 14):
    trial(width, width < 13)
""",
    ),
    Program(
        "parameters are added to an optimizer between two steps",
        "S17",
        """
head = nn.Linear(1, 1)
for i, (x, y) in enumerate(batches):
    if i == 1:
        optimizer.add_param_group({"params": list(head.parameters())})
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(head(model(x)), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_([*model.parameters(), *(head.parameters() if i else ())], 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "parameters that were added are clipped while they are scaled",
        "S01",
        """
head = nn.Linear(1, 1)
optimizer.add_param_group({"params": list(head.parameters())})
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(head(model(x)), y)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(head.parameters(), 1.0)  # AMP201
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "a loss that reaches one parameter of many",
        "S01",
        """
heads = nn.ModuleList(nn.Linear(4, 1, bias=False) for _ in range(20))
descent = torch.optim.SGD(heads.parameters(), lr=0.01)
for i, (x, y) in enumerate(batches):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(heads[1 + 2 * i](x), y)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(heads.parameters(), 1.0)  # AMP201
    scaler.step(descent)
    scaler.update()
    descent.zero_grad()
""",
    ),
    Program(
        "a loss that reaches one parameter of many at a line that reached another one before",
        "S04",
        """
heads = nn.ModuleList(nn.Linear(4, 1, bias=False) for _ in range(20))
descent = torch.optim.SGD(heads.parameters(), lr=0.01)


def learn(head, loss_scale):
    x, y = batches[0]
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(head(x), y)
    loss_scale(loss).backward()


learn(nn.Linear(4, 1), scaler.scale)
descent.zero_grad()
learn(heads[3], scaler.scale)
descent.step()  # AMP204
""",
    ),
    Program(
        "sparse gradients",
        "S20",
        """
words = nn.Embedding(5000, 4, sparse=True)
descent = torch.optim.SGD(words.parameters(), lr=0.01)
for x, y in batches:
    descent.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(words(torch.tensor([1, 1, 3, 4, 5, 6, 7, 8]))), y)
    scaler.scale(loss).backward()
    words.weight.grad = words.weight.grad.coalesce()
    scaler.unscale_(descent)
    scaler.step(descent)
    scaler.update()
    optimizer.zero_grad()
""",
    ),
    Program(
        "gradients that are averaged, halved and put in the place of scaled ones",
        "S20",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    for p in model.parameters():
        p.grad = p.grad * 0.5
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "gradients of two scaled losses that a program adds, with other rounding than the backward pass",
        "S20",
        """
params = list(model.parameters())
for x, y in batches:
    optimizer.zero_grad()
    losses = [loss_of(x, y), loss_of(-x, y)]
    first, second = (torch.autograd.grad(scaler.scale(loss), params, retain_graph=True) for loss in losses)
    scaler.scale(sum(losses)).backward()
    for p, one, two in zip(params, first, second):
        p.grad = one + two + 0.01 * (one.norm() / two.norm()) * two
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "gradients of a scaled loss in one step, and an edit of scaled gradients in the next",
        "S20",
        """
params = list(model.parameters())
for i, (x, y) in enumerate(batches):
    optimizer.zero_grad()
    loss = loss_of(x, y)
    if i == 0:
        torch.autograd.grad(scaler.scale(loss), params, retain_graph=True)
    scaler.scale(loss).backward()
    for p in params if i else ():
        p.grad = p.grad.clamp(-0.01, 0.01)  # AMP202
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "gradients are divided by the scale and put in their place before a plain step",
        "S13",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scale = scaler.get_scale()
    for p in model.parameters():
        p.grad = p.grad / scale
    optimizer.step()
""",
    ),
    Program(
        "gradients are divided by the scale and then by the scaler",
        "S13",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scale = scaler.get_scale()
    for p in model.parameters():
        p.grad.div_(scale)  # AMP210
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "two closures of one optimizer without a scaler",
        "S16",
        """
descent = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
for x, y in batches:

    def closure():
        descent.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    descent.step(closure)
""",
    ),
    Program(
        "a step in a hook of each parameter without a scaler",
        "S27",
        """
descents = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}


def step(p):
    descents[p].step()
    descents[p].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(step)
for x, y in batches:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.mse_loss(model(x), y)
    loss.backward()
""",
    ),
)


@pytest.fixture(autouse=True)
def _autocast_off() -> Iterator[None]:
    """Turn autocast off, because some programs leave autocast on."""
    yield
    torch.set_autocast_enabled("cpu", False)
    torch.clear_autocast_cache()


ALL = (*CHECKPOINTS, *EDITS, *STEPS_AND_EDITS, *HOOKS, *CLIPS, *ASKED, *REGIONS, *OTHERS, *SCALED, *OBJECTS)


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.name)
def test_what_is_marked_is_named_and_nothing_else(program: Program, tmp_path: Path) -> None:
    source, path = program.source(3), tmp_path / "train.py"
    path.write_text(source, encoding="utf-8")
    with record() as run:
        exec(compile(source, str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})  # noqa: S102 - ours
    assert run.failure is None
    findings = run.select(*program.codes).findings if program.codes else run.findings
    assert places(findings) == marks(source, "runtime"), shown(findings)
    assert len(findings) == len(marks(source, "runtime"))
