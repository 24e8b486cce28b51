"""The core of a recording: its state, and the event sequence of the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ...protocol import events as e
from ...protocol import torch_api
from ...protocol.event_graph import Program
from ...protocol.events import Event, Symbol
from ...protocol.run_checker import PENDING, Identity, RunChecker
from ...protocol.sites import Site
from . import active
from .collector import Collector
from .deferred_values import DeferredValues
from .loose_ops import LooseOps
from .regions import Regions
from .registry import Registry
from .sites import SiteFinder, calling_framework, innermost_user_site
from .states import GradientHistory
from .steps import StepLog

Read = TypeVar("Read")
Emitted = TypeVar("Emitted", bound=Event)
_STEPS = (e.Step, e.ScalerStep)


class _RecordingChecker(RunChecker):
    """A run checker that checks events once their deferred numbers are known, and records the history of gradients."""

    def __init__(self, program: Program, deferred_values: DeferredValues, steps: StepLog) -> None:
        super().__init__(program, innermost_user_site, calling_framework)
        self._deferred_values = deferred_values
        self._steps = steps
        #: Numbers of the steps whose events are not checked yet.
        self._step_numbers: deque[int] = deque()
        self.gradient_history = GradientHistory()

    def add_event(self, event: Event) -> None:
        if isinstance(event, _STEPS):
            self._step_numbers.append(self._steps.total)
        super().add_event(event)

    def flush(self) -> None:
        self._deferred_values.fetch_all()
        super().flush()

    def _process_event(self, event: Event) -> None:
        is_step = isinstance(event, _STEPS)
        if is_step:
            self.gradient_history.step_number = self._step_numbers.popleft()
        states_before = self.state.optimizer_states
        super()._process_event(event)
        states_after = self.state.optimizer_states
        if states_after is not states_before:
            for key, old, new in zip(self.optimizer_keys, states_before, states_after, strict=False):
                if old.grads != new.grads:
                    self.gradient_history.record_state(key, new.grads)
        if is_step:
            assert event.object is not None
            self.gradient_history.record_step(event.object, event.names["optimizer"])

    def adopt_optimizer(self, optimizer: int, event: Event) -> None:
        super().adopt_optimizer(optimizer, event)
        self.gradient_history.record_state(
            optimizer, self.state.optimizer_states[self.optimizer_index[optimizer]].grads
        )

    def on_violation(self, key: tuple[str, Identity], optimizer: int | None) -> None:
        i = None if optimizer is None else self.optimizer_index.get(optimizer)
        self.gradient_history.record_violation(
            key, optimizer, "" if i is None else self.state.optimizer_states[i].grads
        )

    def history_data(self) -> dict[str, Any]:
        """Return :meth:`.GradientHistory.as_dict` for all events so far."""
        self.flush()
        return self.gradient_history.as_dict(lambda key: self.path_findings.get(key) or self.event_findings.get(key))


class Recording:
    """The shared state of the listeners of one recording."""

    def __init__(self, outermost: Any = None) -> None:
        #: The error that ended the recording early, or None; and True while a listener runs, whose own calls are not
        #: recorded.
        self.failure: Exception | None = None
        self.is_busy = False
        #: True if a collector watches ops by a dispatch mode.
        self.has_dispatch_watcher = False
        #: The function mode that sees ops outside of modules, or None.
        self.loose_ops: LooseOps | None = None
        self.sites = SiteFinder(outermost)
        self.program = Program()
        #: Numbers that are on a device.
        self.deferred_values = DeferredValues()
        self.steps = StepLog(self.deferred_values)
        self.run_checker = _RecordingChecker(self.program, self.deferred_values, self.steps)
        self.collectors: list[Collector] = []
        self.registry = Registry(self.program, self.run_checker, self.deferred_values)
        self.regions = Regions()
        #: Nesting depth of running backward passes.
        self.backward_depth = 0
        #: True if in-place changes of tensors may be relevant now.
        self.watches_tensors = False
        #: Cache of answers about the source code at a location.
        self._source_answers: dict[tuple[Callable[[Site], object], Site], Any] = {}
        self.program.attributes.enters_autocast = False

    def emit(self, event: Emitted) -> Emitted:
        """Add an event, and return the event."""
        run_checker = self.run_checker
        run_checker.add_event(event)
        if len(run_checker.pending_events) >= PENDING and not self.backward_depth and self.deferred_values.can_fetch:
            run_checker.flush()
        return event

    def query_source(self, site: Site, query: Callable[[Site], Read]) -> Read:
        """Return the answer of ``query`` about the source at a location.

        Answers are cached, so callers must not change them.
        """
        answer = self._source_answers.get((query, site))
        if answer is None:
            answer = self._source_answers[query, site] = query(site)
        result: Read = answer
        return result

    def update_watching(self) -> None:
        """Watch in-place changes inside of regions, and while gradients are scaled or unscaled."""
        watches = bool(self.regions) or any(
            tracked.is_scaled or tracked.is_unscaled for tracked in self.registry.optimizers.values()
        )
        if watches != self.watches_tensors:
            self.watches_tensors = watches
            active.set_watching(self, should_watch=watches)


def plain_argument(value: Any) -> object:
    """Return an argument in the form that event attributes hold."""
    if isinstance(value, torch.dtype):
        return Symbol(torch_api.canonical_name(str(value)))
    if isinstance(value, torch.device):
        return Symbol("torch.device()")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return e.UNKNOWN
