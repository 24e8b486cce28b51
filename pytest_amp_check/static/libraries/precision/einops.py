"""Result dtypes of einops, einx and opt_einsum: shape changes, reductions and products that a pattern describes."""

from __future__ import annotations

import ast

from ...interpreter.dtypes import NO_DTYPE_INFO, NUMBER, DtypeInfo
from ...interpreter.interpreter import Interpreter
from ..syntax_queries import constant_of_node, elements_of, first_argument, keywords_of
from .dtype_info import OpCall, dtype_info_of
from .matmuls import join_parts
from .ops import apply_op

#: Packages whose functions the module knows.
PACKAGES = frozenset(("einops", "einx", "opt_einsum"))
#: Functions that only change the shape of their first argument, a tensor or a list of tensors.
_SHAPE_FUNCTIONS = frozenset(("rearrange", "repeat", "pack", "unpack"))
#: Reductions by name, which are ops of torch; ``any`` and ``all`` return booleans.
_REDUCTIONS = frozenset("mean sum max min prod any all".split())
_PRODUCTS = frozenset(("einsum", "contract", "dot"))
#: Functions of einx whose result has the dtype of all tensors behind the pattern.
_ELEMENTWISE = frozenset("rearrange where add subtract multiply divide maximum minimum get_at".split())


def apply_pattern_function(
    interp: Interpreter, package: str, function: str, infos: list[DtypeInfo], node: ast.Call
) -> DtypeInfo:
    """Return the dtype info of a call of a function of these packages, or no info for another function.

    Source: einops 0.8, ``einops.py``; einx 0.3, ``einx/op``; opt_einsum 3.4, ``contract.py``.
    """
    if package == "einx" and function not in _PRODUCTS:
        # What is not known is a mask or a number.
        tensors = [info for info in infos[1:] if info.dtype not in (NUMBER, "bool", "")]
        return join_parts(interp, tensors, node) if tensors and function in _ELEMENTWISE else NO_DTYPE_INFO
    first = first_argument(node)
    parts = [dtype_info_of(interp, part) for part in elements_of(first)]
    tensor = join_parts(interp, parts, node) if parts else infos[0] if infos else NO_DTYPE_INFO
    name = function
    if function in _SHAPE_FUNCTIONS:
        name = "reshape"
    elif function == "reduce":
        given = keywords_of(node).get("reduction", node.args[2] if len(node.args) > 2 else None)
        name = str(constant_of_node(given))
        if name not in _REDUCTIONS:
            return NO_DTYPE_INFO
    elif function in _PRODUCTS:
        # The pattern stands behind the tensors in einops and before them in opt_einsum.
        operands = [info for part, info in zip(node.args, infos, strict=False) if not isinstance(part, ast.Constant)]
        return apply_op(interp, OpCall("einsum", NO_DTYPE_INFO, operands, {}, node, node.args[1:]))
    else:
        return NO_DTYPE_INFO
    return apply_op(interp, OpCall(name, tensor, [tensor], {}, node, node.args[1:]))
