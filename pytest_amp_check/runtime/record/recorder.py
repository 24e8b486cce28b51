"""The recorder of a run, which converts calls of torch into events for the checker."""

from __future__ import annotations

from typing import Any

from ...protocol.finding import Finding
from ...protocol.registration import require_listed
from .listeners.angles import AngleListener
from .listeners.autocast import AutocastListener
from .listeners.backward import BackwardListener
from .listeners.checkpoints import CheckpointListener
from .listeners.clipping import ClippingListener
from .listeners.derivatives import DerivativeListener
from .listeners.followers import StepFollowersListener
from .listeners.forwards import ForwardListener
from .listeners.gradients import GradientListener
from .listeners.listener import Listener
from .listeners.losses import LossListener
from .listeners.non_finite import NonFiniteListener
from .listeners.optimizers import OptimizerListener
from .listeners.overflows import OverflowListener
from .listeners.penalties import PenaltyListener
from .listeners.recomputation import RecomputationListener
from .listeners.replicas import ReplicaListener
from .listeners.scaler_construction import ScalerConstructionListener
from .listeners.scalers import ScalerListener
from .listeners.scaling import ScalingListener
from .listeners.schedulers import SchedulerListener
from .listeners.sizes import SizeListener
from .listeners.taped_calls import TapeListener
from .listeners.threads import ThreadListener
from .listeners.traces import TraceListener
from .listeners.weights import WeightListener
from .listeners.zero_grad import ClearingListener
from .non_finite.reports import NonFiniteReports
from .recording import Recording
from .regions import LeftRegion
from .scaled_losses import ScaledLosses

require_listed(
    "runtime/record/listeners",
    [kind.__module__.rpartition(".")[2] for kind in Listener.__subclasses__()],
    "create its listener in Recorder of runtime/record/recorder.py",
    marker="(Listener):",
)


class Recorder:
    """The listeners of one recording, called by patches.

    ``is_automatic`` is True for an implicit recording, which is inactive while an explicit recording is open.
    """

    def __init__(self, *, automatic: bool = False, outermost: Any = None) -> None:
        self.is_automatic = automatic
        recording = self.recording = Recording(outermost)
        scaled_losses = ScaledLosses(recording.registry)
        self._forward_listener = ForwardListener(recording)
        self.overflows = OverflowListener(recording)
        self.weights = WeightListener(recording)
        self.nonfinite_reports = NonFiniteReports(recording)
        self.taped_calls = TapeListener(recording, self.nonfinite_reports, self.weights)
        self.nonfinite = NonFiniteListener(recording, self.nonfinite_reports, self.taped_calls, self.overflows)
        self.threads = ThreadListener(recording)
        self.autocast = AutocastListener(recording, self.weights, self.threads, self.taped_calls)
        self.traces = TraceListener(recording)
        self.losses = LossListener(recording)
        self.gradients = GradientListener(recording, self.weights)
        self.clearing_listener = ClearingListener(recording, self.gradients)
        self.clipping_listener = ClippingListener(recording, self.gradients)
        self.penalties = PenaltyListener(recording, scaled_losses)
        self.derivatives = DerivativeListener(
            recording, scaled_losses, self.gradients, self.nonfinite_reports.derivatives
        )
        self.sizes = SizeListener(recording)
        self.backward = BackwardListener(
            recording, self.gradients, scaled_losses, self.penalties, self.nonfinite, self.sizes
        )
        self.construction = ScalerConstructionListener(recording)
        self.angles = AngleListener(recording)
        self.recomputation = RecomputationListener(recording)
        self.optimizers = OptimizerListener(
            recording, self.gradients, self.weights, self.construction, self.nonfinite, self.recomputation
        )
        self.schedulers = SchedulerListener(recording)
        self.scaling_listener = ScalingListener(
            recording, scaled_losses, self._forward_listener, self.construction, self.taped_calls
        )
        self.followers = StepFollowersListener(recording)
        self.scalers = ScalerListener(
            recording,
            self.gradients,
            self.weights,
            self.optimizers,
            self.followers,
            self.nonfinite,
            self.recomputation,
            self.derivatives,
            self.construction,
        )
        self.checkpoints = CheckpointListener(recording)
        self.replicas = ReplicaListener(recording)

    @property
    def in_region(self) -> bool:
        """True if an autocast region is open."""
        return bool(self.recording.regions)

    def findings(self, select: frozenset[str] | None = None) -> list[Finding]:
        """Return the findings so far."""
        return self.recording.run_checker.collect_findings(select)

    def region_left_by(self, error: BaseException) -> LeftRegion | None:
        """Return the innermost autocast region in which an exception was raised, or None."""
        left_region = self.recording.regions.left_region
        return left_region if left_region is not None and left_region.error_id == id(error) else None

    def remove_hooks(self) -> None:
        """Remove the hooks from modules."""
        self.overflows.stop()
        self.threads.clear_watches()
        self.weights.unwatch_forwards()
        self._forward_listener.stop_watching()

    def conclude(self, *, broken: bool) -> None:
        """Check the remaining events. ``broken``: an exception has ended the run."""
        recording = self.recording
        if recording.failure is not None:
            return
        recording.is_busy = True
        recording.registry.last_backward = None
        try:
            self.nonfinite.conclude()
            recording.registry.forget_dead()
            recording.run_checker.close(broken=broken)
        except Exception as error:  # noqa: BLE001 - as while it lasted: the program goes on, and it is reported
            recording.failure = error
