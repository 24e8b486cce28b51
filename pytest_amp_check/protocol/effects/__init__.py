"""Effects of events on a state, and the violations that an event causes.

The effects do not depend on the order of paths.
"""

from __future__ import annotations

from collections.abc import Callable

from .. import events as e
from ..checker import Checker, EventContext, Here, PathState
from ..events import Event, EventKind
from . import gradients, regions, scalers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    Handled = TypeVar("Handled", bound=Event)
#: Effect of an event on the state.
Handler = Callable[[Checker, EventContext, Event], PathState]
#: Handlers by event kind. Events of other kinds leave the state unchanged.
HANDLERS: dict[EventKind, Handler] = {}


def _handle(kind: type[Handled], handler: Callable[[Checker, EventContext, Handled], PathState]) -> None:
    # A handler is called with events of its kind only.
    HANDLERS[kind] = handler  # type: ignore[assignment]


_handle(e.AutocastEnter, regions.apply_enter)
_handle(e.AutocastExit, regions.apply_exit)
_handle(e.AutocastCacheClear, regions.apply_cache_clear)
_handle(e.Forward, regions.apply_forward)
_handle(e.ParamWrite, regions.apply_param_write)
_handle(e.Capture, regions.check_leaving_region)
_handle(e.Thread, regions.check_leaving_region)
_handle(e.Loss, regions.apply_loss)
_handle(e.ScalerNew, scalers.apply_scaler_new)
_handle(e.ScalerLoad, scalers.apply_scaler_load)
_handle(e.ScalerState, scalers.check_scaler_state)
_handle(e.Unscale, scalers.apply_unscale)
_handle(e.Restore, scalers.apply_restore)
_handle(e.ScalerStep, scalers.apply_scaler_step)
_handle(e.Update, scalers.apply_update)
_handle(e.Scale, gradients.check_scaled_twice)
_handle(e.Backward, gradients.apply_backward)
_handle(e.AutogradGrad, regions.check_grad_in_region)
_handle(e.Clip, gradients.apply_clip)
_handle(e.GradCheck, gradients.apply_finite_check)
_handle(e.GradRead, gradients.apply_manual_access)
_handle(e.GradEdit, gradients.apply_manual_access)
_handle(e.GradDivide, gradients.apply_manual_access)
_handle(e.GradNormalise, gradients.apply_normalization)
_handle(e.GradAverage, gradients.apply_averaging)
_handle(e.Step, gradients.apply_step)
_handle(e.ZeroGrad, gradients.apply_zero_grad)
_handle(e.OptimizerNew, gradients.apply_optimizer_new)
_handle(e.SchedulerStep, gradients.apply_scheduler_step)
_handle(e.StepFollowed, gradients.apply_weight_average)
_handle(e.Handoff, gradients.apply_escape)
_handle(e.LoopExit, gradients.apply_loop_exit)
_handle(e.Again, gradients.apply_repeated_call)
_handle(e.End, gradients.apply_program_end)


def apply_event(checker: Checker, index: int, event: Event, state: PathState, here: Here) -> PathState:
    """Return the state after an event, and report the violations of the event."""
    handler = HANDLERS.get(type(event))
    return state if handler is None else handler(checker, EventContext(index, event, state, here), event)
