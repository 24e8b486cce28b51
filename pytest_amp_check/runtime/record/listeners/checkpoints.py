"""Checkpoints: states that are requested, saved and loaded."""

from __future__ import annotations

from typing import Any

from ....protocol import events as e
from ....protocol.sites import Site
from ..checkpoint_contents import CheckpointContents, find_contents
from ..recording import Recording
from ..source.call_texts import Role, SiteText
from ..tracked import TrackedOptimizer, TrackedScaler
from .listener import Listener, listener_method


class CheckpointListener(Listener):
    """A listener for ``state_dict``, ``load_state_dict``, ``torch.save`` and ``torch.load``."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: Ids of optimizers' states from checkpoints that also hold a scaler's state.
        self._resumable_state_ids: set[int] = set()

    @listener_method
    def record_optimizer_state(self, optimizer: Any, state: Any) -> None:
        """Record a state that ``optimizer.state_dict()`` returned."""
        tracked = self.registry.track_optimizer(optimizer)
        tracked.state_id = id(state)
        tracked.state_site = self.sites.current_site()
        tracked.name = tracked.name or SiteText(tracked.state_site, Role.RECEIVER)

    @listener_method
    def record_optimizer_load(self, optimizer: Any, state: Any) -> None:
        tracked = self.registry.track_optimizer(optimizer)
        site = self.sites.current_site()
        names = {"optimizer": SiteText(site, Role.RECEIVER)}
        tracked.load_event = self.recording.emit(
            e.OptimizerLoad(
                site,
                None,
                tracked.tracked_object.key,
                holds_scaler=id(state) in self._resumable_state_ids,
                names=names,
            )
        )

    @listener_method
    def record_scaler_state(self, scaler: Any) -> None:
        if scaler.is_enabled():
            site = self.sites.current_site()
            tracked = self.registry.track_scaler(scaler)
            tracked.name = tracked.name or SiteText(site, Role.RECEIVER)
            names = {"scaler": SiteText(site, Role.RECEIVER)}
            self.recording.emit(e.ScalerState(site, tracked.tracked_object.key, names=names))

    @listener_method
    def record_scaler_load(self, scaler: Any) -> None:
        if scaler.is_enabled():
            tracked = self.registry.track_scaler(scaler)
            tracked.scale = self.registry.current_scale(scaler)
            self.recording.emit(e.ScalerLoad(self.sites.current_site(), tracked.tracked_object.key))

    @listener_method
    def record_load(self, obj: Any) -> None:
        contents = find_contents(obj)
        if contents.has_scaler_state:
            self._resumable_state_ids |= contents.state_ids

    @listener_method
    def record_save(self, obj: Any) -> None:
        contents = find_contents(obj)
        site = self.sites.current_site()
        owners = self._saved_optimizers(contents)
        state_site = next((tracked.state_site for tracked in owners if tracked.state_site is not None), None)
        # Names and not objects, because the objects may be freed before the end of the run.
        self.recording.emit(
            e.Save(
                state_site or site,
                optimizers=tuple(_name_of(tracked, "the optimizer") for tracked in owners),
                scalers=(True,) if contents.has_scaler_state or contents.scalers else (),
                scope_scalers=self._live_scalers(owners),
            )
        )
        if contents.scalers:
            self._record_whole_scalers(contents, site)

    def _saved_optimizers(self, contents: CheckpointContents) -> list[TrackedOptimizer]:
        """Return the optimizers whose state is saved and that a scaler has stepped."""
        optimizers = self.registry.optimizers.values()
        return [tracked for tracked in optimizers if tracked.scaler is not None and tracked.is_saved_in(contents)]

    def _live_scalers(self, owners: list[TrackedOptimizer]) -> tuple[str, ...]:
        scalers = [tracked.scaler for tracked in owners]
        live = [scaler for scaler in scalers if scaler is not None and scaler.scaler() is not None]
        return tuple(_name_of(scaler, "the scaler") for scaler in live)

    def _record_whole_scalers(self, contents: CheckpointContents, site: Site) -> None:
        """Record scalers that are saved as objects instead of their state."""
        whole = tuple(_name_of(self.registry.track_scaler(scaler), "the scaler") for scaler in contents.scalers)
        self.recording.emit(e.Save(site, whole_scalers=whole))


def _name_of(tracked: TrackedOptimizer | TrackedScaler, default: str) -> str:
    return str(tracked.name) or default
