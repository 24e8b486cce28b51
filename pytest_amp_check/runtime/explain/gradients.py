"""The reasons why a scaler finds no gradients of an optimizer, derived from the recording."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import torch
from torch.amp import grad_scaler

from ...protocol import events as e
from ...protocol.events import Event
from ...protocol.finding import TraceStep
from ...protocol.sites import Site
from ...protocol.source_text import SourceText, find_access_path
from ..record.recorder import Recorder
from ..record.source.call_texts import Role, SiteText
from ..record.source.syntax import text_at
from ..record.tracked import TrackedOptimizer
from .explanation import Explanation, RaisedError
from .frames import scope_at
from .naming import LISTED, format_parameter_names
from .origins import Origin, find_sources, trace_to_call
from .values import resolve_expression

#: Methods that return a tensor or a number outside of the autograd graph.
CUTS = frozenset({"detach", "detach_", "item", "numpy", "tolist"})


def explain_missing_gradients(raised: RaisedError, recorder: Recorder) -> list[Explanation] | None:
    """Explain a scaler's step that found no gradient. Return [] if a rule has found the reason."""
    tracked = find_stepped_optimizer(raised, recorder)
    optimizer = None if tracked is None else tracked.optimizer()
    if tracked is not None and recorder.recomputation.has_cut(tracked):
        return []  # AMP803 names the checkpoint
    return None if tracked is None or optimizer is None else [_explain_optimizer(raised, recorder, tracked, optimizer)]


def _explain_optimizer(
    raised: RaisedError, recorder: Recorder, tracked: TrackedOptimizer, optimizer: torch.optim.Optimizer
) -> Explanation:
    names: dict[str, object] = {"optimizer": tracked.name, "call": SiteText(raised.site)}
    params = [p for group in optimizer.param_groups for p in group["params"]]
    final_step = TraceStep(raised.site, "the scaler steps the optimizer, and finds no gradient")
    if not any(p.requires_grad for p in params):
        names["count"] = str(len(params))
        return Explanation("raised:frozen", raised.site, names, (final_step,))
    backward_event, clear_event = _since_last_step(recorder, tracked)
    if backward_event is None:
        return Explanation("raised:no-backward", raised.site, names, (final_step,))
    names["loss"] = backward_event.names.get("loss", "")
    backward = TraceStep(backward_event.site, "the backward pass")
    if clear_event is not None:
        trace = (backward, TraceStep(clear_event.site, "the gradients are cleared"), final_step)
        return Explanation("raised:cleared", clear_event.site, {**names, "call": SiteText(clear_event.site)}, trace)
    return _explain_by_leaves(raised, recorder, tracked, backward_event, names, (backward, final_step))


def find_stepped_optimizer(raised: RaisedError, recorder: Recorder) -> TrackedOptimizer | None:
    """Return the optimizer that a scaler was about to step or unscale, or None."""
    for frame in reversed(raised.frames):
        optimizer = frame.python_frame.f_locals.get("optimizer")
        if isinstance(optimizer, torch.optim.Optimizer) and not frame.is_user:
            return recorder.recording.registry.track_optimizer(optimizer)
    return None


def explain_other_object(raised: RaisedError, recorder: Recorder) -> list[Explanation]:
    """Explain a call of a scaler with an object that is no optimizer. Return [] for a call of other code."""
    scaler_frames = [frame for frame in raised.frames if frame.path == grad_scaler.__file__]
    if not scaler_frames:
        return []
    given = scaler_frames[0].python_frame.f_locals.get("optimizer")
    names: dict[str, object] = {
        "call": SiteText(raised.site),
        "given": SiteText(raised.site, Role.ARGUMENT, "optimizer"),
        "scaler": SiteText(raised.site, Role.RECEIVER),
    }
    if isinstance(getattr(given, "__self__", None), torch.optim.Optimizer):
        names["optimizer"] = str(names["given"]).rpartition(".")[0]
        return [Explanation("raised:method-of-optimizer", raised.site, names)]
    kind = type(given).__name__
    names["kind"] = f"an object of class {kind}" if not isinstance(given, (list, tuple)) else f"a {kind}"
    return [Explanation("raised:not-an-optimizer", raised.site, names)]


def _since_last_step(recorder: Recorder, tracked: TrackedOptimizer) -> tuple[Event | None, Event | None]:
    """Return the last backward event since an optimizer's step, and the event that cleared its gradients afterwards."""
    events, key = recorder.recording.run_checker, tracked.tracked_object.key
    clear_event: Event | None = None
    passed_failed_step = False
    for event in reversed([*events.recent_events, *events.pending_events]):
        if isinstance(event, e.ScalerStep) and event.object == key:
            if passed_failed_step:
                break
            passed_failed_step = True
        elif isinstance(event, e.ZeroGrad) and (event.owners is None or key in event.owners):
            clear_event = event
        elif isinstance(event, e.Backward):
            return event, clear_event
    return None, clear_event


def _explain_by_leaves(
    raised: RaisedError,
    recorder: Recorder,
    tracked: TrackedOptimizer,
    backward_event: Event,
    names: dict[str, object],
    trace: tuple[TraceStep, ...],
) -> Explanation:
    """Explain missing gradients by the leaves that the backward pass reached."""
    reach = recorder.backward.reached_leaves
    leaves = reach.alive_leaves() if reach.event is backward_event else None
    if leaves is None:
        return _explain_other_optimizers(raised, recorder, tracked, backward_event, names, trace)
    owners = recorder.recording.registry.owner_keys
    if any(id(leaf) in owners for leaf in leaves):
        return _explain_other_optimizers(raised, recorder, tracked, backward_event, names, trace)
    unowned_params = [leaf for leaf in leaves if isinstance(leaf, torch.nn.Parameter)]
    if unowned_params:
        names["others"] = format_parameter_names(unowned_params, raised.frames)
        return Explanation("raised:strangers", _construction_site(recorder, tracked) or raised.site, names, trace)
    return _explain_new_leaf(raised, recorder, tracked, backward_event, names, trace)


def _explain_other_optimizers(
    raised: RaisedError,
    recorder: Recorder,
    tracked: TrackedOptimizer,
    backward_event: Event,
    names: dict[str, object],
    trace: tuple[TraceStep, ...],
) -> Explanation:
    because = ""
    if (cut := next(_find_graph_cuts(raised, backward_event), None)) is not None:
        site = cut.scope.site_of_node(cut.node)
        because = f", as `{SourceText(cut.node)}` (line {site.line}) leaves the graph"
        trace = (TraceStep(site, "what the loss is computed from leaves the graph"), *trace)
    names["because"] = because
    others = list(_names_of_reached(recorder, tracked))
    if not others:
        return Explanation("raised:unreached", backward_event.site, names, trace)
    names["others"] = " and ".join(f"`{name}`" if " " not in name else name for name in others[:LISTED])
    return Explanation("raised:others", raised.site, names, trace)


def _names_of_reached(recorder: Recorder, tracked: TrackedOptimizer) -> Iterator[str]:
    """Yield the names of other optimizers whose parameters have gradients. A wrapper and its optimizer count once."""
    seen: set[frozenset[int]] = set()
    for other in recorder.recording.registry.optimizers.values():
        ids = frozenset(map(id, other.params))
        if other is not tracked and ids not in seen and any(p.grad is not None for p in other.params):
            seen.add(ids)
            name = str(other.name)
            yield "another optimizer" if name in ("", str(tracked.name)) else name


def _find_graph_cuts(raised: RaisedError, backward_event: Event) -> Iterator[Origin]:
    """Yield the calls that detach inputs of the loss from the graph, nearest to the backward first."""
    for origin in _loss_sources(raised, backward_event):
        for node in ast.walk(origin.node):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CUTS:
                yield Origin(node, origin.scope, origin.frames)


def _explain_new_leaf(
    raised: RaisedError,
    recorder: Recorder,
    tracked: TrackedOptimizer,
    backward_event: Event,
    names: dict[str, object],
    trace: tuple[TraceStep, ...],
) -> Explanation:
    """Explain a loss that is, or depends on, a tensor computed from no parameter."""
    origin = next(_find_leaf_origins(raised, backward_event), None)
    site = backward_event.site if origin is None else origin.scope.site_of_node(origin.node)
    if origin is not None:
        trace = (TraceStep(site, "a new tensor is made"), *trace)
    # If the code trained in an earlier iteration, it is correct, and this batch is the cause.
    label = "raised:empty-batch" if tracked.steps else "raised:new-leaf"
    if origin is not None and label == "raised:new-leaf":
        names["call"] = SiteText(site) if isinstance(origin.node, ast.Call) else text_at(site)
    return Explanation(label, site, names, trace)


def _find_leaf_origins(raised: RaisedError, backward_event: Event) -> Iterator[Origin]:
    """Yield the code that may have created the loss as a new leaf, nearest to the backward first."""
    for origin in _loss_sources(raised, backward_event):
        for node in ast.walk(origin.node):
            if (
                isinstance(node, ast.Name)
                and (requires_grad_origin := _find_requires_grad(node.id, origin)) is not None
            ):
                yield requires_grad_origin
            if isinstance(node, ast.Call) and _makes_leaf(node, origin):
                yield Origin(node, origin.scope, origin.frames)


def _loss_sources(raised: RaisedError, backward_event: Event) -> Iterator[Origin]:
    """Yield the expressions from which the loss of a backward pass may have come, nearest first."""
    scope, frames = scope_at(backward_event.site, raised.frames)
    try:
        root = ast.parse(str(backward_event.names.get("loss", "")), mode="eval").body
    except SyntaxError:
        return
    if scope is None:
        return
    # Locations inside the parsed text are relative to the text, so all nodes get the location of the backward call.
    for node in ast.walk(root):
        if isinstance(node, ast.expr):
            node.lineno = node.end_lineno = backward_event.site.line
            node.col_offset, node.end_col_offset = backward_event.site.column, backward_event.site.end_column
    yield from find_sources(Origin(root, scope, frames))


def _find_requires_grad(name: str, origin: Origin) -> Origin | None:
    """Return the assignment that makes a tensor require a gradient, such as ``loss.requires_grad = True``, or None."""
    for statement in origin.scope.iter_statements():
        for target in statement.targets if isinstance(statement, ast.Assign) else ():
            if isinstance(target, ast.Attribute) and find_access_path(target) == f"{name}.requires_grad":
                return Origin(target, origin.scope, origin.frames)
    return None


def _makes_leaf(call: ast.Call, origin: Origin) -> bool:
    """Return True if a call creates a tensor that requires a gradient and depends on no other tensor."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_":
        return True
    for keyword in call.keywords:
        if keyword.arg == "requires_grad":
            return resolve_expression(keyword.value, origin.scope) is not False
    callee = resolve_expression(call.func, origin.scope)
    return callee is torch.autograd.Variable or callee is torch.nn.Parameter


def _construction_site(recorder: Recorder, tracked: TrackedOptimizer) -> Site | None:
    events = recorder.recording.run_checker.distinct_events.values()
    key = tracked.tracked_object.key
    return next((event.site for event in events if isinstance(event, e.OptimizerNew) and event.subject == key), None)


def explain_missing_graph(raised: RaisedError, recorder: Recorder) -> list[Explanation]:
    """Explain a backward pass from a loss without a graph."""
    names: dict[str, object] = {
        "call": SiteText(raised.site),
        "loss": SiteText(raised.site, Role.INNER_ARGUMENT, "outputs"),
    }
    user = raised.user_frame
    node = user.find_operation()
    root = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
    if isinstance(root, ast.Call) and root.args:
        root = root.args[0]
    chain = (
        [] if root is None or user.scope is None else trace_to_call(Origin(root, user.scope, raised.frames), user.line)
    )
    final_step = TraceStep(raised.site, "the backward pass")
    if not chain or isinstance(chain[-1].node, ast.Name):
        return [Explanation("raised:no-graph", raised.site, names, (final_step,))]
    site = chain[-1].scope.site_of_node(chain[-1].node)
    return [Explanation("raised:no-graph", raised.site, names, (TraceStep(site, "the loss is computed"), final_step))]


def explain_empty_update(raised: RaisedError, recorder: Recorder) -> list[Explanation]:
    """Explain a scaler's update without an unscaled or stepped optimizer before."""
    names: dict[str, object] = {"call": SiteText(raised.site), "scaler": SiteText(raised.site, Role.RECEIVER)}
    events = recorder.recording.run_checker
    final_step = TraceStep(raised.site, "the scaler is updated, and nothing was unscaled")
    trace: list[TraceStep] = [final_step]
    for event in reversed([*events.recent_events, *events.pending_events][:-1]):
        if isinstance(event, e.Update):
            break
        if isinstance(event, e.Backward):
            trace.insert(0, TraceStep(event.site, "the backward pass"))
            break
    return [Explanation("raised:nothing-to-update", raised.site, names, tuple(trace))]
