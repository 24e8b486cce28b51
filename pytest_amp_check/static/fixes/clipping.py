"""Fixes for gradient clips."""

from __future__ import annotations

import ast

from ...protocol.finding import Finding
from ...protocol.fix import Edit
from .layout import ProgramLayout
from .matchers import NotFixable, find_receiver, require, require_only, require_type
from .pending_rewrites import PendingRewrite
from .queries import (
    Guards,
    Mended,
    call_statement,
    find_guards,
    find_method_calls,
    find_scale_call,
    find_scaler_step,
    is_reached_whenever,
    require_local,
)
from .rewrite_spec import RewriteSpec


def unscale_before_clip(layout: ProgramLayout, finding: Finding) -> Mended:
    require_local(layout, finding)
    require(finding.label == "clip@scaled")
    clip = layout.find_expression(finding.site, ast.Call)
    statement = layout.statement_of(clip)
    step, scaler, optimizer = find_scaler_step(layout, finding, "unscale_")
    _require_same_loop(layout, clip, step)
    scope = layout.scope_of(clip)
    _require_only_pair(layout, scope, scaler, optimizer)
    require("ShardedGradScaler" not in layout.text or "fused" not in layout.text)
    row = f"{scaler}.unscale_({optimizer})"
    message = f"Insert `{row}` before the clip"
    late = find_method_calls(layout, scope, "unscale_", scaler)
    if late:
        return message, [layout.insert_before(statement, row), _remove_late_unscale(layout, late, statement)]
    here, there = find_guards(layout, statement), find_guards(layout, step)
    scaled, _ = find_scale_call(layout, finding)
    if is_reached_whenever(there, here):
        require(is_reached_whenever(find_guards(layout, scaled), here))
        return message, [layout.insert_before(statement, row)]
    test = _find_step_condition(layout, here, there)
    return message, [layout.insert_before(statement, f"if {test}:\n{_find_indent_step(layout, step)}{row}")]


def unscale_the_others(layout: ProgramLayout, finding: Finding) -> Mended:
    """Unscale the single optimizer that a clip covers and that is not unscaled yet."""
    require_local(layout, finding)
    clip = layout.find_expression(finding.site, ast.Call)
    statement = layout.statement_of(clip)
    step, scaler, optimizer = find_scaler_step(layout, finding)
    _require_same_loop(layout, clip, step)
    require(optimizer == finding.names.get("optimizer"))
    require(is_reached_whenever(find_guards(layout, step), find_guards(layout, statement)))
    require("ShardedGradScaler" not in layout.text)
    require(optimizer not in _find_first_arguments(layout, layout.scope_of(clip), "unscale_", scaler))
    row = f"{scaler}.unscale_({optimizer})"
    return f"Insert `{row}` before the clip", [layout.insert_before(statement, row)]


def _require_same_loop(layout: ProgramLayout, clip: ast.Call, step: ast.Call) -> None:
    require(layout.scope_of(step) is layout.scope_of(clip) and layout.loop_of(step) is layout.loop_of(clip))


def _find_first_arguments(layout: ProgramLayout, scope: ast.AST, name: str, scaler: str) -> set[str]:
    """Return the source texts of the first arguments of a scaler method in a function."""
    return {layout.source_of(call.args[0]) for call in find_method_calls(layout, scope, name, scaler) if call.args}


def _require_only_pair(layout: ProgramLayout, scope: ast.AST, scaler: str, optimizer: str) -> None:
    """Raise NotFixable if there is more than one scaler or optimizer.

    With several optimizers, the owner of the clipped parameters is unknown.
    """
    scalers = {
        layout.source_of(on)
        for call in layout.find_calls(scope, "scale")
        if (on := find_receiver(call, "scale")) is not None
    }
    optimizers = _find_first_arguments(layout, scope, "step", scaler) | _find_first_arguments(
        layout, scope, "unscale_", scaler
    )
    require(scalers <= {scaler} and optimizers <= {optimizer})


def _remove_late_unscale(layout: ProgramLayout, late: list[ast.Call], statement: ast.stmt) -> Edit:
    """Remove the single late call of ``unscale_`` in the same block."""
    moved = call_statement(layout, require_only(late))
    block = layout.block_of(statement)
    require(moved in block and block.index(moved) >= block.index(statement))
    return layout.remove_statement(moved)


def _find_step_condition(layout: ProgramLayout, statement_guards: Guards, step_guards: Guards) -> str:
    """Return the condition that guards the scaler's step beside a statement. The condition must be repeatable."""
    require(len(step_guards) == len(statement_guards) + 1 and is_reached_whenever(statement_guards, step_guards))
    guard, field = step_guards[-1]
    test = require_type(guard, ast.If).test
    require(field == "body")
    require(not any(isinstance(node, (ast.Call, ast.NamedExpr, ast.Await)) for node in layout.nodes_in(test)))
    source = layout.source_of(test)
    require("\n" not in source)
    return source


def _find_indent_step(layout: ProgramLayout, node: ast.AST) -> str:
    """Return the indentation of a node's block relative to the parent statement."""
    block, statement = next(layout.enclosing_blocks(node))
    parent = layout.parent_of(statement)
    if not isinstance(parent, ast.stmt) or not layout.has_own_lines(block[0]):
        raise NotFixable
    outer, inner = layout.indent_of(parent), layout.indent_of(block[0])
    require(inner.startswith(outer) and inner != outer)
    return inner[len(outer) :]


def drop_error(layout: ProgramLayout, finding: Finding) -> Mended:
    require(finding.label == "clip-nonfinite")
    call = layout.find_expression(finding.site, ast.Call)
    return "Remove `error_if_nonfinite`", [
        PendingRewrite(layout, call, RewriteSpec(dropped_argument="error_if_nonfinite"))
    ]
