"""Effects of scaler events: construction, unscale, step, update, and changes of the scale."""

from __future__ import annotations

from .. import automaton as a
from .. import events as e
from ..checker import Checker, EventContext, PathState
from .gradients import check_leftover_grads, note_window_steps
from .regions import check_in_region
from .violations import apply_transition

#: New gradient state after the program sets the scale itself.
OF_ANOTHER_SCALE = {a.UNSCALED: a.LAPSED, a.SCALED: a.OUTDATED, a.FED: a.AGED}


def apply_scaler_new(checker: Checker, ctx: EventContext, event: e.ScalerNew) -> PathState:
    if event.is_lazy:
        return ctx.next_state()
    # A new scaler has no record of the gradients that the old scaler unscaled.
    ctx.optimizer_states = [
        opt._replace(stage=a.READY) if opt.scaler_key == ctx.subject_key else opt for opt in ctx.optimizer_states
    ]
    state, bit = ctx.next_state(), checker.scaler_bits.get(ctx.subject_key, 0)
    return state._replace(recreated_scalers=state.recreated_scalers | bit) if state.used_scalers & bit else state


def apply_scaler_load(checker: Checker, ctx: EventContext, event: e.ScalerLoad) -> PathState:
    state, bit = ctx.state, checker.scaler_bits.get(ctx.subject_key, 0)
    return state._replace(recreated_scalers=state.recreated_scalers & ~bit)


def check_scaler_state(checker: Checker, ctx: EventContext, event: e.ScalerState) -> PathState:
    if any(opt.stage == a.STAGE_STEPPED and opt.scaler_key == ctx.subject_key for opt in ctx.optimizer_states):
        checker.resolve_cause("state@stepped", ctx.index, 0, ctx.point)
    return ctx.state


def apply_update(checker: Checker, ctx: EventContext, event: e.Update) -> PathState:
    opts = ctx.optimizer_states
    if checker.is_window_end(event, ctx.state):
        # The gradients of earlier iterations are complete, even if this iteration adds nothing.
        opts[:] = [opt._replace(window_open=False) for opt in opts]
    mine = [i for i in range(len(opts)) if _has_record(checker, ctx, i)]
    if event.new_scale:
        for i in mine:
            opts[i] = opts[i]._replace(grads=OF_ANOTHER_SCALE.get(opts[i].grads, opts[i].grads), stage=a.READY)
    else:
        recorded = any(opts[i].stage != a.READY for i in mine)
        for i in mine:
            apply_transition(checker, ctx, i, a.UPDATE if recorded else a.UPDATE_ALONE)
    return ctx.next_state()


def _has_record(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return True if the acting scaler may have a record of an optimizer.

    Another scaler may have scaled a loss since the step of the optimizer, and have no record.
    """
    opt = ctx.optimizer_states[i]
    if opt.stage == a.STAGE_STEPPED and len(checker.scaler_bits) > 1:
        return checker.find_last_event(ctx.point, (e.ScalerStep,), i).subject == ctx.subject_key
    return opt.scaler_key in (ctx.subject_key, -1)


def apply_unscale(checker: Checker, ctx: EventContext, event: e.Unscale) -> PathState:
    if event.object in checker.optimizer_index:
        i = checker.optimizer_index[event.object]
        if event.framework is None:
            apply_transition(checker, ctx, i, a.UNSCALE, scaler_key=ctx.subject_key)
            apply_to_shared_params(checker, ctx, i)
        elif has_scaled(checker, ctx, i) and ctx.optimizer_states[i].stage != a.STAGE_UNSCALED:
            apply_transition(checker, ctx, i, a.UNSCALE, scaler_key=ctx.subject_key)
    return ctx.next_state()


def apply_scaler_step(checker: Checker, ctx: EventContext, event: e.ScalerStep) -> PathState:
    check_in_region(checker, ctx)
    if event.object in checker.optimizer_index:
        i = checker.optimizer_index[event.object]
        check_leftover_grads(checker, ctx, i)
        if event.framework is not None:
            note_window_steps(checker, ctx)
            apply_framework_step(checker, ctx, i, is_certain=bool(event.framework))
        else:
            state, bit = ctx.state, checker.scaler_bits.get(ctx.subject_key, 0)
            if state.recreated_scalers & bit and ctx.optimizer_states[i].stepped_before:
                checker.resolve_cause("new@used", ctx.index, i, ctx.point)
            ctx.state = state._replace(
                used_scalers=state.used_scalers | bit, recreated_scalers=state.recreated_scalers & ~bit
            )
            note_window_steps(checker, ctx)
            apply_transition(checker, ctx, i, a.SCALER_STEP, scaler_key=ctx.subject_key)
            if event.unscales:
                apply_to_shared_params(checker, ctx, i)
    return ctx.next_state()


def apply_to_shared_params(checker: Checker, ctx: EventContext, i: int) -> None:
    """Mark optimizers as unscaled that share parameters with the unscaled or stepped optimizer."""
    for key in checker.program.objects[checker.optimizer_keys[i]].attributes.shares or ():
        if key in checker.optimizer_index:
            apply_transition(checker, ctx, checker.optimizer_index[key], a.BORROW)


def has_scaled(checker: Checker, ctx: EventContext, i: int) -> bool:
    """Return True if the acting scaler scaled the gradients of optimizer ``i``."""
    return ctx.optimizer_states[i].scaler_key == ctx.subject_key and ctx.optimizer_states[i].grads in a.UNDER_SCALE


def apply_framework_step(checker: Checker, ctx: EventContext, i: int, *, is_certain: bool) -> None:
    """Apply the step of a framework to one optimizer: unscale, step, and update the scale.

    If the stepped optimizer is unknown, the framework is assumed to step the optimizers with gradients scaled by the
    framework.
    """
    opt = ctx.optimizer_states[i]
    own = has_scaled(checker, ctx, i) or (opt.scaler_key == ctx.subject_key and opt.grads == a.UNSCALED)
    if is_certain or own:
        apply_transition(checker, ctx, i, a.SCALER_STEP, scaler_key=ctx.subject_key)
        apply_transition(checker, ctx, i, a.UPDATE)
        for j, other in enumerate(ctx.optimizer_states):
            # The framework has one scaler for all optimizers, and this scaler was just updated.
            if j == i or other.scaler_key != ctx.subject_key:
                continue
            if own and other.grads == a.SCALED and _are_distinct(checker, i, j) and _has_own_backward(checker, ctx, j):
                apply_transition(checker, ctx, j, a.UPDATE)
            elif other.stage == a.STAGE_UNSCALED:
                # The update also clears the scaler's record of unscaled gradients.
                ctx.optimizer_states[j] = other._replace(grads=a.UNKNOWN, stage=a.READY)
    else:
        apply_transition(checker, ctx, i, a.STEP if opt.grads == a.RAW else a.HANDOFF)


def _has_own_backward(checker: Checker, ctx: EventContext, j: int) -> bool:
    """Return True if the last backward into optimizer ``j`` reached no other optimizer."""
    backward = checker.find_last_event(ctx.point, (e.Backward,), j)
    return isinstance(backward, e.Backward) and backward.feeds == (checker.optimizer_keys[j],)


def _are_distinct(checker: Checker, i: int, j: int) -> bool:
    """Return True if two optimizers are known to be different objects.

    Both constructions must be known, with the parameters of different modules.
    """
    facts = [checker.program.objects[checker.optimizer_keys[k]].attributes for k in (i, j)]
    one, other = (frozenset(each.owns or ()) if each.constructed else frozenset() for each in facts)
    return bool(one and other) and one.isdisjoint(other)


def apply_restore(checker: Checker, ctx: EventContext, event: e.Restore) -> PathState:
    for key in checker.owner_keys(event):
        if ctx.optimizer_states[checker.optimizer_index[key]].scaler_key == ctx.subject_key:
            apply_transition(checker, ctx, checker.optimizer_index[key], a.RESTORE)
    return ctx.next_state()
