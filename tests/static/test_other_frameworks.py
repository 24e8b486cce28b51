"""Files that train with another framework, whose calls have the same names as torch's."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

LOOP = """\
{imports}

def train(loader, model, optimizer, scaler):
    for x in loader:
        with amp.auto_cast():
            loss = model(x)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        model.clear_gradients()
"""


@pytest.mark.parametrize("imports", ["import paddle", "import paddle.nn as nn", "from mindspore import amp"])
def test_they_are_left_alone(imports: str) -> None:
    assert check_source(LOOP.format(imports=imports)) == []


@pytest.mark.parametrize("imports", ["import torch", "import paddle\nimport torch", "from helpers import amp"])
def test_beside_torch_they_are_read(imports: str) -> None:
    assert {finding.code for finding in check_source(LOOP.format(imports=imports))} >= {"AMP215"}
