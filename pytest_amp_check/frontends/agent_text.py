"""Output for coding agents: one line for each finding, with the edits of the fix."""

from __future__ import annotations

from ..protocol.fix import SAFE
from .printable import make_printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..protocol.finding import Finding
    from ..protocol.fix import Edit
    from .printable import Line


def format_agent(findings: Iterable[Finding], *, unsafe: bool = False) -> list[Line]:
    """Return the findings as ``path:line:column CODE message``, each with the edits of a safe fix.

    With ``unsafe``, the edits of any fix follow. The position of an edit is ``line:column-line:column`` from 1, with
    an exclusive end, and the new text is a JSON string.
    """
    return [[(_format_finding(finding, unsafe=unsafe), "")] for finding in findings]


def _format_finding(finding: Finding, *, unsafe: bool) -> str:
    cell = f":cell {finding.cell}" if finding.cell is not None else ""
    place = f"{make_printable(finding.filename)}{cell}:{finding.site.line}:{finding.site.column + 1}"
    paths = "" if finding.certain else f" ({make_printable(finding.uncertainty)})"
    fix = ""
    if finding.fix is not None and (unsafe or finding.fix.applicability == SAFE):
        fix = f" | fix: {'; '.join(map(_format_edit, finding.fix.edits))}"
    return f"{place} {finding.code} {make_printable(finding.message)}{paths}{fix}"


def _format_edit(edit: Edit) -> str:
    import json

    cell = f"cell {edit.cell}:" if edit.cell is not None else ""
    region = f"{edit.line}:{edit.column + 1}-{edit.end_line}:{edit.end_column + 1}"
    return f"{cell}{region} {make_printable(json.dumps(edit.content))}"
