"""A running mean in a buffer: a new value in float32 takes the buffer with it, whatever a cast of the model did."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

CALIBRATOR = """\
import torch
from torch import nn


class Calibrator(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(32))

    def collect(self, x):
        batch = {batch}
        {update}


model = nn.Linear(32, 32)
calibrator = Calibrator()
for x in batches:
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        calibrator.collect(model(x))
"""
ASSIGNED = "self.mean = 0.999 * self.mean + 0.001 * batch"
IN_PLACE = "self.mean.mul_(0.999).add_(batch, alpha=0.001)"


@pytest.mark.parametrize(
    ("batch", "update", "codes"),
    [
        ("x.float().mean(0)", ASSIGNED, []),
        ("x.mean(0)", ASSIGNED, ["AMP508"]),
        # The buffer keeps its dtype.
        ("x.float().mean(0)", IN_PLACE, ["AMP508"]),
    ],
)
def test_the_dtype_of_the_new_value_decides(batch: str, update: str, codes: list[str]) -> None:
    program = CALIBRATOR.format(batch=batch, update=update)
    found = check_source(program, "train.py", Settings(assumed_dtype="bfloat16"))
    assert [finding.code for finding in found] == codes
