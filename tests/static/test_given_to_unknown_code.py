"""Effects of unanalyzed code on arguments: losses, models, containers; and the regions around the call."""

from __future__ import annotations

from textwrap import indent

import pytest
from marks import marks, places, shown

from pytest_amp_check import check_source

PROGRAMS: dict[str, str] = {}

#: An accumulation window. Every called name except torch's and the model is an argument, and unknown.
WINDOW = """\
import torch
import torch.nn.functional as F

def train(model, loader, optimizer, k, one, two, p, {given}):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda"):
            out = model(x)
            loss = {loss}
        scaler.scale(loss).backward(){mark}
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
for name, given, loss, wrong in (
    (
        "terms with weights, each of which is normalized",
        "normalize_loss",
        "normalize_loss(F.cross_entropy(out, y) * one) + normalize_loss(F.mse_loss(out, y) * two)",
        False,
    ),
    (
        "terms with weights, whatever is made of each",
        "shape_loss",
        "shape_loss(F.cross_entropy(out, y) * one) + shape_loss(F.mse_loss(out, y) * two)",
        True,
    ),
    ("a loss that is averaged", "average_loss", "average_loss(F.cross_entropy(out, y))", False),
    ("a loss that is shaped", "shape_loss", "shape_loss(F.cross_entropy(out, y))", True),
    ("a sum that is shaped", "shape_loss", "shape_loss(F.cross_entropy(out, y, reduction='sum'))", False),
    ("a quotient that is given alone", "tidy", "tidy(F.cross_entropy(out, y) / k)", False),
    ("a quotient of a result that is given alone", "tidy", "tidy(out.mean() / k)", False),
    ("a quotient of a result among others", "combine", "combine(out / k, y)", True),
    ("a loss among others", "combine", "combine(F.cross_entropy(out, y), y)", True),
    ("a quotient of a loss among others", "combine", "combine(F.cross_entropy(out, y) / k, y)", False),
    ("a quotient of an unknown loss that is given alone", "tidy, compare", "tidy(compare(out, y) / k)", False),
    ("an unknown loss that is given alone", "tidy, compare", "tidy(compare(out, y))", True),
    ("a loss and a gradient, which may hold a scale", "combine", "combine(F.cross_entropy(out, y), p.grad)", False),
):
    PROGRAMS[name] = WINDOW.format(given=given, loss=loss, mark="  # AMP301" if wrong else "")

REGION = """\
import torch

def train(loader, {given}):
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x){mark}
        with torch.autocast("cuda"):
            loss = {given}({arguments})
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
for name, given, arguments, wrong in (
    ("a criterion runs no model", "CriterionOf", "out, y", True),
    ("a loss runs no model", "sum_of_losses", "out, y", True),
    ("another function may run a model", "finish", "out, y", False),
    ("a loss that is given a model may run it", "compute_loss", "model, out, y", False),
):
    PROGRAMS[name] = REGION.format(given=given, arguments=arguments, mark="  # AMP110" if wrong else "")

#: Two models whose forwards run in some context managers.
FORWARDS = """\
import torch

def train(loader, context, net, flag):
    model, head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
{forwards}        scaler.scale(loss).backward(){mark}
        scaler.step(optimizer)
        scaler.update()
"""
BFLOAT16 = "with torch.autocast('cuda', dtype=torch.bfloat16):\n    "
for name, forwards, wrong in (
    ("a model in a context that may be a region", "with context:\n    loss = head(model(x)).mean()\n", False),
    (
        "two models, one in a region of bfloat16 and one in what may be a region",
        f"{BFLOAT16}out = model(x)\nwith context:\n    loss = head(out).mean()\n",
        False,
    ),
    ("two models in a region of bfloat16", f"{BFLOAT16}out = model(x)\n    loss = head(out).mean()\n", True),
    (
        "a model in a region of bfloat16, and unknown code in what may be a region",
        f"{BFLOAT16}out = model(x)\nwith context:\n    loss = net(out).mean()\n",
        False,
    ),
    (
        "unknown code in a region of bfloat16, and in what may be a region",
        f"{BFLOAT16}out = net(x)\nwith context:\n    loss = net(out).mean()\n",
        False,
    ),
    (
        "unknown code in a region of bfloat16, and in one of float16",
        f"{BFLOAT16}out = net(x)\nwith torch.autocast('cuda'):\n    loss = net(out).mean()\n",
        False,
    ),
    ("unknown code in a region of bfloat16", f"{BFLOAT16}out = net(x)\n    loss = net(out).mean()\n", True),
    (
        "a model in a region of bfloat16 that may be off",
        "with torch.autocast('cuda', dtype=torch.bfloat16, enabled=flag):\n    loss = head(model(x)).mean()\n",
        True,
    ),
    (
        "a model in a region of float16 that may be off",
        "with torch.autocast('cuda', dtype=torch.float16, enabled=flag):\n    loss = head(model(x)).mean()\n",
        False,
    ),
    (
        "a model in a region that is off, within another one",
        f"{BFLOAT16}with torch.autocast('cuda', enabled=False):\n        loss = head(model(x)).mean()  # AMP110\n",
        False,
    ),
):
    PROGRAMS[name] = FORWARDS.format(forwards=indent(forwards, "        "), mark="  # AMP503" if wrong else "")

TRAINING = """\
import torch

def train(model, loader, optimizer, unscale, combine, p, flag):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward(retain_graph=True)
        {done}
        {then}
        scaler.step(optimizer)
        scaler.update()
"""
CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
for name, done, then in (
    ("lists within lists that hold a scaler", "unscale([[[scaler, optimizer]]])", CLIP),
    ("what speaks of unscaling by its last name", "flag.unscale([scaler, optimizer])", CLIP),
    ("what speaks of it by another name", "unscale.report([scaler, optimizer])", f"{CLIP}  # AMP201"),
    (
        "two draws are two questions",
        "if p.random() > 0.5: scaler.unscale_(optimizer)",
        f"if p.random() > 0.5: {CLIP}  # AMP201",
    ),
    (
        "two answers are one question",
        "if p.answer() > 0.5: scaler.unscale_(optimizer)",
        f"if p.answer() > 0.5: {CLIP}",
    ),
    ("lists within lists that hold nothing of it", "unscale([[[x, loss]]])", f"{CLIP}  # AMP201"),
    ("what is made of a loss and of a gradient may hold a scale", "combine(loss, p.grad).backward()", "print(x)"),
    ("what is made of a loss holds no scale", "combine(loss, p.data).backward()  # AMP203", "print(x)"),
):
    PROGRAMS[name] = TRAINING.format(done=done, then=then)

LOSSES = """\
import torch

def train(model, loader, optimizer, {given}):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        {loss}.backward(){mark}
        scaler.step(optimizer)
        scaler.update()
"""
for name, given, loss, wrong in (
    ("a loss that is given as a scaled one", "scaled_loss", "scaled_loss", False),
    ("a loss that is given", "loss", "loss", True),
    ("a loss that is called a scaled one where it is made", "compute", "compute(x).rescaled", True),
    ("a gradient that is given", "p", "p.grad", False),
):
    PROGRAMS[name] = LOSSES.format(given=given, loss=loss, mark="  # AMP203" if wrong else "")

STATE = """\
import torch
from elsewhere import Tools

class Kit(Tools):
    def __init__(self, held):
        self.held = held

def train(model, loader, optimizer, path):
    scaler = torch.amp.GradScaler("cuda")
    kit = Kit({held})
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    state = {{"model": model.state_dict(), "optimizer": optimizer.state_dict()}}{mark}
    kit.extend(state)
    torch.save(state, path)
"""
PROGRAMS["a state that is given to what holds the scaler"] = STATE.format(held="scaler", mark="")
PROGRAMS["a state that is given to what holds no scaler"] = STATE.format(held="optimizer", mark="  # AMP401")

NO_SYNC = """\
import torch

def train(net, loader, average, k):
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for i, x in enumerate(loader):
        with model.no_sync():
            with torch.autocast("cuda"):
                loss = model(x).mean()
            scaler.scale(loss / k).backward(){mark}
        if (i + 1) % k == 0:
            average({given})
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
for given, wrong in (
    ("model", False),
    ("optimizer", False),
    ("model.parameters()", False),
    ("[p.grad for p in model.parameters()]", False),
    ("x", True),
):
    PROGRAMS[f"gradients that are averaged by who is given {given}"] = NO_SYNC.format(
        given=given, mark="  # AMP305" if wrong else ""
    )

PROGRAMS["a step by hand after a look at a norm of gradients"] = """\
import torch

def train(model, loader, optimizer: torch.optim.Optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        bad = torch.isnan(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        if not bad:
            optimizer.step()
        scaler.update()
        optimizer.zero_grad()
"""

#: A rest of the last window, whose step lacks an update, and a call of unanalyzed code after each epoch.
EPOCHS = """\
import torch
from library import {name}

def train(model, optimizer, scaler, batches):
    for batch in batches:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(batch).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    scaler.step(optimizer){mark}
    optimizer.zero_grad()

def run(model, batches, epochs):
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(epochs):
        train(model, optimizer, scaler, batches)
        {name}(epoch, model=model, optimizer=optimizer, scaler=scaler)
"""
for name, may_update in (
    ("save_checkpoint", False),
    ("save_checkpoint_impl", False),
    ("saveState", False),
    ("log_progress", False),
    ("print_summary", False),
    ("finish", True),
    ("checkpoint", True),
    ("end_of_epoch", True),
    ("update_and_save", True),
    ("save_and_train", True),
    ("load_state", True),
):
    PROGRAMS[f"{name} receives a scaler after a step without update"] = EPOCHS.format(
        name=name, mark="" if may_update else "  # AMP206"
    )


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_has_exactly_its_marks(source: str) -> None:
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)


@pytest.mark.parametrize(
    ("loss", "known"),
    [
        ("compute(model(x), y)", True),
        ("compute(out, y)", True),
        ("compute(F.cross_entropy(out, y), y)", True),
        ("F.cross_entropy(out, y)", True),
        ("compute(x, y)", False),
        ("compute(x)", False),
        ("compute(out)", False),
        ("compute(out)[0]", False),
    ],
)
def test_how_a_loss_was_reduced_is_known_of_what_is_compared_with_targets(loss: str, known: bool) -> None:
    [finding] = check_source(WINDOW.format(given="compute", loss=loss, mark=""))
    assert finding.code == "AMP301"
    assert ("comes from unanalyzed code" not in finding.message) is known, finding.message
