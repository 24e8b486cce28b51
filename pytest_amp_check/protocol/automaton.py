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
from .named import NamedTuple

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


class Opt(NamedTuple):
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
    by: int = -1
    clipped: bool = False
    partly: bool = False
    held: bool = False
    many: bool = False
    undivided: bool = False
    discarded: bool = False
    veteran: bool = False
    inside: str = ""
    apart: bool = False


def joined(one: Opt, other: Opt) -> Opt:
    """What is true in two states; nothing is known of what differs between them."""
    if one == other:
        return one
    return Opt._make(x if x == y else unknown for x, y, unknown in zip(one, other, Opt(), strict=True))


#: (grads, input) -> (next grads, label of the fault or ""). An input that is not listed leaves the grads as they are.
MOVES: dict[tuple[str, str], tuple[str, str]] = {}


def _row(grads: str, **moves: str) -> None:
    for name, target in moves.items():
        state, _, fault = target.partition(" ")
        MOVES[grads, name.replace("_", "-")] = (state, fault)


_row(
    UNKNOWN,
    backward_scaled=SCALED,
    backward_raw=RAW,
    maybe_scaled=FED,
    maybe_raw=EXPOSED,
    unscale=UNSCALED,
    scaler_step=STEPPED,
    step=SPENT,
)
_row(CLEAN, backward_scaled=SCALED, backward_raw=RAW, maybe_scaled=FED, maybe_raw=EXPOSED, unscale=UNSCALED)
_row(CLEAN, divide=UNKNOWN, scaler_step=STEPPED, step=SPENT)
_row(FED, backward_scaled=SCALED, backward_raw=EITHER, maybe_raw=EITHER, unscale=UNSCALED, divide=DIVIDED)
_row(FED, scaler_step=STEPPED, step="spent plain-step@scaled", read="fed read@scaled", update=AGED)
_row(AGED, backward_scaled=SCALED, maybe_scaled=FED, backward_raw=UNKNOWN, maybe_raw=UNKNOWN, divide=UNKNOWN)
_row(AGED, unscale="unscaled update@aged", scaler_step="stepped update@aged", step=SPENT)
_row(EXPOSED, backward_scaled=EITHER, backward_raw=RAW, maybe_scaled=EITHER, unscale="unscaled step@raw")
_row(EXPOSED, scaler_step="stepped step@raw", step=SPENT)
_row(SHARED, backward_scaled=SCALED, backward_raw=RAW, maybe_scaled=FED, maybe_raw=EXPOSED, unscale=UNSCALED)
_row(SHARED, divide=UNKNOWN, scaler_step=STEPPED, step="spent plain-step@scaled", update=AGED)
_row(EITHER, unscale=UNSCALED, scaler_step=STEPPED, step=SPENT, update=UNKNOWN)
_row(RAW, backward_scaled=MIXED, maybe_scaled=EITHER, unscale="unscaled step@raw")
_row(RAW, scaler_step="stepped step@raw", step=SPENT)
_row(SCALED, backward_raw=MIXED, maybe_raw=EITHER, unscale=UNSCALED, divide=DIVIDED, edit="unknown edit@scaled")
_row(SCALED, scaler_step=STEPPED, step="spent plain-step@scaled", update=OUTDATED, read="scaled read@scaled")
_row(UNSCALED, backward_scaled="unknown backward@unscaled", backward_raw=UNKNOWN, divide="unknown step@divided")
_row(UNSCALED, scaler_step=STEPPED, step="spent plain-step@unscaled", update=LAPSED, update_alone=LAPSED)
_row(DIVIDED, backward_scaled=UNKNOWN, backward_raw=UNKNOWN, maybe_scaled=EITHER, maybe_raw=EITHER)
_row(SCALED, borrow=BORROWED)
_row(BORROWED, backward_scaled=UNKNOWN, backward_raw=UNKNOWN, maybe_scaled=EITHER, maybe_raw=EITHER, divide=UNKNOWN)
_row(BORROWED, unscale="unscaled step@borrowed", scaler_step="stepped step@borrowed", step=SPENT, update=UNKNOWN)
_row(DIVIDED, unscale="unscaled unscale@divided", scaler_step="stepped step@divided", step=SPENT)
_row(MIXED, maybe_scaled=EITHER, maybe_raw=EITHER, unscale="unscaled step@raw", divide=UNKNOWN)
_row(MIXED, scaler_step="stepped step@raw", step="spent plain-step@scaled", update=UNKNOWN)
_row(
    UNEVEN, backward_raw=MIXED, maybe_raw=EITHER, divide=UNKNOWN, edit="unknown edit@scaled", read="uneven read@scaled"
)
_row(UNEVEN, unscale="unscaled step@uneven", scaler_step="stepped step@uneven", step="spent plain-step@scaled")
_row(UNEVEN, update=UNKNOWN)
_row(OUTDATED, backward_raw=MIXED, maybe_scaled=EITHER, maybe_raw=EITHER, divide=UNKNOWN)
_row(OUTDATED, unscale="unscaled update@pending", scaler_step="stepped update@pending", step="spent plain-step@scaled")
_row(LAPSED, backward_scaled=EARLY, backward_raw=UNKNOWN, maybe_scaled=EITHER, maybe_raw=EITHER, divide=UNKNOWN)
_row(LAPSED, unscale="unscaled step@unscaled-updated", scaler_step="stepped step@unscaled-updated")
_row(LAPSED, step="spent plain-step@unscaled")
_row(EARLY, backward_raw=UNKNOWN, maybe_scaled=EITHER, maybe_raw=EITHER, divide=UNKNOWN, update=UNKNOWN)
_row(EARLY, unscale="unscaled step@early", scaler_step="stepped step@early", step=SPENT)
_row(
    STEPPED,
    backward_scaled="scaled backward@stale",
    backward_raw=RAW,
    maybe_scaled=FED,
    maybe_raw=EXPOSED,
    unscale=UNSCALED,
    divide=UNKNOWN,
)
_row(STEPPED, step="spent plain-step@stepped")
_row(
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
    _row(_grads, restore=RAW)
_row(FED, restore=UNKNOWN)
for _grads, _left_with in ((FED, SHARED), (EXPOSED, UNKNOWN), (EITHER, UNKNOWN)):
    _row(_grads, taken=_left_with)
for _grads in GRADS:
    _row(_grads, zero=CLEAN, handoff=UNKNOWN, new=CLEAN)


# What the stage, or what else is known of a state, says to an input before :data:`MOVES` is asked.


def _open(opt: Opt, by: int) -> bool:
    """No step has to follow: the window is open, or the loop leaves the step to what comes after it."""
    return opt.held or bool(opt.inside)


def _inside_window(opt: Opt, by: int) -> bool:
    """It is certain that the window is open."""
    return opt.held or opt.inside == MICRO


def _of_another(opt: Opt, by: int) -> bool:
    """Another scaler has scaled them than the one that acts."""
    return opt.by not in (by, -1)


def _discarded(opt: Opt, by: int) -> bool:
    return opt.discarded


def _clipped(opt: Opt, by: int) -> bool:
    return opt.clipped


def _clipped_in_part(opt: Opt, by: int) -> bool:
    return opt.clipped and opt.partly


def _undivided(opt: Opt, by: int) -> bool:
    return opt.many and opt.undivided


def _apart(opt: Opt, by: int) -> bool:
    return opt.apart


def _always(opt: Opt, by: int) -> bool:
    return True


class Row(NamedTuple):
    """A fault of an input in some states.

    grads   what the gradients of these states are
    stages  the stages of these states
    when    what else is true of them
    to      what the gradients become; "" for what MOVES says
    both    whether the fault that MOVES gives is committed too
    """

    fault: str
    grads: frozenset[str] = frozenset(GRADS)
    stages: frozenset[str] = frozenset(STAGES)
    when: Callable[[Opt, int], bool] = _always
    to: str = ""
    both: bool = False

    def fits(self, opt: Opt, by: int) -> bool:
        return opt.grads in self.grads and opt.stage in self.stages and self.when(opt, by)


_CLIPS = (Row("clip@partly", when=_clipped_in_part, both=True), Row("clip@scaled", when=_clipped, both=True))
_IS_STEPPED, _IS_UNSCALED = frozenset({STAGE_STEPPED}), frozenset({STAGE_UNSCALED})
_IS_CLEAN = frozenset({CLEAN})

#: Input -> rows, of which the first that fits decides; where none does, MOVES decides alone.
FIRST: dict[str, tuple[Row, ...]] = {
    BACKWARD_SCALED: (
        # Accumulation that unscales too early, or a skipped step that leaves the stage behind.
        Row("backward@unscaled", _IS_CLEAN, _IS_UNSCALED),
        Row("unscale@window", frozenset({UNSCALED}), _IS_UNSCALED, _open),
        Row("", frozenset({SCALED}), when=_of_another, to=UNEVEN),
    ),
    UNSCALE: (
        Row("unscale@stepped", frozenset({STEPPED}), _IS_STEPPED),
        Row("unscale@step-pending", stages=_IS_STEPPED),
        Row("unscale@window", stages=_IS_UNSCALED, when=_open),
        Row("unscale@unscaled", stages=_IS_UNSCALED),
        Row("step@another", frozenset({SCALED}), when=_of_another),
        *_CLIPS,
    ),
    SCALER_STEP: (
        Row("step@stepped", stages=_IS_STEPPED),
        Row("step@another", frozenset({SCALED}), when=_of_another),
        *_CLIPS,
    ),
    RESTORE: _CLIPS,
    UPDATE: (
        Row("unscale@window", frozenset({UNSCALED}), when=_open, to=UNKNOWN),
        Row("update@window", frozenset({SCALED, OUTDATED}), frozenset(STAGES) - {READY}, when=_open, to=UNKNOWN),
    ),
    UPDATE_ALONE: (Row("update@window", UNDER_SCALE, when=_open), Row("update@nothing")),
    ZERO: (Row("zero@window", PENDING - {EXPOSED}, when=_inside_window),),
}
_WINDOW = (Row("step@undivided", when=_undivided), Row("step@apart", PENDING, when=_apart))
#: Nothing is left for the step, whatever the stage says to it.
_DISCARDED = Row("step@discarded", _IS_CLEAN, when=_discarded)
#: Input that ends a window -> faults of the window, each of which is committed besides.
ENDS: dict[str, tuple[Row, ...]] = {UNSCALE: (_DISCARDED,), SCALER_STEP: (_DISCARDED, *_WINDOW), STEP: _WINDOW}


class Given(NamedTuple):
    """What is known of an input besides its name; see :func:`move`."""

    by: int
    divided: bool
    held: bool
    inside: str
    apart: bool
    partly: bool


def move(
    opt: Opt,
    event: str,
    *,
    by: int = -1,
    divided: bool = True,
    held: bool = False,
    inside: str = "",
    apart: bool = False,
    partly: bool = False,
) -> tuple[Opt, tuple[str, ...]]:
    """The state after an input, and the labels of the faults it commits, in the order of their causes.

    ``by`` is the key of the scaler that acts, ``divided`` whether a backward's loss was divided, ``held`` whether it is
    already known that this iteration does not end the accumulation window, ``inside`` what is known of the loop that a
    backward runs in, ``apart`` whether it leaves out averaging over processes. ``partly`` says that a clip covers
    unscaled gradients of another optimizer too.
    """
    grads, fault = MOVES.get((opt.grads, event), (opt.grads, ""))
    faults = [fault]
    for row in FIRST.get(event, ()):
        if row.fits(opt, by):
            grads = row.to or grads
            faults = [row.fault, fault] if row.both else [row.fault]
            break
    faults += [row.fault for row in ENDS.get(event, ()) if row.fits(opt, by)]
    after = AFTER.get(event, _moved)(opt, grads, Given(by, divided, held, inside, apart, partly))
    return after, tuple(filter(None, faults))


def is_unfed(opt: Opt) -> bool:
    """Whether no backward has run since the optimizer was made."""
    return opt.grads == CLEAN and opt.by == -1 and not (opt.discarded or opt.veteran)


def possible(opt: Opt, event: str, fault: str) -> bool:
    """Whether a fault is committed only if a backward has reached gradients of which that is not known."""
    return opt.grads in PERHAPS and MOVES.get((opt.grads, event), ("", ""))[1] == fault


# What becomes of the rest of a state.


def _moved(opt: Opt, grads: str, given: Given) -> Opt:
    return opt._replace(grads=grads)


def _fed(opt: Opt, grads: str, given: Given) -> Opt:
    again = _inside_window(opt, given.by) and opt.grads in PENDING
    return opt._replace(
        grads=grads,
        held=given.held,
        inside=given.inside,
        apart=given.apart,
        many=opt.many or again,
        undivided=not given.divided and (opt.undivided or opt.grads not in PENDING),
        discarded=False,
    )


def _fed_scaled(opt: Opt, grads: str, given: Given) -> Opt:
    stage = ANY if opt.stage == STAGE_UNSCALED else opt.stage
    return _fed(opt, grads, given)._replace(stage=stage, by=given.by)


def _maybe_fed(opt: Opt, grads: str, given: Given) -> Opt:
    return opt._replace(
        grads=grads, held=given.held, inside=given.inside, apart=False, undivided=False, discarded=False
    )


def _maybe_fed_scaled(opt: Opt, grads: str, given: Given) -> Opt:
    mixed = opt.grads == SCALED and _of_another(opt, given.by)
    return _maybe_fed(opt, grads, given)._replace(by=opt.by if mixed else given.by)


def _unscaled(opt: Opt, grads: str, given: Given) -> Opt:
    return opt._replace(grads=grads, stage=STAGE_UNSCALED, by=given.by, clipped=False, partly=False, discarded=False)


def _scaler_stepped(opt: Opt, grads: str, given: Given) -> Opt:
    return Opt(grads, STAGE_STEPPED, given.by, veteran=True)


def _left(opt: Opt, grads: str, given: Given) -> Opt:
    """Stepped by itself, or given away: the window is over, and the stage cannot be known."""
    return Opt(grads, ANY, opt.by, veteran=opt.veteran)


def _taken(opt: Opt, grads: str, given: Given) -> Opt:
    """Where the gradients were another optimizer's, so was all that was seen of them."""
    if opt.grads not in PERHAPS:
        return opt
    return opt._replace(grads=grads, clipped=False, partly=False, held=False, inside="", apart=False)


def _restored(opt: Opt, grads: str, given: Given) -> Opt:
    return opt._replace(grads=grads, stage=ANY, clipped=False, partly=False)


def _updated(opt: Opt, grads: str, given: Given) -> Opt:
    return opt._replace(grads=grads, stage=READY)


def _now_clipped(opt: Opt, grads: str, given: Given) -> Opt:
    scaled = opt.grads in UNDER_SCALE
    return opt._replace(clipped=opt.clipped or scaled, partly=opt.partly or (scaled and given.partly))


def _zeroed(opt: Opt, grads: str, given: Given) -> Opt:
    lost = opt.grads in UNUSED
    return opt._replace(
        grads=grads,
        clipped=False,
        partly=False,
        held=False,
        inside="",
        apart=False,
        many=False,
        undivided=False,
        discarded=opt.discarded or lost,
    )


def _now_held(opt: Opt, grads: str, given: Given) -> Opt:
    return opt._replace(held=opt.held or opt.grads in PENDING)


def _made(opt: Opt, grads: str, given: Given) -> Opt:
    return Opt(grads, READY)


#: Input -> what it leaves of a state, given what the gradients have become; the rest stays for all others.
AFTER: dict[str, Callable[[Opt, str, Given], Opt]] = {
    BACKWARD_SCALED: _fed_scaled,
    BACKWARD_RAW: _fed,
    MAYBE_SCALED: _maybe_fed_scaled,
    MAYBE_RAW: _maybe_fed,
    UNSCALE: _unscaled,
    CLIP: _now_clipped,
    SCALER_STEP: _scaler_stepped,
    STEP: _left,
    UPDATE: _updated,
    UPDATE_ALONE: _updated,
    ZERO: _zeroed,
    RESTORE: _restored,
    TAKEN: _taken,
    HOLD: _now_held,
    HANDOFF: _left,
    NEW: _made,
}
