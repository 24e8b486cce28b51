"""The analyzer as the page calls it in Pyodide: JSON of the findings in a source text, at first without fixes."""

from __future__ import annotations

import contextlib
import io
import json
import sys

NAME = "train.py"


def find(source: str, has_all_rules: bool) -> str:
    """Return the findings of the default rules, or of all rules, as a JSON array."""
    from pytest_amp_check.protocol.rules import RULES
    from pytest_amp_check.static.engine import check_source
    from pytest_amp_check.static.settings import Settings

    settings = Settings(select=frozenset(RULES)) if has_all_rules else Settings()
    return json.dumps([finding.as_dict() for finding in check_source(source, NAME, settings)])


def find_with_fixes(source: str, has_all_rules: bool) -> str:
    """Return the findings with the edits of their fixes as a JSON array, as the command writes them."""
    from pytest_amp_check.frontends import cli

    options = ["--isolated", "--no-cache", "--output-format", "json", "--stdin-filename", NAME, "-"]
    options += ["--select", "ALL"] if has_all_rules else []
    written = io.StringIO()
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(source.encode()), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(written), contextlib.redirect_stderr(io.StringIO()):
            cli.main(["check", *options])
    finally:
        sys.stdin = before
    return written.getvalue()
