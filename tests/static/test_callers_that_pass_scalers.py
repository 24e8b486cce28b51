"""Callers that only pass a scaler on: functions of other files do the parts of the training."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import found, marks, write

PARTS = """
    === steps/parts.py
    import torch
    from torch.nn.utils import clip_grad_norm_

    def forward(model, batch, scaler):
        with torch.autocast("cuda", enabled=scaler is not None):
            return model(batch)["loss"]

    def backward(loss, scaler, info):
        loss = loss / info.get("accumulate", 1)
        if scaler is not None:
            {backward}
        else:
            loss.backward()

    def update(model, optimizer, scaler, info):
        if (info["index"] + 1) % info.get("accumulate", 1) == 0:
            if scaler is not None:
                {unscale}
                clip_grad_norm_(model.parameters(), 5.0){clip_mark}
                scaler.step(optimizer)
                scaler.update()
            else:
                clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
            {clear}
"""
#: Callers of the parts. None has a call of the protocol itself.
CALLERS = {
    "a method with the scaler as an argument": """
    === executor.py
    from steps.parts import backward, forward, update

    class Executor:
        def __init__(self, info):
            self.info = info

        def train(self, model, optimizer, loader, scaler):
            for index, batch in enumerate(loader):
                self.info["index"] = index
                loss = forward(model, batch, scaler)
                backward(loss, scaler, self.info)
                update(model, optimizer, scaler, self.info)
    """,
    "a function whose scaler another file makes": """
    === making.py
    import torch

    def make_scaler(options):
        return torch.amp.GradScaler("cuda") if options.half else None

    === run.py
    from making import make_scaler
    from steps import parts

    def run(model, optimizer, loader, options, info):
        amp_scaler = make_scaler(options)
        for index, batch in enumerate(loader):
            info["index"] = index
            loss = parts.forward(model, batch, amp_scaler)
            parts.backward(loss, amp_scaler, info)
            parts.update(model, optimizer, scaler=amp_scaler, info=info)
    """,
}
RIGHT = {
    "backward": "scaler.scale(loss).backward()",
    "unscale": "scaler.unscale_(optimizer)",
    "clip_mark": "",
    "clear": "optimizer.zero_grad()",
}
MISTAKES = {
    "a loss that is not scaled": {"backward": "loss.backward()  # AMP203"},
    "a clip of scaled gradients": {"unscale": "pass", "clip_mark": "  # AMP201"},
    "gradients that are not cleared": {"backward": "scaler.scale(loss).backward()  # AMP215", "clear": "pass"},
}


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_between_two_functions_that_a_caller_connects(mistake: str, caller: str, tmp_path: Path) -> None:
    write(tmp_path, PARTS.format(**RIGHT | MISTAKES[mistake]))
    write(tmp_path, CALLERS[caller])
    assert marks(tmp_path) <= found(tmp_path)


@pytest.mark.parametrize("caller", CALLERS)
def test_right_functions_that_a_caller_connects(caller: str, tmp_path: Path) -> None:
    write(tmp_path, PARTS.format(**RIGHT))
    write(tmp_path, CALLERS[caller])
    assert found(tmp_path) == set()
