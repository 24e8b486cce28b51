"""Fixes of what scales a loss, steps an optimizer and updates the scale."""

from __future__ import annotations

import ast

from ...protocol.finding import Finding
from ...protocol.fix import Edit
from ...protocol.words import chain
from .layout import Layout, Unfit
from .queries import Mended, guards, local, may_be_none, method, named, of, scaling, stepping, whenever


def scale_loss(layout: Layout, finding: Finding) -> Mended:
    local(layout, finding)
    call = layout.at(finding.site, ast.Call)
    loss = method(call, "backward")
    if finding.label != "step@raw" or not isinstance(loss, ast.Name):
        raise Unfit
    statement = layout.statement(call)
    step, scaler, _ = stepping(layout, finding)
    scope = layout.scope(call)
    if layout.scope(step) is not scope or not isinstance(statement, ast.Expr) or statement.value is not call:
        raise Unfit
    for other in layout.calls(scope, "scale"):
        if other.args and layout.source(other.args[0]) == loss.id:
            raise Unfit
    here, there = guards(layout, call), guards(layout, step)
    if not whenever(there, here):
        # The step may come less often, as long as it does not depend on there being a scaler.
        if not whenever(here, there) or may_be_none(layout, scope, scaler):
            raise Unfit
        for guard, _ in there[len(here) :]:
            if not isinstance(guard, ast.If) or any(layout.calls(each, "step") for each in guard.orelse):
                raise Unfit
    line, column, end_line, end_column = layout.span(loss)
    edits = [
        Edit(line, column, line, column, f"{scaler}.scale("),
        Edit(end_line, end_column, end_line, end_column, ")"),
    ]
    return f"Write `{scaler}.scale({loss.id}).backward()`", edits


def step_by_scaler(layout: Layout, finding: Finding) -> Mended:
    local(layout, finding)
    call = layout.at(finding.site, ast.Call)
    stepped = method(call, "step")
    if finding.label not in ("plain-step@scaled", "plain-step@unscaled") or stepped is None:
        raise Unfit
    statement = layout.statement(call)
    if call.args or call.keywords or not isinstance(statement, ast.Expr) or statement.value is not call:
        raise Unfit
    optimizer = named(layout, stepped)
    scaled, scaler = scaling(layout, finding)
    scope = layout.scope(call)
    if layout.scope(scaled) is not scope or of(layout, scope, "step", scaler):
        raise Unfit
    here = guards(layout, call)
    follows = [
        update
        for update in of(layout, scope, "update", scaler)
        if update.lineno > call.lineno and layout.loop(update) is layout.loop(call)
    ]
    if not whenever(guards(layout, scaled), here):
        raise Unfit
    row = f"{scaler}.step({optimizer})"
    edits = [Edit(*layout.span(call), row)]
    if any(whenever(guards(layout, update), here) for update in follows):
        return f"Write `{row}`", edits
    _nobody_updates(layout, scaler, optimizer)
    update = f"{scaler}.update()"
    return f"Write `{row}` and `{update}`", [*edits, layout.after(statement, update)]


def _nobody_updates(layout: Layout, scaler: str, optimizer: str) -> None:
    """Raises where a scaler may be updated already, or another optimizer is stepped with it."""
    name = scaler.rpartition(".")[2]
    for node in layout.on("update", "step", name):
        if not isinstance(node, ast.Call):
            continue
        if any(chain(given) in (scaler, name) for given in [*node.args, *(k.value for k in node.keywords)]):
            # Whoever is given the scaler may update it.
            raise Unfit
        if isinstance(node.func, ast.Attribute) and chain(node.func.value) in (scaler, name):
            if node.func.attr in ("update", "step"):
                raise Unfit
        elif method(node, "step") is not None and not node.args:
            stepped = chain(node.func.value) if isinstance(node.func, ast.Attribute) else None
            if stepped != optimizer and of(layout, layout.tree, "zero_grad", stepped or ""):
                raise Unfit


def update_after_step(layout: Layout, finding: Finding) -> Mended:
    local(layout, finding)
    call = layout.at(finding.site, ast.Call)
    owner = method(call, "step")
    if owner is None or len(call.args) != 1:
        raise Unfit
    scaler = named(layout, owner)
    scope = layout.scope(call)
    if of(layout, scope, "update", scaler):
        raise Unfit
    steps = [layout.statement(each) for each in of(layout, scope, "step", scaler)]
    block = layout.block(steps[0])
    if any(step not in block for step in steps):
        raise Unfit
    row = f"{scaler}.update()"
    last = max(steps, key=block.index)
    return f"Insert `{row}` after the last step", [layout.after(last, row)]


# AMP207.


def update_after_all(layout: Layout, finding: Finding) -> Mended:
    """Leaves the update to the one behind the last step, or moves it there."""
    local(layout, finding)
    call = layout.at(finding.site, ast.Call)
    owner = method(call, "update")
    statement = layout.statement(call)
    if finding.label != "update@pending" or owner is None or call.args or call.keywords:
        raise Unfit
    scaler = named(layout, owner)
    if not isinstance(statement, ast.Expr) or statement.value is not call:
        raise Unfit
    pending = layout.statement(stepping(layout, finding)[0])
    block = layout.block(statement)
    rest: list[ast.stmt] = []
    for each in block[block.index(statement) + 1 :]:
        if any(layout.calls(each, name) for name in ("scale", "backward", "get_scale")):
            break
        rest.append(each)
    steps = [each for each in rest if _does(layout, each, "step", scaler)]
    if pending not in steps or statement.lineno != statement.end_lineno or "#" in layout.lines[statement.lineno - 1]:
        raise Unfit
    removal = layout.without(statement.lineno, statement.lineno)
    behind = rest[rest.index(pending) + 1 :]
    if any(_does(layout, each, "update", scaler) for each in behind):
        return f"Leave the update to the one after `{layout.source(pending)}`", [removal]
    for each in [*block, *rest]:
        # An update that only some come by is not this one.
        if each is not statement and of(layout, each, "update", scaler):
            raise Unfit
    return f"Move `{layout.source(call)}` after the last step", [removal, layout.after(steps[-1], f"{scaler}.update()")]


def _does(layout: Layout, statement: ast.stmt, name: str, scaler: str) -> bool:
    """Whether a statement is a call of one of the scaler's methods and nothing else."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and statement.value in of(layout, statement, name, scaler)
        and layout.alone(statement)
    )
