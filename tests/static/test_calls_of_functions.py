"""Functions at the call: arguments of parameters, return values, and objects that live only in the function."""

from __future__ import annotations

from textwrap import indent

import pytest
from marks import marks, places, shown

from pytest_amp_check import check_source

CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
#: Code before a training, and code between backward and step.
TRAINING = """\
import contextlib

import torch

really = None

{before}
def train(model, loader, optimizer, flag, options):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
{between}        scaler.step(optimizer)
        scaler.update()
"""
CLIPS = f"""\
def clip(model, really{{default}}):
    if really:
        {CLIP}{{mark}}
"""
STEPS = """\
def steps(scaler, optimizer):
    scaler.unscale_(optimizer)
    yield
"""
PROGRAMS: dict[str, str] = {}
for name, before, between in (
    (
        "a generator that gives a word, and something else",
        'def modes(x):\n    yield "clip"\n    yield x\n',
        f"""\
for mode in modes(x):
    if mode == "clip":
        scaler.unscale_(optimizer)
    {CLIP}  # AMP201
    break
""",
    ),
    (
        "a generator that gives one flag, and the other",
        "def modes():\n    yield True\n    yield False\n",
        f"for mode in modes():\n    if mode:\n        scaler.unscale_(optimizer)\n    {CLIP}  # AMP201\n    break\n",
    ),
    (
        "a generator that gives one flag each time",
        "def modes():\n    yield True\n    yield True\n",
        f"for mode in modes():\n    if mode:\n        scaler.unscale_(optimizer)\n    {CLIP}\n    break\n",
    ),
    (
        "a generator that gives two answers",
        "def modes(x):\n    yield x.early\n    yield x.late\n",
        f"""\
for mode in modes(x):
    if mode:
        scaler.unscale_(optimizer)
    if x.early:
        {CLIP}  # AMP201
    break
""",
    ),
    ("a generator that is sent on", STEPS, f"steps(scaler, optimizer).send(None)\n{CLIP}\n"),
    ("a generator that is closed", STEPS, f"steps(scaler, optimizer).close()\n{CLIP}  # AMP201\n"),
    ("a generator is its own iterator", STEPS, f"steps(scaler, optimizer).__iter__().__next__()\n{CLIP}\n"),
    (
        "a manager that enters itself is left to read its block",
        "@contextlib.contextmanager\ndef around(n):\n    with around(n):\n        yield\n",
        f"with around(3):\n    {CLIP}  # AMP201\n",
    ),
    (
        "an object that is long in the making",
        """\
class Options:
    def __init__(self, name):
        self.name = name
        self.first = 1
        self.second = 2
        self.third = 3
        self.fourth = 4
        self.really = True
""",
        f'if Options("x").really:\n    scaler.unscale_(optimizer)\n{CLIP}\n',
    ),
    (
        "what a function has asked before it returned, or not",
        "def check(flag):\n    if flag:\n        return\n    print(flag)\n",
        f"check(flag)\nif flag:\n    scaler.unscale_(optimizer)\nif flag:\n    {CLIP}\n",
    ),
    (
        "what a method has set where it returned early",
        """\
class Options:
    def prepare(self, flag):
        if flag:
            self.mode = "clip"
            return
        print(flag)
""",
        f"""\
made = Options()
made.prepare(flag)
if made.mode == "clip":
    scaler.unscale_(optimizer)
{CLIP}
""",
    ),
    (
        "what is given to no parameter, but may be, is no name of the module",
        CLIPS.format(default="", mark="  # AMP201"),
        "clip(model, **options)\n",
    ),
    (
        "what is given to no parameter is no name of the module",
        CLIPS.format(default="", mark="  # AMP201"),
        "clip(model)\n",
    ),
    (
        "what is unpacked into a call may be the last of its parameters",
        CLIPS.format(default="=False", mark="  # AMP201"),
        "clip(*options)\n",
    ),
    (
        "what is unpacked into a call by names may be the last of its parameters",
        CLIPS.format(default="=False", mark="  # AMP201"),
        "clip(model, **options)\n",
    ),
    (
        "what is unpacked into a call may be the last of its parameters, which is none otherwise",
        CLIPS.format(default="=None", mark="  # AMP201"),
        "clip(*options)\n",
    ),
    (
        "what is unpacked into a call by names may be the last of its parameters, which is none otherwise",
        CLIPS.format(default="=None", mark="  # AMP201"),
        "clip(model, **options)\n",
    ),
    (
        "what is given to no parameter is none by default",
        CLIPS.format(default="=None", mark=""),
        "clip(model)\n",
    ),
    (
        "a generator that gives pairs",
        "def pairs(optimizer, x):\n    yield optimizer, x.early\n    yield optimizer, x.late\n",
        f"""\
for each, early in pairs(optimizer, x):
    if early:
        scaler.unscale_(each)
    if x.early:
        {CLIP}  # AMP201
    break
""",
    ),
    (
        "what a function has asked before it returned is asked anew behind it",
        "def check(flag):\n    if flag:\n        return\n    print(flag)\n",
        f"check(flag)\nif flag:\n    {CLIP}  # AMP201\n",
    ),
    (
        "two calls that return out of a loop, or behind it",
        "def found(items):\n    for each in items:\n        return True\n    return False\n",
        f"if found(x.early):\n    scaler.unscale_(optimizer)\nif found(x.late):\n    {CLIP}  # AMP201\n",
    ),
    (
        "the second of three ways to return",
        """\
def mode(flag, x):
    if flag:
        return "clip"
    if x.late:
        return "step"
    return "none"
""",
        f'if mode(flag, x) == "step":\n    scaler.unscale_(optimizer)\nif not flag and x.late:\n    {CLIP}\n',
    ),
    (
        "what a method has set where it returned early, and what was there before",
        """\
class Options:
    def __init__(self):
        self.mode = None

    def prepare(self, flag):
        if flag:
            self.mode = "clip"
            return
        print(flag)
""",
        f"""\
made = Options()
made.prepare(flag)
if made.mode == "clip":
    scaler.unscale_(optimizer)
if flag:
    {CLIP}
""",
    ),
    (
        "what a method has set where it returned early, and where it did late",
        """\
class Options:
    def prepare(self, flag):
        if flag:
            self.mode = "clip"
            return
        self.mode = "none"
""",
        f"""\
made = Options()
made.prepare(flag)
if made.mode == "clip":
    scaler.unscale_(optimizer)
if flag:
    {CLIP}
""",
    ),
    (
        "what a method has set where it returned late, and early",
        """\
class Options:
    def prepare(self, flag):
        if flag:
            self.mode = "none"
            return
        self.mode = "clip"
""",
        f"""\
made = Options()
made.prepare(flag)
if made.mode == "clip":
    scaler.unscale_(optimizer)
{CLIP}  # AMP201
""",
    ),
    (
        "a function of a class that is called by an object",
        "class Tools:\n    @staticmethod\n    def unscale(scaler, each):\n        scaler.unscale_(each)\n",
        f"Tools().unscale(scaler, optimizer)\n{CLIP}\n",
    ),
    (
        "what two calls leave to its default",
        CLIPS.format(default="=False", mark=""),
        "clip(model)\nclip(model=model)\n",
    ),
    (
        "the default of what is given by its name alone",
        "def unscale(scaler, optimizer, *, really=True):\n    if really:\n        scaler.unscale_(optimizer)\n",
        f"unscale(scaler, optimizer)\n{CLIP}\n",
    ),
):
    PROGRAMS[name] = TRAINING.format(before=before, between=indent(between, "        "))

PROGRAMS["losses that a generator gives are those of their forwards"] = """\
import torch
import torch.nn.functional as F

def losses(model, x, y):
    yield F.cross_entropy(model(x), y)  # AMP110
    yield F.mse_loss(model(x), y)

def train(loader):
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        for loss in losses(model, x, y):
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
PROGRAMS["a region of a function that calls itself holds behind that call"] = """\
import torch

@torch.autocast("cuda")  # AMP102
def run(model, scaler, x, n):
    if n:
        run(model, scaler, x, n - 1)
    with torch.autocast("cuda", enabled=False):
        print(x)
    loss = model(x).mean()
    scaler.scale(loss).backward()  # AMP103

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        run(model, scaler, x, 1)
        scaler.step(optimizer)
        scaler.update()
"""
PROGRAMS["an engine by its annotation"] = """\
import torch
from accelerate import Accelerator

def train(model, loader, optimizer, given: Accelerator):
    scaler = given.scaler
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        given.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
"""
#: A function under its own context manager is called before a forward, in a region or outside.
DECORATED = """\
import torch

{decorator}
def evaluate(model, x):
    print(model(x))

def train(loader, other):
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        evaluate(model, x)
        {forward}
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
"""
for decorator in ("@torch.no_grad()", '@torch.autocast("cuda")'):
    for where, forward in (
        ("in a region", 'with torch.autocast("cuda"): loss = model(x).mean()'),
        ("in no region", "loss = model(x).mean()  # AMP110"),
    ):
        PROGRAMS[f"a forward {where} behind a function under {decorator}"] = DECORATED.format(
            decorator=decorator, forward=forward
        )

#: The effects of a function or method are checked at its call, and not a second time as an entry point.
DISABLED = """\
import torch

class Trainer:
    def run(self, scaler, model, loss, optimizer):
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    def train(self, model, loader, optimizer):
        scaler = torch.amp.GradScaler("cuda", enabled=False)
        for x in loader:
            optimizer.zero_grad()
            self.run(scaler, model, model(x).mean(), optimizer)
"""
PROGRAMS["a method that is called with a scaler that is off"] = DISABLED
PROGRAMS["a function that is called with a scaler that is off"] = (
    DISABLED.replace("class Trainer:\n", "").replace("    def ", "def ").replace("self.", "").replace("self, ", "")
)
PROGRAMS["what is called where an error is caught provides for no older torch"] = """\
import torch

def make():
    return torch.cuda.amp.GradScaler()  # AMP901

try:
    scaler = make()
except (ImportError, AttributeError):
    scaler = None
"""


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_has_exactly_its_marks(source: str) -> None:
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)
