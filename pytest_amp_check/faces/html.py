"""What runs look like, as one HTML file that opens without a network."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape as _escape

from ..protocol.finding import SEVERITIES
from ..protocol.rules import RULES
from . import charts, figures, files, tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Run = Mapping[str, Any]

TITLE = "Mixed-precision training report"
#: Points of one line in a chart, in a report of few runs, of very many, and of all lines of a kind together.
MOST_POINTS, FEWEST_POINTS, ALL_POINTS = 3_000, 200, 150_000
#: Rows of a table of one run, and findings of one run, of which the rest is only counted.
ROWS, FINDINGS = 300, 200
#: Module rows that are open at the start.
OPEN_ROWS = 80
#: Modules that are shown with the greatest magnitudes.
NEAREST = 12
#: What stands in a table where nothing is known.
ABSENT = '<span class="muted">\u2013</span>'
GLYPHS = {"error": "✕", "warning": "!", "info": "i", "": "✓"}
DTYPES = ("float16", "bfloat16", "float32", "float64")


class ReportUnavailable(Exception):
    """No report can be written, and why, in one sentence for the user."""


def ready(path: str) -> None:
    """Says before a long run what would keep a report from being written after it, as :class:`ReportUnavailable`."""
    _plotly()
    if os.path.isdir(path):
        raise ReportUnavailable(f"the report cannot be written to {path}: it is a folder: name a file in it")


def write(runs: Sequence[Run], path: str, *, title: str = TITLE) -> None:
    """Writes a report of runs, each given as ``Run.as_dict()``, to one HTML file; folders on its way are made.

    The same runs give the same bytes. Raises :class:`ReportUnavailable` without plotly, or if the file cannot be
    written.
    """
    page = render(runs, title)
    try:
        folder = os.path.dirname(path)
        if folder:
            os.makedirs(folder, exist_ok=True)
        files.write(path, page)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ReportUnavailable(f"the report cannot be written to {path}: {reason}: name another file") from error


def _plotly() -> str:
    """The source of plotly.js."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ReportUnavailable(
            "a report needs plotly, which is not installed: pip install 'pytest-amp-check[report]'"
        ) from error
    source: str = get_plotlyjs()
    return source


def render(runs: Sequence[Run], title: str = TITLE) -> str:
    """The text of a report."""
    scripts = [_plotly(), _asset("report.js")]
    limit = max(min(MOST_POINTS, ALL_POINTS // max(len(runs), 1)), FEWEST_POINTS)
    sections = [_overview(runs), *(_run(number, run, limit) for number, run in enumerate(runs, 1))]
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        # Whatever the page holds, it loads nothing and runs no script but these two.
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(title)}</title>",
        f"<style>\n{_asset('report.css')}</style>",
        "<noscript><style>section[hidden] { display: block; }</style></noscript>",
        "</head>",
        "<body>",
        '<a class="skip" href="#content">Skip to content</a>',
        _side(runs, title),
        '<main id="content">',
        "<noscript><p>The charts are drawn by JavaScript, which is off; all else is here.</p></noscript>",
        *sections,
        "</main>",
        _data("template", figures.TEMPLATE),
        *(f"<script>{script}</script>" for script in scripts),
        "</body>",
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def _asset(name: str) -> str:
    """A file of the page, which lies beside this module."""
    from pkgutil import get_data

    data = get_data(__name__, name)
    assert data is not None
    return data.decode("utf-8")


def _policy(scripts: Sequence[str]) -> str:
    from base64 import b64encode
    from hashlib import sha256

    hashes = " ".join(f"'sha256-{b64encode(sha256(each.encode()).digest()).decode()}'" for each in scripts)
    # Plotly sets styles, and saves a picture of a chart as a blob.
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"


def _text(value: object) -> str:
    return _escape(str(value), quote=True)


def _data(name: str, value: object) -> str:
    """JSON that a script of the page reads; nothing in it can end the element."""
    source = json.dumps(value, separators=(",", ":"), allow_nan=False)
    source = source.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return f'<script type="application/json" id="{name}">{source}</script>'


def _prose(text: str) -> str:
    """Text of a rule or a finding, in which ``code`` stands between backticks."""
    parts = re.split(r"(?<!`)`+([^`]+)`+", text.strip())
    marked = [f"<code>{_text(part)}</code>" if odd % 2 else _text(part) for odd, part in enumerate(parts)]
    return "".join(marked).replace("\n\n", "<br><br>")


def _scale(value: float) -> str:
    return f"{int(value):,}" if abs(value) < 2**31 and value == int(value) else charts.number(value)


# The parts of the page that speak of all runs.


def _side(runs: Sequence[Run], title: str) -> str:
    items = [
        f'<li><a href="#run-{number}">{_state(run["findings"])}<span>{_title(number, run)}</span></a></li>'
        for number, run in enumerate(runs, 1)
    ]
    search = '<input id="filter" type="search" placeholder="Filter runs" aria-label="Filter runs">' if runs[8:] else ""
    return (
        f'<nav class="side" aria-label="Runs"><h1>{_text(title)}</h1>'
        '<ul><li><a href="#overview"><span class="state" aria-hidden="true">≡</span><span>Overview</span></a></li></ul>'
        f"<details open><summary>{charts.plural(len(runs), 'run')}</summary>{search}"
        f'<ul id="runs">{"".join(items)}</ul></details></nav>'
    )


def _title(number: int, run: Run) -> str:
    return _text(run["title"] or f"Run {number}")


def _worst(findings: Iterable[Mapping[str, Any]]) -> str:
    return min((finding["severity"] for finding in findings), key=SEVERITIES.index, default="")


def _state(findings: Sequence[Mapping[str, Any]]) -> str:
    """How a run ended, as a glyph, in words for who cannot see it."""
    worst = _worst(findings)
    words = _tally(findings)
    return (
        f'<span class="state {worst or "good"}" title="{words}" aria-hidden="true">{GLYPHS[worst]}</span>'
        f'<span class="hidden">{words}: </span>'
    )


def _tally(findings: Iterable[Mapping[str, Any]]) -> str:
    from .text import count

    counts = count(finding["severity"] for finding in findings)
    parts = [
        f"{number:,} {severity}" + ("" if number == 1 or severity == "info" else "s")
        for severity, number in counts.items()
        if number
    ]
    return ", ".join(parts) or "no findings"


def _tiles(pairs: Iterable[tuple[str, str, str]]) -> str:
    """Figures with their names; the third of each is a line in small."""
    rows = [
        f"<div><dt>{_text(name)}</dt><dd>{_text(value)}"
        + (f"<small>{_text(note)}</small>" if note else "")
        + "</dd></div>"
        for name, value, note in pairs
    ]
    return f'<dl class="tiles">{"".join(rows)}</dl>'


def _table(label: str, head: Sequence[str], rows: Sequence[str], look: str = "") -> str:
    """A table that scrolls by itself where it is too large; a heading that starts with > stands on the right.

    ``look`` names classes: ``full`` takes the whole width, ``tall`` scrolls when it has many rows.
    """
    cells = "".join(
        f'<th scope="col" class="number">{each[1:]}</th>' if each.startswith(">") else f'<th scope="col">{each}</th>'
        for each in head
    )
    return (
        f'<div class="wide {look}" role="region" tabindex="0" aria-label="{_text(label)}">'
        f"<table><thead><tr>{cells}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _final(run: Run) -> list[float]:
    return [points[-1][1] for points in charts.scales(run).values()]


def _range(values: Sequence[float]) -> str:
    if not values:
        return "none"
    low, high = _scale(min(values)), _scale(max(values))
    return low if low == high else f"{low} to {high}"


def _overview(runs: Sequence[Run]) -> str:
    findings = [finding for run in runs for finding in run["findings"]]
    total, skipped = sum(run["steps_total"] for run in runs), sum(run["skipped_total"] for run in runs)
    finals = [scale for run in runs for scale in _final(run)]
    peaks = [run["memory"]["peak"]["total"] for run in runs if run["memory"] is not None]
    clean = sum(not run["findings"] for run in runs)
    tiles = [
        ("Runs", f"{len(runs):,}", f"{clean:,} without findings"),
        ("Findings", f"{len(findings):,}", _tally(findings) if findings else ""),
        ("Skipped steps", f"{skipped:,}", f"of {charts.plural(total, 'step')}"),
        ("Final loss scale", _range(finals), "" if finals else "no GradScaler was used"),
    ]
    if peaks:
        tiles.append(("Highest memory peak", charts.size(max(peaks)), ""))
    rows = [
        f'<tr><th scope="row" class="name"><a href="#run-{number}">{_title(number, run)}</a></th>'
        f"<td>{_state(run['findings'])} {_codes(run['findings'])}</td>"
        f'<td class="number">{run["steps_total"]:,}</td><td class="number">{run["skipped_total"]:,}</td>'
        f'<td class="number">{_range(_final(run))}</td><td class="number">{_lost(run)}</td>'
        f'<td class="number">{_peak(run)}</td></tr>'
        for number, run in enumerate(runs, 1)
    ]
    head = ("Run", "Findings", ">Steps", ">Skipped", ">Final scale", ">Lost without scaling", ">Memory peak")
    body = _table("Runs", head, rows, "full") if runs else '<p class="missing">No run was recorded.</p>'
    return (
        f'<section id="overview" aria-label="Overview"><h2 tabindex="-1">Overview</h2>{_tiles(tiles)}'
        f"<h3>Runs</h3>{body}{_rules(findings)}</section>"
    )


def _codes(findings: Sequence[Mapping[str, Any]]) -> str:
    found: dict[str, int] = {}
    for finding in findings:
        found[finding["code"]] = found.get(finding["code"], 0) + 1
    words = [_text(code) + (f" ({number})" if number > 1 else "") for code, number in sorted(found.items())]
    return ", ".join(words) or "none"


def _lost(run: Run) -> str:
    numerics = run["numerics"]
    known = numerics is not None and numerics["samples"]
    return charts.percent(numerics["lost_without_scaling"]) if known else ABSENT


def _peak(run: Run) -> str:
    memory = run["memory"]
    if memory is None:
        return ABSENT
    budget = memory["budget"]
    return charts.size(memory["peak"]["total"]) + (f" of {charts.size(budget)}" if budget is not None else "")


def _rules(findings: Sequence[Mapping[str, Any]]) -> str:
    """What is wrong with each mistake that was found, once."""
    found = sorted({finding["code"] for finding in findings} & RULES.keys())
    if not found:
        return ""
    texts = [
        f'<details id="rule-{code}"><summary><strong>{code}</strong> {_text(RULES[code].name)}: '
        f"{_prose(RULES[code].summary)}</summary>"
        f"<p>{_prose(RULES[code].why)}</p><p><strong>Measured harm.</strong> {_prose(RULES[code].harm)}</p>"
        f"<p><strong>Fix.</strong> {_prose(RULES[code].fix)}</p>"
        f"<pre><code>{_text(RULES[code].good.strip())}</code></pre></details>"
        for code in found
    ]
    return f"<h3>Rules that were broken</h3>{''.join(texts)}"


# The parts of one run.


def _run(number: int, run: Run, limit: int) -> str:
    """A section of the page; its charts are drawn when it is first shown."""
    ident = f"run-{number}"
    finals = _final(run)
    tiles = [
        ("Findings", f"{len(run['findings']):,}", _tally(run["findings"]) if run["findings"] else ""),
        ("Skipped steps", f"{run['skipped_total']:,}", f"of {charts.plural(run['steps_total'], 'step')}"),
        ("Final loss scale", _range(finals), "" if finals else "no GradScaler was used"),
    ]
    if run["numerics"] is not None and run["numerics"]["samples"]:
        tiles.append(("Lost without scaling", _lost(run), "of non-zero gradient values, in float16"))
    if run["memory"] is not None:
        budget = run["memory"]["budget"]
        note = f"of {charts.size(budget)}" if budget is not None else "no budget is set"
        tiles.append(("Memory peak", charts.size(run["memory"]["peak"]["total"]), note))
    where = " · ".join(_text(each) for each in (f"torch {run['torch']}", run["device"], run["platform"]))
    return (
        f'<section id="{ident}" aria-label="{_title(number, run)}" hidden>'
        f'<h2 tabindex="-1">{_title(number, run)}</h2><p class="muted">{where}</p>{_tiles(tiles)}'
        f"<h3>Findings</h3>{_findings(run['findings'])}"
        f"<h3>Loss scale</h3>{_steps(ident, run, limit)}"
        f"<h3>Gradient magnitudes</h3>{_gradients(ident, run['numerics'])}{_headroom(run)}"
        f"<h3>Memory</h3>{_memory(ident, run['memory'], limit)}"
        f"<h3>Dtypes</h3>{_dtypes(run['dtypes'])}"
        "</section>"
    )


def _chart(ident: str, figure: figures.Figure, label: str, after: str = "") -> str:
    height = figure["layout"]["height"]
    return (
        f'<figure><div class="chart" id="{ident}" data-figure="{ident}-data" role="img" aria-label="{_text(label)}" '
        f'style="height:{height}px"></div>{_data(f"{ident}-data", figure)}{after}</figure>'
    )


def _missing(argument: str, what: str) -> str:
    return f'<p class="missing">Not recorded: <code>record(model, {argument}=True)</code> shows {what}.</p>'


def _more(count: int, what: str) -> str:
    return f'<p class="muted">{count:,} more {what} not shown.</p>' if count > 0 else ""


def _swatch(colour: str) -> str:
    return f'<span class="swatch" style="background:{colour}"></span>'


def _findings(findings: Sequence[Mapping[str, Any]]) -> str:
    if not findings:
        return '<p class="good"><span aria-hidden="true">✓</span> No AMP mistakes were found in this run.</p>'
    shown = sorted(findings, key=lambda finding: SEVERITIES.index(finding["severity"]))[:FINDINGS]
    return "".join(map(_finding, shown)) + _more(len(findings) - FINDINGS, "findings are")


def _finding(finding: Mapping[str, Any]) -> str:
    severity, code = finding["severity"], finding["code"]
    where = _place(finding)
    named = f'<a href="#rule-{code}">{code}</a>' if code in RULES else _text(code)
    some = ""
    if not finding["certain"]:
        when = f": {finding['condition']}" if finding["condition"] else ""
        some = f'<p class="muted">Only on some paths{_text(when)}.</p>'
    steps = "".join(f"<li>{_place(step)}: {_prose(step['text'])}</li>" for step in finding["witness"])
    witness = f"<details open><summary>How it comes about</summary><ol>{steps}</ol></details>" if steps else ""
    return (
        f'<article class="finding {severity}"><p class="severity"><span aria-hidden="true">{GLYPHS[severity]}</span> '
        f"<strong>{severity}</strong> {named} {_text(finding['name'])}</p>"
        f"<p>{_prose(finding['message'])}</p><p>{where}</p>{some}{witness}</article>"
    )


def _place(holder: Mapping[str, Any]) -> str:
    cell = holder.get("cell")
    where = f"{holder['filename']}{f':cell {cell}' if cell is not None else ''}:{holder['location']['row']}"
    return f'<span class="path">{_text(where)}</span>'


def _steps(ident: str, run: Run, limit: int) -> str:
    total, skipped = run["steps_total"], run["skipped_total"]
    if not total:
        return '<p class="missing">No optimizer step was recorded.</p>'
    series = charts.scales(run)
    sentences = [
        f"{_text(name)}: {_scale(points[0][1])} at first, {_scale(points[-1][1])} at last, "
        f"{_scale(min(scale for _, scale in points))} at the lowest."
        for name, points in series.items()
    ] or ["No GradScaler was used."]
    sentences.append(f"{skipped:,} of {charts.plural(total, 'step')} skipped.")
    kept = len(run["steps"])
    if kept < total:
        sentences.append(f"The record kept the last {kept:,} steps.")
    wild = [step for step in run["steps"] if step["loss"] is not None and not math.isfinite(step["loss"])]
    if wild:
        sentences.append(
            f"The loss is not finite at {charts.plural(len(wild), 'step')}, first at {wild[0]['index']:,}."
        )
    words = " ".join(sentences)
    figure = figures.steps(run, limit)
    legend = _legend(
        [(_text(name), f"var(--line-{number % figures.LINES})") for number, name in enumerate(series)]
        if len(series) > 1
        else []
    )
    chart = _chart(f"{ident}-steps", figure, "Loss scale over optimizer steps", legend) if figure else ""
    return f"<p>{words}</p>{chart}{_skipped(run, skipped)}"


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    items = "".join(f"<li>{_swatch(colour)}{label}</li>" for label, colour in entries)
    return f'<ul class="legend">{items}</ul>' if items else ""


def _skipped(run: Run, total: int) -> str:
    steps = [step for step in run["steps"] if step["skipped"]]
    if not steps:
        return ""
    rows = [
        f'<tr><td class="number">{step["index"]:,}</td><td>{_text(step["optimizer"])}</td>'
        f'<td class="number">{_change(step)}</td><td class="path">{_text(step["site"])}</td></tr>'
        for step in steps[:ROWS]
    ]
    table = _table("Skipped steps", (">Step", "Optimizer", ">Scale", "Where"), rows, "tall")
    return f"<details><summary>Skipped steps</summary>{table}{_more(total - len(rows), 'are')}</details>"


def _change(step: Mapping[str, Any]) -> str:
    before, after = step["scale_before"], step["scale_after"]
    if before is None:
        return ABSENT
    return _scale(before) + (f" → {_scale(after)}" if after is not None else "")


#: What gradient values are in float16: the key of the counts, the name, and the colour.
BANDS = (
    ("zero", "zero already", "var(--memory-8)"),
    ("lost", "rounded to zero", "var(--memory-6)"),
    ("subnormal", "subnormal", "var(--memory-1)"),
    ("normal", "normal", "var(--memory-3)"),
    ("above", "above 65,504", "var(--memory-2)"),
    ("inf", "inf", "var(--memory-7)"),
    ("nan", "NaN", "var(--text)"),
)


def _gradients(ident: str, numerics: Mapping[str, Any] | None) -> str:
    if numerics is None:
        return _missing("numerics", "how large gradients are and what float16 would lose of them")
    figure = figures.gradients(numerics)
    if figure is None:
        return '<p class="missing">No gradient was seen.</p>'
    lost = charts.percent(numerics["lost_without_scaling"])
    samples = charts.plural(numerics["samples"], "step")
    words = (
        f"Without scaling, float16 would round {lost} of the non-zero gradient values to zero ({samples} looked at)."
    )
    legend = _legend(
        [
            ("before scaling", "var(--before)"),
            ("after scaling", "var(--after)"),
            ("rounded to zero in float16", "var(--band-lost)"),
            ("subnormal in float16", "var(--band-subnormal)"),
            ("above 65,504", "var(--band-above)"),
        ]
    )
    chart = _chart(f"{ident}-gradients", figure, "Gradient magnitudes by power of two", legend)
    button = f'<button type="button" data-chart="{ident}-gradients" hidden>Linear shares</button>'
    rows = [
        f'<tr><th scope="row">{_swatch(colour)}{name}</th><td class="number">{_share(numerics["before"], key)}</td>'
        f'<td class="number">{_share(numerics["after"], key)}</td></tr>'
        for key, name, colour in BANDS
    ]
    table = _table("Gradient values by what they are in float16", ("In float16", ">Before", ">After"), rows)
    return f"<p>{words}</p>{chart}{button}{table}{_parameters(numerics['parameters'], numerics)}"


def _headroom(run: Mapping[str, Any]) -> str:
    """How large outputs and products were beside the most that float16 holds, and gradients beside its least."""
    found = run.get("headroom")
    if found is None:
        return ""
    parts = [("output", found["outputs"]), ("product", found["products"])]
    rows = [
        f'<tr><th scope="row">{_text(name)}</th><td>{what}</td><td class="number">{greatest:.4g}</td>'
        f'<td class="number">{_of_most(greatest)}</td></tr>'
        for what, magnitudes in parts
        for name, greatest in list(magnitudes.items())[:NEAREST]
    ]
    smallest = min((int(exponent) for exponent in run["numerics"]["before"]["histogram"]), default=None)
    words = (
        ""
        if smallest is None
        else f"<p>The smallest gradient without scaling is about {2.0**smallest:.2g}; float16 holds 6e-8 at least.</p>"
    )
    if not rows:
        return words
    columns = ("Module", "What", ">Greatest", ">Of 65,504")
    return words + _table("Greatest magnitudes beside the most that float16 holds", columns, rows)


def _of_most(greatest: float) -> str:
    return charts.percent(greatest / 65504.0) if math.isfinite(greatest) else "not finite"


def _share(counts: Mapping[str, Any], key: str) -> str:
    total = sum(counts[band] for band, _, _ in BANDS)
    return charts.percent(counts[key] / total) if total else ABSENT


def _bands(counts: Mapping[str, Any], when: str) -> str:
    """A bar of what share of the values is in each band."""
    total = sum(counts[band] for band, _, _ in BANDS)
    if not total:
        return ""
    words = f"{when}: " + ", ".join(
        f"{name} {charts.percent(counts[band] / total)}" for band, name, _ in BANDS if counts[band]
    )
    spans = "".join(
        f'<span style="width:{counts[band] / total * 100:.2f}%;background:{colour}"></span>'
        for band, _, colour in BANDS
        if counts[band]
    )
    return f'<div class="bar" role="img" aria-label="{words}" title="{words}">{spans}</div>'


def _parameters(parameters: Mapping[str, Any], numerics: Mapping[str, Any]) -> str:
    names = [name for name, _ in charts.lost({"numerics": numerics})]
    if not names:
        return ""
    rows = []
    for name in names[:ROWS]:
        each = parameters[name]
        before, after = each["before"], each["after"]
        rows.append(
            f'<tr><th scope="row" class="name"><code>{_text(name)}</code></th>'
            f'<td class="number">{charts.percent(each["lost"])}</td>'
            f"<td>{_bands(before, 'before scaling')}{_bands(after, 'after scaling')}</td>"
            f'<td class="number">{_share(before, "zero")}</td>'
            f'<td class="number">{_share(before, "lost")} → {_share(after, "lost")}</td>'
            f'<td class="number">{_share(before, "subnormal")} → {_share(after, "subnormal")}</td>'
            f'<td class="number">{_share(after, "above")}</td>'
            f'<td class="number">{after["inf"] + after["nan"]:,}</td></tr>'
        )
    head = (
        "Parameter",
        ">Lost without scaling",
        "Bands before and after",
        ">Zero already",
        ">Rounded to zero",
        ">Subnormal",
        ">Above 65,504",
        ">inf, NaN",
    )
    legend = _legend([(name, colour) for _, name, colour in BANDS])
    return (
        f"{_table('Parameters by underflow', head, rows, 'full tall')}{legend}"
        f"{_more(len(names) - ROWS, 'parameters that lose less are')}"
    )


def _memory(ident: str, memory: Mapping[str, Any] | None, limit: int) -> str:
    if memory is None:
        return _missing("memory", "the bytes of parameters, gradients, activations and optimizer state over time")
    peak, budget = memory["peak"]["total"], memory["budget"]
    words = f"{charts.size(peak)} at the peak"
    if budget is not None:
        over = f"{charts.size(peak - budget)} over" if peak > budget else f"{charts.size(budget - peak)} below"
        words += f", {over} the budget of {charts.size(budget)}"
    words += f". Counted on {_text(memory['device'])}: {_text(memory['how'])}."
    state = ' class="error"' if budget is not None and peak > budget else ""
    figure = figures.memory(memory, limit)
    chart = _chart(f"{ident}-memory", figure, "Memory by category over the moments of the run") if figure else ""
    rows = []
    for name, count in charts.categories(memory):
        share = count / peak if peak else 0.0
        rows.append(
            f'<tr><th scope="row">{_swatch(figures.colour(name))}{_text(name)}</th>'
            f'<td class="number" title="{count:,} bytes">{charts.size(count)}</td>'
            f'<td class="number">{charts.percent(share)}</td><td><div class="bar">'
            f'<span style="width:{min(share, 1) * 100:.2f}%;background:{figures.colour(name)}"></span></div></td></tr>'
        )
    table = _table("The peak by category", ("Category", ">At the peak", ">Of the total", ""), rows) if rows else ""
    return f"<p{state}>{words}</p>{chart}{table}"


# The dtype map.


def _dtypes(dtypes: Mapping[str, Any] | None) -> str:
    if dtypes is None:
        return _missing("dtypes", "the dtype of every module's output, parameters and gradients")
    root = tree.of(dtypes)
    facts = [
        f"{words} {_chips({dtype: [f'{charts.plural(number, noun)}'] for dtype, number in charts.tally(values)})}"
        for words, noun, values in (
            ("Loss", "loss", [dtypes["loss"]] if dtypes["loss"] is not None else []),
            ("Optimizer state", "tensor", list(dtypes["optimizer state"].values())),
        )
        if values
    ]
    lead = f"<p>{' · '.join(facts)}</p>" if facts else ""
    if not dtypes["modules"] and not dtypes["parameters"]:
        return f'{lead}<p class="missing">No module was called.</p>'
    total = root.rows()
    left = [ROWS]
    branches = _branch("(model)", root, left, depth=0, depth_open=99 if total <= OPEN_ROWS else 2)
    columns = "<span>Output</span><span>Parameters</span><span>Gradients</span>"
    head = f'<div class="row head leaf"><span class="name">Module</span>{columns}</div>'
    more = _more(total - ROWS, "modules are")
    return f'{lead}{head}<ul class="tree">{branches}</ul>{more}{_ops(dtypes["ops"])}'


def _branch(name: str, module: tree.Module, left: list[int], depth: int, depth_open: int) -> str:
    if left[0] <= 0:
        return ""
    left[0] -= 1
    output: dict[str, list[str]] = {dtype: [] for dtype in module.output.split(", ") if dtype}
    cells = "".join(
        f'<span data-label="{label}">{_chips(found)}</span>'
        for label, found in (
            ("out", output),
            ("param", module.below("parameters")),
            ("grad", module.below("gradients")),
        )
    )
    row = f'<span class="name"><code>{_text(name)}</code></span>{cells}'
    children = "".join(_branch(child, below, left, depth + 1, depth_open) for child, below in module.folded())
    if not children:
        return f'<li><div class="row leaf">{row}</div></li>'
    state = " open" if depth < depth_open else ""
    return f'<li><details{state}><summary class="row">{row}</summary><ul>{children}</ul></details></li>'


def _chips(found: Mapping[str, Sequence[str]]) -> str:
    """Dtypes with what has them, which is shown on hovering."""
    chips = []
    for dtype, names in found.items():
        shown = ", ".join(names[:12]) + (f" and {len(names) - 12:,} more" if names[12:] else "")
        look = dtype if dtype in DTYPES else "otherdtype"
        title = f' title="{_text(shown)}"' if shown else ""
        chips.append(f'<span class="chip {look}"{title}>{_text(dtype)}</span>')
    return " ".join(chips)


def _ops(ops: Mapping[str, Mapping[str, int]] | None) -> str:
    if not ops:
        return ""
    rows = [
        f'<tr><th scope="row"><code>{_text(op)}</code></th><td>'
        + " ".join(
            f"{_chips({dtype: []})} {count:,}" for dtype, count in sorted(found.items(), key=lambda pair: -pair[1])
        )
        + "</td></tr>"
        for op, found in sorted(ops.items())[:ROWS]
    ]
    table = _table("Operators by dtype", ("Operator", "Calls by dtype"), rows, "tall")
    return f"<details><summary>Operators</summary>{table}{_more(len(ops) - ROWS, 'operators are')}</details>"
