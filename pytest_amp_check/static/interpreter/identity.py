"""Identity: what makes two values one, and by what number a value was divided or multiplied."""

from __future__ import annotations

import ast

from ...protocol.events import Event
from ...protocol.words import Words
from .conditions import Formula, both, either
from .interpreter import Interpreter
from .values import EMPTY, UNREAD, Choice, Const, Divisor, Opaque, Tensor, Value, past_of
from .wording import Phrase


def structural(at: Interpreter, word: str, parts: tuple[Value, ...], text: object, *extra: object) -> Opaque:
    """The unknown value that an operation on values gives: the same for the same operation on the same values."""
    number = at.number
    loops: frozenset[int] = EMPTY
    readings: tuple[Event, ...] = ()
    graded = False
    for part in parts:
        turning = part.loops or part.turns()
        if turning is not EMPTY:
            loops = turning if loops is EMPTY else loops | turning
        graded = graded or part.graded
        readings += part.readings
    made = at.opaque((word, *extra, tuple([part.identity(number) for part in parts])), text, loops)
    if readings:
        made.readings = tuple(dict.fromkeys((*made.readings, *readings)))
    made.graded = graded
    return made.made(past_of(parts))


def is_equal(at: Interpreter, value: Value, other: object, node: ast.AST) -> Formula:
    """The condition under which a value equals a constant: the same question as a comparison of the two."""
    if value.value is not UNREAD:
        return bool(value.value == other)
    if isinstance(value, Choice):
        return either(*(both(formula, is_equal(at, v, other, node)) for formula, v in value.options))
    pair = sorted((repr(value.identity(at.number)), repr(Const(other).identity(at.number))))
    words = value.words if isinstance(value, Opaque) else ""
    return at.ask(("equal", *pair), Phrase("{} == {!r}", words, other), value.loops, node)


def number_key(at: Interpreter, number: Value) -> object:
    """What identifies a number by which losses are divided."""
    if isinstance(number.value, (int, float)):
        return ("const", repr(float(number.value)))
    return number.identity(at.number)


def divide(at: Interpreter, made: Tensor | Opaque, value: Tensor | Opaque, number: Value, node: ast.AST) -> None:
    """Remember by what a value is divided; a division by what it was multiplied by before only undoes that."""
    made.divisors, made.factors = value.divisors, value.factors
    key = number_key(at, number)
    words = _divisor(node)
    if key in value.factors:
        made.factors = value.factors - {key}
    elif not _is_small(number, words):
        written = isinstance(words, ast.Constant)
        made.divisors = value.divisors | {Divisor(key, Words(words) if words else "", at.site(node), written)}


def multiply(at: Interpreter, made: Tensor | Opaque, value: Tensor | Opaque, number: Value) -> None:
    """Forget by what a value was divided where it is multiplied by that, or remember by what it is multiplied."""
    key = number_key(at, number)
    made.divisors = frozenset(divisor for divisor in value.divisors if divisor.key != key)
    made.factors = value.factors if made.divisors != value.divisors else value.factors | {key}


def _is_small(number: Value, written: ast.expr | None) -> bool:
    """Whether a number is one, or the two that stands in a mean of two losses."""
    if not isinstance(number.value, (int, float)):
        return False
    return number.value <= 1 or (number.value <= 2 and isinstance(written, ast.Constant))


def _divisor(node: ast.AST) -> ast.expr | None:
    """The right side of a division."""
    if isinstance(node, ast.BinOp):
        return node.right
    if isinstance(node, ast.AugAssign):
        return node.value
    return node.args[0] if isinstance(node, ast.Call) and node.args else None
