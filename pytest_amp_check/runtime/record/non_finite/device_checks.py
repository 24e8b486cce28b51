"""Checks of losses and gradients on a device, finished in a later step, so that no step waits for its own work."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch

from ....protocol import events as e
from ..deferred_values import DeferredNumber
from ..delayed_reads import DeviceTransfer
from ..recording import Recording
from ..tape import TapedCall
from .finiteness import is_on_gpu, sample_gradients
from .records import GRADIENTS, LOSS, TapedBackward, collect_params
from .reports import NonFiniteReports

if TYPE_CHECKING:
    from ..tracked import BackwardPass


class PendingCheck(NamedTuple):
    """A backward pass on a device whose check for finite values is not finished."""

    transfer: DeviceTransfer
    backward: TapedBackward
    scale: DeferredNumber
    calls: dict[int, TapedCall]
    step: int
    optimizer_refs: list[weakref.ref[torch.optim.Optimizer]]
    #: Hidden overflows of its forward pass, which are reported if the loss is finite.
    hidden: Sequence[e.Event]

    def known_backward(self) -> TapedBackward:
        """Wait for the device, and return the pass with loss and scale."""
        loss_value, *_ = self.transfer.wait_for_numbers()
        return self.backward._replace(loss_value=loss_value, scale=self.scale.value)


class DeviceChecks:
    """The unfinished checks of a recording, and the check of the latest backward pass."""

    def __init__(self, recording: Recording, reports: NonFiniteReports) -> None:
        self._recording = recording
        self._reports = reports
        #: Pending checks, oldest first; and the check of the latest pass, or None if its loss is on the CPU.
        self.pending_checks: list[PendingCheck] = []
        self.last_check: PendingCheck | None = None

    def start_check(
        self,
        root: torch.Tensor,
        last: TapedBackward,
        running: BackwardPass,
        optimizers: Sequence[torch.optim.Optimizer],
        hidden: Sequence[e.Event],
    ) -> None:
        """Start an asynchronous check for finite loss and gradients on a device."""
        totals = [root.float().sum()]
        sampled = [] if last.is_scaled else sample_gradients([p._grad for p in collect_params(optimizers)])
        if sampled and all(is_on_gpu(gradient) for gradient in sampled):
            norms = torch._foreach_norm([gradient.detach() for gradient in sampled])
            totals.append(torch.stack([norm.float() for norm in norms]).sum())
        calls, step = dict(self._reports.tape.calls), self._recording.steps.total
        optimizer_refs = [weakref.ref(each) for each in optimizers]
        transfer = DeviceTransfer(torch.stack(totals))
        self.last_check = PendingCheck(transfer, last, running.scale, calls, step, optimizer_refs, hidden)
        self.pending_checks.append(self.last_check)

    def finish_checks(self, before_step: int | None) -> None:
        """Finish the checks that are ready, and wait for the checks of steps before ``before_step``."""
        while self.pending_checks and self._reports.may_report:
            check = self.pending_checks[0]
            if not check.transfer.is_ready and (before_step is None or check.step >= before_step):
                return
            del self.pending_checks[0]
            value, *norms = check.transfer.wait_for_numbers()
            if not math.isfinite(value):
                kind = LOSS
                self._reports.count_bad_loss(check.step)
            else:
                for event in check.hidden:
                    self._recording.run_checker.add_event(event)
                if not norms or math.isfinite(norms[0]):
                    continue
                kind = GRADIENTS
            optimizers = [optimizer for reference in check.optimizer_refs if (optimizer := reference()) is not None]
            with self.restore_pass(check):
                self._reports.report_nonfinite(kind, optimizers, late_step=check.step)

    @contextmanager
    def restore_pass(self, check: PendingCheck) -> Iterator[None]:
        """In this context, the latest pass and its calls are those of an earlier pass."""
        last, calls = self._reports.last_backward, self._reports.tape.calls
        self._reports.last_backward, self._reports.tape.calls = check.known_backward(), check.calls
        try:
            yield
        finally:
            self._reports.last_backward, self._reports.tape.calls = last, calls

    def clear(self) -> None:
        self.pending_checks.clear()
        self.last_check = None
