"""HTML building blocks of the page: escaped text, figures with names, tables, charts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from ...protocol.severities import SEVERITIES
from .. import charts, figures, summaries

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Maximum number of table rows for one run; further rows are only counted.
ROWS = 300
#: Table cell of an unknown value.
ABSENT = '<span class="muted">\u2013</span>'
GLYPHS = {"error": "✕", "warning": "!", "info": "i", "": "✓"}


def escape_text(value: object) -> str:
    return escape(str(value), quote=True)


def embed_json(name: str, value: object) -> str:
    """Return a script element with JSON data. No content can end the element early."""
    source = json.dumps(value, separators=(",", ":"), allow_nan=False)
    source = source.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return f'<script type="application/json" id="{name}">{source}</script>'


def render_prose(value: str) -> str:
    """Render text of a rule or a finding, with ``code`` between backticks."""
    parts = re.split(r"(?<!`)`+([^`]+)`+", value.strip())
    marked = [f"<code>{escape_text(part)}</code>" if odd % 2 else escape_text(part) for odd, part in enumerate(parts)]
    return "".join(marked).replace("\n\n", "<br><br>")


def format_scale(value: float) -> str:
    return f"{int(value):,}" if abs(value) < 2**31 and value == int(value) else charts.format_scale(value)


def find_worst_severity(findings: Iterable[Mapping[str, Any]]) -> str:
    return min((finding["severity"] for finding in findings), key=SEVERITIES.index, default="")


def summarize_severities(findings: Iterable[Mapping[str, Any]]) -> str:
    counts = summaries.count_severities(finding["severity"] for finding in findings)
    parts = [
        f"{number:,} {severity}" + ("" if number == 1 or severity == "info" else "s")
        for severity, number in counts.items()
        if number
    ]
    return ", ".join(parts) or "no findings"


def render_state(findings: Sequence[Mapping[str, Any]]) -> str:
    """Render the result of a run as a glyph, with text for screen readers."""
    look = find_worst_severity(findings)
    said = summarize_severities(findings)
    return (
        f'<span class="state {look or "good"}" title="{said}" aria-hidden="true">{GLYPHS[look]}</span>'
        f'<span class="hidden">{said}: </span>'
    )


def render_tiles(triples: Iterable[tuple[str, str, str]]) -> str:
    """Render numbers with names; the third item is a note in small print."""
    rows = [
        f"<div><dt>{escape_text(name)}</dt><dd>{escape_text(value)}"
        + (f"<small>{escape_text(note)}</small>" if note else "")
        + "</dd></div>"
        for name, value, note in triples
    ]
    return f'<dl class="tiles">{"".join(rows)}</dl>'


def render_table(label: str, head: Sequence[str], rows: Sequence[str], look: str = "") -> str:
    """Render a scrollable table. A heading that starts with > is right-aligned.

    ``look`` holds CSS classes: ``full`` uses the whole width, ``tall`` scrolls if there are many rows.
    """
    cells = "".join(
        f'<th scope="col" class="number">{each[1:]}</th>' if each.startswith(">") else f'<th scope="col">{each}</th>'
        for each in head
    )
    return (
        f'<div class="wide {look}" role="region" tabindex="0" aria-label="{escape_text(label)}">'
        f"<table><thead><tr>{cells}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def render_chart(ident: str, figure: figures.Figure, label: str, after: str = "") -> str:
    """Render the container of a chart with the data, and HTML below the chart."""
    height = sum(panel["height"] + 38 for panel in figure["panels"]) + 28
    return (
        f'<figure><div class="chart" id="{ident}" data-figure="{ident}-data" data-label="{escape_text(label)}" '
        f'style="min-height:{height}px"></div>{embed_json(f"{ident}-data", figure)}{after}</figure>'
    )


def render_not_recorded(argument: str, what: str, flag: str = "") -> str:
    """Render what to pass to a recording. ``flag`` does the same for the command, which records other parts anyway."""
    ways = f"<code>record(model, {argument}=True)</code>" + (f" or <code>amp-check run {flag}</code>" if flag else "")
    return f'<p class="missing">Not recorded: {ways} shows {what}.</p>'


def render_details(summary: str, body: str) -> str:
    """Return a part that is shown on request, so that the page of a short run fits two screens."""
    return f"<details><summary>{summary}</summary>{body}</details>"


def render_omitted(count: int, what: str) -> str:
    return f'<p class="muted">{count:,} more {what} not shown.</p>' if count > 0 else ""


def render_swatch(colour: str) -> str:
    return f'<span class="swatch" style="background:{colour}"></span>'


def render_legend(entries: Sequence[tuple[str, str]]) -> str:
    items = "".join(f"<li>{render_swatch(colour)}{label}</li>" for label, colour in entries)
    return f'<ul class="legend">{items}</ul>' if items else ""


def format_steps(spans: Iterable[Sequence[int]], most: int = 6) -> str:
    """Return step ranges as text, with consecutive steps joined: ``0, 3 to 5``."""
    found = [f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in spans]
    return ", ".join(found[:most]) + (", …" if len(found) > most else "")


# Summary figures of a run.


def make_run_title(number: int, run: Mapping[str, Any]) -> str:
    return escape_text(run["title"] or f"Run {number}")


def find_final_scales(run: Mapping[str, Any]) -> list[float]:
    return [points[-1][1] for points in charts.collect_scales(run).values()]


def format_range(values: Sequence[float]) -> str:
    if not values:
        return "none"
    low, high = format_scale(min(values)), format_scale(max(values))
    return low if low == high else f"{low} to {high}"


def format_codes(findings: Sequence[Mapping[str, Any]]) -> str:
    found: dict[str, int] = {}
    for finding in findings:
        found[finding["code"]] = found.get(finding["code"], 0) + 1
    said = [escape_text(code) + (f" ({number})" if number > 1 else "") for code, number in sorted(found.items())]
    return ", ".join(said) or "none"


def format_lost_share(run: Mapping[str, Any]) -> str:
    numerics = run["numerics"]
    known = numerics is not None and numerics["samples"]
    return charts.format_percent(numerics["lost_without_scaling"]) if known else ABSENT


def format_peak(run: Mapping[str, Any]) -> str:
    memory = run["memory"]
    if memory is None:
        return ABSENT
    budget = memory["budget"]
    return charts.describe_size(memory["peak"]["total"]) + (
        f" of {charts.describe_size(budget)}" if budget is not None else ""
    )
