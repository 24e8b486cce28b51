"""The gradient-scaling protocol as a typestate automaton for one optimizer.

torch keeps only a *stage* for each (scaler, optimizer): READY, UNSCALED, STEPPED. torch has no record of the content of
``.grad``. The automaton keeps both: the stage like torch, and the true content of the gradients, *grads*.
``transition`` accepts every input in every state (a test proves this), and returns the next state and the labels of
violations. Tables hold all transitions: ``FIRST`` has priority over the gradients, ``MOVES`` changes the gradients,
``ENDS`` has the violations at the end of a window, and ``AFTER`` changes the rest of a state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from .events import MICRO
from .fast_namedtuple import NamedTuple

# Content of the gradients.
UNKNOWN = "unknown"  # unanalyzed code may have changed the gradients
CLEAN = "clean"  # no gradients, or zeros
FED = "fed"  # a scaled loss ran backward and may have reached the gradients
EXPOSED = "exposed"  # an unscaled loss ran backward and may have reached the gradients
SHARED = "shared"  # a scaled loss reached them, unless only another optimizer, which has stepped, got it
EITHER = "either"  # scaled gradients, unscaled gradients, or a mix
RAW = "raw"  # gradients of an unscaled loss
SCALED = "scaled"
UNSCALED = "unscaled"  # divided by the scale by unscale_()
DIVIDED = "divided"  # divided by the scale manually
BORROWED = "borrowed"  # unscaled through another optimizer with the same parameters; the scaler has no record
MIXED = "mixed"  # scaled and raw gradients added up
UNEVEN = "uneven"  # sum of gradients scaled by two scalers
OUTDATED = "outdated"  # scaled by an outdated scale: update() changed the scale since
AGED = "aged"  # possibly accumulated before update() changed the scale
LAPSED = "lapsed"  # unscaled, but update() cleared the scaler's record
EARLY = "early"  # unscaled, record cleared, and scaled gradients added
STEPPED = "stepped"  # used by scaler.step()
SPENT = "spent"  # used by optimizer.step()
GRADS = (
    UNKNOWN,
    CLEAN,
    FED,
    EXPOSED,
    SHARED,
    EITHER,
    RAW,
    SCALED,
    UNSCALED,
    DIVIDED,
    BORROWED,
    MIXED,
    UNEVEN,
    OUTDATED,
    AGED,
    LAPSED,
    EARLY,
    STEPPED,
    SPENT,
)

# Stages of torch, and ANY for an unknown stage.
ANY, READY, STAGE_UNSCALED, STAGE_STEPPED = "any", "ready", "unscaled", "stepped"
STAGES = (ANY, READY, STAGE_UNSCALED, STAGE_STEPPED)

# Inputs.
BACKWARD_SCALED = "backward-scaled"  # definitely reaches these gradients
BACKWARD_RAW = "backward-raw"
MAYBE_SCALED = "maybe-scaled"  # reaches one of several optimizers, unknown which
MAYBE_RAW = "maybe-raw"
UNSCALE = "unscale"
CLIP = "clip"
READ = "read"
EDIT = "edit"
DIVIDE = "divide"
SCALER_STEP = "scaler-step"
STEP = "step"
UPDATE = "update"  # by the scaler of these gradients, after an unscale or step of another optimizer
UPDATE_ALONE = "update-alone"  # by the scaler of these gradients, without any unscale or step: torch raises
ZERO = "zero"
RESTORE = "restore"  # apex: a block ends, unscales its gradients and adds the saved gradients
TAKEN = "taken"  # another optimizer uses a backward that may have reached these gradients
BORROW = "borrow"  # an optimizer with shared parameters is unscaled, or stepped by the scaler
HOLD = "hold"  # the accumulation window does not end: no step in this iteration
HANDOFF = "handoff"
NEW = "new"
INPUTS = (
    BACKWARD_SCALED,
    BACKWARD_RAW,
    MAYBE_SCALED,
    MAYBE_RAW,
    UNSCALE,
    CLIP,
    READ,
    EDIT,
    DIVIDE,
    SCALER_STEP,
    STEP,
    UPDATE,
    UPDATE_ALONE,
    ZERO,
    RESTORE,
    TAKEN,
    BORROW,
    HOLD,
    HANDOFF,
    NEW,
)

PENDING = frozenset({FED, EXPOSED, RAW, SCALED, UNSCALED, DIVIDED, BORROWED, MIXED, UNEVEN, OUTDATED})
"""Gradients that wait for a step."""
UNDER_SCALE = frozenset({FED, SCALED, MIXED, UNEVEN, OUTDATED})
"""Gradients that are, or may be, multiplied by the loss scale."""
UNUSED = UNDER_SCALE | {UNSCALED, EARLY}
"""Gradients of a scaled loss that no step has used."""
UNSTEPPED = UNUSED | {RAW}
"""Gradients of a loss that no step has used."""
PERHAPS = frozenset({FED, EXPOSED, SHARED, EITHER})
"""Gradients that a backward may have reached, or those of another optimizer: what is used next has them."""


class Clips(NamedTuple):
    """Clips of the gradients that wait for a step.

    - ``while_scaled``: the gradients were clipped while scaled
    - ``mixed``: such a clip also covered gradients that were no longer scaled
    - ``in_window``: the gradients were clipped since the last backward
    """

    while_scaled: bool = False
    mixed: bool = False
    in_window: bool = False

    def join(self, other: Clips) -> Clips:
        """Return the clips that both paths have."""
        return Clips._make(x and y for x, y in zip(self, other, strict=True))


NO_CLIPS = Clips()


class OptimizerState(NamedTuple):
    """State of the gradients of one optimizer.

    - ``grads``: content of the gradients, one of ``GRADS``
    - ``stage``: stage of the scaler, one of ``STAGES``
    - ``scaler_key``: key of the scaler that last scaled, unscaled or stepped the gradients; -1 before
    - ``clips``: clips of the gradients
    - ``window_open``: the accumulation window was found open since the last backward: no step in this iteration
    - ``several_backwards``: more than one backward ran in this window
    - ``loss_undivided``: no loss of this window was divided
    - ``grads_discarded``: gradients of a backward were zeroed before a step, and no backward ran since
    - ``stepped_before``: a scaler has stepped this optimizer since construction
    - ``loop_kind``: kind of the loop of the last backward, if the step follows after the loop
    - ``no_sync``: the last backward ran without averaging over ranks
    """

    grads: str = UNKNOWN
    stage: str = ANY
    scaler_key: int = -1
    clips: Clips = NO_CLIPS
    window_open: bool = False
    several_backwards: bool = False
    loss_undivided: bool = False
    grads_discarded: bool = False
    stepped_before: bool = False
    loop_kind: str = ""
    no_sync: bool = False


_UNKNOWN_STATE = OptimizerState()


def join(one: OptimizerState, other: OptimizerState) -> OptimizerState:
    """Join two states. Every field that differs becomes unknown."""
    if one == other:
        return one
    joined = OptimizerState._make(
        x if x == y else unknown for x, y, unknown in zip(one, other, _UNKNOWN_STATE, strict=True)
    )
    return joined._replace(clips=one.clips.join(other.clips))


#: (grads, input) -> (next grads, violation label or ""). An input without entry leaves the grads unchanged.
MOVES: dict[tuple[str, str], tuple[str, str]] = {}


def _add_moves(grads: str, **moves: str) -> None:
    for name, target in moves.items():
        state, _, violation = target.partition(" ")
        event = name.replace("_", "-")
        if event not in INPUTS or state not in GRADS:
            raise ValueError(f"move {event}={target}: no input of INPUTS, or no gradient content of GRADS")
        MOVES[grads, event] = (state, violation)


_add_moves(
    UNKNOWN,
    backward_scaled=SCALED,
    backward_raw=RAW,
    maybe_scaled=FED,
    maybe_raw=EXPOSED,
    unscale=UNSCALED,
    scaler_step=STEPPED,
    step=SPENT,
)
_add_moves(CLEAN, backward_scaled=SCALED, backward_raw=RAW, maybe_scaled=FED, maybe_raw=EXPOSED, unscale=UNSCALED)
_add_moves(CLEAN, divide=UNKNOWN, edit=UNKNOWN, scaler_step=STEPPED, step=SPENT)
_add_moves(FED, backward_scaled=SCALED, backward_raw=EITHER, maybe_raw=EITHER, unscale=UNSCALED, divide=DIVIDED)
_add_moves(FED, scaler_step=STEPPED, step="spent plain-step@scaled", read="fed read@scaled", update=AGED)
_add_moves(AGED, backward_scaled=SCALED, maybe_scaled=FED, backward_raw=UNKNOWN, maybe_raw=UNKNOWN, divide=UNKNOWN)
_add_moves(AGED, unscale="unscaled update@aged", scaler_step="stepped update@aged", step="spent plain-step@aged")
_add_moves(EXPOSED, backward_scaled=EITHER, backward_raw=RAW, maybe_scaled=EITHER, unscale="unscaled step@raw")
_add_moves(EXPOSED, scaler_step="stepped step@raw", step=SPENT)
_add_moves(SHARED, backward_scaled=SCALED, backward_raw=RAW, maybe_scaled=FED, maybe_raw=EXPOSED, unscale=UNSCALED)
_add_moves(SHARED, divide=UNKNOWN, scaler_step=STEPPED, step="spent plain-step@scaled", update=AGED)
_add_moves(EITHER, unscale=UNSCALED, scaler_step=STEPPED, step=SPENT, update=UNKNOWN)
_add_moves(RAW, backward_scaled=MIXED, maybe_scaled=EITHER, unscale="unscaled step@raw")
_add_moves(RAW, scaler_step="stepped step@raw", step=SPENT)
_add_moves(SCALED, backward_raw=MIXED, maybe_raw=EITHER, unscale=UNSCALED, divide=DIVIDED, edit="unknown edit@scaled")
_add_moves(SCALED, scaler_step=STEPPED, step="spent plain-step@scaled", update=OUTDATED, read="scaled read@scaled")
_add_moves(UNSCALED, backward_scaled="unknown backward@unscaled", backward_raw=UNKNOWN, divide="unknown step@divided")
_add_moves(UNSCALED, scaler_step=STEPPED, step="spent plain-step@unscaled", update=LAPSED, update_alone=LAPSED)
_add_moves(DIVIDED, backward_scaled=UNKNOWN, backward_raw=UNKNOWN, maybe_scaled=EITHER, maybe_raw=EITHER)
_add_moves(SCALED, borrow=BORROWED)
_add_moves(
    BORROWED, backward_scaled=UNKNOWN, backward_raw=UNKNOWN, maybe_scaled=EITHER, maybe_raw=EITHER, divide=UNKNOWN
)
_add_moves(BORROWED, unscale="unscaled step@borrowed", scaler_step="stepped step@borrowed", step=SPENT, update=UNKNOWN)
_add_moves(DIVIDED, unscale="unscaled unscale@divided", scaler_step="stepped step@divided", step=SPENT)
_add_moves(MIXED, maybe_scaled=EITHER, maybe_raw=EITHER, unscale="unscaled step@raw", divide=UNKNOWN)
_add_moves(MIXED, scaler_step="stepped step@raw", step="spent plain-step@scaled", update=UNKNOWN)
_add_moves(
    UNEVEN, backward_raw=MIXED, maybe_raw=EITHER, divide=UNKNOWN, edit="unknown edit@scaled", read="uneven read@scaled"
)
_add_moves(UNEVEN, unscale="unscaled step@uneven", scaler_step="stepped step@uneven", step="spent plain-step@scaled")
_add_moves(UNEVEN, update=UNKNOWN)
_add_moves(OUTDATED, backward_raw=MIXED, maybe_scaled=EITHER, maybe_raw=EITHER, divide=UNKNOWN)
_add_moves(
    OUTDATED, unscale="unscaled update@pending", scaler_step="stepped update@pending", step="spent plain-step@scaled"
)
_add_moves(LAPSED, backward_scaled=EARLY, backward_raw=UNKNOWN, maybe_scaled=EITHER, maybe_raw=EITHER, divide=UNKNOWN)
_add_moves(LAPSED, unscale="unscaled step@unscaled-updated", scaler_step="stepped step@unscaled-updated")
_add_moves(LAPSED, step="spent plain-step@unscaled")
_add_moves(EARLY, backward_raw=UNKNOWN, maybe_scaled=EITHER, maybe_raw=EITHER, divide=UNKNOWN, update=UNKNOWN)
_add_moves(EARLY, unscale="unscaled step@early", scaler_step="stepped step@early", step=SPENT)
_add_moves(
    STEPPED,
    backward_scaled="scaled backward@stale",
    backward_raw=RAW,
    maybe_scaled=FED,
    maybe_raw=EXPOSED,
    unscale=UNSCALED,
    divide=UNKNOWN,
)
_add_moves(STEPPED, step="spent plain-step@stepped")
_add_moves(
    SPENT,
    backward_scaled="scaled backward@stale",
    backward_raw="raw backward@stale",
    maybe_scaled=FED,
    maybe_raw=EXPOSED,
    unscale=UNSCALED,
    divide=UNKNOWN,
    scaler_step=STEPPED,
)
for _grads in (SCALED, MIXED, UNEVEN, OUTDATED):
    _add_moves(_grads, restore=RAW)
_add_moves(FED, restore=UNKNOWN)
for _grads, _left_with in ((FED, SHARED), (EXPOSED, UNKNOWN), (EITHER, UNKNOWN)):
    _add_moves(_grads, taken=_left_with)
for _grads in GRADS:
    _add_moves(_grads, zero=CLEAN, handoff=UNKNOWN, new=CLEAN)


# Transitions that depend on the stage or other fields, applied before :data:`MOVES`.


def _may_omit_step(opt: OptimizerState, scaler_key: int) -> bool:
    """Return True if no step has to follow: the window is open, or the step comes after the loop."""
    return opt.window_open or bool(opt.loop_kind)


def _is_inside_window(opt: OptimizerState, scaler_key: int) -> bool:
    """Return True if the window is definitely open."""
    return opt.window_open or opt.loop_kind == MICRO


def _has_other_scaler(opt: OptimizerState, scaler_key: int) -> bool:
    """Return True if another scaler than the acting scaler scaled the gradients."""
    return opt.scaler_key not in (scaler_key, -1)


def _is_discarded(opt: OptimizerState, scaler_key: int) -> bool:
    return opt.grads_discarded


def _is_clipped(opt: OptimizerState, scaler_key: int) -> bool:
    return opt.clips.while_scaled


def _is_clipped_mixed(opt: OptimizerState, scaler_key: int) -> bool:
    return opt.clips.while_scaled and opt.clips.mixed


def _is_clipped_inside(opt: OptimizerState, scaler_key: int) -> bool:
    return opt.clips.in_window and _is_inside_window(opt, scaler_key)


def _is_undivided(opt: OptimizerState, scaler_key: int) -> bool:
    return opt.several_backwards and opt.loss_undivided


def _is_no_sync(opt: OptimizerState, scaler_key: int) -> bool:
    return opt.no_sync


def _always_true(opt: OptimizerState, scaler_key: int) -> bool:
    return True


class Transition(NamedTuple):
    """A violation of an input in some states.

    - ``label``: label of the violation
    - ``grads``: gradient contents of these states
    - ``stages``: stages of these states
    - ``guard``: further condition on these states
    - ``next_grads``: next gradient content; "" to use MOVES
    - ``is_additional``: the violation from MOVES is also reported
    """

    label: str
    grads: frozenset[str] = frozenset(GRADS)
    stages: frozenset[str] = frozenset(STAGES)
    guard: Callable[[OptimizerState, int], bool] = _always_true
    next_grads: str = ""
    is_additional: bool = False

    def matches_state(self, opt: OptimizerState, scaler_key: int) -> bool:
        return opt.grads in self.grads and opt.stage in self.stages and self.guard(opt, scaler_key)


_CLIPS = (
    Transition("clip@partly", guard=_is_clipped_mixed, is_additional=True),
    Transition("clip@scaled", guard=_is_clipped, is_additional=True),
)
_IS_STEPPED, _IS_UNSCALED = frozenset({STAGE_STEPPED}), frozenset({STAGE_UNSCALED})
_IS_CLEAN = frozenset({CLEAN})
_CLIPPED_INSIDE = Transition("clip@window", PENDING, guard=_is_clipped_inside, is_additional=True)

#: Transitions by input. The first matching transition decides; without a match, MOVES alone decides.
FIRST: dict[str, tuple[Transition, ...]] = {
    BACKWARD_SCALED: (
        # Accumulation that unscales too early, or a skipped step that leaves the stage unscaled.
        Transition("backward@unscaled", _IS_CLEAN, _IS_UNSCALED),
        Transition("unscale@window", frozenset({UNSCALED}), _IS_UNSCALED, _may_omit_step),
        Transition("", frozenset({SCALED}), guard=_has_other_scaler, next_grads=UNEVEN),
        _CLIPPED_INSIDE,
    ),
    BACKWARD_RAW: (_CLIPPED_INSIDE,),
    UNSCALE: (
        Transition("unscale@stepped", frozenset({STEPPED}), _IS_STEPPED),
        Transition("unscale@step-pending", stages=_IS_STEPPED),
        Transition("unscale@window", stages=_IS_UNSCALED, guard=_may_omit_step),
        Transition("unscale@unscaled", stages=_IS_UNSCALED),
        Transition("step@another", frozenset({SCALED}), guard=_has_other_scaler),
        *_CLIPS,
    ),
    SCALER_STEP: (
        Transition("step@stepped", stages=_IS_STEPPED),
        Transition("step@another", frozenset({SCALED}), guard=_has_other_scaler),
        *_CLIPS,
    ),
    RESTORE: _CLIPS,
    STEP: (Transition("clip@scaled", frozenset({SCALED}), guard=_is_clipped, is_additional=True),),
    UPDATE: (
        Transition("unscale@window", frozenset({UNSCALED}), guard=_may_omit_step, next_grads=UNKNOWN),
        Transition(
            "update@window",
            frozenset({SCALED, OUTDATED}),
            frozenset(STAGES) - {READY},
            guard=_may_omit_step,
            next_grads=UNKNOWN,
        ),
    ),
    UPDATE_ALONE: (Transition("update@window", UNDER_SCALE, guard=_may_omit_step), Transition("update@nothing")),
    ZERO: (Transition("zero@window", PENDING - {EXPOSED}, guard=_is_inside_window),),
}
_WINDOW = (Transition("step@undivided", guard=_is_undivided), Transition("step@apart", PENDING, guard=_is_no_sync))
#: No gradients are left for the step, in any stage.
_DISCARDED = Transition("step@discarded", _IS_CLEAN, guard=_is_discarded)
_PLAIN_DISCARDED = _DISCARDED._replace(label="plain-step@discarded")
#: Additional violations of inputs that end a window.
ENDS: dict[str, tuple[Transition, ...]] = {
    UNSCALE: (_DISCARDED,),
    SCALER_STEP: (_DISCARDED, *_WINDOW),
    STEP: (_PLAIN_DISCARDED, *_WINDOW),
}


class EventInput(NamedTuple):
    """Attributes of an input besides the name; see :func:`transition`."""

    scaler_key: int
    loss_divided: bool
    window_open: bool
    loop_kind: str
    no_sync: bool
    clipped_mixed: bool


# Few states and inputs occur in a graph, each at many nodes and on many paths.
@lru_cache(maxsize=1 << 14)
def transition(
    opt: OptimizerState,
    event: str,
    *,
    scaler_key: int = -1,
    loss_divided: bool = True,
    window_open: bool = False,
    loop_kind: str = "",
    no_sync: bool = False,
    clipped_mixed: bool = False,
) -> tuple[OptimizerState, tuple[str, ...]]:
    """Return the state after an input, and the violation labels in the order of the causes.

    ``scaler_key`` is the acting scaler. ``loss_divided`` is True if the loss of a backward was divided. ``window_open``
    is True if this iteration is known not to end the accumulation window. ``loop_kind`` is the kind of the loop around
    a backward. ``no_sync`` is True if a backward does not average over ranks. ``clipped_mixed`` is True if a clip also
    covers unscaled gradients of another optimizer.
    """
    grads, label = MOVES.get((opt.grads, event), (opt.grads, ""))
    labels = [label]
    for rule in FIRST.get(event, ()):
        if rule.matches_state(opt, scaler_key):
            grads = rule.next_grads or grads
            labels = [rule.label, label] if rule.is_additional else [rule.label]
            break
    labels += [rule.label for rule in ENDS.get(event, ()) if rule.matches_state(opt, scaler_key)]
    after = AFTER.get(event, _replace_grads)(
        opt, grads, EventInput(scaler_key, loss_divided, window_open, loop_kind, no_sync, clipped_mixed)
    )
    return after, tuple(filter(None, labels))


def has_no_backward(opt: OptimizerState) -> bool:
    """Return True if no backward ran since the construction of the optimizer."""
    return opt.grads == CLEAN and opt.scaler_key == -1 and not (opt.grads_discarded or opt.stepped_before)


def is_only_possible(opt: OptimizerState, event: str, label: str) -> bool:
    """Return True if a violation depends on a backward that may not have reached the gradients."""
    return opt.grads in PERHAPS and MOVES.get((opt.grads, event), ("", ""))[1] == label


# Changes of the other fields of a state.


def _replace_grads(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    return opt._replace(grads=grads)


def _apply_backward(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    again = _is_inside_window(opt, given.scaler_key) and opt.grads in PENDING
    return opt._replace(
        grads=grads,
        window_open=given.window_open,
        loop_kind=given.loop_kind,
        no_sync=given.no_sync,
        several_backwards=opt.several_backwards or again,
        loss_undivided=not given.loss_divided and (opt.loss_undivided or opt.grads not in PENDING),
        grads_discarded=False,
        clips=opt.clips._replace(in_window=False),
    )


def _apply_scaled_backward(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    stage = ANY if opt.stage == STAGE_UNSCALED else opt.stage
    return _apply_backward(opt, grads, given)._replace(stage=stage, scaler_key=given.scaler_key)


def _apply_possible_backward(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    return opt._replace(
        grads=grads,
        window_open=given.window_open,
        loop_kind=given.loop_kind,
        no_sync=False,
        loss_undivided=False,
        grads_discarded=False,
    )


def _apply_possible_scaled(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    mixed = opt.grads == SCALED and _has_other_scaler(opt, given.scaler_key)
    return _apply_possible_backward(opt, grads, given)._replace(
        scaler_key=opt.scaler_key if mixed else given.scaler_key
    )


def _apply_unscale(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    return opt._replace(
        grads=grads,
        stage=STAGE_UNSCALED,
        scaler_key=given.scaler_key,
        clips=Clips(in_window=opt.clips.in_window),
        grads_discarded=False,
    )


def _apply_scaler_step(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    return OptimizerState(grads, STAGE_STEPPED, given.scaler_key, stepped_before=True)


def _apply_step_or_escape(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    """Apply a direct step or an escape: the window ends, and the stage becomes unknown."""
    return OptimizerState(grads, ANY, opt.scaler_key, stepped_before=opt.stepped_before)


def _apply_use_by_other(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    """Apply the use of gradients by another optimizer. Earlier observations then belong to the other optimizer."""
    if opt.grads not in PERHAPS:
        return opt
    clips = Clips(in_window=opt.clips.in_window)
    return opt._replace(grads=grads, clips=clips, window_open=False, loop_kind="", no_sync=False)


def _apply_restore(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    return opt._replace(grads=grads, stage=ANY, clips=Clips(in_window=opt.clips.in_window))


def _apply_update(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    return opt._replace(grads=grads, stage=READY)


def _apply_clip(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    clips, scaled = opt.clips, opt.grads in UNDER_SCALE
    return opt._replace(
        clips=Clips(
            while_scaled=clips.while_scaled or scaled,
            mixed=clips.mixed or (scaled and given.clipped_mixed),
            in_window=clips.in_window or opt.grads in PENDING,
        )
    )


def _apply_zero(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    lost = opt.grads in UNSTEPPED
    return opt._replace(
        grads=grads,
        clips=NO_CLIPS,
        window_open=False,
        loop_kind="",
        no_sync=False,
        several_backwards=False,
        loss_undivided=False,
        grads_discarded=opt.grads_discarded or lost,
    )


def _apply_hold(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    return opt._replace(window_open=opt.window_open or opt.grads in PENDING)


def _apply_construction(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    return OptimizerState(grads, READY)


#: Functions for the other fields of a state, by input, after the new grads are known. Default: all fields are kept.
AFTER: dict[str, Callable[[OptimizerState, str, EventInput], OptimizerState]] = {
    BACKWARD_SCALED: _apply_scaled_backward,
    BACKWARD_RAW: _apply_backward,
    MAYBE_SCALED: _apply_possible_scaled,
    MAYBE_RAW: _apply_possible_backward,
    UNSCALE: _apply_unscale,
    CLIP: _apply_clip,
    SCALER_STEP: _apply_scaler_step,
    STEP: _apply_step_or_escape,
    UPDATE: _apply_update,
    UPDATE_ALONE: _apply_update,
    ZERO: _apply_zero,
    RESTORE: _apply_restore,
    TAKEN: _apply_use_by_other,
    HOLD: _apply_hold,
    HANDOFF: _apply_step_or_escape,
    NEW: _apply_construction,
}
