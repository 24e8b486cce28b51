"""The values of expressions when a program stopped, determined without running any code of the program."""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from .frames import Scope

#: Stands for an unknown value.
MISSING = object()
#: Methods and attributes of tensors that return the same values in another shape, and so in the same dtype.
SHAPES = frozenset(
    "T mT H mH view reshape transpose permute unsqueeze squeeze flatten unflatten contiguous t expand expand_as "
    "detach clone narrow select unfold movedim swapaxes repeat roll flip diagonal data unbind chunk split".split()
)
#: Methods that determine a dtype by their name.
CASTS = {
    "float": torch.float32,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "double": torch.float64,
    "long": torch.int64,
    "int": torch.int32,
}


#: Supported arithmetic of numbers. GREAT is the largest magnitude of a base or exponent of a power.
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
GREAT = 4096


def resolve_expression(node: ast.AST, scope: Scope) -> Any:
    """Return the value of an expression of names, attributes, items and numbers, or ``MISSING``."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = resolve_expression(node.operand, scope)
        return -value if isinstance(value, (int, float)) else MISSING
    if isinstance(node, ast.Name):
        try:
            return scope.resolve_name(node.id)
        except KeyError:
            return MISSING
    if isinstance(node, ast.Attribute):
        owner = resolve_expression(node.value, scope)
        return MISSING if owner is MISSING else _get_attribute(owner, node.attr)
    if isinstance(node, ast.Subscript):
        return _get_item(resolve_expression(node.value, scope), resolve_expression(node.slice, scope))
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _compute_number(node.op, resolve_expression(node.left, scope), resolve_expression(node.right, scope))
    if isinstance(node, ast.Call) and len(node.args) == 1 and resolve_expression(node.func, scope) is torch.finfo:
        argument = resolve_expression(node.args[0], scope)
        return torch.finfo(argument) if isinstance(argument, torch.dtype) and argument.is_floating_point else MISSING
    return MISSING


def _compute_number(op: ast.operator, left: Any, right: Any) -> Any:
    """Compute a number from two numbers, or return ``MISSING``."""
    if not all(type(number) in (int, float) for number in (left, right)):
        return MISSING
    if isinstance(op, ast.Pow) and max(abs(left), abs(right)) > GREAT:
        return MISSING
    try:
        return _ARITHMETIC[type(op)](left, right)
    except (ArithmeticError, ValueError):
        return MISSING


def _get_attribute(owner: Any, name: str) -> Any:
    if isinstance(owner, torch.nn.Module):
        for members in (owner._parameters, owner._buffers, owner._modules):
            if name in members:
                return members[name]
    if isinstance(owner, torch.finfo):
        return getattr(owner, name, MISSING)
    if isinstance(owner, (ModuleType, torch.Tensor)) or owner is torch.Tensor:
        return getattr(owner, name, MISSING) if isinstance(owner, ModuleType) else MISSING
    member = inspect.getattr_static(owner, name, MISSING)
    # A property or another computed attribute is code of the program, which must not run.
    return MISSING if isinstance(member, property) or hasattr(type(member), "__set__") else member


def _get_item(owner: Any, index: Any) -> Any:
    if isinstance(owner, (torch.nn.ModuleList, torch.nn.Sequential)):
        owner = list(owner._modules.values())
    elif isinstance(owner, torch.nn.ModuleDict):
        owner = owner._modules
    if type(owner) in (list, tuple, dict) and index is not MISSING:
        try:
            return owner[index]
        except (KeyError, IndexError, TypeError):
            return MISSING
    return MISSING


def find_tensor(node: ast.AST, scope: Scope) -> torch.Tensor | None:
    """Return the tensor that an expression stands for, or the tensor of which the expression is a view or a part."""
    resolved = resolve_expression(node, scope)
    if isinstance(resolved, torch.Tensor):
        return resolved
    if isinstance(node, ast.Subscript):
        return find_tensor(node.value, scope)
    if isinstance(node, ast.Attribute) and node.attr in SHAPES:
        return find_tensor(node.value, scope)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SHAPES:
        return find_tensor(node.func.value, scope)
    return None


def find_dtype(node: ast.AST, scope: Scope) -> torch.dtype | None:
    """Return the dtype of the tensor that an expression returns, or None if unknown."""
    found_tensor = find_tensor(node, scope)
    if found_tensor is not None:
        return found_tensor.dtype
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in CASTS and not node.args:
            return CASTS[node.func.attr]
        arguments = [
            resolve_expression(part, scope) for part in (*node.args, *(keyword.value for keyword in node.keywords))
        ]
        return next((value for value in arguments if isinstance(value, torch.dtype)), None)
    return None
