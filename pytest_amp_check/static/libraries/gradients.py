"""Gradients: reading, editing, clipping and clearing them by hand."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol.events import Event
from ...protocol.optable import FOREACH_IN_PLACE, IN_PLACE
from ..interpreter.expressions import operate, undo
from ..interpreter.forks import raises
from ..interpreter.identity import structural
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.values import (
    NONE,
    Args,
    FunctionValue,
    Grad,
    Keywords,
    Opaque,
    Params,
    ScaleValue,
    Value,
    merge_params,
)
from ..interpreter.wording import receiver_words, wording
from .arguments import first_of, items_of, literal, name_of
from .grad_hooks import note_hook
from .losses import all_optimizers, owners_of
from .written import all_of, called, chooses, first_argument, first_words, keywords_of, last_name, receiver

#: Methods of tensors, modules and optimizers that let other code have the gradients before the step.
HOOKS = frozenset(
    "register_hook register_post_accumulate_grad_hook register_step_pre_hook register_comm_hook "
    "register_full_backward_hook register_full_backward_pre_hook".split()
)
#: Methods and functions that ask whether something is finite, which a loss scale changes nothing about.
FINITE = frozenset(("isnan", "isinf", "isfinite"))
#: What fills gradients, and what uses them up.
_USED = (e.BACKWARD, e.SCALER_STEP, e.STEP)
READS = frozenset("norm abs mean max min std pow sum square histc".split())


def rate_divided(at: Interpreter, params: Params) -> None:
    """Averaging may be left to the learning rate, or to a hook on the gradients."""
    owners = owners_of(at, params)
    if owners is None and at.state.frame.module is at.module:
        # Of an optimizer that the file may only come to know by its use.
        at.program.facts["averaged"] = True
    for key in owners or ():
        at.program.things[key].facts["divided"] = True


def _params_method(at: Interpreter, params: Params, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    if name in HOOKS:
        note_hook(at, params, name, args, keywords, node)
        if name != "register_hook" or not _only_looks(args[0] if args else NONE):
            rate_divided(at, params)
        return at.fresh(node, name)
    if name in ("values", "items", "copy"):
        return params
    if name in ("copy_", "add_", "mul_", "sub_", "fill_", "zero_", "lerp_"):
        at.emit(e.PARAM_WRITE, node)
        return params
    if name == "requires_grad_":
        if literal(first_of(args, keywords, "requires_grad")) is False:
            _freeze(at, params)
        return params
    return at.fresh(node, name)


def _freeze(at: Interpreter, params: Params) -> None:
    """Parameters are not trained, all or some of their modules': what is left is nobody's to say."""
    for key in params.modules or ():
        at.program.things[key].facts["partly_frozen"] = True


def _params_attribute(at: Interpreter, receiver: Params, name: str, node: ast.AST) -> Value:
    if name in ("grad", "data"):
        return Grad(receiver) if name == "grad" else receiver
    return structural(at, "attribute", (receiver,), name, name)


def _unknown_attribute(at: Interpreter, receiver: Value, name: str, node: ast.AST) -> Value | None:
    """What is gone through one by one and has a gradient is a parameter."""
    return Grad(Params(None)) if name == "grad" and isinstance(receiver, Opaque) and receiver.each else None


def _grad_method(at: Interpreter, grad: Grad, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    effect = IN_PLACE.get(name)
    if effect is not None:
        if "rounding_mode" in keywords_of(node):
            effect = "edit"
        grad_changed(at, grad, effect, args, receiver_words(node), node)
        return grad
    if name in ("detach_", "detach", "clone", "data", "float", "to", "cpu", "flatten", "view", "reshape"):
        return grad
    if name in READS or name in FINITE:
        return read_grad(at, grad, node, name)
    return at.fresh(node, name)


def grad_changed(at: Interpreter, grad: Grad, effect: str, args: Args, words: object, node: ast.AST) -> None:
    """An edit of gradients in place; ``effect`` is what the table of ops says that it does to them."""
    owners = owners_of(at, grad.params)
    names = {"call": wording(node), "params": words, **_owner_name(at, owners)}
    first = args[0] if args else NONE
    if effect == "fill":
        effect = _effect_of_filling(args)
    if effect == "zero":
        _cleared(at, grad.params, node, owners if owners is not None else (), names)
    elif effect in ("divide", "multiply"):
        grad_written(at, grad, operate(at, "/" if effect == "divide" else "*", grad, first, node), node)
    elif effect == "replace" and not _is_edited_copy(node):
        grad_written(at, grad, first, node)
    elif effect in ("edit", "replace"):
        at.emit(e.GRAD_EDIT, node, owners=owners, names=names)


def _effect_of_filling(args: Args) -> str:
    """What filling gradients, or some of them, does: zero clears, and what overflows on purpose is no edit."""
    number = args[-1] if args else NONE
    if literal(number) == 0:
        return "zero" if len(args) == 1 else "homogeneous"
    return "homogeneous" if _is_infinite(number) else "edit"


def _is_edited_copy(node: ast.AST) -> bool:
    """Whether what is copied into gradients is an edit of gradients: ``p.grad.copy_(p.grad.clamp(-1, 1))``."""
    made = first_argument(node)
    edited = receiver(made)
    method = last_name(called(made))
    return IN_PLACE.get(f"{method}_") == "edit" and isinstance(edited, ast.Attribute) and edited.attr == "grad"


def _item_written(at: Interpreter, receiver: Value, index: Value, target: ast.Subscript, value: Value) -> None:
    """Some of the numbers of gradients are set; a list or a dict that holds gradients is none."""
    if isinstance(receiver, Grad) and isinstance(target.value, ast.Attribute):
        grad_changed(at, receiver, IN_PLACE["__setitem__"], [index, value], wording(target.value), target)


def _owner_name(at: Interpreter, owners: tuple[int, ...] | None) -> dict[str, object]:
    """What the user calls the one optimizer that holds some gradients."""
    return {"optimizer": at.program.things[owners[0]].name} if owners is not None and len(owners) == 1 else {}


def read_grad(at: Interpreter, grad: Grad, node: ast.AST, name: str) -> Value:
    """A number computed from gradients; dividing it by the scale puts the reading right."""
    if name.rpartition(".")[2] in FINITE:
        owners = owners_of(at, grad.params)
        reading = at.emit(e.GRAD_CHECK, node, owners=owners, raises=False, names={"call": wording(node)})
    else:
        reading = grad_used(at, grad, node)
    made = at.fresh(node, name)
    if reading is not None:
        made.readings = (reading,)
    return made


def grad_written(at: Interpreter, target: Grad, value: Value, node: ast.AST) -> None:
    """An assignment to ``p.grad``, or an edit of it in place."""
    owners = owners_of(at, target.params)
    call = wording(node) if isinstance(node, ast.expr) else "this assignment"
    names = {"params": "p.grad", "call": call, **_owner_name(at, owners)}
    kind = _effect_of_writing(value, node)
    if isinstance(value, Grad) and value.by and not value.unscaled:
        # What is said of the clip need not be said of how its norm was read.
        undo(tuple(x for x in value.by if x.kind == e.GRAD_READ or x.facts.get("measures_only")))
        at.emit(e.CLIP, node, owners=owners, by_hand=True, names=names)
    elif kind is not None:
        at.emit(kind, node, owners=owners, names=names)
    elif literal(value) is None:
        _cleared(at, target.params, node, all_optimizers(at) if owners is None else owners, names)
    else:
        # Gradients that come from elsewhere (averaged over ranks, restored): whatever they are.
        undo(value.readings)
        given = all_optimizers(at) if owners is None else owners
        at.emit(e.HANDOFF, node, things=given, given=given, about=e.MATTERS)


def _cleared(at: Interpreter, params: Params, node: ast.AST, owners: tuple[int, ...], names: dict[str, object]) -> None:
    """Gradients are set to zero, or to None.

    Those of some parameters are between a backward and its step so that these are not trained for now: what the others
    have is left, to that step and to the next backward.
    """
    used = (event for made in reversed(at.draft.nodes) if (event := made.event) is not None and event.kind in _USED)
    last = next(used, None)
    if last is None or last.kind != e.BACKWARD or not _of_some(at, params, node):
        at.emit(e.ZERO_GRAD, node, owners=owners, names=names)


def _of_some(at: Interpreter, params: Params, node: ast.AST) -> bool:
    """Whether parameters may be some of those that an optimizer has: chosen by name, or of a part of its model."""
    function = at.state.frame.function
    if chooses(function.node if function is not None else at.state.frame.module.tree, node):
        return True
    if params.modules is None:
        return not params.optimizers
    cleared = at.program.whole(params.modules)
    # `model.head` is no part of `model` in sight, where the class of that is not.
    owners = owners_of(at, params) or all_optimizers(at)
    return any(not cleared >= (at.program.things[key].facts.get("owns") or frozenset()) for key in owners)


def _effect_of_writing(value: Value, node: ast.AST) -> e.Kind | None:
    """What writing a value to gradients does to them, where it is known to depend on what they were."""
    if isinstance(value, Grad) and value.unscaled:
        return e.GRAD_DIVIDE
    if isinstance(value, Grad) and _normalises(node):
        return e.GRAD_NORMALISE
    return e.GRAD_EDIT if isinstance(node, ast.AugAssign) and literal(value) is not None else None


def _normalises(node: ast.AST) -> bool:
    """Whether gradients are divided by a number, as the end of an accumulation window does."""
    if isinstance(node, ast.AugAssign):
        return type(node.op) in (ast.Div, ast.Mult)
    name = last_name(called(node))
    return receiver(node) is not None and (IN_PLACE.get(name) or FOREACH_IN_PLACE.get(name)) in ("divide", "multiply")


def grad_used(at: Interpreter, grad: Grad, node: ast.AST) -> Event | None:
    if grad.unscaled:
        return None
    owners = owners_of(at, grad.params)
    names = {"params": "p.grad", "call": wording(node), **_owner_name(at, owners)}
    return at.emit(e.GRAD_READ, node, owners=owners, names=names)


def clip(
    at: Interpreter, params: Value | None, rest: list[Value], bound: Keywords, node: ast.AST, *, guessed: bool = False
) -> Value:
    """A clip of gradients; ``guessed`` where only the name of the function that is called says so."""
    norm = at.fresh(node, "norm")
    limit = bound.get("max_norm") or bound.get("clip_value") or (rest[0] if rest else None)
    if isinstance(limit, ScaleValue):
        # The limit is scaled as the gradients are.
        if at.passed is not None:
            at.passed.judged(at.site(node))
        return norm
    strict = literal(bound.get("error_if_nonfinite")) is True
    if strict:
        raises(at)
    clipping = at.emit(
        e.CLIP,
        node,
        owners=_clip_owners(at, params),
        nonfinite_error=strict and not at.state.guarded,
        measures_only=_is_infinite(limit),
        guessed=guessed,
        names={"call": wording(node), "params": first_words(node)},
    )
    if clipping is not None:
        norm.readings = (clipping,)
    for listener in at.handlers.clipped:
        listener(at, params, norm)
    return norm


def _clip_owners(at: Interpreter, params: Value | None) -> tuple[int, ...] | None:
    if isinstance(params, Params):
        return owners_of(at, params)
    items = items_of(params)
    parts = [item for item in items if isinstance(item, Params)]
    return owners_of(at, merge_params(parts)) if parts and len(parts) == len(items) else None


def _only_looks(hook: Value) -> bool:
    """Whether a hook on gradients is known to give none back, so that it leaves them as they are."""
    if not isinstance(hook, FunctionValue) or isinstance(hook.function.node, ast.Lambda):
        return False
    return all(inner.value is None for inner in all_of(hook.function.node, ast.Return))


def _is_infinite(value: Value | None) -> bool:
    return literal(value) == float("inf") or name_of(value).rpartition(".")[2] in ("inf", "Inf", "infty")


def _parameter_written(at: Interpreter, receiver: Params, name: str, value: Value, target: ast.Attribute) -> bool:
    if name == "grad":
        grad_written(at, Grad(receiver), value, target)
    elif name == "data":
        at.emit(e.PARAM_WRITE, target)
    elif name == "requires_grad" and literal(value) is False:
        _freeze(at, receiver)
    return name in ("grad", "data")


def _gradient_written(at: Interpreter, receiver: Grad, name: str, value: Value, target: ast.Attribute) -> bool:
    if name == "data":
        grad_written(at, receiver, value, target)
    return name == "data"


def register(handlers: Handlers) -> None:
    handlers.methods.update({"parameters": _params_method, "gradients": _grad_method})
    handlers.attributes["parameters"] = _params_attribute
    handlers.attributes["unknown"] = _unknown_attribute
    handlers.attributes["gradients"] = lambda at, grad, name, node: grad if name == "data" else at.fresh(node, name)
    handlers.written["parameters"] = _parameter_written
    handlers.written["gradients"] = _gradient_written
    handlers.operands["gradients"] = grad_used
    handlers.augmented["gradients"] = grad_written
    handlers.item_written.append(_item_written)
    handlers.rate_divided.append(rate_divided)
