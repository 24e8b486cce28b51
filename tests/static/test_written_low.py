"""Values that the code itself casts to a low dtype, also in files that train nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check.static.engine import check_paths, check_source

HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
ROTARY = """\
class Rotary(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, dim, 2).float() / dim), persistent=False)

    def forward(self, x):
        {positions}
        angles = positions[:, None] * self.inv_freq[None, :].to(positions.dtype)
        return angles.cos().to(x.dtype)


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, dim)
        self.rotary = Rotary(dim)

    def forward(self, x):
        q = self.qkv(x)
        return q * self.rotary(q)
"""
LOW_POSITIONS = "positions = torch.arange(x.shape[1], dtype=x.dtype)"
WIDE_POSITIONS = "positions = torch.arange(x.shape[1], dtype=torch.float32)"
EVALUATE = """\
def evaluate(net, loader):
    total = torch.zeros((), dtype=torch.{dtype})
    for x, y in loader:
        total += F.mse_loss(net(x), y, reduction="sum")
    return total.item()
"""
TRAIN = """\
def main(loader):
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
    print(evaluate(net, loader))
"""


def found_in(body: str) -> list[tuple[str, int]]:
    """Return code and line, from 1 in the body, of each finding."""
    return [(f.code, f.line - HEAD.count("\n")) for f in check_source(HEAD + body, "run.py")]


def found_by_name(folder: Path, files: dict[str, str]) -> list[tuple[str, str, int]]:
    """Return code, file name and line of each finding in a folder of files."""
    for name, text in files.items():
        (folder / name).write_text(text)
    return [(f.code, Path(f.filename).name, f.line) for f in check_paths([str(folder)]).findings]


@pytest.mark.parametrize("rest", ["", TRAIN], ids=["by itself", "called by a training"])
@pytest.mark.parametrize(("dtype", "found"), [("float16", [("AMP508", 4)]), ("float32", []), ("float64", [])])
def test_a_sum_that_starts_from_zeros(dtype: str, found: list[tuple[str, int]], rest: str) -> None:
    """The caller trains with the model, so that the function is analyzed twice."""
    assert found_in(EVALUATE.format(dtype=dtype) + rest) == found


@pytest.mark.parametrize(
    "use",
    [
        "net = Attention(64).bfloat16()\n    return [net(x.bfloat16()) for x in loader]",
        "net = Attention(64)\n    net.to('cuda', torch.bfloat16)\n    for x in loader:\n        net(x)",
        "net = Attention(64).cuda()\n    for x in loader:\n        net(x.to(torch.float16))",
        "net = Rotary(64).cuda()\n    for x in loader:\n        net(x.half())",
    ],
)
@pytest.mark.parametrize(("positions", "found"), [(LOW_POSITIONS, ["AMP509"]), (WIDE_POSITIONS, [])])
def test_positions_in_a_part_of_a_cast_model(use: str, positions: str, found: list[str]) -> None:
    body = ROTARY.format(positions=positions).replace("self.inv_freq[None, :]", "self.make()[None, :]")
    body = body.replace(
        "    def forward(self, x):\n        pos",
        "    def make(self):\n        return FREQ\n\n    def forward(self, x):\n        pos",
    )
    made = found_in(f"{body}\n\ndef run(loader):\n    {use}\n")
    assert [code for code, _ in made] == found


@pytest.mark.parametrize(
    ("cast", "found"),
    [(".to('cuda', torch.bfloat16)", [("AMP509", 4)]), (".half()", [("AMP509", 4)]), (".cuda()", [])],
)
def test_a_buffer_of_frequencies_that_a_cast_rounds(cast: str, found: list[tuple[str, int]]) -> None:
    body = ROTARY.format(positions=WIDE_POSITIONS)
    assert found_in(f"{body}\n\ndef run(x):\n    return Attention(64){cast}.eval()(x.bfloat16())\n") == found


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("scores = logits.softmax(-1, dtype=torch.float32).to(x.dtype)\n    return scores.topk(2)", [("AMP507", 5)]),
        ("scores, best = logits.softmax(-1, dtype=torch.float32).topk(2)\n    return scores.to(x.dtype), best", []),
    ],
)
def test_scores_of_a_softmax_in_float32(lines: str, found: list[tuple[str, int]]) -> None:
    body = f"def route(gate, x):\n    x = x.bfloat16()\n    logits = x @ gate\n    {lines}\n"
    assert found_in(body) == found


def test_a_softmax_in_a_written_dtype() -> None:
    body = "def attend(scores, value):\n    return torch.softmax(scores, -1, dtype=torch.float16) @ value\n"
    assert found_in(body) == [("AMP507", 2)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("operand", "found"), [("rates", ["AMP509"]), ("None", [])])
def test_angles_in_the_model_of_another_file(dtype: str, operand: str, found: list[str], tmp_path: Path) -> None:
    """The region stands in the file that trains."""
    product = "torch.einsum('i,j->ij', t, self.inv_freq)" if operand == "rates" else "t[:, None] * self.inv_freq"
    model = (
        "import torch\nfrom torch import nn\n\n\nclass Rotary(nn.Module):\n    def __init__(self, dim):\n"
        "        super().__init__()\n"
        "        self.register_buffer('inv_freq', 10000 ** -(torch.arange(0, dim, 2).float() / dim))\n\n"
        f"    def forward(self, n):\n        t = torch.arange(n, dtype=torch.float32)\n        return {product}.cos()\n"
    )
    train = (
        "import torch\nfrom model import Rotary\n\n\ndef main(loader):\n    net = Rotary(64)\n    for n in loader:\n"
        f"        with torch.autocast('cuda', dtype=torch.{dtype}):\n            y = net(n)\n"
    )
    assert [code for code, _, _ in found_by_name(tmp_path, {"model.py": model, "train.py": train})] == found


HELPER = """\
import torch


def build():
    return torch.amp.GradScaler("cuda"), torch.autocast("cuda", dtype=torch.float16)


def run_backward(scaler, loss):
    scaler.scale(loss).backward()


def apply(scaler, optimizer):
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
WINDOW = """\
import torch
from torch import nn
import helper


def main(loader, k=4):
    scaler, region = helper.build()
    net = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(net.parameters())
    for n, (x, y) in enumerate(loader, 1):
        with region:
            loss = nn.functional.mse_loss(net(x), y){division}
        helper.run_backward(scaler, loss)
        if n % k == 0:
            helper.apply(scaler, optimizer)
"""


@pytest.mark.parametrize(("division", "found"), [("", ["AMP301"]), (" / k", [])])
def test_a_window_whose_steps_are_helpers_of_another_file(division: str, found: list[str], tmp_path: Path) -> None:
    """No word of the caller's file belongs to mixed precision."""
    files = {"helper.py": HELPER, "run.py": WINDOW.format(division=division)}
    assert [code for code, _, _ in found_by_name(tmp_path, files)] == found


TRAINER = """\
import torch
from torch import nn


class Trainer:
    def __init__(self, net, dtype):
        self.net = net
        self.dtype = dtype
        self.optimizer = torch.optim.Adam(net.parameters())
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", dtype=self.dtype):
                loss = nn.functional.mse_loss(self.net(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
"""


@pytest.mark.parametrize(("dtype", "found"), [("bfloat16", ["AMP503"]), ("float16", [])])
def test_a_dtype_that_another_file_chooses(dtype: str, found: list[str], tmp_path: Path) -> None:
    head = "import torch\nfrom trainer import Trainer\n\n\n"
    use = f"{head}def main(net, loader):\n    Trainer(net, torch.{dtype}).fit(loader)\n"
    assert [code for code, _, _ in found_by_name(tmp_path, {"trainer.py": TRAINER, "main.py": use})] == found
