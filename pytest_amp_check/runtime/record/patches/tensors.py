"""Patches of tensors: in-place changes, conversions to numbers, and assignments of gradients and data."""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ....protocol.optable import FOREACH_IN_PLACE, IN_PLACE
from ..active import THREAD, is_watching, watching
from ..regions import LOW
from .table import Patch, is_called_by_torch

if TYPE_CHECKING:
    from ..recorder import Recorder

#: In-place methods with exactly one operand, and with two operands and a factor. They get wrappers with fixed
#: arguments, because Python calls such functions faster.
ONE_OPERAND = frozenset({"mul_", "multiply_", "__imul__"})
TWO_OPERANDS = frozenset({"addcmul_", "addcdiv_"})
#: Stands for an argument that was not given.
_NONE: Any = object()
#: Methods that can form a running sum, with the sign of the term.
ADDING = {"add_": 1.0, "__iadd__": 1.0, "sub_": -1.0, "__isub__": -1.0}
#: Methods that add up the elements of a source by an index.
INDEXED_SUMS = frozenset({"index_add_", "scatter_add_"})
_VECTOR_CODE = torch.nn.utils.vector_to_parameters.__code__
#: Code of torch that clears the gradient of each parameter.
_CLEARING_CODES = frozenset(
    inspect.unwrap(method).__code__ for method in (torch.optim.Optimizer.zero_grad, torch.nn.Module.zero_grad)
)
#: Methods of tensors through which a program reads their values.
NUMBERS = ("item", "__bool__", "__float__", "__int__", "numpy", "__array__")


def patches() -> list[Patch]:
    return [
        *(Patch(torch.Tensor, name, make_wrapper=_wrap_in_place(name, effect)) for name, effect in IN_PLACE.items()),
        # Many in-place methods are also functions.
        *(Patch(torch, name, make_wrapper=_wrap_in_place(name, effect)) for name, effect in IN_PLACE.items()),
        Patch(torch.Tensor, "set_", on_call=_notify_new_storage, only_user_calls=True, may_be_compiled=True),
        *(Patch(torch, name, make_wrapper=_wrap_foreach_in_place(effect)) for name, effect in FOREACH_IN_PLACE.items()),
        *(Patch(torch.Tensor, name, make_wrapper=_wrap_number_taken(name)) for name in NUMBERS),
        Patch(torch.Tensor, "register_hook", on_call=_notify_hook, only_user_calls=True, may_be_compiled=True),
        Patch(torch.Tensor, "grad", make_wrapper=_patch_grad),
        Patch(torch.Tensor, "data", make_wrapper=_patch_data),
    ]


def _notify_change(
    tensor: Any, effect: str, args: Sequence[Any], kwargs: dict[str, Any], others: Sequence[Any] = ()
) -> None:
    """Report a tensor that a patched function is about to change in place, possibly together with others."""
    if (
        isinstance(tensor, torch.Tensor)
        and is_watching()
        and not torch.compiler.is_compiling()
        and not is_called_by_torch(3)
    ):
        if kwargs.get("rounding_mode"):
            effect = "edit"
        operands = [*args, *(kwargs[name] for name in ("value", "other", "scalar") if name in kwargs)]
        # The copied tensor is the first operand, and a fill value is the last operand.
        operand = operands[0 if effect == "replace" else -1] if operands else None
        recorders: tuple[Recorder, ...] = THREAD.active_recorders
        for recorder in recorders:
            recorder.gradients.record_change(tensor, effect, operand, others)


def _add_factor(keywords: dict[str, Any], **factor: Any) -> dict[str, Any]:
    """Return the keyword arguments, plus the factor if given."""
    return {**keywords, **{name: value for name, value in factor.items() if value is not _NONE}}


def _wrap_in_place(name: str, effect: str) -> Callable[[Any], Any]:
    """Return a wrapper of an in-place method.

    An optimizer calls the method for each parameter, with positional operands and without a watching recorder, so this
    case comes first, and passes the operands on without a tuple or a dict.
    """

    def wrap_addition(original: Any) -> Any:
        sign = ADDING[name]

        def patched_addition(self: Any, other: Any = _NONE, *more: Any, alpha: Any = _NONE, **named: Any) -> Any:
            if not watching and alpha is _NONE and not (more or named or other is _NONE) and self.dtype not in LOW:
                return original(self, other)
            if watching:
                _notify_change(self, effect, () if other is _NONE else (other, *more), named)
            if other is _NONE or named:
                # torch has several names for an operand, and raises its own error for unknown arguments.
                operands = () if other is _NONE else (other, *more)
                return original(self, *operands, **_add_factor(named, alpha=alpha))
            factor = {} if alpha is _NONE else {"alpha": alpha}
            if self.dtype in LOW:
                if self.numel() == 1:
                    result = original(self, other, *more, **factor)
                    if not more:
                        for recorder in _recorders_of_sums():
                            recorder.losses.record_low_sum(self, other, sign * factor.get("alpha", 1))
                    return result
                if factor:
                    return _run_average_step(original, (self, other, *more), factor)
                if isinstance(other, torch.Tensor) and not (other.is_floating_point() or self.requires_grad):
                    result = original(self, other, *more)
                    for recorder in _recorders_of_sums():
                        recorder.losses.record_integers_added(self)
                    return result
            return original(self, other, *more, **factor)

        return patched_addition

    def wrap_average(original: Any) -> Any:
        def patched_average(self: Any, end: Any = _NONE, weight: Any = _NONE, *more: Any, **named: Any) -> Any:
            if not (watching or more or named or weight is _NONE) and self.dtype not in LOW:
                return original(self, end, weight)
            operands = (*(operand for operand in (end, weight) if operand is not _NONE), *more)
            if watching:
                _notify_change(self, effect, operands, named)
            return (
                _run_average_step(original, (self, *operands), named)
                if self.dtype in LOW
                else original(self, *operands, **named)
            )

        return patched_average

    def wrap_change(original: Any) -> Any:
        def patched_change(*args: Any, **kwargs: Any) -> Any:
            if watching:
                # Functions of torch take the tensor by its name, too.
                tensor, *operands = args or (kwargs.get("input"),)
                _notify_change(tensor, effect, operands, kwargs)
            return original(*args, **kwargs)

        return patched_change

    def wrap_one_operand(original: Any) -> Any:
        def patched_change(self: Any, other: Any = _NONE, **named: Any) -> Any:
            if not (watching or named or other is _NONE) and (type(other) is not float or self.dtype not in LOW):
                return original(self, other)
            if watching:
                _notify_change(self, effect, () if other is _NONE else (other,), named)
            if other is _NONE or named:
                return original(self, *(() if other is _NONE else (other,)), **named)
            if isinstance(other, float) and 0.0 < other < 1.0 and self.dtype in LOW:
                return _run_decay(original, self, other)
            return original(self, other)

        return patched_change

    def wrap_two_operands(original: Any) -> Any:
        def patched_change(
            self: Any, one: Any = _NONE, other: Any = _NONE, /, *more: Any, value: Any = _NONE, **named: Any
        ) -> Any:
            if not (watching or more or named or other is _NONE or value is _NONE):
                return original(self, one, other, value=value)
            operands = (*(operand for operand in (one, other) if operand is not _NONE), *more)
            if watching:
                _notify_change(self, effect, operands, _add_factor(named, value=value))
            if named:
                return original(self, *operands, **_add_factor(named, value=value))
            return original(self, *operands) if value is _NONE else original(self, *operands, value=value)

        return patched_change

    def wrap_indexed_sum(original: Any) -> Any:
        def patched_sum(*args: Any, **kwargs: Any) -> Any:
            if watching:
                _notify_change(args[0], effect, args[1:], kwargs)
            result = original(*args, **kwargs)
            if result.dtype in LOW:
                source = args[3] if len(args) > 3 else kwargs.get("source", kwargs.get("src"))
                for recorder in _recorders_of_sums():
                    recorder.losses.record_low_count(result, source)
            return result

        return patched_sum

    if name in ADDING:
        return wrap_addition
    if name in INDEXED_SUMS:
        return wrap_indexed_sum
    if name in TWO_OPERANDS:
        return wrap_two_operands
    if name == "lerp_":
        return wrap_average
    return wrap_one_operand if name in ONE_OPERAND else wrap_change


def _run_decay(original: Any, tensor: Any, factor: float) -> Any:
    """Run a multiplication by a number below one, which may be the first half of an average's step."""
    recorders = _recorders_of_averages(tensor)
    value_before = tensor.detach().clone() if recorders and not is_called_by_torch(3) else None
    result = original(tensor, factor)
    if value_before is not None:
        for recorder in recorders:
            recorder.losses.record_low_decay(tensor, value_before, factor)
    return result


def _recorders_of_averages(tensor: Any) -> tuple[Recorder, ...]:
    """Return the recorders that check the next step of a low-precision average."""
    if torch.compiler.is_compiling():
        return ()
    return tuple(recorder for recorder in THREAD.active_recorders if recorder.losses.should_watch_averages(tensor))


def _run_average_step(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a step of a low-precision average: ``add_`` with an ``alpha``, or ``lerp_``."""
    tensor = args[0]
    recorders = _recorders_of_averages(tensor)
    # The depth counts the frame of the patch between the program and this function.
    value_before = tensor.detach().clone() if recorders and not is_called_by_torch(3) else None
    result = original(*args, **kwargs)
    if value_before is not None:
        factor = kwargs.get("alpha", 1)
        for recorder in recorders:
            recorder.losses.record_low_average(tensor, value_before, args[1] if len(args) > 1 else None, factor)
    return result


def _recorders_of_sums() -> tuple[Recorder, ...]:
    """Return the recorders that check a sum in low precision, whose patch calls this function."""
    if torch.compiler.is_compiling() or is_called_by_torch(3):
        return ()
    return THREAD.active_recorders


def _wrap_foreach_in_place(effect: str) -> Callable[[Any], Any]:
    """Return a wrapper of a foreach function. Gradients are reported by the first tensor, for all tensors."""

    def wrap_foreach(original: Any) -> Any:
        def patched_change(*args: Any, **kwargs: Any) -> Any:
            if watching:
                tensors, *operands = args or (kwargs.get("self"),)
                # torch refuses other values.
                if tensors and isinstance(tensors, (list, tuple)):
                    if effect == "replace":
                        # The source of a copy is a list, too.
                        source = operands[0] if operands else kwargs.get("src")
                        operands = list(source[:1]) if isinstance(source, (list, tuple)) else []
                    _notify_change(tensors[0], effect, operands, kwargs, tensors[1:])
            return original(*args, **kwargs)

        return patched_change

    return wrap_foreach


def _wrap_number_taken(name: str) -> Callable[[Any], Any]:
    """Return a wrapper of a method that reads numbers. A boolean does not show the size of a number."""
    shows_size = name != "__bool__"

    def wrap_number_taken(original: Any) -> Any:
        def patched_number(tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not (watching or args or kwargs):
                return original(tensor)
            # Reads by torch itself do not decide about a step.
            if is_watching() and not torch.compiler.is_compiling() and not is_called_by_torch():
                recorders: tuple[Recorder, ...] = THREAD.active_recorders
                for recorder in recorders:
                    if not recorder.recording.backward_depth:
                        recorder.clipping_listener.record_number_taken()
                        if shows_size and tensor.is_floating_point():
                            recorder.clipping_listener.record_size_read(tensor)
                    elif shows_size and tensor.is_floating_point():
                        recorder.gradients.record_number_in_hook()
            return original(tensor, *args, **kwargs)

        return patched_number

    return wrap_number_taken


class _SlotProperty(property):
    """A property that replaces a C++ slot of tensors. torch reads the class and the name of such slots."""

    __objclass__ = torch._C.TensorBase

    def __init__(self, name: str, *functions: Any) -> None:
        super().__init__(*functions)
        self.__name__ = name


def _patch_grad(original: Any) -> Any:
    assign = original.__set__

    def set_grad(self: Any, value: Any) -> None:
        # ``zero_grad`` has a patch of its own.
        if value is None and sys._getframe(1).f_code in _CLEARING_CODES:
            assign(self, value)
            return
        recorders: tuple[Recorder, ...] = THREAD.active_recorders
        if recorders and not is_called_by_torch():
            for recorder in recorders:
                recorder.gradients.record_assignment(self, value)
        assign(self, value)

    # Tensors have the same slot under two names. Reading the other name is twice as fast as calling the covered slot,
    # and torch reads gradients many times per step.
    return _SlotProperty("grad", operator.attrgetter("_grad"), set_grad, original.__delete__)


def _notify_hook(recorder: Recorder, tensor: Any, hook: Any) -> None:
    recorder.gradients.record_tensor_hook(tensor)


def _notify_new_storage(recorder: Recorder, tensor: Any, source: Any = None, *args: Any, **kwargs: Any) -> None:
    recorder.weights.record_write(tensor)
    if isinstance(source, torch.Tensor):
        recorder.gradients.record_data_assignment(tensor, source)


def _patch_data(original: Any) -> Any:
    def set_data(self: Any, value: Any) -> None:
        # torch refuses other values.
        recorders: tuple[Recorder, ...] = THREAD.active_recorders if isinstance(value, torch.Tensor) else ()
        # ``vector_to_parameters`` assigns new values. Other code of torch moves or casts the values of parameters.
        if recorders and (not is_called_by_torch() or sys._getframe(1).f_code is _VECTOR_CODE):
            for recorder in recorders:
                recorder.weights.record_write(self)
                recorder.gradients.record_data_assignment(self, value)
                if value.dtype in LOW and value.dtype is not self.dtype and isinstance(self, torch.nn.Parameter):
                    recorder.weights.low_precision.record_data_cast(self, LOW[value.dtype])
        original.__set__(self, value)

    return _SlotProperty("data", original.__get__, set_data)
