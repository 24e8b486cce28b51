"""Two runs side by side on the page: their figures, their curves drawn into each other, and where they differ."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from ...protocol.bounded_json import parse_json
from ...protocol.regular_files import LARGEST_DOCUMENT, read_regular
from .. import charts, figures
from . import pieces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Run = Mapping[str, Any]

#: What the two runs are called in figures.
NOW, OTHER = "this run", "the other"
#: Categories of memory whose difference is smaller than this part of it are the same.
SAME = 0.001


class Unreadable(Exception):
    """A file holds no runs that could be compared with; the message is one sentence."""


def load(path: str) -> list[dict[str, Any]]:
    """The runs that a file holds, as ``Run.to_json()``, ``amp-check run --data`` have written it."""
    wrong = f"{path} holds no run: name a file of run.to_json(), or of amp-check run --data"
    try:
        held = _numbers(parse_json(read_regular(path, LARGEST_DOCUMENT).decode()))
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {(error.strerror or 'error').lower()}") from None
    except ValueError:
        raise Unreadable(wrong) from None
    runs = held.get("runs", [held]) if isinstance(held, dict) else []
    try:
        # What is not of the shape of a run cannot be compared with itself either.
        for run in runs:
            section("compare", run, run, figures.LINES)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
        raise Unreadable(wrong) from None
    if not runs:
        raise Unreadable(wrong)
    return list(runs)


_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
#: Values that are numbers, which JSON has as strings where they are not finite.
_MEASURED = frozenset({"loss", "scale_before", "scale_after", "grad_norm", "underflow"})


def _numbers(value: Any, key: str = "") -> Any:
    if isinstance(value, str) and key in _MEASURED | {"scale_history", "outputs", "products"}:
        return _NUMBERS.get(value, value)
    if isinstance(value, list):
        return [_numbers(each, key) for each in value]
    if isinstance(value, dict):
        inner = key in ("outputs", "products")
        return {name: _numbers(each, key if inner else name) for name, each in value.items()}
    return value


def pairs(runs: Sequence[Run], others: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Each run with that of the same title, and where one of each is left, these two."""
    known = {run["title"]: run for run in others}
    found = [(run, known[run["title"]]) for run in runs if run["title"] in known]
    if not found and len(runs) == 1 and len(others) == 1:
        found = [(runs[0], others[0])]
    return found


def section(ident: str, now: Run, other: Run, limit: int) -> str:
    """What two runs have in common, and what not."""
    figure = figures.steps({NOW: now, OTHER: other}, limit)
    legend = pieces.legend(
        [
            (f"{NOW}: {pieces.text(now['title'])}", "var(--line-0)"),
            (f"{OTHER}: {pieces.text(other['title'])}", "var(--line-1)"),
        ]
    )
    chart = pieces.chart(f"{ident}-steps", figure, "Optimizer steps of both runs", legend) if figure else ""
    return (
        f"{_figures(now, other)}<h3>Step by step</h3>{chart or _nothing('No optimizer step was recorded.')}"
        f"<h3>Findings that differ</h3>{_findings(now, other)}"
        f"<h3>Memory at the peak</h3>{_memory(now, other)}"
        f"<h3>Dtypes that differ</h3>{_dtypes(now, other)}"
    )


def _nothing(words: str) -> str:
    return f'<p class="missing">{words}</p>'


def _row(name: str, now: str, other: str, difference: str) -> str:
    return (
        f'<tr><th scope="row">{name}</th><td class="number">{now}</td><td class="number">{other}</td>'
        f'<td class="number">{difference}</td></tr>'
    )


def _head(what: str) -> tuple[str, ...]:
    return what, f">{NOW.capitalize()}", f">{OTHER.capitalize()}", ">Difference"


def _figures(now: Run, other: Run) -> str:
    counted: tuple[tuple[str, Callable[[Run], int]], ...] = (
        ("Findings", lambda run: len(run["findings"])),
        ("Steps", lambda run: run["steps_total"]),
        ("Skipped steps", lambda run: run["skipped_total"]),
    )
    rows = [
        _row(name, f"{count(now):,}", f"{count(other):,}", _signed(count(now) - count(other)))
        for name, count in counted
    ]
    for name, said in (
        ("Final loss scale", lambda run: pieces.span(pieces.final(run))),
        ("Last loss", _loss),
        ("Lost without scaling", pieces.lost),
        ("Memory peak", pieces.peak),
        ("torch", lambda run: pieces.text(run["torch"])),
        ("Device", lambda run: pieces.text(run["device"])),
    ):
        one, two = said(now), said(other)
        rows.append(_row(name, one, two, "the same" if one == two else "differs"))
    return pieces.table("Both runs in figures", _head("Figure"), rows)


def _signed(number: int) -> str:
    return f"{number:+,}" if number else "the same"


def _loss(run: Run) -> str:
    known = [step["loss"] for step in run["steps"] if step["loss"] is not None]
    return f"{known[-1]:.6g}" if known else pieces.ABSENT


def _findings(now: Run, other: Run) -> str:
    """Findings of one run alone, by code, file and line of source; folders may differ from machine to machine."""

    def places(run: Run) -> dict[tuple[str, str, int], Mapping[str, Any]]:
        return {(f["code"], os.path.basename(f["filename"]), f["location"]["row"]): f for f in run["findings"]}

    one, two = places(now), places(other)
    rows = [
        f'<tr><td>{where}</td><th scope="row">{pieces.text(key[0])} {pieces.text(found[key]["name"])}</th>'
        f'<td class="path">{pieces.text(key[1])}:{key[2]}</td></tr>'
        for where, found, rest in ((f"only in {NOW}", one, two), (f"only in {OTHER}", two, one))
        for key in sorted(found.keys() - rest.keys())
    ]
    if not rows:
        return f"<p>None: {charts.plural(len(one), 'finding')} in both.</p>"
    return pieces.table("Findings that differ", ("In", "Finding", "Where"), rows[: pieces.ROWS], "tall")


def _memory(now: Run, other: Run) -> str:
    if now["memory"] is None or other["memory"] is None:
        return _nothing("Not recorded in both runs.")
    one, two = now["memory"]["peak"], other["memory"]["peak"]
    rows = [
        _row(
            f"{pieces.swatch(figures.colour(name))}{pieces.text(name)}" if name != "total" else "total",
            charts.size(one.get(name, 0)),
            charts.size(two.get(name, 0)),
            _more(one.get(name, 0), two.get(name, 0)),
        )
        for name in [*figures.order(({*one, *two}) - {"total"}), "total"]
    ]
    return pieces.table("Memory at the peak by category", _head("Category"), rows)


def _more(now: int, other: int) -> str:
    if abs(now - other) <= SAME * max(now, other):
        return "the same"
    sign = "+" if now > other else "\u2212"
    # Of something many times as large a share says nothing.
    part = f" ({sign}{charts.percent(abs(now - other) / other)})" if 0 < now < 10 * other else ""
    return f"{sign}{charts.size(abs(now - other))}{part}"


def _dtypes(now: Run, other: Run) -> str:
    if now["dtypes"] is None or other["dtypes"] is None:
        return _nothing("Not recorded in both runs.")
    rows = [
        f'<tr><th scope="row" class="name">{what} <code>{pieces.text(name or "(model)")}</code></th>'
        f"<td>{pieces.text(one)}</td><td>{pieces.text(two)}</td></tr>"
        for kind, what in (("modules", "output of"), ("parameters", "parameter"), ("gradients", "gradient of"))
        for name, one, two in _apart(now["dtypes"][kind], other["dtypes"][kind])
    ]
    if not rows:
        return "<p>None.</p>"
    head = ("What", NOW.capitalize(), OTHER.capitalize())
    rest = pieces.more(len(rows) - pieces.ROWS, "that differ are")
    return pieces.table("Dtypes that differ", head, rows[: pieces.ROWS], "full tall") + rest


def _apart(now: Mapping[str, str], other: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """What has another dtype in one run than in the other, with both."""
    for name in sorted({*now, *other}):
        one, two = now.get(name, "absent"), other.get(name, "absent")
        if one != two:
            yield name, one, two
