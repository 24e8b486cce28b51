"""Conversion of violations to findings: the message with source names, the location, and the trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .edit_places import FindingContext, find_edit_places, name_region
from .effect_values import find_effect_values
from .event_graph import Graph, Program
from .events import Event, EventKind, LowPrecisionEffect, Save, ScalerStep, Unscale, Update
from .finding import Finding, TraceStep
from .frameworks import FRAMEWORKS, Framework
from .message_templates import DEFAULT_NAMES, describe_event, fill_message, fill_template
from .region_search import find_region_before
from .rule import Labels, Verdicts
from .rules import ALONE, LABELS, WHOLE
from .severities import ERROR, SEVERITIES
from .sites import Call, Site
from .tracked_objects import TrackedObject

#: Kinds of events that may be a call of the scaler's own method, or of a framework.
_ASKED_OF_SCALERS = (ScalerStep, Unscale, Update)


def event_violations(event: Event, program: Program) -> Labels:
    """Yield the violation labels of a single event, with the values for the messages."""
    kind = type(event)
    for rule in ALONE.get(kind, ()):
        yield from rule.event_checks[kind](event, program)


def program_violations(program: Program) -> Verdicts:
    """Yield the violation labels of a whole program, with cause, message values and trace events."""
    kinds: set[EventKind] = set(map(type, program.iter_events()))
    for kind, rule in WHOLE:
        if kind in kinds:
            yield from rule.program_checks[kind](program)


def check_event(event: Event, program: Program, graph: Graph | None = None) -> Iterator[Finding]:
    """Yield the findings of the rules that check a single event. ``graph`` is the graph of the event, if known."""
    for label, values in event_violations(event, program):
        context = FindingContext(program, [event]) if graph is None else FindingContext.from_graph(graph, program)
        yield make_finding(
            label,
            event.site,
            [event],
            {**find_effect_values(label, [event], program), **values},
            _trace_single_event(label, event, program, graph),
            certain=not (LABELS[label][1].certainty.missing_method or event.guessed),
            context=context,
        )


def _trace_single_event(label: str, event: Event, program: Program, graph: Graph | None) -> tuple[TraceStep, ...]:
    """Return what the message about a single event presupposes, and the event if a call leads to it."""
    premises = trace_premises(label, [event], program, graph)
    called = premises and event.site.caller is not None
    text = describe_event(event) if event.traits.description else "this line runs"
    own = TraceStep(event.site, text, is_event=False)
    return tuple(merge_steps(premises, [own] if called else []))


def trace_premises(
    label: str, events: Sequence[Event], program: Program, graph: Graph | None = None
) -> list[TraceStep]:
    """Return what the message of a violation presupposes: constructions, regions and casts, with their locations."""
    context = LABELS[label][1].trace_context
    steps = []
    for event in events:
        for scaler in _find_scalers(event, program) if not LABELS[label][1].any_precision else ():
            steps += _trace_construction(scaler, program, shows_scaler=context.shows_scaler)
        steps += [TraceStep(site, text, is_event=False) for site, text in event.premises]
        region = find_region_before(graph, event) if context.region_before and graph is not None else None
        if region is not None:
            steps.append(TraceStep(region.site, describe_event(region), is_event=False))
    return steps


def merge_steps(premises: Sequence[TraceStep], steps: Sequence[TraceStep]) -> list[TraceStep]:
    """Return a trace that begins with premises. A premise at the location of another step is left out."""
    shown = {step.site.call_key for step in steps}
    kept: dict[Call, TraceStep] = {}
    for step in premises:
        if step.site.call_key not in shown:
            kept.setdefault(step.site.call_key, step)
    return [*kept.values(), *steps]


def _find_scalers(event: Event, program: Program) -> list[TrackedObject]:
    """Return the scaler of an event, or the scalers of the optimizers that a checkpoint holds."""
    if isinstance(event, Save):
        named = [each for each in program.objects if {each.key, each.name} & {*event.scope_scalers}]
    else:
        named = [program.objects[event.subject]] if event.subject is not None else []
    return [each for each in named if each.role == "scaler"]


def _trace_construction(scaler: TrackedObject, program: Program, *, shows_scaler: bool) -> list[TraceStep]:
    """Return the construction of a scaler or of a framework's engine as a list of at most one step of a trace."""
    framework = FRAMEWORKS.get(scaler.attributes.framework or "")
    if framework is not None:
        sites = program.attributes.setup_sites
        site = sites.get(scaler.key) or sites.get(scaler.attributes.framework or "")
        return [TraceStep(site, _describe_setup(framework), is_event=False)] if site is not None else []
    if shows_scaler and scaler.attributes.constructed and scaler.site is not None:
        return [TraceStep(scaler.site, "the scaler is constructed", is_event=False)]
    return []


def _describe_setup(framework: Framework) -> str:
    """Return the description of the construction of a framework's engine, with the precision in which it scales."""
    precision = framework.engine.precision
    values = " or ".join(f"`{value}`" for value in precision.scaled[:2])
    if not precision.parameter or not values:
        return f"{framework.title} is set up"
    return f"{framework.title} is set up, and scales losses if `{precision.parameter}` is {values}"


def describe_violation(event: Event, program: Program) -> str:
    """Return the message of the first violation of a single event, without the remedy. "" if there is none."""
    for label, values in event_violations(event, program):
        return make_finding(label, event.site, [event], values, ()).problem
    return ""


def make_finding(
    label: str,
    site: Site,
    events: list[Event],
    values: Mapping[str, str],
    trace: tuple[TraceStep, ...],
    *,
    certain: bool = True,
    condition: str = "",
    context: FindingContext | None = None,
) -> Finding:
    """Return the finding of a violation. ``context`` is the code around, where the remedy may need further edits."""
    rule, kind = LABELS[label]
    places = find_edit_places(label, site, events, context, values) if context is not None else None
    names = {} if context is None else name_region(context.events)
    for event in reversed(events):
        names.update((k, text) for k, v in event.names.items() if (text := str(v)))
    names.update(values)
    names.update(places.names if places is not None else {})
    message, remedy = fill_message(kind.message.replace("{advice}", values.get("advice", "")), names)
    severity = values.get("severity") or kind.severity or rule.severity
    certain = certain and not kind.certainty.is_possible
    if not certain and kind.certainty.assumption:
        assumption = f"if {fill_template(kind.certainty.assumption, names)}"
        condition = f"{condition}, and {assumption}" if condition else assumption
    elif not (certain or condition) and any(isinstance(each, LowPrecisionEffect) and each.guessed for each in events):
        condition = "if these tensors are float16 or bfloat16, as the output of a model usually is, and not float32"
    finding = Finding(
        rule.code,
        rule.name,
        severity,
        message,
        site,
        certain=certain,
        condition=condition,
        trace=trace,
        label=label,
        names=names,
        remedy=remedy,
    )
    finding.edit_places = places.steps if places is not None else ()
    calls = {event.site.call_key for event in events if not event.traits.is_structural}
    finding.discovery.calls = frozenset(calls or {site.call_key})
    return finding


def adapt_to_framework(label: str, events: list[Event], program: Program) -> tuple[str, dict[str, str]]:
    """Return the violation label and message values if a framework does the scaling.

    The severity is limited by the certainty that the framework scales.
    """
    if LABELS[label][1].any_precision:
        return label, {}
    for event in events:
        tracked_object = program.objects[event.subject] if event.subject is not None else None
        framework = FRAMEWORKS.get(tracked_object.attributes.framework or "") if tracked_object is not None else None
        if tracked_object is None or framework is None:
            continue
        rule, violation = LABELS[label]
        values = {}
        worst = max(violation.severity or rule.severity, tracked_object.attributes.doubt or ERROR, key=SEVERITIES.index)
        values["severity"] = worst
        advice = framework.advice.get(label)
        if advice is not None:
            label = f"{label}-framework"
            values.update(framework=framework.title, advice=advice)
            # The object that steps the optimizer may have another name than the object that scales.
            known = tracked_object.name or framework.engine.usual_name
            values.update({"scaler": known} if known else {})
        elif framework.engine.scaler_attribute:
            said = event.names.get("scaler")
            # A call on the scaler itself shows the scaler's name.
            by_framework = isinstance(event, (ScalerStep, Unscale)) and event.framework
            itself = said and isinstance(event, _ASKED_OF_SCALERS) and not by_framework
            values["scaler"] = (
                str(said) if itself else f"{said or tracked_object.name}.{framework.engine.scaler_attribute}"
            )
        return label, values
    return label, {}


def add_framework_advice(label: str, framework: str) -> tuple[str, dict[str, str]]:
    """Return the label and message values of a violation in a run where framework code calls torch."""
    known = FRAMEWORKS.get(framework)
    advice = known.advice.get(label) if known is not None else None
    if known is None or advice is None:
        return label, {}
    # The optimizer name in the framework's code is unknown to the user.
    values = {"framework": known.title, "advice": advice, "optimizer": DEFAULT_NAMES["optimizer"]}
    return f"{label}-framework", values | ({"scaler": known.engine.usual_name} if known.engine.usual_name else {})


def choose_location(cause: Site, partner: Site, *, reads: bool = False) -> Site:
    """Return the location of a finding: the cause, or a caller if the cause is in a helper that is correct by itself.

    Such a helper is in another file than the code that makes the call wrong, or only ``reads``.
    """
    mine, theirs = cause.list_frames(), partner.list_frames()
    if not reads:
        together = cause.path != partner.path and _is_same_call(mine[0], theirs[0])
    else:
        together = (mine[0].path, mine[0].function) == (theirs[0].path, theirs[0].function)
    if not together:
        # The outermost calls of a truncated chain are unknown.
        return cause
    depth = 0
    while depth < len(mine) - 1 and depth < len(theirs) - 1 and _is_same_call(mine[depth], theirs[depth]):
        depth += 1
    return mine[depth]


def _is_same_call(call: Site, other: Site) -> bool:
    """Return True if two calls, possibly from different iterations, have the same location."""
    return call is other or (call.path, call.line, call.column) == (other.path, other.line, other.column)
