"""Monitor for Transformers: ``Trainer(callbacks=[AmpMonitor()])``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from .monitored import MonitoredTraining

if TYPE_CHECKING:
    from ..runtime.run import Run


class AmpMonitor(TrainerCallback):  # type: ignore[misc]
    """Callback that records each ``train``, and adds the loss scale and skipped steps to the log history.

    The training does not change. ``options`` are those of :class:`~pytest_amp_check.record`, such as ``dtypes=True``.
    Findings are logged as warnings at the end.
    """

    def __init__(self, **options: Any) -> None:
        self._training = MonitoredTraining(options)

    @property
    def run(self) -> Run:
        """The recording of the latest ``train``. Raise RuntimeError before the first."""
        return self._training.run

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self._training.begin(model)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        figures = self._training.take_figures()
        if logs is not None:
            logs.update(figures)
        if state.log_history:
            # The trainer has copied the logs.
            state.log_history[-1].update(figures)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training.end()

    def close(self) -> None:
        """End the recording of a training that an exception ended: the trainer calls no callback then."""
        self._training.end()
