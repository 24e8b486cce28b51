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

#: Methods in place that take one operand and nothing else: Python calls a function with fixed arguments faster.
ONE_OPERAND = frozenset({"mul_", "multiply_", "__imul__"})
#: Those that a running sum is made with, and the sign of what they add.
ADDING = {"add_": 1.0, "__iadd__": 1.0, "sub_": -1.0, "__isub__": -1.0}
#: Methods of tensors by which a program gets at their values.
NUMBERS = ("item", "__bool__", "__float__", "__int__", "numpy", "__array__")
_MISSING = object()


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


def _in_place(name: str, effect: str) -> Callable[[Any], Any]:
    """An optimizer comes by for each of its parameters, with one operand and nobody watching: that has to be fast."""

    def adding(original: Any) -> Any:
        sign = ADDING[name]
        averaged = averaging(original, depth=4)

        def added(self: Any, operand: Any = _MISSING, /, *args: Any, **kwargs: Any) -> Any:
            low = self.dtype in LOW and self.numel() == 1
            if "alpha" in kwargs and not low and self.dtype in LOW:
                return averaged(self, operand, *args, **kwargs)
            if not low and not watching and not args and not kwargs and operand is not _MISSING:
                return original(self, operand)
            if operand is not _MISSING:
                args = (operand, *args)
            if watching:
                _notify_changed(self, effect, args, kwargs)
            result = original(self, *args, **kwargs)
            if low and len(args) == 1:
                _notify_added(self, operand, sign * kwargs.get("alpha", 1))
            return result

        return added

    def averaging(original: Any, depth: int = 3) -> Any:
        """A step of an average that may be kept in low precision: ``add_`` with an ``alpha``, or ``lerp_``."""

        def averaged(self: Any, *args: Any, **kwargs: Any) -> Any:
            if watching:
                _notify_changed(self, effect, args, kwargs)
            before = _before_average(self, depth) if self.dtype in LOW else None
            result = original(self, *args, **kwargs)
            if before is not None:
                recorders: tuple[Recorder, ...] = THREAD.active
                for recorder in recorders:
                    recorder.losses.averaged_low(self, before, args[0] if args else None)
            return result

        return averaged

    def changing(original: Any) -> Any:
        def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
            if watching:
                _notify_changed(self, effect, args, kwargs)
            return original(self, *args, **kwargs)

        return changed

    def changing_by_one(original: Any) -> Any:
        def changed(self: Any, other: Any) -> Any:
            if watching:
                _notify_changed(self, effect, (other,), {})
            return original(self, other)

        return changed

    if name in ADDING:
        return adding
    if name == "lerp_":
        return averaging
    return changing_by_one if name in ONE_OPERAND else changing


def _before_average(tensor: Any, depth: int) -> Any:
    """The values of a tensor that is about to be changed by a little, where a recorder wants to see whether it is."""
    recorders: tuple[Recorder, ...] = THREAD.active
    if not recorders or torch.compiler.is_compiling() or from_torch(depth):
        return None
    return tensor.detach().clone() if any(recorder.losses.watches_averages(tensor) for recorder in recorders) else None


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
    def taken(self: Any, *args: Any, **kwargs: Any) -> Any:
        # What torch looks at by itself decides about no step.
        if watching and is_watching() and not torch.compiler.is_compiling() and not from_torch():
            recorders: tuple[Recorder, ...] = THREAD.active
            for recorder in recorders:
                recorder.clipping.number_taken()
        return original(self, *args, **kwargs)

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
        recorders: tuple[Recorder, ...] = THREAD.active
        if recorders and not THREAD.clearing and not from_torch():
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
                if value.dtype in LOW and value.dtype is not self.dtype and isinstance(self, torch.nn.Parameter):
                    recorder.weights.births.data_cast(self, LOW[value.dtype])
        original.__set__(self, value)

    return _Slot("data", original.__get__, set_data)
