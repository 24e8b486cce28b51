"""Calls and dictionaries made anew: what they become is decided by their syntax tree, and written when it is wanted."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from ...protocol.fix import Edit
from .edits import shrunk
from .form import Form
from .layout import Layout
from .matchers import require


class Rebuilt:
    """A call or a dictionary that is to be written anew. Raises :class:`.Unfit` where that cannot be.

    ``place`` is what all of it takes the place of, where that is more than the call.
    """

    __slots__ = ("_edit", "_form", "_old", "_place", "_text")

    def __init__(self, layout: Layout, node: ast.Call | ast.Dict, form: Form, *, place: ast.expr | None = None) -> None:
        self._form = form
        if isinstance(node, ast.Call):
            _refuse_unfit(form, node)
        else:
            # No item shows how they are spaced.
            require(node.keys)
        require(not form.last or not _closed(layout, node))
        self._place = layout.span(place or node)
        self._text = layout.source(node)
        self._old = layout.source(place) if place else self._text
        self._edit: Edit | None = None

    @property
    def reach(self) -> Edit:
        """The edit that takes out all that this one may change."""
        return Edit(*self._place, "")

    def edit(self) -> Edit:
        """The edit that writes it. Raises :class:`.Unwritten` where that fails."""
        if self._edit is None:
            from . import rewrite

            self._edit = shrunk(*self._place[:2], self._old, rewrite.written(self._text, self._form))
        return self._edit


#: What a fix does: what is written already, and what is when it is wanted.
Change = Edit | Rebuilt


def _refuse_unfit(form: Form, call: ast.Call) -> None:
    """Refuse changes that the arguments of a call do not allow."""
    given = [keyword.arg for keyword in call.keywords]
    if form.first or form.names or form.last:
        # The brackets of a generator may be those of the call.
        require(given or [type(arg) for arg in call.args] != [ast.GeneratorExp])
    require(not form.names or _may_be_named(form.names, call.args))
    # It may be given already.
    require(not form.last or None not in given)
    require(form.value is None or _is_given_once(*form.value[:2], call))
    require(not form.drop or form.drop in given)


def _may_be_named(names: Sequence[str | None], args: Sequence[ast.expr]) -> bool:
    """Whether all arguments have names from the first one on that gets one."""
    named = names[: len(args)]
    first = next((number for number, name in enumerate(named) if name), len(named))
    return not _unpacks(args) and len(named) == len(args) and None not in named[first:]


def _is_given_once(number: int, name: str, call: ast.Call) -> bool:
    """Whether a call certainly has an argument, by its number or by its name."""
    given = [keyword.arg for keyword in call.keywords]
    return not _unpacks(call.args) and None not in given and (number < len(call.args)) + given.count(name) == 1


def _unpacks(args: Sequence[ast.expr]) -> bool:
    return any(isinstance(arg, ast.Starred) for arg in args)


def _closed(layout: Layout, node: ast.Call | ast.Dict) -> bool:
    """Whether a comment stands behind the last part where no part begins a line, so that nothing can go behind it."""
    if isinstance(node, ast.Dict):
        spans = [layout.span(key or value) for key, value in zip(node.keys, node.values, strict=True)]
        ends = [layout.span(value)[2:] for value in node.values]
    else:
        parts: list[ast.expr | ast.keyword] = sorted([*node.args, *node.keywords], key=layout.span)
        spans = [layout.span(part) for part in parts]
        ends = [span[2:] for span in spans]
    if not spans or "#" not in layout.between(ends[-1], layout.span(node)[2:]):
        return False
    if len(spans) > 1:
        before = _bare(layout.between(ends[-2], spans[-1][:2])).partition(",")[2]
    elif isinstance(node, ast.Dict):
        before = _bare(layout.between(layout.span(node)[:2], spans[0][:2]))
    else:
        return True
    return "\n" not in before.partition("(")[0]


def _bare(text: str) -> str:
    """What stands between two parts, without comments and line breaks that are none to the tokenizer."""
    return re.sub(r"#[^\n]*|\\\n", "", text)
