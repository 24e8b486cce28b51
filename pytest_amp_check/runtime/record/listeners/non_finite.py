"""Non-finite losses, gradients and statistics of backward passes, and of parameters at the end of the recording."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....protocol.sites import Site
from ..non_finite.device_checks import DeviceChecks
from ..non_finite.finiteness import any_nonfinite, has_nonfinite, is_on_cpu, is_on_gpu, sum_roots
from ..non_finite.records import GRADIENTS, LOSS, PARAMETERS, STATISTICS, TapedBackward, collect_params
from ..non_finite.reports import NonFiniteReports
from ..non_finite.skips import SkippedSteps
from ..recording import Recording
from ..sums import can_observe
from .listener import Listener
from .overflows import OverflowListener
from .taped_calls import TapeListener

if TYPE_CHECKING:
    import torch

    from ..tracked import BackwardPass


class NonFiniteListener(Listener):
    """A listener that checks loss and gradients of each backward pass, and reports non-finite values."""

    def __init__(
        self,
        recording: Recording,
        reports: NonFiniteReports,
        taped_calls: TapeListener,
        overflows: OverflowListener,
    ) -> None:
        super().__init__(recording)
        self.reports = reports
        self._taped_calls = taped_calls
        self._overflows = overflows
        self._loose_ops = taped_calls.loose_ops
        self._statistics = reports.statistics
        self._checks = DeviceChecks(recording, reports)
        self.skips = SkippedSteps(recording, reports, self._checks)
        #: The running pass; and its loss, if that is on a device.
        self._running_backward: TapedBackward | None = None
        self._running_root: torch.Tensor | None = None

    def begin_backward(self, outputs: Sequence[torch.Tensor], site: Site) -> float | None:
        """Prepare for a backward pass. Return the value of a single loss on the CPU, else None.

        The listener of backward passes calls this method; other listeners call the methods below.
        """
        self._loose_ops.stop_watching()
        self._running_backward = self._running_root = None
        if self.reports.explain is None:
            return None
        roots = [root for root in outputs if root.is_floating_point()]
        if not roots or not all(map(can_observe, roots)):
            return None
        # On a GPU, reading this number would wait for the device.
        value = sum_roots(roots) if all(map(is_on_cpu, roots)) else None
        if not self.reports.may_report:
            if value is not None and not math.isfinite(value):
                self.reports.count_bad_loss(self.recording.steps.total)
            return None
        self._checks.finish_checks(before_step=None)
        self.reports.tape.prune_calls()
        self.reports.tape.pass_count += 1
        if value is None and is_on_gpu(roots[0]):
            self._running_root = roots[0].detach()
        self._running_backward = TapedBackward(tuple(map(self.reports.tape.slot_of, roots)), site, 1.0, value, False)
        return value if len(outputs) == 1 and roots[0].numel() == 1 else None

    def end_backward(self, running: BackwardPass, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        ended, self._running_backward = self._running_backward, None
        self.reports.last_backward, self._checks.last_check = ended, None
        is_scaled = running.event.subject is not None
        if ended is None or ended.loss_value is None:
            if self._running_root is not None:
                assert ended is not None
                last, hidden = ended._replace(is_scaled=is_scaled), self._overflows.take_found()
                self._checks.start_check(self._running_root, last, running, optimizers, hidden)
            else:
                self.reports.tape.clear()
            self._running_root = None
            return
        for event in self._overflows.take_found():
            if math.isfinite(ended.loss_value):
                self.recording.run_checker.add_event(event)
        if is_scaled:
            self.reports.last_backward = ended._replace(scale=running.scale.value, is_scaled=True)
        if not math.isfinite(ended.loss_value):
            self.reports.count_bad_loss(self.recording.steps.total)
            # The same forward pass may also have made statistics non-finite.
            bad = self._statistics.find_nonfinite()
            is_reported = self.reports.report_nonfinite(LOSS, optimizers, bad)
            if is_scaled and bad and not is_reported and self.reports.may_report:
                # The scaler skips the step, but the statistics stay non-finite.
                self.reports.report_nonfinite(STATISTICS, optimizers, bad)
            self._statistics.mark_reported(bad)
        elif not is_scaled and has_nonfinite([p._grad for p in collect_params(optimizers)]):
            self.reports.report_nonfinite(GRADIENTS, optimizers)
        else:
            self._check_statistics(optimizers)
        if not is_scaled:
            self.reports.tape.prune_calls()

    def _check_statistics(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        bad = self._statistics.find_nonfinite()
        if bad:
            self._statistics.mark_reported(bad)
            self.reports.report_nonfinite(STATISTICS, optimizers, bad)

    def begin_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._loose_ops.stop_watching()
        if self._checks.pending_checks or self.skips.pending_skips:
            # The weights kept for the previous step are replaced by the weights for this step.
            total = self.recording.steps.total
            self._checks.finish_checks(before_step=total)
            self.skips.finish_skips()
            if self._checks.pending_checks:
                self.reports.previous_weights.save_weights(optimizer, total)

    def end_step(self) -> None:
        """Watch what follows a step, if an earlier step got a non-finite input of unknown origin."""
        if self.reports.inputs.is_on and self.reports.may_report and not self.recording.backward_depth:
            self.reports.inputs.note_step()
            self._taped_calls.watch_ops()

    def conclude(self) -> None:
        """Finish at the end of the recording. Also check parameters that the last step may have made non-finite."""
        self._loose_ops.stop_watching()
        self._check_at_end()
        self.reports.conclude()
        self._checks.clear()
        self.skips.clear()

    def _check_at_end(self) -> None:
        self._checks.finish_checks(before_step=self.recording.steps.total + 1)
        self.skips.finish_skips()
        if not self.reports.may_report:
            return
        optimizers = [
            optimizer for tracked in self.registry.optimizers.values() if (optimizer := tracked.optimizer()) is not None
        ]
        params = [p.detach() for p in collect_params(optimizers) if is_on_cpu(p) or is_on_gpu(p)]
        if not self.reports.reported_count and self.recording.steps.total and any_nonfinite(params):
            self.reports.report_nonfinite(PARAMETERS, optimizers)
        self._check_statistics(optimizers)
