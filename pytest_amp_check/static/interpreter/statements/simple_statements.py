"""Statements without a body: assignments, jumps, deletions, assertions and imports."""

from __future__ import annotations

import ast

from ....protocol import events as e
from ...project.module import ImportedName
from ..conditions import Formula, conjunction, negate, require
from ..disabled_flags import flag_value
from ..expressions.assignments import assign_target
from ..expressions.conditional import condition_formula
from ..expressions.names import emit_found_optimizer
from ..imports import import_value, look_up
from ..interpreter import Interpreter
from ..joins import record_raise, split_on
from ..source_text import expression_text
from ..values.containers import MappingValue
from ..values.objects import ObjectRef
from ..values.value import NONE, UnknownValue
from .exits import mark_skip, run_unwind_actions


def execute_expression(interp: Interpreter, node: ast.Expr) -> None:
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


def execute_assign(interp: Interpreter, node: ast.Assign) -> None:
    value = flag_value(interp, node, interp.evaluate(node.value))
    for listener in interp.handlers.assignment_listeners:
        listener(interp, node, value)
    for target in node.targets:
        value = assign_target(interp, target, value)
        if isinstance(node.value, ast.Call) and isinstance(value, UnknownValue):
            emit_found_optimizer(interp, target, value)


def execute_ann_assign(interp: Interpreter, node: ast.AnnAssign) -> None:
    if node.value is not None:
        assign_target(interp, node.target, interp.evaluate(node.value))


def execute_outer_names(interp: Interpreter, node: ast.Global | ast.Nonlocal) -> None:
    """Copy the names of an outer scope into the frame, so that a branch without an assignment keeps their values."""
    for name in node.names:
        value = look_up(interp, name)
        if value is not None:
            interp.state.frame.vars[name] = value


def execute_return(interp: Interpreter, node: ast.Return) -> None:
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


def execute_raise(interp: Interpreter, node: ast.Raise) -> None:
    for child in (node.exc, node.cause):
        if child is not None:
            interp.evaluate(child)
    record_raise(interp)
    interp.builder.event_count += 1
    interp.state.current_node = None


def execute_jump(interp: Interpreter, node: ast.Break | ast.Continue) -> None:
    if interp.state.loops:
        loop = interp.state.loops[-1]
        run_unwind_actions(interp, loop.unwind_base)
        if interp.state.current_node is not None:
            if isinstance(node, ast.Continue):
                mark_skip(interp, "continue", node)
            exits = loop.breaks if isinstance(node, ast.Break) else loop.continues
            interp.builder.add_exit(exits, (interp.state.current_node, interp.state.frame.vars, interp.state.heap))
    interp.builder.jump_count += 1
    interp.state.current_node = None


def execute_delete(interp: Interpreter, node: ast.Delete) -> None:
    for target in node.targets:
        if isinstance(target, ast.Name):
            interp.state.frame.vars.pop(target.id, None)
        elif isinstance(target, ast.Subscript):
            holder, index = interp.evaluate(target.value), interp.evaluate(target.slice)
            if isinstance(holder, MappingValue):
                holder.items.pop(index.value, None)


def execute_assert(interp: Interpreter, node: ast.Assert) -> None:
    formula = condition_formula(interp, node.test)
    notify_end_condition(interp, node.test, truth=False)
    if not isinstance(formula, bool):
        note_refusal(interp, negate(formula))
        yes, _ = split_on(interp, formula)
        interp.state.current_node = yes
        interp.state.path_condition.append(formula if interp.state.try_depth else require(formula))


def execute_import(interp: Interpreter, node: ast.Import) -> None:
    for alias in node.names:
        head = alias.name.partition(".")[0]
        interp.state.frame.vars[alias.asname or head] = import_value(
            interp, ImportedName(alias.name if alias.asname else head, "", 0)
        )


def execute_import_from(interp: Interpreter, node: ast.ImportFrom) -> None:
    for alias in node.names:
        if alias.name != "*":
            origin = ImportedName(node.module or "", alias.name, node.level)
            interp.state.frame.vars[alias.asname or alias.name] = import_value(interp, origin)


def notify_end_condition(interp: Interpreter, test: ast.expr, *, truth: bool) -> None:
    """Notify the listeners of a condition that ends the program if the condition has the given truth."""
    for listener in interp.handlers.end_condition_listeners:
        listener(interp, test, truth)


def note_refusal(interp: Interpreter, formula: Formula) -> None:
    """Record that a constructor raises if a formula is true: then no method of the class runs."""
    frame = interp.state.frame
    in_constructor = frame.receiver is not None and frame.function is not None and frame.function.name == "__init__"
    if in_constructor and not interp.state.try_depth:
        excluded = interp.predicates.excluded_formulas
        conditions = [each for each in interp.state.path_condition[frame.path_base :] if negate(each) not in excluded]
        interp.predicates.exclude(conjunction(*conditions, formula))
