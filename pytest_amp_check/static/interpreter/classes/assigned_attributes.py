"""Attributes that no analyzed code has set: the values that methods of the class assign."""

from __future__ import annotations

import ast

from ...project.assignments import assigned_pairs
from ...project.module import Function
from ...project.syntax import statements_in
from ..functions import bind_unknown_arguments
from ..interpreter import Interpreter
from ..joins import join_values
from ..source_text import names_in
from ..values.definitions import Frame, Instance
from ..values.value import NONE, UnknownValue, Value
from .bound_methods import defining_frame
from .lineage import lineage_of


def find_assigned_value(
    interp: Interpreter, receiver: Instance, name: str, *, maybe_none: bool = False
) -> Value | None:
    """Return the value that a method of the class assigns to an attribute, or None.

    The analysis evaluates the assigned expression as if the method had been called. With ``maybe_none``, the attribute
    may be None instead.
    """
    assignments = [
        assignment for cls in lineage_of(interp, receiver.cls) for assignment in cls.assignments.get(name, ())
    ]
    maybe_none = maybe_none or any(
        isinstance(expression, ast.Constant) and expression.value is None for _, expression in assignments
    )
    for method, expression in assignments:
        value = _evaluate_assignment(interp, receiver, method, expression)
        if value is not None and is_replaceable(receiver, name, value):
            continue
        if value is not None and maybe_none and not isinstance(value, UnknownValue):
            question = interp.predicate_formula(("set", receiver.key, name), name, frozenset())
            return join_values(interp, question, value, NONE, name)
        if value is not None:
            return value
    return None


def is_replaceable(receiver: Instance, name: str, value: Value) -> bool:
    """Return True if a class only makes an object until a caller gives it another object, with another state.

    A method other than the constructor then assigns its argument to the attribute.
    """
    return (
        isinstance(value, Instance)
        and value.tracked_object is None
        and any(
            method.name != "__init__"
            and isinstance(expression, ast.Name)
            and any(expression.id == parameter.arg for parameter in method.parameters()[1:])
            for cls in receiver.lineage
            for method, expression in cls.assignments.get(name, ())
        )
    )


def _evaluate_assignment(
    interp: Interpreter, receiver: Instance, method: Function, expression: ast.expr
) -> Value | None:
    # An attribute may depend on itself, directly or through another attribute.
    pending = interp.pending_assignments
    if expression in pending or len(pending) > MAX_ATTRIBUTE_DEPTH:
        return None
    is_running = interp.active_functions.count(method) > list(pending.values()).count(method)
    if is_running and method.name != "__init__":
        return None
    pending[expression] = method
    value = _evaluate_in_method(interp, receiver, method, expression)
    del pending[expression]
    return None if value.value is None else value


def _evaluate_in_method(interp: Interpreter, receiver: Instance, method: Function, expression: ast.expr) -> Value:
    outer, frame = interp.state.frame, Frame(method, defining_frame(interp, method), None)
    parameters = method.parameters()
    if parameters:
        frame.vars[parameters[0].arg] = receiver
    frame.receiver, frame.cls = receiver, method.cls
    interp.state.frame = frame
    interp.active_functions.append(method)
    bind_unknown_arguments(interp, frame, method)

    def evaluate() -> Value:
        _bind_locals(interp, frame, method, expression, 0)
        return interp.evaluate(expression)

    # The method runs once, wherever the attribute is read.
    loops, interp.state.loops = interp.state.loops, []
    value = interp.without_events(evaluate)
    interp.active_functions.pop()
    interp.state.frame, interp.state.loops = outer, loops
    return value


#: Maximum number of attributes that lead to the value of an attribute, each assigned from the next outside the
#: constructor: ``self.optimizer = AdamW(self.model.parameters())``.
MAX_ATTRIBUTE_DEPTH = 3
#: Maximum number of local variables that lead to the value of an attribute, each assigned from the next.
MAX_LOCAL_DEPTH = 3


def _bind_locals(interp: Interpreter, frame: Frame, method: Function, expression: ast.expr, depth: int) -> None:
    """Bind the local variables of a method that an expression uses, each to its last assignment or import before it."""
    wanted = names_in(expression) - frame.vars.keys()
    if not wanted or depth >= MAX_LOCAL_DEPTH:
        return
    found: dict[str, ast.expr] = {}
    for statement in statements_in(method.body):
        if getattr(statement, "lineno", 0) < expression.lineno:
            if isinstance(statement, (ast.Import, ast.ImportFrom)) and not wanted.isdisjoint(
                _imported_names(statement)
            ):
                interp.execute_block([statement])
            pairs = assigned_pairs(statement)
            found.update((left.id, right) for left, right in pairs if isinstance(left, ast.Name) and left.id in wanted)
    for name, value in found.items():
        if name not in names_in(value):
            _bind_locals(interp, frame, method, value, depth + 1)
            frame.vars[name] = interp.evaluate(value)


def _imported_names(statement: ast.Import | ast.ImportFrom) -> set[str]:
    return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
