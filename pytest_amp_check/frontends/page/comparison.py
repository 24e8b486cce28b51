"""Comparison of two runs on the page: figures, overlaid curves, and differences."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from ...protocol.bounded_json import parse_json
from ...protocol.regular_files import LARGEST_DOCUMENT, read_regular
from .. import charts, figures
from . import html_parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Run = Mapping[str, Any]

#: Names of the two runs in figures.
NOW, OTHER = "this run", "the other"
#: Relative difference below which two memory categories count as equal.
SAME = 0.001


class NotComparable(Exception):
    """Error for a file without comparable runs; the message is one sentence."""


def load_runs(path: str) -> list[dict[str, Any]]:
    """Load the runs of a file written by ``Run.to_json()`` or ``amp-check run --data``.

    Raise :class:`NotComparable` if the file cannot be read or contains no run.
    """
    wrong = f"{path} holds no run: name a file of run.to_json(), or of amp-check run --data"
    try:
        held = _restore_numbers(parse_json(read_regular(path, LARGEST_DOCUMENT).decode()))
    except OSError as error:
        raise NotComparable(f"{path} cannot be read: {(error.strerror or 'error').lower()}") from None
    except ValueError:
        raise NotComparable(wrong) from None
    runs = held.get("runs", [held]) if isinstance(held, dict) else []
    try:
        # A trial comparison with itself detects data without the structure of a run.
        for run in runs:
            render_section("compare", run, run, figures.LINES)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
        raise NotComparable(wrong) from None
    if not runs:
        raise NotComparable(wrong)
    return list(runs)


_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
#: Keys of numeric values that JSON stores as strings if not finite.
_MEASURED = frozenset({"loss", "scale_before", "scale_after", "grad_norm", "underflow"})


def _restore_numbers(value: Any, key: str = "") -> Any:
    if isinstance(value, str) and key in _MEASURED | {"scale_history", "outputs", "products"}:
        return _NUMBERS.get(value, value)
    if isinstance(value, list):
        return [_restore_numbers(each, key) for each in value]
    if isinstance(value, dict):
        inner = key in ("outputs", "products")
        return {name: _restore_numbers(each, key if inner else name) for name, each in value.items()}
    return value


def pair_runs(runs: Sequence[Run], others: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Pair runs of equal titles. If no titles match and each side has one run, pair these two runs."""
    known = {run["title"]: run for run in others}
    found = [(run, known[run["title"]]) for run in runs if run["title"] in known]
    if not found and len(runs) == 1 and len(others) == 1:
        found = [(runs[0], others[0])]
    return found


def render_section(ident: str, now: Run, other: Run, limit: int) -> str:
    """Render the comparison of two runs."""
    figure = figures.make_steps_figure({NOW: now, OTHER: other}, limit)
    legend = html_parts.render_legend(
        [
            (f"{NOW}: {html_parts.escape_text(now['title'])}", "var(--line-0)"),
            (f"{OTHER}: {html_parts.escape_text(other['title'])}", "var(--line-1)"),
        ]
    )
    chart = html_parts.render_chart(f"{ident}-steps", figure, "Optimizer steps of both runs", legend) if figure else ""
    return (
        f"{_render_figures(now, other)}<h3>Step by "
        f"step</h3>{chart or _render_missing('No optimizer step was recorded.')}"
        f"<h3>Findings that differ</h3>{_render_findings(now, other)}"
        f"<h3>Memory at the peak</h3>{_render_memory(now, other)}"
        f"<h3>Dtypes that differ</h3>{_render_dtypes(now, other)}"
    )


def _render_missing(words: str) -> str:
    return f'<p class="missing">{words}</p>'


def _render_row(name: str, now: str, other: str, difference: str) -> str:
    return (
        f'<tr><th scope="row">{name}</th><td class="number">{now}</td><td class="number">{other}</td>'
        f'<td class="number">{difference}</td></tr>'
    )


def _make_table_head(what: str) -> tuple[str, ...]:
    return what, f">{NOW.capitalize()}", f">{OTHER.capitalize()}", ">Difference"


def _render_figures(now: Run, other: Run) -> str:
    counted: tuple[tuple[str, Callable[[Run], int]], ...] = (
        ("Findings", lambda run: len(run["findings"])),
        ("Steps", lambda run: run["steps_total"]),
        ("Skipped steps", lambda run: run["skipped_total"]),
    )
    rows = [
        _render_row(name, f"{count(now):,}", f"{count(other):,}", _format_difference(count(now) - count(other)))
        for name, count in counted
    ]
    for name, said in (
        ("Final loss scale", lambda run: html_parts.format_range(html_parts.find_final_scales(run))),
        ("Last loss", _format_last_loss),
        ("Lost without scaling", html_parts.format_lost_share),
        ("Memory peak", html_parts.format_peak),
        ("torch", lambda run: html_parts.escape_text(run["torch"])),
        ("Device", lambda run: html_parts.escape_text(run["device"])),
    ):
        one, two = said(now), said(other)
        rows.append(_render_row(name, one, two, "the same" if one == two else "differs"))
    return html_parts.render_table("Both runs in figures", _make_table_head("Figure"), rows)


def _format_difference(number: int) -> str:
    return f"{number:+,}" if number else "the same"


def _format_last_loss(run: Run) -> str:
    known = [step["loss"] for step in run["steps"] if step["loss"] is not None]
    return f"{known[-1]:.6g}" if known else html_parts.ABSENT


def _render_findings(now: Run, other: Run) -> str:
    """Render the findings of only one run, matched by code, file name and line.

    The folder is ignored, because folders may differ between machines.
    """

    def index_findings(run: Run) -> dict[tuple[str, str, int], Mapping[str, Any]]:
        return {(f["code"], os.path.basename(f["filename"]), f["location"]["row"]): f for f in run["findings"]}

    one, two = index_findings(now), index_findings(other)
    rows = [
        f'<tr><td>{where}</td><th scope="row">{html_parts.escape_text(key[0])} '
        f"{html_parts.escape_text(found[key]['name'])}</th>"
        f'<td class="path">{html_parts.escape_text(key[1])}:{key[2]}</td></tr>'
        for where, found, rest in ((f"only in {NOW}", one, two), (f"only in {OTHER}", two, one))
        for key in sorted(found.keys() - rest.keys())
    ]
    if not rows:
        return f"<p>None: {charts.format_count(len(one), 'finding')} in both.</p>"
    return html_parts.render_table("Findings that differ", ("In", "Finding", "Where"), rows[: html_parts.ROWS], "tall")


def _render_memory(now: Run, other: Run) -> str:
    if now["memory"] is None or other["memory"] is None:
        return _render_missing("Not recorded in both runs.")
    one, two = now["memory"]["peak"], other["memory"]["peak"]
    rows = [
        _render_row(
            f"{html_parts.render_swatch(figures.choose_color(name))}{html_parts.escape_text(name)}"
            if name != "total"
            else "total",
            charts.describe_size(one.get(name, 0)),
            charts.describe_size(two.get(name, 0)),
            _format_size_difference(one.get(name, 0), two.get(name, 0)),
        )
        for name in [*figures.order_categories(({*one, *two}) - {"total"}), "total"]
    ]
    return html_parts.render_table("Memory at the peak by category", _make_table_head("Category"), rows)


def _format_size_difference(now: int, other: int) -> str:
    if abs(now - other) <= SAME * max(now, other):
        return "the same"
    sign = "+" if now > other else "\u2212"
    # A percentage of a much larger value has no meaning.
    part = f" ({sign}{charts.format_percent(abs(now - other) / other)})" if 0 < now < 10 * other else ""
    return f"{sign}{charts.describe_size(abs(now - other))}{part}"


def _render_dtypes(now: Run, other: Run) -> str:
    if now["dtypes"] is None or other["dtypes"] is None:
        return _render_missing("Not recorded in both runs.")
    rows = [
        f'<tr><th scope="row" class="name">{what} <code>{html_parts.escape_text(name or "(model)")}</code></th>'
        f"<td>{html_parts.escape_text(one)}</td><td>{html_parts.escape_text(two)}</td></tr>"
        for kind, what in (("modules", "output of"), ("parameters", "parameter"), ("gradients", "gradient of"))
        for name, one, two in _find_differing(now["dtypes"][kind], other["dtypes"][kind])
    ]
    if not rows:
        return "<p>None.</p>"
    head = ("What", NOW.capitalize(), OTHER.capitalize())
    rest = html_parts.render_omitted(len(rows) - html_parts.ROWS, "that differ are")
    return html_parts.render_table("Dtypes that differ", head, rows[: html_parts.ROWS], "full tall") + rest


def _find_differing(now: Mapping[str, str], other: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the names with different dtypes in the two runs, and both dtypes."""
    for name in sorted({*now, *other}):
        one, two = now.get(name, "absent"), other.get(name, "absent")
        if one != two:
            yield name, one, two
