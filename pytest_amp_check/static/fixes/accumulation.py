"""Fixes for gradient accumulation over several microbatches."""

from __future__ import annotations

import ast

from ...protocol.finding import Finding
from ...protocol.fix import Edit
from ...protocol.source_text import find_access_path
from .edits import make_insertion
from .layout import LOOPS, ProgramLayout
from .matchers import (
    NotFixable,
    filter_nodes,
    find_receiver,
    find_remainders,
    last_name,
    require,
    require_first,
    require_only,
    require_type,
)
from .queries import (
    Mended,
    call_statement,
    find_guards,
    find_method_calls,
    find_trace_calls,
    reindent_lines,
    require_local,
    require_owner,
)

CLIPS = frozenset({"clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"})


def move_to_step(layout: ProgramLayout, finding: Finding) -> Mended:
    """Move ``unscale_`` with the following clips, or ``update``, under the condition that guards the step."""
    call = layout.find_expression(finding.site, ast.Call)
    unscales = finding.label == "unscale@window"
    scaler = require_owner(layout, call, "unscale_" if unscales else "update")
    statement = call_statement(layout, call)
    guard, steps = _find_guarded_steps(layout, layout.block_of(statement), scaler)
    moved = _find_moved_statements(layout, statement, guard, scaler, unscales=unscales)
    require(all(map(layout.has_own_lines, [guard.body[0], guard.body[-1], *moved])))
    top, bottom = layout.first_line_of(moved[0]), moved[-1].end_lineno or 0
    rows = reindent_lines(layout, top, bottom, layout.indent_of(statement), layout.indent_of(guard.body[0]))
    if unscales:
        put = make_insertion(layout.first_line_of(guard.body[0]), 0, "".join(f"{row}\n" for row in rows))
    else:
        require(all(map(layout.has_own_lines, steps)))
        put = layout.insert_below(steps[-1], rows)
    return f"Move `{layout.source_of(call)}` under the condition of the step", [put, layout.remove_lines(top, bottom)]


def _find_guarded_steps(layout: ProgramLayout, block: list[ast.stmt], scaler: str) -> tuple[ast.If, list[ast.stmt]]:
    """Return the ``if`` in a block that guards the scaler's step, and the guarded statements that step."""
    for guard in filter_nodes(block, ast.If):
        steps = [each for each in guard.body if find_method_calls(layout, each, "step", scaler)]
        if steps:
            return guard, steps
    raise NotFixable


def _find_moved_statements(
    layout: ProgramLayout, statement: ast.stmt, guard: ast.If, scaler: str, *, unscales: bool
) -> list[ast.stmt]:
    """Return the statements to move: ``unscale_`` with the clips up to the step, or an update behind the step."""
    block = layout.block_of(statement)
    at, there = block.index(statement), block.index(guard)
    if not unscales:
        require(
            at >= there and not any(find_method_calls(layout, each, "unscale_", scaler) for each in block[there + 1 :])
        )
        return [statement]
    moved = block[at:there]
    require(moved and all(each is statement or _is_clip(layout, each) for each in moved))
    require(not any(find_method_calls(layout, each, "step", scaler) for each in guard.orelse))
    return moved


def _is_clip(layout: ProgramLayout, statement: ast.stmt) -> bool:
    calls = filter_nodes(layout.nodes_in(statement), ast.Call)
    return isinstance(statement, ast.Expr) and any(last_name(call.func) in CLIPS for call in calls)


def divide_loss(layout: ProgramLayout, finding: Finding) -> Mended:
    require_local(layout, finding)
    require(finding.label == "step@undivided")
    call = layout.find_expression(finding.site, ast.Call)
    step = require_first(
        each for each in reversed(list(find_trace_calls(layout, finding))) if find_receiver(each, "step") is not None
    )
    backward = find_receiver(call, "backward")
    require(backward is not None and layout.scope_of(step) is layout.scope_of(call))
    # The backward of a framework divides the loss itself, or has a gradient argument.
    require(not call.args)
    scaled = layout.find_calls(call, "scale")
    require(len(scaled) <= 1)
    loss = require_type(scaled[0].args[0] if scaled and len(scaled[0].args) == 1 else backward, ast.Name)
    mean = f"{loss.id} / {_find_window_size(layout, call, step)}"
    return f"Divide the loss: `{mean}`", [Edit(*layout.span_of(loss), mean if scaled else f"({mean})")]


def _find_window_size(layout: ProgramLayout, call: ast.Call, step: ast.Call) -> str:
    """Return the number of microbatches in the conditions that guard a step, but not a call."""
    here = find_guards(layout, call)
    tests = [
        guard.test
        for guard, field in find_guards(layout, step)
        if isinstance(guard, ast.If) and field == "body" and (guard, field) not in here
    ]
    counts = [node.right for test in tests for node in find_remainders(layout.nodes_in(test))]
    return require_only({layout.source_of(count) for count in counts if find_access_path(count) is not None})


def end_window(layout: ProgramLayout, finding: Finding) -> Mended:
    """Clear gradients at the step, or let the condition of the step count from one."""
    if finding.label == "zero@window":
        return _clear_after_step(layout, finding, layout.find_expression(finding.site, ast.Call))
    require(finding.label == "window:off-by-one")
    # The index of the microbatch modulo the number of microbatches.
    test = layout.find_expression(finding.site, ast.expr)
    count = require_only(find_remainders(layout.nodes_in(test)))
    number = require_type(count.left, ast.Name)
    loop = layout.loop_of(test)
    if not isinstance(loop, (ast.For, ast.AsyncFor)):
        raise NotFixable
    require(_counts_from_zero(loop, number.id) and not _decides_elsewhere(layout, number.id, loop, test))
    more = f"({number.id} + 1)"
    return f"Count from one: `{more} % {layout.source_of(count.right)}`", [Edit(*layout.span_of(number), more)]


def _counts_from_zero(loop: ast.For | ast.AsyncFor, name: str) -> bool:
    match loop.target, loop.iter:
        case (
            ast.Name(id=counted) | ast.Tuple(elts=[ast.Name(id=counted), *_]),
            ast.Call(func=ast.Name(id="enumerate" | "range"), args=[_], keywords=[]),
        ):
            return counted == name
    return False


def _decides_elsewhere(layout: ProgramLayout, name: str, loop: ast.AST, test: ast.expr) -> bool:
    """Return True if other code in the loop depends on the index, and would be shifted against the windows."""
    nodes = layout.nodes_in(loop)
    asked = layout.nodes_in(test)
    deciding = [*filter_nodes(nodes, ast.Compare), *filter_nodes(nodes, ast.Subscript), *find_remainders(nodes)]
    return any(
        find_access_path(each) == name for node in deciding if node not in asked for each in layout.nodes_in(node)
    )


def _clear_after_step(layout: ProgramLayout, finding: Finding, call: ast.Call) -> Mended:
    statement = call_statement(layout, call)
    optimizer, scaler = finding.names.get("optimizer", ""), finding.names.get("scaler", "")
    row = layout.source_of(call)
    require(find_access_path(call.func) is not None and optimizer and row == f"{optimizer}.zero_grad()")
    removal = layout.remove_statement(statement)
    guard = require_first(
        each
        for each in filter_nodes(layout.block_of(statement), ast.If)
        if not each.orelse and any(_is_step_of(layout, inner, scaler, optimizer) for inner in each.body)
    )
    last = guard.body[-1]
    require(layout.has_own_lines(last))
    require(not isinstance(last, (ast.Return, ast.Break, ast.Continue, ast.Raise, ast.With, ast.If, *LOOPS)))
    if layout.find_calls(guard, "zero_grad"):
        return f"Keep only the `zero_grad` after the step of `{optimizer}`", [removal]
    return f"Move `{row}` after the step", [layout.insert_after(last, row), removal]


def _is_step_of(layout: ProgramLayout, statement: ast.stmt, scaler: str, optimizer: str) -> bool:
    by_scaler = find_method_calls(layout, statement, "step", scaler)
    return isinstance(statement, ast.Expr) and (
        any(call.args and layout.source_of(call.args[0]) == optimizer for call in by_scaler)
        or bool(find_method_calls(layout, statement, "step", optimizer))
    )
