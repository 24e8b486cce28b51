"""Backward passes: their roots, and the optimizers that receive gradients."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from ....protocol import events as e
from ....protocol.events import Backward
from ....protocol.sites import Site
from ..deferred_values import ONE, ScaledValue
from ..gradient_bounds import has_own_function
from ..graph import find_leaf_ids, find_leaves, find_tensors, has_nonzero, has_values, saves_any, storage_pointer
from ..reached_leaves import ReachedLeaves
from ..recording import Recording
from ..regions import in_float8
from ..scaled_losses import ScaledLosses
from ..sharding import policy_low_dtypes
from ..source.call_texts import Role, SiteText
from ..tracked import BackwardPass, TrackedOptimizer, TrackedScaler
from .gradients import GradientListener
from .listener import Listener, listener_method
from .non_finite import NonFiniteListener
from .penalties import PenaltyListener
from .sizes import SizeListener


class BackwardListener(Listener):
    """A listener for backward passes."""

    def __init__(
        self,
        recording: Recording,
        gradients: GradientListener,
        scaled_losses: ScaledLosses,
        penalties: PenaltyListener,
        finite: NonFiniteListener,
        sizes: SizeListener,
    ) -> None:
        super().__init__(recording)
        self._sizes = sizes
        self._nonfinite = finite
        self._gradients = gradients
        self._scaled_losses = scaled_losses
        self._penalties = penalties
        self.reached_leaves = ReachedLeaves()
        #: ``id`` of a backward's location to the parameters that the first pass there reached.
        self._leaves_by_site: dict[int, frozenset[int]] = {}
        #: Ids of locations of backwards through a Function of the program.
        self._own_function_site_ids: set[int] = set()
        #: Location at which anomaly detection was last enabled.
        self._anomaly_mode_site: Site | None = None
        #: Leaves of the last scaled pass that are no parameters, such as cached representations.
        self._scaled_leaves: list[weakref.ref[torch.Tensor]] = []
        #: Ids of locations of scaled passes that reach such leaves.
        self._other_leaf_site_ids: set[int] = set()
        #: Number of passes that began at each location, finished or not.
        self.begun_counts: dict[Site, int] = {}

    @listener_method
    def record_begin(self, outputs: Any) -> BackwardPass | None:
        self.recording.backward_depth += 1
        if self.recording.backward_depth > 1:
            return None  # a checkpoint recomputes its part inside the pass
        site = self.sites.current_site()
        self.begun_counts[site] = self.begun_counts.get(site, 0) + 1
        self._find_cleared_gradients(site)
        roots = find_tensors(outputs)
        scaled_loss = self._scaled_losses.find_below(roots)
        if scaled_loss is not None:
            self._report_anomaly_mode(site, scaled_loss.scaler)
            self._penalties.begin_backward(roots)
        leaf_ids = self._leaves_by_site.get(id(site))
        first = leaf_ids is None
        if leaf_ids is None:
            leaf_ids = self._leaves_by_site[id(site)] = frozenset(find_leaf_ids(roots))
            if has_own_function(roots):
                self._own_function_site_ids.add(id(site))
        if scaled_loss is not None:
            self._note_scaled_leaves(site, roots, first=first)
        event = Backward(
            site,
            None if scaled_loss is None else scaled_loss.scaler.tracked_object.key,
            names=self.recording.query_source(site, _backward_names),
            feeds=set(),
            division=e.DIVIDED,
            scaling=e.LossScaling(
                is_scaled=scaled_loss is not None,
                # Roots with several elements run backward from given gradients, which may already be scaled.
                may_have_scaled_gradient=scaled_loss is None
                and (any(root.numel() != 1 for root in roots) or self._is_weighed_with_scaled_gradients(roots)),
                is_uneven=scaled_loss is not None and self._scaled_losses.is_uneven(roots, scaled_loss.scale),
                has_several_scalers=scaled_loss is not None and self._scaled_losses.has_several_scalers(roots),
            ),
            # A region decides about the dtype also for modules with a precision policy.
            dtypes=self.regions.dtypes_below(site, roots) or policy_low_dtypes(leaf_ids),
            float8=in_float8(),
        )
        if first:
            event.leaves = leaf_ids
            self._sizes.check_products(roots, site)
        self.recording.emit(event)
        self.regions.forget_entered()
        marks_before = [(tracked, tracked.sentinel_marks()) for tracked in self.registry.optimizers.values()]
        scale = ONE if scaled_loss is None else scaled_loss.scale
        loss = roots[0] if roots and has_values(roots[0]) else None
        # A scaled loss has the dtype of the scale, which may differ from the dtype of the loss.
        dtype = scaled_loss.dtype if scaled_loss is not None else None if loss is None else loss.dtype
        value = self._nonfinite.begin_backward(roots, site)
        scaled_value = None if loss is None else ScaledValue(loss, scale, value)
        if scaled_loss is not None:
            self._gradients.begin_backward(has_own_function=id(site) in self._own_function_site_ids)
        return BackwardPass(event, marks_before, scale, leaf_ids, scaled_value, dtype, roots, is_exact=first)

    def _report_anomaly_mode(self, site: Site, scaler: TrackedScaler) -> None:
        """Report enabled anomaly detection, at the location that enabled it if known."""
        if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
            anomaly_site = self._anomaly_mode_site or site
            self.recording.emit(e.Anomaly(anomaly_site, names={"call": SiteText(anomaly_site), "scaler": scaler.name}))

    @listener_method
    def record_anomaly_mode(self) -> None:
        """Record the location that enables anomaly detection."""
        self._anomaly_mode_site = self.sites.current_site()

    def _find_cleared_gradients(self, site: Site) -> None:
        """Find changes of gradients since the last step."""
        for tracked in self.registry.optimizers.values():
            if tracked.edit_site is not None:
                self._gradients.check_gradients(tracked)
            if tracked.is_used and not any(has_nonzero(p.grad) for p in tracked.sentinels):
                # The gradients were cleared by unobserved code.
                self.recording.emit(e.ZeroGrad(site, owners=(tracked.tracked_object.key,), guessed=True))
            tracked.is_used = False

    @listener_method
    def record_end(self, running: BackwardPass | None) -> None:
        self.recording.backward_depth -= 1
        if running is None:
            return
        self._penalties.end_backward()
        event = running.event
        feeds = event.feeds
        assert isinstance(feeds, set)
        if not feeds:
            # An optimizer that has stepped inside the pass, by hooks, has already used its gradients.
            self.reached_leaves.note_backward(event, running.roots, self.registry.optimizers.values())
        optimizers: list[torch.optim.Optimizer] = []
        mixed_keys: set[int] = set()
        for tracked, marks in running.marks_before:
            new_marks = tracked.sentinel_marks()
            if new_marks != marks or tracked.tracked_object.key in feeds or self._has_reached(tracked, running):
                feeds.add(tracked.tracked_object.key)
                if _mixes(tracked, event):
                    mixed_keys.add(tracked.tracked_object.key)
                self._note_accumulated(tracked, event, running, new_marks)
                optimizer = tracked.optimizer()
                if optimizer is not None:
                    optimizers.append(optimizer)
        for tracked in self.registry.optimizers.values():
            if tracked.tracked_object.key in feeds and tracked.backward is not event:
                self._note_accumulated(tracked, event, running, tracked.sentinel_marks())
        if feeds - mixed_keys:
            # The loss is that of another optimizer. For a second loss of the same one, AMP209 names the early unscale.
            event.mixes = mixed_keys
        self._gradients.end_backward(feeds)
        if running.loss is not None:
            self.registry.last_backward = (event, running.loss)
        self._nonfinite.end_backward(running, optimizers)
        self._gradients.forget_storages()
        self.recording.update_watching()
        self._notify_collectors(running, optimizers)

    def _has_reached(self, tracked: TrackedOptimizer, running: BackwardPass) -> bool:
        """Return True if a pass has reached an optimizer without visible changes of gradients.

        One line may run backward for several models, so the leaves of the first pass at the location are only a hint.
        If the leaves match, the graph of this pass is searched. The graph still exists, although the saved tensors are
        freed.
        """
        if not tracked.holds_any(running.leaf_ids):
            return False
        if not running.is_exact:
            running.leaf_ids, running.is_exact = frozenset(find_leaf_ids(running.roots)), True
        return tracked.holds_any(running.leaf_ids)

    def _note_scaled_leaves(self, site: Site, roots: Sequence[torch.Tensor], *, first: bool) -> None:
        """Note the leaves of a scaled pass that are no parameters. Only the first pass shows if a location has any."""
        self._scaled_leaves.clear()
        if first or id(site) in self._other_leaf_site_ids:
            others = [leaf for leaf in find_leaves(roots) if not isinstance(leaf, torch.nn.Parameter)]
            self._scaled_leaves = list(map(weakref.ref, others))
            if others:
                self._other_leaf_site_ids.add(id(site))

    def _is_weighed_with_scaled_gradients(self, roots: Sequence[torch.Tensor]) -> bool:
        """Return True if the gradient of a leaf of the last scaled pass is a factor of a loss, which it scales."""
        leaves = (reference() for reference in self._scaled_leaves)
        storages = {storage_pointer(leaf._grad) for leaf in leaves if leaf is not None and leaf._grad is not None}
        return bool(storages) and saves_any(roots, storages)

    def _notify_collectors(self, running: BackwardPass, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        scalers = self.registry.scalers.values()
        tracked = next((scaler for scaler in scalers if scaler.tracked_object.key == running.event.subject), None)
        scaler = tracked.scaler() if tracked is not None else None
        for collector in self.recording.collectors:
            if running.loss_dtype is not None:
                collector.record_loss_dtype(running.loss_dtype)
            collector.after_backward(scaler, running.scale.value, optimizers)

    def _note_accumulated(
        self, tracked: TrackedOptimizer, event: Backward, running: BackwardPass, marks: list[tuple[int, int]]
    ) -> None:
        tracked.backward = event
        tracked.backwards_since += 1
        tracked.is_cleared = False
        tracked.windows.record_backward(event.site)
        tracked.gradient_marks = marks
        # Unscaled gradients that are added to scaled gradients leave the sum scaled.
        tracked.is_scaled = event.subject is not None or tracked.is_scaled
        if running.loss is not None:
            tracked.losses.append(running.loss)


def _mixes(tracked: TrackedOptimizer, event: Backward) -> bool:
    """Return True if a scaled backward pass adds to unscaled gradients of another loss."""
    earlier = tracked.backward
    return (
        event.subject is not None
        and tracked.is_unscaled
        and earlier is not None
        and earlier is not event
        and earlier.site is not event.site
    )


def _backward_names(site: Site) -> dict[str, object]:
    return {
        "loss": SiteText(site, Role.INNER_ARGUMENT, "outputs"),
        "scaler": SiteText(site, Role.INNER_RECEIVER),
        "call": SiteText(site),
    }
