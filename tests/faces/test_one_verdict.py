"""One verdict for one file: however it is named, configured, and found, on the command line and in pytest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_amp_check.protocol.rules import RULES

BAD = RULES["AMP201"].bad
GOOD = RULES["AMP201"].good
CONFLICT = "x = 1\n<<<<<<< HEAD\ny = 2\n=======\ny = 3\n>>>>>>> other\n"


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "AMP_CHECK_DEBUG"):
        monkeypatch.delenv(name, raising=False)


def write(files: dict[str, str]) -> None:
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


def amp_check(*argv: str, cwd: str = ".") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest_amp_check", "check", *argv], capture_output=True, text=True, cwd=cwd
    )


def found(*argv: str, cwd: str = ".") -> set[tuple[str, str]]:
    """The codes found, each with the file that it was found in."""
    done = amp_check("--output-format", "json", "--no-cache", *argv, cwd=cwd)
    assert done.returncode in (0, 1), done.stderr
    return {(Path(one["filename"]).as_posix(), one["code"]) for one in json.loads(done.stdout)}


# What cannot be read, and what is not.


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("settings.py", CONFLICT),
        ("old.py", "print 'Python 2'\n"),
        ("cut.py", "def f(:\n"),
        ("latin.py", "# caf\udce9\nx = 1\n"),
        ("null.py", "x = 1\0\n"),
        ("notes.ipynb", '{"cells": [{"cell_type": "code", "source": "x = = 1"}]}'),
        ("page.ipynb", "<html>"),
    ],
)
def test_what_cannot_be_parsed_is_said_of_a_folder_as_of_the_file_by_name(name: str, text: str) -> None:
    Path("pkg").mkdir()
    Path("pkg", name).write_bytes(text.encode("utf-8", "surrogateescape"))
    expected = {(f"pkg/{name}", "AMP903")}
    assert found(f"pkg/{name}") == expected
    assert found("pkg") == expected
    assert found() == expected


def test_a_file_of_the_cache_that_was_repaired_is_said_no_more() -> None:
    write({"pkg/settings.py": CONFLICT, "pkg/train.py": GOOD})
    assert amp_check("pkg").returncode == 1
    assert amp_check("pkg").returncode == 1
    write({"pkg/settings.py": "x = 1\n"})
    assert amp_check("pkg").returncode == 0


def test_valid_files_without_mixed_precision_stay_silent() -> None:
    cell = '{"cells": [{"cell_type": "code", "source": "!ls\\n%matplotlib inline\\nx = 1"}]}'
    write({"pkg/a.py": "import torch\nx: int = 1\n", "pkg/b.ipynb": cell, "pkg/c.md": "```python\nx = = 1\n```\n"})
    assert found("pkg") == set()


def test_what_is_passed_over_is_counted_and_listed() -> None:
    write({"train.py": GOOD, "data.py": "x = 1\n", "third_party/a.py": BAD, "old.py": BAD})
    Path("circle.py").symlink_to("circle.py")
    done = amp_check(".", "--statistics", "--exclude", "third_party,old.py")
    lines = done.stdout.splitlines()
    assert "1  passed over, holding nothing of mixed precision: data.py" in lines
    assert "2  passed over, left out by `exclude`: old.py, third_party" in lines
    assert "1  passed over, symbolic links that lead in a circle: circle.py" in lines
    counts = json.loads(amp_check(".", "--statistics", "--output-format", "json").stdout)
    assert {"code": "AMP903", "name": "unreadable-source", "severity": "error", "count": 1} in counts
    passed = {one["reason"]: one["paths"] for one in counts if one["name"] == "passed-over"}
    assert passed["holding nothing of mixed precision"] == ["data.py"]


def test_what_git_ignores_is_counted() -> None:
    write({"train.py": GOOD, ".gitignore": "generated\n*.bak\n", "generated/a.py": BAD, "x.bak": "x"})
    subprocess.run(["git", "init", "-q", "."], check=True)
    assert "1  passed over, ignored by git: generated\n" in amp_check(".", "--statistics").stdout


def test_many_paths_are_counted_and_only_listed_for_programs() -> None:
    write({"train.py": GOOD, **{f"data_{number:02}.py": "x = 1\n" for number in range(40)}})
    assert "40  passed over, holding nothing of mixed precision\n" in amp_check(".", "--statistics").stdout
    (passed,) = json.loads(amp_check(".", "--statistics", "--output-format", "json").stdout)
    assert (passed["count"], len(passed["paths"])) == (40, 40)


def test_a_link_that_leads_in_a_circle_or_nowhere_is_called_so() -> None:
    write({"pkg/train.py": GOOD})
    Path("pkg/circle.py").symlink_to("circle.py")
    for paths in (("pkg",), ("pkg/circle.py",)):
        done = amp_check(*paths)
        assert done.returncode == 1
        assert done.stdout.startswith("pkg/circle.py:1:1: AMP903 [error] ")
        assert "too many levels of symbolic links" in done.stdout
    Path("pkg/gone.py").symlink_to("nowhere.py")
    done = amp_check("pkg/gone.py")
    assert done.returncode == 2
    assert done.stderr == "amp-check: error: `pkg/gone.py` is a symbolic link to `nowhere.py`, which does not exist\n"


# Which files are left out, and by which configuration.

EXCLUDING = '[tool.amp-check]\nexclude = ["third_party", "src/gen/*.py", "!src/gen/kept.py"]\n'


def test_exclude_takes_back_what_follows_an_exclamation_mark() -> None:
    write({"pyproject.toml": EXCLUDING, "src/gen/a.py": BAD, "src/gen/kept.py": BAD, "third_party/b.py": BAD})
    assert found() == {("src/gen/kept.py", "AMP201")}
    assert found(cwd="src/gen") == {("kept.py", "AMP201")}
    # The last one that matches decides.
    assert found("--exclude", "!*.py,third_party,*.py,!a.py") == {("src/gen/a.py", "AMP201")}
    assert {code for _, code in found("--exclude", "!a.py")} == {"AMP201"}


def test_rules_may_be_off_in_all_files_but_some() -> None:
    write({"src/a.py": BAD, "tests/b.py": BAD})
    assert found("--per-file-ignores", "!src/*:AMP201") == {("src/a.py", "AMP201")}


def test_exclude_holds_for_named_files_where_that_is_forced() -> None:
    names = ["src/gen/a.py", "src/gen/kept.py", "third_party/deep/b.py", "train.py"]
    write({"pyproject.toml": EXCLUDING, **dict.fromkeys(names, BAD)})
    assert {name for name, _ in found(*names)} == set(names)
    assert {name for name, _ in found("--force-exclude", *names)} == {"src/gen/kept.py", "train.py"}
    done = amp_check("--force-exclude", "third_party/deep/b.py")
    assert (done.returncode, done.stdout) == (0, "No AMP mistakes found in 0 files.\n")
    assert done.stderr == (
        "amp-check: warning: no Python file, notebook or Markdown that is not excluded was found in "
        "third_party/deep/b.py\n"
    )
    Path("pyproject.toml").write_text(EXCLUDING + "force-exclude = true\n")
    assert {name for name, _ in found(*names)} == {"src/gen/kept.py", "train.py"}
    assert {name for name, _ in found("--no-force-exclude", *names)} == set(names)


def test_what_is_excluded_by_name_is_not_looked_for_above_the_project() -> None:
    write({"build/project/pyproject.toml": '[tool.amp-check]\nexclude = ["build"]\n', "build/project/train.py": BAD})
    assert found("--force-exclude", "build/project/train.py") == {("build/project/train.py", "AMP201")}
    assert found("--force-exclude", "train.py", cwd="build/project") == {("train.py", "AMP201")}


def test_the_hook_for_pre_commit_forces_what_is_excluded() -> None:
    hooks = (Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text()
    (entry,) = [line.partition("entry:")[2].split() for line in hooks.splitlines() if "entry:" in line]
    assert entry[:2] == ["amp-check", "check"]
    write({"pyproject.toml": '[tool.amp-check]\nexclude = ["old"]\n', "old/a.py": BAD, "b.py": BAD})
    assert found(*entry[2:], "old/a.py", "b.py") == {("b.py", "AMP201")}


NESTED = {
    "pyproject.toml": '[tool.amp-check]\nignore = ["AMP201"]\noutput-format = "concise"\n',
    "train.py": BAD,
    "inner/pyproject.toml": '[tool.amp-check]\nexclude = ["gen"]\nseverity = { AMP201 = "warning" }\n',
    "inner/train.py": BAD,
    "inner/gen/a.py": BAD,
    "inner/plain/pyproject.toml": "[project]\nname = 'plain'\n",
    "inner/plain/b.py": BAD,
    "other/train.py": BAD,
}


@pytest.mark.parametrize(
    "paths",
    [
        (".",),
        ("inner", "other", "train.py"),
        ("train.py", "other", "inner"),
        ("other/train.py", "inner/plain", "inner/train.py", "train.py"),
        ("train.py", "inner/train.py", "inner/plain/b.py", "other/train.py"),
    ],
)
def test_the_nearest_configuration_holds_for_each_file(paths: tuple[str, ...]) -> None:
    write(NESTED)
    done = amp_check("--no-cache", *paths)
    shown = [line.split(": ")[:2] for line in done.stdout.splitlines()[:-2]]
    assert [(place.split(":")[0], said.split("[")[-1]) for place, said in shown] == [
        ("inner/plain/b.py", "warning] clip-before-unscale"),
        ("inner/train.py", "warning] clip-before-unscale"),
    ]
    assert done.returncode == 1


def test_what_the_command_line_says_holds_everywhere() -> None:
    write(NESTED)
    everything = {name for name in NESTED if name.endswith(".py")}
    assert {name for name, _ in found("--select", "AMP201", "--exclude", "nothing")} == everything
    assert found("--ignore", "AMP201") == set()


def test_the_nearest_configuration_is_known_after_changing_it() -> None:
    write(NESTED)
    assert amp_check(".").stdout.count("AMP201") == 2
    write({"inner/pyproject.toml": "[tool.amp-check]\nselect = ['AMP202']\n"})
    assert amp_check(".").stdout.count("AMP201") == 0


def test_fixes_are_those_of_the_nearest_configuration() -> None:
    write(NESTED)
    assert amp_check("--fix", ".").returncode == 0
    assert {name for name in NESTED if name.endswith(".py") and Path(name).read_text() != BAD} == {
        "inner/plain/b.py",
        "inner/train.py",
    }


def test_a_wrong_configuration_in_an_inner_folder_is_said() -> None:
    write({"train.py": GOOD, "inner/pyproject.toml": "[tool.amp-check]\nselct = ['AMP2']\n", "inner/a.py": GOOD})
    for paths in (".", "inner/a.py"):
        done = amp_check(paths)
        assert done.returncode == 2
        assert (
            f"unknown key 'selct' in [tool.amp-check] of {os.path.join('inner', 'pyproject.toml')}"
            in done.stderr.replace(os.path.join(os.getcwd(), ""), "")
        )
        assert "did you mean 'select'?" in done.stderr
