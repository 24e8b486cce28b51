"""Steps that a scaler skips although the loss is finite, examined for another cause than the scale."""

from __future__ import annotations

import functools
import math
import weakref
from typing import Any, NamedTuple

import torch

from ..deferred_values import FoundInf, read_item
from ..delayed_reads import DeviceTransfer
from ..recording import Recording
from ..tracked import TrackedOptimizer
from .device_checks import DeviceChecks, PendingCheck
from .records import SKIPPED
from .reports import NonFiniteReports

#: Number of examined skips without a mistake after which only long runs of skips are examined.
TRIALS = 4
#: Consecutive skips that no scaler needs after its first applied step, and before it; see AMP801.
IN_A_ROW, WARM_UP = 8, 18


class PendingSkip(NamedTuple):
    """A step that a fused optimizer makes or skips on a device.

    ``numbers`` are the scaler's found_inf and its growth tracker before the update.
    """

    numbers: DeviceTransfer
    check: PendingCheck
    tracked: TrackedOptimizer
    scaler_ref: weakref.ref[Any]
    optimizer_ref: weakref.ref[torch.optim.Optimizer]


class SkippedSteps:
    """The steps of scalers in a recording, and those whose outcome a device still decides."""

    def __init__(self, recording: Recording, reports: NonFiniteReports, checks: DeviceChecks) -> None:
        self._recording = recording
        self._reports = reports
        self._checks = checks
        self._trial_count = 0
        #: Pending skips of fused optimizers, oldest first.
        self.pending_skips: list[PendingSkip] = []

    def clear(self) -> None:
        self.pending_skips.clear()

    def check_skip(self, tracked: TrackedOptimizer, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        """Examine a step that a scaler applied, or skipped because of its scale or a non-finite gradient."""
        found_inf = tracked.last_found_inf
        readings = self._recording.deferred_values
        if not found_inf.is_known:
            # The device decides about the step of a fused optimizer, and nothing has waited for it.
            readings.run_when_known(functools.partial(self._note_outcome, found_inf))
            # A graph that is being captured cannot be asked.
            if self._checks.last_check is not None and self._reports.may_report and readings.can_fetch:
                self._defer_skip(self._checks.last_check, tracked, scaler, optimizer)
            return
        self._note_outcome(found_inf)
        if not found_inf or not self._reports.may_report:
            return
        if self._checks.last_check is not None:
            # A skip waits for the device anyway. The count of skips in a row has to include this one.
            self._checks.finish_checks(before_step=self._recording.steps.total)
            self._reports.last_backward = self._checks.last_check.known_backward()
            if readings.can_fetch:
                readings.fetch_all()
        self._examine_skip(tracked, scaler, optimizer, int(read_item(scaler._growth_tracker)))

    def _defer_skip(
        self, check: PendingCheck, tracked: TrackedOptimizer, scaler: Any, optimizer: torch.optim.Optimizer
    ) -> None:
        tracker = scaler._growth_tracker
        found_inf = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()
        numbers = [each.to(tracker.device, torch.float32, non_blocking=True).reshape(()) for each in found_inf]
        transfer = DeviceTransfer(torch.stack([torch.stack(numbers).sum(), tracker.float().reshape(())]))
        self.pending_skips.append(PendingSkip(transfer, check, tracked, weakref.ref(scaler), weakref.ref(optimizer)))

    def _note_outcome(self, found_inf: FoundInf) -> None:
        if not found_inf:
            self._reports.has_stepped = True
            self._reports.report_pending()

    def finish_skips(self) -> None:
        """Wait for the steps that a device decides about, and examine those that were skipped."""
        while self.pending_skips and self._reports.may_report:
            skip = self.pending_skips.pop(0)
            found_inf, tracker = skip.numbers.wait_for_numbers()
            scaler, optimizer = skip.scaler_ref(), skip.optimizer_ref()
            if not found_inf or scaler is None or optimizer is None:
                continue
            # The outcomes of the earlier steps decide what a skip means.
            if self._recording.deferred_values.can_fetch:
                self._recording.deferred_values.fetch_all()
            with self._checks.restore_pass(skip.check):
                self._examine_skip(skip.tracked, scaler, optimizer, int(tracker), late_step=skip.check.step)

    def _examine_skip(
        self,
        tracked: TrackedOptimizer,
        scaler: Any,
        optimizer: torch.optim.Optimizer,
        growth_tracker: int,
        *,
        late_step: int | None = None,
    ) -> None:
        """Report the cause of a skipped step of a finite loss, if the scale does not explain the skip."""
        backward = self._reports.last_backward
        if backward is None or backward.loss_value is None or not math.isfinite(backward.loss_value):
            return
        is_settled = growth_tracker > 0 and self._trial_count < TRIALS
        # A run may be too short for its scaler to find a scale, so the first skip is examined, too.
        is_first = not (self._reports.has_stepped or self._trial_count)
        # After this skip the scale is below 1, and AMP801 reports the cause.
        sinks = scaler.get_backoff_factor() <= scaler.get_backoff_factor() * backward.scale < 1.0
        if (
            is_settled
            or is_first
            or sinks
            or tracked.skips_in_a_row == (IN_A_ROW if self._reports.has_stepped else WARM_UP)
        ):
            self._trial_count += 1
            self._reports.report_nonfinite(SKIPPED, [optimizer], late_step=late_step)
