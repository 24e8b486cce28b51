"""Wrappers that cannot be read, and of which the configuration says what they do: events by name, in their order.

What a wrapper is given says to whom: to the scaler, the optimizer, the loss and the parameters among its arguments. One
that is not given what an event of its own needs is like every other call that cannot be read.
"""

from __future__ import annotations

import ast

from ...protocol import declared_wrappers
from ..interpreter.interpreter import Interpreter
from ..interpreter.values import (
    NONE,
    Args,
    Const,
    ExternalName,
    Keywords,
    ParamsValue,
    TensorValue,
    UnknownValue,
    Value,
)
from .arguments import object_ref_of

#: A value that a wrapper is given, with the user's own expression for it.
Given = tuple[Value, ast.expr]
#: What the name of an argument holds of which only that is known.
_CALLED = {"scaler": "scal", "optimizer": "opt", "loss": "loss"}


class WrapperCalls(dict[tuple[ast.AST, str], ast.Call]):
    """The calls that wrappers stand for, by the call of the wrapper and the event."""


def call_wrapper(interp: Interpreter, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """The value of a call of a wrapper that the configuration knows; None for every other one."""
    does = interp.project.declared_wrappers.get(name)
    if does is None or not isinstance(node, ast.Call):
        return None
    wrapper = _WrapperCall(interp, node, _pair_arguments(args, keywords, node))
    if any(wrapper.lacks_argument(event) for event in does):
        return None
    for event in does:
        wrapper.run_event(event)
    return wrapper.result


def _pair_arguments(args: Args, keywords: Keywords, node: ast.Call) -> list[Given]:
    """The values that a call is given, each with its expression; without those behind stars."""
    if any(isinstance(each, ast.Starred) for each in node.args):
        return []
    named = [(keywords[each.arg], each.value) for each in node.keywords if each.arg is not None]
    return [*zip(args, node.args, strict=False), *named]


class _WrapperCall:
    """One call of a wrapper."""

    def __init__(self, interp: Interpreter, node: ast.Call, given: list[Given]) -> None:
        self._interp = interp
        self._call_node = node
        self.result: Value = NONE
        self._scaler_argument = _find_by_role(given, "scaler")
        self._optimizer_argument = _find_by_role(given, "optimizer")
        self._loss_argument = next((each for each in given if isinstance(each[0], TensorValue)), None) or _find_by_name(
            given, "loss"
        )
        self._params_argument = next((each for each in given if isinstance(each[0], ParamsValue)), None)
        modules = (each for each in given if object_ref_of(each[0], "module") and each != self._optimizer_argument)
        self._module_argument = next(modules, None)

    def lacks_argument(self, event: str) -> bool:
        """Whether the call is not given what an event needs."""
        needed: dict[str, tuple[object, ...]] = {
            declared_wrappers.SCALES: (self._scaler_argument, self._loss_argument),
            declared_wrappers.BACKWARD: (self._loss_argument,),
            declared_wrappers.UNSCALES: (self._scaler_argument, self._optimizer_argument),
            declared_wrappers.CLIPS: (self._params_argument or self._module_argument or self._optimizer_argument,),
            declared_wrappers.STEPS: (self._optimizer_argument,),
            declared_wrappers.UPDATES: (self._scaler_argument,),
            declared_wrappers.CLEARS: (self._optimizer_argument or self._module_argument,),
        }
        return any(each is None for each in needed[event])

    def run_event(self, event: str) -> None:
        """Do as the call of torch does that the event stands for."""
        scaler, optimizer, loss = self._scaler_argument, self._optimizer_argument, self._loss_argument
        if event == declared_wrappers.SCALES and scaler and loss:
            self._loss_argument = (self._run_method(event, scaler, "scale", loss), loss[1])
            self.result = self._loss_argument[0]
        elif event == declared_wrappers.BACKWARD and loss:
            self._run_method(event, loss, "backward")
        elif event == declared_wrappers.UNSCALES and scaler and optimizer:
            self._run_method(event, scaler, "unscale_", optimizer)
        elif event == declared_wrappers.CLIPS:
            self._run_clip()
        elif event == declared_wrappers.STEPS and optimizer:
            if scaler:
                self._run_method(event, scaler, "step", optimizer)
            else:
                self._run_method(event, optimizer, "step")
        elif event == declared_wrappers.UPDATES and scaler:
            self._run_method(event, scaler, "update")
        elif event == declared_wrappers.CLEARS:
            cleared = optimizer or self._module_argument
            assert cleared is not None
            self._run_method(event, cleared, "zero_grad")

    def _run_clip(self) -> None:
        at = self._interp
        if self._params_argument is not None:
            params, words = self._params_argument
        elif self._module_argument is not None:
            words = self._module_argument[1]
            params = at.call_method(
                self._module_argument[0], "parameters", [], {}, self._make_call("parameters", words, "parameters")
            )
        else:
            assert self._optimizer_argument is not None
            value, words = self._optimizer_argument
            ref = object_ref_of(value, "optimizer")
            params = ParamsValue(None, frozenset((ref.tracked_object.key,)) if ref is not None else None)
        node = self._locate_call(declared_wrappers.CLIPS, ast.Call(self._call_node.func, [words], []))
        self.result = at.call_value(ExternalName("torch.nn.utils.clip_grad_norm_"), [params, Const(1.0)], {}, node)

    def _run_method(self, event: str, receiver: Given, name: str, *args: Given) -> Value:
        node = self._make_call(event, receiver[1], name, *(words for _, words in args))
        return self._interp.call_method(receiver[0], name, [value for value, _ in args], {}, node)

    def _make_call(self, event: str, receiver: ast.expr, name: str, *args: ast.expr) -> ast.Call:
        func = ast.copy_location(ast.Attribute(receiver, name, ast.Load()), self._call_node)
        return self._locate_call(event, ast.Call(func, list(args), []))

    def _locate_call(self, event: str, made: ast.Call) -> ast.Call:
        """The call that an event stands for, where the wrapper is called: the same one each time that this is read."""
        return self._interp.file_data(WrapperCalls).setdefault(
            (self._call_node, event), ast.copy_location(made, self._call_node)
        )


def _find_by_role(given: list[Given], role: str) -> Given | None:
    return next((each for each in given if object_ref_of(each[0], role) is not None), None) or _find_by_name(
        given, role
    )


def _find_by_name(given: list[Given], what: str) -> Given | None:
    """An argument of which only the name is known, and that is called so."""
    for value, words in given:
        if _is_unknown_module(value) and _CALLED[what] in ast.unparse(words).lower():
            return value, words
    return None


def _is_unknown_module(value: Value) -> bool:
    """Whether nothing more is known of a value than that its gradients were cleared, as modules have it, too."""
    ref = object_ref_of(value, "module")
    return isinstance(value, UnknownValue) or (ref is not None and not ref.tracked_object.attributes)
