"""Monitor for Lightning: ``Trainer(callbacks=[AmpMonitor()])``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .monitored import MonitoredTraining

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "lightning":
        raise
    # The same code under the name of its older distribution.
    from pytorch_lightning import Callback

if TYPE_CHECKING:
    from ..runtime.run import Run


class AmpMonitor(Callback):  # type: ignore[misc]
    """Callback that records each ``fit``, and logs the loss scale and skipped steps. The training does not change.

    ``options`` are those of :class:`~pytest_amp_check.record`, such as ``dtypes=True``. Findings are logged as warnings
    at the end.
    """

    def __init__(self, **options: Any) -> None:
        self._training = MonitoredTraining(options)

    @property
    def run(self) -> Run:
        """The recording of the latest ``fit``. Raise RuntimeError before the first."""
        return self._training.run

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self._training.begin(pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.log_every_n_steps and (batch_idx + 1) % trainer.log_every_n_steps == 0:
            self._log(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._log(trainer)

    def _log(self, trainer: Any) -> None:
        figures = self._training.take_figures()
        if figures:
            for logger in trainer.loggers:
                logger.log_metrics(figures, step=trainer.global_step)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self._training.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._training.end(exception)
