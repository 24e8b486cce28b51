"""Findings as text: one line, in groups, or in full with the source."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from ..protocol.fix import SAFE
from .printable import Line, make_printable
from .rule_text import FLAGS
from .source_lines import SourceLines
from .summaries import PLACES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..protocol.finding import Finding, TraceStep
    from ..protocol.sites import Site


#: Number of source lines shown before and after the cause.
AROUND = 1
#: Maximum number of lines shown of one range, and maximum number of characters of one line.
TALL, WIDE = 5, 160
TAB = "    "


def format_headline(finding: Finding, *, unsafe: bool = False, message: str = "") -> Line:
    """Return a finding as one line, marked if a fix is available: a safe fix, or with ``unsafe`` any fix.

    ``message`` replaces the message for grouped findings.
    """
    fixable = finding.fix is not None and (unsafe or finding.fix.applicability == SAFE)
    return [
        (make_printable(finding.filename), "path"),
        (f":cell {finding.cell}" if finding.cell is not None else "", ""),
        (f":{finding.site.line}:{finding.site.column + 1}: ", "dim"),
        (finding.code, "code"),
        (" [*]" if fixable else "", "command"),
        (" [", ""),
        (finding.severity, finding.severity),
        (f"] {finding.name}: {make_printable(message or finding.message)}", ""),
    ]


def format_concise(findings: Iterable[Finding], *, unsafe: bool = False) -> list[Line]:
    return [
        format_headline(
            _choose_representative(group), unsafe=unsafe, message=_format_group_message(group) if len(group) > 1 else ""
        )
        for group in _group_findings(findings)
    ]


def _group_findings(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Group the findings of one file whose rule has a grouped message; other findings stay separate."""
    from ..protocol.rules import RULES

    groups: dict[object, list[Finding]] = {}
    for number, finding in enumerate(findings):
        together = finding.code in RULES and RULES[finding.code].grouped_message
        groups.setdefault((finding.filename, finding.code) if together else number, []).append(finding)
    return list(groups.values())


def _choose_representative(group: Sequence[Finding]) -> Finding:
    """Return the first finding with a fix, else the first finding."""
    return next((finding for finding in group if finding.fix is not None), group[0])


def _format_group_message(group: Sequence[Finding]) -> str:
    """Return the message for several findings of one rule in one file, with the lines."""
    from ..protocol.rules import RULES

    shown = [f"cell {f.cell} line {f.line}" if f.cell is not None else str(f.line) for f in group[:PLACES]]
    more = f" and {len(group) - PLACES:,} more" if len(group) > PLACES else ""
    lines = "" if group[0].cell is not None else "lines "
    places = f"{len(group):,} places ({lines}{', '.join(shown)}{more})"
    return RULES[group[0].code].grouped_message.format(places=places)


def format_full(findings: Iterable[Finding], sources: SourceLines, *, unsafe: bool = False) -> list[Line]:
    lines: list[Line] = []
    for group in _group_findings(findings):
        first = _choose_representative(group)
        if len(group) == 1:
            lines += [*format_finding(first, sources, unsafe=unsafe), []]
        else:
            lines += [
                format_headline(first, unsafe=unsafe, message=_format_group_message(group)),
                *([[("  effect: ", "dim"), (first.effect, "")]] if first.effect else []),
                *_format_help(first, "", sources),
                [],
            ]
    return lines


def format_grouped(findings: Iterable[Finding], *, unsafe: bool = False) -> list[Line]:
    """Return the findings of each file below the file name, each in one line."""
    by_file: dict[str, list[Line]] = {}
    for group in _group_findings(findings):
        # The headline begins with the path, which is shown once.
        line = format_headline(
            _choose_representative(group), unsafe=unsafe, message=_format_group_message(group) if len(group) > 1 else ""
        )
        place = "".join(piece for piece, _ in line[1:3]).strip(": ")
        by_file.setdefault(_choose_representative(group).filename, []).append(
            [("  ", ""), (place, "dim"), (": ", "dim"), *line[3:]]
        )
    lines: list[Line] = []
    for path, found in by_file.items():
        lines += [[(make_printable(path), "path"), (":", "")], *found, []]
    return lines


def finding_data(finding: Finding, sources: SourceLines) -> dict[str, Any]:
    """Return the display data of a finding beside the headline, as plain data for all detailed formats.

    "problem" is the message without the remedy. "frame" is the code frame as lines. "effect" is the effect on training.
    "some" names the affected paths.
    "lead" introduces "events", each with "place", the call in "called", the description in "text", and the line in
    "source". "help" are the lines about the remedy, the fix and further information.
    """
    some, lead, events = "", "", []
    if not finding.certain:
        if finding.trace and not finding.condition:
            lead = " of one path with the mistake"
        else:
            some = make_printable(finding.uncertainty)
    if finding.trace and not _is_in_frame_alone(finding):
        lead = f"trace{lead}"
        before = ""
        shown: list[Site] = []
        for step in finding.trace:
            called = _describe_caller(step.site)
            # Most paths stay in one function, whose call is shown once. So is each line of source.
            event = _make_event_data(step.site, sources, "" if called == before else called, make_printable(step.text))
            if _covers_line(finding.site, step.site, AROUND) or any(_covers_line(site, step.site) for site in shown):
                event["source"] = ""
            events.append(event)
            before = called
            shown.append(step.site)
    elif finding.site.caller is not None:
        lead = "called from"
        events = [_make_event_data(site, sources) for site in finding.site.list_frames()[:-1]]
    return {
        "frame": format_frame(finding.site, sources),
        "effect": finding.effect,
        "some": some,
        "lead": lead,
        "events": events,
        "problem": finding.problem,
        "help": _format_help(finding, finding.remedy, sources),
    }


def _covers_line(site: Site, other: Site, around: int = 0) -> bool:
    """Return True if the shown lines of a location, with lines around, hold the line of another location."""
    last = min(max(site.end_line, site.line), site.line + TALL - 1)
    return (site.path, site.cell) == (other.path, other.cell) and site.line - around <= other.line <= last + around


def _is_in_frame_alone(finding: Finding) -> bool:
    """Return True if a trace is only the line that the code frame shows, in a function whose call says no more."""
    return len(finding.trace) == 1 and (
        _covers_line(finding.site, finding.trace[0].site) and finding.trace[0].site.caller is None
    )


def _make_event_data(site: Site, sources: SourceLines, called: str = "", text: str = "") -> dict[str, str]:
    return {
        "place": make_printable(site.location_text),
        "called": called,
        "text": text,
        "source": _quote_source(site, sources),
    }


def format_finding(finding: Finding, sources: SourceLines, *, unsafe: bool = False) -> list[Line]:
    """Return a finding with the code frame, the trace, the fix, and the command for further information."""
    parts = finding_data(finding, sources)
    lines = [format_headline(finding, unsafe=unsafe, message=finding.problem), *parts["frame"]]
    if parts["effect"]:
        lines.append([("  effect: ", "dim"), (parts["effect"], "")])
    if parts["some"]:
        words, comma, condition = parts["some"].partition(", ")
        lines.append([(f"  {words}", "dim"), (comma + condition, "")])
    if parts["lead"]:
        lines.append([(f"  {parts['lead']}:", "dim")])
    for number, event in enumerate(parts["events"], 1):
        numbered = f"    {number}. " if event["text"] else "    "
        text = f": {event['text']}" if event["text"] else ""
        lines.append([(numbered, "dim"), (event["place"], ""), (event["called"], "dim"), (text, "")])
        if event["source"]:
            lines.append([("         ", ""), (event["source"], "source")])
    return [*lines, *parts["help"]]


def _format_help(finding: Finding, remedy: str, sources: SourceLines) -> list[Line]:
    """Return the lines about the remedy and the fix of a finding, and about further information."""
    lines: list[Line] = [[("  help: ", "dim"), (make_printable(remedy), "")]] if remedy else []
    for step in finding.edit_places if remedy else ():
        lines.append([("  where: ", "dim"), (_describe_place(step), "")])
        source = "" if _covers_line(finding.site, step.site, 1) else _quote_source(step.site, sources)
        if source:
            lines.append([("         ", ""), (source, "source")])
    if finding.fix is not None:
        flags = f" ({FLAGS[finding.fix.applicability]})"
        lines.append([("  fix: ", "dim"), (make_printable(finding.fix.message), ""), (flags, "dim")])
    return [*lines, [("  more: ", "dim"), (f"amp-check explain {finding.code}", "command")]]


def _describe_place(step: TraceStep) -> str:
    """Return an edit that the remedy needs, after its location and its function."""
    function = f" in `{step.site.function}`" if step.site.function not in ("", "<module>") else ""
    return make_printable(f"{step.site.location_text}{function}: {step.text}")


def _describe_caller(site: Site) -> str:
    caller = site.caller
    return f" (called from {make_printable(caller.location_text)})" if caller is not None else ""


def _quote_source(site: Site, sources: SourceLines) -> str:
    text = sources.find_line_at(site, site.line)
    return "" if text is None else _cut_line(make_printable(text.replace("\t", TAB)).strip(), 0)[0]


def format_frame(site: Site, sources: SourceLines) -> list[Line]:
    """Return the lines of the cause, with marks below the code, and the lines around."""
    if sources.find_line_at(site, site.line) is None:
        return []
    last = min(max(site.end_line, site.line), site.line + TALL - 1)
    gutter = len(str(last + AROUND))
    bar: Line = [(" " * gutter + " |", "dim")]
    lines: list[Line] = [bar]
    for number in range(site.line - AROUND, last + AROUND + 1):
        raw = sources.find_line_at(site, number)
        if raw is None:
            continue
        blamed = site.line <= number <= last
        if not blamed and not raw.strip():
            continue
        start = site.column if number == site.line else len(raw) - len(raw.lstrip())
        end = site.end_column if number == site.end_line else len(raw.rstrip())
        start = min(start, len(raw))
        shown_start, shown = _count_columns(raw[:start]), make_printable(raw.replace("\t", TAB).rstrip())
        shown_end = max(_count_columns(raw[:end]), shown_start + 1)
        if len(shown) > WIDE:
            # Columns of a cut line are counted in characters: only generated code is this long.
            offset = len(make_printable(raw[:start].replace("\t", TAB))) if blamed else 0
            shown, shown_start = _cut_line(shown, offset)
            shown_end = min(shown_start + max(end - start, 1), len(shown))
        code: Line = [(f" {shown}", "source")] if shown else []
        lines.append([(f"{number:>{gutter}} |", "dim"), *code])
        if blamed:
            marks = " " * (shown_start + 1) + "^" * max(shown_end - shown_start, 1)
            lines.append([(" " * gutter + " |", "dim"), (marks, "mark")])
    if site.end_line > last:
        lines.append([(" " * gutter + " | ...", "dim")])
    lines.append(bar)
    return lines


def _cut_line(text: str, offset: int) -> tuple[str, int]:
    """Return at most WIDE characters of a line around ``offset``, and the new offset."""
    if len(text) <= WIDE:
        return text, offset
    first = max(0, min(offset - WIDE // 4, len(text) - WIDE))
    before, after = "..." if first else "", "..." if first + WIDE < len(text) else ""
    return before + text[first : first + WIDE] + after, offset - first + len(before)


def _count_columns(text: str) -> int:
    """Return the number of terminal columns of a text."""
    text = text.replace("\t", TAB)
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "FW" else 1 for c in text)


def relative_path(path: str) -> str:
    """Return a path relative to the working folder, if inside."""
    return path.removeprefix(os.path.join(os.getcwd(), ""))
