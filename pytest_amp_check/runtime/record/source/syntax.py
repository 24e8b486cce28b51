"""Syntax trees of the code at and around a location."""

from __future__ import annotations

import ast
import contextlib
import linecache
from collections.abc import Iterator
from functools import lru_cache

from ....protocol.sites import Site


def parse_site(site: Site) -> ast.AST | None:
    """Return the syntax node at a location, or None if the source is not available or cannot be parsed."""
    lines = linecache.getlines(site.path)[site.line - 1 : site.end_line]
    if not lines:
        return None
    if (site.line, site.column) == (site.end_line, site.end_column):
        # Before Python 3.11 often only the line is known, so the whole line may be the call, or begin a block.
        text = lines[0].strip()
        return _parse_code(text) or _parse_code(f"{text}\n    pass")
    lines[-1] = lines[-1][: site.end_column]
    lines[0] = lines[0][site.column :]
    text = "".join(lines).strip()
    return _parse_code(text)


def _parse_code(text: str) -> ast.AST | None:
    """Return the syntax node of an expression, of the value of an assignment or of another statement, or None."""
    with contextlib.suppress(SyntaxError, ValueError):
        return ast.parse(f"({text})", mode="eval").body
    with contextlib.suppress(SyntaxError, ValueError):
        statements = ast.parse(text).body
        if len(statements) == 1:
            return statements[0].value if isinstance(statements[0], (ast.Expr, ast.Assign)) else statements[0]
    return None


def text_at(site: Site) -> str:
    """Return the source text at a location within one line, or "" for several lines."""
    line = linecache.getline(site.path, site.line)
    return line[site.column : site.end_column] if site.line == site.end_line else ""


def has_remainder(node: ast.AST | None) -> bool:
    parts = ast.walk(node) if node is not None else ()
    return any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod) for part in parts)


def site_of_expression(frame: Site, node: ast.expr) -> Site:
    """Return the location of an expression in the code around a location."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    # Columns of the syntax tree count bytes.
    column, end_column = (
        len(linecache.getline(frame.path, line).encode()[:length].decode())
        for line, length in ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
    )
    return Site(frame.path, node.lineno, column, node.end_lineno, end_column, frame.function, frame.caller, frame.cell)


def compares_remainder(condition: ast.expr) -> bool:
    """Return True if a condition is a comparison with a remainder."""
    return isinstance(condition, ast.Compare) and any(
        isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mod)
        for side in (condition.left, *condition.comparators)
    )


def parse_module(path: str) -> ast.Module:
    """Return the syntax tree of a file, or an empty module if the file cannot be read or parsed."""
    return _parse_text("".join(linecache.getlines(path)))


@lru_cache(maxsize=4)
def _parse_text(text: str) -> ast.Module:
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, SystemError):
        try:
            return ast.parse(text)
        except SystemError:  # a bug of CPython 3.11 deep in the stack; the same text parses at the second attempt
            return ast.parse(text)
    return ast.Module([], [])


def last_line(node: ast.stmt | ast.expr | ast.ExceptHandler) -> int:
    assert node.end_lineno is not None
    return node.end_lineno


def covers(node: ast.stmt | ast.expr | ast.ExceptHandler, line: int) -> bool:
    """Return True if a syntax node has code in a line."""
    return node.lineno <= line <= last_line(node)


def enclosing_function(site: Site) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    tree = parse_module(site.path)
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and covers(node, site.line)
    ]
    return functions[-1] if functions else None


def enclosing_statements(site: Site) -> Iterator[ast.AST]:
    """Yield the statements whose body contains a location, within the enclosing function."""
    node: ast.AST = parse_module(site.path)
    statements: list[ast.AST] = []
    while True:
        inner = None
        for name in ("body", "orelse", "handlers", "finalbody", "cases"):
            children = getattr(node, name, ())
            # A case has no lines of its own.
            for child in [child for case in children for child in case.body] if name == "cases" else children:
                if isinstance(child, (ast.stmt, ast.ExceptHandler)) and covers(child, site.line):
                    inner = child
                    if name in ("body", "cases") or isinstance(node, ast.If):
                        statements.append(node)
        if inner is None:
            break
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
            statements.clear()
        node = inner
    yield from statements
