"""Arguments that functions and methods forward by ``*args`` and ``**kwargs``, over several levels."""

from __future__ import annotations

import pytest

from pytest_amp_check import check_source

PROGRAM = """\
import torch

{definitions}

def train(net, batches, {given}):
    {optimizer}
    scaler = torch.amp.GradScaler()
    {setup}
    for batch in batches:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(batch).mean()
        scaler.scale(loss).backward()
        {unscale}
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        {step}
        scaler.update()
"""
KNOWN = "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)"
FUNCTIONS = """\
def inner(scaler, *rest, **named):
    return scaler.step(*rest, **named)


def middle(*rest, **named):
    return inner(*rest, **named)


def outer(*rest, **named):
    return middle(*rest, **named)

"""
WRAPPER = """\
class Counting:
    def __init__(self, wrapped):
        self.wrapped = wrapped
        self.count = 0

    def __getattr__(self, name):
        return getattr(self.wrapped, name)

    def step(self, *rest, **named):
        return self.counted(*rest, **named)

    def counted(self, *rest, **named):
        skips = named["skips"] if "skips" in named else False
        if not skips:
            self.wrapped.step(*rest, **named)
        self.count += 1

"""


@pytest.mark.parametrize(("given", "optimizer"), [("lr", KNOWN), ("optimizer", "pass")])
@pytest.mark.parametrize(
    ("definitions", "setup", "step"),
    [
        (FUNCTIONS, "pass", "outer(scaler, optimizer)"),
        (FUNCTIONS, "pass", "outer(scaler, optimizer=optimizer)"),
        (FUNCTIONS, "given = (scaler, optimizer)", "outer(*given)"),
        (FUNCTIONS, "given = [scaler]", "middle(*given, optimizer)"),
        (WRAPPER, "scaler = Counting(scaler)", "scaler.step(optimizer)"),
        (WRAPPER, "counting = Counting(scaler)", "counting.step(optimizer)"),
    ],
)
def test_a_step_through_forwarded_arguments(
    given: str, optimizer: str, definitions: str, setup: str, step: str
) -> None:
    program = PROGRAM.replace("{given}", given).replace("{optimizer}", optimizer)
    program = program.replace("{definitions}", definitions).replace("{setup}", setup).replace("{step}", step)
    right = program.replace("{unscale}", "scaler.unscale_(optimizer)")
    assert [str(finding) for finding in check_source(right, "a.py")] == []
    wrong = check_source(program.replace("{unscale}", "pass"), "a.py")
    assert {(finding.code, finding.certain) for finding in wrong} == {("AMP201", True)}


@pytest.mark.parametrize("step", ["scaler.step(*given)", "outer(scaler, *given)", "outer(*everything)"])
def test_a_step_of_arguments_that_are_not_known(step: str) -> None:
    program = PROGRAM.replace("{given}", "optimizer, *given, **more").replace("{optimizer}", "everything = load(net)")
    program = program.replace("{definitions}", FUNCTIONS).replace("{setup}", "pass").replace("{step}", step)
    found = check_source(program.replace("{unscale}", "scaler.unscale_(optimizer)"), "a.py")
    assert [str(finding) for finding in found if finding.certain] == []


@pytest.mark.parametrize("unpacked", ["vars(bag)", "bag", "bag.state"])
@pytest.mark.parametrize(("clip", "codes"), [("pass", []), ("torch.nn.utils.clip_grad_norm_(net, 1.0)", ["AMP201"])])
def test_two_calls_that_unpack_the_same_object_get_the_same_scaler(unpacked: str, clip: str, codes: list[str]) -> None:
    source = f"""\
import torch

def backward(loss, gs, opt, net):
    opt.zero_grad()
    gs.scale(loss).backward()
    {clip}
    gs.unscale_(opt)

def finish(gs, opt, net):
    gs.step(opt)
    gs.update()

def train(bag, model, loader):
    for x in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()
        backward(loss, **{unpacked})
        finish(**{unpacked})
"""
    assert [finding.code for finding in check_source(source)] == codes
