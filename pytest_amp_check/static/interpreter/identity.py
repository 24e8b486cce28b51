"""Identity: what makes two values one, and by what number a value was divided or multiplied."""

from __future__ import annotations

import ast

from ...protocol.events import Event
from ...protocol.words import Words
from .conditions import Formula, both, either
from .interpreter import Interpreter
from .values import EMPTY, Choice, Const, Divisor, Instance, Mapping, Named, Opaque, Ref, Sequence, Tensor, Truth, Value

#: Containers within containers, and items of one, up to which two that hold the same are taken for equal.
KEYED, KEYED_ITEMS = 3, 16


class _Equals:
    """The words of a question whether something equals a constant."""

    __slots__ = ("_of", "_other")

    def __init__(self, of: object, other: object) -> None:
        self._of = of
        self._other = other

    def __str__(self) -> str:
        return f"{self._of} == {self._other!r}"


def identity(at: Interpreter, value: Value, depth: int = 0) -> object:
    """A key that equal values share."""
    if isinstance(value, Opaque):
        return value.key
    if isinstance(value, Const):
        return ("const", repr(value.value))
    if isinstance(value, Named):
        return value.name
    if isinstance(value, Ref):
        return ("thing", value.thing.key)
    if isinstance(value, Instance):
        return ("instance", value.key)
    if isinstance(value, Truth):
        return ("truth", value.formula)
    if depth < KEYED:
        if isinstance(value, Choice):
            return ("either", *[(formula, identity(at, each, depth + 1)) for formula, each in value.options])
        if isinstance(value, Sequence) and not value.open and len(value.items) <= KEYED_ITEMS:
            return ("items", *[identity(at, each, depth + 1) for each in value.items])
        if isinstance(value, Mapping) and not value.open and len(value.items) <= KEYED_ITEMS:
            return ("entries", *[(key, identity(at, each, depth + 1)) for key, each in value.items.items()])
    return at.number(value)


def structural(at: Interpreter, word: str, parts: tuple[Value, ...], text: object, *extra: object) -> Opaque:
    """The unknown value that an operation on values gives: the same for the same operation on the same values."""
    loops: frozenset[int] = EMPTY
    readings: tuple[Event, ...] = ()
    graded = False
    for part in parts:
        turning = part.loops or loops_of(part)
        if turning is not EMPTY:
            loops = turning if loops is EMPTY else loops | turning
        if isinstance(part, Opaque):
            graded = graded or part.graded
        readings += readings_of(part)
    made = at.opaque((word, *extra, tuple([identity(at, part) for part in parts])), text, loops)
    if readings:
        made.readings = tuple(dict.fromkeys((*made.readings, *readings)))
    made.graded = graded
    return made


def is_equal(at: Interpreter, value: Value, other: object, node: ast.AST) -> Formula:
    """The condition under which a value equals a constant: the same question as a comparison of the two."""
    if isinstance(value, Const):
        return bool(value.value == other)
    if isinstance(value, Choice):
        return either(*(both(formula, is_equal(at, v, other, node)) for formula, v in value.options))
    pair = sorted((repr(identity(at, value)), repr(identity(at, Const(other)))))
    words = value.words if isinstance(value, Opaque) else ""
    return at.ask(("equal", *pair), _Equals(words, other), value.loops, node)


def number_key(at: Interpreter, number: Value) -> object:
    """What identifies a number by which losses are divided."""
    if isinstance(number, Const) and isinstance(number.value, (int, float)):
        return ("const", repr(float(number.value)))
    return identity(at, number)


def divide(at: Interpreter, made: Tensor | Opaque, value: Tensor | Opaque, number: Value, node: ast.AST) -> None:
    """Remember by what a value is divided; a division by what it was multiplied by before only undoes that."""
    made.divisors, made.factors = value.divisors, value.factors
    key = number_key(at, number)
    words = _divisor(node)
    if key in value.factors:
        made.factors = value.factors - {key}
    elif not _is_small(number, words):
        made.divisors = value.divisors | {Divisor(key, Words(words) if words else "", at.site(node))}


def multiply(at: Interpreter, made: Tensor | Opaque, value: Tensor | Opaque, number: Value) -> None:
    """Forget by what a value was divided where it is multiplied by that, or remember by what it is multiplied."""
    key = number_key(at, number)
    made.divisors = frozenset(divisor for divisor in value.divisors if divisor.key != key)
    made.factors = value.factors if made.divisors != value.divisors else value.factors | {key}


def loops_of(value: Value) -> frozenset[int]:
    """The loops in which something is made anew that a list or tuple holds."""
    loops = value.loops
    if isinstance(value, Sequence):
        for item in value.items:
            loops = loops | item.loops if item.loops else loops
    return loops


def readings_of(value: Value) -> tuple[Event, ...]:
    """The events that read the gradients from which a value was computed."""
    if isinstance(value, Opaque):
        return value.readings
    if isinstance(value, Sequence):
        return tuple(reading for item in value.items for reading in readings_of(item))
    if isinstance(value, Choice):
        return tuple(reading for _, option in value.options for reading in readings_of(option))
    return ()


def _is_small(number: Value, written: ast.expr | None) -> bool:
    """Whether a number is one, or the two that stands in a mean of two losses."""
    if not isinstance(number, Const) or not isinstance(number.value, (int, float)):
        return False
    return number.value <= 1 or (number.value <= 2 and isinstance(written, ast.Constant))


def _divisor(node: ast.AST) -> ast.expr | None:
    """The right side of a division."""
    if isinstance(node, ast.BinOp):
        return node.right
    if isinstance(node, ast.AugAssign):
        return node.value
    return node.args[0] if isinstance(node, ast.Call) and node.args else None
