"""Fixes of autocast regions: their arguments, and what stands in them."""

from __future__ import annotations

import ast
import re

from ...protocol.finding import Finding
from ...protocol.fix import Edit
from ...protocol.words import chain
from ..project.syntax import walk
from .layout import FUNCTIONS, Layout, Unfit
from .queries import Mended, local, means_one_thing
from .rebuilt import Rebuilt

#: The types of device that a string may name.
DEVICES = ("cuda", "cpu", "xpu", "mps", "hpu", "npu")
#: What may be called outside of an autocast region as well as inside: nothing that computes with a model's outputs.
DTYPE_FREE = frozenset(
    """
    add_scalar append backward clip_grad_norm_ clip_grad_value_ cpu debug detach extend float get_last_lr get_lr
    get_scale info int item items len max min named_parameters numel parameters print range round set_description
    set_postfix set_postfix_str scale size state_dict step str time unscale_ update write zero_grad
    """.split()
)
STRAIGHT = (
    *(ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.If, ast.Pass, ast.Continue, ast.Break, ast.Delete),
    *(ast.Return, ast.Assert),
)


def correct_arguments(layout: Layout, finding: Finding) -> Mended:
    call = layout.at(finding.site, ast.Call)
    called = chain(call.func) or ""
    # What has the name by an import alone is autocast on every path.
    if called.rpartition(".")[2] != "autocast" or not means_one_thing(layout, called.partition(".")[0]):
        raise Unfit
    if finding.label == "autocast:device-object":
        given = next((k.value for k in call.keywords if k.arg == "device_type"), None) or next(iter(call.args), None)
        if given is None or (chain(given) is None and not isinstance(given, ast.Call)):
            raise Unfit
        value = f"{layout.source(given)}.type"
        return f"Pass the type of the device: `{value}`", [Rebuilt(layout, call, value=(0, "device_type", value))]
    if finding.label == "autocast:no-device" and not call.args:
        devices = _devices(layout)
        if len(devices) != 1:
            raise Unfit
        return "Pass the device type", [Rebuilt(layout, call, first=[f'device_type="{devices.pop()}"'])]
    if finding.label == "autocast:bool-dtype" and len(call.args) == 2:
        # The second argument has been `enabled` before.
        return "Pass `enabled` by its name", [Rebuilt(layout, call, names=(None, "enabled"))]
    raise Unfit


def _devices(layout: Layout) -> set[str]:
    """The types of device that a file speaks of."""
    found = {"cuda"} if re.search(r"\.cuda\b", layout.text) else set()
    for node in layout.on(*DEVICES):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            kind, _, number = node.value.partition(":")
            if kind in DEVICES and (not number or number.isdecimal()):
                found.add(kind)
    return found


def leave_region(layout: Layout, finding: Finding) -> Mended:
    """Moves what trails in a block out of it: backward and what follows, none of which computes an output."""
    local(layout, finding)
    call = layout.at(finding.site, ast.Call)
    region = next((each for each in layout.around(call) if isinstance(each, (ast.With, ast.AsyncWith))), None)
    if region is None or layout.scope(region) is not layout.scope(call) or len(region.items) != 1:
        raise Unfit
    entered = layout.span(region.items[0].context_expr)
    if all((s.site.line, s.site.column) != entered[:2] for s in finding.witness):
        raise Unfit
    statement = next((s for block, s in layout.blocks(call) if block is region.body), None)
    if statement is None:
        raise Unfit
    at = region.body.index(statement)
    moved = region.body[at:]
    if not at or not all(map(_is_dtype_free, moved)) or not all(map(layout.alone, [region, *moved])):
        raise Unfit
    first, last = layout.head(statement), moved[-1].end_lineno or 0
    inner, outer = layout.indent(statement), layout.indent(region)
    if layout.strings(first, last) or not inner.startswith(outer):
        raise Unfit
    while last < len(layout.lines) and layout.lines[last].startswith(inner + "#"):
        last += 1
    edits = [
        Edit(line, len(outer), line, len(inner), "")
        for line in range(first, last + 1)
        if layout.lines[line - 1].startswith(inner)
    ]
    return "Dedent what trails in the autocast block from the backward pass on", edits


def _is_dtype_free(statement: ast.stmt) -> bool:
    for node in walk(statement):
        if isinstance(node, ast.stmt) and not isinstance(node, STRAIGHT):
            return False
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name not in DTYPE_FREE:
                return False
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.MatMult, ast.Pow)):
            return False
        if isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Lambda, ast.comprehension)):
            return False
    return True


# AMP102.


def construct_again(layout: Layout, finding: Finding) -> Mended:
    """Enters an autocast of its own where one is open that has been constructed once for both."""
    local(layout, finding)
    entered = layout.at(finding.site, ast.Name)
    item = layout.parent(entered)
    made = [
        node
        for node in layout.on(entered.id)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == entered.id
    ]
    if not isinstance(item, ast.withitem) or item.optional_vars is not None or not means_one_thing(layout, entered.id):
        raise Unfit
    if len(made) != 1 or len(made[0].targets) != 1 or not isinstance(made[0].value, ast.Call):
        raise Unfit
    call = made[0].value
    source = layout.source(call)
    if (chain(call.func) or "").rpartition(".")[2] != "autocast" or "\n" in source:
        raise Unfit
    scope = layout.scope(made[0])
    if scope is not layout.tree and scope is not layout.scope(entered):
        raise Unfit
    for node in layout.within(call):
        # What it was given must be what it is given there.
        if isinstance(node, ast.Name) and not means_one_thing(layout, node.id):
            raise Unfit
        if node is not call and isinstance(node, (ast.Call, ast.NamedExpr, ast.Lambda, ast.comprehension)):
            raise Unfit
    return f"Enter a new `{source}`", [Edit(*layout.span(entered), source)]


# AMP605.


def region_without_cache(layout: Layout, finding: Finding) -> Mended:
    local(layout, finding)
    layout.at(finding.site, ast.Call)
    for step in finding.witness:
        try:
            call = layout.at(step.site, ast.Call)
        except Unfit:
            continue
        if (chain(call.func) or "").rpartition(".")[2] == "autocast":
            break
    else:
        raise Unfit
    if not isinstance(layout.parent(call), ast.withitem) or len(call.args) > 2:
        raise Unfit
    if any(keyword.arg == "cache_enabled" for keyword in call.keywords):
        change = Rebuilt(layout, call, value=(3, "cache_enabled", "False"))
    else:
        change = Rebuilt(layout, call, last=[("cache_enabled", "False")])
    return "Enter the region with `cache_enabled=False`", [change]


# AMP105.

#: What a forward pass and its loss end with.
BEHIND = ("backward", "step", "zero_grad", "unscale_", "update", "clip_grad_norm_", "clip_grad_value_")


def enter_region(layout: Layout, finding: Finding) -> Mended:
    """Enters the region that is constructed and dropped, for what computes outputs and losses right behind it."""
    call = layout.at(finding.site, ast.Call)
    statement = layout.statement(call)
    if finding.label != "scope:expression" or not isinstance(statement, ast.Expr) or statement.value is not call:
        raise Unfit
    block = layout.block(statement)
    inside: list[ast.stmt] = []
    for each in block[block.index(statement) + 1 :]:
        if isinstance(each, (*FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)):
            break
        if any(layout.calls(each, name) for name in BEHIND):
            break
        inside.append(each)
    if not inside or not all(map(layout.alone, inside)):
        raise Unfit
    first, last = statement.end_lineno or 0, inside[-1].end_lineno or 0
    indent = layout.indent(statement)
    step = "\t" if indent.startswith("\t") or "\n\t" in layout.text else "    "
    if layout.strings(first + 1, last) or "\\\n" in "\n".join(layout.lines[first:last]) + "\n":
        raise Unfit
    line, column, end_line, end_column = layout.span(statement)
    edits = [Edit(line, column, line, column, "with "), Edit(end_line, end_column, end_line, end_column, ":")]
    edits += [
        Edit(number, len(indent), number, len(indent), step)
        for number in range(first + 1, last + 1)
        if layout.lines[number - 1].strip()
    ]
    return f"Enter `{layout.source(call)}` for what follows" if line == end_line else "Enter the region", edits
