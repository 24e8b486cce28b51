"""Ops that autocast runs in low precision: a single list, for every spelling of an op."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import torch
import torch.nn.functional as F
from torch import nn

encoder = nn.Linear(8, 8)
optimizer = torch.optim.Adam(encoder.parameters())
scaler = torch.amp.GradScaler("cuda")


def train(loader, mask, k, y):
    for q, target in loader:
        optimizer.zero_grad()
        with torch.autocast("DEVICE", dtype=torch.float16):
            q = encoder(q)
            scores = SPELLED
            scores = scores.masked_fill(mask, -1e9)
            loss = F.cross_entropy(scores, target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
#: Spellings of ops that CUDA and the CPU run in low precision.
BOTH = """
q @ k
q.__matmul__(k)
q.matmul(k)
q.mm(k)
q.bmm(k)
q.addmm(y, k)
q.addbmm(y, k)
q.baddbmm(y, k)
torch.matmul(q, k)
torch.linalg.matmul(q, k)
torch.mm(q, k)
torch.bmm(q, k)
torch.addmm(y, q, k)
torch.addbmm(y, q, k)
torch.baddbmm(y, q, k)
torch.einsum("ij,jk->ik", q, k)
torch.prelu(q, k)
q.prelu(k)
torch.conv1d(q, k)
torch.conv_transpose1d(q, k)
torch.conv_transpose3d(q, k)
torch.linalg.vecdot(q, k)
F.linear(q, k)
F.prelu(q, k)
F.conv2d(q, k)
F.conv_transpose2d(q, k)
F.scaled_dot_product_attention(q, k, y)
""".strip().splitlines()
#: Spellings of ops that only CUDA runs in low precision.
CUDA = """
q.mv(k)
q.addmv(y, k)
q.addr(y, k)
torch.mv(q, k)
torch.addmv(y, q, k)
torch.addr(y, q, k)
torch.chain_matmul(q, k)
torch.linalg.multi_dot([q, k])
""".strip().splitlines()
#: Spellings of ops that run in the dtypes of their arguments. Ops with two arguments use the wider dtype.
NEITHER = ["k + y", "torch.dot(k, y)", "k.dot(y)", "torch.cross(k, y)", "k.cumsum(0)", "torch.linalg.norm(k)"]
#: Methods that also occur on objects that are no tensors: on ``encoder`` they are parts of a module.
PARTS = ["self.prelu(k)", "self.linear(k)"]


def codes(spelled: str, device: str) -> list[str]:
    source = PROGRAM.replace("SPELLED", spelled).replace("DEVICE", device)
    return [finding.code for finding in check_source(source) if finding.code == "AMP506"]


@pytest.mark.parametrize("spelled", [*BOTH, *CUDA])
def test_low_on_cuda(spelled: str) -> None:
    assert codes(spelled, "cuda") == ["AMP506"]


@pytest.mark.parametrize("spelled", [s for s in BOTH if "q.prelu" not in s])
def test_low_of_what_came_in_from_outside(spelled: str) -> None:
    assert codes(spelled.replace("q", "y"), "cuda") == ["AMP506"]


@pytest.mark.parametrize("spelled", NEITHER)
def test_not_low(spelled: str) -> None:
    assert codes(spelled, "cuda") == []


@pytest.mark.parametrize("spelled", PARTS)
def test_a_part_of_a_module_may_be_called_as_an_op(spelled: str) -> None:
    source = PROGRAM.replace("SPELLED", spelled).replace("DEVICE", "cuda").replace("def train(", "def train(self, ")
    assert [finding.code for finding in check_source(source)] == []


@pytest.mark.parametrize("spelled", [s.replace("q", "y") for s in CUDA if "addr(" not in s])
def test_what_only_cuda_runs_low(spelled: str) -> None:
    assert codes(spelled, "cuda") == ["AMP506"]
    assert codes(spelled, "cpu") == []


#: Spellings of ops that autocast runs in float32 on low-precision results.
WIDE = """
torch.softmax(q @ k, -1)
F.log_softmax(torch.matmul(q, k), dim=-1)
q.matmul(k).softmax(-1)
q.matmul(k).log_softmax(-1)
torch.exp(F.linear(q, k))
(q @ k).pow(2)
(q @ k).cumsum(0)
F.softplus(q @ k)
""".strip().splitlines()
#: Expressions that are low all the same: they request another dtype, or the widening comes first.
LOW_AGAIN = """
torch.softmax(q @ k, -1, dtype=torch.float16)
torch.softmax(q @ k, -1) @ y
(q @ k).relu()
torch.relu(q @ k)
""".strip().splitlines()


@pytest.mark.parametrize("spelled", WIDE)
def test_what_autocast_widens_takes_the_number(spelled: str) -> None:
    assert codes(spelled, "cuda") == []


@pytest.mark.parametrize("spelled", LOW_AGAIN)
def test_what_autocast_leaves_low_does_not(spelled: str) -> None:
    assert codes(spelled, "cuda") == ["AMP506"]


def test_behind_the_region_nothing_widens() -> None:
    source = """\
import torch

def weights(q, k, mask):
    with torch.autocast("cuda", dtype=torch.float16):
        scores = torch.matmul(q, k)
    return torch.softmax(scores, -1).masked_fill(mask, -1e9)
"""
    assert [(finding.line, finding.code) for finding in check_source(source)] == [(6, "AMP506")]


WEIGHTED = """\
import torch
from torch import nn

class Upsampled(nn.Module):
    def __init__(self):
        super().__init__()
        self.mask = nn.Conv2d(3, 9, 3, padding=1)

    def combine(self, flow, mask):
        weights = {weights}
        return {product}

    def forward(self, image, flow):
        with torch.autocast("cuda", dtype=torch.float16):
            mask = 0.25 * self.mask(image)
            {inside}
        return {after}
"""


@pytest.mark.parametrize(
    ("parts", "lines"),
    [
        ({}, [10]),
        ({"weights": "mask.view(1, 9, 8, 8).softmax(1)"}, [10]),
        ({"product": "torch.einsum('nchw,nchw->nhw', weights, flow)"}, [10]),
        ({"weights": "torch.softmax(mask, dim=1, dtype=torch.float32)"}, []),
        ({"weights": "torch.softmax(mask.float(), dim=1)"}, []),
        ({"product": "weights.argmax(1)"}, []),
        ({"inside": "out = self.combine(flow, mask)", "after": "out"}, []),
    ],
)
def test_weights_of_a_softmax_behind_the_region(parts: dict[str, str], lines: list[int]) -> None:
    usual = {"weights": "torch.softmax(mask, dim=1)", "product": "torch.sum(weights * flow, dim=1)"}
    source = WEIGHTED.format(**{**usual, "inside": "pass", "after": "self.combine(flow, mask)", **parts})
    assert [finding.line for finding in check_source(source) if finding.code == "AMP507"] == lines


def test_an_evaluation_may_round_its_probabilities() -> None:
    source = WEIGHTED.format(
        weights="torch.softmax(mask, dim=1)", product="weights * flow", inside="pass", after="self.combine(flow, mask)"
    )
    source = source.replace("    def forward", "    @torch.no_grad()\n    def forward")
    assert [finding.line for finding in check_source(source) if finding.code == "AMP507"] == []
