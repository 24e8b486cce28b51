"""Baselines: a file with the known findings of an old code base, so that a check fails only for new findings.

File, rule, function and the text of the line identify a finding, so lines may move. The file is written once, and only
shrinks afterwards.
"""

from __future__ import annotations

import os

from ..protocol.bounded_json import parse_json
from ..protocol.finding import Finding
from ..protocol.regular_files import LARGEST_DOCUMENT, read_regular
from .source_lines import SourceLines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Collection, Iterable, Sequence
    from typing import Any

VERSION = 1
#: Identity of a finding: file relative to a folder, rule, function, and text of the line.
Key = tuple[str, str, str, str]


class BaselineError(ValueError):
    """Error for a baseline that the command can neither read nor write; the message is one sentence."""


def make_finding_key(finding: Finding, sources: SourceLines, folder: str) -> Key:
    """Return the identity of a finding relative to a folder. The location is the mistake's, not the display's."""
    site = finding.elsewhere or finding.site
    text = " ".join((sources.find_line_at(site, site.line) or "").split())
    return _relative_name(folder, site.path), finding.code, site.function, text


def _relative_name(folder: str, path: str) -> str:
    real, top = os.path.realpath(path), os.path.realpath(folder)
    try:
        return os.path.relpath(real, top).replace(os.sep, "/")
    except ValueError:
        # The path is on another drive.
        return real.replace(os.sep, "/")


def split_new(
    findings: Iterable[Finding], sources: SourceLines, folder: str, known_counts: Counter[Key]
) -> tuple[list[Finding], Counter[Key]]:
    """Return the new findings, and the counts of known findings that were found again.

    Of findings with equal identity, the first ones count as known.
    """
    from collections import Counter

    matched_counts: Counter[Key] = Counter()
    fresh = []
    for finding in findings:
        one = make_finding_key(finding, sources, folder)
        if matched_counts[one] < known_counts[one]:
            matched_counts[one] += 1
        else:
            fresh.append(finding)
    return fresh, matched_counts


class Baseline:
    """The known findings of a baseline file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.folder = os.path.dirname(os.path.abspath(path))
        self.known_counts = self._load_counts()

    def _load_counts(self) -> Counter[Key]:
        from collections import Counter

        found: Counter[Key] = Counter()
        try:
            written = parse_json(read_regular(self.path, LARGEST_DOCUMENT).decode())
            if written["version"] != VERSION:
                raise BaselineError(
                    f"{self.path} is of version {written['version']}, and this amp-check reads {VERSION}"
                )
            for path, rows in written["findings"].items():
                for row in rows:
                    found[(str(path), str(row["code"]), str(row["function"]), str(row["text"]))] += int(row["count"])
        except OSError as error:
            raise BaselineError(f"{self.path} cannot be read: {_describe_error(error)}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, BaselineError):
                raise
            raise BaselineError(
                f"{self.path} is no baseline: --update-baseline writes one where there is no file"
            ) from None
        return found

    def find_new(self, findings: Iterable[Finding], sources: SourceLines) -> list[Finding]:
        """Return the findings that are not in the baseline."""
        return split_new(findings, sources, self.folder, self.known_counts)[0]

    def match_findings(
        self, findings: Sequence[Finding], sources: SourceLines, checked: Collection[str]
    ) -> list[Finding]:
        """Return the new findings, and record the known findings that disappeared from the ``checked`` files."""
        fresh, met = split_new(findings, sources, self.folder, self.known_counts)
        names = {_relative_name(self.folder, path) for path in checked}
        self.gone_counts = {
            each: count - met[each]
            for each, count in self.known_counts.items()
            if count > met[each]
            and (each[0] in names or not os.path.exists(os.path.join(self.folder, *each[0].split("/"))))
        }
        return fresh

    def remove_gone(self) -> int:
        """Write the file without disappeared findings, and return the number of removed findings."""
        if self.gone_counts:
            write_baseline(self.path, self.known_counts - _make_counter(self.gone_counts))
        return sum(self.gone_counts.values())


def create_baseline(path: str, findings: Sequence[Finding], sources: SourceLines) -> None:
    """Write a baseline of all findings."""
    folder = os.path.dirname(os.path.abspath(path))
    write_baseline(
        path, _make_counter({}) + _count_keys(make_finding_key(finding, sources, folder) for finding in findings)
    )


def _make_counter(values: dict[Key, int]) -> Counter[Key]:
    from collections import Counter

    return Counter(values)


def _count_keys(keys: Iterable[Key]) -> Counter[Key]:
    from collections import Counter

    return Counter(keys)


def write_baseline(path: str, known_counts: Counter[Key]) -> None:
    """Replace a baseline file atomically, with one line for each file and finding."""
    import json

    from ..static.sources.atomic_replace import replace_file

    by_path: dict[str, list[dict[str, Any]]] = {}
    for (name, code, function, text), count in sorted(known_counts.items()):
        by_path.setdefault(name, []).append({"code": code, "function": function, "text": text, "count": count})
    # ASCII can also represent surrogates in unusual file names.
    held = json.dumps({"version": VERSION, "findings": by_path}, indent=1) + "\n"
    try:
        replace_file(path, held.encode("ascii"))
    except OSError as error:
        raise BaselineError(f"{path} cannot be written: {_describe_error(error)}") from None


def _describe_error(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
