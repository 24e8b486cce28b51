"""What cannot be read: listeners hear of what it is given, and it gives a value of which only the identity is known."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ...protocol import events as e
from ...protocol.events import TrackedObject
from .identity import structural_unknown
from .interpreter import HandlerTable, Interpreter
from .name_effects import effects_of_name
from .source_text import expression_text
from .tensors import compute_tensor, provenance_here
from .values import (
    FORWARD,
    Args,
    GradValue,
    Instance,
    Keywords,
    MappingValue,
    ObjectRef,
    ParamsValue,
    TensorValue,
    UnknownValue,
    Value,
    join_provenance,
)

#: Objects within objects that are looked into for what they hold.
MAX_SEARCH_DEPTH = 4
#: Calls whose answer is another each time they are asked, a number or an object.
IMPURE = frozenset(
    "rand randn randint random uniform choice next time perf_counter pop popleft get_nowait sample "
    "from_pretrained".split()
)
#: Methods by which a list, a meter, a logger or a progress bar is given a value.
LOGGING_METHODS = frozenset(
    "append add update log info debug warning error print write set_postfix add_scalar set_description".split()
)


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
    """Evaluate a call of code that is not analyzed; ``runs`` says that it may run a model.

    ``about`` is what its body speaks of. None stands for what its name says.
    """
    arguments = [*args, *keywords.values()]
    name = func.text if isinstance(func, UnknownValue) else ""
    if effects is None:
        effects = effects_of_name(name)
    escape(interp, arguments, node, effects)
    tensors = [t for value in arguments for t in value.tensors()]
    last = name.rpartition(".")[2]
    for listener in interp.handlers.escape_listeners:
        if listener(interp, func, arguments, node):
            break
    if tensors and last not in LOGGING_METHODS:
        tensor = _unknown_tensor(interp, last, arguments, tensors)
        tensor.is_divided = tensor.is_divided or e.DIVIDES in effects
        tensor.is_only_share = tensor.is_only_share and e.DIVIDES not in effects
        return tensor
    if last in IMPURE:
        return interp.fresh_unknown(node, name)
    made = structural_unknown(
        interp, "call", (func, *arguments), expression_text(node) if isinstance(node, ast.Call) else "", tuple(keywords)
    )
    if interp.state.loops:
        made.loops |= frozenset((interp.state.loops[-1].key,))
    made.is_call_result = True
    made.is_divided = may_pass_divided(arguments) or e.DIVIDES in effects
    made.is_comparison_result = len(arguments) > 1 and any(v.is_call_result for v in arguments)
    return made.with_provenance(provenance_here(interp, made.provenance, last, FORWARD)) if runs else made


def _call_unknown_value(
    interp: Interpreter, func: UnknownValue, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    """A call of an unknown value; what was found to be a module by its use elsewhere, as an item of a list, is one."""
    used = interp.tracked_objects.get(("used", func.key))
    if used is not None and used.role == "module":
        return interp.call_value(ObjectRef(used, recognized_from=func), args, keywords, node)
    return call_unknown(interp, func, args, keywords, node)


def _unknown_tensor(interp: Interpreter, name: str, arguments: list[Value], tensors: list[TensorValue]) -> TensorValue:
    """What code that cannot be read, and is called by a name, makes of tensors among others."""
    made = compute_tensor(interp, tensors)
    if not is_criterion(name) or any(value.role == "module" for value in arguments):
        made.autocast_scope, _, made.region_dtypes = provenance_here(interp, made.provenance)
    made.callees |= join_provenance(arguments).callees | {name, FORWARD}
    # A criterion is given targets, too: what is given a result of a model alone makes no loss of it.
    if len(arguments) > 1 or tensors[0].first_forward is None:
        made.is_divided = made.is_divided and any(t.is_loss for t in tensors)
    if len(arguments) > 1:
        made.has_unknown_reduction = False
    made.is_from_gradient = made.is_from_gradient or has_gradient_input(arguments)
    made.has_known_modules = False
    return made


def is_criterion(name: str) -> bool:
    """Whether a function compares what a model gave with targets, by its name, and runs no model itself."""
    return "loss" in name.lower() or "criter" in name.lower()


def escape(interp: Interpreter, arguments: list[Value], node: ast.AST, effects: frozenset[str] = e.MATTERS) -> None:
    """Tell the protocol that unknown code was given scalers or optimizers, and what it speaks of."""
    interp.program.attributes.setdefault("handed", set()).update(
        value.key for value in arguments if isinstance(value, UnknownValue)
    )
    object_keys = tuple(tracked_object.key for tracked_object in reachable_objects(interp, arguments))
    if object_keys:
        options = [v for value in arguments for v in value.alternatives()]
        direct = [
            value.tracked_object for value in options if isinstance(value, ObjectRef) and value.enabled is not False
        ]
        trainers = {t.role for t in direct} >= {"scaler", "optimizer"}
        trains = tuple(t.key for t in direct) if trainers else ()
        interp.emit(e.HANDOFF, node, things=object_keys, trains=trains, about=e.MATTERS if trainers else effects)
    if "no_sync" in interp.module.identifiers and any(_has_gradients(value) for value in arguments):
        interp.emit(e.GRAD_AVERAGE, node)


def reachable_objects(interp: Interpreter, values: Iterable[Value]) -> list[TrackedObject]:
    """The scalers and optimizers that values are or hold."""
    objects: dict[int, TrackedObject] = {}
    seen: set[int] = set()
    for value in values:
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
            _collect_objects(interp, item, objects, seen, depth + 1)


def open_passed_mappings(interp: Interpreter, receiver: Value, arguments: list[Value]) -> None:
    """A dict that a method which cannot be read is given: with a scaler at hand it may add its state."""
    if holds_scaler(interp, [receiver]):
        for value in arguments:
            if isinstance(value, MappingValue):
                value.is_open = True


def holds_scaler(interp: Interpreter, values: list[Value]) -> bool:
    return any(tracked_object.role == "scaler" for tracked_object in reachable_objects(interp, values))


def object_refs(interp: Interpreter, keys: tuple[int, ...]) -> list[Value]:
    return [ObjectRef(interp.program.objects[key]) for key in keys]


def has_gradient_input(values: Iterable[Value]) -> bool:
    """Whether something is computed with the gradient of a tensor, which may hold the loss scale or not."""
    return any(value.is_from_gradient for value in values)


def may_pass_divided(arguments: list[Value]) -> bool:
    """Whether what unknown code makes of its arguments may be a loss that was divided: it is given nothing else."""
    return len(arguments) == 1 and isinstance(arguments[0], UnknownValue) and arguments[0].is_divided


def is_assert_name(name: str) -> bool:
    """Whether a function is one that tests compare with."""
    return name.rpartition(".")[2].startswith(("assert", "Assert"))


def _has_gradients(value: Value) -> bool:
    """Whether whoever is given a value may average gradients over processes by hand."""
    return value.role in ("module", "optimizer") or isinstance(value, (ParamsValue, GradValue))


def register(handlers: HandlerTable) -> None:
    handlers.calls[""] = call_unknown
    handlers.calls["unknown"] = _call_unknown_value
