"""Fixes of clips of gradients."""

from __future__ import annotations

import ast

from ...protocol.finding import Finding
from ...protocol.fix import Edit
from .layout import Layout, Unfit
from .queries import Guards, Mended, guards, local, method, of, scaling, stepping, whenever
from .rebuilt import Rebuilt


def unscale_before_clip(layout: Layout, finding: Finding) -> Mended:
    local(layout, finding)
    if finding.label != "clip@scaled":
        raise Unfit
    clip = layout.at(finding.site, ast.Call)
    statement = layout.statement(clip)
    step, scaler, optimizer = stepping(layout, finding, "unscale_")
    scope = layout.scope(clip)
    if layout.scope(step) is not scope or layout.loop(step) is not layout.loop(clip):
        raise Unfit
    _only_pair(layout, scope, scaler, optimizer)
    if "ShardedGradScaler" in layout.text and "fused" in layout.text:
        raise Unfit
    row = f"{scaler}.unscale_({optimizer})"
    message = f"Insert `{row}` before the clip"
    late = of(layout, scope, "unscale_", scaler)
    if late:
        return message, [layout.before(statement, row), _removal(layout, late, statement)]
    here, there = guards(layout, statement), guards(layout, step)
    scaled, _ = scaling(layout, finding)
    if whenever(there, here):
        if not whenever(guards(layout, scaled), here):
            raise Unfit
        return message, [layout.before(statement, row)]
    test = _test(layout, here, there)
    return message, [layout.before(statement, f"if {test}:\n{_inward(layout, step)}{row}")]


def unscale_the_others(layout: Layout, finding: Finding) -> Mended:
    """Unscales the one optimizer that a clip covers and that is not unscaled yet."""
    local(layout, finding)
    clip = layout.at(finding.site, ast.Call)
    statement = layout.statement(clip)
    step, scaler, optimizer = stepping(layout, finding)
    scope = layout.scope(clip)
    if layout.scope(step) is not scope or layout.loop(step) is not layout.loop(clip):
        raise Unfit
    if optimizer != finding.names.get("optimizer") or not whenever(guards(layout, step), guards(layout, statement)):
        raise Unfit
    if "ShardedGradScaler" in layout.text or any(
        layout.source(call.args[0]) == optimizer for call in of(layout, scope, "unscale_", scaler) if call.args
    ):
        raise Unfit
    row = f"{scaler}.unscale_({optimizer})"
    return f"Insert `{row}` before the clip", [layout.before(statement, row)]


def _only_pair(layout: Layout, scope: ast.AST, scaler: str, optimizer: str) -> None:
    """One scaler and one optimizer: which of several owns the parameters is not for a fix to guess."""
    scalers = {layout.source(on) for call in layout.calls(scope, "scale") if (on := method(call, "scale")) is not None}
    stepped = {layout.source(call.args[0]) for call in of(layout, scope, "step", scaler) if call.args}
    unscaled = {layout.source(call.args[0]) for call in of(layout, scope, "unscale_", scaler) if call.args}
    if scalers - {scaler} or (stepped | unscaled) - {optimizer}:
        raise Unfit


def _removal(layout: Layout, late: list[ast.Call], statement: ast.stmt) -> Edit:
    """Takes out the one call that comes too late, which the same block makes."""
    moved = layout.statement(late[0])
    block = layout.block(statement)
    if len(late) > 1 or not isinstance(moved, ast.Expr) or moved.value is not late[0] or moved not in block:
        raise Unfit
    first, last = moved.lineno, moved.end_lineno or moved.lineno
    if block.index(moved) < block.index(statement) or first != last or "#" in layout.lines[first - 1]:
        raise Unfit
    return layout.without(first, last)


def _test(layout: Layout, here: Guards, there: Guards) -> str:
    """The one test, asking again for what does not change, under which the scaler steps beside a statement."""
    if len(there) != len(here) + 1 or not whenever(here, there):
        raise Unfit
    guard, field = there[-1]
    if not isinstance(guard, ast.If) or field != "body":
        raise Unfit
    if any(isinstance(node, (ast.Call, ast.NamedExpr, ast.Await)) for node in layout.within(guard.test)):
        raise Unfit
    test = layout.source(guard.test)
    if "\n" in test:
        raise Unfit
    return test


def _inward(layout: Layout, node: ast.AST) -> str:
    """The white space by which the block of a node stands further in than what it belongs to."""
    block, statement = next(layout.blocks(node))
    parent = layout.parent(statement)
    if not isinstance(parent, ast.stmt) or not layout.alone(block[0]):
        raise Unfit
    outer, inner = layout.indent(parent), layout.indent(block[0])
    if not inner.startswith(outer) or inner == outer:
        raise Unfit
    return inner[len(outer) :]


def drop_error(layout: Layout, finding: Finding) -> Mended:
    call = layout.at(finding.site, ast.Call)
    return "Drop `error_if_nonfinite`", [Rebuilt(layout, call, drop="error_if_nonfinite")]
