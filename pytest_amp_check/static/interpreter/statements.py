"""Execution of statements: control flow inside a function, and the actions that leaving a block runs."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...protocol import events as e
from ...protocol.checks import ends_program
from ...protocol.events import Event
from ...protocol.source_text import SourceText, find_access_path
from ..project.module import ImportedName, catches_import, stored_names
from ..project.syntax import children, root_name, walk
from .comparisons import ItemCounts
from .conditions import Formula, conjunction, negate
from .disabled_flags import flag_value
from .expressions import (
    EnumerateIterables,
    assign_target,
    condition_formula,
    element_of,
    emit_found_optimizer,
    execute_augmented_assign,
    is_used_as_optimizer,
    iterated_value,
    representative_of,
    version_test_of,
)
from .imports import import_value, look_up
from .interpreter import HandlerTable, Interpreter, in_frame
from .joins import join_values, record_raise, run_branches, split_on
from .microbatches import (
    draws_from_iterator,
    is_index_selecting,
    names_assigned_beside,
    names_microbatches,
    names_read,
    reads_gradients,
)
from .source_text import expression_text, names_in
from .state import Loop
from .values.containers import MappingValue, SequenceValue, UnionValue
from .values.contexts import GradMode, NullContext
from .values.definitions import ClassValue, ExternalName, Frame, FunctionValue, GeneratorValue, Instance
from .values.gradients import ParamsValue
from .values.objects import ObjectRef, StateDict
from .values.tensors import TensorValue
from .values.value import NO_CONSTANT, NONE, Const, UnknownValue, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Roles of tracked objects that a loop may iterate over.
ITERATED_ROLES = frozenset(("optimizer", "scaler"))
#: Decorators that turn a generator function into a context manager.
CONTEXT_DECORATORS = ("contextlib.contextmanager", "contextlib.asynccontextmanager")
#: Maximum length of a literal sequence that a loop is unrolled over.
MAX_UNROLLED_ITEMS = 4


def _execute_expression(interp: Interpreter, node: ast.Expr) -> None:
    value = interp.evaluate(node.value)
    for listener in interp.handlers.expression_listeners:
        listener(interp, node.value)
    if isinstance(value, ObjectRef) and value.role == "autocast" and isinstance(node.value, ast.Call):
        interp.emit(
            e.ScopeLost,
            node.value,
            value.tracked_object.key,
            how="expression",
            names={"context": expression_text(node.value)},
        )


def _execute_assign(interp: Interpreter, node: ast.Assign) -> None:
    value = flag_value(interp, node, interp.evaluate(node.value))
    for listener in interp.handlers.assignment_listeners:
        listener(interp, node)
    for target in node.targets:
        if isinstance(value, TensorValue) and is_used_as_optimizer(interp, target):
            # A method of a module may also create optimizers.
            value = interp.fresh_unknown(node.value)
        assign_target(interp, target, value)
        if isinstance(node.value, ast.Call) and isinstance(value, UnknownValue):
            emit_found_optimizer(interp, target, value)


def _execute_ann_assign(interp: Interpreter, node: ast.AnnAssign) -> None:
    if node.value is not None:
        assign_target(interp, node.target, interp.evaluate(node.value))


def _execute_return(interp: Interpreter, node: ast.Return) -> None:
    value = interp.evaluate(node.value) if node.value is not None else NONE
    run_unwind_actions(interp, interp.state.frame.unwind_base)
    if interp.state.current_node is not None:
        conditions = interp.state.path_condition[interp.state.frame.path_base :]
        # Above 8 conditions, a new predicate stands for the path of this return.
        condition = (
            interp.shorten_formula(conjunction(*conditions))
            if len(conditions) <= 8
            else interp.predicate_formula(("return", id(node)), "", interp.current_loops())
        )
        interp.builder.add_exit(
            interp.state.frame.returns, (interp.state.current_node, condition, value, interp.state.heap)
        )
        interp.builder.return_count += 1
    interp.state.current_node = None


def _execute_raise(interp: Interpreter, node: ast.Raise) -> None:
    for child in (node.exc, node.cause):
        if child is not None:
            interp.evaluate(child)
    record_raise(interp)
    interp.builder.event_count += 1
    interp.state.current_node = None


def _execute_jump(interp: Interpreter, node: ast.Break | ast.Continue) -> None:
    if interp.state.loops:
        loop = interp.state.loops[-1]
        run_unwind_actions(interp, loop.unwind_base)
        if interp.state.current_node is not None:
            if isinstance(node, ast.Continue):
                _mark_skip(interp, "continue", node)
            exits = loop.breaks if isinstance(node, ast.Break) else loop.continues
            interp.builder.add_exit(exits, (interp.state.current_node, interp.state.frame.vars, interp.state.heap))
    interp.builder.jump_count += 1
    interp.state.current_node = None


def _mark_skip(interp: Interpreter, source_text: str, node: ast.AST) -> None:
    """Add a graph node that records a statement that may skip the rest of an iteration."""
    skip_node = interp.builder.add_node()
    interp.builder.add_edge(interp.state.current_node, skip_node)
    interp.builder.nodes[skip_node].skip_statement = source_text, interp.site_of(node)
    interp.state.current_node = skip_node


def run_unwind_actions(interp: Interpreter, base: int) -> None:
    """Run the actions of the open blocks above ``base``: exits of ``with`` statements and ``finally`` blocks."""
    saved = interp.state.unwind_actions
    for i in range(len(saved) - 1, base - 1, -1):
        if interp.state.current_node is None:
            break
        interp.state.unwind_actions = saved[:i]
        saved[i]()
    interp.state.unwind_actions = saved


def _execute_delete(interp: Interpreter, node: ast.Delete) -> None:
    for target in node.targets:
        if isinstance(target, ast.Name):
            interp.state.frame.vars.pop(target.id, None)
        elif isinstance(target, ast.Subscript):
            holder, index = interp.evaluate(target.value), interp.evaluate(target.slice)
            if isinstance(holder, MappingValue):
                holder.items.pop(index.value, None)


def _execute_assert(interp: Interpreter, node: ast.Assert) -> None:
    formula = condition_formula(interp, node.test)
    _notify_required_condition(interp, node.test)
    if not isinstance(formula, bool):
        yes, _ = split_on(interp, formula)
        interp.state.current_node = yes
        interp.state.path_condition.append(formula)


def _execute_import(interp: Interpreter, node: ast.Import) -> None:
    for alias in node.names:
        head = alias.name.partition(".")[0]
        interp.state.frame.vars[alias.asname or head] = import_value(
            interp, ImportedName(alias.name if alias.asname else head, "", 0)
        )


def _execute_import_from(interp: Interpreter, node: ast.ImportFrom) -> None:
    for alias in node.names:
        if alias.name != "*":
            origin = ImportedName(node.module or "", alias.name, node.level)
            interp.state.frame.vars[alias.asname or alias.name] = import_value(interp, origin)


def _define_function(interp: Interpreter, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    function = interp.state.frame.module.functions[node]
    interp.captured_frames.append(interp.state.frame)
    value: Value = FunctionValue(
        function, interp.state.frame.parent if interp.state.frame.is_class_body else interp.state.frame
    )
    for decorator in reversed(node.decorator_list):
        value = apply_decorator(interp, decorator, value, node)
    interp.state.frame.vars[node.name] = value
    if isinstance(value, FunctionValue):
        interp.function_values[node] = value


def apply_decorator(interp: Interpreter, decorator: ast.expr, value: Value, node: ast.AST) -> Value:
    """Return the decorated function. An unknown decorator is assumed to change nothing."""
    if isinstance(decorator, ast.Name) and decorator.id in ("staticmethod", "classmethod", "property"):
        return value
    applied = interp.evaluate(decorator)
    if isinstance(applied, ExternalName):
        interp.call_value(applied, [], {}, decorator)
    return _decorate_function(interp, applied, value, decorator, node) if isinstance(value, FunctionValue) else value


def _decorate_function(
    interp: Interpreter, applied: Value, value: FunctionValue, decorator: ast.expr, node: ast.AST
) -> FunctionValue:
    function = value.function
    if isinstance(applied, FunctionValue):
        made = interp.call_value(applied, [value], {}, node)
        return made if isinstance(made, FunctionValue) else value
    if isinstance(applied, ExternalName) and applied.name in CONTEXT_DECORATORS:
        function.is_context_manager = True
    region = holds_autocast(applied)
    if region and (function.is_generator or isinstance(function.node, ast.AsyncFunctionDef)):
        key = applied.tracked_object.key if isinstance(applied, ObjectRef) else None
        interp.emit(e.ScopeLost, decorator, key, how="generator", names={"context": expression_text(decorator)})
        return value
    if region or isinstance(applied, GradMode):
        return FunctionValue(function, value.frame, value.receiver, (*value.wrappers, applied))
    return value


def _define_class(interp: Interpreter, node: ast.ClassDef) -> None:
    cls = interp.state.frame.module.classes[node]
    if interp.state.frame.parent is None:
        for base in node.bases:
            root = root_name(base)
            if root in interp.state.frame.vars:
                interp.base_name_values[cls, root] = interp.state.frame.vars[root]
    enclosing = interp.state.frame.parent if interp.state.frame.is_class_body else interp.state.frame
    if enclosing is not None and enclosing.parent is not None:
        interp.enclosing_frames[cls] = enclosing
        interp.captured_frames.append(enclosing)
    interp.state.frame.vars[node.name] = ClassValue(cls, enclosing)
    if not cls.used_names and not _may_override(interp, node):
        return
    frame = Frame(interp.state.frame.function, interp.state.frame, interp.state.frame.caller)
    frame.is_class_body = True
    interp.captured_frames.append(frame)
    frame.path_base, frame.unwind_base = len(interp.state.path_condition), len(interp.state.unwind_actions)
    in_frame(interp, frame, lambda: interp.execute_block(node.body))
    interp.class_vars[node] = frame.vars


def _may_override(interp: Interpreter, node: ast.ClassDef) -> bool:
    """Return True if a class may override an attribute of a base class in the project."""
    if not any(isinstance(each, (ast.Assign, ast.AnnAssign)) for each in node.body):
        return False
    return any(isinstance(interp.state.frame.vars.get(root_name(base)), ClassValue) for base in node.bases)


def _execute_if(interp: Interpreter, node: ast.If) -> None:
    if is_main_guard(node.test):
        interp.execute_block(node.body)
        return
    formula = condition_formula(interp, node.test)
    if any(ends_program(part) for part in (*node.body, *node.orelse)):
        _notify_required_condition(interp, node.test)
    is_fallback = interp.module.may_check_version and _is_version_test(interp, node.test)
    interp.state.fallback_depth += is_fallback
    yes, no = run_branches(
        interp, formula, lambda: interp.execute_block(node.body), lambda: interp.execute_block(node.orelse)
    )
    interp.state.fallback_depth -= is_fallback
    if not isinstance(formula, bool) and yes != no:
        # One branch ended: the code that follows runs under the condition of the other branch.
        interp.state.fallback_depth += is_fallback
        interp.state.path_condition.append(formula if yes else negate(formula))


def _notify_required_condition(interp: Interpreter, test: ast.expr) -> None:
    """Notify the listeners of a condition without which the program does not continue."""
    for listener in interp.handlers.required_condition_listeners:
        listener(interp, test)


def _is_version_test(interp: Interpreter, test: ast.expr) -> bool:
    """Return True if a condition asks about the installed torch, or uses a version imported under another name."""
    asks, names = version_test_of(interp, test)
    if asks:
        return True
    values = [look_up(interp, name) for name in names]
    return any(isinstance(value, ExternalName) and "version" in value.name.lower() for value in values)


def _execute_match(interp: Interpreter, node: ast.Match) -> None:
    subject = interp.evaluate(node.subject)
    loops = subject.loops

    def execute_case(index: int) -> None:
        if index == len(node.cases):
            return
        arm = node.cases[index]
        for child in walk(arm.pattern):
            name = getattr(child, "name", None) or getattr(child, "rest", None)
            if isinstance(name, str):
                interp.state.frame.vars[name] = interp.fresh_unknown(arm.pattern, name)
        if isinstance(arm.pattern, ast.MatchAs) and arm.pattern.pattern is None:
            formula: Formula = True
        elif isinstance(arm.pattern, (ast.MatchValue, ast.MatchSingleton)):
            formula = condition_formula(interp, _as_comparison(node.subject, arm.pattern))
        else:
            question = ("case", subject.identity_key(interp.unique_number), ast.dump(arm.pattern))
            formula = interp.predicate_formula(question, SourceText(arm.pattern), loops, arm.pattern)
        if arm.guard is not None:
            formula = conjunction(formula, condition_formula(interp, arm.guard))
        run_branches(interp, formula, lambda: interp.execute_block(arm.body), lambda: execute_case(index + 1))

    execute_case(0)


def _execute_try(interp: Interpreter, node: ast.Try) -> None:
    is_fallback = any(catches_import(handler) for handler in node.handlers)
    interp.state.fallback_try_depth += is_fallback
    before_vars, before_heap = dict(interp.state.frame.vars), dict(interp.state.heap)
    raised: list[int] = [interp.state.current_node] if interp.state.current_node is not None else []
    outside = [(nodes, len(nodes)) for nodes in interp.state.raising_nodes]
    if outside and interp.state.first_tried_statement is node:
        # Every exception raised in the outer body is raised in this statement.
        outside[-1] = outside[-1][0], 0
    base = len(interp.state.unwind_actions)
    if node.finalbody:
        frame, handler_count = interp.state.frame, len(interp.state.raising_nodes)
        interp.state.unwind_actions = [
            *interp.state.unwind_actions,
            lambda: in_frame(interp, frame, lambda: _execute_finally_on_exit(interp, node, handler_count)),
        ]
    interp.state.raising_nodes.append(raised)
    interp.state.try_depth += bool(node.handlers)
    depth, entered = interp.state.region_depth, interp.state.regions_entered
    interp.state.first_tried_statement = node.body[0]
    interp.execute_block(node.body)
    interp.state.try_depth -= bool(node.handlers)
    interp.state.raising_nodes.pop()
    if interp.state.current_node is not None:
        interp.execute_block(node.orelse)
    interp.state.fallback_try_depth -= is_fallback
    interp.state.fallback_depth += is_fallback
    ends = [(interp.state.current_node, interp.state.frame.vars, interp.state.heap)]
    in_try = {**before_vars, **interp.state.frame.vars}
    for handler in node.handlers:
        interp.state.current_node = interp.builder.join_nodes(_raising_nodes(interp, raised))
        if interp.state.regions_entered != entered:
            interp.emit(e.AutocastExit, handler, depth=depth)
        interp.state.frame.vars, interp.state.heap = dict(in_try), dict(before_heap)
        _execute_handler(interp, handler)
        ends.append((interp.state.current_node, interp.state.frame.vars, interp.state.heap))
    interp.state.unwind_actions = interp.state.unwind_actions[:base]
    interp.state.fallback_depth -= is_fallback
    # No later condition asks if the body raised. The values come from the body of the ``try``.
    live = [(cur, variables, heap) for cur, variables, heap in ends if cur is not None]
    interp.state.current_node = None
    _merge_exits(interp, live, joins_values=not is_fallback)
    if not live and node.finalbody and raised and not node.handlers:
        _execute_finally_after_raise(interp, node, raised)
        return
    escaping = [(nodes, before, len(nodes)) for nodes, before in outside]
    happened = interp.builder.event_count
    interp.execute_block(node.finalbody)
    # The analysis runs ``finally`` once more for all exceptions together. A run for each nested ``try`` doubles the
    # cost per level.
    if escaping and not interp.state.is_unwinding_error and interp.builder.event_count != happened:
        _exception_edges(
            interp,
            node,
            escaping,
            raised[:1] if node.handlers else raised,
            depth if interp.state.regions_entered != entered else None,
        )


def _execute_finally_on_exit(interp: Interpreter, node: ast.Try, handler_count: int) -> None:
    """Execute a ``finally`` block on a jump. Exceptions inside go to the outer ``handler_count`` handlers."""
    handlers = interp.state.raising_nodes
    interp.state.raising_nodes = handlers[:handler_count]
    interp.execute_block(node.finalbody)
    interp.state.raising_nodes = handlers


def _execute_handler(interp: Interpreter, handler: ast.ExceptHandler) -> None:
    if interp.state.current_node is not None:
        caught = f" {SourceText(handler.type)}" if handler.type is not None else ""
        _mark_skip(interp, f"except{caught}", handler)
    if handler.name:
        interp.state.frame.vars[handler.name] = interp.fresh_unknown(handler, handler.name)
    interp.state.handler_depth += 1
    interp.execute_block(handler.body)
    interp.state.handler_depth -= 1


#: Events that allocate memory and may therefore raise an out-of-memory error.
_MEMORY_EVENTS = (e.Forward, e.Scale, e.Backward)


def _raising_nodes(interp: Interpreter, nodes: list[int]) -> list[int]:
    """Return the graph nodes of a ``try`` body after which an exception may occur.

    Unscaling, clipping, steps, updates and clearing allocate no new memory. Until the next computation, only explicit
    ``raise`` statements count.
    """
    kept: list[int] = []
    stepped: list[int] = []
    updated: list[int] = []
    for node in nodes:
        event = interp.builder.nodes[node].event
        if isinstance(event, e.Update):
            stepped.clear()
        elif isinstance(event, e.ZeroGrad):
            updated.clear()
        elif isinstance(event, _MEMORY_EVENTS):
            kept += updated
            updated.clear()
        if event is not None and (stepped or isinstance(event, (e.ScalerStep, e.Unscale))):
            stepped.append(node)
        elif event is not None and (updated or isinstance(event, (e.Step, e.Update))):
            updated.append(node)
        else:
            kept.append(node)
    return kept + stepped + updated


def _execute_finally_after_raise(interp: Interpreter, node: ast.Try, raised: list[int]) -> None:
    interp.state.current_node = interp.builder.join_nodes(raised)
    interp.execute_block(node.finalbody)
    if interp.state.raising_nodes and interp.state.current_node is not None:
        interp.state.raising_nodes[-1].append(interp.state.current_node)
        # Count an event: the node is still needed, and the graph builder must not remove the path to the node.
        interp.builder.event_count += 1
    interp.state.current_node = None


def _exception_edges(
    interp: Interpreter, node: ast.Try, escaping: list[tuple[list[int], int, int]], raised: list[int], depth: int | None
) -> None:
    """Route exceptions from a ``try`` body through its ``finally`` block to the outer handlers.

    ``depth`` is the region depth outside the statement, or None if the body entered no region.
    """
    after = interp.state.current_node, interp.state.frame.vars, interp.state.heap
    interp.state.frame.vars, interp.state.heap = dict(after[1]), dict(after[2])
    nodes, before, end = escaping[-1]
    leading = list(dict.fromkeys([*nodes[before:end], *raised]))
    for nodes, before, end in escaping:
        del nodes[before:end]
    if interp.state.loops and any(_is_step_node(interp, candidate) for candidate in leading):
        leading = _explicit_raises(interp, leading)
    interp.state.current_node = interp.builder.join_nodes(_raising_nodes(interp, leading))
    if depth is not None:
        interp.emit(e.AutocastExit, node.finalbody[0], depth=depth)
    interp.state.is_unwinding_error = True
    interp.execute_block(node.finalbody)
    interp.state.is_unwinding_error = False
    if interp.state.current_node is not None:
        for nodes, _, _ in escaping:
            nodes.append(interp.state.current_node)
    interp.state.current_node, interp.state.frame.vars, interp.state.heap = after


def _execute_for(interp: Interpreter, node: ast.For | ast.AsyncFor) -> None:
    iterated = interp.evaluate(node.iter)
    items, iterable = _few_items(interp, iterated) or _only_index(interp, iterated), iterated_value(iterated)
    if items is None and _is_uniform_loop(interp, node, iterable):
        # A body that does the same to every parameter or optimizer runs once, with a representative.
        items = [representative_of(interp, iterable, node.iter)]
    if items is not None:
        _unroll_loop(interp, node, items)
        return
    over_microbatches = iterable.microbatches or (
        iterable.iterable_kind == "range"
        and not is_index_selecting(node.body, node.target)
        and _draws_own_data(interp, node)
    )

    def bind_target() -> int | None:
        element = element_of(interp, iterable, node.iter)
        if isinstance(iterable, StateDict) and isinstance(node.target, ast.Tuple) and len(node.target.elts) == 2:
            # A loop that copies a state dict entry by entry: an entry stands for the whole state.
            element = SequenceValue([element, iterable])
        assign_target(interp, node.target, element, is_new=False)
        return iterable.end_node if isinstance(iterable, GeneratorValue) else None

    _execute_loop(interp, node, bind_target, None, over_microbatches=over_microbatches)


def _is_uniform_loop(interp: Interpreter, node: ast.For | ast.AsyncFor, iterable: Value) -> bool:
    """Return True if a loop does the same to each item, so that one iteration stands for all iterations."""
    return (
        _is_of_params(iterable)
        or _is_of_objects(iterable)
        or any(_is_object(interp, name) for name in names_in(node.target))
        or _chooses_object(interp, node)
    )


def _is_object(interp: Interpreter, name: str | None) -> bool:
    """Return True if the file uses a name as an optimizer or a scaler."""
    return interp.state.frame.module.role_by_text.get(name or "") in ITERATED_ROLES


class _LoopStatements(dict[ast.AST, list[ast.AST]]):
    """Assignments and calls of loop bodies, without the bodies of nested functions, by loop."""


def _chooses_object(interp: Interpreter, node: ast.For | ast.AsyncFor) -> bool:
    """Return True if the loop variable selects another optimizer or scaler in each iteration."""
    if not ITERATED_ROLES.intersection(interp.state.frame.module.role_by_text.values()):
        return False
    names = names_in(node.target)
    statements = interp.file_data(_LoopStatements)
    if node not in statements:
        statements[node] = [inner for inner in _own_nodes(node.body) if isinstance(inner, (ast.Assign, ast.Call))]
    found = (_chosen_object(interp, inner) for inner in statements[node])
    return any(chosen is not None and not names.isdisjoint(names_in(chosen.slice)) for chosen in found)


def _chosen_object(interp: Interpreter, node: ast.AST) -> ast.Subscript | None:
    """Return the container item that a statement uses as an optimizer or a scaler, or None.

    The use shows in the name that the item is assigned to, or in the call that contains the item.
    """
    chosen: ast.expr | None = None
    match node:
        case ast.Assign(value=ast.Subscript() as value, targets=targets):
            chosen = value if any(_is_object(interp, find_access_path(target)) for target in targets) else None
        case ast.Call(func=ast.Attribute(attr="step" | "unscale_"), args=[ast.Subscript() as value, *_]):
            chosen = value
        case ast.Call(func=ast.Attribute(attr="zero_grad", value=ast.Subscript() as value)):
            chosen = value
    return chosen if isinstance(chosen, ast.Subscript) else None


def _unroll_loop(interp: Interpreter, node: ast.For | ast.AsyncFor, items: list[Value]) -> None:
    """Execute the body of a loop once for each of a few known items."""
    breaks: list[tuple[int, dict[str, Value], dict[tuple[int, str], Value]]] = []
    for number, item in enumerate(items):
        if interp.state.current_node is None:
            break
        loop = Loop(-1, len(interp.state.unwind_actions))
        loop.iteration = number
        interp.state.loops.append(loop)
        base = len(interp.state.path_condition)
        assign_target(interp, node.target, item)
        interp.execute_block(node.body)
        del interp.state.path_condition[base:]
        interp.state.loops.pop()
        _merge_exits(interp, [*loop.continues])
        breaks.extend(loop.breaks)
    interp.execute_block(node.orelse)
    _merge_exits(interp, breaks)


def _merge_exits(
    interp: Interpreter,
    ends: list[tuple[int, dict[str, Value], dict[tuple[int, str], Value]]],
    *,
    joins_values: bool = True,
) -> None:
    """Join other exits of a block into the current path.

    Without ``joins_values`` the values of the first path stand, as for a fallback to another version of a library.
    """
    for cur, variables, heap in ends:
        state = interp.state
        if state.current_node is None:
            state.current_node, state.frame.vars, state.heap = cur, variables, heap
            continue
        own_vars, own_heap = state.frame.vars, state.heap
        differing = [name for name, value in variables.items() if joins_values and _differs(own_vars.get(name), value)]
        differing_attributes = [
            key for key, value in heap.items() if joins_values and _differs(own_heap.get(key), value)
        ]
        state.frame.vars, state.heap = {**variables, **own_vars}, {**heap, **own_heap}
        if not (differing or differing_attributes):
            state.current_node = interp.builder.join_nodes((state.current_node, cur))
            continue
        # The predicate keeps the value of an exit together with the events before the exit.
        predicate = interp.predicate_for(("exit", interp.graph.name, cur), "", interp.current_loops()).key
        left_here = ("test", predicate)
        for name in differing:
            state.frame.vars[name] = join_values(interp, left_here, variables[name], own_vars[name], name)
        for key in differing_attributes:
            state.heap[key] = join_values(interp, left_here, heap[key], own_heap[key], key[1])
        joined = interp.builder.add_node()
        for node, truth in ((cur, True), (state.current_node, False)):
            interp.builder.add_edge(node, joined, predicate, truth)
        state.current_node = joined


def _differs(value: Value | None, other: Value) -> bool:
    """Return True if a join must keep both values: an object and another value, or a constant and another value.

    Other pairs are numbers and tensors, for which the value of the main path stands.
    """
    if value is None or value is other or value.value is other.value is not NO_CONSTANT:
        return False
    return value.is_relevant or other.is_relevant or value.value is not NO_CONSTANT


def _execute_while(interp: Interpreter, node: ast.While) -> None:
    _execute_loop(
        interp,
        node,
        lambda: None,
        node.test,
        over_microbatches=any(loop.node for loop in interp.state.loops) and draws_from_iterator(node.body),
    )


def _draws_own_data(interp: Interpreter, node: ast.For | ast.AsyncFor) -> bool:
    """Return True if each iteration of a loop draws its own data instead of using the data of the outer iteration."""
    if draws_from_iterator(node.body):
        return True
    outer = interp.state.loops[-1] if interp.state.loops else None
    if outer is None or outer.node is None or outer.frame is not interp.state.frame:
        return False
    return not any(
        _is_data(interp.state.frame.vars.get(name))
        for name in names_read(node.body) & names_assigned_beside(outer.node, node)
    )


def _execute_loop(
    interp: Interpreter,
    node: ast.For | ast.AsyncFor | ast.While,
    bind: Callable[[], int | None],
    test: ast.expr | None,
    *,
    over_microbatches: bool,
) -> None:
    if interp.state.current_node is None:
        return
    body, orelse = node.body, node.orelse
    loop = Loop(_loop_key(interp, node), len(interp.state.unwind_actions))
    loop.node, loop.frame = node, interp.state.frame
    is_inner = any(outer.node is not None for outer in interp.state.loops)
    loop.is_named_microbatches = not over_microbatches and is_inner and names_microbatches(node)
    loop.over_microbatches = (over_microbatches or loop.is_named_microbatches) and not reads_gradients(body)
    savepoint = interp.builder.set_savepoint(interp.state.current_node)
    _havoc_loop_variables(interp, body, loop, bind)
    head = interp.builder.add_node()
    asked_first = interp.predicates.predicate_for(("first turn", loop.key), "", None, frozenset())
    asked_first.asks_first_iteration = True
    first = asked_first.key
    _start_iteration(interp, head, first, True)
    interp.builder.loop_heads.append((head, loop.key))
    before_vars, before_heap = interp.state.frame.vars, interp.state.heap
    interp.state.frame.vars, interp.state.heap = dict(before_vars), dict(before_heap)
    interp.state.loops.append(loop)
    base = len(interp.state.path_condition)
    interp.state.current_node = head
    interp.state.current_node, after_loop = (
        split_on(interp, condition_formula(interp, test)) if test is not None else _enter_data_loop(interp, head, first)
    )
    exit_node = after_loop
    after_loop = interp.builder.join_nodes((after_loop, bind()))
    raising = [(nodes, len(nodes)) for nodes in interp.state.raising_nodes]
    interp.execute_block(body)
    _drop_raises_in_training(interp, raising)
    del interp.state.path_condition[base:]
    _merge_exits(interp, loop.continues)
    if loop.last_iteration_predicates and exit_node is not None and test is None:
        _leave_after_last_iteration(interp, loop, head, exit_node)
    _start_iteration(interp, head, first, False)
    open_ended = _defers_step(interp, head, loop)
    after = (interp.state.current_node, interp.state.frame.vars, interp.state.heap)
    interp.state.loops.pop()
    interp.state.current_node = after_loop
    if (
        not open_ended
        and interp.builder.event_count != savepoint.event_count
        and interp.predicates.counts_iterations(loop.key)
    ):
        interp.emit(e.LoopExit, body[0])
    if after[0] is not None:
        interp.state.frame.vars, interp.state.heap = {**before_vars, **after[1]}, {**before_heap, **after[2]}
    else:
        interp.state.frame.vars, interp.state.heap = dict(before_vars), dict(before_heap)
    # The jumps of the loop itself are done; jumps in the ``else`` belong to an outer loop.
    interp.builder.jump_count = savepoint.jump_count
    interp.execute_block(orelse)
    _merge_exits(interp, loop.breaks)
    if open_ended:
        interp.emit(e.LoopExit, body[0], complete=True)
    interp.state.current_node = interp.builder.rollback_if_empty(savepoint, interp.state.current_node)


def _drop_raises_in_training(interp: Interpreter, raising: list[tuple[list[int], int]]) -> None:
    """Drop the exception edges of a loop that trains: an outer handler restarts training or stops the program.

    Edges from explicit ``raise`` statements stay.
    """
    for nodes, before in raising:
        if any(_is_step_node(interp, node) for node in nodes[before:]):
            nodes[before:] = _explicit_raises(interp, nodes[before:])


def _is_step_node(interp: Interpreter, node: int) -> bool:
    event = interp.builder.nodes[node].event
    return isinstance(event, (e.ScalerStep, e.Step))


def _explicit_raises(interp: Interpreter, nodes: list[int]) -> list[int]:
    """Return the raising nodes at which the code itself raises an exception."""
    return [node for node in nodes if interp.builder.nodes[node].event is None]


def _loop_key(interp: Interpreter, node: ast.AST) -> int:
    """Return the number of the loop at a location, for the current iterations of the unrolled outer loops."""
    location = (interp.location_key(node), tuple((loop.key, loop.iteration) for loop in interp.state.loops))
    key = interp.loop_keys.get(location)
    if key is None:
        interp.last_serial += 1
        key = interp.loop_keys[location] = interp.last_serial
    return key


def _enter_data_loop(interp: Interpreter, head: int, first: int) -> tuple[int, int]:
    """Return the entry and exit nodes of a loop over data. The loop runs at least once: empty data train nothing."""
    entry, after_loop = interp.builder.add_node(), interp.builder.add_node()
    interp.builder.add_edge(head, entry)
    interp.builder.add_edge(head, after_loop, first, False)
    return entry, after_loop


def _leave_after_last_iteration(interp: Interpreter, loop: Loop, head: int, exit_node: int) -> None:
    """Leave a loop only after the iteration that the code itself recognizes as the last."""
    if interp.state.current_node is None:
        return
    (key, truth), *others = loop.last_iteration_predicates.items()
    for other, other_truth in others:
        for one, its, two, theirs in ((key, truth, other, other_truth), (other, other_truth, key, truth)):
            interp.graph.predicates[one].implications += [(its, two, theirs), (not its, two, not theirs)]
    nodes = interp.builder.nodes
    nodes[head].edges = [edge for edge in nodes[head].edges if edge[0] != exit_node]
    again = interp.builder.add_node()
    interp.builder.add_edge(interp.state.current_node, exit_node, key, truth)
    interp.builder.add_edge(interp.state.current_node, again, key, not truth)
    interp.state.current_node = again


def _defers_step(interp: Interpreter, head: int, loop: Loop) -> bool:
    """Return True if a loop runs backward and leaves the step to the code after the loop.

    Mark the events of such a loop.
    """
    events = [node.event for node in interp.builder.nodes[head:] if node.event is not None]
    backwards = [event for event in events if isinstance(event, e.Backward)]
    if not backwards or any(event.opaque or event.given for event in backwards):
        return False
    if any(
        isinstance(event, (e.ScalerStep, e.Step)) or (isinstance(event, e.Handoff) and e.STEPS in event.about)
        for event in events
    ):
        return False
    for event in events:
        if isinstance(event, e.LoopExit):
            # The window that contains the inner loop continues.
            event.within = True
        elif isinstance(event, e.Backward) and (loop.over_microbatches or not event.inside):
            event.inside = e.MICRO if loop.over_microbatches else e.LOOSE
            event.guessed = loop.is_named_microbatches
    if not loop.over_microbatches and loop.node is not None and not reads_gradients(loop.node.body):
        _mark_discarding_clears(loop, events)
    return True


def _mark_discarding_clears(loop: Loop, events: list[Event]) -> None:
    """Mark the clears before a backward in each iteration: they discard what the earlier iterations have added."""
    for number, event in enumerate(events):
        if not isinstance(event, e.ZeroGrad) or not event.loops or event.loops[-1] != loop.key:
            continue
        if any(isinstance(later, e.Backward) for later in events[number:]):
            event.discards = True


def _start_iteration(interp: Interpreter, head: int, first: int, truth: bool) -> None:
    """Add the edge to a loop head with the truth of the predicate "first iteration"."""
    if interp.state.current_node is not None:
        before = interp.builder.add_node()
        interp.builder.add_edge(interp.state.current_node, before)
        interp.builder.nodes[before].forgotten_predicates |= 1 << first
        interp.builder.add_edge(before, head, first, truth)


def _havoc_loop_variables(
    interp: Interpreter, body: list[ast.stmt], loop: Loop, bind: Callable[[], int | None]
) -> None:
    """Havoc the variables that the loop body assigns: set them to unknown at the loop head.

    A variable with a tracked object or None instead gets a dry run of the body, which shows the value after an
    iteration.
    """
    names, attributes = stored_names(body)
    assigned = [name for name in names if name in interp.state.frame.vars]
    heap_keys = [key for key in interp.state.heap if key[1] in attributes] if attributes else []
    values = [*(interp.state.frame.vars[name] for name in assigned), *(interp.state.heap[key] for key in heap_keys)]
    if interp.statement_count < 4_000 and any(_may_become_object(value) for value in values):
        after_vars, after_heap = _dry_run_iteration(interp, body, loop, bind)
    else:
        after_vars, after_heap = {}, {}
    key = frozenset((loop.key,))
    for name in assigned:
        value = interp.state.frame.vars[name]
        interp.state.frame.vars[name] = _havoc_value(interp, value, after_vars.get(name), name, key)
    for heap_key in heap_keys:
        interp.store_attribute(
            *heap_key, _havoc_value(interp, interp.state.heap[heap_key], after_heap.get(heap_key), heap_key[1], key)
        )


def _havoc_value(interp: Interpreter, value: Value, after: Value | None, name: str, key: frozenset[int]) -> Value:
    if _may_become_object(value):
        if after is None or after is value or isinstance(after, UnknownValue):
            return value
        formula = interp.predicate_formula(("first turn", *key), "", frozenset())
        return join_values(interp, formula, value, after, name)
    if not isinstance(value, (Const, UnknownValue)):
        return value.as_stored()
    interp.last_serial += 1
    made = interp.unknown_value(("carried", interp.last_serial, name), name, key)
    start = value.value
    if isinstance(start, int) and not isinstance(start, bool):
        made.is_counter, made.first_value = True, start
        made.is_iteration_count = True
    elif value.is_counter:
        made.is_counter, made.first_value = (
            True,
            None if value.first_value is None else value.first_value + value.offset,
        )
    made.dtype_info = value.dtype_info
    return made


def _dry_run_iteration(
    interp: Interpreter, body: list[ast.stmt], loop: Loop, bind: Callable[[], int | None]
) -> tuple[dict[str, Value], dict[tuple[int, str], Value]]:
    """Analyze one iteration of a loop without recording events. Return the variables and the heap afterwards."""
    after: list[Any] = []

    def run_iteration() -> None:
        trial = Loop(loop.key, len(interp.state.unwind_actions))
        interp.state.loops.append(trial)
        bind()
        interp.execute_block(body)
        _merge_exits(interp, trial.continues)
        after.extend((interp.state.frame.vars, interp.state.heap))

    interp.speculate(run_iteration)
    return after[0], after[1]


def holds_autocast(value: Value) -> bool:
    return any(option.role == "autocast" for option in value.alternatives())


def _may_become_object(value: Value) -> bool:
    """Return True if a variable that a loop assigns may hold a value that is relevant to the protocol."""
    return value.value is None or isinstance(
        value, (ObjectRef, UnionValue, Instance, NullContext, ParamsValue, FunctionValue)
    )


def _few_items(interp: Interpreter, value: Value) -> list[Value] | None:
    if value.iterable_kind == "enumerate" and isinstance(value, UnknownValue):
        first, items = value.first_value, _few_items(interp, interp.file_data(EnumerateIterables)[value.key])
        # Literal batches, as in a test, are data: a few of them do not show the effect of every iteration.
        if items is None or first is None or all(_is_data(item) for item in items):
            return None
        return [SequenceValue([Const(first + index), item]) for index, item in enumerate(items)]
    if isinstance(value, MappingValue):
        # The keys give access to the values.
        held = _few_items(interp, SequenceValue(list(value.items.values()), is_open=value.is_open))
        return None if held is None else [Const(key) for key in value.items]
    if not isinstance(value, SequenceValue) or value.is_open or not 0 < len(value.items) <= MAX_UNROLLED_ITEMS:
        return None
    worth = (ObjectRef, UnionValue, Instance, SequenceValue, FunctionValue)
    return value.items if any(isinstance(item, worth) for item in value.items) else None


def _only_index(interp: Interpreter, value: Value) -> list[Value] | None:
    """Return the index of an inner loop over ``range(1)``, or None. An outer loop counts epochs, which users change."""
    if value.iterable_kind != "range" or value.first_value != 0 or not isinstance(value, UnknownValue):
        return None
    count = interp.file_data(ItemCounts).get(value.key)
    is_inner = any(loop.node is not None for loop in interp.state.loops)
    return [Const(0)] if is_inner and count is not None and count.value == 1 else None


def _is_of_params(value: Value) -> bool:
    if isinstance(value, SequenceValue) and value.items:
        return all(_is_of_params(item) for item in value.items if not isinstance(item, UnknownValue)) and any(
            _is_of_params(item) for item in value.items
        )
    return isinstance(value, ParamsValue)


def _is_data(value: Value | None) -> bool:
    """Return True if a variable may hold training data."""
    if isinstance(value, UnknownValue):
        return not value.is_counter
    return isinstance(value, (TensorValue, SequenceValue))


def _is_of_objects(value: Value) -> bool:
    """Return True if an open sequence has one tracked object that stands for all items, as a comprehension returns."""
    if not isinstance(value, SequenceValue) or not value.is_open or len(value.items) != 1:
        return False
    (item,) = value.items
    parts = item.items if isinstance(item, SequenceValue) and not item.is_open else [item]
    return any(part.role in ITERATED_ROLES for part in parts)


def is_main_guard(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def _as_comparison(subject: ast.expr, pattern: ast.MatchValue | ast.MatchSingleton) -> ast.expr:
    """Return the comparison of a ``case`` as an expression, so that the predicate is the same as in an ``if``."""
    value = pattern.value if isinstance(pattern, ast.MatchValue) else ast.Constant(pattern.value)
    operator = ast.Eq() if isinstance(pattern, ast.MatchValue) else ast.Is()
    comparison = ast.copy_location(ast.Compare(subject, [operator], [value]), pattern)
    return ast.fix_missing_locations(comparison)


def _own_nodes(statements: list[ast.stmt]) -> list[ast.AST]:
    """Return the nodes of statements in source order, without the bodies of nested functions and classes."""
    found: list[ast.AST] = []
    stack: list[ast.AST] = [*reversed(statements)]
    while stack:
        node = stack.pop()
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            found.append(node)
            stack.extend(reversed(children(node)))
    return found


def register(handlers: HandlerTable) -> None:
    handlers.statements.update(
        {
            ast.Expr: _execute_expression,
            ast.Assign: _execute_assign,
            ast.AnnAssign: _execute_ann_assign,
            ast.AugAssign: execute_augmented_assign,
            ast.Return: _execute_return,
            ast.Raise: _execute_raise,
            ast.Break: _execute_jump,
            ast.Continue: _execute_jump,
            ast.Delete: _execute_delete,
            ast.Assert: _execute_assert,
            ast.Import: _execute_import,
            ast.ImportFrom: _execute_import_from,
            ast.FunctionDef: _define_function,
            ast.AsyncFunctionDef: _define_function,
            ast.ClassDef: _define_class,
            ast.If: _execute_if,
            ast.Match: _execute_match,
            ast.Try: _execute_try,
            ast.For: _execute_for,
            ast.AsyncFor: _execute_for,
            ast.While: _execute_while,
        }
    )
    if hasattr(ast, "TryStar"):
        handlers.statements[ast.TryStar] = _execute_try
