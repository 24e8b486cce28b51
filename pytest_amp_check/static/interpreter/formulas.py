"""Formulas for the truth of a value, and for ``value is None``."""

from __future__ import annotations

import ast

from ...protocol.event_graph import Predicate
from .conditions import Formula, conjunction, disjunction
from .interpreter import Interpreter
from .source_text import TextTemplate
from .values.containers import UnionValue
from .values.definitions import ExternalName
from .values.value import EMPTY, UnknownValue, Value


def truth_of(interp: Interpreter, value: Value, text: object = "", node: ast.AST | None = None) -> Formula:
    """Return the condition under which a value is true."""
    if isinstance(value, UnionValue):
        return interp.shorten_formula(
            disjunction(*(conjunction(f, truth_of(interp, v, text, node)) for f, v in value.options))
        )
    value = value.before_recognition()
    if isinstance(value, ExternalName) and value.may_be_setting:
        formula = interp.predicate_formula(("true", value.name), text or value.name, EMPTY, node)
        _relate_truth_and_none(interp, value.name, value.name)
        return formula
    known = value.truth_condition()
    if known is not None:
        return known
    if isinstance(value, UnknownValue):
        if _is_made_optimizer(interp, value):
            return True
        test = interp.predicate_for(("true", value.key), text or value.source_text, value.loops, node)
        _describe_predicate(interp, test, value)
        return ("test", test.key)
    return interp.predicate_formula(
        ("true", interp.unique_number(value)), text, value.loops | interp.current_loops(), node
    )


def _describe_predicate(interp: Interpreter, test: Predicate, value: UnknownValue) -> None:
    """Set the attributes of a predicate that asks for the truth of an unknown value."""
    test.is_window_predicate = test.is_window_predicate or value.count.is_counter
    test.is_flag = test.is_flag or value.origin.is_argument
    for reading in value.gradient_reads if test.checked_optimizers is not None else ():
        owners = reading.owners
        if owners is None:
            test.checked_optimizers = None
            break
        test.checked_optimizers = (test.checked_optimizers or frozenset()).union(owners)
    if not test.implications:
        _relate_truth_and_none(interp, value.key, value.text)


def is_none(interp: Interpreter, value: Value, text: object = "", node: ast.AST | None = None) -> Formula:
    """Return the condition under which a value is None."""
    if isinstance(value, UnionValue):
        return interp.shorten_formula(
            disjunction(*(conjunction(f, is_none(interp, v, text, node)) for f, v in value.options))
        )
    value = value.before_recognition()
    if isinstance(value, ExternalName) and value.may_be_setting:
        template = TextTemplate("{} is None", text or value.name)
        formula = interp.predicate_formula(("none", value.name), template, EMPTY, node)
        _relate_truth_and_none(interp, value.name, value.name)
        return formula
    if not isinstance(value, UnknownValue):
        return value.value is None
    if _is_made_optimizer(interp, value):
        return False
    formula = interp.predicate_formula(
        ("none", value.key), TextTemplate("{} is None", text or value.source_text), value.loops, node
    )
    _relate_truth_and_none(interp, value.key, value.text)
    return formula


def _is_made_optimizer(interp: Interpreter, value: UnknownValue) -> bool:
    """Return True for the result of a call that the code uses as an optimizer: an object, not None."""
    used = interp.tracked_objects.get(("used", value.key)) if value.origin.is_call_result else None
    return used is not None and used.role == "optimizer"


def _relate_truth_and_none(interp: Interpreter, key: int | str, text: str) -> None:
    """Record that a true value is not None, and that None is not true, where both questions are asked.

    A value that the file uses as a scaler, an optimizer or a module is an object or None: not None implies true.
    """
    asked = interp.predicates.key_by_question
    if ("true", key) not in asked or ("none", key) not in asked:
        return
    true, none = interp.graph.predicates[asked["true", key]], interp.graph.predicates[asked["none", key]]
    if not true.implications:
        is_object = text in interp.state.frame.module.role_by_text
        for truth in (True, False) if is_object else (True,):
            true.implications.append((truth, none.key, not truth))
            none.implications.append((truth, true.key, not truth))
