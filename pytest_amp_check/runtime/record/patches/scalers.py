"""Patches of GradScalers."""

from __future__ import annotations

import functools
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.amp import grad_scaler

from ....protocol import torch_api
from ..active import THREAD
from .table import INSTALLED, Patch

if TYPE_CHECKING:
    from ..recorder import Recorder

_SHARDED = next(name for name in torch_api.SURFACE if name.endswith(".ShardedGradScaler"))
_LOCK = threading.Lock()


def patches() -> list[Patch]:
    rows = []
    for kind in ("cuda", "cpu"):
        cls = getattr(torch, kind).amp.grad_scaler.GradScaler
        rows.append(
            Patch(cls, "__init__", make_wrapper=functools.partial(_wrap_init, cls, f"torch.{kind}.amp.GradScaler"))
        )
    for cls in _scaler_classes():
        rows += _patches_of(cls)
    return rows


def _scaler_classes() -> list[type]:
    """Return GradScaler and the loaded scaler classes of torch that override methods of GradScaler."""
    classes: list[type] = [grad_scaler.GradScaler]
    sharded = sys.modules.get("torch.distributed.fsdp.sharded_grad_scaler")
    if sharded is not None:
        classes.append(sharded.ShardedGradScaler)
    return classes


def _patches_of(cls: type) -> list[Patch]:
    name = "torch.amp.GradScaler" if cls is grad_scaler.GradScaler else _SHARDED
    rows = [
        Patch(cls, "__init__", make_wrapper=functools.partial(_wrap_init, cls, name)),
        Patch(cls, "scale", on_call=_notify_before_scale, on_return=_notify_scaling, on_error=_notify_scale_failure),
        # step() calls unscale_ itself if the user has not, so calls by torch are ignored.
        Patch(
            cls,
            "unscale_",
            on_call=_notify_before_unscale,
            on_return=_notify_after_unscale,
            on_error=_notify_refusal,
            only_user_calls=True,
        ),
        Patch(cls, "step", on_call=_notify_before_step, on_return=_notify_after_step, on_error=_notify_step_failure),
        Patch(cls, "update", on_call=_notify_before_update, on_return=_notify_after_update, on_error=_notify_refusal),
        Patch(cls, "get_scale", on_call=_notify_get_scale, only_user_calls=True),
        Patch(cls, "state_dict", on_call=_notify_state_dict),
        Patch(cls, "load_state_dict", on_return=_notify_load),
    ]
    return [row._replace(may_be_bound=row.make_wrapper is None) for row in rows if row.name in vars(cls)]


def _wrap_init(cls: type, name: str, original: Any) -> Any:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        recorders: tuple[Recorder, ...] = THREAD.active_recorders
        events: list[Any] = []
        if recorders:
            outermost = next(k for k in type(self).__mro__ if k.__module__.startswith("torch."))
            if outermost is cls:
                events = [recorder.construction.record_construction(name, args, kwargs) for recorder in recorders]
            elif outermost in _scaler_classes() and not INSTALLED.has_patches(outermost):
                # The class was imported after the recording began, and its own constructor is already running.
                with _LOCK:
                    INSTALLED.install_patches(_patches_of(outermost))
                caller_locals = sys._getframe(1).f_locals
                arguments_by_name = {
                    key: caller_locals[key] for key in torch_api.SURFACE[_SHARDED].parameters if key in caller_locals
                }
                events = [
                    recorder.construction.record_construction(_SHARDED, (), arguments_by_name) for recorder in recorders
                ]
        with _warning_at(sys._getframe(1)) if recorders and cls is not grad_scaler.GradScaler else nullcontext():
            original(self, *args, **kwargs)
        for recorder, event in zip(recorders, events, strict=False):
            recorder.construction.record_created(self, event)

    return init


@contextmanager
def _warning_at(frame: FrameType) -> Iterator[None]:
    """Give warnings in the region the location of the caller, from which the patch separates torch."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    # Leaving catch_warnings has made Python forget which warnings were shown, so no registry of them is of use.
    for each in caught:
        name = frame.f_globals.get("__name__")
        warnings.warn_explicit(each.message, each.category, frame.f_code.co_filename, frame.f_lineno, name)


def _notify_before_scale(recorder: Recorder, scaler: Any, outputs: Any) -> None:
    recorder.scaling_listener.record_begin(scaler, outputs)


def _notify_scaling(recorder: Recorder, result: Any, scaler: Any, outputs: Any) -> None:
    recorder.scaling_listener.record_scaling(scaler, outputs, result)
    recorder.scaling_listener.record_end()


def _notify_scale_failure(recorder: Recorder, error: object, scaler: Any, outputs: Any) -> None:
    recorder.scaling_listener.record_end()


def _notify_before_unscale(recorder: Recorder, scaler: Any, optimizer: Any) -> None:
    recorder.scalers.before_unscale(scaler, optimizer)


def _notify_after_unscale(recorder: Recorder, result: object, scaler: Any, optimizer: Any) -> None:
    recorder.scalers.after_unscale(scaler, optimizer)


def _notify_refusal(recorder: Recorder, error: object, *args: Any, **kwargs: Any) -> None:
    recorder.scalers.record_refusal()


def _notify_before_step(recorder: Recorder, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    recorder.scalers.before_step(scaler, optimizer, args, kwargs)
    recorder.replicas.record_step()


def _notify_after_step(
    recorder: Recorder, result: object, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any
) -> None:
    recorder.scalers.after_step(scaler, optimizer, done=True)


def _notify_step_failure(
    recorder: Recorder, error: object, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any
) -> None:
    recorder.scalers.after_step(scaler, optimizer, done=False)


def _notify_before_update(recorder: Recorder, scaler: Any, new_scale: Any = None) -> None:
    recorder.scalers.before_update(scaler, new_scale)


def _notify_after_update(recorder: Recorder, result: object, scaler: Any, new_scale: Any = None) -> None:
    recorder.scalers.after_update(scaler)


def _notify_get_scale(recorder: Recorder, scaler: Any) -> None:
    recorder.scaling_listener.record_get_scale(scaler)


def _notify_state_dict(recorder: Recorder, scaler: Any) -> None:
    recorder.checkpoints.record_scaler_state(scaler)


def _notify_load(recorder: Recorder, result: object, scaler: Any, state_dict: Any) -> None:
    recorder.checkpoints.record_scaler_load(scaler)
    recorder.construction.note_loaded(scaler)
