"""Fixes of what scales a loss, steps an optimizer and updates the scale."""

from __future__ import annotations

import ast

from ...protocol.finding import Finding
from ...protocol.fix import Edit
from ...protocol.words import chain
from .edits import around
from .layout import Layout
from .matchers import arguments, expect, method, of_kind, require
from .queries import (
    Guards,
    Mended,
    call_statement,
    guards,
    local,
    may_be_none,
    of,
    owner,
    scaling,
    stepping,
    until,
    whenever,
)


def scale_loss(layout: Layout, finding: Finding) -> Mended:
    local(layout, finding)
    require(finding.label == "step@raw")
    call = layout.at(finding.site, ast.Call)
    loss = expect(method(call, "backward"), ast.Name)
    call_statement(layout, call)
    step, scaler, _ = stepping(layout, finding)
    scope = layout.scope(call)
    require(layout.scope(step) is scope)
    scaled = [other.args[0] for other in layout.calls(scope, "scale") if other.args]
    require(all(layout.source(each) != loss.id for each in scaled))
    here, there = guards(layout, call), guards(layout, step)
    # The step may come less often, as long as it does not depend on there being a scaler.
    require(
        whenever(there, here) or (not may_be_none(layout, scope, scaler) and _comes_less_often(layout, there, here))
    )
    return f"Write `{scaler}.scale({loss.id}).backward()`", around(layout.span(loss), f"{scaler}.scale(", ")")


def _comes_less_often(layout: Layout, there: Guards, here: Guards) -> bool:
    """Whether a step is reached by some of the ways that come by a place, and no other step by the other ones."""
    return whenever(here, there) and all(
        isinstance(guard, ast.If) and not any(layout.calls(each, "step") for each in guard.orelse)
        for guard, _ in there[len(here) :]
    )


def step_by_scaler(layout: Layout, finding: Finding) -> Mended:
    local(layout, finding)
    require(finding.label in ("plain-step@scaled", "plain-step@unscaled"))
    call = layout.at(finding.site, ast.Call)
    require(not call.args and not call.keywords)
    statement = call_statement(layout, call)
    optimizer = owner(layout, call, "step")
    scaled, scaler = scaling(layout, finding)
    scope = layout.scope(call)
    require(layout.scope(scaled) is scope and not of(layout, scope, "step", scaler))
    here = guards(layout, call)
    require(whenever(guards(layout, scaled), here))
    follows = [
        update
        for update in of(layout, scope, "update", scaler)
        if update.lineno > call.lineno and layout.loop(update) is layout.loop(call)
    ]
    row = f"{scaler}.step({optimizer})"
    edits = [Edit(*layout.span(call), row)]
    if any(whenever(guards(layout, update), here) for update in follows):
        return f"Write `{row}`", edits
    for other in of_kind(layout.on("update", "step", scaler.rpartition(".")[2]), ast.Call):
        _refuse_rival(layout, other, scaler, optimizer)
    update = f"{scaler}.update()"
    return f"Write `{row}` and `{update}`", [*edits, layout.after(statement, update)]


def _refuse_rival(layout: Layout, call: ast.Call, scaler: str, optimizer: str) -> None:
    """Raises where a call may update a scaler already, or step another optimizer that goes with it."""
    names = (scaler, scaler.rpartition(".")[2])
    # Whoever is given the scaler may update it.
    require(not any(chain(given) in names for given in arguments(call)))
    if not isinstance(call.func, ast.Attribute):
        return
    on = chain(call.func.value)
    if on in names:
        require(call.func.attr not in ("update", "step"))
    elif call.func.attr == "step" and not call.args:
        require(on == optimizer or not of(layout, layout.tree, "zero_grad", on or ""))


def update_after_step(layout: Layout, finding: Finding) -> Mended:
    local(layout, finding)
    call = layout.at(finding.site, ast.Call)
    scaler = owner(layout, call, "step")
    scope = layout.scope(call)
    require(len(call.args) == 1 and not of(layout, scope, "update", scaler))
    steps = [layout.statement(each) for each in of(layout, scope, "step", scaler)]
    block = layout.block(steps[0])
    require(all(step in block for step in steps))
    row = f"{scaler}.update()"
    last = max(steps, key=block.index)
    return f"Insert `{row}` after the last step", [layout.after(last, row)]


def update_after_all(layout: Layout, finding: Finding) -> Mended:
    """Leaves the update to the one behind the last step, or moves it there."""
    local(layout, finding)
    call = layout.at(finding.site, ast.Call)
    require(finding.label in ("update@pending", "update@aged") and not call.args and not call.keywords)
    scaler = owner(layout, call, "update")
    statement = call_statement(layout, call)
    removal = layout.removal(statement)
    pending = layout.statement(stepping(layout, finding)[0])
    block = layout.block(statement)
    rest = until(layout, block[block.index(statement) + 1 :], ("scale", "backward", "get_scale"))
    steps = [each for each in rest if _does(layout, each, "step", scaler)]
    require(pending in steps)
    behind = rest[rest.index(pending) + 1 :]
    if any(_does(layout, each, "update", scaler) for each in behind):
        return f"Leave the update to the one after `{layout.source(pending)}`", [removal]
    # An update that only some come by is not this one.
    require(not any(of(layout, each, "update", scaler) for each in block if each is not statement))
    return f"Move `{layout.source(call)}` after the last step", [removal, layout.after(steps[-1], f"{scaler}.update()")]


def _does(layout: Layout, statement: ast.stmt, name: str, scaler: str) -> bool:
    """Whether a statement is a call of one of the scaler's methods and nothing else."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and statement.value in of(layout, statement, name, scaler)
        and layout.alone(statement)
    )
