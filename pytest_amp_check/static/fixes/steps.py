"""Fixes for loss scaling, optimizer steps and scale updates."""

from __future__ import annotations

import ast

from ...protocol.finding import Finding
from ...protocol.fix import Edit
from ...protocol.source_text import find_access_path
from .edits import surround_span
from .layout import ProgramLayout
from .matchers import all_arguments, filter_nodes, find_receiver, require, require_type
from .queries import (
    Guards,
    Mended,
    call_statement,
    find_guards,
    find_method_calls,
    find_scale_call,
    find_scaler_step,
    is_reached_whenever,
    may_be_none,
    require_local,
    require_owner,
    statements_until,
)


def scale_loss(layout: ProgramLayout, finding: Finding) -> Mended:
    require_local(layout, finding)
    require(finding.label == "step@raw")
    call = layout.find_expression(finding.site, ast.Call)
    loss = require_type(find_receiver(call, "backward"), ast.Name)
    call_statement(layout, call)
    step, scaler, _ = find_scaler_step(layout, finding)
    scope = layout.scope_of(call)
    require(layout.scope_of(step) is scope)
    scaled = [other.args[0] for other in layout.find_calls(scope, "scale") if other.args]
    require(all(layout.source_of(each) != loss.id for each in scaled))
    here, there = find_guards(layout, call), find_guards(layout, step)
    # The step may run less often, if the reason is not the existence of a scaler.
    require(
        is_reached_whenever(there, here)
        or (not may_be_none(layout, scope, scaler) and _comes_less_often(layout, there, here))
    )
    return f"Write `{scaler}.scale({loss.id}).backward()`", surround_span(layout.span_of(loss), f"{scaler}.scale(", ")")


def _comes_less_often(layout: ProgramLayout, there: Guards, here: Guards) -> bool:
    """Return True if a step is reached on some paths of a location, and no other step on the remaining paths."""
    return is_reached_whenever(here, there) and all(
        isinstance(guard, ast.If) and not any(layout.find_calls(each, "step") for each in guard.orelse)
        for guard, _ in there[len(here) :]
    )


def step_by_scaler(layout: ProgramLayout, finding: Finding) -> Mended:
    require_local(layout, finding)
    require(finding.label in ("plain-step@scaled", "plain-step@unscaled"))
    call = layout.find_expression(finding.site, ast.Call)
    require(not call.args and not call.keywords)
    statement = call_statement(layout, call)
    optimizer = require_owner(layout, call, "step")
    scaled, scaler = find_scale_call(layout, finding)
    scope = layout.scope_of(call)
    require(layout.scope_of(scaled) is scope and not find_method_calls(layout, scope, "step", scaler))
    here = find_guards(layout, call)
    require(is_reached_whenever(find_guards(layout, scaled), here))
    follows = [
        update
        for update in find_method_calls(layout, scope, "update", scaler)
        if update.lineno > call.lineno and layout.loop_of(update) is layout.loop_of(call)
    ]
    row = f"{scaler}.step({optimizer})"
    edits = [Edit(*layout.span_of(call), row)]
    if any(is_reached_whenever(find_guards(layout, update), here) for update in follows):
        return f"Write `{row}`", edits
    for other in filter_nodes(layout.nodes_on_lines("update", "step", scaler.rpartition(".")[2]), ast.Call):
        _refuse_rival(layout, other, scaler, optimizer)
    update = f"{scaler}.update()"
    return f"Write `{row}` and `{update}`", [*edits, layout.insert_after(statement, update)]


def _refuse_rival(layout: ProgramLayout, call: ast.Call, scaler: str, optimizer: str) -> None:
    """Raise NotFixable if a call may already update the scaler, or step another optimizer of the same training."""
    names = (scaler, scaler.rpartition(".")[2])
    # A function that receives the scaler may update the scaler.
    require(not any(find_access_path(given) in names for given in all_arguments(call)))
    if not isinstance(call.func, ast.Attribute):
        return
    on = find_access_path(call.func.value)
    if on in names:
        require(call.func.attr not in ("update", "step"))
    elif call.func.attr == "step" and not call.args:
        require(on == optimizer or not find_method_calls(layout, layout.tree, "zero_grad", on or ""))


def update_after_step(layout: ProgramLayout, finding: Finding) -> Mended:
    require_local(layout, finding)
    call = layout.find_expression(finding.site, ast.Call)
    scaler = require_owner(layout, call, "step")
    scope = layout.scope_of(call)
    require(len(call.args) == 1 and not find_method_calls(layout, scope, "update", scaler))
    steps = [layout.statement_of(each) for each in find_method_calls(layout, scope, "step", scaler)]
    block = layout.block_of(steps[0])
    require(all(step in block for step in steps))
    row = f"{scaler}.update()"
    last = max(steps, key=block.index)
    return f"Insert `{row}` after the last step", [layout.insert_after(last, row)]


def update_after_all(layout: ProgramLayout, finding: Finding) -> Mended:
    """Remove an update before the last step, or move the update behind the last step."""
    require_local(layout, finding)
    call = layout.find_expression(finding.site, ast.Call)
    require(finding.label in ("update@pending", "update@aged") and not call.args and not call.keywords)
    scaler = require_owner(layout, call, "update")
    statement = call_statement(layout, call)
    removal = layout.remove_statement(statement)
    pending = layout.statement_of(find_scaler_step(layout, finding)[0])
    block = layout.block_of(statement)
    rest = statements_until(layout, block[block.index(statement) + 1 :], ("scale", "backward", "get_scale"))
    steps = [each for each in rest if _is_scaler_call(layout, each, "step", scaler)]
    require(pending in steps)
    behind = rest[rest.index(pending) + 1 :]
    if any(_is_scaler_call(layout, each, "update", scaler) for each in behind):
        return f"Keep only the update after `{layout.source_of(pending)}`", [removal]
    # A conditional update is not equivalent.
    require(not any(find_method_calls(layout, each, "update", scaler) for each in block if each is not statement))
    return f"Move `{layout.source_of(call)}` after the last step", [
        removal,
        layout.insert_after(steps[-1], f"{scaler}.update()"),
    ]


def _is_scaler_call(layout: ProgramLayout, statement: ast.stmt, name: str, scaler: str) -> bool:
    """Return True if a statement is only a call of one of the scaler's methods."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and statement.value in find_method_calls(layout, statement, name, scaler)
        and layout.has_own_lines(statement)
    )
