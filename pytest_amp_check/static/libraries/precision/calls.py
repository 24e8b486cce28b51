"""Result dtypes of calls."""

from __future__ import annotations

import ast
import re

from ....protocol import events as e
from ....protocol import kernels, torch_api
from ....protocol.source_text import SourceText, find_access_path
from ....protocol.tracked_objects import TrackedObject
from ...interpreter.classes.lineage import role_of
from ...interpreter.dtypes import (
    ANGLES,
    GUESSED_LOW,
    INTEGERS,
    MEAN_SQUARE,
    NO_DTYPE_INFO,
    NUMBER_INFO,
    REGION,
    ROUNDED,
    SQUARE,
    WEIGHTED,
    DtypeInfo,
    is_low_method,
    is_tensor_op,
    op_of_module,
    result_dtype,
)
from ...interpreter.expressions.attributes import attribute_of
from ...interpreter.interpreter import Interpreter
from ...interpreter.values.definitions import Instance
from ...interpreter.values.value import Value
from ..arguments import object_ref_of, tracked_object_of
from ..syntax_queries import first_argument, last_name, receiver_of
from .assumed import takes_model
from .assumed_fills import check_fill, mark_fill
from .casts import CAST_METHODS, CONSTRUCTORS, apply_cast, apply_constructor
from .dtype_info import (
    NUMBER_BUILTINS,
    REGION_TRAITS,
    OpCall,
    autocast_state,
    dtype_info_of,
    is_low_of_region,
    is_tensor_dtype,
    is_used_outside,
    resolve_callee,
)
from .einops import PACKAGES, apply_pattern_function
from .events import emit_once
from .fragile import check_gradient_norm, check_loss, check_timestep_argument
from .moving_averages import check_moving_average
from .ops import apply_op, bounded_traits, check_kernel, check_numpy, mean_traits
from .parameters import check_new_parameter, holds_weights
from .scattered_sums import check_sum_of_package
from .stored_low import find_output_info
from .sums import check_in_place_sum

#: Functions of other packages that sum or average a tensor over the ranks, and return the tensor.
_SUMS_OVER_RANKS = re.compile("all_?reduce", re.IGNORECASE)
#: Names of the first argument of functions of torch.
_FIRST_ARGUMENTS = ("input", "A", "log_probs")
#: Kinds of values that the call of a model returns.
_MODEL_OUTPUTS = frozenset(("tensor", "unknown"))


def annotate_call(interp: Interpreter, node: ast.Call, value: Value) -> Value:
    fact = _apply_call(interp, node)
    check_in_place_sum(interp, node)
    check_moving_average(interp, node)
    check_gradient_norm(interp, node)
    check_timestep_argument(interp, node)
    fact = mark_fill(interp, node, fact)
    check_fill(interp, node)
    if fact is None and value.kind in _MODEL_OUTPUTS and not value.dtype_info.dtype:
        fact = find_output_info(interp, lambda: _callee_value(interp, node.func))
    return value if fact is None else value.with_dtype_info(fact)


def _apply_call(interp: Interpreter, node: ast.Call) -> DtypeInfo | None:
    """Return the dtype info of a call, or None if the analysis of the callee provides the result."""
    dotted = resolve_callee(interp, node.func)
    args = [dtype_info_of(interp, arg) for arg in node.args]
    keywords = {keyword.arg or "**": dtype_info_of(interp, keyword.value) for keyword in node.keywords}
    if dotted is not None:
        return _apply_function(interp, torch_api.canonical_name(dotted), args, keywords, node)
    if isinstance(node.func, ast.Attribute):
        receiver = dtype_info_of(interp, node.func.value)
        return _apply_method(interp, OpCall(node.func.attr, receiver, [receiver, *args], keywords, node, node.args))
    return _apply_other_call(interp, node, args, keywords)


def _apply_function(
    interp: Interpreter, dotted: str, args: list[DtypeInfo], keywords: dict[str, DtypeInfo], node: ast.Call
) -> DtypeInfo:
    """Return the dtype info of a torch function call, or no info for other functions."""
    space, _, last = dotted.rpartition(".")
    if dotted in NUMBER_BUILTINS or space == "math":
        return NUMBER_INFO
    if last == "Parameter":
        check_new_parameter(interp, args, node)
    if last in kernels.ATTENTION:
        return _apply_attention(interp, args[:3], node)
    if _SUMS_OVER_RANKS.search(last) is not None and not dotted.startswith("torch."):
        return args[0] if args else NO_DTYPE_INFO
    if space.partition(".")[0] == "numpy":
        for given, low in zip(node.args, args, strict=False):
            # Other arguments of unknown dtype are numbers and arrays as often as tensors.
            if isinstance(given, ast.Call) and last_name(given.func) in ("cpu", "detach"):
                check_numpy(interp, low, node)
        return NO_DTYPE_INFO
    check_sum_of_package(interp, dotted, args, node)
    if space in PACKAGES:
        return apply_pattern_function(interp, space, last, args, node)
    if not dotted.startswith("torch.") or dotted.startswith(("torch.nn.utils", "torch.distributed")):
        return NO_DTYPE_INFO
    first = args[0] if args else next((keywords[name] for name in _FIRST_ARGUMENTS if name in keywords), NO_DTYPE_INFO)
    op = OpCall(last, first, args, keywords, node, node.args[1:])
    if space in ("torch", "torch.special", "torch.linalg", "torch.fft"):
        if last in CONSTRUCTORS or last.endswith("_like"):
            return apply_constructor(interp, op)
    elif not dotted.startswith("torch.nn.functional."):
        return NO_DTYPE_INFO
    return apply_op(interp, op)


def _apply_attention(interp: Interpreter, given: list[DtypeInfo], node: ast.Call) -> DtypeInfo:
    """Check attention of another package, which receives query, key and value, and return the dtype info."""
    low = next(filter(is_low_of_region, given), None)
    if low is not None and any(fact.dtype == "float32" for fact in given):
        emit_once(interp, e.DtypeClash, node, low, how="attention", names={"call": SourceText(node)})
    return given[-1] if given else NO_DTYPE_INFO


def _apply_method(interp: Interpreter, op: OpCall) -> DtypeInfo | None:
    """Return the dtype info of a method call if the receiver may be a tensor. None if unknown."""
    if is_tensor_dtype(op.first_info) or op.first_info.traits & {ANGLES, ROUNDED}:
        return apply_op(interp, op)
    if holds_weights(interp, receiver_of(op.node)) and (op.name == "numpy" or is_tensor_op(op.name)):
        # The variable of a loop over the items stands for a weight.
        return apply_op(interp, op._replace(first_info=DtypeInfo(interp.assumed_dtype)))
    if op.name in ("new_zeros", "new_ones", "new_full", "new_empty"):
        return apply_constructor(interp, op)
    if op.name in ("long", "int", "short") and not op.node.args:
        return DtypeInfo("int")
    if op.name in CAST_METHODS:
        return apply_cast(interp, op)
    if op.name == "numpy" and not op.first_info.dtype and _is_detached(interp, op.node):
        return apply_op(interp, op._replace(first_info=DtypeInfo(interp.assumed_dtype)))
    is_computed = isinstance(receiver_of(op.node), ast.BinOp)
    if interp.assumed_dtype and is_computed and op.name in kernels.TENSOR_METHODS:
        check_kernel(interp, op)
    return (
        apply_op(interp, op)
        if is_low_method(op.name)
        else _apply_other_call(interp, op.node, op.argument_infos[1:], op.keyword_infos)
    )


def _is_detached(interp: Interpreter, node: ast.expr) -> bool:
    """Return True for a tensor that had a gradient, so that the option says that it is low: ``x.detach().cpu()``."""
    held: ast.expr | None = node
    while isinstance(held, ast.Call):
        if last_name(held.func) == "detach":
            return bool(interp.project.assumed_dtype) and not interp.assumes_region
        held = receiver_of(held)
    return False


def _apply_other_call(
    interp: Interpreter, node: ast.Call, args: list[DtypeInfo], keywords: dict[str, DtypeInfo]
) -> DtypeInfo | None:
    """Return the dtype info of a call of a module, a project function or an unknown callee. None if unknown."""
    state = autocast_state(interp)
    given = [*args, *keywords.values()]
    if interp.assumed_dtype:
        return _apply_assumed_call(interp, node, args)
    if find_access_path(node.func) is None or (state.mode != "on" and not any(fact.is_low for fact in given)):
        return None
    callee = _callee_value(interp, node.func)
    loss = object_ref_of(callee, "loss")
    if loss is not None and args:
        check_loss(interp, str(loss.tracked_object.attributes.kind), args[0], node, first_argument(node))
    module = object_ref_of(callee, "module")
    if module is None:
        return None
    kind = str(module.tracked_object.attributes.kind)
    if kind:
        return _apply_module(interp, kind, args[0] if args else NO_DTYPE_INFO, module.tracked_object, node)
    if state.mode != "on":
        return None
    squares = (MEAN_SQUARE,) if args and SQUARE in args[0].traits else ()
    return DtypeInfo(state.dtype, frozenset((REGION, GUESSED_LOW, *squares)))


def _apply_assumed_call(interp: Interpreter, node: ast.Call, args: list[DtypeInfo]) -> DtypeInfo | None:
    """Return the dtype info of the output of a layer that computes in the assumed dtype. None for another callee."""
    callee = _callee_value(interp, node.func)
    module = tracked_object_of(callee)
    if find_access_path(node.func) is None or not (args or node.keywords):
        return None
    if _is_unknown_model(interp, node.func, callee):
        return DtypeInfo(interp.assumed_dtype, frozenset({GUESSED_LOW}))
    if module is None or not (args or module.role == "module"):
        return None
    if module.role == "loss":
        check_loss(interp, str(module.attributes.kind), args[0], node, first_argument(node))
    if module.role != "module":
        return None
    kind, first = str(module.attributes.kind), args[0] if args else NO_DTYPE_INFO
    if kind and interp.assumes_region:
        return _apply_module(interp, kind, first, module, node)
    dtype = result_dtype(op_of_module(kind), first, autocast_state(interp)) if kind else ""
    if first.dtype == "float32" or (first.dtype in INTEGERS and kind):
        return DtypeInfo(dtype)
    squares = (MEAN_SQUARE,) if SQUARE in first.traits else ()
    return DtypeInfo(interp.assumed_dtype, frozenset((GUESSED_LOW, *squares, *bounded_traits(op_of_module(kind)))))


def _is_unknown_model(interp: Interpreter, func: ast.expr, callee: Value | None) -> bool:
    """Return True for a model whose class is not known: an attribute of a module, or a parameter ``model``.

    Its weights have the assumed dtype, and so has its output, unless a region decides.
    """
    if interp.assumes_region or callee is None or callee.kind != "unknown":
        return False
    frame = interp.state.frame
    if isinstance(func, ast.Name):
        return func.id == "model" and frame.function is not None and takes_model(frame.function)
    if isinstance(func, ast.Attribute) and func.attr == "decode":
        return True  # An autoencoder. The text of a tokenizer takes part in no computation.
    is_own = isinstance(func, ast.Attribute) and interp.expression_values.get(func.value) is frame.receiver
    return is_own and isinstance(frame.receiver, Instance) and role_of(interp, frame.receiver.cls) == torch_api.MODULE


def _apply_module(interp: Interpreter, kind: str, given: DtypeInfo, module: TrackedObject, node: ast.Call) -> DtypeInfo:
    """Return the dtype info of the output of a torch module."""
    state = autocast_state(interp)
    if kind in WEIGHTED and not module.attributes.dtypes.low and is_used_outside(given, state):
        emit_once(interp, e.DtypeClash, node, given, how="module", names={"call": SourceText(node.func)})
        return NO_DTYPE_INFO
    op = op_of_module(kind)
    dtype = result_dtype(op, given, state)
    kept = given.traits & REGION_TRAITS if dtype == given.dtype else frozenset()
    by_region = (REGION,) if state.mode == "on" else ()
    return DtypeInfo(dtype, kept | {*by_region, *bounded_traits(op), *mean_traits(op, given)})


def _callee_value(interp: Interpreter, func: ast.expr) -> Value | None:
    """Return the evaluated value of a callee, or of an attribute of an evaluated receiver. None if unknown."""
    known = interp.expression_values.get(func)
    if known is not None or not isinstance(func, ast.Attribute):
        return known
    receiver = interp.expression_values.get(func.value)
    if receiver is None:
        return None
    return interp.without_events(lambda: attribute_of(interp, receiver, func.attr, func))
