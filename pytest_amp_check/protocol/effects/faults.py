"""Moves gradients by the automaton, and settles the faults that this commits, but for those that something excuses."""

from __future__ import annotations

from collections.abc import Callable

from .. import automaton as a
from .. import events as e
from ..events import Event
from ..judge import Judge, Moment
from ..rules import LABELS


def move(
    judge: Judge,
    now: Moment,
    i: int,
    name: str,
    *,
    by: int = -1,
    divided: bool = True,
    held: bool = False,
    inside: str = "",
    apart: bool = False,
    partly: bool = False,
) -> None:
    """Move the gradients of optimizer ``i``, and settle the faults that nothing excuses."""
    before = now.opts[i]
    thing = judge.program.things[before.by] if before.by >= 0 else None
    in_parts = thing is not None and "framework" in thing.facts
    now.opts[i], faults = a.move(
        before, name, by=by, divided=divided, held=held, inside=inside, apart=apart, partly=partly
    )
    if name in a.ENDS and a.is_unfed(before):
        judge.idles(now.index)
    for fault in faults:
        judge.faulted = True
        label = fault
        possible = a.possible(before, name, label)
        elsewhere = [tests - set(now.event.guards) for tests in judge.restored.get(judge.opts[i], ())]
        if in_parts and (possible or (name == a.STEP and any(elsewhere))):
            continue  # what a framework does to which gradients, and when, the source tells in part
        if label == "backward@stale" and called_again(judge, now, i):
            if now.event.facts.get("outside"):
                continue  # Whoever makes the loss clears before.
            label = "backward@stale-again"
        if label == "backward@unscaled" and _unscaled_ahead(judge, now, i):
            label = "backward@unscaled-early"
        if label == "update@nothing" and _step_left_out(judge, now, i):
            label = "update@left-out"
        excuse = EXCUSES.get(LABELS[label][1].unless)
        if excuse is None or not excuse(judge, now, i):
            doubt = DOUBTS.get(LABELS[label][1].unless)
            sure = not (possible or (doubt is not None and doubt(judge, now, i)))
            judge.commit(label, now.index, i, now.here, sure=sure)
    if name in USES and before.grads in a.PERHAPS:
        for other, opt in enumerate(now.opts):
            if other != i:
                now.opts[other], _ = a.move(opt, a.TAKEN)


def _step_left_out(judge: Judge, now: Moment, i: int) -> bool:
    """Whether this path has gone past the step of scaled gradients, whose tests come out anew in each turn.

    Of several optimizers some other may be stepped wherever this one is not.
    """
    if len(judge.serves.get(now.event.subject, ())) != 1:
        return False
    backward = judge.latest(now.here, (e.BACKWARD,), i)
    if now.opts[i].grads not in a.UNDER_SCALE:
        return False
    own = [tests.difference(now.event.guards, backward.guards) for tests in judge.stepped_under.get(judge.opts[i], ())]
    return bool(own) and all(
        tests and all(judge.varying >> key & 1 and key not in judge.windows for key, _ in tests) for tests in own
    )


def called_again(judge: Judge, now: Moment, i: int) -> bool:
    """Whether the function has returned, and was called again, since the gradients were used."""
    for index in judge.path(now.here):
        event = judge.event(index)
        if event is not None and event.kind == e.AGAIN:
            return True
        if event is not None and event.kind in (e.SCALER_STEP, e.STEP) and event.object == judge.opts[i]:
            return False
    return False


def _unscaled_ahead(judge: Judge, now: Moment, i: int) -> bool:
    """Whether gradients were unscaled when the last ones were cleared or used, and no backward had run since."""
    unscaled = False
    for index in list(judge.path(now.here))[1:]:
        event = judge.event(index)
        if event is None:
            continue
        if not unscaled:
            unscaled = event.kind == e.UNSCALE and event.object == judge.opts[i]
        elif event.kind == e.BACKWARD:
            return False
        elif event.kind in (e.SCALER_STEP, e.STEP, e.ZERO_GRAD, e.OPTIMIZER_NEW):
            return True
    return False


def cleared_elsewhere(judge: Judge, now: Moment, i: int) -> bool:
    """Gradients that are left to the next backward are cleared in some place, or by code that says so."""
    key = judge.opts[i]
    facts = judge.program.things[key].facts
    hooked = bool(facts.get("hooked"))
    if judge.program.facts.get("fragment") and not facts.get("constructed"):
        return True  # What is shown is a part of something.
    zeroed = key in judge.zeroed and not _never_cleared_between(judge, now, i)
    return hooked or judge.clears_some or zeroed or key in judge.spoken[e.CLEARS] or _alike_is_cleared(judge, key)


def _alike_is_cleared(judge: Judge, key: int) -> bool:
    """Whether one is cleared that is called the same: what code only comes upon may be known to it in two ways."""
    things = judge.program.things
    found = {other for other in {key, *judge.zeroed} if not things[other].facts.get("constructed")}
    return key in found and any(things[other].name == things[key].name for other in found - {key})


def _never_cleared_between(judge: Judge, now: Moment, i: int) -> bool:
    """Whether no place that clears gradients comes between the step and the backward of a turn of their loop.

    It stands outside of that loop, or under a test that comes out otherwise wherever this backward runs.
    """
    places = judge.clearing.get(judge.opts[i])
    if places is None:
        return False
    stepping = judge.latest(now.here, (e.SCALER_STEP, e.STEP), i)
    loops = stepping.facts.get("loops", ())
    inner = [loop for loop in now.event.facts.get("loops", ()) if loop in loops][-1:]
    return not any(
        set(inner) <= set(around) and not any((key, not truth) in now.event.guards for key, truth in tests)
        for around, tests in places
    )


def out_of_view(judge: Judge, now: Moment, i: int) -> bool:
    """Code that is not in view has had an optimizer in its hands, and may have cleared its gradients all the same."""
    key = judge.opts[i]
    return not judge.program.things[key].facts.get("constructed") or key in judge.handed


def looked_at(judge: Judge, now: Moment, i: int) -> bool:
    """Whether an optimizer is stepped by itself because its gradients were found to be finite."""
    if now.event.facts.get("checked"):
        return True
    return any((of := judge.tests[key].of_gradients) is None or judge.opts[i] in of for key, _ in now.event.guards)


def one_scaler(judge: Judge, now: Moment, i: int) -> bool:
    """Unless two scalers that were seen to be made have both scaled what feeds an optimizer for certain."""
    key = judge.opts[i]
    scalers = set()
    for index in list(judge.path(now.here))[1:]:
        event = judge.event(index)
        if event is None or (event.kind == e.ZERO_GRAD and key in judge.owners(event)):
            break
        if event.kind == e.BACKWARD and key in (event.facts.get("feeds") or ()):
            if event.subject is None or not judge.program.things[event.subject].facts.get("constructed"):
                return True
            scalers.add(event.subject)
        if len(scalers) > 1:
            return False
    return True


def same_scaler(judge: Judge, now: Moment, i: int) -> bool:
    """The scaler that acts may be the one that has scaled: not both were seen to be made, by names of their own."""
    acting, scaling = (judge.program.things[key] for key in (now.subject, now.state.opts[i].by))
    made = all(thing.facts.get("constructed") and thing.site is not None for thing in (acting, scaling))
    if not judge.exact and (not made or acting.name == scaling.name):
        return True
    # Of the terms of a sum, which of two scalers have scaled, each may be the loss of one optimizer.
    return bool(judge.latest(now.here, (e.BACKWARD,), i).facts.get("several"))


def unscaled_where_live(judge: Judge, now: Moment, i: int) -> bool:
    """A flag that this path took to be off decides about ``unscale_``, and may decide about the scaler itself."""
    by = now.state.opts[i].by
    facts = judge.program.things[by].facts if by >= 0 else {}
    if facts.get("constructed") and facts.get("enabled", True) is True:
        return False
    return any(test not in now.event.guards for test in judge.unscaled_under(i))


def divided_elsewhere(judge: Judge, now: Moment, i: int) -> bool:
    facts = judge.program.things[judge.opts[i]].facts
    if facts.get("divided") or judge.program.facts.get("averaged"):
        return True
    fed = judge.latest(now.here, (e.BACKWARD,), i)
    # What is shown is a part of something, and how the loss was made is in another.
    apart = bool(judge.program.facts.get("fragment")) and bool(fed.facts.get("vague"))
    return apart or _runs_once(judge, fed)


def _runs_once(judge: Judge, backward: Event) -> bool:
    """Whether a loss has its backward at the end of windows alone: what runs at each micro-batch is another's loss."""
    ends = {(key, truth) for key, truth in backward.guards if judge.windows.get(key) is truth}
    others = {guard for event in judge.program.events() if event.kind == e.BACKWARD for guard in event.guards}
    return any((key, not truth) not in others for key, truth in ends)


def of_no_window(judge: Judge, now: Moment, i: int) -> bool:
    """What is cleared is of no window.

    An earlier loop has left it, or another optimizer's loss, which it has used; or it is kept elsewhere until the step.
    """
    if judge.opts[i] in judge.given:
        return True
    backward = judge.latest(now.here, (e.BACKWARD,), i)
    if _another_steps_after(judge, now, i, backward):
        return True
    return bool(backward.facts.get("loops")) and backward.facts["loops"][-1] not in now.event.facts.get("loops", ())


def _another_steps_after(judge: Judge, now: Moment, i: int, backward: Event) -> bool:
    for index in judge.path(now.here):
        event = judge.event(index)
        if event is backward:
            return False
        if event is not None and event.kind in (e.SCALER_STEP, e.STEP) and event.object != judge.opts[i]:
            return True
    return False


def another_scaler(judge: Judge, now: Moment, i: int) -> bool:
    """Another scaler's backward is not known to have reached what this one steps."""
    return judge.latest(now.here, (e.UPDATE,), i).subject != now.event.subject


def serves_another(judge: Judge, now: Moment, i: int) -> bool:
    """An update is that of another optimizer, which the same scaler has stepped, and which has a window of its own."""
    opts = enumerate(now.state.opts)
    return any(j != i and opt.stage == a.STAGE_STEPPED and opt.by == now.subject for j, opt in opts)


#: Inputs by which an optimizer uses the gradients that it has.
USES = frozenset({a.UNSCALE, a.SCALER_STEP, a.STEP, a.RESTORE})
#: What makes a fault a possible one, by the name of what would excuse it.
DOUBTS: dict[str, Callable[[Judge, Moment, int], bool]] = {"cleared-elsewhere": out_of_view}
#: What excuses a fault, by the name that faults give it (:attr:`~..rule.Fault.unless`).
EXCUSES: dict[str, Callable[[Judge, Moment, int], bool]] = {
    "cleared-elsewhere": cleared_elsewhere,
    "finite": looked_at,
    "one-scaler": one_scaler,
    "same-scaler": same_scaler,
    "unscaled-where-live": unscaled_where_live,
    "divided-elsewhere": divided_elsewhere,
    "of-no-window": of_no_window,
    "another-scaler": another_scaler,
    "serves-another": serves_another,
}
