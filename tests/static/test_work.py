"""Work in several processes: all work is done or an error is reported, and no process is left behind."""

from __future__ import annotations

import _thread
import multiprocessing
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import IO

import pytest

from pytest_amp_check.static.processes import EndedEarly, run_in_processes, shared_arguments

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")


def add(number: int) -> tuple[int, int]:
    return shared_arguments() + number, os.getpid()


def refuse(number: int) -> int:
    if number == 3:
        raise OSError(f"there is no {number}")
    return number


def die(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize(("jobs", "processes"), [(1, 1), (2, 2), (3, 3), (50, 5)])
def test_all_of_it_is_done_once_by_so_many(jobs: int, processes: int) -> None:
    done = list(run_in_processes(add, range(5), jobs, 100))
    assert sorted(number for number, _ in done) == [100, 101, 102, 103, 104]
    assert len({process for _, process in done}) <= processes
    assert (os.getpid() in {process for _, process in done}) == (jobs == 1)
    assert not multiprocessing.active_children()


def test_a_thread_outside_of_threading_causes_no_warning() -> None:
    """Python 3.15 warns of such a thread when a process is forked."""
    waiting = _thread.allocate_lock()
    with waiting, warnings.catch_warnings():
        warnings.simplefilter("error")
        _thread.start_new_thread(waiting.acquire, ())
        assert sorted(number for number, _ in run_in_processes(add, range(5), 2, 100)) == [100, 101, 102, 103, 104]


def test_no_work() -> None:
    assert list(run_in_processes(add, [], 2, 0)) == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_is_raised_where_the_results_are_waited_for(jobs: int) -> None:
    with pytest.raises(OSError, match="there is no 3") as raised:
        list(run_in_processes(refuse, range(10), jobs))
    assert jobs == 1 or "in refuse" in str(raised.value.__cause__)
    assert not multiprocessing.active_children()


@POSIX
def test_a_process_that_is_killed_is_not_waited_for() -> None:
    with pytest.raises(EndedEarly):
        list(run_in_processes(die, range(10), 2))
    assert not multiprocessing.active_children()


def test_processes_end_where_nobody_wants_more() -> None:
    results = run_in_processes(add, range(10), 2, 0)
    next(results)
    assert multiprocessing.active_children()
    results.close()  # type: ignore[attr-defined]
    assert not multiprocessing.active_children()


DYING = """\
import os, signal, sys
from pytest_amp_check.frontends.cli import main
from pytest_amp_check.static import engine
engine.WORTH_PROCESSES = 0
engine.analyze_path = lambda path: os.kill(os.getpid(), signal.SIGKILL)
sys.exit(main(["check", "--jobs", "2", "."]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the function that dies is not found by its name")
def test_a_killed_process_is_one_sentence(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"train{number}.py").write_text("scaler.scale(loss).backward()\n")
    done = subprocess.run([sys.executable, "-c", DYING], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "amp-check: error: one of the processes that read the files was killed, most likely because memory ran out:"
        " give --jobs 1, or fewer files at a time\n"
    )


WAITING = """\
import os, time
from pytest_amp_check.static.processes import run_in_processes
def act(item):
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(0.2)
list(run_in_processes(act, range(1000), 3))
"""


def all_work(output: IO[str]) -> None:
    """Wait until each process has reported that it works."""
    working: set[int] = set()
    while len(working) < 3:
        working.add(int(output.readline()))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the function that sleeps is not found by its name")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGKILL", None)], ids=str)
def test_no_process_outlives_the_one_that_started_it(number: signal.Signals) -> None:
    command = [sys.executable, "-c", WAITING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        all_work(process.stdout)
        process.send_signal(number)
        # Every process has this pipe open until its end.
        process.stdout.read()


@POSIX
def test_an_interrupt_from_the_keyboard_is_silent() -> None:
    command = [
        sys.executable,
        "-c",
        f"try:\n    exec({WAITING!r})\nexcept KeyboardInterrupt:\n    print('interrupted')",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        all_work(process.stdout)
        os.killpg(process.pid, signal.SIGINT)
        said, wrong = process.communicate()
    assert said.endswith("interrupted\n")
    assert wrong == ""
