"""The steps of a run: what each did to the scale, in bounded memory."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Steps that are kept; older ones are counted and dropped.
KEPT = 20_000
#: Changes of the scale that are kept.
CHANGES = 4096


class StepRecord:
    """One step of one optimizer, taken or skipped.

    ``loss`` is the value that last ran backward, without the loss scale; ``grad_norm`` the total norm of the unscaled
    gradients, known where the program clipped, or where it was asked for. ``scale_before`` and ``scale_after`` are the
    loss scale at the step and after the ``update()`` that followed it; None for steps without a scaler.
    ``found_inf`` says that this optimizer's gradients held values that are not finite. It is read from the scaler
    itself, so it is right for fused optimizers too, whose ``step`` runs even when it is skipped.
    """

    __slots__ = (
        "_loss",
        "_norm",
        "_optimizer",
        "_scaler",
        "_site",
        "found_inf",
        "growth_tracker",
        "index",
        "scale_after",
        "scale_before",
        "skipped",
    )

    def __init__(
        self, index: int, optimizer: Any, scaler: Any, scale: float | None, loss: Any, norm: Any, site: Any
    ) -> None:
        self.index = index
        self._optimizer = optimizer
        self._scaler = scaler
        self.scale_before = scale
        self.scale_after = scale
        self.growth_tracker: int | None = None
        self.skipped = False
        self.found_inf = False
        self._site = site
        self._loss = loss
        self._norm = norm

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
        self._loss = _number(self._loss)
        value: float | None = self._loss
        return value

    @property
    def grad_norm(self) -> float | None:
        self._norm = _number(self._norm)
        value: float | None = self._norm
        return value

    def set_norm(self, norm: Any) -> None:
        """The norm of this step's gradients, as a tensor and the scale it carries."""
        self._norm = norm

    def settle(self) -> None:
        """Turn tensors into numbers, so that none is kept."""
        self._loss = _number(self._loss)
        self._norm = _number(self._norm)

    def as_dict(self) -> dict[str, Any]:
        names = ("index", "optimizer", "scaler", "loss", "scale_before", "scale_after", "growth_tracker")
        more = ("skipped", "found_inf", "grad_norm", "site")
        return {name: getattr(self, name) for name in (*names, *more)}

    def __repr__(self) -> str:
        what = "skipped" if self.skipped else "taken"
        return f"<step {self.index} of {self.optimizer} {what}, scale {self.scale_before} -> {self.scale_after}>"


def _number(value: Any) -> float | None:
    if value is None or isinstance(value, float):
        return value
    tensor: torch.Tensor = value.tensor
    number = float(tensor.detach().double().sum().item() if tensor.numel() != 1 else tensor.item())
    return number / float(value.scale)


class Steps:
    """The latest steps, and totals over all of them."""

    def __init__(self) -> None:
        self.kept: deque[StepRecord] = deque(maxlen=KEPT)
        self.total = 0
        self.skipped = 0
        self.history: deque[tuple[int, float]] = deque(maxlen=CHANGES)
        self.lowest: float | None = None
        self.highest: float | None = None
        self.pending: StepRecord | None = None
        #: Runs of skips: the longest so far, and the one that lasts.
        self.longest = 0
        self.row = 0

    def begin(self, optimizer: Any, scaler: Any, scale: float | None, loss: Any, norm: Any, site: Any) -> None:
        """A step is about to be made."""
        self.pending = StepRecord(self.total, optimizer, scaler, scale, loss, norm, site)
        if scale is not None and not self.history:
            self.scaled(self.total, scale)

    def drop(self) -> None:
        """It raised."""
        self.pending = None

    def done(self, *, skipped: bool, found_inf: bool) -> None:
        record, self.pending = self.pending, None
        if record is None:
            return
        record.skipped, record.found_inf = skipped, found_inf
        if self.kept:
            # A GPU is asked for numbers one step later, when they are there.
            self.kept[-1].settle()
        self.kept.append(record)
        self.total += 1
        self.skipped += skipped
        self.row = self.row + 1 if skipped else 0
        self.longest = max(self.longest, self.row)

    def scaled(self, index: int, scale: float) -> None:
        """The scale after an update."""
        if not self.history or self.history[-1][1] != scale:
            self.history.append((index, scale))
        self.lowest = scale if self.lowest is None else min(self.lowest, scale)
        self.highest = scale if self.highest is None else max(self.highest, scale)

    def settle(self) -> None:
        for record in self.kept:
            record.settle()
