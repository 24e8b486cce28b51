"""File names with commands for terminals or CI hosts, and names that are not text: one line in every output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from warm import run_command

from pytest_amp_check.frontends.formats import FORMATS
from pytest_amp_check.protocol.rules import RULES

BAD = RULES["AMP201"].bad_example
#: A workflow command in a second line, one at the beginning, and one of Azure Pipelines anywhere.
NAMES = (
    "x\n::warning::written by a name\n::add-mask::a\ny.py",
    "x\r::warning::written by a name\ry.py",
    "::warning::written by a name.py",
    "x ##vso[task.setvariable variable=written]by a name.py",
)
#: Texts that GitHub's runner treats as a command, after optional blanks, and commands of Azure's agent.
SPOKEN = re.compile(r"^\s*::|##(?:vso)?\[", re.MULTILINE)
ARGUMENTS = (
    *(["--output-format", name] for name in FORMATS if name not in ("github", "azure")),
    *(["--show-files"], ["--show-settings"], ["--diff"], ["--statistics"], ["--verbose"], ["--fix", "--show-fixes"]),
    *(["--add-ignores"], ["--color", "always"], ["--baseline", "gone\n::error::.json"], ["--wrong\n::error::"]),
)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs a file system that takes any characters")


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_STEP_SUMMARY", "FORCE_COLOR", "AMP_CHECK_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("argv", ARGUMENTS, ids=lambda argv: " ".join(argv).split("\n")[0])
def test_no_output_is_a_command(argv: list[str]) -> None:
    for name in NAMES:
        Path(name).write_text(BAD)
    for paths in (["."], [f"./{name}" for name in NAMES], *([name + "x"] for name in NAMES)):
        done = run_command("check", "--no-cache", *argv, *paths)
        assert "internal error" not in done.stderr
        assert SPOKEN.findall(done.stdout.replace("\r", "\n") + "\n" + done.stderr.replace("\r", "\n")) == []


@pytest.mark.parametrize("form", ["github", "azure"])
@pytest.mark.parametrize("name", NAMES, ids=["line-end", "return", "beginning", "azure"])
def test_commands_are_our_own(form: str, name: str) -> None:
    Path(name).write_text(BAD)
    done = run_command("check", "--no-cache", "--output-format", form, ".")
    commands = [line for line in done.stdout.replace("\r", "\n").splitlines() if SPOKEN.search(line)]
    own = "##vso[task.logissue " if form == "azure" else "::"
    assert [line.startswith(own) for line in commands] == [True] * len(commands)
    assert sum("AMP201" in line for line in commands) == 1
    assert not any(line.startswith(("::add-mask", "::warning::")) for line in commands)
    assert sum(line.count("##") for line in commands) == (1 if form == "azure" else 0)


@pytest.mark.parametrize("argv", [[], ["--diff"], ["--output-format", "json"]], ids=" ".join)
def test_no_line_of_source_is_a_command(argv: list[str]) -> None:
    said = "scaler.step(optimizer)"
    assert said in BAD
    within = 'print("""\n::warning::written by a source, ##vso[task.complete]\n::add-mask::a""", ' + said + ")"
    Path("train.py").write_text(BAD.replace(said, within))
    done = run_command("check", "--no-cache", *argv, ".")
    assert SPOKEN.findall(done.stdout) == []
    assert "AMP201" in done.stdout or argv == ["--diff"]


@pytest.mark.parametrize("more", [[], ["--fix"], ["--jobs", "2"], ["--show-files"], ["--diff"], ["--add-ignores"]])
@pytest.mark.parametrize("where", ["named", "found"])
def test_a_name_that_is_not_text(where: str, more: list[str]) -> None:
    name = os.fsdecode(b"bad\xff.py")
    Path(name).write_text(BAD)
    # This file may import the other.
    Path("other.py").write_text(BAD.replace("import torch\n", "import torch\nimport bad\n", 1))
    path = {"named": name, "found": "."}[where]
    done = subprocess.run(
        [sys.executable, "-m", "pytest_amp_check", "check", "--no-cache", "--output-format", "concise", *more, path],
        capture_output=True,
    )
    assert b"internal error" not in done.stderr
    assert done.returncode == (0 if {"--fix", "--show-files", "--add-ignores"} & set(more) else 1), done.stderr
