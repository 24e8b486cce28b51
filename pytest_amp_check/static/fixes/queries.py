"""What the fixers ask: of a finding, of the order of calls, and of what stands around them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence

from ...protocol.finding import Finding
from ...protocol.words import chain
from .layout import FUNCTIONS, Layout, Unfit
from .rebuilt import Change

#: What a fixer gives: what is done, as a request, and the changes. It raises :class:`Unfit` where it is not certain.
Mended = tuple[str, Sequence[Change]]
Fixer = Callable[[Layout, Finding], Mended]
Guards = list[tuple[ast.AST, str]]


def local(layout: Layout, finding: Finding) -> None:
    """A finding whose events are not all in one function is for people to think about."""
    if not finding.certain and not finding.witness:
        raise Unfit
    site = finding.site
    for step in finding.witness:
        if (step.site.path, step.site.function, step.site.cell) != (site.path, site.function, site.cell):
            raise Unfit


def named(layout: Layout, node: ast.expr) -> str:
    """The text of a name, an attribute or an item, which mean the same wherever they stand in a block."""
    if chain(node) is None:
        raise Unfit
    return layout.source(node)


def method(call: ast.Call, name: str) -> ast.expr | None:
    """What a method of that name is called on."""
    return call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == name else None


def stepping(layout: Layout, finding: Finding, *others: str) -> tuple[ast.Call, str, str]:
    """The scaler's step among the events that led to a finding, with the scaler and the optimizer in words.

    One of the ``others``, which are methods of the scaler too, will do.
    """
    for step in reversed(finding.witness):
        try:
            call = layout.at(step.site, ast.Call)
        except Unfit:
            continue
        scaler = next((on for name in ("step", *others) if (on := method(call, name)) is not None), None)
        if scaler is not None and len(call.args) == 1 and not call.keywords:
            return call, named(layout, scaler), named(layout, call.args[0])
    raise Unfit


def scaling(layout: Layout, finding: Finding) -> tuple[ast.Call, str]:
    """The call that scales the loss among the events that led to a finding, with the scaler in words."""
    for step in finding.witness:
        try:
            call = layout.at(step.site, ast.Call)
        except Unfit:
            continue
        for inner in layout.calls(call, "scale"):
            scaler = method(inner, "scale")
            if scaler is not None:
                return inner, named(layout, scaler)
    raise Unfit


def of(layout: Layout, scope: ast.AST, name: str, owner: str) -> list[ast.Call]:
    """The calls of a method in a function on one object."""
    found = layout.calls(scope, name)
    return [call for call in found if (on := method(call, name)) is not None and layout.source(on) == owner]


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
    for node in layout.on(name.rpartition(".")[2]):
        tested: list[ast.expr] = []
        if isinstance(node, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            tested = [node.left, *node.comparators]
        elif isinstance(node, (ast.If, ast.IfExp)):
            tested = [node.test]
        elif isinstance(node, ast.BoolOp):
            tested = node.values
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            tested = [node.operand]
        elif isinstance(node, ast.Assign) and chain(node.targets[0]) == name:
            tested = [node.targets[0]] if isinstance(node.value, (ast.Constant, ast.IfExp)) else []
        if any(chain(each) == name for each in tested):
            return True
    arguments = getattr(scope, "args", None)
    if isinstance(arguments, ast.arguments):
        positional = [*arguments.posonlyargs, *arguments.args]
        given = positional[len(positional) - len(arguments.defaults) :]
        given += [a for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None]
        return any(a.arg == name for a in given)
    return False


def means_one_thing(layout: Layout, name: str) -> bool:
    """Whether a name is bound once in a file; that of torch may be imported more often."""
    number = bindings(layout, name)
    if name != "torch" or number == 1:
        return number == 1
    bound = sum(
        a.name.partition(".")[0] == "torch" and not a.asname
        for node in binders(layout, "torch")
        if isinstance(node, ast.Import)
        for a in node.names
    )
    return bound == number


def binders(layout: Layout, name: str) -> list[ast.AST]:
    """The nodes of lines where a name may be bound: it is imported or defined, or nothing is done with it there."""
    return layout.on(name, test=rf"\b(?:import|def|class)\b|\b{re.escape(name)}\b(?!\s*[.(\[])")


def bindings(layout: Layout, name: str) -> int:
    """How often a name is bound in a file, in whatever scope."""
    found: list[str] = []
    for node in binders(layout, name):
        if isinstance(node, ast.Import):
            found += [alias.asname or alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, ast.Name):
            found += [] if isinstance(node.ctx, ast.Load) else [node.id]
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            found.append(node.name)
        elif isinstance(node, ast.arg):
            found.append(node.arg)
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
            found += [node.name] if node.name else []
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            found += node.names
    return found.count(name)
