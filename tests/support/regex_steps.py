"""Step counts of a backtracking regex matcher, and the inputs that cost the most steps.

Time is not a reliable measure in a test, and the steps of ``re`` cannot be counted from outside. So this module walks
the syntax tree of ``re`` in the matcher's order: characters in sequence, the longest repetition first, backtracking to
the last choice on failure. It omits every optimization of ``re`` (a required literal, a prefix search). Therefore, a
pattern that is linear here is linear in ``re``.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    from re import _parser as parser
else:
    import sre_parse as parser

#: Characters for inputs, in addition to the characters of the pattern itself.
ALPHABET = "a0_ \n\tZ.-,:=([{#\"'`>*!?%/\\\x00"
#: Limit for bounded repetitions. A larger bound also bounds the work, only for larger inputs.
END = 6
#: Limit of steps: more than the square of any input length here, so more steps are not linear.
TOO_MANY = 500_000
#: Possible end positions, one for each way to continue.
Way = Iterator[int]


class TooMany(Exception):
    """Exception for a match that exceeds the limit of steps."""


class Node(NamedTuple):
    """An element of a pattern: operation, its arguments, and a predicate if it matches a single character."""

    op: str
    given: Any
    test: Callable[[str], bool] | None


class Pattern:
    """A pattern with a counter of matching steps, ``steps``.

    With ``words``, inputs have no long words: repetitions of non-blank characters are bounded.
    """

    def __init__(self, pattern: str | bytes, flags: int = 0, *, words: bool = False) -> None:
        # The ASCII characters of a bytes pattern stay the same characters in latin-1.
        text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
        self.words = words
        tree: Any = parser.parse(text, flags)
        self.flags: int = tree.state.flags | flags
        self.tree = self._read(tree)
        self.steps = 0
        self.text = ""
        self.groups: dict[int, str] = {}

    def _read(self, tree: Any) -> list[Node]:
        """Return the nodes of a syntax tree of ``re``, with lists of nodes inside: ``re`` copies on each access."""
        found = []
        for kind, given in tree:
            op = str(kind)
            # The same few characters are tested again and again.
            single = op in ("LITERAL", "NOT_LITERAL", "ANY", "IN")
            found.append(
                Node(op, self._arguments(op, given), functools.cache(self._test(op, given)) if single else None)
            )
        return found

    def _arguments(self, op: str, given: Any) -> Any:
        if op.endswith("REPEAT"):
            return given[0], given[1], self._read(given[2])
        if op == "SUBPATTERN":
            return given[0], self._read(given[3])
        if op == "ATOMIC_GROUP":
            return self._read(given)
        if op == "BRANCH":
            return [self._read(branch) for branch in given[1]]
        if op in ("ASSERT", "ASSERT_NOT"):
            # A lookbehind covers exactly its width.
            return 0 if given[0] > 0 else given[1].getwidth()[0], self._read(given[1])
        return str(given) if op == "AT" else given

    # Matching.

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield start and end of all matches in a text, in order."""
        self.text, self.steps, at = text, 0, 0
        while at <= len(text):
            end = next(self._sequence(self.tree, 0, at), None)
            if end is not None:
                yield at, end
            # An empty match advances by one character.
            at = at + 1 if end is None or end == at else end

    def searched(self, text: str) -> int:
        """Return the number of steps to find all matches in a text."""
        for _ in self.spans(text):
            pass
        return self.steps

    def matched(self, text: str) -> int:
        """Return the number of steps of one match at the start of a text."""
        self.text, self.steps = text, 0
        next(self._sequence(self.tree, 0, 0), None)
        return self.steps

    def _sequence(self, nodes: list[Node], index: int, at: int) -> Way:
        while index < len(nodes):
            op, given, test = nodes[index]
            if test is None:
                for end in self._one_of(op, given, at):
                    yield from self._sequence(nodes, index + 1, end)
                return
            self.steps += 1
            if at >= len(self.text) or not test(self.text[at]):
                return
            at, index = at + 1, index + 1
        yield at

    def _one_of(self, op: str, given: Any, at: int) -> Way:
        self.steps += 1
        if self.steps > TOO_MANY:
            raise TooMany
        if op in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            least, most, body = given
            ways = self._repeated(op, least, self._end(least, most, body), body, at)
            yield from ways if op != "POSSESSIVE_REPEAT" else _first(ways)
        elif op == "SUBPATTERN":
            for end in self._sequence(given[1], 0, at):
                if given[0] is not None:
                    self.groups[given[0]] = self.text[at:end]
                yield end
        elif op == "ATOMIC_GROUP":
            yield from _first(self._sequence(given, 0, at))
        elif op == "BRANCH":
            for branch in given:
                yield from self._sequence(branch, 0, at)
        elif op in ("ASSERT", "ASSERT_NOT"):
            width, body = given
            # Before the start of the text, no match is possible.
            start = at - width if at >= width else len(self.text) + 1
            if (next(self._sequence(body, 0, start), None) is not None) == (op == "ASSERT"):
                yield at
        elif op == "AT":
            if self._is_at(given, at):
                yield at
        elif op == "GROUPREF":
            if self.text.startswith(self.groups.get(given, "\0"), at):
                yield at + len(self.groups[given])
        else:
            raise NotImplementedError(op)

    def _end(self, least: int, most: int, body: list[Node]) -> int:
        test = body[0].test
        if most is parser.MAXREPEAT and not (self.words and test is not None and not test(" ")):
            return int(most)
        return max(least, min(int(most), END))

    def _repeated(self, op: str, least: int, most: int, body: list[Node], at: int) -> Way:
        test = body[0].test if len(body) == 1 else None
        if test is None:
            yield from self._repeated_group(op, least, most, body, at, 0)
            return
        end = at
        if op == "MIN_REPEAT":
            while True:
                if end - at >= least:
                    yield end
                self.steps += 1
                if end - at >= most or end >= len(self.text) or not test(self.text[end]):
                    return
                end += 1
        while end - at < most and end < len(self.text) and test(self.text[end]):
            self.steps += 1
            end += 1
        while end - at >= least:
            self.steps += 1
            yield end
            end -= 1

    def _repeated_group(self, op: str, least: int, most: int, body: list[Node], at: int, done: int) -> Way:
        self.steps += 1
        if op == "MIN_REPEAT" and done >= least:
            yield at
        if done < most:
            for end in self._sequence(body, 0, at):
                if end > at or done < least:
                    yield from self._repeated_group(op, least, most, body, end, done + 1)
        if op != "MIN_REPEAT" and done >= least:
            yield at

    def _is_at(self, where: str, at: int) -> bool:
        text, lines = self.text, bool(self.flags & re.MULTILINE)
        if where in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
            return at == 0 or (lines and where == "AT_BEGINNING" and text[at - 1] == "\n")
        if where in ("AT_END", "AT_END_STRING"):
            rest = text[at:]
            return not rest or (where == "AT_END" and (rest == "\n" or (lines and rest[0] == "\n")))
        sides = [0 <= each < len(text) and _in_category("WORD", text[each]) for each in (at - 1, at)]
        return (sides[0] != sides[1]) == (where == "AT_BOUNDARY")

    # Single characters.

    def _test(self, op: str, given: Any) -> Callable[[str], bool]:
        if op == "ANY":
            return lambda c: c != "\n" or bool(self.flags & re.DOTALL)
        items = given if op == "IN" else [(op, given)]

        def plain(c: str) -> bool:
            negated = found = False
            for kind, value in items:
                word = str(kind)
                if word == "NEGATE":
                    negated = True
                elif word == "RANGE":
                    found = found or value[0] <= ord(c) <= value[1]
                elif word == "CATEGORY":
                    name = str(value).removeprefix("CATEGORY_")
                    found = found or _in_category(name.removeprefix("NOT_"), c) != name.startswith("NOT_")
                else:
                    found = found or (ord(c) == value) == (word == "LITERAL")
            return found != negated

        if self.flags & re.IGNORECASE:
            return lambda c: plain(c.lower()) or plain(c.upper())
        return plain

    # Inputs.

    def inputs(self) -> Iterator[tuple[str, str, str]]:
        """Yield prefix, repeated text and suffix of inputs that cost as many steps as possible.

        For each unbounded repetition, an input reaches the repetition, repeats its body, and then fails. A second form
        also repeats the prefix.
        """
        letters = list(dict.fromkeys([*_named(self.tree), *ALPHABET]))
        tests = [node.test for node in _nodes(self.tree) if node.test is not None]
        # Characters that match most parts of the pattern come first: another part can continue at each of them.
        letters.sort(key=lambda letter: -sum(test(letter) for test in tests))
        for lead, body in _repeats(self.tree, []):
            before = self._sample(lead, letters)[:2] or [""]
            bodies = self._sample(body, letters)
            for start in dict.fromkeys(before):
                for pump in bodies:
                    for end in ("", "\x00", "\n"):
                        yield start, pump, end
                    yield "", start + pump, "\x00"
                    yield "", start + pump + "\n", ""

    def _sample(self, nodes: list[Node], letters: list[str]) -> list[str]:
        """Return some of the shortest texts that nodes match."""
        found = [""]
        for node in nodes:
            op, given, test = node
            if test is not None:
                more = [letter for letter in letters if test(letter)][:4]
            elif op.endswith("REPEAT"):
                more = ["", *self._sample(given[2], letters)] if given[0] == 0 else []
                more += [each * given[0] for each in self._sample(given[2], letters)] if given[0] else []
            elif op in ("SUBPATTERN", "ATOMIC_GROUP"):
                more = self._sample(_children(node)[0], letters)
            elif op == "BRANCH":
                more = [text for branch in given for text in self._sample(branch, letters)[:2]]
            else:
                more = [""]
            found = [text + each for text in found[:4] for each in (more or [""])[:6]]
        return list(dict.fromkeys(found))[:5]


def _first(ways: Way) -> Way:
    end = next(ways, None)
    if end is not None:
        yield end


def _in_category(name: str, c: str) -> bool:
    return {"DIGIT": c.isdigit(), "SPACE": c.isspace(), "WORD": c.isalnum() or c == "_"}[name]


def _children(node: Node) -> list[list[Node]]:
    """Return the node sequences inside a node, except lookarounds."""
    if node.op.endswith("REPEAT"):
        return [node.given[2]]
    if node.op == "SUBPATTERN":
        return [node.given[1]]
    if node.op == "ATOMIC_GROUP":
        return [node.given]
    return list(node.given) if node.op == "BRANCH" else []


def _nodes(nodes: list[Node]) -> Iterator[Node]:
    for node in nodes:
        yield node
        for inner in _children(node):
            yield from _nodes(inner)


def _named(nodes: list[Node]) -> list[str]:
    return [chr(node.given) for node in _nodes(nodes) if node.op == "LITERAL"]


def _repeats(nodes: list[Node], lead: list[Node]) -> Iterator[tuple[list[Node], list[Node]]]:
    """Yield the prefix and the body of each unbounded repetition."""
    for index, node in enumerate(nodes):
        here = lead + nodes[:index]
        if node.op.endswith("REPEAT") and node.given[1] is parser.MAXREPEAT:
            yield here, node.given[2]
        for inner in _children(node):
            yield from _repeats(inner, here)
