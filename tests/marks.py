"""Reads the marks of examples: what must be found stands as ``# AMP201`` on its own line."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pytest_amp_check.protocol.finding import Finding

#: One comment may name several codes; what follows them is the reason.
_MARK = re.compile(r"#\s*(?:(static-only|runtime-only):\s*)?(AMP\d{3}(?:[,\s]+AMP\d{3})*)")

Places = set[tuple[int, str]]


def marks(source: str, reader: str = "static") -> Places:
    """The (line, code) pairs that a reader must find in a source text."""
    other = "runtime-only" if reader == "static" else "static-only"
    return {
        (number, code)
        for number, line in enumerate(source.split("\n"), 1)
        for match in _MARK.finditer(line)
        if match[1] != other
        for code in re.findall(r"AMP\d{3}", match[2])
    }


def places(findings: Iterable[Finding]) -> Places:
    """Where findings are, in the form of :func:`marks`."""
    return {(finding.line, finding.code) for finding in findings}


def shown(findings: Iterable[Finding]) -> str:
    """Findings in lines, for the message of a failed assertion."""
    return "\n".join(f"{f.line}:{f.site.column} {f.code} {f.message}" for f in findings)
