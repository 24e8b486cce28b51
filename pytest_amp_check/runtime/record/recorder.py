"""Records a run: turns what torch is asked to do into the events that the protocol judges."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from ...protocol import events as e
from . import patches
from .checkpoint import look_into
from .recording import told
from .scalers import Scalers
from .source import Spoken


class Recorder(Scalers):
    """One recording, in the thread that began it, told of everything."""

    def begin(self) -> None:
        patches.begin(self)
        try:
            for collector in self.collectors:
                collector.start()
        except BaseException:
            self.end(broken=True)
            raise

    def end(self, *, broken: bool = False) -> None:
        """The recording ends; ``broken`` says that an exception ends it."""
        with ExitStack() as stack:
            # Whatever fails, all that was patched is put back, and what the recorder gets wrong is its own affair.
            stack.callback(self._conclude, broken=broken)
            stack.callback(self._unhook)
            stack.callback(self._calls.unwatch)
            stack.callback(patches.end, self)
            for collector in self.collectors:
                stack.callback(collector.stop)

    def _conclude(self, *, broken: bool) -> None:
        if self.failure is not None:
            return
        self._busy = True
        try:
            self.bury()
            self.chain.close(broken=broken)
            self.steps.settle()
        except Exception as error:  # noqa: BLE001 - as while it lasted: the program goes on, and it is reported
            self.failure = error

    @told
    def optimizer_state(self, optimizer: Any, state: Any) -> None:
        known = self._known(optimizer)
        known.state_id = id(state)
        known.state_site = self.sites.here()
        known.said = known.said or Spoken(known.state_site, "receiver")

    @told
    def optimizer_load(self, optimizer: Any, state: Any) -> None:
        known = self._known(optimizer)
        site = self.sites.here()
        names = {"optimizer": Spoken(site, "receiver")}
        known.restored = self._emit(
            e.OPTIMIZER_LOAD,
            site,
            None,
            known.thing.key,
            holds_scaler=id(state) in self._resumable,
            scope_scalers=(),
            names=names,
        )

    @told
    def loaded(self, obj: Any) -> None:
        contents = look_into(obj)
        if contents.scaler_states:
            self._resumable |= contents.states

    @told
    def saved(self, obj: Any) -> None:
        contents = look_into(obj)
        site = self.sites.here()
        owners = [k for k in self.optimizers.values() if k.scaler is not None and k.saved_in(contents)]
        live = [k.scaler for k in owners if k.scaler is not None and k.scaler.scaler() is not None]
        place = next((k.state_site for k in owners if k.state_site is not None), None)
        # Names, since the things may be gone when the run is judged as a whole.
        self._emit(
            e.SAVE,
            place or site,
            optimizers=tuple(str(k.said or "") or "the optimizer" for k in owners),
            scalers=(True,) if contents.scaler_states or contents.scalers else (),
            whole_scalers=(),
            scope_scalers=tuple(str(holder.said or "") or "the scaler" for holder in live),
            open=False,
        )
        if contents.scalers:
            whole = tuple(str(self._scaler(s).said or "") or "the scaler" for s in contents.scalers)
            self._emit(e.SAVE, site, optimizers=(), scalers=(), whole_scalers=whole, scope_scalers=(), open=False)
