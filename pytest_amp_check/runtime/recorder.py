"""Records a run: turns what torch is asked to do into the events that the protocol judges."""

from __future__ import annotations

from typing import Any

from ..protocol import events as e
from . import patches
from .contents import look_into
from .recording import told
from .scalers import Scalers
from .spoken import Spoken


class Recorder(Scalers):
    """One recording, in the thread that began it, told of everything."""

    def begin(self) -> None:
        patches.begin(self)
        for collector in self.collectors:
            collector.start()

    def end(self, *, broken: bool = False) -> None:
        """The recording ends; ``broken`` says that an exception ends it."""
        try:
            for collector in reversed(self.collectors):
                collector.stop()
        finally:
            patches.end(self)
            self._unhook()
            self._busy = True
            self.bury()
            self.chain.close(broken=broken)
            self.steps.settle()

    @told
    def optimizer_state(self, optimizer: Any, state: Any) -> None:
        known = self._known(optimizer)
        known.state_id = id(state)
        known.state_site = self.sites.here()
        known.said = known.said or Spoken(known.state_site, "receiver")

    @told
    def saved(self, obj: Any) -> None:
        contents = look_into(obj)
        site = self.sites.here()
        owners = [k for k in self.optimizers.values() if k.state_id in contents.states]
        live = [k.scaler for k in owners if k.scaler is not None and k.scaler.scaler() is not None]
        for known in owners:
            known.thing.name = str(known.said or "") or known.thing.name
        for holder in (*live, *(self._scaler(s) for s in contents.scalers)):
            holder.thing.name = str(holder.said or "") or holder.thing.name
        place = next((k.state_site for k in owners if k.state_site is not None and k.scaler is not None), None)
        self._emit(
            e.SAVE,
            place or site,
            optimizers=tuple(k.thing.key for k in owners if k.scaler is not None),
            scalers=(True,) if contents.scaler_states or contents.scalers else (),
            whole_scalers=(),
            scope_scalers=tuple(h.thing.key for h in live),
            open=False,
            names={},
        )
        if contents.scalers:
            whole = tuple(self._scaler(s).thing.key for s in contents.scalers)
            self._emit(e.SAVE, site, optimizers=(), scalers=(), whole_scalers=whole, scope_scalers=(), open=False)
