"""Why an optimizer has no gradient where a scaler wants to unscale it, from what was recorded."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import torch

from ...protocol import events as e
from ...protocol.events import Event, Site
from ...protocol.finding import Step
from ...protocol.words import Words, chain
from ..record.recorder import Recorder
from ..record.source import SourceText, text_at
from ..record.tracked import TrackedOptimizer
from .explanation import Explanation, Raised
from .frames import scope_at
from .naming import LISTED, parameters_named
from .origins import Origin, made, sources
from .values import resolve

#: Methods that give a tensor, or a number, without the graph.
CUTS = frozenset({"detach", "detach_", "item", "numpy", "tolist"})


def without_gradients(raised: Raised, recorder: Recorder) -> list[Explanation] | None:
    """Explain a step of a scaler that found no gradient."""
    tracked = stepped(raised, recorder)
    optimizer = None if tracked is None else tracked.optimizer()
    return None if tracked is None or optimizer is None else [_without(raised, recorder, tracked, optimizer)]


def _without(
    raised: Raised, recorder: Recorder, tracked: TrackedOptimizer, optimizer: torch.optim.Optimizer
) -> Explanation:
    names: dict[str, object] = {"optimizer": tracked.name or "", "call": SourceText(raised.site)}
    every = [p for group in optimizer.param_groups for p in group["params"]]
    here = Step(raised.site, "the scaler steps the optimizer, and finds no gradient")
    if not any(p.requires_grad for p in every):
        names["count"] = str(len(every))
        return Explanation("raised:frozen", raised.site, names, (here,))
    ran, cleared = _since_last_step(recorder, tracked)
    if ran is None:
        return Explanation("raised:no-backward", raised.site, names, (here,))
    names["loss"] = ran.names.get("loss", "")
    backward = Step(ran.site, "the backward pass")
    if cleared is not None:
        path = (backward, Step(cleared.site, "the gradients are cleared"), here)
        return Explanation("raised:cleared", cleared.site, {**names, "call": SourceText(cleared.site)}, path)
    return _reached(raised, recorder, tracked, ran, names, (backward, here))


def stepped(raised: Raised, recorder: Recorder) -> TrackedOptimizer | None:
    """The optimizer that a scaler was to step or to unscale."""
    for frame in reversed(raised.frames):
        optimizer = frame.frame.f_locals.get("optimizer")
        if isinstance(optimizer, torch.optim.Optimizer) and not frame.is_user:
            return recorder.recording.registry.optimizer(optimizer)
    return None


def _since_last_step(recorder: Recorder, tracked: TrackedOptimizer) -> tuple[Event | None, Event | None]:
    """The last backward pass since an optimizer was stepped, and what has cleared its gradients after that."""
    events, key = recorder.recording.chain, tracked.thing.key
    cleared: Event | None = None
    refused = False
    for event in reversed([*events.recent, *events.pending]):
        if event.kind == e.SCALER_STEP and event.object == key:
            if refused:
                break
            refused = True
        elif event.kind == e.ZERO_GRAD and (event.facts.get("owners") is None or key in event.facts["owners"]):
            cleared = event
        elif event.kind == e.BACKWARD:
            return event, cleared
    return None, cleared


def _reached(
    raised: Raised,
    recorder: Recorder,
    tracked: TrackedOptimizer,
    ran: Event,
    names: dict[str, object],
    path: tuple[Step, ...],
) -> Explanation:
    """Explain by what the backward pass has reached."""
    reach = recorder.backward.reach
    leaves = reach.leaves() if reach.event is ran else None
    if leaves is None:
        return _fed_others(raised, recorder, tracked, ran, names, path)
    owners = recorder.recording.registry.owners
    if any(id(leaf) in owners for leaf in leaves):
        return _fed_others(raised, recorder, tracked, ran, names, path)
    strangers = [leaf for leaf in leaves if isinstance(leaf, torch.nn.Parameter)]
    if strangers:
        names["others"] = parameters_named(strangers, raised.frames)
        return Explanation("raised:strangers", _constructed(recorder, tracked) or raised.site, names, path)
    return _new_leaf(raised, recorder, tracked, ran, names, path)


def _fed_others(
    raised: Raised,
    recorder: Recorder,
    tracked: TrackedOptimizer,
    ran: Event,
    names: dict[str, object],
    path: tuple[Step, ...],
) -> Explanation:
    because = ""
    if (cut := next(_cut(raised, ran), None)) is not None:
        site = cut.scope.site(cut.node)
        because = f", as `{Words(cut.node)}` (line {site.line}) leaves the graph"
        path = (Step(site, "what the loss is computed from leaves the graph"), *path)
    names["because"] = because
    others = [
        str(other.name or "another optimizer")
        for other in recorder.recording.registry.optimizers.values()
        if other is not tracked and any(p.grad is not None for p in other.params)
    ]
    if not others:
        return Explanation("raised:unreached", ran.site, names, path)
    names["others"] = " and ".join(f"`{name}`" if " " not in name else name for name in others[:LISTED])
    return Explanation("raised:others", raised.site, names, path)


def _cut(raised: Raised, ran: Event) -> Iterator[Origin]:
    """Where what the loss is computed from is taken out of the graph, nearest to its backward first."""
    for origin in _loss_sources(raised, ran):
        for node in ast.walk(origin.node):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CUTS:
                yield Origin(node, origin.scope, origin.frames)


def _new_leaf(
    raised: Raised,
    recorder: Recorder,
    tracked: TrackedOptimizer,
    ran: Event,
    names: dict[str, object],
    path: tuple[Step, ...],
) -> Explanation:
    """The loss is, or comes from, a tensor that no parameter has made."""
    origin = next(_leaves_made(raised, ran), None)
    site = ran.site if origin is None else origin.scope.site(origin.node)
    if origin is not None:
        path = (Step(site, "a new tensor is made"), *path)
    # What trained in an earlier turn is right in itself, so it is this batch.
    label = "raised:empty-batch" if tracked.steps else "raised:new-leaf"
    if origin is not None and label == "raised:new-leaf":
        names["call"] = SourceText(site) if isinstance(origin.node, ast.Call) else text_at(site)
    return Explanation(label, site, names, path)


def _leaves_made(raised: Raised, ran: Event) -> Iterator[Origin]:
    """Where the loss may have been made anew, nearest to its backward first."""
    for origin in _loss_sources(raised, ran):
        for node in ast.walk(origin.node):
            if isinstance(node, ast.Name) and (told := _told_to_ask(node.id, origin)) is not None:
                yield told
            if isinstance(node, ast.Call) and _makes_leaf(node, origin):
                yield Origin(node, origin.scope, origin.frames)


def _loss_sources(raised: Raised, ran: Event) -> Iterator[Origin]:
    """The expressions that the loss of a backward pass may have come from, nearest first."""
    scope, frames = scope_at(ran.site, raised.frames)
    try:
        root = ast.parse(str(ran.names.get("loss", "")), mode="eval").body
    except SyntaxError:
        return
    if scope is None:
        return
    # The places of the root are those in its text, as the loss was written at its backward.
    for node in ast.walk(root):
        if isinstance(node, ast.expr):
            node.lineno = node.end_lineno = ran.site.line
            node.col_offset, node.end_col_offset = ran.site.column, ran.site.end_column
    yield from sources(Origin(root, scope, frames))


def _told_to_ask(name: str, origin: Origin) -> Origin | None:
    """Where a tensor is told to ask for a gradient: ``loss.requires_grad = True``."""
    for statement in origin.scope.statements():
        for target in statement.targets if isinstance(statement, ast.Assign) else ():
            if isinstance(target, ast.Attribute) and chain(target) == f"{name}.requires_grad":
                return Origin(target, origin.scope, origin.frames)
    return None


def _makes_leaf(call: ast.Call, origin: Origin) -> bool:
    """Whether a call makes a tensor that asks for a gradient and comes from no other."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_":
        return True
    for keyword in call.keywords:
        if keyword.arg == "requires_grad":
            return resolve(keyword.value, origin.scope) is not False
    made = resolve(call.func, origin.scope)
    return made is torch.autograd.Variable or made is torch.nn.Parameter


def _constructed(recorder: Recorder, tracked: TrackedOptimizer) -> Site | None:
    events = recorder.recording.chain.distinct.values()
    key = tracked.thing.key
    return next((event.site for event in events if event.kind == e.OPTIMIZER_NEW and event.subject == key), None)


def without_graph(raised: Raised, recorder: Recorder) -> list[Explanation]:
    """Explain a backward pass from a loss that nothing has made."""
    names: dict[str, object] = {
        "call": SourceText(raised.site),
        "loss": SourceText(raised.site, "inner argument", "outputs"),
    }
    user = raised.user
    node = user.operation()
    root = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
    if isinstance(root, ast.Call) and root.args:
        root = root.args[0]
    back = [] if root is None or user.scope is None else made(Origin(root, user.scope, raised.frames), user.line)
    here = Step(raised.site, "the backward pass")
    if not back or isinstance(back[-1].node, ast.Name):
        return [Explanation("raised:no-graph", raised.site, names, (here,))]
    site = back[-1].scope.site(back[-1].node)
    return [Explanation("raised:no-graph", raised.site, names, (Step(site, "the loss is computed"), here))]


def unfed_update(raised: Raised, recorder: Recorder) -> list[Explanation]:
    """Explain an update of a scaler for which nothing was unscaled or stepped."""
    names: dict[str, object] = {"call": SourceText(raised.site), "scaler": SourceText(raised.site, "receiver")}
    events = recorder.recording.chain
    here = Step(raised.site, "the scaler is updated, and nothing was unscaled")
    path: list[Step] = [here]
    for event in reversed([*events.recent, *events.pending][:-1]):
        if event.kind == e.UPDATE:
            break
        if event.kind == e.BACKWARD:
            path.insert(0, Step(event.site, "the backward pass"))
            break
    return [Explanation("raised:nothing-to-update", raised.site, names, tuple(path))]
