"""Attributes and methods that an object delegates to a wrapped object by ``__getattr__``."""

from __future__ import annotations

import ast

from ..project.module import Function
from ..project.syntax import tail_name


def find_delegate_name(method: Function) -> str:
    """Return the attribute of the object to which ``__getattr__`` delegates, or "".

    The method returns ``getattr(self.wrapped, name)``, with its own parameters.
    """
    parameters = [parameter.arg for parameter in method.parameters()]
    if len(parameters) != 2:
        return ""
    found = {
        node.args[0].attr
        for node in method.find_nodes(ast.Call)
        if tail_name(node.func) == "getattr"
        and len(node.args) >= 2
        and isinstance(node.args[0], ast.Attribute)
        and _names(node.args[0].value, parameters[0])
        and _names(node.args[1], parameters[1])
    }
    return found.pop() if len(found) == 1 else ""


def _names(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
