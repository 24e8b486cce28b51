"""Losses: the inputs and autocast regions of a tensor, and the modules and optimizers that backward reaches."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import partial

from ...protocol import events as e
from ...protocol import torch_api
from ...protocol.events import UNKNOWN
from ...protocol.events.regions import describe_region
from ...protocol.source_text import SourceText, access_text
from ...protocol.tracked_objects import TrackedObject
from ..interpreter.conditions import disjunction
from ..interpreter.dtypes import GUESSED_LOW, is_known_low, is_low
from ..interpreter.expressions.attributes import DATA_SIZE_NAMES
from ..interpreter.expressions.operators import (
    apply_operator,
    is_iteration_data_size,
    is_remade_per_iteration,
    mark_scale_undone,
)
from ..interpreter.identity import record_division, record_multiplication
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.joins import for_each_alternative, run_branches
from ..interpreter.microbatches import SPLITTING_CALLS
from ..interpreter.source_text import expression_text, receiver_text
from ..interpreter.state import Loop
from ..interpreter.tensors import compute_tensor, in_region, low_result, mark_widened, region_device, unknown_tensor
from ..interpreter.unanalyzed_code import has_gradient_input, is_criterion
from ..interpreter.values.containers import SequenceValue, UnionValue
from ..interpreter.values.definitions import Args, BoundMethod, Keywords
from ..interpreter.values.gradients import GradValue, ParamsValue, ScaleValue
from ..interpreter.values.objects import ObjectRef
from ..interpreter.values.tensors import NO_SCALE, TensorValue, tensors_in
from ..interpreter.values.value import FORWARD, NONE, Const, UnknownValue, Value, join_provenance
from ..project.syntax import walk
from .arguments import dotted_name_of, find_tensors, first_or_named, literal_value, tracked_object_of
from .dtype_choices import trace_origin
from .syntax_queries import find_nodes, first_argument, first_argument_text, last_name, receiver_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeGuard

    from ...protocol.sites import Site

#: Methods that return the value of a tensor.
_READS = frozenset(("item", "tolist", "numpy"))
#: Tensor methods that end the use of a tensor as a loss.
TO_NUMBER = frozenset("item tolist numpy cpu shape size dim backward_hooks requires_grad".split())
#: Identifiers of code that skips or replaces the averaging over ranks.
_SPARES = frozenset(
    "no_sync require_backward_grad_sync set_requires_gradient_sync register_comm_hook static_graph".split()
)
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
#: Tensor methods that fill some elements with a number.
FILLS = frozenset("masked_fill masked_fill_ fill_ index_fill index_fill_".split())
#: Tensor methods and torch functions for arithmetic operators. The in-place methods are covered, too.
SCALES = {
    **dict.fromkeys(("mul", "multiply", "__mul__"), "*"),
    **dict.fromkeys(("div", "divide", "true_divide", "__truediv__"), "/"),
}
_LOW = ("float16", "bfloat16", torch_api.FLOAT16_BY_CHOICE)
#: Attributes that a tensor without gradient sets.
_DETACHED: tuple[tuple[str, object], ...] = (("has_penalty", False),)
#: Attributes that a method result sets in addition to the attributes of any computed tensor.
_CHANGES: dict[str, tuple[tuple[str, object], ...]] = {
    **dict.fromkeys(SPLITTING_CALLS, (("microbatches", True),)),
    **dict.fromkeys(("detach", "detach_", "clone_", "data"), _DETACHED),
    **dict.fromkeys(("float", "double"), (("low_dtype", ""), ("is_low_op_result", False))),
}
#: Default reduction of a criterion.
_MEAN = Const("mean")


#: Losses of log-probabilities, which a model computes by ``log_softmax``: in float32, in a region.
_OF_LOG_PROBABILITIES = ("nll_loss", "ctc_loss")
#: Functions and methods that make zeros, and functions and methods that make a tensor of given numbers.
_OF_ZEROS = frozenset(("zeros", "zeros_like", "new_zeros"))
_OF_NUMBERS = frozenset(("tensor", "as_tensor", "new_tensor", "FloatTensor"))
#: Loss that must not run in a region.
_BANNED = "binary_cross_entropy"


def compute_loss(
    interp: Interpreter,
    args: Args,
    keywords: Keywords,
    node: ast.AST,
    *,
    kind: str,
    promotes: bool,
    reduction: object = None,
    constructed_at: Site | None = None,
) -> Value:
    """Return the loss of the arguments. ``constructed_at`` is the location where a loss module is constructed."""
    event = interp.emit(
        e.Loss,
        node,
        function=kind or None,
        low_precision="" if promotes else _find_low_input(interp, args, kind),
        # A region of a framework has no location.
        ambient=None
        if any(region.site is not None for region in interp.state.open_regions)
        else interp.state.ambient_autocast,
        names={
            "call": expression_text(node),
            "loss": first_argument_text(node),
            "output": first_argument_text(node),
        },
    )
    if event is not None and constructed_at is not None and kind == _BANNED:
        event.premises = ((constructed_at, "the loss function is constructed"),)
    if event is not None and interp.state.forward_depth:
        _emit_in_forward(interp, event)
    parts = find_tensors(args, keywords)
    made = compute_tensor(interp, parts) if parts else _make_unknown_loss(interp, [*args, *keywords.values()])
    if interp.state.no_grad:
        made.forwards = made.forwards._replace(module_keys=frozenset())
    made.is_loss = True
    made.low_dtype = ""
    if made.in_region:
        # Autocast computes losses in float32, whatever computed their inputs.
        made.is_low_op_result = False
    reductions = {"mean" if reduction is None else reduction, find_reduction(keywords)}
    is_summed = "sum" in reductions
    made.normalization = made.normalization._replace(
        is_divided=is_summed,
        is_only_summed=is_summed,
        is_sample_mean=reductions == {"mean"},
        has_unknown_reduction=False,
    )
    return made


def _emit_in_forward(interp: Interpreter, event: e.Loss) -> None:
    """Emit a loss that the forward of a module computes. The forward itself emits no events."""
    regions = interp.state.open_regions
    region = regions[-1] if regions and regions[-1].enabled is not False else None
    is_banned = region is not None and event.function == _BANNED
    if not (is_banned or event.low_precision):
        return
    event.in_forward, event.device = True, "" if region is None else region.device or "cuda"
    event.guessed = bool(interp.state.path_condition) or (region is not None and region.enabled is not True)
    interp.detached_events.setdefault((e.Loss, event.site.call_key), event)


def makes_zeros(name: str, args: Args) -> bool:
    """Return True for a function or method that makes zeros, to which code adds the terms of a loss, divided or not."""
    last = name.rpartition(".")[2]
    if last not in _OF_NUMBERS or not args:
        return last in _OF_ZEROS
    numbers = args[0].items if isinstance(args[0], SequenceValue) else [args[0]]
    return bool(numbers) and all(number.value == 0 for number in numbers)


def find_reduction(keywords: Keywords) -> object:
    """Return the reduction of a criterion. An unknown reduction counts as a sum."""
    if literal_value(keywords.get("size_average")) is False:
        return "sum"
    asked = literal_value(keywords.get("reduction", _MEAN))
    return "sum" if asked is UNKNOWN else asked


def _find_low_input(interp: Interpreter, args: Args, kind: str) -> str:
    """Return the low dtype of a loss input outside all regions, or "" if no input is low."""
    if not args or in_region(interp) or interp.state.possible_regions or interp.state.no_grad:
        return ""
    # An input without a trained module has no gradient that can overflow.
    tensors = [tensor for tensor in tensors_in(args[0]) if tensor.forwards.module_keys != frozenset()]
    return next((t.low_dtype if t.low_dtype in _LOW and not _is_widened(t, kind) else "" for t in tensors), "")


def _is_widened(tensor: TensorValue, kind: str) -> bool:
    """Return True if a module that ran in a region returned float32, as far as its code or the loss shows."""
    info = tensor.dtype_info
    return info.dtype in torch_api.WIDE or (kind in _OF_LOG_PROBABILITIES and GUESSED_LOW in info.traits)


def _make_unknown_loss(interp: Interpreter, given: list[Value]) -> TensorValue:
    """Return a loss computed from inputs that no known module produced."""
    made = TensorValue(interp.current_loops())
    made.in_region = in_region(interp)
    earlier = join_provenance(given)
    # A region around the loss alone leaves the model out, unless the code of the model enters one.
    is_inside = made.in_region and earlier.autocast_scope != "out"
    made.provenance = earlier._replace(autocast_scope="in" if is_inside else earlier.autocast_scope or "?")
    return made


def _call_tensor_method(
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


def run_backward(
    interp: Interpreter,
    tensor: TensorValue,
    node: ast.AST,
    gradient: Value | None = None,
    names: dict[str, object] | None = None,
) -> None:
    """Run a tensor backward from ones, or from a given gradient, which may already be scaled.

    ``names`` holds the source texts for messages if the call is no ``backward()``.
    """
    if tensor.penalty_source is not None:
        emit_penalty(interp, tensor, node)
    for listener in interp.handlers.backward_start_listeners:
        listener(interp, tensor, node)
    scaler = _find_scaler_of_backward(tensor, gradient)
    names = dict(names) if names is not None else _backward_names(node)
    averaged = None
    ddp_module = find_ddp_module(interp, tensor)
    if ddp_module is not None:
        names["module"] = ddp_module.name
        averaged = ddp_module.attributes.wrappers["ddp"]
    graded = tensor.origin.is_from_gradient or gradient is not None
    feeds = find_updating_optimizers(interp, tensor.forwards.module_keys)
    known = interp.program.attributes
    if feeds is None and not known.training.freezes_unknown:
        known.training.freezes_unknown = any("requires_grad" in name for name in interp.module.identifiers)
    counter = next(
        (
            (divisor.site, divisor.source_text, (divisor.counter, divisor.key))
            for divisor in tensor.normalization.divisors
            if divisor.counter is not None
        ),
        None,
    )
    division = e.LossDivision(
        is_divided=tensor.normalization.is_divided or tensor.origin.is_from_outside or graded,
        is_vague=tensor.normalization.has_unknown_reduction,
        counter=counter,
    )
    scaling = e.LossScaling(
        is_scaled=scaler is not None,
        may_be_scaled_by_caller=scaler is None and tensor.origin.is_from_outside,
        comes_from_caller=tensor.origin.is_from_outside,
        may_have_scaled_gradient=scaler is None and graded,
        is_uneven=scaler is not None and tensor.loss_scale.has_mixed_scales,
        has_several_scalers=tensor.loss_scale.has_several_scalers,
    )

    if _depends_on_sole_module(interp, tensor):
        interp.program.attributes.training.backwards_of_sole_modules.add(interp.site_of(node).call_key)

    def emit_backward(*, no_sync: bool, float8: bool) -> None:
        interp.emit(
            e.Backward,
            node,
            scaler,
            names=names,
            feeds=feeds,
            averaged=averaged,
            no_sync=no_sync,
            division=division,
            scaling=scaling,
            dtypes=tensor.provenance.region_dtypes,
            custom=tensor.has_custom_backward,
            forward=tensor.forwards.first_event,
            float8=float8,
        )

    def run_float8_branches(*, no_sync: bool = False) -> None:
        inside = interp.state.float8_conditions[-1] if interp.state.float8_conditions else False
        run_branches(
            interp,
            inside,
            lambda: emit_backward(no_sync=no_sync, float8=True),
            lambda: emit_backward(no_sync=no_sync, float8=False),
        )

    run_branches(
        interp,
        disjunction(*interp.state.no_sync_conditions),
        lambda: run_float8_branches(no_sync=True),
        run_float8_branches,
    )
    for listener in interp.handlers.backward_end_listeners:
        listener(interp, tensor, node)


def _find_scaler_of_backward(tensor: TensorValue, gradient: Value | None) -> int | None:
    """Return the key of the scaler by whose scale a loss, or the gradient argument of a backward, is multiplied."""
    if isinstance(gradient, ScaleValue) and not gradient.is_inverse:
        return gradient.scaler_key
    given = find_tensors([gradient], {}) if gradient is not None else []
    return next((each.loss_scale.scaler_key for each in (tensor, *given) if each.loss_scale.scaler_key >= 0), None)


def _depends_on_sole_module(interp: Interpreter, tensor: TensorValue) -> bool:
    """Return True if the function runs a single object that may be a module, except for a criterion."""
    keys, function = tensor.forwards.module_keys, interp.state.frame.function
    if keys is None or len(keys) != 1 or function is None:
        return False
    called: set[str] = set()
    received = {each.arg for each in function.parameters()}
    methods = function.cls.methods if function.cls is not None else {}
    for call in function.find_nodes(ast.Call):
        match call.func:
            case ast.Name(id=name):
                may_be_module = name in received
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                may_be_module = name not in methods
            case _:
                continue
        if may_be_module and not is_criterion(name):
            called.add(name)
    return len(called) <= 1 and all(name == FORWARD or is_criterion(name) for name in tensor.provenance.callees)


def _backward_names(node: ast.AST) -> dict[str, object]:
    """Return the source texts for a loss that runs backward, and for a scaler in the same expression."""
    scaling = receiver_of(node)
    argument = first_argument(scaling)
    if argument is None:
        return {"loss": receiver_text(node), "call": expression_text(node)}
    names: dict[str, object] = {"loss": SourceText(argument), "call": expression_text(node)}
    scaler = receiver_of(scaling)
    return names if scaler is None else {**names, "scaler": SourceText(scaler)}


def make_loss_names(scaler: object, node: ast.AST) -> dict[str, object]:
    """Return the source texts for a scaler and the loss argument."""
    argument = first_argument_text(node)
    names = {"scaler": scaler, "call": expression_text(node)}
    return {**names, "loss": argument} if argument else names


def emit_penalty(interp: Interpreter, tensor: TensorValue, node: ast.AST) -> None:
    penalty = tensor.penalty_source
    tensor.penalty_source = None
    if penalty is not None:
        place, names, outdated = penalty
        interp.emit(e.Penalty, place, outdated=outdated, names=names)


def emit_fill(interp: Interpreter, value: Value | None, tensor: TensorValue, words: object, node: ast.AST) -> None:
    number = literal_value(value)
    if not isinstance(number, (int, float)):
        return
    # Code that only decodes trains no parameter, so only a known float16 dtype is reported there.
    is_float16 = tensor.dtype_info.dtype == "float16" and is_known_low(tensor.dtype_info)
    eligible = bool(tensor.low_dtype) or is_float16 or (tensor.is_low_op_result and not interp.state.no_grad)
    dtypes = tensor.provenance.region_dtypes
    if not dtypes and not tensor.low_dtype and interp.assumed_dtype:
        dtypes = frozenset({interp.assumed_dtype})
    is_bfloat16 = bool(dtypes) and dtypes <= torch_api.FAR_REACHING
    if is_bfloat16:
        eligible = eligible and not dtypes <= torch_api.WIDE and torch_api.BFLOAT16_MAX < abs(number) < float("inf")
    names = {"call": expression_text(node), "tensor": words}
    guessed = not (tensor.low_dtype or is_float16)
    made = partial(
        e.Fill, value=float(number), eligible=eligible, dtype="bfloat16" if is_bfloat16 else "float16", names=names
    )
    event = interp.emit(made, node, guessed=guessed)
    if event is not None and interp.state.forward_depth:
        # The forward of a module is analyzed for its result, without a graph.
        interp.detached_events.setdefault((e.Fill, event.site.call_key), event)
    region = interp.state.open_regions[-1] if interp.state.open_regions else None
    if event is not None and region is not None and region.site is not None and region.enabled is not False:
        event.premises = ((region.site, describe_region(region.dtype)),)
    elif event is not None and tensor.is_low_op_result:
        event.premises = trace_origin(interp, str(words), node)


def _set_tensor_item(interp: Interpreter, receiver: Value, index: Value, target: ast.Subscript, value: Value) -> None:
    """Record the write of a number to some elements of a tensor."""
    if isinstance(receiver, TensorValue):
        emit_fill(interp, value, receiver, SourceText(target.value), target)


def find_owners(interp: Interpreter, params: ParamsValue) -> tuple[int, ...] | None:
    """Return the keys of the optimizers that update the parameters, or None if unknown."""
    return tuple(params.optimizers) if params.optimizers else find_updating_optimizers(interp, params.modules)


def find_updating_optimizers(interp: Interpreter, modules: frozenset[int] | None) -> tuple[int, ...] | None:
    """Return the keys of the optimizers that update modules, or None if unknown."""
    if modules is None:
        return None
    copies = bool(modules) and all(interp.program.objects[key].attributes.copied for key in modules)
    owners = []
    for key in interp.program.optimizer_keys:
        owns = interp.program.objects[key].attributes.owns
        if owns is None:
            if copies and key < min(modules):
                # An optimizer created before the copy does not update the copy.
                continue
            return None
        if interp.program.with_submodules(owns) & interp.program.with_submodules(modules):
            owners.append(key)
    return tuple(owners) if owners or copies else None


def all_optimizer_keys(interp: Interpreter) -> tuple[int, ...]:
    return tuple(interp.program.optimizer_keys)


def apply_loss_operator(interp: Interpreter, op: str, left: Value, right: Value, node: ast.AST) -> Value | None:
    """Apply an operator to a loss, to gradients or to the loss scale. Return None if no operand is one of these."""
    if _is_loss_union(left):
        return for_each_alternative(interp, left, lambda value: apply_operator(interp, op, value, right, node))
    if _is_loss_union(right):
        return for_each_alternative(interp, right, lambda value: apply_operator(interp, op, left, value, node))
    scaled = _operate_on_scale(interp, op, left, right, node)
    if scaled is not None:
        return scaled
    for side, other in ((left, right), (right, left)):
        if isinstance(side, GradValue):
            return _operate_on_grad(op, side, other)
    parts = [*tensors_in(left), *tensors_in(right)]
    if parts:
        return _operate_on_tensors(interp, op, left, right, parts, node)
    return low_result(interp, "matmul", [left, right]) if op == "@" else None


def _operate_on_grad(op: str, grad: GradValue, other: Value) -> GradValue:
    """Apply an operator to gradients. Scaling by a number read from scaled gradients is a clip."""
    scaled = tuple(reading for reading in other.gradient_reads if not reading.undone)
    return (
        GradValue(grad.params, is_unscaled=grad.is_unscaled, factor_reads=scaled)
        if op in ("*", "/") and scaled
        else grad
    )


def _is_loss_union(value: Value) -> TypeGuard[UnionValue]:
    """Return True if a value is a union with a loss or the loss scale among the options."""
    return isinstance(value, UnionValue) and any(option.kind in ("tensor", "scale") for option in value.alternatives())


def _operate_on_scale(interp: Interpreter, op: str, left: Value, right: Value, node: ast.AST) -> Value | None:
    """Apply an operator to the loss scale, which scales or unscales gradients and losses.

    Return None if no operand is the scale.
    """
    scale, value = (left, right) if isinstance(left, ScaleValue) else (right, left)
    if not isinstance(scale, ScaleValue):
        return None
    divides = op == "/" and scale is right
    if divides and value.kind == "constant":
        return ScaleValue(
            scale.scaler_key, scale.loops, is_inverse=not scale.is_inverse, may_be_outdated=scale.may_be_outdated
        )
    undone = (op == "*" and scale.is_inverse) or (divides and not scale.is_inverse)
    if isinstance(value, GradValue):
        return GradValue(value.params, is_unscaled=undone)
    tensors = tensors_in(value)
    if tensors:
        made = TensorValue.join(tensors)
        if undone and made.penalty_source is not None and _is_scale_outdated(interp, scale):
            made.penalty_source = (node, {**made.penalty_source[1], "call": expression_text(node)}, True)
            emit_penalty(interp, made, node)
        return _set_scaler(made, scale.scaler_key if op == "*" else None, undone=undone)
    if value.gradient_reads:
        # A norm divided by the scale, or the scale divided by a norm, is a number of unscaled gradients.
        mark_scale_undone(value.gradient_reads)
        return interp.fresh_unknown(node)
    return ScaleValue(scale.scaler_key, scale.loops, is_inverse=scale.is_inverse, may_be_outdated=scale.may_be_outdated)


def _is_scale_outdated(interp: Interpreter, scale: ScaleValue) -> bool:
    """Return True if a scale was read before a loop in which update() changes the scale."""
    return not scale.may_be_outdated and any(
        loop.key not in scale.loops and _updates_scaler(loop) for loop in interp.state.loops
    )


def _updates_scaler(loop: Loop) -> bool:
    """Return True if a loop calls ``update`` on a scaler."""
    if loop.node is None or loop.frame is None:
        return False
    uses = loop.frame.module.role_by_text
    calls = (inner.func for inner in walk(loop.node) if isinstance(inner, ast.Call))
    updated = [func.value for func in calls if isinstance(func, ast.Attribute) and func.attr == "update"]
    return any(uses.get(access_text(scaler)) == "scaler" for scaler in updated)


def _set_scaler(made: TensorValue, scaler: int | None, *, undone: bool) -> TensorValue:
    """Mark a loss as scaled by a scaler, or as unscaled with ``undone``."""
    if undone:
        made.penalty_source = None
        made.loss_scale = NO_SCALE._replace(has_several_scalers=made.loss_scale.has_several_scalers)
    elif scaler is not None:
        made.loss_scale = made.loss_scale._replace(scaler_key=scaler)
    return made


def _operate_on_tensors(
    interp: Interpreter, op: str, left: Value, right: Value, parts: list[TensorValue], node: ast.AST
) -> TensorValue:
    made = compute_tensor(interp, parts)
    made.origin = made.origin._replace(
        is_from_gradient=made.origin.is_from_gradient or has_gradient_input((left, right))
    )
    made.normalization = made.normalization._replace(
        is_sample_mean=op in ("+", "-", "*", "/") and _are_sample_means((left, right))
    )
    if op == "@":
        # The operands of a product have one dtype, which a region alone changes.
        is_wide = not made.in_region and "float32" in (left.dtype_info.dtype, right.dtype_info.dtype)
        made.is_low_op_result = not is_wide
        made.low_dtype = "" if is_wide else made.low_dtype
    elif _is_float32_parameter(left) or _is_float32_parameter(right):
        made.low_dtype, made.is_low_op_result = "", False
    if op == "/" and isinstance(left, TensorValue):
        _apply_division(interp, made, left, right, node)
    elif op == "*" and not left.kind == right.kind == "tensor":
        _apply_multiplication(interp, made, parts, right if left.kind == "tensor" else left)
    elif op == "**":
        made.normalization = made.normalization._replace(is_divided=False, is_only_summed=False)
    elif op in ("+", "-"):
        terms = [*parts, *(value for value in (left, right) if isinstance(value, UnknownValue))]
        made.loss_scale = made.loss_scale._replace(
            has_mixed_scales=made.loss_scale.has_mixed_scales or is_unevenly_scaled(parts)
        )
        made.normalization = made.normalization._replace(
            divisors=frozenset.intersection(*(p.normalization.divisors for p in parts)),
            factors=frozenset.intersection(*(term.normalization.factors for term in terms)),
        )
        # Every term has a separate weight, so the sum itself is not divided into shares.
        has_weighted_terms = len(terms) > 1 and made.normalization.is_only_share and not made.normalization.factors
        made.normalization = made.normalization._replace(
            is_divided=all(p.normalization.is_divided for p in parts) and not has_weighted_terms
        )
    return made


def _are_sample_means(operands: Iterable[Value]) -> bool:
    """Return True if all operands except numbers are means over the samples of a batch."""
    return all(
        isinstance(value, Const) or (isinstance(value, TensorValue) and value.normalization.is_sample_mean)
        for value in operands
    )


def _is_float32_parameter(value: Value) -> bool:
    """Return True if a value is a parameter that promotes every low-precision operand to float32."""
    tracked_object = tracked_object_of(value)
    return tracked_object is not None and bool(tracked_object.attributes.shape.has_dimensions)


def _apply_division(interp: Interpreter, made: TensorValue, tensor: TensorValue, divisor: Value, node: ast.AST) -> None:
    mean = is_iteration_data_size(interp, divisor)
    made.normalization = made.normalization._replace(
        is_divided=(tensor.normalization.is_divided and not tensor.normalization.is_only_summed) or not mean,
        is_only_share=made.normalization.is_only_share and mean,
        has_unknown_reduction=made.normalization.has_unknown_reduction
        and not (mean and tensor.normalization.is_only_summed),
        is_only_summed=False,
    )
    if isinstance(divisor, TensorValue):
        made.penalty_source = None if tensor.penalty_source and divisor.penalty_source else made.penalty_source
    elif not mean:
        record_division(interp, made, tensor, divisor, node)


def _apply_multiplication(interp: Interpreter, made: TensorValue, parts: list[TensorValue], factor: Value) -> None:
    if len(parts) == 1:
        record_multiplication(interp, made, parts[0], factor)
    # An unknown weight may be 1 / k. An amount of data, a weight that may be 1, and the weights of the terms inside a
    # criterion are not.
    number = literal_value(factor)
    share = _is_unit_fraction(number)
    if number is UNKNOWN:
        share = not (factor.normalization.is_data_size or factor.normalization.may_be_one or interp.state.forward_depth)
    summed = [side.normalization.is_only_summed for side in (made, factor) if side.normalization.is_divided]
    made.normalization = made.normalization._replace(
        is_only_share=share and not summed,
        is_only_weighted=share and not summed and is_remade_per_iteration(interp, factor),
        is_divided=bool(summed) or share,
        is_only_summed=bool(summed) and all(summed) and not share,
    )


def as_loss(value: Value | None) -> TensorValue:
    """Return a copy of the tensors in a value as one loss, or an unknown loss if the value contains no tensor."""
    tensors = tensors_in(value) if value is not None else []
    return TensorValue.join(tensors) if tensors else unknown_tensor(value)


def is_unevenly_scaled(parts: Iterable[TensorValue]) -> bool:
    """Return True if some terms of a sum carry the scale of a scaler, and others another scale or definitely none.

    An unknown term may be scaled. A term without gradient needs no scale, and terms of different modules may have
    different scales.
    """
    read = [part for part in parts if not (part.origin.is_from_outside or part.origin.is_from_gradient)]
    known = [
        part
        for part in parts
        if part.loss_scale.scaler_key >= 0 or (part in read and (part.is_loss or part.forwards.module_keys))
    ]
    trained = [part for part in known if part.forwards.module_keys != frozenset()]
    return any(_have_different_scales(part, other) for number, part in enumerate(trained) for other in trained[:number])


def _have_different_scales(one: TensorValue, other: TensorValue) -> bool:
    """Return True if two terms that are trained together carry different scales."""
    scalers = one.loss_scale.scaler_key, other.loss_scale.scaler_key
    if scalers[0] == scalers[1]:
        return False
    if one.forwards.module_keys is None or other.forwards.module_keys is None:
        # The modules are unknown, so two different scalers may be correct.
        return min(scalers) < 0
    return bool(one.forwards.module_keys & other.forwards.module_keys)


def backward_gradient_of(args: Args, keywords: Keywords) -> Value | None:
    """Return the gradient argument of a backward call, or None."""
    given = args[0] if args else keywords.get("gradient", keywords.get("grad_tensors"))
    return None if literal_value(given) is not UNKNOWN else given


def _is_unit_fraction(factor: object) -> bool:
    """Return True if a number is 1 / k for an integer k >= 2, like the weight of one of several equal parts."""
    if not isinstance(factor, float) or not 0 < factor <= 0.5:
        return False
    return abs(1 / factor - round(1 / factor)) < 1e-6


def may_use_no_sync(interp: Interpreter) -> bool:
    """Return True if code here may skip the averaging over ranks in a backward.

    An unknown context manager may be ``no_sync()`` under another name.
    """
    modules = (interp.module, interp.state.frame.module)
    return interp.state.possible_regions > 0 or any(not module.identifiers.isdisjoint(_SPARES) for module in modules)


def find_ddp_module(interp: Interpreter, tensor: TensorValue) -> TrackedObject | None:
    """Return the DDP module whose gradients a backward averages over ranks, or None.

    None is also returned if code here may skip the averaging.
    """
    if may_use_no_sync(interp):
        return None
    keys = tensor.forwards.module_keys if tensor.forwards.module_keys is not None else frozenset()
    if not keys and tensor.forwards.first_event is not None and tensor.forwards.first_event.subject is not None:
        keys = frozenset((tensor.forwards.first_event.subject,))
    for key in sorted(keys):
        tracked_object = interp.program.objects[key]
        if "ddp" in tracked_object.attributes.wrappers:
            return tracked_object
    return None


def _get_tensor_attribute(interp: Interpreter, receiver: TensorValue, name: str, node: ast.AST) -> Value:
    if name == "backward":
        return BoundMethod(receiver, name)
    if name in TO_NUMBER:
        return _fetch_number(interp, receiver, name, node)
    made = receiver.copy()
    if name == "grad":
        # Only the earlier backward determines whether the gradient is scaled.
        made.origin = made.origin._replace(is_from_gradient=True)
    return made


def _call_loss_module(interp: Interpreter, func: ObjectRef, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    loss = func.tracked_object.attributes
    return compute_loss(
        interp,
        args,
        keywords,
        node,
        kind=loss.kind,
        promotes=loss.promotes,
        reduction=loss.reduction,
        constructed_at=func.tracked_object.site,
    )


def register(handlers: HandlerTable) -> None:
    handlers.calls["loss"] = _call_loss_module
    handlers.methods["tensor"] = _call_tensor_method
    handlers.attributes["tensor"] = _get_tensor_attribute
    handlers.operators.append(apply_loss_operator)
    handlers.item_write_listeners.append(_set_tensor_item)
