"""What the fixers ask: of a finding, of the order of calls, and of what stands around them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile

from ...protocol.finding import Finding
from ...protocol.words import chain
from ..project.syntax import bound_by_import
from .layout import Layout
from .matchers import Unfit, first, imports_of_torch, method, require
from .rebuilt import Change

#: What a fixer gives: what is done, as a request, and the changes. It raises :class:`Unfit` where it is not certain.
Mended = tuple[str, Sequence[Change]]
Fixer = Callable[[Layout, Finding], Mended]
Guards = list[tuple[ast.AST, str]]


# Of a finding.


def local(layout: Layout, finding: Finding) -> None:
    """A finding whose events are not all in one function is for people to think about."""
    require(finding.certain or finding.witness)
    places = {(site.path, site.function, site.cell) for site in [finding.site, *(s.site for s in finding.witness)]}
    require(len(places) == 1)


def witnessed(layout: Layout, finding: Finding) -> Iterator[ast.Call]:
    """The calls among the events that led to a finding."""
    for step in finding.witness:
        try:
            call = layout.at(step.site, ast.Call)
        except Unfit:
            continue
        yield call


def stepping(layout: Layout, finding: Finding, *others: str) -> tuple[ast.Call, str, str]:
    """The scaler's step among the events that led to a finding, with the scaler and the optimizer in words.

    One of the ``others``, which are methods of the scaler too, will do.
    """
    for call in reversed(list(witnessed(layout, finding))):
        scaler = next((on for name in ("step", *others) if (on := method(call, name)) is not None), None)
        if scaler is not None and len(call.args) == 1 and not call.keywords:
            return call, named(layout, scaler), named(layout, call.args[0])
    raise Unfit


def scaling(layout: Layout, finding: Finding) -> tuple[ast.Call, str]:
    """The call that scales the loss among the events that led to a finding, with the scaler in words."""
    scales = (inner for call in witnessed(layout, finding) for inner in layout.calls(call, "scale"))
    call = first(each for each in scales if method(each, "scale") is not None)
    return call, owner(layout, call, "scale")


# Of an expression.


def named(layout: Layout, node: ast.expr) -> str:
    """The text of a name, an attribute or an item, which mean the same wherever they stand in a block."""
    require(chain(node) is not None)
    return layout.source(node)


def owner(layout: Layout, call: ast.Call, name: str) -> str:
    """What a method of that name is called on, in words. Raises :class:`Unfit` for any other call."""
    on = method(call, name)
    if on is None:
        raise Unfit
    return named(layout, on)


def call_statement(layout: Layout, call: ast.Call) -> ast.Expr:
    """The statement of its own lines that a call is all of."""
    statement = layout.statement(call)
    if not isinstance(statement, ast.Expr) or statement.value is not call:
        raise Unfit
    return statement


def of(layout: Layout, scope: ast.AST, name: str, owner: str) -> list[ast.Call]:
    """The calls of a method in a function on one object."""
    found = layout.calls(scope, name)
    return [call for call in found if (on := method(call, name)) is not None and layout.source(on) == owner]


# Of what stands around.


def guards(layout: Layout, node: ast.AST) -> Guards:
    """The branches and loops of its function in which a node stands, the outermost first."""
    found: Guards = []
    for block, statement in layout.blocks(node):
        parent = layout.parent(statement)
        if not isinstance(parent, (ast.With, ast.AsyncWith)):
            field = next((name for name, value in ast.iter_fields(parent) if value is block), "")
            found.append((parent, field))
    found.reverse()
    return found


def whenever(first: Guards, second: Guards) -> bool:
    """Whether what stands in the first branches is reached whenever what stands in the second ones is."""
    return first == second[: len(first)]


def may_be_none(layout: Layout, scope: ast.AST, name: str) -> bool:
    """Whether a program asks whether an object is there."""
    asked = (each for node in layout.on(name.rpartition(".")[2]) for each in _asked_for_truth(node))
    if any(chain(each) == name for each in asked):
        return True
    given = getattr(scope, "args", None)
    return isinstance(given, ast.arguments) and name in _with_defaults(given)


def _asked_for_truth(node: ast.AST) -> list[ast.expr]:
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


def _with_defaults(given: ast.arguments) -> set[str]:
    """The parameters that need not be given."""
    positional = [*given.posonlyargs, *given.args]
    keywords = [arg for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is not None]
    return {arg.arg for arg in [*positional[len(positional) - len(given.defaults) :], *keywords]}


def means_one_thing(layout: Layout, name: str) -> bool:
    """Whether a name is bound once in a file; that of torch may be imported more often."""
    number = bindings(layout, name)
    return number == 1 or (name == "torch" and imports_of_torch(binders(layout, "torch")) == number)


def binders(layout: Layout, name: str) -> list[ast.AST]:
    """The nodes of lines where a name may be bound: it is imported or defined, or nothing is done with it there."""
    return layout.on(name, test=rf"\b(?:import|def|class)\b|\b{re.escape(name)}\b(?!\s*[.(\[])")


def bindings(layout: Layout, name: str) -> int:
    """How often a name is bound in a file, in whatever scope."""
    return sum(_bound(node).count(name) for node in binders(layout, name))


def _bound(node: ast.AST) -> list[str]:
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


def until(layout: Layout, statements: Iterable[ast.stmt], names: Iterable[str]) -> list[ast.stmt]:
    """The statements before the first in which a function or method of some names is called."""
    return list(takewhile(lambda each: not any(layout.calls(each, name) for name in names), statements))


def shifted(layout: Layout, first: int, last: int, indent: str, other: str) -> list[str]:
    """Lines that are as far in as ``indent``, moved to where ``other`` ends; no string may go over several of them."""
    require(not layout.strings(first, last))
    rows = layout.lines[first - 1 : last]
    return [other + row.removeprefix(indent) if row.startswith(indent) else row for row in rows]
