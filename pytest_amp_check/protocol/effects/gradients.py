"""Gradients: what feeds, clips, edits, clears and uses them, with and without a scaler."""

from __future__ import annotations

from .. import automaton as a
from .. import events as e
from ..events import Event, Site
from ..judge import Here, Judge, Moment, State
from .faults import move
from .regions import in_region

#: Kind of event -> the input that it is to the automaton.
BY_HAND = {e.GRAD_READ: a.READ, e.GRAD_EDIT: a.EDIT, e.GRAD_DIVIDE: a.DIVIDE}


def backward(judge: Judge, now: Moment) -> State:
    event = now.event
    twice(judge, now)
    in_region(judge, now)
    if event.facts.get("uneven"):
        judge.faulted = True
        judge.blame("backward@uneven", now.index, now.index, now.here)
    feed(judge, now)
    return now.after()


def feed(judge: Judge, now: Moment) -> None:
    """A backward adds gradients to those of the optimizers that it reaches."""
    for i in judge.fed_before(now.event):
        # The same backward again, and no step in between: an accumulation window is open.
        move(judge, now, i, a.HOLD)
    facts = now.event.facts
    held = judge.held(now.state)
    feeds = facts.get("feeds")
    sole = judge.sole if feeds is None else frozenset()
    certain = len(now.opts) == 1 or feeds is not None or bool(sole)
    averaged = certain and _averages(now.event, now.state)
    served = judge.serves.get(now.subject, ())
    kinds = (a.BACKWARD_SCALED, a.MAYBE_SCALED) if now.subject >= 0 else (a.BACKWARD_RAW, a.MAYBE_RAW)
    if facts.get("opaque") or (facts.get("given") and judge.program.facts.get("scales_apart")):
        kinds = (a.HANDOFF, a.HANDOFF)
    for i, key in enumerate(judge.opts):
        if (feeds is not None and key not in feeds) or (sole and i not in sole):
            continue
        if averaged:
            averaged_early(judge, now, i)
        # A scaler that serves one optimizer alone is used for the losses that feed it.
        sure = certain or (now.subject >= 0 and len(served) == 1 and i in served)
        move(
            judge,
            now,
            i,
            kinds[not sure],
            by=now.subject,
            divided=bool(facts.get("divided")),
            held=i in held,
            inside=facts.get("inside", "") if key in judge.stepped else "",
            apart=bool(facts.get("apart")),
        )


def averaged_early(judge: Judge, now: Moment, i: int) -> None:
    """A backward adds to gradients that the one before it, in the same window, has averaged over processes."""
    opt = now.opts[i]
    if opt.apart or opt.grads not in a.PENDING or not (opt.held or opt.inside == e.MICRO):
        return
    if _averages(judge.latest(now.here, (e.BACKWARD,), i), now.state):
        judge.commit("backward@averaged", now.index, i, now.here)


def step(judge: Judge, now: Moment) -> State:
    in_region(judge, now)
    if now.event.object in judge.index:
        step_counts(judge, now)
        move(judge, now, judge.index[now.event.object], a.STEP)
    return now.after()


def step_counts(judge: Judge, now: Moment) -> None:
    """Note the windows that a step ends."""
    event = now.event
    if event.object is not None and now.opts[judge.index[event.object]].many:
        judge.accumulates.update(key for key, _ in event.guards if key in judge.windows)


def clip(judge: Judge, now: Moment) -> State:
    facts = now.event.facts
    indexes = touched(judge, now)
    partly = facts.get("owners") is not None and any(now.opts[i].grads == a.UNSCALED for i in indexes)
    late = [i for i in indexes if now.opts[i].grads == a.STEPPED]
    if late and len(late) == len(indexes) and not (facts.get("measures_only") or facts.get("undone")):
        judge.commit("clip@stepped", now.index, late[0], now.here)
    for i in indexes:
        if facts.get("nonfinite_error") and now.opts[i].grads == a.UNSCALED:
            judge.commit("clip-nonfinite", now.index, i, now.here)
        if facts.get("undone"):
            continue
        if facts.get("measures_only"):
            move(judge, now, i, a.READ)
        else:
            move(judge, now, i, a.CLIP, partly=partly)
    return now.after()


def by_hand(judge: Judge, now: Moment) -> State:
    """Gradients are read, edited or divided by the loss scale, without a function of torch for it."""
    for i in touched(judge, now) if not now.event.facts.get("undone") else ():
        move(judge, now, i, BY_HAND[now.event.kind])
    return now.after()


def checked(judge: Judge, now: Moment) -> State:
    """Gradients are looked through for what is not finite, which those of a dynamic loss scale hold now and then."""
    for i in touched(judge, now):
        opt = now.opts[i]
        if now.event.facts["raises"] and opt.by >= 0 and opt.grads in (a.SCALED, a.UNSCALED, a.STEPPED):
            judge.commit("raise-nonfinite", now.index, i, now.here)
        if opt.grads not in a.UNDER_SCALE:  # a scale changes nothing about it
            move(judge, now, i, a.READ)
    return now.after()


def touched(judge: Judge, now: Moment) -> list[int]:
    """Indexes of the optimizers whose gradients an event touches.

    Where the event does not say whose they are, and one optimizer is unscaled, they are taken to be that one's; so
    they are of what was stepped, where they are read alone.
    """
    opts, owners = now.opts, now.event.facts.get("owners")
    if owners is not None:
        return [judge.index[key] for key in owners if key in judge.index]
    free = (a.UNSCALED, a.STEPPED) if now.event.kind == e.GRAD_READ else (a.UNSCALED,)
    unscaled = [i for i, opt in enumerate(opts) if opt.grads in free]
    return unscaled or list(range(len(opts)))


def normalise(judge: Judge, now: Moment) -> State:
    now.opts = [opt._replace(undivided=False) for opt in now.opts]
    return now.after()


def average(judge: Judge, now: Moment) -> State:
    now.opts = [opt._replace(apart=False) for opt in now.opts]
    return now.after()


def zero(judge: Judge, now: Moment) -> State:
    event = now.event
    cleared = [judge.index[key] for key in judge.owners(event)]
    counted = any(judge.tests[key].counts for key, _ in event.guards)
    open_window = any(now.opts[i].held or now.opts[i].inside for i in cleared)
    lost = any(now.opts[i].grads in a.UNUSED for i in cleared)
    given_up = (open_window or lost) and rescues(judge, event, now.here)
    apart = open_window and (counted or given_up)
    for i in cleared:
        if apart:
            # Zeroed on a schedule of its own, which is the window's, or given up on purpose.
            now.opts[i] = now.opts[i]._replace(held=False, inside="")
        move(judge, now, i, a.ZERO)
        if given_up:
            # The step that follows is meant to find nothing: it ends the turn for the scaler.
            now.opts[i] = now.opts[i]._replace(discarded=False)
    return now.after()


def rescues(judge: Judge, event: Event, here: Here) -> bool:
    """Whether gradients are cleared where something went wrong: under a test under which nothing runs backward."""
    if event.facts.get("rescue"):
        return True
    around = [(key, truth) for key, truth in event.guards if key not in judge.windows]
    if not around:
        return False
    fed = next((x for i in judge.path(here) if (x := judge.event(i)) is not None and x.kind == e.BACKWARD), None)
    return fed is not None and not set(fed.guards).issuperset(around)


def optimizer_made(judge: Judge, now: Moment) -> State:
    event = now.event
    if event.subject in judge.index:
        i = judge.index[event.subject]
        if event.facts.get("found"):
            # What a framework hands out has been there before.
            now.opts[i] = now.opts[i] if "several" in judge.program.things[event.subject].facts else a.Opt()
        else:
            move(judge, now, i, a.NEW)
    if not event.facts.get("found"):
        # An optimizer of a list, or one of the same parameters, is or becomes the one that is constructed here.
        things = judge.program.things
        parameters = things[event.subject].facts.get("owns") if event.subject is not None else None
        for i, opt in enumerate(now.opts):
            facts = things[judge.opts[i]].facts
            is_other = facts.get("constructed") and not (parameters or frozenset()) & (facts.get("owns") or frozenset())
            if opt.veteran and not is_other:
                now.opts[i] = opt._replace(veteran=False)
    return now.after()


def hand_off(judge: Judge, now: Moment) -> State:
    if not now.event.facts.get("about", e.MATTERS):
        return now.state
    things = now.event.facts.get("things", ())
    handed = [i for i, opt in enumerate(now.opts) if judge.opts[i] in things or (opt.by >= 0 and opt.by in things)]
    for i in handed:
        move(judge, now, i, a.HANDOFF)
    return now.after()


def loop_exit(judge: Judge, now: Moment) -> State:
    facts = now.event.facts
    if not facts.get("complete"):
        now.opts = [opt._replace(held=False, many=False) for opt in now.opts]
    elif not facts.get("within"):
        now.opts = [opt._replace(inside="") for opt in now.opts]
    return now.after()


def again(judge: Judge, now: Moment) -> State:
    # Other code has run in between; only an open accumulation window is meant to last, and what nobody clears.
    kept = now.event.facts.get("uncleared", False)
    opts = []
    for opt in now.opts:
        if (opt.held or opt.inside == e.LOOSE) and opt.grads in a.PENDING:
            opts.append(opt)
        else:
            opts.append(a.Opt(a.STEPPED, by=opt.by) if kept and opt.grads == a.STEPPED else a.Opt())
    return State(now.state.known, now.state.truth, (), tuple(opts), 0, 0, -1)


def end(judge: Judge, now: Moment) -> State:
    for i, opt in enumerate(now.opts):
        if judge.left_stepped(opt):
            judge.commit("end@stepped", now.index, i, now.here, sure=opt.by not in judge.handed)
    return now.state


def schedule(judge: Judge, now: Moment) -> State:
    """A scheduler of which the source is read moves: beside the step that a scaler may skip, or inside a window."""
    event, loops = now.event, now.event.facts.get("loops")
    if event.object not in judge.index or loops is None:
        return now.state
    i = judge.index[event.object]
    opt = now.opts[i]
    if (opt.held or opt.inside) and opt.grads in a.PENDING:
        if judge.latest(now.here, (e.BACKWARD,), i).facts.get("loops") == loops:
            judge.blame("scheduler:micro-batch", now.index, now.index, now.here)
    elif _goes_on(judge, now, i):
        judge.blame("scheduler:skipped", now.index, now.index, now.here)
    return now.state


def average_weights(judge: Judge, now: Moment) -> State:
    """An average of the weights of which the source is read takes them in: beside the step that a scaler may skip."""
    event = now.event
    trained = judge.index.get(event.object) if event.object is not None else None
    if trained is not None and event.facts.get("loops") is not None and _goes_on(judge, now, trained):
        judge.blame("average:skipped", now.index, now.index, now.here)
    return now.state


def _goes_on(judge: Judge, now: Moment, i: int) -> bool:
    """Whether what goes with a step is done where the scaler has skipped it, too."""
    if now.opts[i].grads not in (a.STEPPED, a.CLEAN) or judge.asks_scale:
        return False
    return _follows(now.event, judge.latest(now.here, (e.SCALER_STEP,), i))


def _averages(event: Event, state: State) -> bool:
    """Whether a backward averages the gradients over processes, as far as is known of the tests that decide it."""
    tests = event.facts.get("averaged")
    if tests is None or event.facts.get("apart"):
        return False
    known = {(key, bool(state.truth & (1 << key))) for key, _ in tests if state.known & (1 << key)}
    return not any((key, not truth) in known or (key, not truth) in event.guards for key, truth in tests)


def _follows(event: Event, step: Event) -> bool:
    """Whether something is done beside each step of a scaler of the program's own, whatever became of that."""
    return (
        step.kind == e.SCALER_STEP
        and "framework" not in step.facts
        and step.facts.get("loops") == event.facts["loops"]
        and (_beside(step.site, event.site) or _beside(event.site, step.site))
        and set(event.guards) <= set(step.guards)
    )


def _beside(site: Site, other: Site) -> bool:
    """Whether the function in which a place lies holds another place too, or calls what holds it."""
    return any((each.function, each.caller) == (site.function, site.caller) for each in other.frames())


def twice(judge: Judge, now: Moment) -> State:
    """A loss is scaled that a scaler has scaled before."""
    if now.event.facts.get("twice"):
        judge.blame("scale@scaled", now.index, now.index, now.here)
    return now.state
