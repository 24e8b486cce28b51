"""Output for coding agents, its choice by their variables, and the tools of amp-check mcp by the official client."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from warm import run_command

ROOT = Path(__file__).resolve().parents[2]
#: AMP201 on line 8 has a safe fix.
SOURCE = """\
import torch

def train(model, optimizer, batches, scaler=torch.amp.GradScaler("cuda")):
    for batch in batches:
        with torch.autocast("cuda"):
            loss = model(batch)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
FIXED = SOURCE.replace("        torch.nn.utils.clip", "        scaler.unscale_(optimizer)\n        torch.nn.utils.clip")
LINE = re.compile(
    r"(?P<path>\S+?):(?P<line>\d+):(?P<column>\d+) (?P<code>AMP\d{3}) (?P<message>.*?)( \| fix: (?P<fix>.*))?"
)
EDIT = re.compile(r'(\d+):(\d+)-(\d+):(\d+) ("(?:[^"\\]|\\.)*")(?:; |$)')


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SOURCE)


def amp_check(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_command(*argv, env=os.environ | env)


def apply_edits(text: str, edits: Sequence[tuple[str, ...]]) -> str:
    """Apply edits as a reader of the documentation does: positions from 1, with an exclusive end, last edit first."""
    lines = text.splitlines(keepends=True)

    def offset(line: str, column: str) -> int:
        return sum(map(len, lines[: int(line) - 1])) + int(column) - 1

    for line, column, end_line, end_column, content in reversed(edits):
        text = text[: offset(line, column)] + json.loads(content) + text[offset(end_line, end_column) :]
    return text


def test_each_finding_is_one_line_whose_edits_can_be_applied() -> None:
    done = amp_check("check", "--output-format", "agent", "train.py")
    assert done.returncode == 1
    *lines, last = done.stdout.splitlines()
    assert last.startswith("Found 1 error in 1 file. 1 fixable with --fix")
    assert last.endswith("Explain a rule: amp-check explain CODE")
    (found,) = map(LINE.fullmatch, lines)
    assert found is not None
    assert found.group("path", "line", "column", "code") == ("train.py", "8", "9", "AMP201")
    assert "clip_grad_norm_" in found["message"]
    assert apply_edits(SOURCE, EDIT.findall(found["fix"])) == FIXED


def test_an_unsafe_fix_is_given_on_request_only(tmp_path: Path) -> None:
    fixtures = ROOT / "fixtures" / "headline.py"
    (tmp_path / "train.py").write_text(fixtures.read_text(encoding="utf-8"))

    def line(*flags: str) -> str:
        lines = amp_check("check", "--output-format", "agent", *flags, "train.py").stdout.splitlines()
        return next(line for line in lines if " AMP301 " in line)

    assert " | fix: " not in line()
    assert " | fix: " in line("--unsafe-fixes")


def test_a_possible_finding_says_on_which_paths() -> None:
    path = ROOT / "fixtures" / "scaling" / "unscale_out_of_order_bad.py"
    line = amp_check("check", "--output-format", "agent", str(path)).stdout.splitlines()[0]
    assert f"{path.name}:26:9 AMP209 " in line
    assert line.endswith(" (only on some paths, when `norm > LIMIT` is true)")


def test_a_notebook_names_the_cell(tmp_path: Path) -> None:
    cell: dict[str, Any] = {
        "cell_type": "code",
        "metadata": {},
        "source": SOURCE,
        "outputs": [],
        "execution_count": None,
    }
    book = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "book.ipynb").write_text(json.dumps(book))
    out = amp_check("check", "--output-format", "agent", "book.ipynb").stdout
    assert out.startswith("book.ipynb:cell 1:8:9 AMP201 ")
    assert '| fix: cell 1:8:1-8:1 "        scaler.unscale_(optimizer)\\n"' in out


def test_there_are_no_colors_and_no_frames() -> None:
    plain = amp_check("check", "--output-format", "agent", "train.py").stdout
    assert amp_check("check", "--output-format", "agent", "--color", "always", "train.py").stdout == plain
    assert "\x1b" not in plain
    assert len(plain) * 2 < len(amp_check("check", "--output-format", "full", "train.py").stdout)


def test_counts_are_possible() -> None:
    out = amp_check("check", "--output-format", "agent", "--statistics", "train.py").stdout
    assert "AMP201" in out.splitlines()[0]
    assert amp_check("check", "--output-format", "agent", "--quiet", "train.py").stdout.count("\n") == 1


class TestChoice:
    @pytest.mark.parametrize(
        "variable",
        [
            "AI_AGENT",
            "AUGMENT_AGENT",
            "CLAUDECODE",
            "CLINE_ACTIVE",
            "CODEX_SANDBOX",
            "CODEX_THREAD_ID",
            "CURSOR_AGENT",
            "GEMINI_CLI",
            "OPENCODE",
            "VSCODE_AGENT",
        ],
    )
    def test_a_variable_of_an_agent_chooses_it(self, variable: str) -> None:
        shown = amp_check("check", "--show-settings", **{variable: "1"}).stdout
        assert f'output-format = "agent"  # the variable {variable} of a coding agent\n' in shown

    def test_the_findings_are_shown_for_agents(self) -> None:
        wanted = amp_check("check", "--output-format", "agent", "train.py").stdout
        assert amp_check("check", "train.py", CLAUDECODE="1").stdout == wanted

    @pytest.mark.parametrize("value", ["", "0", "false"])
    def test_an_empty_variable_is_none(self, value: str) -> None:
        assert 'output-format = "full"' in amp_check("check", "--show-settings", CLAUDECODE=value).stdout

    def test_every_explicit_choice_wins(self, tmp_path: Path) -> None:
        assert " AMP201 [*] [error]" in amp_check("check", "--output-format", "full", ".", CLAUDECODE="1").stdout
        out = amp_check("check", ".", CLAUDECODE="1", AMP_CHECK_OUTPUT_FORMAT="concise").stdout
        assert " AMP201 [*] [error]" in out
        (tmp_path / "amp-check.toml").write_text('output-format = "concise"\n')
        assert amp_check("check", ".", CLAUDECODE="1").stdout == out


class TestMcp:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("mcp")

    def answers(self, *calls: tuple[str, dict[str, Any]]) -> list[tuple[bool, str]]:
        """Return for each call whether it failed, and the text of the answer."""
        from mcp import Client, StdioServerParameters

        server = StdioServerParameters(command=sys.executable, args=["-m", "pytest_amp_check", "mcp"], cwd=os.getcwd())

        async def talk() -> list[tuple[bool, str]]:
            found = []
            async with Client(server) as client:
                tools = {tool.name: tool for tool in (await client.list_tools()).tools}
                assert sorted(tools) == ["check", "explain", "preview_fixes"]
                assert all(tool.description and tool.annotations for tool in tools.values())
                for name, arguments in calls:
                    result = await client.call_tool(name, arguments)
                    found.append((bool(result.is_error), "".join(getattr(part, "text", "") for part in result.content)))
            return found

        return asyncio.run(asyncio.wait_for(talk(), 120))

    def test_the_tools_answer_as_the_command(self) -> None:
        found = self.answers(
            ("check", {"paths": ["train.py"]}),
            ("explain", {"rules": ["AMP201"]}),
            ("explain", {"rules": ["AMP201"], "in_full": True}),
            ("preview_fixes", {"paths": ["train.py"]}),
        )
        check, explain, in_full, fixes = (text for _, text in found)
        assert [failed for failed, _ in found] == [False] * 4
        assert check == amp_check("check", "--output-format", "agent", "train.py").stdout
        assert explain == amp_check("explain", "AMP201").stdout
        assert in_full == amp_check("explain", "--all", "AMP201").stdout
        assert "+        scaler.unscale_(optimizer)\n" in fixes
        assert Path("train.py").read_text() == SOURCE

    def test_no_configuration_makes_a_tool_write_a_source_file(self, tmp_path: Path) -> None:
        (tmp_path / "amp-check.toml").write_text("fix = true\nfix-only = true\ndiff = true\nstatistics = true\n")
        (check,) = self.answers(("check", {"paths": ["."]}))
        assert check[0] is False
        assert check[1].startswith("train.py:8:9 AMP201 ")
        assert Path("train.py").read_text() == SOURCE

    def test_an_error_is_the_sentence_of_the_command(self, tmp_path: Path) -> None:
        (tmp_path / "@arguments").write_text("--fix\ntrain.py\n")
        (tmp_path / "-").mkdir()
        (tmp_path / "-" / "train.py").write_text(SOURCE)
        missing, none, listed, dash, unknown, nothing = self.answers(
            ("check", {"paths": ["missing.py"]}),
            ("check", {"paths": []}),
            ("check", {"paths": ["@arguments"]}),
            ("check", {"paths": ["-"]}),
            ("explain", {"rules": ["AMP2O1"]}),
            ("explain", {"rules": []}),
        )
        assert missing[0]
        assert "`missing.py` does not exist" in missing[1]
        assert none[0]
        assert "name at least one file or folder" in none[1]
        assert Path("train.py").read_text() == SOURCE
        assert listed == (False, "No AMP mistakes found in 1 file.\n")
        assert dash[1].startswith("./-/train.py:8:9 AMP201 ")
        assert unknown[0]
        assert "did you mean 'AMP201'?" in unknown[1]
        assert nothing[0]


def test_without_the_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "mcp.py").write_text("raise ModuleNotFoundError(\"No module named 'mcp'\", name='mcp')\n")
    done = amp_check("mcp", PYTHONPATH=str(tmp_path / "hidden"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "amp-check: error: amp-check mcp needs the package mcp: pip install 'pytest-amp-check[mcp]'\n"
    )
