"""Wrappers that cannot be read, and of which the configuration says what they do: events by name, in their order.

What a wrapper is given says to whom: to the scaler, the optimizer, the loss and the parameters among its arguments. One
that is not given what an event of its own needs is like every other call that cannot be read.
"""

from __future__ import annotations

import ast

from ...protocol import wrappers
from ..interpreter.interpreter import Interpreter
from ..interpreter.values import NONE, Args, Const, Keywords, Named, Opaque, Params, Tensor, Value
from .arguments import ref_of

#: A value that a wrapper is given, with the user's own expression for it.
Given = tuple[Value, ast.expr]
#: What the name of an argument holds of which only that is known.
_CALLED = {"scaler": "scal", "optimizer": "opt", "loss": "loss"}


class Made(dict[tuple[ast.AST, str], ast.Call]):
    """The calls that wrappers stand for, by the call of the wrapper and the event."""


def declared_call(at: Interpreter, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """The value of a call of a wrapper that the configuration knows; None for every other one."""
    does = at.project.declared.get(name)
    if does is None or not isinstance(node, ast.Call):
        return None
    wrapper = _Wrapper(at, node, _given(args, keywords, node))
    if any(wrapper.lacks(event) for event in does):
        return None
    for event in does:
        wrapper.do(event)
    return wrapper.result


def _given(args: Args, keywords: Keywords, node: ast.Call) -> list[Given]:
    """The values that a call is given, each with its expression; without those behind stars."""
    if any(isinstance(each, ast.Starred) for each in node.args):
        return []
    named = [(keywords[each.arg], each.value) for each in node.keywords if each.arg is not None]
    return [*zip(args, node.args, strict=False), *named]


class _Wrapper:
    """One call of a wrapper."""

    def __init__(self, at: Interpreter, node: ast.Call, given: list[Given]) -> None:
        self._at = at
        self._node = node
        self.result: Value = NONE
        self._scaler = _of_role(given, "scaler")
        self._optimizer = _of_role(given, "optimizer")
        self._loss = next((each for each in given if isinstance(each[0], Tensor)), None) or _called(given, "loss")
        self._parameters = next((each for each in given if isinstance(each[0], Params)), None)
        modules = (each for each in given if ref_of(each[0], "module") and each != self._optimizer)
        self._module = next(modules, None)

    def lacks(self, event: str) -> bool:
        """Whether the call is not given what an event needs."""
        needed: dict[str, tuple[object, ...]] = {
            wrappers.SCALES: (self._scaler, self._loss),
            wrappers.BACKWARD: (self._loss,),
            wrappers.UNSCALES: (self._scaler, self._optimizer),
            wrappers.CLIPS: (self._parameters or self._module or self._optimizer,),
            wrappers.STEPS: (self._optimizer,),
            wrappers.UPDATES: (self._scaler,),
            wrappers.CLEARS: (self._optimizer or self._module,),
        }
        return any(each is None for each in needed[event])

    def do(self, event: str) -> None:
        """Do as the call of torch does that the event stands for."""
        scaler, optimizer, loss = self._scaler, self._optimizer, self._loss
        if event == wrappers.SCALES and scaler and loss:
            self._loss = (self._method(event, scaler, "scale", loss), loss[1])
            self.result = self._loss[0]
        elif event == wrappers.BACKWARD and loss:
            self._method(event, loss, "backward")
        elif event == wrappers.UNSCALES and scaler and optimizer:
            self._method(event, scaler, "unscale_", optimizer)
        elif event == wrappers.CLIPS:
            self._clip()
        elif event == wrappers.STEPS and optimizer:
            if scaler:
                self._method(event, scaler, "step", optimizer)
            else:
                self._method(event, optimizer, "step")
        elif event == wrappers.UPDATES and scaler:
            self._method(event, scaler, "update")
        elif event == wrappers.CLEARS:
            cleared = optimizer or self._module
            assert cleared is not None
            self._method(event, cleared, "zero_grad")

    def _clip(self) -> None:
        at = self._at
        if self._parameters is not None:
            params, words = self._parameters
        elif self._module is not None:
            words = self._module[1]
            params = at.method(self._module[0], "parameters", [], {}, self._call("parameters", words, "parameters"))
        else:
            assert self._optimizer is not None
            value, words = self._optimizer
            ref = ref_of(value, "optimizer")
            params = Params(None, frozenset((ref.thing.key,)) if ref is not None else None)
        node = self._at_call(wrappers.CLIPS, ast.Call(self._node.func, [words], []))
        self.result = at.call_value(Named("torch.nn.utils.clip_grad_norm_"), [params, Const(1.0)], {}, node)

    def _method(self, event: str, receiver: Given, name: str, *args: Given) -> Value:
        node = self._call(event, receiver[1], name, *(words for _, words in args))
        return self._at.method(receiver[0], name, [value for value, _ in args], {}, node)

    def _call(self, event: str, receiver: ast.expr, name: str, *args: ast.expr) -> ast.Call:
        func = ast.copy_location(ast.Attribute(receiver, name, ast.Load()), self._node)
        return self._at_call(event, ast.Call(func, list(args), []))

    def _at_call(self, event: str, made: ast.Call) -> ast.Call:
        """The call that an event stands for, where the wrapper is called: the same one each time that this is read."""
        return self._at.of_file(Made).setdefault((self._node, event), ast.copy_location(made, self._node))


def _of_role(given: list[Given], role: str) -> Given | None:
    return next((each for each in given if ref_of(each[0], role) is not None), None) or _called(given, role)


def _called(given: list[Given], what: str) -> Given | None:
    """An argument of which only the name is known, and that is called so."""
    for value, words in given:
        if _is_bare(value) and _CALLED[what] in ast.unparse(words).lower():
            return value, words
    return None


def _is_bare(value: Value) -> bool:
    """Whether nothing more is known of a value than that its gradients were cleared, as modules have it, too."""
    ref = ref_of(value, "module")
    return isinstance(value, Opaque) or (ref is not None and not ref.thing.facts)
