"""Patches of tensors: changed in place, turned into numbers, given gradients and data."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..active import THREAD, is_watching, watching
from ..regions import LOW
from .table import Patch, from_torch

if TYPE_CHECKING:
    from ..recorder import Recorder

#: Methods that change a tensor in place, by what they do to gradients.
IN_PLACE = {
    "zero_": "zero",
    "div_": "divide",
    "true_divide_": "divide",
    "__itruediv__": "divide",
    "mul_": "multiply",
    "multiply_": "multiply",
    "__imul__": "multiply",
    "copy_": "replace",
    "__setitem__": "fill",
    "fill_": "fill",
    **dict.fromkeys(
        (
            "add_ sub_ clamp_ clamp_min_ clamp_max_ clip_ nan_to_num_ masked_fill_ index_fill_ pow_ sign_ "
            "__iadd__ __isub__ normal_ uniform_ renorm_ round_"
        ).split(),
        "edit",
    ),
}
#: Those that take one operand and nothing else: Python calls a function with fixed arguments faster.
ONE_OPERAND = frozenset({"mul_", "multiply_", "__imul__"})
#: Those that a running sum is made with, and the sign of what they add.
ADDING = {"add_": 1.0, "__iadd__": 1.0, "sub_": -1.0, "__isub__": -1.0}
#: The same for functions of torch that take a list of tensors.
ALL_IN_PLACE = {
    "_foreach_zero_": "zero",
    "_foreach_div_": "divide",
    "_foreach_mul_": "multiply",
    "_foreach_copy_": "replace",
    **{f"_foreach_{name}_": "edit" for name in "add sub clamp_min clamp_max maximum minimum pow sqrt neg abs".split()},
}
#: Methods of tensors by which a program gets at their values.
NUMBERS = ("item", "__bool__", "__float__", "__int__", "numpy", "__array__")
_MISSING = object()


def patches() -> list[Patch]:
    return [
        *(Patch(torch.Tensor, name, around=_in_place(name, effect)) for name, effect in IN_PLACE.items()),
        *(Patch(torch, name, around=_all_in_place(effect)) for name, effect in ALL_IN_PLACE.items()),
        *(Patch(torch.Tensor, name, around=_taking) for name in NUMBERS),
        Patch(torch.Tensor, "grad", around=_grad),
        Patch(torch.Tensor, "data", around=_data),
    ]


def _tell_changed(tensor: Any, effect: str, args: tuple[Any, ...]) -> None:
    """Tell of a tensor that a patched function is about to change in place."""
    if is_watching() and not torch.compiler.is_compiling() and not from_torch(3):
        recorders: tuple[Recorder, ...] = THREAD.active
        for recorder in recorders:
            recorder.gradients.changed(tensor, effect, args)


def _in_place(name: str, effect: str) -> Callable[[Any], Any]:
    """An optimizer comes by for each of its parameters, with one operand and nobody watching: that has to be fast."""

    def adding(original: Any) -> Any:
        sign = ADDING[name]

        def added(self: Any, operand: Any = _MISSING, /, *args: Any, **kwargs: Any) -> Any:
            low = self.dtype in LOW and self.numel() == 1
            if not low and not watching and not args and not kwargs and operand is not _MISSING:
                return original(self, operand)
            if operand is not _MISSING:
                args = (operand, *args)
            _tell_changed(self, effect, args)
            result = original(self, *args, **kwargs)
            if low and len(args) == 1:
                _tell_added(self, operand, sign * kwargs.get("alpha", 1))
            return result

        return added

    def changing(original: Any) -> Any:
        def changed(self: Any, operand: Any = _MISSING, /, *args: Any, **kwargs: Any) -> Any:
            if not watching and not args and not kwargs and operand is not _MISSING:
                return original(self, operand)
            if operand is not _MISSING:
                args = (operand, *args)
            _tell_changed(self, effect, args)
            return original(self, *args, **kwargs)

        return changed

    def changing_by_one(original: Any) -> Any:
        def changed(self: Any, other: Any) -> Any:
            if watching:
                _tell_changed(self, effect, (other,))
            return original(self, other)

        return changed

    if name in ADDING:
        return adding
    return changing_by_one if name in ONE_OPERAND else changing


def _tell_added(tensor: Any, term: Any, factor: float) -> None:
    recorders: tuple[Recorder, ...] = THREAD.active
    if recorders and not torch.compiler.is_compiling() and not from_torch(3):
        for recorder in recorders:
            recorder.losses.added_low(tensor, term, factor)


def _all_in_place(effect: str) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def changed(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            for tensor in tensors[:1] if watching else ():
                _tell_changed(tensor, effect, args)
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
        original.__set__(self, value)

    return _Slot("data", original.__get__, set_data)
