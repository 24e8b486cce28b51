"""Conditions as formulas over predicates. The same question, asked twice, is the same predicate.

A formula is True, False, ``("test", key)``, ``("not", f)``, ``("and", f, g, ...)`` or ``("or", f, g, ...)``.
"""

from __future__ import annotations

from ...protocol.event_graph import Predicate
from ...protocol.sites import Site

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Formula = bool | tuple["Any", ...]


class Requirement(tuple["Any", ...]):
    """Formula of a path condition without which the program ends, as after ``assert``."""

    __slots__ = ()


def require(formula: Formula) -> Formula:
    """Return the same formula, as a requirement."""
    return formula if isinstance(formula, bool) else Requirement(formula)


def negate(formula: Formula) -> Formula:
    """Return the negation of a formula."""
    if isinstance(formula, bool):
        return not formula
    if formula[0] == "not":
        inner: Formula = formula[1]
        return inner
    return ("not", formula)


def conjunction(*formulas: Formula) -> Formula:
    """Return the conjunction of formulas."""
    return _combine_formulas("and", formulas, neutral=True)


def disjunction(*formulas: Formula) -> Formula:
    """Return the disjunction of formulas."""
    return _combine_formulas("or", formulas, neutral=False)


def _combine_formulas(word: str, formulas: tuple[Formula, ...], *, neutral: bool) -> Formula:
    parts: list[Formula] = []
    for formula in formulas:
        if isinstance(formula, bool):
            if formula != neutral:
                return not neutral
        elif formula[0] == word:
            parts.extend(part for part in formula[1:] if part not in parts)
        elif formula not in parts:
            parts.append(formula)
    if not parts:
        return neutral
    if len(parts) == 1:
        return parts[0]
    if len(parts) <= 8 and any(negate(part) in parts for part in parts):
        return not neutral
    return (word, *parts)


def literals(formula: Formula, truth: bool = True) -> list[tuple[int, bool]]:
    """Return the predicates of a formula, each with the truth that helps to make the formula ``truth``."""
    if isinstance(formula, bool):
        return []
    if formula[0] == "test":
        return [(formula[1], truth)]
    if formula[0] == "not":
        return literals(formula[1], not truth)
    return [pair for part in formula[1:] for pair in literals(part, truth)]


def implied_literals(formula: Formula, truth: bool = True) -> list[tuple[int, bool]]:
    """Return the predicates whose truth follows if a formula is ``truth``, each with its truth."""
    if isinstance(formula, bool):
        return []
    if formula[0] == "test":
        return [(formula[1], truth)]
    if formula[0] == "not":
        return implied_literals(formula[1], not truth)
    if (formula[0] == "and") != truth:
        return []
    return [pair for part in formula[1:] for pair in implied_literals(part, truth)]


def simplify_under(formula: Formula, known: dict[int, bool]) -> Formula:
    """Return the rest of a formula under the known truth of some predicates."""
    if isinstance(formula, bool):
        return formula
    if formula[0] == "test":
        return known.get(formula[1], formula)
    if formula[0] == "not":
        return negate(simplify_under(formula[1], known))
    return _combine_formulas(
        formula[0], tuple(simplify_under(part, known) for part in formula[1:]), neutral=formula[0] == "and"
    )


def count_predicates(formula: Formula, limit: int) -> int:
    """Return the number of predicates in a formula, counted up to ``limit``."""
    if isinstance(formula, bool):
        return 0
    if formula[0] == "test":
        return 1
    total = 0
    for part in formula[1:]:
        total += count_predicates(part, limit - total)
        if total >= limit:
            break
    return total


def reduce_formula(formula: Formula, limit: int) -> Formula:
    """Return an equivalent formula in which each path asks a predicate once.

    A formula of more than ``limit`` different predicates is returned as it is: the work doubles with each of them.
    """
    keys = list(dict.fromkeys(key for key, _ in literals(formula)))
    return _split_by(keys, 0, formula) if len(keys) <= limit else formula


def _split_by(keys: list[int], first: int, formula: Formula) -> Formula:
    if isinstance(formula, bool) or first == len(keys):
        return formula
    test: Formula = ("test", keys[first])
    yes, no = (_split_by(keys, first + 1, simplify_under(formula, {keys[first]: truth})) for truth in (True, False))
    if yes == no:
        return yes
    # Where one side implies the other, the question guards the weaker side only.
    if yes is True or no is False:
        return disjunction(test, no) if yes is True else conjunction(test, yes)
    if yes is False or no is True:
        return conjunction(negate(test), no) if yes is False else disjunction(negate(test), yes)
    return disjunction(conjunction(test, yes), conjunction(negate(test), no))


def mentions_key(question: object, key: object) -> bool:
    """Return True if a predicate is about the value with this key."""
    if question == key or question == repr(key):
        return True
    return isinstance(question, tuple) and any(mentions_key(part, key) for part in question[1:])


class PredicateTable:
    """Predicates of one file, one for each question."""

    def __init__(self) -> None:
        self.predicates: list[Predicate] = []
        self.key_by_question: dict[object, int] = {}
        self._questions: list[object] = []
        self._mask_by_loop: dict[int, int] = {}
        self._predicates_by_loop: dict[int, list[Predicate]] = {}
        #: Formulas under which a constructor raises.
        self.excluded_formulas: set[Formula] = set()

    def find_predicate(self, question: object) -> Predicate | None:
        """Return the predicate for ``question``, or None if nobody asked before."""
        key = self.key_by_question.get(question)
        return None if key is None else self.predicates[key]

    def predicate_for(self, question: object, text: object, site: Site | None, loops: frozenset[int]) -> Predicate:
        """Return the predicate for ``question``. Each iteration of ``loops`` may change its truth."""
        known = self.find_predicate(question)
        if known is not None:
            return known
        made = Predicate(len(self.predicates), text, site)
        self.key_by_question[question] = made.key
        self._questions.append(question)
        self.predicates.append(made)
        for loop in loops:
            self._mask_by_loop[loop] = self._mask_by_loop.get(loop, 0) | (1 << made.key)
            self._predicates_by_loop.setdefault(loop, []).append(made)
        return made

    def question_of(self, key: int) -> object:
        """Return the question of the predicate with this key."""
        return self._questions[key]

    def forgotten_by(self, loop: int) -> int:
        """Return the predicates, as a bit set, whose truth a new iteration of a loop makes unknown."""
        return self._mask_by_loop.get(loop, 0)

    def is_constant(self, key: int) -> bool:
        """Return True if no loop changes the truth of a predicate."""
        return not any(mask >> key & 1 for mask in self._mask_by_loop.values())

    def exclude(self, formula: Formula) -> None:
        """Record that a formula is never true where the other code runs.

        Only a conjunction of two predicates that no loop changes leads to implications.
        """
        self.excluded_formulas.add(formula)
        found = implied_literals(formula)
        if len(found) != 2 or len(literals(formula)) != 2 or not all(self.is_constant(key) for key, _ in found):
            return
        for (key, truth), (other, excluded) in (found, found[::-1]):
            implication = (truth, other, not excluded)
            if implication not in self.predicates[key].implications:
                self.predicates[key].implications.append(implication)

    def counts_iterations(self, loop: int) -> bool:
        """Return True if a predicate counts the iterations of a loop."""
        return any(test.is_window_predicate for test in self._predicates_by_loop.get(loop, ()))
