"""Fixes of the order of calls: what is missing is put in, what stands in the wrong place is moved."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ..protocol.finding import Finding
from ..protocol.fix import Edit
from ..protocol.words import chain
from .layout import LOOPS, Layout, Unfit
from .syntax import walk

#: What a fixer gives: what is done, as a request, and the edits. It raises :class:`Unfit` where it is not certain.
Mended = tuple[str, list[Edit]]
Fixer = Callable[[Layout, Finding], Mended]
Guards = list[tuple[ast.AST, str]]

#: What may be called outside of an autocast region as well as inside: nothing that computes with a model's outputs.
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
CLIPS = frozenset({"clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"})


# What the fixers ask.


def local(layout: Layout, finding: Finding) -> None:
    """A finding whose events are not all in one function is for people to think about."""
    if not finding.certain and not finding.witness:
        raise Unfit
    site = finding.site
    for step in finding.witness:
        if (step.site.path, step.site.function, step.site.cell) != (site.path, site.function, site.cell):
            raise Unfit


def named(layout: Layout, node: ast.expr) -> str:
    """The text of a name, an attribute or an item, which mean the same wherever they stand in a block."""
    if chain(node) is None:
        raise Unfit
    return layout.source(node)


def method(call: ast.Call, name: str) -> ast.expr | None:
    """What a method of that name is called on."""
    return call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == name else None


def stepping(layout: Layout, finding: Finding, *others: str) -> tuple[ast.Call, str, str]:
    """The scaler's step among the events that led to a finding, with the scaler and the optimizer in words.

    One of the ``others``, which are methods of the scaler too, will do.
    """
    for step in reversed(finding.witness):
        try:
            call = layout.at(step.site, ast.Call)
        except Unfit:
            continue
        scaler = next((on for name in ("step", *others) if (on := method(call, name)) is not None), None)
        if scaler is not None and len(call.args) == 1 and not call.keywords:
            return call, named(layout, scaler), named(layout, call.args[0])
    raise Unfit


def scaling(layout: Layout, finding: Finding) -> tuple[ast.Call, str]:
    """The call that scales the loss among the events that led to a finding, with the scaler in words."""
    for step in finding.witness:
        try:
            call = layout.at(step.site, ast.Call)
        except Unfit:
            continue
        for inner in layout.calls(call, "scale"):
            scaler = method(inner, "scale")
            if scaler is not None:
                return inner, named(layout, scaler)
    raise Unfit


def of(layout: Layout, scope: ast.AST, name: str, owner: str) -> list[ast.Call]:
    """The calls of a method in a function on one object."""
    found = layout.calls(scope, name)
    return [call for call in found if (on := method(call, name)) is not None and layout.source(on) == owner]


def guards(layout: Layout, node: ast.AST) -> Guards:
    """The branches and loops of its function in which a node stands, the outermost first."""
    found: Guards = []
    for block, statement in layout.blocks(node):
        parent = layout.parent(statement)
        if not isinstance(parent, (ast.With, ast.AsyncWith)):
            field = next((name for name, value in ast.iter_fields(parent) if value is block), "")
            found.append((parent, field))
    found.reverse()
    return found


def whenever(first: Guards, second: Guards) -> bool:
    """Whether what stands in the first branches is reached whenever what stands in the second ones is."""
    return first == second[: len(first)]


def may_be_none(layout: Layout, scope: ast.AST, name: str) -> bool:
    """Whether a program asks whether an object is there."""
    for node in layout.on(name.rpartition(".")[2]):
        tested: list[ast.expr] = []
        if isinstance(node, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            tested = [node.left, *node.comparators]
        elif isinstance(node, (ast.If, ast.IfExp)):
            tested = [node.test]
        elif isinstance(node, ast.BoolOp):
            tested = node.values
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            tested = [node.operand]
        elif isinstance(node, ast.Assign) and chain(node.targets[0]) == name:
            tested = [node.targets[0]] if isinstance(node.value, (ast.Constant, ast.IfExp)) else []
        if any(chain(each) == name for each in tested):
            return True
    arguments = getattr(scope, "args", None)
    if isinstance(arguments, ast.arguments):
        positional = [*arguments.posonlyargs, *arguments.args]
        given = positional[len(positional) - len(arguments.defaults) :]
        given += [a for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None]
        return any(a.arg == name for a in given)
    return False


# AMP201.


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


# AMP203, AMP204, AMP206.


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
    if not any(whenever(guards(layout, update), here) for update in follows):
        raise Unfit
    if not whenever(guards(layout, scaled), here):
        raise Unfit
    row = f"{scaler}.step({optimizer})"
    return f"Write `{row}`", [Edit(*layout.span(call), row)]


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


# AMP103.


def leave_region(layout: Layout, finding: Finding) -> Mended:
    """Moves what trails in a block out of it: backward and what follows, none of which computes an output."""
    local(layout, finding)
    call = layout.at(finding.site, ast.Call)
    region = next((each for each in layout.around(call) if isinstance(each, (ast.With, ast.AsyncWith))), None)
    if region is None or layout.scope(region) is not layout.scope(call) or len(region.items) != 1:
        raise Unfit
    entered = layout.span(region.items[0].context_expr)
    if all((s.site.line, s.site.column) != entered[:2] for s in finding.witness):
        raise Unfit
    statement = next((s for block, s in layout.blocks(call) if block is region.body), None)
    if statement is None:
        raise Unfit
    at = region.body.index(statement)
    moved = region.body[at:]
    if not at or not all(map(_is_dtype_free, moved)) or not all(map(layout.alone, [region, *moved])):
        raise Unfit
    first, last = layout.head(statement), moved[-1].end_lineno or 0
    inner, outer = layout.indent(statement), layout.indent(region)
    if layout.strings(first, last) or not inner.startswith(outer):
        raise Unfit
    while last < len(layout.lines) and layout.lines[last].startswith(inner + "#"):
        last += 1
    edits = [
        Edit(line, len(outer), line, len(inner), "")
        for line in range(first, last + 1)
        if layout.lines[line - 1].startswith(inner)
    ]
    return "Dedent what trails in the autocast block from the backward pass on", edits


def _is_dtype_free(statement: ast.stmt) -> bool:
    for node in walk(statement):
        if isinstance(node, ast.stmt) and not isinstance(node, STRAIGHT):
            return False
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name not in DTYPE_FREE:
                return False
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.MatMult, ast.Pow)):
            return False
        if isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Lambda, ast.comprehension)):
            return False
    return True


# AMP208.


def construct_before_loop(layout: Layout, finding: Finding) -> Mended:
    call = layout.at(finding.site, ast.Call)
    statement = layout.statement(call)
    if not isinstance(statement, ast.Assign) or statement.value is not call or len(statement.targets) != 1:
        raise Unfit
    scaler = named(layout, statement.targets[0])
    loop = layout.parent(statement)
    if not isinstance(loop, LOOPS) or statement not in loop.body or len(loop.body) == 1:
        raise Unfit
    assert isinstance(loop, ast.stmt)
    stored = {
        chain(node) for node in layout.within(loop) if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))
    }
    heads = {text.partition(".")[0].partition("[")[0] for text in stored if text}
    for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
        for node in layout.within(argument):
            if isinstance(node, ast.Name) and node.id in heads:
                raise Unfit
            if isinstance(node, (ast.Await, ast.NamedExpr, ast.Yield)):
                raise Unfit
            if isinstance(node, ast.Call) and chain(node.func) not in ("torch.cuda.is_available", "float", "int"):
                raise Unfit
    bound = [
        node for node in layout.within(loop) if isinstance(node, (ast.Name, ast.Attribute)) and chain(node) == scaler
    ]
    if sum(isinstance(node.ctx, ast.Store) for node in bound) != 1:
        raise Unfit
    first, last = layout.head(statement), statement.end_lineno or statement.lineno
    inner, outer = layout.indent(statement), layout.indent(loop)
    if not layout.alone(loop) or not inner.startswith(outer) or layout.strings(first, last):
        raise Unfit
    rows = [outer + row[len(inner) :] if row.startswith(inner) else row for row in layout.lines[first - 1 : last]]
    above = layout.head(loop)
    edits = [Edit(above, 0, above, 0, "".join(f"{row}\n" for row in rows)), layout.without(first, last)]
    return f"Construct `{scaler}` before the loop", edits


# AMP303, AMP301.


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
