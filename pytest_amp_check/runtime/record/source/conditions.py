"""Conditions, loops and error handlers around a location."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from ....protocol.checks import find_finite_call, raises_on_nonfinite
from ....protocol.sites import Site
from ....protocol.source_text import SourceText, access_text
from .syntax import (
    compares_remainder,
    covers,
    enclosing_statements,
    has_remainder,
    last_line,
    parse_module,
    site_of_expression,
)


def is_in_try(site: Site) -> bool:
    """Return True if the call at a location is in the body of a ``try`` with error handlers."""
    return any(isinstance(node, ast.Try) and node.handlers for node in enclosing_statements(site))


def is_expected_to_raise(site: Site) -> bool:
    """Return True if a test expects the call at a location to raise."""
    return any(
        isinstance(item.context_expr, ast.Call)
        and access_text(item.context_expr.func).rpartition(".")[2] in ("raises", "assertRaises", "assertRaisesRegex")
        for node in enclosing_statements(site)
        if isinstance(node, (ast.With, ast.AsyncWith))
        for item in node.items
    )


def is_conditional(site: Site) -> bool:
    """Return True if the call at a location depends on a condition that may check for finite gradients.

    A condition on a remainder, such as the end of an accumulation window, checks nothing else.
    """
    return any(isinstance(node, ast.If) and not compares_remainder(node.test) for node in enclosing_statements(site))


def enclosing_conditions(site: Site) -> frozenset[tuple[str, int, bool]]:
    """Return the conditions, cases and error handlers around a location, in all calls that lead to the location.

    Each entry is (file, line, True for the else branch). Two kinds of conditions are ignored: conditions on a
    remainder, which mark the end of a window, and conditions on a setting that the file assigns only once, which never
    change.
    """
    conditions = set()
    for frame in site.list_frames():
        for node in enclosing_statements(frame):
            if isinstance(node, ast.ExceptHandler):
                conditions.add((frame.path, node.lineno, False))
                continue
            branch = _find_branch(node, frame.line)
            if branch is not None and not (branch.ends_window or _is_constant_condition(branch.tested, frame.path)):
                conditions.add((frame.path, branch.line, branch.is_else))
    return frozenset(conditions)


class _Branch(NamedTuple):
    """A branch of an ``if`` or ``match`` statement: the tested expression, and the line of the condition.

    ``ends_window``: the condition only tests a remainder, as at the end of an accumulation window.
    """

    tested: ast.expr
    line: int
    is_else: bool
    ends_window: bool


def _find_branch(node: ast.AST, line: int) -> _Branch | None:
    """Return the branch of a statement that contains a line, or None for other statements."""
    if isinstance(node, ast.If):
        return _Branch(node.test, node.lineno, line > last_line(node.body[-1]), compares_remainder(node.test))
    if isinstance(node, ast.Match):
        case = next(case for case in node.cases if any(covers(statement, line) for statement in case.body))
        return _Branch(node.subject, case.pattern.lineno, False, has_remainder(node.subject))
    return None


def is_chosen(site: Site, backward: Site) -> bool:
    """Return True if a step has a condition that its backward does not have, other than a count of micro-batches."""
    backward_conditions = enclosing_conditions(backward)
    return any(
        (frame.path, branch.line, branch.is_else) not in backward_conditions
        for frame in site.list_frames()
        for node in enclosing_statements(frame)
        if (branch := _find_branch(node, frame.line)) is not None
        and not _is_constant_condition(branch.tested, frame.path)
        and not _is_of_count(branch.tested, frame.path)
    )


def _is_of_count(condition: ast.expr, path: str) -> bool:
    """Return True if a condition tests a remainder, or a name that the file increments or assigns from a remainder."""
    counted = set(_counted_names(parse_module(path)))
    names = (part for part in ast.walk(condition) if isinstance(part, (ast.Name, ast.Attribute)))
    return has_remainder(condition) or any(ast.unparse(part) in counted for part in names)


def _counted_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign):
            yield ast.unparse(node.target)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and has_remainder(node.value):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield ast.unparse(target)


def _is_constant_condition(condition: ast.expr, path: str) -> bool:
    """Return True if a condition never changes: a constant, or a name that is assigned only once, to a constant."""
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        return _is_constant_condition(condition.operand, path)
    if not isinstance(condition, ast.Name):
        return isinstance(condition, ast.Constant)
    module = parse_module(path)
    occurrences = [node for node in ast.walk(module) if isinstance(node, ast.Name) and node.id == condition.id]
    assignments = [
        node
        for node in module.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and [target.id for target in node.targets if isinstance(target, ast.Name)] == [condition.id]
    ]
    parameter_names = {part.arg for part in ast.walk(module) if isinstance(part, ast.arg)}
    return (
        len(assignments) == 1
        and sum(isinstance(node.ctx, ast.Store) for node in occurrences) == 1
        and condition.id not in parameter_names
    )


class WindowPredicate(NamedTuple):
    """The condition at the end of an accumulation window: location and source text."""

    site: Site
    text: str


def find_window_predicate(site: Site) -> WindowPredicate | None:
    """Return the comparison with a remainder on which a location depends, directly or by an earlier ``continue``.

    None if there is none.
    """
    for frame in reversed(site.list_frames()):
        statements = list(enclosing_statements(frame))
        for node in reversed(statements):
            if isinstance(node, ast.If) and compares_remainder(node.test):
                return _make_window_predicate(frame, node.test)
        for node in statements:
            for each in node.body if isinstance(node, (ast.For, ast.While)) else ():
                if (
                    isinstance(each, ast.If)
                    and isinstance(each.body[-1], ast.Continue)
                    and each.lineno < frame.line
                    and compares_remainder(each.test)
                ):
                    return _make_window_predicate(frame, each.test)
    return None


def _make_window_predicate(frame: Site, condition: ast.expr) -> WindowPredicate:
    site = site_of_expression(frame, condition)
    if isinstance(condition, ast.Compare) and isinstance(condition.ops[0], ast.NotEq):
        condition = ast.Compare(condition.left, [ast.Eq()], condition.comparators)
    return WindowPredicate(site, str(SourceText(condition)))


def has_calling_condition(site: Site) -> bool:
    """Return True if the call at a location depends on a condition with a call, which may check gradients."""
    conditions = [node.test for node in enclosing_statements(site) if isinstance(node, ast.If)]
    return any(isinstance(part, ast.Call) for test in conditions for part in ast.walk(test))


class Refusal(NamedTuple):
    """A check for finite gradients before the program raises. The text is "" if there is none."""

    site: Site
    text: str


def find_refusal(site: Site) -> Refusal:
    """Return the check for finite gradients in the condition that is converted to a boolean at a location.

    Python 3.10 and 3.11 locate the conversion at the head of the statement, and later versions at the condition. The
    check has one location in all versions, which the analyzer reports as well.
    """
    for node in ast.walk(parse_module(site.path)):
        if (
            isinstance(node, (ast.If, ast.Assert))
            and node.lineno <= site.line <= last_line(node.test)
            and raises_on_nonfinite(node)
            and not is_in_try(site)
        ):
            check = find_finite_call(node)
            return Refusal(site_of_expression(site, check), str(SourceText(check)))
    return Refusal(site, "")
