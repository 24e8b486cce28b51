"""Patches of GradScalers."""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.amp import grad_scaler

from ....protocol import surface
from ..active import THREAD
from .table import INSTALLED, Patch

if TYPE_CHECKING:
    from ..recorder import Recorder

_SHARDED = next(name for name in surface.SURFACE if name.endswith(".ShardedGradScaler"))
_LOCK = threading.Lock()


def patches() -> list[Patch]:
    rows = []
    for kind in ("cuda", "cpu"):
        cls = getattr(torch, kind).amp.grad_scaler.GradScaler
        rows.append(Patch(cls, "__init__", around=functools.partial(_init, cls, f"torch.{kind}.amp.GradScaler")))
    for cls in _classes():
        rows += _patches_of(cls)
    return rows


def _classes() -> list[type]:
    """GradScaler and those of torch's scalers that are loaded and do things their own way."""
    found: list[type] = [grad_scaler.GradScaler]
    sharded = sys.modules.get("torch.distributed.fsdp.sharded_grad_scaler")
    if sharded is not None:
        found.append(sharded.ShardedGradScaler)
    return found


def _patches_of(cls: type) -> list[Patch]:
    name = "torch.amp.GradScaler" if cls is grad_scaler.GradScaler else _SHARDED
    rows = [
        Patch(cls, "__init__", around=functools.partial(_init, cls, name)),
        Patch(cls, "scale", before=_before_scale, after=_scaled, failed=_scale_failed),
        # step() unscales by itself where the user has not.
        Patch(cls, "unscale_", before=_before_unscale, after=_after_unscale, failed=_refused, of_users=True),
        Patch(cls, "step", before=_before_step, after=_after_step, failed=_step_failed),
        Patch(cls, "update", before=_before_update, after=_after_update, failed=_refused),
        Patch(cls, "get_scale", before=_scale_asked, of_users=True),
        Patch(cls, "state_dict", before=_state),
        Patch(cls, "load_state_dict", after=_load),
    ]
    return [row._replace(kept=row.around is None) for row in rows if row.name in vars(cls)]


def _init(cls: type, name: str, original: Any) -> Any:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        recorders: tuple[Recorder, ...] = THREAD.active
        events: list[Any] = []
        if recorders:
            outermost = next(k for k in type(self).__mro__ if k.__module__.startswith("torch."))
            if outermost is cls:
                events = [recorder.construction.constructed(name, args, kwargs) for recorder in recorders]
            elif outermost in _classes() and not INSTALLED.has(outermost):
                # It was imported after the recording began, and its own constructor is running already.
                with _LOCK:
                    INSTALLED.install(_patches_of(outermost))
                given = sys._getframe(1).f_locals
                bound = {key: given[key] for key in surface.SURFACE[_SHARDED].parameters if key in given}
                events = [recorder.construction.constructed(_SHARDED, (), bound) for recorder in recorders]
        original(self, *args, **kwargs)
        for recorder, event in zip(recorders, events, strict=False):
            recorder.construction.made(self, event)

    return init


def _before_scale(recorder: Recorder, scaler: Any, outputs: Any) -> None:
    recorder.scaling.begins(scaler, outputs)


def _scaled(recorder: Recorder, result: Any, scaler: Any, outputs: Any) -> None:
    recorder.scaling.scaled(scaler, outputs, result)
    recorder.scaling.ended()


def _scale_failed(recorder: Recorder, error: object, scaler: Any, outputs: Any) -> None:
    recorder.scaling.ended()


def _before_unscale(recorder: Recorder, scaler: Any, optimizer: Any) -> None:
    recorder.scalers.before_unscale(scaler, optimizer)


def _after_unscale(recorder: Recorder, result: object, scaler: Any, optimizer: Any) -> None:
    recorder.scalers.after_unscale(scaler, optimizer)


def _refused(recorder: Recorder, error: object, *args: Any, **kwargs: Any) -> None:
    recorder.scalers.refused()


def _before_step(recorder: Recorder, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    recorder.scalers.before_step(scaler, optimizer, args, kwargs)
    recorder.replicas.steps()


def _after_step(recorder: Recorder, result: object, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    recorder.scalers.after_step(scaler, optimizer, done=True)


def _step_failed(recorder: Recorder, error: object, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    recorder.scalers.after_step(scaler, optimizer, done=False)


def _before_update(recorder: Recorder, scaler: Any, new_scale: Any = None) -> None:
    recorder.scalers.before_update(scaler, new_scale)


def _after_update(recorder: Recorder, result: object, scaler: Any, new_scale: Any = None) -> None:
    recorder.scalers.after_update(scaler)


def _scale_asked(recorder: Recorder, scaler: Any) -> None:
    recorder.scaling.scale_asked(scaler)


def _state(recorder: Recorder, scaler: Any) -> None:
    recorder.checkpoints.scaler_state(scaler)


def _load(recorder: Recorder, result: object, scaler: Any, state_dict: Any) -> None:
    recorder.checkpoints.scaler_load(scaler)
