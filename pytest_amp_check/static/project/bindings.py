"""Statements outside functions: the names that they bind, the containers that they fill, and missing imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .assignments import stored_names
from .syntax import bound_by_import, root_name, walk


def collect_bindings(
    statements: list[ast.stmt], certain: dict[str, list[ast.stmt]], fallbacks: dict[str, list[ast.stmt]]
) -> None:
    """Collect the statements that bind names; ``fallbacks`` collects statements in ``else`` blocks and handlers."""
    for statement in statements:
        match statement:
            case ast.If(body=body, orelse=others):
                collect_bindings(body, certain, fallbacks)
                collect_bindings(others, fallbacks, fallbacks)
            case ast.Try(body=body, orelse=others, handlers=handlers, finalbody=last):
                collect_bindings([*body, *last], certain, fallbacks)
                collect_bindings(
                    [*others, *(each for handler in handlers for each in handler.body)], fallbacks, fallbacks
                )
            case ast.With(body=body):
                collect_bindings(body, certain, fallbacks)
            case ast.Import() | ast.ImportFrom():
                for name, _ in bound_by_import(statement):
                    certain.setdefault(name, []).append(statement)
            case ast.Assign() | ast.AnnAssign() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                for name in stored_names([statement])[0]:
                    certain.setdefault(name, []).append(statement)


def iterate_executed_statements(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the simple statements and definitions of a block, and of the blocks in it that an import executes."""
    for statement in statements:
        match statement:
            case ast.If(body=body) | ast.With(body=body):
                yield from iterate_executed_statements(body)
            case ast.Try(body=body, finalbody=last):
                yield from iterate_executed_statements([*body, *last])
            case _:
                yield statement


def fills(statement: ast.stmt, names: set[str]) -> bool:
    """Return True if a statement stores something by one of some names: a container, or a function that fills it."""
    match statement:
        case ast.FunctionDef(decorator_list=asked) | ast.AsyncFunctionDef(decorator_list=asked):
            pass
        case ast.ClassDef(decorator_list=asked):
            pass
        case ast.Expr(value=ast.Call(func=called)):
            asked = [called]
        case ast.Assign(targets=[ast.Subscript(value=held)]):
            asked = [held]
        case _:
            return False
    return any(root_name(each.func if isinstance(each, ast.Call) else each) in names for each in asked)


def catches_import(handler: ast.ExceptHandler) -> bool:
    """Return True if a handler supports a library without the imported name."""
    names = {n.id for n in walk(handler.type) if isinstance(n, ast.Name)} if handler.type else {"ImportError"}
    return bool(names & {"ImportError", "ModuleNotFoundError", "AttributeError", "Exception"})
