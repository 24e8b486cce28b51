"""Fixes of the accumulation of gradients over several micro-batches."""

from __future__ import annotations

import ast

from ...protocol.finding import Finding
from ...protocol.fix import Edit
from ...protocol.words import chain
from .layout import LOOPS, Layout, Unfit
from .queries import Mended, guards, local, method, named, of

CLIPS = frozenset({"clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"})


def move_to_step(layout: Layout, finding: Finding) -> Mended:
    """Moves ``unscale_`` with its clips, or ``update``, under the test that decides about the step beside it."""
    call = layout.at(finding.site, ast.Call)
    name = "unscale_" if finding.label == "unscale@window" else "update"
    owner = method(call, name)
    statement = layout.statement(call)
    if owner is None or not isinstance(statement, ast.Expr) or statement.value is not call:
        raise Unfit
    scaler = named(layout, owner)
    block = layout.block(statement)
    at = block.index(statement)
    guard = next(
        (s for s in block if isinstance(s, ast.If) and any(of(layout, b, "step", scaler) for b in s.body)), None
    )
    if guard is None or not layout.alone(guard.body[0]) or not layout.alone(guard.body[-1]):
        raise Unfit
    there = block.index(guard)
    if name == "unscale_":
        moved = block[at:there]
        if not moved or not all(each is statement or _is_clip(layout, each) for each in moved):
            raise Unfit
        if any(of(layout, each, "step", scaler) for each in guard.orelse):
            raise Unfit
    else:
        moved = [statement]
        if at < there or any(of(layout, s, "unscale_", scaler) for s in block[there + 1 :]):
            raise Unfit
    if not all(map(layout.alone, moved)):
        raise Unfit
    first, last = layout.head(moved[0]), moved[-1].end_lineno or 0
    inner = layout.indent(guard.body[0])
    outer = layout.indent(statement)
    if layout.strings(first, last):
        raise Unfit
    rows = [inner + row[len(outer) :] if row.startswith(outer) else row for row in layout.lines[first - 1 : last]]
    if name == "unscale_":
        top = layout.head(guard.body[0])
        insertion = Edit(top, 0, top, 0, "".join(f"{row}\n" for row in rows))
    else:
        steps = [s for s in guard.body if of(layout, s, "step", scaler)]
        if not all(map(layout.alone, steps)):
            raise Unfit
        bottom = steps[-1].end_lineno or 0
        end = len(layout.lines[bottom - 1])
        insertion = Edit(bottom, end, bottom, end, "".join(f"\n{row}" for row in rows))
    return f"Move `{layout.source(call)}` under the test of the step", [insertion, layout.without(first, last)]


def _is_clip(layout: Layout, statement: ast.stmt) -> bool:
    calls = [node for node in layout.within(statement) if isinstance(node, ast.Call)]
    return isinstance(statement, ast.Expr) and any(
        chain(c.func) and str(chain(c.func)).split(".")[-1] in CLIPS for c in calls
    )


def divide_loss(layout: Layout, finding: Finding) -> Mended:
    local(layout, finding)
    if finding.label != "step@undivided":
        raise Unfit
    call = layout.at(finding.site, ast.Call)
    step = next(
        (
            node
            for each in reversed(finding.witness)
            for node in [_call_at(layout, each.site)]
            if node is not None and method(node, "step") is not None
        ),
        None,
    )
    if step is None or method(call, "backward") is None or layout.scope(step) is not layout.scope(call):
        raise Unfit
    here, there = guards(layout, call), guards(layout, step)
    counts = {
        layout.source(node.right)
        for guard, field in there
        if isinstance(guard, ast.If) and field == "body" and (guard, field) not in here
        for node in layout.within(guard.test)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and chain(node.right) is not None
    }
    scaled = layout.calls(call, "scale")
    if call.args:
        # The backward of a framework, which has a division of its own, or one with gradients of its own.
        raise Unfit
    loss = scaled[0].args[0] if len(scaled) == 1 and len(scaled[0].args) == 1 else method(call, "backward")
    if len(counts) != 1 or len(scaled) > 1 or not isinstance(loss, ast.Name):
        raise Unfit
    mean = f"{loss.id} / {counts.pop()}"
    return f"Divide the loss: `{mean}`", [Edit(*layout.span(loss), mean if scaled else f"({mean})")]


def _call_at(layout: Layout, site: object) -> ast.Call | None:
    try:
        return layout.at(site, ast.Call)  # type: ignore[arg-type]
    except Unfit:
        return None


# AMP304.


def end_window(layout: Layout, finding: Finding) -> Mended:
    """Clears gradients where the step is, or lets the test of the step count from one."""
    if finding.label == "zero@window":
        return _clear_after_step(layout, finding, layout.at(finding.site, ast.Call))
    # The number of the micro-batch modulo their number.
    test = layout.at(finding.site, ast.expr)
    counts = [node for node in layout.within(test) if isinstance(node, ast.BinOp) and _is_modulo(node)]
    loop = layout.loop(test)
    if len(counts) != 1 or not isinstance(loop, (ast.For, ast.AsyncFor)):
        raise Unfit
    number, source = counts[0].left, loop.iter
    target = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
    if not isinstance(number, ast.Name) or not isinstance(target, ast.Name) or target.id != number.id:
        raise Unfit
    if not isinstance(source, ast.Call) or chain(source.func) not in ("enumerate", "range") or len(source.args) != 1:
        raise Unfit
    if source.keywords:
        raise Unfit
    asked = layout.within(test)
    for node in layout.within(loop):
        asks = isinstance(node, (ast.Compare, ast.Subscript)) or (isinstance(node, ast.BinOp) and _is_modulo(node))
        # Whatever else goes by the number would be shifted against the windows, or was meant for them as they were.
        if asks and node not in asked and any(chain(each) == number.id for each in layout.within(node)):
            raise Unfit
    more = f"({number.id} + 1)"
    return f"Count from one: `{more} % {layout.source(counts[0].right)}`", [Edit(*layout.span(number), more)]


def _is_modulo(node: ast.BinOp) -> bool:
    return isinstance(node.op, ast.Mod)


def _clear_after_step(layout: Layout, finding: Finding, call: ast.Call) -> Mended:
    statement = layout.statement(call)
    if not isinstance(statement, ast.Expr) or statement.value is not call or chain(call.func) is None:
        raise Unfit
    block = layout.block(statement)
    optimizer, scaler = finding.names.get("optimizer", ""), finding.names.get("scaler", "")
    if not optimizer or layout.source(call) != f"{optimizer}.zero_grad()" or statement.lineno != statement.end_lineno:
        raise Unfit
    guard = next(
        (
            s
            for s in block
            if isinstance(s, ast.If)
            and not s.orelse
            and any(_steps(layout, each, scaler, optimizer) for each in s.body)
        ),
        None,
    )
    if guard is None or not layout.alone(guard.body[-1]) or "#" in layout.lines[statement.lineno - 1]:
        raise Unfit
    if isinstance(guard.body[-1], (ast.Return, ast.Break, ast.Continue, ast.Raise, ast.With, ast.If, *LOOPS)):
        raise Unfit
    if any(layout.calls(guard, "zero_grad")):
        return f"Leave it to the `zero_grad` after the step of `{optimizer}`", [
            layout.without(statement.lineno, statement.lineno)
        ]
    row = layout.source(call)
    return f"Move `{row}` behind the step", [
        layout.after(guard.body[-1], row),
        layout.without(statement.lineno, statement.lineno),
    ]


def _steps(layout: Layout, statement: ast.stmt, scaler: str, optimizer: str) -> bool:
    return isinstance(statement, ast.Expr) and (
        any(call.args and layout.source(call.args[0]) == optimizer for call in of(layout, statement, "step", scaler))
        or bool(of(layout, statement, "step", optimizer))
    )
