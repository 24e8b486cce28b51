"""Findings on the page: the same data as in the terminal, with a link to the rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...protocol.finding import describe_uncertainty
from ...protocol.rules import RULES
from ...protocol.severities import SEVERITIES
from .. import figures
from . import html_parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...protocol.finding import Finding
    from ..printable import Line
    from ..source_lines import SourceLines

#: Maximum number of findings of one run or check; further findings are only counted.
MOST = 500


def serialize_findings(findings: Iterable[Finding], sources: SourceLines) -> list[dict[str, Any]]:
    """Return findings as plain data, with the terminal's data of each finding under the key ``terminal``."""
    from .. import finding_text

    return [{**finding.as_dict(), "terminal": finding_text.finding_data(finding, sources)} for finding in findings]


def render_findings(found: Sequence[Mapping[str, Any]], run: Mapping[str, Any] | None = None) -> str:
    """Render the findings of a run, or of source if the run is None, most severe first."""
    if not found:
        where = "in this run" if run is not None else "in these files"
        return f'<p class="good"><span aria-hidden="true">✓</span> No AMP mistakes were found {where}.</p>'
    when = (
        {}
        if run is None
        else {(violation["code"], violation["row"]): violation for violation in figures.match_violations(run)}
    )
    worst = sorted(found, key=lambda finding: SEVERITIES.index(finding["severity"]))[:MOST]
    articles = [_render_article(finding, when.get((finding["code"], finding["location"]["row"]))) for finding in worst]
    return "".join(articles) + html_parts.render_omitted(len(found) - MOST, "findings are")


def _render_article(finding: Mapping[str, Any], violation: Mapping[str, Any] | None) -> str:
    severity, code = finding["severity"], finding["code"]
    named = f'<a href="#rule-{code}">{code}</a>' if code in RULES else html_parts.escape_text(code)
    data = finding.get("terminal") or _make_finding_data(finding)
    effect = f"<p>Effect: {html_parts.render_prose(data['effect'])}.</p>" if data.get("effect") else ""
    some = f'<p class="muted">{html_parts.escape_text(data["some"].capitalize())}.</p>' if data["some"] else ""
    return (
        f'<article class="finding {severity}"><p class="severity">'
        f'<span aria-hidden="true">{html_parts.GLYPHS[severity]}</span> '
        f"<strong>{severity}</strong> {named} {html_parts.escape_text(finding['name'])}</p>"
        f"<p>{html_parts.render_prose(data.get('problem', finding['message']))}</p><p>{_render_location(finding)}</p>"
        f"{_render_frame(data['frame'], finding)}{effect}{some}"
        f"{_render_steps(violation)}{_render_events(data)}{_render_help(data['help'])}</article>"
    )


def _make_finding_data(finding: Mapping[str, Any]) -> dict[str, Any]:
    """Return the display data of a finding without available source."""
    events = [
        {"place": _format_location(step), "called": "", "text": step["text"], "source": ""}
        for step in finding["witness"]
    ]
    return {
        "frame": [],
        "effect": finding.get("effect") or "",
        "some": "" if finding["certain"] else describe_uncertainty(finding["condition"] or "", traced=bool(events)),
        "lead": "trace" if events else "",
        "events": events,
        "help": [],
    }


def _format_location(holder: Mapping[str, Any]) -> str:
    cell = holder.get("cell")
    return f"{holder['filename']}{f':cell {cell}' if cell is not None else ''}:{holder['location']['row']}"


def _render_location(holder: Mapping[str, Any]) -> str:
    return f'<span class="path">{html_parts.escape_text(_format_location(holder))}</span>'


def _render_line(line: Line) -> str:
    parts = [
        f'<span class="t-{html_parts.escape_text(style)}">{html_parts.escape_text(piece)}</span>'
        if style
        else html_parts.escape_text(piece)
        for piece, style in line
    ]
    return "".join(parts)


def _render_frame(lines: Sequence[Line], finding: Mapping[str, Any]) -> str:
    if not lines:
        return ""
    label = f"Source at {_format_location(finding)}"
    source = "\n".join(map(_render_line, lines))
    return f'<pre class="frame" role="group" tabindex="0" aria-label="{html_parts.escape_text(label)}">{source}</pre>'


def _render_steps(violation: Mapping[str, Any] | None) -> str:
    if violation is None or not violation["spans"]:
        return ""
    word = "step" if violation["steps"] == 1 else "steps"
    state = (
        f", while the gradients were <strong>{html_parts.escape_text(violation['state'].upper())}</strong>"
        if violation["state"]
        else ""
    )
    return f'<p class="muted">Made at {word} {html_parts.format_steps(violation["spans"])}{state}.</p>'


def _render_events(data: Mapping[str, Any]) -> str:
    if not data["events"]:
        return ""
    items = []
    for event in data["events"]:
        called = f'<span class="muted">{html_parts.escape_text(event["called"])}</span>' if event["called"] else ""
        said = f": {html_parts.render_prose(event['text'])}" if event["text"] else ""
        source = f'<code class="quoted">{html_parts.escape_text(event["source"])}</code>' if event["source"] else ""
        items.append(
            f'<li><span class="path">{html_parts.escape_text(event["place"])}</span>{called}{said}{source}</li>'
        )
    lead = data["lead"][:1].upper() + data["lead"][1:]
    return f"<details open><summary>{html_parts.escape_text(lead)}</summary><ol>{''.join(items)}</ol></details>"


def _render_help(lines: Sequence[Line]) -> str:
    return "".join(f'<p class="help">{_render_prose_line(line)}</p>' for line in lines)


def _render_prose_line(line: Line) -> str:
    """Render a line of prose. Parts without style may contain code between backticks."""
    return "".join(
        _render_line([(piece, style)]) if style else html_parts.render_prose(piece) for piece, style in line
    ).strip()


def render_rules(found: Iterable[Mapping[str, Any]]) -> str:
    """Render the explanation of each broken rule once."""
    broken = sorted({finding["code"] for finding in found} & RULES.keys())
    if not broken:
        return ""
    texts = [
        f'<details id="rule-{code}"><summary><strong>{code}</strong> {html_parts.escape_text(RULES[code].name)}: '
        f"{html_parts.render_prose(RULES[code].summary)}</summary>"
        f"<p>{html_parts.render_prose(RULES[code].rationale)}</p>"
        f"<p><strong>Measured harm.</strong> {html_parts.render_prose(RULES[code].harm)}</p>"
        f"<p><strong>Fix.</strong> {html_parts.render_prose(RULES[code].fix_advice)}</p>"
        f'<pre role="group" tabindex="0" aria-label="{code}: how it is right">'
        f"<code>{html_parts.escape_text(RULES[code].good_example.strip())}</code></pre></details>"
        for code in broken
    ]
    return f"<h3>Rules that were broken</h3>{''.join(texts)}"
