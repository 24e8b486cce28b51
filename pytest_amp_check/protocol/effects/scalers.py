"""Scalers: what they are made from, what they unscale and step, and what becomes of their scale."""

from __future__ import annotations

from .. import automaton as a
from .. import events as e
from ..judge import Judge, Moment, State
from .faults import move
from .gradients import step_counts
from .regions import in_region

#: What gradients become where the program sets the scale itself.
OF_ANOTHER_SCALE = {a.UNSCALED: a.LAPSED, a.SCALED: a.OUTDATED, a.FED: a.AGED}


def scaler_made(judge: Judge, now: Moment) -> State:
    # A new one knows nothing of what the one before has unscaled.
    now.opts = [opt._replace(stage=a.READY) if opt.by == now.subject else opt for opt in now.opts]
    state, bit = now.after(), judge.scaler_bit.get(now.subject, 0)
    return state._replace(renewed=state.renewed | bit) if state.used & bit else state


def scaler_loaded(judge: Judge, now: Moment) -> State:
    state, bit = now.state, judge.scaler_bit.get(now.subject, 0)
    return state._replace(renewed=state.renewed & ~bit)


def scaler_saved(judge: Judge, now: Moment) -> State:
    if any(opt.stage == a.STAGE_STEPPED and opt.by == now.subject for opt in now.opts):
        judge.commit("state@stepped", now.index, 0, now.here)
    return now.state


def update(judge: Judge, now: Moment) -> State:
    opts, scaler = now.opts, now.subject
    if judge.complete(now.event, now.state):
        # What the iterations before have gathered is complete, even where this one adds nothing to it.
        opts[:] = [opt._replace(held=False) for opt in opts]
    mine = [i for i, opt in enumerate(opts) if opt.by in (scaler, -1)]
    if now.event.facts.get("new_scale"):
        for i in mine:
            opts[i] = opts[i]._replace(grads=OF_ANOTHER_SCALE.get(opts[i].grads, opts[i].grads), stage=a.READY)
    else:
        recorded = any(opts[i].stage != a.READY for i in mine)
        for i in mine:
            move(judge, now, i, a.UPDATE if recorded else a.UPDATE_ALONE)
    return now.after()


def unscale(judge: Judge, now: Moment) -> State:
    event = now.event
    if event.object in judge.index:
        i = judge.index[event.object]
        if "framework" not in event.facts:
            move(judge, now, i, a.UNSCALE, by=now.subject)
            borrow(judge, now, i)
        elif has_scaled(judge, now, i) and now.opts[i].stage != a.STAGE_UNSCALED:
            move(judge, now, i, a.UNSCALE, by=now.subject)
    return now.after()


def scaler_step(judge: Judge, now: Moment) -> State:
    in_region(judge, now)
    event = now.event
    if event.object in judge.index:
        i = judge.index[event.object]
        if "framework" in event.facts:
            step_counts(judge, now)
            framework_step(judge, now, i)
        else:
            state, bit = now.state, judge.scaler_bit.get(now.subject, 0)
            if state.renewed & bit and now.opts[i].veteran:
                judge.commit("new@used", now.index, i, now.here)
            now.state = state._replace(used=state.used | bit, renewed=state.renewed & ~bit)
            step_counts(judge, now)
            move(judge, now, i, a.SCALER_STEP, by=now.subject)
            borrow(judge, now, i)
    return now.after()


def borrow(judge: Judge, now: Moment, i: int) -> None:
    """Optimizers that share parameters with one that is unscaled, or stepped, have these unscaled with it."""
    if now.event.facts.get("unscales", True):
        for key in judge.program.things[judge.opts[i]].facts.get("shares", ()):
            if key in judge.index:
                move(judge, now, judge.index[key], a.BORROW)


def has_scaled(judge: Judge, now: Moment, i: int) -> bool:
    """Whether the scaler that acts has scaled what optimizer ``i`` holds."""
    return now.opts[i].by == now.subject and now.opts[i].grads in a.UNDER_SCALE


def framework_step(judge: Judge, now: Moment, i: int) -> None:
    """What a framework does to one optimizer: it unscales what it has scaled, steps, and updates the scale.

    Where it is not known that the framework steps this optimizer, it is taken to do so with what it has scaled.
    """
    opt = now.opts[i]
    own = has_scaled(judge, now, i) or (opt.by == now.subject and opt.grads == a.UNSCALED)
    if now.event.facts["framework"] or own:
        move(judge, now, i, a.SCALER_STEP, by=now.subject)
        move(judge, now, i, a.UPDATE)
        for j, other in enumerate(now.opts):
            # One scaler is there for all optimizers of the framework, and it has just been updated.
            if j == i or other.by != now.subject:
                continue
            if own and other.grads == a.SCALED and _are_two(judge, i, j) and _fed_alone(judge, now, j):
                move(judge, now, j, a.UPDATE)
            elif other.stage == a.STAGE_UNSCALED:
                # It forgets with it that it has unscaled the gradients of others.
                now.opts[j] = other._replace(grads=a.UNKNOWN, stage=a.READY)
    else:
        move(judge, now, i, a.STEP if opt.grads == a.RAW else a.HANDOFF)


def _fed_alone(judge: Judge, now: Moment, j: int) -> bool:
    """Whether what waits in optimizer ``j`` is for its own step: the last backward that fed it has fed no other one."""
    return bool(judge.latest(now.here, (e.BACKWARD,), j).facts.get("feeds") == (judge.opts[j],))


def _are_two(judge: Judge, i: int, j: int) -> bool:
    """Whether two optimizers are known to be two, and neither one by two names nor one or the other.

    Both were seen to be made, of the parameters of different modules.
    """
    facts = [judge.program.things[judge.opts[k]].facts for k in (i, j)]
    one, other = (frozenset(each.get("owns") or ()) if each.get("constructed") else frozenset() for each in facts)
    return bool(one and other) and one.isdisjoint(other)


def restore(judge: Judge, now: Moment) -> State:
    for key in judge.owners(now.event):
        if now.opts[judge.index[key]].by == now.subject:
            move(judge, now, judge.index[key], a.RESTORE)
    return now.after()
