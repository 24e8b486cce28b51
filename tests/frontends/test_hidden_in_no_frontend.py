"""A mistake in a function that its project calls without AMP: every frontend reports the same finding."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from doors import flake8
from editor import Editor
from trees import write
from warm import SERVER, run_command, run_pytest, warm_python

from pytest_amp_check.static import engine

pytest_plugins = ["pytester"]

#: Calls of the function hid its mistake: a budget that ended first, and a test that leaves AMP off.
PROJECT = """
    === pyproject.toml
    [project]
    name = "clips"
    version = "1"

    === src/clips/steps.py
    import torch

    from clips.layers import stack

    def finish(task, optimizer, scaler, max_norm):
        if scaler is not None:
            if max_norm is not None:
                pass
                torch.nn.utils.clip_grad_norm_(task.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
        else:
            if max_norm is not None:
                torch.nn.utils.clip_grad_norm_(task.parameters(), max_norm)
            optimizer.step()

    def train(task, batches, lr=0.1, amp=False, max_norm=1.0):
        optimizer = torch.optim.AdamW(task.parameters(), lr=lr)
        scaler = torch.amp.GradScaler("cuda") if amp else None
        for batch in batches:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16, enabled=amp):
                loss = task(stack(batch)).mean()
            if scaler is not None:
                scaler.scale(loss).backward()
            else:
                loss.backward()
            finish(task, optimizer, scaler, max_norm)

    === src/clips/layers.py
    def one(x):
        x = x + 1
        return x

    def ten(x):
        return one(one(one(one(one(one(one(one(one(one(x))))))))))

    def hundred(x):
        return ten(ten(ten(ten(ten(ten(ten(ten(ten(ten(x))))))))))

    def stack(x):
        return hundred(hundred(hundred(hundred(x))))

    === src/clips/main.py
    import torch

    from clips.layers import stack
    from clips.steps import train

    net = torch.nn.Linear(8, 2)
    for batch in [torch.randn(4, 8)]:
        with torch.autocast("cuda", dtype=torch.float16):
            stack(stack(stack(stack(net(batch)))))
        train(net, [batch], amp=True)

    === tests/trainings.py
    import torch

    from clips.steps import train

    def check():
        task = torch.nn.Linear(2, 2)
        train(task, [torch.ones(1, 2)])
        optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = task(torch.ones(1, 2)).sum()
            loss.backward()
            optimizer.step()
"""
STEPS = "src/clips/steps.py"
UNSCALE = "scaler.unscale_(optimizer)"


@pytest.fixture(params=["wrong", "right"])
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Write the project, with the mistake or without. Return the expected codes with their lines in the helper."""
    write(tmp_path, PROJECT)
    text = (tmp_path / STEPS).read_text(encoding="utf-8")
    line = 1 + next(number for number, row in enumerate(text.split("\n")) if "clip_grad_norm_" in row)
    if request.param == "right":
        (tmp_path / STEPS).write_text(text.replace("pass", UNSCALE), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return [("AMP201", line)] if request.param == "wrong" else []


def report(*arguments: str) -> list[tuple[str, int]]:
    """Return the findings of the command, which must all be in the helper."""
    done = run_command("check", "--output-format", "json", *arguments)
    assert done.returncode in (0, 1), done.stderr
    rows = json.loads(done.stdout)
    assert {Path(row["filename"]).name for row in rows} <= {"steps.py"}
    return [(row["code"], row["location"]["row"]) for row in rows]


@pytest.mark.parametrize("name", [".", "src", STEPS])
def test_the_command_reports_the_mistake_with_any_cache(name: str, project: list[tuple[str, int]]) -> None:
    cached = ("--cache-dir", "kept")
    assert report("--no-cache", name) == project
    assert report(*cached, name) == project
    assert report(*cached, name) == project
    # The same cache after an edit of the helper and back.
    text = Path(STEPS).read_text(encoding="utf-8")
    other = text.replace("pass", UNSCALE) if project else text.replace(UNSCALE, "pass")
    Path(STEPS).write_text(other, encoding="utf-8")
    assert bool(report(*cached, name)) is not bool(project)
    Path(STEPS).write_text(text, encoding="utf-8")
    assert report(*cached, name) == project


def test_two_processes_report_the_mistake(project: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "WORTH_PROCESSES", 0)
    found = engine.check_paths(["."], jobs=2).findings
    assert [(finding.code, finding.line) for finding in found] == project


@pytest.mark.parametrize("name", [".", pytest.param(STEPS, marks=pytest.mark.exhaustive)])
def test_pytest_reports_the_mistake_with_any_cache(
    name: str, pytester: pytest.Pytester, project: list[tuple[str, int]], tmp_path: Path
) -> None:
    shutil.copytree(tmp_path, pytester.path, dirs_exist_ok=True)
    for _ in range(2):
        done = run_pytest(pytester, "--amp-check", name, trains=False)
        lines = [line for line in done.outlines if line.startswith(f"{STEPS}:")]
        assert [line.split(":")[1] for line in lines if "AMP201" in line] == [str(line) for _, line in project]
        assert done.ret == (1 if project else 0)


def test_the_language_server_reports_the_mistake(project: list[tuple[str, int]], tmp_path: Path) -> None:
    text = (tmp_path / STEPS).read_text(encoding="utf-8")
    with Editor(tmp_path, command=(warm_python(SERVER), "-m", "pytest_amp_check")) as editor:
        address = editor.open(tmp_path / STEPS, text)
        assert editor.places(address) == project
        editor.type(address, text.replace("pass", UNSCALE))
        assert editor.places(address) == []
        editor.type(address, text)
        assert editor.places(address) == project


def test_flake8_reports_the_mistake(project: list[tuple[str, int]]) -> None:
    done = flake8("--enable-extensions=AMP", "--select=AMP", STEPS)
    assert [line.split(":")[1] for line in done.stdout.splitlines()] == [str(line) for _, line in project]
