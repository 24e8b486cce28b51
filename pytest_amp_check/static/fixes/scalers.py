"""Fixes of where and how a scaler is made."""

from __future__ import annotations

import ast

from ...protocol.finding import Finding
from ...protocol.words import chain
from .edits import insertion
from .form import Form
from .layout import LOOPS, Layout
from .matchers import Unfit, arguments, expect, only, require
from .queries import Mended, named, shifted
from .rebuilt import Rebuilt

#: The parameters of a scaler behind its device.
OLD_ORDER = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")


def construct_before_loop(layout: Layout, finding: Finding) -> Mended:
    call = layout.at(finding.site, ast.Call)
    statement = expect(layout.statement(call), ast.Assign)
    require(statement.value is call)
    scaler = named(layout, only(statement.targets))
    loop = expect(layout.parent(statement), ast.stmt)
    if not isinstance(loop, LOOPS):
        raise Unfit
    require(statement in loop.body and len(loop.body) > 1 and layout.alone(loop))
    stored = [
        chain(node) for node in layout.within(loop) if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))
    ]
    heads = {text.partition(".")[0].partition("[")[0] for text in stored if text}
    given = [node for argument in arguments(call) for node in layout.within(argument)]
    require(not any(_may_vary(node, heads) for node in given))
    only(node for node in layout.within(loop) if _stores(node, scaler))
    first, last = layout.head(statement), statement.end_lineno or statement.lineno
    inner, outer = layout.indent(statement), layout.indent(loop)
    require(inner.startswith(outer))
    rows = shifted(layout, first, last, inner, outer)
    edits = [insertion(layout.head(loop), 0, "".join(f"{row}\n" for row in rows)), layout.without(first, last)]
    return f"Construct `{scaler}` before the loop", edits


def _stores(node: ast.AST, name: str) -> bool:
    """Whether a node is a name, or an attribute, that is given a value."""
    return isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store) and chain(node) == name


def _may_vary(node: ast.AST, stored: set[str]) -> bool:
    """Whether a part of an argument may be another one each time around, where some names are stored."""
    match node:
        case ast.Name(id=name):
            return name in stored
        case ast.Call(func=func):
            return chain(func) not in ("torch.cuda.is_available", "float", "int")
    return isinstance(node, (ast.Await, ast.NamedExpr, ast.Yield))


def name_arguments(layout: Layout, finding: Finding) -> Mended:
    """Names the arguments that are given in the order that they had before there was a device."""
    call = layout.at(finding.site, ast.Call)
    keyword = finding.names.get("keyword", "")
    require(finding.label == "scaler:number-as-device" and call.args)
    names = ("enabled",) if keyword == "enabled" else OLD_ORDER
    return "Pass the arguments by their names", [Rebuilt(layout, call, Form(names=names))]
