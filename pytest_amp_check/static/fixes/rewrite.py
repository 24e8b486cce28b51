"""Writes calls and dictionaries anew with libcst, so that comments, line breaks and spaces in them stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ...protocol.fix import Unwritten
from .form import Form

TYPE_CHECKING = False
if TYPE_CHECKING:
    Part = cst.Arg | cst.BaseDictElement
    Space = cst.BaseParenthesizableWhitespace

NOTHING = cst.SimpleWhitespace("")
EQUAL = cst.AssignEqual(NOTHING, NOTHING)
#: What separates parts where none shows how.
COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def written(text: str, form: Form) -> str:
    """The text of a call or of a dictionary, with its changes. Raises :class:`.Unwritten`."""
    node = _parsed(text)
    if not isinstance(node, (cst.Call, cst.Dict)):
        raise _failed()
    row = _Row(node)
    if isinstance(node, cst.Dict):
        row.extend([cst.DictElement(_parsed(key), _parsed(value)) for key, value in form.last])
        return _code(row.dictionary(node))
    args = [part for part in row.parts if isinstance(part, cst.Arg)]
    row.parts = [_changed(form, number, arg) for number, arg in enumerate(args)]
    if form.drop:
        row.drop([_keyword(arg) for arg in args].index(form.drop))
    row.precede([_argument(each) for each in form.first])
    row.extend([_argument(f"{name}={value}") for name, value in form.last])
    if form.function is not None:
        node = node.with_changes(func=_parsed(form.function))
    return _code(row.call(node))


def _changed(form: Form, number: int, arg: cst.Arg) -> cst.Arg:
    """An argument with another value, or a name."""
    keyword = _keyword(arg)
    if form.value is not None and (form.value[0] == number if keyword is None else form.value[1] == keyword):
        return arg.with_changes(value=_parsed(form.value[2]))
    name = form.names[number] if form.names and keyword is None and not arg.star else None
    return arg.with_changes(keyword=_parsed(name), equal=EQUAL) if name is not None else arg


def _keyword(arg: cst.Arg) -> str | None:
    return arg.keyword.value if arg.keyword is not None else None


class _Row:
    """What stands between two brackets: the parts, the commas between them, and the space before and behind them."""

    def __init__(self, node: cst.Call | cst.Dict) -> None:
        parts: list[Part] = list(node.args if isinstance(node, cst.Call) else node.elements)
        commas = [part.comma for part in parts]
        self.between = [comma for comma in commas[:-1] if isinstance(comma, cst.Comma)]
        #: The comma behind the last part; the space behind it is that before the bracket.
        self.trailing = commas[-1] if commas and isinstance(commas[-1], cst.Comma) else None
        self.start: Space
        self.end: Space
        if isinstance(node, cst.Dict):
            self.start, self.end = node.lbrace.whitespace_after, node.rbrace.whitespace_before
            self.alone = _comma(self.start) if isinstance(self.start, cst.ParenthesizedWhitespace) else COMMA
        else:
            self.start, self.end = node.whitespace_before_args, NOTHING
            self.alone = COMMA
            if self.trailing is not None:
                self.end = self.trailing.whitespace_after
                self.trailing = self.trailing.with_changes(whitespace_after=NOTHING)
            elif node.args:
                self.end = node.args[-1].whitespace_after_arg
        self.parts = parts

    def _separated(self) -> list[Part]:
        commas = [*self.between, self.trailing or cst.MaybeSentinel.DEFAULT]
        return [part.with_changes(comma=comma) for part, comma in zip(self.parts, commas, strict=False)]

    def dictionary(self, node: cst.Dict) -> cst.Dict:
        return node.with_changes(
            lbrace=node.lbrace.with_changes(whitespace_after=self.start),
            elements=self._separated(),
            rbrace=node.rbrace.with_changes(whitespace_before=self.end),
        )

    def call(self, node: cst.Call) -> cst.Call:
        args = [part.with_changes(whitespace_after_arg=NOTHING) for part in self._separated()]
        if args:
            args[-1] = args[-1].with_changes(whitespace_after_arg=self.end)
        return node.with_changes(whitespace_before_args=self.start, args=args)

    def precede(self, more: Sequence[Part]) -> None:
        """Put parts before the first one."""
        comma = _comma(self.between[0].whitespace_after) if self.between else COMMA
        self.between = [comma] * (len(more) - (not self.parts)) + self.between
        self.parts = [*more, *self.parts]

    def extend(self, more: Sequence[Part]) -> None:
        """Put parts behind the last one, spaced as those before it are."""
        if not more:
            return
        if not self.parts:
            self.precede(more)
            return
        comma = joining = _comma(self.between[-1].whitespace_after) if self.between else self.alone
        if self.trailing is not None:
            joining = joining.with_changes(whitespace_before=self.trailing.whitespace_before)
            self.trailing = self.trailing.with_changes(whitespace_before=NOTHING)
        if isinstance(self.end, cst.ParenthesizedWhitespace) and self.end.first_line.comment is not None:
            # A comment behind the last part stays with it.
            if not isinstance(comma.whitespace_after, cst.ParenthesizedWhitespace):
                raise _failed()
            space = comma.whitespace_after.with_changes(first_line=self.end.first_line)
            joining = joining.with_changes(whitespace_after=space)
            self.end = self.end.with_changes(first_line=cst.TrailingWhitespace())
        self.between += [joining, *[comma] * (len(more) - 1)]
        self.parts += more

    def drop(self, at: int) -> None:
        """Take a part out, with the comma that nothing needs any more; comments stay."""
        del self.parts[at]
        if at < len(self.parts):
            behind = self.between.pop(at)
            spaces = [behind.whitespace_before, behind.whitespace_after]
            if not at:
                self.start = _merged([self.start, *spaces])
            else:
                before = self.between[at - 1]
                self.between[at - 1] = before.with_changes(whitespace_after=_merged([before.whitespace_after, *spaces]))
            return
        spaces = [self.trailing.whitespace_before, self.end] if self.trailing is not None else [self.end]
        if not at:
            self.start = _merged([self.start, *spaces], none=NOTHING)
            self.trailing = None
            return
        before = self.between.pop()
        if self.trailing is not None or _commented(before.whitespace_before) or _commented(before.whitespace_after):
            self.trailing = before.with_changes(whitespace_after=NOTHING)
        self.end = _merged([before.whitespace_after, *spaces], none=self.end, last=True)


def _merged(spaces: list[Space], *, none: Space | None = None, last: bool = False) -> Space:
    """One space in the place of several, with the comments of all of them; ``none`` where there are no comments.

    What follows stands as it does behind the first one, or the last one.
    """
    if not any(map(_commented, spaces)):
        return spaces[0] if none is None else none
    wide = [each for each in spaces if isinstance(each, cst.ParenthesizedWhitespace)]
    at = spaces[-1] if last and spaces[-1] in wide else wide[0]
    assert isinstance(at, cst.ParenthesizedWhitespace)
    notes: list[str] = []
    lines: list[cst.EmptyLine] = []
    for space in wide:
        comment = space.first_line.comment
        if comment is not None and lines:
            lines.append(cst.EmptyLine(whitespace=at.last_line, comment=comment))
        elif comment is not None:
            notes.append(comment.value)
        lines += [each for each in space.empty_lines if space is wide[0] or each.comment is not None]
    line = cst.TrailingWhitespace()
    if notes:
        line = cst.TrailingWhitespace(cst.SimpleWhitespace("  "), cst.Comment("  ".join(notes)))
    return at.with_changes(first_line=line, empty_lines=lines)


def _commented(space: Space) -> bool:
    return isinstance(space, cst.ParenthesizedWhitespace) and (
        space.first_line.comment is not None or any(line.comment is not None for line in space.empty_lines)
    )


def _comma(space: Space) -> cst.Comma:
    """A comma with that space behind it, without the comments in it."""
    if isinstance(space, cst.ParenthesizedWhitespace):
        space = space.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
    return cst.Comma(whitespace_after=space)


def _parsed(text: str) -> cst.BaseExpression:
    try:
        # In brackets of its own, it may go over lines.
        node = cst.parse_expression(f"({text})")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # What is written in Rust ends in more than exceptions.
        raise _failed() from error
    node = node.with_changes(lpar=node.lpar[1:], rpar=node.rpar[:-1])
    if _code(node) != text:
        raise _failed()
    return node


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


def _argument(text: str) -> cst.Arg:
    node = _parsed(f"f({text})")
    assert isinstance(node, cst.Call)
    return node.args[0]


def _failed() -> Unwritten:
    return Unwritten("libcst cannot write it")
