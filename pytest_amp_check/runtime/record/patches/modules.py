"""Patches of modules: gradients, state and dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_compiling
from torch.nn import init

from ..active import THREAD
from ..regions import LOW
from .table import After, Patch

if TYPE_CHECKING:
    from ..recorder import Recorder


def patches() -> list[Patch]:
    module = torch.nn.Module
    return [
        Patch(module, "__call__", make_wrapper=_wrap_call, compiles_callees=True),
        Patch(module, "zero_grad", on_return=_notify_zero_grad, may_be_compiled=True),
        Patch(module, "load_state_dict", on_return=_notify_load),
        Patch(module, "half", on_return=_make_cast_notifier(torch.float16), only_user_calls=True),
        Patch(module, "bfloat16", on_return=_make_cast_notifier(torch.bfloat16), only_user_calls=True),
        Patch(module, "to", on_return=_make_cast_notifier(None), only_user_calls=True),
        Patch(module, "register_parameter", on_return=_notify_parameter, may_be_compiled=True),
        Patch(torch, "set_default_dtype", on_return=_notify_default_dtype),
        *(Patch(init, name, on_call=_notify_initialization, may_be_bound=True) for name in _initializations()),
    ]


def _initializations() -> list[str]:
    """Return the names of the functions that fill a given tensor."""
    return [name for name in vars(init) if name.endswith("_") and not name.startswith("_")]


def _notify_initialization(recorder: Recorder, tensor: Any, *args: Any, **kwargs: Any) -> None:
    recorder.weights.record_overwritten((tensor,))


def _wrap_call(original: Any) -> Any:
    """Wrap the module call so that recorders see outermost calls. All other calls are passed on as fast as possible."""

    # torch.profiler(with_stack=True) reads the local variable `self` of frames with this code, and crashes without it.
    def __call__(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - it stands in that place
        if THREAD.in_module or not THREAD.active_recorders or is_compiling():
            return original(self, *args, **kwargs)
        return _call_outermost(original, self, args, kwargs)

    return __call__


def _call_outermost(original: Any, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run and report a call from outside of modules.

    The code is separate from :func:`_wrap_call`, because the comprehension would slow down every module call.
    """
    recorders: tuple[Recorder, ...] = THREAD.active_recorders
    THREAD.in_module = True
    for recorder in recorders:
        recorder.weights.note_call(module)
    try:
        calls = [recorder.taped_calls.record_module_begin(module, args, kwargs) for recorder in recorders]
        result = original(module, *args, **kwargs)
    finally:
        THREAD.in_module = False
        for recorder in recorders:
            recorder.weights.note_call_end(module)
    for recorder, call in zip(recorders, calls, strict=True):
        recorder.taped_calls.record_module_end(call, result)
    return result


def _notify_zero_grad(recorder: Recorder, result: object, module: Any, *args: Any, **kwargs: Any) -> None:
    recorder.clearing_listener.record_module_clear(module)


def _notify_load(
    recorder: Recorder, result: object, module: Any, state_dict: object, strict: bool = True, assign: bool = False
) -> None:
    if not assign:  # with assign the module gets new parameters, which have no cached casts
        recorder.weights.record_write(module)


def _notify_parameter(recorder: Recorder, result: object, module: Any, name: str, param: Any) -> None:
    if param is not None and param.dtype in LOW:
        recorder.weights.low_precision.record_parameter(module, param)
    if name == "weight" and param is not None:
        recorder.sizes.record_weight(module, param)


def _notify_default_dtype(recorder: Recorder, result: object, dtype: torch.dtype) -> None:
    recorder.weights.low_precision.record_default_dtype(dtype)


def _make_cast_notifier(dtype: torch.dtype | None) -> After:
    """Return a callback that reports a cast to ``dtype``, or to the dtype among the arguments."""

    def notify_cast(recorder: Recorder, result: object, module: Any, *args: Any, **kwargs: Any) -> None:
        cast_dtype = dtype
        if cast_dtype is None:
            cast_dtype = next((x for x in (*args, *kwargs.values()) if isinstance(x, torch.dtype)), None)
        if cast_dtype in LOW:
            recorder.weights.low_precision.record_module_cast(module, LOW[cast_dtype])

    return notify_cast
