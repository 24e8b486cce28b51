"""Contexts: entry and exit of ``with`` blocks."""

from __future__ import annotations

import ast
import re

from ...protocol import events as e
from .conditions import Formula, conjunction, disjunction, literals, negate
from .expressions.assignments import assign_target
from .imports import dotted_name
from .interpreter import ContextHandler, HandlerTable, Interpreter, in_frame
from .joins import split_on
from .loop_variables import own_nodes
from .microbatches import reads_gradients
from .source_text import expression_text, last_name
from .state import OpenRegion
from .statements.definitions import holds_autocast
from .values.containers import UnionValue
from .values.contexts import Float8Context, GradMode, NoSyncContext, NullContext, StackContext
from .values.definitions import GeneratorContext, Instance
from .values.objects import ObjectRef
from .values.value import Value, iterable_kind_of

#: Words in the name of a context that may be an autocast region or suspend gradient averaging (``no_sync``).
_REGION_WORDS = frozenset("amp AMP Amp cast Cast mixed Mixed half Half fp bf float ctx context Context".split())
#: Kinds of contexts that are not known.
_UNKNOWN = frozenset({"unknown", "named"})
#: Kinds of contexts that may enter autocast where the analysis does not follow.
_UNSEEN = _UNKNOWN | {"helper", "instance"}


def with_items(interp: Interpreter, node: ast.With | ast.AsyncWith, index: int = 0) -> None:
    if interp.state.current_node is None:
        return
    if index == len(node.items):
        interp.execute_block(node.body)
        return
    item = node.items[index]
    if _expects_error(item.context_expr):
        # Code that is expected to raise is no mistake.
        found = dict(interp.detached_events)
        interp.speculate(lambda: interp.execute_block(node.body))
        interp.detached_events = found
        return
    context = interp.evaluate(item.context_expr)
    context = _select_generator(context)
    context = without_unrelated(interp, context, item.context_expr)
    interp.handlers.with_blocks.get(context.kind, _execute_with_block)(interp, context, node, index)


def _select_generator(context: Value) -> Value:
    """Return the ``@contextmanager`` function among the alternatives of a context, or the context itself.

    A function that enters no region does nothing beside an alternative that enters autocast.
    """
    generator = next((v for v in context.alternatives() if isinstance(v, GeneratorContext)), None)
    if generator is None or (holds_autocast(context) and not generator.func.function.context_names):
        return context
    return generator


def _execute_with_block(interp: Interpreter, context: Value, node: ast.With | ast.AsyncWith, index: int) -> None:
    """Execute the body of a ``with`` block inside a context."""
    item = node.items[index]
    depth, opened = interp.state.region_depth, len(interp.state.open_regions)
    enter_context(interp, context, item.context_expr)
    if item.optional_vars is not None:
        assign_target(interp, item.optional_vars, entered_value(interp, context, item.context_expr))
    frame = interp.state.frame
    base = len(interp.state.unwind_actions)
    interp.state.unwind_actions = [
        *interp.state.unwind_actions,
        lambda: in_frame(interp, frame, lambda: exit_context(interp, context, item.context_expr, depth)),
    ]
    if holds_autocast(context):
        _report_yield_inside(interp, node, item.context_expr)
    entered = interp.state.regions_entered
    with_items(interp, node, index + 1)
    if isinstance(context, StackContext) and interp.state.regions_entered != entered:
        _report_yield_inside(interp, node, item.context_expr)
    interp.state.unwind_actions = interp.state.unwind_actions[:base]
    exit_context(interp, context, item.context_expr, depth)
    close_context(interp, context)
    if isinstance(context, Instance):
        del interp.state.open_regions[opened:]
    interp.state.region_depth = depth


def _report_yield_inside(interp: Interpreter, node: ast.With | ast.AsyncWith, context: ast.expr) -> None:
    function = interp.state.frame.function
    if function is None:
        return
    if function.is_context_manager or any(n in ("asynccontextmanager", "fixture") for n in function.decorator_names()):
        return
    for inner in own_nodes(node.body):
        if isinstance(inner, (ast.Yield, ast.YieldFrom, ast.Await)):
            interp.emit(e.ScopeLost, inner, None, how="yield", names={"context": expression_text(context)})
            return


def enter_context(interp: Interpreter, context: Value, node: ast.AST) -> None:
    """Apply the effects of entering a context."""
    _context_handler(interp, context).enter(interp, context, node)


def exit_context(interp: Interpreter, context: Value, node: ast.AST, depth: int) -> None:
    """Apply the effects of leaving a context to the graph. ``depth`` regions stay open."""
    _context_handler(interp, context).exit(interp, context, node, depth)


def close_context(interp: Interpreter, context: Value) -> None:
    """Drop a context from the state after its block."""
    _context_handler(interp, context).close(interp, context)


def entered_value(interp: Interpreter, context: Value, node: ast.expr) -> Value:
    """Return the value that ``as`` assigns."""
    return _context_handler(interp, context).entered_value(interp, context, node)


def _context_handler(interp: Interpreter, context: Value) -> ContextHandler:
    return interp.handlers.contexts.get(context.kind, _DEFAULT_HANDLER)


_DEFAULT_HANDLER = ContextHandler()


class SelfBindingHandler(ContextHandler):
    """Handler of a context whose ``as`` name refers to the context."""

    def entered_value(self, interp: Interpreter, value: Value, node: ast.expr) -> Value:
        return value


class _AutocastHandler(ContextHandler):
    def enter(self, interp: Interpreter, value: ObjectRef, node: ast.AST) -> None:
        _enter_autocast(interp, value, node)

    def exit(self, interp: Interpreter, value: ObjectRef, node: ast.AST, depth: int) -> None:
        interp.emit(e.AutocastExit, node, depth=depth)

    def close(self, interp: Interpreter, value: ObjectRef) -> None:
        if interp.state.open_regions:
            interp.state.open_regions.pop()


def _skip_sync(interp: Interpreter, condition: Formula) -> None:
    """Enter ``no_sync`` under a condition. A loop that leaves it for its last iteration runs over micro-batches."""
    state = interp.state
    state.no_sync_conditions.append(condition)
    asked = {key for formula in (*state.path_condition, condition) for key, _ in literals(formula)}
    for loop in state.loops:
        if loop.node is not None and not asked.isdisjoint(loop.last_iteration_predicates):
            loop.over_microbatches = not reads_gradients(loop.node.body)


class _UnionHandler(ContextHandler):
    def enter(self, interp: Interpreter, value: UnionValue, node: ast.AST) -> None:
        if holds_autocast(value):
            _enter_union(interp, value, node)
        elif _may_skip_sync(value):
            _skip_sync(interp, disjunction(*(f for f, v in value.options if isinstance(v, NoSyncContext))))
        elif _is_float8(value):
            enabled = (conjunction(f, v.enabled) for f, v in value.options if isinstance(v, Float8Context))
            _enter_float8(interp, disjunction(*enabled))
        elif _may_be_region(value):
            interp.state.possible_regions += 1

    def exit(self, interp: Interpreter, value: UnionValue, node: ast.AST, depth: int) -> None:
        if holds_autocast(value):
            interp.emit(e.AutocastExit, node, depth=depth)

    def close(self, interp: Interpreter, value: UnionValue) -> None:
        if holds_autocast(value):
            if interp.state.open_regions:
                interp.state.open_regions.pop()
        elif _may_skip_sync(value) and interp.state.no_sync_conditions:
            interp.state.no_sync_conditions.pop()
        elif _is_float8(value):
            _leave_float8(interp)
        elif _may_be_region(value):
            interp.state.possible_regions -= 1


class _NoSyncHandler(ContextHandler):
    def enter(self, interp: Interpreter, value: NoSyncContext, node: ast.AST) -> None:
        _skip_sync(interp, value.enabled)

    def close(self, interp: Interpreter, value: NoSyncContext) -> None:
        if interp.state.no_sync_conditions:
            interp.state.no_sync_conditions.pop()


class _Float8Handler(ContextHandler):
    def enter(self, interp: Interpreter, value: Float8Context, node: ast.AST) -> None:
        _enter_float8(interp, value.enabled)

    def close(self, interp: Interpreter, value: Float8Context) -> None:
        _leave_float8(interp)


class _NoGradHandler(ContextHandler):
    def enter(self, interp: Interpreter, value: GradMode, node: ast.AST) -> None:
        interp.state.no_grad += 1

    def close(self, interp: Interpreter, value: GradMode) -> None:
        interp.state.no_grad -= 1


class _StackHandler(SelfBindingHandler):
    def enter(self, interp: Interpreter, value: StackContext, node: ast.AST) -> None:
        state = interp.state
        value.open_region_count, value.possible_region_count = len(state.open_regions), state.possible_regions
        value.no_sync_count, value.float8_count = len(state.no_sync_conditions), len(state.float8_conditions)
        value.no_grad_count, value.path_length = state.no_grad, len(state.path_condition)

    def exit(self, interp: Interpreter, value: StackContext, node: ast.AST, depth: int) -> None:
        for context in reversed(value.entered_contexts):
            if not holds_autocast(context):
                exit_context(interp, context, node, depth)
        interp.emit(e.AutocastExit, node, depth=depth)

    def close(self, interp: Interpreter, value: StackContext) -> None:
        del interp.state.open_regions[value.open_region_count :]
        del interp.state.no_sync_conditions[value.no_sync_count :]
        while len(interp.state.float8_conditions) > value.float8_count:
            _leave_float8(interp)
        interp.state.possible_regions = value.possible_region_count + value.is_released
        interp.state.no_grad = value.no_grad_count


class _UnknownHandler(ContextHandler):
    """Handler of an unknown context, which may be an autocast region.

    A ``@contextmanager`` function is unknown where no ``with`` statement runs its body.
    """

    def enter(self, interp: Interpreter, value: Value, node: ast.AST) -> None:
        interp.state.possible_regions += 1

    def close(self, interp: Interpreter, value: Value) -> None:
        interp.state.possible_regions -= 1


class _TensorHandler(SelfBindingHandler):
    """Handler of the result of a call with a tensor: a loss that apex scales, or an unknown context."""

    def enter(self, interp: Interpreter, value: Value, node: ast.AST) -> None:
        interp.state.possible_regions += not value.is_relevant

    def close(self, interp: Interpreter, value: Value) -> None:
        interp.state.possible_regions -= not value.is_relevant


def _enter_float8(interp: Interpreter, enabled: Formula) -> None:
    """Enter a TransformerEngine region. Its modules compute in low precision, as in a region of unknown dtype."""
    interp.state.float8_conditions.append(enabled)
    interp.state.possible_regions += 1


def _leave_float8(interp: Interpreter) -> None:
    if interp.state.float8_conditions:
        interp.state.float8_conditions.pop()
        interp.state.possible_regions -= 1


def _enter_union(interp: Interpreter, context: UnionValue, node: ast.AST) -> None:
    end_nodes: list[int | None] = []
    start = interp.state.current_node
    enabled: Formula = False
    device, may_choose_float16 = "", False
    regions = [value for _, value in context.options if isinstance(value, ObjectRef) and value.role == "autocast"]
    dtypes = {str(region.tracked_object.attributes.dtype) for region in regions}
    for formula, value in context.options:
        interp.state.current_node = start
        yes, no = split_on(interp, formula)
        interp.state.current_node = yes
        interp.state.path_condition.append(formula)
        if isinstance(value, ObjectRef) and value.role == "autocast":
            _enter_autocast(interp, value, node, is_one_of_several=len(dtypes) > 1, remember=False)
            enabled = interp.shorten_formula(disjunction(enabled, conjunction(formula, value.enabled)))
            device = device or str(value.tracked_object.attributes.device)
            may_choose_float16 = may_choose_float16 or value.tracked_object.attributes.may_choose_float16
        else:
            interp.emit(e.AutocastEnter, node, None, null=True, enabled=False)
        interp.state.path_condition.pop()
        end_nodes.append(interp.state.current_node)
        start = no
    interp.state.current_node = interp.builder.join_nodes(end_nodes)
    # The code chooses between regions of several dtypes as it chooses the dtype of one region.
    may_choose_float16 = may_choose_float16 or (len(dtypes) > 1 and "float16" in dtypes)
    dtype = "?" if len(dtypes) > 1 else "".join(dtypes)
    _push_region(interp, OpenRegion(enabled, device, dtype, may_choose_float16=may_choose_float16), node)


def _enter_autocast(
    interp: Interpreter,
    context: ObjectRef,
    node: ast.AST,
    *,
    is_one_of_several: bool = False,
    remember: bool = True,
) -> None:
    facts = context.tracked_object.attributes
    device, dtype, cache = str(facts.device), facts.dtype, facts.cache
    instance = context.tracked_object.key if facts.stored else None
    names = {"context": expression_text(node)}
    end_nodes = []
    enabled, disabled = split_on(interp, context.enabled)
    for node_after, on in ((enabled, True), (disabled, False)):
        if node_after is not None:
            interp.state.current_node = node_after
            interp.state.path_condition.append(context.enabled if on else negate(context.enabled))
            interp.emit(
                e.AutocastEnter,
                node,
                instance,
                enabled=on,
                device=device,
                dtype=dtype,
                cache=cache,
                low_choice=facts.low_choice,
                is_one_of_several=is_one_of_several,
                without_gradients=bool(interp.state.no_grad) or _is_without_gradients(interp),
                names=names,
            )
            interp.state.path_condition.pop()
            end_nodes.append(interp.state.current_node)
    interp.state.current_node = interp.builder.join_nodes(end_nodes)
    interp.state.regions_entered += 1
    if remember:
        region = OpenRegion(context.enabled, device, dtype, cache=cache, may_choose_float16=facts.may_choose_float16)
        _push_region(interp, region, node)


def _is_without_gradients(interp: Interpreter) -> bool:
    """Return True if a decorator of the current function disables gradients, inside or outside of the region."""
    function = interp.state.frame.function
    return function is not None and not {"no_grad", "inference_mode"}.isdisjoint(function.decorator_names())


def _push_region(interp: Interpreter, region: OpenRegion, node: ast.AST) -> None:
    """Add a region to the open regions, with the location of its entry."""
    interp.state.region_depth += 1
    interp.state.open_regions.append(region)
    region.loop_keys = tuple(loop.key for loop in interp.state.loops)
    region.site = interp.site_of(node)
    region.source_text = expression_text(node)
    interp.latest_region = region


def without_unrelated(interp: Interpreter, context: Value, written: ast.expr) -> Value:
    """Return a context, with a null context for each unknown context whose constructor does not suggest a region."""
    if iterable_kind_of(context) or not any(option.kind in _UNKNOWN for option in context.alternatives()):
        return context
    if not _is_unrelated_context(interp, written):
        return context
    if isinstance(context, UnionValue):
        return UnionValue([(f, NullContext() if v.kind in _UNKNOWN else v) for f, v in context.options])
    return NullContext()


def _is_unrelated_context(interp: Interpreter, written: ast.expr) -> bool:
    """Return True if a callable opens a file, or an imported one creates a context whose name suggests no region."""
    if isinstance(written, ast.IfExp):
        return _is_unrelated_context(interp, written.body) and _is_unrelated_context(interp, written.orelse)
    if isinstance(written, ast.Call) and last_name(written.func) == "open":
        # `open(path)` is no import, and `path.open()` is no name.
        return True
    name = dotted_name(interp, written.func) if isinstance(written, ast.Call) else None
    return (
        name is not None
        and _REGION_WORDS.isdisjoint(re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", name))
        and not any(word in name.lower() for word in ("autocast", "precision", "sync"))
    )


def _may_be_region(context: UnionValue) -> bool:
    """Return True if a context may be one that enters autocast unseen: unknown, or of the project."""
    return any(option.kind in _UNSEEN for option in context.alternatives())


def _may_skip_sync(value: Value) -> bool:
    """Return True if a context may suspend the averaging of gradients over processes."""
    return any(isinstance(option, NoSyncContext) for option in value.alternatives())


def _is_float8(value: Value) -> bool:
    """Return True if a context may be a TransformerEngine region."""
    return any(isinstance(option, Float8Context) for option in value.alternatives())


def _expects_error(context: ast.expr) -> bool:
    """Return True if a context expects an exception, such as ``pytest.raises`` or ``self.assertRaises``."""
    func = context.func if isinstance(context, ast.Call) else context
    name = last_name(func)
    return name == "raises" or name.startswith("assertRaises")


def register(handlers: HandlerTable) -> None:
    handlers.statements.update({ast.With: with_items, ast.AsyncWith: with_items})
    unknown = _UnknownHandler()
    handlers.contexts.update(
        {
            "autocast": _AutocastHandler(),
            "choice": _UnionHandler(),
            "no sync": _NoSyncHandler(),
            "float8": _Float8Handler(),
            "grad mode": _NoGradHandler(),
            "stack": _StackHandler(),
            "tensor": _TensorHandler(),
            "unknown": unknown,
            "named": unknown,
            "helper": unknown,
        }
    )
