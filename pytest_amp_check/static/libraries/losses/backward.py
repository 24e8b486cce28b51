"""Backward: the scale, the divisors, the ranks and the modules of a loss that runs backward."""

from __future__ import annotations

import ast

from ....protocol import events as e
from ....protocol.events import UNKNOWN
from ....protocol.source_text import SourceText
from ....protocol.tracked_objects import TrackedObject
from ...interpreter.conditions import disjunction
from ...interpreter.interpreter import Interpreter
from ...interpreter.joins import run_branches
from ...interpreter.source_text import expression_text, receiver_text
from ...interpreter.tensors import unknown_tensor
from ...interpreter.unanalyzed_code import is_criterion
from ...interpreter.values.definitions import Args, Keywords
from ...interpreter.values.gradients import ScaleValue
from ...interpreter.values.tensors import TensorValue, tensors_in
from ...interpreter.values.value import FORWARD, Value
from ..arguments import find_tensors, literal_value
from ..owners import find_updating_optimizers
from ..syntax_queries import first_argument, first_argument_text, receiver_of

#: Identifiers of code that skips or replaces the averaging over ranks.
_SPARES = frozenset(
    "no_sync require_backward_grad_sync set_requires_gradient_sync register_comm_hook static_graph".split()
)


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


def as_loss(value: Value | None) -> TensorValue:
    """Return a copy of the tensors in a value as one loss, or an unknown loss if the value contains no tensor."""
    tensors = tensors_in(value) if value is not None else []
    return TensorValue.join(tensors) if tensors else unknown_tensor(value)


def backward_gradient_of(args: Args, keywords: Keywords) -> Value | None:
    """Return the gradient argument of a backward call, or None."""
    given = args[0] if args else keywords.get("gradient", keywords.get("grad_tensors"))
    return None if literal_value(given) is not UNKNOWN else given


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
