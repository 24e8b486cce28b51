"""Rewriting of calls and dictionaries with libcst, which keeps comments, line breaks and spaces."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ...protocol.fix import UnwritableFix
from .rewrite_spec import RewriteSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    Part = cst.Arg | cst.BaseDictElement
    Space = cst.BaseParenthesizableWhitespace

NOTHING = cst.SimpleWhitespace("")
EQUAL = cst.AssignEqual(NOTHING, NOTHING)
#: Default separator of parts.
COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def rewrite_text(text: str, spec: RewriteSpec) -> str:
    """Return the text of a call or a dictionary with changes applied. Raise :class:`~...protocol.fix.UnwritableFix`."""
    node = _parse_expression(text)
    if not isinstance(node, (cst.Call, cst.Dict)):
        raise _make_error()
    row = _BracketContent(node)
    if isinstance(node, cst.Dict):
        row.append_all(
            [cst.DictElement(_parse_expression(key), _parse_expression(value)) for key, value in spec.last_arguments]
        )
        return _generate_code(row.to_dictionary(node))
    args = [part for part in row.elements if isinstance(part, cst.Arg)]
    row.elements = [_change_argument(spec, number, arg) for number, arg in enumerate(args)]
    if spec.dropped_argument:
        row.remove_at([_keyword_of(arg) for arg in args].index(spec.dropped_argument))
    row.prepend([_parse_argument(each) for each in spec.first_arguments])
    row.append_all([_parse_argument(f"{name}={value}") for name, value in spec.last_arguments])
    if spec.new_function is not None:
        node = node.with_changes(func=_parse_expression(spec.new_function))
    return _generate_code(row.to_call(node))


def _change_argument(spec: RewriteSpec, number: int, arg: cst.Arg) -> cst.Arg:
    """Return an argument with a new value or a name."""
    keyword = _keyword_of(arg)
    if spec.new_value is not None and (
        spec.new_value[0] == number if keyword is None else spec.new_value[1] == keyword
    ):
        return arg.with_changes(value=_parse_expression(spec.new_value[2]))
    name = spec.argument_names[number] if spec.argument_names and keyword is None and not arg.star else None
    return arg.with_changes(keyword=_parse_expression(name), equal=EQUAL) if name is not None else arg


def _keyword_of(arg: cst.Arg) -> str | None:
    return arg.keyword.value if arg.keyword is not None else None


class _BracketContent:
    """The content between two brackets: the parts, the commas between parts, and the outer spaces."""

    def __init__(self, node: cst.Call | cst.Dict) -> None:
        parts: list[Part] = list(node.args if isinstance(node, cst.Call) else node.elements)
        commas = [part.comma for part in parts]
        self.separators = [comma for comma in commas[:-1] if isinstance(comma, cst.Comma)]
        #: Comma behind the last part; the space behind this comma is the space before the bracket.
        self.trailing_comma = commas[-1] if commas and isinstance(commas[-1], cst.Comma) else None
        self.start_space: Space
        self.end_space: Space
        if isinstance(node, cst.Dict):
            self.start_space, self.end_space = node.lbrace.whitespace_after, node.rbrace.whitespace_before
            self.default_comma = (
                _make_comma(self.start_space) if isinstance(self.start_space, cst.ParenthesizedWhitespace) else COMMA
            )
        else:
            self.start_space, self.end_space = node.whitespace_before_args, NOTHING
            self.default_comma = COMMA
            if self.trailing_comma is not None:
                self.end_space = self.trailing_comma.whitespace_after
                self.trailing_comma = self.trailing_comma.with_changes(whitespace_after=NOTHING)
            elif node.args:
                self.end_space = node.args[-1].whitespace_after_arg
        self.elements = parts

    def _add_separators(self) -> list[Part]:
        commas = [*self.separators, self.trailing_comma or cst.MaybeSentinel.DEFAULT]
        return [part.with_changes(comma=comma) for part, comma in zip(self.elements, commas, strict=False)]

    def to_dictionary(self, node: cst.Dict) -> cst.Dict:
        return node.with_changes(
            lbrace=node.lbrace.with_changes(whitespace_after=self.start_space),
            elements=self._add_separators(),
            rbrace=node.rbrace.with_changes(whitespace_before=self.end_space),
        )

    def to_call(self, node: cst.Call) -> cst.Call:
        args = [part.with_changes(whitespace_after_arg=NOTHING) for part in self._add_separators()]
        if args:
            args[-1] = args[-1].with_changes(whitespace_after_arg=self.end_space)
        return node.with_changes(whitespace_before_args=self.start_space, args=args)

    def prepend(self, more: Sequence[Part]) -> None:
        """Insert parts before the first part."""
        comma = _make_comma(self.separators[0].whitespace_after) if self.separators else COMMA
        self.separators = [comma] * (len(more) - (not self.elements)) + self.separators
        self.elements = [*more, *self.elements]

    def append_all(self, more: Sequence[Part]) -> None:
        """Append parts behind the last part, with the spacing of the existing parts."""
        if not more:
            return
        if not self.elements:
            self.prepend(more)
            return
        comma = joining = _make_comma(self.separators[-1].whitespace_after) if self.separators else self.default_comma
        if self.trailing_comma is not None:
            joining = joining.with_changes(whitespace_before=self.trailing_comma.whitespace_before)
            self.trailing_comma = self.trailing_comma.with_changes(whitespace_before=NOTHING)
        if isinstance(self.end_space, cst.ParenthesizedWhitespace) and self.end_space.first_line.comment is not None:
            # A comment behind the last part stays with this part.
            if not isinstance(comma.whitespace_after, cst.ParenthesizedWhitespace):
                raise _make_error()
            space = comma.whitespace_after.with_changes(first_line=self.end_space.first_line)
            joining = joining.with_changes(whitespace_after=space)
            self.end_space = self.end_space.with_changes(first_line=cst.TrailingWhitespace())
        self.separators += [joining, *[comma] * (len(more) - 1)]
        self.elements += more

    def remove_at(self, at: int) -> None:
        """Remove a part with the surplus comma. Comments stay."""
        del self.elements[at]
        if at < len(self.elements):
            behind = self.separators.pop(at)
            spaces = [behind.whitespace_before, behind.whitespace_after]
            if not at:
                self.start_space = _merge_spaces([self.start_space, *spaces])
            else:
                before = self.separators[at - 1]
                self.separators[at - 1] = before.with_changes(
                    whitespace_after=_merge_spaces([before.whitespace_after, *spaces])
                )
            return
        spaces = (
            [self.trailing_comma.whitespace_before, self.end_space]
            if self.trailing_comma is not None
            else [self.end_space]
        )
        if not at:
            self.start_space = _merge_spaces([self.start_space, *spaces], none=NOTHING)
            self.trailing_comma = None
            return
        before = self.separators.pop()
        if (
            self.trailing_comma is not None
            or _has_comment(before.whitespace_before)
            or _has_comment(before.whitespace_after)
        ):
            self.trailing_comma = before.with_changes(whitespace_after=NOTHING)
        self.end_space = _merge_spaces([before.whitespace_after, *spaces], none=self.end_space, last=True)


def _merge_spaces(spaces: list[Space], *, none: Space | None = None, last: bool = False) -> Space:
    """Return one space for several spaces, with all comments; ``none`` if there are no comments.

    The following code keeps the position behind the first space, or with ``last`` behind the last space.
    """
    if not any(map(_has_comment, spaces)):
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


def _has_comment(space: Space) -> bool:
    return isinstance(space, cst.ParenthesizedWhitespace) and (
        space.first_line.comment is not None or any(line.comment is not None for line in space.empty_lines)
    )


def _make_comma(space: Space) -> cst.Comma:
    """Return a comma with a following space, without comments."""
    if isinstance(space, cst.ParenthesizedWhitespace):
        space = space.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
    return cst.Comma(whitespace_after=space)


def _parse_expression(text: str) -> cst.BaseExpression:
    try:
        # Parentheses allow the expression to span several lines.
        node = cst.parse_expression(f"({text})")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # The parser is written in Rust, and may also raise other exceptions.
        raise _make_error() from error
    node = node.with_changes(lpar=node.lpar[1:], rpar=node.rpar[:-1])
    if _generate_code(node) != text:
        raise _make_error()
    return node


def _generate_code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


def _parse_argument(text: str) -> cst.Arg:
    node = _parse_expression(f"f({text})")
    assert isinstance(node, cst.Call)
    return node.args[0]


def _make_error() -> UnwritableFix:
    return UnwritableFix("libcst cannot write it")
