"""Fixes for autocast regions: arguments and content."""

from __future__ import annotations

import ast
import re
from itertools import takewhile

from ...protocol.finding import Finding
from ...protocol.fix import Edit
from ...protocol.source_text import access_text, find_access_path
from ...protocol.torch_api import AUTOCAST_DEVICES
from ..project.syntax import tail_name, walk
from .edits import make_insertion, surround_span
from .layout import FUNCTIONS, ProgramLayout
from .matchers import (
    NotFixable,
    filter_nodes,
    find_assignments,
    find_keyword,
    last_name,
    require,
    require_first,
    require_only,
    require_type,
)
from .pending_rewrites import PendingRewrite
from .queries import Mended, call_statement, find_trace_calls, is_bound_once, require_local, statements_until
from .rewrite_spec import RewriteSpec

#: Functions that may be called outside an autocast region as well as inside: no computation with a model's outputs.
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


def correct_arguments(layout: ProgramLayout, finding: Finding) -> Mended:
    call = layout.find_expression(finding.site, ast.Call)
    # A name bound only by an import is autocast on every path.
    require(last_name(call.func) == "autocast")
    require(is_bound_once(layout, access_text(call.func).partition(".")[0]))
    if finding.label == "autocast:device-object":
        given = find_keyword(call, "device_type") or require_first(call.args)
        require(find_access_path(given) is not None or isinstance(given, ast.Call))
        value = f"{layout.source_of(given)}.type"
        return f"Pass the device type: `{value}`", [
            PendingRewrite(layout, call, RewriteSpec(new_value=(0, "device_type", value)))
        ]
    if finding.label == "autocast:no-device" and not call.args:
        return "Pass the device type", [
            PendingRewrite(
                layout, call, RewriteSpec(first_arguments=[f'device_type="{require_only(_find_device_types(layout))}"'])
            )
        ]
    require(finding.label == "autocast:bool-dtype" and len(call.args) == 2)
    # The second argument was `enabled` in the old API.
    return "Pass `enabled` by name", [PendingRewrite(layout, call, RewriteSpec(argument_names=(None, "enabled")))]


def _find_device_types(layout: ProgramLayout) -> set[str]:
    """Return the device types that a file mentions."""
    found = {"cuda"} if re.search(r"\.cuda\b", layout.text) else set()
    for node in filter_nodes(layout.nodes_on_lines(*AUTOCAST_DEVICES), ast.Constant):
        if isinstance(node.value, str):
            kind, _, number = node.value.partition(":")
            if kind in AUTOCAST_DEVICES and (not number or number.isdecimal()):
                found.add(kind)
    return found


def leave_region(layout: ProgramLayout, finding: Finding) -> Mended:
    """Move the trailing statements of a region out: backward and later statements, which compute no output."""
    require_local(layout, finding)
    call = layout.find_expression(finding.site, ast.Call)
    region = next((each for each in layout.ancestors_of(call) if isinstance(each, (ast.With, ast.AsyncWith))), None)
    if region is None:
        raise NotFixable
    require(layout.scope_of(region) is layout.scope_of(call))
    entered = layout.span_of(require_only(region.items).context_expr)[:2]
    require(any((step.site.line, step.site.column) == entered for step in finding.event_steps))
    moved = _find_trailing(layout, region, call)
    top, last = layout.first_line_of(moved[0]), moved[-1].end_lineno or 0
    inner, outer = layout.indent_of(moved[0]), layout.indent_of(region)
    require(inner.startswith(outer) and not layout.has_multiline_string(top, last))
    while last < len(layout.lines) and layout.lines[last].startswith(inner + "#"):
        last += 1
    edits = [
        Edit(line, len(outer), line, len(inner), "")
        for line in range(top, last + 1)
        if layout.lines[line - 1].startswith(inner)
    ]
    return "Dedent the end of the autocast block, from the backward pass on", edits


def _find_trailing(layout: ProgramLayout, region: ast.With | ast.AsyncWith, call: ast.Call) -> list[ast.stmt]:
    """Return the statements of a region from a call to the end. They must not be the whole region or need autocast."""
    at = region.body.index(require_first(each for block, each in layout.enclosing_blocks(call) if block is region.body))
    moved = region.body[at:]
    require(at and all(map(_is_dtype_free, moved)) and all(map(layout.has_own_lines, [region, *moved])))
    return moved


def _is_dtype_free(statement: ast.stmt) -> bool:
    return not any(map(_may_compute, walk(statement)))


def _may_compute(node: ast.AST) -> bool:
    match node:
        case ast.stmt():
            return not isinstance(node, STRAIGHT)
        case ast.Call():
            return tail_name(node.func) not in DTYPE_FREE
        case ast.BinOp(op=op):
            return isinstance(op, (ast.MatMult, ast.Pow))
    return isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Lambda, ast.comprehension))


def construct_again(layout: ProgramLayout, finding: Finding) -> Mended:
    """Construct a separate autocast for an entry while the shared autocast is open."""
    require_local(layout, finding)
    entered = layout.find_expression(finding.site, ast.Name)
    item = require_type(layout.parent_of(entered), ast.withitem)
    require(item.optional_vars is None and is_bound_once(layout, entered.id))
    made = require_only(find_assignments(layout.nodes_on_lines(entered.id), entered.id))
    require_only(made.targets)
    call = require_type(made.value, ast.Call)
    source = layout.source_of(call)
    require(last_name(call.func) == "autocast" and "\n" not in source)
    require(layout.scope_of(made) in (layout.tree, layout.scope_of(entered)))
    for node in layout.nodes_in(call):
        # The arguments must have the same values at the entry.
        require(not isinstance(node, ast.Name) or is_bound_once(layout, node.id))
        require(node is call or not isinstance(node, (ast.Call, ast.NamedExpr, ast.Lambda, ast.comprehension)))
    return f"Enter a new `{source}`", [Edit(*layout.span_of(entered), source)]


def region_without_cache(layout: ProgramLayout, finding: Finding) -> Mended:
    require_local(layout, finding)
    layout.find_expression(finding.site, ast.Call)
    call = require_first(each for each in find_trace_calls(layout, finding) if last_name(each.func) == "autocast")
    require(isinstance(layout.parent_of(call), ast.withitem) and len(call.args) <= 2)
    if find_keyword(call, "cache_enabled") is not None:
        change = PendingRewrite(layout, call, RewriteSpec(new_value=(3, "cache_enabled", "False")))
    else:
        change = PendingRewrite(layout, call, RewriteSpec(last_arguments=[("cache_enabled", "False")]))
    return "Enter the region with `cache_enabled=False`", [change]


#: Statements without computation.
DECLARING = (*FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)
#: Methods and functions after a forward pass and the loss.
BEHIND = ("backward", "step", "zero_grad", "unscale_", "update", "clip_grad_norm_", "clip_grad_value_")


def enter_region(layout: ProgramLayout, finding: Finding) -> Mended:
    """Enter a region that is constructed and dropped, for the following statements that compute outputs and losses."""
    call = layout.find_expression(finding.site, ast.Call)
    require(finding.label == "scope:expression")
    statement = call_statement(layout, call)
    inside = _find_forward_statements(layout, statement)
    require(inside and all(map(layout.has_own_lines, inside)))
    above, last = statement.end_lineno or 0, inside[-1].end_lineno or 0
    indent = layout.indent_of(statement)
    step = "\t" if indent.startswith("\t") or "\n\t" in layout.text else "    "
    require(
        not layout.has_multiline_string(above + 1, last)
        and not any(row.endswith("\\") for row in layout.lines[above:last])
    )
    numbers = [number for number in range(above + 1, last + 1) if layout.lines[number - 1].strip()]
    edits = [
        *surround_span(layout.span_of(statement), "with ", ":"),
        *(make_insertion(number, len(indent), step) for number in numbers),
    ]
    single = statement.lineno == above
    return f"Enter `{layout.source_of(call)}` around the following code" if single else "Enter the region", edits


def _find_forward_statements(layout: ProgramLayout, statement: ast.stmt) -> list[ast.stmt]:
    """Return the statements after a statement in the block, up to the end of the forward pass and the loss."""
    block = layout.block_of(statement)
    computing = statements_until(layout, block[block.index(statement) + 1 :], BEHIND)
    return list(takewhile(lambda each: not isinstance(each, DECLARING), computing))
