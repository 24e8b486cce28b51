"""Adoption in an old code base: baselines, findings new since a revision, and suppression comments."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from warm import run_command, run_pytest

from pytest_amp_check.protocol.rules import RULES

pytest_plugins = ["pytester"]

BAD = RULES["AMP201"].bad_example
GOOD = RULES["AMP201"].good_example
OTHER = RULES["AMP202"].bad_example
LINES = ("--output-format", "json-lines")


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AMP_CHECK_CACHE", "0")
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "somebody@example.com")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)


def amp_check(*argv: str) -> subprocess.CompletedProcess[str]:
    return run_command("check", *argv)


def found(done: subprocess.CompletedProcess[str]) -> list[tuple[str, str]]:
    """Return file and code of each finding."""
    assert done.returncode in (0, 1), done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [(row["filename"], row["code"]) for row in rows]


# Baselines.


def test_a_baseline_is_written_once_and_holds_what_is_known() -> None:
    Path("old.py").write_text(BAD)
    missing = amp_check(".", "--baseline", "known.json")
    assert missing.returncode == 2
    assert missing.stderr.endswith("known.json does not exist: --update-baseline writes it\n")
    done = amp_check(".", "--baseline", "known.json", "--update-baseline")
    assert (done.returncode, done.stderr) == (0, "known.json holds 1 finding now.\n")
    assert found(amp_check(".", "--baseline", "known.json", *LINES)) == []
    assert amp_check(".", "--baseline", "known.json").stdout == "No AMP mistakes found in 1 file (1 known).\n"
    Path("new.py").write_text(BAD)
    done = amp_check(".", "--baseline", "known.json", *LINES)
    assert (done.returncode, found(done)) == (1, [("new.py", "AMP201")])
    (row,) = json.loads(Path("known.json").read_text())["findings"]["old.py"]
    assert (row["code"], row["function"], row["count"]) == ("AMP201", "<module>", 1)
    assert row["text"].startswith("torch.nn.utils.clip_grad_norm_(")


def test_a_baseline_only_shrinks() -> None:
    Path("old.py").write_text(BAD)
    Path("older.py").write_text(BAD)
    amp_check(".", "--baseline", "known.json", "--update-baseline")
    Path("old.py").write_text(OTHER)
    Path("older.py").unlink()
    done = amp_check(".", "--baseline", "known.json", *LINES)
    assert found(done) == [("old.py", "AMP202")]
    assert done.stderr.endswith("2 findings of known.json are gone: --update-baseline takes them out\n")
    done = amp_check(".", "--baseline", "known.json", "--update-baseline", *LINES)
    assert (found(done), done.stderr) == ([("old.py", "AMP202")], "2 findings less in known.json.\n")
    assert json.loads(Path("known.json").read_text())["findings"] == {}
    Path("old.py").write_text(BAD)
    assert found(amp_check(".", "--baseline", "known.json", "--update-baseline", *LINES)) == [("old.py", "AMP201")]


def test_a_baseline_keeps_what_was_not_looked_at() -> None:
    for name in ("a.py", "b.py"):
        Path(name).write_text(BAD)
    amp_check(".", "--baseline", "known.json", "--update-baseline")
    Path("a.py").write_text(GOOD)
    assert amp_check("a.py", "--baseline", "known.json", "--update-baseline").returncode == 0
    assert list(json.loads(Path("known.json").read_text())["findings"]) == ["b.py"]


def test_known_findings_survive_moved_lines_and_say_no_more_than_was_known() -> None:
    Path("pkg").mkdir()
    function = "def train():\n" + "".join(f"    {line}\n" for line in BAD.splitlines())
    Path("pkg/train.py").write_text(function)
    amp_check("pkg", "--baseline", "known.json", "--update-baseline")
    Path("pkg/train.py").write_text(f'"""New words."""\n\nimport os\n\n\n{function}')
    assert found(amp_check("pkg", "--baseline", "known.json", *LINES)) == []
    os.chdir("pkg")
    assert found(amp_check("train.py", "--baseline", "../known.json", *LINES)) == []
    # The same lines in another function are another mistake, and a repetition in the same function is an additional
    # one.
    Path("train.py").write_text(f"{function}\n\n{function.replace('def train', 'def again')}")
    assert found(amp_check("train.py", "--baseline", "../known.json", *LINES)) == [("train.py", "AMP201")]


@pytest.mark.parametrize("text", ["[]", "{}", '{"version": 1}', '{"version": 1, "findings": {"a.py": [{}]}}', "\x00"])
def test_what_is_no_baseline_is_said(text: str) -> None:
    Path("known.json").write_text(text)
    done = amp_check("--baseline", "known.json")
    assert done.returncode == 2
    assert "known.json is no baseline: --update-baseline writes one where there is no file\n" in done.stderr


def test_a_baseline_has_to_be_named() -> None:
    done = amp_check("--update-baseline")
    assert done.returncode == 2
    assert done.stderr.endswith("--update-baseline writes a file: name it by --baseline\n")


def test_pytest_knows_the_same_findings(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_amp_check.frontends.plugin")
    Path("old.py").write_text(BAD)
    Path("new.py").write_text(OTHER)
    amp_check("old.py", "--baseline", "known.json", "--update-baseline")
    Path("amp-check.toml").write_text('baseline = "known.json"\n')
    arguments = ("--amp-check", "--amp-only=static", "-p", "no:cacheprovider", "old.py", "new.py")
    result = run_pytest(pytester, *arguments, trains=False)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*AMP202*"])
    result.stdout.no_fnmatch_line("*AMP201*")
    Path("known.json").unlink()
    result = run_pytest(pytester, *arguments, trains=False)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*known.json cannot be read: no such file or directory*"])


def test_pytest_fails_for_what_check_fails_for(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_amp_check.frontends.plugin")
    Path("train.py").write_text(BAD)
    arguments = ("--amp-check", "--amp-only=static", "-p", "no:cacheprovider", "train.py")
    for severity, level, fails in (
        ("info", "info", True),
        ("info", "warning", False),
        ("warning", "error", False),
        ("error", "error", True),
    ):
        Path("amp-check.toml").write_text(f'severity = {{ AMP201 = "{severity}" }}\n')
        result = run_pytest(pytester, *arguments, f"--amp-fail-level={level}", trains=False)
        result.assert_outcomes(passed=not fails, failed=fails)
        assert amp_check("train.py", "--fail-level", level).returncode == fails


# Findings that are new since a revision.


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], check=True, capture_output=True, encoding="utf-8")
    return done.stdout


def commit(message: str = "more") -> None:
    git("add", "-A")
    git("commit", "-q", "-m", message)


HELPER = """\
def prepare(scaler, optimizer):
    scaler.unscale_(optimizer)
"""
CALLER = """\
import torch
from helper import prepare


def main(model, optimizer, batches):
    scaler = torch.amp.GradScaler("cuda")
    for x in batches:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).sum()
        scaler.scale(loss).backward()
        prepare(scaler, optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""


def test_only_what_is_new_since_a_revision_is_shown() -> None:
    git("init", "-q", "-b", "main")
    Path("old.py").write_text(BAD)
    commit()
    assert found(amp_check(".", "--diff-base", "HEAD", *LINES)) == []
    Path("old.py").write_text(f"import os\n\n{BAD}")
    Path("new.py").write_text(BAD)
    assert found(amp_check(".", "--diff-base", "HEAD", *LINES)) == [("new.py", "AMP201")]
    git("mv", "old.py", "renamed.py")
    assert found(amp_check(".", "--diff-base", "HEAD", *LINES)) == [("new.py", "AMP201")]
    assert found(amp_check("renamed.py", "--diff-base", "HEAD", *LINES)) == []


def test_an_unchanged_caller_of_what_changed_is_shown() -> None:
    git("init", "-q", "-b", "main")
    Path("src").mkdir()
    Path("src/helper.py").write_text(HELPER)
    Path("src/train.py").write_text(CALLER)
    Path("src/unrelated.py").write_text(BAD)
    commit()
    assert found(amp_check("src", "--diff-base", "HEAD", *LINES)) == []
    Path("src/helper.py").write_text(HELPER.replace("scaler.unscale_(optimizer)", "pass"))
    new = found(amp_check("src", "--diff-base", "HEAD", *LINES))
    assert new == [("src/train.py", "AMP201")]


def test_what_the_other_branch_has_done_since_is_no_change_of_this_one() -> None:
    git("init", "-q", "-b", "main")
    Path("old.py").write_text(BAD)
    commit()
    git("checkout", "-q", "-b", "mine")
    git("checkout", "-q", "main")
    Path("old.py").write_text(GOOD)
    commit("mended")
    git("checkout", "-q", "mine")
    assert found(amp_check(".", "--diff-base", "main", *LINES)) == []


def test_a_branch_without_a_common_ancestor_is_compared_with_the_revision_itself() -> None:
    git("init", "-q", "-b", "main")
    Path("old.py").write_text(BAD)
    commit()
    git("checkout", "-q", "--orphan", "mine")
    Path("new.py").write_text(BAD)
    commit()
    assert found(amp_check(".", "--diff-base", "main", *LINES)) == [("new.py", "AMP201")]


def test_a_revision_that_cannot_be_had_is_said() -> None:
    Path("train.py").write_text(BAD)
    done = amp_check(".", "--diff-base", "HEAD")
    assert done.returncode == 2
    assert done.stderr == "amp-check: error: --diff-base: git finds no repository around this folder\n"
    git("init", "-q")
    commit()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(Path("empty").absolute()))
        done = amp_check(".", "--diff-base", "HEAD")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "amp-check: error: --diff-base needs git: No such file or directory\n"
    done = amp_check(".", "--diff-base", "mian")
    assert done.returncode == 2
    assert done.stderr == "amp-check: error: --diff-base: git knows no revision 'mian'\n"


# Suppression comments.


def test_comments_silence_what_was_found() -> None:
    Path("train.py").write_text(BAD)
    Path("other.py").write_text(OTHER)
    done = amp_check(".", "--add-ignores")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Silenced 2 findings in 2 files.\n", "")
    assert "  # amp: ignore[AMP201]\n" in Path("train.py").read_text()
    assert found(amp_check(".", *LINES)) == []
    assert amp_check(".", "--add-ignores").stdout == "Silenced 0 findings in 0 files.\n"


def test_comments_stand_behind_statements_of_several_lines_and_join_what_is_there() -> None:
    bad = BAD.replace("clip_grad_norm_(", "clip_grad_norm_(\n        ")
    text = bad.replace("  # AMP201", "").replace("import torch\n", "import torch  # amp: ignore[AMP901]\n", 1)
    Path("train.py").write_bytes(text.replace("\n", "\r\n").encode())
    assert amp_check("train.py", "--add-ignores", "--ignore", "AMP902").stdout == "Silenced 1 finding in 1 file.\n"
    written = Path("train.py").read_bytes().decode()
    assert written.replace("  # amp: ignore[AMP201]", "") == text.replace("\n", "\r\n")
    assert found(amp_check("train.py", "--ignore", "AMP902", *LINES)) == []
    line = next(line for line in written.splitlines() if "AMP201" in line)
    Path("train.py").write_text(written.replace("ignore[AMP201]", "ignore[AMP202]"))
    amp_check("train.py", "--add-ignores", "--ignore", "AMP902")
    assert line.replace("AMP201", "AMP202, AMP201") in Path("train.py").read_text()


def test_comments_are_written_into_notebooks_and_what_takes_none_is_said() -> None:
    cells: list[dict[str, Any]] = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": [BAD]}
    ]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    Path("train.ipynb").write_text(json.dumps(notebook))
    Path("train.md").write_text(f"```python\n{BAD}\n```\n")
    Path("broken.py").write_text("import torch\nscaler = torch.amp.GradScaler('cuda'\n")
    done = amp_check("train.ipynb", "train.md", "broken.py", "--add-ignores")
    assert done.stdout == "Silenced 1 finding in 1 file.\n"
    assert "a comment cannot silence AMP903 here" in done.stderr
    assert "a comment cannot silence AMP201 here" in done.stderr
    assert found(amp_check("train.ipynb", *LINES)) == []
    assert "# amp: ignore[AMP201]" in "".join(json.loads(Path("train.ipynb").read_text())["cells"][0]["source"])
