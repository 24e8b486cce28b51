"""A test that calls a function of its project several times is a trial: no training continues between the calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import found, marks, write

ENGINE = """
        === engine.py
        import torch

        def train(model, loader, optimizer, criterion, k=1, scaler=None):
            for i, (x, y) in enumerate(loader):
                with torch.autocast("cuda", enabled=scaler is not None):
                    loss = criterion(model(x), y) / k
                if scaler is not None:
                    scaler.scale(loss).backward()
                else:
                    loss.backward()
                if (i + 1) % k == 0:
                    if scaler is not None:
                        scaler.step(optimizer)
                        scaler.update()
                    else:
                        optimizer.step()
                    optimizer.zero_grad()
"""
CALLS = {
    "with mocks": """
        === tests/test_engine.py
        from unittest.mock import MagicMock
        import torch
        from engine import train

        def test_train():
            model = torch.nn.Linear(4, 4)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            scaler = MagicMock()
            train(model, [(torch.ones(1, 4), torch.ones(1, 4))], optimizer, torch.nn.MSELoss(), k=2)
            train(model, [(torch.ones(1, 4), torch.ones(1, 4))], optimizer, torch.nn.MSELoss(), k=2, scaler=scaler)
            assert scaler.scale.called
    """,
    "with a scaler": """
        === tests/test_engine.py
        import torch
        from engine import train

        BATCH = [(torch.ones(1, 4), torch.ones(1, 4))]

        def test_train():
            model = torch.nn.Linear(4, 4)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            train(model, BATCH, optimizer, torch.nn.MSELoss(), 2)
            train(model, BATCH, optimizer, torch.nn.MSELoss(), 2, torch.amp.GradScaler("cpu"))
    """,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_test_that_trains_twice_is_no_training(name: str, tmp_path: Path) -> None:
    write(tmp_path, ENGINE + CALLS[name])
    assert found(tmp_path) == set()


def test_what_one_call_does_wrong_is_found(tmp_path: Path) -> None:
    wrong = ENGINE.replace("scaler.scale(loss).backward()", "loss.backward()  # AMP203")
    write(tmp_path, wrong + CALLS["with a scaler"])
    assert found(tmp_path) == marks(tmp_path) != set()


def test_a_test_that_does_the_parts_itself_is_checked(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        === tests/test_parts.py
        import torch

        def feed(loss):
            loss.backward()  # AMP203

        def step(scaler, optimizer):
            scaler.step(optimizer)
            scaler.update()

        def test_parts():
            model = torch.nn.Linear(4, 4)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            scaler = torch.amp.GradScaler("cpu")
            with torch.autocast("cpu", dtype=torch.float16):
                loss = torch.nn.functional.mse_loss(model(torch.ones(1, 4)), torch.ones(1, 4))
            feed(loss)
            step(scaler, optimizer)
        """,
    )
    assert found(tmp_path) == marks(tmp_path)
