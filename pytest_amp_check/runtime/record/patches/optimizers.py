"""Patches of optimizers and schedulers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim import lr_scheduler, swa_utils
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .. import active
from ..active import THREAD
from .table import Patch

if TYPE_CHECKING:
    from ..recorder import Recorder


def patches() -> list[Patch]:
    optimizer = torch.optim.Optimizer
    return [
        Patch(optimizer, "__init__", on_return=_notify_construction),
        Patch(optimizer, "zero_grad", on_return=_notify_clear, may_be_compiled=True),
        Patch(optimizer, "add_param_group", on_return=_notify_params_change),
        Patch(optimizer, "state_dict", on_return=_notify_state_dict),
        Patch(optimizer, "load_state_dict", on_return=_notify_load),
        # Only user calls count: a constructor steps once, and a scheduler that contains others steps them.
        *(Patch(cls, "step", on_return=_notify_scheduler_step, only_user_calls=True) for cls in _scheduler_classes()),
        Patch(swa_utils.AveragedModel, "update_parameters", on_call=_notify_average),
        *_averager_patches(),
    ]


def _averager_patches() -> list[Patch]:
    """Return patches of the classes that average weights over processes.

    The import is here, because a script that starts later has not imported the classes yet.
    """
    if not torch.distributed.is_available():
        return []
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager

    return [
        Patch(cls, "average_parameters", on_call=_notify_process_average)
        for cls in (PeriodicModelAverager, HierarchicalModelAverager)
    ]


def register_hooks() -> list[Any]:
    """Register torch's own step hooks, because each class of optimizers has a separate ``step``."""
    return [
        register_optimizer_step_pre_hook(_notify_before_step),
        register_optimizer_step_post_hook(_notify_after_step),
    ]


def _scheduler_classes() -> list[type]:
    """Return the scheduler classes of torch that define ``step``, except for the class that steps by a metric."""
    return [
        cls
        for cls in vars(lr_scheduler).values()
        if isinstance(cls, type)
        and issubclass(cls, lr_scheduler.LRScheduler)
        and "step" in vars(cls)
        and cls is not lr_scheduler.ReduceLROnPlateau
    ]


def _notify_before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    recorders: tuple[Recorder, ...] = THREAD.active_recorders
    for recorder in recorders:
        if recorder.optimizers.inside_scaler_step:
            recorder.optimizers.has_stepped_in_scaler = True
        else:
            recorder.optimizers.before_step(optimizer)
        # Changes by an optimizer are not changes by the program.
        active.set_watching(recorder.recording, should_watch=False)


def _notify_after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    recorders: tuple[Recorder, ...] = THREAD.active_recorders
    for recorder in recorders:
        if not recorder.optimizers.inside_scaler_step:
            recorder.optimizers.after_step(optimizer)
        active.set_watching(recorder.recording, should_watch=recorder.recording.watches_tensors)


def _notify_construction(recorder: Recorder, result: object, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    recorder.optimizers.record_construction(optimizer)


def _notify_clear(recorder: Recorder, result: object, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    recorder.clearing_listener.record_optimizer_clear(optimizer)


def _notify_params_change(recorder: Recorder, result: object, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    recorder.optimizers.record_params_change(optimizer)


def _notify_state_dict(recorder: Recorder, state: Any, optimizer: Any) -> None:
    recorder.checkpoints.record_optimizer_state(optimizer, state)


def _notify_load(recorder: Recorder, result: object, optimizer: Any, state_dict: Any) -> None:
    recorder.checkpoints.record_optimizer_load(optimizer, state_dict)


def _notify_scheduler_step(recorder: Recorder, result: object, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    recorder.schedulers.record_step(scheduler)


def _notify_average(recorder: Recorder, averaged_model: Any, model: Any) -> None:
    recorder.followers.record_average(averaged_model, model)


def _notify_process_average(recorder: Recorder, averager: Any, params: Any) -> None:
    # An optimizer that averages in its own step has not skipped the average.
    if not recorder.optimizers.inside_scaler_step:
        recorder.followers.record_process_average(averager)
