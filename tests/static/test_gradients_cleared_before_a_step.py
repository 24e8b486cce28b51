"""AMP215 for gradients that are cleared between a backward and a step without a scaler."""

from __future__ import annotations

import pytest

from pytest_amp_check import check_source

HEAD = "import torch\nfrom torch import nn\n"
BF16 = """
def train(net, data, buffer, kept):
    optimizer = torch.optim.Adam(net.parameters())
    for x in data:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = net(x).mean()
        loss.backward()
        {between}
        optimizer.step()
"""
ENGINE = """
from accelerate import Accelerator

class Trainer(nn.Module):
    def __init__(self, net, data):
        super().__init__()
        self.accelerator = Accelerator({precision})
        {check}
        self.net = net
        self.optimizer = torch.optim.Adam(net.parameters())
        self.net, self.optimizer = self.accelerator.prepare(self.net, self.optimizer)
        self.data = data

    def forward(self):
        for x in self.data:
            self.accelerator.backward(self.net(x))
            self.optimizer.zero_grad()
            self.optimizer.step()
"""


def lines_of(text: str) -> list[int]:
    return [finding.line for finding in check_source(HEAD + text) if finding.code == "AMP215"]


@pytest.mark.parametrize(
    "between",
    [
        "optimizer.zero_grad()",
        "optimizer.zero_grad(set_to_none=False)",
        "net.zero_grad()",
        "optimizer.zero_grad()\n        print(loss.item())",
        "optimizer.zero_grad()\n        nn.utils.clip_grad_norm_(net.parameters(), 1.0)",
    ],
)
def test_gradients_that_are_cleared_before_a_plain_step(between: str) -> None:
    assert lines_of(BF16.format(between=between)) == [10]


@pytest.mark.parametrize(
    "between",
    [
        "pass",
        (
            "grads = [p.grad.clone() for p in net.parameters()]\n"
            "        optimizer.zero_grad()\n"
            "        for p, g in zip(net.parameters(), grads):\n"
            "            p.grad = g"
        ),
        "buffer.store(net)\n        optimizer.zero_grad()\n        buffer.restore()",
        "grads = kept(net)\n        optimizer.zero_grad()\n        grads.put_back()",
        "if torch.isnan(loss):\n            optimizer.zero_grad()",
        "optimizer.zero_grad()\n        net(x).sum().backward()",
    ],
)
def test_gradients_that_the_step_finds(between: str) -> None:
    assert lines_of(BF16.format(between=between) + "        optimizer.zero_grad()\n") == []


@pytest.mark.parametrize(
    "check",
    [
        "pass",
        "assert net.folder.is_dir()",
        "if not net.folder.is_dir():\n            raise ValueError(net)",
        "if net.is_broken:\n            raise SystemExit(1)",
    ],
)
@pytest.mark.parametrize("precision", ["", '"fp16"', 'mixed_precision="fp16"', 'mixed_precision="bf16"'])
def test_a_constructor_that_may_raise_still_prepares_the_optimizer(check: str, precision: str) -> None:
    text = ENGINE.format(check=check, precision=precision)
    assert lines_of(text) == [(HEAD + text).split("\n").index("            self.optimizer.zero_grad()") + 1]


def test_an_optimizer_that_only_some_constructions_prepare_is_not_certain() -> None:
    text = ENGINE.format(check="if not net.prepared:\n            return", precision='mixed_precision="fp16"')
    assert all(not finding.certain for finding in check_source(HEAD + text) if finding.code == "AMP215")
