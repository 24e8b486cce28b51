"""Findings on the page: what the terminal shows of each, with a link to what its rule says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...protocol.finding import SEVERITIES
from ...protocol.rules import RULES
from .. import figures
from . import pieces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...protocol.finding import Finding
    from ..text import Line, Sources

#: Findings of one run, or of one check, of which the rest is only counted.
MOST = 500


def shown(findings: Iterable[Finding], sources: Sources) -> list[dict[str, Any]]:
    """Findings as plain data, with what the terminal shows of each as ``told``."""
    from .. import text

    return [{**finding.as_dict(), "told": text.told(finding, sources)} for finding in findings]


def listed(found: Sequence[Mapping[str, Any]], run: Mapping[str, Any] | None = None) -> str:
    """The findings of a run, or of source where that is None, the worst first."""
    if not found:
        where = "in this run" if run is not None else "in these files"
        return f'<p class="good"><span aria-hidden="true">✓</span> No AMP mistakes were found {where}.</p>'
    when = {} if run is None else {(fault["code"], fault["row"]): fault for fault in figures.faults(run)}
    worst = sorted(found, key=lambda finding: SEVERITIES.index(finding["severity"]))[:MOST]
    articles = [_article(finding, when.get((finding["code"], finding["location"]["row"]))) for finding in worst]
    return "".join(articles) + pieces.more(len(found) - MOST, "findings are")


def _article(finding: Mapping[str, Any], fault: Mapping[str, Any] | None) -> str:
    severity, code = finding["severity"], finding["code"]
    named = f'<a href="#rule-{code}">{code}</a>' if code in RULES else pieces.text(code)
    told = finding.get("told") or _bare(finding)
    some = f'<p class="muted">{pieces.text(told["some"].capitalize())}.</p>' if told["some"] else ""
    return (
        f'<article class="finding {severity}"><p class="severity">'
        f'<span aria-hidden="true">{pieces.GLYPHS[severity]}</span> '
        f"<strong>{severity}</strong> {named} {pieces.text(finding['name'])}</p>"
        f"<p>{pieces.prose(finding['message'])}</p><p>{_place(finding)}</p>{_frame(told['frame'], finding)}{some}"
        f"{_when(fault)}{_events(told)}{_help(told['help'])}</article>"
    )


def _bare(finding: Mapping[str, Any]) -> dict[str, Any]:
    """What can be told of a finding whose source is not at hand."""
    condition = f", {finding['condition']}" if finding["condition"] else ""
    events = [{"place": _where(step), "called": "", "text": step["text"], "source": ""} for step in finding["witness"]]
    return {
        "frame": [],
        "some": "" if finding["certain"] else f"only on some paths{condition}",
        "lead": "how it comes about" if events else "",
        "events": events,
        "help": [],
    }


def _where(holder: Mapping[str, Any]) -> str:
    cell = holder.get("cell")
    return f"{holder['filename']}{f':cell {cell}' if cell is not None else ''}:{holder['location']['row']}"


def _place(holder: Mapping[str, Any]) -> str:
    return f'<span class="path">{pieces.text(_where(holder))}</span>'


def _line(line: Line) -> str:
    parts = [
        f'<span class="t-{pieces.text(style)}">{pieces.text(piece)}</span>' if style else pieces.text(piece)
        for piece, style in line
    ]
    return "".join(parts)


def _frame(lines: Sequence[Line], finding: Mapping[str, Any]) -> str:
    if not lines:
        return ""
    label = f"Source at {_where(finding)}"
    source = "\n".join(map(_line, lines))
    return f'<pre class="frame" role="group" tabindex="0" aria-label="{pieces.text(label)}">{source}</pre>'


def _when(fault: Mapping[str, Any] | None) -> str:
    if fault is None or not fault["spans"]:
        return ""
    word = "step" if fault["steps"] == 1 else "steps"
    state = (
        f", while the gradients were <strong>{pieces.text(fault['state'].upper())}</strong>" if fault["state"] else ""
    )
    return f'<p class="muted">Made at {word} {pieces.steps(fault["spans"])}{state}.</p>'


def _events(told: Mapping[str, Any]) -> str:
    if not told["events"]:
        return ""
    items = []
    for event in told["events"]:
        called = f'<span class="muted">{pieces.text(event["called"])}</span>' if event["called"] else ""
        said = f": {pieces.prose(event['text'])}" if event["text"] else ""
        source = f'<code class="quoted">{pieces.text(event["source"])}</code>' if event["source"] else ""
        items.append(f'<li><span class="path">{pieces.text(event["place"])}</span>{called}{said}{source}</li>')
    lead = told["lead"][:1].upper() + told["lead"][1:]
    return f"<details open><summary>{pieces.text(lead)}</summary><ol>{''.join(items)}</ol></details>"


def _help(lines: Sequence[Line]) -> str:
    return "".join(f'<p class="help">{_said(line)}</p>' for line in lines)


def _said(line: Line) -> str:
    """A line of prose, in which what has no style may hold code between backticks."""
    return "".join(_line([(piece, style)]) if style else pieces.prose(piece) for piece, style in line).strip()


def rules(found: Iterable[Mapping[str, Any]]) -> str:
    """What is wrong with each mistake that was found, once."""
    broken = sorted({finding["code"] for finding in found} & RULES.keys())
    if not broken:
        return ""
    texts = [
        f'<details id="rule-{code}"><summary><strong>{code}</strong> {pieces.text(RULES[code].name)}: '
        f"{pieces.prose(RULES[code].summary)}</summary>"
        f"<p>{pieces.prose(RULES[code].why)}</p>"
        f"<p><strong>Measured harm.</strong> {pieces.prose(RULES[code].harm)}</p>"
        f"<p><strong>Fix.</strong> {pieces.prose(RULES[code].fix)}</p>"
        f'<pre role="group" tabindex="0" aria-label="{code}: how it is right">'
        f"<code>{pieces.text(RULES[code].good.strip())}</code></pre></details>"
        for code in broken
    ]
    return f"<h3>Rules that were broken</h3>{''.join(texts)}"
