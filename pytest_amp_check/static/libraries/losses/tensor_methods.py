"""Methods and attributes of tensors that may be losses: numbers, reductions, casts and scaling."""

from __future__ import annotations

import ast

from ....protocol import events as e
from ....protocol import torch_api
from ...interpreter.dtypes import is_low
from ...interpreter.expressions.attributes import DATA_SIZE_NAMES
from ...interpreter.expressions.operators import apply_operator
from ...interpreter.interpreter import Interpreter
from ...interpreter.microbatches import SPLITTING_CALLS
from ...interpreter.source_text import receiver_text
from ...interpreter.tensors import compute_tensor, mark_widened, region_device
from ...interpreter.unanalyzed_code import has_gradient_input
from ...interpreter.values.containers import SequenceValue
from ...interpreter.values.definitions import Args, BoundMethod, Keywords
from ...interpreter.values.tensors import TensorValue
from ...interpreter.values.value import NONE, UnknownValue, Value
from ...project.syntax import walk
from ..arguments import dotted_name_of, find_tensors, first_or_named, literal_value
from ..fills import FILLS, emit_fill
from ..syntax_queries import find_nodes, last_name
from .backward import backward_gradient_of, run_backward

#: Methods that return the value of a tensor.
_READS = frozenset(("item", "tolist", "numpy"))
#: Tensor methods that end the use of a tensor as a loss.
TO_NUMBER = frozenset("item tolist numpy cpu shape size dim backward_hooks requires_grad".split())
#: Tensor methods that preserve the divisors of a loss.
LINEAR = frozenset("mean sum float double clone squeeze".split())
#: Nonlinear functions and methods. The quotient of an argument is no quotient of the result: log(x / 2) is not log(x) /
#: 2.
CURVED = frozenset(
    "acos acosh asin asinh atan atanh cos cosh digamma erf erfc exp exp2 expm1 lgamma log log10 log1p log2 log_softmax "
    "logit logsigmoid logsumexp mish pow reciprocal rsqrt sigmoid silu sin sinh softmax softmin softplus sqrt square "
    "tan tanh".split()
)
#: Tensor methods whose result has the same values.
SAME_VALUE = frozenset("float double half bfloat16 to cuda cpu clone contiguous view reshape squeeze flatten".split())
#: Tensor methods and torch functions for arithmetic operators. The in-place methods are covered, too.
SCALES = {
    **dict.fromkeys(("mul", "multiply", "__mul__"), "*"),
    **dict.fromkeys(("div", "divide", "true_divide", "__truediv__"), "/"),
}
#: Attributes that a tensor without gradient sets.
_DETACHED: tuple[tuple[str, object], ...] = (("has_penalty", False),)
#: Attributes that a method result sets in addition to the attributes of any computed tensor.
_CHANGES: dict[str, tuple[tuple[str, object], ...]] = {
    **dict.fromkeys(SPLITTING_CALLS, (("microbatches", True),)),
    **dict.fromkeys(("detach", "detach_", "clone_", "data"), _DETACHED),
    **dict.fromkeys(("float", "double"), (("low_dtype", ""), ("is_low_op_result", False))),
}
#: Functions and methods that make zeros, and functions and methods that make a tensor of given numbers.
_OF_ZEROS = frozenset(("zeros", "zeros_like", "new_zeros"))
_OF_NUMBERS = frozenset(("tensor", "as_tensor", "new_tensor", "FloatTensor"))


def makes_zeros(name: str, args: Args) -> bool:
    """Return True for a function or method that makes zeros, to which code adds the terms of a loss, divided or not."""
    last = name.rpartition(".")[2]
    if last not in _OF_NUMBERS or not args:
        return last in _OF_ZEROS
    numbers = args[0].items if isinstance(args[0], SequenceValue) else [args[0]]
    return bool(numbers) and all(number.value == 0 for number in numbers)


def call_tensor_method(
    interp: Interpreter, tensor: TensorValue, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    if name == "backward":
        run_backward(interp, tensor, node, backward_gradient_of(args, keywords))
        return NONE
    if name in TO_NUMBER:
        return _fetch_number(interp, tensor, name, node)
    if _operator_method(name) in SCALES:
        return _scale_by_number(interp, tensor, name, args, node)
    if makes_zeros(name, args):
        zeros = interp.fresh_unknown(node, name)
        zeros.normalization = zeros.normalization._replace(is_divided=True, is_zeros=True)
        return zeros
    made = compute_tensor(interp, [tensor, *find_tensors(args, {})])
    made.origin = made.origin._replace(is_from_gradient=made.origin.is_from_gradient or has_gradient_input(args))
    given = (*args, *keywords.values()) if name in ("to", "type") else ()
    widens = any(torch_api.DTYPES.get(dotted_name_of(value)) in ("float32", "float64") for value in given)
    changes = _CHANGES.get("float" if widens else name, ())
    keeps_dtype = not changes and name != "mean"
    if changes == _DETACHED:
        scale = made.loss_scale
        made.forwards = made.forwards._replace(module_keys=frozenset())
        made.loss_scale = scale._replace(
            scaler_key=-1, detached_scaler_key=max(scale.scaler_key, scale.detached_scaler_key), has_mixed_scales=False
        )
    for attribute, value in changes:
        setattr(made, attribute, value)
    made.normalization = made.normalization._replace(
        is_data_size=tensor.normalization.is_data_size or name in DATA_SIZE_NAMES,
        is_sample_mean=name in SAME_VALUE and tensor.normalization.is_sample_mean,
    )
    if name == "mean":
        made.normalization = made.normalization._replace(
            is_sample_mean=tensor.normalization.is_sample_mean or averages_samples(args, keywords),
            has_unknown_reduction=widens and made.normalization.has_unknown_reduction,
        )
    apply_reduction(made, tensor, name)
    if name in FILLS:
        emit_fill(interp, keywords.get("value") or (args[-1] if args else None), tensor, receiver_text(node), node)
    elif keeps_dtype and is_low(name, region_device(interp)):
        made.is_low_op_result = True
    elif keeps_dtype:
        mark_widened(interp, made, name, [*args, *keywords.values()])
    if name in LINEAR and not args:
        made.normalization = made.normalization._replace(
            divisors=tensor.normalization.divisors, factors=tensor.normalization.factors
        )
    return made


def averages_samples(args: Args, keywords: Keywords) -> bool:
    """Return True if a mean runs over the samples of a batch: over all dimensions, or over the first."""
    axis = first_or_named(args, keywords, "dim")
    return axis is None or literal_value(axis) == 0


def _fetch_number(interp: Interpreter, tensor: TensorValue, name: str, node: ast.AST) -> UnknownValue:
    made = interp.fresh_unknown(node, name)
    made.normalization = made.normalization._replace(
        is_data_size=tensor.normalization.is_data_size or name in DATA_SIZE_NAMES
    )
    if name in _READS and isinstance(node, ast.Call):
        scaler = max(tensor.loss_scale.scaler_key, tensor.loss_scale.detached_scaler_key)
        made.is_loss_number = scaler < 0 and not made.normalization.is_data_size
        if scaler >= 0 and not _is_tested(interp, node):
            names = {"loss": receiver_text(node), "method": name, "scaler": interp.program.objects[scaler].name}
            reading = interp.emit(e.LossRead, node, scaler, owners=frozenset[int](), names=names)
            made.gradient_reads = () if reading is None else (reading,)
    return made


def _is_tested(interp: Interpreter, number: ast.Call) -> bool:
    """Return True if a number is only tested for NaN or infinity, which a loss scale does not change."""
    function = interp.state.frame.function
    nodes = interp.state.frame.module.tree if function is None else function.node
    return any(
        last_name(call.func) in torch_api.FINITE_CHECKS and any(part is number for part in walk(call))
        for call in find_nodes(nodes, ast.Call)
    )


def apply_reduction(made: TensorValue | UnknownValue, of: Value, how: str) -> None:
    """Update the division state of a loss after a function call. The mean of partial sums is a mean."""
    if how.rpartition(".")[2].removesuffix("_") in CURVED:
        made.normalization = made.normalization._replace(is_divided=False, is_only_summed=False)
    elif how == "sum" and of.normalization.is_sample_mean:
        # The samples are averaged: the sum runs over other dimensions, or over several losses.
        made.normalization = made.normalization._replace(is_sample_mean=True)
    elif how == "sum":
        made.normalization = made.normalization._replace(
            is_divided=True,
            is_only_share=False,
            is_only_summed=of.normalization.is_only_summed
            or not of.normalization.is_divided
            or (isinstance(of, TensorValue) and of.normalization.is_only_weighted),
        )
    elif how == "mean" and of.normalization.is_only_summed:
        made.normalization = made.normalization._replace(is_divided=False, is_only_summed=False)


def _operator_method(name: str) -> str:
    """Return the name of a method without the in-place suffix."""
    return name if name in SCALES else name.removesuffix("_")


def _scale_by_number(interp: Interpreter, tensor: TensorValue, name: str, args: Args, node: ast.AST) -> Value:
    """Return the result of a method that multiplies or divides a tensor by a number."""
    result = apply_operator(interp, SCALES[_operator_method(name)], tensor, args[0] if args else NONE, node)
    if name.endswith("_") and not name.endswith("__"):
        # The method works in place, and the same tensor is used afterwards.
        tensor.normalization = tensor.normalization._replace(
            is_divided=tensor.normalization.is_divided or result.normalization.is_divided
        )
        if isinstance(result, TensorValue):
            tensor.normalization = tensor.normalization._replace(
                divisors=result.normalization.divisors,
                factors=result.normalization.factors,
                is_only_share=result.normalization.is_only_share,
            )
    return result


def get_tensor_attribute(interp: Interpreter, receiver: TensorValue, name: str, node: ast.AST) -> Value:
    if name == "backward":
        return BoundMethod(receiver, name)
    if name in TO_NUMBER:
        return _fetch_number(interp, receiver, name, node)
    made = receiver.copy()
    if name == "grad":
        # Only the earlier backward determines whether the gradient is scaled.
        made.origin = made.origin._replace(is_from_gradient=True)
    return made
