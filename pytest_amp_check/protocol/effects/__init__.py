"""What an event does to a state, and which faults it commits: the part of judging that needs no order."""

from __future__ import annotations

from collections.abc import Callable

from .. import events as e
from ..events import Event, Kind
from ..judge import Here, Judge, Moment, State
from . import gradients, regions, scalers

#: Kind of event -> what it does to a state. Events of other kinds leave it as it is.
HANDLERS: dict[Kind, Callable[[Judge, Moment], State]] = {
    e.AUTOCAST_ENTER: regions.enter,
    e.AUTOCAST_EXIT: regions.leave,
    e.AUTOCAST_CACHE_CLEAR: regions.clear_cache,
    e.FORWARD: regions.forward,
    e.PARAM_WRITE: regions.write,
    e.CAPTURE: regions.outside,
    e.THREAD: regions.outside,
    e.LOSS: regions.loss,
    e.SCALER_NEW: scalers.scaler_made,
    e.SCALER_LOAD: scalers.scaler_loaded,
    e.SCALER_STATE: scalers.scaler_saved,
    e.UNSCALE: scalers.unscale,
    e.RESTORE: scalers.restore,
    e.SCALER_STEP: scalers.scaler_step,
    e.UPDATE: scalers.update,
    e.SCALE: gradients.twice,
    e.BACKWARD: gradients.backward,
    e.CLIP: gradients.clip,
    e.GRAD_CHECK: gradients.checked,
    e.GRAD_READ: gradients.by_hand,
    e.GRAD_EDIT: gradients.by_hand,
    e.GRAD_DIVIDE: gradients.by_hand,
    e.GRAD_NORMALISE: gradients.normalise,
    e.GRAD_AVERAGE: gradients.average,
    e.STEP: gradients.step,
    e.ZERO_GRAD: gradients.zero,
    e.OPTIMIZER_NEW: gradients.optimizer_made,
    e.SCHEDULER_STEP: gradients.schedule,
    e.STEP_FOLLOWED: gradients.average_weights,
    e.HANDOFF: gradients.hand_off,
    e.LOOP_EXIT: gradients.loop_exit,
    e.AGAIN: gradients.again,
    e.END: gradients.end,
}


def apply(judge: Judge, index: int, event: Event, state: State, here: Here) -> State:
    """The state after an event, with the faults that it commits."""
    handle = HANDLERS.get(event.kind)
    return state if handle is None else handle(judge, Moment(index, event, state, here))
