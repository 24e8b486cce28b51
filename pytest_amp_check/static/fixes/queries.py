"""Queries of fixes about a finding, the order of calls, and the surrounding code."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile

from ...protocol.finding import Finding
from ...protocol.source_text import find_access_path
from ..project.syntax import bound_by_import
from .layout import ProgramLayout
from .matchers import NotFixable, count_torch_imports, find_receiver, require, require_first
from .pending_rewrites import Change

#: Result of a fix function: a description in the imperative, and the changes.
Mended = tuple[str, Sequence[Change]]
Fixer = Callable[[ProgramLayout, Finding], Mended]
Guards = list[tuple[ast.AST, str]]


# Findings.


def require_local(layout: ProgramLayout, finding: Finding) -> None:
    """Raise NotFixable if the events of a finding are in several functions. Such a finding needs a human decision."""
    steps = finding.event_steps
    require(finding.certain or steps)
    places = {(site.path, site.function, site.cell) for site in [finding.site, *(step.site for step in steps)]}
    require(len(places) == 1)


def find_trace_calls(layout: ProgramLayout, finding: Finding) -> Iterator[ast.Call]:
    """Yield the calls in the trace of a finding."""
    for step in finding.event_steps:
        try:
            call = layout.find_expression(step.site, ast.Call)
        except NotFixable:
            continue
        yield call


def find_scaler_step(layout: ProgramLayout, finding: Finding, *others: str) -> tuple[ast.Call, str, str]:
    """Return the scaler's step in the trace of a finding, with the source texts of scaler and optimizer.

    Calls of the methods in ``others`` are also accepted.
    """
    for call in reversed(list(find_trace_calls(layout, finding))):
        scaler = next((on for name in ("step", *others) if (on := find_receiver(call, name)) is not None), None)
        if scaler is not None and len(call.args) == 1 and not call.keywords:
            return call, require_name(layout, scaler), require_name(layout, call.args[0])
    raise NotFixable


def find_scale_call(layout: ProgramLayout, finding: Finding) -> tuple[ast.Call, str]:
    """Return the call in the trace of a finding that scales the loss, with the source text of the scaler."""
    scales = (inner for call in find_trace_calls(layout, finding) for inner in layout.find_calls(call, "scale"))
    call = require_first(each for each in scales if find_receiver(each, "scale") is not None)
    return call, require_owner(layout, call, "scale")


# Expressions.


def require_name(layout: ProgramLayout, node: ast.expr) -> str:
    """Return the source text of a name, an attribute or an item, which has one meaning in a block."""
    require(find_access_path(node) is not None)
    return layout.source_of(node)


def require_owner(layout: ProgramLayout, call: ast.Call, name: str) -> str:
    """Return the source text of the receiver of a named method. Raise :class:`.NotFixable` for any other call."""
    on = find_receiver(call, name)
    if on is None:
        raise NotFixable
    return require_name(layout, on)


def call_statement(layout: ProgramLayout, call: ast.Call) -> ast.Expr:
    """Return the statement on separate lines that consists of a call. Raise :class:`.NotFixable` otherwise."""
    statement = layout.statement_of(call)
    if not isinstance(statement, ast.Expr) or statement.value is not call:
        raise NotFixable
    return statement


def find_method_calls(layout: ProgramLayout, scope: ast.AST, name: str, owner: str) -> list[ast.Call]:
    """Return the calls of a method on one object in a function."""
    found = layout.find_calls(scope, name)
    return [call for call in found if (on := find_receiver(call, name)) is not None and layout.source_of(on) == owner]


# Surrounding code.


def find_guards(layout: ProgramLayout, node: ast.AST) -> Guards:
    """Return the branches and loops around a node in the function, outermost first."""
    found: Guards = []
    for block, statement in layout.enclosing_blocks(node):
        parent = layout.parent_of(statement)
        if not isinstance(parent, (ast.With, ast.AsyncWith)):
            field = next((name for name, value in ast.iter_fields(parent) if value is block), "")
            found.append((parent, field))
    found.reverse()
    return found


def is_reached_whenever(first: Guards, second: Guards) -> bool:
    """Return True if code under the first guards is always reached when code under the second guards is reached."""
    return first == second[: len(first)]


def may_be_none(layout: ProgramLayout, scope: ast.AST, name: str) -> bool:
    """Return True if a program tests an object for None or false, or may assign None."""
    asked = (each for node in layout.nodes_on_lines(name.rpartition(".")[2]) for each in _find_tested(node))
    if any(find_access_path(each) == name for each in asked):
        return True
    given = getattr(scope, "args", None)
    return isinstance(given, ast.arguments) and name in _parameters_with_defaults(given)


def _find_tested(node: ast.AST) -> list[ast.expr]:
    """Return the expressions that a node tests for None or truth, or assigns a value that may be None."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others) if any(
            isinstance(o, (ast.Is, ast.IsNot)) for o in ops
        ):
            return [left, *others]
        case ast.If(test=test) | ast.IfExp(test=test):
            return [test]
        case ast.BoolOp(values=values):
            return values
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return [operand]
        case ast.Assign(targets=[target, *_], value=ast.Constant() | ast.IfExp()):
            return [target]
    return []


def _parameters_with_defaults(given: ast.arguments) -> set[str]:
    """Return the names of the parameters with a default."""
    positional = [*given.posonlyargs, *given.args]
    keywords = [arg for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is not None]
    return {arg.arg for arg in [*positional[len(positional) - len(given.defaults) :], *keywords]}


def is_bound_once(layout: ProgramLayout, name: str) -> bool:
    """Return True if a name is bound once in a file. torch may be imported several times."""
    number = count_bindings(layout, name)
    return number == 1 or (name == "torch" and count_torch_imports(find_binders(layout, "torch")) == number)


def find_binders(layout: ProgramLayout, name: str) -> list[ast.AST]:
    """Return the nodes on lines that may bind a name: imports, definitions, and lines without a use of the name."""
    return layout.nodes_on_lines(name, test=rf"\b(?:import|def|class)\b|\b{re.escape(name)}\b(?!\s*[.(\[])")


def count_bindings(layout: ProgramLayout, name: str) -> int:
    """Return the number of bindings of a name in a file, in all scopes."""
    return sum(_bound_names(node).count(name) for node in find_binders(layout, name))


def _bound_names(node: ast.AST) -> list[str]:
    """Return the names that a node binds itself."""
    match node:
        case ast.Import() | ast.ImportFrom():
            return [local for local, _ in bound_by_import(node)]
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return [name]
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            return names
    return []


def statements_until(layout: ProgramLayout, statements: Iterable[ast.stmt], names: Iterable[str]) -> list[ast.stmt]:
    """Return the statements before the first statement with a call of a named function or method."""
    return list(takewhile(lambda each: not any(layout.find_calls(each, name) for name in names), statements))


def reindent_lines(layout: ProgramLayout, first: int, last: int, indent: str, other: str) -> list[str]:
    """Return lines with the indentation ``indent`` replaced by ``other``. Raise NotFixable for multi-line strings."""
    require(not layout.has_multiline_string(first, last))
    rows = layout.lines[first - 1 : last]
    return [other + row.removeprefix(indent) if row.startswith(indent) else row for row in rows]
