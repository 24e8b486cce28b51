"""Transitions of the automaton for one optimizer, and exemptions from the resulting violations."""

from __future__ import annotations

from collections.abc import Callable

from .. import automaton as a
from .. import events as e
from ..checker import Checker, EventContext
from ..events import Event
from ..rules import LABELS
from ..sites import Site


def apply_transition(
    checker: Checker,
    ctx: EventContext,
    i: int,
    name: str,
    *,
    scaler_key: int = -1,
    loss_divided: bool = True,
    window_open: bool = False,
    loop_kind: str = "",
    no_sync: bool = False,
    clipped_mixed: bool = False,
) -> None:
    """Apply an automaton transition to the gradients of optimizer ``i``, and report violations without exemption."""
    before = ctx.optimizer_states[i]
    scaler = checker.program.objects[before.scaler_key] if before.scaler_key >= 0 else None
    in_parts = scaler is not None and scaler.attributes.framework is not None
    ctx.optimizer_states[i], labels = a.transition(
        before,
        name,
        scaler_key=scaler_key,
        loss_divided=loss_divided,
        window_open=window_open,
        loop_kind=loop_kind,
        no_sync=no_sync,
        clipped_mixed=clipped_mixed,
    )
    if name in a.ENDS and a.has_no_backward(before):
        checker.note_idle_step(ctx.index)
    for base_label in labels:
        checker.saw_violation = True
        label = base_label
        possible = a.is_only_possible(before, name, label)
        other_guards = [
            tests - set(ctx.event.guards) for tests in checker.restore_guards.get(checker.optimizer_keys[i], ())
        ]
        if in_parts and (possible or (name == a.STEP and any(other_guards))):
            continue  # Source shows only in part which gradients a framework changes, and when.
        if label == "backward@stale" and was_called_again(checker, ctx, i):
            if isinstance(ctx.event, e.Backward) and ctx.event.scaling.comes_from_caller:
                continue  # The code that computes the loss clears first.
            label = "backward@stale-again"
        if label == "backward@unscaled" and _is_unscaled_early(checker, ctx, i):
            label = "backward@unscaled-early"
        elif label == "backward@unscaled" and not in_parts and _is_second_backward(checker, ctx, i):
            label = "backward@unscaled-second"
        if label == "clip@scaled" and _may_be_unscaled_by_callback(checker, ctx, i):
            label = "clip@scaled-callback"
        if label == "update@nothing" and _is_step_bypassed(checker, ctx, i):
            label = "update@left-out"
        is_exempt = EXCUSES.get(LABELS[label][1].exemption)
        if is_exempt is None or not is_exempt(checker, ctx, i):
            is_doubtful = DOUBTS.get(LABELS[label][1].exemption)
            sure = not (possible or (is_doubtful is not None and is_doubtful(checker, ctx, i)))
            checker.resolve_cause(label, ctx.index, i, ctx.point, sure=sure)
    if name in USES and before.grads in a.PERHAPS:
        for other, opt in enumerate(ctx.optimizer_states):
            if other != i:
                ctx.optimizer_states[other], _ = a.transition(opt, a.TAKEN)


def _is_step_bypassed(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return True if this path bypassed the step of scaled gradients, under predicates that vary by iteration.

    With several optimizers, another optimizer may step when this optimizer does not.
    """
    if len(checker.served_optimizers.get(ctx.event.subject, ())) != 1:
        return False
    backward = checker.find_last_event(ctx.point, (e.Backward,), i)
    if ctx.optimizer_states[i].grads not in a.UNDER_SCALE:
        return False
    own = [
        tests.difference(ctx.event.guards, backward.guards)
        for tests in checker.step_guards.get(checker.optimizer_keys[i], ())
    ]
    return bool(own) and all(
        tests
        and all(checker.varying_predicates >> key & 1 and key not in checker.window_predicates for key, _ in tests)
        for tests in own
    )


def was_called_again(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return True if the function returned and was called again after the step before this event."""
    for index in list(checker.walk_back(ctx.point))[1:]:
        event = checker.event_at(index)
        if isinstance(event, e.Again):
            return True
        if isinstance(event, (e.ScalerStep, e.Step)) and event.object == checker.optimizer_keys[i]:
            return False
    return False


def _is_unscaled_early(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return True if gradients were unscaled at the last clear or step, and no backward ran in between."""
    unscaled = False
    for index in list(checker.walk_back(ctx.point))[1:]:
        event = checker.event_at(index)
        if event is None:
            continue
        if not unscaled:
            unscaled = isinstance(event, e.Unscale) and event.object == checker.optimizer_keys[i]
        elif isinstance(event, e.Backward):
            return False
        elif isinstance(event, (e.ScalerStep, e.Step, e.ZeroGrad, e.OptimizerNew)):
            return True
    return False


def _is_second_backward(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return True if other backward passes of the same window ran before ``unscale_``, and nothing cleared since."""
    key = checker.optimizer_keys[i]
    unscaled = has_earlier = False
    for index in list(checker.walk_back(ctx.point))[1:]:
        event = checker.event_at(index)
        if event is None:
            continue
        if not unscaled:
            if isinstance(event, e.ZeroGrad):
                return False
            unscaled = isinstance(event, e.Unscale) and event.object == key
        elif isinstance(event, e.Backward):
            if event.site.call_chain() == ctx.event.site.call_chain():
                return False
            has_earlier = True
        elif isinstance(event, (e.ScalerStep, e.Step, e.Update, e.ZeroGrad, e.OptimizerNew)):
            break
    return has_earlier


def _may_be_unscaled_by_callback(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return True if callbacks that received the optimizer or its scaler ran between backward and the clip."""
    objects = {checker.optimizer_keys[i], ctx.state.optimizer_states[i].scaler_key}
    is_before_clip = isinstance(ctx.event, e.Clip)
    for index in checker.walk_back(ctx.point):
        event = checker.event_at(index)
        if isinstance(event, e.Backward):
            return False
        is_before_clip = is_before_clip or isinstance(event, e.Clip)
        if is_before_clip and isinstance(event, e.Handoff) and event.notifies and not objects.isdisjoint(event.objects):
            return True
    return False


def is_cleared_elsewhere(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return True if gradients left for the next backward are cleared elsewhere, or possibly by other code."""
    key = checker.optimizer_keys[i]
    facts = checker.program.objects[key].attributes
    if checker.program.attributes.fragment and not facts.constructed:
        return True  # The code is a fragment of a program.
    if not checker.has_exact_identity and _may_keep_grads(checker, ctx, i):
        return True
    zeroed = key in checker.zeroed_optimizers and not (
        _is_never_cleared_between(checker, ctx, i) or _is_step_of_checked_gradients(checker, ctx, i)
    )
    return (
        facts.hooked
        or checker.clears_unknown_grads
        or zeroed
        or key in checker.escape_effects[e.CLEARS]
        or _is_alias_cleared(checker, key)
    )


def _may_keep_grads(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return True if source does not show that the gradients of a direct step have to be cleared.

    A test runs steps whatever the gradients are. Two optimizers may have the same parameters, of which one clears.
    """
    if not isinstance(checker.find_last_event(ctx.point, (e.ScalerStep, e.Step), i), e.Step):
        return False
    in_test = any(map(Site.is_in_test, ctx.event.site.list_frames()))
    return in_test or bool(checker.zeroed_optimizers - {checker.optimizer_keys[i]})


def _is_alias_cleared(checker: Checker, key: int) -> bool:
    """Return True if an optimizer of the same name is cleared. Two unresolved references may be the same optimizer.

    A wrapper clears as ``self.optimizer`` what its owner steps as ``self.wrapper.optimizer``.
    """
    objects = checker.program.objects
    found = {other for other in {key, *checker.zeroed_optimizers} if not objects[other].attributes.constructed}
    if key not in found:
        return False
    own, *others = (f".{objects[each].name.removeprefix('self.')}" for each in (key, *(found - {key})))
    return any(own.endswith(other) or other.endswith(own) for other in others)


def _is_never_cleared_between(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return True if no clear can run between the step and the backward of one iteration.

    The clear is outside the loop, or under a predicate that is false whenever this backward runs.
    """
    places = checker.clearing_sites.get(checker.optimizer_keys[i])
    if places is None:
        return False
    stepping = checker.find_last_event(ctx.point, (e.ScalerStep, e.Step), i)
    loops = stepping.loops or ()
    inner = [loop for loop in ctx.event.loops or () if loop in loops][-1:]
    # Beside a disjunction, an event may need either truth of a predicate.
    needed = {(key, truth) for key, truth in ctx.event.guards if (key, not truth) not in ctx.event.guards}
    return not any(
        set(inner) <= set(around)
        and not any((key, not truth) in needed and (key, not truth) not in tests for key, truth in tests)
        for around, tests in places
    )


def _is_step_of_checked_gradients(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return True if the last step is in a branch for gradients that are finite, or for those that are not.

    The clears of the other branch are then not on this path.
    """
    stepping = checker.find_last_event(ctx.point, (e.ScalerStep, e.Step), i)
    return any(checker.predicates[key].checked_optimizers != frozenset() for key, _ in stepping.guards)


def may_have_no_window(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return True if a framework counts the microbatches of a window, and the number may be one."""
    return bool(checker.program.objects[checker.optimizer_keys[i]].attributes.may_have_no_window)


def may_be_cleared_unseen(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return True if unanalyzed code received the optimizer, and may have cleared the gradients."""
    key = checker.optimizer_keys[i]
    return not checker.program.objects[key].attributes.constructed or key in checker.escaped_objects


def is_checked_finite(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return True if an optimizer is stepped directly because the gradients were checked to be finite."""
    if isinstance(ctx.event, e.Step) and ctx.event.checked:
        return True
    return any(
        (of := checker.predicates[key].checked_optimizers) is None or checker.optimizer_keys[i] in of
        for key, _ in ctx.event.guards
    )


def has_one_scaler(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return False if two known scalers definitely both scaled losses of an optimizer."""
    key = checker.optimizer_keys[i]
    scalers = set()
    for index in list(checker.walk_back(ctx.point))[1:]:
        event = checker.event_at(index)
        if event is None or (isinstance(event, e.ZeroGrad) and key in checker.owner_keys(event)):
            break
        if isinstance(event, e.Backward) and key in (event.feeds or ()):
            if event.subject is None or not checker.program.objects[event.subject].attributes.constructed:
                return True
            scalers.add(event.subject)
        if len(scalers) > 1:
            return False
    return True


def may_be_same_scaler(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return True if the acting scaler may be the scaler of the loss.

    False needs two known constructions of different names.
    """
    acting, scaling = (
        checker.program.objects[key] for key in (ctx.subject_key, ctx.state.optimizer_states[i].scaler_key)
    )
    are_constructed = all(scaler.attributes.constructed and scaler.site is not None for scaler in (acting, scaling))
    if not checker.has_exact_identity and (not are_constructed or acting.name == scaling.name):
        return True
    # Each term of a sum scaled by two scalers may be the loss of one optimizer.
    backward = checker.find_last_event(ctx.point, (e.Backward,), i)
    return isinstance(backward, e.Backward) and backward.scaling.has_several_scalers


def is_unscaled_if_live(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return True if a flag assumed to be off on this path controls ``unscale_``, and may also control the scaler.

    The flags that control a constructed scaler are known.
    """
    scaler_key = ctx.state.optimizer_states[i].scaler_key
    facts = checker.program.objects[scaler_key].attributes if scaler_key >= 0 else None
    if facts is not None and facts.constructed and facts.enabled is True:
        return False
    off = {key for key, truth in checker.find_unscale_guards(i) if (key, truth) not in ctx.event.guards}
    enabling = None if facts is None else facts.enabling
    # Flags that decide only about `unscale_` leave the scaler enabled.
    return bool(off) if enabling is None else not off.isdisjoint(enabling)


def is_divided_elsewhere(checker: Checker, ctx: EventContext, i: int) -> bool:
    facts = checker.program.objects[checker.optimizer_keys[i]].attributes
    if facts.divided or checker.program.attributes.averaged:
        return True
    fed = checker.find_last_event(ctx.point, (e.Backward,), i)
    # The code is a fragment, and another fragment computes the loss.
    is_fragment = checker.program.attributes.fragment and isinstance(fed, e.Backward) and fed.division.is_vague
    return is_fragment or _runs_once_per_window(checker, fed)


def _runs_once_per_window(checker: Checker, backward: Event) -> bool:
    """Return True if a backward runs only at the end of windows.

    A backward in each microbatch then has another loss.
    """
    ends = {(key, truth) for key, truth in backward.guards if checker.window_predicates.get(key) is truth}
    others = {
        guard for event in checker.program.iter_events() if isinstance(event, e.Backward) for guard in event.guards
    }
    return any((key, not truth) not in others for key, truth in ends)


def is_outside_windows(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return True if cleared gradients belong to no window.

    The gradients come from an earlier loop, or from the loss of another optimizer that has stepped. Gradients may also
    be stored elsewhere until the step.
    """
    if checker.optimizer_keys[i] in checker.assigned_optimizers:
        return True
    backward = checker.find_last_event(ctx.point, (e.Backward,), i)
    if _has_other_step_after(checker, ctx, i, backward):
        return True
    loops = backward.loops or ()
    return bool(loops) and loops[-1] not in (ctx.event.loops or ())


def _has_other_step_after(checker: Checker, ctx: EventContext, i: int, backward: Event) -> bool:
    for index in checker.walk_back(ctx.point):
        event = checker.event_at(index)
        if event is backward:
            return False
        if isinstance(event, (e.ScalerStep, e.Step)) and event.object != checker.optimizer_keys[i]:
            return True
    return False


def is_other_scaler_update(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return True if the last update belongs to another scaler, or if only a loss of another optimizer came before.

    A backward with that scaler is not known to reach the stepped optimizer. Nor is a backward of an unknown model in a
    program that freezes models: the gradients of this step may all come from the backward after the update.
    """
    if checker.program.attributes.training.freezes_unknown:
        events = (checker.event_at(index) for index in checker.walk_back(ctx.point))
        last = next((each for each in events if isinstance(each, (e.Update, e.Backward))), None)
        if isinstance(last, e.Backward) and last.feeds is None:
            return True
    return checker.find_last_event(ctx.point, (e.Update,), i).subject != ctx.event.subject


def is_update_for_other(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return True if an update belongs to another optimizer of the same scaler, which has a separate window."""
    opts = enumerate(ctx.state.optimizer_states)
    return any(j != i and opt.stage == a.STAGE_STEPPED and opt.scaler_key == ctx.subject_key for j, opt in opts)


#: Automaton inputs that use the gradients of an optimizer.
USES = frozenset({a.UNSCALE, a.SCALER_STEP, a.STEP, a.RESTORE})
#: Conditions that make a violation only possible, by the name of the exemption.
DOUBTS: dict[str, Callable[[Checker, EventContext, int], bool]] = {
    "cleared-elsewhere": may_be_cleared_unseen,
    "of-no-window": may_have_no_window,
}
#: Exemptions by name (:attr:`~..rule.ViolationKind.exemption`).
EXCUSES: dict[str, Callable[[Checker, EventContext, int], bool]] = {
    # A caller that comes without a scaler has computed gradients of its own.
    "called-again": was_called_again,
    "cleared-elsewhere": is_cleared_elsewhere,
    "fed-elsewhere": lambda checker, ctx, i: checker.is_fed_elsewhere(i),
    "finite": is_checked_finite,
    "one-scaler": has_one_scaler,
    "same-scaler": may_be_same_scaler,
    "unscaled-where-live": is_unscaled_if_live,
    "divided-elsewhere": is_divided_elsewhere,
    "of-no-window": is_outside_windows,
    "another-scaler": is_other_scaler_update,
    "serves-another": is_update_for_other,
}
