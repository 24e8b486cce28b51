"""Calls of modules, and ops outside of modules, put on a tape from which a replay explains non-finite values."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..active import THREAD
from ..forwards import compiled_code_count
from ..loose_ops import LooseOps
from ..non_finite.reports import NonFiniteReports
from ..recording import Recording
from ..tape import TapedCall, user_frame
from .listener import Listener, listener_method
from .weights import WeightListener

_RUNS_BACKWARD = frozenset({torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad})


class TapeListener(Listener):
    """A listener that records the calls of each forward pass, as long as the recording may report a cause."""

    def __init__(self, recording: Recording, reports: NonFiniteReports, weights: WeightListener) -> None:
        super().__init__(recording)
        self._reports = reports
        self._tape = reports.tape
        self._inputs = reports.inputs
        self._statistics = reports.statistics
        self.loose_ops = recording.loose_ops = LooseOps(
            self._record_op, self._tape.end_call, weights.record_overwritten
        )
        self._compiled_count = compiled_code_count()

    @listener_method
    def record_module_begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TapedCall | None:
        self.loose_ops.stop_watching()
        self._inputs.note_forward()
        if not self._reports.may_report or self.recording.backward_depth:
            return None
        if torch.is_inference_mode_enabled() or torch._C._get_tracing_state() is not None:
            return None
        if not torch.is_grad_enabled():
            # For example a frozen encoder. An evaluation has many of these calls and may keep all of their results.
            self._tape.drop_gradless_calls()
        elif module not in self._statistics.by_module and not any(map(is_lazy, module.buffers())):
            self._statistics.add_module(module)
        return self._tape.begin_call(module, args, kwargs, user_frame(sys._getframe()))

    @listener_method
    def record_module_end(self, call: TapedCall | None, result: Any) -> None:
        if call is None:
            return
        self._tape.end_call(call, result)
        self.watch_ops()

    def note_region(self) -> None:
        """Start watching ops when an autocast region is entered, because the forward pass follows."""
        self._inputs.note_forward()
        if self._reports.may_report and not self.recording.backward_depth and not THREAD.in_module:
            self.watch_ops()

    def watch_ops(self) -> None:
        """Watch ops outside of modules, unless code was compiled, which would have to be compiled again."""
        if compiled_code_count() == self._compiled_count:
            self.loose_ops.start_watching()

    def _record_op(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None
    ) -> TapedCall | None:
        if self.recording.is_busy or self.recording.failure is not None:
            return None
        if function in _RUNS_BACKWARD:
            return None
        try:
            return self._tape.begin_call(function, args, kwargs, frame)
        except Exception as error:  # noqa: BLE001 - as for every listener
            self.recording.failure = error
            return None

    def record_scaling(self, loss: torch.Tensor, scale: torch.Tensor, result: Any) -> None:
        """Record the multiplication of a loss by the scale, while :class:`.LooseOps` is paused."""
        if self.loose_ops.may_report():
            factor = scale if scale.device == loss.device else scale.to(device=loss.device, non_blocking=True)
            call = self._tape.begin_call(torch.Tensor.mul, (loss, factor), {}, user_frame(sys._getframe()))
            self._tape.end_call(call, result)

    @listener_method
    def record_backward_call(self) -> None:
        if not self.recording.backward_depth:
            self.loose_ops.stop_watching()
