"""Lines of sources as Python counts them, and positions in UTF-16 code units as editors count them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_amp_check.frontends.server.documents import count_characters, count_units
from pytest_amp_check.frontends.source_lines import SourceLines


@pytest.mark.parametrize(
    ("line", "units", "characters"),
    [
        ("abc", 2, 2),
        ("\uffffbc", 1, 1),
        ("\uffffbc", 2, 2),
        ("\U00010000bc", 2, 1),
        ("\U00010000bc", 3, 2),
        ("é", 5, 1),
    ],
)
def test_only_characters_above_ffff_have_two_units(line: str, units: int, characters: int) -> None:
    assert count_characters(line, units) == characters


@pytest.mark.parametrize(("line", "column", "units"), [("\uffffbc", 1, 1), ("\U00010000bc", 1, 2), ("abc", 3, 3)])
def test_units_of_a_column(line: str, column: int, units: int) -> None:
    assert count_units(line, column) == units


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["unix", "windows", "old mac"])
def test_lines_of_a_text_in_an_editor(end: str) -> None:
    lines = SourceLines({"train.py": end.join(["first", "second\f", "", "fourth"])})
    shown = [lines.find_line("train.py", number) for number in range(6)]
    assert shown == [None, "first", "second\f", "", "fourth", None]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["unix", "windows", "old mac"])
def test_a_code_frame_shows_lines_without_their_ends(end: str, tmp_path: Path) -> None:
    rows = ["import torch", "from torch.cuda.amp import autocast", "", "def run(model, x):", "    with autocast():"]
    text = end.join([*rows, "        loss = model(x)", "        loss.backward()", ""])
    (tmp_path / "train.py").write_bytes(text.encode())
    done = subprocess.run(
        [sys.executable, "-m", "pytest_amp_check", "check", "--no-cache", "--output-format", "full", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    shown = done.stdout.decode()
    assert "\r" not in shown.replace("\r\n", "\n")
    assert [row.split() for row in shown.splitlines() if row.endswith("loss.backward()")] == [
        ["7", "|", "loss.backward()"]
    ]
