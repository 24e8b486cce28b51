"""What the fixers ask: of a finding, of the order of calls, and of what stands around them."""

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

#: What a fixer gives: what is done, as a request, and the changes. It raises :class:`Unfit` where it is not certain.
Mended = tuple[str, Sequence[Change]]
Fixer = Callable[[ProgramLayout, Finding], Mended]
Guards = list[tuple[ast.AST, str]]


# Of a finding.


def require_local(layout: ProgramLayout, finding: Finding) -> None:
    """A finding whose events are not all in one function is for people to think about."""
    require(finding.certain or finding.witness)
    places = {(site.path, site.function, site.cell) for site in [finding.site, *(s.site for s in finding.witness)]}
    require(len(places) == 1)


def find_trace_calls(layout: ProgramLayout, finding: Finding) -> Iterator[ast.Call]:
    """The calls among the events that led to a finding."""
    for step in finding.witness:
        try:
            call = layout.find_expression(step.site, ast.Call)
        except NotFixable:
            continue
        yield call


def find_scaler_step(layout: ProgramLayout, finding: Finding, *others: str) -> tuple[ast.Call, str, str]:
    """The scaler's step among the events that led to a finding, with the scaler and the optimizer in words.

    One of the ``others``, which are methods of the scaler too, will do.
    """
    for call in reversed(list(find_trace_calls(layout, finding))):
        scaler = next((on for name in ("step", *others) if (on := find_receiver(call, name)) is not None), None)
        if scaler is not None and len(call.args) == 1 and not call.keywords:
            return call, require_name(layout, scaler), require_name(layout, call.args[0])
    raise NotFixable


def find_scale_call(layout: ProgramLayout, finding: Finding) -> tuple[ast.Call, str]:
    """The call that scales the loss among the events that led to a finding, with the scaler in words."""
    scales = (inner for call in find_trace_calls(layout, finding) for inner in layout.find_calls(call, "scale"))
    call = require_first(each for each in scales if find_receiver(each, "scale") is not None)
    return call, require_owner(layout, call, "scale")


# Of an expression.


def require_name(layout: ProgramLayout, node: ast.expr) -> str:
    """The text of a name, an attribute or an item, which mean the same wherever they stand in a block."""
    require(find_access_path(node) is not None)
    return layout.source_of(node)


def require_owner(layout: ProgramLayout, call: ast.Call, name: str) -> str:
    """What a method of that name is called on, in words. Raises :class:`Unfit` for any other call."""
    on = find_receiver(call, name)
    if on is None:
        raise NotFixable
    return require_name(layout, on)


def call_statement(layout: ProgramLayout, call: ast.Call) -> ast.Expr:
    """The statement of its own lines that a call is all of."""
    statement = layout.statement_of(call)
    if not isinstance(statement, ast.Expr) or statement.value is not call:
        raise NotFixable
    return statement


def find_method_calls(layout: ProgramLayout, scope: ast.AST, name: str, owner: str) -> list[ast.Call]:
    """The calls of a method in a function on one object."""
    found = layout.find_calls(scope, name)
    return [call for call in found if (on := find_receiver(call, name)) is not None and layout.source_of(on) == owner]


# Of what stands around.


def find_guards(layout: ProgramLayout, node: ast.AST) -> Guards:
    """The branches and loops of its function in which a node stands, the outermost first."""
    found: Guards = []
    for block, statement in layout.enclosing_blocks(node):
        parent = layout.parent_of(statement)
        if not isinstance(parent, (ast.With, ast.AsyncWith)):
            field = next((name for name, value in ast.iter_fields(parent) if value is block), "")
            found.append((parent, field))
    found.reverse()
    return found


def is_reached_whenever(first: Guards, second: Guards) -> bool:
    """Whether what stands in the first branches is reached whenever what stands in the second ones is."""
    return first == second[: len(first)]


def may_be_none(layout: ProgramLayout, scope: ast.AST, name: str) -> bool:
    """Whether a program asks whether an object is there."""
    asked = (each for node in layout.nodes_on_lines(name.rpartition(".")[2]) for each in _find_tested(node))
    if any(find_access_path(each) == name for each in asked):
        return True
    given = getattr(scope, "args", None)
    return isinstance(given, ast.arguments) and name in _parameters_with_defaults(given)


def _find_tested(node: ast.AST) -> list[ast.expr]:
    """What a node asks for being there, or gives a value that may be none."""
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
    """The parameters that need not be given."""
    positional = [*given.posonlyargs, *given.args]
    keywords = [arg for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is not None]
    return {arg.arg for arg in [*positional[len(positional) - len(given.defaults) :], *keywords]}


def is_bound_once(layout: ProgramLayout, name: str) -> bool:
    """Whether a name is bound once in a file; that of torch may be imported more often."""
    number = count_bindings(layout, name)
    return number == 1 or (name == "torch" and count_torch_imports(find_binders(layout, "torch")) == number)


def find_binders(layout: ProgramLayout, name: str) -> list[ast.AST]:
    """The nodes of lines where a name may be bound: it is imported or defined, or nothing is done with it there."""
    return layout.nodes_on_lines(name, test=rf"\b(?:import|def|class)\b|\b{re.escape(name)}\b(?!\s*[.(\[])")


def count_bindings(layout: ProgramLayout, name: str) -> int:
    """How often a name is bound in a file, in whatever scope."""
    return sum(_bound_names(node).count(name) for node in find_binders(layout, name))


def _bound_names(node: ast.AST) -> list[str]:
    """The names that a node binds itself."""
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
    """The statements before the first in which a function or method of some names is called."""
    return list(takewhile(lambda each: not any(layout.find_calls(each, name) for name in names), statements))


def reindent_lines(layout: ProgramLayout, first: int, last: int, indent: str, other: str) -> list[str]:
    """Lines that are as far in as ``indent``, moved to where ``other`` ends; no string may go over several of them."""
    require(not layout.has_multiline_string(first, last))
    rows = layout.lines[first - 1 : last]
    return [other + row.removeprefix(indent) if row.startswith(indent) else row for row in rows]
