"""The origins of a program's values: the assignments of a name, and the calls in the assigned expressions."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ...protocol.finding import TraceStep
from ...protocol.optable import find_policy
from ...protocol.source_text import SourceText
from .frames import Frame, Scope, function_of
from .values import CASTS, MISSING, SHAPES, find_tensor, resolve_expression

#: Largest number of assignments and functions through which a value is traced.
DEPTH = 6
#: Largest number of visited expressions.
MANY = 200


class Origin(NamedTuple):
    """An expression from which a value came, with the enclosing function."""

    node: ast.expr
    scope: Scope
    frames: Sequence[Frame]

    @property
    def trace_step(self) -> TraceStep:
        return TraceStep(self.scope.site_of_node(self.node), f"`{SourceText(self.node)}`")


def find_assignments(scope: Scope, name: str) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """Yield the statements of a function that assign a name, each with the assigned expression, in order."""
    for statement in scope.iter_statements():
        for target, value in _assignment_targets(statement):
            if assigned_part := _assigned_part(target, value, name):
                yield statement, assigned_part


def _assignment_targets(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
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
    yield from _walrus_targets(statement)


def _walrus_targets(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the assignments by ``:=`` in a statement."""
    if isinstance(statement, (ast.Assign, ast.Expr, ast.If, ast.While, ast.Return)):
        head = statement.test if isinstance(statement, (ast.If, ast.While)) else statement.value
        for node in ast.walk(head) if head is not None else ():
            if isinstance(node, ast.NamedExpr):
                yield node.target, node.value


def _assigned_part(target: ast.expr, value: ast.expr, name: str) -> ast.expr | None:
    """Return the part of a value that a name in the targets receives: the whole value if the part is unknown."""
    if isinstance(target, ast.Name):
        return value if target.id == name else None
    if isinstance(target, (ast.Tuple, ast.List)):
        is_parallel = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
        for number, element in enumerate(target.elts):
            element_value = value.elts[number] if is_parallel and isinstance(value, (ast.Tuple, ast.List)) else value
            if assigned_part := _assigned_part(element, element_value, name):
                return assigned_part
    return None


def latest_assignment(scope: Scope, name: str, line: int) -> ast.expr | None:
    """Return the last value assigned to a name before a line.

    Without one, return a later value from the enclosing loop.
    """
    before = after = None
    for statement, value in find_assignments(scope, name):
        if (statement.end_lineno or statement.lineno) < line or isinstance(statement, (ast.For, ast.With)):
            before = value
        elif statement.lineno > line:
            after = value
    return before if before is not None else after


def parameter_index(scope: Scope, name: str) -> int | None:
    """Return the position of a parameter among a caller's arguments: -1 if keyword-only, None if not a parameter."""
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
    """Return True if a parameter is the context that torch passes to the methods of an ``autograd.Function``."""
    return scope.has_name(name) and isinstance(scope.resolve_name(name), torch.autograd.function.FunctionCtx)


def caller_argument(origin: Origin, name: str) -> Origin | None:
    """Return the argument that the caller of a running function passed for a parameter."""
    index = parameter_index(origin.scope, name)
    caller_index = next((n for n in range(len(origin.frames) - 2, -1, -1) if origin.frames[n].is_user), None)
    if index is None or caller_index is None:
        return None
    caller = origin.frames[caller_index]
    call = caller.find_operation()
    if not isinstance(call, ast.Call) or caller.scope is None:
        return None
    value = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    if value is None and 0 <= index < len(call.args):
        value = call.args[index]
    if value is None or isinstance(value, ast.Starred):
        return None
    passed, received = find_tensor(value, caller.scope), find_tensor(ast.Name(name), origin.scope)
    if passed is not None and received is not None and not _share_memory(passed, received):
        # A library in between, such as nn.Sequential, has called the function with a tensor of its own.
        return None
    return Origin(value, caller.scope, origin.frames[: caller_index + 1])


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if two tensors are the same, or views of the same tensor. True if that cannot be known."""
    if torch.strided is one.layout is other.layout:
        return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    return one is other


def trace_to_call(origin: Origin, line: int) -> list[Origin]:
    """Trace an expression back to the call that created its value. Return each assigned expression on the path.

    Views and casts of a name, and parameters passed by a caller, are followed.
    """
    chain: list[Origin] = []
    current: Origin | None = origin
    while current is not None and len(chain) < DEPTH:
        name = _base_name(current.node, current.scope)
        if name is None:
            chain.append(current)
            break
        value = latest_assignment(current.scope, name, line)
        if value is not None:
            current = Origin(value, current.scope, current.frames)
            line = value.lineno
            if not isinstance(value, ast.Name):
                chain.append(current)
            if _base_name(value, current.scope) is None:
                break
        else:
            current = caller_argument(current, name)
            if current is not None:
                line = current.frames[-1].line
    return chain


def _base_name(node: ast.expr, scope: Scope) -> str | None:
    """Return the name of which an expression is a view, a part or similar, or None."""
    while not isinstance(node, ast.Name):
        operand_node = operand_of_same_dtype(node, scope)
        if operand_node is None:
            return None
        node = operand_node
    return node.id


def operand_of_same_dtype(node: ast.expr, scope: Scope) -> ast.expr | None:
    """Return the operand whose dtype an expression inherits: for views, parts, and ops without an autocast policy."""
    if isinstance(node, ast.Subscript):
        return node.value
    if isinstance(node, ast.Attribute):
        return node.value if node.attr in SHAPES else None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    name, owner = node.func.attr, resolve_expression(node.func.value, scope)
    if name in SHAPES:
        return node.func.value
    if name in CASTS or name == "to" or find_policy("cuda", name):
        return None
    if isinstance(owner, types.ModuleType):
        # Indices, such as the first argument of a sparse tensor, do not decide about the dtype.
        return next((arg for arg in node.args if _is_floating(find_tensor(arg, scope))), None)
    if isinstance(owner, torch.Tensor) or operand_of_same_dtype(node.func.value, scope) is not None:
        return node.func.value
    return None


def _is_floating(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and (tensor.is_floating_point() or tensor.is_complex())


# All possible origins of a value.


def find_sources(origin: Origin) -> Iterator[Origin]:
    """Yield every expression from which a value may have come, nearest first, including returned functions."""
    pending = [origin]
    seen: set[int] = set()
    while pending and len(seen) < MANY:
        current = pending.pop(0)
        if id(current.node) in seen:
            continue
        seen.add(id(current.node))
        yield current
        for node in ast.walk(current.node):
            if isinstance(node, ast.Name):
                values = [value for _, value in find_assignments(current.scope, node.id)]
                pending.extend(Origin(value, current.scope, current.frames) for value in values)
                if not values and (caller := caller_argument(current, node.id)) is not None:
                    pending.append(caller)
            elif isinstance(node, ast.Call):
                pending.extend(_returned_origins(node, current))


def _returned_origins(call: ast.Call, origin: Origin) -> Iterator[Origin]:
    """Yield the return expressions of a called function of the program."""
    function = resolve_callee(call, origin.scope)
    if function is None:
        return
    body = function_of(function.__code__)
    if body is None:
        return
    scope = Scope(function.__code__.co_filename, body, (function.__globals__,))
    for statement in scope.iter_statements():
        if isinstance(statement, ast.Return) and statement.value is not None:
            yield Origin(statement.value, scope, ())


def resolve_callee(call: ast.Call, scope: Scope) -> types.FunctionType | None:
    """Return the function of the program that a call runs, or None if unknown or not part of the program."""
    target: Any = resolve_expression(call.func, scope)
    if isinstance(target, torch.nn.Module):
        target = getattr(type(target), "forward", MISSING)
    if isinstance(target, (staticmethod, classmethod, types.MethodType)):
        target = target.__func__
    if not isinstance(target, types.FunctionType):
        return None
    from ..record.sites import is_inner

    return None if is_inner(target.__code__.co_filename) else target
