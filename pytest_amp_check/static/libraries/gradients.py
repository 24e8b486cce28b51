"""Gradients: manual reads, edits, clips and clears of ``.grad``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ...protocol import events as e
from ...protocol import torch_api
from ...protocol.optable import FOREACH_IN_PLACE, IN_PLACE
from ...protocol.source_text import SourceText
from ..interpreter.expressions.operators import apply_operator, mark_scale_undone
from ..interpreter.formulas import truth_of
from ..interpreter.identity import Operation, structural_unknown
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.joins import record_raise
from ..interpreter.source_text import expression_text, receiver_text
from ..interpreter.values.definitions import Args, BoundMethod, ExternalName, FunctionValue, Keywords
from ..interpreter.values.gradients import GradValue, ParamsValue, ScaleValue, join_params
from ..interpreter.values.tensors import TensorValue
from ..interpreter.values.value import NONE, Const, UnknownValue, Value
from ..project.clipping_hooks import may_clip_in_hook
from .arguments import dotted_name_of, first_or_named, items_of, literal_value, tracked_object_of
from .grad_hooks import note_hook
from .low_parameters import low_dtype_of_modules
from .owners import add_sharing_optimizers, all_optimizer_keys, find_owners
from .parts import write_data
from .syntax_queries import (
    callee_of,
    find_nodes,
    first_argument,
    is_conditional_in_loop,
    keywords_of,
    last_name,
    receiver_of,
)

#: Methods of tensors, modules and optimizers that expose gradients to other code before the step.
HOOKS = frozenset(
    "register_hook register_post_accumulate_grad_hook register_step_pre_hook register_comm_hook "
    "register_full_backward_hook register_full_backward_pre_hook".split()
)
#: Kinds of events that fill gradients or consume gradients.
_USED = (e.Backward, e.ScalerStep, e.Step)
READS = frozenset("norm abs mean max min std pow sum square histc".split())


def mark_averaged_elsewhere(interp: Interpreter, params: ParamsValue) -> None:
    """Note that the averaging of gradients may be left to the learning rate or to a hook."""
    owners = find_owners(interp, params)
    if owners is None and interp.state.frame.module is interp.module:
        # The optimizer may be recognized only later, by use.
        interp.program.attributes.averaged = True
    for key in owners or ():
        interp.program.objects[key].attributes.divided = True


#: Methods by which a penalty on weights is computed of the parameters.
_NORMS = frozenset(("pow", "square", "abs", "norm", "sum"))


def _call_params_method(
    interp: Interpreter, params: ParamsValue, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    if name in HOOKS:
        note_hook(interp, params, name, args, keywords, node)
        if name != "register_hook" or not _returns_nothing(args[0] if args else NONE):
            mark_averaged_elsewhere(interp, params)
        return interp.fresh_unknown(node, name)
    if name in ("values", "items", "copy"):
        return params
    if name in _NORMS and params.modules:
        made = TensorValue(interp.current_loops())
        made.forwards = made.forwards._replace(module_keys=params.modules)
        return made
    if name in ("extend", "append") and len(args) == 1:
        if isinstance(args[0], ParamsValue):
            params.add(args[0])
        return NONE
    if name in ("copy_", "add_", "mul_", "sub_", "fill_", "zero_", "lerp_"):
        interp.emit(e.ParamWrite, node, names={"call": expression_text(node)})
        return params
    if name == "requires_grad_":
        given = first_or_named(args, keywords, "requires_grad") or Const(True)
        note_requires_grad(interp, params.modules or (), given, node)
        if literal_value(given) is False:
            _freeze_params(interp, params)
        return params
    return interp.fresh_unknown(node, name)


class FrozenModules(set[int]):
    """Modules of a graph whose parameters need no gradients where the analysis is, by the keys of the objects."""


def note_requires_grad(interp: Interpreter, modules: Iterable[int], given: Value, node: ast.AST) -> None:
    """Record whether the parameters of modules need gradients from here on.

    Parameters chosen by a condition in a loop leave the others of the module trained.
    """
    function = interp.state.frame.function
    code = interp.state.frame.module.tree if function is None else function.node
    if truth_of(interp, given, node=node) is False and not is_conditional_in_loop(code, node):
        interp.graph_data(FrozenModules).update(modules)
    else:
        interp.graph_data(FrozenModules).difference_update(modules)


def _freeze_params(interp: Interpreter, params: ParamsValue) -> None:
    """Mark modules as partly frozen. The remaining trained parameters are unknown."""
    for key in params.modules or ():
        module = interp.program.objects[key].attributes
        module.training = module.training._replace(partly_frozen=True)


def _get_params_attribute(interp: Interpreter, receiver: ParamsValue, name: str, node: ast.AST) -> Value:
    if name in ("grad", "data"):
        return GradValue(receiver) if name == "grad" else receiver
    if name == "requires_grad":
        # A frozen parameter has no gradient that could matter.
        return Const(True)
    dtype = dtype_of_parameters(interp, receiver.modules or frozenset()) if name == "dtype" else None
    return dtype or structural_unknown(interp, Operation.ATTRIBUTE, (receiver,), name, name)


def dtype_of_parameters(interp: Interpreter, modules: frozenset[int]) -> Value | None:
    """Return the low dtype in which all of some modules are stored, as a value, or None."""
    dtype = low_dtype_of_modules(interp, modules)
    return ExternalName(f"torch.{dtype}") if dtype else None


def _get_unknown_attribute(interp: Interpreter, receiver: Value, name: str, node: ast.AST) -> Value | None:
    """Return the gradient of a parameter for ``grad`` of an unknown loop element, and a stored ``no_sync``."""
    if name == "no_sync":
        return BoundMethod(receiver, name)
    if name == "dtype":
        return _dtype_of_weight(interp, node)
    return (
        GradValue(ParamsValue(None))
        if name == "grad" and isinstance(receiver, UnknownValue) and receiver.origin.is_loop_element
        else None
    )


def _dtype_of_weight(interp: Interpreter, node: ast.AST) -> Value | None:
    """Return the low dtype of ``module.weight.dtype`` and the like, or None."""
    match node:
        case ast.Attribute(value=ast.Attribute(value=owner, attr="weight" | "bias")):
            module = tracked_object_of(interp.without_events(lambda: interp.evaluate(owner)))
            if module is not None and module.role == "module":
                return dtype_of_parameters(interp, frozenset((module.key,)))
    return None


def _call_grad_method(
    interp: Interpreter, grad: GradValue, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    effect = IN_PLACE.get(name)
    if effect is not None:
        if "rounding_mode" in keywords_of(node):
            effect = "edit"
        edit_grad(interp, grad, effect, args, node)
        return grad
    if name in ("detach_", "detach", "clone", "data", "float", "to", "cpu", "flatten", "view", "reshape"):
        return grad
    if name in READS or name in torch_api.FINITE_CHECKS:
        return read_grad(interp, grad, node, name)
    return interp.fresh_unknown(node, name)


def edit_grad(interp: Interpreter, grad: GradValue, effect: str, args: Args, node: ast.AST) -> None:
    """Apply an in-place edit to gradients. ``effect`` is the effect of the op from the op table."""
    owners = find_owners(interp, grad.params)
    names = {"call": expression_text(node), **_optimizer_name(interp, owners)}
    first = args[0] if args else NONE
    if effect == "fill":
        effect = _find_fill_effect(args)
    if effect == "zero":
        _emit_cleared(interp, grad.params, node, owners if owners is not None else (), names)
    elif effect in ("divide", "multiply"):
        assign_grad(interp, grad, apply_operator(interp, "/" if effect == "divide" else "*", grad, first, node), node)
    elif effect == "replace" and not _is_edited_copy(node):
        assign_grad(interp, grad, first, node)
    elif effect in ("edit", "replace"):
        interp.emit(e.GradEdit, node, owners=owners, names=names)


def _find_fill_effect(args: Args) -> str:
    """Return the effect of filling gradients: zero clears, and an intentional infinity is no edit."""
    number = args[-1] if args else NONE
    if literal_value(number) == 0:
        return "zero" if len(args) == 1 else "homogeneous"
    return "homogeneous" if _is_infinite(number) else "edit"


def _is_edited_copy(node: ast.AST) -> bool:
    """Return True if an edited gradient is copied into gradients: ``p.grad.copy_(p.grad.clamp(-1, 1))``."""
    made = first_argument(node)
    edited = receiver_of(made)
    method = last_name(callee_of(made))
    return IN_PLACE.get(f"{method}_") == "edit" and isinstance(edited, ast.Attribute) and edited.attr == "grad"


def _set_grad_item(interp: Interpreter, receiver: Value, index: Value, target: ast.Subscript, value: Value) -> None:
    """Apply an assignment to some elements of a gradient. A list or dict of gradients is not affected."""
    if isinstance(receiver, GradValue) and isinstance(target.value, ast.Attribute):
        edit_grad(interp, receiver, IN_PLACE["__setitem__"], [index, value], target)


def _optimizer_name(interp: Interpreter, owners: tuple[int, ...] | None) -> dict[str, object]:
    """Return the source name of the single optimizer that owns some gradients, or an empty dict."""
    return {"optimizer": interp.program.objects[owners[0]].name} if owners is not None and len(owners) == 1 else {}


def read_grad(interp: Interpreter, grad: GradValue, node: ast.AST, name: str) -> Value:
    """Return a number computed from gradients. A later division by the scale corrects the read."""
    if name.rpartition(".")[2] in torch_api.FINITE_CHECKS:
        owners = find_owners(interp, grad.params)
        reading: e.GradientAccess | None = interp.emit(
            e.GradCheck, node, owners=owners, raises=False, names={"call": expression_text(node)}
        )
    else:
        reading = emit_grad_read(interp, grad, node)
    made = interp.fresh_unknown(node, name)
    if reading is not None:
        made.gradient_reads = (reading,)
    return made


def assign_grad(interp: Interpreter, target: GradValue, value: Value, node: ast.AST) -> None:
    """Apply an assignment to ``p.grad``, or an in-place edit of ``p.grad``."""
    owners = find_owners(interp, target.params)
    call = expression_text(node) if isinstance(node, ast.expr) else "this assignment"
    names = {"call": call, **_optimizer_name(interp, owners)}
    kind = _find_write_effect(value, node)
    if isinstance(value, GradValue) and value.factor_reads and not value.is_unscaled:
        # The clip is reported, so the read of the norm needs no report.
        mark_scale_undone(
            tuple(
                x
                for x in value.factor_reads
                if isinstance(x, e.GradRead) or (isinstance(x, e.Clip) and x.measures_only)
            )
        )
        interp.emit(e.Clip, node, owners=owners, by_hand=True, names=names)
    elif kind is not None:
        interp.emit(kind, node, owners=owners, names=names)
    elif literal_value(value) is None:
        _emit_cleared(interp, target.params, node, _find_cleared(interp) if owners is None else owners, names)
    else:
        # The gradients come from elsewhere (averaged over ranks, restored), so the content is unknown.
        mark_scale_undone(value.gradient_reads)
        given = all_optimizer_keys(interp) if owners is None else add_sharing_optimizers(interp, owners)
        interp.emit(e.Handoff, node, objects=given, given=given, about=e.ALL_EFFECTS)


def _find_cleared(interp: Interpreter) -> tuple[int, ...] | None:
    """Return the optimizers whose gradients a clear of unknown owners clears; None stands for all optimizers."""
    # Code may clear gradients of a raw loss before the program constructs its optimizers. Gradients of a scaled loss
    # are those of the step that follows, often as `p.grad = total`.
    last = _last_use(interp)
    is_scaled = isinstance(last, e.Backward) and last.scaling.is_scaled
    return all_optimizer_keys(interp) or (() if is_scaled else None)


def _last_use(interp: Interpreter) -> e.Event | None:
    return next((made.event for made in reversed(interp.builder.nodes) if isinstance(made.event, _USED)), None)


def _emit_cleared(
    interp: Interpreter, params: ParamsValue, node: ast.AST, owners: tuple[int, ...] | None, names: dict[str, object]
) -> None:
    """Emit an event for gradients that are set to zero or to None; ``owners`` None stands for all optimizers.

    Gradients of some parameters that are cleared between backward and step freeze these parameters for now. The
    gradients of all other parameters remain for this step and for the next backward.
    """
    if not isinstance(_last_use(interp), e.Backward) or not _is_partial(interp, params, node):
        interp.emit(e.ZeroGrad, node, owners=owners, names=names)


def _is_partial(interp: Interpreter, params: ParamsValue, node: ast.AST) -> bool:
    """Return True if the parameters may be a subset of an optimizer's parameters.

    The subset is selected by name, or belongs to a part of the model.
    """
    function = interp.state.frame.function
    if is_conditional_in_loop(function.node if function is not None else interp.state.frame.module.tree, node):
        return True
    if params.modules is None:
        return not params.optimizers
    cleared = interp.program.with_submodules(params.modules)
    # `model.head` is not visible as a part of `model` if the class of `model` is unknown.
    owners = find_owners(interp, params) or all_optimizer_keys(interp)
    return any(not cleared >= (interp.program.objects[key].attributes.owns or frozenset()) for key in owners)


def _find_write_effect(value: Value, node: ast.AST) -> type[e.OwnedEvent] | None:
    """Return the event kind of a write to gradients that depends on the old gradients, or None."""
    if isinstance(value, GradValue) and value.is_unscaled:
        return e.GradDivide
    if isinstance(value, GradValue) and _divides_by_number(node):
        return e.GradNormalise
    return e.GradEdit if isinstance(node, ast.AugAssign) and literal_value(value) is not None else None


def _divides_by_number(node: ast.AST) -> bool:
    """Return True if gradients are divided by a number, as at the end of an accumulation window."""
    if isinstance(node, ast.AugAssign):
        return type(node.op) in (ast.Div, ast.Mult)
    name = last_name(callee_of(node))
    return receiver_of(node) is not None and (IN_PLACE.get(name) or FOREACH_IN_PLACE.get(name)) in (
        "divide",
        "multiply",
    )


def emit_grad_read(interp: Interpreter, grad: GradValue, node: ast.AST) -> e.GradRead | None:
    if grad.is_unscaled:
        return None
    owners = find_owners(interp, grad.params)
    names = {"call": expression_text(node), **_optimizer_name(interp, owners)}
    return interp.emit(e.GradRead, node, owners=owners, names=names)


def emit_clip(
    interp: Interpreter,
    params: Value | None,
    rest: list[Value],
    bound: Keywords,
    node: ast.AST,
    *,
    guessed: bool = False,
) -> Value:
    """Emit a clip of gradients. ``guessed`` means that only the name of the called function implies a clip."""
    norm = interp.fresh_unknown(node)
    limit = bound.get("max_norm") or bound.get("clip_value") or (rest[0] if rest else None)
    if isinstance(limit, ScaleValue):
        # The limit is scaled like the gradients.
        if interp.visited_calls is not None:
            interp.visited_calls.mark_handled(interp.site_of(node))
        return norm
    strict = literal_value(bound.get("error_if_nonfinite")) is True
    if strict:
        record_raise(interp)
    clipping = interp.emit(
        e.Clip,
        node,
        owners=_find_clip_owners(interp, params),
        nonfinite_error=strict and not interp.state.try_depth,
        measures_only=_is_infinite(limit),
        guessed=guessed,
        names={
            "call": expression_text(node),
            "module": _clipped_module_text(node),
            "limit": _limit_text(node),
        },
    )
    if clipping is not None:
        norm.gradient_reads = (clipping,)
    for listener in interp.handlers.clip_listeners:
        listener(interp, params, norm)
    return norm


def _limit_text(node: ast.AST) -> object:
    """Return the source text of the limit of a clip, "" if the call does not show the limit."""
    if not isinstance(node, ast.Call):
        return ""
    limit = node.args[1] if len(node.args) > 1 else keywords_of(node).get("max_norm")
    return SourceText(limit) if limit is not None else ""


def _clipped_module_text(node: ast.AST) -> object:
    """Return the source text of the module in ``clip_grad_norm_(module.parameters(), ...)``, "" for other arguments."""
    params = first_argument(node)
    return receiver_text(params) if last_name(callee_of(params)) == "parameters" and params is not None else ""


class HooksByName(dict[int, str]):
    """Names of hooks that code gets from objects of unknown classes by ``getattr``, by the key of the result."""


def _clip_in_called_hook(interp: Interpreter, func: Value, given: list[Value], node: ast.AST) -> None:
    name = interp.file_data(HooksByName).get(func.key) if isinstance(func, UnknownValue) else None
    if name is not None:
        emit_hook_clip(interp, name, node)


def emit_hook_clip(interp: Interpreter, name: str, node: ast.AST) -> None:
    """Emit a clip for a hook that a training calls on an object of an unknown class, if a class of the project clips.

    Only trainings with a scaler of their own are concerned: a framework unscales before its hooks.
    """
    objects = interp.program.objects
    if any(each.role == "scaler" and not each.attributes.framework for each in objects) and may_clip_in_hook(
        interp.project, name
    ):
        emit_clip(interp, None, [], {}, node, guessed=True)


def _find_clip_owners(interp: Interpreter, params: Value | None) -> tuple[int, ...] | None:
    if isinstance(params, ParamsValue):
        return find_owners(interp, params)
    items = items_of(params)
    parts = [item for item in items if isinstance(item, ParamsValue)]
    return find_owners(interp, join_params(parts)) if parts and len(parts) == len(items) else None


def _returns_nothing(hook: Value) -> bool:
    """Return True if a hook is known to return no gradient, and so leaves the gradient unchanged."""
    if not isinstance(hook, FunctionValue) or isinstance(hook.function.node, ast.Lambda):
        return False
    return all(inner.value is None for inner in find_nodes(hook.function.node, ast.Return))


def _is_infinite(value: Value | None) -> bool:
    return literal_value(value) == float("inf") or dotted_name_of(value).rpartition(".")[2] in ("inf", "Inf", "infty")


def _set_param_attribute(
    interp: Interpreter, receiver: ParamsValue, name: str, value: Value, target: ast.Attribute
) -> bool:
    if name == "grad":
        assign_grad(interp, GradValue(receiver), value, target)
    elif name == "data":
        interp.emit(e.ParamWrite, target, names={"call": expression_text(target)})
        write_data(interp, receiver.modules or (), value, target)
    elif name == "requires_grad":
        note_requires_grad(interp, receiver.modules or (), value, target)
        if literal_value(value) is False:
            _freeze_params(interp, receiver)
    return name in ("grad", "data")


def _set_grad_attribute(
    interp: Interpreter, receiver: GradValue, name: str, value: Value, target: ast.Attribute
) -> bool:
    if name == "data":
        assign_grad(interp, receiver, value, target)
    return name == "data"


def register(handlers: HandlerTable) -> None:
    handlers.escape_listeners.append(_clip_in_called_hook)
    handlers.methods.update({"parameters": _call_params_method, "gradients": _call_grad_method})
    handlers.attributes["parameters"] = _get_params_attribute
    handlers.attributes["unknown"] = _get_unknown_attribute
    handlers.attributes["gradients"] = lambda interp, grad, name, node: (
        grad if name == "data" else interp.fresh_unknown(node, name)
    )
    handlers.attribute_writes["parameters"] = _set_param_attribute
    handlers.attribute_writes["gradients"] = _set_grad_attribute
    handlers.operands["gradients"] = emit_grad_read
    handlers.augmented_assignments["gradients"] = assign_grad
    handlers.item_write_listeners.append(_set_grad_item)
    handlers.rate_division_listeners.append(mark_averaged_elsewhere)
