"""Effects of gradient events: accumulate, clip, edit, clear and use gradients, with and without a scaler."""

from __future__ import annotations

from itertools import islice

from .. import automaton as a
from .. import events as e
from ..checker import Checker, EventContext, Here, PathState
from ..events import Event, EventKind
from ..sites import Site
from .regions import check_in_region
from .violations import apply_transition

#: Gradients whose backwards are known.
_KNOWN_SOURCE = frozenset({a.RAW, a.SCALED, a.UNSCALED})
#: Automaton inputs of manual gradient access, by event kind.
BY_HAND: dict[EventKind, str] = {e.GradRead: a.READ, e.GradEdit: a.EDIT, e.GradDivide: a.DIVIDE}


def apply_backward(checker: Checker, ctx: EventContext, event: e.Backward) -> PathState:
    check_scaled_twice(checker, ctx, event)
    check_in_region(checker, ctx)
    if event.scaling.is_uneven:
        checker.saw_violation = True
        checker.report_violation("backward@uneven", ctx.index, ctx.index, ctx.point)
    accumulate_grads(checker, ctx, event)
    return ctx.next_state()


def accumulate_grads(checker: Checker, ctx: EventContext, event: e.Backward) -> None:
    """Add the gradients of a backward to the optimizers that the backward reaches."""
    for i in checker.find_already_accumulated(event):
        # The same backward ran again without a step in between, so an accumulation window is open.
        apply_transition(checker, ctx, i, a.HOLD)
    open_windows = checker.open_windows(ctx.state)
    feeds = event.feeds
    reached = checker.sole_optimizers or checker.reached_optimizers.get(id(event), frozenset())
    sole = reached if feeds is None else frozenset()
    certain = len(ctx.optimizer_states) == 1 or feeds is not None or bool(sole)
    averaged = certain and _averages_grads(event, ctx.state)
    served = checker.served_optimizers.get(ctx.subject_key, ())
    kinds = (a.BACKWARD_SCALED, a.MAYBE_SCALED) if ctx.subject_key >= 0 else (a.BACKWARD_RAW, a.MAYBE_RAW)
    if event.scaling.may_have_scaled_gradient or (
        event.scaling.may_be_scaled_by_caller and checker.program.attributes.scalers.splits_scaling
    ):
        kinds = (a.HANDOFF, a.HANDOFF)
    for i, key in enumerate(checker.optimizer_keys):
        if (feeds is not None and key not in feeds) or (sole and i not in sole):
            continue
        if checker.has_another_scaler(event, i):
            continue
        if averaged:
            check_averaged_early(checker, ctx, i)
        if key in event.mixes:
            checker.resolve_cause("backward:mixes", ctx.index, i, ctx.point)
            apply_transition(checker, ctx, i, a.HANDOFF)
            continue
        # A scaler with a single optimizer scales the losses of this optimizer.
        sure = certain or (ctx.subject_key >= 0 and len(served) == 1 and i in served)
        apply_transition(
            checker,
            ctx,
            i,
            kinds[not sure],
            scaler_key=ctx.subject_key,
            loss_divided=event.division.is_divided,
            window_open=i in open_windows,
            loop_kind=event.inside if key in checker.stepped_optimizers else "",
            no_sync=event.no_sync,
        )


def check_averaged_early(checker: Checker, ctx: EventContext, i: int) -> None:
    """Report a backward that adds to gradients averaged over ranks by an earlier backward of the same window."""
    opt = ctx.optimizer_states[i]
    if opt.no_sync or opt.grads not in a.PENDING or not (opt.window_open or opt.loop_kind == e.MICRO):
        return
    earlier = checker.find_last_event(ctx.point, (e.Backward,), i)
    if isinstance(earlier, e.Backward) and _averages_grads(earlier, ctx.state):
        checker.resolve_cause("backward@averaged", ctx.index, i, ctx.point)


def apply_step(checker: Checker, ctx: EventContext, event: e.Step) -> PathState:
    check_in_region(checker, ctx)
    if event.object in checker.optimizer_index:
        note_window_steps(checker, ctx)
        check_leftover_grads(checker, ctx, checker.optimizer_index[event.object])
        apply_transition(checker, ctx, checker.optimizer_index[event.object], a.STEP)
    return ctx.next_state()


def check_leftover_grads(checker: Checker, ctx: EventContext, i: int) -> None:
    """Report a step of gradients to which the loss of another optimizer, stepped since, has also contributed.

    A generator's loss passes through the discriminator and leaves gradients there. Parameters that both losses train on
    purpose, such as a shared encoder, have an optimizer whose last losses also reach optimizers of their own.
    """
    if ctx.optimizer_states[i].grads not in _KNOWN_SOURCE:
        return
    key = checker.optimizer_keys[i]
    own: set[int] = set()
    stepped: set[int | None] = set()
    first = -1
    for index in islice(checker.walk_back(ctx.point), 1, None):
        event = checker.event_at(index)
        if isinstance(event, (e.ScalerStep, e.Step)):
            if event.object == key:
                return
            stepped.add(event.object if own else None)
        elif isinstance(event, e.ZeroGrad):
            if event.owners is None or key in event.owners:
                return
        elif isinstance(event, e.Handoff):
            if key in event.objects:
                return
        elif isinstance(event, e.Backward):
            if event.feeds is None:
                return
            if key not in event.feeds:
                continue
            if own and not stepped.isdisjoint(event.feeds):
                others = stepped.intersection(event.feeds) - own
                latest = checker.event_at(first)
                in_same_window = bool(event.inside) and latest is not None and latest.loops == event.loops
                if others and own < set(event.feeds) and not in_same_window:
                    checker.report_violation("backward@leftover", first, ctx.index, ctx.point)
                return
            own.update(event.feeds)
            first = index


def note_window_steps(checker: Checker, ctx: EventContext) -> None:
    """Record the windows that a step ends."""
    event = ctx.event
    if event.object is not None and ctx.optimizer_states[checker.optimizer_index[event.object]].several_backwards:
        checker.accumulating_windows.update(key for key, _ in event.guards if key in checker.window_predicates)


def apply_clip(checker: Checker, ctx: EventContext, event: e.Clip) -> PathState:
    indexes = find_touched(checker, ctx, event)
    clipped_mixed = event.owners is not None and any(ctx.optimizer_states[i].grads == a.UNSCALED for i in indexes)
    late = [i for i in indexes if ctx.optimizer_states[i].grads == a.STEPPED]
    if late and len(late) == len(indexes) and not (event.measures_only or event.undone or event.beside):
        step = _find_own_step(checker, ctx, late[0])
        if step is None:
            checker.resolve_cause("clip@stepped", ctx.index, late[0], ctx.point)
        else:
            checker.report_violation("clip@scaled", ctx.index, step, ctx.point)
    is_joint = event.joint and clipped_mixed and not (event.measures_only or event.undone)
    if is_joint and any(ctx.optimizer_states[i].grads == a.SCALED for i in indexes):
        checker.saw_violation = True
        checker.report_violation("clip@with-scaled", ctx.index, ctx.index, ctx.point)
    for i in indexes:
        if event.nonfinite_error and ctx.optimizer_states[i].grads == a.UNSCALED:
            checker.resolve_cause("clip-nonfinite", ctx.index, i, ctx.point)
        if event.undone:
            continue
        if event.measures_only:
            apply_transition(checker, ctx, i, a.READ)
        else:
            apply_transition(checker, ctx, i, a.CLIP, clipped_mixed=clipped_mixed)
    return ctx.next_state()


def _find_own_step(checker: Checker, ctx: EventContext, i: int) -> int | None:
    """Return the step for which a function clips that computes no gradients: its caller runs backward between calls.

    None if the clip follows the step in the same call.
    """
    if any(isinstance(event, e.Backward) for event in checker.program.iter_events()):
        return None
    is_next_call = False
    for index in checker.walk_back(ctx.point):
        event = checker.event_at(index)
        is_next_call = is_next_call or isinstance(event, e.Again)
        if isinstance(event, e.ScalerStep) and event.object == checker.optimizer_keys[i]:
            return index if is_next_call else None
    return None


def apply_manual_access(checker: Checker, ctx: EventContext, event: e.GradientAccess) -> PathState:
    """Apply a read, an edit or a manual division of gradients by the loss scale."""
    for i in find_touched(checker, ctx, event) if not event.undone else ():
        apply_transition(checker, ctx, i, BY_HAND[type(event)])
    return ctx.next_state()


def apply_finite_check(checker: Checker, ctx: EventContext, event: e.GradCheck) -> PathState:
    """Apply a check of gradients for non-finite values, which a dynamic loss scale produces occasionally."""
    for i in find_touched(checker, ctx, event):
        opt = ctx.optimizer_states[i]
        if event.raises and opt.scaler_key >= 0 and opt.grads in (a.SCALED, a.UNSCALED, a.STEPPED):
            checker.resolve_cause("raise-nonfinite", ctx.index, i, ctx.point)
        if opt.grads not in a.UNDER_SCALE:  # A loss scale does not change the result of a finite check.
            apply_transition(checker, ctx, i, a.READ)
    return ctx.next_state()


def find_touched(checker: Checker, ctx: EventContext, event: e.OwnedEvent) -> list[int]:
    """Return the indexes of the optimizers whose gradients an event touches.

    If the event names no owner, the unscaled optimizers are assumed. A read also assumes stepped optimizers. If none
    has this state, all optimizers are assumed.
    """
    opts, owners = ctx.optimizer_states, event.owners
    if owners is not None:
        return [checker.optimizer_index[key] for key in owners if key in checker.optimizer_index]
    free = (a.UNSCALED, a.STEPPED) if isinstance(event, e.GradRead) else (a.UNSCALED,)
    unscaled = [i for i, opt in enumerate(opts) if opt.grads in free]
    return unscaled or list(range(len(opts)))


def apply_normalization(checker: Checker, ctx: EventContext, event: e.GradNormalise) -> PathState:
    ctx.optimizer_states = [opt._replace(loss_undivided=False) for opt in ctx.optimizer_states]
    return ctx.next_state()


def apply_averaging(checker: Checker, ctx: EventContext, event: e.GradAverage) -> PathState:
    ctx.optimizer_states = [opt._replace(no_sync=False) for opt in ctx.optimizer_states]
    return ctx.next_state()


def apply_zero_grad(checker: Checker, ctx: EventContext, event: e.ZeroGrad) -> PathState:
    cleared = [checker.optimizer_index[key] for key in checker.owner_keys(event)]
    has_window_guard = any(checker.predicates[key].is_window_predicate for key, _ in event.guards)
    open_window = any(ctx.optimizer_states[i].window_open or ctx.optimizer_states[i].loop_kind for i in cleared)
    loses_grads = any(ctx.optimizer_states[i].grads in a.UNSTEPPED for i in cleared)
    given_up = (open_window or loses_grads) and is_rescue(checker, event, ctx.point)
    for i in cleared:
        if event.discards and _discards_iterations(checker, ctx, event, i):
            checker.resolve_cause("zero:in-loop", ctx.index, i, ctx.point)
        if not (given_up or has_window_guard) and _loses_possible_window(checker, ctx, i):
            checker.resolve_cause("zero@window", ctx.index, i, ctx.point, sure=False)
        if open_window and (given_up or (has_window_guard and not _is_at_end_of_window(checker, ctx, event, i))):
            # The gradients are cleared on a separate schedule, which is the window's, or are discarded intentionally.
            ctx.optimizer_states[i] = ctx.optimizer_states[i]._replace(window_open=False, loop_kind="")
        apply_transition(checker, ctx, i, a.ZERO)
        if given_up or event.may_be_refilled:
            # The next step intentionally finds no gradients, and only ends the iteration for the scaler. Or it finds
            # gradients that unanalyzed code writes back.
            ctx.optimizer_states[i] = ctx.optimizer_states[i]._replace(grads_discarded=False)
    return ctx.next_state()


def _discards_iterations(checker: Checker, ctx: EventContext, event: e.ZeroGrad, i: int) -> bool:
    """Return True if gradients of an earlier iteration are cleared, and the step after the loop is the only use."""
    opt = ctx.optimizer_states[i]
    if opt.loop_kind != e.LOOSE or opt.grads not in a.PENDING - a.PERHAPS or not event.loops:
        return False
    index = checker.find_last_index(ctx.point, (e.Backward,), i)
    backward = checker.event_at(index)
    if backward is None or event.loops[-1] not in (backward.loops or ()):
        return False
    return checker.optimizer_keys[i] in checker.stepped_optimizers and checker.may_step_uncleared(index, i)


def _loses_possible_window(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return True if all backwards of the loop ran since the same clear, and one of them is the optimizer's own.

    Which one is not known, so a single backward may be that of another optimizer.
    """
    opt = ctx.optimizer_states[i]
    if opt.grads != a.EXPOSED or not opt.window_open:
        return False
    return checker.find_last_index(ctx.point, (e.ZeroGrad,), i) == ctx.index


def _is_at_end_of_window(checker: Checker, ctx: EventContext, event: e.ZeroGrad, i: int) -> bool:
    """Return True if gradients of earlier iterations are cleared under the condition of their step."""
    ends = {
        key
        for key, truth in event.guards
        if checker.window_predicates.get(key) is truth and i in checker.window_optimizers.get(key, ())
    }
    # Nodes are in the order of the code, so a later node ran in an earlier iteration.
    if not ends or checker.find_last_index(ctx.point, (e.Backward,), i) <= ctx.index:
        return False
    # A predicate around a backward tells phases of the training apart.
    backwards = (x for x in checker.program.iter_events() if isinstance(x, e.Backward))
    return not ends <= {key for backward in backwards for key, _ in backward.guards}


def is_rescue(checker: Checker, event: e.ZeroGrad, here: Here) -> bool:
    """Return True if gradients are cleared after a failure: under a predicate under which no backward runs."""
    if event.rescue:
        return True
    guards = [(key, truth) for key, truth in event.guards if key not in checker.window_predicates]
    if not guards:
        return False
    backward = next(
        (x for i in checker.walk_back(here) if isinstance(x := checker.event_at(i), e.Backward)),
        None,
    )
    return backward is not None and not set(backward.guards).issuperset(guards)


def apply_optimizer_new(checker: Checker, ctx: EventContext, event: e.OptimizerNew) -> PathState:
    if event.subject in checker.optimizer_index:
        i = checker.optimizer_index[event.subject]
        if event.found:
            # An optimizer from a framework existed before.
            ctx.optimizer_states[i] = (
                ctx.optimizer_states[i]
                if checker.program.objects[event.subject].attributes.several is not None
                else a.OptimizerState()
            )
        else:
            apply_transition(checker, ctx, i, a.NEW)
    if not event.found:
        # An unresolved optimizer of a list, or of the same parameters, may be the optimizer constructed here.
        objects = checker.program.objects
        parameters = objects[event.subject].attributes.owns if event.subject is not None else None
        for i, opt in enumerate(ctx.optimizer_states):
            facts = objects[checker.optimizer_keys[i]].attributes
            is_other = facts.constructed and not (parameters or frozenset()) & (facts.owns or frozenset())
            if opt.stepped_before and not is_other:
                ctx.optimizer_states[i] = opt._replace(stepped_before=False)
    return ctx.next_state()


def apply_escape(checker: Checker, ctx: EventContext, event: e.Handoff) -> PathState:
    if not event.about:
        return ctx.state
    objects = event.objects
    handed = [
        i
        for i, opt in enumerate(ctx.optimizer_states)
        if checker.optimizer_keys[i] in objects or (opt.scaler_key >= 0 and opt.scaler_key in objects)
    ]
    for i in handed:
        before = ctx.optimizer_states[i]
        apply_transition(checker, ctx, i, a.HANDOFF)
        if before.stage == a.STAGE_STEPPED and checker.program.objects[before.scaler_key].attributes.confined:
            # Code that has only the optimizer cannot update the scaler.
            ctx.optimizer_states[i] = ctx.optimizer_states[i]._replace(stage=a.STAGE_STEPPED)
    return ctx.next_state()


def apply_loop_exit(checker: Checker, ctx: EventContext, event: e.LoopExit) -> PathState:
    if not event.complete:
        ctx.optimizer_states = [
            opt._replace(window_open=False, several_backwards=False) for opt in ctx.optimizer_states
        ]
    elif not event.within:
        ctx.optimizer_states = [opt._replace(loop_kind="") for opt in ctx.optimizer_states]
    return ctx.next_state()


def apply_repeated_call(checker: Checker, ctx: EventContext, event: e.Again) -> PathState:
    # Other code has run in between. Only an open accumulation window and uncleared gradients persist.
    kept = event.uncleared
    opts = []
    for opt in ctx.optimizer_states:
        if (opt.window_open or opt.loop_kind == e.LOOSE) and opt.grads in a.PENDING:
            opts.append(opt)
        else:
            opts.append(
                a.OptimizerState(a.STEPPED, scaler_key=opt.scaler_key)
                if kept and opt.grads == a.STEPPED
                else a.OptimizerState()
            )
    return PathState(ctx.state.known_predicates, ctx.state.true_predicates, (), tuple(opts), 0, 0, -1)


def apply_program_end(checker: Checker, ctx: EventContext, event: e.End) -> PathState:
    for i, opt in enumerate(ctx.optimizer_states):
        if checker.is_never_updated(opt):
            checker.resolve_cause(
                "end@stepped", ctx.index, i, ctx.point, sure=opt.scaler_key not in checker.escaped_objects
            )
    return ctx.state


def apply_scheduler_step(checker: Checker, ctx: EventContext, event: e.SchedulerStep) -> PathState:
    """Check the step of a known scheduler beside an optimizer step that the scaler may skip, or inside a window."""
    if event.object not in checker.optimizer_index or event.loops is None:
        return ctx.state
    i = checker.optimizer_index[event.object]
    opt = ctx.optimizer_states[i]
    if (opt.window_open or opt.loop_kind) and opt.grads in a.PENDING:
        if checker.find_last_event(ctx.point, (e.Backward,), i).loops == event.loops:
            checker.report_violation("scheduler:micro-batch", ctx.index, ctx.index, ctx.point)
    elif _ignores_skipped_step(checker, ctx, i):
        checker.report_violation("scheduler:skipped", ctx.index, ctx.index, ctx.point)
    return ctx.state


def apply_weight_average(checker: Checker, ctx: EventContext, event: e.StepFollowed) -> PathState:
    """Check the update of a known weight average beside an optimizer step that the scaler may skip."""
    trained = checker.optimizer_index.get(event.object) if event.object is not None else None
    if trained is not None and event.loops is not None and _ignores_skipped_step(checker, ctx, trained):
        checker.report_violation("average:skipped", ctx.index, ctx.index, ctx.point)
    return ctx.state


def _ignores_skipped_step(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return True if an action beside a step also runs when the scaler skipped the step."""
    if ctx.optimizer_states[i].grads not in (a.STEPPED, a.CLEAN) or checker.has_scale_branch:
        return False
    return _follows_each_step(ctx.event, checker.find_last_event(ctx.point, (e.ScalerStep,), i))


def _averages_grads(event: e.Backward, state: PathState) -> bool:
    """Return True if a backward averages gradients over ranks, according to the known predicates."""
    tests = event.averaged
    if tests is None or event.no_sync:
        return False
    known = {(key, bool(state.true_predicates & (1 << key))) for key, _ in tests if state.known_predicates & (1 << key)}
    return not any((key, not truth) in known or (key, not truth) in event.guards for key, truth in tests)


def _follows_each_step(event: Event, step: Event) -> bool:
    """Return True if an action follows each step of a scaler in the program, skipped or not."""
    return (
        isinstance(step, e.ScalerStep)
        and step.framework is None
        and step.loops == event.loops
        and (_contains_location(step.site, event.site) or _contains_location(event.site, step.site))
        and set(event.guards) <= set(step.guards)
    )


def _contains_location(site: Site, other: Site) -> bool:
    """Return True if the function of a source location contains the other location, or calls a function that does."""
    return any((each.function, each.caller) == (site.function, site.caller) for each in other.list_frames())


def check_scaled_twice(checker: Checker, ctx: EventContext, event: e.ScaledLoss) -> PathState:
    """Report a loss that is scaled a second time."""
    if event.twice:
        checker.report_violation("scale@scaled", ctx.index, ctx.index, ctx.point)
    return ctx.state
