"""AMP106: the device of an input, which is no device type."""

from __future__ import annotations

import pytest
from marks import marks, places, shown

from pytest_amp_check.static.engine import check_source

HEAD = """\
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, size, device="cuda"):
        super().__init__()
        self.device = device
        self.query = nn.Linear(size, size)

    def forward(self, x, config=None):
"""
PROGRAMS = {
    "by name": "with torch.autocast(enabled=False, device_type=x.device):  # AMP106\n    return self.query(x)\n",
    "by position": (
        "y = self.query(x)\nwith torch.autocast(x.device, dtype=torch.bfloat16):  # AMP106\n    return y @ y.T\n"
    ),
    "the type": "with torch.autocast(x.device.type, dtype=torch.bfloat16):\n    return self.query(x)\n",
    "a text": "with torch.autocast(self.device, dtype=torch.bfloat16):\n    return self.query(x)\n",
    "of an argument that no layer gets": (
        "with torch.autocast(config.device, dtype=torch.bfloat16):\n    return self.query(x)\n"
    ),
}


@pytest.mark.parametrize("body", PROGRAMS.values(), ids=PROGRAMS)
def test_the_device_of_an_input_is_a_device(body: str) -> None:
    program = HEAD + "".join(f"        {line}\n" for line in body.splitlines())
    findings = check_source(program, "model.py")
    assert places(findings) == marks(program), shown(findings)
