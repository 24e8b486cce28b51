"""Names that the code at a location uses: of the scale, of gradients, of autocast."""

from __future__ import annotations

import ast
import linecache
import os
import re

from ....protocol.checks import ASKING
from ....protocol.sites import Site
from ....protocol.source_text import access_text
from .syntax import enclosing_function, parse_module, parse_site

#: A value of a loss scale: a name or attribute, but neither the method that scales a loss nor the initial scale.
_SCALE_VALUE = re.compile(r"(?<!init)_scale\b|\bscale\b(?!\s*\()")


def reads_no_size(site: Site) -> bool:
    """Return True if the lines of a call compare values or test for finite values, whatever the loss scale is."""
    lines = "".join(linecache.getlines(site.path)[site.line - 1 : site.end_line])
    return any(word in lines for word in (*ASKING, "==", "!="))


def mentions_scale(site: Site) -> bool:
    """Return True if the function around a location reads the scale.

    Such a function may divide gradients by the scale.
    """
    return "get_scale" in _text_around(site)


def uses_scale(site: Site) -> bool:
    """Return True if the function around a location has a value of a loss scale, apart from the calls of a scaler."""
    return _SCALE_VALUE.search(_text_around(site)) is not None


def _text_around(site: Site) -> str:
    """Return the text of the innermost function around a location, or of the file."""
    lines = linecache.getlines(site.path)
    function = enclosing_function(site)
    return "".join(lines if function is None else lines[function.lineno - 1 : function.end_lineno])


def reads_gradient(site: Site) -> bool:
    """Return True if a call computes with a ``grad`` attribute, as ``p.grad.norm().item()`` does."""
    nodes = list(ast.walk(parse_site(site) or ast.Module([], [])))
    called = {id(each.func) for each in nodes if isinstance(each, ast.Call)}
    return any(isinstance(each, ast.Attribute) and each.attr == "grad" and id(each) not in called for each in nodes)


def chooses_autocast(site: Site) -> bool:
    """Return True if code decides about autocast in the file of a call, or in a calling file of the same folder.

    Such code is a name with "autocast" that is more than an unconditional call, or a call whose ``enabled`` is no
    constant. In this case the user of the program may have disabled autocast on purpose.
    """
    folder = os.path.dirname(site.path)
    paths = {frame.path for frame in site.list_frames() if os.path.dirname(frame.path) == folder}
    return any(_node_chooses_autocast(parse_module(path), in_condition=False) for path in paths)


def _node_chooses_autocast(node: ast.AST, *, in_condition: bool) -> bool:
    """Return True if a syntax node decides about entering autocast. ``in_condition``: the node is conditional."""
    if isinstance(node, ast.Call) and "autocast" in access_text(node.func).rpartition(".")[2]:
        enabled = next((k.value for k in node.keywords if k.arg == "enabled"), None)
        return in_condition or not (enabled is None or isinstance(enabled, ast.Constant))
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return False
    if isinstance(node, (ast.Name, ast.Attribute, ast.arg)):
        name = {ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg"}[type(node)]
        if "autocast" in getattr(node, name):
            return True
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        in_condition = False
    elif isinstance(node, (ast.IfExp, ast.BoolOp, ast.Try)) or (isinstance(node, ast.If) and not _is_main(node)):
        in_condition = True
    return any(_node_chooses_autocast(child, in_condition=in_condition) for child in ast.iter_child_nodes(node))


def _is_main(node: ast.If) -> bool:
    """Return True if a condition tests for execution as the main module."""
    return any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test))
