"""Magnitudes on the page: gradients in float16, and outputs relative to the largest float16 number."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .. import charts, figures
from . import html_parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Maximum number of modules with the largest magnitudes.
NEAREST = 30
#: Largest finite float16 number.
MOST = 65504.0
#: Bands of nonzero gradient values in float16: key of the counts, name, and color.
BANDS = (
    ("lost", "rounded to zero", "var(--memory-6)"),
    ("subnormal", "subnormal", "var(--memory-1)"),
    ("normal", "normal", "var(--memory-3)"),
    ("above", "above 65,504", "var(--memory-2)"),
)
#: Values without a magnitude that can be lost.
OTHERS = (("zero", "zero in any precision"), ("inf", "inf"), ("nan", "NaN"))


def render_section(ident: str, run: Mapping[str, Any]) -> str:
    numerics = run["numerics"]
    if numerics is None:
        return html_parts.render_not_recorded("numerics", "how large gradients are and what float16 would lose of them")
    figure = figures.make_gradients_figure(numerics)
    if figure is None:
        return '<p class="missing">No gradient was seen.</p>'
    lost = charts.format_percent(numerics["lost_without_scaling"])
    samples = charts.format_count(numerics["samples"], "step")
    words = (
        f"Without scaling, float16 would round {lost} of the non-zero gradient values to zero ({samples} looked at)."
    )
    legend = html_parts.render_legend(
        [
            ("before scaling", "var(--before)"),
            ("after scaling", "var(--after)"),
            ("rounded to zero in float16", "var(--band-lost)"),
            ("subnormal in float16", "var(--band-subnormal)"),
            ("above 65,504", "var(--band-above)"),
        ]
    )
    chart = html_parts.render_chart(f"{ident}-gradients", figure, "Gradient magnitudes by power of two", legend)
    before, after = numerics["before"], numerics["after"]
    rows = [
        f'<tr><th scope="row">{html_parts.render_swatch(colour)}{name}</th><td '
        f'class="number">{format_share(before, key)}</td>'
        f'<td class="number">{format_share(after, key)}</td></tr>'
        for key, name, colour in BANDS
    ]
    label = "Non-zero gradient values by what they are in float16"
    table = html_parts.render_table(label, ("Non-zero values, in float16", ">Before", ">After"), rows)
    counted = [
        f'<tr><th scope="row">{name}</th><td class="number">{_count_band(before, key):,}</td>'
        f'<td class="number">{_count_band(after, key):,}</td></tr>'
        for key, name in OTHERS
    ]
    rest = html_parts.render_table("Other gradient values", ("Other values, counted", ">Before", ">After"), counted)
    parameters = _render_parameters(numerics["parameters"], numerics)
    return f'<p>{words}</p>{chart}<div class="beside">{table}{rest}</div>{_render_modules(run)}{parameters}'


def _count_band(counts: Mapping[str, Any], key: str) -> int:
    """Return the number of values in a band. Zeros created by float16 count as rounded to zero."""
    flushed = {"zero": -1, "lost": 1}.get(key, 0)
    number: int = counts[key] + flushed * counts["flushed"]
    return number


def format_share(counts: Mapping[str, Any], key: str) -> str:
    total = sum(_count_band(counts, band) for band, _, _ in BANDS)
    return charts.format_percent(_count_band(counts, key) / total) if total else html_parts.ABSENT


def _render_bands(counts: Mapping[str, Any], when: str) -> str:
    """Render a bar with the share of values in each band."""
    total = sum(_count_band(counts, band) for band, _, _ in BANDS)
    if not total:
        return ""
    words = f"{when}: " + ", ".join(
        f"{name} {format_share(counts, band)}" for band, name, _ in BANDS if _count_band(counts, band)
    )
    spans = "".join(
        f'<span style="width:{_count_band(counts, band) / total * 100:.2f}%;background:{colour}"></span>'
        for band, _, colour in BANDS
        if _count_band(counts, band)
    )
    return f'<div class="bar" role="img" aria-label="{words}" title="{words}">{spans}</div>'


def _render_modules(run: Mapping[str, Any]) -> str:
    """Render the modules with the largest loss in float16, without or with scaling."""
    worst = [each for each in charts.rank_lost_modules(run) if each[1] or each[2]]
    if not worst:
        return ""
    rows = [
        f'<tr><th scope="row" class="name"><code>{html_parts.escape_text(name or "(model)")}</code></th>'
        f'<td class="number">{charts.format_percent(before)}</td><td '
        f'class="number">{charts.format_percent(after)}</td></tr>'
        for name, before, after in worst[:NEAREST]
    ]
    head = ("Module", ">Rounded to zero without scaling", ">With scaling")
    rest = html_parts.render_omitted(len(worst) - NEAREST, "modules that lose less are")
    table = html_parts.render_table("Worst modules by underflow", head, rows, "tall")
    return html_parts.render_details("Worst modules by underflow", f"{table}{rest}")


def _render_parameters(parameters: Mapping[str, Any], numerics: Mapping[str, Any]) -> str:
    names = [name for name, _ in charts.rank_lost_parameters({"numerics": numerics})]
    if not names:
        return ""
    rows = []
    for name in names[: html_parts.ROWS]:
        before, after = parameters[name]["before"], parameters[name]["after"]
        rows.append(
            f'<tr><th scope="row" class="name"><code>{html_parts.escape_text(name)}</code></th>'
            f'<td class="number">{format_share(before, "lost")} → {format_share(after, "lost")}</td>'
            f"<td>{_render_bands(before, 'before scaling')}{_render_bands(after, 'after scaling')}</td>"
            f'<td class="number">{format_share(before, "subnormal")} → {format_share(after, "subnormal")}</td>'
            f'<td class="number">{format_share(after, "above")}</td>'
            f'<td class="number">{_count_band(before, "zero"):,}</td>'
            f'<td class="number">{after["inf"] + after["nan"]:,}</td></tr>'
        )
    head = (
        "Parameter",
        ">Rounded to zero without → with scaling",
        "Bands without and with scaling",
        ">Subnormal",
        ">Above 65,504",
        ">Zeros",
        ">inf, NaN",
    )
    legend = html_parts.render_legend([(name, colour) for _, name, colour in BANDS])
    table = html_parts.render_table("Parameters by underflow", head, rows, "full tall")
    rest = html_parts.render_omitted(len(names) - html_parts.ROWS, "parameters that lose less are")
    return html_parts.render_details("Parameters by underflow", f"{table}{legend}{rest}")


def render_headroom(run: Mapping[str, Any]) -> str:
    """Render outputs and products relative to the largest float16 number, and gradients relative to the smallest."""
    found = run.get("headroom")
    if found is None:
        return ""
    parts = [
        (what, name, greatest)
        for what, magnitudes in (("output", found["outputs"]), ("product", found["products"]))
        for name, greatest in magnitudes.items()
    ]
    # Non-finite values come first.
    parts.sort(key=lambda part: (math.isfinite(part[2]), -part[2] if math.isfinite(part[2]) else 0.0))
    rows = [
        f'<tr><th scope="row" class="name"><code>{html_parts.escape_text(name)}</code></th><td>{what}</td>'
        f'<td class="number">{greatest:.4g}</td><td class="number">{_format_of_maximum(greatest)}</td>'
        f'<td class="number">{_format_doublings(greatest)}</td><td>{_render_fill(greatest)}</td></tr>'
        for what, name, greatest in parts[:NEAREST]
    ]
    smallest = min((int(exponent) for exponent in run["numerics"]["before"]["histogram"]), default=None)
    words = (
        ""
        if smallest is None
        else f"<p>The smallest gradient without scaling is about {2.0**smallest:.2g}; float16 holds 6e-8 at least.</p>"
    )
    if not rows:
        # No module was called.
        return words
    columns = ("Module", "What", ">Greatest", ">Of 65,504", ">Doublings left", "Of what float16 holds")
    label = "Greatest magnitudes beside the most that float16 holds"
    return (
        f"<h3>Headroom</h3>{words}{html_parts.render_table(label, columns, rows, 'full tall')}"
        f"{html_parts.render_omitted(len(parts) - NEAREST, 'that stay farther away are')}"
    )


def _format_of_maximum(greatest: float) -> str:
    return charts.format_percent(greatest / MOST) if math.isfinite(greatest) else "not finite"


def _format_doublings(greatest: float) -> str:
    """Return the number of times that a magnitude can double before float16 overflows."""
    if not math.isfinite(greatest):
        return "none"
    return f"{math.log2(MOST / greatest):.1f}" if greatest > 0 else html_parts.ABSENT


def _render_fill(greatest: float) -> str:
    """Render a bar over the powers of two in float16, from 1."""
    part = 1.0 if not math.isfinite(greatest) else math.log2(max(greatest, 1.0)) / math.log2(MOST)
    colour = "var(--memory-6)" if part > 15 / 16 else "var(--memory-1)" if part > 12 / 16 else "var(--memory-3)"
    return f'<div class="bar"><span style="width:{min(part, 1.0) * 100:.1f}%;background:{colour}"></span></div>'
