"""Counts of findings and of skipped files as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..protocol.severities import SEVERITIES
from .printable import Line, make_printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


#: Maximum number of locations listed for grouped findings.
PLACES = 12


def count_severities(severities: Iterable[str]) -> dict[str, int]:
    """Return the number of occurrences of each severity, most severe first, including zero."""
    found = dict.fromkeys(SEVERITIES, 0)
    for severity in severities:
        found[severity] += 1
    return found


def summarize_counts(counts: Mapping[str, int], files: int) -> str:
    """Return one sentence with the numbers of findings and files."""
    where = f"in {files:,} file" + ("" if files == 1 else "s")
    parts = [
        f"{number:,} {severity}" + ("" if number == 1 or severity == "info" else "s")
        for severity, number in counts.items()
        if number
    ]
    return f"Found {', '.join(parts)} {where}." if parts else f"No AMP mistakes found {where}."


def count_by_rule(triples: Iterable[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Return one record for each rule in (code, name, severity) triples, most frequent first."""
    found: dict[str, dict[str, Any]] = {}
    for code, name, severity in triples:
        record = found.setdefault(code, {"code": code, "name": name, "severity": severity, "count": 0})
        record["count"] += 1
        record["severity"] = min(record["severity"], severity, key=SEVERITIES.index)
    return sorted(found.values(), key=lambda record: (-record["count"], record["code"]))


def format_statistics(records: Sequence[Mapping[str, Any]]) -> list[Line]:
    number = max((len(str(record["count"])) for record in records), default=0)
    severity = max((len(record["severity"]) for record in records), default=0)
    return [
        [
            (f"{record['count']:>{number}}  ", "code"),
            (f"{record['code']}  ", "code"),
            ("[", ""),
            (record["severity"], record["severity"]),
            ("]".ljust(severity - len(record["severity"]) + 3) + record["name"], ""),
        ]
        for record in records
    ]


def format_passed_over(paths: Mapping[str, list[str]]) -> list[Line]:
    """Return lines with the numbers of skipped paths, and the paths if few. Most files of a project train nothing."""
    width = max((len(f"{len(found):,}") for found in paths.values()), default=0)
    return [
        [
            (f"{len(found):>{width},}  ", "dim"),
            (f"passed over, {reason}", ""),
            (f": {make_printable(', '.join(found))}" if len(found) <= PLACES else "", "dim"),
        ]
        for reason, found in paths.items()
    ]
