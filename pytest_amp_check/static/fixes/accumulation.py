"""Fixes of the accumulation of gradients over several micro-batches."""

from __future__ import annotations

import ast

from ...protocol.finding import Finding
from ...protocol.fix import Edit
from ...protocol.words import chain
from .edits import insertion
from .layout import LOOPS, Layout
from .matchers import Unfit, expect, first, last_name, method, of_kind, only, remainders, require
from .queries import Mended, call_statement, guards, local, of, owner, shifted, witnessed

CLIPS = frozenset({"clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"})


def move_to_step(layout: Layout, finding: Finding) -> Mended:
    """Moves ``unscale_`` with its clips, or ``update``, under the test that decides about the step beside it."""
    call = layout.at(finding.site, ast.Call)
    unscales = finding.label == "unscale@window"
    scaler = owner(layout, call, "unscale_" if unscales else "update")
    statement = call_statement(layout, call)
    guard, steps = _guarded_steps(layout, layout.block(statement), scaler)
    moved = _moved(layout, statement, guard, scaler, unscales=unscales)
    require(all(map(layout.alone, [guard.body[0], guard.body[-1], *moved])))
    top, bottom = layout.head(moved[0]), moved[-1].end_lineno or 0
    rows = shifted(layout, top, bottom, layout.indent(statement), layout.indent(guard.body[0]))
    if unscales:
        put = insertion(layout.head(guard.body[0]), 0, "".join(f"{row}\n" for row in rows))
    else:
        require(all(map(layout.alone, steps)))
        put = layout.below(steps[-1], rows)
    return f"Move `{layout.source(call)}` under the test of the step", [put, layout.without(top, bottom)]


def _guarded_steps(layout: Layout, block: list[ast.stmt], scaler: str) -> tuple[ast.If, list[ast.stmt]]:
    """The test in a block that decides about the scaler's step, and the statements under it that step."""
    for guard in of_kind(block, ast.If):
        steps = [each for each in guard.body if of(layout, each, "step", scaler)]
        if steps:
            return guard, steps
    raise Unfit


def _moved(layout: Layout, statement: ast.stmt, guard: ast.If, scaler: str, *, unscales: bool) -> list[ast.stmt]:
    """A statement that unscales, with the clips between it and the test of the step; an update behind that alone."""
    block = layout.block(statement)
    at, there = block.index(statement), block.index(guard)
    if not unscales:
        require(at >= there and not any(of(layout, each, "unscale_", scaler) for each in block[there + 1 :]))
        return [statement]
    moved = block[at:there]
    require(moved and all(each is statement or _is_clip(layout, each) for each in moved))
    require(not any(of(layout, each, "step", scaler) for each in guard.orelse))
    return moved


def _is_clip(layout: Layout, statement: ast.stmt) -> bool:
    calls = of_kind(layout.within(statement), ast.Call)
    return isinstance(statement, ast.Expr) and any(last_name(call.func) in CLIPS for call in calls)


def divide_loss(layout: Layout, finding: Finding) -> Mended:
    local(layout, finding)
    require(finding.label == "step@undivided")
    call = layout.at(finding.site, ast.Call)
    step = first(each for each in reversed(list(witnessed(layout, finding))) if method(each, "step") is not None)
    backward = method(call, "backward")
    require(backward is not None and layout.scope(step) is layout.scope(call))
    # The backward of a framework has a division of its own, or gradients of its own.
    require(not call.args)
    scaled = layout.calls(call, "scale")
    require(len(scaled) <= 1)
    loss = expect(scaled[0].args[0] if scaled and len(scaled[0].args) == 1 else backward, ast.Name)
    mean = f"{loss.id} / {_window(layout, call, step)}"
    return f"Divide the loss: `{mean}`", [Edit(*layout.span(loss), mean if scaled else f"({mean})")]


def _window(layout: Layout, call: ast.Call, step: ast.Call) -> str:
    """What the micro-batches are counted by in the tests that decide about a step, and not about a call."""
    here = guards(layout, call)
    tests = [
        guard.test
        for guard, field in guards(layout, step)
        if isinstance(guard, ast.If) and field == "body" and (guard, field) not in here
    ]
    counts = [node.right for test in tests for node in remainders(layout.within(test))]
    return only({layout.source(count) for count in counts if chain(count) is not None})


def end_window(layout: Layout, finding: Finding) -> Mended:
    """Clears gradients where the step is, or lets the test of the step count from one."""
    if finding.label == "zero@window":
        return _clear_after_step(layout, finding, layout.at(finding.site, ast.Call))
    require(finding.label == "window:off-by-one")
    # The number of the micro-batch modulo their number.
    test = layout.at(finding.site, ast.expr)
    count = only(remainders(layout.within(test)))
    number = expect(count.left, ast.Name)
    loop = layout.loop(test)
    if not isinstance(loop, (ast.For, ast.AsyncFor)):
        raise Unfit
    require(_counts_from_zero(loop, number.id) and not _decides_elsewhere(layout, number.id, loop, test))
    more = f"({number.id} + 1)"
    return f"Count from one: `{more} % {layout.source(count.right)}`", [Edit(*layout.span(number), more)]


def _counts_from_zero(loop: ast.For | ast.AsyncFor, name: str) -> bool:
    match loop.target, loop.iter:
        case (
            ast.Name(id=counted) | ast.Tuple(elts=[ast.Name(id=counted), *_]),
            ast.Call(func=ast.Name(id="enumerate" | "range"), args=[_], keywords=[]),
        ):
            return counted == name
    return False


def _decides_elsewhere(layout: Layout, name: str, loop: ast.AST, test: ast.expr) -> bool:
    """Whether anything else goes by a number: it would be shifted against the windows, or was meant for them as is."""
    nodes = layout.within(loop)
    asked = layout.within(test)
    deciding = [*of_kind(nodes, ast.Compare), *of_kind(nodes, ast.Subscript), *remainders(nodes)]
    return any(chain(each) == name for node in deciding if node not in asked for each in layout.within(node))


def _clear_after_step(layout: Layout, finding: Finding, call: ast.Call) -> Mended:
    statement = call_statement(layout, call)
    optimizer, scaler = finding.names.get("optimizer", ""), finding.names.get("scaler", "")
    row = layout.source(call)
    require(chain(call.func) is not None and optimizer and row == f"{optimizer}.zero_grad()")
    removal = layout.removal(statement)
    guard = first(
        each
        for each in of_kind(layout.block(statement), ast.If)
        if not each.orelse and any(_steps(layout, inner, scaler, optimizer) for inner in each.body)
    )
    last = guard.body[-1]
    require(layout.alone(last))
    require(not isinstance(last, (ast.Return, ast.Break, ast.Continue, ast.Raise, ast.With, ast.If, *LOOPS)))
    if layout.calls(guard, "zero_grad"):
        return f"Leave it to the `zero_grad` after the step of `{optimizer}`", [removal]
    return f"Move `{row}` behind the step", [layout.after(last, row), removal]


def _steps(layout: Layout, statement: ast.stmt, scaler: str, optimizer: str) -> bool:
    by_scaler = of(layout, statement, "step", scaler)
    return isinstance(statement, ast.Expr) and (
        any(call.args and layout.source(call.args[0]) == optimizer for call in by_scaler)
        or bool(of(layout, statement, "step", optimizer))
    )
