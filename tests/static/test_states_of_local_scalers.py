"""Checkpoints with unknown parts: they hold no state of a scaler whose state nobody takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check import check_paths
from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import torch


def train(model, optimizer, loader, writer, extra):
    {before}
    scaler = {scaler}
    {after}
    for step, batch in enumerate(loader):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        state = {{"model": model.state_dict(), "optimizer": optimizer.state_dict()}}
        {more}
        torch.save(state, "last.pt")


def resume(optimizer, path):
    optimizer.load_state_dict(torch.load(path)["optimizer"])
"""
SCALER = 'torch.amp.GradScaler("cuda")'
#: Statements that add unknown entries to the checkpoint.
UNKNOWN = ["state.update(extra)", "state.update(extra.export())", "state = {**state, **extra}", "state |= extra"]


def found(more: str, scaler: str = SCALER, after: str = "pass", before: str = "pass") -> list[str]:
    source = PROGRAM.format(more=more, scaler=scaler, after=after, before=before)
    return [finding.code for finding in check_source(source, "train.py") if finding.code == "AMP401"]


@pytest.mark.parametrize("more", UNKNOWN)
def test_unknown_entries_are_not_the_state_of_a_local_scaler(more: str) -> None:
    assert found(more) == ["AMP401"]


@pytest.mark.parametrize(
    ("scaler", "after"),
    [
        (f"{SCALER} if model.training else None", "pass"),
        (SCALER, "print(scaler.get_scale())"),
        (SCALER, "if scaler is not None and scaler.is_enabled(): print(1)"),
        (SCALER, "assert scaler"),
    ],
)
def test_uses_that_keep_the_state_inside(scaler: str, after: str) -> None:
    assert found(UNKNOWN[0], scaler, after) == ["AMP401"]


@pytest.mark.parametrize(
    "after",
    [
        "extra['scaler'] = scaler.state_dict()",
        "extra['scaler'] = scaler",
        "extra.scaler = scaler",
        "extra.update(scaler=scaler)",
        "setattr(extra, 'scaler', scaler)",
        "parts = dict(scaler=scaler); extra.keep(parts)",
        "parts = [optimizer, scaler]; extra.keep(parts)",
        "extra.register(scaler)",
        "writer.watch(scaler)",
        "other = scaler",
        "extra.take = lambda: scaler",
        "extra.take = scaler.state_dict",
        "extra.state = vars(scaler)",
    ],
)
def test_a_scaler_that_other_code_has_may_be_in_unknown_entries(after: str) -> None:
    assert found(UNKNOWN[0], after=after) == []


def test_a_global_scaler_may_be_in_unknown_entries() -> None:
    assert found(UNKNOWN[0], before="global scaler") == []


def test_a_state_that_is_saved_is_seen_beside_unknown_entries() -> None:
    assert found("state['scaler'] = scaler.state_dict(); state.update(extra)") == []


FILES = {
    "checkpoint.py": """\
import torch


class Keeper:
    def __init__(self, model, optimizer, folder):
        self.model, self.optimizer, self.folder = model, optimizer, folder

    def write(self, name, **kwargs):
        state = {"model": self.model.state_dict()}
        if self.optimizer is not None:
            state["optimizer"] = self.optimizer.state_dict()
        state.update(kwargs)
        torch.save(state, self.folder + name)

    def read(self, path):
        if not path:
            return {}
        state = torch.load(path)
        self.model.load_state_dict(state.pop("model"))
        self.optimizer.load_state_dict(state.pop("optimizer"))
        return state
""",
    "engine.py": """\
import torch


def run(config, model, loader, optimizer, keeper, progress):
    if config.amp:
        scaler = torch.amp.GradScaler("cuda")
    for step, batch in enumerate(loader, progress["step"]):
        progress["step"] = step + 1
        optimizer.zero_grad()
        if config.amp:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(batch)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            model(batch).backward()
            optimizer.step()
        if step % config.period == 0:
            KEEP
""",
    "main.py": """\
import torch

from checkpoint import Keeper
from engine import run


def main(config, model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    keeper = Keeper(model, optimizer, config.folder)
    progress = {"step": 0}
    progress.update(keeper.read(config.resume))
    run(config, model, loader, optimizer, keeper, progress)
""",
}


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        ("keeper.write('last', **progress)", [("checkpoint.py", "AMP401")]),
        ("keeper.write('last', scaler=scaler.state_dict() if config.amp else None, **progress)", []),
        ("keeper.write('last', scaler=scaler if config.amp else None, **progress)", []),
    ],
)
def test_a_class_that_writes_checkpoints_for_a_loop_of_another_file(
    tmp_path: Path, keep: str, expected: list[tuple[str, str]]
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text.replace("KEEP", keep), encoding="utf-8")
    findings = check_paths([str(tmp_path)]).findings
    assert [(Path(f.filename).name, f.code) for f in findings if f.code == "AMP401"] == expected
