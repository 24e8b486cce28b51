"""Where a value of a program came from: the assignments that gave a name what it stands for, and the calls in them."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ...protocol.finding import Step
from ...protocol.optable import policy
from ...protocol.words import Words
from .frames import Frame, Scope, function_of
from .values import CASTS, MISSING, SHAPES, resolve, tensor

#: How many assignments, and how many functions, a value is followed through.
DEPTH = 6
#: Expressions that are looked at in all.
MANY = 200


class Origin(NamedTuple):
    """An expression that a value came from, in the function where it stands."""

    node: ast.expr
    scope: Scope
    frames: Sequence[Frame]

    @property
    def step(self) -> Step:
        return Step(self.scope.site(self.node), f"`{Words(self.node)}`")


def assigned(scope: Scope, name: str) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """The statements of a function that give a name a value, with the expression that it comes from, in their order."""
    for statement in scope.statements():
        for target, value in _targets(statement):
            if found := _part(target, value, name):
                yield statement, found


def _targets(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield target, statement.value
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)) and statement.value is not None:
        yield statement.target, statement.value
    elif isinstance(statement, (ast.For, ast.AsyncFor)):
        yield statement.target, statement.iter
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        for item in statement.items:
            if item.optional_vars is not None:
                yield item.optional_vars, item.context_expr
    yield from _named(statement)


def _named(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What a statement assigns by ``:=``."""
    if isinstance(statement, (ast.Assign, ast.Expr, ast.If, ast.While, ast.Return)):
        head = statement.test if isinstance(statement, (ast.If, ast.While)) else statement.value
        for node in ast.walk(head) if head is not None else ():
            if isinstance(node, ast.NamedExpr):
                yield node.target, node.value


def _part(target: ast.expr, value: ast.expr, name: str) -> ast.expr | None:
    """The part of a value that a name among the targets gets: the whole where it cannot be told."""
    if isinstance(target, ast.Name):
        return value if target.id == name else None
    if isinstance(target, (ast.Tuple, ast.List)):
        same = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
        for number, element in enumerate(target.elts):
            given = value.elts[number] if same and isinstance(value, (ast.Tuple, ast.List)) else value
            if found := _part(element, given, name):
                return found
    return None


def latest(scope: Scope, name: str, line: int) -> ast.expr | None:
    """What a name was given last before a line; where nothing was, what a loop around has given it after."""
    before = after = None
    for statement, value in assigned(scope, name):
        if (statement.end_lineno or statement.lineno) < line or isinstance(statement, (ast.For, ast.With)):
            before = value
        elif statement.lineno > line:
            after = value
    return before if before is not None else after


def parameter(scope: Scope, name: str) -> int | None:
    """The place of a parameter of the function among those that a caller gives; None for what is no parameter."""
    if not isinstance(scope.body, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    arguments = scope.body.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    if names and (names[0] in ("self", "cls") or _is_context(scope, names[0])):
        names = names[1:]
    if name in names:
        return names.index(name)
    return -1 if name in [argument.arg for argument in arguments.kwonlyargs] else None


def _is_context(scope: Scope, name: str) -> bool:
    """Whether a parameter is the context that torch gives the methods of an ``autograd.Function``."""
    return scope.has(name) and isinstance(scope.value(name), torch.autograd.function.FunctionCtx)


def given(origin: Origin, name: str) -> Origin | None:
    """What the caller of a running function gave for a parameter."""
    place = parameter(origin.scope, name)
    outer = next((n for n in range(len(origin.frames) - 2, -1, -1) if origin.frames[n].is_user), None)
    if place is None or outer is None:
        return None
    caller = origin.frames[outer]
    call = caller.operation()
    if not isinstance(call, ast.Call) or caller.scope is None:
        return None
    value = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    if value is None and 0 <= place < len(call.args):
        value = call.args[place]
    if value is None or isinstance(value, ast.Starred):
        return None
    return Origin(value, caller.scope, origin.frames[: outer + 1])


def made(origin: Origin, line: int) -> list[Origin]:
    """From an expression back to the call that made its value: what it was assigned from, step by step.

    Views and casts of a name, and names that a function was given by its caller, are followed.
    """
    found: list[Origin] = []
    at: Origin | None = origin
    while at is not None and len(found) < DEPTH:
        name = _base(at.node, at.scope)
        if name is None:
            found.append(at)
            break
        value = latest(at.scope, name, line)
        if value is not None:
            at = Origin(value, at.scope, at.frames)
            line = value.lineno
            if not isinstance(value, ast.Name):
                found.append(at)
            if _base(value, at.scope) is None:
                break
        else:
            at = given(at, name)
            if at is not None:
                line = at.frames[-1].line
    return found


def _base(node: ast.expr, scope: Scope) -> str | None:
    """The name that an expression is a view, a part or the like of."""
    while not isinstance(node, ast.Name):
        below = through(node, scope)
        if below is None:
            return None
        node = below
    return node.id


def through(node: ast.expr, scope: Scope) -> ast.expr | None:
    """The operand whose dtype an expression has: of views, parts, and ops that autocast leaves alone."""
    if isinstance(node, ast.Subscript):
        return node.value
    if isinstance(node, ast.Attribute):
        return node.value if node.attr in SHAPES else None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    name, owner = node.func.attr, resolve(node.func.value, scope)
    if name in SHAPES:
        return node.func.value
    if name in CASTS or name == "to" or policy("cuda", name):
        return None
    if isinstance(owner, types.ModuleType):
        first = node.args[0] if node.args else None
        return first if first is not None and tensor(first, scope) is not None else None
    if isinstance(owner, torch.Tensor) or through(node.func.value, scope) is not None:
        return node.func.value
    return None


# All that a value may have come from.


def sources(origin: Origin) -> Iterator[Origin]:
    """Every expression that a value may have come from, nearest first, also in functions that have returned."""
    work = [origin]
    seen: set[int] = set()
    while work and len(seen) < MANY:
        at = work.pop(0)
        if id(at.node) in seen:
            continue
        seen.add(id(at.node))
        yield at
        for node in ast.walk(at.node):
            if isinstance(node, ast.Name):
                values = [value for _, value in assigned(at.scope, node.id)]
                work.extend(Origin(value, at.scope, at.frames) for value in values)
                if not values and (caller := given(at, node.id)) is not None:
                    work.append(caller)
            elif isinstance(node, ast.Call):
                work.extend(_returned(node, at))


def _returned(call: ast.Call, origin: Origin) -> Iterator[Origin]:
    """What a function of the program returns that is called."""
    function = callee(call, origin.scope)
    if function is None:
        return
    body = function_of(function.__code__)
    if body is None:
        return
    scope = Scope(function.__code__.co_filename, body, (function.__globals__,))
    for statement in scope.statements():
        if isinstance(statement, ast.Return) and statement.value is not None:
            yield Origin(statement.value, scope, ())


def callee(call: ast.Call, scope: Scope) -> types.FunctionType | None:
    """The function of the program that a call runs, None where it is not one or not known."""
    target: Any = resolve(call.func, scope)
    if isinstance(target, torch.nn.Module):
        target = getattr(type(target), "forward", MISSING)
    if isinstance(target, (staticmethod, classmethod, types.MethodType)):
        target = target.__func__
    if not isinstance(target, types.FunctionType):
        return None
    from ..record.sites import is_inner

    return None if is_inner(target.__code__.co_filename) else target
