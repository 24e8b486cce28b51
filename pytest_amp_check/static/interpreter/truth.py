"""Truth: the conditions under which a value is true, or is None."""

from __future__ import annotations

import ast

from .conditions import Formula, both, either
from .interpreter import Interpreter
from .values import Choice, Const, Opaque, Ref, Sequence, Tensor, Truth, Value


class _IsNone:
    """The words of a question for None."""

    __slots__ = ("_of",)

    def __init__(self, of: object) -> None:
        self._of = of

    def __str__(self) -> str:
        return f"{self._of} is None"


def truth(at: Interpreter, value: Value, text: object = "", node: ast.AST | None = None) -> Formula:
    """The condition under which a value is true."""
    if isinstance(value, Const):
        return bool(value.value)
    if isinstance(value, Truth):
        return value.formula
    if isinstance(value, Choice):
        return at.short(either(*(both(f, truth(at, v, text, node)) for f, v in value.options)))
    if isinstance(value, Ref) and value.source is not None:
        value = value.source
    if isinstance(value, Opaque):
        formula = at.ask(("true", value.key), text or value.words, value.loops, node)
        if not isinstance(formula, bool):
            test = at.graph.tests[formula[1]]
            test.counts = test.counts or value.counter
            test.flag = test.flag or value.argument
            for reading in value.readings if test.of_gradients is not None else ():
                owners = reading.facts.get("owners")
                test.of_gradients = None if owners is None else (test.of_gradients or frozenset()).union(owners)
                if owners is None:
                    break
            if not test.implies and ("none", value.key) in at.tests.keys:
                _imply(at, value)
        return formula
    if isinstance(value, Tensor):
        return at.ask(("true", at.number(value)), text, value.loops | at.turning(), node)
    if isinstance(value, Sequence):
        return (
            True
            if value.items
            else at.ask(("true", at.number(value)), text, at.turning(), node)
            if value.open
            else False
        )
    return True


def is_none(at: Interpreter, value: Value, text: object = "", node: ast.AST | None = None) -> Formula:
    """The condition under which a value is None."""
    if isinstance(value, Const):
        return value.value is None
    if isinstance(value, Choice):
        return at.short(either(*(both(f, is_none(at, v, text, node)) for f, v in value.options)))
    if isinstance(value, Ref) and value.source is not None:
        value = value.source
    if isinstance(value, Opaque):
        formula = at.ask(("none", value.key), _IsNone(text or value.words), value.loops, node)
        if ("true", value.key) in at.tests.keys:
            _imply(at, value)
        return formula
    return False


def _imply(at: Interpreter, value: Opaque) -> None:
    """What is true is not None, and None is not true."""
    true = at.graph.tests[at.tests.keys["true", value.key]]
    none = at.graph.tests[at.tests.keys["none", value.key]]
    if not true.implies:
        true.implies.append((True, none.key, False))
        none.implies.append((True, true.key, False))
