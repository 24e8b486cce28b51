"""Counters and remainders: when an accumulation window ends, in all the ways in which that is asked."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable

from ...protocol.words import Words
from .conditions import Formula, both, either, negate
from .statements import Flow
from .values import Choice, Const, Named, Opaque, Truth, Value

_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


class Counters(Flow):
    """Reads comparisons of numbers that loops count."""

    @abstractmethod
    def structural(self, word: str, parts: tuple[Value, ...], text: object, *extra: object) -> Opaque: ...

    def asked(self, value: Value, node: ast.expr) -> Formula:
        """The formula of a test that is no comparison."""
        if isinstance(value, Opaque) and value.remainder is not None:
            return negate(self._remainder(value, 0, node))
        return self._at_first(self.truth(value, _text(node), node), "!=", value, Const(0))

    def ordered(self, op: str, left: Value, right: Value, node: ast.Compare) -> Formula:
        """The formula of ``<``, ``<=``, ``>`` or ``>=``."""
        formula = (
            self._against_zero(_MIRRORED[op], right, left, node)
            if isinstance(left, Const)
            else self._against_zero(op, left, right, node)
        )
        if formula is None:
            formula = self._counts(self._order(op, left, right, node), left, right)
        return self._at_first(formula, op, left, right)

    def _against_zero(self, op: str, left: Value, right: Value, node: ast.Compare) -> Formula | None:
        """``x > 0`` and ``x <= 0`` of a number that is none below zero, a norm or a remainder: whether it is any."""
        if not isinstance(right, Const) or not isinstance(left, Opaque):
            return None
        if (op, right.value) not in ((">", 0), (">=", 1), ("<=", 0), ("<", 1)):
            return None
        if left.remainder is not None:
            formula = negate(self._remainder(left, 0, node))
        elif not left.counter and right.value == 0:
            formula = self.truth(left, _text(node), node)
        else:
            return None
        return formula if op in (">", ">=") else negate(formula)

    def _order(self, op: str, left: Value, right: Value, node: ast.Compare) -> Formula:
        """One question for ``a > b``, for ``b < a``, and for the negations ``a <= b`` and ``b >= a``."""
        large, small = (left, right) if op in (">", "<=") else (right, left)
        question = ("greater", self.identity(large), self.identity(small))
        loops = left.loops | right.loops
        if op in ("<", ">"):
            return self.ask(question, _text(node), loops, node)
        return negate(self.ask(question, f"not ({_text(node)})", loops, node))

    def _counts(self, formula: Formula, left: Value, right: Value) -> Formula:
        """Mark a comparison of a counter of the loop being read, other than the loop's own index."""
        inner = formula[1] if not isinstance(formula, bool) and formula[0] == "not" else formula
        if isinstance(inner, bool) or inner[0] != "test" or not self.state.loops:
            return formula
        here = self.state.loops[-1].key
        for side in (left, right):
            if isinstance(side, Opaque) and side.counter and here in side.loops and not side.index:
                self.graph.tests[inner[1]].counts = True
        return formula

    def _at_first(self, formula: Formula, op: str, left: Value, right: Value) -> Formula:
        """Note what a comparison of a counter with a number comes to in the first turn of its loop."""
        inner = formula[1] if not isinstance(formula, bool) and formula[0] == "not" else formula
        if isinstance(inner, bool) or inner[0] != "test":
            return formula
        sides = [_first_of(left), _first_of(right)]
        if None not in sides:
            known = compute(op, *sides)
            if isinstance(known, Const):
                self.graph.tests[inner[1]].later = bool(known.value) != (inner is formula)
        return formula

    def equal(self, left: Value, right: Value, node: ast.Compare) -> Formula:
        """The formula of ``==``."""
        if isinstance(left, Const) and isinstance(right, Const):
            return bool(left.value == right.value)
        if isinstance(left, Named) and isinstance(right, Named) and left.dtypes and right.dtypes:
            others = right.dtypes
            same = [both(one, others[dtype]) for dtype, one in left.dtypes.items() if dtype in others]
            return self.short(either(*same))
        for value, other in ((left, right), (right, left)):
            if isinstance(value, Choice):
                parts = [both(f, self.equal(v, other, node)) for f, v in value.options]
                return self.short(either(*parts))
            if isinstance(value, Opaque) and value.remainder is not None:
                return self._remainder_equals(value, other, node)
            if isinstance(value, Truth) and isinstance(other, Const) and isinstance(other.value, bool):
                return value.formula if other.value else negate(value.formula)
        pair = sorted((repr(self.identity(left)), repr(self.identity(right))))
        loops = left.loops | right.loops
        formula = self.ask(("equal", *pair), _text(node), loops, node)
        for value, other in ((left, right), (right, left)):
            if not isinstance(formula, bool):
                if isinstance(other, Const):
                    self._one_of(self.identity(value), formula[1])
                elif isinstance(other, Named) and other.name.rpartition(".")[2].isupper():
                    # Constants of one class or module that cannot be read, as those of an enumeration.
                    self._one_of((self.identity(value), other.name.rpartition(".")[0]), formula[1])
        if not isinstance(formula, bool) and self.state.loops:
            here = self.state.loops[-1].key
            for side in (left, right):
                if isinstance(side, Opaque) and side.counter and here in side.loops:
                    self.graph.tests[formula[1]].counts = True
        return self._at_first(formula, "==", left, right)

    def _one_of(self, value: object, key: int) -> None:
        """What equals one constant equals none of the others that it is compared with."""
        known = self.compared.setdefault(value, [])
        if key not in known:
            for other in known:
                self.graph.tests[key].implies.append((True, other, False))
                self.graph.tests[other].implies.append((True, key, False))
            known.append(key)

    def _remainder_equals(self, value: Opaque, other: Value, node: ast.Compare) -> Formula:
        if isinstance(other, Const) and isinstance(other.value, int):
            return self._remainder(value, other.value, node)
        assert value.remainder is not None
        # ``i % k == k - 1``
        if other is self.structural("binary", (value.remainder[1], Const(1)), "", "-"):
            return self._remainder(value, -1, node)
        question = ("equal", self.identity(value), self.identity(other))
        return self.ask(question, _text(node), value.loops | other.loops, node)

    def _remainder(self, value: Opaque, remainder: int, node: ast.AST) -> Formula:
        """The question whether ``value`` (a ``%``) is ``remainder``: the same for every spelling of it."""
        assert value.remainder is not None
        count, modulus = value.remainder
        known = modulus.value if isinstance(modulus, Const) and isinstance(modulus.value, int) else 0
        if known == 1:
            return remainder == 0
        base, offset = (count.base, count.offset) if isinstance(count, Opaque) else (count, 0)
        ahead = (offset - remainder) % known if known else offset - remainder
        question = ("modulo", self.identity(base), ahead, self.identity(modulus))
        text: object = _text(node)
        if isinstance(node, ast.BinOp):
            text = Words(ast.Compare(node, [ast.Eq()], [ast.Constant(0)]), 80)
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotEq):
            text = Words(ast.Compare(node.left, [ast.Eq()], node.comparators), 80)
        formula = self.ask(question, text, count.loops | modulus.loops, node)
        if not isinstance(formula, bool):
            test = self.graph.tests[formula[1]]
            counted = isinstance(count, Opaque) and (count.counter or bool(count.loops))
            test.counts = counted and bool(self.state.loops)
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


def _text(node: ast.AST) -> Words:
    return Words(node, 80)


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
