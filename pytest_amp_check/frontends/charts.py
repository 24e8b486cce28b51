"""Terminal charts of a run in a few lines: loss scale, memory, underflow and dtypes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence

from . import finding_text, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

    from .printable import Line

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
#: Width in columns of the labels, and maximum width of a sparkline and of a bar.
LABEL, SPARK, BAR = 10, 60, 40
#: Maximum number of modules in the lists of underflow and headroom.
WORST = 5
#: Largest finite float16 number, and the ratio to a value below which the value is listed.
MOST, NEAR = 65504, 64


class _BlockCharacters:
    """Block characters of charts."""

    def __init__(self, levels: str, full: str, rest: str) -> None:
        self.levels = levels
        self.full_block = full
        self.empty_block = rest


UNICODE = _BlockCharacters("▁▂▃▄▅▆▇█", "█", "░")
ASCII = _BlockCharacters("_.-:=+*#", "#", ".")
SKIP = "x"


def find_encoding(stream: TextIO | None) -> str | None:
    """Return the encoding of an output for :func:`render_charts`, or None for an output with ASCII only."""
    return None if stream is None or os.environ.get("TERM") == "dumb" else stream.encoding


def _choose_blocks(encoding: str | None) -> _BlockCharacters:
    """Return Unicode blocks if the encoding supports them, else ASCII."""
    try:
        f"{UNICODE.levels}{UNICODE.full_block}{UNICODE.empty_block}".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def render_charts(run: Mapping[str, Any], width: int, encoding: str | None = "utf-8") -> list[Line]:
    """Return the charts of one run in the format of ``Run.as_dict()``, in lines of about ``width`` columns.

    Long names may exceed the width. Data that was not recorded has no line. ``encoding`` is the encoding of the output.
    """
    blocks = _choose_blocks(encoding)
    return [
        *_render_scale(run, width, blocks),
        *_render_memory(run, width, blocks),
        *_render_underflow(run, width),
        *_render_headroom(run, width),
        *_render_dtypes(run, width),
    ]


def render_run(run: Mapping[str, Any], width: int, encoding: str | None) -> list[Line]:
    """Return the terminal output of one run: charts and advice."""
    advice: list[Line] = [
        [("advice: ", "dim"), (printable.make_printable(f"{each['what']}: {each['evidence']}"), "")]
        for each in run.get("advice", ())
    ]
    return [*render_charts(run, width, encoding), *advice]


def describe_size(count: int) -> str:
    """Return bytes in a fitting unit, as in assertion messages: ``1.21 GiB``."""
    from ..protocol.byte_sizes import format_size

    return format_size(count)


def find_unit(largest: float) -> tuple[int, str]:
    """Return the bytes of the best unit for a number of bytes, and the name of the unit."""
    power = 0
    while power < len(UNITS) - 1 and largest >= 1024 ** (power + 1):
        power += 1
    return 1024**power, UNITS[power]


def format_scale(value: float) -> str:
    """Return a loss scale as text: short numbers in full, large powers of two as a power."""
    if abs(value) < 2**24 and value == int(value):
        return str(int(value))
    mantissa, exponent = math.frexp(value)
    return f"2^{exponent - 1}" if mantissa == 0.5 and exponent > 1 else f"{value:.6g}"


def format_percent(share: float) -> str:
    """Return a share in percent. A nonzero share is never shown as zero, and an incomplete share never as 100 %."""
    value = share * 100
    if 0 < value < 0.05:
        return "<0.1 %"
    if 99.95 <= value < 100:
        return ">99.9 %"
    return f"{value:.0f} %" if value in (0, 100) else f"{value:.1f} %"


def format_count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def collect_scales(run: Mapping[str, Any]) -> dict[str, list[tuple[int, float]]]:
    """Return, for each scaler, the scale of each step and the scale after the last step."""
    found: dict[str, list[tuple[int, float]]] = {}
    last: dict[str, tuple[int, float]] = {}
    for step in run["steps"]:
        name, before, after = step["scaler"], step["scale_before"], step["scale_after"]
        if name is None or before is None:
            continue
        found.setdefault(name, []).append((step["index"], before))
        last[name] = (step["index"] + 1, before if after is None else after)
    for name, point in last.items():
        found[name].append(point)
    if len(found) == 1:
        # Dropped steps of a bounded record are still in the history of scale changes.
        for points in found.values():
            points[:0] = [(index, scale) for index, scale in run["scale_history"] if index < points[0][0]]
    return found


def rank_lost_parameters(run: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return the share of each parameter's gradient that fp16 loses without scaling, largest first."""
    shares = [(name, each["lost"]) for name, each in run["numerics"]["parameters"].items()]
    return sorted(shares, key=lambda pair: (-pair[1], pair[0]))


def rank_lost_modules(run: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Return the share of each module's gradients that float16 loses, without and with scaling, largest first.

    A module is the direct owner of parameters; the model itself is "".
    """
    modules: dict[str, list[Mapping[str, Any]]] = {}
    for name, each in run["numerics"]["parameters"].items():
        modules.setdefault(name.rpartition(".")[0], []).append(each)
    shares = [
        (
            name,
            _compute_lost_share(each["before"] for each in held),
            _compute_lost_share(each["after"] for each in held),
        )
        for name, held in modules.items()
    ]
    return sorted(shares, key=lambda share: (-share[1], -share[2], share[0]))


def _compute_lost_share(counts: Iterable[Mapping[str, int]]) -> float:
    lost = whole = 0
    for each in counts:
        lost += each["lost"] + each["flushed"]
        whole += each["lost"] + each["flushed"] + each["subnormal"] + each["normal"] + each["above"]
    return lost / whole if whole else 0.0


def rank_peak_categories(memory: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the memory categories at the peak, largest first."""
    return sorted(
        ((name, count) for name, count in memory["peak"].items() if name != "total"),
        key=lambda pair: (-pair[1], pair[0]),
    )


def count_dtypes(dtypes: Iterable[str]) -> list[tuple[str, int]]:
    """Return the number of occurrences of each dtype, most frequent first; ``float16, float32`` counts for both."""
    found: dict[str, int] = {}
    for each in dtypes:
        for dtype in filter(None, each.split(", ")):
            found[dtype] = found.get(dtype, 0) + 1
    return sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))


def _render_scale(run: Mapping[str, Any], width: int, blocks: _BlockCharacters) -> list[Line]:
    total = run["steps_total"]
    if not total:
        return [[_make_label("scale"), ("no optimizer step was recorded", "dim")]]
    series = collect_scales(run)
    if not series:
        return [[_make_label("scale"), (f"no step was scaled, {format_count(total, 'step')}", "")]]
    shown: list[Line] = []
    for name, points in series.items():
        own = [step for step in run["steps"] if step["scaler"] == name]
        # The totals include dropped steps, but not by scaler.
        steps = total if len(series) == 1 else len(own)
        skipped = run["skipped_total"] if len(series) == 1 else sum(step["skipped"] for step in own)
        first, last = format_scale(points[0][1]), format_scale(points[-1][1])
        start: Line = [_make_label("scale")]
        if len(series) > 1:
            start.append((f"{printable.make_printable(name)}: ", "path"))
        start.append((f"{first} ", ""))
        end: Line = [
            (f" {last}, ", ""),
            (f"{skipped:,} of {format_count(steps, 'step')} skipped", "mark" if skipped else ""),
        ]
        room = width - sum(finding_text._count_columns(piece) for piece, _ in [*start, *end])
        cells = _make_sparkline(
            points[:-1], {step["index"] for step in own if step["skipped"]}, min(room, SPARK), blocks
        )
        shown.append([*start, ("".join(level for level, _ in cells), ""), *end])
        if any(skip for _, skip in cells):
            left = " " * sum(finding_text._count_columns(piece) for piece, _ in start)
            row = "".join(SKIP if skip else " " for _, skip in cells).rstrip()
            shown.append([(left, ""), (row, "mark")])
    return shown


def _make_sparkline(
    points: Sequence[tuple[int, float]], skips: set[int], room: int, blocks: _BlockCharacters
) -> list[tuple[str, bool]]:
    """Return a level for each group of neighboring steps (the lowest scale), and True if a step was skipped."""
    count = min(len(points), max(room, 1))
    heights: list[tuple[float, bool]] = []
    for cell in range(count):
        group = points[cell * len(points) // count : (cell + 1) * len(points) // count]
        heights.append((min(_bounded_log2(scale) for _, scale in group), any(index in skips for index, _ in group)))
    low, high = min(height for height, _ in heights), max(height for height, _ in heights)
    top = len(blocks.levels) - 1
    levels = [round((height - low) / (high - low) * top) if high > low else top // 2 for height, _ in heights]
    return [(blocks.levels[level], skip) for level, (_, skip) in zip(levels, heights, strict=True)]


def _bounded_log2(scale: float) -> float:
    return math.log2(scale) if 0 < scale < math.inf else -127.0


def _render_memory(run: Mapping[str, Any], width: int, blocks: _BlockCharacters) -> list[Line]:
    memory = run["memory"]
    if memory is None:
        return []
    total, budget = memory["peak"]["total"], memory["budget"]
    rows = [(name, describe_size(count), count) for name, count in rank_peak_categories(memory)]
    whole = max(total, budget or 0, 1)
    name_width = max((len(name) for name, _, _ in rows), default=0)
    size_width = max((len(amount) for _, amount, _ in rows), default=0)
    room = max(min(width - LABEL - name_width - size_width - 2, BAR), 1)
    head: Line = [_make_label("memory"), (f"{describe_size(total)} at the peak", "")]
    if budget is not None:
        over = total > budget
        # A share above the limit must not be rounded down to 100 %.
        share = f"{total / budget * 100:.1f} %" if budget else "no memory allowed"
        state = f", {describe_size(total - budget)} over" if over else ""
        head = [
            _make_label("memory"),
            (f"{describe_size(total)} of {describe_size(budget)} ({share}{state})", "error" if over else "good"),
        ]
    head.append((f"  {printable.make_printable(memory['device'])}, {printable.make_printable(memory['how'])}", "dim"))
    shown = [head]
    for name, amount, count in rows:
        filled = _count_cells(count, whole, room)
        rest = blocks.empty_block * (room - filled) if budget is not None else ""
        shown.append(
            [
                (" " * LABEL, ""),
                (f"{name:<{name_width}} {amount:>{size_width}} ", ""),
                (blocks.full_block * filled, "command"),
                (rest, "dim"),
            ]
        )
    return shown


def _count_cells(count: int, whole: int, room: int) -> int:
    """Return the number of cells of a bar, at least one if the count is positive."""
    return max(round(count / whole * room), 1) if count else 0


def _render_underflow(run: Mapping[str, Any], width: int) -> list[Line]:
    if run["numerics"] is None:
        return []
    if not run["numerics"]["samples"]:
        return [[_make_label("underflow"), ("no gradient was seen", "dim")]]
    share = run["numerics"]["lost_without_scaling"]
    shown: list[Line] = [
        [
            _make_label("underflow"),
            (f"{format_percent(share)} of non-zero gradient values would be zero in float16 without scaling", ""),
        ]
    ]
    worst = [each for each in rank_lost_modules(run) if each[1] > 0]
    for name, before, after in worst[:WORST]:
        amount = f"{format_percent(before):>8}  "
        rest = f"  ({format_percent(after)} with it)" if after else ""
        room = width - LABEL - len(amount) - len(rest)
        shown.append(
            [(" " * LABEL, ""), (amount, "warning"), (_shorten_name(name or "the model", room), ""), (rest, "warning")]
        )
    return shown


def _render_headroom(run: Mapping[str, Any], width: int) -> list[Line]:
    """Return lines about the modules whose outputs or activation products are closest to the float16 limit."""
    known = run.get("headroom") or {}
    reached = [(float(most), name) for part in known.values() for name, most in part.items()]
    near = sorted(((most, name) for most, name in reached if most * NEAR >= MOST), key=lambda p: (-p[0], p[1]))
    if not near:
        return []
    shown: list[Line] = [
        [_make_label("headroom"), (f"float16 maximum of {MOST}, as a multiple of the largest value", "")]
    ]
    for most, name in near[:WORST]:
        times = MOST / most
        # A value close to the limit must not be rounded up to the limit.
        amount = f"{math.floor(times * 10) / 10:.1f}" if times >= 0.1 else "<0.1"
        start = f"{amount:>8}  "
        style = "error" if times < 1 else "warning"
        shown.append(
            [(" " * LABEL, ""), (start, style), (_shorten_name(name or "the model", width - LABEL - len(start)), "")]
        )
    return shown


def _shorten_name(name: str, room: int) -> str:
    """Return a name with a shortened start, because parameter names differ at the end."""
    name = printable.make_printable(name)
    room = max(room, 8)
    return name if finding_text._count_columns(name) <= room else f"...{name[3 - room :]}"


def _render_dtypes(run: Mapping[str, Any], width: int) -> list[Line]:
    dtypes = run["dtypes"]
    if dtypes is None:
        return []
    parts = [
        f"{word} " + ", ".join(f"{dtype} {count}" for dtype, count in count_dtypes(dtypes[key].values()))
        for word, key in (
            ("outputs", "modules"),
            ("parameters", "parameters"),
            ("gradients", "gradients"),
            ("optimizer state", "optimizer state"),
        )
        if dtypes[key]
    ]
    if dtypes["loss"] is not None:
        parts.append(f"loss {dtypes['loss']}")
    if not parts:
        return [[_make_label("dtypes"), ("no module was called", "dim")]]
    rows = [parts[0]]
    for part in parts[1:]:
        if LABEL + finding_text._count_columns(rows[-1]) + 2 + finding_text._count_columns(part) <= width:
            rows[-1] += f"; {part}"
        else:
            rows.append(part)
    return [
        [_make_label("dtypes") if index == 0 else (" " * LABEL, ""), (printable.make_printable(row), "")]
        for index, row in enumerate(rows)
    ]


def _make_label(word: str) -> tuple[str, str]:
    return f"{word:<{LABEL}}", "dim"
