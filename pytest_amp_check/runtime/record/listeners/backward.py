"""Backward passes: what they run from, and which optimizers they feed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ....protocol import events as e
from ....protocol.events import Event, Site
from ..graph import bare, holds, leaves, tensors
from ..reach import Reach
from ..readings import ONE, ScaledValue
from ..recording import Recording
from ..regions import in_float8
from ..scaled_losses import ScaledLosses
from ..sharding import low_of_policies
from ..source import SourceText
from ..tracked import BackwardPass, TrackedOptimizer, TrackedScaler
from .finite import Finite
from .gradients import Gradients
from .listener import Listener, listens
from .penalties import Penalties
from .sizes import Sizes


class Backward(Listener):
    """Listens to backward passes."""

    def __init__(
        self,
        recording: Recording,
        gradients: Gradients,
        scaled: ScaledLosses,
        penalties: Penalties,
        finite: Finite,
        sizes: Sizes,
    ) -> None:
        super().__init__(recording)
        self._sizes = sizes
        self._finite = finite
        self._gradients = gradients
        self._scaled = scaled
        self._penalties = penalties
        self.reach = Reach()
        #: id of a backward's site -> the parameters that it reached at first.
        self._leaves: dict[int, frozenset[int]] = {}
        #: Where anomaly detection was switched on last, and whether it was found to be on.
        self._detection: Site | None = None
        self._detects = False
        #: How many have begun at each place, whether they have come to their end or not.
        self.begun: dict[Site, int] = {}

    @listens
    def begins(self, outputs: Any) -> BackwardPass | None:
        self.recording.backwards += 1
        if self.recording.backwards > 1:
            return None  # a checkpoint computes its part anew inside the pass
        site = self.sites.here()
        self.begun[site] = self.begun.get(site, 0) + 1
        self._look_at_gradients(site)
        roots = tensors(outputs)
        scaled = self._scaled.below(roots)
        if scaled is not None:
            self._look_for_detection(site, scaled.scaler)
            self._penalties.backward_begins(roots)
            self._gradients.backward_begins()
        reached = self._leaves.get(id(site))
        first = reached is None
        if reached is None:
            reached = self._leaves[id(site)] = frozenset(leaves(roots))
        facts: dict[str, Any] = {
            "feeds": set(),
            "divided": True,
            "scaled": scaled is not None,
            # More than one number runs backward from gradients that are given, and may be scaled already.
            "opaque": scaled is None and any(root.numel() != 1 for root in roots),
            # A region has its way with what a policy has cast.
            "dtypes": self.regions.dtypes_below(site, roots) or low_of_policies(reached),
            "float8": in_float8(),
            "several": scaled is not None and self._scaled.several(roots),
            "uneven": scaled is not None and self._scaled.uneven(roots, scaled.scale),
        }
        if first:
            facts["leaves"] = reached
            self._sizes.look(roots, site)
        subject = None if scaled is None else scaled.scaler.thing.key
        names = self.recording.read(site, _backward_names)
        event = self.recording.emit(e.BACKWARD, site, subject, names=names, **facts)
        self.regions.dtypes = set()
        before = [(tracked, tracked.sentinel_marks()) for tracked in self.registry.optimizers.values()]
        scale = ONE if scaled is None else scaled.scale
        loss = bare(roots[0]) if roots else None
        # A scaled loss has the scale's dtype, whatever its own was.
        dtype = scaled.dtype if scaled is not None else None if loss is None else loss.dtype
        value = self._finite.backward_begins(roots, site)
        running = None if loss is None else ScaledValue(loss, scale, value)
        return BackwardPass(event, before, scale, reached, running, dtype, roots, exact=first)

    def _look_for_detection(self, site: Site, scaler: TrackedScaler) -> None:
        """Find that anomaly detection is on, wherever that was said."""
        if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled() and not self._detects:
            self._detects = True
            asked = self._detection or site
            self.recording.emit(e.ANOMALY, asked, names={"call": SourceText(asked), "scaler": scaler.name or ""})

    @listens
    def detection_asked(self) -> None:
        """Anomaly detection is switched on."""
        self._detection = self.sites.here()

    def _look_at_gradients(self, site: Site) -> None:
        """Find what has happened to gradients since the last step."""
        for tracked in self.registry.optimizers.values():
            if tracked.edited is not None:
                self._gradients.look(tracked)
            if tracked.used and not any(holds(p.grad) for p in tracked.sentinels):
                # Cleared in a way that was not seen.
                self.recording.emit(e.ZERO_GRAD, site, owners=(tracked.thing.key,), guessed=True)
            tracked.used = False

    @listens
    def ended(self, running: BackwardPass | None) -> None:
        self.recording.backwards -= 1
        if running is None:
            return
        self._penalties.backward_ended()
        event = running.event
        feeds: set[int] = event.facts["feeds"]
        if not feeds:
            # An optimizer that has stepped inside the pass, by hooks, has used its gradients already.
            self.reach.note(event, running.roots, self.registry.optimizers.values())
        fed: list[torch.optim.Optimizer] = []
        for tracked, marks in running.before:
            now = tracked.sentinel_marks()
            if now != marks or tracked.thing.key in feeds or self._reaches(tracked, running):
                feeds.add(tracked.thing.key)
                self._was_fed(tracked, event, running, now)
                optimizer = tracked.optimizer()
                if optimizer is not None:
                    fed.append(optimizer)
        for tracked in self.registry.optimizers.values():
            if tracked.thing.key in feeds and tracked.backward is not event:
                self._was_fed(tracked, event, running, tracked.sentinel_marks())
        self._gradients.backward_ended()
        if running.loss is not None:
            self.registry.ran = (event, running.loss)
        self._finite.backward_ended(running, fed)
        self._gradients.forget_storages()
        self.recording.choose_watching()
        if self.recording.collectors:
            self._collect(running, fed)

    def _reaches(self, tracked: TrackedOptimizer, running: BackwardPass) -> bool:
        """Whether a pass has reached an optimizer that nothing shows to have new gradients.

        One line may run backward for several models: what was reached from there at first is looked up, and where it
        says so the graph is asked, which is still there without what it had kept of the forward.
        """
        if not tracked.holds(running.leaves):
            return False
        if not running.exact:
            running.leaves, running.exact = frozenset(leaves(running.roots)), True
        return tracked.holds(running.leaves)

    def _collect(self, running: BackwardPass, fed: Sequence[torch.optim.Optimizer]) -> None:
        scalers = self.registry.scalers.values()
        tracked = next((scaler for scaler in scalers if scaler.thing.key == running.event.subject), None)
        scaler = tracked.scaler() if tracked is not None else None
        for collector in self.recording.collectors:
            if running.dtype is not None:
                collector.saw_loss(running.dtype)
            collector.after_backward(scaler, running.scale.value, fed)

    def _was_fed(
        self, tracked: TrackedOptimizer, event: Event, running: BackwardPass, marks: list[tuple[int, int]]
    ) -> None:
        tracked.backward = event
        tracked.backwards_since += 1
        tracked.windows.fed(event.site)
        tracked.marks = marks
        # Gradients of an unscaled loss that are added to scaled ones leave these multiplied.
        tracked.under_scale = event.subject is not None or tracked.under_scale
        if running.loss is not None:
            tracked.loss = running.loss


def _backward_names(site: Site) -> dict[str, object]:
    return {
        "loss": SourceText(site, "inner argument", "outputs"),
        "scaler": SourceText(site, "inner receiver"),
        "call": SourceText(site),
    }
