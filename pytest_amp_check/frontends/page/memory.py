"""Memory on the page: over time with the budget, by category, and the largest contributors."""

from __future__ import annotations

from collections.abc import Mapping

from .. import charts, figures
from . import html_parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def render_section(ident: str, run: Mapping[str, Any], limit: int) -> str:
    memory = run["memory"]
    if memory is None:
        what = "the bytes of parameters, gradients, activations and optimizer state over time"
        return html_parts.render_not_recorded("memory", what, "--memory")
    peak, budget = memory["peak"]["total"], memory["budget"]
    words = f"{charts.describe_size(peak)} at the peak"
    if budget is not None:
        over = (
            f"{charts.describe_size(peak - budget)} over"
            if peak > budget
            else f"{charts.describe_size(budget - peak)} below"
        )
        words += f", {over} the budget of {charts.describe_size(budget)}"
    words += f". Counted on {html_parts.escape_text(memory['device'])}: {html_parts.escape_text(memory['how'])}."
    state = ' class="error"' if budget is not None and peak > budget else ""
    figure = figures.make_memory_figure(memory, limit)
    label = "Memory by category over the moments of the run"
    chart = html_parts.render_chart(f"{ident}-memory", figure, label) if figure else ""
    rows = []
    for name, count in charts.rank_peak_categories(memory):
        share = count / peak if peak else 0.0
        rows.append(
            f"<tr><th "
            f'scope="row">{html_parts.render_swatch(figures.choose_color(name))}{html_parts.escape_text(name)}</th>'
            f'<td class="number" title="{count:,} bytes">{charts.describe_size(count)}</td>'
            f'<td class="number">{charts.format_percent(share)}</td><td><div class="bar">'
            f"<span "
            f'style="width:{min(share, 1) * 100:.2f}%;background:{figures.choose_color(name)}"></span></div></td></tr>'
        )
    head = ("Category", ">At the peak", ">Of the total", "Share")
    table = html_parts.render_table("The peak by category", head, rows) if rows else ""
    return f"<p{state}>{words}</p>{chart}{table}{_render_contributors(memory)}"


def _render_contributors(memory: Mapping[str, Any]) -> str:
    """Render the largest contributors to the peak: ops, modules and parameters, by name."""
    rows = [
        f'<tr><th scope="row" class="name"><code>{html_parts.escape_text(name)}</code></th>'
        f"<td>{html_parts.render_swatch(figures.choose_color(category))}{html_parts.escape_text(category)}</td>"
        f'<td class="number" title="{count:,} bytes">{charts.describe_size(count)}</td></tr>'
        for category, name, count in memory.get("contributors", ())
    ]
    if not rows:
        return ""
    head = ("Made by", "Category", ">At the peak")
    return (
        f"<h4>What made most of the "
        f"peak</h4>{html_parts.render_table('What made most of the peak', head, rows, 'tall')}"
    )
