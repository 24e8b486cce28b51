"""Fixes for the construction of scalers."""

from __future__ import annotations

import ast

from ...protocol.finding import Finding
from ...protocol.source_text import find_access_path
from .edits import make_insertion
from .layout import LOOPS, ProgramLayout
from .matchers import NotFixable, all_arguments, require, require_only, require_type
from .pending_rewrites import PendingRewrite
from .queries import Mended, reindent_lines, require_name
from .rewrite_spec import RewriteSpec

#: Parameters of a scaler after the device.
OLD_ORDER = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")


def construct_before_loop(layout: ProgramLayout, finding: Finding) -> Mended:
    call = layout.find_expression(finding.site, ast.Call)
    statement = require_type(layout.statement_of(call), ast.Assign)
    require(statement.value is call)
    scaler = require_name(layout, require_only(statement.targets))
    loop = require_type(layout.parent_of(statement), ast.stmt)
    if not isinstance(loop, LOOPS):
        raise NotFixable
    require(statement in loop.body and len(loop.body) > 1 and layout.has_own_lines(loop))
    stored = [
        find_access_path(node)
        for node in layout.nodes_in(loop)
        if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))
    ]
    heads = {text.partition(".")[0].partition("[")[0] for text in stored if text}
    given = [node for argument in all_arguments(call) for node in layout.nodes_in(argument)]
    require(not any(_may_vary(node, heads) for node in given))
    require_only(node for node in layout.nodes_in(loop) if _is_stored_name(node, scaler))
    first, last = layout.first_line_of(statement), statement.end_lineno or statement.lineno
    inner, outer = layout.indent_of(statement), layout.indent_of(loop)
    require(inner.startswith(outer))
    rows = reindent_lines(layout, first, last, inner, outer)
    edits = [
        make_insertion(layout.first_line_of(loop), 0, "".join(f"{row}\n" for row in rows)),
        layout.remove_lines(first, last),
    ]
    return f"Construct `{scaler}` before the loop", edits


def _is_stored_name(node: ast.AST, name: str) -> bool:
    """Return True if a node assigns to a name or an attribute."""
    return (
        isinstance(node, (ast.Name, ast.Attribute))
        and isinstance(node.ctx, ast.Store)
        and find_access_path(node) == name
    )


def _may_vary(node: ast.AST, stored: set[str]) -> bool:
    """Return True if a part of an argument may change between iterations, given the assigned names."""
    match node:
        case ast.Name(id=name):
            return name in stored
        case ast.Call(func=func):
            return find_access_path(func) not in ("torch.cuda.is_available", "float", "int")
    return isinstance(node, (ast.Await, ast.NamedExpr, ast.Yield))


def name_arguments(layout: ProgramLayout, finding: Finding) -> Mended:
    """Name the arguments that are passed in the order of the old signature without device."""
    call = layout.find_expression(finding.site, ast.Call)
    keyword = finding.names.get("keyword", "")
    require(finding.label == "scaler:number-as-device" and call.args)
    names = ("enabled",) if keyword == "enabled" else OLD_ORDER
    return "Pass the arguments by name", [PendingRewrite(layout, call, RewriteSpec(argument_names=names))]
