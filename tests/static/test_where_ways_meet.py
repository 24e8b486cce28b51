"""States at joins of paths: values from both branches, values from one branch, and effects of a branch that ends."""

from __future__ import annotations

from textwrap import indent

import pytest
from marks import marks, places, shown

from pytest_amp_check import check_source

CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
PROGRAMS: dict[str, str] = {}

#: One training iteration with a placeholder between backward and step.
TRAINING = """\
import torch

def check(flag, scaler, optimizer):
    scaler.unscale_(optimizer)
    if {ends}:
        while True:
            pass

def train(model, loader, optimizer, flag, early, clip, p):
    scaler = torch.amp.GradScaler("cuda")
    k = 4 if flag else 4
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward(retain_graph=True)
{between}        scaler.step(optimizer)
        scaler.update()
"""
for name, ends, between in (
    (
        "a way that never ends leaves the other one",
        "flag",
        "check(flag, scaler, optimizer)\nif flag:\n    scaler.unscale_(optimizer)\n",
    ),
    (
        "another way that never ends leaves the first one",
        "not flag",
        "check(flag, scaler, optimizer)\nif not flag:\n    scaler.unscale_(optimizer)\n",
    ),
    ("one number on both ways is that number", "flag", f"if k == 4:\n    scaler.unscale_(optimizer)\n{CLIP}\n"),
    (
        "a flag that is given on one way",
        "flag",
        f"really = True if early else clip\nif really:\n    scaler.unscale_(optimizer)\nif early:\n    {CLIP}\n",
    ),
    ("the gradient of a tensor on one way", "flag", "extra = p.grad if early else clip.total\nextra.backward()\n"),
    (
        "the gradient of a tensor on the other way",
        "flag",
        "extra = clip.total if early else p.grad\nextra.backward()\n",
    ),
    (
        "the gradient of a tensor on no way",
        "flag",
        "extra = clip.total if early else p.data\nextra.backward()  # AMP203\n",
    ),
):
    PROGRAMS[name] = TRAINING.format(ends=ends, between=indent(between, "        "))

#: An iteration either accumulates or clips and steps: a mistake if the same condition may have another value.
ACCUMULATING = """\
import torch

def train(model, loader, optimizer, ready, k, flag):
    scaler = torch.amp.GradScaler("cuda")
    held = {{}}
    for x in loader:
        {first}
        if {test}:
            with torch.autocast("cuda"):
                loss = model(x).mean() / k
            scaler.scale(loss).backward()
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0){mark}
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
for name, first, test, wrong in (
    ("an argument is the same in each iteration", "print(x)", "flag", False),
    ("an answer of unknown code is another one in each iteration", "print(x)", "ready()", True),
    ("what is of this iteration on one way", "phase = x.phase if flag else 0", "phase > 2", True),
    ("what is of this iteration on the other way", "phase = 0 if flag else x.phase", "phase > 2", True),
    ("what is of no iteration on both ways", "phase = k if flag else 0", "phase > 2", False),
    ("a dict that unknown code may fill", "ready(held)", "held", True),
    ("a number of which one part is of this iteration", "print(x)", "k + x.size > 2", True),
    ("a number of which no part is of this iteration", "print(x)", "k + flag > 2", False),
):
    PROGRAMS[f"asked in each iteration: {name}"] = ACCUMULATING.format(
        first=first, test=test, mark="  # AMP201" if wrong else ""
    )

CONTEXT = """\
import torch
from torch.amp import autocast

def train(model, loader, optimizer, flag):
    scaler = torch.amp.GradScaler("cuda", enabled=flag)
    context = {context}
    for x in loader:
        optimizer.zero_grad()
        with context("cuda"):
            loss = model(x).mean()
            scaler.scale(loss).backward()  # AMP103
        scaler.step(optimizer)
        scaler.update()
"""
PROGRAMS["another context, or autocast, by one name"] = CONTEXT.format(
    context="torch.enable_grad if not flag else autocast"
)
PROGRAMS["autocast, or another context, by one name"] = CONTEXT.format(
    context="autocast if flag else torch.enable_grad"
)

PARTS = """\
import torch

def train(model, loader, optimizer, k, flag):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        for part in {parts}:
            with torch.autocast("cuda"):
                loss = model(part).mean()
            scaler.scale(loss).backward()  # AMP301
        scaler.step(optimizer)
        scaler.update()
"""
PROGRAMS["parts of a batch, or the batch alone"] = PARTS.format(parts="([p for p in x.chunk(k)] if flag else [x])")
PROGRAMS["a batch alone, or parts of it"] = PARTS.format(parts="([x] if flag else [p for p in x.chunk(k)])")

ENGINES = """\
import torch
import torch.nn.functional as F
from accelerate import Accelerator

def train(model, optimizer, loader, k, n, flag):
    accelerator = Accelerator(gradient_accumulation_steps={}) if flag else Accelerator(gradient_accumulation_steps={})
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y) / {}
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
"""
PROGRAMS["two engines that divide by one number"] = ENGINES.format("k", "k", "k  # AMP302")
PROGRAMS["two engines that divide by one number that is written"] = ENGINES.format("8", "8", "8  # AMP302")
PROGRAMS["two engines that divide by two numbers"] = ENGINES.format("k", "n", "k")
PROGRAMS["two engines that divide by two numbers that are written"] = ENGINES.format("8", "4", "8")

#: The engine divides by k as well: a division before is a second one, if it is definite or under a condition on k.
DIVIDED = """\
import torch.nn.functional as F
from accelerate import Accelerator

def train(model, optimizer, loader, k, flag):
    accelerator = Accelerator(gradient_accumulation_steps=k)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = {loss}
            {division}
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
"""
for division in (
    "loss = loss / k  # AMP302",
    "if k > 1: loss = loss / k  # AMP302",
    "loss = loss if k == 1 else loss / k  # AMP302",
    "if flag: loss = loss / k",
    "loss = loss if flag else loss / k",
    "loss = loss / k if flag else loss / 2",
    "if flag and k > 1: loss = loss / k",
):
    PROGRAMS[f"a loss: {division}"] = DIVIDED.format(loss="F.cross_entropy(model(x), y)", division=division)
    PROGRAMS[f"an unknown loss: {division}"] = DIVIDED.format(loss="model.loss(x, y)", division=division)

DTYPE = """\
import torch

def train(model, loader, optimizer, flag):
    scaler = torch.amp.GradScaler("cuda")
    dtype = {dtype}
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=dtype):
            loss = model(x).mean()
        scaler.scale(loss).backward(){mark}
        scaler.step(optimizer)
        scaler.update()
"""
PROGRAMS["one dtype on both ways"] = DTYPE.format(dtype="torch.bfloat16 if flag else torch.bfloat16", mark="  # AMP503")
PROGRAMS["one dtype by two names"] = DTYPE.format(dtype="torch.float16 if flag else torch.half", mark="")

WINDOW = """\
import torch

def train(model, loader, optimizer, k, flag):
    scaler = torch.amp.GradScaler("cuda")
    left = k
    for i, x in enumerate(loader):
        with torch.autocast("cuda"):
            loss = {loss}
        scaler.scale(loss).backward(){mark}
        left -= 1
        if {test}:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            left = k
"""
END = "(i + 1) % k == 0"
for name, loss, test, wrong in (
    ("a window that ends where a count is down to nothing", "model(x).mean()", "not left", True),
    (
        "a window of what is divided that ends where a count is down to nothing",
        "model(x).mean() / k",
        "not left",
        False,
    ),
    ("a sum, or a mean that is divided", "(model(x).sum() if flag else model(x).mean() / k).mean()", END, False),
    ("a mean on both ways", "(model(x).mean() if flag else model(x, 2).mean())", END, True),
    ("a mean that is divided on both ways", "(model(x).mean() / k if flag else model(x, 2).mean() / k)", END, False),
):
    PROGRAMS[name] = WINDOW.format(loss=loss, test=test, mark="  # AMP301" if wrong else "")


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_has_exactly_its_marks(source: str) -> None:
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)


GIVEN = """\
import torch

def train(model, loader, optimizer, flag, given):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        loss = {loss}
        loss.backward()
        scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.parametrize(
    ("loss", "given"),
    [
        ("given", True),
        ("given if flag else given.other", True),
        ("given if flag else model.loss(x)", False),
        ("model.loss(x) if flag else given", False),
        ("model.loss(x)", False),
    ],
)
def test_whoever_gives_a_loss_may_have_scaled_it_if_it_is_given_on_both_ways(loss: str, given: bool) -> None:
    [finding] = check_source(GIVEN.format(loss=loss))
    assert finding.code == "AMP203"
    assert ("unless the caller passes a scaled loss" in finding.message) is given
