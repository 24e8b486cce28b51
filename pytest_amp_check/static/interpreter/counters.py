"""Counters and remainders: when an accumulation window ends, in all the ways in which that is asked."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...protocol.words import Denied, Words
from .comparisons import ABOVE, BELOW, EQUAL, Lengths, Ranges, compared, window
from .conditions import Formula, both, either, literals, negate
from .identity import structural
from .interpreter import Interpreter
from .microbatches import leaves_early
from .truth import truth
from .values import UNREAD, Choice, Const, Named, Opaque, Truth, Value
from .wording import shortened

_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_ARITHMETIC: dict[str, Callable[..., object]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b if isinstance(a, (int, float)) and isinstance(b, (int, float)) else None,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b if isinstance(a, (int, float)) else None,
    "**": lambda a, b: a**b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def asked(at: Interpreter, value: Value, node: ast.expr) -> Formula:
    """The formula of a test that is no comparison."""
    if value.remainder is not None:
        return negate(_remainder(at, *value.remainder, 0, node))
    return _at_first(at, truth(at, value, shortened(node), node), "!=", value, Const(0))


def ordered(at: Interpreter, op: str, left: Value, right: Value, node: ast.Compare) -> Formula:
    """The formula of ``<``, ``<=``, ``>`` or ``>=``."""
    formula = (
        _against_zero(at, _MIRRORED[op], right, left, node)
        if isinstance(left, Const)
        else _against_zero(at, op, left, right, node)
    )
    if formula is None:
        formula = _counts(at, op, _order(at, op, left, right, node), left, right)
    return _at_first(at, formula, op, left, right)


def _against_zero(at: Interpreter, op: str, left: Value, right: Value, node: ast.Compare) -> Formula | None:
    """``x > 0`` and ``x <= 0`` of a number that is none below zero, a norm or a remainder: whether it is any."""
    if not isinstance(left, Opaque) or (op, right.value) not in ((">", 0), (">=", 1), ("<=", 0), ("<", 1)):
        return None
    any_left = op in (">", ">=")
    if left.remainder is not None:
        formula = negate(_remainder(at, *left.remainder, 0, node, _words(node, asked=not any_left)))
    elif not left.counter and right.value == 0:
        formula = truth(at, left, _words(node, asked=any_left), node)
    else:
        return None
    return formula if any_left else negate(formula)


def _words(node: ast.expr, *, asked: bool) -> object:
    """The words of a question that is asked as it is written, or of its contrary."""
    return shortened(node) if asked else Denied(shortened(node))


def _order(at: Interpreter, op: str, left: Value, right: Value, node: ast.Compare) -> Formula:
    """One question for ``a > b``, for ``b < a``, and for the negations ``a <= b`` and ``b >= a``."""
    large, small = (left, right) if op in (">", "<=") else (right, left)
    question = ("greater", large.identity(at.number), small.identity(at.number))
    loops = left.loops | right.loops
    asked = op in ("<", ">")
    test = at.test(question, _words(node, asked=asked), loops, node)
    compared(at, large, small, test.key, ABOVE)
    compared(at, small, large, test.key, BELOW)
    return ("test", test.key) if asked else ("not", ("test", test.key))


def _counts(at: Interpreter, op: str, formula: Formula, left: Value, right: Value) -> Formula:
    """Mark a comparison of a counter of the loop being read, other than the loop's own index."""
    asked = literals(formula)
    sides = [_turns_here(at, side) and not side.index for side in (left, right)]
    if len(asked) == 1 and any(sides):
        ((key, positive),) = asked
        test = at.graph.tests[key]
        test.counts = True
        if not all(sides):
            test.reached = positive if sides[op in ("<", "<=")] else not positive
    return formula


def _turns_here(at: Interpreter, value: Value) -> bool:
    """Whether a value is a counter of the innermost loop."""
    return value.counter and bool(at.state.loops) and at.state.loops[-1].key in value.loops


def _at_first(at: Interpreter, formula: Formula, op: str, left: Value, right: Value) -> Formula:
    """Note what a comparison of a counter with a number comes to in the first turn of its loop."""
    asked = literals(formula)
    if len(asked) == 1:
        ((key, positive),) = asked
        known = compute(op, left.at_first(), right.at_first())
        if known is not None:
            at.graph.tests[key].later = bool(known.value) != positive
    return formula


def equal(at: Interpreter, left: Value, right: Value, node: ast.Compare) -> Formula:
    """The formula of ``==``."""
    if UNREAD not in (left.value, right.value):
        return bool(left.value == right.value)
    if isinstance(left, Named) and isinstance(right, Named) and left.dtypes and right.dtypes:
        others = right.dtypes
        same = [both(one, others[dtype]) for dtype, one in left.dtypes.items() if dtype in others]
        return at.short(either(*same))
    for value, other in ((left, right), (right, left)):
        if isinstance(value, Choice):
            parts = [both(f, equal(at, v, other, node)) for f, v in value.options]
            return at.short(either(*parts))
        if value.remainder is not None:
            return _remainder_equals(at, value, value.remainder, other, node)
        if isinstance(value, Truth) and isinstance(other.value, bool):
            return value.formula if other.value else negate(value.formula)
    return _asks_equal(at, left, right, node)


def _asks_equal(at: Interpreter, left: Value, right: Value, node: ast.Compare) -> Formula:
    pair = sorted((repr(left.identity(at.number)), repr(right.identity(at.number))))
    test = at.test(("equal", *pair), _as_equation(node), left.loops | right.loops, node)
    for value, other in ((left, right), (right, left)):
        if isinstance(other.value, (int, float)) and not isinstance(other.value, bool):
            compared(at, value, other, test.key, EQUAL)
        elif other.value is not UNREAD:
            _one_of(at, value.identity(at.number), test.key)
        elif isinstance(other, Named) and other.name.rpartition(".")[2].isupper():
            # Constants of one class or module that cannot be read, as those of an enumeration.
            _one_of(at, (value.identity(at.number), other.name.rpartition(".")[0]), test.key)
        _note_last(at, value, other, test.key)
    test.counts = test.counts or _turns_here(at, left) or _turns_here(at, right)
    return _at_first(at, ("test", test.key), "==", left, right)


def _note_last(at: Interpreter, value: Value, other: Value, key: int) -> None:
    """Note that a test asks for the last turn of a loop over ``range(n)``: ``i == n - 1``, ``i + 1 == n``."""
    base = value.base
    number = at.of_file(Ranges).get(base.key) if isinstance(base, Opaque) and base.index else None
    if number is not None:
        last = number if value.offset == 1 else _less_one(at, number)
        if value.offset in (0, 1) and other is last:
            window(at, number, key)


def _less_one(at: Interpreter, number: Value) -> Opaque:
    """The value that a program has where it writes ``number - 1``."""
    return structural(at, "binary", (number, Const(1)), "", "-")


def _one_of(at: Interpreter, value: object, key: int) -> None:
    """What equals one constant equals none of the others that it is compared with."""
    known = at.compared.setdefault(value, [])
    if key not in known:
        for other in known:
            at.graph.tests[key].implies.append((True, other, False))
            at.graph.tests[other].implies.append((True, key, False))
        known.append(key)


def _remainder_equals(
    at: Interpreter, value: Value, sides: tuple[Value, Value], other: Value, node: ast.Compare
) -> Formula:
    if isinstance(other.value, int):
        return _remainder(at, *sides, other.value, node)
    # ``i % k == k - 1``
    if other is _less_one(at, sides[1]):
        return _remainder(at, *sides, -1, node)
    question = ("equal", value.identity(at.number), other.identity(at.number))
    return at.ask(question, _as_equation(node), value.loops | other.loops, node)


def _remainder(
    at: Interpreter, count: Value, modulus: Value, remainder: int, node: ast.AST, words: object = None
) -> Formula:
    """The question whether ``count % modulus`` is ``remainder``: the same for every spelling of it."""
    known = modulus.value if isinstance(modulus.value, int) else 0
    if known == 1:
        return remainder == 0
    base, offset = count.base, count.offset
    ahead = (offset - remainder) % known if known else offset - remainder
    question = ("modulo", base.identity(at.number), ahead, modulus.identity(at.number))
    test = at.test(question, words or _as_equation(node), count.loops | modulus.loops, node)
    counted = isinstance(count, Opaque) and (count.counter or bool(count.loops))
    test.counts = counted and bool(at.state.loops)
    window(at, modulus, test.key)
    if known:
        _one_of(at, ("modulo", base.identity(at.number), known), test.key)
    test.off_by_one = base.first is not None and base.first + offset - remainder == 0
    if known and isinstance(base, Opaque) and base.index and base.first is not None:
        test.left_over = _left_over(at, base, base.first + offset - remainder, known)
    return ("test", test.key)


def _left_over(at: Interpreter, index: Opaque, at_first: int, modulus: int) -> tuple[int, int] | None:
    """How many turns of a loop follow the last one whose count can be divided, and how many turns there are."""
    loop, length = at.state.loops[-1] if at.state.loops else None, at.of_file(Lengths).get(index.key)
    turns = length.value if length is not None else None
    if loop is None or loop.key not in index.loops or loop.node is None or not isinstance(turns, int) or turns < 1:
        return None
    if leaves_early(loop.node):
        return None
    left = min((at_first + turns - 1) % modulus, turns)
    return (left, turns) if left else None


def _as_equation(node: ast.AST) -> Words:
    """The words of a question whether two things are equal, whatever way it is asked in."""
    if isinstance(node, ast.expr) and not isinstance(node, ast.Compare):
        return Words(ast.Compare(node, [ast.Eq()], [ast.Constant(0)]), 80)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.NotEq):
        return Words(ast.Compare(node.left, [ast.Eq()], node.comparators), 80)
    return shortened(node)


def compute(op: str, left: object, right: object) -> Const | None:
    """The result of an operation on numbers and strings, or None."""
    if not isinstance(left, (int, float, str)) or not isinstance(right, (int, float, str)):
        return None
    operation = _ARITHMETIC.get(op)
    if operation is None or (op == "**" and isinstance(right, (int, float)) and abs(right) > 64):
        return None
    try:
        made = operation(left, right)
    except (ArithmeticError, TypeError, ValueError):
        return None
    return None if made is None else Const(made)
