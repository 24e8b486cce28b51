"""Marimo notebooks: the cells are functions of one file, and the analysis joins the cells into one program.

A cell takes the names of other cells as parameters, and returns the names that the cell defines. marimo runs the cells
in dependency order (docs.marimo.io, "Dataflow").
"""

from __future__ import annotations

import ast

from .syntax import tail_name, walk


def as_one_program(tree: ast.Module, text: str) -> ast.Module:
    """Return a module with the statements of all cells, in the order in which the cells run.

    Each statement keeps its location in the file. A module without cells is returned unchanged. Exported functions and
    classes keep their decorators, which the analysis takes for decorators that return the function.
    """
    if "marimo" not in text:
        return tree
    apps = {name for statement in tree.body for name in _names_of_apps(statement)}
    cells = [statement for statement in tree.body if _is_cell(statement, apps)]
    if not cells:
        return tree
    ordered = iter(_sort_cells(cells))
    body: list[ast.stmt] = []
    for statement in tree.body:
        if _is_cell(statement, apps):
            body += _cell_statements(next(ordered))
        else:
            body.append(statement)
    return ast.Module(body, tree.type_ignores)


def _names_of_apps(statement: ast.stmt) -> list[str]:
    """Return the names to which a statement assigns a new ``marimo.App(...)``."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return []
    made = tail_name(statement.value.func) == "App"
    return [target.id for target in statement.targets if made and isinstance(target, ast.Name)]


def _app_decorator(node: ast.expr, apps: set[str]) -> str:
    """Return the attribute of an app that a decorator uses, such as "cell", or ""."""
    called = node.func if isinstance(node, ast.Call) else node
    of_app = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in apps
    return tail_name(called) if of_app else ""


def _is_cell(statement: ast.stmt, apps: set[str]) -> bool:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return isinstance(statement, functions) and any(
        _app_decorator(each, apps) == "cell" for each in statement.decorator_list
    )


def _cell_statements(cell: ast.stmt) -> list[ast.stmt]:
    """Return the body of a cell without the ``return`` that lists the defined names."""
    assert isinstance(cell, (ast.FunctionDef, ast.AsyncFunctionDef))
    body = cell.body
    return body[:-1] if isinstance(body[-1], ast.Return) else body


def _sort_cells(cells: list[ast.stmt]) -> list[ast.stmt]:
    """Sort cells so that each cell follows the cells that define its parameters; otherwise keep the file order."""
    defined = [_names_defined(cell) for cell in cells]
    needed = [_cell_parameters(cell) for cell in cells]
    known = set[str]().union(*defined)
    ordered: list[ast.stmt] = []
    ready: set[str] = set()
    left = list(range(len(cells)))
    while left:
        # Cells with circular dependencies, which marimo refuses, stay in the order of the file.
        chosen = next((each for each in left if needed[each] & known <= ready | defined[each]), left[0])
        left.remove(chosen)
        ordered.append(cells[chosen])
        ready |= defined[chosen]
    return ordered


def _cell_parameters(cell: ast.stmt) -> set[str]:
    assert isinstance(cell, (ast.FunctionDef, ast.AsyncFunctionDef))
    return {parameter.arg for parameter in (*cell.args.posonlyargs, *cell.args.args, *cell.args.kwonlyargs)}


def _names_defined(cell: ast.stmt) -> set[str]:
    """Return the names that a cell defines for other cells: the returned names."""
    assert isinstance(cell, (ast.FunctionDef, ast.AsyncFunctionDef))
    last = cell.body[-1]
    names = walk(last.value) if isinstance(last, ast.Return) and last.value is not None else []
    return {node.id for node in names if isinstance(node, ast.Name)}
