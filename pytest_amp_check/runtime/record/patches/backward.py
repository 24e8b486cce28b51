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
    # Tensor.backward, torch.autograd.backward and torch.autograd.grad all end here.
    return [
        Patch(torch.autograd, "_engine_run_backward", around=_run_backward),
        Patch(anomaly_mode.set_detect_anomaly, "__init__", before=_set_detection),
        Patch(anomaly_mode.detect_anomaly, "__init__", before=_detection),
        # A mode that watches ops has to leave torch's stack before torch asks it about these.
        Patch(torch.Tensor, "backward", before=_called),
        Patch(torch.autograd, "backward", before=_called),
    ]


def _set_detection(recorder: Recorder, context: Any, mode: bool, check_nan: bool = True) -> None:
    if mode and check_nan:
        recorder.backward.detection_asked()


def _detection(recorder: Recorder, context: Any, check_nan: bool = True) -> None:
    if check_nan:
        recorder.backward.detection_asked()


def _called(recorder: Recorder, *args: Any, **kwargs: Any) -> None:
    recorder.finite.backward_called()


def _run_backward(original: Any) -> Any:
    """What a recorder has learned when a pass begins is given back to it when the pass ends."""

    def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        recorders: tuple[Recorder, ...] = THREAD.active
        if not recorders:
            return original(t_outputs, *args, **kwargs)
        if not kwargs.get("accumulate_grad"):
            result = original(t_outputs, *args, **kwargs)
            for recorder in recorders:
                recorder.penalties.differentiated(t_outputs, result, create_graph=len(args) > 2 and bool(args[2]))
            return result
        passes = [recorder.backward.begins(t_outputs) for recorder in recorders]
        try:
            return original(t_outputs, *args, **kwargs)
        finally:
            for recorder, running in zip(recorders, passes, strict=True):
                recorder.backward.ended(running)

    return _engine_run_backward
