"""Gradients: reading, editing, clipping and clearing them by hand."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol.events import Event
from ...protocol.words import Words
from ..interpreter.expressions import undo
from ..interpreter.values import (
    NONE,
    Const,
    FunctionValue,
    Grad,
    Named,
    Params,
    ScaleValue,
    Sequence,
    Value,
    merge_params,
)
from ..project.syntax import walk
from .overhead import Overhead

#: Tensor methods that edit in place.
EDITS = frozenset("mul_ clamp_ clip_ nan_to_num_ add_ sub_ copy_ masked_fill_ sign_ clamp_min_ clamp_max_".split())
#: Methods of tensors, modules and optimizers that let other code have the gradients before the step.
HOOKS = frozenset(
    "register_hook register_post_accumulate_grad_hook register_step_pre_hook register_comm_hook "
    "register_full_backward_hook register_full_backward_pre_hook".split()
)
READS = frozenset("norm abs mean max min std pow sum square histc isnan isinf isfinite".split())


class Gradients(Overhead):
    """Reads what is done to parameters and their gradients."""

    def rate_divided(self, params: Params) -> None:
        """Averaging may be left to the learning rate, or to a hook on the gradients."""
        owners = self._owners(params)
        if owners is None and self.state.frame.module is self.module:
            # Of an optimizer that the file may only come to know by its use.
            self.program.facts["averaged"] = True
        for key in owners or ():
            self.program.things[key].facts["divided"] = True

    def _params_method(self, params: Params, name: str, args: list[Value], node: ast.AST) -> Value:
        if name in HOOKS:
            if name != "register_hook" or not _only_looks(args[0] if args else NONE):
                self.rate_divided(params)
            return self.fresh(node, name)
        if name in ("values", "items", "copy"):
            return params
        if name in ("copy_", "add_", "mul_", "sub_", "fill_", "zero_", "lerp_"):
            self.emit(e.PARAM_WRITE, node, None, None)
            return params
        return self.fresh(node, name)

    def _grad_method(self, grad: Grad, name: str, args: list[Value], node: ast.AST) -> Value:
        owners = self._owners(grad.params)
        names = {"call": self.words(node), "params": self.receiver_words(node), **self._owner_name(owners)}
        if name in ("zero_", "detach_"):
            if name == "zero_":
                self.emit(e.ZERO_GRAD, node, None, None, owners=owners if owners is not None else (), names=names)
            return grad
        first = args[0] if args else NONE
        if name == "fill_":
            self.grad_written(grad, first, node)
            return grad
        if name in ("div_", "mul_"):
            result = self.operate("/" if name == "div_" else "*", grad, first, node)
            self.grad_written(grad, result, node)
            return grad
        if name in EDITS:
            self.emit(e.GRAD_EDIT, node, None, None, owners=owners, names=names)
            return grad
        if name in ("detach", "clone", "data", "float", "to", "cpu", "flatten", "view", "reshape"):
            return grad
        if name in READS:
            return self._read_grad(grad, node, name)
        return self.fresh(node, name)

    def _owner_name(self, owners: tuple[int, ...] | None) -> dict[str, object]:
        """What the user calls the one optimizer that holds some gradients."""
        return {"optimizer": self.program.things[owners[0]].name} if owners is not None and len(owners) == 1 else {}

    def _read_grad(self, grad: Grad, node: ast.AST, name: str) -> Value:
        """A number computed from gradients; dividing it by the scale puts the reading right."""
        reading = self.grad_used(grad, node)
        made = self.fresh(node, name)
        if reading is not None:
            made.readings = (reading,)
        return made

    def grad_written(self, target: Grad, value: Value, node: ast.AST) -> None:
        """An assignment to ``p.grad``, or an edit of it in place."""
        owners = self._owners(target.params)
        call = self.words(node) if isinstance(node, ast.expr) else "this assignment"
        names = {"params": "p.grad", "call": call, **self._owner_name(owners)}
        if isinstance(value, Const) and value.value is None:
            self.emit(
                e.ZERO_GRAD,
                node,
                None,
                None,
                owners=owners if owners is not None else self._all_optimizers(),
                names=names,
            )
        elif isinstance(value, Grad) and value.unscaled:
            self.emit(e.GRAD_DIVIDE, node, None, None, owners=owners, names=names)
        elif isinstance(value, Grad) and isinstance(node, (ast.AugAssign, ast.Call)) and self._normalises(node):
            self.emit(e.GRAD_NORMALISE, node, None, None, owners=owners, names=names)
        elif isinstance(node, ast.AugAssign):
            self.emit(e.GRAD_EDIT, node, None, None, owners=owners, names=names)
        else:
            # Gradients that come from elsewhere (averaged over ranks, restored): whatever they are.
            undo(value)
            self.emit(e.HANDOFF, node, None, None, things=owners if owners is not None else self._all_optimizers())

    @staticmethod
    def _normalises(node: ast.AST) -> bool:
        """Whether gradients are divided by a number, as the end of an accumulation window does."""
        if isinstance(node, ast.AugAssign):
            return isinstance(node.op, (ast.Div, ast.Mult))
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("div_", "mul_", "_foreach_div_", "_foreach_mul_")
        )

    def grad_used(self, grad: Grad, node: ast.AST) -> Event | None:
        if grad.unscaled:
            return None
        return self.emit(
            e.GRAD_READ,
            node,
            None,
            None,
            owners=self._owners(grad.params),
            names={"params": "p.grad", "call": self.words(node), **self._owner_name(self._owners(grad.params))},
        )

    def _clip(self, params: Value | None, rest: list[Value], bound: dict[str, Value], node: ast.AST) -> Value:
        norm = self.fresh(node, "norm")
        limit = bound.get("max_norm") or bound.get("clip_value") or (rest[0] if rest else None)
        if _mentions_scale(limit):
            # The limit is scaled as the gradients are.
            return norm
        strict = bound.get("error_if_nonfinite")
        arguments = node.args if isinstance(node, ast.Call) else []
        clipping = self.emit(
            e.CLIP,
            node,
            None,
            None,
            owners=self._clip_owners(params),
            nonfinite_error=isinstance(strict, Const) and strict.value is True and not self.state.guarded,
            measures_only=_is_infinite(limit),
            names={"call": self.words(node), "params": Words(arguments[0]) if arguments else ""},
        )
        if clipping is not None:
            norm.readings = (clipping,)
        return norm

    def _clip_owners(self, params: Value | None) -> tuple[int, ...] | None:
        if isinstance(params, Params):
            return self._owners(params)
        if isinstance(params, Sequence):
            parts = [item for item in params.items if isinstance(item, Params)]
            if parts and len(parts) == len(params.items):
                return self._owners(merge_params(parts))
        return None

    def receiver_words(self, node: ast.AST) -> object:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return Words(node.func.value)
        return ""


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
