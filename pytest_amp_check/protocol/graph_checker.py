"""Checker for programs: turn the violations on the explored paths of each graph into findings."""

from __future__ import annotations

from collections.abc import Iterator

from . import events as e
from .checker import Here, Violation
from .edit_places import FindingContext
from .effect_values import find_effect_values
from .event_graph import Graph, Predicate, Program
from .events import Event
from .fast_namedtuple import NamedTuple
from .finding import Finding, TraceStep, merge_finding
from .findings_builder import (
    adapt_to_framework,
    check_event,
    choose_location,
    make_finding,
    merge_steps,
    program_violations,
    trace_premises,
)
from .graph_exploration import GraphExplorer
from .graph_findings import (
    describe_first_window,
    describe_trailing,
    find_clips_without_scaler,
    find_inverted_windows,
    find_running_divisors,
    find_scalers_made_per_call,
    find_short_first_windows,
    find_trailing_windows,
)
from .guards import decided_guards
from .live_predicates import compute_live_predicates
from .message_templates import describe_event
from .region_search import find_region_before
from .rules import LABELS
from .sites import Site
from .source_text import NegatedText, find_loop_size, find_window_size, parenthesize

#: A finding, with the path and line of the entry point of the graph.
Found = tuple[Finding, tuple[str, int]]


def check(program: Program, select: frozenset[str] | None = None) -> list[Finding]:
    """Return all findings of a program, sorted. With ``select``, return only findings of these rules."""
    kept: dict[tuple[str, str, int, int], Finding] = {}
    # A caller that shows the loop explains a finding better than the assumption that some code has such a loop.
    found = sorted(_check_graphs(program), key=lambda each: LABELS[each[0].label][1].precedence.needs_repeated_call)
    # A scaler that is recreated repeatedly also loses its saved state: this is one mistake, not two.
    remade = (finding.names for finding, _ in found if finding.label == "new@used")
    program.attributes.scalers.recreated_names = {names.get("scaler", "the scaler") for names in remade}
    for finding, entry in (*found, *_check_program(program), *_report_budget_exceeded(program)):
        if select is None or finding.code in select:
            finding.discovery.add_entry(entry)
            merge_finding(kept, finding)
    return sorted(kept.values(), key=Finding.order)


def check_without_callers(program: Program) -> list[Finding]:
    """Return the violations of the functions of a program that no caller can prevent."""
    kept: dict[tuple[str, str, int, int], Finding] = {}
    for graph in program.graphs:
        of_graph = _GraphChecker(graph, program, knows_callers=False).collect_findings()
        for finding in (*of_graph, *_check_single_events(graph, program)):
            finding.discovery.add_entry(graph.entry_point)
            merge_finding(kept, finding)
    return sorted(kept.values(), key=Finding.order)


def _check_graphs(program: Program) -> Iterator[Found]:
    """Yield the findings of each graph, and of each single event."""
    for graph in program.graphs:
        checker = _GraphChecker(graph, program)
        for finding in checker.collect_findings():
            yield finding, graph.entry_point
        graph.was_widened = checker.was_widened
        if checker.budget_exceeded:
            path, line = graph.entry_point
            found = Site(path, line or 1, function=graph.name or "<module>")
            program.attributes.unread = program.attributes.unread or found
        for finding in _check_single_events(graph, program):
            yield finding, graph.entry_point


def _check_single_events(graph: Graph, program: Program) -> Iterator[Finding]:
    for node in graph.nodes:
        if node.event is not None:
            yield from check_event(node.event, program, graph)


def _check_program(program: Program) -> Iterator[Found]:
    """Yield the findings that need the whole program, once for each function with the cause."""
    for label, event, values, others in program_violations(program):
        background = LABELS[label][1].trace_context.background_kinds
        trace = tuple(
            TraceStep(other.site, describe_event(other), is_event=not isinstance(other, background)) for other in others
        )
        certain = not (LABELS[label][1].certainty.always_possible or event.guessed)
        involved = [event, *(other for other in others if not isinstance(other, background))]
        names = {**find_effect_values(label, involved, program), **values}
        graphs = [graph for graph in program.graphs if any(node.event is event for node in graph.nodes)]
        # An event under a condition is guessed to happen.
        answers = _GraphChecker(graphs[0], program).list_guards(event) if event.guessed and graphs else []
        conditions = [answer.to_step() for answer in answers]
        premises = [*trace_premises(label, [event], program), *filter(None, conditions)]
        trace = tuple(merge_steps(premises, trace))
        condition = "" if certain else _describe_answers(answers)
        context = FindingContext(program, [*program.iter_events()], loops=graphs[0].loops if graphs else {})
        finding = make_finding(
            label, event.site, involved, names, trace, certain=certain, condition=condition, context=context
        )
        for graph in graphs:
            yield finding, graph.entry_point


def _report_budget_exceeded(program: Program) -> Iterator[Found]:
    unread = program.attributes.unread
    if unread is not None:
        finding = make_finding("source:too-long", unread, [], {"function": unread.function}, ())
        yield finding, (unread.path, 0)


class _GraphChecker(GraphExplorer):
    """The checker of one graph.

    ``knows_callers`` is False if other code calls the function of the graph. Then a violation is not reported if a call
    elsewhere may prevent the violation, or if the violation needs two flags that a caller may keep consistent.
    """

    def __init__(self, graph: Graph, program: Program, *, knows_callers: bool = True) -> None:
        super().__init__(graph, program)
        self.knows_callers = knows_callers
        self._required_answers: dict[tuple[int, bool], bool] = {}

    def collect_findings(self) -> Iterator[Finding]:
        if self.may_violate():
            # Predicates about rarely relevant events are worth less work.
            most = self.exploration_limit()
            # The callers of a function have taken the whole budget before.
            for least, limit in ((e.UNTESTED, most // 4), (e.SELDOM, most if self.knows_callers else most // 4)):
                self.live_predicates = compute_live_predicates(self, least)
                self.explore_graph(limit)
                if not self.limit_reached:
                    break
            if self.limit_reached:
                # The explored paths are feasible.
                self.was_widened = True
                yield from self._report_violations()
                self.explore_widened()
        for label, test in find_short_first_windows(self):
            if test.site is not None:
                yield make_finding(label, test.site, [], describe_first_window(test), ())
        for test in find_inverted_windows(self):
            if test.site is not None:
                yield make_finding("window:inverted", test.site, [], {"window": str(test.text)}, ())
        yield from find_running_divisors(self)
        yield from find_scalers_made_per_call(self)
        yield from find_clips_without_scaler(self)
        for test in find_trailing_windows(self):
            if test.site is not None:
                yield make_finding("window:left-over", test.site, [], describe_trailing(test), ())
        yield from self._report_violations()

    def _report_violations(self) -> Iterator[Finding]:
        """Yield the findings of the violations from the latest exploration."""
        detected_labels = {(label, violation.detected_at) for (label, _), (_, violation) in self.violations.items()}
        for (label, _), (here, violation) in self.violations.items():
            if self.exceeds_budget():
                return
            finding = (
                None
                if self._is_superseded(label, violation, detected_labels)
                else self._report_finding(label, here, violation)
            )
            if finding is not None:
                yield finding

    def _is_superseded(self, label: str, violation: Violation, detected_labels: set[tuple[str, int]]) -> bool:
        """Return True if another violation of the same cause says more."""
        kind, event = LABELS[label][1], self.event_at(violation.cause)
        return (
            any(
                (stronger, violation.detected_at) in detected_labels
                for stronger in kind.precedence.yields_where_detected
            )
            or any(self._is_confirmed(stronger, violation.cause) for stronger in kind.precedence.yields_to)
            or (kind.precedence.needs_update and event is not None and event.subject not in self.updated_scalers)
        )

    def _is_confirmed(self, label: str, cause: int) -> bool:
        """Return True if an event is the cause of a violation, on every path if the violation requires every path."""
        _, violation = self.violations.get((label, cause), (None, None))
        if violation is None or not LABELS[label][1].precedence.needs_every_path:
            return violation is not None
        if LABELS[label][1].precedence.needs_every_iteration and self.occurs_every_iteration(violation):
            return True
        return (
            self.violation_counts[violation]
            >= self.visit_counts[violation.detected_at] - self.idle_counts[violation.detected_at]
        )

    def _report_finding(self, label: str, here: Here, violation: Violation) -> Finding | None:
        kind = LABELS[label][1]
        if not self._is_confirmed(label, violation.cause):
            return None
        nodes = self.graph.nodes
        cause, detected_at = nodes[violation.cause].event, nodes[violation.detected_at].event
        assert cause is not None
        involved = [cause]
        if detected_at is not None and detected_at is not cause:
            involved.append(detected_at)
            if _are_test_calls(cause.site, detected_at.site):
                return None
        if kind.precedence.needs_training and not self.stepped_optimizers and cause.site.is_in_test():
            return None
        trace = self.build_trace(label, here, violation.cause, violation.detected_at)
        path = [event for _, event in trace]
        if not self.knows_callers and (
            kind.certainty.missing_method
            or (not kind.any_precision and any(map(self._has_scaled_alternative, (*involved, *path))))
        ):
            return None
        partner = (
            detected_at if detected_at is not cause else next((x for x in reversed(path) if x is not cause), cause)
        )
        beside = partner.site if partner is not None else cause.site
        forward = cause.forward if kind.cause.concerns_loss and isinstance(cause, e.ScaledLoss) else None
        if forward is not None:
            beside = forward.site
        is_in_other_file = forward is not None and beside.path != cause.site.path
        site = choose_location(cause.site, beside, reads=kind.cause.only_reads or is_in_other_file)
        is_on_every_path = self._is_on_every_path(label, violation, involved)
        answers = [] if is_on_every_path else self._find_deciding_answers(label, here, involved, path)
        certain = is_on_every_path and not self._is_doubtful(label, violation, (*involved, *path))
        context = self.add_context(label, here, trace, cause, detected_at)
        steps = self._build_steps(label, context, answers)
        condition = _describe_answers(answers)
        if not (certain or condition or kind.certainty.assumption):
            condition = self._describe_doubt(label, violation, (*involved, *path))
            if violation in self.doubtful_violations and (escape := self._find_escape(here, violation.cause, involved)):
                known = escape.site.path == site.path
                call = f"the call in line {escape.site.line}" if known else f"the call at {escape.site.location_text}"
                given = self._name_escaped(escape)
                condition = f"if {call}, which gets {given}, leaves the gradients as they are"
                text = f"this call, whose code is not analyzed, gets {given}"
                steps.insert(0, TraceStep(escape.site, text, is_event=False))
        names = [*involved, *reversed(path)]
        adapted, values = adapt_to_framework(label, names, self.program)
        if adapted == label and kind.cause.label_in_window and self._waits_for_window(detected_at, cause):
            adapted = kind.cause.label_in_window
        label = adapted
        if kind.trace_context.shows_window_end:
            window = self._find_window(path)
            values = {**self._describe_division(window, cause), **values}
            steps += self._describe_window_end(path)
            if not window and (loop := self._find_loop(cause, path)) is not None:
                text = "each iteration of this loop adds gradients, and the step follows the loop"
                steps.insert(0, TraceStep(loop[1], text, is_event=False))
        elif "{header}" in kind.message and (loop := self._find_loop(cause, path)) is not None:
            values = {"header": str(loop[0]), **values}
        skip = self._find_skip(here, violation.cause) if kind.trace_context.shows_skip else None
        if skip is not None:
            values = {**values, "skip": f"`{skip[0]}` skips the step"}
            steps.insert(-1, TraceStep(skip[1], "the step is skipped"))
        elif kind.trace_context.shows_skip and answers:
            values = {**values, "skip": answers[-1].text}
        shown = [*names, *(event for _, event in context)]
        values = {**find_effect_values(label, shown, self.program, self.graph, self.varying_predicates), **values}
        around = FindingContext.from_graph(self.graph, self.program, shown)
        return make_finding(
            label, site, names, values, tuple(steps), certain=certain, condition=condition, context=around
        )

    def _build_steps(self, label: str, context: list[tuple[int, Event]], answers: list[_Answer]) -> list[TraceStep]:
        """Return the steps of a trace: what the message presupposes, the events, and the deciding conditions.

        The conditions stand where the path decides them. A condition of a location that an event shows is not repeated.
        """
        context = self._add_region(label, context)
        shows_window = LABELS[label][1].trace_context.shows_window_end
        describe = self._describe_window_step if shows_window else describe_event
        # The end of a program has no line of its own.
        placed = [
            (distance, TraceStep(event.site, describe(event)))
            for distance, event in context
            if not isinstance(event, e.End)
        ]
        placed += [(answer.distance, step) for answer in answers if (step := answer.to_step()) is not None]
        # The sort is stable, and an event at the end of an edge follows its condition.
        placed.sort(key=lambda each: -each[0])
        premises = trace_premises(label, [event for _, event in context], self.program, self.graph)
        return merge_steps(premises, [step for _, step in placed])

    def _add_region(self, label: str, context: list[tuple[int, Event]]) -> list[tuple[int, Event]]:
        """Return a trace with the region around its forward, if the forward of this path is in no region.

        The region that makes the last event low is then on another path, and replaces the forward.
        """
        around = LABELS[label][1].trace_context.region_around
        if around is None or any(isinstance(event, e.AutocastEnter) and event.enabled for _, event in context):
            return context
        region = find_region_before(self.graph, context[-1][1])
        if region is None:
            return context
        # The path may enter the same region with a switch that disables it.
        same = {event.site.call_key for _, event in context if isinstance(event, e.AutocastEnter)}
        dropped = (e.AutocastEnter,) if region.site.call_key in same else (e.AutocastEnter, around)
        kept = [(distance, event) for distance, event in context if not isinstance(event, dropped)]
        return [(kept[0][0] + 1, region), *kept]

    def _find_window(self, path: list[Event]) -> str:
        """Return the source text of the condition of the window whose end steps the optimizer, "" if unknown."""
        step = next((event for event in path if isinstance(event, (e.ScalerStep, e.Step))), None)
        return next(filter(None, map(self._window_of, self._list_steps() if step is None else [step])), "")

    def _describe_division(self, window: str, cause: Event) -> dict[str, str]:
        """Return the values of a message about a window: its condition, its loop, and how a loss is divided."""
        size, loss = find_window_size(window), str(cause.names.get("loss") or "")
        loop = None if window else self._find_loop(cause, [])
        values = {"header": str(loop[0])} if loop is not None else {}
        if window:
            values |= {"window": window, "divided": f" by the number of micro-batches that `{window}` counts"}
        elif loop is not None:
            size = find_loop_size(str(loop[0]))
            values["divided"] = f" by the number of iterations of `{loop[0]}`"
        if size and loss:
            # ``loss / k.backward()`` would divide by the result of a method.
            divided = f"({parenthesize(loss)} / {parenthesize(size)})"
            values["divided"] = f" (write `{divided}` for `{loss}` in this line)"
        return values

    def _find_loop(self, cause: Event, path: list[Event]) -> tuple[object, Site] | None:
        """Return the text and the location of the outermost loop around a cause that is not around a step, or None."""
        steps = [event for event in path if isinstance(event, (e.ScalerStep, e.Step))] or self._list_steps()
        outer = {key for step in steps for key in step.loops or ()}
        inner = [key for key in cause.loops or () if key not in outer]
        return self.graph.loops.get(inner[0]) if inner and steps else None

    def _window_of(self, step: Event) -> str:
        """Return the source text of the condition that ends a window and guards a step, "" without one."""
        texts = []
        for key, truth in step.guards:
            text = self.graph.predicates[key].text
            if key in self.window_predicates:
                texts.append(str(text.operand if isinstance(text, NegatedText) and not truth else text))
        # Of two conditions, that with the number of micro-batches says more than one that compares the counter.
        return next(filter(find_window_size, texts), texts[0] if texts else "")

    def _list_steps(self) -> list[Event]:
        events = [node.event for node in self.graph.nodes]
        return [event for event in events if isinstance(event, (e.ScalerStep, e.Step))]

    def _describe_window_end(self, path: list[Event]) -> list[TraceStep]:
        """Return the first step under a window predicate as part of a trace, if the trace has no step."""
        if any(isinstance(event, (e.ScalerStep, e.Step)) for event in path):
            return []
        step = next(filter(self._window_of, self._list_steps()), None)
        return [] if step is None else [TraceStep(step.site, self._describe_window_step(step))]

    def _describe_window_step(self, event: Event) -> str:
        """Return the description of an event, with the condition of the window that a step ends."""
        window = self._window_of(event) if isinstance(event, (e.ScalerStep, e.Step)) else ""
        return f"{describe_event(event)} at the end of the window, by `{window}`" if window else describe_event(event)

    def _is_on_every_path(self, label: str, violation: Violation, involved: list[Event]) -> bool:
        """Return True if every path to the detecting event has the violation. Otherwise, a condition is reported."""
        if LABELS[label][1].in_next_iteration:
            # The first iteration cannot have the violation. Other exceptions need a predicate around one of the two
            # events.
            return not any(
                key not in self.window_predicates and not self._is_required(key, truth)
                for x in involved
                for key, truth in x.guards
            )
        violating_paths = self.violation_counts[label, violation.cause, violation.detected_at]
        return violating_paths >= max(1, self.visit_counts[violation.detected_at])

    def _is_required(self, key: int, truth: bool) -> bool:
        """Return True if the program ends at the other answer to a predicate, by ``raise`` or ``assert``."""
        known = self._required_answers.get((key, truth))
        if known is None:
            nodes, other = self.graph.nodes, self._nodes_after(key, truth=not truth)
            known = bool(other) and all(nodes[index].event is None for index in other)
            # A branch that returns or goes on reaches the end of the program, or meets the other branch again.
            if known and not any(isinstance(node.event, e.End) for node in nodes):
                known = other.isdisjoint(self._nodes_after(key, truth=truth))
            self._required_answers[key, truth] = known
        return known

    def _nodes_after(self, key: int, *, truth: bool) -> set[int]:
        """Return the nodes that may be reached after an answer to a predicate, without the other answer later."""
        nodes = self.graph.nodes
        seen = {target for node in nodes for target, asked, answer in node.edges if asked == key and answer is truth}
        todo = list(seen)
        for index in todo:
            edges = nodes[index].edges
            further = {target for target, asked, answer in edges if asked != key or answer is truth} - seen
            seen |= further
            todo += further
        return seen

    def _is_doubtful(self, label: str, violation: Violation, events: tuple[Event, ...]) -> bool:
        """Return True if the violation rests on an assumption, so that the finding is not certain.

        The assumption is one of these:

        - States were joined, because the graph exceeded its budget.
        - The graph, or an event of the trace, is a guess about unanalyzed code.
        - A backward of an unknown model is for the optimizer whose next step finds its gradients.
        - An exemption may apply that the code does not show (``DOUBTS`` in :mod:`.effects.violations`).
        - A method is missing that unanalyzed code may call, because the scaler is no local object.

        :func:`make_finding` adds violations that are never certain (:class:`~.rule.Certainty`).
        """
        cause = self.event_at(violation.cause)
        may_be_called = cause is None or not self.is_local_scaler(cause.subject)
        return (
            self.was_widened
            or self.graph.is_guessed
            or (label, violation.cause, violation.detected_at) in self.doubtful_violations
            or any(event.guessed or id(event) in self.inferred_backwards for event in events)
            or (bool(LABELS[label][1].certainty.missing_method) and may_be_called)
        )

    def _describe_doubt(self, label: str, violation: Violation, events: tuple[Event, ...]) -> str:
        """Return what must be true of code that the analysis does not know, "" if nothing is to be said.

        The reasons are those of :meth:`_is_doubtful`.
        """
        guessed = next((event for event in events if event.guessed), None)
        if (label, violation.cause, violation.detected_at) in self.doubtful_violations:
            return "if no other code changes these gradients in between"
        if guessed is not None:
            scaler = self.program.objects[guessed.subject] if guessed.subject is not None else None
            if scaler is not None and scaler.attributes.is_copy:
                return f"if the class of `{scaler.name or 'the scaler'}` works as torch's GradScaler does"
            if isinstance(guessed, e.Backward):
                return "if the loop runs over the micro-batches of one step, as its names say"
            named = str(guessed.names.get("call") or "")
            return f"if `{named}` does what its name says" if named else "if names say what unanalyzed code does"
        inferred = next((event for event in events if id(event) in self.inferred_backwards), None)
        if inferred is not None:
            return f"if `{inferred.names.get('loss') or 'the loss'}` trains the parameters that this step updates"
        if self.graph.is_guessed:
            return "if the objects are a scaler and optimizers, as the names of their methods suggest"
        return "if the conditions on the way to this line can hold together" if self.was_widened else ""

    def _name_escaped(self, escape: e.Handoff) -> str:
        """Return the names of the optimizers, or else of the scalers, that unanalyzed code gets."""
        objects = [self.program.objects[key] for key in sorted(escape.objects)]
        for role in ("optimizer", "scaler"):
            names = sorted({each.name for each in objects if each.role == role and each.name})
            if names or any(each.role == role for each in objects):
                return " and ".join(f"`{name}`" for name in names[:2]) or f"the {role}"
        return "the scaler or the optimizer"

    def _find_escape(self, here: Here, since: int, involved: list[Event]) -> e.Handoff | None:
        """Return the latest call on a path, since an event, that gives unanalyzed code a scaler or the optimizer."""
        about = {event.object for event in involved} - {None}
        for index in self.walk_back(here):
            event = self.event_at(index)
            if isinstance(event, e.Handoff) and any(
                self.program.objects[key].role == "scaler"
                or (self.program.objects[key].role == "optimizer" and (key in about or not about))
                for key in event.objects
            ):
                return event
            if index == since and index != here[0]:
                return None
        return None

    def _waits_for_window(self, event: Event | None, cause: Event) -> bool:
        """Return True if an event waits for the end of a window, and its cause happens in every micro-batch."""
        ends = {key for key, _ in event.guards if key in self.window_predicates} if event is not None else set()
        return bool(ends) and ends.isdisjoint(key for key, _ in cause.guards)

    def _has_scaled_alternative(self, event: Event) -> bool:
        """Return True if a flag chooses between the event and calls of a scaler."""
        if event.subject is not None:
            return False
        scalers = {key for key, tracked_object in enumerate(self.program.objects) if tracked_object.role == "scaler"}
        events = (node.event for node in self.graph.nodes if node.event is not None)
        others = {guard for other in events if other.subject in scalers for guard in decided_guards(other)}
        return any((key, not truth) in others for key, truth in decided_guards(event))

    def _find_skip(self, here: Here, since: int) -> tuple[str, Site] | None:
        """Return the latest statement on a path since an event that skips the rest of an iteration, or None."""
        for index in self.walk_back(here):
            skips = self.graph.nodes[index].skip_statement
            if skips is not None or index == since:
                return skips
        return None

    def _find_deciding_answers(self, label: str, here: Here, involved: list[Event], path: list[Event]) -> list[_Answer]:
        """Return the predicates on the path that lead to the cause, or past an event that prevents the violation.

        If there are none, the predicates that lead to the other events of the trace decide.
        The list has the two latest that have a source text, of the functions that lead to the events if possible.
        """
        self.nodes_revisited += len(self.graph.nodes)
        cause, sparing_kinds = involved[0], LABELS[label][1].sparing_kinds
        answers = self._find_answers(here)
        also = self._guards_of_same_call(cause)
        about = {event.object for event in involved if event.object is not None}
        about.update(key for event in involved if isinstance(event, e.OwnedEvent) for key in event.owners or ())
        deciding_answers = [
            (key, truth)
            for key, truth in cause.guards
            if key in answers
            and answers[key][0] is truth
            and (key, not truth) not in also
            and not self._is_required(key, truth)
            and not (key in cause.alternative_guards and self._guards_all_gradients(key, truth))
        ]
        for node in self.graph.nodes:
            event = node.event
            if isinstance(event, sparing_kinds) and (not about or event.object in {None, *about}):
                deciding_answers += [
                    (key, not truth) for key, truth in event.guards if key in answers and answers[key][0] is (not truth)
                ]
        if not deciding_answers:
            deciding_answers = [
                (key, truth)
                for event in path
                for key, truth in decided_guards(event)
                if key in answers
                and answers[key][0] is truth
                and key not in self.window_predicates
                and any((key, not truth) in other.guards for other in self._gradient_events())
                and (key, not truth) not in self._guards_of_same_call(event)
                and not self._is_required(key, truth)
            ]
        found = []
        truths = {key: truth for key, (truth, _) in answers.items()}
        for key, truth in dict.fromkeys(deciding_answers):
            if words := _describe_truth(self.graph.predicates[key], truth):
                # The answer stands before the event to which its edge leads.
                site = self.graph.predicates[key].find_site(cause.site, truths)
                found.append(_Answer(words, site, answers[key][1] + 1))
        # Conditions of other code chose an object, such as the class of the optimizer.
        functions = {(frame.path, frame.function) for event in involved for frame in event.site.list_frames()}
        near = [each for each in found if each.site and (each.site.path, each.site.function) in functions]
        return (near or found)[-2:]

    def _guards_of_same_call(self, event: Event) -> set[tuple[int, bool]]:
        """Return the guards of all events of the same call, as of a backward with and without loss scale."""
        chain = event.site.call_chain()
        events = (node.event for node in self.graph.nodes)
        return {
            guard
            for other in events
            if other is not None and type(other) is type(event) and other.site.call_chain() == chain
            for guard in other.guards
        }

    def _gradient_events(self) -> list[Event]:
        """Return all backwards, and all uses of gradients."""
        kinds = (e.Backward, e.Unscale, e.Clip, e.ScalerStep, e.Step, e.Update, e.ZeroGrad)
        return [node.event for node in self.graph.nodes if isinstance(node.event, kinds)]

    def _guards_all_gradients(self, key: int, truth: bool) -> bool:
        """Return True if a predicate guards all of them, as one of several reasons to stop the program before."""
        return all((key, truth) in event.guards for event in self._gradient_events())

    def list_guards(self, event: Event) -> list[_Answer]:
        """Return the conditions under which an event happens, at most the two innermost."""
        found = []
        guards = decided_guards(event)
        for key, truth in guards:
            words = _describe_truth(self.graph.predicates[key], truth)
            if words and not self._is_required(key, truth):
                found.append(_Answer(words, self.graph.predicates[key].find_site(event.site, dict(guards)), 0))
        return found[-2:]

    def _find_answers(self, here: Here) -> dict[int, tuple[bool, int]]:
        """Return the latest truth of each predicate on a path, with the distance of its decision to the end."""
        answers: dict[int, tuple[bool, int]] = {}
        changed: set[int] = set()
        edges, point, distance = self.contract_edges(), here, 0
        while (before := self.predecessors[point]) is not None:
            taken_edges = [(key, truth) for target, key, truth in edges[before[0]] if target == point[0]]
            if len(taken_edges) == 1:
                key, truth = taken_edges[0]
                # The first decision stands in a trace, unless the predicate had another truth in between.
                if answers.setdefault(key, (truth, distance))[0] is not truth:
                    changed.add(key)
                elif key not in changed:
                    answers[key] = (truth, distance)
            point, distance = before, distance + 1
        return answers


class _Answer(NamedTuple):
    """A predicate with its truth on a path: the text, the location, and the distance to the end of the path."""

    text: str
    site: Site | None
    distance: int

    def to_step(self) -> TraceStep | None:
        """Return the predicate as a step of a trace, or None without a location."""
        return TraceStep(self.site, self.text, is_event=False) if self.site is not None else None


def _describe_truth(predicate: Predicate, truth: bool) -> str:
    """Return a predicate with its truth as text, "" for a predicate without source text."""
    source, answer = predicate.text, truth
    if isinstance(source, NegatedText):
        source, answer = source.operand, not truth
    text = str(source)
    return f"`{text}` is {'true' if answer else 'false'}" if text else ""


def _describe_answers(answers: list[_Answer]) -> str:
    """Return the condition of a finding, "" without one."""
    return "when " + " and ".join(answer.text for answer in answers) if answers else ""


def _are_test_calls(site: Site, other: Site) -> bool:
    """Return True if two locations are in two calls of one function by a test, which runs no training."""
    mine, theirs = site.list_frames(), other.list_frames()
    if len(mine) < 2 or len(theirs) < 2 or not mine[0].is_in_test():
        return False
    of_one = (mine[1].path, mine[1].function) == (theirs[1].path, theirs[1].function)
    return of_one and (mine[0].line, mine[0].column) != (theirs[0].line, theirs[0].column)
