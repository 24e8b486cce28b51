"""The recorded steps of a run and their effect on the loss scale, in bounded memory."""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from .deferred_values import DeferredNumber, DeferredValues, FoundInf, ScaledValue

#: Largest number of kept steps; older steps are only counted.
KEPT = 20_000
#: Largest number of kept changes of the scale.
CHANGES = 4096


class StepRecord:
    """One step of one optimizer, applied or skipped.

    ``loss`` is the sum of the backward passes since the optimizer's previous step, without the loss scale: the losses
    of all micro-batches of an accumulation window. ``grad_norm`` is the total norm of the
    unscaled gradients: the norm that the program's clipping computed before it clipped, or, with ``norms``, the norm at
    the step, after clipping. ``scale_before`` and ``scale_after`` are the loss scale at the step and after the
    following ``update()``; None for steps without a scaler. ``found_inf`` is True if this optimizer's gradients had
    non-finite values. The flag is read from the scaler itself, so the flag is also right for fused optimizers, whose
    ``step`` runs even if skipped.
    """

    __slots__ = (
        "_found_inf",
        "_growth_tracker",
        "_losses",
        "_norm",
        "_optimizer",
        "_scale_after",
        "_scale_before",
        "_scaler",
        "_site",
        "index",
    )

    def __init__(self, index: int, optimizer: Any, scaler: Any, scale: DeferredNumber | None, site: Any) -> None:
        self.index = index
        self._optimizer = optimizer
        self._scaler = scaler
        self._scale_before = self._scale_after = scale
        self._growth_tracker: DeferredNumber | None = None
        self._found_inf = FoundInf()
        self._site = site
        #: Numbers, each with the scale by which it is multiplied.
        self._losses: list[tuple[DeferredNumber, DeferredNumber]] = []
        self._norm: tuple[DeferredNumber, DeferredNumber] | None = None

    @property
    def optimizer(self) -> str:
        """The source text of the optimizer."""
        return str(self._optimizer) or "the optimizer"

    @property
    def scaler(self) -> str | None:
        """The source text of the scaler, or None for a step without a scaler."""
        return None if self._scaler is None else str(self._scaler) or "the scaler"

    @property
    def site(self) -> str:
        """The location of the step: ``train.py:31``."""
        return f"{self._site.path}:{self._site.line}"

    @property
    def loss(self) -> float | None:
        losses = [number.value / scale.value for number, scale in self._losses]
        return sum(losses) if losses else None

    @property
    def grad_norm(self) -> float | None:
        return None if self._norm is None else self._norm[0].value / self._norm[1].value

    @property
    def scale_before(self) -> float | None:
        return None if self._scale_before is None else self._scale_before.value

    @property
    def scale_after(self) -> float | None:
        return None if self._scale_after is None else self._scale_after.value

    @property
    def growth_tracker(self) -> int | None:
        """The scaler's own count of steps since the scale last changed; None for steps without a scaler."""
        return None if self._growth_tracker is None else int(self._growth_tracker.value)

    @property
    def found_inf(self) -> bool:
        return bool(self._found_inf)

    @property
    def skipped(self) -> bool:
        return bool(self._found_inf)

    @property
    def skip_reason(self) -> str | None:
        """The reason why the scaler skipped the step: the loss, or else the gradients at the scale. None if applied."""
        if not self.skipped:
            return None
        loss = self.loss
        if loss is not None and not math.isfinite(loss):
            return f"the loss is {loss:g}"
        return f"gradients are not finite at the loss scale {self.scale_before:g}"

    def record_update(self, scale: DeferredNumber, tracker: DeferredNumber | None) -> None:
        """Store the scale and growth tracker after the scaler's update."""
        self._scale_after, self._growth_tracker = scale, tracker

    def as_dict(self) -> dict[str, Any]:
        names = ("index", "optimizer", "scaler", "loss", "scale_before", "scale_after", "growth_tracker")
        more = ("skipped", "skip_reason", "found_inf", "grad_norm", "site")
        return {name: getattr(self, name) for name in (*names, *more)}

    def __repr__(self) -> str:
        what = "skipped" if self.skipped else "taken"
        return f"<step {self.index} of {self.optimizer} {what}, scale {self.scale_before} -> {self.scale_after}>"


class StepLog:
    """The latest steps, and totals over all steps. Totals are complete once all deferred values are fetched."""

    def __init__(self, deferred_values: DeferredValues) -> None:
        self._deferred_values = deferred_values
        self.recent_steps: deque[StepRecord] = deque(maxlen=KEPT)
        self.total = 0
        self.skipped_count = 0
        self.scale_history: deque[tuple[int, float]] = deque(maxlen=CHANGES)
        self.lowest_scale: float | None = None
        self.highest_scale: float | None = None
        self.pending_step: StepRecord | None = None
        #: Longest run of consecutive skips so far, and length of the current run.
        self.longest_skip_run = 0
        self._skip_run = 0

    def begin_step(
        self,
        optimizer: Any,
        scaler: Any,
        scale: DeferredNumber | None,
        losses: Iterable[ScaledValue],
        norm: ScaledValue | None,
        site: Any,
    ) -> None:
        """Create the record of a step that is about to run. ``losses`` are the losses of its backward passes."""
        record = self.pending_step = StepRecord(self.total, optimizer, scaler, scale, site)
        record._losses = [pair for loss in losses if (pair := self._with_scale(loss)) is not None]
        record._norm = self._with_scale(norm)
        if scale is not None:
            self._deferred_values.run_when_known(functools.partial(self._first_scale, self.total, scale))

    def _first_scale(self, index: int, scale: DeferredNumber) -> None:
        if not self.scale_history:
            self._record_scale(index, scale)

    def _with_scale(self, value: ScaledValue | None) -> tuple[DeferredNumber, DeferredNumber] | None:
        if value is None:
            return None
        if value.value is not None:
            return DeferredNumber(value.value), value.scale
        assert value.tensor is not None
        return self._deferred_values.defer_number(value.tensor), value.scale

    def set_norm(self, norm: ScaledValue) -> None:
        """Set the gradient norm of the step that is about to run."""
        if self.pending_step is not None:
            self.pending_step._norm = self._with_scale(norm)

    def drop_step(self) -> None:
        """Drop the record of a step that raised."""
        self.pending_step = None

    def finish_step(self, found_inf: FoundInf) -> None:
        record, self.pending_step = self.pending_step, None
        if record is None:
            return
        record._found_inf = found_inf
        self.recent_steps.append(record)
        self.total += 1
        self._deferred_values.run_when_known(functools.partial(self._count_skip, found_inf))

    def _count_skip(self, found_inf: FoundInf) -> None:
        skipped = bool(found_inf)
        self.skipped_count += skipped
        self._skip_run = self._skip_run + 1 if skipped else 0
        self.longest_skip_run = max(self.longest_skip_run, self._skip_run)

    def record_update(
        self, records: Sequence[StepRecord], scale: DeferredNumber, tracker: DeferredNumber | None
    ) -> None:
        """Record the update of the scaler that made these steps."""
        for record in records:
            record.record_update(scale, tracker)
        if records:
            self._deferred_values.run_when_known(functools.partial(self._record_scale, records[-1].index, scale))

    def _record_scale(self, index: int, number: DeferredNumber) -> None:
        """Record the scale after an update."""
        scale = number.value
        if not self.scale_history or self.scale_history[-1][1] != scale:
            self.scale_history.append((index, scale))
        self.lowest_scale = scale if self.lowest_scale is None else min(self.lowest_scale, scale)
        self.highest_scale = scale if self.highest_scale is None else max(self.highest_scale, scale)
