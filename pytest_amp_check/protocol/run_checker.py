"""Checker for runs: a single state along a sequence of events, in bounded memory.

A run is a graph with one path. :mod:`.graph_checker` explores the paths of a graph; this module follows the run.
Violations in a run are definite, because the events have happened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from . import automaton as a
from . import events as e
from .checker import Checker, Here, PathState
from .edit_places import FindingContext, name_region
from .effect_values import find_effect_values
from .effects import apply_event
from .event_graph import Graph, Node, Program
from .events import Event, EventKind
from .finding import Finding, TraceStep
from .findings_builder import (
    add_framework_advice,
    choose_location,
    event_violations,
    make_finding,
    program_violations,
)
from .frameworks import FRAMEWORKS
from .message_templates import describe_event
from .rule import ERROR
from .rules import ALONE, LABELS
from .selection import is_selected
from .sites import Site

#: Number of latest events kept to show the path to a violation.
RECENT = 512
#: Number of pending events that triggers a flush. Later iterations complete the attributes of the first iteration.
PENDING = 256
#: Maximum number of different events (kind, location, objects) kept for checks of the whole run.
DISTINCT = 4096

#: Kinds that may be the first event of a scaler, kinds that detect a violation that every visit must have, and step
#: kinds. Module constants, because every event is looked up in these tuples.
_OF_SCALERS = (e.Scale, e.ScalerStep, e.Unscale, e.Update, e.Backward)
_VISITS = (e.ScalerStep, e.Step, e.Unscale, e.Update)
_STEPS = (e.ScalerStep, e.Step)

#: Kind, location and objects, which identify a repeated event.
Identity = tuple[EventKind, int, int | None, int | None]
#: Identity, state, and the fields that decide the effect.
Repeat = tuple[Identity, PathState, tuple[object, ...]]


class RunChecker(Checker):
    """The checker of one run. Events are added in the order of execution.

    Memory is bounded by the number of different source locations, not by the length of the run.
    """

    has_exact_identity = True

    def __init__(
        self,
        program: Program,
        find_own_site: Callable[[Site], Site] = lambda site: site,
        find_framework: Callable[[Site], str] = lambda site: "",
    ) -> None:
        super().__init__(program, [])
        #: Function that maps a location to the program's own location, if a library called torch.
        self.find_own_site = find_own_site
        #: Function that returns the framework whose code calls torch at a location, or "" for the program's own code.
        self.find_framework = find_framework
        #: Key of a scaler -> framework whose code constructed the scaler.
        self.frameworks: dict[int, str] = {}
        self.state = PathState(0, 0, (), (), 0, 0, -1)
        self.event_count = 0
        self.recent_events: deque[Event] = deque(maxlen=RECENT)
        #: Events that opened regions, and the latest stale write, kept independent of age.
        self.pinned_events: dict[int, Event] = {}
        self.pending_events: list[Event] = []
        self.distinct_events: dict[Identity, Event] = {}
        self.path_findings: dict[tuple[str, Identity], Finding] = {}
        #: Number of occurrences of violations that must occur at every visit, with the detecting event.
        self.violation_counts: dict[tuple[str, Identity], tuple[int, Identity]] = {}
        self.visit_counts: dict[Identity, int] = {}
        self.event_findings: dict[tuple[str, Identity], Finding] = {}
        #: Optimizer of the violation that is being resolved.
        self.current_optimizer: int | None = None
        #: Locations of the backwards since the last step, for each optimizer.
        self.backward_sites: dict[int, set[Site]] = {}
        #: Findings of uncleared gradients -> optimizers. A later clear withdraws the findings.
        self.uncleared_findings: dict[tuple[str, Identity], set[int]] = {}
        #: Number of steps so far, and the earliest finding of a wrong update, with the number of steps before it.
        self.step_count = 0
        self.wrong_update: tuple[Finding, int] | None = None
        #: State after events without violation. A loop has few states, so most events are looked up here.
        self.known_transitions: dict[Repeat, PathState] = {}

    def add_event(self, event: Event) -> None:
        """Add an event. The attributes may be completed until the next flush."""
        self.pending_events.append(event)

    def flush(self) -> None:
        """Check the pending events, whose attributes are final now."""
        pending, self.pending_events = self.pending_events, []
        for event in pending:
            self._register_objects(event)
        for event in pending:
            self._process_event(event)

    def close(self, *, broken: bool = False) -> None:
        """End the run. A run stopped by an exception (``broken``) has no unfinished work to report."""
        self.flush()
        if broken:
            for key in self.uncleared_findings:
                self.path_findings.pop(key, None)
        last = self.recent_events[-1] if self.recent_events else None
        if last is not None and not broken:
            self._process_event(e.End(last.site))

    def adopt_optimizer(self, optimizer: int, event: Event) -> None:
        """Register an optimizer found after a backward that reached the optimizer was already checked."""
        self._register_objects(e.Step(event.site, None, optimizer))
        i = self.optimizer_index[optimizer]
        opts = list(self.state.optimizer_states)
        if opts[i] == a.OptimizerState():
            kind = a.BACKWARD_RAW if event.subject is None else a.BACKWARD_SCALED
            opts[i], _ = a.transition(opts[i], kind, scaler_key=-1 if event.subject is None else event.subject)
            self.state = self.state._replace(optimizer_states=tuple(opts))

    def forget_optimizer(self, optimizer: int) -> None:
        """Remove an optimizer that was deleted."""
        self.flush()
        i = self.optimizer_index.get(optimizer)
        if i is None:
            return
        here = (self.event_count - 1,)
        if self.is_never_updated(self.state.optimizer_states[i]):
            self.resolve_cause("end@stepped", here[0], i, here)
        del self.optimizer_keys[i]
        self.optimizer_index = {key: i for i, key in enumerate(self.optimizer_keys)}
        self.state = self.state._replace(
            optimizer_states=self.state.optimizer_states[:i] + self.state.optimizer_states[i + 1 :]
        )
        for known in (self.zeroed_optimizers, self.escaped_objects):
            known.discard(optimizer)
        self.backward_sites.pop(optimizer, None)
        self.known_transitions.clear()

    def collect_findings(self, select: frozenset[str] | None = None) -> list[Finding]:
        """Return all findings so far, sorted. With ``select``, return only findings of these rules."""
        self.flush()
        by_location: dict[tuple[str, str, int, int], Finding] = {}
        labels = {label for label, _ in self.path_findings}
        for (label, identity), finding in self.path_findings.items():
            kind = LABELS[label][1]
            if not labels.isdisjoint(kind.precedence.yields_where_detected):
                continue
            if kind.precedence.needs_every_path:
                times, detected_at = self.violation_counts[label, identity]
                if times < self.visit_counts[detected_at]:
                    continue
            if any((stronger, identity) in self.path_findings for stronger in kind.precedence.yields_to):
                continue
            if kind.precedence.needs_update and identity[2] not in self.updated_scalers:
                continue
            by_location.setdefault(_finding_key(finding), finding)
        for finding in (*self.event_findings.values(), *self._check_whole_run()):
            follows = LABELS[finding.label][1].precedence.consequence_of
            if not follows or not any(code.startswith(follows) for code, *_ in by_location):
                by_location.setdefault(_finding_key(finding), finding)
        chosen = [f for f in by_location.values() if select is None or is_selected(select, f)]
        if self.wrong_update is not None:
            _order_consequences(chosen, *self.wrong_update)
        return sorted(chosen, key=Finding.order)

    def check_event(self, event: Event) -> None:
        """Check a single event again, after the attributes were completed late."""
        for label, values in event_violations(event, self.program):
            key = (label, _event_identity(event))
            self.on_violation(key, None)
            if key not in self.event_findings:
                traced = event.trace if isinstance(event, (e.NotFinite, e.Raised, e.Update)) else ()
                trace = tuple(TraceStep(site, text) for site, text in traced)
                names = {**find_effect_values(label, [event], self.program), **values}
                names = {**name_region([*self.distinct_events.values(), *self.pending_events]), **names}
                self.event_findings[key] = make_finding(label, self.find_own_site(event.site), [event], names, trace)

    def withdraw_event(self, event: Event) -> None:
        """Remove the findings of an event that was checked alone."""
        self.flush()
        identity = _event_identity(event)
        self.event_findings = {key: each for key, each in self.event_findings.items() if key[1] != identity}

    # Single events.

    def _register_objects(self, event: Event) -> None:
        """Register the objects of an event before any pending event is checked."""
        if event.subject is not None and isinstance(event, _OF_SCALERS):
            self.scaler_bits.setdefault(event.subject, 0)
        key = event.subject if isinstance(event, e.OptimizerNew) else event.object
        if key is not None and event.traits.has_optimizer and key not in self.optimizer_index:
            self.optimizer_index[key] = len(self.optimizer_keys)
            self.optimizer_keys.append(key)
            self.state = self.state._replace(optimizer_states=(*self.state.optimizer_states, a.OptimizerState()))

    def _process_event(self, event: Event) -> None:
        index = self.event_count
        self.event_count += 1
        self.recent_events.append(event)
        identity = _event_identity(event)
        self._record_event(event, identity)
        if type(event) in ALONE:
            self.check_event(event)
        repeat = self._make_repeat_key(event, identity)
        next_state = self.known_transitions.get(repeat) if repeat is not None else None
        if next_state is not None:
            self.state = next_state
            return
        if isinstance(event, e.AutocastEnter):
            self.pinned_events[index] = event
        self.saw_violation = False
        self.state = apply_event(self, index, event, self.state, (index,))
        if repeat is not None and not self.saw_violation:
            if len(self.known_transitions) >= DISTINCT:
                self.known_transitions.clear()
            self.known_transitions[repeat] = self.state
        if not self.state.regions:
            self.pinned_events.clear()
        elif self.state.stale_write == index:
            self.pinned_events[index] = event

    def _record_event(self, event: Event, identity: Identity) -> None:
        """Record that an event happened, independent of the state."""
        if identity not in self.distinct_events and len(self.distinct_events) < DISTINCT:
            self.distinct_events[identity] = event
        if isinstance(event, _VISITS):
            self.visit_counts[identity] = self.visit_counts.get(identity, 0) + 1
        if isinstance(event, _STEPS) and event.object is not None:
            self.step_count += 1
            self.backward_sites.pop(event.object, None)
        if isinstance(event, e.Update):
            self.updated_scalers.add(event.subject)
        elif isinstance(event, e.ZeroGrad):
            self.zeroed_optimizers.update(self.owner_keys(event))
            for key, owners in list(self.uncleared_findings.items()):
                if not event.guessed and not owners.isdisjoint(self.owner_keys(event)):
                    self.uncleared_findings.pop(key)
                    self.path_findings.pop(key, None)

    def _make_repeat_key(self, event: Event, identity: Identity) -> Repeat | None:
        """Return the key that determines the next state, or None if the next state depends on more."""
        names = event.traits.deciding_fields
        state = self.state
        if names is None or state.regions:
            return None
        if isinstance(event, e.Backward):
            for key in event.feeds or ():
                if event.site not in self.backward_sites.get(key, ()):
                    return None
        elif event.object is not None and self.program.objects[event.object].attributes.shares:
            return None
        deciding_values: list[object] = []
        for name in names:
            value: object = getattr(event, name)
            deciding_values.append(frozenset(value) if isinstance(value, set) else value)
        return identity, state, tuple(deciding_values)

    def find_already_accumulated(self, event: e.Backward) -> list[int]:
        again = []
        for key in event.feeds or ():
            i = self.optimizer_index.get(key)
            if i is None:
                continue
            places = self.backward_sites.setdefault(key, set())
            if event.site in places:
                again.append(i)
            places.add(event.site)
        return again

    # Conversion of violations to findings.

    def may_step_uncleared(self, index: int, i: int) -> bool:
        return True  # the rest of the run is not known

    def event_at(self, index: int) -> Event | None:
        pinned_event = self.pinned_events.get(index)
        if pinned_event is not None:
            return pinned_event
        offset = index - (self.event_count - len(self.recent_events))
        return self.recent_events[offset] if offset >= 0 else None

    def walk_back(self, here: Here) -> Iterator[int]:
        first = self.event_count - len(self.recent_events)
        return iter(range(here[0], first - 1, -1))

    def on_violation(self, violation: tuple[str, Identity], optimizer: int | None) -> None:
        """Handle a violation, first or repeated, on the gradients of an optimizer (None if unknown)."""

    def resolve_cause(self, label: str, index: int, i: int, here: Here, *, sure: bool = True) -> None:
        self.current_optimizer = self.optimizer_keys[i] if self.optimizer_keys else None
        super().resolve_cause(label, index, i, here, sure=sure)
        self.current_optimizer = None
        event = self.event_at(index)
        if label == "backward@stale" and event is not None:
            self.uncleared_findings.setdefault((label, _event_identity(event)), set()).add(self.optimizer_keys[i])

    def report_violation(self, label: str, cause: int, detected_at: int, here: Here, *, sure: bool = True) -> None:
        event, partner = self.event_at(cause), self.event_at(detected_at)
        if event is None or partner is None:
            return
        kind, key = LABELS[label][1], (label, _event_identity(event))
        self.on_violation(key, self.current_optimizer)
        if kind.precedence.needs_every_path:
            self.violation_counts[key] = (self.violation_counts.get(key, (0,))[0] + 1, _event_identity(partner))
        if key in self.path_findings:
            return
        trace = self.build_trace(label, here, cause, detected_at)
        path = [x for _, x in trace]
        involved = [event] if partner is event else [event, partner]
        other = partner if partner is not event else next((x for x in reversed(path) if x is not event), event)
        site = self.find_own_site(choose_location(event.site, other.site, reads=kind.cause.only_reads))
        context = self.add_context(label, here, trace, event, partner)
        steps = tuple(TraceStep(x.site, describe_event(x)) for _, x in context)
        by = next(filter(None, (self.find_framework(x.site) for x in involved)), "")
        if not by and event.subject is not None:
            by = self.frameworks.get(event.subject, "")
        if by and label in FRAMEWORKS[by].own_violations and self.find_framework(partner.site):
            return
        final_label, values = add_framework_advice(label, by)
        names = [*involved, *reversed(path)]
        values = {**find_effect_values(final_label, names, self.program), **values}
        shown = [*names, *(x for _, x in context)]
        around = FindingContext(self.program, self.distinct_events.values(), shown=shown)
        finding = self.path_findings[key] = make_finding(final_label, site, names, values, steps, context=around)
        if self.wrong_update is None and finding.severity == ERROR and finding.code.startswith("AMP2"):
            # The step that detects a violation is counted already.
            self.wrong_update = finding, self.step_count - isinstance(partner, _STEPS)

    def _check_whole_run(self) -> Iterator[Finding]:
        """Yield findings of the rules that check a run as a whole."""
        graph = Graph("run")
        for event in self.distinct_events.values():
            if graph.nodes:
                graph.nodes[-1].edges.append((len(graph.nodes), -1, True))
            graph.nodes.append(Node(event))
        run_program = Program()
        run_program.graphs, run_program.objects, run_program.attributes = (
            [graph],
            self.program.objects,
            self.program.attributes,
        )
        for label, event, values, others in program_violations(run_program):
            trace = tuple(TraceStep(other.site, describe_event(other)) for other in others)
            names = {**find_effect_values(label, [event, *others], run_program), **values}
            site, involved = self.find_own_site(event.site), [event, *others]
            around = FindingContext.from_graph(graph, run_program)
            finding = make_finding(label, site, involved, names, trace, context=around)
            # What source code does not show has happened in a run.
            finding.certain = True
            yield finding


def _order_consequences(findings: list[Finding], wrong_update: Finding, step: int) -> None:
    """Mark findings of non-finite values that a wrong update may have caused: those of later steps.

    The gradients of a wrong backward may already be non-finite in the same step.
    """
    if not any(finding.label == wrong_update.label and finding.site == wrong_update.site for finding in findings):
        return
    for finding in findings:
        found_at = finding.names.get("step", "")
        if finding.code != "AMP802" or not found_at.isdecimal():
            continue
        if int(found_at) > step or (int(found_at) == step and finding.label == "not-finite:gradient"):
            finding.follows, finding.certain = True, False
            finding.condition = f"if it remains once {wrong_update.code} in line {wrong_update.line} is mended"


def _event_identity(event: Event) -> Identity:
    # Sites are cached, so a location of a run is always the same object.
    return (type(event), id(event.site), event.subject, event.object)


def _finding_key(finding: Finding) -> tuple[str, str, int, int]:
    return (finding.code, finding.site.path, finding.site.line, finding.site.column)
