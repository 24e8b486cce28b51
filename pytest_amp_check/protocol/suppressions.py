"""Suppressions: comments that say of a line that a finding there is meant, or known.

``# amp: ignore[AMP201, missing-scaler-update] reason``, ``# amp: ignore`` for every rule, ``# amp: ignore-file[AMP2]``
above the first statement for a whole file, and ``# noqa: AMP201`` or ``# noqa``, as other linters have them. A trailing
comment speaks of its line, and of the whole statement that begins or ends there; one on a line of its own speaks of the
next statement, decorators included. Only real comments count: a string that looks like one does not.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator
from contextlib import suppress

from .finding import Finding
from .rule import RUNTIME
from .rules import RULES
from .selection import UnknownRule, expand_word

#: The rule that reports unused suppressions. Only its own code or name silences it: anything wider, standing unused,
#: would silence the finding about itself.
UNUSED = "AMP902"

# Patterns are compiled when there is a comment to match, which is seldom; compiling both takes 3 ms.
_HASH = r"(?:^|(?<=\s))#+\s*"
#: Codes without brackets are taken for a list too: as the reason of a blanket suppression they would silence far more.
_LIST = r"(?:\s*\[([^\]#]*)\]?|\s*(?::\s*)?(AMP[0-9]+(?:[,\s]+AMP[0-9]+)*)\b)?"
_PRAGMA = _HASH + r"amp:\s*ignore(-file)?(?![\w-])" + _LIST
_LISTING = r"(?i)noqa\s*:([^\n]*)"
_NOQA = "(?i)" + _HASH + r"noqa(?![\w-])(?:(\s*:)\s*([A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*\b)?)?"


class _Suppression:
    """One comment. ``listed`` are its words with the codes they stand for, None for every rule.

    It speaks of the lines ``first`` to ``last``; ``late`` marks one for the whole file that stands too low in it.
    """

    __slots__ = (
        "codes_by_word",
        "column",
        "end_column",
        "first_line",
        "is_late",
        "is_ours",
        "last_line",
        "line",
        "used_codes",
        "whole_file",
    )

    def __init__(
        self, line: int, column: int, end_column: int, words: list[str] | None, *, whole_file: bool, is_ours: bool
    ) -> None:
        self.line = line
        self.column = column
        self.end_column = end_column
        self.codes_by_word = None if words is None else {word: _expand_codes(word) for word in words}
        self.whole_file = whole_file
        self.is_ours = is_ours
        self.is_late = False
        # No line, until it is known which.
        self.first_line = 0
        self.last_line = 0
        self.used_codes: set[str] = set()

    def covers_lines(self, first: int, last: int) -> bool:
        if self.whole_file:
            return not self.is_late
        return self.first_line <= last and self.last_line >= first

    def names_code(self, code: str) -> bool:
        if self.codes_by_word is None:
            return code != UNUSED
        return any(codes == {UNUSED} if code == UNUSED else code in codes for codes in self.codes_by_word.values())

    def describe_unused(self, active: Collection[str]) -> Iterator[str]:
        """What of this comment was of no use, in words."""
        if not self.is_ours:
            return
        if self.codes_by_word is None:
            if not self.used_codes and _are_all_checked(RULES, active):
                yield "it stands below the first statement" if self.is_late else "no rule finds anything here"
            return
        if not self.codes_by_word:
            yield "its list is empty"
        for word, codes in self.codes_by_word.items():
            if not codes:
                yield f"{word} is no rule"
            elif codes.isdisjoint(self.used_codes) and codes != {UNUSED} and _are_all_checked(codes, active):
                yield f"{word}, below the first statement" if self.is_late else word


def _expand_codes(word: str) -> frozenset[str]:
    """The codes that a word of a list stands for; none, where there is no such rule."""
    try:
        return expand_word(word, RULES)[0]
    except UnknownRule:
        return frozenset()


def _are_all_checked(codes: Collection[str], active: Collection[str]) -> bool:
    """Whether a source reader looked for each of these rules; of several, those off by default do not count."""
    wanted = [c for c in codes if RULES[c].detected_by != RUNTIME and (RULES[c].on_by_default or len(codes) == 1)]
    return bool(wanted) and all(code in active for code in wanted)


class Suppressions:
    """The suppressions of one file, and which of them were of use."""

    __slots__ = ("_statement_ends", "_statement_starts", "_suppressions")

    def __init__(self) -> None:
        self._suppressions: list[_Suppression] = []
        # Where each statement begins and where its first logical line ends.
        self._statement_starts: list[int] = []
        self._statement_ends: list[int] = []

    @classmethod
    def from_text(cls, text: str) -> Suppressions:
        """Read the comments of a source text. Text that breaks off is read as far as it goes."""
        self = cls()
        if _may_suppress(text):
            self._read_comments(text.replace("\r\n", "\n").replace("\r", "\n"))
        return self

    @staticmethod
    def has_own_comment(text: str) -> bool:
        """Whether a text may hold a comment that is there for this tool alone."""
        if "amp:" in text:
            return True
        # What follows the first on a line follows the others, too.
        return "AMP" in text and any("amp" in said.lower() for said in re.findall(_LISTING, text))

    def suppresses_finding(self, finding: Finding) -> bool:
        """Whether a finding is suppressed; the suppressions that do so have been of use from now on."""
        first, last = finding.site.line, finding.site.end_line
        # A finding may stand for a whole block; only a comment at its head speaks of it, not every one inside.
        at = bisect_right(self._statement_starts, first) - 1
        last = min(last, max(first, self._statement_ends[at])) if at >= 0 else first
        silenced = False
        for suppression in self._suppressions:
            if suppression.covers_lines(first, last) and suppression.names_code(finding.code):
                suppression.used_codes.add(finding.code)
                silenced = True
        return silenced

    def find_unused(self, active: Collection[str]) -> list[tuple[int, int, int, str]]:
        """Suppressions that silenced nothing: line, column and end column from 0, and what in them is of no use.

        ``active`` are the codes that were looked for. What a word could silence besides them is not known, so a word is
        only reported where all rules it stands for were looked for. Comments for other tools are left to them.
        """
        return [
            (suppression.line, suppression.column, suppression.end_column, "; ".join(idle))
            for suppression in self._suppressions
            if (idle := list(suppression.describe_unused(active)))
        ]

    def _read_comments(self, text: str) -> None:
        from io import StringIO
        from tokenize import (
            COMMENT,
            DEDENT,
            ENDMARKER,
            INDENT,
            NEWLINE,
            NL,
            TokenError,
            generate_tokens,
        )

        start = 0  # the line on which the logical line began, 0 between two
        keyword = ""  # its first token
        seen_statement = False  # whether a statement other than a docstring or an import has been seen
        pending_comments: list[_Suppression] = []  # on lines of their own, for the statement to come
        statement_comments: list[_Suppression] = []  # the same, for the statement that is being read
        bracket_comments: list[_Suppression] = []  # on lines of their own inside brackets
        trailing_comments: list[_Suppression] = []
        # A file that does not parse is read as far as it goes: that it does not is what will be said about it.
        with suppress(TokenError, SyntaxError):
            for kind, string, (line, column), _, source in generate_tokens(StringIO(text).readline):
                if kind == COMMENT:
                    for found in _parse_comment(string, line, column):
                        self._suppressions.append(found)
                        if found.whole_file:
                            found.is_late = seen_statement or start > 0
                        elif source.lstrip().startswith("#"):
                            # A bare noqa is never on a line of its own; other tools give it no meaning there.
                            if found.is_ours:
                                (bracket_comments if start else pending_comments).append(found)
                        else:
                            found.first_line = found.last_line = line
                            trailing_comments.append(found)
                elif kind == NEWLINE:
                    for found in trailing_comments:
                        if found.line in (start, line):
                            found.first_line, found.last_line = start, line
                    for found in statement_comments:
                        found.last_line = line
                    self._statement_starts.append(start)
                    self._statement_ends.append(line)
                    seen_statement = seen_statement or not (keyword in ("import", "from") or keyword[-1:] in "'\"")
                    trailing_comments.clear()
                    bracket_comments.clear()
                    if keyword != "@":
                        statement_comments.clear()
                    start = 0
                elif kind not in (NL, INDENT, DEDENT, ENDMARKER):
                    if not start:
                        start, keyword = line, string
                        statement_comments += pending_comments
                        pending_comments.clear()
                        for found in statement_comments:
                            found.first_line = found.first_line or line
                            found.last_line = line
                    for found in bracket_comments:
                        found.first_line = found.last_line = line
                    bracket_comments.clear()


def _may_suppress(text: str) -> bool:
    """Whether anything in a text looks like a comment that suppresses: most that say noqa speak to other tools."""
    if "amp:" in text and any("amp:" in line.partition("#")[2] for line in text.split("\n")):
        return True  # and not just the head of an ``if args.amp:``
    said = (line.partition("#") for line in text.split("\n") if "noqa" in line.lower())
    return any(next(_parse_comment(mark + comment, 0, 0), None) is not None for _, mark, comment in said)


def _parse_comment(comment: str, line: int, column: int) -> Iterator[_Suppression]:
    """The suppressions in one comment."""
    for match in re.finditer(_PRAGMA, comment):
        scope, bracketed, bare = match.groups()
        given = bare if bracketed is None else bracketed
        words = None if given is None else re.findall(r"[^,\s]+", given)
        start, end = column + match.start(), column + match.end()
        yield _Suppression(line, start, end, words, whole_file=scope is not None, is_ours=True)
    for match in re.finditer(_NOQA, comment):
        colon, given = match.groups()
        words = None if colon is None else [w for w in re.findall(r"\w+", (given or "").upper()) if w.startswith("AMP")]
        if words is None or words:
            start, end = column + match.start(), column + match.end()
            yield _Suppression(line, start, end, words, whole_file=False, is_ours=words is not None)
