"""What a comparison of a number with a constant tells of others: ``n == 1`` of ``n > 1``, and of a window of ``n``."""

from __future__ import annotations

from .interpreter import Interpreter
from .values import UNREAD, Opaque, Sequence, Value

#: How a test compares a value with a constant.
EQUAL, ABOVE, BELOW = "equal", "above", "below"
_HOLDS = {EQUAL: lambda x, c: x == c, ABOVE: lambda x, c: x > c, BELOW: lambda x, c: x < c}
#: Which answer to a comparison says of a number of micro-batches that it is one.
_ONE = {(EQUAL, 1): True, (ABOVE, 1): False, (BELOW, 2): True}


class Compared(dict[object, list[tuple[int, str, float]]]):
    """Tests that compare a value with a number each, how, and with which, by the identity of the value."""


class Windows(dict[object, list[int]]):
    """Tests that are true at each micro-batch where a window has one, by the identity of their number."""


class Ranges(dict[int, Value]):
    """Where each ``range(...)`` from zero on ends, and each number that a loop over one hands out, by its key."""


class Lengths(dict[int, Value]):
    """How many items there are in what a loop goes over, and of the turns whose number it hands out.

    By the key of what is counted; by the identity of a list.
    """

    def of(self, value: Value) -> Value | None:
        """The length of what a loop goes over. A list to which something was added since has another one."""
        if isinstance(value, Opaque):
            return self.get(value.key)
        return self.get(id(value)) if isinstance(value, Sequence) and len(value.items) == 1 else None


def compared(at: Interpreter, value: Value, other: Value, key: int, how: str) -> None:
    """Note a test that compares a value with a constant, and what it and those before tell of one another."""
    number = other.value
    if value.value is not UNREAD or isinstance(number, bool) or not isinstance(number, (int, float)):
        return
    identity = value.identity(at.number)
    known = at.of_file(Compared).setdefault(identity, [])
    if (key, how, number) in known:
        return
    for before in known:
        _relate(at, (key, how, number), before)
        _relate(at, before, (key, how, number))
    known.append((key, how, number))
    for window in at.of_file(Windows).get(identity, ()):
        _of_one(at, (key, how, number), window)


def window(at: Interpreter, number: Value, key: int) -> None:
    """Note a test that is true of the last of ``number`` micro-batches: of each, where there is one."""
    identity = number.identity(at.number)
    known = at.of_file(Windows).setdefault(identity, [])
    if key not in known:
        known.append(key)
        for test in at.of_file(Compared).get(identity, ()):
            _of_one(at, test, key)


def _relate(at: Interpreter, test: tuple[int, str, float], other: tuple[int, str, float]) -> None:
    """Note what each answer to one comparison of a value says of another comparison of it."""
    (key, how, number), (others, hows, limit) = test, other
    low, high = sorted((number, limit))
    # Between and around the two numbers nothing changes.
    samples = (low - 1, low, (low + high) / 2, high, high + 1)
    for truth in (True, False):
        answers = {_HOLDS[hows](x, limit) for x in samples if _HOLDS[how](x, number) is truth}
        if len(answers) == 1:
            at.graph.tests[key].implies.append((truth, others, answers.pop()))


def _of_one(at: Interpreter, test: tuple[int, str, float], window: int) -> None:
    key, how, number = test
    one = _ONE.get((how, int(number))) if number in (1, 2) else None
    if one is not None:
        at.graph.tests[key].implies.append((one, window, True))
        at.graph.tests[window].implies.append((False, key, not one))
