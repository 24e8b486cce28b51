"""Calls of unanalyzed wrappers whose events are declared in the configuration, by name and in order.

The arguments of the call select the scaler, the optimizer, the loss and the parameters of the events. A call that lacks
an argument of an event is an ordinary unanalyzed call.
"""

from __future__ import annotations

import ast

from ...protocol import declared_wrappers
from ..interpreter.interpreter import Interpreter
from ..interpreter.values.definitions import Args, ExternalName, Keywords
from ..interpreter.values.gradients import ParamsValue
from ..interpreter.values.tensors import TensorValue
from ..interpreter.values.value import NONE, Const, UnknownValue, Value
from .arguments import object_ref_of

#: A value passed to a wrapper, with the expression in the source.
Given = tuple[Value, ast.expr]
#: Text that the name of an unknown argument must contain to be the scaler, the optimizer or the loss.
_CALLED = {"scaler": "scal", "optimizer": "opt", "loss": "loss"}


class WrapperCalls(dict[tuple[ast.AST, str], ast.Call]):
    """Synthetic calls that a wrapper runs, by the call of the wrapper and the event."""


def call_wrapper(interp: Interpreter, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """Return the result of a call of a declared wrapper, or None for any other call."""
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
    """Return the arguments of a call, each with the expression. Return an empty list if an argument is starred."""
    if any(isinstance(each, ast.Starred) for each in node.args):
        return []
    named = [(keywords[each.arg], each.value) for each in node.keywords if each.arg is not None]
    return [*zip(args, node.args, strict=False), *named]


class _WrapperCall:
    """One call of a declared wrapper."""

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
        """Return True if the call lacks an argument that an event needs."""
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
        """Run the call of torch that corresponds to an event."""
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
        """Return the call for an event at the location of the wrapper call. Repeated analysis returns the same node."""
        return self._interp.file_data(WrapperCalls).setdefault(
            (self._call_node, event), ast.copy_location(made, self._call_node)
        )


def _find_by_role(given: list[Given], role: str) -> Given | None:
    return next((each for each in given if object_ref_of(each[0], role) is not None), None) or _find_by_name(
        given, role
    )


def _find_by_name(given: list[Given], what: str) -> Given | None:
    """Return the first unknown argument with a name that fits a purpose, or None."""
    for value, words in given:
        if _is_unknown_module(value) and _CALLED[what] in ast.unparse(words).lower():
            return value, words
    return None


def _is_unknown_module(value: Value) -> bool:
    """Return True if a value is unknown, or is a module known only from clearing gradients."""
    ref = object_ref_of(value, "module")
    return isinstance(value, UnknownValue) or (ref is not None and not vars(ref.tracked_object.attributes))
