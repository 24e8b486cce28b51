"""Figures of a run as plain data for the page: loss scale, gradient states, magnitudes, and memory.

A figure has panels over one axis ``x``. Traces of a panel are lines, steps, stacks, bars, points or rows of states,
each with ``x``, ``y`` and optional ``words`` for each point. Colors are variables of the style sheet
(``var(--line-0)``), so that they follow the reader's color scheme.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence

from . import charts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Figure = dict[str, Any]

#: Powers of two of float16: values up to half the smallest number become zero; smallest normal number; overflow limit.
LOST, NORMAL, LARGEST = -25, -14, 16
#: Number of colors for one kind of series before they repeat.
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
#: Height in pixels of the tallest panel, of each further panel, and of a row of states.
TALL, SHORT, ROW = 110, 90, 24


def decimate(values: Sequence[float | None], limit: int) -> list[int]:
    """Return the indices of at most ``limit`` values with the same appearance. Extremes, gaps and both ends stay."""
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


def finite_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _log2_or_none(value: float) -> float | None:
    return math.log2(value) if 0 < value < math.inf else None


def _round_coordinate(value: float | None) -> float | None:
    """Return a coordinate with the digits that a screen can show, because digits are half of the file size."""
    if value is None:
        return None
    short = float(f"{value:.5g}")
    return int(short) if short == int(short) else short


# Steps.


def make_steps_figure(runs: Mapping[str, Mapping[str, Any]], limit: int) -> Figure | None:
    """Return the figure of loss scale with skips, gradient states, loss and gradient norm, as far as recorded.

    None if empty.

    ``runs`` are drawn over each other, by name; the name of a single run is "".
    """
    panels = [
        _make_scale_panel(runs, limit),
        *(panel for run in runs.values() for panel in make_state_panels(run) if len(runs) == 1),
        _make_values_panel(runs, "loss", "loss", limit),
        _make_values_panel(runs, "grad_norm", _make_norm_title(runs), limit),
    ]
    shown = [panel for panel in panels if panel is not None]
    known = [step["index"] for run in runs.values() for step in run["steps"]]
    if not shown or not known:
        return None
    total = max(run["steps_total"] for run in runs.values())
    starts = [x for panel in shown for trace in panel["data"] for x in trace.get("x", ())[:1]]
    axis = {"title": "optimizer step", "word": "step", "low": min([*known, *starts]), "high": total, "last": total - 1}
    return {"x": axis, "panels": shown}


def _make_norm_title(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the title of the gradient norm, with the kind of norm if equal in all runs."""
    found = {run.get("grad_norm") for run in runs.values()}
    when = found.pop() if len(found) == 1 else None
    return f"gradient norm {when}, unscaled" if when else "gradient norm, unscaled"


def _add_run_name(run: str, name: str) -> str:
    return f"{name} ({run})" if run else name


def _make_scale_panel(runs: Mapping[str, Mapping[str, Any]], limit: int) -> Figure | None:
    data: list[Figure] = []
    low, high = math.inf, -math.inf
    number = 0
    for title, run in runs.items():
        series = charts.collect_scales(run)
        for name, points in series.items():
            heights = [_log2_or_none(scale) for _, scale in points]
            kept = _find_changes(heights)
            if len(kept) > limit:
                kept = decimate(heights, limit)
            shown = [height for height in heights if height is not None]
            low, high = min([low, *shown]), max([high, *shown])
            trace = {
                "kind": "step",
                "name": _add_run_name(title, name if len(series) > 1 else "scale"),
                "x": [points[n][0] for n in kept],
                "y": [_round_coordinate(heights[n]) for n in kept],
                "colour": f"var(--line-{number % LINES})",
            }
            if any(height is None or height != int(height) for height in heights):
                trace["words"] = [charts.format_scale(points[n][1]) for n in kept]
            data.append(trace)
            data += _make_skip_traces(run, name, title)
            number += 1
    if not data:
        return None
    if low > high:
        low, high = 0.0, 16.0
    axis = {"kind": "power", "low": math.floor(low) - 1, "high": math.ceil(high) + 1}
    return {"title": "loss scale", "height": TALL, "y": axis, "data": data}


def _find_changes(values: Sequence[float | None]) -> list[int]:
    """Return the indices of changed values, and both ends, which are sufficient to draw a step line."""
    last = len(values) - 1
    return [n for n, value in enumerate(values) if n in (0, last) or value != values[n - 1]]


def _make_skip_traces(run: Mapping[str, Any], scaler: str, title: str) -> list[Figure]:
    """Return the traces of all skipped steps of a scaler. Equal descriptions are stored once."""
    skips = [step for step in run["steps"] if step["skipped"] and step["scaler"] == scaler and step["scale_before"]]
    if not skips:
        return []
    said: dict[str, int] = {}
    numbers = [said.setdefault(_describe_skip(step, title), len(said)) for step in skips]
    return [
        {
            "kind": "points",
            "mark": "cross",
            "name": _add_run_name(title, "skipped"),
            "x": [step["index"] for step in skips],
            "y": [_round_coordinate(_log2_or_none(step["scale_before"])) for step in skips],
            "said": list(said),
            "words": numbers,
            "colour": "var(--bad)",
        }
    ]


def _describe_skip(step: Mapping[str, Any], title: str) -> str:
    after = step["scale_after"]
    change = (
        f", scale {charts.format_scale(step['scale_before'])} → {charts.format_scale(after)}"
        if after is not None
        else ""
    )
    name = _add_run_name(title, step["optimizer"] + " skipped")
    return f"{name}: inf or NaN in the gradient{change}, {step['site']}"


def _find_ys(data: list[Figure]) -> list[float]:
    """Return the finite vertical coordinates of traces."""
    return [y for trace in data for y in trace["y"] if y is not None]


def _make_values_panel(runs: Mapping[str, Mapping[str, Any]], key: str, title: str, limit: int) -> Figure | None:
    """Return a panel of one value of each step, with a line for each optimizer. Non-finite values are marked below."""
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for run, run_data in runs.items():
        for step in run_data["steps"]:
            if step[key] is not None:
                found.setdefault((run, step["optimizer"]), []).append((step["index"], step[key]))
    if not found:
        return None
    word = "gradient norm" if key == "grad_norm" else title
    several = len({name for _, name in found}) > 1
    data: list[Figure] = []
    known: list[float] = []
    wild: list[tuple[int, float]] = []
    for number, ((run, name), points) in enumerate(found.items()):
        values = [finite_or_none(value) for _, value in points]
        known += [value for value in values if value is not None]
        wild += [point for point in points if finite_or_none(point[1]) is None]
        kept = decimate(values, limit)
        data.append(
            {
                "kind": "line",
                "name": _add_run_name(run, f"{word} ({name})" if several else word),
                "x": [points[n][0] for n in kept],
                "y": [_round_coordinate(values[n]) for n in kept],
                "colour": f"var(--line-{number % LINES})",
            }
        )
    low, high = min(known, default=0.0), max(known, default=1.0)
    kind = "log" if key == "grad_norm" and 0 < low * 30 < high else "linear"
    # Rounding moves points of an almost constant line, such as clipped norms, out of the range of the exact values.
    low, high = min([low, *_find_ys(data)]), max([high, *_find_ys(data)])
    # Over the whole height, the rounding of such a line would look like a cliff between ticks of the same words.
    room = max(abs(low), abs(high)) / 10
    if kind == "linear" and low < high < low + room / 100:
        low, high = low - room, high + room
    if wild:
        said = sorted({str(value) for _, value in wild})
        data.append(
            {
                "kind": "points",
                "mark": "down",
                "name": f"{word} not finite",
                "x": [index for index, _ in wild],
                "y": [_round_coordinate(low)] * len(wild),
                "said": [f"{word} {value}" for value in said],
                "words": [said.index(str(value)) for _, value in wild],
                "colour": "var(--bad)",
            }
        )
    return {"title": title, "height": SHORT, "y": {"kind": kind, "low": low, "high": high}, "data": data}


# Gradient states.

#: Descriptions and colors of gradient states, in the order of a step.
STATES = {
    "unknown": ("modified by unanalyzed code", "var(--line-4)"),
    "clean": ("none, or zero", "var(--line-4)"),
    "fed": ("a scaled loss may have reached them", "var(--before)"),
    "exposed": ("an unscaled loss may have reached them", "var(--line-5)"),
    "shared": ("a loss of another optimizer may have reached them", "var(--before)"),
    "either": ("scaled or not: both may have reached them", "var(--bad)"),
    "raw": ("of a loss that was not scaled", "var(--line-5)"),
    "scaled": ("multiplied by the loss scale", "var(--before)"),
    "unscaled": ("divided by the loss scale again", "var(--after)"),
    "divided": ("divided by the loss scale by hand", "var(--after)"),
    "borrowed": ("unscaled through another optimizer", "var(--line-3)"),
    "mixed": ("scaled and unscaled ones added up", "var(--bad)"),
    "uneven": ("scaled by two scalers and added up", "var(--bad)"),
    "outdated": ("scaled by a scale that has changed since", "var(--bad)"),
    "aged": ("scaled, perhaps, by a scale that has changed since", "var(--bad)"),
    "lapsed": ("unscaled, but update() reset the scaler state", "var(--bad)"),
    "early": ("unscaled too early, with scaled ones added", "var(--bad)"),
    "stepped": ("used by scaler.step()", "var(--good)"),
    "spent": ("used by optimizer.step()", "var(--good)"),
}


def make_state_panels(run: Mapping[str, Any]) -> list[Figure]:
    """Return a panel for each optimizer, with a row for each gradient state by step, and the findings."""
    state_data = run.get("states")
    if state_data is None:
        return []
    panels = []
    for number, each in enumerate(state_data["optimizers"]):
        mine = [violation for violation in match_violations(run) if (violation["optimizer"] or 0) == number]
        seen = {state for *_, path in each["spans"] for state in path} | {violation["state"] for violation in mine}
        rows = [state for state in STATES if state in seen]
        if not rows:
            continue
        several = len(state_data["optimizers"]) > 1
        title = "state of the gradients" + (f" of {each['name']}" if several else "")
        data: list[Figure] = [
            {
                "kind": "states",
                "name": title,
                "colours": [STATES[state][1] for state in rows],
                "spans": [[first, last, [rows.index(state) for state in path]] for first, last, path in each["spans"]],
            }
        ]
        data += [_make_finding_trace(violation, rows, each["spans"]) for violation in mine if violation["spans"]]
        panels.append(
            {
                "title": title,
                "height": ROW * len(rows) + 8,
                "y": {"kind": "rows", "rows": [state.upper() for state in rows], "low": -0.5, "high": len(rows) - 0.5},
                "data": data,
            }
        )
    return panels


def match_violations(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the recorded violations of the findings that the page shows, in order."""
    known = (run.get("states") or {}).get("violations", ())
    found = []
    for finding in run["findings"]:
        for violation in known:
            same = violation["code"] == finding["code"] and violation["row"] == finding["location"]["row"]
            # Paths of findings are shown relative to the working folder.
            if same and violation["filename"].endswith(finding["filename"]) and violation not in found:
                found.append(violation)
    return found


def _make_finding_trace(violation: Mapping[str, Any], rows: Sequence[str], spans: Sequence[Sequence[Any]]) -> Figure:
    """Return the marks of a finding, at the first and last step of each range of steps."""
    steps = sorted({step for span in violation["spans"] for step in span})
    # A finding without gradient state is placed above all states.
    row = rows.index(violation["state"]) if violation["state"] in rows else -0.5
    place = [_position_in_step(step, violation["state"], spans) for step in steps]
    return {
        "kind": "points",
        "mark": "finding",
        "name": violation["code"],
        "x": [round(step + part, 3) for step, part in zip(steps, place, strict=True)],
        "y": [row] * len(steps),
        "said": [f"{violation['code']} at {os.path.basename(violation['filename'])}:{violation['row']}"],
        "words": [0] * len(steps),
        "spans": [[first, last + 1] for first, last in violation["spans"] if first < last],
        "colour": "var(--bad)",
    }


def _position_in_step(step: int, state: str, spans: Sequence[Sequence[Any]]) -> float:
    """Return the fraction of a step in the middle of a gradient state."""
    path: Sequence[str] = next((path for first, last, path in spans if first <= step <= last), ())
    return (path.index(state) + 0.5) / len(path) if state in path else 0.5


# Gradient magnitudes.


def make_gradients_figure(numerics: Mapping[str, Any]) -> Figure | None:
    """Return the figure of gradient exponents, before and after scaling. Zero, inf and NaN have separate columns."""
    counts = [("before", "before scaling", numerics["before"]), ("after", "after scaling", numerics["after"])]
    exponents = [int(exponent) for _, _, each in counts for exponent, count in each["histogram"].items() if count]
    left, right = min([*exponents, LOST - 5]) - 1, max([*exponents, LARGEST + 3]) + 2
    # The distance leaves room for the names, also on a phone.
    ends = {"zero": left - 3, "inf": right + 4, "nan": right + 12}
    columns = {key: x for key, x in ends.items() if any(each[key] for _, _, each in counts)}
    data: list[Figure] = []
    smallest, largest = 1.0, 0.0
    for word, title, each in counts:
        total = count_values(each)
        if not total:
            continue
        bars = [
            # A bin extends from its power of two to the next.
            (int(exponent) + 0.5, count, _describe_bin(int(exponent), count))
            for exponent, count in each["histogram"].items()
            if count
        ]
        bars += [(x, each[key], f"{_ENDS[key]} ({each[key]:,})") for key, x in columns.items() if each[key]]
        bars.sort()
        data.append(
            {
                "kind": "bars",
                "name": title,
                "x": [x for x, _, _ in bars],
                "y": [_round_coordinate(count / total * 100) for _, count, _ in bars],
                "words": [f"{_format_share(count / total)} {said}" for _, count, said in bars],
                "colour": f"var(--{word})",
            }
        )
        smallest = min(smallest, *(count / total for _, count, _ in bars))
        largest = max(largest, *(count / total for _, count, _ in bars))
    if not data:
        return None
    bands = [("lost", left, LOST), ("subnormal", LOST, NORMAL), ("above", LARGEST, right)]
    return {
        "x": {
            "title": "magnitude of a gradient value",
            "kind": "power",
            "low": min([left, *columns.values()]) - 2,
            "high": max([right, *columns.values()]) + 2,
            "from": left,
            "to": right,
            "columns": [[x, _ENDS[key]] for key, x in columns.items()],
        },
        "panels": [
            {
                "title": "share of the values",
                "height": 180,
                "y": {
                    "kind": "log",
                    "low": max(smallest * 100, 1e-7) / 2,
                    "high": 150.0,
                    "unit": " %",
                    "most": largest * 100,
                },
                "bands": [{"from": start, "to": end, "colour": f"var(--band-{band})"} for band, start, end in bands],
                "marks": [[LOST, "2⁻²⁵"], [NORMAL, "2⁻¹⁴"], [LARGEST, "65,504"]],
                "data": data,
            }
        ],
    }


_ENDS = {"zero": "0", "inf": "inf", "nan": "NaN"}


def _format_share(share: float) -> str:
    return f"{share * 100:.3g} %"


def _describe_bin(exponent: int, count: int) -> str:
    return f"from {format_power(exponent)} to {format_power(exponent + 1)} ({count:,}, {describe_band(exponent)})"


def format_power(exponent: int) -> str:
    """Return a power of two as text: 2⁻²⁵."""
    return "2" + str(exponent).translate(_RAISED)


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def describe_band(exponent: int) -> str:
    """Return a description of values of an exponent in float16."""
    if exponent < LOST:
        return "rounded to zero in float16"
    if exponent < NORMAL:
        return "subnormal in float16"
    return "normal in float16" if exponent < LARGEST else "above float16's largest number"


def count_values(counts: Mapping[str, Any]) -> int:
    """Return the number of counted values."""
    return sum([*counts["histogram"].values(), counts["zero"], counts["inf"], counts["nan"]])


# Memory.


def order_categories(names: Iterable[str]) -> list[str]:
    """Return memory categories in order, permanent categories first."""
    found = set(names)
    return [name for name in CATEGORIES if name in found] + sorted(found.difference(CATEGORIES))


def choose_color(category: str) -> str:
    return f"var(--memory-{CATEGORIES.index(category) if category in CATEGORIES else len(CATEGORIES) - 1})"


def make_memory_figure(memory: Mapping[str, Any], limit: int) -> Figure | None:
    """Return the figure of bytes of each category over time, stacked, with the limit as a line. None if empty."""
    timeline, budget = memory["timeline"], memory["budget"]
    if not timeline:
        return None
    totals = [sum(moment["bytes"].values()) for moment in timeline]
    kept = decimate(totals, limit)
    highest = max(*totals, budget or 0, 1)
    factor, unit = charts.find_unit(highest)
    said: dict[str, int] = {}
    data: list[Figure] = [
        {
            "kind": "stack",
            "name": category,
            "y": [_round_coordinate(timeline[n]["bytes"].get(category, 0) / factor) for n in kept],
            "colour": choose_color(category),
        }
        for category in order_categories(name for moment in timeline for name in moment["bytes"])
    ]
    data.append(
        {
            "kind": "total",
            "name": "total",
            "y": [_round_coordinate(totals[n] / factor) for n in kept],
            "words": [said.setdefault(timeline[n]["label"], len(said)) for n in kept],
            "said": list(said),
            "colour": "var(--text)",
        }
    )
    panel: Figure = {
        "title": "memory",
        "height": 250,
        "y": {"kind": "linear", "low": 0, "high": highest / factor * 1.08, "unit": f" {unit}"},
        "data": data,
    }
    if budget is not None:
        panel["lines"] = [{"y": _round_coordinate(budget / factor), "text": f"budget {charts.describe_size(budget)}"}]
    axis = {"title": "moment", "word": "moment", "low": 0, "high": len(timeline), "last": len(timeline) - 1}
    # Each moment extends to the next moment. All traces share the positions.
    return {"x": axis, "places": kept, "panels": [panel]}
