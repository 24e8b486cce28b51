"""Suppressions: comments that mark a finding on a line as intended or known.

``# amp: ignore[AMP201, missing-scaler-update] reason``, ``# amp: ignore`` for every rule, ``# amp: ignore-file[AMP2]``
above the first statement for a whole file, ``# amp: disable[AMP201]`` up to ``# amp: enable[AMP201]`` or the end of the
file, and ``# noqa: AMP201`` or ``# noqa`` as in other linters. A trailing comment applies to its line, and to the whole
statement that begins or ends there. A comment on a separate line applies to the next statement, including decorators.
Only real comments count; strings do not. A comment in another form suppresses nothing, and is reported.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Collection, Iterator
from contextlib import suppress

from .fast_namedtuple import NamedTuple
from .finding import Finding
from .rule import RUNTIME
from .rules import RULES
from .selection import UnknownRule, expand_word

#: Rule for unused suppressions. Only the rule's own code or name suppresses the rule: an unused wider suppression would
#: otherwise suppress the finding about itself.
UNUSED = "AMP902"

# Patterns are compiled only for a matching comment, which is rare. Compiling both takes 3 ms.
_HASH = r"(?:^|(?<=\s))#+\s*"
#: Codes and names without brackets also form a list. As the reason of a blanket suppression, they would suppress far
#: more.
_WORD = rf"(?:AMP[0-9]+|{'|'.join(rule.name for rule in RULES.values())})(?![\w-])"
_LIST = rf"(?:\s*\[([^\]#]*)\]?|(?:\s*[:,]|\s+-+)?\s*((?i:{_WORD}(?:[,\s]+{_WORD})*)))?"
#: A list in other brackets is another form: as the reason of a blanket suppression, it would suppress far more.
_PRAGMA = _HASH + r"amp:\s*ignore(-file)?(?![\w-]|\s*[({<=])" + _LIST
_RANGE = _HASH + r"amp:\s*(disable|enable)\s*\[([^\]#]*)\]"
_OTHER_FORM = _HASH + r"(amp|(?:pytest-)?amp-check):\s*([a-z]+(?:-[a-z]+)*)\s*([^#]*)"
#: Other spellings of the tool or the word. Prose has no code behind such words, and without a colon no brackets.
_MISSPELLED = (
    "(?i)" + _HASH + r"(?:pytest[-_ ]?)?amp(?:[-_ ]?check)?\s*"
    r"(?::\s*(ignor[\w-]*|noqa|disable|enable)\s*(?:[\[({<=:]\s*)?|(ignor[\w-]*|noqa|disable|enable)\s*[\[({<]\s*)"
    r"(amp\d[^#]*)"
)
_VERBS = ("ignor", "noqa", "disable", "enable")
_NOQA = "(?i)" + _HASH + r"(?:(flake8|ruff)\s*:\s*)?noqa(?:(?![\w-])|(?=-?AMP\d))([^#]*)"
#: Punctuation before the list of a noqa, and one item of the list with what separates it from the next.
_NOQA_OPENING = r"[\s:=\[({<-]*"
_NOQA_ITEM = r"([\w-]+)([\s,;\])}>]*)"


class MalformedComment(NamedTuple):
    """A comment that looks like a suppression and is none: line, columns from 0, and the form to write.

    ``is_read`` is True for a comment that suppresses here, but has another meaning in other linters.
    """

    line: int
    column: int
    end_column: int
    remedy: str
    is_read: bool = False


class _Noqa(NamedTuple):
    """A noqa comment: the span in the comment, and the codes of this tool.

    - ``codes``: None without a list of codes, so that every rule is suppressed.
    - ``remedy``: the form to write, "" if the form is right.
    - ``is_read``: False if the comment suppresses nothing.
    """

    start: int
    end: int
    codes: list[str] | None
    remedy: str = ""
    is_read: bool = True


class _Suppression:
    """One suppression comment.

    ``codes_by_word`` maps the listed words to rule codes; None suppresses every rule. The comment applies to the lines
    ``first_line`` to ``last_line``. ``is_late`` marks a file-wide comment below the first statement.
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
        # No line until the statement is known.
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
        """Yield descriptions of the unused parts of the comment."""
        if not self.is_ours:
            return
        if self.codes_by_word is None:
            if not self.used_codes and _are_all_checked(RULES, active):
                yield (
                    "ignore-file must come before the first statement"
                    if self.is_late
                    else "no rule finds anything here"
                )
            return
        if not self.codes_by_word:
            yield "its list is empty"
        for word, codes in self.codes_by_word.items():
            if not codes:
                yield f"{word} is no rule"
            elif codes.isdisjoint(self.used_codes) and codes != {UNUSED} and _are_all_checked(codes, active):
                yield f"{word}, below the first statement" if self.is_late else word


def _expand_codes(word: str) -> frozenset[str]:
    """Return the codes of a word in a list, or an empty set if no rule matches."""
    try:
        return expand_word(word, RULES)[0]
    except UnknownRule:
        return frozenset()


def _are_all_checked(codes: Collection[str], active: Collection[str]) -> bool:
    """Return True if the analyzer checked all these rules. Of several rules, rules off by default are ignored."""
    wanted = [c for c in codes if RULES[c].detected_by != RUNTIME and (RULES[c].on_by_default or len(codes) == 1)]
    return bool(wanted) and all(code in active for code in wanted)


class Suppressions:
    """Suppressions of one file, with a record of their use."""

    __slots__ = ("_statement_ends", "_statement_starts", "_suppressions", "malformed_comments")

    def __init__(self) -> None:
        self._suppressions: list[_Suppression] = []
        #: Comments that look like suppressions and suppress nothing.
        self.malformed_comments: list[MalformedComment] = []
        # First line of each statement, and the last line of the statement's first logical line.
        self._statement_starts: list[int] = []
        self._statement_ends: list[int] = []

    @classmethod
    def from_text(cls, text: str) -> Suppressions:
        """Parse the comments of a source text. Incomplete text is parsed as far as possible."""
        self = cls()
        if _may_suppress(text):
            self._read_comments(text.replace("\r\n", "\n").replace("\r", "\n"))
        return self

    @staticmethod
    def has_own_comment(text: str) -> bool:
        """Return True if a text may contain a comment only for this tool."""
        if "amp:" in text or "amp-check:" in text or _has_misspelled(text):
            return True
        lines = (line for line in text.split("\n") if "noqa" in line.lower())
        return any(noqa.codes for line in lines for noqa in _list_noqa(f"#{line.partition('#')[2]}"))

    def suppresses_finding(self, finding: Finding) -> bool:
        """Return True if a finding is suppressed, and mark the matching suppressions as used."""
        first, last = finding.site.line, finding.site.end_line
        # A finding may cover a whole block. Only a comment at the head of the block applies, not every comment inside.
        at = bisect_right(self._statement_starts, first) - 1
        last = min(last, max(first, self._statement_ends[at])) if at >= 0 else first
        silenced = False
        for suppression in self._suppressions:
            if suppression.covers_lines(first, last) and suppression.names_code(finding.code):
                suppression.used_codes.add(finding.code)
                silenced = True
        return silenced

    def find_unused(self, active: Collection[str]) -> list[tuple[int, int, int, str]]:
        """Return unused suppressions: line, column and end column from 0, and a description of the unused parts.

        ``active`` are the checked rule codes. A word may also suppress other rules, so a word is reported only if all
        rules of the word were checked. Comments for other tools are not reported.
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

        start = 0  # first line of the logical line, 0 between two logical lines
        keyword = ""  # first token of the logical line
        seen_statement = False  # True after the first statement other than a docstring or import
        pending_comments: list[_Suppression] = []  # comments on separate lines, for the next statement
        statement_comments: list[_Suppression] = []  # comments on separate lines, for the current statement
        bracket_comments: list[_Suppression] = []  # comments on separate lines inside brackets
        trailing_comments: list[_Suppression] = []
        ranges: dict[str, _Suppression] = {}  # open ranges, by their list
        # A file with a syntax error is parsed as far as possible. The syntax error itself is reported elsewhere. The
        # tokenizer of Python 3.12 ends some texts with a null byte in a SystemError.
        with suppress(TokenError, SyntaxError, SystemError):
            for kind, string, (line, column), _, source in generate_tokens(StringIO(text).readline):
                if kind == COMMENT:
                    self._read_range(string, line, column, ranges)
                    malformed = _find_malformed(string, line, column)
                    if malformed is not None:
                        self.malformed_comments.append(malformed)
                    for found in _parse_comment(string, line, column):
                        self._suppressions.append(found)
                        if found.whole_file:
                            found.is_late = seen_statement or start > 0
                        elif source.lstrip().startswith("#"):
                            # A blanket noqa on a separate line has no meaning in other tools.
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

    def _read_range(self, comment: str, line: int, column: int, ranges: dict[str, _Suppression]) -> None:
        """Open or close the range of a comment. Open ranges end with the file."""
        for match in re.finditer(_RANGE, comment):
            verb, given = match.groups()
            words = re.findall(r"[^,\s]+", given)
            start, end = column + match.start(), column + match.end()
            key = ",".join(sorted(words))
            if verb == "disable":
                found = _Suppression(line, start, end, words, whole_file=False, is_ours=True)
                found.first_line, found.last_line = line, sys.maxsize
                ranges[key] = found
                self._suppressions.append(found)
            elif key in ranges:
                ranges.pop(key).last_line = line
            else:
                remedy = f"`# amp: disable[{', '.join(words)}]` above it, with the same list"
                self.malformed_comments.append(MalformedComment(line, start, end, remedy))


def _may_suppress(text: str) -> bool:
    """Return True if a text may contain a suppression. Most noqa comments are for other tools."""
    for name in ("amp:", "amp-check:"):
        if name in text and any(name in line.partition("#")[2] for line in text.split("\n")):
            return True  # not only ``if args.amp:``
    if _has_misspelled(text):
        return True
    said = (line.partition("#") for line in text.split("\n") if "noqa" in line.lower())
    return any(noqa.codes is None or noqa.codes for _, mark, comment in said for noqa in _list_noqa(mark + comment))


def _has_misspelled(text: str) -> bool:
    """Return True if a text may contain a suppression for this tool in another spelling."""
    lower = text.lower()
    if not any(verb in lower for verb in _VERBS):
        return False
    comments = (line.partition("#")[2] for line in lower.split("\n") if "amp" in line)
    return any(
        re.search(_MISSPELLED, f"#{comment}") is not None
        for comment in comments
        if any(verb in comment for verb in _VERBS)
    )


def _find_malformed(comment: str, line: int, column: int) -> MalformedComment | None:
    """Return the first comment in the form of another linter, or with a misspelled word, or None.

    Prose behind ``amp:`` has neither a list of codes nor such a word at its end.
    """
    for match in re.finditer(_OTHER_FORM, comment):
        tool, verb, rest = match.groups()
        is_joined = comment[match.end(2) : match.end(2) + 1] == "-"
        if tool == "amp" and verb in ("ignore", "ignore-file") and rest[:1] not in tuple("({<=") and not is_joined:
            continue
        if tool == "amp" and verb in ("disable", "enable") and rest[:1] == "[" and "]" in rest:
            continue
        known = verb.startswith("ignor") or verb in ("noqa", "disable", "enable")
        if not (re.match(r"$|[\[(:]|[{<=-]?\s*AMP\d", rest) if known else re.match(r"[\[(]\s*AMP\d", rest)):
            continue
        codes = ", ".join(re.findall(r"AMP\d+", rest)) or "CODE"
        form = verb if verb in ("ignore-file", "disable", "enable") else "ignore"
        end = column + match.start(3) + len(rest.rstrip())
        return MalformedComment(line, column + match.start(), end, f"`# amp: {form}[{codes}]`")
    for match in re.finditer(_MISSPELLED, comment):
        with_colon, without_colon, rest = match.groups()
        verb = with_colon or without_colon
        if re.match(_OTHER_FORM, match.group()) is not None and verb.islower() and "_" not in verb:
            # The loop above has decided.
            continue
        codes = ", ".join(re.findall(r"AMP\d+", rest.upper()))
        form = verb.lower() if verb.lower() in ("disable", "enable") else "ignore"
        form = "ignore-file" if "file" in verb.lower() else form
        end = column + match.start(3) + len(rest.rstrip())
        return MalformedComment(line, column + match.start(), end, f"`# amp: {form}[{codes}]`")
    noqa = next((each for each in _list_noqa(comment) if each.remedy), None)
    if noqa is None:
        return None
    return MalformedComment(line, column + noqa.start, column + noqa.end, noqa.remedy, is_read=noqa.is_read)


def _parse_comment(comment: str, line: int, column: int) -> Iterator[_Suppression]:
    """Yield the suppressions in one comment."""
    for match in re.finditer(_PRAGMA, comment):
        scope, bracketed, bare = match.groups()
        given = bare if bracketed is None else bracketed
        words = None if given is None else re.findall(r"[^,\s]+", given)
        start, end = column + match.start(), column + match.end()
        yield _Suppression(line, start, end, words, whole_file=scope is not None, is_ours=True)
    for noqa in _list_noqa(comment):
        if noqa.is_read and (noqa.codes is None or noqa.codes):
            start, end = column + noqa.start, column + noqa.end
            yield _Suppression(line, start, end, noqa.codes, whole_file=False, is_ours=noqa.codes is not None)


def _list_noqa(comment: str) -> Iterator[_Noqa]:
    """Yield the noqa comments in one comment.

    Other linters take ``noqa[AMP201]`` and ``noqa AMP201`` for a suppression of every rule. Here the code is meant. A
    list in another form suppresses nothing: as the reason of a blanket suppression, it would suppress far more.
    """
    for match in re.finditer(_NOQA, comment):
        tool, rest = match.groups()
        opening = re.match(_NOQA_OPENING, rest)[0]  # type: ignore[index]  # also matches the empty text
        codes: list[str] = []
        end, is_plain = match.start(2) + len(opening.rstrip()), True
        for item in re.finditer(_NOQA_ITEM, rest[len(opening) :]):
            word, separator = item.groups()
            is_code = re.fullmatch(r"(?i)[a-z]+\d+", word) is not None
            named = [] if is_code else _codes_of_name(word)
            if not (is_code or named):
                break
            codes += [word.upper()] if is_code else named
            is_plain = is_plain and is_code and not set(separator) - set(" \t,]")
            end = match.start(2) + len(opening) + item.start() + len(item[0].rstrip(" \t,;"))
        own = [code for code in codes if code.startswith("AMP")]
        form = opening.strip()
        if not own:
            if not tool:
                start_of_list = match.start(2)
                yield _Noqa(match.start(), start_of_list if form != ":" else end, None if form[:1] != ":" else [])
        elif tool:
            remedy = f"`# amp: ignore-file[{', '.join(own)}]` above the first statement"
            yield _Noqa(match.start(), end, own, remedy, is_read=False)
        elif form == ":" and is_plain:
            yield _Noqa(match.start(), end, own)
        else:
            is_read = is_plain and bool(opening) and form in ("", "[")
            yield _Noqa(match.start(), end, own, f"`# noqa: {', '.join(codes)}`", is_read=is_read)


def _codes_of_name(word: str) -> list[str]:
    """Return the codes of a rule that is given by its name, or of a code with a hyphen; else an empty list."""
    code = re.fullmatch(r"(?i)(amp)-(\d+)", word)
    return [f"AMP{code[2]}"] if code is not None else sorted(_expand_codes(word)) if "-" in word else []
