"""Recording of a training that a framework begins and ends, and the figures for the logs of the framework."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..protocol.severities import INFO
from ..runtime.run import record, shown_location

if TYPE_CHECKING:
    import torch

    from ..runtime.run import Run

#: Name of the logger that reports findings at the end of a training.
LOGGER = "pytest_amp_check"


class MonitoredTraining:
    """The recording of one training after another. ``options`` are those of :class:`~pytest_amp_check.record`."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._open_record: record | None = None
        self._run: Run | None = None
        #: Numbers of steps and of skipped steps in the figures so far.
        self._step_count = self._skipped_count = 0

    @property
    def run(self) -> Run:
        """The recording of the latest training. Raise RuntimeError before the first training."""
        if self._run is None:
            raise RuntimeError("the monitor has recorded no training yet: give it to the trainer, and train")
        return self._run

    def begin(self, model: torch.nn.Module | None) -> None:
        """Begin a recording. A recording that an exception left open ends first."""
        self.end()
        self._open_record = record(model, search=model is None, **self._options)
        self._step_count = self._skipped_count = 0
        self._run = self._open_record.__enter__()

    def end(self, error: BaseException | None = None) -> None:
        """End an open recording, and report its findings. ``error`` is the exception that ended the training."""
        if self._open_record is None:
            return
        ended, self._open_record = self._open_record, None
        ended.__exit__(None if error is None else type(error), error, None)
        logger = logging.getLogger(LOGGER)
        for finding in ended.run.findings:
            level = logging.INFO if finding.severity == INFO else logging.WARNING
            logger.log(level, "%s: %s %s", shown_location(finding.site), finding.code, finding.message)

    def take_figures(self) -> dict[str, float]:
        """Return the loss scale, and the number of skipped steps since the last call; {} without a step since then.

        The figures wait for the GPU. ``amp/scale`` is missing if the latest step had no scaler.
        """
        if self._open_record is None or self.run.steps_total == self._step_count:
            return {}
        before, self._skipped_count = self._skipped_count, self.run.skipped_total
        self._step_count = self.run.steps_total
        figures = {"amp/skipped": float(self._skipped_count - before)}
        scale = self.run.steps[-1].scale_after
        return figures if scale is None else {"amp/scale": scale, **figures}
