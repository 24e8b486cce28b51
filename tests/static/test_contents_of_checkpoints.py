"""Contents of a saved value: in records, in containers, under names that suggest scaling or do not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_amp_check.static.engine import check_paths, check_source

HEAD = """\
import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, get_state_dict


@dataclass
class Snapshot:
    weights: Any
    moments: Any
    extra: Any = None


class Point(NamedTuple):
    weights: Any
    moments: Any


class Bundle:
    def __init__(self, weights, moments):
        self.weights = weights
        self.moments = moments


class Holder:
    def __init__(self, net, opt, loss_scaler):
        self.net = net
        self.opt = opt
        self.loss_scaler = loss_scaler


net = nn.Linear(6, 2).cuda()
opt = torch.optim.AdamW(net.parameters(), lr=3e-4)
grads = torch.amp.GradScaler("cuda")
for frames, target in loader:
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(net(frames), target)
    grads.scale(loss).backward()
    grads.step(opt)
    grads.update()
"""
OWN = "class Own(nn.Module):\n    pass\nown = Own()\n"
RATE = "rate = torch.optim.lr_scheduler.StepLR(opt, 1)\n"
FORGOTTEN, WHOLE = "save:no-scaler", "save:whole-scaler"
#: Code after the loop, and the violation of its last statement, "" for none.
SAVED = [
    # Records hold only their fields.
    ("torch.save(Snapshot(net.state_dict(), opt.state_dict()), path)", FORGOTTEN),
    ("torch.save(Snapshot(net.state_dict(), opt.state_dict(), grads.state_dict()), path)", ""),
    ("torch.save(Snapshot(net.state_dict(), opt.state_dict(), extra=grads.state_dict()), path)", ""),
    ("torch.save(Snapshot(net.state_dict(), opt.state_dict(), {'amp': grads.state_dict()}), path)", ""),
    ("torch.save(Snapshot(net.state_dict(), opt.state_dict(), extra=grads), path)", ""),
    ("torch.save(Snapshot(net.state_dict(), {'adam': opt.state_dict()}), path)", FORGOTTEN),
    ("torch.save({'last': Snapshot(net.state_dict(), opt.state_dict())}, path)", FORGOTTEN),
    ("torch.save([Snapshot(net.state_dict(), opt.state_dict())], path)", FORGOTTEN),
    ("torch.save(Snapshot(net.state_dict(), None), path)", ""),
    ("torch.save(dataclasses.asdict(Snapshot(net.state_dict(), opt.state_dict())), path)", FORGOTTEN),
    ("torch.save(vars(Snapshot(net.state_dict(), opt.state_dict(), grads.state_dict())), path)", ""),
    ("torch.save(Point(net.state_dict(), opt.state_dict()), path)", FORGOTTEN),
    ("torch.save(Point(opt.state_dict(), grads.state_dict()), path)", ""),
    # An object of another class may hold more than its constructor shows.
    ("torch.save(Bundle(net.state_dict(), opt.state_dict()), path)", ""),
    ("torch.save(Holder(net, opt, grads), path)", ""),
    # Containers.
    ("torch.save((net.state_dict(), opt.state_dict()), path)", FORGOTTEN),
    ("torch.save([net.state_dict(), opt.state_dict(), grads.state_dict()], path)", ""),
    ("torch.save(opt.state_dict(), path)", FORGOTTEN),
    ("torch.save(grads.state_dict(), other)\ntorch.save(opt.state_dict(), path)", ""),
    ("torch.save(net.state_dict(), path)", ""),
    ("torch.save({'a': {'b': {'c': {'d': opt.state_dict()}}}}, path)", FORGOTTEN),
    ("torch.save({'a': {'b': {'c': {'d': {'e': opt.state_dict()}}}}}, path)", FORGOTTEN),
    ("torch.save({'a': [{'b': [{'c': opt.state_dict()}]}]}, path)", FORGOTTEN),
    ("torch.save({'a': {'b': {'c': {'d': {'e': {'f': opt.state_dict()}}}}}}, path)", ""),
    ("torch.save({'opt': opt.state_dict(), 'a': {'b': {'c': {'d': grads.state_dict()}}}}, path)", ""),
    ("torch.save({**{'opt': opt.state_dict()}, 'epoch': 3}, path)", FORGOTTEN),
    ("torch.save({**extra, 'opt': opt.state_dict()}, path)", ""),
    ("torch.save(dict(extra, opt=opt.state_dict()), path)", ""),
    ("torch.save(dict(opt=opt.state_dict(), epoch=3), path)", FORGOTTEN),
    ("torch.save(dict([('opt', opt.state_dict())]), path)", FORGOTTEN),
    ("torch.save(obj=dict(opt=opt.state_dict()), f=path)", FORGOTTEN),
    ("torch.save({'opt': opt.state_dict()} if full else None, path)", FORGOTTEN),
    ("torch.save(blob, path)", ""),
    ("torch.save()", ""),
    ("torch.save([[[[[opt.state_dict()]]]]], path)", FORGOTTEN),
    ("torch.save([[[[[[opt.state_dict()]]]]]], path)", ""),
    ("torch.save({'b': Bundle(net.state_dict(), 3), 'opt': opt.state_dict()}, path)", FORGOTTEN),
    ("torch.save({'b': Holder(net, opt, grads), 'opt': opt.state_dict()}, path)", ""),
    ("torch.save(get_optimizer_state_dict(net), path)", ""),
    (RATE + "keep({'rate': rate.state_dict(), 'opt': opt.state_dict()})", FORGOTTEN),
    (RATE + "keep(rate.state_dict(), opt.state_dict())", ""),
    (OWN + "keep({'net': own, 'opt': opt.state_dict()})", FORGOTTEN),
    (OWN + "keep(own.state_dict(), opt.state_dict())", FORGOTTEN),
    ("keep([{'net': net.state_dict(), 'opt': opt.state_dict()}])", FORGOTTEN),
    ("log.info({'net': net.state_dict(), 'opt': opt.state_dict()})", ""),
    # The objects themselves.
    ("torch.save({'net': net, 'opt': opt}, path)", FORGOTTEN),
    ("torch.save({'net': net, 'opt': opt, 'scaler': grads.state_dict()}, path)", ""),
    ("torch.save({'net': net, 'opt': opt, 'scaler': grads}, path)", WHOLE),
    ("torch.save(grads, path)", WHOLE),
    ("torch.save([opt.state_dict(), grads], path)", WHOLE),
    # The scale is the most important part of the scaler's state.
    ("torch.save({'opt': opt.state_dict(), 'scale': grads.get_scale()}, path)", ""),
    # An unknown value with a suitable name may be the scaler's state.
    ("torch.save({'opt': opt.state_dict(), 'loss_scaling': kept}, path)", ""),
    ("torch.save({'opt': opt.state_dict(), 'amp': kept}, path)", ""),
    ("torch.save({'opt': opt.state_dict(), 'kept': amp_state}, path)", ""),
    ("torch.save({'opt': opt.state_dict(), 'use_amp': flag}, path)", FORGOTTEN),
    ("torch.save({'opt': opt.state_dict(), 'amp_enabled': flag}, path)", FORGOTTEN),
    ("torch.save({'opt': opt.state_dict(), 'is_amp': flag}, path)", FORGOTTEN),
    ("torch.save({'opt': opt.state_dict(), 'sample': kept}, path)", FORGOTTEN),
    ("torch.save({'opt': opt.state_dict(), 'epoch': epoch}, path)", FORGOTTEN),
    # Methods of containers by a name.
    (
        "states = {}\nadd = states.update\nadd(opt=opt.state_dict(), net=net.state_dict())\ntorch.save(states, path)",
        FORGOTTEN,
    ),
    ("states = {}\nadd = states.update\nadd(opt=opt.state_dict(), s=grads.state_dict())\ntorch.save(states, path)", ""),
    (
        "states = []\nadd = states.append\nadd(net.state_dict())\nadd(opt.state_dict())\ntorch.save(states, path)",
        FORGOTTEN,
    ),
    ("torch.save({'opt': opt.state_dict(), name: kept}, path)", ""),
    ("torch.save({'opt': opt.state_dict(), 'ema': ema.state_dict()}, path)", FORGOTTEN),
    ("torch.save({'opt': opt.state_dict(), 'scaler': held.state_dict()}, path)", ""),
    ("torch.save({'opt': opt.state_dict(), 'held': loss_scaler.state_dict()}, path)", ""),
    ("torch.save({'opt': opt.state_dict(), name: held.state_dict()}, path)", ""),
    ("torch.save({'opt': opt.state_dict(), 'config': {'scale': 2, **more}}, path)", FORGOTTEN),
    ("torch.save({'opt': opt.state_dict(), 'scaling': {'kept': 2, **more}}, path)", ""),
    # Functions of torch that take states.
    ("torch.save(get_optimizer_state_dict(net, opt), path)", FORGOTTEN),
    ("model_state, optim_state = get_state_dict(net, opt)\ntorch.save({'optim': optim_state}, path)", FORGOTTEN),
    ("model_state, optim_state = get_state_dict(net, opt)\ntorch.save({'model': model_state}, path)", ""),
    ("torch.distributed.checkpoint.save({'net': net.state_dict(), 'opt': opt.state_dict()}, path)", FORGOTTEN),
    # Unanalyzed code may save its arguments.
    ("keep({'net': net.state_dict(), 'opt': opt.state_dict()})", FORGOTTEN),
    ("keep({'net': net.state_dict(), 'opt': opt.state_dict(), 'scaler': grads.state_dict()})", ""),
    ("keep({'net': net.state_dict(), 'opt': opt.state_dict()}, grads)", ""),
    ("keep(net.state_dict(), opt.state_dict())", FORGOTTEN),
    ("keep(net.state_dict(), opt.state_dict(), grads)", ""),
    ("keep(opt.state_dict())", ""),
    ("keep({'opt': opt.state_dict()})", ""),
    ("keep({'net': net, 'opt': opt})", ""),
    ("print({'net': net.state_dict(), 'opt': opt.state_dict()})", ""),
    ("assert_equal({'net': net.state_dict(), 'opt': opt.state_dict()}, kept)", ""),
]


@pytest.mark.parametrize(("statements", "label"), SAVED)
def test_what_a_checkpoint_holds(statements: str, label: str) -> None:
    found = check_source(HEAD + statements + "\n")
    assert [each.label for each in found] == ([label] if label else [])
    line = HEAD.count("\n") + 1 + statements.count("\n")
    for each in found:
        assert each.certain
        words = re.findall(r"`([^`]*)`", each.message)
        assert words[0] == ("opt" if label == FORGOTTEN else "grads")
        assert each.line <= line


@pytest.mark.parametrize(
    ("test", "forgets"),
    [
        ("grads is None", False),
        ("grads is not None", True),
        ("not use_scaler", False),
        ("use_scaler", True),
        ("not no_scaler", True),
        ("rank == 0", True),
    ],
)
def test_a_checkpoint_under_a_condition(test: str, forgets: bool) -> None:
    """On paths without a scaler, no scaler is forgotten."""
    source = f"{HEAD}if {test}:\n    torch.save(Snapshot(net.state_dict(), opt.state_dict()), path)\n"
    assert [each.label for each in check_source(source)] == [FORGOTTEN] * forgets


#: Code of the file that binds a name or not, and True if the file binds ``amp_scaler``.
BINDINGS = [
    ("", False),
    ("def other():\n    print(amp_scaler)", False),
    ("def other():\n    import amp_scaler", True),
    ("def other():\n    import amp_scaler.parts", True),
    ("def other():\n    import parts.amp_scaler", False),
    ("def other():\n    import amp_scaler.parts as parts", False),
    ("def other():\n    import parts as amp_scaler", True),
    ("def other():\n    from parts import amp_scaler", True),
    ("def other(amp_scaler):\n    pass", True),
    ("def other(*, amp_scaler=None):\n    pass", True),
    ("def other():\n    global amp_scaler\n    amp_scaler = make()", True),
    ("def other():\n    for amp_scaler in made:\n        pass", True),
    ("def other():\n    with make() as amp_scaler:\n        pass", True),
    ("def other():\n    def amp_scaler():\n        pass", True),
    ("def other():\n    class amp_scaler:\n        pass", True),
    ("def other():\n    try:\n        make()\n    except ValueError as amp_scaler:\n        pass", True),
    ("from parts import *", True),
]


@pytest.mark.parametrize(("binding", "is_bound"), BINDINGS)
def test_a_scaler_that_the_file_binds_nowhere_is_not_saved(binding: str, is_bound: bool) -> None:
    """The use of an unbound name raises a NameError. A name bound in another function may be defined at run time."""
    saved = "torch.save({'opt': opt.state_dict(), 'rest': amp_scaler.state_dict()}, 'last.pt')"
    found = check_source(f"{binding}\n{HEAD}{saved}\n", "train.py")
    assert [each.label for each in found] == [FORGOTTEN] * (not is_bound)


def test_a_block_of_a_document_may_use_names_of_other_text(tmp_path: Path) -> None:
    for rest, labels in (("{}", [FORGOTTEN]), ("amp_scaler.state_dict()", [])):
        saved = f"torch.save({{'opt': opt.state_dict(), 'rest': {rest}}}, 'last.pt')\n"
        (tmp_path / "guide.md").write_text(f"# Train\n\n```python\n{HEAD}{saved}```\n")
        assert [each.label for each in check_paths([str(tmp_path)]).findings] == labels


WRAPPED = """\
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 2)

    def forward(self, frames):
        return self.head(frames)


amp_net = WRAPPER(Net().cuda())
opt = torch.optim.AdamW(amp_net.parameters(), lr=3e-4)
grads = torch.amp.GradScaler("cuda")
for frames, target in loader:
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(amp_net(frames), target)
    grads.scale(loss).backward()
    grads.step(opt)
    grads.update()
torch.save({"net": amp_net.module.state_dict(), "opt": opt.state_dict()}, path)
"""


@pytest.mark.parametrize(("wrapper", "forgets"), [("DDP", True), ("nn.DataParallel", True), ("", False)])
def test_the_state_of_a_wrapped_module(wrapper: str, forgets: bool) -> None:
    """The attribute of a wrapper is the module, whatever the name of the variable suggests."""
    found = check_source(WRAPPED.replace("WRAPPER", wrapper))
    assert [each.label for each in found] == [FORGOTTEN] * forgets


TRAINING = """\
from dataclasses import dataclass

import torch
from torch import nn

@dataclass
class Record:
    model: dict
    optimizer: dict

class Other:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler()
for x in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = model(x).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
{keep}
"""
FORGOTTEN, WHOLE = "save:no-scaler", "save:whole-scaler"
#: M, O, S and U stand for the states of the model, the optimizer, the scaler and an unknown object.
STATES = {"M": "model", "O": "optimizer", "S": "scaler", "U": "other"}


def labels_of(keep: str) -> list[str]:
    for name, owner in STATES.items():
        keep = re.sub(rf"\b{name}\b", f"{owner}.state_dict()", keep)
    return [finding.label for finding in check_source(TRAINING.format(keep=keep), "train.py")]


def nested(state: str, depth: int) -> str:
    return "{'inner': " * depth + state + "}" * depth


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        ("O", [FORGOTTEN]),
        ("M", []),
        ("[O]", [FORGOTTEN]),
        ("[M, O]", [FORGOTTEN]),
        ("(M, O)", [FORGOTTEN]),
        ("[[[M, O]]]", [FORGOTTEN]),
        ("[O, epoch]", [FORGOTTEN]),
        ("[O, U]", [FORGOTTEN]),
        ("[M, O, S]", []),
        ("dict(model=M, optim=O)", [FORGOTTEN]),
        # Whole objects.
        ("model", []),
        ("optimizer", [FORGOTTEN]),
        ("[model, optimizer]", [FORGOTTEN]),
        ("[model, optimizer, scaler]", [WHOLE]),
        ("{'optim': O, 'x': scaler}", [WHOLE]),
        # A part of a scaler's state, and a state under a scaler's name.
        ("{'optim': O, 'x': scaler.get_scale()}", []),
        ("{'optim': O, 'x': U}", [FORGOTTEN]),
        ("{'optim': O, 'scaler': U}", []),
        # Unknown parts.
        ("{'optim': O, **rest}", []),
        ("{'optim': O, key: value}", []),
        ("{'optim': O, 'x': {**rest}}", [FORGOTTEN]),
        ("{'optim': O, 'amp': {**rest}}", []),
        ("{'optim': O, 'x': value}", [FORGOTTEN]),
        ("{'optim': O, 'amp': value}", []),
        ("{'optim': O, 'x': amp}", []),
        # Under a condition.
        ("{'optim': O if flag else None, 'x': S if flag else None}", []),
        ("{'optim': O, 'x': S if flag else None}", []),
        ("{'optim': O, 'x': None}", [FORGOTTEN]),
        # Fields of a record. Other classes may save more.
        ("Record(M, O)", [FORGOTTEN]),
        ("Other(M, O)", []),
        # In containers, up to a depth.
        (nested("[O]", 2), [FORGOTTEN]),
        (nested("O", 5), [FORGOTTEN]),
        (nested("O", 6), []),
        ("{'optim': O, 'x': [S]}", []),
        (f"{{'optim': O, 'x': {nested('S', 4)}}}", []),
        (f"{{'optim': O, 'x': {nested('S', 5)}}}", [FORGOTTEN]),
    ],
)
def test_states_in_a_saved_value(saved: str, expected: list[str]) -> None:
    assert labels_of(f"torch.save({saved}, 'last.pt')") == expected
    assert labels_of(f"torch.save(obj={saved}, f='last.pt')") == expected


@pytest.mark.parametrize(
    ("keep", "is_checkpoint"),
    [
        ("manager.keep({'model': M, 'optim': O})", True),
        ("manager.keep(state={'model': M, 'optim': O})", True),
        ("manager.keep([{'model': M, 'optim': O}])", True),
        ("manager.keep({'model': model, 'optim': O})", True),
        ("manager.keep({'optim': O, 'x': U})", True),
        ("manager.keep(M, O)", True),
        ("manager.keep({'model': M, 'optim': O, 'x': S})", False),
        ("manager.keep(M, O, S)", False),
        # The other code may add the scaler's state.
        ("manager.keep({'model': M, 'optim': O}, scaler)", False),
        ("manager.keep(M, O, scaler)", False),
        # No other state.
        ("manager.keep({'optim': O})", False),
        ("manager.keep({'optim': O, 'x': 1})", False),
        ("manager.keep(O)", False),
        ("manager.keep(O, U)", False),
        ("manager.keep({'model': M}, {'optim': O})", False),
        # The other code takes the states itself, or keeps nothing.
        ("manager.keep({'model': model, 'optim': optimizer})", False),
        ("logger.info({'model': M, 'optim': O})", False),
        ("manager.assert_equal(M, O)", False),
        ("print(M, O)", False),
    ],
)
def test_states_that_other_code_receives(keep: str, is_checkpoint: bool) -> None:
    assert labels_of(keep) == [FORGOTTEN] * is_checkpoint


OF_CLASS = """\
import torch

{outside}

class Training:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        {inside}

    def step(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = (self.model(x) - y).square().mean()
        {scaler}.scale(loss).backward()
        {scaler}.step(self.optimizer)
        {scaler}.update()

    def {method}(self):
        return {{"optimizer": self.optimizer.state_dict()}}
"""
NEW_SCALER = 'scaler = torch.amp.GradScaler("cuda")'


@pytest.mark.parametrize(
    ("outside", "inside", "scaler", "method", "is_forgotten"),
    [
        ("", f"self.{NEW_SCALER}", "self.scaler", "state_dict", True),
        # Whoever constructs the scaler saves its state.
        (NEW_SCALER, "pass", "scaler", "state_dict", False),
        ("", f"self.{NEW_SCALER}", "self.scaler", "describe", False),
    ],
)
def test_the_state_of_a_class_that_constructs_a_scaler(
    outside: str, inside: str, scaler: str, method: str, is_forgotten: bool
) -> None:
    program = OF_CLASS.format(outside=outside, inside=inside, scaler=scaler, method=method)
    assert [finding.label for finding in check_source(program, "train.py")] == ["save:no-scaler"] * is_forgotten


COLLECTED = """\
import torch
from torch import nn

def train(loader, optimizers, schedulers, parts, path):
    scaler = torch.amp.GradScaler("cuda")
    model = nn.Linear(5, 1)
    for x, y in loader:
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
    torch.save({{"model": model.state_dict(), "steps": {states}}}, path)
"""


@pytest.mark.parametrize(
    ("states", "is_of_optimizers"),
    [
        ("[each.state_dict() for each in optimizers]", True),
        ("[each.state_dict() for each in list(optimizers)]", True),
        ("[each.state_dict() for each in tuple(optimizers)]", True),
        ("[each.state_dict() for each, other in zip(optimizers, schedulers)]", True),
        ("[each.state_dict() for i, each in enumerate(optimizers)]", True),
        ("[each.state_dict() for each in optimizers.values()]", True),
        ("{key: each.state_dict() for key, each in optimizers.items()}", True),
        # Only the name of the collection tells what is in it.
        ("[each.state_dict() for each in parts]", False),
        ("[each.state_dict() for each in list(parts)]", False),
        ("[each.state_dict() for each in choose(optimizers)]", False),
    ],
)
def test_states_of_a_collection(states: str, is_of_optimizers: bool) -> None:
    findings = check_source(COLLECTED.format(states=states), "train.py")
    assert [(finding.label, finding.line) for finding in findings] == [("save:no-scaler", 16)] * is_of_optimizers


BY_NAME = """\
import torch

STATES = {names}

class State:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler("cuda")
        self.epoch = 0
        self.saved = ["model", "optimizer", "scaler", "epoch"]

    def state_dict(self):
        made = {{}}
        for name in self.saved:
            value = getattr(self, name)
            if name {test}:
                made[name] = value.state_dict()
            else:
                made[name] = value
        return made

def save(state, path):
    torch.save(state.state_dict(), path)
"""


@pytest.mark.parametrize(
    ("test", "other"),
    [
        ("in STATES", "epoch"),
        ('in ("model", "optimizer", {})', "epoch"),
        ('in ["optimizer", {}]', "epoch"),
        ('not in ("epoch", {})', "scaler"),
        ('not in {{"epoch", {}}}', "scaler"),
    ],
)
@pytest.mark.parametrize("is_state", [True, False])
def test_a_name_is_looked_up_among_known_names(test: str, other: str, is_state: bool) -> None:
    last = f'"{({"epoch", "scaler"} - {other}).pop() if is_state else other}"'
    text = BY_NAME.format(names=f'("model", "optimizer", {last})', test=test.format(last))
    assert {finding.label for finding in check_source(text)} == (set() if is_state else {WHOLE})
