"""Dtype map of the page: the module tree with output, parameter and gradient dtypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .. import charts, module_tree
from . import html_parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Maximum number of initially open module rows.
OPEN_ROWS = 80
DTYPES = ("float16", "bfloat16", "float32", "float64")


def render_section(run: Mapping[str, Any]) -> str:
    dtypes = run["dtypes"]
    if dtypes is None:
        return html_parts.render_not_recorded("dtypes", "the dtype of every module's output, parameters and gradients")
    root = module_tree.build_tree(dtypes)
    facts = [
        words
        + " "
        + render_chips({dtype: [charts.format_count(number, noun)] for dtype, number in charts.count_dtypes(values)})
        for words, noun, values in (
            ("Loss", "loss", [dtypes["loss"]] if dtypes["loss"] is not None else []),
            ("Optimizer state", "tensor", list(dtypes["optimizer state"].values())),
        )
        if values
    ]
    lead = f"<p>{' · '.join(facts)}</p>" if facts else ""
    if not dtypes["modules"] and not dtypes["parameters"]:
        return f'{lead}<p class="missing">No module was called.</p>'
    total = root.count_rows()
    left = [html_parts.ROWS]
    branches = _render_branch("(model)", root, left, depth=0, depth_open=99 if total <= OPEN_ROWS else 2)
    columns = "<span>Output</span><span>Parameters</span><span>Gradients</span>"
    head = f'<div class="row head leaf"><span class="name">Module</span>{columns}</div>'
    rest = html_parts.render_omitted(total - html_parts.ROWS, "modules are")
    return f'{lead}{head}<ul class="tree">{branches}</ul>{rest}{_render_ops(dtypes["ops"])}'


def _render_branch(name: str, module: module_tree.ModuleNode, left: list[int], depth: int, depth_open: int) -> str:
    if left[0] <= 0:
        return ""
    left[0] -= 1
    output: dict[str, list[str]] = {dtype: [] for dtype in module.output_dtypes.split(", ") if dtype}
    cells = "".join(
        f'<span data-label="{label}">{render_chips(found)}</span>'
        for label, found in (
            ("out", output),
            ("param", module.names_by_dtype("parameters")),
            ("grad", module.names_by_dtype("gradients")),
        )
    )
    row = f'<span class="name"><code>{html_parts.escape_text(name)}</code></span>{cells}'
    children = "".join(
        _render_branch(child, below, left, depth + 1, depth_open) for child, below in module.fold_children()
    )
    if not children:
        return f'<li><div class="row leaf">{row}</div></li>'
    state = " open" if depth < depth_open else ""
    return f'<li><details{state}><summary class="row">{row}</summary><ul>{children}</ul></details></li>'


def render_chips(found: Mapping[str, Sequence[str]]) -> str:
    """Render dtypes, with the names of the owners as tooltip."""
    made = []
    for dtype, names in found.items():
        shown = ", ".join(names[:12]) + (f" and {len(names) - 12:,} more" if names[12:] else "")
        look = dtype if dtype in DTYPES else "otherdtype"
        title = f' title="{html_parts.escape_text(shown)}"' if shown else ""
        made.append(f'<span class="chip {look}"{title}>{html_parts.escape_text(dtype)}</span>')
    return " ".join(made)


def _render_ops(ops: Mapping[str, Mapping[str, int]] | None) -> str:
    if not ops:
        return ""
    rows = [
        f'<tr><th scope="row"><code>{html_parts.escape_text(op)}</code></th><td>'
        + " ".join(
            f"{render_chips({dtype: []})} {count:,}"
            for dtype, count in sorted(found.items(), key=lambda pair: -pair[1])
        )
        + "</td></tr>"
        for op, found in sorted(ops.items())[: html_parts.ROWS]
    ]
    table = html_parts.render_table("Operators by dtype", ("Operator", "Calls by dtype"), rows, "tall")
    rest = html_parts.render_omitted(len(ops) - html_parts.ROWS, "operators are")
    return f"<details><summary>Operators</summary>{table}{rest}</details>"
