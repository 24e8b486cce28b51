"""No code of a checked repository is executed, by any form of check."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from doors import console_script, flake8

import pytest_amp_check
from pytest_amp_check.protocol.rules import RULES

ROOT = Path(pytest_amp_check.__file__).parents[1]
BAD = RULES["AMP201"].bad_example
#: Modules that Python, this package or an installer imports, each as a file or a folder of the repository.
PLANTED = (
    *("ast.py", "argparse.py", "json.py", "multiprocessing.py", "pickle.py", "runpy.py", "signal.py", "subprocess.py"),
    *("sitecustomize.py", "usercustomize.py", "tomllib.py", "threading.py", "typing.py", "tempfile.py"),
    *("pytest_amp_check/__init__.py", "pytest_amp_check/__main__.py", "rich/__init__.py", "libcst/__init__.py"),
    *("venv/__init__.py", "venv/__main__.py", "pip/__init__.py", "pip/__main__.py", "flake8/__init__.py"),
)
#: Workers start by spawn on systems other than Linux, and here for any number of files.
SPAWNING = """
import pytest_amp_check.static.engine as engine
import pytest_amp_check.static.prescans as prescans
import pytest_amp_check.static.processes as processes

class Elsewhere:
    platform = "darwin"

    def __getattr__(self, name):
        return getattr(sys, name)

processes.sys = Elsewhere()
engine.WORTH_PROCESSES = 0
prescans.PRESCAN_CHUNK = 1
"""
FORKING = SPAWNING.replace("processes.sys = Elsewhere()", "")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="commands are scripts with a first line that names one")


@pytest.fixture(autouse=True)
def executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a hostile repository. Return the path of a file that its modules would write."""
    for name in ("PYTHONPATH", "PYTHONSAFEPATH", "GITHUB_STEP_SUMMARY", "AMP_CHECK_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    mark = tmp_path / "executed"
    code = f"import os\nos.close(os.open({str(mark)!r}, os.O_CREAT | os.O_WRONLY))\nraise SystemExit(0)\n"
    for name in PLANTED:
        path = tmp_path / "repository" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    for name in ("train.py", "other.py"):
        (tmp_path / "repository" / name).write_text(BAD + code)
    monkeypatch.chdir(tmp_path / "repository")
    return mark


def ran(command: Path | Sequence[str], *argv: str, **more: Any) -> subprocess.CompletedProcess[str]:
    words = [str(command)] if isinstance(command, Path) else list(command)
    return subprocess.run([*words, *argv], capture_output=True, encoding="utf-8", timeout=300, **more)


def git(*words: str) -> None:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words]
    subprocess.run(command, check=True, capture_output=True)


def amp_check(tmp_path: Path, before: str = "") -> Path:
    return console_script(tmp_path / "bin" / "amp-check", before=before)


@pytest.mark.parametrize(
    "argv",
    [
        ("--jobs", "1"),
        ("--fix",),
        ("--diff",),
        ("--add-ignores",),
        ("--output-format", "json"),
        ("--output-format", "sarif"),
        ("--color", "always"),
        ("--show-settings",),
        ("--show-files",),
        ("--report", "../report.html"),
        ("--baseline", "../known.json", "--update-baseline"),
    ],
    ids=" ".join,
)
def test_the_command(argv: tuple[str, ...], tmp_path: Path, executed: Path) -> None:
    done = ran(amp_check(tmp_path), "check", *argv, ".")
    assert done.returncode in (0, 1), done.stderr
    assert "internal error" not in done.stderr
    assert not executed.exists()


@pytest.mark.parametrize("before", [FORKING, SPAWNING], ids=["fork", "spawn"])
def test_its_processes(before: str, tmp_path: Path, executed: Path) -> None:
    done = ran(amp_check(tmp_path, before), "check", "--jobs", "2", "--output-format", "concise", ".")
    assert not executed.exists()
    assert (done.returncode, done.stdout.count("AMP201"), done.stderr) == (1, 2, "")


def test_starting_processes_leaves_the_environment_as_it_was(tmp_path: Path, executed: Path) -> None:
    before = (
        SPAWNING
        + "import os\nold = dict(os.environ)\n"
        + "from pytest_amp_check.frontends import cli\nif __name__ == '__main__':\n"
        + "    code = cli.main()\n    assert dict(os.environ) == old\n    os._exit(code)\n"
    )
    done = ran(amp_check(tmp_path, before), "check", "--jobs", "2", "--output-format", "concise", ".")
    assert not executed.exists()
    assert (done.returncode, done.stdout.count("AMP201"), done.stderr) == (1, 2, "")


def test_processes_run_no_script_that_starts_them(tmp_path: Path, executed: Path) -> None:
    """Spawned processes run the main module again, which would repeat the check without a guard."""
    script = tmp_path / "lint.py"
    script.write_text(
        f"import sys\n{SPAWNING}\nprint('begun')\n"
        "print(len(engine.check_paths([sys.argv[1]], jobs=2).findings), 'found')\n"
    )
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("train.py", "other.py"):
        (folder / name).write_text(BAD)
    done = ran([sys.executable, str(script)], str(folder), env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (done.stdout.splitlines(), done.stderr) == (["begun", "2 found"], "")
    assert not executed.exists()


def test_a_revision(tmp_path: Path, executed: Path) -> None:
    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "one")
    Path("new.py").write_text(BAD)
    done = ran(amp_check(tmp_path), "check", "--diff-base", "HEAD", "--output-format", "concise", ".")
    assert not executed.exists()
    assert (done.returncode, done.stdout.count("AMP201"), done.stderr) == (1, 1, "")


def test_the_language_server(tmp_path: Path, executed: Path) -> None:
    pytest.importorskip("pygls", reason="the language server is an extra")
    from editor import Editor, uri

    folder = Path.cwd()
    with Editor(folder, command=(str(amp_check(tmp_path)),)) as editor:
        address = editor.open(folder / "train.py", Path("train.py").read_text())
        assert address == uri(folder / "train.py")
        assert [found.code for found in editor.found(address)] == ["AMP201"]
    assert not executed.exists()


def test_flake8(tmp_path: Path, executed: Path) -> None:
    pytest.importorskip("flake8")
    command = console_script(tmp_path / "bin" / "flake8", "flake8.main.cli:main")
    # The processes of flake8 itself start with the working folder on their path where Python does not fork.
    done = flake8("--jobs=1", "--enable-extensions=AMP", "--select=AMP", ".", command=(str(command),))
    assert not executed.exists()
    assert done.stdout.count("AMP201") == 2, done.stderr


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_pytest(workers: tuple[str, ...], tmp_path: Path, executed: Path) -> None:
    if workers:
        pytest.importorskip("xdist")
    Path("pytest.ini").write_text("[pytest]\n")
    command = console_script(tmp_path / "bin" / "pytest", "pytest:console_main")
    # The standard input of an xdist worker is a program, which starts with the working folder on its path.
    env = os.environ | {"PYTHONSAFEPATH": "1"}
    if workers and sys.version_info < (3, 11):
        pytest.skip("xdist itself starts its workers with the working folder on their path")
    done = ran(command, "--amp-check", "--amp-only=static", "-p", "no:cacheprovider", *workers, env=env)
    assert not executed.exists()
    assert (done.returncode, "Found 2 errors in " in done.stdout) == (1, True), done.stdout


def hooks() -> list[dict[str, Any]]:
    declared: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    return declared


@pytest.mark.parametrize("hook", hooks(), ids=lambda hook: hook["id"])
def test_pre_commit(hook: dict[str, Any], tmp_path: Path, executed: Path) -> None:
    folder = amp_check(tmp_path).parent
    env = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = ran(hook["entry"].split(), "train.py", "other.py", env=env)
    assert not executed.exists()
    assert done.returncode == ("--fix" not in hook["entry"]), done.stdout + done.stderr


def test_the_action(tmp_path: Path, executed: Path) -> None:
    """The commands of the action's file run with the real Python for environments, and with a stand-in for pip."""
    runner = tmp_path / "runner"
    runner.mkdir()
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python").symlink_to(sys.executable)
    declared = yaml.safe_load((ROOT / "action" / "action.yml").read_text(encoding="utf-8"))
    given = {"paths": ".", "arguments": "", "output-format": "github", "version": str(tmp_path / "none")}
    make, _, check = declared["runs"]["steps"]
    for step in (make, check):
        env = dict(step["env"])
        for key, value in given.items():
            env = {name: text.replace(f"${{{{ inputs.{key} }}}}", value) for name, text in env.items()}
        env |= {
            "RUNNER_TEMP": str(runner),
            "GITHUB_OUTPUT": str(runner / "outputs"),
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        }
        done = ran(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]], env=os.environ | env)
        assert not executed.exists(), step["name"]
        if step is make:
            # There is nothing at that path to be installed.
            assert "none" in done.stderr, done.stderr
            amp_check(runner / "amp-check")
        else:
            assert done.returncode == 1, done.stderr
            assert done.stdout.count("AMP201 clip-before-unscale") == 2


def test_no_command_that_is_documented_searches_the_working_folder() -> None:
    wrong = []
    for path in (ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md")):
        shown = path.read_text(encoding="utf-8").split("```")[1::2]
        wrong += [f"{path.name}: {line}" for block in shown for line in block.splitlines() if "python -m" in line]
    for name in ("action/action.yml", ".pre-commit-hooks.yaml"):
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        wrong += [f"{name}: {line}" for line in lines if "python -m" in line or 'python" -m' in line]
    assert wrong == []
