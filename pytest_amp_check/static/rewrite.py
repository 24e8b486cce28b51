"""Rewrites calls and displays with libcst, so that comments, line breaks and spaces in them stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from .layout import Unfit


def _parsed(text: str) -> cst.BaseExpression:
    try:
        return cst.parse_expression(text)
    except Exception as error:  # libcst has several, and a text that it does not take gets no fix.
        raise Unfit from error


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


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
    node = _parsed(text)
    if not isinstance(node, cst.Call):
        raise Unfit
    args: list[cst.Arg] = []
    for number, arg in enumerate(node.args):
        made = arg
        if drop and arg.keyword is not None and arg.keyword.value == drop:
            continue
        if names and arg.keyword is None:
            if arg.star == "*" or (not arg.star and number >= len(names)):
                raise Unfit
            name = names[number] if not arg.star else None
            if name is not None:
                made = arg.with_changes(keyword=cst.Name(name), equal=_equal())
        args.append(made)
    front = [_argument(each) for each in first]
    back = [_argument(f"{name}={value}") for name, value in last]
    if back and args and args[-1].star == "**":
        raise Unfit
    if front:
        args = [*_spaced(front, args), *args]
    if back:
        args = _extended(args, back)
    elif args and len(args) < len(node.args) and not _breaks(args[-1]):
        args[-1] = args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    if function is not None:
        node = node.with_changes(func=_parsed(function))
    return _code(node.with_changes(args=args))


def called(text: str, arguments: str) -> str:
    """What is not called yet, called."""
    return f"{_code(_parsed(text))}({arguments})"


def argument(text: str, number: int, name: str, value: str) -> str:
    """A call with another value of one argument, given by its name or its number."""
    node = _parsed(text)
    if not isinstance(node, cst.Call) or any(arg.star for arg in node.args):
        raise Unfit
    found = [
        i for i, arg in enumerate(node.args) if (arg.keyword.value == name if arg.keyword is not None else i == number)
    ]
    if len(found) != 1:
        raise Unfit
    args = list(node.args)
    args[found[0]] = args[found[0]].with_changes(value=_parsed(value))
    return _code(node.with_changes(args=args))


def item(text: str, key: str, value: str) -> str:
    """A dictionary, or a call of ``dict``, with one more item at its end, spaced as those before it are."""
    node = _parsed(text)
    if isinstance(node, cst.Call):
        return call(text, last=[(key, value)])
    if not isinstance(node, cst.Dict) or not node.elements:
        raise Unfit
    elements = list(node.elements)
    tail = elements[-1]
    made: cst.BaseDictElement = cst.DictElement(_parsed(key), _parsed(value))
    if isinstance(tail.comma, cst.Comma):
        made = made.with_changes(comma=tail.comma)
    between = elements[-2].comma if len(elements) > 1 else None
    if not isinstance(between, cst.Comma):
        within = node.lbrace.whitespace_after
        space = within if isinstance(within, cst.ParenthesizedWhitespace) else cst.SimpleWhitespace(" ")
        between = cst.Comma(whitespace_after=space)
    elif isinstance(between.whitespace_after, cst.ParenthesizedWhitespace):
        between = _without_comment(between)
    end = node.rbrace.whitespace_before
    if isinstance(end, cst.ParenthesizedWhitespace) and end.first_line.comment is not None:
        # A comment behind the last item stays with it.
        if not isinstance(between.whitespace_after, cst.ParenthesizedWhitespace):
            raise Unfit
        between = between.with_changes(
            whitespace_after=between.whitespace_after.with_changes(first_line=end.first_line)
        )
        plain = end.first_line.with_changes(comment=None, whitespace=cst.SimpleWhitespace(""))
        node = node.with_changes(rbrace=node.rbrace.with_changes(whitespace_before=end.with_changes(first_line=plain)))
    elements[-1] = tail.with_changes(comma=between)
    return _code(node.with_changes(elements=[*elements, made]))


def _equal() -> cst.AssignEqual:
    return cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def _argument(text: str) -> cst.Arg:
    node = _parsed(f"f({text})")
    assert isinstance(node, cst.Call)
    return node.args[0]


def _spaced(front: list[cst.Arg], args: list[cst.Arg]) -> list[cst.Arg]:
    """Arguments that go before others, with the commas that the others have, if any do."""
    if not args:
        plain = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        return [*(each.with_changes(comma=plain) for each in front[:-1]), front[-1]]
    comma = args[0].comma if len(args) > 1 else None
    if not isinstance(comma, cst.Comma):
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    elif isinstance(comma.whitespace_after, cst.ParenthesizedWhitespace):
        comma = _without_comment(comma)
    return [each.with_changes(comma=comma) for each in front]


def _extended(args: list[cst.Arg], back: list[cst.Arg]) -> list[cst.Arg]:
    """Arguments with others behind them, and the trailing comma that was there."""
    if not args:
        return _spaced(back, [])
    trailing = args[-1].comma
    between = args[-2].comma if len(args) > 1 else None
    if not isinstance(between, cst.Comma):
        between = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    elif isinstance(between.whitespace_after, cst.ParenthesizedWhitespace):
        between = _without_comment(between)
    made = [*args[:-1], args[-1].with_changes(comma=between)]
    made += [each.with_changes(comma=between) for each in back[:-1]]
    return [*made, back[-1].with_changes(comma=trailing, whitespace_after_arg=args[-1].whitespace_after_arg)]


def _without_comment(comma: cst.Comma) -> cst.Comma:
    space = comma.whitespace_after
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return comma
    line = space.first_line.with_changes(comment=None, whitespace=cst.SimpleWhitespace(""))
    return comma.with_changes(whitespace_after=space.with_changes(first_line=line, empty_lines=[]))


def _breaks(arg: cst.Arg) -> bool:
    return isinstance(arg.comma, cst.Comma) and isinstance(arg.comma.whitespace_after, cst.ParenthesizedWhitespace)
