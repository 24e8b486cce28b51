"""Rewrites of calls and dictionaries: decided on the syntax tree, and written on demand."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from ...protocol.fix import Edit
from .edits import make_minimal_edit
from .layout import ProgramLayout
from .matchers import require
from .rewrite_spec import RewriteSpec


class PendingRewrite:
    """A call or a dictionary that will be rewritten. :class:`.NotFixable` is raised if a rewrite is impossible.

    ``replaced_node`` is the replaced node, if larger than the call.
    """

    __slots__ = ("_edit", "_replaced_span", "_replaced_text", "_source_text", "_spec")

    def __init__(
        self,
        layout: ProgramLayout,
        node: ast.Call | ast.Dict,
        spec: RewriteSpec,
        *,
        replaced_node: ast.expr | None = None,
    ) -> None:
        self._spec = spec
        if isinstance(node, ast.Call):
            _require_applicable(spec, node)
        else:
            # Without items, the spacing is unknown.
            require(node.keys)
        require(not spec.last_arguments or not _ends_with_comment(layout, node))
        self._replaced_span = layout.span_of(replaced_node or node)
        self._source_text = layout.source_of(node)
        self._replaced_text = layout.source_of(replaced_node) if replaced_node else self._source_text
        self._edit: Edit | None = None

    @property
    def full_edit(self) -> Edit:
        """Edit that removes everything that the rewrite may change."""
        return Edit(*self._replaced_span, "")

    def make_edit(self) -> Edit:
        """Return the edit of the rewrite. Raise :class:`~...protocol.fix.UnwritableFix` on failure."""
        if self._edit is None:
            from . import rewrite

            self._edit = make_minimal_edit(
                *self._replaced_span[:2], self._replaced_text, rewrite.rewrite_text(self._source_text, self._spec)
            )
        return self._edit


#: A change of a fix: a finished edit, or a rewrite on demand.
Change = Edit | PendingRewrite


def _require_applicable(spec: RewriteSpec, call: ast.Call) -> None:
    """Raise NotFixable if the arguments of a call do not allow the changes."""
    given = [keyword.arg for keyword in call.keywords]
    if spec.first_arguments or spec.argument_names or spec.last_arguments:
        # A generator argument may share its parentheses with the call.
        require(given or [type(arg) for arg in call.args] != [ast.GeneratorExp])
    require(not spec.argument_names or _may_be_named(spec.argument_names, call.args))
    # The call may already have the argument.
    require(not spec.last_arguments or None not in given)
    require(spec.new_value is None or _is_given_once(*spec.new_value[:2], call))
    require(not spec.dropped_argument or spec.dropped_argument in given)


def _may_be_named(names: Sequence[str | None], args: Sequence[ast.expr]) -> bool:
    """Return True if all arguments have names, from the first named argument on."""
    named = names[: len(args)]
    first = next((number for number, name in enumerate(named) if name), len(named))
    return not _has_star_argument(args) and len(named) == len(args) and None not in named[first:]


def _is_given_once(number: int, name: str, call: ast.Call) -> bool:
    """Return True if a call definitely has an argument, by position or by name, exactly once."""
    given = [keyword.arg for keyword in call.keywords]
    return (
        not _has_star_argument(call.args) and None not in given and (number < len(call.args)) + given.count(name) == 1
    )


def _has_star_argument(args: Sequence[ast.expr]) -> bool:
    return any(isinstance(arg, ast.Starred) for arg in args)


def _ends_with_comment(layout: ProgramLayout, node: ast.Call | ast.Dict) -> bool:
    """Return True if a comment follows the last part and parts do not begin lines, so that no part can be appended."""
    if isinstance(node, ast.Dict):
        spans = [layout.span_of(key or value) for key, value in zip(node.keys, node.values, strict=True)]
        ends = [layout.span_of(value)[2:] for value in node.values]
    else:
        parts: list[ast.expr | ast.keyword] = sorted([*node.args, *node.keywords], key=layout.span_of)
        spans = [layout.span_of(part) for part in parts]
        ends = [span[2:] for span in spans]
    if not spans or "#" not in layout.text_between(ends[-1], layout.span_of(node)[2:]):
        return False
    if len(spans) > 1:
        before = _strip_comments(layout.text_between(ends[-2], spans[-1][:2])).partition(",")[2]
    elif isinstance(node, ast.Dict):
        before = _strip_comments(layout.text_between(layout.span_of(node)[:2], spans[0][:2]))
    else:
        return True
    return "\n" not in before.partition("(")[0]


def _strip_comments(text: str) -> str:
    """Return the text between two parts, without comments and without escaped line breaks."""
    return re.sub(r"#[^\n]*|\\\n", "", text)
