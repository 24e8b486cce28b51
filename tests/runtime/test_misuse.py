"""Every misuse that torch lets pass is reported by a run, with its code, on its line.

The programs come from ``runtime_programs``. Each proves its harm before its findings are checked.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from marks import marks, places, shown
from runtime_programs import MISTAKES, NEGATIVE_EXAMPLES, SETUP, Program

pytest.importorskip("torch")

import torch

from pytest_amp_check import record

if TYPE_CHECKING:
    from pytest_amp_check.runtime.run import Run

pytestmark = pytest.mark.usefixtures("patched_once")

TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="with CUDA this scaler does not disable itself")


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Use one thread and a seed, and turn autocast off after programs that leave autocast on."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_autocast_enabled("cpu", False)
    torch.clear_autocast_cache()
    torch.set_num_threads(threads)


def execute(source: str, path: Path, start: int = 1, raises: str = "") -> tuple[Run, dict[str, Any]]:
    """Run a program from a file, recorded from line ``start`` on. With ``raises``, it must end with an exception."""
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
    except BaseException as error:  # noqa: BLE001 which it is, is looked at
        assert raises and raises in str(error), f"{type(error).__name__}: {error}"
    else:
        assert not raises, "the program was to end with an exception"
    assert run is not None
    return run, names


#: Programs whose finding depends on which of several calls in a line is meant.
SEVERAL_CALLS_IN_A_LINE = ("a clip by hand, mul_ of grad.data by a number", "a clip by hand, all in one call")


def cases(programs: tuple[Program, ...]) -> list[Any]:
    """Return each program with its last number of batches, and its other variants, of which a fourth always runs."""
    made = []
    for number, program in enumerate(programs):
        for batch_count in program.batch_counts:
            for start, suffix in ((1, ""), (program.starts, ", recorded late")):
                is_last = batch_count == program.batch_counts[-1]
                if start > 1 and not (program.late and is_last):
                    continue
                marks = () if (start == 1 and is_last) or number % 4 == 0 else (pytest.mark.exhaustive,)
                name = f"{program.rows} {program.name}, {batch_count}{suffix}"
                made.append(pytest.param(program, batch_count, start, id=name, marks=marks))
    return made


def checked(run: Run, codes: tuple[str, ...] = ()) -> Run:
    """Check that the recorder did not fail, and return the run with rules selected."""
    assert run.failure is None, f"the recorder failed: {run.failure!r}"
    return run.select(*codes) if codes else run


@pytest.mark.parametrize(("program", "batch_count", "start"), cases(MISTAKES))
def test_a_mistake_is_named_on_its_line(program: Program, batch_count: int, start: int, tmp_path: Path) -> None:
    source = program.source(batch_count)
    if "get_total_norm" in source and not hasattr(torch.nn.utils, "get_total_norm"):
        pytest.skip("get_total_norm came with torch 2.6")
    if start > 1 and program.name in SEVERAL_CALLS_IN_A_LINE and sys.version_info < (3, 11):
        pytest.skip("before Python 3.11 columns are found in whole files only, and this test compiles a part")
    run, names = execute(source, tmp_path / "train.py", start, program.raises)
    if program.shows:
        assert eval(program.shows, names), f"the program does not do the harm: {program.shows}"  # noqa: S307
    expected = marks(source, "runtime")
    assert expected, "the program marks nothing"
    findings = checked(run, program.codes).findings
    assert places(findings) == expected, shown(findings)
    assert len(findings) == len(expected), "one cause gives one finding"
    assert {finding.filename for finding in findings} == {str(tmp_path / "train.py")}
    for finding in findings:
        assert finding.message
        assert not any(brace in finding.message for brace in "{}")


@pytest.mark.parametrize(("program", "batch_count", "start"), cases(NEGATIVE_EXAMPLES))
def test_a_negative_example_is_not_reported(program: Program, batch_count: int, start: int, tmp_path: Path) -> None:
    source = program.source(batch_count)
    if "get_total_norm" in source and not hasattr(torch.nn.utils, "get_total_norm"):
        pytest.skip("get_total_norm came with torch 2.6")
    run, names = execute(source, tmp_path / "train.py", start, program.raises)
    if program.shows:
        assert eval(program.shows, names), f"the program does not do what it says: {program.shows}"  # noqa: S307
    assert not marks(source, "runtime")
    assert checked(run).findings == [], shown(run.findings)


def test_a_loss_that_is_not_finite_is_dropped_on_purpose(tmp_path: Path) -> None:
    source = f"""{SETUP}
for x, y in batches:
    optimizer.zero_grad()
    loss = loss_of(x, y * float("nan"))
    scaler.scale(loss).backward()
    if not torch.isfinite(loss):
        optimizer.zero_grad(set_to_none=False)
    scaler.step(optimizer)
    scaler.update()
"""
    run, _ = execute(source, tmp_path / "train.py")
    assert {finding.code for finding in checked(run).findings} == {"AMP802"}, shown(run.findings)


def test_a_rule_that_is_off_by_default_says_nothing_until_it_is_selected(tmp_path: Path) -> None:
    program = next(program for program in MISTAKES if program.rows == "S48")
    run, _ = execute(program.source(3), tmp_path / "train.py")
    assert checked(run).findings == [], shown(run.findings)
    assert [finding.code for finding in run.select("AMP403").findings] == ["AMP403"]


def test_a_rule_that_is_off_by_default_shows_what_a_run_has_proven(tmp_path: Path) -> None:
    program = next(program for program in MISTAKES if program.rows == "S33")
    run, _ = execute(program.source(3), tmp_path / "train.py")
    assert [finding.code for finding in checked(run).findings] == ["AMP403"]
    assert run.select("AMP2").findings == []
    assert [finding.code for finding in run.select("ALL").findings] == ["AMP403"]


# A scaler that has disabled itself: nothing about scaling was exercised.

DISABLED = {
    "torch.amp": 'scaler = torch.amp.GradScaler("cuda")  # AMP217',
    "torch.cuda.amp": "scaler = torch.cuda.amp.GradScaler()  # AMP217",
    "by name": "from torch.cuda.amp import GradScaler\n\nscaler = GradScaler(init_scale=2.0**10)  # AMP217",
}
CAREFUL = """
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
#: A program that would have AMP201, AMP204 and AMP206 if anything were scaled.
CARELESS = """
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    optimizer.step()
"""


@without_cuda
@pytest.mark.filterwarnings("ignore:.*CUDA is not available", "ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("loop", [CAREFUL, CARELESS], ids=["right", "wrong"])
@pytest.mark.parametrize("how", DISABLED)
def test_a_scaler_that_disabled_itself_is_reported_once(how: str, loop: str, tmp_path: Path) -> None:
    source = f"{SETUP}\n{DISABLED[how]}\n{loop}"
    run, _ = execute(source, tmp_path / "train.py")
    assert places(checked(run).findings) == marks(source, "runtime"), shown(run.findings)
    assert [finding.severity for finding in run.findings] == ["info"]
    assert not any(step.skipped for step in run.steps)


@without_cuda
@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_a_scaler_that_disabled_itself_before_the_recording_is_reported(tmp_path: Path) -> None:
    setup = SETUP.replace('GradScaler("cpu", init_scale=2.0**10)', 'GradScaler("cuda")')
    run, _ = execute(setup + CAREFUL, tmp_path / "train.py", SETUP.count("\n") + 1)
    assert [finding.code for finding in checked(run).findings] == ["AMP217"], shown(run.findings)
    assert "scaler" in run.findings[0].message


# Behavior of old versions of torch only.

POISONED = (
    SETUP
    + """
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            teacher = model(x)
        loss = F.mse_loss(model(x), teacher + y)  # AMP109
    loss.backward()
    optimizer.step()
"""
)


@pytest.mark.skipif(TORCH >= (2, 11), reason="torch 2.11 and newer do not keep what was cast under no_grad")
def test_a_cast_cache_that_was_filled_under_no_grad(tmp_path: Path) -> None:
    run, _ = execute(POISONED, tmp_path / "train.py", raises="does not require grad")
    assert places(checked(run).findings) == marks(POISONED, "runtime"), shown(run.findings)


@pytest.mark.skipif(TORCH < (2, 11), reason="before torch 2.11 this is a mistake")
def test_a_no_grad_forward_in_the_same_region_is_right_since_torch_2_11(tmp_path: Path) -> None:
    run, names = execute(POISONED, tmp_path / "train.py")
    assert checked(run).findings == [], shown(run.findings)
    assert names["moved"]() > 0


# Programs in several files and functions.

HELPER = """
from torch import nn


def clip_all(model, limit):
    nn.utils.clip_grad_norm_(model.parameters(), limit)


def train(model, optimizer, scaler, loss_of, batches):
    for x, y in batches:
        optimizer.zero_grad()
        scaler.scale(loss_of(x, y)).backward()
        clip_all(model, 0.1)  # the mistake
        scaler.step(optimizer)
        scaler.update()
"""


def test_a_mistake_in_another_file_is_named_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    helper = tmp_path / "amp_misuse_loop.py"
    helper.write_text(HELPER, encoding="utf-8")
    source = SETUP + "\nimport amp_misuse_loop\n\namp_misuse_loop.train(model, optimizer, scaler, loss_of, batches)\n"
    run, names = execute(source, tmp_path / "main.py")
    assert names["moved"]() < 1e-5
    assert [(finding.code, finding.filename) for finding in checked(run).findings] == [("AMP201", str(helper))]
    # The call of clip_all and the clip inside are equally good locations: both functions are in this file.
    lines = HELPER.split("\n")
    assert lines[run.findings[0].line - 1].strip().startswith(("clip_all(", "nn.utils.clip_grad_norm_("))


SHARED = """
from torch import nn


def clip_all(model, limit):
    nn.utils.clip_grad_norm_(model.parameters(), limit)
"""


def test_a_helper_that_is_right_in_itself_is_not_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "amp_misuse_clip.py").write_text(SHARED, encoding="utf-8")
    source = (
        SETUP
        + """
import amp_misuse_clip

for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    amp_misuse_clip.clip_all(model, 0.1)  # AMP201
    scaler.step(optimizer)
    scaler.update()
"""
    )
    run, _ = execute(source, tmp_path / "main.py")
    assert places(checked(run).findings) == marks(source, "runtime"), shown(run.findings)
    assert run.findings[0].filename == str(tmp_path / "main.py")


SEVERAL = (
    SETUP
    + """
class Trainer:
    def __init__(self):
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def step(self, x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
            self.scaler.scale(loss).backward()  # AMP103
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def save(self):
        torch.save({"model": model.state_dict(), "optimizer": self.optimizer.state_dict()}, io.BytesIO())  # AMP401


trainer = Trainer()
for epoch in range(2):
    for x, y in batches:
        trainer.step(x, y)
    trainer.save()
"""
)


def test_several_mistakes_of_one_program_are_each_named_once(tmp_path: Path) -> None:
    run, _ = execute(SEVERAL, tmp_path / "train.py")
    assert places(checked(run).findings) == marks(SEVERAL, "runtime"), shown(run.findings)
    assert len(run.findings) == 3
    message = next(finding.message for finding in run.findings if finding.code == "AMP201")
    assert "self.scaler.unscale_(self.optimizer)" in message


def test_findings_can_be_read_while_the_run_goes_on() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    with record() as run:
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        assert run.findings == []
        optimizer.step()
        assert [finding.code for finding in run.findings] == ["AMP204"]
        scaler.update(2.0)
    assert [finding.code for finding in checked(run).findings] == ["AMP204"]
