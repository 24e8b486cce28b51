"""The gradient-scaling protocol as a typestate automaton, for one optimizer.

torch keeps, per (scaler, optimizer), only a *stage*: READY, UNSCALED, STEPPED. What ``.grad`` holds it does not know.
Here both are kept: the stage as torch has it, and the *grads* as they really are. ``move`` answers every input in every
state (a test says so), gives the next state, and the labels of the faults that the move commits. All of it stands in
tables: ``FIRST`` has what outranks the gradients, ``MOVES`` what becomes of these, ``ENDS`` the faults of a window,
``AFTER`` what is left of a state.
"""

from __future__ import annotations

from collections.abc import Callable

from .events import MICRO
from .fast_namedtuple import NamedTuple

# What the gradients are.
UNKNOWN = "unknown"  # code that cannot be read may have changed them
CLEAN = "clean"  # none, or zeroed
FED = "fed"  # a scaled loss was run backward that may or may not reach them
EXPOSED = "exposed"  # ... one that was not scaled
SHARED = "shared"  # a scaled loss has reached them, unless it was that of another optimizer alone, which has used it
EITHER = "either"  # scaled and unscaled gradients, or one of both
RAW = "raw"  # gradients of an unscaled loss
SCALED = "scaled"
UNSCALED = "unscaled"  # divided by the scale by unscale_()
DIVIDED = "divided"  # divided by the scale by hand
BORROWED = "borrowed"  # unscaled through another optimizer that holds the same parameters, unknown to the scaler
MIXED = "mixed"  # scaled and raw gradients added up
UNEVEN = "uneven"  # gradients that two scalers have scaled, added up
OUTDATED = "outdated"  # scaled by a scale that update() has changed since
AGED = "aged"  # fed, perhaps, before update() has changed the scale
LAPSED = "lapsed"  # unscaled, but update() has made the scaler forget that
EARLY = "early"  # ... and scaled gradients were added to them
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

# torch's stage, with one more for "cannot be known".
ANY, READY, STAGE_UNSCALED, STAGE_STEPPED = "any", "ready", "unscaled", "stepped"
STAGES = (ANY, READY, STAGE_UNSCALED, STAGE_STEPPED)

# Inputs.
BACKWARD_SCALED = "backward-scaled"  # certainly reaches these gradients
BACKWARD_RAW = "backward-raw"
MAYBE_SCALED = "maybe-scaled"  # one of several optimizers is fed, which one is not known
MAYBE_RAW = "maybe-raw"
UNSCALE = "unscale"
CLIP = "clip"
READ = "read"
EDIT = "edit"
DIVIDE = "divide"
SCALER_STEP = "scaler-step"
STEP = "step"
UPDATE = "update"  # of the scaler that these gradients belong to; another optimizer was unscaled or stepped before
UPDATE_ALONE = "update-alone"  # ... and nothing was: torch raises
ZERO = "zero"
RESTORE = "restore"  # apex: a block ends that unscales its gradients and adds those that it had set aside
TAKEN = "taken"  # what may have reached these gradients is used by another optimizer
BORROW = "borrow"  # an optimizer that shares parameters is unscaled, or stepped by the scaler
HOLD = "hold"  # the end of the accumulation window is not reached: no step in this iteration
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
PERHAPS = frozenset({FED, EXPOSED, SHARED, EITHER})
"""Gradients that a backward may have reached, or those of another optimizer: what is used next has them."""


class OptimizerState(NamedTuple):
    """The state of one optimizer's gradients.

    by          key of the scaler that last scaled, unscaled or stepped them; -1 before that
    clipped     they were clipped while scaled
    partly      ... together with gradients that were not scaled any more
    held        the accumulation window was found open since the last backward: no step in this iteration
    many        more than one backward ran in this window
    undivided   no loss of that window was divided
    discarded   scaled gradients were zeroed and nothing ran backward since
    veteran     a scaler has stepped this optimizer since it was constructed
    inside      what is known of the loop that the last backward ran in, if it leaves the step to what follows
    apart       that backward ran without averaging over processes
    """

    grads: str = UNKNOWN
    stage: str = ANY
    scaler_key: int = -1
    clipped_while_scaled: bool = False
    clipped_mixed: bool = False
    window_open: bool = False
    several_backwards: bool = False
    loss_undivided: bool = False
    grads_discarded: bool = False
    stepped_before: bool = False
    loop_kind: str = ""
    no_sync: bool = False


def join(one: OptimizerState, other: OptimizerState) -> OptimizerState:
    """What is true in two states; nothing is known of what differs between them."""
    if one == other:
        return one
    return OptimizerState._make(
        x if x == y else unknown for x, y, unknown in zip(one, other, OptimizerState(), strict=True)
    )


#: (grads, input) -> (next grads, label of the fault or ""). An input that is not listed leaves the grads as they are.
MOVES: dict[tuple[str, str], tuple[str, str]] = {}


def _add_moves(grads: str, **moves: str) -> None:
    for name, target in moves.items():
        state, _, fault = target.partition(" ")
        MOVES[grads, name.replace("_", "-")] = (state, fault)


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
_add_moves(CLEAN, divide=UNKNOWN, scaler_step=STEPPED, step=SPENT)
_add_moves(FED, backward_scaled=SCALED, backward_raw=EITHER, maybe_raw=EITHER, unscale=UNSCALED, divide=DIVIDED)
_add_moves(FED, scaler_step=STEPPED, step="spent plain-step@scaled", read="fed read@scaled", update=AGED)
_add_moves(AGED, backward_scaled=SCALED, maybe_scaled=FED, backward_raw=UNKNOWN, maybe_raw=UNKNOWN, divide=UNKNOWN)
_add_moves(AGED, unscale="unscaled update@aged", scaler_step="stepped update@aged", step=SPENT)
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
    backward_scaled=SCALED,
    backward_raw=RAW,
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


# What the stage, or what else is known of a state, says to an input before :data:`MOVES` is asked.


def _may_omit_step(opt: OptimizerState, scaler_key: int) -> bool:
    """No step has to follow: the window is open, or the loop leaves the step to what comes after it."""
    return opt.window_open or bool(opt.loop_kind)


def _is_inside_window(opt: OptimizerState, scaler_key: int) -> bool:
    """It is certain that the window is open."""
    return opt.window_open or opt.loop_kind == MICRO


def _has_other_scaler(opt: OptimizerState, scaler_key: int) -> bool:
    """Another scaler has scaled them than the one that acts."""
    return opt.scaler_key not in (scaler_key, -1)


def _is_discarded(opt: OptimizerState, scaler_key: int) -> bool:
    return opt.grads_discarded


def _is_clipped(opt: OptimizerState, scaler_key: int) -> bool:
    return opt.clipped_while_scaled


def _is_clipped_mixed(opt: OptimizerState, scaler_key: int) -> bool:
    return opt.clipped_while_scaled and opt.clipped_mixed


def _is_undivided(opt: OptimizerState, scaler_key: int) -> bool:
    return opt.several_backwards and opt.loss_undivided


def _is_no_sync(opt: OptimizerState, scaler_key: int) -> bool:
    return opt.no_sync


def _always_true(opt: OptimizerState, scaler_key: int) -> bool:
    return True


class Transition(NamedTuple):
    """A fault of an input in some states.

    grads   what the gradients of these states are
    stages  the stages of these states
    when    what else is true of them
    to      what the gradients become; "" for what MOVES says
    both    whether the fault that MOVES gives is committed too
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

#: Input -> rows, of which the first that fits decides; where none does, MOVES decides alone.
FIRST: dict[str, tuple[Transition, ...]] = {
    BACKWARD_SCALED: (
        # Accumulation that unscales too early, or a skipped step that leaves the stage behind.
        Transition("backward@unscaled", _IS_CLEAN, _IS_UNSCALED),
        Transition("unscale@window", frozenset({UNSCALED}), _IS_UNSCALED, _may_omit_step),
        Transition("", frozenset({SCALED}), guard=_has_other_scaler, next_grads=UNEVEN),
    ),
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
#: Nothing is left for the step, whatever the stage says to it.
_DISCARDED = Transition("step@discarded", _IS_CLEAN, guard=_is_discarded)
#: Input that ends a window -> faults of the window, each of which is committed besides.
ENDS: dict[str, tuple[Transition, ...]] = {UNSCALE: (_DISCARDED,), SCALER_STEP: (_DISCARDED, *_WINDOW), STEP: _WINDOW}


class EventInput(NamedTuple):
    """What is known of an input besides its name; see :func:`move`."""

    scaler_key: int
    loss_divided: bool
    window_open: bool
    loop_kind: str
    no_sync: bool
    clipped_mixed: bool


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
    """The state after an input, and the labels of the faults it commits, in the order of their causes.

    ``by`` is the key of the scaler that acts, ``divided`` whether a backward's loss was divided, ``held`` whether it is
    already known that this iteration does not end the accumulation window, ``inside`` what is known of the loop that a
    backward runs in, ``apart`` whether it leaves out averaging over processes. ``partly`` says that a clip covers
    unscaled gradients of another optimizer too.
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
    """Whether no backward has run since the optimizer was made."""
    return opt.grads == CLEAN and opt.scaler_key == -1 and not (opt.grads_discarded or opt.stepped_before)


def is_only_possible(opt: OptimizerState, event: str, label: str) -> bool:
    """Whether a fault is committed only if a backward has reached gradients of which that is not known."""
    return opt.grads in PERHAPS and MOVES.get((opt.grads, event), ("", ""))[1] == label


# What becomes of the rest of a state.


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
        clipped_while_scaled=False,
        clipped_mixed=False,
        grads_discarded=False,
    )


def _apply_scaler_step(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    return OptimizerState(grads, STAGE_STEPPED, given.scaler_key, stepped_before=True)


def _apply_step_or_escape(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    """Stepped by itself, or given away: the window is over, and the stage cannot be known."""
    return OptimizerState(grads, ANY, opt.scaler_key, stepped_before=opt.stepped_before)


def _apply_use_by_other(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    """Where the gradients were another optimizer's, so was all that was seen of them."""
    if opt.grads not in PERHAPS:
        return opt
    return opt._replace(
        grads=grads, clipped_while_scaled=False, clipped_mixed=False, window_open=False, loop_kind="", no_sync=False
    )


def _apply_restore(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    return opt._replace(grads=grads, stage=ANY, clipped_while_scaled=False, clipped_mixed=False)


def _apply_update(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    return opt._replace(grads=grads, stage=READY)


def _apply_clip(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    scaled = opt.grads in UNDER_SCALE
    return opt._replace(
        clipped_while_scaled=opt.clipped_while_scaled or scaled,
        clipped_mixed=opt.clipped_mixed or (scaled and given.clipped_mixed),
    )


def _apply_zero(opt: OptimizerState, grads: str, given: EventInput) -> OptimizerState:
    lost = opt.grads in UNUSED
    return opt._replace(
        grads=grads,
        clipped_while_scaled=False,
        clipped_mixed=False,
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


#: Input -> what it leaves of a state, given what the gradients have become; the rest stays for all others.
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
