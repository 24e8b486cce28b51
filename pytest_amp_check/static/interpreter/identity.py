"""Identity: what makes two values one, and by what number a value was divided or multiplied."""

from __future__ import annotations

import ast

from ...protocol.events import Event
from ...protocol.source_text import SourceText
from .conditions import Formula, conjunction, disjunction
from .interpreter import Interpreter
from .source_text import TextTemplate
from .values import EMPTY, NO_CONSTANT, Const, Divisor, TensorValue, UnionValue, UnknownValue, Value, join_provenance


def structural_unknown(
    interp: Interpreter, operation: str, parts: tuple[Value, ...], text: object, *extra: object
) -> UnknownValue:
    """The unknown value that an operation on values gives: the same for the same operation on the same values."""
    number = interp.unique_number
    loops: frozenset[int] = EMPTY
    readings: tuple[Event, ...] = ()
    graded = False
    for part in parts:
        varying = part.loops or part.varying_loops()
        if varying is not EMPTY:
            loops = varying if loops is EMPTY else loops | varying
        graded = graded or part.is_from_gradient
        readings += part.gradient_reads
    made = interp.unknown_value((operation, *extra, tuple([part.identity_key(number) for part in parts])), text, loops)
    if readings:
        made.gradient_reads = tuple(dict.fromkeys((*made.gradient_reads, *readings)))
    made.is_from_gradient = graded
    return made.with_provenance(join_provenance(parts))


def is_equal(interp: Interpreter, value: Value, other: object, node: ast.AST) -> Formula:
    """The condition under which a value equals a constant: the same question as a comparison of the two."""
    if value.value is not NO_CONSTANT:
        return bool(value.value == other)
    if isinstance(value, UnionValue):
        return disjunction(*(conjunction(formula, is_equal(interp, v, other, node)) for formula, v in value.options))
    pair = sorted(
        (repr(value.identity_key(interp.unique_number)), repr(Const(other).identity_key(interp.unique_number)))
    )
    source_text = value.source_text if isinstance(value, UnknownValue) else ""
    return interp.predicate_formula(("equal", *pair), TextTemplate("{} == {!r}", source_text, other), value.loops, node)


def number_key(interp: Interpreter, number: Value) -> object:
    """What identifies a number by which losses are divided."""
    if isinstance(number.value, (int, float)):
        return ("const", repr(float(number.value)))
    return number.identity_key(interp.unique_number)


def record_division(
    interp: Interpreter,
    made: TensorValue | UnknownValue,
    value: TensorValue | UnknownValue,
    number: Value,
    node: ast.AST,
) -> None:
    """Remember by what a value is divided; a division by what it was multiplied by before only undoes that."""
    made.divisors, made.factors = value.divisors, value.factors
    key = number_key(interp, number)
    divisor_node = _divisor_node(node)
    if key in value.factors:
        made.factors = value.factors - {key}
    elif not _is_small(number, divisor_node):
        written = isinstance(divisor_node, ast.Constant)
        made.divisors = value.divisors | {
            Divisor(key, SourceText(divisor_node) if divisor_node else "", interp.site_of(node), written)
        }


def record_multiplication(
    interp: Interpreter, made: TensorValue | UnknownValue, value: TensorValue | UnknownValue, number: Value
) -> None:
    """Forget by what a value was divided where it is multiplied by that, or remember by what it is multiplied."""
    key = number_key(interp, number)
    made.divisors = frozenset(divisor for divisor in value.divisors if divisor.key != key)
    made.factors = value.factors if made.divisors != value.divisors else value.factors | {key}


def _is_small(number: Value, divisor_node: ast.expr | None) -> bool:
    """Whether a number is one, or the two that stands in a mean of two losses."""
    if not isinstance(number.value, (int, float)):
        return False
    return number.value <= 1 or (number.value <= 2 and isinstance(divisor_node, ast.Constant))


def _divisor_node(node: ast.AST) -> ast.expr | None:
    """The right side of a division."""
    if isinstance(node, ast.BinOp):
        return node.right
    if isinstance(node, ast.AugAssign):
        return node.value
    return node.args[0] if isinstance(node, ast.Call) and node.args else None
