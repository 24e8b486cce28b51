"""Records a run: turns what torch is asked to do into the events that the protocol judges."""

from __future__ import annotations

from typing import Any

from ...protocol.finding import Finding
from .listeners.autocast import Autocast
from .listeners.backward import Backward
from .listeners.checkpoints import Checkpoints
from .listeners.clearing import Clearing
from .listeners.clipping import Clipping
from .listeners.finite import Finite
from .listeners.followers import Followers
from .listeners.forwards import Forwards
from .listeners.gradients import Gradients
from .listeners.losses import Losses
from .listeners.optimizers import Optimizers
from .listeners.penalties import Penalties
from .listeners.replicas import Replicas
from .listeners.scaler_construction import ScalerConstruction
from .listeners.scalers import Scalers
from .listeners.scaling import Scaling
from .listeners.schedulers import Schedulers
from .listeners.sizes import Sizes
from .listeners.threads import Threads
from .listeners.traces import Traces
from .listeners.weights import Weights
from .recording import Recording
from .regions import Left
from .scaled_losses import ScaledLosses


class Recorder:
    """The listeners of one recording, which patches call, each given what it works with.

    ``automatic`` says that nobody has asked for this recording by name: it yields to those that somebody has.
    """

    def __init__(self, *, automatic: bool = False, outermost: Any = None) -> None:
        self.automatic = automatic
        recording = self.recording = Recording(outermost)
        scaled = ScaledLosses(recording.registry)
        self._forwards = Forwards(recording)
        self.finite = Finite(recording)
        self.weights = Weights(recording)
        self.threads = Threads(recording)
        self.autocast = Autocast(recording, self.weights, self.threads, self.finite)
        self.traces = Traces(recording)
        self.losses = Losses(recording)
        self.gradients = Gradients(recording, self.weights)
        self.clearing = Clearing(recording, self.gradients)
        self.clipping = Clipping(recording, self.gradients)
        self.penalties = Penalties(recording, scaled)
        self.sizes = Sizes(recording)
        self.backward = Backward(recording, self.gradients, scaled, self.penalties, self.finite, self.sizes)
        self.construction = ScalerConstruction(recording)
        self.optimizers = Optimizers(recording, self.gradients, self.weights, self.construction, self.finite)
        self.schedulers = Schedulers(recording)
        self.scaling = Scaling(recording, scaled, self._forwards, self.construction, self.finite)
        self.followers = Followers(recording)
        self.scalers = Scalers(recording, self.gradients, self.weights, self.optimizers, self.followers, self.finite)
        self.checkpoints = Checkpoints(recording)
        self.replicas = Replicas(recording)

    @property
    def in_region(self) -> bool:
        """Whether an autocast region is open."""
        return bool(self.recording.regions)

    def findings(self, select: frozenset[str] | None = None) -> list[Finding]:
        """What has been found so far."""
        return self.recording.chain.findings(select)

    def regions_left(self, error: BaseException) -> Left | None:
        """The innermost autocast region that an exception was raised in, None where it was in none."""
        left = self.recording.regions.left
        return left if left is not None and left.error == id(error) else None

    def unhook(self) -> None:
        """Take away what stands in modules."""
        self.weights.unwatch_forwards()
        self._forwards.unwatch()

    def conclude(self, *, broken: bool) -> None:
        """Judge what is left; ``broken`` says that an exception has ended the run."""
        recording = self.recording
        if recording.failure is not None:
            return
        recording.busy = True
        recording.registry.ran = None
        try:
            self.finite.conclude()
            recording.registry.bury()
            recording.chain.close(broken=broken)
        except Exception as error:  # noqa: BLE001 - as while it lasted: the program goes on, and it is reported
            recording.failure = error
