"""Trees of files in one text: each file begins with a line ``=== path`` and marks its expected findings."""

from __future__ import annotations

import textwrap
from pathlib import Path

from pytest_amp_check import check_paths


def marks(root: Path) -> set[tuple[str, int, str]]:
    """Return the findings that the files of a tree declare: ``# AMP201`` at the end of a line."""
    return {
        (path.relative_to(root).as_posix(), number, code)
        for path in root.rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if "# AMP" in line
        for code in line.partition("# ")[2].split()
    }


def found(root: Path) -> set[tuple[str, int, str]]:
    """Return the findings in a tree."""
    return {
        (Path(finding.filename).relative_to(root).as_posix(), finding.line, finding.code)
        for finding in check_paths([str(root)]).findings
    }


def write(root: Path, source: str) -> None:
    """Write the files of a tree. Each file begins with a line ``=== path``."""
    for part in textwrap.dedent(source).split("=== ")[1:]:
        name, _, text = part.partition("\n")
        path = root / name.strip()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
