"""Blind spots: the calls of the protocol that were checked on no path."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from pytest_amp_check.static.engine import check_paths, check_source
from pytest_amp_check.static.file_analysis import UNANALYZED_CALL_CODE
from pytest_amp_check.static.settings import Settings

ASKED = Settings(select=frozenset({UNANALYZED_CALL_CODE}))


def spots(text: str) -> list[tuple[int, str]]:
    """Return the line and the reason of each blind spot."""
    found = check_source(textwrap.dedent(text), "train.py", ASKED)
    return [(finding.line, finding.label.partition(":")[2]) for finding in found]


def test_a_training_loop_has_none() -> None:
    text = """\
        import torch

        def train(loader, model, optimizer, scaler):
            for x in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = model(x).sum()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
            torch.save(model.state_dict(), "last.pt")
        """
    assert spots(text) == []


def test_what_stands_behind_a_return_is_not_reached() -> None:
    text = """\
        import torch

        def train(loss, optimizer, scaler):
            scaler.scale(loss).backward()
            return
            scaler.step(optimizer)
            scaler.update()
        """
    assert spots(text) == [(6, "not-reached"), (7, "not-reached")]


def test_what_is_called_on_something_else_is_not_known() -> None:
    text = """\
        import torch

        def clear(given):
            given.zero_grad()

        scaler = torch.amp.GradScaler("cuda")
        clear(3)
        """
    assert spots(text) == [(4, "not-known")]


def test_what_a_class_of_the_project_does_is_read() -> None:
    text = """\
        import torch

        class Scaler:
            def update(self):
                self.steps += 1

        scaler = Scaler()
        scaler.update()
        """
    assert spots(text) == []


@pytest.mark.parametrize("line", ["meter.update(3)", "env.step(action)", "scheduler.step()", "image.scale(2)"])
def test_other_calls_of_the_same_names_are_no_spots(line: str) -> None:
    text = f"""\
        import torch

        def train(scaler, loss, optimizer, env, meter, scheduler, image, action):
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return
            {line}
        """
    assert spots(text) == []


HELPER = """\
def finish(loss, optimizer, scaler):
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
MAIN = """\
import torch
from helper import finish

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).sum()
        finish(loss, optimizer, scaler)
"""


def test_a_function_that_another_file_reaches_is_no_blind_spot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "main.py").write_text(MAIN)
    monkeypatch.chdir(tmp_path)
    assert check_paths(["."], ASKED).findings == []
    (tmp_path / "main.py").write_text(MAIN.replace("    for", "    return\n    for"))
    found = [(finding.filename, finding.line) for finding in check_paths(["."], ASKED).findings]
    assert found == [(str(Path("main.py")), 8)]


def test_a_cache_that_knows_nothing_of_them_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "main.py").write_text(
        MAIN.replace("    for", "    return\n    for").replace("from helper", "from other")
    )
    monkeypatch.chdir(tmp_path)
    cache = str(tmp_path / "cache")
    assert check_paths(["."], Settings(), cache=cache).findings == []
    for _ in range(2):
        assert [finding.line for finding in check_paths(["."], ASKED, cache=cache).findings] == [8]


def test_a_notebook_tells_the_cell(tmp_path: Path) -> None:
    cell: dict[str, object] = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    first = {**cell, "source": ["import torch\n", "scaler = torch.amp.GradScaler('cuda')"]}
    second = {**cell, "source": ["def f(o):\n", "    return\n", "    scaler.step(o)"]}
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps({"cells": [first, second], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    (found,) = check_paths([str(path)], ASKED).findings
    assert (found.site.cell, found.line) == (2, 3)


MANY_PATHS = """\
import torch

def fit(net, args, batches):
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for images in batches:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(images).mean()
        scaler.scale(loss).backward()
{stages}
        scaler.step(opt)
        scaler.update()
"""
STAGE = """\
        if args.stage{0}:
            other = torch.optim.Adam(net.parameters(), lr={0})
            other.step()
"""


@pytest.mark.parametrize(("count", "joined"), [(1, False), (40, True)])
def test_a_function_whose_states_are_joined_is_named(count: int, joined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_amp_check.protocol.graph_exploration.LIMIT", 1_000)
    text = MANY_PATHS.format(stages="".join(map(STAGE.format, range(count))))
    assert spots(text) == ([(3, "joined")] if joined else [])


def test_joined_states_of_a_script_and_of_a_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_amp_check.protocol.graph_exploration.LIMIT", 1_000)
    text = MANY_PATHS.format(stages="".join(map(STAGE.format, range(40))))
    head, _, body = text.partition("def fit(net, args, batches):\n")
    (tmp_path / "script.py").write_text(f"{head}import data\nargs, batches, net = data.load()\n{textwrap.dedent(body)}")
    method = textwrap.indent(f"def fit(self, net, args, batches):\n{body}", "    ")
    (tmp_path / "trainer.py").write_text(f"{head}class Trainer:\n{method}")
    monkeypatch.chdir(tmp_path)
    found = check_paths(["."], ASKED).findings
    assert [(finding.filename, finding.line) for finding in found] == [("script.py", 1), ("trainer.py", 4)]
    assert "`Trainer.fit`" in found[1].message
    assert check_paths(["."], Settings(select=frozenset({"AMP201"}))).findings == []


#: A chain of calls, whose last function clips.
CHAIN = """\
import torch

{functions}

def f{count}(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""
TRAINS = """\
import torch
from clips import f0

def train(loader, model, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).sum()
        scaler.scale(loss).backward()
        {before}
        f0(model)
        scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.parametrize(
    ("count", "before", "expected"),
    [
        (20, "pass", [("AMP201", "clips.py", 65)]),
        (20, "scaler.unscale_(optimizer)", []),
        (45, "pass", [("AMP904", "clips.py", 118)]),
    ],
)
def test_a_call_that_is_too_deep_to_follow_is_named(
    count: int, before: str, expected: list[tuple[str, str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    functions = "\n".join(f"def f{i}(model):\n    f{i + 1}(model)\n" for i in range(count))
    Path("clips.py").write_text(CHAIN.format(functions=functions, count=count), encoding="utf-8")
    Path("train.py").write_text(TRAINS.format(before=before), encoding="utf-8")
    result = check_paths(["."], Settings(select=frozenset({"AMP201", UNANALYZED_CALL_CODE})))
    found = [(finding.code, Path(finding.site.path).name, finding.line) for finding in result.findings]
    assert found == expected


def test_a_call_beyond_the_budget_for_other_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pytest_amp_check.static.interpreter.functions.ALL_OTHER_FILES_BUDGET", 0)
    text = TRAINS.format(before="pass").replace("import torch", "import torch, data")
    text = text.replace("optimizer.zero_grad()", "optimizer.zero_grad()\n        x = data.decode(x)")
    Path("data.py").write_text("def decode(x):\n    for y in x:\n        y.save()\n    return x\n", encoding="utf-8")
    clips = "def f0(model):\n    for p in model.parameters():\n        log(p)\n    f1(model)\n"
    Path("clips.py").write_text(CHAIN.format(functions=clips, count=1), encoding="utf-8")
    Path("train.py").write_text(text, encoding="utf-8")
    result = check_paths(["train.py"], Settings(select=frozenset({UNANALYZED_CALL_CODE})))
    assert [(finding.line, finding.label) for finding in result.findings] == [(13, "call:not-followed")]
