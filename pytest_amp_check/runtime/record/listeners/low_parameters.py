"""Low-precision parameters: the locations of casts and creation, and the training by optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ....protocol import events as e
from ....protocol.events import Event
from ....protocol.sites import Site
from ..recording import Recording
from ..regions import LOW
from ..source.call_texts import Role, SiteText
from ..source.syntax import text_at
from ..sums import can_observe
from ..tracked import TrackedOptimizer
from .listener import Listener, listener_method

#: Words in option names of optimizers that preserve small updates: stochastic rounding, or Kahan summation.
KEEPS = ("stochastic", "kahan")
#: Number of parameters of an optimizer whose state is searched for float32 copies.
LOOKED_AT = 4


class LowPrecisionListener(Listener):
    """A listener for casts of modules, and for new parameters of modules."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: ``id`` of a parameter to the event that brought it to low precision.
        self._cast_events: dict[int, Event] = {}
        #: (``id`` of a location, dtype) to the common event of all parameters created there.
        self._creation_events: dict[tuple[int, str], Event] = {}
        #: Location at which the program made low precision the default dtype, or None.
        self._default_site: Site | None = None
        #: ``id`` of a parameter that an optimizer had stepped to the event that cast its module to low precision.
        self._casts_after_step: dict[int, e.ModuleCast] = {}
        #: Number of notes of parameters so far; and for each optimizer that has stepped that number at its last check.
        self._note_count = 0
        self._decided_at_count: dict[int, int] = {}
        #: Random states before the running step, if its parameters are not decided about yet.
        self._states_before_step: list[torch.Tensor] = []

    @listener_method
    def record_module_cast(self, module: torch.nn.Module, dtype: str) -> None:
        site = self.sites.current_site()
        names: dict[str, object] = {"module": SiteText(site, Role.RECEIVER), "call": SiteText(site)}
        event = self._make_event(site, dtype, "cast", names)
        self._note_params(module.parameters(), event)
        stepped_ids = {
            id(p)
            for tracked in self.registry.optimizers.values()
            if tracked.tracked_object.key in self._decided_at_count
            for p in tracked.params
        }
        self._casts_after_step.update((id(p), event) for p in module.parameters() if id(p) in stepped_ids)

    @listener_method
    def record_data_cast(self, param: torch.Tensor, dtype: str) -> None:
        """Record a parameter whose data becomes low precision."""
        site = self.sites.current_site()
        self._note_params([param], self._make_event(site, dtype, "cast", {"call": text_at(site)}))

    @listener_method
    def record_parameter(self, module: torch.nn.Module, param: torch.Tensor) -> None:
        """Record a new low-precision parameter of a module."""
        site, how = self._default_site, "default"
        if site is None or torch.get_default_dtype() is not param.dtype:
            site, how = self.sites.current_site(), "made"
        dtype = LOW[param.dtype]
        event = self._creation_events.get((id(site), dtype))
        if event is None:
            names: dict[str, object] = {"module": type(module).__name__, "call": SiteText(site)}
            event = self._make_event(site, dtype, how, names)
            self._creation_events[id(site), dtype] = event
        self._note_params([param], event)

    @listener_method
    def record_default_dtype(self, dtype: torch.dtype) -> None:
        self._default_site = self.sites.current_site() if dtype in LOW else None

    def _make_event(self, site: Site, dtype: str, how: str, names: dict[str, object]) -> e.ModuleCast:
        module = self.recording.program.add_object("module", "the model")
        return e.ModuleCast(site, module.key, dtype=dtype, how=how, names=names)

    def _note_params(self, params: Iterable[torch.Tensor], event: Event) -> None:
        self._note_count += 1
        self._cast_events.update((id(p), event) for p in params)

    def site_of(self, param: Any) -> Site | None:
        """Return the location at which a parameter was brought to low precision, or None if not seen."""
        event = self._cast_events.get(id(param))
        return None if event is None else event.site

    def prepare_step(self, tracked: TrackedOptimizer) -> None:
        """Save random states before a step.

        An optimizer that draws random numbers in its step uses stochastic rounding.
        """
        self._report_returned(tracked)
        self._states_before_step = [] if self._is_decided(tracked) else _random_states()

    def note_step(self, tracked: TrackedOptimizer, *, is_refused: bool = False) -> None:
        """Report, after a step, the casts and creations of the optimizer's low-precision parameters.

        ``is_refused``: torch raised, and its own message names parameters that are older than the recording.
        """
        if self._is_decided(tracked):
            return
        self._decided_at_count[tracked.tracked_object.key] = self._note_count
        low = [p for p in tracked.params if p.dtype in LOW]
        if not low or not all(map(torch.equal, self._states_before_step, _random_states())):
            return
        optimizer = tracked.optimizer()
        assert optimizer is not None
        if not keeps_precision(optimizer, low) and not self.report_casts(low) and not is_refused:
            self._report_older(tracked, low)

    def _report_returned(self, tracked: TrackedOptimizer) -> None:
        """Report casts of trained modules that were cast back to float32 before this step.

        Weights that were saved before and loaded again have kept their values.
        """
        trained = self.recording.program.attributes.training.trained_modules
        for p in tracked.params if self._casts_after_step else ():
            event = self._casts_after_step.get(id(p))
            if event is None or p.dtype in LOW:
                continue
            del self._casts_after_step[id(p)]
            if event.subject not in trained and can_observe(p) and _is_rounded(p, event.dtype):
                assert event.subject is not None
                event.trained, event.returns = False, True
                trained.add(event.subject)
                self.recording.run_checker.add_event(event)

    def _report_older(self, tracked: TrackedOptimizer, low: list[torch.Tensor]) -> None:
        """Report parameters that were low precision before the recording, at the optimizer."""
        older = next(p for p in low if id(p) not in self._cast_events)
        site = tracked.construction_site or self.sites.current_site()
        names: dict[str, object] = {"optimizer": tracked.name}
        self._note_params(low, self._make_event(site, LOW[older.dtype], "before", names))
        self._decided_at_count[tracked.tracked_object.key] = self._note_count
        self.report_casts([older])

    def _is_decided(self, tracked: TrackedOptimizer) -> bool:
        return self._decided_at_count.get(tracked.tracked_object.key, -1) == self._note_count

    def report_casts(self, params: Iterable[torch.Tensor]) -> bool:
        """Report casts and creations of trained parameters. Return True if the events of all parameters are known."""
        trained: set[int] = self.recording.program.attributes.training.trained_modules
        is_all_known = True
        for p in params:
            event = self._cast_events.get(id(p))
            is_all_known = is_all_known and event is not None
            if event is not None and event.subject not in trained:
                assert event.subject is not None
                trained.add(event.subject)
                self.recording.run_checker.add_event(event)
        return is_all_known


def _is_rounded(p: torch.Tensor, dtype: str) -> bool:
    """Return True if a dtype represents all elements of a tensor. May wait for the device."""
    value = p.detach()
    return torch.equal(value, value.to(getattr(torch, dtype)).to(p.dtype))


def _random_states() -> list[torch.Tensor]:
    """Return the states of the default random generators."""
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        generators += torch.cuda.default_generators
    return [generator.get_state() for generator in generators]


def keeps_precision(optimizer: torch.optim.Optimizer, low: list[torch.Tensor]) -> bool:
    """Return True if an optimizer visibly trains low-precision parameters without losing small updates.

    The optimizer either has an option for it, like the optimizers of torchao and optimi, or a float32 copy of the
    parameters, in its state or in an attribute of its own.
    """
    options = [vars(optimizer), optimizer.defaults, *optimizer.param_groups]
    enabled_options = (name for each in options for name, value in each.items() if value is True)
    if any(word in str(name) for name in enabled_options for word in KEEPS):
        return True
    own_attributes = [
        value
        for name, value in vars(optimizer).items()
        if name not in ("state", "param_groups", "defaults") and isinstance(value, (dict, list, tuple))
    ]
    kept = list(_tensors_in(own_attributes))
    for p in low[:LOOKED_AT]:
        state = optimizer.state.get(p)
        if any(_is_copy(value, p) for value in (*(state.values() if isinstance(state, dict) else ()), *kept)):
            return True
    return False


def _tensors_in(value: Any, depth: int = 3) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested containers. A dict may have parameters as keys."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(item, depth - 1)


def _is_copy(value: Any, p: torch.Tensor) -> bool:
    """Return True if a tensor of an optimizer's state is a float32 copy of a parameter."""
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32 or value.shape != p.shape:
        return False
    return torch.equal(value.detach().to(p.dtype), p.detach())
