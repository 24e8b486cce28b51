"""Monitor for accelerate: ``with AmpMonitor(accelerator) as monitor:``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .monitored import MonitoredTraining

if TYPE_CHECKING:
    from types import TracebackType

    from accelerate import Accelerator
    from typing_extensions import Self

    from ..runtime.run import Run


class AmpMonitor:
    """Context manager that records the training inside. The training does not change.

    ``options`` are those of :class:`~pytest_amp_check.record`, such as ``dtypes=True``. Findings are logged as warnings
    at the end.
    """

    def __init__(self, accelerator: Accelerator, **options: Any) -> None:
        self._accelerator = accelerator
        self._training = MonitoredTraining(options)

    @property
    def run(self) -> Run:
        """The latest recording. Raise RuntimeError before the first."""
        return self._training.run

    def __enter__(self) -> Self:
        self._training.begin(None)
        return self

    def log(self, step: int | None = None) -> None:
        """Send the loss scale, and the number of skipped steps since the last call, to the accelerator's trackers."""
        figures = self._training.take_figures()
        if figures:
            self._accelerator.log(figures, step=step)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._training.end(error)
