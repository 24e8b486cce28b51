"""Memory on the page: over time with its budget, by category, and what made most of it."""

from __future__ import annotations

from collections.abc import Mapping

from .. import charts, figures
from . import pieces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def section(ident: str, run: Mapping[str, Any], limit: int) -> str:
    memory = run["memory"]
    if memory is None:
        return pieces.missing("memory", "the bytes of parameters, gradients, activations and optimizer state over time")
    peak, budget = memory["peak"]["total"], memory["budget"]
    words = f"{charts.size(peak)} at the peak"
    if budget is not None:
        over = f"{charts.size(peak - budget)} over" if peak > budget else f"{charts.size(budget - peak)} below"
        words += f", {over} the budget of {charts.size(budget)}"
    words += f". Counted on {pieces.text(memory['device'])}: {pieces.text(memory['how'])}."
    state = ' class="error"' if budget is not None and peak > budget else ""
    figure = figures.memory(memory, limit)
    label = "Memory by category over the moments of the run"
    chart = pieces.chart(f"{ident}-memory", figure, label) if figure else ""
    rows = []
    for name, count in charts.categories(memory):
        share = count / peak if peak else 0.0
        rows.append(
            f'<tr><th scope="row">{pieces.swatch(figures.colour(name))}{pieces.text(name)}</th>'
            f'<td class="number" title="{count:,} bytes">{charts.size(count)}</td>'
            f'<td class="number">{charts.percent(share)}</td><td><div class="bar">'
            f'<span style="width:{min(share, 1) * 100:.2f}%;background:{figures.colour(name)}"></span></div></td></tr>'
        )
    head = ("Category", ">At the peak", ">Of the total", "Share")
    table = pieces.table("The peak by category", head, rows) if rows else ""
    return f"<p{state}>{words}</p>{chart}{table}{_makers(memory)}"


def _makers(memory: Mapping[str, Any]) -> str:
    """What made most of what there was at the peak: ops, modules and parameters, by their names."""
    rows = [
        f'<tr><th scope="row" class="name"><code>{pieces.text(name)}</code></th>'
        f"<td>{pieces.swatch(figures.colour(category))}{pieces.text(category)}</td>"
        f'<td class="number" title="{count:,} bytes">{charts.size(count)}</td></tr>'
        for category, name, count in memory.get("contributors", ())
    ]
    if not rows:
        return ""
    head = ("Made by", "Category", ">At the peak")
    return f"<h4>What made most of the peak</h4>{pieces.table('What made most of the peak', head, rows, 'tall')}"
