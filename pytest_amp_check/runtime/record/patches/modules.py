"""Patches of modules: their gradients, their state, their dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_compiling

from ..active import THREAD
from ..listeners.sizes import matters
from ..regions import LOW
from .table import After, Patch

if TYPE_CHECKING:
    from ..recorder import Recorder


def patches() -> list[Patch]:
    module = torch.nn.Module
    return [
        Patch(module, "__call__", around=_call),
        Patch(module, "zero_grad", after=_zero_grad, compiled=True),
        Patch(module, "load_state_dict", after=_loaded),
        Patch(module, "half", after=_cast(torch.float16), of_users=True),
        Patch(module, "bfloat16", after=_cast(torch.bfloat16), of_users=True),
        Patch(module, "to", after=_cast(None), of_users=True),
        Patch(module, "register_parameter", after=_registered, compiled=True),
        Patch(torch, "set_default_dtype", after=_default_set),
    ]


def _call(original: Any) -> Any:
    """Recorders are told of modules that no other module calls. All others are handed on as fast as can be."""

    def __call__(*args: Any, **kwargs: Any) -> Any:  # noqa: N807 - it stands in that place
        if THREAD.in_module or not THREAD.active or is_compiling():
            return original(*args, **kwargs)
        return _outermost(original, args, kwargs)

    return __call__


def _outermost(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call by code that is no module's. It stands apart: its comprehension makes each call of a function dearer."""
    recorders: tuple[Recorder, ...] = THREAD.active
    module, *given = args
    THREAD.in_module = True
    try:
        calls = [recorder.finite.module_begins(module, tuple(given), kwargs) for recorder in recorders]
        result = original(*args, **kwargs)
    finally:
        THREAD.in_module = False
    for recorder, call in zip(recorders, calls, strict=True):
        recorder.finite.module_ended(call, result)
    return result


def _zero_grad(recorder: Recorder, result: object, module: Any, *args: Any, **kwargs: Any) -> None:
    recorder.clearing.by_module(module)


def _loaded(
    recorder: Recorder, result: object, module: Any, state_dict: object, strict: bool = True, assign: bool = False
) -> None:
    if not assign:  # else the module has other parameters, of which there are no copies
        recorder.weights.written(module)


def _registered(recorder: Recorder, result: object, module: Any, name: str, param: Any) -> None:
    if param is not None and param.dtype in LOW:
        recorder.weights.births.registered(module, param)
    if name == "weight" and param is not None and matters(param):
        recorder.sizes.registered(module, param)


def _default_set(recorder: Recorder, result: object, dtype: torch.dtype) -> None:
    recorder.weights.births.default_set(dtype)


def _cast(dtype: torch.dtype | None) -> After:
    """Tell of a cast to a dtype, or to the one among the arguments."""

    def cast(recorder: Recorder, result: object, module: Any, *args: Any, **kwargs: Any) -> None:
        wanted = dtype
        if wanted is None:
            wanted = next((x for x in (*args, *kwargs.values()) if isinstance(x, torch.dtype)), None)
        if wanted in LOW:
            recorder.weights.births.module_cast(module, LOW[wanted])

    return cast
