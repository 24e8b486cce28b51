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
        Patch(optimizer, "__init__", after=_constructed),
        Patch(optimizer, "zero_grad", around=_zero_grad),
        Patch(optimizer, "add_param_group", after=_params_changed),
        Patch(optimizer, "state_dict", after=_state),
        Patch(optimizer, "load_state_dict", after=_load),
        # A constructor steps once, and a scheduler that holds others steps those.
        *(Patch(cls, "step", after=_scheduler_stepped, of_users=True) for cls in _schedulers()),
        Patch(swa_utils.AveragedModel, "update_parameters", before=_averaged),
        *_averagers(),
    ]


def _averagers() -> list[Patch]:
    """What averages weights over processes. A script that is run has yet to import it."""
    if not torch.distributed.is_available():
        return []
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager

    return [
        Patch(cls, "average_parameters", before=_averaged_over_processes)
        for cls in (PeriodicModelAverager, HierarchicalModelAverager)
    ]


def hooks() -> list[Any]:
    """Steps are seen by torch's own hooks, since each class of optimizers has a step of its own."""
    return [register_optimizer_step_pre_hook(_before_step), register_optimizer_step_post_hook(_after_step)]


def _schedulers() -> list[type]:
    """The classes of torch's schedulers that step in their own way, but for the one that steps by a metric."""
    return [
        cls
        for cls in vars(lr_scheduler).values()
        if isinstance(cls, type)
        and issubclass(cls, lr_scheduler.LRScheduler)
        and "step" in vars(cls)
        and cls is not lr_scheduler.ReduceLROnPlateau
    ]


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    recorders: tuple[Recorder, ...] = THREAD.active
    for recorder in recorders:
        if not recorder.optimizers.inside_scaler_step:
            recorder.optimizers.before_step(optimizer)
        # What an optimizer changes is no change by the program.
        active.watch(recorder.recording, wanted=False)


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    recorders: tuple[Recorder, ...] = THREAD.active
    for recorder in recorders:
        if not recorder.optimizers.inside_scaler_step:
            recorder.optimizers.after_step(optimizer)
        active.watch(recorder.recording, wanted=recorder.recording.watches_tensors)


def _constructed(recorder: Recorder, result: object, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    recorder.optimizers.constructed(optimizer)


def _zero_grad(original: Any) -> Any:
    """The assignments that torch makes meanwhile are passed over."""

    def zero_grad(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        recorders: tuple[Recorder, ...] = THREAD.active
        if not recorders or torch.compiler.is_compiling():
            return original(optimizer, *args, **kwargs)
        THREAD.clearing = True
        try:
            result = original(optimizer, *args, **kwargs)
        finally:
            THREAD.clearing = False
        for recorder in recorders:
            recorder.clearing.by_optimizer(optimizer)
        return result

    return zero_grad


def _params_changed(recorder: Recorder, result: object, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    recorder.optimizers.params_changed(optimizer)


def _state(recorder: Recorder, state: Any, optimizer: Any) -> None:
    recorder.checkpoints.optimizer_state(optimizer, state)


def _load(recorder: Recorder, result: object, optimizer: Any, state_dict: Any) -> None:
    recorder.checkpoints.optimizer_load(optimizer, state_dict)


def _scheduler_stepped(recorder: Recorder, result: object, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    recorder.schedulers.stepped(scheduler)


def _averaged(recorder: Recorder, averaged: Any, model: Any) -> None:
    recorder.followers.averaged(averaged, model)


def _averaged_over_processes(recorder: Recorder, averager: Any, params: Any) -> None:
    # What averages in its own step has not skipped that.
    if not recorder.optimizers.inside_scaler_step:
        recorder.followers.averaged_over_processes(averager)
