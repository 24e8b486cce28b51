"""Effects of autocast regions: covered events, and violations inside and outside a region."""

from __future__ import annotations

from .. import events as e
from ..checker import AutocastRegion, Checker, EventContext, Here, PathState
from ..events import Event
from ..optable import find_policy

#: Maximum number of nested autocast regions that are tracked.
DEPTH = 64
#: Region instance of a context that opens no region (``nullcontext()``).
NULL = -2


def apply_enter(checker: Checker, ctx: EventContext, event: e.AutocastEnter) -> PathState:
    state, index = ctx.state, ctx.index
    if event.null:
        outer = state.regions[-1] if state.regions else AutocastRegion(NULL, False, "", "", True, index)
        return state._replace(regions=(*state.regions, outer._replace(instance=NULL)))
    instance = ctx.subject_key if event.instance is None else event.instance
    if instance >= 0 and any(region.instance == instance for region in state.regions):
        checker.report_violation("enter@entered", index, index, ctx.point)
    region = AutocastRegion(instance, event.enabled, event.device, event.dtype, event.cache, index)
    if len(state.regions) >= DEPTH:
        return state
    known, truth, regions, opts, used, renewed, stale = state
    return PathState(known, truth, (*regions, region), opts, used, renewed, stale)


def apply_exit(checker: Checker, ctx: EventContext, event: e.AutocastExit) -> PathState:
    known, truth, open_regions, opts, used, renewed, stale = ctx.state
    regions = open_regions[: len(open_regions) - 1 if event.depth is None else event.depth]
    nested = any(region.instance != NULL for region in regions)
    return PathState(known, truth, regions, opts, used, renewed, stale if nested else -1)


def apply_cache_clear(checker: Checker, ctx: EventContext, event: e.AutocastCacheClear) -> PathState:
    return ctx.state._replace(stale_write=-1)


def apply_forward(checker: Checker, ctx: EventContext, event: e.Forward) -> PathState:
    """Apply a module's forward, which uses cached low-precision copies of weights that may be outdated."""
    state = ctx.state
    region = state.regions[-1] if state.regions else None
    if region is None or not (region.enabled and region.cache_enabled and event.cached):
        return state
    if state.stale_write >= 0 and not _has_no_stepped_weights(checker, checker.event_at(state.stale_write), event):
        checker.report_violation("write@region-then-forward", state.stale_write, ctx.index, ctx.point)
        state = state._replace(stale_write=-1)
    return state._replace(regions=tuple(each._replace(cache_filled=True) for each in state.regions))


def _has_no_stepped_weights(checker: Checker, step: Event | None, forward: Event) -> bool:
    """Return True if a module is known to have no weights of the optimizer that stepped."""
    if step is None or step.object is None or forward.subject is None:
        return False
    program = checker.program
    owned = program.objects[step.object].attributes.owns
    return owned is not None and program.with_submodules(owned).isdisjoint(program.with_submodules((forward.subject,)))


def check_grad_in_region(checker: Checker, ctx: EventContext, event: e.AutogradGrad) -> PathState:
    """Report gradients for a double backward that are computed in a region of float16."""
    region = ctx.state.regions[-1] if ctx.state.regions else None
    is_float16 = region is not None and region.enabled and region.dtype != "bfloat16"
    if region is not None and is_float16 and not region.is_reported and event.differentiable:
        checker.report_violation("gradient:in-region", ctx.index, region.entry_node, ctx.point)
        return ctx.state._replace(regions=tuple(each._replace(is_reported=True) for each in ctx.state.regions))
    return ctx.state


def check_in_region(checker: Checker, ctx: EventContext) -> None:
    """Check a backward or a parameter write in a region that may be open."""
    state, event = ctx.state, ctx.event
    if not state.regions:
        return
    region = state.regions[-1]
    of_optimizer = event.object in checker.optimizer_index
    # A stepped module has run forward before. A run records forwards only while a write may have made a cache outdated.
    # Nested regions share one cache, which lasts until the outermost region is left.
    is_filled = any(each.cache_filled for each in state.regions)
    spoils = isinstance(event, e.ParamWrite) and (is_filled or checker.has_exact_identity)
    writes = spoils or (of_optimizer and not isinstance(event, e.Backward))
    if writes and region.cache_enabled and any(each.instance != NULL for each in state.regions):
        ctx.state = state = state._replace(stale_write=ctx.index)
    if isinstance(event, e.ParamWrite) or not region.enabled or region.is_reported:
        return
    if event.custom if isinstance(event, e.Backward) else not of_optimizer:
        return
    label = "backward@region" if isinstance(event, e.Backward) else "step@region"
    checker.report_violation(label, ctx.index, region.entry_node, ctx.point)
    ctx.state = state._replace(regions=tuple(each._replace(is_reported=True) for each in state.regions))


def apply_param_write(checker: Checker, ctx: EventContext, event: e.ParamWrite) -> PathState:
    check_in_region(checker, ctx)
    return ctx.state


def check_leaving_region(checker: Checker, ctx: EventContext, event: e.LeavingRegion) -> PathState:
    """Check a capture of a module, or a run in another thread, which ignores the region's cache or state."""
    state = ctx.state
    region = state.regions[-1] if state.regions else None
    if region is not None and region.enabled:
        label = find_leaving_label(checker, event.how, region, ctx.point)
        if label:
            checker.report_violation(label, ctx.index, region.entry_node, ctx.point)
    return state


def find_leaving_label(checker: Checker, how: str, region: AutocastRegion, here: Here) -> str:
    """Return the violation label of a capture or thread in a region, or "" if allowed."""
    cuda = region.device == "cuda"
    if how == "trace":
        return "trace@cached-region" if region.cache_enabled else ""
    if how == "graphed":
        return "graphed@cached-region" if region.cache_enabled and cuda else ""
    if how == "graph":
        return (
            "graph@cached-region"
            if region.cache_enabled and cuda and has_run_since(checker, region.entry_node, here)
            else ""
        )
    if how == "thread":
        return "thread@region"
    return "replicas@region" if how == "replicas" and cuda and region.dtype == "bfloat16" else ""


def has_run_since(checker: Checker, entry_node: int, here: Here) -> bool:
    """Return True if a module ran forward since a region was entered."""
    for index in checker.walk_back(here):
        event = checker.event_at(index)
        if isinstance(event, e.Forward):
            return True
        if index == entry_node:
            break
    return False


def apply_loss(checker: Checker, ctx: EventContext, event: e.Loss) -> PathState:
    state, index = ctx.state, ctx.index
    region = state.regions[-1] if state.regions else None
    inside = region is not None and region.enabled
    if region is not None and inside and event.function == "binary_cross_entropy":
        is_allowed = find_policy(region.device, event.function) in ("", "fp32")
        label = "bce@region-cpu" if is_allowed else "bce@region"
        checker.report_violation(label, index, region.entry_node, ctx.point)
    if event.low_precision and not inside:
        checker.report_violation(event.label_outside, index, index, ctx.point)
    return state
