"""Methods and attributes of modules: casts, parameters, hooks and adapters."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial

from ....protocol import events as e
from ....protocol.fast_namedtuple import NamedTuple
from ....protocol.tracked_objects import TrackedObject
from ...interpreter.classes.attributes import BINDABLE_METHODS
from ...interpreter.conditions import implied_literals
from ...interpreter.dtypes import DtypeInfo
from ...interpreter.interpreter import Interpreter
from ...interpreter.joins import run_branches
from ...interpreter.source_text import expression_text, receiver_text
from ...interpreter.unanalyzed_code import call_unknown
from ...interpreter.values.containers import SequenceValue
from ...interpreter.values.contexts import NoSyncContext
from ...interpreter.values.definitions import Args, BoundMethod, ExternalName, Instance, Keywords
from ...interpreter.values.gradients import ParamsValue
from ...interpreter.values.objects import ModuleContainer, ObjectRef
from ...interpreter.values.value import NONE, Const, UnknownValue, Value
from ..arguments import (
    bind_arguments,
    dotted_name_of,
    first_or_named,
    items_of,
    items_or_self,
    literal_value,
    tracked_object_of,
)
from ..checkpoints import take_state
from ..default_dtypes import find_default_dtypes
from ..dtype_choices import trace_dtype_choice
from ..gradients import (
    HOOKS,
    dtype_of_parameters,
    emit_clip,
    emit_hook_clip,
    mark_averaged_elsewhere,
    note_requires_grad,
)
from ..low_parameters import AdapterConditions, do_nothing, find_low_dtypes, mark_cast_to_float32, set_low
from ..owners import find_owners
from ..parts import SUBMODULES, apply_to_parts, list_submodules
from ..syntax_queries import keywords_of
from .construction import WITH_WEIGHTS, add_items
from .forwards import is_analyzed, run_forward
from .wrappers import check_comm_hook

#: Handler of a module method. A handler returns None if the method runs the module.
Method = Callable[["Interpreter", "_MethodCall"], Value | None]
#: Methods that return a tensor of the same shape and keep float32.
ELEMENTWISE = frozenset(
    "abs clamp clamp_max clamp_min exp log log1p neg reciprocal sigmoid softplus sqrt square".split()
)
#: Methods that return the module, without effect on the protocol.
SAME = frozenset("train eval cuda cpu float double to_empty share_memory".split())
#: Methods of ``SAME`` that convert parameters to a wide dtype.
_WIDENS = frozenset({"float", "double"})
#: Methods that iterate over the contents of a module.
PARTS = frozenset((*SUBMODULES, "buffers"))


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
        add_items(receiver, items_of(args[0]) if name == "extend" else args)
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
    return attributes.kind.startswith(WITH_WEIGHTS) and not attributes.parts


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
        for dtype, condition in (find_low_dtypes(interp, [value]) or find_default_dtypes(interp, default))[:1]:
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


def call_cast_training_params(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Model the function of diffusers that casts the trained parameters of models, to float32 by default."""
    bound = bind_arguments(("model", "dtype"), args, keywords)
    if not find_low_dtypes(interp, [bound["dtype"]] if "dtype" in bound else []):
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


def get_module_attribute(interp: Interpreter, receiver: ObjectRef, name: str, node: ast.AST) -> Value | None:
    # Only a wrapper has ``no_sync``, so ``hasattr`` does not know.
    if name in BINDABLE_METHODS["module"] or name == "no_sync":
        return BoundMethod(receiver, name)
    if name == "dtype":
        return dtype_of_parameters(interp, frozenset((receiver.tracked_object.key,)))
    return receiver if name == "module" else None


def get_wrapped_module(interp: Interpreter, receiver: Instance, name: str, node: ast.AST) -> Value | None:
    """Return the module for ``module`` of a wrapped module, because a wrapper and its module are one object here."""
    tracked_object = receiver.tracked_object
    return receiver if name == "module" and tracked_object is not None and tracked_object.attributes.wrappers else None
