"""Statements and control flow: exits from blocks, loops with few and many iterations, micro-batches, exceptions."""

from __future__ import annotations

from textwrap import indent

import pytest
from marks import marks, places, shown

from pytest_amp_check import check_source

CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
AROUND = """\
import torch

def train(model, loader, optimizer, phase, clip, early, limits):
    scaler = torch.amp.GradScaler("cuda")
    for i, x in enumerate(loader):
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
{}        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
FUNCTIONS = """\
def one():
    print("one")

def two():
    scaler.unscale_(optimizer)

"""
#: Statements between backward and step.
BETWEEN = {
    "a key that is deleted is not there": f"""\
options = {{"early": True, "late": True}}
del options["early"]
if options.get("early"):
    scaler.unscale_(optimizer)
{CLIP}  # AMP201
""",
    "a key beside one that is deleted is there": f"""\
options = {{"early": True, "late": True}}
del options["late"]
if options.get("early"):
    scaler.unscale_(optimizer)
{CLIP}
""",
    "a loop over two functions that is left before the second": f"""\
{FUNCTIONS}
for each in [one, two]:
    if each is two:
        break
    each()
{CLIP}  # AMP201
""",
    "a loop over two functions, each of which may be left out": f"""\
{FUNCTIONS}
for each in [one, two]:
    if early:
        continue
    each()
{CLIP}  # AMP201
""",
    "the else of a loop over one that may break": f"""\
{FUNCTIONS}
for each in [two]:
    if early:
        break
else:
    each()
if not early:
    {CLIP}
""",
    "the else of a loop over one that may break, and what follows whatever it did": f"""\
{FUNCTIONS}
for each in [two]:
    if early:
        break
else:
    each()
{CLIP}  # AMP201
""",
    "the number of a function in a loop": f"""\
{FUNCTIONS}
for number, each in enumerate([one, two], 1):
    if number == 2:
        each()
{CLIP}
""",
    "a number that no function has in a loop": f"""\
{FUNCTIONS}
for number, each in enumerate([one, two], 1):
    if number == 3:
        each()
{CLIP}  # AMP201
""",
}


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_between_backward_and_step(between: str) -> None:
    source = AROUND.format(indent(between, "        "))
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)


MICRO = """\
import torch

def train(model, loader, optimizer, batches, k, n):
    scaler = torch.amp.GradScaler("cuda")
    for {head}:
        optimizer.zero_grad()
{body}        scaler.step(optimizer)
        scaler.update()
"""
RUN = """\
    with torch.autocast("cuda"):
        loss = model(part).mean()
    scaler.scale(loss).backward()
"""
LEFT_OUT = RUN.replace("backward()", "backward()  # AMP301")
#: The enclosing loop, and statements of an iteration between clearing and stepping.
WINDOWS = {
    "a while that draws each micro-batch": (
        "step in range(n)",
        f"left = k\nwhile left:\n    part = next(batches)\n{LEFT_OUT}    left -= 1\n",
    ),
    "a while that draws each micro-batch by a method": (
        "step in range(n)",
        f"left = k\nwhile left:\n    part = batches.__next__()\n{LEFT_OUT}    left -= 1\n",
    ),
    "a while that gets its data in a way that nobody knows": (
        "step in range(n)",
        f"left = k\nwhile left:\n    part = batches.take()\n{RUN}    left -= 1\n",
    ),
    "a while that sees one batch again": ("part in loader", f"left = k\nwhile left:\n{RUN}    left -= 1\n"),
    "a range that draws each micro-batch": (
        "step in range(n)",
        f"for j in range(k):\n    part = next(batches)\n{LEFT_OUT}",
    ),
    "a range that makes each micro-batch": (
        "step in range(n)",
        f"for j in range(k):\n    part = torch.randn(8, 8)\n{LEFT_OUT}",
    ),
    "a range that sees one batch again": ("part in loader", f"for j in range(k):\n{RUN}"),
    "a range whose number picks": ("part in loader", f"for j in range(k):\n{RUN.replace('part', 'part[j]')}"),
    "pieces": ("x in loader", f"for part in x.chunk(k):\n{LEFT_OUT}"),
    "pieces of pieces": (
        "x in loader",
        f"for half in x.chunk(2):\n    for part in half.chunk(2):\n{indent(LEFT_OUT, '    ')}",
    ),
    "pieces whose gradients are looked at": (
        "x in loader",
        f"for part in x.chunk(k):\n{RUN}    print(model.weight.grad is None)\n",
    ),
    "pieces, and unknown code that may step": (
        "x in loader",
        f"for part in x.chunk(k):\n{RUN}    batches.finish(optimizer, scaler)\n",
    ),
    "pieces, divided by a number": ("x in loader", f"for part in x.chunk(3):\n{RUN.replace('()', '() / 3', 1)}"),
    "pieces, divided by a name": ("x in loader", f"for part in x.chunk(k):\n{RUN.replace('()', '() / k', 1)}"),
    "pieces, divided by a call": (
        "x in loader",
        f"for part in x.chunk(k):\n{RUN.replace('model(part).mean()', 'torch.div(model(part).mean(), k)')}",
    ),
    "pieces, divided by a method": ("x in loader", f"for part in x.chunk(k):\n{RUN.replace('()', '().div(k)', 1)}"),
    "pieces, divided in place": (
        "x in loader",
        f"for part in x.chunk(k):\n{RUN.replace('mean()', 'mean()' + chr(10) + '        loss /= k')}",
    ),
}


@pytest.mark.parametrize(("head", "body"), WINDOWS.values(), ids=WINDOWS)
def test_what_a_loop_of_micro_batches_leaves_to_the_step_behind_it(head: str, body: str) -> None:
    source = MICRO.format(head=head, body=indent(body, "        "))
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)


def test_a_loop_in_a_function_that_is_one_step_is_no_loop_of_micro_batches() -> None:
    forward_and_backward = RUN.replace("model(part)", "model(torch.randn(8, 8))")
    source = f"""\
import torch

def step(model, optimizer, scaler, k):
    optimizer.zero_grad()
    for j in range(k):
{indent(forward_and_backward, "    ")}    scaler.step(optimizer)
    scaler.update()
"""
    assert check_source(source) == []


COUNTED = """\
import torch

def train(model, loader, optimizer, k, epochs):
    scaler = torch.amp.GradScaler("cuda")
    count = {start}
    for epoch in range(epochs):
        {around}
        for x in loader:
            with torch.autocast("cuda"):
                loss = model(x).mean(){divided}
            scaler.scale(loss).backward(){undivided}
            {before}
            if count % 4 == 0:{early}
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            {behind}
"""
COUNT, ELSE = "count += 1", "print(epoch)"


@pytest.mark.parametrize(
    ("start", "around", "divided", "before", "behind", "found"),
    [
        (0, ELSE, " / 4", COUNT, ELSE, ""),
        (0, ELSE, "", COUNT, ELSE, "undivided"),
        (0, ELSE, " / 4", ELSE, COUNT, "early"),
        (1, ELSE, " / 4", ELSE, COUNT, ""),
        (0, COUNT, " / 4", ELSE, COUNT, ""),
    ],
)
def test_a_counter_that_goes_on_through_two_loops(
    start: int, around: str, divided: str, before: str, behind: str, found: str
) -> None:
    marked = {"undivided": "  # AMP301" * (found == "undivided"), "early": "  # AMP304" * (found == "early")}
    source = COUNTED.format(start=start, around=around, divided=divided, before=before, behind=behind, **marked)
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)


CAUGHT = """\
import torch

def train(model, loader, optimizer, other):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        try:
{body}        except RuntimeError:
{rescue}{behind}"""
BACK = "scaler.scale(loss).backward()\n"
STEP = "scaler.step(optimizer)\nscaler.update()\n"
RAISE = "if x is None:\n    raise RuntimeError(x)\n"
UNSURE = f"{BACK}scaler.unscale_(optimizer)\n{RAISE}"
ENDED = "finally:\n    scaler.update()\n    optimizer.zero_grad()\n"
OTHER = "finally:\n    other.zero_grad()\n"
#: The body of ``try``, the handler, and the code after both.
TRIED = {
    "nothing is raised between the step and the update": (
        f"{BACK}scaler.unscale_(optimizer)\n{STEP}",
        "print(x)\n",
        "",
    ),
    "what computes between unscale and step may raise, and is not certain to": (
        f"{BACK}scaler.unscale_(optimizer)\nmodel(x)\n{STEP}",
        "print(x)\n",
        "",
    ),
    "the code raises between unscale and step": (
        f"{BACK}scaler.unscale_(optimizer)  # AMP209\n{RAISE}{STEP}",
        "print(x)\n",
        "",
    ),
    "an update in the rescue, which has nothing to go by where backward has failed": (
        UNSURE + STEP,
        "scaler.update()  # AMP207\n",
        "",
    ),
    "a clip in the rescue": (BACK + STEP, f"{CLIP}  # AMP201\n", ""),
    "a clip in the rescue of what comes before backward": ("model(x)\nprint(x)\n", f"{CLIP}\n", BACK + STEP),
    "a finally that brings the scaler back": (
        f"try:\n{indent(UNSURE + STEP.partition(chr(10))[0], '    ')}\n{ENDED}",
        "print(x)\n",
        "",
    ),
    "a finally that does something else": (
        f"try:\n{indent(UNSURE.replace('(optimizer)', '(optimizer)  # AMP209') + STEP, '    ')}{OTHER}",
        "print(x)\n",
        "",
    ),
    "a finally that unscales before what is done in the rescue": (
        f"try:\n    {BACK}finally:\n    scaler.unscale_(optimizer)\n",
        f"{CLIP}\n",
        STEP,
    ),
    "a region that is left by what is raised in it": (
        f'try:\n    with torch.autocast("cuda"):\n        model(x)\n{indent(RAISE, "        ")}{OTHER}',
        "print(x)\n",
        BACK + STEP,
    ),
}


@pytest.mark.parametrize(("body", "rescue", "behind"), TRIED.values(), ids=TRIED)
def test_what_is_tried_and_what_is_caught(body: str, rescue: str, behind: str) -> None:
    source = CAUGHT.format(body=indent(body, " " * 12), rescue=indent(rescue, " " * 12), behind=indent(behind, " " * 8))
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)


LEAVING = """\
import torch

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x).mean()
        try:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
{}            scaler.step(optimizer)
        finally:
            scaler.update(){}
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("leaving", "mark"),
    [
        ("with torch.no_grad():\n    if loss.isnan():\n        continue\n    if loss.isinf():\n        continue\n", ""),
        ("if loss.isnan():\n    scaler.update()\n    continue\n", "  # AMP207"),
    ],
    ids=["two blocks at once", "what finally does a second time"],
)
def test_a_jump_leaves_each_block_that_is_open(leaving: str, mark: str) -> None:
    source = LEAVING.format(indent(leaving, " " * 12), mark)
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)


SEVERAL = """\
import torch

def train(net, loader):
    scaler = torch.amp.GradScaler("cuda")
    a, b = torch.optim.SGD(net.a.parameters(), 0.1), torch.optim.SGD(net.b.parameters(), 0.1)
    c, d = torch.optim.SGD(net.c.parameters(), 0.1), torch.optim.SGD(net.d.parameters(), 0.1)
    for x in loader:
        for each in [a, b, c, d]:
            each.zero_grad()
        with torch.autocast("cuda"):
            loss = net(x).mean()
        scaler.scale(loss).backward()
        for each in [{unscaled}]:
            scaler.unscale_(each)
        torch.nn.utils.clip_grad_norm_(net.{clipped}.parameters(), 1.0){mark}
        for each in [a, b, c, d]:
            scaler.step(each)
        scaler.update()
"""


@pytest.mark.parametrize(
    ("unscaled", "clipped", "mark"),
    [
        ("a, b, c, d", "d", ""),
        ("a, b, c", "c", ""),
        ("a", "a", ""),
    ],
)
def test_each_of_a_few_optimizers_is_its_own(unscaled: str, clipped: str, mark: str) -> None:
    source = SEVERAL.format(unscaled=unscaled, clipped=clipped, mark=mark)
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)


NUMBERED = """\
import torch

def train(model, loader, optimizers, scaler):
    for x in loader:
        for k in range(len(optimizers)):
            optimizers[k].zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
{}        for k in range(len(optimizers)):
            scaler.step(optimizers[k])
        scaler.update()
"""
UNSCALES = "for k in range(len(optimizers)):\n    scaler.unscale_(optimizers[k])\n"


@pytest.mark.parametrize("between", [f"{UNSCALES}{CLIP}\n", f"{CLIP}  # AMP201\n{UNSCALES}"])
def test_optimizers_that_are_picked_by_number_are_all_of_them(between: str) -> None:
    source = NUMBERED.format(indent(between, "        "))
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)
