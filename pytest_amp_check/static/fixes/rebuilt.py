"""Calls and dictionaries made anew: what they become is decided by their syntax tree, and written when it is wanted."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from ...protocol.fix import Edit
from .edits import shrunk
from .form import Form
from .layout import Layout, Unfit


class Rebuilt:
    """A call or a dictionary that is to be written anew. Raises :class:`Unfit` where that cannot be.

    The changes are those of :class:`.Form`. ``place`` is what all of it takes the place of, where that is more than the
    call.
    """

    __slots__ = ("_edit", "_old", "_place", "form")

    def __init__(
        self,
        layout: Layout,
        node: ast.Call | ast.Dict,
        *,
        function: str | None = None,
        first: Sequence[str] = (),
        names: Sequence[str | None] = (),
        last: Sequence[tuple[str, str]] = (),
        value: tuple[int, str, str] | None = None,
        drop: str = "",
        place: ast.expr | None = None,
    ) -> None:
        text = layout.source(node)
        self.form = Form(text, function=function, first=first, names=names, last=last, value=value, drop=drop)
        if isinstance(node, ast.Call):
            _refuse_unfit(self.form, node)
        elif not node.keys:
            # No item shows how they are spaced.
            raise Unfit
        if last and _closed(layout, node):
            raise Unfit
        self._place = layout.span(place or node)
        self._old = layout.source(place) if place else text
        self._edit: Edit | None = None

    @property
    def reach(self) -> Edit:
        """The edit that takes out all that this one may change."""
        return Edit(*self._place, "")

    def edit(self) -> Edit:
        """The edit that writes it. Raises :class:`.Unwritten` where that fails."""
        if self._edit is None:
            from . import rewrite

            self._edit = shrunk(*self._place[:2], self._old, rewrite.written(self.form))
        return self._edit


#: What a fix does: what is written already, and what is when it is wanted.
Change = Edit | Rebuilt


def _refuse_unfit(form: Form, call: ast.Call) -> None:
    """Refuse changes that the arguments of a call do not allow."""
    starred = any(isinstance(arg, ast.Starred) for arg in call.args)
    given = [keyword.arg for keyword in call.keywords]
    alone = len(call.args) == 1 and not given
    if alone and isinstance(call.args[0], ast.GeneratorExp) and (form.first or form.names or form.last):
        # Its brackets may be those of the call.
        raise Unfit
    if form.names:
        named = form.names[: len(call.args)]
        first = next((number for number, name in enumerate(named) if name), len(named))
        if starred or len(named) < len(call.args) or None in named[first:]:
            raise Unfit
    if form.last and None in given:
        # It may be given already.
        raise Unfit
    if form.value is not None:
        number, name, _ = form.value
        if starred or None in given or (number < len(call.args)) + given.count(name) != 1:
            raise Unfit
    if form.drop and form.drop not in given:
        raise Unfit


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
