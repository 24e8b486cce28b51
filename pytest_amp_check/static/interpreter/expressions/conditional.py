"""Conditions and conditional expressions."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...project.syntax import walk
from ..conditions import Formula, conjunction, disjunction, literals, negate
from ..counters import compute_constant, equality_formula, order_formula, truth_formula
from ..formulas import is_none, truth_of
from ..imports import is_version_flag, look_up
from ..interpreter import Interpreter
from ..joins import join_values, residual_condition, run_branches
from ..source_text import last_name, short_text
from ..values.containers import SequenceValue, UnionValue
from ..values.definitions import ExternalName
from ..values.gradients import ScaleValue
from ..values.value import EMPTY, NO_CONSTANT, NONE, ConditionValue, Const, UnknownValue, Value

_COMPARISONS: dict[type[ast.AST], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}
#: Positive form of each negated operator: predicates use the positive form.
_POSITIVE_OPERATORS = {"is not": "is", "!=": "==", "not in": "in"}
_BOOL_OPERATIONS: dict[type[ast.AST], Callable[..., Formula]] = {ast.And: conjunction, ast.Or: disjunction}


def evaluate_if(interp: Interpreter, node: ast.IfExp) -> Value:
    asked = condition_formula(interp, node.test)
    formula = residual_condition(interp, asked)
    values: list[Value] = [NONE, NONE]

    def run_then() -> None:
        values[0] = interp.evaluate(node.body)

    def run_else() -> None:
        values[1] = interp.evaluate(node.orelse)

    is_fallback = asks_version(interp, node.test, asked)
    interp.state.fallback_depth += is_fallback
    run_branches(interp, formula, run_then, run_else)
    interp.state.fallback_depth -= is_fallback
    if isinstance(formula, bool):
        return values[0] if formula else values[1]
    return join_values(interp, formula, values[0], values[1], "ifexp")


def evaluate_bool_op(interp: Interpreter, node: ast.BoolOp) -> Value:
    # "a or b" and "a and b" are nearly always conditions; they are values if one operand is None.
    sides = [(interp.evaluate(part), short_text(part)) for part in node.values]
    values = [value for value, _ in sides]
    formulas = [truth_of(interp, *side) for side in sides]
    if (
        len(values) == 2
        and isinstance(node.op, ast.Or)
        and not all(isinstance(v, (ConditionValue, UnknownValue)) for v in values)
    ):
        return join_values(interp, formulas[0], values[0], values[1], f"or {node.lineno}:{node.col_offset}")
    loops = EMPTY.union(*[value.loops for value in values])
    return ConditionValue(interp.shorten_formula(_BOOL_OPERATIONS[type(node.op)](*formulas)), loops)


def evaluate_compare(interp: Interpreter, node: ast.Compare) -> Value:
    formula = condition_formula(interp, node)
    return Const(formula) if isinstance(formula, bool) else ConditionValue(formula, interp.current_loops())


def condition_formula(interp: Interpreter, node: ast.expr) -> Formula:
    """Return the formula of a condition."""
    match node:
        case ast.BoolOp():
            return _BOOL_OPERATIONS[type(node.op)](*(condition_formula(interp, part) for part in node.values))
        case ast.UnaryOp(op=ast.Not()):
            return negate(condition_formula(interp, node.operand))
        case ast.Compare():
            return _comparison_formula(interp, node)
        case _:
            return truth_formula(interp, interp.evaluate(node), node)


def _comparison_formula(interp: Interpreter, node: ast.Compare) -> Formula:
    values = [interp.evaluate(node.left), *(interp.evaluate(right) for right in node.comparators)]
    nodes = [node.left, *node.comparators]
    formulas = []
    for i, op in enumerate(node.ops):
        formula = _pair_formula(interp, _COMPARISONS[type(op)], values[i], values[i + 1], nodes[i], nodes[i + 1], node)
        if isinstance(values[i], ScaleValue) or isinstance(values[i + 1], ScaleValue):
            for key, _ in literals(formula):
                interp.graph.predicates[key].compares_scales = True
        formulas.append(formula)
    made = conjunction(*formulas)
    if _is_version_test(interp, node):
        for key, _ in literals(made):
            interp.graph.predicates[key].asks_version = True
    return made


def _pair_formula(
    interp: Interpreter,
    op: str,
    left: Value,
    right: Value,
    left_node: ast.expr,
    right_node: ast.expr,
    node: ast.Compare,
) -> Formula:
    positive = _POSITIVE_OPERATORS.get(op)
    if positive is not None:
        return negate(_pair_formula(interp, positive, left, right, left_node, right_node, node))
    if op in ("is", "=="):
        for value, other, side in ((left, right, left_node), (right, left, right_node)):
            if value.value is NO_CONSTANT and other.value is None:
                return is_none(interp, value, short_text(side), node)
            if value.value is NO_CONSTANT and isinstance(other.value, bool) and not isinstance(value, UnionValue):
                # For a flag, "is True" and "== True" have the formula of the flag itself.
                formula = truth_of(interp, value, short_text(side), node)
                return formula if other.value else negate(formula)
        return equality_formula(interp, left, right, node)
    if op == "in" and isinstance(left.value, str) and isinstance(right.value, str):
        return left.value in right.value
    if op == "in" and _is_dtype(left) and isinstance(right, SequenceValue) and all(map(_is_dtype, right.items)):
        return disjunction(*(equality_formula(interp, left, item, node) for item in right.items))
    if op == "in" and isinstance(left, Const) and isinstance(right, SequenceValue) and _holds_constants(right):
        is_held = any(item.value == left.value for item in right.items)
        # Other code may add to a sequence that the test does not write out itself.
        if is_held or isinstance(right_node, (ast.Tuple, ast.List, ast.Set)):
            return is_held
    known = compute_constant(op, left.value, right.value)
    if known is not None:
        return bool(known.value)
    if op in ("<", "<=", ">", ">="):
        return order_formula(interp, op, left, right, node)
    return interp.predicate_formula(
        (op, left.identity_key(interp.unique_number), right.identity_key(interp.unique_number)),
        short_text(node),
        left.loops | right.loops,
        node,
    )


def _holds_constants(sequence: SequenceValue) -> bool:
    """Return True if a sequence has no items but known constants."""
    return not (sequence.is_open or sequence.may_grow) and all(isinstance(item, Const) for item in sequence.items)


def _is_dtype(value: Value) -> bool:
    return isinstance(value, ExternalName) and bool(value.possible_dtypes)


def asks_version(interp: Interpreter, test: ast.expr, formula: Formula) -> bool:
    """Return True if a condition asks about the installed torch, or has a variable or attribute with such a test."""
    if _is_version_test(interp, test):
        return True
    if _has_version_predicate(interp, formula) and any(
        isinstance(value, ConditionValue) and _has_version_predicate(interp, value.formula)
        for value in _flags_in(interp, test)
    ):
        return True
    return isinstance(test, ast.Name) and is_version_flag(interp, test.id)


def _has_version_predicate(interp: Interpreter, formula: Formula) -> bool:
    return any(interp.graph.predicates[key].asks_version for key, _ in literals(formula))


def _flags_in(interp: Interpreter, test: ast.expr) -> list[Value]:
    """Return the values of the variables and attributes whose truth a condition combines."""
    if isinstance(test, ast.UnaryOp):
        return _flags_in(interp, test.operand)
    if isinstance(test, ast.BoolOp):
        return [value for part in test.values for value in _flags_in(interp, part)]
    if isinstance(test, (ast.Name, ast.Attribute)):
        return [interp.without_events(lambda: interp.evaluate(test))]
    return []


def _is_version_test(interp: Interpreter, test: ast.expr) -> bool:
    """Return True if the text of a condition asks about the installed torch, or has a version of another name."""
    if not interp.state.frame.module.may_check_version:
        return False
    asks, names = interp.file_data(_VersionTests)[test]
    if asks:
        return True
    values = [look_up(interp, name) for name in names]
    return any(isinstance(value, ExternalName) and "version" in value.name.lower() for value in values)


class _VersionTests(dict[ast.expr, tuple[bool, tuple[str, ...]]]):
    """Version tests by condition: True if the condition asks about the installed torch, and its names."""

    def __missing__(self, test: ast.expr) -> tuple[bool, tuple[str, ...]]:
        nodes = walk(test)
        asks = any("version" in name.lower() or name == "hasattr" for name in map(last_name, nodes))
        made = self[test] = asks, tuple([node.id for node in nodes if isinstance(node, ast.Name)])
        return made
