"""What a comparison of a number with a constant tells of others: ``n == 1`` of ``n > 1``, and of a window of ``n``."""

from __future__ import annotations

from .interpreter import Interpreter
from .values import NO_CONSTANT, SequenceValue, UnknownValue, Value

#: How a test compares a value with a constant.
EQUAL, ABOVE, BELOW = "equal", "above", "below"
_COMPARISONS = {EQUAL: lambda x, c: x == c, ABOVE: lambda x, c: x > c, BELOW: lambda x, c: x < c}
#: Which answer to a comparison says of a number of micro-batches that it is one.
_SINGLE_BATCH_ANSWERS = {(EQUAL, 1): True, (ABOVE, 1): False, (BELOW, 2): True}


class ComparisonTable(dict[object, list[tuple[int, str, float]]]):
    """Tests that compare a value with a number each, how, and with which, by the identity of the value."""


class WindowPredicates(dict[object, list[int]]):
    """Tests that are true at each micro-batch where a window has one, by the identity of their number."""


class RangeEnds(dict[int, Value]):
    """Where each ``range(...)`` from zero on ends, and each number that a loop over one hands out, by its key."""


class ItemCounts(dict[int, Value]):
    """How many items there are in what a loop goes over, and of the turns whose number it hands out.

    By the key of what is counted; by the identity of a list.
    """

    def length_of(self, value: Value) -> Value | None:
        """The length of what a loop goes over. A list to which something was added since has another one."""
        if isinstance(value, UnknownValue):
            return self.get(value.key)
        return self.get(id(value)) if isinstance(value, SequenceValue) and len(value.items) == 1 else None


def record_comparison(interp: Interpreter, value: Value, other: Value, key: int, how: str) -> None:
    """Note a test that compares a value with a constant, and what it and those before tell of one another."""
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
    """Note a test that is true of the last of ``number`` micro-batches: of each, where there is one."""
    identity = number.identity_key(interp.unique_number)
    known = interp.file_data(WindowPredicates).setdefault(identity, [])
    if key not in known:
        known.append(key)
        for test in interp.file_data(ComparisonTable).get(identity, ()):
            _relate_to_window(interp, test, key)


def _record_implications(interp: Interpreter, test: tuple[int, str, float], other: tuple[int, str, float]) -> None:
    """Note what each answer to one comparison of a value says of another comparison of it."""
    (key, how, number), (others, hows, limit) = test, other
    low, high = sorted((number, limit))
    # Between and around the two numbers nothing changes.
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
