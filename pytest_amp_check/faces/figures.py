"""Figures of a run for plotly, as plain data: the loss scale, gradient magnitudes, and memory over time.

Colours are names of the style sheet's variables (``var(--line-0)``): the page puts in those of the reader's scheme.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from . import charts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Figure = dict[str, Any]

#: float16: what is at most half its smallest number becomes zero; its smallest normal and its largest number.
LOST, NORMAL, LARGEST = -25, -14, 16
#: More moments than this leave no room for lines between them.
CROWDED = 200
#: Colours that series of one kind have before they repeat.
LINES = 6
CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer state",
    "activations",
    "inputs",
    "temporaries",
    "autocast cache",
    "workspace",
    "other",
)
#: Pixels of the tallest panel, of each further one, and of what lies between two.
TALL, SHORT, GAP = 190, 110, 44
#: Pixels around the panels: above, below, left, right.
ABOVE, BELOW, LEFT, RIGHT = 26, 44, 58, 14

#: What all figures share; plotly lays a figure's own layout over it.
TEMPLATE: Figure = {
    "layout": {
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "var(--muted)"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"t": ABOVE, "b": BELOW, "l": LEFT, "r": RIGHT},
        "showlegend": False,
        "hovermode": "x unified",
        "hoverlabel": {
            "bgcolor": "var(--surface)",
            "bordercolor": "var(--border)",
            "font": {"color": "var(--text)", "size": 12},
            "align": "left",
        },
        "dragmode": "zoom",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "var(--muted)", "activecolor": "var(--text)"},
        "xaxis": {
            "gridcolor": "var(--grid)",
            "linecolor": "var(--border)",
            "zeroline": False,
            "ticks": "outside",
            "ticklen": 5,
            "tickcolor": "var(--border)",
        },
        "yaxis": {"gridcolor": "var(--grid)", "linecolor": "var(--border)", "zeroline": False, "ticks": ""},
    }
}


def plain(text: str) -> str:
    """A name that plotly shows as it is: it reads a part of HTML, links among it."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def decimate(values: Sequence[float | None], limit: int) -> list[int]:
    """Indices of at most ``limit`` values that look like all of them: extremes and gaps stay, as do both ends."""
    count = len(values)
    if count <= limit:
        return list(range(count))
    groups = max((limit - 2) // 3, 1)
    kept = {0, count - 1}
    for group in range(groups):
        indices = range(1 + group * (count - 2) // groups, 1 + (group + 1) * (count - 2) // groups)
        known = [(value, index) for index in indices if (value := values[index]) is not None]
        if known:
            kept |= {min(known)[1], max(known)[1]}
        kept.update([index for index in indices if values[index] is None][:1])
    return sorted(kept)


def thin(items: Sequence[Any], limit: int) -> list[Any]:
    """At most ``limit`` of the items, evenly spread."""
    return [items[n * len(items) // limit] for n in range(limit)] if len(items) > limit else list(items)


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _power(value: float) -> float | None:
    return math.log2(value) if 0 < value < math.inf else None


def steps(run: Mapping[str, Any], limit: int) -> Figure | None:
    """The loss scale with its skips and, where they are known, the loss and the gradient norm below it."""
    panels = [
        panel
        for panel in (
            _scale(run, limit),
            _values(run, "loss", "loss", limit),
            _values(run, "grad_norm", "gradient norm", limit),
        )
        if panel is not None
    ]
    if not panels:
        return None
    heights = [TALL, *[SHORT] * (len(panels) - 1)]
    inside = sum(heights) + GAP * (len(panels) - 1)
    data: list[Figure] = []
    layout: Figure = {
        "height": inside + ABOVE + BELOW,
        "hoversubplots": "axis",
        "annotations": [],
        "xaxis": {
            "title": {"text": "optimizer step"},
            "hoverformat": "d",
            "tickformat": ",d",
            "unifiedhovertitle": {"text": "step %{x}"},
            "anchor": "y" if len(panels) == 1 else f"y{len(panels)}",
        },
    }
    top = float(inside)
    for number, (panel, height) in enumerate(zip(panels, heights, strict=True), 1):
        suffix = "" if number == 1 else str(number)
        bottom = max(top - height, 0)
        data += [{**trace, "xaxis": "x", "yaxis": f"y{suffix}"} for trace in panel["data"]]
        layout[f"yaxis{suffix}"] = {**panel["axis"], "domain": [bottom / inside, top / inside], "anchor": "x"}
        layout["annotations"].append(_heading(panel["title"], top / inside))
        top = bottom - GAP
    return {"data": data, "layout": layout}


def _heading(title: str, y: float) -> Figure:
    return {
        "text": title,
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": y,
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": 5,
        "showarrow": False,
        "font": {"color": "var(--text)"},
    }


def _scale(run: Mapping[str, Any], limit: int) -> Figure | None:
    series = charts.scales(run)
    if not series:
        return None
    data: list[Figure] = []
    low, high = math.inf, -math.inf
    for number, (name, points) in enumerate(series.items()):
        heights = [_power(scale) for _, scale in points]
        kept = decimate(heights, limit)
        shown = [height for height in heights if height is not None]
        if shown:
            low, high = min(low, *shown), max(high, *shown)
        title = plain(name) if len(series) > 1 else "scale"
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": title,
                "x": [points[n][0] for n in kept],
                "y": [_short(heights[n]) for n in kept],
                "customdata": [charts.number(points[n][1]) for n in kept],
                "hovertemplate": f"{title} %{{customdata}}<extra></extra>",
                "line": {"shape": "hv", "width": 2, "color": f"var(--line-{number % LINES})"},
            }
        )
        skips = thin(
            [step for step in run["steps"] if step["skipped"] and step["scaler"] == name and step["scale_before"]],
            limit,
        )
        if skips:
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": "skipped",
                    "x": [step["index"] for step in skips],
                    "y": [_short(_power(step["scale_before"])) for step in skips],
                    "customdata": [_skip(step) for step in skips],
                    "hovertemplate": "%{customdata}<extra></extra>",
                    "marker": {
                        "symbol": "x",
                        "size": 8,
                        "color": "var(--bad)",
                        "line": {"color": "var(--background)", "width": 1},
                    },
                }
            )
    if low > high:
        low, high = 0.0, 16.0
    bottom, top = math.floor(low) - 1, math.ceil(high) + 1
    axis = {
        "range": [bottom, top],
        "dtick": max(math.ceil((top - bottom) / 8), 1),
        "tick0": 0,
        "tickformat": "d",
        "tickprefix": "2<sup>",
        "ticksuffix": "</sup>",
    }
    return {"title": "loss scale (log2)", "data": data, "axis": axis}


def _skip(step: Mapping[str, Any]) -> str:
    after = step["scale_after"]
    change = f", scale {charts.number(step['scale_before'])} → {charts.number(after)}" if after is not None else ""
    cause = "inf or NaN in the gradient" if step["found_inf"] else "skipped"
    return f"<b>{plain(step['optimizer'])} skipped</b>: {cause}{change}<br>{plain(step['site'])}"


def _values(run: Mapping[str, Any], key: str, title: str, limit: int) -> Figure | None:
    """A panel of one value of each step, a line for each optimizer; steps without a finite value are marked below."""
    found: dict[str, list[tuple[int, float]]] = {}
    for step in run["steps"]:
        if step[key] is not None:
            found.setdefault(step["optimizer"], []).append((step["index"], step[key]))
    if not found:
        return None
    data: list[Figure] = []
    known: list[float] = []
    wild: list[tuple[int, float]] = []
    for number, (name, points) in enumerate(found.items()):
        values = [finite(value) for _, value in points]
        known += [value for value in values if value is not None]
        wild += [point for point in points if finite(point[1]) is None]
        kept = decimate(values, limit)
        words = f"{title} ({plain(name)})" if len(found) > 1 else title
        data.append(
            {
                "type": "scatter",
                "mode": "lines" if len(kept) > 1 else "markers",
                "name": words,
                "x": [points[n][0] for n in kept],
                "y": [_short(values[n]) for n in kept],
                "hovertemplate": f"{words} %{{y:.5g}}<extra></extra>",
                "line": {"width": 1.5, "color": f"var(--line-{number % LINES})"},
            }
        )
    axis: Figure = {"nticks": 5, "exponentformat": "power"}
    if key == "grad_norm" and known and 0 < min(known) * 30 < max(known):
        axis = {"type": "log", "nticks": 4, "tickformat": "~g"}
    if wild:
        floor = min(known, default=0.0)
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"{title} not finite",
                "x": [index for index, _ in thin(wild, limit)],
                "y": [_short(floor)] * min(len(wild), limit),
                "customdata": [str(value) for _, value in thin(wild, limit)],
                "hovertemplate": f"{title} %{{customdata}}<extra></extra>",
                "marker": {"symbol": "triangle-down", "size": 8, "color": "var(--bad)"},
            }
        )
    return {"title": title, "data": data, "axis": axis}


def _short(value: float | None) -> float | None:
    """A coordinate with the digits that a screen can show: half the size of a file is digits."""
    return None if value is None else float(f"{value:.6g}")


def gradients(numerics: Mapping[str, Any]) -> Figure | None:
    """The shares of gradient values by their exponent, before and after scaling; zero, inf and NaN have own columns."""
    counts = [("before", "before scaling", numerics["before"]), ("after", "after scaling", numerics["after"])]
    exponents = [int(exponent) for _, _, each in counts for exponent, count in each["histogram"].items() if count]
    data: list[Figure] = []
    smallest = 1.0
    for word, title, each in counts:
        total = values(each)
        if not total:
            continue
        bins = sorted((int(exponent), count) for exponent, count in each["histogram"].items() if count)
        ends = {"x2": [("0", each["zero"])], "x3": [("inf", each["inf"]), ("NaN", each["nan"])]}
        look = {"type": "bar", "name": title, "yaxis": "y", "marker": {"color": f"var(--{word})"}}
        data.append(
            {
                **look,
                "xaxis": "x",
                # A bin reaches from its power of two to the next.
                "x": [exponent + 0.5 for exponent, _ in bins],
                "y": [_short(count / total * 100) for _, count in bins],
                "customdata": [_bin(exponent, count) for exponent, count in bins],
                "hovertemplate": f"{title}: %{{y:.3g}} % %{{customdata}}<extra></extra>",
                "width": 1,
                "opacity": 0.62,
            }
        )
        for axis, end in ends.items():
            data.append(
                {
                    **look,
                    "xaxis": axis,
                    "x": [label for label, _ in end],
                    "y": [_short(count / total * 100) if count else None for _, count in end],
                    "customdata": [f"{count:,}" for _, count in end],
                    "hovertemplate": f"{title}: %{{y:.3g}} % are %{{x}} (%{{customdata}})<extra></extra>",
                    "opacity": 0.62,
                }
            )
        present = [count for _, count in bins] + [count for end in ends.values() for _, count in end if count]
        smallest = min(smallest, min(present) / total)
    if not data:
        return None
    left, right = min([*exponents, LOST - 5]) - 1, max([*exponents, LARGEST + 3]) + 2
    bands = [("lost", left, LOST), ("subnormal", LOST, NORMAL), ("above", LARGEST, right)]
    borders = ((LOST, "2<sup>\u221225</sup>"), (NORMAL, "2<sup>\u221214</sup>"), (LARGEST, "65504"))
    columns: Figure = {"type": "category", "anchor": "y", "tickangle": 0, "fixedrange": True, "showgrid": False}
    layout: Figure = {
        "height": 320,
        "barmode": "overlay",
        "bargap": 0.25,
        "hovermode": "x",
        "xaxis": {
            "domain": [0.1, 0.78],
            "range": [left, right],
            "title": {"text": "magnitude of a gradient value"},
            "tickprefix": "2<sup>",
            "ticksuffix": "</sup>",
            "tickformat": "d",
            "dtick": 10,
            "tick0": 0,
            "showgrid": False,
            "minallowed": -150,
            "maxallowed": 150,
        },
        "xaxis2": {**columns, "domain": [0.0, 0.07]},
        "xaxis3": {**columns, "domain": [0.81, 1.0]},
        "yaxis": {
            "type": "log",
            "anchor": "x2",
            "range": [max(math.log10(smallest * 100), -7) - 0.3, 2.05],
            "ticksuffix": " %",
            "dtick": 1,
            "exponentformat": "none",
            "tickformat": "~r",
        },
        "shapes": [
            {
                "type": "rect",
                "layer": "below",
                "xref": "x",
                "yref": "paper",
                "x0": start,
                "x1": end,
                "y0": 0,
                "y1": 1,
                "line": {"width": 0},
                "fillcolor": f"var(--band-{band})",
            }
            for band, start, end in bands
        ],
        "annotations": [
            {
                "text": label,
                "xref": "x",
                "yref": "paper",
                "x": place,
                "y": 1,
                "yanchor": "top",
                "showarrow": False,
                "font": {"size": 11},
            }
            for place, label in borders
        ],
    }
    return {"data": data, "layout": layout}


def _bin(exponent: int, count: int) -> str:
    return f"from 2<sup>{exponent}</sup> to 2<sup>{exponent + 1}</sup> ({count:,}, {band(exponent)})"


def band(exponent: int) -> str:
    """What float16 makes of a value of this exponent."""
    if exponent < LOST:
        return "rounded to zero in float16"
    if exponent < NORMAL:
        return "subnormal in float16"
    return "normal in float16" if exponent < LARGEST else "above float16's largest number"


def values(counts: Mapping[str, Any]) -> int:
    """How many values were counted."""
    return sum([*counts["histogram"].values(), counts["zero"], counts["inf"], counts["nan"]])


def order(names: Iterable[str]) -> list[str]:
    """Categories of memory from the one that stays to the one that comes and goes."""
    found = set(names)
    return [name for name in CATEGORIES if name in found] + sorted(found.difference(CATEGORIES))


def colour(category: str) -> str:
    return f"var(--memory-{CATEGORIES.index(category) if category in CATEGORIES else len(CATEGORIES) - 1})"


def memory(memory: Mapping[str, Any], limit: int) -> Figure | None:
    """Bytes of each category over the moments of a run, stacked, with the budget as a line."""
    timeline, budget = memory["timeline"], memory["budget"]
    if not timeline:
        return None
    totals = [sum(moment["bytes"].values()) for moment in timeline]
    kept = decimate(totals, limit)
    # Each moment reaches to the next, and the last one needs an end.
    ends = [*kept, len(timeline)]
    kept.append(kept[-1])
    crowded = len(ends) > CROWDED
    highest = max(*totals, budget or 0, 1)
    factor, unit = charts.unit_for(highest)
    data: list[Figure] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": plain(category),
            "stackgroup": "memory",
            "x": ends,
            "y": [_short(timeline[n]["bytes"].get(category, 0) / factor) for n in kept],
            "hovertemplate": f"{plain(category)} %{{y:.3~f}} {unit}<extra></extra>",
            "line": {"shape": "hv", "width": 0 if crowded else 0.5, "color": "var(--background)"},
            "fillcolor": colour(category),
        }
        for category in order(name for moment in timeline for name in moment["bytes"])
    ]
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "total",
            "x": ends,
            "y": [_short(totals[n] / factor) for n in kept],
            "customdata": [plain(timeline[n]["label"]) for n in kept],
            "hovertemplate": f"<b>total %{{y:.3~f}} {unit}</b><br>%{{customdata}}<extra></extra>",
            "line": {"shape": "hv", "width": 0 if crowded else 1, "color": "var(--text)"},
        }
    )
    layout: Figure = {
        "height": 320,
        "xaxis": {
            "title": {"text": "moment"},
            "tickformat": ",d",
            "nticks": 8,
            "unifiedhovertitle": {"text": "moment %{x}"},
        },
        "yaxis": {"range": [0, highest / factor * 1.08], "ticksuffix": f" {unit}", "nticks": 6},
    }
    if budget is not None:
        layout["shapes"] = [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "yref": "y",
                "y0": budget / factor,
                "y1": budget / factor,
                "line": {"color": "var(--bad)", "width": 2, "dash": "dash"},
            }
        ]
        layout["annotations"] = [
            {
                "text": f"budget {charts.size(budget)}",
                "xref": "paper",
                "x": 1,
                "xanchor": "right",
                "yref": "y",
                "y": budget / factor,
                "yanchor": "bottom",
                "showarrow": False,
                "font": {"color": "var(--bad)"},
            }
        ]
    return {"data": data, "layout": layout}
