"""Commands ended from outside: one line and the correct exit code, complete files, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from pytest_amp_check.protocol.rules import RULES

BAD, GOOD = RULES["AMP201"].bad_example.replace("  # AMP201", ""), RULES["AMP201"].good_example
SAID = {"SIGINT": (130, "interrupted"), "SIGTERM": (143, "terminated"), "SIGHUP": (129, "hung up")}
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
#: Seconds after which a process that should be gone counts as still running.
PATIENCE = 60
#: Processes that write their ids and then work longer than any test.
SLOW = """\
    import time
    from pytest_amp_check.static import engine

    def slow(*_):
        open(f"worker-{os.getpid()}", "w").close()
        time.sleep(600)

    engine.analyze_path, engine.WORTH_PROCESSES = slow, 0
"""


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "AMP_CHECK_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    Path("train.py").write_text(BAD)


def command(before: str, *argv: str) -> list[str]:
    """Return the command line of a process that runs some code before the command starts."""
    code = "import os, signal, sys\n" + textwrap.dedent(before)
    code += f"\nsys.argv[1:] = {list(argv)!r}\nfrom pytest_amp_check.__main__ import run\nrun()\n"
    return [sys.executable, "-c", code]


def ended(before: str, *argv: str) -> tuple[int, str, str]:
    done = subprocess.run(command(before, *argv), capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def raising(name: str, function: str) -> str:
    """Return code that makes a function of os send a signal to its own process before its work."""
    return f"""\
    real = os.{function}

    def sending(*given, **more):
        os.kill(os.getpid(), signal.{name})
        return real(*given, **more)

    os.{function} = sending
    """


@pytest.mark.parametrize("name", SAID)
@pytest.mark.parametrize(
    "module", ["frontends.cli", "frontends.options", "static.engine", "static.interpreter.values.value"]
)
def test_while_it_is_loaded(name: str, module: str) -> None:
    before = f"""\
    class Sending:
        def find_spec(self, fullname, path, target=None):
            if fullname == "pytest_amp_check.{module}":
                os.kill(os.getpid(), signal.{name})

    sys.meta_path.insert(0, Sending())
    """
    code, said = SAID[name]
    assert ended(before, "check", "train.py", "--no-cache") == (code, "", f"amp-check: {said}\n")


@pytest.mark.parametrize("name", SAID)
@pytest.mark.parametrize("function", ["fsync", "replace", "chmod"])
def test_while_a_file_is_replaced(name: str, function: str) -> None:
    code, out, err = ended(raising(name, function), "check", "--fix", "train.py")
    assert (code, out, err) == (SAID[name][0], "", f"amp-check: {SAID[name][1]}\n")
    # A started write is completed: half a file is never visible.
    assert os.listdir() == ["train.py"]
    assert Path("train.py").read_text() == GOOD


@pytest.mark.parametrize("name", SAID)
def test_before_a_file_is_replaced(name: str) -> None:
    before = f"""\
    from pytest_amp_check.static.fixes import fix_files
    real = fix_files.replace_file

    def sending(*given, **more):
        os.kill(os.getpid(), signal.{name})
        return real(*given, **more)

    fix_files.replace_file = sending
    """
    code, _, err = ended(before, "check", "--fix", "train.py")
    assert (code, err) == (SAID[name][0], f"amp-check: {SAID[name][1]}\n")
    assert os.listdir() == ["train.py"]
    assert Path("train.py").read_text() == BAD


def test_while_a_cache_is_written() -> None:
    Path("src").mkdir()
    Path("train.py").rename("src/train.py")
    assert ended(raising("SIGTERM", "replace"), "check", "src")[0] == 143
    assert not [name for name in os.listdir(".amp_check_cache") if name.startswith(".amp-check-")]
    assert ended("", "check", "src")[0] == 1


def test_a_disk_that_is_full_leaves_the_file_and_nothing_beside_it() -> None:
    before = """\
    def full(*_):
        raise OSError(28, "No space left on device")

    os.fsync = full
    """
    code, _, err = ended(before, "check", "--fix", "train.py")
    assert (code, err) == (2, "amp-check: error: train.py cannot be written: no space left on device\n")
    assert os.listdir() == ["train.py"]
    assert Path("train.py").read_text() == BAD


def test_what_is_ignored_stays_ignored() -> None:
    before = "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + textwrap.dedent(raising("SIGHUP", "replace"))
    assert ended(before, "check", "--fix", "train.py")[0] == 0
    assert Path("train.py").read_text() == GOOD


def test_a_revision_that_was_taken_out_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("tmp").mkdir()
    Path("src").mkdir()
    Path("train.py").rename("src/train.py")
    monkeypatch.setenv("TMPDIR", os.path.abspath("tmp"))
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "src"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    before = """\
    from pytest_amp_check.frontends import changes
    real = changes._write_revision

    def sending(*given):
        real(*given)
        os.kill(os.getpid(), signal.SIGTERM)

    changes._write_revision = sending
    """
    assert ended(before, "check", "src", "--diff-base", "HEAD", "--no-cache")[0] == 143
    assert os.listdir("tmp") == []


# Worker processes.


def wait_for(what: str, there: int) -> list[int]:
    """Wait for ``there`` processes to write a note with this name. Return their ids."""
    deadline = time.monotonic() + PATIENCE
    while len(found := list(Path().glob(f"{what}-*"))) < there:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return [int(path.name.partition("-")[2]) for path in found]


def is_there(number: int) -> bool:
    try:
        os.kill(number, 0)
        # A zombie process exists only by its number.
        with open(f"/proc/{number}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="processes are looked for in /proc")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGKILL"])
def test_no_worker_outlives_what_has_started_it(name: str) -> None:
    Path("src").mkdir()
    for number in range(3):
        Path(f"src/train_{number}.py").write_text(BAD)
    slow = command(SLOW, "check", "src", "--jobs", "3", "--no-cache")
    with subprocess.Popen(slow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        workers = wait_for("worker", 3)
        assert all(map(is_there, workers))
        process.send_signal(getattr(signal, name))
        out, err = process.communicate(timeout=PATIENCE)
    code, said = SAID.get(name, (-signal.SIGKILL, ""))
    assert (process.returncode, out, err) == (code, "", f"amp-check: {said}\n" if said else "")
    deadline = time.monotonic() + PATIENCE
    while any(map(is_there, workers)):
        assert time.monotonic() < deadline, "a worker is left"
        time.sleep(0.02)


# A script under the recorder.


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_script_that_is_ended_ends_as_a_shell_says_it_has(name: str, code: int) -> None:
    # A script that is asked to end, as by torchrun, ends by an exception: the findings up to that moment are reported.
    pytest.importorskip("torch")
    Path("train.py").write_text(f"import os, signal\nos.kill(os.getpid(), signal.{name})\nprint('still here')\n")
    done, out, err = ended("", "run", "train.py")
    assert done == code
    assert "still here" not in out
    assert ("KeyboardInterrupt" in err) == (name == "SIGINT")
    assert "pytest_amp_check" not in err
