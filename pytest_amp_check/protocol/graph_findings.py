"""Findings about a graph as a whole, which need no exploration of its paths."""

from __future__ import annotations

import re
from collections.abc import Iterator

from . import events as e
from .edit_places import FindingContext
from .event_graph import Predicate
from .finding import Finding, TraceStep
from .findings_builder import make_finding
from .graph_summary import GraphSummary
from .guards import decided_guards
from .message_templates import describe_event
from .source_text import count_from_one, find_counter


def find_short_first_windows(summary: GraphSummary) -> Iterator[tuple[str, Predicate]]:
    """Yield window predicates whose first window has a single micro-batch, or one less than the others.

    Each comes with the label of its violation.
    """
    for key in summary.window_predicates:
        test = summary.graph.predicates[key]
        if (
            (test.window_truth.is_off_by_one or test.window_truth.is_one_short)
            and summary.window_predicates[key]
            and key in summary.accumulating_windows
            and key not in summary.delayed_step_predicates
        ):
            yield "window:off-by-one" if test.window_truth.is_off_by_one else "window:one-short", test


def find_inverted_windows(summary: GraphSummary) -> Iterator[Predicate]:
    """Yield predicates that are true once in a window, and whose falsehood guards all steps of the window."""
    events = [node.event for node in summary.graph.nodes]
    ends = {guard for event in events if isinstance(event, (e.ScalerStep, e.Step)) for guard in event.guards}
    for key in summary.window_predicates:
        test = summary.graph.predicates[key]
        if test.window_truth.is_true_once and key in summary.accumulating_windows and (key, True) not in ends:
            yield test


def find_running_divisors(summary: GraphSummary) -> Iterator[Finding]:
    """Yield findings about losses of a window that are divided by the number of micro-batches so far."""
    for node in summary.graph.nodes:
        event = node.event
        if not isinstance(event, e.Backward) or event.division.counter is None:
            continue
        site, text, _ = event.division.counter
        if set(summary.window_predicates.items()).isdisjoint(event.guards):
            values = {"divisor": str(text)}
            yield make_finding("window:running-divisor", site, [event], values, (), certain=False)


#: Name of a function that trains one epoch. A function for several epochs begins a training, which needs a scaler.
_ONE_EPOCH = re.compile("[Ee]poch(?!s)")


def find_scalers_made_per_call(summary: GraphSummary) -> Iterator[Finding]:
    """Yield findings about scalers that a function constructs for its own single step, or for its own epoch."""
    events = [node.event for node in summary.graph.nodes if node.event is not None]
    for event in events if summary.graph.entry_point[1] > 0 else ():
        if (
            not isinstance(event, e.ScalerNew)
            or event.site.caller is not None
            or not summary.is_local_scaler(event.subject)
        ):
            continue
        uses = [other for other in events if other.subject == event.subject]
        steps = [other for other in uses if isinstance(other, e.ScalerStep)]
        is_kept = any(isinstance(other, (e.ScalerLoad, e.ScalerState)) for other in uses)
        # Positive keys are loops, negative keys are calls of the function.
        in_loops = any(key > 0 for step in steps for key in step.loops or ())
        if steps and not (is_kept or event.subject in summary.escaped_objects or event.site.is_in_test()):
            function = event.site.function.rpartition(".")[2]
            label = "new:per-step" if not in_loops else "new:per-epoch" if _ONE_EPOCH.search(function) else ""
            name = summary.program.name_of(event.subject if event.subject is not None else "")
            values = {"function": function, **({"scaler": name} if name else {})}
            optimizers = [summary.program.objects[each.object] for each in steps if each.object is not None]
            # Code without a loop that steps an optimizer of its caller is no training.
            is_once = label == "new:per-step" and not any(key > 0 for key in summary.graph.loops)
            if is_once and optimizers and not any(each.attributes.constructed for each in optimizers):
                values["is_one_step"] = "yes"
            if label:
                yield make_finding(label, event.site, [event], values, (), certain=False)


def find_clips_without_scaler(summary: GraphSummary) -> Iterator[Finding]:
    """Yield a finding about a clip that only runs where a flag switches the scaler off."""
    events = [node.event for node in summary.graph.nodes if node.event is not None]
    # The scaler calls the step of an optimizer of the project as well, after it has unscaled.
    clips = [
        event
        for event in events
        if isinstance(event, e.Clip)
        and not event.measures_only
        and not (event.site.caller is not None and event.site.function.rpartition(".")[2] == "step")
    ]
    steps = [event for event in events if isinstance(event, e.ScalerStep) and event.framework is None]
    plain = [event for event in events if isinstance(event, e.Step)]
    unscales = any(isinstance(event, e.Unscale) for event in events) or summary.escape_effects[e.UNSCALES]
    if not (clips and steps and plain) or unscales or _may_clip_scaled(summary):
        return
    backwards = [event for event in events if isinstance(event, e.Backward) and event.subject is not None]
    common = set.intersection(*(set(event.guards) for event in clips))
    for key, truth in common:
        is_off = any((key, truth) in decided_guards(event) for event in plain)
        if is_off and all((key, not truth) in decided_guards(event) for event in (*steps, *backwards)):
            values = {"clip": str(clips[0].names.get("call", "the clip"))}
            trace = (TraceStep(clips[0].site, describe_event(clips[0])),)
            context = FindingContext(summary.program, clips)
            yield make_finding(
                "clip:plain-only", steps[0].site, [steps[0]], values, trace, certain=False, context=context
            )
            return


def _may_clip_scaled(summary: GraphSummary) -> bool:
    """Return True if a path leads from a scaled backward to a clip before the scaler steps."""
    nodes = summary.graph.nodes
    work = [i for i, node in enumerate(nodes) if isinstance(node.event, e.Backward) and node.event.subject is not None]
    seen = set(work)
    while work:
        for target, _, _ in nodes[work.pop()].edges:
            event = nodes[target].event
            if isinstance(event, e.Clip):
                return True
            if target not in seen and not isinstance(event, (e.ScalerStep, e.Again)):
                seen.add(target)
                work.append(target)
    return False


def find_trailing_windows(summary: GraphSummary) -> Iterator[Predicate]:
    """Yield window predicates that guard all steps, if microbatches are known to remain after the last step."""
    tests = [
        summary.graph.predicates[key]
        for key in summary.window_predicates
        if summary.window_predicates[key] and key in summary.accumulating_windows
    ]
    tests = [
        test
        for test in tests
        if test.window_truth.trailing_microbatches is not None and not test.window_truth.is_off_by_one
    ]
    if not tests or summary.program.attributes.fragment:
        return
    events = [node.event for node in summary.graph.nodes if node.event is not None]
    fed = [frozenset(event.guards) for event in events if isinstance(event, e.Backward)]
    for test in tests:
        ended = {summary.optimizer_keys[i] for i in summary.window_optimizers.get(test.key, ())}
        steps = [event for event in events if isinstance(event, (e.ScalerStep, e.Step)) and event.object in ended]
        # The backward has all other guards of the step, so no separate predicate ends the last window.
        alone = all(frozenset(event.guards) - {(test.key, True)} in fed for event in steps)
        windowed = all((test.key, True) in event.guards for event in steps)
        if alone and windowed and not ended & summary.escape_effects[e.STEPS]:
            yield test


def describe_trailing(test: Predicate) -> dict[str, str]:
    assert test.window_truth.trailing_microbatches is not None
    left, iterations = test.window_truth.trailing_microbatches
    number = f"the last {left} of" if left > 1 else "the last of"
    window = str(test.text)
    counter = find_counter(window) or "i + 1"
    last = f"{window} or {counter} == {iterations}"
    return {"window": window, "left": f"{number} {iterations} micro-batches", "last": last}


def describe_first_window(test: Predicate) -> dict[str, str]:
    """Return the values for a window predicate whose first window is short."""
    window = str(test.text)
    return {"window": window, "one_based": count_from_one(window)}
