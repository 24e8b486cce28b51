"""Fixes of clips of gradients."""

from __future__ import annotations

import ast

from ...protocol.finding import Finding
from ...protocol.fix import Edit
from .form import Form
from .layout import Layout
from .matchers import Unfit, expect, method, only, require
from .queries import Guards, Mended, call_statement, guards, local, of, scaling, stepping, whenever
from .rebuilt import Rebuilt


def unscale_before_clip(layout: Layout, finding: Finding) -> Mended:
    local(layout, finding)
    require(finding.label == "clip@scaled")
    clip = layout.at(finding.site, ast.Call)
    statement = layout.statement(clip)
    step, scaler, optimizer = stepping(layout, finding, "unscale_")
    _require_same_loop(layout, clip, step)
    scope = layout.scope(clip)
    _only_pair(layout, scope, scaler, optimizer)
    require("ShardedGradScaler" not in layout.text or "fused" not in layout.text)
    row = f"{scaler}.unscale_({optimizer})"
    message = f"Insert `{row}` before the clip"
    late = of(layout, scope, "unscale_", scaler)
    if late:
        return message, [layout.before(statement, row), _removal(layout, late, statement)]
    here, there = guards(layout, statement), guards(layout, step)
    scaled, _ = scaling(layout, finding)
    if whenever(there, here):
        require(whenever(guards(layout, scaled), here))
        return message, [layout.before(statement, row)]
    test = _test(layout, here, there)
    return message, [layout.before(statement, f"if {test}:\n{_inward(layout, step)}{row}")]


def unscale_the_others(layout: Layout, finding: Finding) -> Mended:
    """Unscales the one optimizer that a clip covers and that is not unscaled yet."""
    local(layout, finding)
    clip = layout.at(finding.site, ast.Call)
    statement = layout.statement(clip)
    step, scaler, optimizer = stepping(layout, finding)
    _require_same_loop(layout, clip, step)
    require(optimizer == finding.names.get("optimizer"))
    require(whenever(guards(layout, step), guards(layout, statement)))
    require("ShardedGradScaler" not in layout.text)
    require(optimizer not in _given(layout, layout.scope(clip), "unscale_", scaler))
    row = f"{scaler}.unscale_({optimizer})"
    return f"Insert `{row}` before the clip", [layout.before(statement, row)]


def _require_same_loop(layout: Layout, clip: ast.Call, step: ast.Call) -> None:
    require(layout.scope(step) is layout.scope(clip) and layout.loop(step) is layout.loop(clip))


def _given(layout: Layout, scope: ast.AST, name: str, scaler: str) -> set[str]:
    """What a method of a scaler is given first in a function."""
    return {layout.source(call.args[0]) for call in of(layout, scope, name, scaler) if call.args}


def _only_pair(layout: Layout, scope: ast.AST, scaler: str, optimizer: str) -> None:
    """One scaler and one optimizer: which of several owns the parameters is not for a fix to guess."""
    scalers = {layout.source(on) for call in layout.calls(scope, "scale") if (on := method(call, "scale")) is not None}
    optimizers = _given(layout, scope, "step", scaler) | _given(layout, scope, "unscale_", scaler)
    require(scalers <= {scaler} and optimizers <= {optimizer})


def _removal(layout: Layout, late: list[ast.Call], statement: ast.stmt) -> Edit:
    """Takes out the one call that comes too late, which the same block makes."""
    moved = call_statement(layout, only(late))
    block = layout.block(statement)
    require(moved in block and block.index(moved) >= block.index(statement))
    return layout.removal(moved)


def _test(layout: Layout, here: Guards, there: Guards) -> str:
    """The one test, asking again for what does not change, under which the scaler steps beside a statement."""
    require(len(there) == len(here) + 1 and whenever(here, there))
    guard, field = there[-1]
    test = expect(guard, ast.If).test
    require(field == "body")
    require(not any(isinstance(node, (ast.Call, ast.NamedExpr, ast.Await)) for node in layout.within(test)))
    source = layout.source(test)
    require("\n" not in source)
    return source


def _inward(layout: Layout, node: ast.AST) -> str:
    """The white space by which the block of a node stands further in than what it belongs to."""
    block, statement = next(layout.blocks(node))
    parent = layout.parent(statement)
    if not isinstance(parent, ast.stmt) or not layout.alone(block[0]):
        raise Unfit
    outer, inner = layout.indent(parent), layout.indent(block[0])
    require(inner.startswith(outer) and inner != outer)
    return inner[len(outer) :]


def drop_error(layout: Layout, finding: Finding) -> Mended:
    require(finding.label == "clip-nonfinite")
    call = layout.at(finding.site, ast.Call)
    return "Drop `error_if_nonfinite`", [Rebuilt(layout, call, Form(drop="error_if_nonfinite"))]
