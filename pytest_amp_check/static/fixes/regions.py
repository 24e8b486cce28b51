"""Fixes of autocast regions: their arguments, and what stands in them."""

from __future__ import annotations

import ast
import re
from itertools import takewhile

from ...protocol.finding import Finding
from ...protocol.fix import Edit
from ...protocol.words import chain
from ..project.syntax import tail, walk
from .edits import around, insertion
from .form import Form
from .layout import FUNCTIONS, Layout
from .matchers import Unfit, argument, assignments, expect, first, last_name, of_kind, only, require
from .queries import Mended, call_statement, local, means_one_thing, until, witnessed
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
    # What has the name by an import alone is autocast on every path.
    require(last_name(call.func) == "autocast")
    require(means_one_thing(layout, (chain(call.func) or "").partition(".")[0]))
    if finding.label == "autocast:device-object":
        given = argument(call, "device_type") or first(call.args)
        require(chain(given) is not None or isinstance(given, ast.Call))
        value = f"{layout.source(given)}.type"
        return f"Pass the type of the device: `{value}`", [Rebuilt(layout, call, Form(value=(0, "device_type", value)))]
    if finding.label == "autocast:no-device" and not call.args:
        return "Pass the device type", [Rebuilt(layout, call, Form(first=[f'device_type="{only(_devices(layout))}"']))]
    require(finding.label == "autocast:bool-dtype" and len(call.args) == 2)
    # The second argument has been `enabled` before.
    return "Pass `enabled` by its name", [Rebuilt(layout, call, Form(names=(None, "enabled")))]


def _devices(layout: Layout) -> set[str]:
    """The types of device that a file speaks of."""
    found = {"cuda"} if re.search(r"\.cuda\b", layout.text) else set()
    for node in of_kind(layout.on(*DEVICES), ast.Constant):
        if isinstance(node.value, str):
            kind, _, number = node.value.partition(":")
            if kind in DEVICES and (not number or number.isdecimal()):
                found.add(kind)
    return found


def leave_region(layout: Layout, finding: Finding) -> Mended:
    """Moves what trails in a block out of it: backward and what follows, none of which computes an output."""
    local(layout, finding)
    call = layout.at(finding.site, ast.Call)
    region = next((each for each in layout.around(call) if isinstance(each, (ast.With, ast.AsyncWith))), None)
    if region is None:
        raise Unfit
    require(layout.scope(region) is layout.scope(call))
    entered = layout.span(only(region.items).context_expr)[:2]
    require(any((step.site.line, step.site.column) == entered for step in finding.witness))
    moved = _trailing(layout, region, call)
    top, last = layout.head(moved[0]), moved[-1].end_lineno or 0
    inner, outer = layout.indent(moved[0]), layout.indent(region)
    require(inner.startswith(outer) and not layout.strings(top, last))
    while last < len(layout.lines) and layout.lines[last].startswith(inner + "#"):
        last += 1
    edits = [
        Edit(line, len(outer), line, len(inner), "")
        for line in range(top, last + 1)
        if layout.lines[line - 1].startswith(inner)
    ]
    return "Dedent what trails in the autocast block from the backward pass on", edits


def _trailing(layout: Layout, region: ast.With | ast.AsyncWith, call: ast.Call) -> list[ast.stmt]:
    """The statements of a region from that of a call on, which are not all of it and may as well stand outside."""
    at = region.body.index(first(each for block, each in layout.blocks(call) if block is region.body))
    moved = region.body[at:]
    require(at and all(map(_is_dtype_free, moved)) and all(map(layout.alone, [region, *moved])))
    return moved


def _is_dtype_free(statement: ast.stmt) -> bool:
    return not any(map(_may_compute, walk(statement)))


def _may_compute(node: ast.AST) -> bool:
    match node:
        case ast.stmt():
            return not isinstance(node, STRAIGHT)
        case ast.Call():
            return tail(node.func) not in DTYPE_FREE
        case ast.BinOp(op=op):
            return isinstance(op, (ast.MatMult, ast.Pow))
    return isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Lambda, ast.comprehension))


def construct_again(layout: Layout, finding: Finding) -> Mended:
    """Enters an autocast of its own where one is open that has been constructed once for both."""
    local(layout, finding)
    entered = layout.at(finding.site, ast.Name)
    item = expect(layout.parent(entered), ast.withitem)
    require(item.optional_vars is None and means_one_thing(layout, entered.id))
    made = only(assignments(layout.on(entered.id), entered.id))
    only(made.targets)
    call = expect(made.value, ast.Call)
    source = layout.source(call)
    require(last_name(call.func) == "autocast" and "\n" not in source)
    require(layout.scope(made) in (layout.tree, layout.scope(entered)))
    for node in layout.within(call):
        # What it was given must be what it is given there.
        require(not isinstance(node, ast.Name) or means_one_thing(layout, node.id))
        require(node is call or not isinstance(node, (ast.Call, ast.NamedExpr, ast.Lambda, ast.comprehension)))
    return f"Enter a new `{source}`", [Edit(*layout.span(entered), source)]


def region_without_cache(layout: Layout, finding: Finding) -> Mended:
    local(layout, finding)
    layout.at(finding.site, ast.Call)
    call = first(each for each in witnessed(layout, finding) if last_name(each.func) == "autocast")
    require(isinstance(layout.parent(call), ast.withitem) and len(call.args) <= 2)
    if argument(call, "cache_enabled") is not None:
        change = Rebuilt(layout, call, Form(value=(3, "cache_enabled", "False")))
    else:
        change = Rebuilt(layout, call, Form(last=[("cache_enabled", "False")]))
    return "Enter the region with `cache_enabled=False`", [change]


#: Statements that compute nothing.
DECLARING = (*FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)
#: What a forward pass and its loss end with.
BEHIND = ("backward", "step", "zero_grad", "unscale_", "update", "clip_grad_norm_", "clip_grad_value_")


def enter_region(layout: Layout, finding: Finding) -> Mended:
    """Enters the region that is constructed and dropped, for what computes outputs and losses right behind it."""
    call = layout.at(finding.site, ast.Call)
    require(finding.label == "scope:expression")
    statement = call_statement(layout, call)
    inside = _forward(layout, statement)
    require(inside and all(map(layout.alone, inside)))
    above, last = statement.end_lineno or 0, inside[-1].end_lineno or 0
    indent = layout.indent(statement)
    step = "\t" if indent.startswith("\t") or "\n\t" in layout.text else "    "
    require(not layout.strings(above + 1, last) and not any(row.endswith("\\") for row in layout.lines[above:last]))
    numbers = [number for number in range(above + 1, last + 1) if layout.lines[number - 1].strip()]
    edits = [
        *around(layout.span(statement), "with ", ":"),
        *(insertion(number, len(indent), step) for number in numbers),
    ]
    single = statement.lineno == above
    return f"Enter `{layout.source(call)}` for what follows" if single else "Enter the region", edits


def _forward(layout: Layout, statement: ast.stmt) -> list[ast.stmt]:
    """What follows a statement in its block, up to what a forward pass and its loss end with."""
    block = layout.block(statement)
    computing = until(layout, block[block.index(statement) + 1 :], BEHIND)
    return list(takewhile(lambda each: not isinstance(each, DECLARING), computing))
