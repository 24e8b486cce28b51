"""Checkpoints: the states that are asked for, saved, and loaded."""

from __future__ import annotations

from typing import Any

from ....protocol import events as e
from ....protocol.events import Site
from ..checkpoint_contents import Contents, look_into
from ..recording import Recording
from ..source import SourceText
from ..tracked import TrackedOptimizer, TrackedScaler
from .listener import Listener, listens


class Checkpoints(Listener):
    """Listens to ``state_dict``, ``load_state_dict``, ``torch.save`` and ``torch.load``."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: Identities of the states of optimizers in checkpoints that hold a scaler's, too.
        self._resumable: set[int] = set()

    @listens
    def optimizer_state(self, optimizer: Any, state: Any) -> None:
        """``optimizer.state_dict()`` has given a state."""
        tracked = self.registry.optimizer(optimizer)
        tracked.state_id = id(state)
        tracked.state_site = self.sites.here()
        tracked.name = tracked.name or SourceText(tracked.state_site, "receiver")

    @listens
    def optimizer_load(self, optimizer: Any, state: Any) -> None:
        tracked = self.registry.optimizer(optimizer)
        site = self.sites.here()
        names = {"optimizer": SourceText(site, "receiver")}
        tracked.restored = self.recording.emit(
            e.OPTIMIZER_LOAD,
            site,
            None,
            tracked.thing.key,
            holds_scaler=id(state) in self._resumable,
            scope_scalers=(),
            names=names,
        )

    @listens
    def scaler_state(self, scaler: Any) -> None:
        if scaler.is_enabled():
            site = self.sites.here()
            tracked = self.registry.scaler(scaler)
            tracked.name = tracked.name or SourceText(site, "receiver")
            names = {"scaler": SourceText(site, "receiver")}
            self.recording.emit(e.SCALER_STATE, site, tracked.thing.key, names=names)

    @listens
    def scaler_load(self, scaler: Any) -> None:
        if scaler.is_enabled():
            tracked = self.registry.scaler(scaler)
            tracked.scale = self.registry.scale_now(scaler)
            self.recording.emit(e.SCALER_LOAD, self.sites.here(), tracked.thing.key)

    @listens
    def loaded(self, obj: Any) -> None:
        contents = look_into(obj)
        if contents.scaler_states:
            self._resumable |= contents.states

    @listens
    def saved(self, obj: Any) -> None:
        contents = look_into(obj)
        site = self.sites.here()
        owners = self._owners(contents)
        place = next((tracked.state_site for tracked in owners if tracked.state_site is not None), None)
        # Names, since the objects may be gone when the run is judged as a whole.
        self.recording.emit(
            e.SAVE,
            place or site,
            optimizers=tuple(_name_of(tracked, "the optimizer") for tracked in owners),
            scalers=(True,) if contents.scaler_states or contents.scalers else (),
            whole_scalers=(),
            scope_scalers=self._live_scalers(owners),
            open=False,
        )
        if contents.scalers:
            self._saved_whole(contents, site)

    def _owners(self, contents: Contents) -> list[TrackedOptimizer]:
        """The optimizers that a scaler has stepped and whose state is saved."""
        optimizers = self.registry.optimizers.values()
        return [tracked for tracked in optimizers if tracked.scaler is not None and tracked.saved_in(contents)]

    def _live_scalers(self, owners: list[TrackedOptimizer]) -> tuple[str, ...]:
        scalers = [tracked.scaler for tracked in owners]
        live = [scaler for scaler in scalers if scaler is not None and scaler.scaler() is not None]
        return tuple(_name_of(scaler, "the scaler") for scaler in live)

    def _saved_whole(self, contents: Contents, site: Site) -> None:
        """Scalers are saved as objects, not by their state."""
        whole = tuple(_name_of(self.registry.scaler(scaler), "the scaler") for scaler in contents.scalers)
        self.recording.emit(e.SAVE, site, optimizers=(), scalers=(), whole_scalers=whole, scope_scalers=(), open=False)


def _name_of(tracked: TrackedOptimizer | TrackedScaler, default: str) -> str:
    return str(tracked.name or "") or default
