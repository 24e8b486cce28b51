"""Effects of events on a state, and the violations that an event causes.

The effects do not depend on the order of paths.
"""

from __future__ import annotations

from collections.abc import Callable

from .. import events as e
from ..checker import Checker, EventContext, Here, PathState
from ..events import Event, EventKind
from . import gradients, regions, scalers

#: Handlers by event kind. Events of other kinds leave the state unchanged.
HANDLERS: dict[EventKind, Callable[[Checker, EventContext], PathState]] = {
    e.AUTOCAST_ENTER: regions.apply_enter,
    e.AUTOCAST_EXIT: regions.apply_exit,
    e.AUTOCAST_CACHE_CLEAR: regions.apply_cache_clear,
    e.FORWARD: regions.apply_forward,
    e.PARAM_WRITE: regions.apply_param_write,
    e.CAPTURE: regions.check_leaving_region,
    e.THREAD: regions.check_leaving_region,
    e.LOSS: regions.apply_loss,
    e.SCALER_NEW: scalers.apply_scaler_new,
    e.SCALER_LOAD: scalers.apply_scaler_load,
    e.SCALER_STATE: scalers.check_scaler_state,
    e.UNSCALE: scalers.apply_unscale,
    e.RESTORE: scalers.apply_restore,
    e.SCALER_STEP: scalers.apply_scaler_step,
    e.UPDATE: scalers.apply_update,
    e.SCALE: gradients.check_scaled_twice,
    e.BACKWARD: gradients.apply_backward,
    e.AUTOGRAD_GRAD: regions.check_grad_in_region,
    e.CLIP: gradients.apply_clip,
    e.GRAD_CHECK: gradients.apply_finite_check,
    e.GRAD_READ: gradients.apply_manual_access,
    e.GRAD_EDIT: gradients.apply_manual_access,
    e.GRAD_DIVIDE: gradients.apply_manual_access,
    e.GRAD_NORMALISE: gradients.apply_normalization,
    e.GRAD_AVERAGE: gradients.apply_averaging,
    e.STEP: gradients.apply_step,
    e.ZERO_GRAD: gradients.apply_zero_grad,
    e.OPTIMIZER_NEW: gradients.apply_optimizer_new,
    e.SCHEDULER_STEP: gradients.apply_scheduler_step,
    e.STEP_FOLLOWED: gradients.apply_weight_average,
    e.HANDOFF: gradients.apply_escape,
    e.LOOP_EXIT: gradients.apply_loop_exit,
    e.AGAIN: gradients.apply_repeated_call,
    e.END: gradients.apply_program_end,
}


def apply_event(checker: Checker, index: int, event: Event, state: PathState, here: Here) -> PathState:
    """Return the state after an event, and report the violations of the event."""
    handle = HANDLERS.get(event.kind)
    return state if handle is None else handle(checker, EventContext(index, event, state, here))
