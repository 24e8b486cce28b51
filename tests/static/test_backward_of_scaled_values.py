"""Scaled losses that run backward by other code, and scaled gradients that are an argument of backward."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import found, marks, write

from pytest_amp_check import check_paths

#: The line that runs backward, in a loop with a clip.
BACKWARDS = {
    "a gradient": "output.backward(scaler.scale(grad))",
    "a named gradient": "output.backward(gradient=scaler.scale(grad), retain_graph=True)",
    "gradients of several tensors": "torch.autograd.backward([output], [scaler.scale(grad)])",
    "a gradient times the scale": "output.backward(grad * scaler.get_scale())",
    "an unknown loss times the scale": "(net.compute(x) * scaler.get_scale()).backward()",
    "a method of an unanalyzed base class": "self.backward(scaler.scale(output.mean()))",
    "a method of an unknown object": "self.engine.backward(scaler.scale(output.mean()))",
    "a scaled loss with a name": "loss = scaler.scale(output.mean())\n            make_engine(net).backward(loss)",
}
PROGRAM = """\
import torch
from torch.nn.utils import clip_grad_norm_
from elsewhere import Base, make_engine

class Trainer(Base):
    def run(self, net, optimizer, batches):
        scaler = torch.amp.GradScaler("cuda")
        for x, grad in batches:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                output = net(x)
            {backward}
            {unscale}
            clip_grad_norm_(net.parameters(), 1.0){mark}
            scaler.step(optimizer)
            scaler.update()
"""


@pytest.mark.parametrize("backward", BACKWARDS.values(), ids=BACKWARDS)
def test_gradients_are_scaled_until_unscaled(backward: str, tmp_path: Path) -> None:
    wrong = PROGRAM.format(backward=backward, unscale="pass", mark="  # AMP201")
    right = PROGRAM.format(backward=backward, unscale="scaler.unscale_(optimizer)", mark="")
    write(tmp_path / "wrong", "=== train.py\n" + wrong)
    write(tmp_path / "right", "=== train.py\n" + right)
    assert found(tmp_path / "wrong") == marks(tmp_path / "wrong")
    assert found(tmp_path / "right") == set()


def test_the_message_names_the_call(tmp_path: Path) -> None:
    backward = "    self.backward(scaler.scale(output.mean()))"
    write(tmp_path, "=== train.py\n" + PROGRAM.format(backward=backward, unscale="scaler.unscale_(optimizer)", mark=""))
    (finding,) = check_paths([str(tmp_path)]).findings
    assert (finding.code, finding.line) == ("AMP103", 12)
    assert finding.message.startswith("`self.backward` runs under autocast")
