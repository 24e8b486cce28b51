"""Implications between comparisons of a number with constants: ``n == 1`` and ``n > 1``, or a window of ``n``."""

from __future__ import annotations

from .interpreter import Interpreter
from .values.containers import SequenceValue
from .values.value import NO_CONSTANT, UnknownValue, Value

#: Kinds of comparison between a value and a constant.
EQUAL, ABOVE, BELOW = "equal", "above", "below"
_COMPARISONS = {EQUAL: lambda x, c: x == c, ABOVE: lambda x, c: x > c, BELOW: lambda x, c: x < c}
#: Truth of a comparison that makes the number of micro-batches one.
_SINGLE_BATCH_ANSWERS = {(EQUAL, 1): True, (ABOVE, 1): False, (BELOW, 2): True}


class ComparisonTable(dict[object, list[tuple[int, str, float]]]):
    """Comparisons of a value with a number, by the identity of the value: predicate key, kind and number."""


class WindowPredicates(dict[object, list[int]]):
    """Predicates that hold at every micro-batch of a one-batch window, by the identity of the window's length."""


class RangeEnds(dict[int, Value]):
    """Ends of ``range(...)`` and ``enumerate(...)`` calls, and of the loop indices over them, by key."""


class RangeSteps(dict[int, Value]):
    """Steps of ``range(...)`` and ``enumerate(...)`` calls with a known end, and of the loop indices, by key."""


class ItemCounts(dict[int, Value]):
    """Numbers of items of iterables, and of the iterations whose index a loop assigns.

    The key is the key of the unknown value, or the identity of the list.
    """

    def length_of(self, value: Value) -> Value | None:
        """Return the length of an iterable, or None. A list with appended items has another length."""
        if isinstance(value, UnknownValue):
            return self.get(value.key)
        return self.get(id(value)) if isinstance(value, SequenceValue) and len(value.items) == 1 else None


def record_comparison(interp: Interpreter, value: Value, other: Value, key: int, how: str) -> None:
    """Record a predicate that compares a value with a constant, and its implications with earlier predicates."""
    number = other.value
    if value.value is not NO_CONSTANT or isinstance(number, bool) or not isinstance(number, (int, float)):
        return
    identity = value.identity_key(interp.unique_number)
    known = interp.file_data(ComparisonTable).setdefault(identity, [])
    if (key, how, number) in known:
        return
    for before in known:
        _record_implications(interp, (key, how, number), before)
        _record_implications(interp, before, (key, how, number))
    known.append((key, how, number))
    for window in interp.file_data(WindowPredicates).get(identity, ()):
        _relate_to_window(interp, (key, how, number), window)


def record_window_end(interp: Interpreter, number: Value, key: int) -> None:
    """Record a predicate that holds at the last of ``number`` micro-batches: at every one if ``number`` is one."""
    identity = number.identity_key(interp.unique_number)
    known = interp.file_data(WindowPredicates).setdefault(identity, [])
    if key not in known:
        known.append(key)
        for test in interp.file_data(ComparisonTable).get(identity, ()):
            _relate_to_window(interp, test, key)


def _record_implications(interp: Interpreter, test: tuple[int, str, float], other: tuple[int, str, float]) -> None:
    """Record the truth of a second comparison of a value that follows from each truth of a first comparison."""
    (key, how, number), (others, hows, limit) = test, other
    low, high = sorted((number, limit))
    # The truth changes only at the two numbers.
    samples = (low - 1, low, (low + high) / 2, high, high + 1)
    for truth in (True, False):
        answers = {_COMPARISONS[hows](x, limit) for x in samples if _COMPARISONS[how](x, number) is truth}
        if len(answers) == 1:
            interp.graph.predicates[key].implications.append((truth, others, answers.pop()))


def _relate_to_window(interp: Interpreter, test: tuple[int, str, float], window: int) -> None:
    key, how, number = test
    one = _SINGLE_BATCH_ANSWERS.get((how, int(number))) if number in (1, 2) else None
    if one is not None:
        interp.graph.predicates[key].implications.append((one, window, True))
        interp.graph.predicates[window].implications.append((False, key, not one))
