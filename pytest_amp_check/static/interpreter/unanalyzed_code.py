"""Calls of unanalyzed code: listeners receive the arguments, and the result is an unknown value."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from ...protocol import events as e
from ...protocol.tracked_objects import TrackedObject
from ..project.syntax import tail_name
from .identity import Operation, structural_unknown
from .interpreter import HandlerTable, Interpreter, latest_event
from .name_effects import divides_gradients, effects_of_name, is_notification, only_reads
from .source_text import expression_text
from .tensors import compute_tensor, mark_float32_result, provenance_here
from .values.containers import MappingValue
from .values.definitions import Args, Instance, Keywords
from .values.gradients import GradValue, ParamsValue
from .values.objects import ObjectRef
from .values.tensors import TensorValue, tensors_in
from .values.value import (
    FORWARD,
    ConditionValue,
    Const,
    Provenance,
    UnknownValue,
    Value,
    find_passed_iterable,
    join_provenance,
)

#: Maximum nesting depth of objects in the search for scalers and optimizers.
MAX_SEARCH_DEPTH = 4
#: Kinds of values that are no object and contain none.
_PLAIN_KINDS = frozenset({Const, UnknownValue, ConditionValue})
#: Calls that return another number or object each time.
IMPURE = frozenset(
    "rand randn randint random uniform choice next time perf_counter pop popleft get_nowait sample "
    "from_pretrained".split()
)
#: Methods that pass a value to a list, a meter, a logger or a progress bar.
LOGGING_METHODS = frozenset(
    "append add update log info debug warning error print write set_postfix add_scalar set_description".split()
)


_CLEARS = frozenset((e.CLEARS,))


def call_unknown(
    interp: Interpreter,
    func: Value,
    args: Args,
    keywords: Keywords,
    node: ast.AST,
    *,
    runs: bool = True,
    effects: frozenset[str] | None = None,
) -> Value:
    """Return the result of a call of unanalyzed code; ``runs`` says that the call may run a model.

    ``effects`` are the effects that the body suggests. None stands for the effects that the name suggests.
    """
    arguments = [*args, *keywords.values()]
    name = func.text if isinstance(func, UnknownValue) else ""
    if effects is None:
        effects = effects_of_name(name)
    escape(interp, arguments, node, effects, notifies=is_notification(name))
    if (
        effects == _CLEARS
        and "grad" in name.lower()
        and not name.endswith("zero_grad")
        and not reachable_objects(interp, arguments)
    ):
        # Gradients of whatever the function holds or finds in its arguments.
        interp.emit(e.ZeroGrad, node, owners=(), names={"call": expression_text(node)})
    passed = find_passed_iterable(args)
    if passed is not None:
        return passed
    tensors = [t for value in arguments for t in tensors_in(value)]
    last = name.rpartition(".")[2]
    cleared = latest_event(interp)
    if isinstance(cleared, e.ZeroGrad) and not (effects or last in LOGGING_METHODS or only_reads(last)):
        cleared.may_be_refilled = True
    for listener in interp.handlers.escape_listeners:
        listener(interp, func, arguments, node)
    if tensors and last not in LOGGING_METHODS:
        tensor = _unknown_tensor(interp, last, arguments, tensors)
        tensor.normalization = tensor.normalization._replace(
            is_divided=tensor.normalization.is_divided or e.DIVIDES in effects,
            is_only_share=tensor.normalization.is_only_share and e.DIVIDES not in effects,
        )
        return tensor
    if last in IMPURE:
        return interp.fresh_unknown(node, name)
    made = structural_unknown(
        interp,
        Operation.CALL,
        (func, *arguments),
        expression_text(node) if isinstance(node, ast.Call) else "",
        tuple(keywords),
    )
    if interp.state.loops:
        made.loops |= frozenset((interp.state.loops[-1].key,))
    is_comparison_result = len(arguments) > 1 and any(v.origin.is_call_result for v in arguments)
    made.origin = made.origin._replace(is_call_result=True, is_comparison_result=is_comparison_result)
    made.set_divided(is_divided=may_pass_divided(arguments) or e.DIVIDES in effects)
    if _is_loss_of_results(last, args, made.provenance):
        return made.with_provenance(made.provenance._replace(callees=made.provenance.callees | {last}))
    return made.with_provenance(provenance_here(interp, made.provenance, last, FORWARD)) if runs else made


#: Names of loss functions that compare a prediction with a target.
_LOSS_FUNCTION = re.compile(r"_?(?:criterion|criteria|loss_(?:fn|func|fct|function)|crit)", re.IGNORECASE)


def _is_loss_of_results(name: str, args: Args, provenance: Provenance) -> bool:
    """Return True for a call of a loss function with the results of code that ran outside all regions.

    A region around such a call leaves the model out.
    """
    return len(args) > 1 and provenance.autocast_scope == "out" and _LOSS_FUNCTION.fullmatch(name) is not None


def _call_unknown_value(
    interp: Interpreter, func: UnknownValue, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    """Return the result of a call of an unknown value, or of the module that another use of the value revealed.

    An item of a list may have been recognized as a module at another location.
    """
    used = interp.tracked_objects.get(("used", func.key))
    if used is not None and used.role == "module":
        return interp.call_value(ObjectRef(used, recognized_from=func), args, keywords, node)
    return call_unknown(interp, func, args, keywords, node)


def _unknown_tensor(interp: Interpreter, name: str, arguments: list[Value], tensors: list[TensorValue]) -> TensorValue:
    """Return the tensor that unanalyzed code with this name computes from tensors and other arguments."""
    made = compute_tensor(interp, tensors)
    if not is_criterion(name) or any(value.role == "module" for value in arguments):
        made.provenance = provenance_here(interp, made.provenance)
    made.provenance = made.provenance._replace(
        callees=made.provenance.callees | join_provenance(arguments).callees | {name, FORWARD}
    )
    # A criterion also receives targets: a call with only the result of a model returns no loss.
    if len(arguments) > 1 or tensors[0].forwards.first_event is None:
        made.normalization = made.normalization._replace(
            is_divided=made.normalization.is_divided and any(t.is_loss for t in tensors)
        )
    if len(arguments) > 1:
        made.normalization = made.normalization._replace(has_unknown_reduction=False)
    made.origin = made.origin._replace(is_from_gradient=made.origin.is_from_gradient or has_gradient_input(arguments))
    made.forwards = made.forwards._replace(has_known_modules=False)
    mark_float32_result(made, arguments)
    return made


def is_criterion(name: str) -> bool:
    """Return True if the name of a function says that it compares a result with targets and runs no model."""
    return "loss" in name.lower() or "criter" in name.lower()


def escape(
    interp: Interpreter,
    arguments: list[Value],
    node: ast.AST,
    effects: frozenset[str] = e.ALL_EFFECTS,
    *,
    notifies: bool = False,
) -> None:
    """Emit the escape of scalers and optimizers into unanalyzed code, with the effects that the code may have."""
    interp.program.attributes.handed.update(value.key for value in arguments if isinstance(value, UnknownValue))
    object_keys = tuple(tracked_object.key for tracked_object in reachable_objects(interp, arguments))
    if object_keys:
        options = [v for value in arguments for v in value.alternatives()]
        direct = [
            value.tracked_object for value in options if isinstance(value, ObjectRef) and value.enabled is not False
        ]
        reads = isinstance(node, ast.Call) and only_reads(tail_name(node.func))
        trainers = {t.role for t in direct} >= {"scaler", "optimizer"} and not reads
        trains = tuple(t.key for t in direct) if trainers else ()
        # A callback that receives the scaler itself works with it.
        about = e.ALL_EFFECTS if trainers or (notifies and direct) else effects
        interp.emit(e.Handoff, node, objects=object_keys, trains=trains, about=about, notifies=notifies)
    if isinstance(node, ast.Call) and divides_gradients(tail_name(node.func)):
        interp.emit(e.GradNormalise, node, owners=None)
    if "no_sync" in interp.module.identifiers and any(_has_gradients(value) for value in arguments):
        interp.emit(e.GradAverage, node)


def reachable_objects(interp: Interpreter, values: Iterable[Value]) -> list[TrackedObject]:
    """Return the scalers and optimizers that the values are or contain."""
    objects: dict[int, TrackedObject] = {}
    seen: set[int] = set()
    for value in values:
        # Most values hold no other value.
        if type(value) not in _PLAIN_KINDS:
            _collect_objects(interp, value, objects, seen, 0)
    return list(objects.values())


def _collect_objects(
    interp: Interpreter, value: Value, objects: dict[int, TrackedObject], seen: set[int], depth: int
) -> None:
    inner = value.contained_values()
    if isinstance(value, ObjectRef):
        if value.role in ("scaler", "optimizer"):
            objects[value.tracked_object.key] = value.tracked_object
    elif isinstance(value, Instance) and value.key not in seen:
        seen.add(value.key)
        inner = [item for _, item in interp.stored_attributes(value.key)]
    if depth < MAX_SEARCH_DEPTH:
        for item in inner:
            if type(item) not in _PLAIN_KINDS:
                _collect_objects(interp, item, objects, seen, depth + 1)


def open_passed_mappings(interp: Interpreter, receiver: Value, arguments: list[Value]) -> None:
    """Mark dicts passed to an unanalyzed method as open.

    With a scaler in the receiver, the method may add the state of the scaler.
    """
    if holds_scaler(interp, [receiver]):
        for value in arguments:
            if isinstance(value, MappingValue):
                value.is_open = True


def holds_scaler(interp: Interpreter, values: list[Value]) -> bool:
    return any(tracked_object.role == "scaler" for tracked_object in reachable_objects(interp, values))


def object_refs(interp: Interpreter, keys: tuple[int, ...]) -> list[Value]:
    return [ObjectRef(interp.program.objects[key]) for key in keys]


def has_gradient_input(values: Iterable[Value]) -> bool:
    """Return True if a value comes from the gradient of a tensor and may hold the loss scale."""
    return any(value.origin.is_from_gradient for value in values)


def may_pass_divided(arguments: list[Value]) -> bool:
    """Return True if the result of unanalyzed code may be a divided loss: a divided value is the only argument."""
    return len(arguments) == 1 and isinstance(arguments[0], UnknownValue) and arguments[0].normalization.is_divided


def is_assert_name(name: str) -> bool:
    """Return True if a function name is an assertion of a test."""
    return name.rpartition(".")[2].startswith(("assert", "Assert"))


def _has_gradients(value: Value) -> bool:
    """Return True if unanalyzed code could average the gradients of a value over processes without a torch function."""
    return value.role in ("module", "optimizer") or isinstance(value, (ParamsValue, GradValue))


def register(handlers: HandlerTable) -> None:
    handlers.calls[""] = call_unknown
    handlers.calls["unknown"] = _call_unknown_value
