"""The expression that made the angles of a sine or cosine low."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Mapping
from typing import NamedTuple

import torch

from ....protocol.sites import Site
from ....protocol.source_text import SourceText
from .syntax import enclosing_function, parse_module, parse_site

#: Largest number of assignments through which a variable is followed.
FOLLOWED = 4


class AngleSource(NamedTuple):
    """The expression that made angles low: its location, its text, and ``how``: "cast" or "angles" (a product)."""

    site: Site
    text: str
    how: str


def find_angle_source(site: Site, local_values: Mapping[str, object]) -> AngleSource | None:
    """Return the expression that rounded the operand of a call, or None.

    Variables are followed to their latest assignments in the same function. Of several expressions, the cast of an
    integer variable comes first, then the first in the source. ``local_values`` are the variables of the function.
    """
    call = parse_site(site)
    if not isinstance(call, ast.Call):
        return None
    body = enclosing_function(site) or parse_module(site.path)
    pending: list[ast.expr] = [*call.args[:1], *([call.func.value] if isinstance(call.func, ast.Attribute) else [])]
    line = site.line
    rounding: list[ast.expr] = []
    for _ in range(FOLLOWED):
        names = {node.id for expression in pending for node in ast.walk(expression) if isinstance(node, ast.Name)}
        latest = {name: value for name in names if (value := _latest_value(body, name, line)) is not None}
        if not latest:
            break
        pending = list(latest.values())
        rounding += [
            node for value in pending for node in ast.walk(value) if isinstance(node, ast.expr) and _how_rounded(node)
        ]
        line = min(value.lineno for value in pending)
    if not rounding:
        return None
    integers = {name for name, value in local_values.items() if _is_integer_tensor(value)}
    first = min(rounding, key=lambda node: (not _casts_one_of(node, integers), node.lineno, node.col_offset))
    # Columns of the syntax tree count bytes.
    column = first.col_offset if linecache.getline(site.path, first.lineno).isascii() else 0
    at = Site(site.path, first.lineno, column, function=site.function, caller=site.caller)
    return AngleSource(at, str(SourceText(first)), _how_rounded(first))


def _latest_value(body: ast.AST, name: str, line: int) -> ast.expr | None:
    """Return the value of the latest assignment of a variable before a line, or None."""
    values = [
        node.value
        for node in ast.walk(body)
        if isinstance(node, ast.Assign)
        and node.lineno < line
        and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    ]
    return max(values, key=lambda value: value.lineno, default=None)


def _casts_one_of(node: ast.expr, names: set[str]) -> bool:
    """Return True if an expression is a method call on one of some variables."""
    owner = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id in names


def _is_integer_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())


def _how_rounded(node: ast.AST) -> str:
    """Return "cast" for a conversion of a tensor, "angles" for a matrix product, else ""."""
    match node:
        case ast.BinOp(op=ast.MatMult()):
            return "angles"
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            if name in ("to", "half", "bfloat16", "type", "type_as"):
                return "cast"
            if name in ("matmul", "mm", "bmm", "einsum", "outer"):
                return "angles"
    return ""
