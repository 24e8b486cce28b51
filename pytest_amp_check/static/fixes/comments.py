"""Fixes for unused suppression comments."""

from __future__ import annotations

import re

from ...protocol.finding import Finding
from ...protocol.fix import Edit
from .layout import ProgramLayout
from .matchers import NotFixable
from .queries import Mended


def remove_suppression(layout: ProgramLayout, finding: Finding) -> Mended:
    """Remove the words that suppress nothing, and the whole comment if no word remains.

    A malformed comment stays, because only its author knows what it was meant to suppress.
    """
    if finding.label != "suppression:unused":
        raise NotFixable
    site = finding.site
    row = layout.lines[site.line - 1]
    said = row[site.column : site.end_column]
    idle = {reason.partition(" ")[0].rstrip(",") for reason in finding.names.get("reason", "").split("; ")}
    listed = re.search(r"\A[^\[]*\[([^\]]*)\]|:\s*([A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*)\s*$", said, re.IGNORECASE)
    if listed is not None:
        group = 1 if listed.group(1) is not None else 2
        words = re.findall(r"[^,\s]+", listed.group(group))
        kept = [word for word in words if word not in idle and word.upper() not in idle]
        if kept:
            start, end = site.column + listed.start(group), site.column + listed.end(group)
            return "Remove the codes that silence nothing", [Edit(site.line, start, site.line, end, ", ".join(kept))]
    # Another comment behind a separate `#` stays.
    other = re.search(r"\s#", row[site.end_column :])
    if other is not None:
        return "Remove this comment", [Edit(site.line, site.column, site.line, site.end_column + other.end() - 1, "")]
    before = row[: site.column].rstrip()
    # After a backslash, the next line would continue the line before.
    is_continuation = site.line > 1 and layout.lines[site.line - 2].rstrip("\r\n").endswith("\\")
    if not (before or is_continuation):
        return "Remove this comment", [layout.remove_lines(site.line, site.line)]
    return "Remove this comment", [Edit(site.line, len(before), site.line, len(row), "")]
