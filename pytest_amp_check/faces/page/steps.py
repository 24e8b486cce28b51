"""The steps of a run on the page: the loss scale, what the gradients went through, and what was skipped."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .. import charts, figures
from . import pieces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: What the norms are norms of, by what a run says of them.
NORMS = {
    "at the step": "The gradient norm is that of the gradients as the step finds them, after any clipping.",
    "before clipping": "The gradient norm is that which the program has clipped by, before it did.",
}


def section(ident: str, run: Mapping[str, Any], limit: int) -> str:
    total, skipped = run["steps_total"], run["skipped_total"]
    if not total:
        return '<p class="missing">No optimizer step was recorded.</p>'
    series = charts.scales(run)
    sentences = [
        f"{pieces.text(name)}: {pieces.scale(points[0][1])} at first, {pieces.scale(points[-1][1])} at last, "
        f"{pieces.scale(min(scale for _, scale in points))} at the lowest."
        for name, points in series.items()
    ] or ["No GradScaler was used."]
    sentences.append(f"{skipped:,} of {charts.plural(total, 'step')} skipped.")
    if any(step["grad_norm"] is not None for step in run["steps"]) and run.get("grad_norm") in NORMS:
        sentences.append(NORMS[run["grad_norm"]])
    kept = len(run["steps"])
    if kept < total:
        sentences.append(f"The record kept the last {kept:,} steps.")
    wild = [step for step in run["steps"] if step["loss"] is not None and not math.isfinite(step["loss"])]
    if wild:
        sentences.append(
            f"The loss is not finite at {charts.plural(len(wild), 'step')}, first at {wild[0]['index']:,}."
        )
    figure = figures.steps({"": run}, limit)
    legend = pieces.legend(
        [(pieces.text(name), f"var(--line-{number % figures.LINES})") for number, name in enumerate(series)]
        if len(series) > 1
        else []
    )
    chart = pieces.chart(f"{ident}-steps", figure, "Optimizer steps of the run", legend) if figure else ""
    return f"<p>{' '.join(sentences)}</p>{chart}{_states(run)}{_changes(series)}{_skipped(run, skipped)}"


def _states(run: Mapping[str, Any]) -> str:
    """What the gradients went through, in words: a row for each way, with the steps that went it."""
    told = run.get("states") or {"optimizers": []}
    seen: set[str] = set()
    rows = []
    for each in told["optimizers"]:
        ways: dict[tuple[str, ...], list[list[int]]] = {}
        for first, last, path in each["spans"]:
            ways.setdefault(tuple(path), []).append([first, last])
        for way, spans in sorted(ways.items(), key=lambda pair: pair[1][0][0])[: pieces.ROWS]:
            seen.update(way)
            count = sum(last - first + 1 for first, last in spans)
            rows.append(
                f'<tr><th scope="row">{pieces.text(each["name"])}</th><td>{_way(way)}</td>'
                f'<td class="number">{count:,}</td><td>{pieces.steps(spans)}</td></tr>'
            )
    if not rows:
        return ""
    table = pieces.table("What the gradients went through", ("Optimizer", "States", ">Steps", "Which"), rows, "tall")
    legend = pieces.legend(
        [(f"{state.upper()}: {words}", colour) for state, (words, colour) in figures.STATES.items() if state in seen]
    )
    return f"<h4>What the gradients went through</h4>{table}{legend}"


def _way(states: tuple[str, ...]) -> str:
    chips = [
        f'<span class="chip" style="--chip:{figures.STATES[state][1]}">{pieces.text(state.upper())}</span>'
        if state in figures.STATES
        else pieces.text(state)
        for state in states
    ]
    return " → ".join(chips) or "nothing known"


def _changes(series: Mapping[str, list[tuple[int, float]]]) -> str:
    """The loss scale in words, where it changes."""
    rows = []
    for name, points in series.items():
        before: float | None = None
        for index, scale in points:
            if scale != before:
                rows.append(
                    f'<tr><td class="number">{index:,}</td><td>{pieces.text(name)}</td>'
                    f'<td class="number">{pieces.scale(scale)}</td></tr>'
                )
            before = scale
    if not rows:
        return ""
    table = pieces.table("Changes of the loss scale", (">From step", "Scaler", ">Scale"), rows[: pieces.ROWS], "tall")
    return (
        f"<details><summary>Changes of the loss scale</summary>{table}"
        f"{pieces.more(len(rows) - pieces.ROWS, 'are')}</details>"
    )


def _skipped(run: Mapping[str, Any], total: int) -> str:
    steps = [step for step in run["steps"] if step["skipped"]]
    if not steps:
        return ""
    rows = [
        f'<tr><td class="number">{step["index"]:,}</td><td>{pieces.text(step["optimizer"])}</td>'
        f'<td class="number">{_change(step)}</td><td class="path">{pieces.text(step["site"])}</td></tr>'
        for step in steps[: pieces.ROWS]
    ]
    table = pieces.table("Skipped steps", (">Step", "Optimizer", ">Scale", "Where"), rows, "tall")
    return f"<details><summary>Skipped steps</summary>{table}{pieces.more(total - len(rows), 'are')}</details>"


def _change(step: Mapping[str, Any]) -> str:
    before, after = step["scale_before"], step["scale_after"]
    if before is None:
        return pieces.ABSENT
    return pieces.scale(before) + (f" → {pieces.scale(after)}" if after is not None else "")
