"""Rewrites calls and displays where their parts stand: comments, line breaks and spaces in them stay as they are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from .layout import Unfit

#: What takes a range of a text, from and to, and is there instead.
Change = tuple[int, int, str]


class _Part:
    """An argument or an item between two commas: where it starts, where its value does, where it ends."""

    __slots__ = ("comma", "end", "name", "star", "start", "value")

    def __init__(self, start: int, value: int, end: int, comma: int | None, name: str, star: str) -> None:
        self.start = start
        self.value = value
        self.end = end
        #: Where the comma behind it ends, if there is one.
        self.comma = comma
        self.name = name
        self.star = star


class _Bracketed:
    """The text of a call or of a dictionary, and where its parts are."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            # In brackets of its own, it may go over lines.
            node = ast.parse(f"(\n{text}\n)", mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise Unfit from error
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        #: The names or stars of the parts, and from where to where each is certain to reach.
        named: list[tuple[str, str, int, int]] = []
        self.close = len(text) - 1
        self.head = 0
        self.bracket = text[-1]
        self.open = 1
        if isinstance(node, ast.Call):
            for arg in node.args:
                if isinstance(arg, ast.GeneratorExp):
                    # Its brackets may be those of the call.
                    raise Unfit
                named.append(("", "*" if isinstance(arg, ast.Starred) else "", *self._span(arg)))
            for keyword in node.keywords:
                end = self._span(keyword.value)[1]
                named.append((keyword.arg or "", "" if keyword.arg else "**", self._span(keyword)[0], end))
            named.sort(key=lambda each: each[2])
            self.head = self._span(node.func)[1]
            for at in self._signs(self.head, self.close):
                if text[at] == "(":
                    self.open = at + 1
                    break
                self.head = at + 1
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                named.append(("", "" if key else "**", self._span(key or value)[0], self._span(value)[1]))
        else:
            raise Unfit
        self.parts = self._parts(named)

    def _parts(self, named: list[tuple[str, str, int, int]]) -> list[_Part]:
        parts: list[_Part] = []
        at = self.open
        for number, (name, star, start, last) in enumerate(named):
            end = last
            first = min(next(self._signs(at, start), start), start)
            value = next(self._signs(self.text.index("=", start + len(name)) + 1, end)) if name else first
            comma = None
            for sign in self._signs(end, named[number + 1][2] if number + 1 < len(named) else self.close):
                if self.text[sign] == ",":
                    comma = at = sign + 1
                    break
                end = sign + 1
            parts.append(_Part(first, value, end, comma, name, star))
        return parts

    def _signs(self, start: int, end: int) -> Iterator[int]:
        """Where the characters of a range are that are neither blank nor in a comment; no string may be there."""
        for match in re.compile(r"#[^\n]*|[^\s#]").finditer(self.text, start, end):
            if match.group()[0] != "#":
                yield match.start()

    def _span(self, node: ast.expr | ast.keyword) -> tuple[int, int]:
        ends = [(node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or 0)]
        if self.text.isascii():
            first, last = (self._starts[line - 2] + column for line, column in ends)
        else:
            rows = self.text.split("\n")
            first, last = (
                self._starts[line - 2] + len(rows[line - 2].encode()[:column].decode()) for line, column in ends
            )
        return first, last

    def gap(self, at: int) -> str:
        """What stands before a part, from the comma or bracket before it on, without the comments in it."""
        start = self.parts[at - 1].comma if at else self.open
        return re.sub(r"[ \t]*#[^\n]*", "", self.text[start : self.parts[at].start])

    def between(self, at: int) -> str:
        """What separates a part from the next one, or would."""
        if 0 <= at < len(self.parts) - 1:
            return "," + self.gap(at + 1)
        return ", "

    def appended(self, rows: Sequence[str]) -> list[Change]:
        """The changes that put parts behind the last one, spaced as those before it are."""
        if not self.parts:
            return [(self.open, self.open, ", ".join(rows))]
        last = self.parts[-1]
        between = self.between(len(self.parts) - 2)
        if len(self.parts) == 1 and self.bracket == "}":
            between = "," + (self.gap(0) if "\n" in self.gap(0) else " ")
        more = "".join(between + row for row in rows)
        end = last.comma or last.end
        comment = re.match(r"[ \t]*#[^\n]*", self.text[end : self.close])
        if comment is None:
            return [(last.end, last.end, more)]
        # A comment behind the last part stays with it.
        if "\n" not in between:
            raise Unfit
        behind = end + comment.end()
        more = more[1:] + ("," if last.comma else "")
        return [(behind, behind, more), *([] if last.comma else [(last.end, last.end, ",")])]

    def without(self, at: int) -> Change:
        """The change that takes a part out, with the comma that nothing needs any more."""
        part = self.parts[at]
        before = self.parts[at - 1] if at else None
        start = (before.comma or 0) if before else self.open
        end = part.comma or part.end
        if "#" in self.text[start : part.start]:
            # The comment is of what stands before.
            last = re.match(r"[ \t]*(#|\n)", self.text[end:]) is not None
            return len(self.text[: part.start].rstrip()) if last else part.start, end, ""
        if at + 1 < len(self.parts):
            return part.start, max(end, self.parts[at + 1].start if "#" not in self._behind(at) else end), ""
        if before is not None and not part.comma:
            return before.end, end, ""
        return start, end, ""

    def _behind(self, at: int) -> str:
        return self.text[self.parts[at].comma or 0 : self.parts[at + 1].start]

    def changed(self, changes: list[Change]) -> str:
        """The text with these changes made; of two at one place, what is listed last comes first."""
        text = self.text
        for start, end, content in sorted(changes, key=lambda change: change[:2], reverse=True):
            text = text[:start] + content + text[end:]
        return text


def _call(text: str) -> _Bracketed:
    found = _Bracketed(text)
    if found.bracket != ")":
        raise Unfit
    return found


def call(
    text: str,
    *,
    function: str | None = None,
    first: Sequence[str] = (),
    names: Sequence[str | None] = (),
    last: Sequence[tuple[str, str]] = (),
    drop: str = "",
) -> str:
    """The text of a call made anew.

    ``function`` takes the place of what is called. ``first`` are arguments that go before the others (``x`` or
    ``name=x``), ``last`` are names and values that go behind. ``names`` are what the positional arguments are called
    from now on, None for those that stay as they are. The argument called ``drop`` is left out.
    """
    node = _call(text)
    changes: list[Change] = []
    for number, part in enumerate(node.parts):
        if drop and part.name == drop:
            changes.append(node.without(number))
        elif names and not part.name:
            if part.star == "*" or (not part.star and number >= len(names)):
                raise Unfit
            name = names[number] if not part.star else None
            if name is not None:
                changes.append((part.start, part.start, f"{name}="))
    if first:
        separator = node.between(0)
        at = node.parts[0].start if node.parts else node.open
        front = separator.join(first) if node.parts else ", ".join(first)
        changes.append((at, at, front + separator if node.parts else front))
    if last:
        if node.parts and node.parts[-1].star == "**":
            raise Unfit
        changes += node.appended([f"{name}={value}" for name, value in last])
    if function is not None:
        changes.append((0, node.head, function))
    return node.changed(changes)


def argument(text: str, number: int, name: str, value: str) -> str:
    """A call with another value of one argument, given by its name or its number."""
    node = _call(text)
    if any(part.star for part in node.parts):
        raise Unfit
    found = [part for i, part in enumerate(node.parts) if (part.name == name if part.name else i == number)]
    if len(found) != 1:
        raise Unfit
    return node.changed([(found[0].value, found[0].end, value)])


def item(text: str, key: str, value: str) -> str:
    """A dictionary, or a call of ``dict``, with one more item at its end, spaced as those before it are."""
    node = _Bracketed(text)
    if node.bracket == ")":
        return call(text, last=[(key, value)])
    if not node.parts:
        raise Unfit
    return node.changed(node.appended([f"{key}: {value}"]))
