"""Moves gradients by the automaton, and settles the faults that this commits, but for those that something excuses."""

from __future__ import annotations

from collections.abc import Callable

from .. import automaton as a
from .. import events as e
from ..checker import Checker, EventContext
from ..events import Event
from ..rules import LABELS


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
    """Move the gradients of optimizer ``i``, and settle the faults that nothing excuses."""
    before = ctx.optimizer_states[i]
    scaler = checker.program.objects[before.scaler_key] if before.scaler_key >= 0 else None
    in_parts = scaler is not None and "framework" in scaler.attributes
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
            continue  # what a framework does to which gradients, and when, the source tells in part
        if label == "backward@stale" and was_called_again(checker, ctx, i):
            if ctx.event.attributes.get("outside"):
                continue  # Whoever makes the loss clears before.
            label = "backward@stale-again"
        if label == "backward@unscaled" and _is_unscaled_early(checker, ctx, i):
            label = "backward@unscaled-early"
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
    """Whether this path has gone past the step of scaled gradients, whose tests come out anew in each turn.

    Of several optimizers some other may be stepped wherever this one is not.
    """
    if len(checker.served_optimizers.get(ctx.event.subject, ())) != 1:
        return False
    backward = checker.find_last_event(ctx.point, (e.BACKWARD,), i)
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
    """Whether the function has returned, and was called again, since the gradients were used."""
    for index in checker.walk_back(ctx.point):
        event = checker.event_at(index)
        if event is not None and event.kind == e.AGAIN:
            return True
        if event is not None and event.kind in (e.SCALER_STEP, e.STEP) and event.object == checker.optimizer_keys[i]:
            return False
    return False


def _is_unscaled_early(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Whether gradients were unscaled when the last ones were cleared or used, and no backward had run since."""
    unscaled = False
    for index in list(checker.walk_back(ctx.point))[1:]:
        event = checker.event_at(index)
        if event is None:
            continue
        if not unscaled:
            unscaled = event.kind == e.UNSCALE and event.object == checker.optimizer_keys[i]
        elif event.kind == e.BACKWARD:
            return False
        elif event.kind in (e.SCALER_STEP, e.STEP, e.ZERO_GRAD, e.OPTIMIZER_NEW):
            return True
    return False


def is_cleared_elsewhere(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Gradients that are left to the next backward are cleared in some place, or by code that says so."""
    key = checker.optimizer_keys[i]
    facts = checker.program.objects[key].attributes
    hooked = bool(facts.get("hooked"))
    if checker.program.attributes.get("fragment") and not facts.get("constructed"):
        return True  # What is shown is a part of something.
    zeroed = key in checker.zeroed_optimizers and not _is_never_cleared_between(checker, ctx, i)
    return (
        hooked
        or checker.clears_unknown_grads
        or zeroed
        or key in checker.escape_effects[e.CLEARS]
        or _is_alias_cleared(checker, key)
    )


def _is_alias_cleared(checker: Checker, key: int) -> bool:
    """Whether one is cleared that is called the same: what code only comes upon may be known to it in two ways."""
    things = checker.program.objects
    found = {other for other in {key, *checker.zeroed_optimizers} if not things[other].attributes.get("constructed")}
    return key in found and any(things[other].name == things[key].name for other in found - {key})


def _is_never_cleared_between(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Whether no place that clears gradients comes between the step and the backward of a turn of their loop.

    It stands outside of that loop, or under a test that comes out otherwise wherever this backward runs.
    """
    places = checker.clearing_sites.get(checker.optimizer_keys[i])
    if places is None:
        return False
    stepping = checker.find_last_event(ctx.point, (e.SCALER_STEP, e.STEP), i)
    loops = stepping.attributes.get("loops", ())
    inner = [loop for loop in ctx.event.attributes.get("loops", ()) if loop in loops][-1:]
    return not any(
        set(inner) <= set(around) and not any((key, not truth) in ctx.event.guards for key, truth in tests)
        for around, tests in places
    )


def may_be_cleared_unseen(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Code that is not in view has had an optimizer in its hands, and may have cleared its gradients all the same."""
    key = checker.optimizer_keys[i]
    return not checker.program.objects[key].attributes.get("constructed") or key in checker.escaped_objects


def is_checked_finite(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Whether an optimizer is stepped by itself because its gradients were found to be finite."""
    if ctx.event.attributes.get("checked"):
        return True
    return any(
        (of := checker.predicates[key].checked_optimizers) is None or checker.optimizer_keys[i] in of
        for key, _ in ctx.event.guards
    )


def has_one_scaler(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Unless two scalers that were seen to be made have both scaled what feeds an optimizer for certain."""
    key = checker.optimizer_keys[i]
    scalers = set()
    for index in list(checker.walk_back(ctx.point))[1:]:
        event = checker.event_at(index)
        if event is None or (event.kind == e.ZERO_GRAD and key in checker.owner_keys(event)):
            break
        if event.kind == e.BACKWARD and key in (event.attributes.get("feeds") or ()):
            if event.subject is None or not checker.program.objects[event.subject].attributes.get("constructed"):
                return True
            scalers.add(event.subject)
        if len(scalers) > 1:
            return False
    return True


def may_be_same_scaler(checker: Checker, ctx: EventContext, i: int) -> bool:
    """The scaler that acts may be the one that has scaled: not both were seen to be made, by names of their own."""
    acting, scaling = (
        checker.program.objects[key] for key in (ctx.subject_key, ctx.state.optimizer_states[i].scaler_key)
    )
    are_constructed = all(
        scaler.attributes.get("constructed") and scaler.site is not None for scaler in (acting, scaling)
    )
    if not checker.has_exact_identity and (not are_constructed or acting.name == scaling.name):
        return True
    # Of the terms of a sum, which of two scalers have scaled, each may be the loss of one optimizer.
    return bool(checker.find_last_event(ctx.point, (e.BACKWARD,), i).attributes.get("several"))


def is_unscaled_if_live(checker: Checker, ctx: EventContext, i: int) -> bool:
    """A flag that this path took to be off decides about ``unscale_``, and may decide about the scaler itself."""
    scaler_key = ctx.state.optimizer_states[i].scaler_key
    facts = checker.program.objects[scaler_key].attributes if scaler_key >= 0 else {}
    if facts.get("constructed") and facts.get("enabled", True) is True:
        return False
    return any(test not in ctx.event.guards for test in checker.find_unscale_guards(i))


def is_divided_elsewhere(checker: Checker, ctx: EventContext, i: int) -> bool:
    facts = checker.program.objects[checker.optimizer_keys[i]].attributes
    if facts.get("divided") or checker.program.attributes.get("averaged"):
        return True
    fed = checker.find_last_event(ctx.point, (e.BACKWARD,), i)
    # What is shown is a part of something, and how the loss was made is in another.
    is_fragment = bool(checker.program.attributes.get("fragment")) and bool(fed.attributes.get("vague"))
    return is_fragment or _runs_once_per_window(checker, fed)


def _runs_once_per_window(checker: Checker, backward: Event) -> bool:
    """Whether a loss has its backward at the end of windows alone: what runs at each micro-batch is another's loss."""
    ends = {(key, truth) for key, truth in backward.guards if checker.window_predicates.get(key) is truth}
    others = {guard for event in checker.program.iter_events() if event.kind == e.BACKWARD for guard in event.guards}
    return any((key, not truth) not in others for key, truth in ends)


def is_outside_windows(checker: Checker, ctx: EventContext, i: int) -> bool:
    """What is cleared is of no window.

    An earlier loop has left it, or another optimizer's loss, which it has used; or it is kept elsewhere until the step.
    """
    if checker.optimizer_keys[i] in checker.assigned_optimizers:
        return True
    backward = checker.find_last_event(ctx.point, (e.BACKWARD,), i)
    if _has_other_step_after(checker, ctx, i, backward):
        return True
    return bool(backward.attributes.get("loops")) and backward.attributes["loops"][-1] not in ctx.event.attributes.get(
        "loops", ()
    )


def _has_other_step_after(checker: Checker, ctx: EventContext, i: int, backward: Event) -> bool:
    for index in checker.walk_back(ctx.point):
        event = checker.event_at(index)
        if event is backward:
            return False
        if event is not None and event.kind in (e.SCALER_STEP, e.STEP) and event.object != checker.optimizer_keys[i]:
            return True
    return False


def is_other_scaler_update(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Another scaler's backward is not known to have reached what this one steps."""
    return checker.find_last_event(ctx.point, (e.UPDATE,), i).subject != ctx.event.subject


def is_update_for_other(checker: Checker, ctx: EventContext, i: int) -> bool:
    """An update is that of another optimizer, which the same scaler has stepped, and which has a window of its own."""
    opts = enumerate(ctx.state.optimizer_states)
    return any(j != i and opt.stage == a.STAGE_STEPPED and opt.scaler_key == ctx.subject_key for j, opt in opts)


#: Inputs by which an optimizer uses the gradients that it has.
USES = frozenset({a.UNSCALE, a.SCALER_STEP, a.STEP, a.RESTORE})
#: What makes a fault a possible one, by the name of what would excuse it.
DOUBTS: dict[str, Callable[[Checker, EventContext, int], bool]] = {"cleared-elsewhere": may_be_cleared_unseen}
#: What excuses a fault, by the name that faults give it (:attr:`~..rule.Fault.unless`).
EXCUSES: dict[str, Callable[[Checker, EventContext, int], bool]] = {
    "cleared-elsewhere": is_cleared_elsewhere,
    "finite": is_checked_finite,
    "one-scaler": has_one_scaler,
    "same-scaler": may_be_same_scaler,
    "unscaled-where-live": is_unscaled_if_live,
    "divided-elsewhere": is_divided_elsewhere,
    "of-no-window": is_outside_windows,
    "another-scaler": is_other_scaler_update,
    "serves-another": is_update_for_other,
}
