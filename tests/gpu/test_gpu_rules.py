"""Each rule's examples, and the trainers of the fixtures, moved to CUDA: the findings of a run equal the marks."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from agreement import IMPOSSIBLE, found_exactly, recorded
from marks import Places, marks
from moved import to_cuda
from samples import sample
from warm import run_module

import pytest_amp_check
from pytest_amp_check.protocol.rule import STATIC
from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.runtime.session import session

PACKAGE = Path(pytest_amp_check.__file__).resolve().parents[1]
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
TRAINERS = [*sorted((FIXTURES / "trainers").glob("*.py")), *sorted(FIXTURES.glob("headline*.py"))]
#: Scripts that the command runs too: every kind of trainer once, because a process needs seconds to start.
BY_COMMAND = ["headline", "headline_good", "class_trainer_bad", "gradient_penalty_bad", "plain_script_good"]

#: Marks without a finding on CUDA: file or example, line -> why.
OTHERWISE = {
    ("AMP106_bad.py", 25): "CUDA's autocast takes float32, the CPU's refuses it",
    ("AMP217_bad.py", 7): "the scaler is for CUDA, and there is CUDA",
    ("gan_two_optimizers_bad.py", 53): "the first BCELoss under autocast raises, so that nothing after it runs",
    ("gan_two_optimizers_bad.py", 54): "see the first",
    ("gan_two_optimizers_bad.py", 57): "see the first",
    ("gan_two_optimizers_bad.py", 59): "see the first",
}

#: Without a GPU a part of them, and of the trainers: tests of parity run them on the CPU as they stand.
MOVED = TRAINERS
CODES = [code for code, rule in RULES.items() if rule.detected_by != STATIC]
if not torch.cuda.is_available():
    CODES, MOVED = sample(CODES, 6), sample(TRAINERS, 4, 1)

pytestmark = pytest.mark.usefixtures("patched_once", "alone_in_a_folder")


@contextlib.contextmanager
def on(where: str) -> Iterator[None]:
    """Provide a device for a program that sets the default device."""
    with session(where):
        try:
            yield
        finally:
            torch.set_default_device(None)


def expected(name: str, source: str) -> Places:
    marked = marks(source, "runtime")
    return {(line, code) for line, code in marked if code not in IMPOSSIBLE and (name, line) not in OTHERWISE}


def finds_its_marks(name: str, source: str, where: str) -> None:
    script = Path(name).absolute()
    script.write_text(to_cuda(source), encoding="utf-8")
    run = recorded(lambda: runpy.run_path(str(script), run_name="__main__"), lambda: on(where))
    found_exactly(run, script, expected(name, source))


@pytest.mark.parametrize("kind", ["bad", "good"])
@pytest.mark.parametrize("code", CODES)
def test_an_example_on_cuda(code: str, kind: str, where: str) -> None:
    finds_its_marks(f"{code}_{kind}.py", getattr(RULES[code], f"{kind}_example"), where)


@pytest.mark.parametrize("trainer", MOVED, ids=lambda path: path.stem)
def test_a_trainer_on_cuda(trainer: Path, where: str) -> None:
    finds_its_marks(trainer.name, trainer.read_text(encoding="utf-8"), where)


@pytest.mark.parametrize("name", BY_COMMAND)
def test_a_trainer_by_the_command(name: str, where: str, tmp_path: Path) -> None:
    (trainer,) = (path for path in TRAINERS if path.stem == name)
    source = trainer.read_text(encoding="utf-8")
    script = tmp_path / trainer.name
    script.write_text(to_cuda(source), encoding="utf-8")
    command = ["pytest_amp_check", "run", "--output-format", "json", "--device", where]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PACKAGE)}
    done = run_module(*command, script.name, cwd=tmp_path, env=environment)
    assert done.returncode == (1 if expected(trainer.name, source) else 0), done.stderr
    # The findings follow the script's own output.
    findings = json.loads(done.stdout[done.stdout.rindex("\n[", 0, done.stdout.rindex("]")) :])
    assert {(finding["location"]["row"], finding["code"]) for finding in findings} == expected(trainer.name, source)


def test_each_exception_is_of_a_line_that_is_marked() -> None:
    sources = {
        f"{code}_{kind}.py": getattr(rule, f"{kind}_example")
        for code, rule in RULES.items()
        for kind in ("bad", "good")
    }
    sources |= {path.name: path.read_text(encoding="utf-8") for path in TRAINERS}
    assert all(line in dict(marks(sources[name], "runtime")) for name, line in OTHERWISE)
