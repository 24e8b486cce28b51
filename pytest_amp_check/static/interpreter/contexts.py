"""Contexts: what entering and leaving a with block does."""

from __future__ import annotations

import ast
import re

from ...protocol import events as e
from .conditions import Formula, both, either, negate
from .expressions import assign
from .forks import branch
from .imports import dotted_name
from .interpreter import Context, Handlers, Interpreter, within
from .state import Open
from .statements import _own_nodes, holds_autocast
from .values import (
    Choice,
    Float8,
    GradMode,
    HelperContext,
    Instance,
    NoSync,
    NullContext,
    Ref,
    StackContext,
    Value,
)
from .wording import last_name, wording

#: Words of a name by which a context may be a region, or keep gradients apart.
_SPEAKS = frozenset("amp AMP Amp cast Cast mixed Mixed half Half fp bf float ctx context Context".split())


def with_items(at: Interpreter, node: ast.With | ast.AsyncWith, index: int = 0) -> None:
    if at.state.cur is None:
        return
    if index == len(node.items):
        at.read(node.body)
        return
    item = node.items[index]
    if _expects_error(item.context_expr):
        # What is written to raise is no mistake.
        found = dict(at.found)
        at.discarded(lambda: at.read(node.body))
        at.found = found
        return
    context = at.evaluate(item.context_expr)
    context = next((v for v in context.alternatives() if isinstance(v, HelperContext)), context)
    if context.kind in ("unknown", "named") and _is_of_another_matter(at, item.context_expr):
        context = NullContext()
    at.handlers.blocks.get(context.kind, _block)(at, context, node, index)


def _block(at: Interpreter, context: Value, node: ast.With | ast.AsyncWith, index: int) -> None:
    """Read what stands in a context."""
    item = node.items[index]
    depth, opened = at.state.depth, len(at.state.open)
    enter(at, context, item.context_expr)
    if item.optional_vars is not None:
        assign(at, item.optional_vars, entered_value(at, context, item.context_expr))
    frame = at.state.frame
    base = len(at.state.unwind)
    at.state.unwind = [
        *at.state.unwind,
        lambda: within(at, frame, lambda: exit_context(at, context, item.context_expr, depth)),
    ]
    if holds_autocast(context):
        _yields_inside(at, node, item.context_expr)
    entered = at.state.entered
    with_items(at, node, index + 1)
    if isinstance(context, StackContext) and at.state.entered != entered:
        _yields_inside(at, node, item.context_expr)
    at.state.unwind = at.state.unwind[:base]
    exit_context(at, context, item.context_expr, depth)
    close_context(at, context)
    if isinstance(context, Instance):
        del at.state.open[opened:]
    at.state.depth = depth


def _yields_inside(at: Interpreter, node: ast.With | ast.AsyncWith, context: ast.expr) -> None:
    function = at.state.frame.function
    if function is None:
        return
    if function.manager or any(n in ("asynccontextmanager", "fixture") for n in function.decorator_names()):
        return
    for inner in _own_nodes(node.body):
        if isinstance(inner, (ast.Yield, ast.YieldFrom, ast.Await)):
            at.emit(e.SCOPE_LOST, inner, None, how="yield", names={"context": wording(context)})
            return


def enter(at: Interpreter, context: Value, node: ast.AST) -> None:
    """What entering a context does."""
    _handler(at, context).enter(at, context, node)


def exit_context(at: Interpreter, context: Value, node: ast.AST, depth: int) -> None:
    """What leaving a context does to the graph: only ``depth`` regions stay open."""
    _handler(at, context).exit(at, context, node, depth)


def close_context(at: Interpreter, context: Value) -> None:
    """What is no longer around once a context is left."""
    _handler(at, context).close(at, context)


def entered_value(at: Interpreter, context: Value, node: ast.expr) -> Value:
    """What ``as`` gives a name to."""
    return _handler(at, context).entered(at, context, node)


def _handler(at: Interpreter, context: Value) -> Context:
    return at.handlers.contexts.get(context.kind, _PLAIN)


_PLAIN = Context()


class Itself(Context):
    """A context that ``as`` gives a name to."""

    def entered(self, at: Interpreter, value: Value, node: ast.expr) -> Value:
        return value


class _Autocast(Context):
    def enter(self, at: Interpreter, value: Ref, node: ast.AST) -> None:
        _enter_autocast(at, value, node)

    def exit(self, at: Interpreter, value: Ref, node: ast.AST, depth: int) -> None:
        at.emit(e.AUTOCAST_EXIT, node, depth=depth)

    def close(self, at: Interpreter, value: Ref) -> None:
        if at.state.open:
            at.state.open.pop()


class _Either(Context):
    def enter(self, at: Interpreter, value: Choice, node: ast.AST) -> None:
        if holds_autocast(value):
            _enter_choice(at, value, node)
        elif _keeps_apart(value):
            at.state.apart.append(either(*(f for f, v in value.options if isinstance(v, NoSync))))
        elif _is_float8(value):
            enabled = (both(f, v.enabled) for f, v in value.options if isinstance(v, Float8))
            _enter_float8(at, either(*enabled))

    def exit(self, at: Interpreter, value: Choice, node: ast.AST, depth: int) -> None:
        if holds_autocast(value):
            at.emit(e.AUTOCAST_EXIT, node, depth=depth)

    def close(self, at: Interpreter, value: Choice) -> None:
        if holds_autocast(value):
            if at.state.open:
                at.state.open.pop()
        elif _keeps_apart(value) and at.state.apart:
            at.state.apart.pop()
        elif _is_float8(value):
            _leave_float8(at)


class _Apart(Context):
    def enter(self, at: Interpreter, value: NoSync, node: ast.AST) -> None:
        at.state.apart.append(True)

    def close(self, at: Interpreter, value: NoSync) -> None:
        if at.state.apart:
            at.state.apart.pop()


class _Float8(Context):
    def enter(self, at: Interpreter, value: Float8, node: ast.AST) -> None:
        _enter_float8(at, value.enabled)

    def close(self, at: Interpreter, value: Float8) -> None:
        _leave_float8(at)


class _WithoutGradients(Context):
    def enter(self, at: Interpreter, value: GradMode, node: ast.AST) -> None:
        at.state.no_grad += 1

    def close(self, at: Interpreter, value: GradMode) -> None:
        at.state.no_grad -= 1


class _Stack(Itself):
    def enter(self, at: Interpreter, value: StackContext, node: ast.AST) -> None:
        value.opened, value.apart, value.float8 = len(at.state.open), len(at.state.apart), len(at.state.float8)

    def exit(self, at: Interpreter, value: StackContext, node: ast.AST, depth: int) -> None:
        at.emit(e.AUTOCAST_EXIT, node, depth=depth)

    def close(self, at: Interpreter, value: StackContext) -> None:
        del at.state.open[value.opened :]
        del at.state.apart[value.apart :]
        while len(at.state.float8) > value.float8:
            _leave_float8(at)


class _Unknown(Context):
    """What is not known may be a region."""

    def enter(self, at: Interpreter, value: Value, node: ast.AST) -> None:
        at.state.maybe_open += 1

    def close(self, at: Interpreter, value: Value) -> None:
        at.state.maybe_open -= 1


def _enter_float8(at: Interpreter, enabled: Formula) -> None:
    """What TransformerEngine's modules compute here is of low precision, as in a region of which no more is known."""
    at.state.float8.append(enabled)
    at.state.maybe_open += 1


def _leave_float8(at: Interpreter) -> None:
    if at.state.float8:
        at.state.float8.pop()
        at.state.maybe_open -= 1


def _enter_choice(at: Interpreter, context: Choice, node: ast.AST) -> None:
    places: list[int | None] = []
    start = at.state.cur
    enabled: Formula = False
    device, dtype = "", ""
    for formula, value in context.options:
        at.state.cur = start
        yes, no = branch(at, formula)
        at.state.cur = yes
        at.state.path.append(formula)
        if isinstance(value, Ref) and value.role == "autocast":
            _enter_autocast(at, value, node, remember=False)
            enabled = at.short(either(enabled, both(formula, value.enabled)))
            device = device or str(value.thing.facts.get("device", ""))
            known = str(value.thing.facts.get("dtype", "?"))
            dtype = known if dtype in ("", known) else "?"
        else:
            at.emit(e.AUTOCAST_ENTER, node, None, null=True, enabled=False)
        at.state.path.pop()
        places.append(at.state.cur)
        start = no
    at.state.cur = at.draft.join(places)
    _opened(at, Open(enabled, device, dtype), node)


def _enter_autocast(at: Interpreter, context: Ref, node: ast.AST, *, remember: bool = True) -> None:
    facts = context.thing.facts
    device, dtype = str(facts.get("device", "")), str(facts.get("dtype", "?"))
    cache = bool(facts.get("cache", True))
    instance = context.thing.key if facts.get("stored") else None
    names = {"context": wording(node)}
    places = []
    enabled, disabled = branch(at, context.enabled)
    for place, on in ((enabled, True), (disabled, False)):
        if place is not None:
            at.state.cur = place
            at.state.path.append(context.enabled if on else negate(context.enabled))
            at.emit(e.AUTOCAST_ENTER, node, instance, enabled=on, device=device, dtype=dtype, cache=cache, names=names)
            at.state.path.pop()
            places.append(at.state.cur)
    at.state.cur = at.draft.join(places)
    at.state.entered += 1
    if remember:
        _opened(at, Open(context.enabled, device, dtype, cache=cache), node)


def _opened(at: Interpreter, region: Open, node: ast.AST) -> None:
    """Remember a region, and where it was entered."""
    at.state.depth += 1
    at.state.open.append(region)
    region.turns = tuple(loop.key for loop in at.state.loops)
    region.site = at.site(node)
    region.words = wording(node)


def _is_of_another_matter(at: Interpreter, written: ast.expr) -> bool:
    """Whether a context is made by something imported whose name does not speak of regions: what it does is its own."""
    name = dotted_name(at, written.func) if isinstance(written, ast.Call) else None
    return (
        name is not None
        and _SPEAKS.isdisjoint(re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", name))
        and not any(word in name.lower() for word in ("autocast", "precision", "sync"))
    )


def _keeps_apart(value: Value) -> bool:
    """Whether gradients may not be averaged over processes in a context."""
    return any(isinstance(option, NoSync) for option in value.alternatives())


def _is_float8(value: Value) -> bool:
    """Whether a context may be a region of TransformerEngine."""
    return any(isinstance(option, Float8) for option in value.alternatives())


def _expects_error(context: ast.expr) -> bool:
    """Whether a context is there for an exception: ``pytest.raises``, ``self.assertRaises``."""
    func = context.func if isinstance(context, ast.Call) else context
    name = last_name(func)
    return name == "raises" or name.startswith("assertRaises")


def register(handlers: Handlers) -> None:
    handlers.statements.update({ast.With: with_items, ast.AsyncWith: with_items})
    unknown = _Unknown()
    handlers.contexts.update(
        {
            "autocast": _Autocast(),
            "choice": _Either(),
            "no sync": _Apart(),
            "float8": _Float8(),
            "grad mode": _WithoutGradients(),
            "stack": _Stack(),
            "tensor": Itself(),
            "unknown": unknown,
            "named": unknown,
        }
    )
