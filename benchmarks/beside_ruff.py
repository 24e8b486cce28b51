"""Comparison of ``ruff check --help`` with amp-check, row by row, for docs/ruff.md.

A flag or format that both have is found by its name. For every other one, a sentence here explains the absence.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator

from pytest_amp_check.frontends import argument_parser
from pytest_amp_check.frontends.formats import FORMATS

#: Flag of ruff -> the alternative, or the reason why there is none.
OTHERWISE = {
    "--target-version": "Source is parsed by the Python that amp-check runs on. Rules depend on the torch version, "
    "which is read from the project's own files, or set by `--torch-version`.",
    "--preview": "No rule is unstable. Every enabled rule has been measured; the others are off by default.",
    "--extension": "Python is recognized by the suffix `.py`, `.pyi`, `.ipynb` or `.md`. For standard input, "
    "`--stdin-filename` sets the suffix.",
    "--add-noqa": "`--add-ignores` writes `# amp: ignore[CODE]`, which no other linter uses.",
    "--add-ignore": "`--add-ignores`, without a reason, because one reason for all findings explains none of them.",
}


def page() -> str:
    """Return the whole page."""
    version = _ruff("--version").split()[1]
    listed = _ruff("check", "--help")
    rows = [(f"`{', '.join(names)}`", _ours(names[-1])) for names in flags(listed)]
    formats = [(f"`{name}`", f"`{name}`" if name in FORMATS else "") for name in _formats(listed)]
    missing = [name for name, ours in (*rows, *formats) if not ours]
    if missing:
        sys.exit(f"ruff has {', '.join(missing)}: say in {__file__} what amp-check has instead")
    return (
        "# Using amp-check with ruff\n\n"
        f"Find the option of `amp-check check` for each row of `ruff check --help` (ruff {version}).\n\n"
        + _table(("ruff", "amp-check"), rows)
        + "\n## Formats\n\n"
        + _table(("ruff", "amp-check"), formats)
    )


def flags(listed: str) -> Iterator[list[str]]:
    """Yield the flags of each row, the long flag last."""
    for short, long in re.findall(r"^ +(?:(-\w), )?(--[\w-]+)", listed, re.MULTILINE):
        yield [name for name in (short, long) if name]


def _formats(listed: str) -> list[str]:
    values = re.search(r"possible values: (concise.*?)\]", listed, re.DOTALL)
    assert values is not None
    return re.split(r",\s+", values.group(1))


def _ours(flag: str) -> str:
    """Return the same flag of amp-check, with its short form, or the alternative."""
    for action in _check()._actions:
        if flag in action.option_strings:
            return ", ".join(f"`{name}`" for name in sorted(action.option_strings, key=len))
    return OTHERWISE.get(flag, "")


def _check() -> argparse.ArgumentParser:
    """Return the parser of ``amp-check check``."""
    actions = argument_parser.make_parser()._actions
    (commands,) = (each for each in actions if isinstance(each, argparse._SubParsersAction))
    found: argparse.ArgumentParser = commands.choices["check"]
    return found


def _ruff(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "ruff", *words], capture_output=True, encoding="utf-8", check=True)
    return done.stdout


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    lines = [head, ("---", "---"), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
