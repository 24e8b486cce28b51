"""Dtype info follows a tensor through every name and every container."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest
from marks import marks, places, shown

from pytest_amp_check.static.engine import check_source

HEAD = """\
import torch
from torch import nn

encoder = nn.Linear(16, 16).cuda()
optimizer = torch.optim.AdamW(encoder.parameters())
scaler = torch.amp.GradScaler("cuda")
"""
#: Code that computes ``odds`` in a region from the low tensor ``code``.
WAYS = {
    "name": "raw = code\nodds = torch.sigmoid(raw)",
    "walrus": "print(odds := torch.sigmoid(code))",
    "walrus-in-test": "if (odds := torch.sigmoid(code)).numel() > 2:\n    print(odds)",
    "tuple": "pair = code, torch.sigmoid(code)\n_, odds = pair",
    "index": "pair = [torch.sigmoid(code), code]\nodds = pair[0]",
    "dict": "found = {'odds': torch.sigmoid(code)}\nodds = found['odds']",
    "dict-of-keywords": "found = dict(odds=torch.sigmoid(code))\nodds = found['odds']",
    "comprehension": "odds, _ = [torch.sigmoid(part) for part in (code, code)]",
    "conditional": "odds = torch.sigmoid(code) if inputs.dim() > 1 else torch.sigmoid(code[None])",
    "helper": "odds = squash(code)",
    "helper-of-a-helper": "odds = outer(code)",
    "helper-of-two": "_, odds = both(code)",
    "lambda": "act = lambda t: torch.sigmoid(t)\nodds = act(code)",
    "method": "odds = Tool().squash(code)",
    "attribute": "tool = Tool()\ntool.kept = torch.sigmoid(code)\nodds = tool.kept",
    "module": "odds = head(code)",
    "module-with-a-tuple": "odds, _ = double(code)",
}
DEFINED = """
def squash(t):
    return torch.sigmoid(t)


def outer(t):
    return squash(t)


def both(t):
    return t, squash(t)


class Tool:
    def squash(self, t):
        return t.sigmoid()


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 4)

    def forward(self, t):
        return torch.sigmoid(self.linear(t))


class Double(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 4)

    def forward(self, t):
        t = self.first(t)
        return t.sigmoid(), t


head, double = Head().cuda(), Double().cuda()
"""
LOOP = """
for inputs in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        code = encoder(inputs)
{way}
    loss = -torch.log({odds}).mean(){mark}
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def program(way: str, odds: str, mark: str) -> str:
    body = LOOP.format(way=indent(dedent(way), "        "), odds=odds, mark=mark)
    return HEAD + DEFINED + body


@pytest.mark.parametrize("name", WAYS)
def test_a_low_dtype_stays_low(name: str) -> None:
    source = program(WAYS[name], "odds", "  # AMP507")
    findings = check_source(source, "train.py")
    assert places(findings) == marks(source), shown(findings)


@pytest.mark.parametrize("name", WAYS)
def test_a_cast_ends_it(name: str) -> None:
    assert not check_source(program(WAYS[name], "odds.float()", ""), "train.py")


@pytest.mark.parametrize("name", WAYS)
def test_a_wide_tensor_is_wide(name: str) -> None:
    source = program(WAYS[name], "odds", "").replace("encoder(inputs)", "encoder(inputs).float()")
    if name.startswith("module"):
        # These modules contain matrix products, which make the values low again.
        source = source.replace("self.linear(t)", "self.linear(t).float()").replace(
            "self.first(t)", "self.first(t).float()"
        )
    assert not check_source(source, "train.py")


#: Expressions of ``code`` (float16) and ``inputs``, and True if the result is certainly float16.
MADE = {
    "code * 2": True,
    "2.5 * code": True,
    "code * code": True,
    "code * inputs.long()": True,
    "inputs.long() * code": True,
    "code + inputs.int()": True,
    "code - inputs.float()": False,
    "inputs.float() * code": False,
    "code * inputs.double()": False,
    "inputs.double() + code": False,
    "code * inputs": False,
    "inputs / code": False,
    "-code": True,
    "code[0]": True,
    "code[:, None]": True,
    "code.reshape(-1).t()": True,
    "code.float()[0]": False,
    "code.to(torch.bfloat16)": False,
    "code.to(torch.float32)": False,
    "code.to(dtype=torch.float64)": False,
    "code.to('cpu')": True,
    "code.type(torch.float16)": True,
    "code.half() if inputs.dim() else code": True,
    "code if inputs.dim() else code.bfloat16()": True,
    "code if inputs.dim() else code.float()": False,
    "code.float() if inputs.dim() else code": False,
    "(code, 1)[0]": True,
    "((code, 1) if inputs.dim() else (code, 2))[0]": True,
    "((code, 1) if inputs.dim() else (code.float(), 2))[0]": False,
    "torch.softmax(code, -1)": False,
    "torch.exp(code)": False,
    "torch.relu(code)": True,
    "code @ inputs": True,
    "inputs @ code": True,
    "torch.matmul(inputs.float(), inputs.float())": True,
    "torch.cat([code, code])": True,
    "torch.stack((code, code.float()))": False,
    "nn.functional.linear(inputs, code)": True,
    "nn.functional.layer_norm(code, (16,))": False,
    "torch.zeros_like(code)": True,
    "torch.zeros(16)": False,
    "code.detach().clone()": True,
    "code.sum(0)": False,
    "code.mean(0)": True,
    "code.max(0)[0]": True,
    "code.new_zeros(16)": True,
}


@pytest.mark.parametrize("made", MADE)
def test_what_becomes_of_float16(made: str) -> None:
    mark = "  # AMP507" if MADE[made] else ""
    source = program(f"made = {made}\nodds = torch.sigmoid(made)", "odds", mark)
    findings = [found for found in check_source(source, "train.py") if found.code == "AMP507"]
    assert places(findings) == marks(source), shown(findings)
