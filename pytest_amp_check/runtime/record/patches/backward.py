"""Patches of backward passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import anomaly_mode

from ..active import THREAD
from .table import Patch

if TYPE_CHECKING:
    from ..recorder import Recorder


def patches() -> list[Patch]:
    # Tensor.backward, torch.autograd.backward and torch.autograd.grad all call this function.
    return [
        Patch(torch.autograd, "_engine_run_backward", make_wrapper=_wrap_run_backward),
        Patch(anomaly_mode.set_detect_anomaly, "__init__", on_call=_notify_set_anomaly_mode),
        Patch(anomaly_mode.detect_anomaly, "__init__", on_call=_notify_anomaly_mode),
        # A function mode that watches ops must leave torch's stack before torch calls the mode for these functions.
        Patch(torch.Tensor, "backward", on_call=_notify_backward_call),
        Patch(torch.autograd, "backward", on_call=_notify_backward_call),
    ]


def _notify_set_anomaly_mode(recorder: Recorder, context: Any, mode: bool, check_nan: bool = True) -> None:
    if mode and check_nan:
        recorder.backward.record_anomaly_mode()


def _notify_anomaly_mode(recorder: Recorder, context: Any, check_nan: bool = True) -> None:
    if check_nan:
        recorder.backward.record_anomaly_mode()


def _notify_backward_call(recorder: Recorder, *args: Any, **kwargs: Any) -> None:
    recorder.taped_calls.record_backward_call()


def _wrap_run_backward(original: Any) -> Any:
    """Wrap the engine call. At the end of a pass each recorder gets the data that it returned at the start."""

    def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        recorders: tuple[Recorder, ...] = THREAD.active_recorders
        if not recorders:
            return original(t_outputs, *args, **kwargs)
        if not kwargs.get("accumulate_grad"):
            result = original(t_outputs, *args, **kwargs)
            create_graph = len(args) > 2 and bool(args[2])
            for recorder in recorders:
                recorder.penalties.record_differentiation(t_outputs, result)
                recorder.derivatives.record_differentiation(t_outputs, result, create_graph=create_graph)
            return result
        for recorder in recorders:
            recorder.overflows.stop()
        passes = [recorder.backward.record_begin(t_outputs) for recorder in recorders]
        try:
            return original(t_outputs, *args, **kwargs)
        finally:
            for recorder, backward_pass in zip(recorders, passes, strict=True):
                recorder.backward.record_end(backward_pass)

    return _engine_run_backward
