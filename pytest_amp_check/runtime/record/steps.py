"""The steps of a run: what each did to the scale, in bounded memory."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from typing import Any

from .readings import FoundInf, Number, Readings, ScaledValue

#: Steps that are kept; older ones are counted and dropped.
KEPT = 20_000
#: Changes of the scale that are kept.
CHANGES = 4096


class StepRecord:
    """One step of one optimizer, taken or skipped.

    ``loss`` is the value that last ran backward, without the loss scale; ``grad_norm`` the total norm of the unscaled
    gradients: that which the program has clipped by, before it did, and with ``norms`` that which the step finds, after
    it. ``scale_before`` and ``scale_after`` are the
    loss scale at the step and after the ``update()`` that followed it; None for steps without a scaler.
    ``found_inf`` says that this optimizer's gradients held values that are not finite. It is read from the scaler
    itself, so it is right for fused optimizers too, whose ``step`` runs even when it is skipped.
    """

    __slots__ = ("_after", "_before", "_found", "_loss", "_norm", "_optimizer", "_scaler", "_site", "_tracker", "index")

    def __init__(self, index: int, optimizer: Any, scaler: Any, scale: Number | None, site: Any) -> None:
        self.index = index
        self._optimizer = optimizer
        self._scaler = scaler
        self._before = self._after = scale
        self._tracker: Number | None = None
        self._found = FoundInf()
        self._site = site
        #: A number and the scale that it is multiplied by.
        self._loss: tuple[Number, Number] | None = None
        self._norm: tuple[Number, Number] | None = None

    @property
    def optimizer(self) -> str:
        """What the program calls the optimizer."""
        return str(self._optimizer) or "the optimizer"

    @property
    def scaler(self) -> str | None:
        """What the program calls the scaler, None for a step without one."""
        return None if self._scaler is None else str(self._scaler) or "the scaler"

    @property
    def site(self) -> str:
        """Where the program steps: ``train.py:31``."""
        return f"{self._site.path}:{self._site.line}"

    @property
    def loss(self) -> float | None:
        return _divided(self._loss)

    @property
    def grad_norm(self) -> float | None:
        return _divided(self._norm)

    @property
    def scale_before(self) -> float | None:
        return None if self._before is None else self._before.value

    @property
    def scale_after(self) -> float | None:
        return None if self._after is None else self._after.value

    @property
    def growth_tracker(self) -> int | None:
        """Steps since the scale last changed, as the scaler counts them; None for steps without one."""
        return None if self._tracker is None else int(self._tracker.value)

    @property
    def found_inf(self) -> bool:
        return bool(self._found)

    @property
    def skipped(self) -> bool:
        return bool(self._found)

    def updated(self, scale: Number, tracker: Number | None) -> None:
        """The scaler was updated after this step."""
        self._after, self._tracker = scale, tracker

    def as_dict(self) -> dict[str, Any]:
        names = ("index", "optimizer", "scaler", "loss", "scale_before", "scale_after", "growth_tracker")
        more = ("skipped", "found_inf", "grad_norm", "site")
        return {name: getattr(self, name) for name in (*names, *more)}

    def __repr__(self) -> str:
        what = "skipped" if self.skipped else "taken"
        return f"<step {self.index} of {self.optimizer} {what}, scale {self.scale_before} -> {self.scale_after}>"


def _divided(pair: tuple[Number, Number] | None) -> float | None:
    return None if pair is None else pair[0].value / pair[1].value


class Steps:
    """The latest steps, and totals over all of them, which are complete once the readings are settled."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings
        self.kept: deque[StepRecord] = deque(maxlen=KEPT)
        self.total = 0
        self.skipped = 0
        self.history: deque[tuple[int, float]] = deque(maxlen=CHANGES)
        self.lowest: float | None = None
        self.highest: float | None = None
        self.pending: StepRecord | None = None
        #: Runs of skips: the longest so far, and the one that lasts.
        self.longest = 0
        self._row = 0

    def begin(
        self,
        optimizer: Any,
        scaler: Any,
        scale: Number | None,
        loss: ScaledValue | None,
        norm: ScaledValue | None,
        site: Any,
    ) -> None:
        """A step is about to be made."""
        record = self.pending = StepRecord(self.total, optimizer, scaler, scale, site)
        record._loss, record._norm = self._pair(loss), self._pair(norm)
        if scale is not None:
            self._readings.then(functools.partial(self._first_scale, self.total, scale))

    def _first_scale(self, index: int, scale: Number) -> None:
        if not self.history:
            self._scaled(index, scale)

    def _pair(self, value: ScaledValue | None) -> tuple[Number, Number] | None:
        if value is None:
            return None
        number = self._readings.number(value.tensor) if value.value is None else Number(value.value)
        return number, value.scale

    def set_norm(self, norm: ScaledValue) -> None:
        """The norm of the gradients of the step that is about to be made."""
        if self.pending is not None:
            self.pending._norm = self._pair(norm)

    def drop(self) -> None:
        """It raised."""
        self.pending = None

    def done(self, found: FoundInf) -> None:
        record, self.pending = self.pending, None
        if record is None:
            return
        record._found = found
        self.kept.append(record)
        self.total += 1
        self._readings.then(functools.partial(self._count, found))

    def _count(self, found: FoundInf) -> None:
        skipped = bool(found)
        self.skipped += skipped
        self._row = self._row + 1 if skipped else 0
        self.longest = max(self.longest, self._row)

    def updated(self, records: Sequence[StepRecord], scale: Number, tracker: Number | None) -> None:
        """The scaler that made these steps was updated."""
        for record in records:
            record.updated(scale, tracker)
        if records:
            self._readings.then(functools.partial(self._scaled, records[-1].index, scale))

    def _scaled(self, index: int, number: Number) -> None:
        """The scale after an update."""
        scale = number.value
        if not self.history or self.history[-1][1] != scale:
            self.history.append((index, scale))
        self.lowest = scale if self.lowest is None else min(self.lowest, scale)
        self.highest = scale if self.highest is None else max(self.highest, scale)
