"""Reports of non-finite values: a replay finds the cause, which is reported, waits for more evidence, or is dropped."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from ....protocol import events as e
from ....protocol.sites import Site
from ..delayed_reads import PreviousWeights
from ..derivatives import Derivatives
from ..graph import storage_pointer
from ..recording import Recording
from ..tape import Tape
from .causes import (
    INPUT,
    INTENDED,
    OF_LARGE,
    ONLY_LOW,
    OPTIMIZER_CAUSES,
    PERSISTENT_CAUSES,
    STATISTIC,
    Explain,
    NonFiniteCause,
)
from .finiteness import is_finite
from .inputs import InputWatch
from .records import LOSS, PARAMETERS, SKIPPED, STATISTICS, NonFiniteRecord, TapedBackward, collect_params
from .statistics import StatisticsWatch, describe_statistics

#: Largest number of findings of one recording, because later non-finite values are mostly consequences.
MOST = 4
#: Number of skipped non-finite losses with an unreported cause after which no more are examined.
QUIET = 16
#: Number of steps that tests of a single skipped step do not make.
SEVERAL = 2


class PendingCause(NamedTuple):
    """A cause that is reported unless the scale is found to sink.

    ``is_reported``: always report the cause. ``exemption``: report the cause only if the scaler never steps, or, for a
    loss that is infinite on purpose, in several steps. Without both, the cause is never reported.
    """

    event: e.NotFinite
    is_reported: bool
    exemption: str


class NonFiniteReports:
    """The reports of one recording, and the data that explains a non-finite value."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._registry = recording.registry
        self._sites = recording.sites
        #: Set by the creator of the recording. None disables the watch.
        self.explain: Explain | None = None
        self.tape = Tape()
        #: Gradients that ``torch.autograd.grad`` returned to the program.
        self.derivatives = Derivatives()
        self.previous_weights = PreviousWeights()
        self.statistics = StatisticsWatch()
        self.inputs = InputWatch(self.tape)
        self.last_backward: TapedBackward | None = None
        #: True after the first applied step of a scaler, which shows that its scale fits.
        self.has_stepped = False
        #: Number of steps with a non-finite loss, and index of the first, counted from 0.
        self.bad_losses = 0
        self.first_bad_loss: int | None = None
        #: Numbers of reports that count against the limit, and of skipped non-finite losses with an unreported cause.
        self.reported_count = self._silent_losses = 0
        #: Causes that are dropped if the scaler's scale proves to sink, because that finding says the same.
        self._pending_causes: list[PendingCause] = []
        #: Non-finite results of steps that are explained, while the program holds them.
        self._known_results: list[weakref.ref[torch.Tensor]] = []

    @property
    def is_watching(self) -> bool:
        """True if the watch is enabled."""
        return self.explain is not None

    @property
    def may_report(self) -> bool:
        """True if the watch is enabled and has not reported its largest number of findings."""
        return self.explain is not None and self.reported_count < MOST

    def count_bad_loss(self, step: int) -> None:
        """Count a step with a non-finite loss."""
        self.bad_losses += 1
        if self.first_bad_loss is None:
            self.first_bad_loss = step

    @property
    def pending_cause(self) -> e.NotFinite | None:
        """The most recent cause of skipped steps since the scaler's last applied step, or None."""
        return self._pending_causes[-1].event if self._pending_causes else None

    def report_pending(self) -> None:
        """Report the causes of skipped steps that a sinking scale does not explain."""
        for event, is_reported, exemption in self._pending_causes:
            may_be_meant = exemption == INTENDED and self._recording.steps.total < SEVERAL
            if is_reported or (exemption and not self.has_stepped and not may_be_meant):
                self._recording.run_checker.add_event(event)
        self._pending_causes.clear()

    def conclude(self) -> None:
        """Report or drop the pending causes at the end of the recording, and free the data."""
        chain = self._recording.run_checker
        if self._pending_causes:
            chain.flush()
            if not any(finding.code == "AMP801" for finding in chain.event_findings.values()):
                self.report_pending()
        self.tape.clear()
        self.derivatives.clear()
        self.previous_weights.clear()

    def report_nonfinite(
        self,
        kind: str,
        optimizers: Sequence[torch.optim.Optimizer],
        buffers: Sequence[tuple[nn.Module, str]] = (),
        *,
        late_step: int | None = None,
    ) -> bool:
        """Explain a non-finite value and report the cause. Return True if the cause is reported."""
        assert self.explain is not None
        total = self._recording.steps.total
        # A value that is found after a step belongs to that step.
        step = late_step if late_step is not None else total - 1 if kind in (PARAMETERS, SKIPPED) and total else total
        locate = self._sites.site_of_calls
        weights = [] if late_step is None else self.previous_weights.weights_before(late_step)
        nonfinite = NonFiniteRecord(
            kind,
            step,
            self.tape.calls,
            self.last_backward,
            collect_params(optimizers),
            optimizers,
            buffers,
            weights,
            self.derivatives.by_storage(),
            locate,
            self.last_backward is not None and self.last_backward.is_scaled and not self.has_stepped,
        )
        is_scaled = self.last_backward is not None and self.last_backward.is_scaled and kind in (LOSS, SKIPPED)
        if is_scaled and self._silent_losses >= QUIET:
            return False
        with self._registry.preserve_marks():
            cause = self.explain(nonfinite)
        if cause is None:
            return False
        # In low precision the first scales may be too large until the scaler has found its scale.
        if_never_stepped = (
            is_scaled and kind == LOSS and cause.exemption in (ONLY_LOW, INTENDED) and not self.has_stepped
        )
        is_reported = not is_scaled or kind == SKIPPED or (self._is_worth_reporting(cause) and not if_never_stepped)
        if cause.label == STATISTIC and kind != STATISTICS and self.statistics.reported:
            # The code that made a buffer non-finite is already reported.
            return False
        follows = self.reported_count > 0
        if cause.given_tensor is not None and self._is_known_result(cause.given_tensor):
            return False
        self._remember_results()
        # Only reported causes count against the limit of findings. Overflows that scalers handle have a limit of their
        # own.
        self.reported_count += is_reported
        self._silent_losses += not is_reported
        if cause.label in PERSISTENT_CAUSES:
            self.reported_count = MOST
            if follows:
                # Non-finite gradients, which are already reported, were applied.
                return False
        site = self._construction_site(optimizers) if cause.label in OPTIMIZER_CAUSES else None
        site = site or cause.site or (self.last_backward.site if self.last_backward is not None else None)
        known_positions = (call.positions for call in self.tape.calls.values() if call.positions)
        site = site or next(map(locate, known_positions), None) or Site("<unknown>", 1)
        statistics = describe_statistics(buffers) if is_scaled else ""
        event = e.NotFinite(site, how=cause.label, buffers=statistics, trace=cause.trace, names=dict(cause.names))
        self._withdraw_input(cause.site)
        if cause.label == INPUT and is_reported:
            self.inputs.record_event(event)
        if is_scaled:
            is_repeated = any(pending.exemption for pending in self._pending_causes)
            exemption = cause.exemption if if_never_stepped and not is_repeated else ""
            self._pending_causes.append(PendingCause(event, is_reported, exemption))
        else:
            self._recording.run_checker.add_event(event)
        return is_reported

    def _withdraw_input(self, site: Site | None) -> None:
        """Withdraw a reported non-finite input, if an op before the forward pass of a later step computes it."""
        event = self.inputs.take_event(site, self._sites.site_of_calls)
        if event is None:
            return
        pending_causes = [cause for cause in self._pending_causes if cause.event is not event]
        if len(pending_causes) == len(self._pending_causes):
            self._recording.run_checker.withdraw_event(event)
        self._pending_causes = pending_causes

    def _remember_results(self) -> None:
        """Keep the live non-finite results of the calls so far. What a later step reads of them is explained."""
        results = (reference for call in self.tape.calls.values() for reference in call.result_refs)
        self._known_results = [reference for reference in self._known_results if reference() is not None]
        self._known_results += [
            reference
            for reference in results
            if (tensor := reference()) is not None
            and tensor.is_floating_point()
            and tensor.layout is torch.strided
            and not is_finite(tensor)
        ]

    def _is_known_result(self, tensor: torch.Tensor) -> bool:
        """Return True if a tensor is a result of a step whose non-finite value is explained, or a view of one."""
        known = (reference() for reference in self._known_results)
        return any(each is not None and storage_pointer(each) == storage_pointer(tensor) for each in known)

    def _construction_site(self, optimizers: Sequence[torch.optim.Optimizer]) -> Site | None:
        """Return the location at which the first of some optimizers got its learning rate, or None."""
        sites = (self._registry.track_optimizer(optimizer).construction_site for optimizer in optimizers)
        return next((site for site in sites if site is not None), None)

    def _is_worth_reporting(self, cause: NonFiniteCause) -> bool:
        """Return True if a loss that a scaler skips is more than a large number."""
        if cause.label == "unexplained":
            assert self.last_backward is not None
            assert self.last_backward.loss_value is not None
            return math.isnan(self.last_backward.loss_value)
        return cause.exemption not in (OF_LARGE, INTENDED)
