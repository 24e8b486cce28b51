"""Execution of statements, by kind of statement."""

from __future__ import annotations

import ast

from ..expressions.assignments import execute_augmented_assign
from ..interpreter import HandlerTable
from .branches import execute_if, execute_match
from .definitions import define_class, define_function
from .exceptions import execute_try
from .loops import execute_for, execute_while
from .simple_statements import (
    execute_ann_assign,
    execute_assert,
    execute_assign,
    execute_delete,
    execute_expression,
    execute_import,
    execute_import_from,
    execute_jump,
    execute_outer_names,
    execute_raise,
    execute_return,
)


def register(handlers: HandlerTable) -> None:
    handlers.statements.update(
        {
            ast.Expr: execute_expression,
            ast.Assign: execute_assign,
            ast.AnnAssign: execute_ann_assign,
            ast.AugAssign: execute_augmented_assign,
            ast.Return: execute_return,
            ast.Raise: execute_raise,
            ast.Break: execute_jump,
            ast.Continue: execute_jump,
            ast.Delete: execute_delete,
            ast.Global: execute_outer_names,
            ast.Nonlocal: execute_outer_names,
            ast.Assert: execute_assert,
            ast.Import: execute_import,
            ast.ImportFrom: execute_import_from,
            ast.FunctionDef: define_function,
            ast.AsyncFunctionDef: define_function,
            ast.ClassDef: define_class,
            ast.If: execute_if,
            ast.Match: execute_match,
            ast.Try: execute_try,
            ast.For: execute_for,
            ast.AsyncFor: execute_for,
            ast.While: execute_while,
        }
    )
    if hasattr(ast, "TryStar"):
        handlers.statements[ast.TryStar] = execute_try
