"""Steps of a run on the page: the loss scale, gradient states, and skipped steps."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .. import charts, figures
from . import html_parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Explanations of gradient norms, by the recorded kind of norm.
NORMS = {
    "at the step": "The gradient norm is that of the gradients as the step finds them, after any clipping.",
    "before clipping": "The gradient norm is that which the program has clipped by, before it did.",
}


def render_section(ident: str, run: Mapping[str, Any], limit: int) -> str:
    total, skipped = run["steps_total"], run["skipped_total"]
    if not total:
        return '<p class="missing">No optimizer step was recorded.</p>'
    series = charts.collect_scales(run)
    sentences = [
        f"{html_parts.escape_text(name)}: {html_parts.format_scale(points[0][1])} at first, "
        f"{html_parts.format_scale(points[-1][1])} at last, "
        f"{html_parts.format_scale(min(scale for _, scale in points))} at the lowest."
        for name, points in series.items()
    ] or ["No GradScaler was used."]
    sentences.append(f"{skipped:,} of {charts.format_count(total, 'step')} skipped.")
    if any(step["grad_norm"] is not None for step in run["steps"]) and run.get("grad_norm") in NORMS:
        sentences.append(NORMS[run["grad_norm"]])
    kept = len(run["steps"])
    if kept < total:
        sentences.append(f"The record kept the last {kept:,} steps.")
    wild = [step for step in run["steps"] if step["loss"] is not None and not math.isfinite(step["loss"])]
    if wild:
        sentences.append(
            f"The loss is not finite at {charts.format_count(len(wild), 'step')}, first at {wild[0]['index']:,}."
        )
    figure = figures.make_steps_figure({"": run}, limit)
    legend = html_parts.render_legend(
        [(html_parts.escape_text(name), f"var(--line-{number % figures.LINES})") for number, name in enumerate(series)]
        if len(series) > 1
        else []
    )
    chart = html_parts.render_chart(f"{ident}-steps", figure, "Optimizer steps of the run", legend) if figure else ""
    skips = _render_skipped_steps(run, skipped)
    return f"<p>{' '.join(sentences)}</p>{chart}{_render_states(run)}{_render_scale_changes(series)}{skips}"


def _render_states(run: Mapping[str, Any]) -> str:
    """Render the gradient states as text: one row for each state sequence, with the steps."""
    state_data = run.get("states") or {"optimizers": []}
    seen: set[str] = set()
    rows = []
    for each in state_data["optimizers"]:
        spans_by_path: dict[tuple[str, ...], list[list[int]]] = {}
        for first, last, path in each["spans"]:
            spans_by_path.setdefault(tuple(path), []).append([first, last])
        for state_path, spans in sorted(spans_by_path.items(), key=lambda pair: pair[1][0][0])[: html_parts.ROWS]:
            seen.update(state_path)
            count = sum(last - first + 1 for first, last in spans)
            rows.append(
                f"<tr><th "
                f'scope="row">{html_parts.escape_text(each["name"])}</th><td>{_render_state_path(state_path)}</td>'
                f'<td class="number">{count:,}</td><td>{html_parts.format_steps(spans)}</td></tr>'
            )
    if not rows:
        return ""
    table = html_parts.render_table(
        "What the gradients went through", ("Optimizer", "States", ">Steps", "Which"), rows, "tall"
    )
    legend = html_parts.render_legend(
        [(f"{state.upper()}: {words}", colour) for state, (words, colour) in figures.STATES.items() if state in seen]
    )
    return html_parts.render_details("What the gradients went through", f"{table}{legend}")


def _render_state_path(states: tuple[str, ...]) -> str:
    chips = [
        f'<span class="chip" style="--chip:{figures.STATES[state][1]}">{html_parts.escape_text(state.upper())}</span>'
        if state in figures.STATES
        else html_parts.escape_text(state)
        for state in states
    ]
    return " → ".join(chips) or "nothing known"


def _render_scale_changes(series: Mapping[str, list[tuple[int, float]]]) -> str:
    """Render the changes of the loss scale as a table."""
    rows = []
    for name, points in series.items():
        before: float | None = None
        for index, scale in points:
            if scale != before:
                rows.append(
                    f'<tr><td class="number">{index:,}</td><td>{html_parts.escape_text(name)}</td>'
                    f'<td class="number">{html_parts.format_scale(scale)}</td></tr>'
                )
            before = scale
    if not rows:
        return ""
    table = html_parts.render_table(
        "Changes of the loss scale", (">From step", "Scaler", ">Scale"), rows[: html_parts.ROWS], "tall"
    )
    rest = html_parts.render_omitted(len(rows) - html_parts.ROWS, "are")
    return html_parts.render_details("Changes of the loss scale", f"{table}{rest}")


def _render_skipped_steps(run: Mapping[str, Any], total: int) -> str:
    steps = [step for step in run["steps"] if step["skipped"]]
    if not steps:
        return ""
    rows = [
        f'<tr><td class="number">{step["index"]:,}</td><td>{html_parts.escape_text(step["optimizer"])}</td>'
        f'<td class="number">{_format_scale_change(step)}</td><td '
        f'class="path">{html_parts.escape_text(step["site"])}</td></tr>'
        for step in steps[: html_parts.ROWS]
    ]
    table = html_parts.render_table("Skipped steps", (">Step", "Optimizer", ">Scale", "Where"), rows, "tall")
    return html_parts.render_details("Skipped steps", f"{table}{html_parts.render_omitted(total - len(rows), 'are')}")


def _format_scale_change(step: Mapping[str, Any]) -> str:
    before, after = step["scale_before"], step["scale_after"]
    if before is None:
        return html_parts.ABSENT
    return html_parts.format_scale(before) + (f" → {html_parts.format_scale(after)}" if after is not None else "")
