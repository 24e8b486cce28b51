"""Patches of tensors: changed in place, turned into numbers, given gradients and data."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ....protocol.optable import FOREACH_IN_PLACE, IN_PLACE
from ..active import THREAD, is_watching, watching
from ..regions import LOW
from .table import Patch, from_torch

if TYPE_CHECKING:
    from ..recorder import Recorder

#: Methods in place that take one operand and nothing else, and those that take two and a factor: Python calls a
#: function with fixed arguments faster.
ONE_OPERAND = frozenset({"mul_", "multiply_", "__imul__"})
TWO_OPERANDS = frozenset({"addcmul_", "addcdiv_"})
#: What stands for an argument that was not given.
_NONE: Any = object()
#: Those that a running sum is made with, and the sign of what they add.
ADDING = {"add_": 1.0, "__iadd__": 1.0, "sub_": -1.0, "__isub__": -1.0}
#: Methods of tensors by which a program gets at their values.
NUMBERS = ("item", "__bool__", "__float__", "__int__", "numpy", "__array__")


def patches() -> list[Patch]:
    return [
        *(Patch(torch.Tensor, name, around=_in_place(name, effect)) for name, effect in IN_PLACE.items()),
        *(Patch(torch, name, around=_foreach_in_place(effect)) for name, effect in FOREACH_IN_PLACE.items()),
        *(Patch(torch.Tensor, name, around=_taking) for name in NUMBERS),
        Patch(torch.Tensor, "grad", around=_grad),
        Patch(torch.Tensor, "data", around=_data),
    ]


def _notify_changed(tensor: Any, effect: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Tell of a tensor that a patched function is about to change in place."""
    if is_watching() and not torch.compiler.is_compiling() and not from_torch(3):
        if kwargs.get("rounding_mode"):
            effect = "edit"
        given = [*args, *(kwargs[name] for name in ("value", "other", "src") if name in kwargs)]
        # What is copied comes first, and with what a part is filled last.
        operand = given[0 if effect == "replace" else -1] if given else None
        recorders: tuple[Recorder, ...] = THREAD.active
        for recorder in recorders:
            recorder.gradients.changed(tensor, effect, operand)
            if recorder.followers.after_skip is not None:
                recorder.followers.changed(tensor, effect, given)


def _with(named: dict[str, Any], **factor: Any) -> dict[str, Any]:
    """What was given by name, with a factor if that was."""
    return {**named, **{name: given for name, given in factor.items() if given is not _NONE}}


def _in_place(name: str, effect: str) -> Callable[[Any], Any]:
    """An optimizer comes by for each of its parameters, with one operand and nobody watching: that has to be fast."""

    def adding(original: Any) -> Any:
        sign = ADDING[name]

        def added(self: Any, other: Any = _NONE, *more: Any, alpha: Any = _NONE, **named: Any) -> Any:
            if watching:
                _notify_changed(self, effect, () if other is _NONE else (other, *more), named)
            if other is _NONE or named:
                # Torch has more names for an operand than one, and says itself what it does not take.
                given = () if other is _NONE else (other, *more)
                return original(self, *given, **_with(named, alpha=alpha))
            if alpha is _NONE and not more and self.dtype not in LOW:
                return original(self, other)
            factor = {} if alpha is _NONE else {"alpha": alpha}
            if self.dtype in LOW:
                if self.numel() == 1:
                    result = original(self, other, *more, **factor)
                    if not more:
                        _notify_added(self, other, sign * factor.get("alpha", 1))
                    return result
                if factor:
                    return _averaged(original, (self, other, *more), factor)
            return original(self, other, *more, **factor)

        return added

    def averaging(original: Any) -> Any:
        def averaged(self: Any, *given: Any, **named: Any) -> Any:
            if watching:
                _notify_changed(self, effect, given, named)
            return _averaged(original, (self, *given), named) if self.dtype in LOW else original(self, *given, **named)

        return averaged

    def changing(original: Any) -> Any:
        def changed(*args: Any, **kwargs: Any) -> Any:
            if watching:
                _notify_changed(args[0], effect, args[1:], kwargs)
            return original(*args, **kwargs)

        return changed

    def changing_by_one(original: Any) -> Any:
        def changed(self: Any, other: Any = _NONE, **named: Any) -> Any:
            if watching:
                _notify_changed(self, effect, () if other is _NONE else (other,), named)
            if other is _NONE or named:
                return original(self, *(() if other is _NONE else (other,)), **named)
            return original(self, other)

        return changed

    def changing_by_two(original: Any) -> Any:
        def changed(self: Any, *given: Any, value: Any = _NONE, **named: Any) -> Any:
            if watching:
                _notify_changed(self, effect, given, _with(named, value=value))
            if named:
                return original(self, *given, **_with(named, value=value))
            return original(self, *given) if value is _NONE else original(self, *given, value=value)

        return changed

    if name in ADDING:
        return adding
    if name in TWO_OPERANDS:
        return changing_by_two
    if name == "lerp_":
        return averaging
    return changing_by_one if name in ONE_OPERAND else changing


def _averaged(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A step of an average that is kept in low precision: ``add_`` with an ``alpha``, or ``lerp_``."""
    tensor = args[0]
    recorders: tuple[Recorder, ...] = THREAD.active
    if torch.compiler.is_compiling() or not any(recorder.losses.watches_averages(tensor) for recorder in recorders):
        return original(*args, **kwargs)
    # Between the program and this function stands the patch.
    before = None if from_torch(3) else tensor.detach().clone()
    result = original(*args, **kwargs)
    if before is not None:
        for recorder in recorders:
            recorder.losses.averaged_low(tensor, before, args[1] if len(args) > 1 else None)
    return result


def _notify_added(tensor: Any, term: Any, factor: float) -> None:
    recorders: tuple[Recorder, ...] = THREAD.active
    if recorders and not torch.compiler.is_compiling() and not from_torch(3):
        for recorder in recorders:
            recorder.losses.added_low(tensor, term, factor)


def _foreach_in_place(effect: str) -> Callable[[Any], Any]:
    """The first tensor stands for all."""

    def make(original: Any) -> Any:
        def changed(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            for tensor in tensors[:1] if watching else ():
                # What is copied is a list, too.
                given = (next(iter(args[0]), None),) if effect == "replace" and args else args
                _notify_changed(tensor, effect, given, kwargs)
            return original(tensors, *args, **kwargs)

        return changed

    return make


def _taking(original: Any) -> Any:
    def taken(*args: Any, **kwargs: Any) -> Any:
        # What torch looks at by itself decides about no step.
        if watching and is_watching() and not torch.compiler.is_compiling() and not from_torch():
            recorders: tuple[Recorder, ...] = THREAD.active
            for recorder in recorders:
                recorder.clipping.number_taken()
        return original(*args, **kwargs)

    return taken


class _Slot(property):
    """A property in the place of a slot that tensors have in C++; torch asks those for their class and name."""

    __objclass__ = torch._C.TensorBase

    def __init__(self, name: str, *functions: Any) -> None:
        super().__init__(*functions)
        self.__name__ = name


def _grad(original: Any) -> Any:
    assign = original.__set__

    def set_grad(self: Any, value: Any) -> None:
        if not THREAD.clearing:
            recorders: tuple[Recorder, ...] = THREAD.active
            if recorders and not from_torch():
                for recorder in recorders:
                    recorder.gradients.assigned(self, value)
        assign(self, value)

    # Tensors have the same slot twice. Asking for the other one is twice as fast as calling the one that is covered,
    # and torch reads gradients many times a step.
    return _Slot("grad", operator.attrgetter("_grad"), set_grad, original.__delete__)


def _data(original: Any) -> Any:
    def set_data(self: Any, value: Any) -> None:
        recorders: tuple[Recorder, ...] = THREAD.active
        if recorders and not from_torch():
            for recorder in recorders:
                recorder.weights.written(self)
                recorder.gradients.given_data(self, value)
                if recorder.followers.after_skip is not None:
                    recorder.followers.changed(self, "replace", (value,))
                if value.dtype in LOW and value.dtype is not self.dtype and isinstance(self, torch.nn.Parameter):
                    recorder.weights.births.data_cast(self, LOW[value.dtype])
        original.__set__(self, value)

    return _Slot("data", original.__get__, set_data)
