"""Truth: the conditions under which a value is true, or is None."""

from __future__ import annotations

import ast

from ...protocol.events import Test
from .conditions import Formula, both, either
from .interpreter import Interpreter
from .values import Choice, Opaque, Value
from .wording import Phrase


def truth(at: Interpreter, value: Value, text: object = "", node: ast.AST | None = None) -> Formula:
    """The condition under which a value is true."""
    if isinstance(value, Choice):
        return at.short(either(*(both(f, truth(at, v, text, node)) for f, v in value.options)))
    value = value.source or value
    known = value.truth()
    if known is not None:
        return known
    if isinstance(value, Opaque):
        test = at.test(("true", value.key), text or value.words, value.loops, node)
        _describe(at, test, value)
        return ("test", test.key)
    return at.ask(("true", at.number(value)), text, value.loops | at.turning(), node)


def _describe(at: Interpreter, test: Test, value: Opaque) -> None:
    """What is known of a question whether an unknown value is true."""
    test.counts = test.counts or value.counter
    test.flag = test.flag or value.argument
    for reading in value.readings if test.of_gradients is not None else ():
        owners = reading.facts.get("owners")
        if owners is None:
            test.of_gradients = None
            break
        test.of_gradients = (test.of_gradients or frozenset()).union(owners)
    if not test.implies and ("none", value.key) in at.tests.keys:
        _imply(at, value)


def is_none(at: Interpreter, value: Value, text: object = "", node: ast.AST | None = None) -> Formula:
    """The condition under which a value is None."""
    if isinstance(value, Choice):
        return at.short(either(*(both(f, is_none(at, v, text, node)) for f, v in value.options)))
    value = value.source or value
    if not isinstance(value, Opaque):
        return value.value is None
    formula = at.ask(("none", value.key), Phrase("{} is None", text or value.words), value.loops, node)
    if ("true", value.key) in at.tests.keys:
        _imply(at, value)
    return formula


def _imply(at: Interpreter, value: Opaque) -> None:
    """What is true is not None, and None is not true.

    What this file uses as a scaler, an optimizer or a module is an object or nothing: true where it is not None.
    """
    true = at.graph.tests[at.tests.keys["true", value.key]]
    none = at.graph.tests[at.tests.keys["none", value.key]]
    if not true.implies:
        thing = value.text in at.state.frame.module.uses
        for truth in (True, False) if thing else (True,):
            true.implies.append((truth, none.key, not truth))
            none.implies.append((truth, true.key, not truth))
