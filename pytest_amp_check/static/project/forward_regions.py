"""Autocast regions that the forward of a module enters itself, recognized by its source."""

from __future__ import annotations

import ast

from ...protocol.source_text import access_text
from .syntax import root_name, tail_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .module import Function

_DTYPES = {"half": "float16", "float16": "float16", "bfloat16": "bfloat16"}


def forward_region_dtype(forward: Function) -> str:
    """Return the low dtype of the region that a forward enters on every path, or "" if it is not known.

    The region decorates the forward, or is a statement of its body, and nothing switches it off.
    """
    if isinstance(forward.node, ast.Lambda):
        return ""
    contexts = list(forward.decorators)
    contexts += [item.context_expr for node in forward.node.body if isinstance(node, ast.With) for item in node.items]
    dtypes = {
        _dtype_of_call(context, forward)
        for context in contexts
        if isinstance(context, ast.Call) and tail_name(context.func) == "autocast"
    }
    return dtypes.pop() if len(dtypes) == 1 else ""


def _dtype_of_call(region: ast.Call, forward: Function) -> str:
    """Return the low dtype that the arguments of an autocast call choose, or "" if they do not show it."""
    given = {keyword.arg: keyword.value for keyword in region.keywords}
    enabled = given.get("enabled")
    if None in given or (enabled is not None and not (isinstance(enabled, ast.Constant) and enabled.value is True)):
        return ""
    imported = forward.module.imports.get(root_name(region.func))
    name = f"{'' if imported is None else imported.module}.{access_text(region.func)}"
    is_of_cuda = name.endswith("cuda.amp.autocast")
    if is_of_cuda and region.args:
        # The first argument of this form is ``enabled``.
        return ""
    if "dtype" in given:
        return _DTYPES.get(tail_name(given["dtype"]), "")
    if len(region.args) > 1:
        return _DTYPES.get(tail_name(region.args[1]), "")
    device = given.get("device_type", region.args[0] if region.args else None)
    return "float16" if is_of_cuda or (isinstance(device, ast.Constant) and device.value == "cuda") else ""
