"""Forwards of modules: the output of a call, and the analyzed forward of a class of the project."""

from __future__ import annotations

import ast
import builtins
import re

from ....protocol import events as e
from ....protocol.tracked_objects import TrackedObject
from ...interpreter.classes.bound_methods import defining_frame
from ...interpreter.classes.forward_code import has_plain_forward
from ...interpreter.classes.lineage import lineage_of, method_of, uses_scaler
from ...interpreter.dtypes import LOW_DTYPES, NO_DTYPE_INFO, DtypeInfo, is_known_low
from ...interpreter.functions import inline_call
from ...interpreter.imports import dotted_name
from ...interpreter.interpreter import Interpreter
from ...interpreter.source_text import expression_text
from ...interpreter.state import OpenRegion
from ...interpreter.tensors import in_region, mark_region
from ...interpreter.unanalyzed_code import escape
from ...interpreter.values.containers import MappingValue, SequenceValue, UnionValue
from ...interpreter.values.definitions import Args, FunctionValue, Instance, Keywords
from ...interpreter.values.gradients import ParamsValue
from ...interpreter.values.objects import ModuleContainer, ObjectRef
from ...interpreter.values.tensors import Forwards, TensorValue, tensors_in
from ...interpreter.values.value import (
    AUTOCAST_CALLEES,
    FORWARD,
    UnknownValue,
    Value,
    join_autocast_scopes,
    join_provenance,
)
from ...project.module import Function
from ..arguments import find_tensors, map_items, tracked_object_of
from ..gradients import FrozenModules
from ..overhead import RepeatedCosts, is_compiled_or_low
from ..owners import find_owners
from ..syntax_queries import find_nodes, last_name

#: Names of a class that makes parameters.
_MAKES_WEIGHTS = re.compile(r"Parameter|register_parameter|add_module")


def run_forward(
    interp: Interpreter, tracked_object: TrackedObject, args: Args, keywords: Keywords, node: ast.AST, *, read: bool
) -> TensorValue:
    """Return the output of a module's forward, and emit the forward."""
    escape(interp, [*args, *keywords.values()], node, frozenset())
    made = TensorValue(interp.current_loops())
    cached = not is_compiled_or_low(tracked_object)
    forward = interp.emit(e.Forward, node, tracked_object.key, cached=cached, names={"module": expression_text(node)})
    for listener in interp.handlers.forward_listeners:
        listener(interp, tracked_object, node)
    parts = find_tensors(args, keywords)
    earlier = join_provenance([*args, *keywords.values()])
    deps: frozenset[int] | None = frozenset((tracked_object.key,))
    if tracked_object.key in interp.graph_data(FrozenModules) and any(part.forwards.module_keys for part in parts):
        # The graph leads through the module to the trained modules before it, and leaves its parameters out.
        deps = frozenset()
    for part in parts:
        keys = part.forwards.module_keys
        deps = None if deps is None or keys is None else deps | keys
        made.penalty_source = made.penalty_source or part.penalty_source
    tracked_object.attributes.note_forward(with_gradients=not interp.state.no_grad)
    made.forwards = Forwards(
        frozenset() if interp.state.no_grad else deps,
        forward,
        interp.current_loops().union(*(part.forwards.loop_keys for part in parts)),
        read and all(part.forwards.has_known_modules for part in parts),
    )
    itself = _unknown_callees(interp, tracked_object, read=read)
    outside = next(
        (
            p
            for p in parts
            if p.provenance.autocast_scope == "out"
            and p.forwards.first_event is not None
            and p.forwards.module_keys
            and not p.enters_autocast
        ),
        None,
    )
    if itself is AUTOCAST_CALLEES and outside is not None and _is_trained_beside(interp, outside, tracked_object):
        # Autocast around the loss alone excludes the model whose output is the input of the loss.
        made.forwards = made.forwards._replace(first_event=outside.forwards.first_event)
        itself = frozenset[str]()
    made.provenance = made.provenance._replace(callees=earlier.callees | itself)
    made.is_low_op_result = True
    mark_region(interp, made)
    computes_in = {
        part.attributes.dtypes.computes_in
        for part in _submodules_of(interp, tracked_object)
        if part.attributes.dtypes.computes_in is not None
    }
    if made.forwards.module_keys:
        computes_in |= {
            part.attributes.dtypes.region
            for part in _submodules_of(interp, tracked_object)
            if part.attributes.dtypes.region and not part.attributes.training.frozen
        }
    if computes_in and made.provenance.autocast_scope == "out":
        made.provenance = made.provenance._replace(region_dtypes=made.provenance.region_dtypes | computes_in)
    if interp.state.no_grad:
        # No gradients flow back through this forward.
        made.provenance = made.provenance._replace(region_dtypes=frozenset())
    made.in_region = False
    if earlier.autocast_scope in ("in", "unknown"):
        made.provenance = made.provenance._replace(
            autocast_scope=join_autocast_scopes({made.provenance.autocast_scope, earlier.autocast_scope})
        )
    return made


def _is_trained_beside(interp: Interpreter, given: TensorValue, tracked_object: TrackedObject) -> bool:
    """Return True if an optimizer has parameters behind a tensor, but none of a module that receives the tensor."""
    behind = find_owners(interp, ParamsValue(given.forwards.module_keys or frozenset())) or ()
    own = find_owners(interp, ParamsValue(frozenset((tracked_object.key,)))) or ()
    return bool(set(behind) - set(own))


def _submodules_of(interp: Interpreter, tracked_object: TrackedObject) -> list[TrackedObject]:
    """Return a module together with all submodules."""
    return [interp.program.objects[key] for key in interp.program.with_submodules(frozenset((tracked_object.key,)))]


def _unknown_callees(interp: Interpreter, tracked_object: TrackedObject, *, read: bool) -> frozenset[str]:
    """Return the callees that may enter autocast while a module runs, or an empty set if none can."""
    parts = _submodules_of(interp, tracked_object)
    if any(part.attributes.dtypes.casts for part in parts):
        return AUTOCAST_CALLEES
    called = frozenset[str]().union(*(part.attributes.callees for part in parts))
    return called if read else called | {FORWARD}


def call_module_instance(
    interp: Interpreter, receiver: Instance, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    """Call a module of a known class. Analyze the forward if the forward may change the result for a loss."""
    tracked_object = receiver.tracked_object
    assert tracked_object is not None
    own_forward = method_of(interp, receiver.cls, "forward")
    if own_forward is not None and own_forward not in interp.active_functions and _scales_losses(interp, receiver):
        return inline_call(
            interp, FunctionValue(own_forward, defining_frame(interp, own_forward), receiver), args, keywords, node
        )
    made = run_forward(interp, tracked_object, args, keywords, node, read=has_plain_forward(interp, receiver.cls))
    if made.provenance.autocast_scope == "in" and _is_without_weights(interp, receiver):
        # A region around the loss alone leaves the model out.
        inputs = join_provenance([*args, *keywords.values()])
        if inputs.autocast_scope == "out":
            made.provenance = inputs
            made.forwards = made.forwards._replace(first_event=None)
            made.in_region = True
    for method in _possible_forwards(interp, receiver):
        if method not in interp.active_functions:
            outcome = _run_forward_method(interp, method, receiver, args, keywords, node)
            telling = _may_compute_loss(interp, method, [*args, *keywords.values()])
            dtypes = tracked_object.attributes.dtypes
            if outcome is not None and (dtypes.prepared_in or dtypes.computes_in in LOW_DTYPES):
                # The framework or the policy decides the dtype of the outputs.
                return _copy_reductions(outcome, made).with_dtype_info(NO_DTYPE_INFO) if telling else made
            if outcome is not None:
                return _copy_reductions(outcome, made) if telling else _copy_dtypes(outcome, made)
    return made


def _is_without_weights(interp: Interpreter, receiver: Instance) -> bool:
    """Return True for a module whose class keeps only settings, tensors and loss functions, as a criterion does."""
    assert receiver.tracked_object is not None
    if receiver.tracked_object.attributes.parts or any(map(_MAKES_WEIGHTS.match, receiver.cls.used_names)):
        return False
    owners = lineage_of(interp, receiver.cls)
    kept = (value for owner in owners for pairs in owner.assignments.values() for _, value in pairs)
    return all(_keeps_no_weights(interp, call) for value in kept for call in find_nodes(value, ast.Call))


def _keeps_no_weights(interp: Interpreter, call: ast.Call) -> bool:
    """Return True for a call of a builtin function, of a function of torch on tensors, or of a loss function."""
    if isinstance(call.func, ast.Name) and hasattr(builtins, call.func.id):
        return True
    name = dotted_name(interp, call.func) or ""
    return name.startswith("torch.") and (not name.startswith("torch.nn.") or name.endswith("Loss"))


def _scales_losses(interp: Interpreter, receiver: Instance) -> bool:
    """Return True for a module that is a trainer: its class constructs a scaler, or calls one that it holds."""
    return any("GradScaler" in owner.used_names or uses_scaler(owner) for owner in lineage_of(interp, receiver.cls))


def _possible_forwards(interp: Interpreter, receiver: Instance) -> list[Function]:
    """Return the forward of a module, or the methods that the class assigns to ``self.forward``."""
    assigned = [pair for owner in lineage_of(interp, receiver.cls) for pair in owner.assignments.get("forward", ())]
    names = dict.fromkeys(last_name(expression) for _, expression in assigned)
    found = [method for name in names if (method := method_of(interp, receiver.cls, name)) is not None]
    # The largest forward is the one that trains: the others leave parts out, as for inference.
    found.sort(key=lambda method: len(method.used_names), reverse=True)
    method = method_of(interp, receiver.cls, "forward")
    return found if method is None else [method, *found]


def _run_forward_method(
    interp: Interpreter, method: Function, receiver: Instance, args: Args, keywords: Keywords, node: ast.AST
) -> Value | None:
    """Analyze the forward of a module and return the result, or None if the forward cannot change a loss."""
    tracked_object = receiver.tracked_object
    assert tracked_object is not None
    enters = "autocast" in method.used_names or _unknown_callees(interp, tracked_object, read=True) is AUTOCAST_CALLEES
    casts = enters and not (interp.state.open_regions or interp.state.possible_regions or interp.state.no_grad)
    here = interp.state.frame.function or interp.state.frame.module
    telling = _may_compute_loss(interp, method, [*args, *keywords.values()])
    prepared_in = tracked_object.attributes.dtypes.prepared_in
    rounds_here = here.may_lose_precision and in_region(interp)
    # A part of a low model is low, and a model with a low part may compute with it.
    around = interp.graph_data(RepeatedCosts).casting_modules
    is_low = method.module.may_lose_precision and (
        bool(prepared_in)
        or rounds_here
        or any(_computes_low(part, [*args, *keywords.values()]) for part in _submodules_of(interp, tracked_object))
        or any(_computes_low(module, []) for module in around)
    )
    if not (telling or casts or is_low or rounds_here):
        return None
    spent = interp.file_data(_RoundingStatements)
    only_rounds = not (telling or casts or rounds_here)
    if only_rounds and spent.number > MAX_ROUNDING_STATEMENTS:
        return None
    outcome: list[Value] = []
    inner = FunctionValue(method, defining_frame(interp, method), receiver)

    policy = tracked_object.attributes.dtypes.computes_in
    if policy in LOW_DTYPES:
        # The policy also casts the inputs.
        args = [_cast_input(value, policy) for value in args]
        keywords = {name: _cast_input(value, policy) for name, value in keywords.items()}

    def inline_forward() -> None:
        interp.state.forward_depth += 1
        if prepared_in and not in_region(interp):
            interp.state.open_regions = [*interp.state.open_regions, OpenRegion(True, "cuda", prepared_in)]
        # A part of the module may lose the digits.
        outcome.append(inline_call(interp, inner, args, keywords, node, always=is_low))

    casting = interp.graph_data(RepeatedCosts).casting_modules
    casting.append(tracked_object)
    counts = interp.statement_count, interp.other_file_statements
    interp.dry_run(inline_forward)
    if only_rounds:
        # The protocol keeps its own budget.
        spent.number += interp.statement_count - counts[0]
        interp.statement_count, interp.other_file_statements = counts
    casting.pop()
    return outcome[0]


#: Maximum number of statements that the analysis of one file executes only because a forward may round its inputs.
MAX_ROUNDING_STATEMENTS = 5_000


class _RoundingStatements:
    """Number of these statements so far."""

    def __init__(self) -> None:
        self.number = 0


def _cast_input(value: Value, dtype: str) -> Value:
    """Return an input of a module as the precision policy of the module casts it. Integers stay integers."""
    is_tensor = value.kind in ("unknown", "tensor") and value.dtype_info.dtype in ("", "float32")
    return value.with_dtype_info(DtypeInfo(dtype)) if is_tensor else value


def _computes_low(tracked_object: TrackedObject, given: list[Value]) -> bool:
    """Return True if a module computes in a low dtype, or receives a tensor that the code has cast to one."""
    dtypes = tracked_object.attributes.dtypes
    is_module_low = bool(dtypes.low) or dtypes.computes_in in LOW_DTYPES
    return is_module_low or any(is_known_low(value.dtype_info) for value in given)


def _may_compute_loss(interp: Interpreter, method: Function, given: list[Value]) -> bool:
    """Return True if a forward may compute a loss (by names or arguments), or may lose precision in a region."""
    compares = len(given) > 1 and any(tensors_in(v) or v.origin.is_call_result for v in given)
    return compares or method.may_compute_loss or (method.may_lose_precision and in_region(interp))


class WrappedInstances(dict[int, Instance]):
    """Modules of known classes that the engine of a framework runs, by the keys of the tracked objects."""


def call_module(interp: Interpreter, func: ObjectRef, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Call a module of torch. The modules of a ``Sequential`` may change the dtype, or lose precision themselves."""
    wrapped = interp.file_data(WrappedInstances).get(func.tracked_object.key)
    if wrapped is not None:
        return call_module_instance(interp, wrapped, args, keywords, node)
    made = run_forward(interp, func.tracked_object, args, keywords, node, read=is_analyzed(func))
    if not isinstance(func, ModuleContainer) or len(args) != 1 or not _may_lose_precision(interp, func, args):
        return made
    outcome = list(args)

    def run_items() -> None:
        interp.state.forward_depth += 1
        for item in func.items:
            outcome[0] = interp.call_value(item, outcome, {}, node)

    interp.dry_run(run_items)
    return _copy_dtypes(outcome[0], made)


def _may_lose_precision(interp: Interpreter, container: ModuleContainer, args: Args) -> bool:
    """Return True if classes of the project in a container may lose precision, in a region or in low weights."""
    classes = [item.cls for item in container.items if isinstance(item, Instance)]
    if not any(cls.module.may_lose_precision for cls in classes):
        return False
    return in_region(interp) or any(
        _computes_low(part, args) for part in _submodules_of(interp, container.tracked_object)
    )


def _copy_dtypes(outcome: Value, made: TensorValue) -> Value:
    """Return the output of a module with the dtype info of the analyzed forward."""
    if isinstance(outcome, (SequenceValue, MappingValue)) and not outcome.is_open and _has_items(outcome):
        several = made.copy()
        several.normalization = several.normalization._replace(has_unknown_reduction=True)
        return map_items(outcome, lambda item: item if item.value is None else _copy_dtypes(item, several))
    part = made.copy()
    part.dtype_info = outcome.dtype_info
    _copy_region(outcome, part)
    return part


def _has_items(outcome: SequenceValue | MappingValue) -> bool:
    return len(outcome.items) > 1 or isinstance(outcome, MappingValue)


def _copy_region(outcome: Value, part: TensorValue) -> None:
    """Copy the low dtype of a forward that enters autocast itself, if no region surrounds the forward.

    Both the region and the flow of dtypes must say so: a float32 operand widens the result.
    """
    dtype = outcome.dtype_info.dtype
    if dtype in ("float16", "bfloat16") and isinstance(outcome, TensorValue) and outcome.low_dtype == dtype:
        part.low_dtype = part.low_dtype or dtype


def _copy_reductions(outcome: Value, made: TensorValue) -> Value:
    """Return the output of a module with the structure and reductions of the analyzed forward."""
    if isinstance(outcome, UnionValue):
        outcome = next((v for v in outcome.alternatives() if v.kind in ("tensor", "sequence", "mapping")), outcome)
    if isinstance(outcome, (SequenceValue, MappingValue)) and not outcome.is_open:
        return map_items(outcome, lambda item: item if item.value is None else _copy_reductions(item, made))
    part = made.copy()
    part.dtype_info = outcome.dtype_info
    _copy_region(outcome, part)
    if isinstance(outcome, TensorValue):
        part.is_loss = outcome.is_loss
        part.normalization = part.normalization._replace(
            is_divided=outcome.normalization.is_divided,
            has_unknown_reduction=outcome.normalization.has_unknown_reduction,
        )
    elif isinstance(outcome, UnknownValue):
        part.set_divided(is_divided=outcome.normalization.is_divided)
    return part


def is_analyzed(value: Value) -> bool:
    tracked_object = tracked_object_of(value)
    return tracked_object is not None and bool(tracked_object.attributes.read)
