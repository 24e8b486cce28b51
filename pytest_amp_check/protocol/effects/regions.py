"""Autocast regions: what they cover, and what may not happen in them or outside of them."""

from __future__ import annotations

from .. import events as e
from ..events import Event
from ..judge import Here, Judge, Moment, Region, State

#: Autocast regions that are remembered at once.
DEPTH = 64
#: The instance of a context that stands where a region could, and opens none (``nullcontext()``).
NULL = -2


def enter(judge: Judge, now: Moment) -> State:
    state, facts, index = now.state, now.event.facts, now.index
    if facts.get("null"):
        outer = state.regions[-1] if state.regions else Region(NULL, False, "", "", True, index)
        return state._replace(regions=(*state.regions, outer._replace(instance=NULL)))
    instance = facts.get("instance", now.subject)
    if instance >= 0 and any(region.instance == instance for region in state.regions):
        judge.blame("enter@entered", index, index, now.here)
    region = Region(instance, facts["enabled"], facts["device"], facts["dtype"], facts["cache"], index)
    if len(state.regions) >= DEPTH:
        return state
    known, truth, regions, opts, used, renewed, stale = state
    return State(known, truth, (*regions, region), opts, used, renewed, stale)


def leave(judge: Judge, now: Moment) -> State:
    known, truth, open_regions, opts, used, renewed, stale = now.state
    regions = open_regions[: now.event.facts.get("depth", len(open_regions) - 1)]
    nested = any(region.instance != NULL for region in regions)
    return State(known, truth, regions, opts, used, renewed, stale if nested else -1)


def clear_cache(judge: Judge, now: Moment) -> State:
    return now.state._replace(stale=-1)


def forward(judge: Judge, now: Moment) -> State:
    """A module runs forward, with the low-precision copies of weights that have been written since."""
    state = now.state
    region = state.regions[-1] if state.regions else None
    if region is None or not (region.enabled and region.cache and now.event.facts.get("cached", True)):
        return state
    if state.stale >= 0 and not _has_none_of(judge, judge.event(state.stale), now.event):
        judge.blame("write@region-then-forward", state.stale, now.index, now.here)
        state = state._replace(stale=-1)
    return state._replace(regions=tuple(each._replace(filled=True) for each in state.regions))


def _has_none_of(judge: Judge, step: Event | None, forward: Event) -> bool:
    """Whether a module that runs forward is known to have none of the weights that an optimizer has stepped."""
    if step is None or step.object is None or forward.subject is None:
        return False
    program = judge.program
    owned = program.things[step.object].facts.get("owns")
    return owned is not None and program.whole(owned).isdisjoint(program.whole((forward.subject,)))


def in_region(judge: Judge, now: Moment) -> None:
    """Something runs backward, or writes parameters, in a region that may be open."""
    state, event = now.state, now.event
    if not state.regions:
        return
    region = state.regions[-1]
    of_optimizer = event.object in judge.index
    # What an optimizer steps has run forward before. A run tells of forwards only while a write may have spoilt some.
    spoils = event.kind == e.PARAM_WRITE and (region.filled or judge.exact)
    writes = spoils or (of_optimizer and event.kind != e.BACKWARD)
    if writes and region.cache and any(each.instance != NULL for each in state.regions):
        now.state = state = state._replace(stale=now.index)
    if event.kind == e.PARAM_WRITE or not region.enabled or region.told:
        return
    if (event.kind != e.BACKWARD and not of_optimizer) or event.facts.get("custom"):
        return
    label = "backward@region" if event.kind == e.BACKWARD else "step@region"
    judge.blame(label, now.index, region.entered, now.here)
    now.state = state._replace(regions=tuple(each._replace(told=True) for each in state.regions))


def write(judge: Judge, now: Moment) -> State:
    in_region(judge, now)
    return now.state


def outside(judge: Judge, now: Moment) -> State:
    """A module is captured, or run by another thread, in a region whose cache or state that does not respect."""
    state = now.state
    region = state.regions[-1] if state.regions else None
    if region is not None and region.enabled:
        label = lost(judge, now.event.facts["how"], region, now.here)
        if label:
            judge.blame(label, now.index, region.entered, now.here)
    return state


def lost(judge: Judge, how: str, region: Region, here: Here) -> str:
    """The fault of leaving a region in some way, if it is one."""
    cuda = region.device == "cuda"
    if how == "trace":
        return "trace@cached-region" if region.cache else ""
    if how == "graphed":
        return "graphed@cached-region" if region.cache and cuda else ""
    if how == "graph":
        return "graph@cached-region" if region.cache and cuda and ran_since(judge, region.entered, here) else ""
    if how == "thread":
        return "thread@region"
    return "replicas@region" if how == "replicas" and cuda and region.dtype == "bfloat16" else ""


def ran_since(judge: Judge, entered: int, here: Here) -> bool:
    """Whether a module has run forward since a region was entered."""
    for index in judge.path(here):
        event = judge.event(index)
        if event is not None and event.kind == e.FORWARD:
            return True
        if index == entered:
            break
    return False


def loss(judge: Judge, now: Moment) -> State:
    state, facts, index = now.state, now.event.facts, now.index
    region = state.regions[-1] if state.regions else None
    inside = region is not None and region.enabled
    if region is not None and inside and facts.get("function") == "binary_cross_entropy":
        label = "bce@region-cpu" if region.device in ("cpu", "mps") else "bce@region"
        judge.blame(label, index, region.entered, now.here)
    low = facts.get("low_precision")
    if low and not inside:
        judge.blame("loss@outside-bf16" if low == "bfloat16" else "loss@outside", index, index, now.here)
    return state
