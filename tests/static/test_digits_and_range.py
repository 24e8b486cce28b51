"""Computations that need more digits or more range than low precision has, on the output of a layer in a region."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from pytest_amp_check.static.engine import check_paths

#: A model whose forward computes something with the outputs ``h`` and ``g`` of two layers, and its training.
PROGRAM = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, dim=64, classes=512):
        super().__init__()
        self.first = nn.Linear(dim, classes)
        self.second = nn.Linear(dim, classes)
        {made}

    def forward(self, x, y, index):
        h = self.first(x)
        g = self.second(x)
{body}
        return out


def main(loader):
    net = Net().cuda()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
    {scaler}
    for x, y, index in loader:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.{low}):
            loss = net(x, y, index)
        {step}
"""
#: Scaler and step in each dtype.
STEPS = {
    "float16": {
        "scaler": 'scaler = torch.amp.GradScaler("cuda")',
        "step": "scaler.scale(loss).backward(); scaler.step(opt); scaler.update()",
    },
    "bfloat16": {"scaler": "pass", "step": "loss.backward(); opt.step()"},
}
BOTH = ("float16", "bfloat16")
HALF = ("float16",)
LEVELS = "torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)"
BASIS = "basis = torch.tensor([1, 8, 40, 200], device=h.device)"
#: Code, dtypes in which it is wrong, what the constructor makes, the wrong and the right body.
CASES: dict[str, tuple[str, tuple[str, ...], str, str, str]] = {
    "ids of a quantizer": (
        "AMP509",
        BOTH,
        "",
        f"{BASIS}\nids = (h[..., :4].round() * basis).sum(-1).long()\nout = g.gather(1, ids[:, None]).float().mean()",
        (
            f"{BASIS}\nids = (h[..., :4].float().round() * basis).sum(-1).long()\n"
            "out = g.gather(1, ids[:, None]).float().mean()"
        ),
    ),
    "ids of a quantizer, with a cast of the basis": (
        "AMP509",
        BOTH,
        "self.register_buffer('basis', torch.tensor([1, 8, 40, 200]))",
        "ids = (h[..., :4].round() * self.basis.to(h.dtype)).sum(-1).to(torch.int64)\nout = g[ids].float().mean()",
        "ids = (h[..., :4].round().float() * self.basis).sum(-1).to(torch.int64)\nout = g[ids].float().mean()",
    ),
    "a sum by index into zeros of the same dtype": (
        "AMP508",
        BOTH,
        "",
        (
            "pooled = torch.zeros(100, h.shape[1], device=h.device, dtype=h.dtype)\n"
            "pooled.index_add_(0, index, h)\nout = pooled.float().mean()"
        ),
        (
            "pooled = torch.zeros(100, h.shape[1], device=h.device)\n"
            "pooled.index_add_(0, index, h.float())\nout = pooled.mean()"
        ),
    ),
    "a scattered sum in one expression": (
        "AMP508",
        BOTH,
        "",
        "out = h.new_zeros(100, 512).scatter_reduce(0, index, h, reduce='sum').float().mean()",
        "out = h.float().new_zeros(100, 512).scatter_reduce(0, index, h.float(), reduce='sum').mean()",
    ),
    "the largest of scattered values": (
        "",
        BOTH,
        "",
        "out = h.new_zeros(100, 512).scatter_reduce(0, index, h, reduce='amax').float().mean()",
        "",
    ),
    "a cumulative sum with a low dtype": (
        "AMP508",
        BOTH,
        "",
        "out = torch.cumsum(h, dim=-1, dtype=torch.LOW).float().mean()",
        "out = torch.cumsum(h, dim=-1, dtype=torch.float32).mean()",
    ),
    "a running mean in a low buffer": (
        "AMP508",
        BOTH,
        "self.register_buffer('mean', torch.zeros(classes, dtype=torch.LOW))",
        "self.mean.mul_(0.999).add_(h.detach().mean(0), alpha=0.001)\nout = (h - self.mean).float().mean()",
        "",
    ),
    "an interpolated mean in a low buffer": (
        "AMP508",
        BOTH,
        "self.register_buffer('mean', torch.zeros(classes, dtype=torch.LOW))",
        "self.mean = torch.lerp(self.mean, h.detach().mean(0), 0.001)\nout = (h - self.mean).float().mean()",
        "",
    ),
    "a running mean in a float32 buffer": (
        "",
        BOTH,
        "self.register_buffer('mean', torch.zeros(classes))",
        "self.mean.mul_(0.999).add_(h.detach().float().mean(0), alpha=0.001)\nout = (h - self.mean).float().mean()",
        "",
    ),
    "a ratio of cast log-probabilities": (
        "AMP507",
        BOTH,
        "",
        (
            "a = torch.log_softmax(h.float(), -1).to(torch.LOW)\nb = torch.log_softmax(g.float(), -1)\n"
            "out = torch.exp(b - a).float().mean()"
        ),
        "a = torch.log_softmax(h.float(), -1)\nb = torch.log_softmax(g.float(), -1)\nout = torch.exp(b - a).mean()",
    ),
    "a ratio of log-probabilities by name": (
        "AMP507",
        BOTH,
        "",
        (
            "old_log_probs = y.to(torch.LOW)\nlogp = torch.log_softmax(h.float(), -1)\n"
            "out = torch.exp(logp - old_log_probs).mean()"
        ),
        "old_log_probs = y.float()\nlogp = h.float().log_softmax(-1)\nout = torch.exp(logp - old_log_probs).mean()",
    ),
    "a logarithm of cast probabilities": (
        "AMP507",
        HALF,
        "",
        "p = F.softmax(h, -1).to(torch.LOW)\nout = -(p * p.log()).sum(-1).float().mean()",
        "p = F.log_softmax(h.float(), -1)\nout = -(p.exp() * p).sum(-1).mean()",
    ),
    "a loss where autocast is switched off": (
        "AMP507",
        BOTH,
        "",
        "with torch.autocast('cuda', enabled=False):\n    out = F.cross_entropy(h, y)",
        "with torch.autocast('cuda', enabled=False):\n    out = F.cross_entropy(h.float(), y)",
    ),
    "a squared distance by a product": (
        "AMP507",
        BOTH,
        "",
        "d = (h ** 2).sum(-1, keepdim=True) + (g ** 2).sum(-1) - 2 * h @ g.T\nout = d.min(-1).values.float().mean()",
        "out = torch.cdist(h.float(), g.float()).min(-1).values.mean()",
    ),
    "an area of boxes": (
        "AMP507",
        HALF,
        "",
        "x1, y1, x2, y2 = (h[:, :4] * 1024).unbind(-1)\narea = (x2 - x1) * (y2 - y1)\nout = area.float().mean()",
        "x1, y1, x2, y2 = (h[:, :4].float() * 1024).unbind(-1)\narea = (x2 - x1) * (y2 - y1)\nout = area.mean()",
    ),
    "an area of clamped boxes": (
        "AMP507",
        HALF,
        "",
        (
            "boxes = h[:, :4]\n"
            "area = (boxes[:, 2] - boxes[:, 0]).clamp(min=0) * (boxes[:, 3] - boxes[:, 1]).clamp(min=0)\n"
            "out = area.float().mean()"
        ),
        (
            "boxes = h[:, :4].float()\n"
            "area = (boxes[:, 2] - boxes[:, 0]).clamp(min=0) * (boxes[:, 3] - boxes[:, 1]).clamp(min=0)\n"
            "out = area.mean()"
        ),
    ),
    "a product of centered values": (
        "",
        BOTH,
        "",
        "a, b = h - 1, g - 1\nout = ((h - a) * (g - b)).float().mean()",
        "",
    ),
    "a table replaced by its low copy": (
        "AMP509",
        BOTH,
        f"self.levels = {LEVELS}",
        "self.levels = self.levels.to(h.dtype)\nout = (h * self.levels[index]).float().mean()",
        "levels = self.levels.to(h.dtype)\nout = (h * levels[index]).float().mean()",
    ),
    "a table moved to the device": (
        "",
        BOTH,
        f"self.levels = {LEVELS}",
        "self.levels = self.levels.to(h.device)\nout = (h * self.levels[index]).float().mean()",
        "",
    ),
    "one minus a low level of noise": (
        "AMP507",
        BOTH,
        f"self.register_buffer('levels', {LEVELS})",
        "a = self.levels.to(h.dtype)[index]\nout = (h.float() * (a / (1 - a)).float()).mean()",
        "a = self.levels[index]\nout = (h.float() * (a / (1 - a))).mean()",
    ),
    "a choice of experts by cast scores with a bias": (
        "AMP507",
        BOTH,
        "self.register_buffer('bias', torch.zeros(classes))",
        (
            "scores = F.softplus(h.float()).sqrt().to(h.dtype) + self.bias.to(h.dtype)\n"
            "chosen = scores.topk(8, dim=-1).indices\nout = g.gather(1, chosen).float().mean()"
        ),
        (
            "scores = F.softplus(h.float()).sqrt() + self.bias\nchosen = scores.topk(8, dim=-1).indices\n"
            "out = g.gather(1, chosen).float().mean()"
        ),
    ),
    "positions at equal distances": (
        "AMP509",
        BOTH,
        "",
        (
            "at = torch.linspace(0, 4096, 512, device=h.device).to(h.dtype)\n"
            "out = (h.float() * torch.sin(at) + torch.cos(at)).mean()"
        ),
        "at = torch.linspace(0, 4096, 512, device=h.device)\nout = (h.float() * torch.sin(at) + torch.cos(at)).mean()",
    ),
}


def program(body: str, made: str, low: str) -> str:
    text = PROGRAM.format(made=made or "pass", body=textwrap.indent(body, " " * 8), low=low, **STEPS[low])
    return text.replace("torch.LOW", f"torch.{low}")


def codes(text: str, folder: Path) -> list[str]:
    (folder / "train.py").write_text(text, encoding="utf-8")
    return [finding.code for finding in check_paths([folder]).findings]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("low", BOTH)
def test_a_computation(name: str, low: str, tmp_path: Path) -> None:
    code, lows, made, wrong, right = CASES[name]
    assert codes(program(wrong, made, low), tmp_path) == ([code] if code and low in lows else [])
    if right:
        assert codes(program(right, made, low), tmp_path) == []


#: A package without `__init__.py`, whose trainer enters the region around a model that it receives.
TRAINER = """
import torch


class Trainer:
    def __init__(self, model, loader, opt):
        self.model, self.loader, self.opt = model, loader, opt
        self.scaler = torch.amp.GradScaler("cuda")

    def train(self):
        for x, boxes in self.loader:
            self.opt.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.model(x, boxes)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.opt)
            self.scaler.update()
"""
SCRIPT = """
import torch
from kit.engine.trainer import Trainer
from kit.model import Net


def main(loader):
    model = Net()
    Trainer(model, loader, torch.optim.SGD(model.parameters(), lr=0.1)).train()
"""
MODEL = """
from torch import nn
from kit.ops.lib import compute


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(256, 4)

    def forward(self, x, boxes):
        return compute(self.head(x), boxes)
"""
LIBRARY = {
    "areas": (
        "AMP507",
        (
            "def compute(boxes: torch.Tensor, other):\n"
            "    x1, y1, x2, y2 = boxes{wide}.unbind(-1)\n"
            "    area = (x2 - x1) * (y2 - y1)  # mark\n"
            "    return (1 - area / (area + 1e-3)).mean()\n"
        ),
    ),
    "a bound below one": (
        "AMP505",
        (
            "import torch\n\ndef compute(logits, other):\n"
            "    p = torch.sigmoid(logits{wide}).clamp(max=1.0 - 1e-6)  # mark\n"
            "    return torch.log1p(-p.float()).mean()\n"
        ),
    ),
    "a pooled sum": (
        "AMP508",
        (
            "import torch\nfrom torch import nn\n\n"
            "class Readout(nn.Module):\n"
            "    def __init__(self):\n"
            "        super().__init__()\n"
            "        self.head = nn.Linear(4, 4)\n\n"
            "    def pool(self, values, graphs):\n"
            "        out = torch.zeros(8, 4, dtype=values.dtype, device=values.device)\n"
            "        out.index_add_(0, graphs, values)  # mark\n"
            "        return out.float().mean()\n\n"
            "    def forward(self, x, graphs):\n"
            "        return self.pool(self.head(x){wide}, graphs)\n\n"
            "def compute(x, graphs):\n"
            "    return Readout()(x, graphs)\n"
        ),
    ),
}


@pytest.mark.parametrize("name", LIBRARY)
@pytest.mark.parametrize("wide", ["", ".float()"])
def test_a_library_is_noted_where_the_project_enters_a_region(name: str, wide: str, tmp_path: Path) -> None:
    code, text = LIBRARY[name]
    text = "import torch\n" * ("import torch" not in text) + text.replace("{wide}", wide)
    for path, source in (
        ("kit/engine/trainer.py", TRAINER),
        ("kit/model.py", MODEL),
        ("kit/ops/lib.py", text),
        ("main.py", SCRIPT),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(source, encoding="utf-8")
    line = next(number for number, row in enumerate(text.splitlines(), 1) if "# mark" in row)
    found = [
        (each.filename, each.line, each.code, each.severity, each.certain) for each in check_paths([tmp_path]).findings
    ]
    assert found == ([] if wide else [(str(tmp_path / "kit/ops/lib.py"), line, code, "info", False)])


POOLED = """
import torch
from torch import nn
from torch_scatter import scatter


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x, index):
        return scatter(self.first(x){wide}, index, dim=0, reduce="{reduce}").float().mean()


def main(loader):
    net = Pool()
    opt = torch.optim.AdamW(net.parameters())
    for x, index in loader:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = net(x, index)
        loss.backward()
        opt.step()
"""


@pytest.mark.parametrize(
    ("wide", "reduce", "expected"),
    [("", "sum", ["AMP508"]), ("", "mean", ["AMP508"]), ("", "max", []), (".float()", "sum", [])],
)
def test_a_package_for_graphs_sums_in_the_dtype_of_its_input(
    wide: str, reduce: str, expected: list[str], tmp_path: Path
) -> None:
    assert codes(POOLED.replace("{wide}", wide).replace("{reduce}", reduce), tmp_path) == expected


ROUTED = """
import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x, index):
        h = self.first(x)
        out = torch.zeros_like(h)
        out.index_add_(0, index, h)
        return out.float().mean()


def main(model, loader):
    net = Experts()
    opt = torch.optim.AdamW(net.parameters())
    for x, index in loader:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = net(x, index)
        loss.backward()
        opt.step()
"""


def test_outputs_of_a_few_experts_are_put_together(tmp_path: Path) -> None:
    assert codes(ROUTED, tmp_path) == []
    assert codes(ROUTED.replace("Experts", "Pool"), tmp_path) == ["AMP508"]
