"""Models of torch modules: run, cast and wrap."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Collection
from functools import partial

from ...protocol import events as e
from ...protocol import torch_api
from ...protocol.fast_namedtuple import NamedTuple
from ...protocol.sites import Site
from ...protocol.tracked_objects import TrackedObject
from ..interpreter.classes import (
    BINDABLE_METHODS,
    decorator_contexts,
    defining_frame,
    has_plain_forward,
    lineage_of,
    method_of,
    uses_scaler,
)
from ..interpreter.conditions import Formula, implied_literals, literals
from ..interpreter.dtypes import LOW_DTYPES, NO_DTYPE_INFO, DtypeInfo, is_known_low
from ..interpreter.functions import inline_call
from ..interpreter.imports import dotted_name
from ..interpreter.interpreter import HandlerTable, Interpreter, persistent_guards
from ..interpreter.joins import run_branches
from ..interpreter.source_text import expression_text, receiver_text
from ..interpreter.state import OpenRegion
from ..interpreter.tensors import in_region, mark_region
from ..interpreter.unanalyzed_code import call_unknown, escape
from ..interpreter.values.containers import MappingValue, SequenceValue, UnionValue
from ..interpreter.values.contexts import NoSyncContext
from ..interpreter.values.definitions import Args, BoundMethod, ExternalName, FunctionValue, Instance, Keywords
from ..interpreter.values.gradients import ParamsValue
from ..interpreter.values.objects import ModuleContainer, ObjectRef
from ..interpreter.values.tensors import Forwards, TensorValue, tensors_in
from ..interpreter.values.value import (
    AUTOCAST_CALLEES,
    FORWARD,
    NONE,
    Const,
    UnknownValue,
    Value,
    join_autocast_scopes,
    join_provenance,
)
from ..project.module import Function
from .arguments import (
    bind_arguments,
    dotted_name_of,
    find_tensors,
    first_or_named,
    items_of,
    items_or_self,
    literal_value,
    make_object,
    map_items,
    object_ref_of,
    tracked_object_of,
)
from .checkpoints import take_state
from .default_dtypes import find_default_dtypes
from .dtype_choices import trace_dtype_choice
from .gradients import (
    HOOKS,
    FrozenModules,
    dtype_of_parameters,
    emit_clip,
    emit_hook_clip,
    mark_averaged_elsewhere,
    note_requires_grad,
)
from .losses import find_owners
from .low_parameters import (
    AdapterConditions,
    LowModules,
    do_nothing,
    emit_created_low,
    emit_low_by_default,
    find_low_dtypes,
    mark_cast_to_float32,
    set_low,
)
from .overhead import RepeatedCosts, is_compiled_or_low
from .parts import SUBMODULES, apply_to_parts, list_submodules
from .sharding import report_late_sharding
from .sizes import note_odd_sides
from .syntax_queries import callee_of, find_nodes, first_argument, keywords_of, last_name

#: Handler of a module method. A handler returns None if the method runs the module.
Method = Callable[["Interpreter", "_MethodCall"], Value | None]

#: Maximum number of modules in a container that are known.
MAX_ITEMS = 16
#: Methods that return a tensor of the same shape and keep float32.
ELEMENTWISE = frozenset(
    "abs clamp clamp_max clamp_min exp log log1p neg reciprocal sigmoid softplus sqrt square".split()
)
#: Methods that return the module, without effect on the protocol.
SAME = frozenset("train eval cuda cpu float double to_empty share_memory".split())
#: Name prefixes of module classes that create parameters in the default dtype.
_WITH_WEIGHTS = ("Linear", "Bilinear", "Conv", "Embedding", "LSTM", "GRU", "RNN", "Transformer", "MultiheadAttention")
#: Names of a class that makes parameters.
_MAKES_WEIGHTS = re.compile(r"Parameter|register_parameter|add_module")
#: Methods of ``SAME`` that convert parameters to a wide dtype.
_WIDENS = frozenset({"float", "double"})
#: Methods that iterate over the contents of a module.
PARTS = frozenset((*SUBMODULES, "buffers"))


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


def _call_module_instance(
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


def call_module_method(
    interp: Interpreter, receiver: ObjectRef | Instance, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    tracked_object = receiver.tracked_object
    assert tracked_object is not None
    if name in _WIDENS and tracked_object.attributes.kind == "Parameter":
        # A wide copy: the parameter stays as it is.
        return interp.fresh_unknown(node).with_dtype_info(DtypeInfo("float32" if name == "float" else "float64"))
    if name in SAME or (name in ELEMENTWISE and tracked_object.attributes.shape.has_dimensions):
        # The result is the module itself, or a tensor as wide and as exact as the parameter.
        if name in _WIDENS:
            _cast_to_float32(interp, tracked_object, node)
        return receiver
    if name in SUBMODULES and not (name.endswith("children") and _is_layer(tracked_object)):
        return list_submodules(interp, tracked_object, name, node)
    if name in PARTS:
        return interp.fresh_unknown(node, name)
    if isinstance(receiver, ModuleContainer) and name in ("append", "extend") and len(args) == 1:
        _add_items(receiver, items_of(args[0]) if name == "extend" else args)
        return receiver
    asked = _MethodCall(receiver, tracked_object, args, keywords, node)
    if name in HOOKS:
        return _register_module_hook(interp, name, asked)
    act = _METHODS.get(name)
    done = act(interp, asked) if act is not None else None
    if act is None and isinstance(receiver, ObjectRef):
        emit_hook_clip(interp, name, node)
    return run_forward(interp, tracked_object, args, keywords, node, read=False) if done is None else done


def _is_layer(tracked_object: TrackedObject) -> bool:
    """Return True for a layer of torch, which has no submodules."""
    attributes = tracked_object.attributes
    return attributes.kind.startswith(_WITH_WEIGHTS) and not attributes.parts


def _register_module_hook(interp: Interpreter, name: str, asked: _MethodCall) -> Value:
    check_comm_hook(interp, asked.module, first_or_named(asked.args[1:], asked.keywords, "hook"), asked.node)
    # Hooks of torch average over ranks, not over microbatches.
    if not any(dotted_name_of(value).startswith("torch.") for value in [*asked.args, *asked.keywords.values()]):
        mark_averaged_elsewhere(interp, asked.params)
    return interp.fresh_unknown(asked.node, name)


class _MethodCall(NamedTuple):
    """A call of a module method."""

    receiver: ObjectRef | Instance
    module: TrackedObject
    args: Args
    keywords: Keywords
    node: ast.AST

    @property
    def params(self) -> ParamsValue:
        return ParamsValue(frozenset((self.module.key,)))


def _call_named_parameters(interp: Interpreter, asked: _MethodCall) -> Value:
    parameter = ParamsValue(frozenset((asked.module.key,)), is_single=True)
    return SequenceValue([SequenceValue([interp.fresh_unknown(asked.node, "name"), parameter])])


def _call_zero_grad(interp: Interpreter, asked: _MethodCall) -> Value:
    owners = find_owners(interp, asked.params)
    interp.emit(e.ZeroGrad, asked.node, owners=owners, names={"call": expression_text(asked.node)})
    return NONE


def _make_cast_method(dtype: str) -> Method:
    def cast_module(interp: Interpreter, asked: _MethodCall) -> Value:
        _cast_low(interp, asked.module, dtype, asked.node)
        return asked.receiver

    return cast_module


def _call_to(interp: Interpreter, asked: _MethodCall) -> Value:
    call = asked.node
    nodes = [*call.args, *keywords_of(call).values()] if isinstance(call, ast.Call) else []
    for number, value in enumerate([*asked.args, *asked.keywords.values()]):
        # A setting may be imported from a package that is not analyzed.
        is_open = isinstance(value, UnknownValue) or (isinstance(value, ExternalName) and not value.possible_dtypes)
        default = nodes[number] if number < len(nodes) and is_open else None
        for dtype, condition in (find_low_dtypes([value]) or find_default_dtypes(interp, default))[:1]:
            # One finding is enough for a choice of several low dtypes.
            cast = partial(_cast_low, interp, asked.module, dtype, asked.node)
            run_branches(interp, condition, cast, do_nothing)
            break
        else:
            if isinstance(value, ExternalName) and value.possible_dtypes.keys() & {"float32", "float64"}:
                _cast_to_float32(interp, asked.module, asked.node)
    return asked.receiver


def _call_apply(interp: Interpreter, asked: _MethodCall) -> Value:
    for function in (*asked.args, *asked.keywords.values()):
        apply_to_parts(interp, asked.module, function, asked.node)
    return asked.receiver


def _call_requires_grad(interp: Interpreter, asked: _MethodCall) -> Value:
    given = first_or_named(asked.args, asked.keywords, "requires_grad") or Const(True)
    note_requires_grad(interp, (asked.module.key,), given, asked.node)
    if literal_value(given) is False:
        asked.module.attributes.freeze()
    return asked.receiver


def _call_add_adapter(interp: Interpreter, asked: _MethodCall) -> Value:
    """Mark the module as frozen, because only the added adapters are trained. They get the dtype of its weights."""
    module = asked.module.attributes
    module.freeze()
    key = ("adapters", asked.module.key)
    adapters = interp.tracked_object(key, "module", f"the adapters of {asked.module.name}", interp.site_of(asked.node))
    module.training = module.training._replace(adapters=adapters.key)
    module.parts = {*(module.parts or ()), adapters.key}
    interp.file_data(AdapterConditions)[adapters.key] = _implied_conditions(interp)
    _cast_adapters(interp, asked.module, module.dtypes.low, asked.node)
    return NONE


def _implied_conditions(interp: Interpreter) -> set[tuple[int, bool]]:
    return {pair for formula in interp.state.path_condition for pair in implied_literals(formula)}


def _cast_adapters(interp: Interpreter, module: TrackedObject, dtype: str, node: ast.AST) -> None:
    """Emit the float16 of added adapters, whose gradients a scaler refuses. Adapters in bfloat16 are usual."""
    adapters = module.attributes.training.adapters
    if adapters is None or dtype != "float16":
        return
    added = interp.file_data(AdapterConditions)[adapters]
    if all((key, not truth) not in added for key, truth in _implied_conditions(interp)):
        set_low(interp, interp.program.objects[adapters], dtype, node)
        names = {"module": receiver_text(node), "call": expression_text(node)}
        interp.emit(e.ModuleCast, node, adapters, dtype=dtype, how="adapter", created=True, names=names)


def _call_compile(interp: Interpreter, asked: _MethodCall) -> Value:
    asked.module.attributes.compiled = True
    return NONE


def _call_load_state_dict(interp: Interpreter, asked: _MethodCall) -> Value:
    bound = bind_arguments(("state_dict", "strict", "assign"), asked.args, asked.keywords)
    if (
        literal_value(bound.get("assign")) is not True
    ):  # Otherwise the module has other parameters, which have no copies.
        names = {"module": receiver_text(asked.node), "call": expression_text(asked.node)}
        interp.emit(e.ParamWrite, asked.node, asked.module.key, names=names)
    return interp.fresh_unknown(asked.node, "load_state_dict")


def _call_forward(interp: Interpreter, asked: _MethodCall) -> Value:
    return run_forward(interp, asked.module, asked.args, asked.keywords, asked.node, read=is_analyzed(asked.receiver))


def _call_backward(interp: Interpreter, asked: _MethodCall) -> Value:
    interp.emit(e.Backward, asked.node, scaling=e.UNKNOWN_SCALING, feeds=None)
    return NONE


_METHODS: dict[str, Method] = {
    "parameters": lambda interp, asked: asked.params,
    "named_parameters": _call_named_parameters,
    "zero_grad": _call_zero_grad,
    "half": _make_cast_method("float16"),
    "bfloat16": _make_cast_method("bfloat16"),
    "to": _call_to,
    "apply": _call_apply,
    "requires_grad_": _call_requires_grad,
    "add_adapter": _call_add_adapter,
    "compile": _call_compile,
    "load_state_dict": _call_load_state_dict,
    "state_dict": lambda interp, asked: take_state(interp, asked.receiver, asked.node),
    "forward": _call_forward,
    "__call__": _call_forward,
    "no_sync": lambda interp, asked: None if asked.args else NoSyncContext(),
    "clip_grad_norm_": lambda interp, asked: emit_clip(interp, asked.params, asked.args, asked.keywords, asked.node),
    "backward": _call_backward,
    "step": lambda interp, asked: call_unknown(interp, asked.receiver, asked.args, asked.keywords, asked.node),
}


def _cast_low(interp: Interpreter, tracked_object: TrackedObject, dtype: str, node: ast.AST) -> None:
    set_low(interp, tracked_object, dtype, node)
    _emit_module_cast(interp, tracked_object, dtype, node)
    _cast_adapters(interp, tracked_object, dtype, node)


def _emit_module_cast(interp: Interpreter, tracked_object: TrackedObject, dtype: str, node: ast.AST) -> None:
    names = {"module": receiver_text(node), "call": expression_text(node)}
    premises = trace_dtype_choice(interp, node, dtype) if dtype != "float32" else ()
    interp.emit(e.ModuleCast, node, tracked_object.key, dtype=dtype, names=names, premises=premises)


def _cast_to_float32(interp: Interpreter, tracked_object: TrackedObject, node: ast.AST) -> None:
    """Cast a module to float32. Earlier low-precision casts and constructions then only rounded the values."""
    event = interp.builder.nodes[interp.state.current_node].event if interp.state.current_node is not None else None
    if isinstance(event, e.ModuleCast) and event.subject == tracked_object.key:
        event.dtype = "float32"
        tracked_object.attributes.dtypes = tracked_object.attributes.dtypes._replace(low="")
    _emit_module_cast(interp, tracked_object, "float32", node)
    mark_cast_to_float32(interp, interp.program.with_submodules(frozenset((tracked_object.key,))))


def make_torch_module(interp: Interpreter, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    given = args[0] if len(args) == 1 else None
    held = (
        given.items
        if isinstance(given, SequenceValue)
        else list(given.items.values())
        if isinstance(given, MappingValue)
        else args
    )
    parts = [v for v in held if isinstance(v, (ObjectRef, Instance))]
    tracked_object = make_object(interp, "module", node)
    kind = name.rpartition(".")[2]
    last = args[-1] if kind == "Sequential" and args else None
    made = tracked_object.attributes
    made.read = all(map(is_analyzed, parts))
    made.kind = last.tracked_object.attributes.kind if isinstance(last, ObjectRef) else kind
    made.parts = {part.tracked_object.key for part in parts if part.tracked_object is not None}
    made.shape = made.shape._replace(
        is_float32_parameter=kind == "Parameter"
        and all(isinstance(value, UnknownValue) and value.is_new_float32 for value in args),
        has_dimensions=kind == "Parameter" and _has_dimensions(node),
    )
    if "dtype" in keywords:
        for dtype, condition in find_low_dtypes([keywords["dtype"]])[:1]:
            create = partial(emit_created_low, interp, tracked_object, dtype, node)
            run_branches(interp, condition, create, do_nothing)
    elif kind.startswith(_WITH_WEIGHTS):
        emit_low_by_default(interp, tracked_object)
    note_odd_sides(tracked_object, kind, args, keywords, node)
    ordered = kind in ("Sequential", "ModuleList") and len(parts) == len(held)
    return ModuleContainer(tracked_object, held) if ordered else ObjectRef(tracked_object)


class WrappedInstances(dict[int, Instance]):
    """Modules of known classes that the engine of a framework runs, by the keys of the tracked objects."""


def _add_items(container: ModuleContainer, added: Collection[Value]) -> None:
    """Add modules to a container. Several rounds of a loop add the same modules."""
    attributes = container.tracked_object.attributes
    container.items = [*container.items, *added][:MAX_ITEMS]
    parts = (tracked_object_of(value) for value in added)
    attributes.parts = {*(attributes.parts or ()), *(part.key for part in parts if part is not None)}


def _call_module(interp: Interpreter, func: ObjectRef, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Call a module of torch. The modules of a ``Sequential`` may change the dtype, or lose precision themselves."""
    wrapped = interp.file_data(WrappedInstances).get(func.tracked_object.key)
    if wrapped is not None:
        return _call_module_instance(interp, wrapped, args, keywords, node)
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


def wrap_module(interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    inner = first_or_named(args, keywords, entry.parameters[0])
    tracked_object = tracked_object_of(inner)
    if tracked_object is None and isinstance(inner, UnknownValue):
        # A wrapper changes its argument in place, and other code uses it by the name from before.
        known = interp.tracked_objects.get(("used", inner.key))
        tracked_object = known if known is not None and known.role == "module" else make_object(interp, "module", node)
        interp.tracked_objects["used", inner.key] = tracked_object
        inner = ObjectRef(tracked_object)
    if tracked_object is not None:
        mark_wrapped(interp, tracked_object, entry, args, keywords)
        if str(entry.attributes.get("wraps")).startswith("fsdp"):
            tracked_object.attributes.sharding_site = interp.site_of(node)
            report_late_sharding(interp, tracked_object, node)
    if tracked_object is not None and entry.role == torch_api.COMPILE:
        tracked_object.attributes.compiled = True
    if entry.attributes.get("copies") and inner is not None and any(map(tracked_object_of, inner.alternatives())):
        # A copy has separate parameters.
        copy = make_object(interp, "module", node, "copy")
        copy.attributes.copied = True
        return ObjectRef(copy)
    return inner if inner is not None else interp.fresh_unknown(node)


def mark_wrapped(
    interp: Interpreter, tracked_object: TrackedObject, entry: torch_api.ApiEntry, args: Args, keywords: Keywords
) -> None:
    """Record the wrapper of a module, with the predicates of the current path."""
    wraps = entry.attributes.get("wraps")
    if wraps is None:
        return
    policy = keywords.get("mp_policy") or keywords.get("mixed_precision")
    if policy is not None:
        dtypes = tracked_object.attributes.dtypes._replace(casts=True)
        if isinstance(policy, UnknownValue) and policy.key in interp.file_data(PolicyDtypes):
            computes_in, converts, site = interp.file_data(PolicyDtypes)[policy.key]
            dtypes = dtypes._replace(computes_in=computes_in, prepared=dtypes.prepared or converts)
            text = f"this policy makes the model compute in {computes_in}"
            interp.file_data(LowModules)[tracked_object.key] = (site, text)
        tracked_object.attributes.dtypes = dtypes
    strategy = keywords.get("sharding_strategy") or (args[2] if len(args) > 2 else None)
    if wraps == "fsdp1" and dotted_name_of(strategy).endswith(".NO_SHARD"):
        wraps = "whole"
    attributes = tracked_object.attributes
    if not attributes.wrappers:
        attributes.wrappers = {}
    attributes.wrappers.setdefault(wraps, persistent_guards(interp))


class PolicyDtypes(dict[int, tuple[str, bool, Site]]):
    """Compute dtypes of sharding policies, by the key of the unknown value that represents the policy.

    The second item is True if the policy converts the outputs as well, the third is the location of the policy.
    """


def _make_policy(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    made = interp.fresh_unknown(node)
    computes_in = _possible_dtypes(first_or_named(args, keywords, "param_dtype"))
    reduced = first_or_named(args[1:], keywords, "reduce_dtype")
    is_default = literal_value(reduced) is None or (reduced is None and None not in keywords_of(node))
    reduces_in = computes_in if is_default else _possible_dtypes(reduced)
    low = next((dtype for dtype in reduces_in if dtype in ("float16", "bfloat16")), None)
    if low is not None and not interp.site_of(node).is_in_test() and _follows(reduces_in[low], computes_in):
        names: dict[str, object] = {"call": expression_text(callee_of(node) or node)}
        how = "default" if is_default else "given"
        # With few ranks it may be chosen on purpose.
        premises = trace_dtype_choice(interp, node, low, "param_dtype" if is_default else "reduce_dtype")
        emit = partial(
            interp.emit, e.LowReduction, node, how=how, dtype=low, guessed=True, names=names, premises=premises
        )
        run_branches(interp, reduces_in[low], emit, do_nothing)
    if computes_in:
        dtype = next(iter(computes_in)) if len(computes_in) == 1 else _summarize_choice(computes_in)
        interp.file_data(PolicyDtypes)[made.key] = dtype, "output_dtype" in keywords, interp.site_of(node)
    return made


def _follows(condition: Formula, dtypes: dict[str, Formula]) -> bool:
    """Return True if the setting that decides the dtypes of the parameters also decides a condition.

    A setting of its own lets the user choose the dtype of the reduction.
    """
    if isinstance(condition, bool):
        return condition
    decisive = {key for other in dtypes.values() for key, _ in literals(other)}
    return any(key in decisive for key, _ in literals(condition))


def _possible_dtypes(value: Value | None) -> dict[str, Formula]:
    """Return the dtypes that an argument may be, each with its condition."""
    return value.possible_dtypes if isinstance(value, ExternalName) else {}


def _summarize_choice(dtypes: Collection[str]) -> str:
    """Return the dtype of a policy whose dtype the code chooses: float16 by choice, or unknown."""
    return torch_api.FLOAT16_BY_CHOICE if "float16" in dtypes else "?"


def _call_script(
    interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    inner = args[0] if args else NONE
    wrappers = inner.wrappers if isinstance(inner, FunctionValue) else ()
    decorated = any(object_ref_of(wrapper, "autocast") is not None for wrapper in wrappers)
    if isinstance(inner, Instance):
        forward = method_of(interp, inner.cls, "forward")
        decorated = forward is not None and any(isinstance(w, ObjectRef) for w in decorator_contexts(interp, forward))
    if decorated:
        interp.emit(e.ScopeLost, node, how="script", names={"context": "autocast", "call": expression_text(node)})
    return inner


def check_comm_hook(interp: Interpreter, module: TrackedObject | None, hook: Value | None, node: ast.AST) -> None:
    """Report a communication hook that casts gradients before averaging over ranks."""
    if torch_api.canonical_name(dotted_name_of(hook)) in torch_api.FP16_HOOKS:
        key = module.key if module is not None else None
        interp.emit(e.CommHook, node, key, names={"call": expression_text(node)})


def _call_register_comm_hook(
    interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    bound = bind_arguments(entry.parameters, args, keywords)
    check_comm_hook(interp, tracked_object_of(bound.get("model")), bound.get("comm_hook_type"), node)
    return interp.fresh_unknown(node)


def _call_cast_training_params(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Model the function of diffusers that casts the trained parameters of models, to float32 by default."""
    bound = bind_arguments(("model", "dtype"), args, keywords)
    if not find_low_dtypes([bound["dtype"]] if "dtype" in bound else []):
        models = _find_given_modules(interp, bound.get("model", NONE))
        mark_cast_to_float32(interp, interp.program.with_submodules(models))
    return NONE


def _find_given_modules(interp: Interpreter, given: Value) -> frozenset[int]:
    """Return the modules of an argument: a module or a list. A list with unknown items may hold all adapters."""
    parts = [part for value in given.alternatives() for part in items_or_self(value)]
    found = {part.key for part in map(tracked_object_of, parts) if part is not None}
    is_open = any(isinstance(value, SequenceValue) and value.is_open for value in given.alternatives())
    if is_open or len(found) < len(parts):
        found.update(interp.file_data(AdapterConditions))
    return frozenset(found)


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


def _has_dimensions(node: ast.AST) -> bool:
    """Return True if a parameter is created from a float32 tensor with a dimension.

    Such a parameter promotes every low-precision operand to float32.
    """
    made = first_argument(node)
    first = first_argument(made)
    if made is None or first is None or "dtype" in keywords_of(made):
        return False
    kind = last_name(callee_of(made))
    if kind in ("Tensor", "FloatTensor", "tensor"):
        return isinstance(first, ast.List) and bool(first.elts)
    empty = isinstance(first, (ast.List, ast.Tuple)) and not first.elts
    return kind in ("ones", "zeros", "rand", "randn", "empty", "full") and not empty


def _get_module_attribute(interp: Interpreter, receiver: ObjectRef, name: str, node: ast.AST) -> Value | None:
    # Only a wrapper has ``no_sync``, so ``hasattr`` does not know.
    if name in BINDABLE_METHODS["module"] or name == "no_sync":
        return BoundMethod(receiver, name)
    if name == "dtype":
        return dtype_of_parameters(interp, frozenset((receiver.tracked_object.key,)))
    return receiver if name == "module" else None


def _get_wrapped_module(interp: Interpreter, receiver: Instance, name: str, node: ast.AST) -> Value | None:
    """Return the module for ``module`` of a wrapped module, because a wrapper and its module are one object here."""
    tracked_object = receiver.tracked_object
    return receiver if name == "module" and tracked_object is not None and tracked_object.attributes.wrappers else None


def register(handlers: HandlerTable) -> None:
    handlers.named_functions["diffusers.training_utils.cast_training_params"] = _call_cast_training_params
    handlers.calls["module"] = _call_module
    handlers.calls["module instance"] = _call_module_instance
    handlers.methods.update({"module": call_module_method, "loss": call_module_method})
    handlers.attributes["module"] = _get_module_attribute
    handlers.inherited_attributes.append(_get_wrapped_module)
    handlers.named_functions.update(
        dict.fromkeys(
            (f"torch.distributed.fsdp.{name}" for name in ("MixedPrecision", "MixedPrecisionPolicy")), _make_policy
        )
    )
    handlers.torch_roles.update(
        {
            torch_api.WRAP_MODULE: wrap_module,
            torch_api.COMPILE: wrap_module,
            torch_api.SCRIPT: _call_script,
            torch_api.REGISTER_HOOK: _call_register_comm_hook,
            # The wrapped hook casts the gradients to float16.
            torch_api.COMPRESS: lambda *_: ExternalName(min(torch_api.FP16_HOOKS)),
        }
    )
