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
        {clear}
"""


@pytest.mark.parametrize("imports", ["import paddle", "import paddle.nn as nn", "from mindspore import amp"])
def test_they_are_left_alone(imports: str) -> None:
    assert check_source(LOOP.format(imports=imports, clear="model.clear_gradients()")) == []


@pytest.mark.parametrize("imports", ["import torch", "import paddle\nimport torch", "from helpers import amp"])
def test_beside_torch_they_are_read(imports: str) -> None:
    assert {finding.code for finding in check_source(LOOP.format(imports=imports, clear="pass"))} >= {"AMP215"}


SCRIPT = """\
import paddle

if __name__ == "__main__":
    for x in loader:
        loss = model(x)
        loss.backward()
        optimizer.step()
        {clear}()
"""


def test_a_script_of_another_framework_is_left_alone() -> None:
    assert check_source(SCRIPT.format(clear="optimizer.reset")) == []


@pytest.mark.parametrize(
    "clear", ["optimizer.clear_grad", "model.clear_gradients", "clear_all_gradients", "utils.zero_gradients"]
)
def test_a_call_that_is_named_for_a_clear_clears(clear: str) -> None:
    script = SCRIPT.replace("import paddle", "import torch")
    assert check_source(script.format(clear=clear)) == []
    assert [finding.code for finding in check_source(script.format(clear="optimizer.reset"))] == ["AMP215"]
