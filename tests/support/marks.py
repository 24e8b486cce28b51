"""Marks of expected findings in examples: each stands as ``# AMP201`` on the line of the finding.

A mark counts for each of analyzer and recorder that decides the rule. If both do and only one finds the mistake in the
example, the mark names the finder and the reason: ``# static-only: AMP207 reason``.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.protocol.message_templates import DEFAULT_NAMES
from pytest_amp_check.protocol.rule import BOTH
from pytest_amp_check.protocol.rules import LABELS, RULES

#: One comment may name several codes. The text after the codes is the reason.
_MARK = re.compile(r"#\s*(?:(static-only|runtime-only):\s*)?(AMP\d{3}(?:[,\s]+AMP\d{3})*)")

Places = set[tuple[int, str]]
#: Every rule about mistakes, including rules that are off by default. Unanalyzed calls (AMP904) are no mistakes.
MISTAKES = frozenset(RULES) - {"AMP904"}


def marks(source: str, reader: str = "static") -> Places:
    """Return the (line, code) pairs that ``reader`` ("static" or "runtime") must find in a source text."""
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
    """Return the marks for only one of analyzer and recorder, as (line, code, "static" or "runtime")."""
    return [
        (number, code, match[1].removesuffix("-only"))
        for number, line in enumerate(source.split("\n"), 1)
        for match in _MARK.finditer(line)
        if match[1]
        for code in re.findall(r"AMP\d{3}", match[2])
    ]


def places(findings: Iterable[Finding]) -> Places:
    """Return the locations of findings in the form of :func:`marks`."""
    return {(finding.line, finding.code) for finding in findings}


def unsaid(findings: Iterable[Finding]) -> set[tuple[str, str]]:
    """Return label and field of message fields without a value from analyzer or recorder."""
    return {
        (finding.label, field)
        for finding in findings
        if finding.label in LABELS and finding.names
        for _, field, _, _ in string.Formatter().parse(LABELS[finding.label][1].message)
        if field and field not in finding.names and field not in DEFAULT_NAMES
    }


def shown(findings: Iterable[Finding]) -> str:
    """Format findings in lines for the message of a failed assertion."""
    return "\n".join(f"{f.line}:{f.site.column} {f.code} {f.message}" for f in findings)
