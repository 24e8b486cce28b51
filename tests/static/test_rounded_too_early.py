"""Numbers that are rounded before they are scaled or summed, and averages of weights in low precision."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

REGION = """\
import torch
from torch import nn
from copy import deepcopy

SCALE = 1000.0
model = nn.Linear(8, 1)
with torch.autocast("cuda", dtype=torch.bfloat16):
    y = model(x)
"""


def said(body: str, code: str, head: str = REGION) -> list[tuple[int, str]]:
    """Return line (from 1 in the body) and severity of each finding."""
    findings = check_source(head + body, "train.py")
    return [(f.line - head.count("\n"), f.severity) for f in findings if f.code == code]


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("sigma.to(torch.bfloat16) * 1000", "warning"),
        ("sigma.to(dtype=torch.bfloat16) * SCALE", "warning"),
        ("SCALE * sigma.bfloat16()", "warning"),
        ("(sigma * SCALE).to(torch.bfloat16)", ""),
        ("sigma.float() * 1000", ""),
        ("sigma.half() * 1000", ""),
        ("sigma.to(torch.bfloat16) * 1024", ""),
        ("sigma.to(torch.bfloat16) * 8.5", ""),
        ("sigma.to(torch.bfloat16) * scale", ""),
    ],
)
def test_a_step_is_scaled_before_it_is_rounded(expression: str, found: str) -> None:
    assert said(f"t = {expression}\n", "AMP509") == ([(1, found)] if found else [])


@pytest.mark.parametrize(
    ("start", "statement", "found"),
    [
        ("torch.zeros((), dtype=y.dtype)", "total = total + (a - b.to(a.dtype)).sum()", True),
        ("torch.zeros((), dtype=y.dtype)", "total += (a - b.to(a.dtype)).sum()", True),
        ("torch.zeros((), dtype=torch.float32)", "total = total + (a - b.to(a.dtype)).sum()", False),
        ("torch.zeros((), dtype=y.dtype)", "total = a - b", False),
        ("0.0", "total = total + (a - b.to(a.dtype)).sum()", False),
    ],
)
def test_a_sum_over_the_parts_of_a_tensor(start: str, statement: str, found: bool) -> None:
    body = f"total = {start}\nfor a, b in zip(y.split(1), old.split(1)):\n    {statement}\n"
    assert said(body, "AMP508") == ([(3, "info")] if found else [])


UPDATES = """\
    def update(self, model):
        for name, value in self.ema.state_dict().items():
            value *= 0.999
            value += 0.001 * model.state_dict()[name]
"""


@pytest.mark.parametrize(
    ("init", "update", "line"),
    [
        ("self.ema = deepcopy(model).half()", UPDATES, 3),
        ("self.ema = deepcopy(model).eval()\n        self.ema.half()", UPDATES, 4),
        ("self.ema = deepcopy(model).to('cpu', dtype=torch.bfloat16)", UPDATES, 3),
        (
            "self.ema = {k: v.detach().clone().bfloat16() for k, v in model.state_dict().items()}",
            "    def step(self, new):\n        for k in new:\n            self.ema[k].lerp_(new[k], 0.1)\n",
            3,
        ),
        (
            "self.ema = {k: v.clone().half() for k, v in model.state_dict().items()}",
            "    def step(self, new):\n        for k in new:\n            self.ema[k] = d * self.ema[k] + e * new[k]\n",
            3,
        ),
        ("self.ema = deepcopy(model)", UPDATES, 0),
        ("self.ema = deepcopy(model).float()", UPDATES, 0),
        ("self.ema = deepcopy(model).half()", "    def forward(self, x):\n        return self.ema(x)\n", 0),
        # A teacher in low precision, and losses that are scaled.
        (
            "self.ema = deepcopy(model).half()",
            (
                "    def step(self, x):\n        loss = (self.ema(x) - x).pow(2).mean()\n        loss *= 0.5\n"
                "        return loss\n"
            ),
            0,
        ),
        (
            "self.ema = deepcopy(model).half()",
            "    def step(self, x, w):\n        y = self.ema.encode(x)\n        return w * y + (1 - w) * x\n",
            0,
        ),
        (
            "self.ema = deepcopy(model).half()",
            (
                "    def step(self, new, d):\n        for e, p in zip(self.ema.parameters(), new.parameters()):\n"
                "            e.data.mul_(d).add_(p.data, alpha=1 - d)\n"
            ),
            3,
        ),
        (
            "self.ema = deepcopy(model).half()",
            (
                "    def step(self, new, d):\n        state = self.ema.state_dict()\n        for k, v in new.items():\n"
                "            state[k] = d * state[k] + (1 - d) * v\n"
            ),
            3,
        ),
        ("self.ema = deepcopy(model).half()\n        self.ema.float()", UPDATES, 0),
        ("self.ema = deepcopy(model).half()\n        self.ema.double()", UPDATES, 0),
        ("self.ema = deepcopy(model)\n        self.low = deepcopy(model).half()", UPDATES, 0),
        # The model itself, which is trained.
        ("self.ema = model.half()", UPDATES, 0),
        # An initial value that is scaled once.
        ("self.ema = deepcopy(model).half()\n        for p in self.ema.parameters():\n            p.mul_(0.5)", "", 0),
        # An attribute of another object.
        ("self.ema = deepcopy(model).half()", UPDATES.replace("self.ema", "self.model.ema"), 0),
        ("self.ema = deepcopy(model)\n        self.model.ema.half()", UPDATES, 0),
        ("self.ema = deepcopy(model)", UPDATES + "    def low(self):\n        return deepcopy(self.ema).half()\n", 0),
    ],
)
def test_an_average_of_weights(init: str, update: str, line: int) -> None:
    body = f"class Average:\n    def __init__(self, model):\n        {init}\n{update}"
    head = "import torch\nfrom copy import deepcopy\n"
    assert said(body, "AMP508", head) == ([(line, "warning")] if line else [])


@pytest.mark.parametrize(
    ("update", "line"),
    [
        ("mean = y if mean is None else 0.9 * mean + 0.1 * y", 9),
        ("mean = 0.9 * mean + 0.1 * y if mean is not None else y", 9),
        (
            "if mean is None:\n            mean = y\n        else:\n            mean = mean * (i / 9) + y / (i + 1)",
            12,
        ),
        ("if mean is not None:\n            mean = 0.9 * mean + 0.1 * y\n        else:\n            mean = y", 10),
        ("mean = y.float() if mean is None else 0.9 * mean + 0.1 * y.float()", 0),
        ("if mean is None:\n            mean = y.float()\n        else:\n            mean = 0.9 * mean + 0.1 * y", 0),
        # Another variable starts there, and another condition decides.
        ("if mean is None:\n            mean = other\n        else:\n            mean = 0.9 * mean + 0.1 * y", 0),
        ("mean = y if i == 0 else 0.9 * mean + 0.1 * y", 0),
    ],
)
def test_a_running_mean_that_starts_with_its_first_value(update: str, line: int) -> None:
    program = f"""\
import torch
from torch import nn
model = nn.Linear(32, 32).cuda()
mean = None
other = load()
for i in range(2000):
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        y = model(torch.randn(2, 32)).mean(0)
        {update}
"""
    found = [finding.line for finding in check_source(program) if finding.code == "AMP508"]
    assert found == ([line] if line else [])


MIXES = "for e, p in zip(average.parameters(), model.parameters()):"
HELPER = """
def follow(weights, model, decay=0.999):
    kept = OrderedDict(weights.named_parameters())
    for name, p in model.named_parameters():
        kept[name].mul_(decay).add_(p, alpha=1 - decay)

def mix(kept, model):
    follow(kept, model)

def mix_all(kept, model):
    mix(kept, model)
"""


@pytest.mark.parametrize(
    ("copy", "update", "is_found"),
    [
        ("average = deepcopy(model).bfloat16()", f"{MIXES}\n        e.lerp_(p, 0.01)", True),
        ("average = deepcopy(model).to(torch.float16)", f"{MIXES}\n        e.mul_(d).add_(p, alpha=1 - d)", True),
        ("average = deepcopy(model)\naverage.half()", f"{MIXES}\n        e *= d\n        e += (1 - d) * p", True),
        ("average = deepcopy(model).half()", f"{MIXES}\n        e.copy_(d * e + (1 - d) * p)", True),
        ("average = deepcopy(model).half()", "follow(average, model)", True),
        ("average = deepcopy(model).half()", "follow(model=model, weights=average)", True),
        ("average = deepcopy(model).half()", "mix(average, model)", True),
        # Functions of functions of functions are not read.
        ("average = deepcopy(model).half()", "mix_all(average, model)", False),
        ("average = deepcopy(model)", f"{MIXES}\n        e.lerp_(p, 0.01)", False),
        ("average = deepcopy(model).half().float()", f"{MIXES}\n        e.lerp_(p, 0.01)", False),
        # The weights are copied, or only the outputs are mixed.
        ("average = deepcopy(model).half()", f"{MIXES}\n        e.copy_(p)", False),
        ("average = deepcopy(model).half()", "y = 0.9 * average(x) + 0.1 * model(x)", False),
        # A tensor stays as it is, and its low copy goes elsewhere.
        ("average = weight.clone()", "average.mul_(d).add_(x)\n    torch.save(average.half(), path)", False),
        # Another model follows.
        ("teacher = deepcopy(model).half()", "follow(other, model)", False),
        # An initial value that is scaled once.
        ("average = deepcopy(model).half()\nfor p in average.parameters():\n    p.mul_(0.5)", "pass", False),
    ],
)
@pytest.mark.parametrize("place", ["module", "function"])
def test_an_average_in_a_variable(copy: str, update: str, is_found: bool, place: str) -> None:
    program = f"{copy}\nfor x in loader:\n    {update}\n"
    if place == "function":
        program = "def train(model, loader):\n" + "".join(f"    {line}\n" for line in program.splitlines())
    head = "import torch\nfrom collections import OrderedDict\nfrom copy import deepcopy\n" + HELPER
    found = [finding for finding in check_source(head + program) if finding.code == "AMP508"]
    assert len(found) == is_found
    assert all("keeps a moving average" in finding.message for finding in found)


@pytest.mark.parametrize(("cast", "dtype"), [("half", "float16"), ("bfloat16", "bfloat16")])
def test_an_average_without_deepcopy_and_its_message(cast: str, dtype: str) -> None:
    init = f"self.ema = {{k: v.clone().{cast}() for k, v in model.state_dict().items()}}"
    (finding,) = check_source(
        f"import torch\nclass Average:\n    def __init__(self, model):\n        {init}\n{UPDATES}"
    )
    assert (finding.code, finding.line) == ("AMP508", 4)
    assert finding.message == (
        f"`v.clone().{cast}()` keeps a moving average in {dtype}, where small updates round to nothing: call "
        "`.float()` where the average is created, and cast a copy where low precision is needed"
    )


WINDOW = """\
import torch
from torch import nn

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader):
    for batch, mask in loader:
        optimizer.zero_grad()
        {loop}:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = (model(x).float().squeeze(-1) - 1).square() * m
            {loss}
            loss.backward()
        optimizer.step()
"""
ZIP = "for x, m in zip(batch.split(8), mask.split(8))"


@pytest.mark.parametrize(
    ("loop", "loss", "found"),
    [
        (ZIP, "loss = loss.sum() / m.sum()", True),
        (ZIP, "loss = torch.sum(loss) / (m.sum() + 1e-8)", True),
        (ZIP, "loss = loss.sum() / m.sum().clamp(min=1)", True),
        ("for x, m in zip(batch.chunk(4), mask.chunk(4))", "loss = loss.sum() / m.sum()", True),
        ("for i, (x, m) in enumerate(zip(batch.split(8), mask.split(8)))", "loss = loss.sum() / m.sum()", True),
        (ZIP, "loss = loss.sum() / mask.sum()", False),
        (ZIP, "loss = loss.sum() / m.sum() / 4", False),
        (ZIP, "loss = loss.sum() / m.sum() * len(x) / len(batch)", False),
    ],
)
def test_a_masked_mean_of_each_micro_batch(loop: str, loss: str, found: bool) -> None:
    findings = check_source(WINDOW.format(loop=loop, loss=loss), "train.py")
    assert [(f.code, f.line) for f in findings] == ([("AMP301", 15)] if found else [])


AVERAGE = """\
import torch
from copy import deepcopy

class Average:
    def __init__(self, model, decay=0.99, dtype=None):
        {init}

    def update(self, model):
        for e, p in zip(self.ema.parameters(), model.parameters()):
            {update}

average = {call}
"""
INIT, UPDATE = "self.ema = deepcopy(model); self.ema.to({})", "e.lerp_(p, 0.1)"


@pytest.mark.parametrize(
    ("init", "update", "call", "is_found"),
    [
        (INIT.format("dtype"), UPDATE, "Average(model, dtype=torch.bfloat16)", True),
        (INIT.format("dtype=dtype"), UPDATE, "Average(model, 0.9, torch.float16)", True),
        (INIT.format("dtype"), "e *= 0.9; e += 0.1 * p", "Average(model, dtype=torch.bfloat16)", True),
        (INIT.format("dtype"), UPDATE, "Average(model, dtype=torch.float32)", False),
        (INIT.format("dtype"), UPDATE, "Average(model, torch.bfloat16)", False),
        (INIT.format("dtype"), UPDATE, "Average(model)", False),
        # Nothing is decayed, cast or copied.
        (INIT.format("dtype"), "e += 0.1 * p", "Average(model, dtype=torch.bfloat16)", False),
        (INIT.format("device"), UPDATE, "Average(model, dtype=torch.bfloat16)", False),
        ("self.ema = model; self.ema.to(dtype)", UPDATE, "Average(model, dtype=torch.bfloat16)", False),
        # It is cast elsewhere.
        (INIT.format("dtype"), UPDATE, "deepcopy(average, dtype=torch.bfloat16)", False),
    ],
)
def test_an_average_whose_dtype_its_caller_chooses(init: str, update: str, call: str, is_found: bool) -> None:
    program = AVERAGE.format(init=init, update=update, call=call)
    found = [(f.code, f.line) for f in check_source(program, "train.py")]
    assert found == [("AMP508", program.count("\n"))] * is_found
