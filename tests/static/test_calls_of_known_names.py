"""Effects on training of functions known by dotted names, and of modules known by operations on the modules."""

from __future__ import annotations

from textwrap import indent

import pytest

from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

TRAIN = """\
import copy
import itertools
import logging
import operator
import sys

import torch
import torch.distributed as dist
from einops import rearrange
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from toolbox import clip_grads, evaluate, perplexity, sharpen

{before}
reader = nn.Linear(6, 6)
tuner = torch.optim.SGD(reader.parameters(), lr=0.3)
boost = torch.amp.GradScaler("cuda")
for page, word in loader:
    tuner.zero_grad()
{iteration}
"""
FORWARD = 'with torch.autocast("cuda"):\n    loss = F.mse_loss(reader(page), word)\n'
STEP = "boost.scale(loss).backward()\nboost.step(tuner)\nboost.update()\n"
BACKWARD = f"{FORWARD}boost.scale(loss).backward()\n"
REGION = "with torch.autocast('cuda'):\n"
OUT = f"{REGION}    out = reader(page)\n"
AGAIN = f"    loss = F.mse_loss(reader(page), word)\n{STEP}"
LAST = "boost.step(tuner)\nboost.update()\n"
#: Loop iteration, and the label of the violation in its marked line, "" for none.
ITERATIONS = [
    # Calls of the model: in the region, after it, or unrecognized.
    (f"{FORWARD}{STEP}", ""),
    (f"loss = F.mse_loss(reader(page), word)\n{STEP}", "scale@no-autocast"),
    (f"{OUT}loss = F.cross_entropy(out, word)\n{STEP}", "loss@outside"),
    (f"{OUT}loss = F.cross_entropy(out.float(), word)\n{STEP}", ""),
    (
        f"{REGION}    out = rearrange(reader(page), 'a b -> b a')\n    loss = F.mse_loss(out, word)\n{STEP}",
        "",
    ),
    (f"{REGION}    loss = evaluate(reader, page, word)\n{STEP}", ""),
    (f"{REGION}    loss = perplexity(page, word)\n{STEP}", ""),
    # Functions that combine tensors keep the scale, or its absence.
    (f"{FORWARD}loss = operator.mul(loss, 0.5)\n{STEP}", ""),
    (f"{FORWARD}loss = operator.truediv(boost.scale(loss), 2)\nloss.backward()\n{LAST}", ""),
    (f"{FORWARD}loss = operator.truediv(loss, 2)\nloss.backward()  # !\n{LAST}", "step@raw"),
    (f"{FORWARD}loss = abs(loss)\nloss.backward()  # !\n{LAST}", "step@raw"),
    (f"{FORWARD}loss = round(boost.scale(loss))\nloss.backward()\n{LAST}", ""),
    (f"{FORWARD}loss = torch.mean(loss)\nloss.backward()  # !\n{LAST}", "step@raw"),
    (f"{FORWARD}loss = sharpen(loss)\nloss.backward()  # !\n{LAST}", "step@raw"),
    (f"{FORWARD}loss = sharpen(loss, boost)\nloss.backward()\n{LAST}", ""),
    (f"{FORWARD}loss = max(loss, other)\nloss.backward()  # !\n{LAST}", "step@raw"),
    (f"{FORWARD}loss = min([loss])\nloss.backward()  # !\n{LAST}", "step@raw"),
    # A function with gradients or parameters as arguments may clip them if its name suggests so.
    (f"{BACKWARD}clip_grads(reader.parameters(), 1.0)  # !\n{LAST}", "clip@scaled"),
    (f"{BACKWARD}boost.unscale_(tuner)\nclip_grads(reader.parameters(), 1.0)\n{LAST}", ""),
    (f"{BACKWARD}sharpen(reader.parameters())\n{LAST}", ""),
    (f"{BACKWARD}print([p.grad for p in reader.parameters()])  # !\n{LAST}", "read@scaled"),
    (f"{BACKWARD}for p in reader.parameters():\n    logging.info(p.grad)  # !\n{LAST}", "read@scaled"),
    (f"{BACKWARD}for p in reader.parameters():\n    dist.all_reduce(p.grad)\n{LAST}", ""),
    (f"{BACKWARD}for p in reader.parameters():\n    torch.empty_like(p.grad)\n{LAST}", ""),
    (f"{BACKWARD}for p in reader.parameters():\n    torch.sign(p.grad)\n{LAST}", ""),
    (f"{BACKWARD}for p in itertools.chain(reader.parameters()):\n    p.grad.clamp_(-1, 1)  # !\n{LAST}", "edit@scaled"),
    (f"{BACKWARD}for p in list(reader.parameters()):\n    p.grad.clamp_(-1, 1)  # !\n{LAST}", "edit@scaled"),
    (
        f"{BACKWARD}for p in filter(chosen, reader.parameters()):\n    p.grad.clamp_(-1, 1)  # !\n{LAST}",
        "edit@scaled",
    ),
    (f"{BACKWARD}for p in sorted(reader.parameters(), key=len):\n    p.grad.clamp_(-1, 1)  # !\n{LAST}", "edit@scaled"),
    (f"{BACKWARD}for p in reversed(tuple(reader.parameters())):\n    p.grad.clamp_(-1, 1)  # !\n{LAST}", "edit@scaled"),
    (f"{BACKWARD}for _, p in reader.named_parameters():\n    p.grad.clamp_(-1, 1)  # !\n{LAST}", "edit@scaled"),
    (f"{BACKWARD}next(reader.parameters()).grad.clamp_(-1, 1)  # !\n{LAST}", "edit@scaled"),
    (f"{BACKWARD}next(iter(reader.parameters())).grad.clamp_(-1, 1)  # !\n{LAST}", "edit@scaled"),
    # Calls that end the program.
    (f"{BACKWARD}if page is None:\n    sys.exit(1)\n{LAST}", ""),
    (f"{BACKWARD}boost.step(tuner)\nif page is None:\n    quit()\nboost.update()\n", ""),
    (
        f"{BACKWARD}boost.step(tuner)\nif page is None:\n    sys.exit()\nboost.step(tuner)\nboost.update()\n",
        "step@stepped",
    ),
    # Weights that are loaded or written while a region caches low-precision copies of them.
    (
        f"{OUT}    reader.load_state_dict(kept)  # !\n{AGAIN}",
        "write@region-then-forward",
    ),
    (
        f"{OUT}    reader.load_state_dict(kept, assign=True)\n{AGAIN}",
        "",
    ),
    (
        f"{OUT}    reader.load_state_dict(kept, True, True)\n{AGAIN}",
        "",
    ),
    (
        f"{OUT}    reader.load_state_dict(state_dict=kept, strict=False)  # !\n{AGAIN}",
        "write@region-then-forward",
    ),
    (
        f"{OUT}    reader.load_state_dict(kept)\n    torch.clear_autocast_cache()\n{AGAIN}",
        "",
    ),
    (f"reader.load_state_dict(kept)\n{FORWARD}{STEP}", ""),
    (
        (
            "with torch.autocast('cuda', cache_enabled=False):\n    out = reader(page)\n"
            f"    reader.load_state_dict(kept)\n{AGAIN}"
        ),
        "",
    ),
    (
        f"{OUT}    for p in reader.parameters():\n        p.data.mul_(0.9)  # !\n{AGAIN}",
        "write@region-then-forward",
    ),
]


@pytest.mark.parametrize(("iteration", "label"), ITERATIONS)
def test_an_iteration_with_a_known_name(iteration: str, label: str) -> None:
    source = TRAIN.format(before="", iteration=indent(iteration, "    "))
    found = check_source(source, "train.py")
    assert [each.label for each in found] == ([label] if label else [])
    marked = [number for number, line in enumerate(source.split("\n"), 1) if "# !" in line]
    assert not label or not marked or [each.line for each in found] == marked


WINDOW = """\
import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

net = {made}
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i, (x, y) in enumerate(loader):
    loss = F.mse_loss(net(x), y) / 4
{backward}
    if (i + 1) % 4 == 0:
        opt.step()
        opt.zero_grad()
"""
#: Module, backward of a micro-batch, and the module whose gradients are averaged too often.
WINDOWS = [
    ("DDP(nn.Linear(8, 1))", "loss.backward()", "net"),
    ("DDP(module=nn.Linear(8, 1))", "loss.backward()", "net"),
    ("DDP(build())", "loss.backward()", "net"),
    ("nn.parallel.DistributedDataParallel(build())", "loss.backward()", "net"),
    ("DDP(copy.deepcopy(base))", "loss.backward()", "net"),
    ("nn.Linear(8, 1)", "loss.backward()", ""),
    ("nn.DataParallel(nn.Linear(8, 1))", "loss.backward()", ""),
    ("build()", "loss.backward()", ""),
    ("DDP(nn.Linear(8, 1))", "with net.no_sync():\n    loss.backward()", ""),
    ("DDP(nn.Linear(8, 1))", "with guard():\n    loss.backward()", ""),
]


@pytest.mark.parametrize(("made", "backward", "module"), WINDOWS)
def test_a_window_of_a_replicated_module(made: str, backward: str, module: str) -> None:
    """Each backward of a module in DDP averages over the processes, unless ``no_sync()`` delays the averaging."""
    source = WINDOW.format(made=made, backward=indent(backward, "    "))
    found = check_source(source, "train.py", Settings(select=frozenset({"AMP306"})))
    assert [each.label for each in found] == ["backward@averaged"] * bool(module)
    assert all(f"`{module}" in each.message for each in found)
