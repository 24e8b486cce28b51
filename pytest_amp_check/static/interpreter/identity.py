"""Identity of values, and the divisors and factors of a value."""

from __future__ import annotations

import ast

from ...protocol.events import GradientAccess
from ...protocol.source_text import SourceText
from .conditions import Formula, conjunction, disjunction
from .interpreter import Interpreter
from .source_text import TextTemplate
from .values.containers import UnionValue
from .values.definitions import ExternalName
from .values.tensors import TensorValue
from .values.value import EMPTY, NO_CONSTANT, Const, Divisor, UnknownValue, Value, join_provenance


class Operation:
    """The operations that make an unknown value of other values. They are texts, whose hashes cost least."""

    CALL = "call"
    METHOD = "method"
    ATTRIBUTE = "attribute"
    ITEM = "item"
    SLICE = "slice"
    PART = "part"
    EACH = "each of"
    UNARY = "unary"
    BINARY = "binary"


def structural_unknown(
    interp: Interpreter, operation: str, parts: tuple[Value, ...], text: object, *extra: object
) -> UnknownValue:
    """Return the unknown result of an operation: the same operation on equal values gives the same result."""
    number = interp.unique_number
    loops: frozenset[int] = EMPTY
    readings: tuple[GradientAccess, ...] = ()
    graded = False
    for part in parts:
        varying = part.loops or part.varying_loops()
        if varying is not EMPTY:
            loops = varying if loops is EMPTY else loops | varying
        graded = graded or part.origin.is_from_gradient
        readings += part.gradient_reads
    if len(parts) == 1:
        keys: tuple[object, ...] = (parts[0].identity_key(number),)
    else:
        keys = tuple([part.identity_key(number) for part in parts])
    made = interp.unknown_value((operation, *extra, keys), text, loops)
    if readings:
        made.gradient_reads = tuple(dict.fromkeys((*made.gradient_reads, *readings)))
    if made.origin.is_from_gradient is not graded:
        made.origin = made.origin._replace(is_from_gradient=graded)
    return made.with_provenance(join_provenance(parts))


def is_equal(interp: Interpreter, value: Value, other: object, node: ast.AST | None) -> Formula:
    """Return the condition under which a value equals a constant, the same predicate as their comparison.

    ``node`` is the code that shows the comparison, None if none does.
    """
    if value.value is not NO_CONSTANT:
        return bool(value.value == other)
    if isinstance(value, UnionValue):
        return disjunction(*(conjunction(formula, is_equal(interp, v, other, node)) for formula, v in value.options))
    pair = sorted(
        (repr(value.identity_key(interp.unique_number)), repr(Const(other).identity_key(interp.unique_number)))
    )
    named: object = ""
    if isinstance(value, UnknownValue):
        named = value.source_text
    elif isinstance(value, ExternalName):
        # Programs seldom write more of a dotted name than the object and its attribute.
        named = ".".join(value.name.split(".")[-2:])
    text = TextTemplate("{} == {!r}", named, other) if named != "" else ""
    return interp.predicate_formula(("equal", *pair), text, value.loops, node)


def number_key(interp: Interpreter, number: Value) -> object:
    """Return the identity of a number that divides losses."""
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
    """Record the divisor of a value. A division by an earlier factor only removes that factor."""
    made.normalization = made.normalization._replace(
        divisors=value.normalization.divisors, factors=value.normalization.factors
    )
    key = number_key(interp, number)
    divisor_node = find_divisor_node(node)
    if key in value.normalization.factors:
        made.normalization = made.normalization._replace(factors=value.normalization.factors - {key})
    elif not _is_small(number, divisor_node):
        written = isinstance(divisor_node, ast.Constant)
        made.normalization = made.normalization._replace(
            divisors=value.normalization.divisors
            | {
                Divisor(
                    key,
                    SourceText(divisor_node) if divisor_node else "",
                    interp.site_of(node),
                    written,
                    number.offset_base.identity_key(interp.unique_number) if _is_running(interp, number) else None,
                )
            }
        )


def record_multiplication(
    interp: Interpreter, made: TensorValue | UnknownValue, value: TensorValue | UnknownValue, number: Value
) -> None:
    """Remove a divisor from a value that is multiplied by the same number, or record the factor."""
    key = number_key(interp, number)
    made.normalization = made.normalization._replace(
        divisors=frozenset(divisor for divisor in value.normalization.divisors if divisor.key != key)
    )
    made.normalization = made.normalization._replace(
        factors=value.normalization.factors
        if made.normalization.divisors != value.normalization.divisors
        else value.normalization.factors | {key}
    )


def _is_running(interp: Interpreter, number: Value) -> bool:
    """Return True if a number counts the iterations of the innermost loop so far."""
    loops = interp.state.loops
    return number.count.is_iteration_count and bool(loops) and loops[-1].key in number.loops


def _is_small(number: Value, divisor_node: ast.expr | None) -> bool:
    """Return True if a number is at most one, or the literal two of a mean of two losses."""
    if not isinstance(number.value, (int, float)):
        return False
    return number.value <= 1 or (number.value <= 2 and isinstance(divisor_node, ast.Constant))


def find_divisor_node(node: ast.AST) -> ast.expr | None:
    """Return the divisor expression of a division, or None."""
    if isinstance(node, ast.BinOp):
        return node.right
    if isinstance(node, ast.AugAssign):
        return node.value
    return node.args[0] if isinstance(node, ast.Call) and node.args else None
