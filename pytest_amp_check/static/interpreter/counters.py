"""Counters and remainders: when an accumulation window ends, in all the ways in which that is asked."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...protocol.words import Words
from .conditions import Formula, both, either, negate
from .identity import structural
from .interpreter import Interpreter
from .truth import truth
from .values import Choice, Const, Named, Opaque, Truth, Value
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
    if isinstance(value, Opaque) and value.remainder is not None:
        return negate(_remainder(at, value, 0, node))
    return _at_first(at, truth(at, value, shortened(node), node), "!=", value, Const(0))


def ordered(at: Interpreter, op: str, left: Value, right: Value, node: ast.Compare) -> Formula:
    """The formula of ``<``, ``<=``, ``>`` or ``>=``."""
    formula = (
        _against_zero(at, _MIRRORED[op], right, left, node)
        if isinstance(left, Const)
        else _against_zero(at, op, left, right, node)
    )
    if formula is None:
        formula = _counts(at, _order(at, op, left, right, node), left, right)
    return _at_first(at, formula, op, left, right)


def _against_zero(at: Interpreter, op: str, left: Value, right: Value, node: ast.Compare) -> Formula | None:
    """``x > 0`` and ``x <= 0`` of a number that is none below zero, a norm or a remainder: whether it is any."""
    if not isinstance(right, Const) or not isinstance(left, Opaque):
        return None
    if (op, right.value) not in ((">", 0), (">=", 1), ("<=", 0), ("<", 1)):
        return None
    if left.remainder is not None:
        formula = negate(_remainder(at, left, 0, node))
    elif not left.counter and right.value == 0:
        formula = truth(at, left, shortened(node), node)
    else:
        return None
    return formula if op in (">", ">=") else negate(formula)


def _order(at: Interpreter, op: str, left: Value, right: Value, node: ast.Compare) -> Formula:
    """One question for ``a > b``, for ``b < a``, and for the negations ``a <= b`` and ``b >= a``."""
    large, small = (left, right) if op in (">", "<=") else (right, left)
    question = ("greater", large.identity(at.number), small.identity(at.number))
    loops = left.loops | right.loops
    if op in ("<", ">"):
        return at.ask(question, shortened(node), loops, node)
    return negate(at.ask(question, f"not ({shortened(node)})", loops, node))


def _counts(at: Interpreter, formula: Formula, left: Value, right: Value) -> Formula:
    """Mark a comparison of a counter of the loop being read, other than the loop's own index."""
    inner = formula[1] if not isinstance(formula, bool) and formula[0] == "not" else formula
    if isinstance(inner, bool) or inner[0] != "test" or not at.state.loops:
        return formula
    here = at.state.loops[-1].key
    for side in (left, right):
        if isinstance(side, Opaque) and side.counter and here in side.loops and not side.index:
            at.graph.tests[inner[1]].counts = True
    return formula


def _at_first(at: Interpreter, formula: Formula, op: str, left: Value, right: Value) -> Formula:
    """Note what a comparison of a counter with a number comes to in the first turn of its loop."""
    inner = formula[1] if not isinstance(formula, bool) and formula[0] == "not" else formula
    if isinstance(inner, bool) or inner[0] != "test":
        return formula
    sides = [_first_of(left), _first_of(right)]
    if None not in sides:
        known = compute(op, *sides)
        if isinstance(known, Const):
            at.graph.tests[inner[1]].later = bool(known.value) != (inner is formula)
    return formula


def equal(at: Interpreter, left: Value, right: Value, node: ast.Compare) -> Formula:
    """The formula of ``==``."""
    if isinstance(left, Const) and isinstance(right, Const):
        return bool(left.value == right.value)
    if isinstance(left, Named) and isinstance(right, Named) and left.dtypes and right.dtypes:
        others = right.dtypes
        same = [both(one, others[dtype]) for dtype, one in left.dtypes.items() if dtype in others]
        return at.short(either(*same))
    for value, other in ((left, right), (right, left)):
        if isinstance(value, Choice):
            parts = [both(f, equal(at, v, other, node)) for f, v in value.options]
            return at.short(either(*parts))
        if isinstance(value, Opaque) and value.remainder is not None:
            return _remainder_equals(at, value, other, node)
        if isinstance(value, Truth) and isinstance(other, Const) and isinstance(other.value, bool):
            return value.formula if other.value else negate(value.formula)
    pair = sorted((repr(left.identity(at.number)), repr(right.identity(at.number))))
    loops = left.loops | right.loops
    formula = at.ask(("equal", *pair), shortened(node), loops, node)
    for value, other in ((left, right), (right, left)):
        if not isinstance(formula, bool):
            if isinstance(other, Const):
                _one_of(at, value.identity(at.number), formula[1])
            elif isinstance(other, Named) and other.name.rpartition(".")[2].isupper():
                # Constants of one class or module that cannot be read, as those of an enumeration.
                _one_of(at, (value.identity(at.number), other.name.rpartition(".")[0]), formula[1])
    if not isinstance(formula, bool) and at.state.loops:
        here = at.state.loops[-1].key
        for side in (left, right):
            if isinstance(side, Opaque) and side.counter and here in side.loops:
                at.graph.tests[formula[1]].counts = True
    return _at_first(at, formula, "==", left, right)


def _one_of(at: Interpreter, value: object, key: int) -> None:
    """What equals one constant equals none of the others that it is compared with."""
    known = at.compared.setdefault(value, [])
    if key not in known:
        for other in known:
            at.graph.tests[key].implies.append((True, other, False))
            at.graph.tests[other].implies.append((True, key, False))
        known.append(key)


def _remainder_equals(at: Interpreter, value: Opaque, other: Value, node: ast.Compare) -> Formula:
    if isinstance(other, Const) and isinstance(other.value, int):
        return _remainder(at, value, other.value, node)
    assert value.remainder is not None
    # ``i % k == k - 1``
    if other is structural(at, "binary", (value.remainder[1], Const(1)), "", "-"):
        return _remainder(at, value, -1, node)
    question = ("equal", value.identity(at.number), other.identity(at.number))
    return at.ask(question, shortened(node), value.loops | other.loops, node)


def _remainder(at: Interpreter, value: Opaque, remainder: int, node: ast.AST) -> Formula:
    """The question whether ``value`` (a ``%``) is ``remainder``: the same for every spelling of it."""
    assert value.remainder is not None
    count, modulus = value.remainder
    known = modulus.value if isinstance(modulus, Const) and isinstance(modulus.value, int) else 0
    if known == 1:
        return remainder == 0
    base, offset = (count.base, count.offset) if isinstance(count, Opaque) else (count, 0)
    ahead = (offset - remainder) % known if known else offset - remainder
    question = ("modulo", base.identity(at.number), ahead, modulus.identity(at.number))
    text: object = shortened(node)
    if isinstance(node, ast.BinOp):
        text = Words(ast.Compare(node, [ast.Eq()], [ast.Constant(0)]), 80)
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotEq):
        text = Words(ast.Compare(node.left, [ast.Eq()], node.comparators), 80)
    formula = at.ask(question, text, count.loops | modulus.loops, node)
    if not isinstance(formula, bool):
        test = at.graph.tests[formula[1]]
        counted = isinstance(count, Opaque) and (count.counter or bool(count.loops))
        test.counts = counted and bool(at.state.loops)
        first = base.first if isinstance(base, Opaque) else None
        test.off_by_one = first is not None and first + offset - remainder == 0
    return formula


def _first_of(value: Value) -> object:
    """The number that a value is in the first turn of the loop that counts it, or None."""
    if isinstance(value, Const):
        return value.value if isinstance(value.value, (int, float)) else None
    if isinstance(value, Opaque) and value.counter and value.base.first is not None:
        return value.base.first + value.offset
    return None


def compute(op: str, left: object, right: object) -> Value | None:
    """The result of an operation on numbers and strings, or None."""
    if not isinstance(left, (int, float, str)) or not isinstance(right, (int, float, str)):
        return None
    operation = _ARITHMETIC.get(op)
    if operation is None or (op == "**" and isinstance(right, (int, float)) and abs(right) > 64):
        return None
    try:
        return Const(operation(left, right))
    except (ArithmeticError, TypeError, ValueError):
        return None
