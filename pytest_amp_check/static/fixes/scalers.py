"""Fixes of where and how a scaler is made."""

from __future__ import annotations

import ast

from ...protocol.finding import Finding
from ...protocol.fix import Edit
from ...protocol.words import chain
from .layout import LOOPS, Layout, Unfit
from .queries import Mended, named
from .rebuilt import Rebuilt

#: The parameters of a scaler behind its device.
OLD_ORDER = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")


def construct_before_loop(layout: Layout, finding: Finding) -> Mended:
    call = layout.at(finding.site, ast.Call)
    statement = layout.statement(call)
    if not isinstance(statement, ast.Assign) or statement.value is not call or len(statement.targets) != 1:
        raise Unfit
    scaler = named(layout, statement.targets[0])
    loop = layout.parent(statement)
    if not isinstance(loop, LOOPS) or statement not in loop.body or len(loop.body) == 1:
        raise Unfit
    assert isinstance(loop, ast.stmt)
    stored = {
        chain(node) for node in layout.within(loop) if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))
    }
    heads = {text.partition(".")[0].partition("[")[0] for text in stored if text}
    for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
        for node in layout.within(argument):
            if isinstance(node, ast.Name) and node.id in heads:
                raise Unfit
            if isinstance(node, (ast.Await, ast.NamedExpr, ast.Yield)):
                raise Unfit
            if isinstance(node, ast.Call) and chain(node.func) not in ("torch.cuda.is_available", "float", "int"):
                raise Unfit
    bound = [
        node for node in layout.within(loop) if isinstance(node, (ast.Name, ast.Attribute)) and chain(node) == scaler
    ]
    if sum(isinstance(node.ctx, ast.Store) for node in bound) != 1:
        raise Unfit
    first, last = layout.head(statement), statement.end_lineno or statement.lineno
    inner, outer = layout.indent(statement), layout.indent(loop)
    if not layout.alone(loop) or not inner.startswith(outer) or layout.strings(first, last):
        raise Unfit
    rows = [outer + row[len(inner) :] if row.startswith(inner) else row for row in layout.lines[first - 1 : last]]
    above = layout.head(loop)
    edits = [Edit(above, 0, above, 0, "".join(f"{row}\n" for row in rows)), layout.without(first, last)]
    return f"Construct `{scaler}` before the loop", edits


# AMP216.


def name_arguments(layout: Layout, finding: Finding) -> Mended:
    """Names the arguments that are given in the order that they had before there was a device."""
    call = layout.at(finding.site, ast.Call)
    keyword = finding.names.get("keyword", "")
    if finding.label != "scaler:number-as-device" or not call.args:
        raise Unfit
    names = ("enabled",) if keyword == "enabled" else OLD_ORDER
    return "Pass the arguments by their names", [Rebuilt(layout, call, names=names)]
