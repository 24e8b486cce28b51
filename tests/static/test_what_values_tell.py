"""Properties of values: containers and elements, objects, None, results of several models, and norms."""

from __future__ import annotations

from textwrap import indent

import pytest
from marks import marks, places, shown

from pytest_amp_check import check_source

CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
TRAINING = """\
import torch

class Kit:
    pass

def train(model, loader, optimizer, ready, flag, options):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
{between}        scaler.step(optimizer)
        scaler.update()
"""
PROGRAMS: dict[str, str] = {}

SIXTEEN = ", ".join(f"x.a{number}" for number in range(16))
KEYS = ", ".join(f"'a{number}': x.a{number}" for number in range(16))
#: Two conditions in unknown code: a clip under the second is preceded by unscale_ under the first if they are the same.
for name, before, first, second, one in (
    ("one object", "a = Kit()", "a", "a", True),
    ("two objects of one class", "a, b = Kit(), Kit()", "a", "b", False),
    ("lists of the same", "", "[[[x]]]", "[[[x]]]", True),
    ("lists of others", "", "[[[x]]]", "[[[loss]]]", False),
    ("lists that may hold more", "", "[x, *options]", "[x, *flag]", False),
    ("lists of sixteen", "", f"[{SIXTEEN}]", f"[{SIXTEEN}]", True),
    ("dicts with sixteen keys", "", f"{{{KEYS}}}", f"{{{KEYS}}}", True),
    ("one comparison", "a, b = x.a > 3, x.a > 3", "a", "b", True),
    ("two comparisons", "a, b = x.a > 3, x.b > 3", "a", "b", False),
    ("one object in two lists", "", "[optimizer]", "[optimizer]", True),
    ("two objects in two lists", "", "[optimizer]", "[Kit()]", False),
    ("dicts of the same", "", "{'a': {'b': {'c': x}}}", "{'a': {'b': {'c': x}}}", True),
    ("dicts of others", "", "{'a': x}", "{'a': loss}", False),
    ("dicts with other keys", "", "{'a': x}", "{'b': x}", False),
    ("dicts that may hold more", "", "{'a': x, **options}", "{'a': x, **flag}", False),
    ("one of two words", "a, b = ('a' if flag else 'b'), ('a' if flag else 'b')", "a", "b", True),
    ("the other of two words", "a, b = ('a' if flag else 'b'), ('b' if flag else 'a')", "a", "b", False),
):
    mark = "" if one else "  # AMP201"
    asked = f"if ready({first}):\n    scaler.unscale_(optimizer)\nif ready({second}):\n    {CLIP}{mark}\n"
    PROGRAMS[f"questions about {name}"] = TRAINING.format(between=indent(f"{before}\n{asked}", "        "))

UNSCALE = "scaler.unscale_(optimizer)"
for name, between in (
    ("a loop over nothing", f"for each in []:\n    print(each)\n{CLIP}  # AMP201\n"),
    (
        "a loop over one answer",
        f"for each in [x.early]:\n    if each:\n        {UNSCALE}\n    if x.early:\n        {CLIP}\n    break\n",
    ),
    (
        "a loop over two answers",
        f"""\
for each in [x.early, x.late]:
    if each:
        {UNSCALE}
    if x.early:
        {CLIP}  # AMP201
    break
""",
    ),
    ("what is true is not none", f"if options is not None:\n    {UNSCALE}\nif options:\n    {CLIP}\n"),
    (
        "what is true is not none, whatever was asked first",
        f"if options:\n    print(x)\nif options is not None:\n    {UNSCALE}\nif options:\n    {CLIP}\n",
    ),
    (
        "what is none is not true",
        f"if options is None:\n    print(x)\nelse:\n    {UNSCALE}\nif options:\n    {CLIP}\n",
    ),
    (
        "what is not none may be false",
        f"if options:\n    {UNSCALE}\nif options is not None:\n    {CLIP}  # AMP201\n",
    ),
    (
        "what is not none may be false, whatever was asked first",
        f"""\
if options is not None:
    print(x)
if options:
    {UNSCALE}
if options is not None:
    {CLIP}  # AMP201
""",
    ),
    ("an item from the end of a list", f"steps = [optimizer, None]\nscaler.unscale_(steps[-2])\n{CLIP}\n"),
    (
        "an attribute of an object",
        f"kit = Kit()\nkit.mode = 'clip'\nif kit.mode == 'clip':\n    {UNSCALE}\n{CLIP}\n",
    ),
    (
        "gradients in groups",
        """\
for group in optimizer.param_groups:
    for p in group["params"]:
        p.grad.div_(scaler.get_scale())  # AMP210
""",
    ),
    (
        "an option of groups",
        f"""\
for group in optimizer.param_groups:
    group["lr"] /= scaler.get_scale()
{CLIP}  # AMP201
""",
    ),
    (
        "gradients in a list",
        """\
for g in [p.grad for p in model.parameters()]:
    g.div_(scaler.get_scale())  # AMP210
""",
    ),
):
    PROGRAMS[name] = TRAINING.format(between=indent(between, "        "))

ITEMS = """\
import torch

def train(loader):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    one = torch.optim.SGD(model[{first}].parameters(), 0.1)
    two = torch.optim.SGD(model[{second}].parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        one.zero_grad()
        two.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(one)
        torch.nn.utils.clip_grad_norm_(model[0].parameters(), 1.0)
        torch.nn.utils.clip_grad_norm_(model[1].parameters(), 1.0)  # AMP201
        scaler.step(one)
        scaler.step(two)
        scaler.update()
"""
PROGRAMS["modules within a module"] = ITEMS.format(first=0, second=1)
PROGRAMS["modules within a module, from its end"] = ITEMS.format(first=-2, second=-1)

#: One result is from a bfloat16 region, which needs no scaler, and the other from another region.
RESULTS = """\
import torch

def train(loader, net):
    model, head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            one = {one}
        with torch.autocast("cuda", dtype=torch.{dtype}):
            two = {two}
        loss = {loss}
        scaler.scale(loss).backward(){mark}
        scaler.step(optimizer)
        scaler.update()
"""
for name, one_result, two, loss in (
    ("a sum of results", "model(x).mean()", "head(x).mean()", "one + two"),
    ("what unknown code makes of results", "model(x)", "head(x)", "net(one, two)"),
    ("what unknown code makes of results of other unknown code", "net(x)", "net(x, 2)", "net(one, two)"),
):
    for dtype, mark in (("float16", ""), ("bfloat16", "  # AMP503")):
        PROGRAMS[f"{name}, where one is of {dtype}"] = RESULTS.format(
            one=one_result, two=two, loss=loss, dtype=dtype, mark=mark
        )

#: Two results, the first computed outside of regions.
BARE = """\
import torch

def train(loader):
    model, head = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        one = model(x).mean(){mark}
        with torch.autocast("cuda"):
            two = head(x).mean()
        scaler.scale({loss}).backward()
        scaler.step(optimizer)
        scaler.update()
"""
for loss, mark in (("one + two", ""), ("two + one", ""), ("two", ""), ("one", "  # AMP110")):
    PROGRAMS[f"of a result of no region and another of one, {loss}"] = BARE.format(loss=loss, mark=mark)

PROGRAMS["groups of parameters"] = """\
import torch

def train(one, two, loader):
    first = torch.optim.SGD([{"params": one.parameters(), "lr": 0.1}], 0.1)
    second = torch.optim.SGD([{"params": two.parameters()}], 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        first.zero_grad()
        second.zero_grad()
        with torch.autocast("cuda"):
            loss = one(x).mean() + two(x).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(first)
        torch.nn.utils.clip_grad_norm_(one.parameters(), 1.0)
        torch.nn.utils.clip_grad_norm_(two.parameters(), 1.0)  # AMP201
        scaler.step(first)
        scaler.step(second)
        scaler.update()
"""
#: Other code has the scaler, so that unknown entries may hold its state.
STATE = """\
import torch

def train(model, loader, optimizer, path, given, epoch):
    scaler = torch.amp.GradScaler("cuda")
    given.watch(scaler)
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    state = {{"model": model.state_dict(), "optimizer": optimizer.state_dict()}}{mark}
    state.update({given})
    torch.save(state, path)
"""
for name, given, wrong in (
    ("a dict", "{'epoch': epoch}", True),
    ("a dict that may hold more", "{'epoch': epoch, **given}", False),
    ("what nobody knows", "given", False),
    ("pairs", "[('epoch', epoch)]", True),
    ("pairs of which one is the scaler's", "[('scaler', scaler.state_dict())]", False),
    ("what may be a pair", "[given]", False),
    ("pairs that may be more", "[('epoch', epoch), *given]", False),
    ("a pair of which the key is not known", "[(given, epoch)]", False),
    ("a name", "epoch=epoch", True),
    ("names that may be more", "**given", False),
):
    PROGRAMS[f"a state that is updated with {name}"] = STATE.format(given=given, mark="  # AMP401" if wrong else "")

#: A manual step is correct after a check of the norm of exactly these gradients.
NORMS = """\
import torch

def train(one, two, loader):
    first, second = torch.optim.SGD(one.parameters(), 0.1), torch.optim.SGD(two.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        first.zero_grad()
        second.zero_grad()
        with torch.autocast("cuda"):
            loss = one(x).mean() + two(x).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(first)
        scaler.unscale_(second)
        a = torch.nn.utils.clip_grad_norm_(one.parameters(), 1.0)
        b = torch.nn.utils.clip_grad_norm_(two.parameters(), 1.0)
        if torch.isfinite({norm}):
            first.step(){unlooked}
            second.step(){unseen}
        scaler.update()
"""
PROGRAMS["a look at both norms"] = NORMS.format(norm="a + b", unlooked="", unseen="")
PROGRAMS["a look at the first norm"] = NORMS.format(norm="a", unlooked="", unseen="  # AMP204")
PROGRAMS["a look at the second norm"] = NORMS.format(norm="b", unlooked="  # AMP204", unseen="")


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_has_exactly_its_marks(source: str) -> None:
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)
