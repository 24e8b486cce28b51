"""Gradients: reading, editing, clipping and clearing them by hand."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol.events import Event
from ...protocol.optable import FOREACH_IN_PLACE, IN_PLACE
from ...protocol.words import Words
from ..interpreter.expressions import operate, undo
from ..interpreter.identity import structural
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.values import (
    NONE,
    Args,
    Const,
    FunctionValue,
    Grad,
    Keywords,
    Named,
    Params,
    ScaleValue,
    Sequence,
    Value,
    merge_params,
)
from ..interpreter.wording import receiver_words, wording
from ..project.syntax import walk
from .losses import all_optimizers, owners_of

#: Methods of tensors, modules and optimizers that let other code have the gradients before the step.
HOOKS = frozenset(
    "register_hook register_post_accumulate_grad_hook register_step_pre_hook register_comm_hook "
    "register_full_backward_hook register_full_backward_pre_hook".split()
)
READS = frozenset("norm abs mean max min std pow sum square histc isnan isinf isfinite".split())


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
        if name != "register_hook" or not _only_looks(args[0] if args else NONE):
            rate_divided(at, params)
        return at.fresh(node, name)
    if name in ("values", "items", "copy"):
        return params
    if name in ("copy_", "add_", "mul_", "sub_", "fill_", "zero_", "lerp_"):
        at.emit(e.PARAM_WRITE, node, None, None)
        return params
    return at.fresh(node, name)


def _params_attribute(at: Interpreter, receiver: Params, name: str, node: ast.AST) -> Value:
    if name == "grad":
        return Grad(receiver)
    if name == "data":
        return receiver
    return structural(at, "attribute", (receiver,), name, name)


def _grad_method(at: Interpreter, grad: Grad, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    effect = IN_PLACE.get(name)
    if effect is not None:
        if isinstance(node, ast.Call) and any(keyword.arg == "rounding_mode" for keyword in node.keywords):
            effect = "edit"
        grad_changed(at, grad, effect, args, receiver_words(node), node)
        return grad
    if name in ("detach_", "detach", "clone", "data", "float", "to", "cpu", "flatten", "view", "reshape"):
        return grad
    if name in READS:
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
        at.emit(e.ZERO_GRAD, node, None, None, owners=owners if owners is not None else (), names=names)
    elif effect in ("divide", "multiply"):
        grad_written(at, grad, operate(at, "/" if effect == "divide" else "*", grad, first, node), node)
    elif effect == "replace" and not _is_edited_copy(node):
        grad_written(at, grad, first, node)
    elif effect in ("edit", "replace"):
        at.emit(e.GRAD_EDIT, node, None, None, owners=owners, names=names)


def _effect_of_filling(args: Args) -> str:
    """What filling gradients, or some of them, does: zero clears, and what overflows on purpose is no edit."""
    number = args[-1] if args else NONE
    if isinstance(number, Const) and number.value == 0:
        return "zero" if len(args) == 1 else "homogeneous"
    return "homogeneous" if _is_infinite(number) else "edit"


def _is_edited_copy(node: ast.AST) -> bool:
    """Whether what is copied into gradients is an edit of gradients: ``p.grad.copy_(p.grad.clamp(-1, 1))``."""
    made = node.args[0] if isinstance(node, ast.Call) and node.args else None
    if not isinstance(made, ast.Call) or not isinstance(made.func, ast.Attribute):
        return False
    edited = made.func.value
    return IN_PLACE.get(f"{made.func.attr}_") == "edit" and isinstance(edited, ast.Attribute) and edited.attr == "grad"


def _item_written(at: Interpreter, receiver: Value, index: Value, target: ast.Subscript, value: Value) -> None:
    """Some of the numbers of gradients are set; a list or a dict that holds gradients is none."""
    if isinstance(receiver, Grad) and isinstance(target.value, ast.Attribute):
        grad_changed(at, receiver, IN_PLACE["__setitem__"], [index, value], wording(target.value), target)


def _owner_name(at: Interpreter, owners: tuple[int, ...] | None) -> dict[str, object]:
    """What the user calls the one optimizer that holds some gradients."""
    return {"optimizer": at.program.things[owners[0]].name} if owners is not None and len(owners) == 1 else {}


def read_grad(at: Interpreter, grad: Grad, node: ast.AST, name: str) -> Value:
    """A number computed from gradients; dividing it by the scale puts the reading right."""
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
    if isinstance(value, Const) and value.value is None:
        at.emit(
            e.ZERO_GRAD,
            node,
            None,
            None,
            owners=owners if owners is not None else all_optimizers(at),
            names=names,
        )
    elif isinstance(value, Grad) and value.unscaled:
        at.emit(e.GRAD_DIVIDE, node, None, None, owners=owners, names=names)
    elif isinstance(value, Grad) and isinstance(node, (ast.AugAssign, ast.Call)) and _normalises(node):
        at.emit(e.GRAD_NORMALISE, node, None, None, owners=owners, names=names)
    elif isinstance(node, ast.AugAssign):
        at.emit(e.GRAD_EDIT, node, None, None, owners=owners, names=names)
    else:
        # Gradients that come from elsewhere (averaged over ranks, restored): whatever they are.
        undo(value)
        at.emit(e.HANDOFF, node, None, None, things=owners if owners is not None else all_optimizers(at))


def _normalises(node: ast.AST) -> bool:
    """Whether gradients are divided by a number, as the end of an accumulation window does."""
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, (ast.Div, ast.Mult))
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    name = node.func.attr
    return (IN_PLACE.get(name) or FOREACH_IN_PLACE.get(name)) in ("divide", "multiply")


def grad_used(at: Interpreter, grad: Grad, node: ast.AST) -> Event | None:
    if grad.unscaled:
        return None
    return at.emit(
        e.GRAD_READ,
        node,
        None,
        None,
        owners=owners_of(at, grad.params),
        names={"params": "p.grad", "call": wording(node), **_owner_name(at, owners_of(at, grad.params))},
    )


def clip(at: Interpreter, params: Value | None, rest: list[Value], bound: Keywords, node: ast.AST) -> Value:
    norm = at.fresh(node, "norm")
    limit = bound.get("max_norm") or bound.get("clip_value") or (rest[0] if rest else None)
    if _mentions_scale(limit):
        # The limit is scaled as the gradients are.
        return norm
    strict = bound.get("error_if_nonfinite")
    arguments = node.args if isinstance(node, ast.Call) else []
    clipping = at.emit(
        e.CLIP,
        node,
        None,
        None,
        owners=_clip_owners(at, params),
        nonfinite_error=isinstance(strict, Const) and strict.value is True and not at.state.guarded,
        measures_only=_is_infinite(limit),
        names={"call": wording(node), "params": Words(arguments[0]) if arguments else ""},
    )
    if clipping is not None:
        norm.readings = (clipping,)
    for listener in at.handlers.clipped:
        listener(at, params, norm)
    return norm


def _clip_owners(at: Interpreter, params: Value | None) -> tuple[int, ...] | None:
    if isinstance(params, Params):
        return owners_of(at, params)
    if isinstance(params, Sequence):
        parts = [item for item in params.items if isinstance(item, Params)]
        if parts and len(parts) == len(params.items):
            return owners_of(at, merge_params(parts))
    return None


def _only_looks(hook: Value) -> bool:
    """Whether a hook on gradients is known to give none back, so that it leaves them as they are."""
    if not isinstance(hook, FunctionValue) or isinstance(hook.function.node, ast.Lambda):
        return False
    return not any(isinstance(inner, ast.Return) and inner.value is not None for inner in walk(hook.function.node))


def _mentions_scale(value: Value | None) -> bool:
    """Whether a number was computed from the loss scale."""
    return isinstance(value, ScaleValue)


def _is_infinite(value: Value | None) -> bool:
    if isinstance(value, Const):
        return value.value == float("inf")
    return isinstance(value, Named) and value.name.rpartition(".")[2] in ("inf", "Inf", "infty")


def _grad_attribute(at: Interpreter, receiver: Grad, name: str, node: ast.AST) -> Value:
    return receiver if name == "data" else at.fresh(node, name)


def _parameter_written(at: Interpreter, receiver: Params, name: str, value: Value, target: ast.Attribute) -> bool:
    if name == "grad":
        grad_written(at, Grad(receiver), value, target)
    elif name == "data":
        at.emit(e.PARAM_WRITE, target, None, None)
    return name in ("grad", "data")


def register(handlers: Handlers) -> None:
    handlers.methods.update({"parameters": _params_method, "gradients": _grad_method})
    handlers.attributes.update({"parameters": _params_attribute, "gradients": _grad_attribute})
    handlers.written["parameters"] = _parameter_written
    handlers.operands["gradients"] = grad_used
    handlers.augmented["gradients"] = grad_written
    handlers.item_written.append(_item_written)
    handlers.rate_divided.append(rate_divided)
