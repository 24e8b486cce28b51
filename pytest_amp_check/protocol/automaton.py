"""The gradient-scaling protocol as a typestate automaton, for one optimizer.

torch keeps, per (scaler, optimizer), only a *stage*: READY, UNSCALED, STEPPED. What ``.grad`` holds it does not know.
Here both are kept: the stage as torch has it, and the *grads* as they really are. ``move`` answers every input in every
state (a test says so), gives the next state, and the labels of the faults that the move commits.
"""

from __future__ import annotations

from .events import MICRO
from .named import NamedTuple

# What the gradients are.
UNKNOWN = "unknown"  # code that cannot be read may have changed them
CLEAN = "clean"  # none, or zeroed
FED = "fed"  # a scaled loss was run backward that may or may not reach them
RAW = "raw"  # gradients of an unscaled loss
SCALED = "scaled"
UNSCALED = "unscaled"  # divided by the scale by unscale_()
DIVIDED = "divided"  # divided by the scale by hand
BORROWED = "borrowed"  # unscaled through another optimizer that holds the same parameters, unknown to the scaler
MIXED = "mixed"  # scaled and raw gradients added up
UNEVEN = "uneven"  # gradients that two scalers have scaled, added up
OUTDATED = "outdated"  # scaled by a scale that update() has changed since
LAPSED = "lapsed"  # unscaled, but update() has made the scaler forget that
EARLY = "early"  # ... and scaled gradients were added to them
STEPPED = "stepped"  # used by scaler.step()
SPENT = "spent"  # used by optimizer.step()
GRADS = (
    UNKNOWN,
    CLEAN,
    FED,
    RAW,
    SCALED,
    UNSCALED,
    DIVIDED,
    BORROWED,
    MIXED,
    UNEVEN,
    OUTDATED,
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
    BORROW,
    HOLD,
    HANDOFF,
    NEW,
)

PENDING = frozenset({FED, RAW, SCALED, UNSCALED, DIVIDED, BORROWED, MIXED, UNEVEN, OUTDATED})
"""Gradients that wait for a step."""
UNDER_SCALE = frozenset({FED, SCALED, MIXED, UNEVEN, OUTDATED})
"""Gradients that are, or may be, multiplied by the loss scale."""


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
    unscale=UNSCALED,
    scaler_step=STEPPED,
    step=SPENT,
)
_row(CLEAN, backward_scaled=SCALED, backward_raw=RAW, maybe_scaled=FED, maybe_raw=UNKNOWN, unscale=UNSCALED)
_row(CLEAN, divide=UNKNOWN, scaler_step=STEPPED, step=SPENT)
_row(FED, backward_scaled=SCALED, backward_raw=UNKNOWN, maybe_raw=UNKNOWN, unscale=UNSCALED, divide=DIVIDED)
_row(FED, scaler_step=STEPPED, step=SPENT, update=UNKNOWN)
_row(RAW, backward_scaled=MIXED, maybe_scaled=UNKNOWN, unscale="unscaled step@raw")
_row(RAW, scaler_step="stepped step@raw", step=SPENT)
_row(SCALED, backward_raw=MIXED, maybe_raw=UNKNOWN, unscale=UNSCALED, divide=DIVIDED, edit="unknown edit@scaled")
_row(SCALED, scaler_step=STEPPED, step="spent plain-step@scaled", update=OUTDATED, read="scaled read@scaled")
_row(UNSCALED, backward_scaled="unknown backward@unscaled", backward_raw=UNKNOWN, divide="unknown step@divided")
_row(UNSCALED, scaler_step=STEPPED, step="spent plain-step@unscaled", update=LAPSED, update_alone=LAPSED)
_row(DIVIDED, backward_scaled=UNKNOWN, backward_raw=UNKNOWN, maybe_scaled=UNKNOWN, maybe_raw=UNKNOWN)
_row(SCALED, borrow=BORROWED)
_row(BORROWED, backward_scaled=UNKNOWN, backward_raw=UNKNOWN, maybe_scaled=UNKNOWN, maybe_raw=UNKNOWN, divide=UNKNOWN)
_row(BORROWED, unscale="unscaled step@borrowed", scaler_step="stepped step@borrowed", step=SPENT, update=UNKNOWN)
_row(DIVIDED, unscale="unscaled unscale@divided", scaler_step="stepped step@divided", step=SPENT)
_row(MIXED, maybe_scaled=UNKNOWN, maybe_raw=UNKNOWN, unscale="unscaled step@raw", divide=UNKNOWN)
_row(MIXED, scaler_step="stepped step@raw", step="spent plain-step@scaled", update=UNKNOWN)
_row(
    UNEVEN, backward_raw=MIXED, maybe_raw=UNKNOWN, divide=UNKNOWN, edit="unknown edit@scaled", read="uneven read@scaled"
)
_row(UNEVEN, unscale="unscaled step@uneven", scaler_step="stepped step@uneven", step="spent plain-step@scaled")
_row(UNEVEN, update=UNKNOWN)
_row(OUTDATED, backward_raw=MIXED, maybe_scaled=UNKNOWN, maybe_raw=UNKNOWN, divide=UNKNOWN)
_row(OUTDATED, unscale="unscaled update@pending", scaler_step="stepped update@pending", step="spent plain-step@scaled")
_row(LAPSED, backward_scaled=EARLY, backward_raw=UNKNOWN, maybe_scaled=UNKNOWN, maybe_raw=UNKNOWN, divide=UNKNOWN)
_row(LAPSED, unscale="unscaled step@unscaled-updated", scaler_step="stepped step@unscaled-updated")
_row(LAPSED, step="spent plain-step@unscaled")
_row(EARLY, backward_raw=UNKNOWN, maybe_scaled=UNKNOWN, maybe_raw=UNKNOWN, divide=UNKNOWN, update=UNKNOWN)
_row(EARLY, unscale="unscaled step@early", scaler_step="stepped step@early", step=SPENT)
_row(
    STEPPED,
    backward_scaled="scaled backward@stale",
    backward_raw=RAW,
    maybe_scaled=FED,
    unscale=UNSCALED,
    divide=UNKNOWN,
)
_row(STEPPED, step="spent plain-step@stepped")
_row(
    SPENT,
    backward_scaled=SCALED,
    backward_raw=RAW,
    maybe_scaled=FED,
    unscale=UNSCALED,
    divide=UNKNOWN,
    scaler_step=STEPPED,
)
for _grads in (SCALED, MIXED, UNEVEN, OUTDATED):
    _row(_grads, restore=RAW)
_row(FED, restore=UNKNOWN)
for _grads in GRADS:
    _row(_grads, zero=CLEAN, handoff=UNKNOWN, new=CLEAN)


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
    faults: tuple[str, ...] = (fault,) if fault else ()
    stage = opt.stage

    if event in (BACKWARD_SCALED, BACKWARD_RAW, MAYBE_SCALED, MAYBE_RAW):
        sure = event in (BACKWARD_SCALED, BACKWARD_RAW)
        if event == BACKWARD_SCALED and stage == STAGE_UNSCALED:
            # Accumulation that unscales too early, or a skipped step that leaves the stage behind.
            if opt.grads == CLEAN:
                faults = ("backward@unscaled",)
            elif opt.grads == UNSCALED and (opt.held or opt.inside):
                faults = ("unscale@window",)
            stage = ANY
        other = event in (BACKWARD_SCALED, MAYBE_SCALED) and opt.grads == SCALED and opt.by not in (by, -1)
        if other and event == BACKWARD_SCALED:
            grads = UNEVEN
        again = sure and (opt.held or opt.inside == MICRO) and opt.grads in PENDING
        undivided = not divided and (opt.undivided or opt.grads not in PENDING)
        return (
            opt._replace(
                grads=grads,
                stage=stage,
                by=by if event == BACKWARD_SCALED or (event == MAYBE_SCALED and not other) else opt.by,
                held=held,
                inside=inside,
                apart=apart and sure,
                many=opt.many or again,
                undivided=undivided if sure else False,
                discarded=False,
            ),
            faults,
        )

    if event in (UNSCALE, SCALER_STEP):
        if opt.clipped:
            faults = ("clip@partly" if opt.partly else "clip@scaled", *faults)
        if opt.discarded and opt.grads == CLEAN:
            faults = ("step@discarded",)
        if stage == STAGE_STEPPED:
            if event == SCALER_STEP:
                faults = ("step@stepped",)
            else:
                faults = ("unscale@stepped",) if opt.grads == STEPPED else ("unscale@step-pending",)
        elif stage == STAGE_UNSCALED and event == UNSCALE:
            faults = ("unscale@window",) if opt.held or opt.inside else ("unscale@unscaled",)
        if event == UNSCALE:
            return opt._replace(
                grads=grads, stage=STAGE_UNSCALED, by=by, clipped=False, partly=False, discarded=False
            ), faults
        return Opt(grads, STAGE_STEPPED, by, veteran=True), (*faults, *_at_step(opt))

    if event == STEP:
        faults = (*faults, *_at_step(opt))
        return Opt(grads, ANY, opt.by, veteran=opt.veteran), faults
    if event == RESTORE:
        if opt.clipped:
            faults = ("clip@partly" if opt.partly else "clip@scaled",)
        return opt._replace(grads=grads, stage=ANY, clipped=False, partly=False), faults
    if event == CLIP:
        clipped = opt.grads in UNDER_SCALE
        return opt._replace(clipped=opt.clipped or clipped, partly=opt.partly or (clipped and partly)), faults
    if event == UPDATE_ALONE:
        pending = (opt.held or opt.inside) and opt.grads in UNDER_SCALE
        return opt._replace(grads=grads, stage=READY), ("update@window",) if pending else ("update@nothing",)
    if event == UPDATE:
        if opt.grads == UNSCALED and (opt.held or opt.inside):
            return opt._replace(grads=UNKNOWN, stage=READY), ("unscale@window",)
        if opt.grads in (SCALED, OUTDATED) and (opt.held or opt.inside) and stage != READY:
            return opt._replace(grads=UNKNOWN, stage=READY), ("update@window",)
        return opt._replace(grads=grads, stage=READY), faults
    if event == ZERO:
        lost = opt.grads in PENDING
        if lost and (opt.held or opt.inside == MICRO):
            faults = ("zero@window",)
        held = opt.held or bool(opt.inside)
        discarded = (opt.grads in UNDER_SCALE or opt.grads == UNSCALED) and not held
        return opt._replace(
            grads=grads,
            clipped=False,
            partly=False,
            held=False,
            inside="",
            apart=False,
            many=False,
            undivided=False,
            discarded=discarded or opt.discarded,
        ), faults
    if event == HOLD:
        return opt._replace(held=opt.held or opt.grads in PENDING), faults
    if event == HANDOFF:
        return Opt(grads, ANY, opt.by, veteran=opt.veteran), faults
    if event == NEW:
        return Opt(grads, READY), faults
    return opt._replace(grads=grads), faults


def _at_step(opt: Opt) -> tuple[str, ...]:
    """The faults of the window that a step ends."""
    faults = []
    if opt.many and opt.undivided:
        faults.append("step@undivided")
    if opt.apart and opt.grads in PENDING:
        faults.append("step@apart")
    return tuple(faults)
