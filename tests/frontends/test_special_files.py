"""Pipes, endless devices and files of enormous size as input: rejected quickly in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from samples import sample
from warm import run_command

from pytest_amp_check.protocol import bounded_json
from pytest_amp_check.protocol.regular_files import FileTooLarge, NotRegularFile, read_regular
from pytest_amp_check.protocol.rules import RULES

BAD = RULES["AMP201"].bad_example
#: Bytes of address space for the command. Without a limit, /dev/zero uses them up in a second.
MEMORY = 1_500_000_000
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs pipes and devices of Linux")


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_STEP_SUMMARY", "FORCE_COLOR", "AMP_CHECK_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    Path("train.py").write_text(BAD)


def amp_check(*argv: str) -> tuple[int, str, list[str]]:
    """Run a check. Return the exit code, standard output, and the lines on standard error."""
    done = run_command("check", "--no-cache", "--output-format", "concise", *argv, memory=MEMORY)
    assert "internal error" not in done.stderr and "memory ran out" not in done.stderr
    return done.returncode, done.stdout, done.stderr.splitlines()


def pipe(path: str) -> None:
    os.mkfifo(path)


def endless(path: str) -> None:
    Path(path).symlink_to("/dev/zero")


def huge(path: str) -> None:
    """Create a file of a terabyte that takes no space on the disk."""
    with open(path, "wb") as file:
        file.truncate(2**40)


def folder(path: str) -> None:
    Path(path).mkdir()


SPECIAL = pytest.mark.parametrize("make", [pipe, endless, huge], ids=["pipe", "endless", "huge"])
Make = Callable[[str], None]


def refused(make: Make) -> str:
    return "it has 1,099,511,627,776 bytes, and at most " if make is huge else "it is no regular file, and pipes, "


@SPECIAL
@pytest.mark.parametrize("name", ["pyproject.toml", "amp-check.toml", ".amp-check.toml", "../pyproject.toml"])
def test_configuration(name: str, make: Make) -> None:
    make(name)
    code, out, (line,) = amp_check(".")
    assert (code, out) == (2, "")
    assert line.startswith("amp-check: error: ")
    assert f"{os.path.basename(name)} cannot be read: {refused(make)}" in line
    assert line.endswith(": remove it, or give --isolated")
    assert amp_check(".", "--isolated")[0] == 1


@SPECIAL
def test_configuration_of_a_folder_below(make: Make) -> None:
    Path("inner").mkdir()
    Path("inner/train.py").write_text(BAD)
    make("inner/pyproject.toml")
    code, out, (line,) = amp_check(".")
    assert (code, out) == (2, "")
    assert f"inner/pyproject.toml cannot be read: {refused(make)}" in line


@SPECIAL
def test_configuration_that_is_named(make: Make) -> None:
    make("own.toml")
    code, out, (line,) = amp_check(".", "--config", "own.toml")
    assert (code, out) == (2, "")
    assert f"own.toml cannot be read: {refused(make)}" in line


@SPECIAL
@pytest.mark.parametrize(
    "name", ["setup.py", "setup.cfg", "requirements.txt", "requirements-dev.txt", "environment.yml"]
)
def test_what_says_which_torch_is_asked_for(name: str, make: Make) -> None:
    """An unreadable requirements file declares nothing: fixes are offered as for any torch."""
    make(name)
    code, out, err = amp_check("train.py")
    assert (code, out.count("AMP201"), err) == (1, 1, [])
    assert amp_check("train.py", "--fix")[0] == 0


@pytest.mark.parametrize(("where", "argv"), sample(product([".", "inner", "inner/deep"], [(".",), ("train.py",)]), 3))
def test_an_ignore_file_that_is_a_pipe(where: str, argv: tuple[str, ...]) -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    Path("pyproject.toml").write_text("[project]\nname = 'project'\n")
    Path(where).mkdir(parents=True, exist_ok=True)
    Path(where, "more.py").write_text(BAD)
    os.mkfifo(os.path.join(where, ".gitignore"))
    code, out, (line,) = amp_check(*argv)
    assert (code, out) == (2, "")
    path = os.path.normpath(os.path.join(os.getcwd(), where, ".gitignore"))
    assert line == (
        f"amp-check: error: git cannot read {path}, which is no regular file: "
        "remove the cause, or give --no-respect-gitignore"
    )
    code, out, err = amp_check(*argv, "--no-respect-gitignore")
    assert (code, "train.py" in out, err) == (1, True, [])


@pytest.mark.parametrize("name", ["config", "info/exclude", "index"])
def test_a_file_of_git_that_is_a_pipe(name: str) -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    path = Path(".git", name)
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    code, out, (line,) = amp_check(".")
    assert (code, out) == (2, "")
    assert f"git cannot read {path.absolute()}, which is no regular file" in line


@pytest.mark.parametrize("make", [endless, huge, folder], ids=["endless", "huge", "folder"])
def test_an_ignore_file_that_git_does_not_wait_for(make: Make) -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    make(".gitignore")
    assert amp_check(".")[0] in (1, 2)


@pytest.mark.parametrize("name", ["config", "index"])
def test_a_revision_of_a_repository_that_hangs(name: str) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    path = Path(".git", name)
    path.unlink()
    os.mkfifo(path)
    Path("new.py").write_text(BAD)
    code, out, (line,) = amp_check(".", "--no-respect-gitignore", "--diff-base", "HEAD")
    assert (code, out) == (2, "")
    assert line.startswith("amp-check: error: --diff-base: git ")


@SPECIAL
@pytest.mark.parametrize("name", ["model.py", "model.ipynb", "model.md", "model.pyi"])
def test_a_source(name: str, make: Make) -> None:
    make(name)
    code, out, err = amp_check(name)
    assert (code, out.count("AMP903"), err) == (1, 1, [])
    assert ("it is no regular file" in out) == (make is not huge)
    Path("train.py").unlink()
    code, out, err = amp_check(".")
    # The kind of a file found in a folder is checked earlier.
    assert (code, out.count("AMP903")) == ((1, 1) if make is huge else (2, 0))


@SPECIAL
def test_a_file_that_an_import_leads_to(make: Make) -> None:
    make("helper.py")
    Path("pyproject.toml").write_text("[project]\nname = 'project'\n")
    Path("train.py").write_text("import helper\nfrom helper import *\n" + BAD)
    code, out, err = amp_check("train.py")
    assert (code, out.count("AMP201"), err) == (1, 1, [])
    assert amp_check("train.py", "--fix")[0] == 0


@pytest.mark.parametrize("make", [pipe, endless, huge, folder], ids=["pipe", "endless", "huge", "folder"])
def test_a_baseline(make: Make) -> None:
    make("known.json")
    code, out, (line,) = amp_check(".", "--baseline", "known.json")
    assert (code, out) == (2, "")
    assert "known.json cannot be read: " in line


@pytest.mark.parametrize("make", [pipe, endless, huge, folder], ids=["pipe", "endless", "huge", "folder"])
def test_a_file_of_arguments(make: Make) -> None:
    make("arguments")
    code, out, (line,) = amp_check("@arguments")
    assert (code, out) == (2, "")
    assert line.startswith("amp-check: error: @arguments: the arguments cannot be read: ")


def test_a_null_byte_in_a_file_of_arguments() -> None:
    """Names separated as by ``find -print0`` are rejected."""
    Path("arguments").write_bytes(b"a.py\0b.py\0")
    expected = "amp-check: error: @arguments: the arguments hold a null byte: write each of them in a line of its own"
    assert amp_check("@arguments") == (2, "", [expected])


def test_a_file_of_arguments_in_another_encoding() -> None:
    """Redirected output of PowerShell 5 is UTF-16."""
    Path("arguments").write_text("train.py\n", encoding="utf-16")
    expected = "amp-check: error: @arguments: the arguments cannot be read: save them as text in UTF-8"
    assert amp_check("@arguments") == (2, "", [expected])


@pytest.mark.parametrize(
    "setting",
    [
        'paths = ["a\\u0000b"]',
        'exclude = ["a\\u0000"]',
        'baseline = "\\u0000"',
        'per-file-ignores = { "\\u0000" = [] }',
    ],
)
def test_a_null_byte_in_a_setting(setting: str) -> None:
    Path("amp-check.toml").write_text(setting)
    key = setting.partition(" ")[0]
    path = os.path.abspath("amp-check.toml")
    expected = f"amp-check: error: {key} in {path} holds a null byte, which no name has: leave it out"
    assert amp_check() == (2, "", [expected])


def cached(tmp_path: Path) -> tuple[int, str]:
    done = run_command("check", "--cache-dir", str(tmp_path / "cache"), ".", memory=MEMORY)
    return done.returncode, done.stderr


@pytest.mark.parametrize("make", [pipe, endless, huge, folder], ids=["pipe", "endless", "huge", "folder"])
def test_a_cache(make: Make, tmp_path: Path) -> None:
    """The file is not used, like any cache with other content."""
    assert cached(tmp_path) == (1, "")
    (written,) = (tmp_path / "cache").glob("*.json")
    written.unlink()
    make(str(written))
    assert cached(tmp_path) == (1, "")


@SPECIAL
def test_a_mark_of_a_cache(make: Make, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    make(str(tmp_path / "cache" / "CACHEDIR.TAG"))
    code, said = cached(tmp_path)
    assert (code, said.count("\n")) == (2, 1)
    assert "holds something else than a cache of amp-check" in said


def test_a_revision_with_a_file_of_enormous_size() -> None:
    """A file that would be too large in the work tree is skipped in a revision."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "core.compression=1"]
    with open("data.ipynb", "wb") as file:
        file.truncate(200_000_000)
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    Path("data.ipynb").unlink()
    Path("new.py").write_text(BAD)
    code, out, err = amp_check(".", "--diff-base", "HEAD")
    assert (code, out.count("AMP201"), "new.py" in out, err) == (1, 1, True, [])


# Shared functions.


def test_a_regular_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    for data in (b"", b"1", b"12345"):
        Path(path).write_bytes(data)
        assert read_regular(path, 5) == read_regular(path, 0) == data
    Path(path).write_bytes(b"123456")
    with pytest.raises(FileTooLarge, match="it has 6 bytes, and at most 5 are read"):
        read_regular(path, 5)
    assert read_regular(path, 0) == b"123456"
    # The file reports a size of zero.
    assert read_regular("/proc/self/status", 100_000).startswith(b"Name:")
    with pytest.raises(FileTooLarge):
        read_regular("/proc/self/status", 10)


def test_what_is_no_regular_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), "/dev/zero", "/dev/tty"):
        with pytest.raises(NotRegularFile):
            read_regular(path, 5)
    for path, kind in (
        (str(tmp_path), IsADirectoryError),
        (str(tmp_path / "gone"), FileNotFoundError),
        ("a\0b", OSError),
    ):
        with pytest.raises(kind) as raised:
            read_regular(path, 5)
        assert isinstance(raised.value, OSError)
        assert raised.value.strerror


def test_json_of_too_many_values_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_json, "MOST_VALUES", 10)
    assert bounded_json.parse_json(json.dumps(list(range(9)))) == list(range(9))
    # A string is one value, regardless of its content.
    text = '{"a\\"[": "' + "[,{" * 20 + '"}'
    assert bounded_json.parse_json(text) == json.loads(text)
    for text in (json.dumps(list(range(12))), "[" * 12 + "]" * 12, "{" * 12):
        with pytest.raises(bounded_json.JsonTooLarge, match="it holds more than 10 values"):
            bounded_json.parse_json(text)


def test_a_notebook_of_too_many_values() -> None:
    Path("bomb.ipynb").write_text('{"cells": [' + "[]," * 3_000_000 + "[]]}")
    code, out, err = amp_check("bomb.ipynb")
    assert (code, err) == (1, [])
    assert "its JSON cannot be read: it holds more than 5,000,000 values" in out
