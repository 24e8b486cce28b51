"""Parameters of low precision: where they were cast or made so, and whether an optimizer trains them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ....protocol import events as e
from ....protocol.events import Event, Site
from ..recording import Recording
from ..regions import LOW
from ..source import SiteText, text_at
from ..tracked import TrackedOptimizer
from .listener import Listener, listener_method

#: Words in the options of optimizers that keep what rounding would lose: by chance, or by a sum of the rests.
KEEPS = ("stochastic", "kahan")
#: Parameters of an optimizer whose state is looked at for copies in float32.
LOOKED_AT = 4


class LowPrecisionListener(Listener):
    """Listens to modules that are cast, and to parameters that they are given."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: id of a parameter -> how it came to be in low precision.
        self._cast_events: dict[int, Event] = {}
        #: Where parameters are made, and of what dtype -> the event of all that are.
        self._creation_events: dict[tuple[int, str], Event] = {}
        #: Where the program made a low precision the default of what is made.
        self._default_site: Site | None = None
        #: How often parameters were noted, and of each optimizer how often that was when it was looked at last.
        self._note_count = 0
        self._decided_at_count: dict[int, int] = {}
        #: The random states before a step that is being made of parameters which are still to be decided about.
        self._states_before_step: list[torch.Tensor] = []

    @listener_method
    def record_module_cast(self, module: torch.nn.Module, dtype: str) -> None:
        site = self.sites.current_site()
        names: dict[str, object] = {"module": SiteText(site, "receiver"), "call": SiteText(site)}
        self._note_params(module.parameters(), self._make_event(site, dtype, "cast", names))

    @listener_method
    def record_data_cast(self, param: torch.Tensor, dtype: str) -> None:
        """A parameter is given values of low precision."""
        site = self.sites.current_site()
        self._note_params([param], self._make_event(site, dtype, "cast", {"call": text_at(site)}))

    @listener_method
    def record_parameter(self, module: torch.nn.Module, param: torch.Tensor) -> None:
        """A module is given a parameter of low precision."""
        by_default = self._default_site is not None and torch.get_default_dtype() is param.dtype
        site = self._default_site if by_default and self._default_site is not None else self.sites.current_site()
        dtype = LOW[param.dtype]
        event = self._creation_events.get((id(site), dtype))
        if event is None:
            names: dict[str, object] = {"module": type(module).__name__, "call": SiteText(site)}
            event = self._make_event(site, dtype, "default" if by_default else "made", names)
            self._creation_events[id(site), dtype] = event
        self._note_params([param], event)

    @listener_method
    def record_default_dtype(self, dtype: torch.dtype) -> None:
        self._default_site = self.sites.current_site() if dtype in LOW else None

    def _make_event(self, site: Site, dtype: str, how: str, names: dict[str, object]) -> Event:
        module = self.recording.program.add_object("module", "the model")
        return Event(e.MODULE_CAST, site, module.key, None, {"dtype": dtype, "how": how}, names)

    def _note_params(self, params: Iterable[torch.Tensor], event: Event) -> None:
        self._note_count += 1
        self._cast_events.update((id(p), event) for p in params)

    def site_of(self, param: Any) -> Site | None:
        """Where a parameter was brought to low precision, if that was seen."""
        event = self._cast_events.get(id(param))
        return None if event is None else event.site

    def prepare_step(self, tracked: TrackedOptimizer) -> None:
        """An optimizer is about to be stepped: one that draws random numbers in it rounds with them."""
        self._states_before_step = [] if self._is_decided(tracked) else _random_states()

    def note_step(self, tracked: TrackedOptimizer) -> None:
        """An optimizer was stepped: blame what brought its parameters to a low precision."""
        if self._is_decided(tracked):
            return
        self._decided_at_count[tracked.tracked_object.key] = self._note_count
        low = [p for p in tracked.params if p.dtype in LOW]
        optimizer = tracked.optimizer()
        has_drawn = bool(self._states_before_step) and not all(
            map(torch.equal, self._states_before_step, _random_states())
        )
        if low and not has_drawn and not (optimizer is not None and keeps_precision(optimizer, low)):
            self.report_casts(low)

    def _is_decided(self, tracked: TrackedOptimizer) -> bool:
        return not self._note_count or self._decided_at_count.get(tracked.tracked_object.key) == self._note_count

    def report_casts(self, params: Iterable[torch.Tensor]) -> bool:
        """Tell of what brought parameters to a low precision that they are trained in; whether all of it is known."""
        trained: set[int] = self.recording.program.attributes["trained_modules"]
        is_all_known = True
        for p in params:
            event = self._cast_events.get(id(p))
            is_all_known = is_all_known and event is not None
            if event is not None and event.subject is not None and event.subject not in trained:
                trained.add(event.subject)
                self.recording.run_checker.add_event(event)
        return is_all_known


def _random_states() -> list[torch.Tensor]:
    """The states of the generators that ops draw from by default."""
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        generators += torch.cuda.default_generators
    return [generator.get_state() for generator in generators]


def keeps_precision(optimizer: torch.optim.Optimizer, low: list[torch.Tensor]) -> bool:
    """Whether an optimizer trains parameters of low precision without losing small updates, as far as it shows.

    It says so by an option, as torchao's and optimi's do, or it has a copy of them in float32.
    """
    options = [vars(optimizer), optimizer.defaults, *optimizer.param_groups]
    enabled_options = (name for each in options for name, value in each.items() if value is True)
    if any(word in str(name) for name in enabled_options for word in KEEPS):
        return True
    for p in low[:LOOKED_AT]:
        state = optimizer.state.get(p)
        if any(_is_copy(value, p) for value in (state.values() if isinstance(state, dict) else ())):
            return True
    return False


def _is_copy(value: Any, p: torch.Tensor) -> bool:
    """Whether a tensor of an optimizer's state is a parameter with more digits."""
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32 or value.shape != p.shape:
        return False
    return torch.equal(value.detach().to(p.dtype), p.detach())
