"""Reads the marks of examples: what must be found stands as ``# AMP201`` on its own line.

A mark counts for the readers that decide its rule. Where both do and only one finds it here, the mark says which, and
why: ``# static-only: AMP207 reason``.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.protocol.findings_builder import DEFAULT_NAMES
from pytest_amp_check.protocol.rule import BOTH
from pytest_amp_check.protocol.rules import LABELS, RULES

#: One comment may name several codes; what follows them is the reason.
_MARK = re.compile(r"#\s*(?:(static-only|runtime-only):\s*)?(AMP\d{3}(?:[,\s]+AMP\d{3})*)")

Places = set[tuple[int, str]]
#: Every rule about mistakes, those that are off unless selected with them; blind spots are none.
MISTAKES = frozenset(RULES) - {"AMP904"}


def marks(source: str, reader: str = "static") -> Places:
    """The (line, code) pairs that a reader must find in a source text."""
    other = "runtime-only" if reader == "static" else "static-only"
    return {
        (number, code)
        for number, line in enumerate(source.split("\n"), 1)
        for match in _MARK.finditer(line)
        if match[1] != other
        for code in re.findall(r"AMP\d{3}", match[2])
        if code not in RULES or RULES[code].detected_by in (BOTH, reader)
    }


def one_sided(source: str) -> list[tuple[int, str, str]]:
    """The marks that count for one reader though both decide their rule: line, code, that reader."""
    return [
        (number, code, match[1].removesuffix("-only"))
        for number, line in enumerate(source.split("\n"), 1)
        for match in _MARK.finditer(line)
        if match[1]
        for code in re.findall(r"AMP\d{3}", match[2])
    ]


def places(findings: Iterable[Finding]) -> Places:
    """Where findings are, in the form of :func:`marks`."""
    return {(finding.line, finding.code) for finding in findings}


def unsaid(findings: Iterable[Finding]) -> set[tuple[str, str]]:
    """What messages should say, and no reader has given them: the label of the fault, and the field of its message."""
    return {
        (finding.label, field)
        for finding in findings
        if finding.label in LABELS and finding.names
        for _, field, _, _ in string.Formatter().parse(LABELS[finding.label][1].message)
        if field and field not in finding.names and field not in DEFAULT_NAMES
    }


def shown(findings: Iterable[Finding]) -> str:
    """Findings in lines, for the message of a failed assertion."""
    return "\n".join(f"{f.line}:{f.site.column} {f.code} {f.message}" for f in findings)
