"""Every misuse that torch lets pass is named by a run, with its code, on its line.

The programs are those of ``runtime_programs``; each proves the harm it does before what is said of it is judged.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import ast
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from marks import marks, places, shown
from runtime_programs import LOOK_ALIKES, MISTAKES, SETUP, Program

pytest.importorskip("torch")

import torch

from pytest_amp_check import record

if TYPE_CHECKING:
    from pytest_amp_check.runtime.run import Run

TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
#: The line on which the body of a program starts.
BODY = SETUP.count("\n") + 1

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="with CUDA this scaler does not disable itself")


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """One thread, a seed, and autocast off again after programs that leave it on."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_autocast_enabled("cpu", False)
    torch.clear_autocast_cache()
    torch.set_num_threads(threads)


def execute(source: str, path: Path, start: int = 1, raises: str = "") -> tuple[Run, dict[str, Any]]:
    """Run a program from a file, recorded from line ``start`` on; it must end with an exception if ``raises``."""
    path.write_text(source, encoding="utf-8")
    body = ast.parse(source).body
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}

    def part(statements: list[ast.stmt]) -> None:
        exec(compile(ast.Module(statements, []), str(path), "exec"), names)  # noqa: S102 our own programs

    part([statement for statement in body if statement.lineno < start])
    run = None
    try:
        with record() as run:
            part([statement for statement in body if statement.lineno >= start])
    except BaseException as error:
        assert raises and raises in str(error), f"{type(error).__name__}: {error}"
    else:
        assert not raises, "the program was to end with an exception"
    assert run is not None
    return run, names


def cases(programs: tuple[Program, ...]) -> list[Any]:
    return [
        pytest.param(program, turns, start, id=f"{program.rows or 'clean'} {program.name}, {turns}{suffix}")
        for program in programs
        for turns in program.turns
        for start, suffix in ((1, ""), (BODY, ", recorded late"))
        if not program.codes
    ]


@pytest.mark.parametrize(("program", "turns", "start"), cases(MISTAKES))
def test_a_mistake_is_named_on_its_line(program: Program, turns: int, start: int, tmp_path: Path) -> None:
    source = program.source(turns)
    run, names = execute(source, tmp_path / "train.py", start, program.raises)
    if program.shows:
        assert eval(program.shows, names), f"the program does not do the harm: {program.shows}"  # noqa: S307
    assert marks(source, "runtime"), "the program marks nothing"
    assert places(run.findings) == marks(source, "runtime"), shown(run.findings)
    assert {finding.filename for finding in run.findings} == {str(tmp_path / "train.py")}
    for finding in run.findings:
        assert finding.message
        assert not any(brace in finding.message for brace in "{}")


@pytest.mark.parametrize(("program", "turns", "start"), cases(LOOK_ALIKES))
def test_a_look_alike_is_not_named(program: Program, turns: int, start: int, tmp_path: Path) -> None:
    source = program.source(turns)
    run, names = execute(source, tmp_path / "train.py", start, program.raises)
    if program.shows:
        assert eval(program.shows, names), f"the program does not do what it says: {program.shows}"  # noqa: S307
    assert not marks(source, "runtime")
    assert run.findings == [], shown(run.findings)
