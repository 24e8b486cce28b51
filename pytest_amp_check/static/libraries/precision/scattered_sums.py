"""Sums of many elements at once: by index into a tensor of zeros, and along a dimension."""

from __future__ import annotations

import ast
import re

from ....protocol import events as e
from ....protocol.source_text import SourceText
from ...interpreter.dtypes import LOW_DTYPES, NO_DTYPE_INFO, REGION, ZEROS, DtypeInfo
from ...interpreter.interpreter import Interpreter
from ..syntax_queries import constant_of_node, keywords_of, last_name
from .dtype_info import OpCall, dtype_info_of
from .events import emit_once

#: Ops that add elements to a tensor by index, each with the parameter of the elements, which is the third one.
_INDEXED_SUMS = {
    "index_add": "source",
    "scatter_add": "src",
    "scatter_reduce": "src",
}
#: Functions of packages for graphs that sum a tensor by index. Each creates the sum in the dtype of the tensor.
_PACKAGES = ("torch_scatter", "torch_geometric")
_SUMS_OF_PACKAGES = frozenset("scatter scatter_sum scatter_add scatter_mean segment_csr global_add_pool".split())
#: A router gives a token to a few experts, whose outputs are as few terms.
_ROUTERS = re.compile("expert|router|moe", re.IGNORECASE)


def check_indexed_sum(interp: Interpreter, op: OpCall) -> None:
    """Report elements that are added by index to low-precision zeros, outside of loops."""
    word = _INDEXED_SUMS.get(op.base_name)
    target = op.tensor_node
    if word is None or target is None or not op.first_info.is_low or ZEROS not in op.first_info.traits:
        return
    given = keywords_of(op.node)
    source = given.get(word, op.other_arguments[2] if len(op.other_arguments) > 2 else None)
    mode = constant_of_node(given.get("reduce", op.other_arguments[3] if len(op.other_arguments) > 3 else None))
    if op.base_name == "scatter_reduce" and mode not in ("sum", "mean"):
        return
    fact = dtype_info_of(interp, source) if source is not None else NO_DTYPE_INFO
    known = interp.expression_values.get(target)
    since = {loop.key for loop in interp.state.loops} - op.first_info.assigned_loops
    # A sum in a loop over its terms is one of its iterations.
    is_fresh = isinstance(target, ast.Call) or (known is not None and not since)
    # An input that is assumed to be low is summed in few terms as often as in many. The output of a layer is pooled.
    is_assumed = bool(interp.assumed_dtype) and not interp.project.assumed_dtype and REGION not in fact.traits
    if fact.is_low and is_fresh and not is_assumed and not _routes(interp):
        _emit(interp, op.node, op.first_info)


def check_sum_of_package(interp: Interpreter, dotted: str, args: list[DtypeInfo], node: ast.Call) -> None:
    """Report a low-precision tensor that a package for graphs sums by index."""
    space, _, name = dotted.rpartition(".")
    if space.partition(".")[0] not in _PACKAGES or name not in _SUMS_OF_PACKAGES or not args or not args[0].is_low:
        return
    reduce = keywords_of(node).get("reduce")
    if reduce is None or constant_of_node(reduce) in ("sum", "add", "mean"):
        _emit(interp, node, args[0])


def check_cumulative_sum(interp: Interpreter, op: OpCall, dtype: str) -> None:
    """Report a running sum along a dimension whose ``dtype`` argument is low."""
    if op.base_name == "cumsum" and dtype in LOW_DTYPES:
        _emit(interp, op.node, DtypeInfo(dtype))


def _emit(interp: Interpreter, node: ast.Call, fact: DtypeInfo) -> None:
    emit_once(interp, e.LowSum, node, fact, scattered=True, names={"sum": SourceText(node.func)})


def _routes(interp: Interpreter) -> bool:
    """Return True for code that puts the outputs of experts together."""
    frame = interp.state.frame
    names = [frame.cls.name] if frame.cls is not None else []
    if frame.function is not None:
        names += [last_name(part) for part in frame.function.nodes]
    return any(_ROUTERS.search(name) is not None for name in names)
