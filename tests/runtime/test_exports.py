"""Exports of a run for other programs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp_check import Run, record


def trained(**parts: Any) -> Run:
    """Record three steps through a scaler, with the second step skipped."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with record(model, **parts) as run:
        for factor in (1.0, math.inf, 1.0):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(torch.ones(2, 64)).float().square().mean()
            scaler.scale(loss * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    return run


def test_a_row_for_each_step() -> None:
    run = trained(numerics=True, memory=True)
    rows = run.rows()
    assert [(row["index"], row["scale_after"], row["skipped"]) for row in rows] == [
        (0, 1024.0, False),
        (1, 512.0, True),
        (2, 512.0, False),
    ]
    # None of the 64 * 64 gradients is near the range that float16 rounds to zero.
    assert [row["underflow"] for row in rows] == [0.0, 0.0, 0.0]
    # The weight and its gradient, and in the first two steps temporary memory of the passes.
    assert all(row["memory"] >= 2 * 64 * 64 * 4 for row in rows)
    assert run.memory is not None
    assert max(row["memory"] for row in rows) == run.memory.peak
    assert not {"underflow", "memory"} & trained().rows()[0].keys()


def test_numerics_of_every_second_step() -> None:
    assert [row["underflow"] for row in trained(numerics=2).rows()] == [0.0, None, 0.0]


def test_what_float16_loses_stands_at_its_step() -> None:
    small = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([small], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with record(numerics=True) as run:
        for factors in ([1.0, 1.0, 1.0, 1.0], [1.0, 1e-12, 1.0, 1.0]):
            optimizer.zero_grad()
            scaler.scale((small * torch.tensor(factors)).sum()).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
    assert [row["underflow"] for row in run.rows()] == [0.0, 0.25]


def test_json_has_no_number_that_others_cannot_read(tmp_path: Path) -> None:
    run = trained()
    data = json.loads(run.to_json(tmp_path / "run.json"), parse_constant=pytest.fail)
    assert data == json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert [step["loss"] for step in data["steps"]][1] == "Infinity"
    assert (data["steps_total"], data["skipped_total"]) == (3, 1)


class Writer:
    def __init__(self) -> None:
        self.written: list[tuple[str, float, int]] = []
        self.logged: list[dict[str, float]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.written.append((name, value, step))

    def log(self, values: dict[str, float]) -> None:
        self.logged.append(values)


def test_curves_for_a_writer_that_is_there() -> None:
    writer = Writer()
    run = trained(numerics=True)
    run.to_tensorboard(writer)
    scales = [(value, step) for name, value, step in writer.written if name == "amp/scale"]
    assert scales == [(1024.0, 0), (512.0, 1), (512.0, 2)]
    assert [value for name, value, _ in writer.written if name == "amp/skipped"] == [0.0, 1.0, 0.0]
    run.to_wandb(writer)
    assert [(each["amp/step"], each["amp/scale"], each["amp/underflow"]) for each in writer.logged] == [
        (0, 1024.0, 0.0),
        (1, 512.0, 0.0),
        (2, 512.0, 0.0),
    ]
    assert "amp/memory" not in writer.logged[0]


def test_a_folder_for_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trained().to_tensorboard(tmp_path)
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert [(event.step, event.value) for event in read.Scalars("amp/scale")] == [(0, 1024.0), (1, 512.0), (2, 512.0)]


def test_a_frame_of_pandas() -> None:
    pytest.importorskip("pandas")
    frame = trained().to_pandas()
    assert list(frame["scale_after"]) == [1024.0, 512.0, 512.0]
    assert list(frame.index) == [0, 1, 2]
    assert int(frame["skipped"].sum()) == 1


@pytest.mark.parametrize(("library", "method"), [("pandas", "to_pandas"), ("wandb", "to_wandb")])
def test_what_is_missing_is_said(library: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, library, None)
    with pytest.raises(ImportError, match=f"pip install {library}"):
        getattr(trained(), method)()
