"""Report of runs, or of a check, as one HTML file that needs no network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from . import charts, files
from .page import comparison, dtypes, gradients, html_parts, memory, steps
from .page import findings as found

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..protocol.finding import Finding
    from .source_lines import SourceLines

    Run = Mapping[str, Any]

TITLE = "Mixed-precision training report"
#: Maximum number of chart points of one line in a small report, in a very large report, and of all lines of one kind.
MOST_POINTS, FEWEST_POINTS, ALL_POINTS = 1_500, 200, 150_000
#: Maximum number of files with a section in a check report; findings in further files are counted.
FILES = 300
#: Keyboard instructions of charts, for screen readers.
KEYS = (
    "Left and right arrow keys move from step to step, with Shift ten at a time; Home and End go to the ends, plus and "
    "minus zoom, Escape shows all. What there is at a step is said below the chart."
)


class ReportUnavailable(Exception):
    """Error for a report that cannot be written; the message is one sentence for the user."""


class ReportSection:
    """A section of the page: name in links, title as HTML, and findings."""

    def __init__(self, ident: str, title: str, findings: Sequence[Mapping[str, Any]], body: str) -> None:
        self.anchor = ident
        self.title = title
        self.findings = findings
        self.body = body

    def to_html(self, *, hidden: bool) -> str:
        return (
            f'<section id="{self.anchor}" aria-labelledby="{self.anchor}-title"{" hidden" if hidden else ""}>'
            f'<h2 id="{self.anchor}-title" tabindex="-1">{self.title}</h2>{self.body}</section>'
        )


def check_writable(path: str) -> None:
    """Check before a long run that a report can be written. Raise :class:`ReportUnavailable` if not."""
    if os.path.isdir(path):
        raise ReportUnavailable(f"the report cannot be written to {path}: it is a folder: name a file in it")


def write_report(runs: Sequence[Run], path: str, *, title: str = TITLE, others: Sequence[Run] = ()) -> None:
    """Write a report of runs in the format of ``Run.as_dict()`` to one HTML file, and create missing folders.

    ``others`` are runs to compare with. Equal runs give equal bytes. Raise :class:`ReportUnavailable` if the file
    cannot be written.
    """
    _write_page(render_report(runs, title, others), path)


def write_check_report(findings: Sequence[Finding], sources: SourceLines, read: int, path: str, *, title: str) -> None:
    """Write a report of findings in source. ``read`` is the number of analyzed files."""
    _write_page(render_check_report(found.serialize_findings(findings, sources), read, title), path)


def _write_page(page: str, path: str) -> None:
    try:
        folder = os.path.dirname(path)
        if folder:
            os.makedirs(folder, exist_ok=True)
        files.write_file(path, page)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ReportUnavailable(f"the report cannot be written to {path}: {reason}: name another file") from error


def render_report(runs: Sequence[Run], title: str = TITLE, others: Sequence[Run] = ()) -> str:
    """Return the HTML text of a report of runs."""
    compared = comparison.pair_runs(runs, others)
    limit = max(min(MOST_POINTS, ALL_POINTS // max(len(runs) + 2 * len(compared), 1)), FEWEST_POINTS)
    sections = [_make_run_section(number, run, limit) for number, run in enumerate(runs, 1)]
    for number, (now, other) in enumerate(compared, 1):
        ident = f"compare-{number}"
        body = comparison.render_section(ident, now, other, limit)
        said = f"Compared: {html_parts.escape_text(now['title'])}" if len(compared) > 1 else "Compared"
        sections.append(ReportSection(ident, said, now["findings"], body))
    return _render_page(title, _make_overview(runs, others, compared), sections, charts.format_count(len(runs), "run"))


def render_check_report(findings: Sequence[Mapping[str, Any]], read: int, title: str) -> str:
    """Return the HTML text of a report of findings in source, each from :func:`.page.findings.serialize_findings`."""
    by_file: dict[str, list[Mapping[str, Any]]] = {}
    for finding in findings:
        by_file.setdefault(finding["filename"], []).append(finding)
    sections = [
        ReportSection(f"file-{number}", html_parts.escape_text(path), each, found.render_findings(each))
        for number, (path, each) in enumerate(list(by_file.items())[:FILES], 1)
    ]
    tiles = [
        ("Files read", f"{read:,}", f"{read - len(by_file):,} without findings"),
        ("Findings", f"{len(findings):,}", html_parts.summarize_severities(findings) if findings else ""),
    ]
    rows = [
        f'<tr><th scope="row" class="name"><a href="#{each.anchor}">{each.title}</a></th>'
        f"<td>{html_parts.render_state(each.findings)} {html_parts.format_codes(each.findings)}</td></tr>"
        for each in sections
    ]
    table = html_parts.render_table("Files", ("File", "Findings"), rows, "full") if rows else found.render_findings([])
    rest = html_parts.render_omitted(len(by_file) - FILES, "files with findings are")
    body = f"{html_parts.render_tiles(tiles)}<h3>Files</h3>{table}{rest}{found.render_rules(findings)}"
    return _render_page(
        title,
        ReportSection("overview", "Overview", findings, body),
        sections,
        charts.format_count(len(sections), "file"),
    )


def _render_page(title: str, overview: ReportSection, sections: Sequence[ReportSection], counted: str) -> str:
    script = _load_asset("report.js")
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        # The page loads nothing, and runs no script except this one, whatever the content.
        f'<meta http-equiv="Content-Security-Policy" content="{_make_content_policy(script)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html_parts.escape_text(title)}</title>",
        f"<style>\n{_load_asset('report.css')}</style>",
        "<noscript><style>section[hidden] { display: block; }</style></noscript>",
        "</head>",
        "<body>",
        '<a class="skip" href="#content">Skip to content</a>',
        _render_sidebar(title, sections, counted),
        '<main id="content" tabindex="-1">',
        "<noscript><p>The charts are drawn by JavaScript, which is off; all else is here.</p></noscript>",
        overview.to_html(hidden=False),
        *(each.to_html(hidden=True) for each in sections),
        f'<p id="keys" class="hidden">{KEYS}</p>',
        "</main>",
        f"<script>{script}</script>",
        "</body>",
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def _load_asset(name: str) -> str:
    """Return the content of a page asset next to this module."""
    from pkgutil import get_data

    data = get_data(__name__, name)
    assert data is not None
    return data.decode("utf-8")


def _make_content_policy(script: str) -> str:
    from base64 import b64encode
    from hashlib import sha256

    digest = b64encode(sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; base-uri 'none'"


def _render_sidebar(title: str, sections: Sequence[ReportSection], counted: str) -> str:
    items = [
        f'<li><a href="#{each.anchor}">{html_parts.render_state(each.findings)}<span>{each.title}</span></a></li>'
        for each in sections
    ]
    word = counted.rpartition(" ")[2]
    label = f"Filter {word if word.endswith('s') else word + 's'}"
    search = f'<input id="filter" type="search" placeholder="{label}" aria-label="{label}">' if sections[8:] else ""
    return (
        f'<nav class="side" aria-label="Sections"><h1>{html_parts.escape_text(title)}</h1>'
        '<ul><li><a href="#overview"><span class="state" aria-hidden="true">≡</span><span>Overview</span></a></li></ul>'
        f'<details open><summary>{counted}</summary>{search}<ul id="runs">{"".join(items)}</ul></details></nav>'
    )


def _make_overview(runs: Sequence[Run], others: Sequence[Run], compared: Sequence[tuple[Run, Run]]) -> ReportSection:
    findings = [finding for run in runs for finding in run["findings"]]
    total, skipped = sum(run["steps_total"] for run in runs), sum(run["skipped_total"] for run in runs)
    finals = [scale for run in runs for scale in html_parts.find_final_scales(run)]
    peaks = [run["memory"]["peak"]["total"] for run in runs if run["memory"] is not None]
    clean = sum(not run["findings"] for run in runs)
    tiles = [
        ("Runs", f"{len(runs):,}", f"{clean:,} without findings"),
        ("Findings", f"{len(findings):,}", html_parts.summarize_severities(findings) if findings else ""),
        ("Skipped steps", f"{skipped:,}", f"of {charts.format_count(total, 'step')}"),
        ("Final loss scale", html_parts.format_range(finals), "" if finals else "no GradScaler was used"),
    ]
    if peaks:
        tiles.append(("Highest memory peak", charts.describe_size(max(peaks)), ""))
    rows = [
        f'<tr><th scope="row" class="name"><a href="#run-{number}">{html_parts.make_run_title(number, run)}</a></th>'
        f"<td>{html_parts.render_state(run['findings'])} {html_parts.format_codes(run['findings'])}</td>"
        f'<td class="number">{run["steps_total"]:,}</td><td class="number">{run["skipped_total"]:,}</td>'
        f'<td class="number">{html_parts.format_range(html_parts.find_final_scales(run))}</td><td '
        f'class="number">{html_parts.format_lost_share(run)}</td>'
        f'<td class="number">{html_parts.format_peak(run)}</td></tr>'
        for number, run in enumerate(runs, 1)
    ]
    head = ("Run", "Findings", ">Steps", ">Skipped", ">Final scale", ">Lost without scaling", ">Memory peak")
    body = (
        html_parts.render_table("Runs", head, rows, "full") if runs else '<p class="missing">No run was recorded.</p>'
    )
    body = (
        f"{html_parts.render_tiles(tiles)}<h3>Runs</h3>{body}{_render_comparisons(others, compared)}"
        f"{found.render_rules(findings)}"
    )
    return ReportSection("overview", "Overview", findings, body)


def _render_comparisons(others: Sequence[Run], compared: Sequence[tuple[Run, Run]]) -> str:
    if not others:
        return ""
    links = "".join(
        f'<li><a href="#compare-{number}">{html_parts.escape_text(now["title"])} beside '
        f"{html_parts.escape_text(other['title'])}</a></li>"
        for number, (now, other) in enumerate(compared, 1)
    )
    said = f"<ul>{links}</ul>" if links else '<p class="missing">No two runs of the same title.</p>'
    return f"<h3>Compared</h3>{said}"


def _make_run_section(number: int, run: Run, limit: int) -> ReportSection:
    """Return the section of a run. Charts are drawn when first shown."""
    ident = f"run-{number}"
    finals = html_parts.find_final_scales(run)
    tiles = [
        (
            "Findings",
            f"{len(run['findings']):,}",
            html_parts.summarize_severities(run["findings"]) if run["findings"] else "",
        ),
        ("Skipped steps", f"{run['skipped_total']:,}", f"of {charts.format_count(run['steps_total'], 'step')}"),
        ("Final loss scale", html_parts.format_range(finals), "" if finals else "no GradScaler was used"),
    ]
    if run["numerics"] is not None and run["numerics"]["samples"]:
        tiles.append(
            ("Lost without scaling", html_parts.format_lost_share(run), "of non-zero gradient values, in float16")
        )
    if run["memory"] is not None:
        budget = run["memory"]["budget"]
        note = f"of {charts.describe_size(budget)}" if budget is not None else "no budget is set"
        tiles.append(("Memory peak", charts.describe_size(run["memory"]["peak"]["total"]), note))
    where = " · ".join(
        html_parts.escape_text(each) for each in (f"torch {run['torch']}", run["device"], run["platform"])
    )
    body = (
        f'<p class="muted">{where}</p>{html_parts.render_tiles(tiles)}'
        f"<h3>Findings</h3>{found.render_findings(run['findings'], run)}{_render_advice(run)}"
        f"<h3>Steps</h3>{steps.render_section(ident, run, limit)}"
        f"<h3>Gradient magnitudes</h3>{gradients.render_section(ident, run)}"
        f"{gradients.render_headroom(run)}"
        f"<h3>Memory</h3>{memory.render_section(ident, run, limit)}"
        f"<h3>Dtypes</h3>{dtypes.render_section(run)}"
    )
    return ReportSection(ident, html_parts.make_run_title(number, run), run["findings"], body)


def _render_advice(run: Run) -> str:
    items = "".join(
        f"<li>{html_parts.render_prose(each['what'])}: {html_parts.render_prose(each['evidence'])}</li>"
        for each in run.get("advice", ())
    )
    return f"<h3>Advice</h3><ul>{items}</ul>" if items else ""
