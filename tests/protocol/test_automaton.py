"""The automaton handles every input and rejects only mistakes. The check of a graph does not enumerate paths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product, starmap
from typing import Any

import pytest
from drawing import Drawing
from event_fields import every_kind
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import shown
from samples import reduced, sample

from pytest_amp_check.protocol import automaton as a
from pytest_amp_check.protocol import effects, graph_exploration
from pytest_amp_check.protocol import events as e
from pytest_amp_check.protocol.automaton import OptimizerState, transition
from pytest_amp_check.protocol.effects.violations import EXCUSES
from pytest_amp_check.protocol.events import Event
from pytest_amp_check.protocol.graph_checker import check
from pytest_amp_check.protocol.rules import LABELS, RULES

#: Without a deadline, because a busy machine is not a failure.
quick = settings(max_examples=60, deadline=None)
FLAGS = ("window_open", "several_backwards", "loss_undivided", "grads_discarded", "stepped_before")
#: All values of the flags about clips.
CLIPS = tuple(starmap(a.Clips, product((False, True), repeat=len(a.Clips._fields))))
INSIDE = ("", e.LOOSE, e.MICRO)
#: Labels with an ``@`` that the graph checker or a rule's own check reports.
OF_OTHERS = {
    "backward@ranks",
    "step@ranks",
    "update@ranks",
    "backward@stale-again",
    "backward@unscaled-early",
    "backward@unscaled-second",
    "update@left-out",
    "update@new-scale",
    "update@pending-framework",
    "update@nothing-framework",
    "unscale@window-framework",
    "scale@outside-autocast",
    "scale@outside-autocast-unknown",
    "write@region-then-forward",
    "enter@entered",
    "backward@region",
    "backward@float8",
    "step@region",
    "bce@region",
    "bce@region-cpu",
    "loss@outside",
    "loss@outside-bf16",
    "loss@outside-choice",
    "new@used",
    "end@stepped",
    "state@stepped",
    "penalty@scaled",
    "penalty@outdated",
    "scale@scaled",
    "backward@uneven",
    "backward@averaged",
    "scale@no-autocast",
    "scale@no-autocast-unknown",
    "scale@forward-outside",
    "forward@poisoned",
    "clip@scaled-framework",
    "clip@scaled-in-window",
    "edit@scaled-framework",
    "read@scaled-framework",
    "clip@scaled-by-hand",
    "clip@scaled-callback",
    "clip@copies",
    "clip@stepped",
    "backward@leftover",
    "update@each",
    "step@raw-framework",
    "step@raw-given",
    "plain-step@scaled-framework",
    "backward@unscaled-framework",
    "bce@framework",
    "step@undivided-vague",
    "clip@shards",
    "compiled@region",
    "left-out@rank",
    "graph@cached-region",
    "graphed@cached-region",
    "hook@scaled",
    "replicas@region",
    "step@shards-fused",
    "step@shards-plain",
    "thread@region",
    "trace@cached-region",
    "edit@backward",
    "clip@with-scaled",
}
OF_THE_AUTOMATON = {label for label in LABELS if "@" in label} - OF_OTHERS


def test_a_kind_is_worth_something_where_it_does_something_to_a_state() -> None:
    kinds = set(every_kind())
    assert {kind for kind in kinds if kind.traits.predicate_worth != e.UNTESTED} <= set(effects.HANDLERS) <= kinds


# Totality.


def every_state() -> Iterable[OptimizerState]:
    for grads, stage in product(a.GRADS, a.STAGES):
        for clips, flags in product(CLIPS, product((False, True), repeat=len(FLAGS))):
            for inside, no_sync in (("", False), (e.LOOSE, False), (e.MICRO, True)):
                yield OptimizerState(
                    grads, stage, 0, clips, **dict(zip(FLAGS, flags, strict=True)), loop_kind=inside, no_sync=no_sync
                )


#: Optional arguments of inputs that may have an effect. Of a backward: loss divided, averaging omitted, and kind of
#: loop; of a clip: other covered gradients. One other scaler is sufficient for the inputs that scale.
FACTS: dict[str, list[tuple[int, bool, bool, str]]] = {
    **{
        event: list(product((0,), (True, False), (True, False), INSIDE))
        for event in (a.BACKWARD_RAW, a.MAYBE_SCALED, a.MAYBE_RAW)
    },
    a.BACKWARD_SCALED: list(product((0, 1), (True, False), (True, False), INSIDE)),
    a.CLIP: [(0, True, True, ""), (0, True, False, "")],
}


class Search:
    """A search of the states reachable from an optimizer's construction, as far as a test needs it.

    ``labels`` has the first state and input of each label that was found so far.
    """

    def __init__(self) -> None:
        self.labels: dict[str, tuple[OptimizerState, str]] = {}
        self._states = [OptimizerState(), OptimizerState(a.CLEAN, a.READY)]
        self._seen = set(self._states)
        self._answered = 0

    def states(self) -> Iterator[OptimizerState]:
        """Yield all reachable states, in the order in which they are found."""
        index = 0
        while index < len(self._states):
            yield self._states[index]
            index += 1
            # The inputs that a state answers are tried once, however many tests ask for the states.
            if index > self._answered:
                self._answer(self._states[self._answered])
                self._answered += 1

    def _answer(self, state: OptimizerState) -> None:
        for event in a.INPUTS:
            for by, divided, partly, inside in FACTS.get(event, [(0, True, False, "")]):
                # Few of these inputs are answered twice: a cache would only be filled.
                after, labels = transition.__wrapped__(
                    state,
                    event,
                    scaler_key=by,
                    loss_divided=divided,
                    clipped_mixed=partly,
                    loop_kind=inside,
                    no_sync=partly,
                )
                for label in labels:
                    self.labels.setdefault(label, (state, event))
                if after not in self._seen:
                    self._seen.add(after)
                    self._states.append(after)


@pytest.fixture(scope="module")
def search() -> Search:
    return Search()


@pytest.mark.long
def test_every_state_answers_every_input() -> None:
    # One input for each result: there are a million inputs.
    states: dict[OptimizerState, tuple[OptimizerState, str]] = {}
    reported: dict[tuple[str, ...], tuple[OptimizerState, str]] = {}
    for state in sample(every_state(), 19):
        for event, divided in product(a.INPUTS, (True, False)):
            after, labels = transition.__wrapped__(
                state,
                event,
                scaler_key=0,
                loss_divided=divided,
                window_open=state.window_open,
                loop_kind=state.loop_kind,
                clipped_mixed=not divided,
            )
            states.setdefault(after, (state, event))
            reported.setdefault(labels, (state, event))
    for after, question in states.items():
        assert after.loop_kind in INSIDE, question
        assert after.grads in a.GRADS, question
        assert after.stage in a.STAGES, question
        assert after.scaler_key in (0, -1), question
        assert all(isinstance(getattr(after, flag), bool) for flag in FLAGS), question
        assert after.clips in CLIPS, question
    for labels, question in reported.items():
        assert len(set(labels)) == len(labels), question
        assert set(labels) <= set(LABELS), question


def test_the_words_of_the_automaton_are_all_different() -> None:
    for words in (a.GRADS, a.STAGES, a.INPUTS):
        assert len(set(words)) == len(words)
    assert a.PENDING.issubset(a.GRADS)
    assert a.UNDER_SCALE < a.PENDING


def test_the_table_consists_of_known_states_inputs_and_labels() -> None:
    for (grads, event), (after, label) in a.MOVES.items():
        assert grads in a.GRADS
        assert event in a.INPUTS
        assert after in a.GRADS
        assert not label or label in OF_THE_AUTOMATON


@pytest.mark.parametrize("moves", [{"unscaled": a.RAW}, {"unscale": "unscalled"}])
def test_a_move_of_an_unknown_word_fails_at_once(moves: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="no input of INPUTS, or no gradient content of GRADS"):
        a._add_moves(a.SCALED, **moves)


def test_each_row_of_the_tables_decides_in_some_state_that_is_reached(search: Search) -> None:
    for table in (a.FIRST, a.ENDS):
        for event, rows in table.items():
            assert event in a.INPUTS
            assert {row.label for row in rows} <= OF_THE_AUTOMATON | {""}
            decided: set[Any] = set()
            for state, by in ((state, by) for state in search.states() for by in (0, 1)):
                fits = [row for row in rows if row.matches_state(state, by)]
                decided |= set(fits[:1] if table is a.FIRST else fits)
                if len(decided) == len(rows):
                    break
            assert decided == set(rows), event


def test_an_input_that_is_not_in_the_table_leaves_the_gradients_as_they_are() -> None:
    flags = (a.CLIP, a.READ, a.HOLD)
    for grads, event in product(a.GRADS, a.INPUTS):
        if (grads, event) not in a.MOVES:
            after, _ = transition(OptimizerState(grads), event, scaler_key=0)
            assert after.grads == grads
            assert event not in flags or after.stage == a.ANY


def test_every_state_of_the_gradients_and_every_stage_can_be_reached(search: Search) -> None:
    grads, stages = set(a.GRADS), set(a.STAGES)
    for state in search.states():
        grads.discard(state.grads)
        stages.discard(state.stage)
        if not grads and not stages:
            break
    assert (grads, stages) == (set(), set())


def test_each_label_of_the_automaton_is_owned_and_can_be_given(search: Search) -> None:
    for _ in search.states():
        if search.labels.keys() >= OF_THE_AUTOMATON:
            break
    assert search.labels.keys() == OF_THE_AUTOMATON


def test_violations_refer_to_known_labels_kinds_and_exemptions() -> None:
    exemptions = set()
    for _, violation in LABELS.values():
        assert {*violation.precedence.yields_to, *violation.precedence.yields_where_detected} <= set(LABELS)
        assert {other for _, other in violation.cause.label_overrides} <= LABELS.keys()
        assert all(issubclass(kind, e.Event) for kind in (*violation.cause.kinds, *violation.trace_kinds))
        assert violation.cause.kinds or not (violation.cause.every or violation.cause.unscaled_only)
        exemptions |= {violation.exemption} - {""}
    assert exemptions == set(EXCUSES), "an exemption that no violation names, or the reverse"


def test_a_violation_is_reported_once() -> None:
    """A violation does not repeat in the same sequence: after a step and an update, the state is reset."""
    for state in sample(every_state(), 5, 1):
        for way in ((a.SCALER_STEP, a.UPDATE, a.ZERO), (a.HANDOFF, a.SCALER_STEP, a.UPDATE, a.ZERO), (a.NEW,)):
            after = state
            for event in way:
                after, _ = transition(after, event, scaler_key=0)
            assert after.grads == a.CLEAN
            for event in (a.BACKWARD_SCALED, a.UNSCALE, a.CLIP, a.SCALER_STEP, a.UPDATE, a.ZERO):
                after, labels = transition(after, event, scaler_key=0)
                assert not labels, (state, way, event)


# Words.

Letter = tuple[str, bool]
#: A clip that covers unscaled gradients of another optimizer as well.
CLIP_PARTLY: Letter = (a.CLIP, False)
MICRO, LOOSE, NO_SYNC, OTHER = (f"{a.BACKWARD_SCALED} {where}" for where in (e.MICRO, e.LOOSE, "no_sync", "other"))


def spell(word: Sequence[str | Letter], start: OptimizerState | None = None) -> tuple[OptimizerState, list[str]]:
    """Run the automaton on a word. Return the last state, and the violations in order.

    ``("backward-scaled", False)`` is a loss that is not divided. A suffix of the input names its context: in a loop
    that leaves the step to later code (``micro``, ``loose``), under no_sync (``no_sync``), or by another scaler
    (``other``).
    """
    state = OptimizerState(a.CLEAN, a.READY) if start is None else start
    labels: list[str] = []
    for letter in word:
        event, plain = (letter, True) if isinstance(letter, str) else letter
        event, _, where = event.partition(" ")
        inside = where if where in INSIDE else ""
        by = int(where == "other")
        state, more = transition(
            state,
            event,
            scaler_key=by,
            loss_divided=plain,
            clipped_mixed=not plain,
            loop_kind=inside,
            no_sync=where == "no_sync",
        )
        labels.extend(more)
    return state, labels


@st.composite
def windows(draw: st.DrawFn) -> list[str | Letter]:
    """Draw one legal window: (backward)^k [unscale (clip | read | edit)*] step update, and zero_grad after the step."""
    micro = draw(st.integers(1, 4))
    word: list[str | Letter] = []
    for n in range(micro):
        word.append((a.BACKWARD_SCALED, micro > 1 or draw(st.booleans())))
        if n < micro - 1:
            word.append(a.HOLD)
    if draw(st.booleans()):
        word.append(a.UNSCALE)
        word += draw(st.lists(st.sampled_from([a.CLIP, a.READ, a.EDIT]), max_size=4))
    tail = [a.SCALER_STEP, a.UPDATE]
    tail.insert(draw(st.integers(1, 2)), a.ZERO)
    return [*word, *tail, *draw(st.lists(st.just(a.ZERO), max_size=1))]


@quick
@given(
    st.lists(windows(), min_size=1, max_size=5), st.sampled_from([OptimizerState(), OptimizerState(a.CLEAN, a.READY)])
)
def test_no_legal_word_is_rejected(training: list[list[str | Letter]], start: OptimizerState) -> None:
    state, labels = spell([letter for window in training for letter in window], start)
    assert not labels
    assert (state.grads, state.stage) == (a.CLEAN, a.READY)


@quick
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.lists(st.sampled_from([a.CLIP, a.READ, a.EDIT]), max_size=3)),
        min_size=1,
        max_size=5,
    )
)
def test_training_without_a_scaler_is_not_faulted(training: list[tuple[int, list[str]]]) -> None:
    for micro, touched in training:
        word = [a.BACKWARD_RAW, a.HOLD] * (micro - 1) + [a.BACKWARD_RAW, *touched, a.STEP, a.ZERO]
        assert spell(word)[1] == []


@quick
@given(windows(), windows(), st.data())
def test_a_step_that_is_skipped_with_an_update_is_legal(
    first: list[str | Letter], second: list[str | Letter], data: st.DataObject
) -> None:
    skipped: list[str | Letter] = [a.BACKWARD_SCALED, a.UNSCALE, a.CLIP, a.ZERO, a.UPDATE]
    words = data.draw(st.permutations([first, second, skipped]))
    assert spell([letter for word in words for letter in word])[1] == []


@quick
@given(st.lists(st.sampled_from(a.INPUTS), max_size=30), windows())
def test_after_any_word_a_handoff_and_a_whole_window_make_peace(before: list[str], window: list[str | Letter]) -> None:
    state, _ = spell(before)
    state, _ = spell([a.HANDOFF, a.SCALER_STEP, a.UPDATE, a.ZERO], state)
    assert spell(window, state)[1] == []


ONCE: list[str | Letter] = [a.BACKWARD_SCALED, a.SCALER_STEP, a.UPDATE, a.ZERO]
ILLEGAL: list[tuple[str, Sequence[str | Letter], str]] = [
    # Mistakes that torch raises.
    ("unscale twice", [a.BACKWARD_SCALED, a.UNSCALE, a.UNSCALE], "unscale@unscaled"),
    ("unscale after the step", [a.BACKWARD_SCALED, a.SCALER_STEP, a.UNSCALE], "unscale@stepped"),
    ("no update", [a.BACKWARD_SCALED, a.SCALER_STEP, a.ZERO, a.BACKWARD_SCALED, a.SCALER_STEP], "step@stepped"),
    (
        "no update, seen by unscale",
        [a.BACKWARD_SCALED, a.UNSCALE, a.SCALER_STEP, a.ZERO, a.BACKWARD_SCALED, a.UNSCALE],
        "unscale@step-pending",
    ),
    ("step without gradients", [a.BACKWARD_SCALED, a.ZERO, a.SCALER_STEP], "step@discarded"),
    ("unscale without gradients", [a.BACKWARD_SCALED, a.ZERO, a.UNSCALE], "step@discarded"),
    (
        "... after an iteration without a step",
        [a.BACKWARD_SCALED, a.UNSCALE, a.UPDATE, a.BACKWARD_SCALED, a.ZERO, a.UNSCALE],
        "step@discarded",
    ),
    ("plain step without gradients", [a.BACKWARD_RAW, a.ZERO, a.STEP], "plain-step@discarded"),
    ("update twice", [*ONCE, a.BACKWARD_SCALED, a.SCALER_STEP, a.UPDATE, a.UPDATE_ALONE], "update@nothing"),
    # Mistakes that torch does not raise.
    ("S01 clip before unscale", [a.BACKWARD_SCALED, a.CLIP, a.SCALER_STEP], "clip@scaled"),
    ("S01 clip before a late unscale", [a.BACKWARD_SCALED, a.CLIP, a.UNSCALE], "clip@scaled"),
    ("S03 edit of scaled gradients", [a.BACKWARD_SCALED, a.EDIT], "edit@scaled"),
    ("S04 step of scaled gradients", [a.BACKWARD_SCALED, a.STEP], "plain-step@scaled"),
    ("S05 step past the inf check", [a.BACKWARD_SCALED, a.UNSCALE, a.STEP], "plain-step@unscaled"),
    ("a second step", [a.BACKWARD_SCALED, a.SCALER_STEP, a.STEP], "plain-step@stepped"),
    ("S06 raw gradients", [a.BACKWARD_RAW, a.SCALER_STEP], "step@raw"),
    ("S06 raw gradients unscaled", [a.BACKWARD_RAW, a.UNSCALE], "step@raw"),
    ("S07 scaled and raw", [a.BACKWARD_SCALED, a.BACKWARD_RAW, a.SCALER_STEP], "step@raw"),
    ("S07 raw and scaled", [a.BACKWARD_RAW, a.BACKWARD_SCALED, a.SCALER_STEP], "step@raw"),
    ("S04 direct step of what may be fed, after an update", [a.MAYBE_SCALED, a.UPDATE, a.STEP], "plain-step@aged"),
    ("scaled and raw, stepped directly", [a.BACKWARD_SCALED, a.BACKWARD_RAW, a.STEP], "plain-step@scaled"),
    ("S09 update before the step", [a.BACKWARD_SCALED, a.UPDATE, a.SCALER_STEP], "update@pending"),
    ("another scaler's gradients stepped", [OTHER, a.SCALER_STEP], "step@another"),
    ("another scaler's gradients unscaled", [OTHER, a.UNSCALE], "step@another"),
    ("S09 update before unscale", [a.BACKWARD_SCALED, a.UPDATE, a.UNSCALE], "update@pending"),
    ("S09 update before the step of what may be fed", [a.MAYBE_SCALED, a.UPDATE, a.SCALER_STEP], "update@aged"),
    (
        "S11 update between unscale and step",
        [a.BACKWARD_SCALED, a.UNSCALE, a.UPDATE, a.SCALER_STEP],
        "step@unscaled-updated",
    ),
    ("S12 skip without update", [a.BACKWARD_SCALED, a.UNSCALE, a.ZERO, a.BACKWARD_SCALED], "backward@unscaled"),
    ("S12 more scaled gradients after unscale", [a.BACKWARD_SCALED, a.UNSCALE, a.BACKWARD_SCALED], "backward@unscaled"),
    ("S13 divided by hand", [a.BACKWARD_SCALED, a.DIVIDE, a.SCALER_STEP], "step@divided"),
    ("S13 divided by hand and unscaled", [a.BACKWARD_SCALED, a.DIVIDE, a.UNSCALE], "unscale@divided"),
    ("S13 unscaled and divided by hand", [a.BACKWARD_SCALED, a.UNSCALE, a.DIVIDE], "step@divided"),
    ("S14 unscaled through another object", [a.BACKWARD_SCALED, a.BORROW, a.SCALER_STEP], "step@borrowed"),
    ("S15 parameters of two optimizers", [a.BACKWARD_SCALED, a.BORROW, a.UNSCALE], "step@borrowed"),
    ("S17 clip with unscaled ones", [a.BACKWARD_SCALED, CLIP_PARTLY, a.SCALER_STEP], "clip@partly"),
    ("S17 clip with unscaled ones, late unscale", [a.BACKWARD_SCALED, CLIP_PARTLY, a.UNSCALE], "clip@partly"),
    ("S21 scaled gradients read", [a.BACKWARD_SCALED, a.READ], "read@scaled"),
    ("S23 never zeroed", [a.BACKWARD_SCALED, a.SCALER_STEP, a.UPDATE, a.BACKWARD_SCALED], "backward@stale"),
    (
        "S40 losses not divided",
        [(a.BACKWARD_SCALED, False), a.HOLD, (a.BACKWARD_SCALED, False), a.SCALER_STEP],
        "step@undivided",
    ),
    (
        "S40 losses not divided, without a scaler",
        [(a.BACKWARD_RAW, False), a.HOLD, (a.BACKWARD_RAW, False), a.STEP],
        "step@undivided",
    ),
    ("S41 unscale in the window", [a.BACKWARD_SCALED, a.UNSCALE, a.HOLD, a.BACKWARD_SCALED], "unscale@window"),
    (
        "S42 unscale and update in the window",
        [a.BACKWARD_SCALED, a.UNSCALE, a.HOLD, a.UPDATE],
        "unscale@window",
    ),
    (
        "S42 unscale and update where no step follows",
        [a.BACKWARD_SCALED, a.UNSCALE, a.UPDATE, a.BACKWARD_SCALED, a.UNSCALE],
        "step@early",
    ),
    (
        "S42 the same, seen by the step",
        [a.BACKWARD_SCALED, a.UNSCALE, a.UPDATE, a.BACKWARD_SCALED, a.SCALER_STEP],
        "step@early",
    ),
    ("S42 update in the window", [a.BACKWARD_SCALED, a.HOLD, a.UPDATE_ALONE], "update@window"),
    ("S43 zero in the window", [a.BACKWARD_SCALED, a.HOLD, a.ZERO], "zero@window"),
    ("S28 two scalers", [a.BACKWARD_SCALED, OTHER, a.SCALER_STEP], "step@uneven"),
    ("S28 two scalers, seen by unscale", [OTHER, a.BACKWARD_SCALED, a.UNSCALE], "step@uneven"),
    ("S40 in an inner loop", [(MICRO, False), (MICRO, False), a.SCALER_STEP], "step@undivided"),
    ("S41 in an inner loop", [MICRO, a.UNSCALE, MICRO], "unscale@window"),
    ("S41 in any loop without a step", [LOOSE, a.UNSCALE, LOOSE], "unscale@window"),
    ("S42 in an inner loop", [MICRO, a.UPDATE_ALONE], "update@window"),
    ("S42 in an inner loop, unscaled", [LOOSE, a.UNSCALE, a.UPDATE], "unscale@window"),
    ("S43 in an inner loop", [MICRO, a.ZERO], "zero@window"),
    ("a clip in each micro-batch", [a.BACKWARD_RAW, a.CLIP, a.HOLD, a.BACKWARD_RAW], "clip@window"),
    ("a clip in an inner loop", [MICRO, a.CLIP, MICRO], "clip@window"),
    ("the last backward under no_sync", [a.BACKWARD_SCALED, NO_SYNC, a.SCALER_STEP], "step@apart"),
    ("the last backward under no_sync, without a scaler", [f"{a.BACKWARD_RAW} no_sync", a.STEP], "step@apart"),
]


@pytest.mark.parametrize(("word", "label"), [row[1:] for row in ILLEGAL], ids=[row[0] for row in ILLEGAL])
def test_an_illegal_word_is_faulted_once(word: Sequence[str | Letter], label: str) -> None:
    assert spell(word[:-1])[1] == [], "the violation comes too early"
    assert spell(word)[1] == [label]


@pytest.mark.parametrize(("word", "label"), [row[1:] for row in ILLEGAL], ids=[row[0] for row in ILLEGAL])
@settings(max_examples=reduced(15, 0.35), deadline=None)
@given(before=st.lists(windows(), max_size=3))
def test_an_illegal_word_is_faulted_after_any_legal_ones(
    word: Sequence[str | Letter], label: str, before: list[list[str | Letter]]
) -> None:
    legal = [letter for window in before for letter in window]
    assert spell([*legal, *word])[1] == [label]


#: A state with every attribute set.
FULL = OptimizerState(
    a.SCALED, a.STAGE_UNSCALED, 7, a.Clips(True, True, True), True, True, True, True, True, e.LOOSE, True
)
#: Attributes after the end of a window.
OVER: dict[str, Any] = {"window_open": False, "loop_kind": "", "no_sync": False}
ALONE: dict[str, Any] = {"clips": a.Clips(in_window=True), **OVER}
FORGOTTEN: dict[str, Any] = {**OVER, "several_backwards": False, "loss_undivided": False, "grads_discarded": False}
FORGOTTEN |= {"clips": a.NO_CLIPS}
#: Clips of earlier micro-batches of the window.
EARLIER = a.Clips(True, True, False)
#: A state, an input with arguments, and the changed attributes of the state. All others stay.
LEFT: list[tuple[OptimizerState, str, dict[str, Any], dict[str, Any]]] = [
    (
        FULL,
        a.BACKWARD_SCALED,
        {"scaler_key": 7},
        {"stage": a.ANY, **OVER, "loss_undivided": False, "grads_discarded": False, "clips": EARLIER},
    ),
    (
        FULL,
        a.BACKWARD_SCALED,
        {"scaler_key": 7, "loss_divided": False, "window_open": True, "loop_kind": e.MICRO, "no_sync": True},
        {"stage": a.ANY, "loop_kind": e.MICRO, "grads_discarded": False, "clips": EARLIER},
    ),
    (
        FULL,
        a.BACKWARD_SCALED,
        {"scaler_key": 3, "loss_divided": False},
        {
            "grads": a.UNEVEN,
            "stage": a.ANY,
            "scaler_key": 3,
            **OVER,
            "grads_discarded": False,
            "clips": EARLIER,
        },
    ),
    (
        FULL,
        a.BACKWARD_RAW,
        {},
        {"grads": a.MIXED, **OVER, "loss_undivided": False, "grads_discarded": False, "clips": EARLIER},
    ),
    (
        FULL,
        a.MAYBE_SCALED,
        {"scaler_key": 3, "loss_divided": False},
        {**OVER, "loss_undivided": False, "grads_discarded": False},
    ),
    (
        FULL._replace(grads=a.FED),
        a.MAYBE_SCALED,
        {"scaler_key": 3, "window_open": True, "loop_kind": e.MICRO, "no_sync": True},
        {"scaler_key": 3, "loop_kind": e.MICRO, "no_sync": False, "loss_undivided": False, "grads_discarded": False},
    ),
    (
        FULL,
        a.MAYBE_RAW,
        {"scaler_key": 3},
        {"grads": a.EITHER, **OVER, "loss_undivided": False, "grads_discarded": False},
    ),
    (
        FULL,
        a.UNSCALE,
        {"scaler_key": 7},
        {"grads": a.UNSCALED, "clips": a.Clips(in_window=True), "grads_discarded": False},
    ),
    (
        FULL,
        a.SCALER_STEP,
        {"scaler_key": 3},
        {"grads": a.STEPPED, "stage": a.STAGE_STEPPED, "scaler_key": 3, **FORGOTTEN},
    ),
    (FULL, a.STEP, {"scaler_key": 3}, {"grads": a.SPENT, "stage": a.ANY, **FORGOTTEN}),
    (FULL, a.HANDOFF, {"scaler_key": 3}, {"grads": a.UNKNOWN, "stage": a.ANY, **FORGOTTEN}),
    (
        FULL,
        a.NEW,
        {"scaler_key": 3},
        {"grads": a.CLEAN, "stage": a.READY, "scaler_key": -1, "stepped_before": False, **FORGOTTEN},
    ),
    (FULL, a.UPDATE, {"scaler_key": 7}, {"grads": a.UNKNOWN, "stage": a.READY}),
    (FULL._replace(**OVER), a.UPDATE, {"scaler_key": 7}, {**OVER, "grads": a.OUTDATED, "stage": a.READY}),
    (FULL, a.UPDATE_ALONE, {"scaler_key": 7}, {"stage": a.READY}),
    (FULL, a.ZERO, {}, {"grads": a.CLEAN, **FORGOTTEN, "grads_discarded": True}),
    (FULL._replace(grads_discarded=False), a.ZERO, {}, {"grads": a.CLEAN, **FORGOTTEN, "grads_discarded": True}),
    (
        FULL._replace(grads_discarded=False, **OVER),
        a.ZERO,
        {},
        {"grads": a.CLEAN, **FORGOTTEN, "grads_discarded": True},
    ),
    (FULL, a.RESTORE, {}, {"grads": a.RAW, "stage": a.ANY, "clips": a.Clips(in_window=True)}),
    (FULL, a.TAKEN, {}, {}),
    (FULL._replace(grads=a.FED), a.TAKEN, {}, {"grads": a.SHARED, **ALONE}),
    (FULL._replace(grads=a.EXPOSED), a.TAKEN, {}, {"grads": a.UNKNOWN, **ALONE}),
    (FULL, a.CLIP, {}, {}),
    (FULL, a.HOLD, {}, {}),
    (FULL, a.READ, {}, {}),
    (FULL, a.EDIT, {}, {"grads": a.UNKNOWN}),
    (FULL, a.DIVIDE, {}, {"grads": a.DIVIDED}),
    (FULL, a.BORROW, {}, {"grads": a.BORROWED}),
    # Attributes that are not set.
    (OptimizerState(a.SCALED, a.READY), a.BACKWARD_SCALED, {"scaler_key": 3, "loss_divided": False}, {"scaler_key": 3}),
    (
        OptimizerState(a.CLEAN, a.READY),
        a.BACKWARD_SCALED,
        {"scaler_key": 3, "loss_divided": False},
        {"grads": a.SCALED, "scaler_key": 3, "loss_undivided": True},
    ),
    (OptimizerState(a.SCALED, a.READY, 3), a.BACKWARD_SCALED, {"scaler_key": 3, "loss_divided": False}, {}),
    (
        OptimizerState(a.SCALED, a.READY, 3, loss_undivided=True),
        a.BACKWARD_SCALED,
        {"scaler_key": 3, "loss_divided": False},
        {},
    ),
    (
        OptimizerState(a.SCALED, a.READY, 3, loss_undivided=True),
        a.BACKWARD_SCALED,
        {"scaler_key": 3},
        {"loss_undivided": False},
    ),
    (
        OptimizerState(a.SCALED, a.READY, 3, window_open=True),
        a.BACKWARD_SCALED,
        {"scaler_key": 3},
        {"window_open": False, "several_backwards": True},
    ),
    (
        OptimizerState(a.SCALED, a.READY, 3, loop_kind=e.MICRO),
        a.BACKWARD_SCALED,
        {"scaler_key": 3},
        {"loop_kind": "", "several_backwards": True},
    ),
    (OptimizerState(a.SCALED, a.READY, 3, loop_kind=e.LOOSE), a.BACKWARD_SCALED, {"scaler_key": 3}, {"loop_kind": ""}),
    (OptimizerState(a.CLEAN, a.READY, window_open=True), a.BACKWARD_RAW, {}, {"grads": a.RAW, "window_open": False}),
    (OptimizerState(a.CLEAN), a.CLIP, {}, {}),
    (OptimizerState(a.RAW), a.CLIP, {}, {"clips": a.Clips(in_window=True)}),
    (OptimizerState(a.SCALED), a.CLIP, {}, {"clips": a.Clips(while_scaled=True, in_window=True)}),
    (
        OptimizerState(a.SCALED),
        a.CLIP,
        {"clipped_mixed": True},
        {"clips": a.Clips(True, True, True)},
    ),
    (OptimizerState(a.UNSCALED), a.CLIP, {"clipped_mixed": True}, {"clips": a.Clips(in_window=True)}),
    (
        OptimizerState(a.SCALED, clips=a.Clips(while_scaled=True)),
        a.CLIP,
        {"clipped_mixed": True},
        {"clips": a.Clips(True, True, True)},
    ),
    (OptimizerState(a.RAW, clips=a.Clips(in_window=True)), a.BACKWARD_RAW, {}, {"clips": a.NO_CLIPS}),
    (OptimizerState(a.SCALED), a.HOLD, {}, {"window_open": True}),
    (OptimizerState(a.CLEAN), a.HOLD, {}, {}),
    (OptimizerState(a.CLEAN, window_open=True), a.HOLD, {}, {}),
    (OptimizerState(a.UNSCALED), a.ZERO, {}, {"grads": a.CLEAN, "grads_discarded": True}),
    (OptimizerState(a.RAW), a.ZERO, {}, {"grads": a.CLEAN, "grads_discarded": True}),
    (OptimizerState(a.SPENT), a.ZERO, {}, {"grads": a.CLEAN}),
    (OptimizerState(a.CLEAN, grads_discarded=True), a.EDIT, {}, {"grads": a.UNKNOWN}),
    (
        OptimizerState(a.SCALED, loop_kind=e.LOOSE),
        a.ZERO,
        {},
        {"grads": a.CLEAN, "loop_kind": "", "grads_discarded": True},
    ),
    (OptimizerState(a.SCALED, scaler_key=3), a.STEP, {}, {"grads": a.SPENT}),
    (OptimizerState(a.SCALED, scaler_key=3), a.HANDOFF, {}, {"grads": a.UNKNOWN}),
]


@pytest.mark.parametrize(
    ("state", "event", "known", "changes"), LEFT, ids=[f"{n} {row[1]}" for n, row in enumerate(LEFT)]
)
def test_an_input_changes_this_of_a_state_and_no_more(
    state: OptimizerState, event: str, known: dict[str, Any], changes: dict[str, Any]
) -> None:
    assert transition(state, event, **known)[0] == state._replace(**changes)


POSSIBLE: list[tuple[str, list[str], str]] = [
    ("perhaps raw, stepped by the scaler", [a.MAYBE_RAW, a.SCALER_STEP], "step@raw"),
    ("perhaps raw, unscaled", [a.MAYBE_RAW, a.UNSCALE], "step@raw"),
    ("perhaps scaled, stepped directly", [a.MAYBE_SCALED, a.STEP], "plain-step@scaled"),
    ("perhaps scaled, read", [a.MAYBE_SCALED, a.READ], "read@scaled"),
    ("used by another, and then directly", [a.MAYBE_SCALED, a.TAKEN, a.STEP], "plain-step@scaled"),
]
RIGHT_IF_ANOTHERS = [
    [a.MAYBE_RAW, a.STEP],
    [a.MAYBE_RAW, a.TAKEN, a.SCALER_STEP],
    [a.MAYBE_RAW, a.TAKEN, a.MAYBE_SCALED, a.SCALER_STEP],
    [a.MAYBE_SCALED, a.TAKEN, a.MAYBE_RAW, a.STEP],
    [a.MAYBE_SCALED, a.MAYBE_RAW, a.SCALER_STEP],
    [a.MAYBE_SCALED, a.MAYBE_RAW, a.STEP],
    [a.MAYBE_SCALED, a.MAYBE_RAW, a.MAYBE_RAW, a.SCALER_STEP],
    [a.MAYBE_SCALED, a.TAKEN, a.UNSCALE, a.CLIP, a.SCALER_STEP],
    [a.MAYBE_SCALED, a.CLIP, a.TAKEN, a.SCALER_STEP],
]


@pytest.mark.parametrize(("word", "label"), [row[1:] for row in POSSIBLE], ids=[row[0] for row in POSSIBLE])
def test_a_violation_that_depends_on_a_possible_backward_is_possible(word: list[str], label: str) -> None:
    before, labels = spell(word[:-1])
    assert not labels
    assert transition(before, word[-1], scaler_key=0)[1] == (label,)
    assert a.is_only_possible(before, word[-1], label)


@pytest.mark.parametrize("word", RIGHT_IF_ANOTHERS, ids=" ".join)
def test_gradients_that_may_be_of_another_optimizer_are_no_violation(word: list[str]) -> None:
    assert spell(word)[1] == []


def test_a_definite_violation_is_not_reported_as_possible() -> None:
    for word, label in ((row[1], row[2]) for row in ILLEGAL):
        before, _ = spell(word[:-1])
        assert not a.is_only_possible(before, word[-1] if isinstance(word[-1], str) else word[-1][0], label)


@pytest.mark.parametrize(
    ("state", "unfed"),
    [
        (OptimizerState(a.CLEAN, a.READY), True),
        (OptimizerState(a.CLEAN), True),
        (OptimizerState(a.CLEAN, window_open=True), True),
        (OptimizerState(a.RAW), False),
        (OptimizerState(), False),
        (OptimizerState(a.CLEAN, scaler_key=0), False),
        # Joined states may include a past event without its scaler.
        (OptimizerState(a.CLEAN, grads_discarded=True), False),
        (OptimizerState(a.CLEAN, stepped_before=True), False),
    ],
)
def test_an_optimizer_is_unfed_until_something_runs_backward(state: OptimizerState, unfed: bool) -> None:
    assert a.has_no_backward(state) is unfed


def fields(state: OptimizerState) -> tuple[object, ...]:
    """Return the fields of a state, with the fields of its clips instead of the clips."""
    return (*state._replace(clips=a.NO_CLIPS), *state.clips)


def test_joined_states_keep_the_clips_that_both_have() -> None:
    one, other = (
        OptimizerState(a.SCALED, clips=a.Clips(True, True, True)),
        OptimizerState(clips=a.Clips(True, False, True)),
    )
    assert a.join(one, other) == OptimizerState(clips=a.Clips(while_scaled=True, in_window=True))


@quick
@given(st.lists(st.sampled_from(a.INPUTS), max_size=12), st.lists(st.sampled_from(a.INPUTS), max_size=12))
def test_states_that_are_joined_know_no_more_than_each_of_them(one: list[str], other: list[str]) -> None:
    first, second = spell(one)[0], spell(other)[0]
    both = a.join(first, second)
    assert both == a.join(second, first)
    for known, mine, theirs, unknown in zip(*map(fields, (both, first, second, OptimizerState())), strict=True):
        assert known == (mine if mine == theirs else unknown)


def test_every_label_of_the_automaton_stands_in_the_list_of_illegal_words() -> None:
    assert {label for _, _, label in ILLEGAL} == OF_THE_AUTOMATON


@quick
@given(st.lists(st.sampled_from(a.INPUTS), max_size=20))
def test_of_unknown_gradients_nothing_is_claimed_before_they_are_known(word: list[str]) -> None:
    """An optimizer in the unknown state may have any history."""
    state = OptimizerState()
    for event in word:
        before = state
        state, labels = transition(state, event, scaler_key=0)
        if before.grads == a.UNKNOWN and before.stage == a.ANY and not before.clips.while_scaled:
            assert set(labels) <= {"update@nothing"}


# Manual graphs.


def window(drawing: Drawing, *between: Event) -> list[Event]:
    """Return a whole step, with events between backward and the step."""
    return [
        drawing.event(e.ZeroGrad),
        drawing.scaled_backward(division=e.DIVIDED),
        *between,
        drawing.event(e.ScalerStep),
        drawing.event(e.Update),
    ]


def test_a_straight_line_that_is_right_gives_nothing() -> None:
    drawing = Drawing()
    last = drawing.line(0, *window(drawing), *window(drawing))
    drawing.line(last, drawing.event(e.End))
    assert drawing.findings() == []


def test_a_violation_on_a_straight_line_is_definite_and_has_its_trace_in_order() -> None:
    drawing = Drawing()
    clip = drawing.event(e.Clip)
    events = [drawing.event(e.ZeroGrad), drawing.scaled_backward(division=e.DIVIDED), clip]
    drawing.line(0, *events, drawing.event(e.ScalerStep), drawing.event(e.Update))
    (finding,) = drawing.findings()
    assert (finding.code, finding.line) == ("AMP201", clip.site.line)
    assert finding.certain and finding.condition == ""
    assert [step.site.line for step in finding.trace] == [3, 1, 4]
    assert all(step.text for step in finding.trace)


def test_an_empty_graph_and_a_graph_of_one_event_give_nothing() -> None:
    assert Drawing().findings() == []
    for kind in (e.ZeroGrad, e.Unscale, e.ScalerStep, e.Update, e.Clip, e.End, e.Handoff, e.LoopExit):
        drawing = Drawing()
        drawing.line(0, drawing.event(kind))
        assert drawing.findings() == [], kind


def test_sixty_questions_in_a_row_are_no_paths_to_be_counted() -> None:
    """A tool that enumerates 2**60 paths does not finish."""
    drawing = Drawing()
    node = drawing.line(0, drawing.event(e.ZeroGrad), drawing.scaled_backward(division=e.DIVIDED))
    for n in range(60):
        node = drawing.diamond(node, drawing.test(f"flag{n}"), [drawing.event(e.ParamWrite)])
    clip = drawing.event(e.Clip)
    drawing.line(node, clip, drawing.event(e.ScalerStep), drawing.event(e.Update))
    assert drawing.codes() == [(clip.site.line, "AMP201")]


def asked_twice(questions: int) -> Drawing:
    """Return a graph that tests each predicate twice, with a backward under each test."""
    drawing = Drawing()
    node = drawing.line(0, drawing.event(e.ZeroGrad), drawing.scaled_backward(division=e.DIVIDED))
    tests = [drawing.test(f"flag{n}") for n in range(questions)]
    for test in (*tests, *tests):
        node = drawing.diamond(node, test, [drawing.scaled_backward(division=e.DIVIDED)])
    drawing.line(node, drawing.event(e.ScalerStep), drawing.event(e.Update))
    return drawing


def test_sixty_questions_that_are_all_asked_again_raise_no_false_alarm() -> None:
    """All combinations need 2**60 states: some predicates are forgotten."""
    assert asked_twice(60).codes() == []


def test_no_graph_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_exploration, "LIMIT", 10)
    assert asked_twice(6).findings() == []
    drawing = asked_twice(6)
    drawing.line(len(drawing.graph.nodes) - 1, drawing.event(e.Update))
    assert [f.code for f in drawing.findings()] == ["AMP207"]


def test_what_happens_on_all_of_too_many_ways_is_found_and_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (True, False):
        drawing = Drawing()
        tests = [drawing.test(f"flag{n}") for n in range(9)]
        node = drawing.line(0)
        for test in (*tests, *tests):
            node = drawing.diamond(node, test, [drawing.scaled_backward(division=e.DIVIDED)])
        node = drawing.line(node, drawing.event(e.ZeroGrad), drawing.scaled_backward(division=e.DIVIDED))
        clip = [drawing.event(e.Clip)] if wrong else []
        drawing.line(node, *clip, drawing.event(e.ScalerStep), drawing.event(e.Update))
        monkeypatch.setattr(graph_exploration, "LIMIT", 400)
        findings = drawing.findings()
        assert [(f.code, f.certain) for f in findings] == ([("AMP201", False)] if wrong else [])


def test_loops_inside_loops_come_to_an_end() -> None:
    drawing = Drawing()
    heads = [drawing.line(0)]
    for _ in range(30):
        head = drawing.node()
        drawing.way(heads[-1], head)
        heads.append(head)
    clip = drawing.event(e.Clip)
    last = drawing.line(heads[-1], *window(drawing, clip))
    for head in heads[1:]:
        drawing.way(last, head)
    assert drawing.codes() == [(clip.site.line, "AMP201")]


def test_the_same_question_has_the_same_answer() -> None:
    drawing = Drawing()
    amp = drawing.test("use_amp")
    node = drawing.line(0, drawing.event(e.ZeroGrad))
    node = drawing.diamond(node, amp, [drawing.scaled_backward()], [drawing.event(e.Backward)])
    drawing.diamond(node, amp, [drawing.event(e.ScalerStep), drawing.event(e.Update)], [drawing.event(e.Step)])
    assert drawing.codes() == []


def test_another_question_may_have_another_answer() -> None:
    drawing = Drawing()
    raw = drawing.event(e.Backward)
    step = drawing.event(e.Step)
    node = drawing.line(0, drawing.event(e.ZeroGrad))
    node = drawing.diamond(node, drawing.test("use_amp"), [drawing.scaled_backward()], [raw])
    last = [drawing.event(e.ScalerStep), drawing.event(e.Update)]
    drawing.diamond(node, drawing.test("use_fp16"), last, [step])
    assert drawing.codes() == [(raw.site.line, "AMP203"), (step.site.line, "AMP204")]
    assert not any(finding.certain for finding in drawing.findings() if finding.code != "AMP502")


def test_an_answer_that_is_forgotten_is_asked_anew() -> None:
    drawing = Drawing()
    amp = drawing.test("use_amp")
    node = drawing.line(0, drawing.event(e.ZeroGrad))
    node = drawing.diamond(node, amp, [drawing.scaled_backward()], [drawing.event(e.Backward)])
    forgetting = drawing.node()
    drawing.graph.nodes[forgetting].forgotten_predicates = 1 << amp.key
    drawing.way(node, forgetting)
    last = [drawing.event(e.ScalerStep), drawing.event(e.Update)]
    drawing.diamond(forgetting, amp, last, [drawing.event(e.Step)])
    assert [code for _, code in drawing.codes()] == ["AMP203", "AMP204"]


def test_an_answer_can_imply_another() -> None:
    for implied in (True, False):
        drawing = Drawing()
        amp, made = drawing.test("use_amp"), drawing.test("scaler is not None")
        if implied:
            amp.implications += [(True, made.key, True), (False, made.key, False)]
        node = drawing.line(0, drawing.event(e.ZeroGrad))
        node = drawing.diamond(node, amp, [drawing.scaled_backward()], [drawing.event(e.Backward)])
        drawing.diamond(node, made, [drawing.event(e.ScalerStep), drawing.event(e.Update)], [drawing.event(e.Step)])
        assert bool(drawing.codes()) is not implied


def test_a_violation_on_some_paths_has_a_condition() -> None:
    drawing = Drawing()
    clips = drawing.test("max_norm")
    node = drawing.line(0, drawing.event(e.ZeroGrad), drawing.scaled_backward(division=e.DIVIDED))
    clip = drawing.event(e.Clip)
    node = drawing.diamond(node, clips, [clip])
    drawing.line(node, drawing.event(e.ScalerStep), drawing.event(e.Update))
    (finding,) = drawing.findings()
    assert (finding.code, finding.line) == ("AMP201", clip.site.line)
    assert not finding.certain
    assert finding.condition == "when `max_norm` is true"


def test_one_optimizer_does_not_answer_for_the_other() -> None:
    drawing = Drawing(optimizers=2)
    first, second = (o.key for o in drawing.optimizers)
    clip = drawing.event(e.Clip, 1)
    drawing.line(
        0,
        drawing.event(e.ZeroGrad, owners=(first, second)),
        drawing.scaled_backward(feeds=(first, second)),
        drawing.event(e.Unscale, 0),
        drawing.event(e.Clip, 0),
        clip,
        drawing.event(e.ScalerStep, 0),
        drawing.event(e.ScalerStep, 1),
        drawing.event(e.Update),
    )
    assert drawing.codes() == [(clip.site.line, "AMP201")]


def test_a_clip_over_two_optimizers_needs_both_unscaled() -> None:
    for both in (True, False):
        drawing = Drawing(optimizers=2)
        first, second = (o.key for o in drawing.optimizers)
        clip = drawing.event(e.Clip, owners=(first, second))
        unscales = [drawing.event(e.Unscale, i) for i in range(2 if both else 1)]
        drawing.line(
            0,
            drawing.event(e.ZeroGrad, owners=(first, second)),
            drawing.scaled_backward(feeds=(first, second)),
            *unscales,
            clip,
            drawing.event(e.ScalerStep, 0),
            drawing.event(e.ScalerStep, 1),
            drawing.event(e.Update),
        )
        assert drawing.codes() == ([] if both else [(clip.site.line, "AMP212")])


@pytest.mark.parametrize("early", [e.Unscale, e.ScalerStep])
def test_parameters_of_two_optimizers_are_divided_by_each(early: e.EventKind) -> None:
    for shared in (True, False):
        drawing = Drawing(optimizers=2)
        inner, wrapper = drawing.optimizers
        if shared:
            inner.attributes.shares, wrapper.attributes.shares = {wrapper.key}, {inner.key}
        step = drawing.event(e.ScalerStep, 1)
        drawing.line(
            0,
            drawing.event(e.ZeroGrad, owners=(inner.key, wrapper.key)),
            drawing.scaled_backward(feeds=(inner.key, wrapper.key)),
            drawing.event(early, 0),
            step,
            drawing.event(e.Update),
        )
        assert drawing.codes() == ([(step.site.line, "AMP210")] if shared else [])


def test_an_update_between_two_steps_is_found_and_two_whole_cycles_are_not() -> None:
    for together in (True, False):
        drawing = Drawing(optimizers=2)
        first, second = (o.key for o in drawing.optimizers)
        update = drawing.event(e.Update)
        clear = [drawing.event(e.ZeroGrad, owners=(first, second))]
        if together:
            backward = [drawing.scaled_backward(feeds=(first, second))]
            middle = [drawing.event(e.ScalerStep, 0), update]
        else:
            backward = [drawing.scaled_backward(feeds=(first,))]
            middle = [drawing.event(e.ScalerStep, 0), update, drawing.scaled_backward(feeds=(second,))]
        drawing.line(0, *clear, *backward, *middle, drawing.event(e.ScalerStep, 1), drawing.event(e.Update))
        assert drawing.codes() == ([(update.site.line, "AMP207")] if together else [])


def accumulation(divided: bool, *, unscale_everywhere: bool = False, boundary: bool = True) -> Drawing:
    """Return a loop that steps if its counter reaches the end of a window."""
    drawing = Drawing()
    full = drawing.test("(i + 1) % k == 0")
    full.is_window_predicate = True
    entry = drawing.line(0, drawing.event(e.OptimizerNew))
    head = drawing.node()
    drawing.graph.nodes[head].forgotten_predicates = 1 << full.key
    drawing.way(entry, head)
    body = [drawing.scaled_backward(division=e.LossDivision(divided))]
    if unscale_everywhere:
        body.append(drawing.event(e.Unscale))
    node = drawing.line(head, *body)
    flush = [] if unscale_everywhere else [drawing.event(e.Unscale)]
    flush += [drawing.event(kind) for kind in (e.ScalerStep, e.Update, e.ZeroGrad)]
    node = drawing.diamond(node, full, flush if boundary else (), () if boundary else flush)
    drawing.way(node, head)
    return drawing


@pytest.mark.parametrize("boundary", [True, False])
def test_accumulation_windows(boundary: bool) -> None:
    assert accumulation(divided=True, boundary=boundary).codes() == []
    assert [code for _, code in accumulation(divided=False, boundary=boundary).codes()] == ["AMP301"]
    early = accumulation(divided=True, unscale_everywhere=True, boundary=boundary)
    assert [code for _, code in early.codes()] == ["AMP303"]


@pytest.mark.parametrize("enabled", [True, False])
def test_regions_open_and_close(enabled: bool) -> None:
    drawing = Drawing()
    region: dict[str, Any] = {"device": "cuda", "dtype": "float16", "enabled": enabled, "cache": True}
    backward = drawing.scaled_backward()
    drawing.line(
        0,
        drawing.event(e.ZeroGrad),
        drawing.event(e.AutocastEnter, **region),
        backward,
        drawing.event(e.AutocastExit),
        drawing.event(e.ScalerStep),
        drawing.event(e.Update),
    )
    assert drawing.codes() == ([(backward.site.line, "AMP103")] if enabled else [])


def test_regions_in_a_loop_that_never_leaves_them_come_to_an_end() -> None:
    drawing = Drawing()
    head = drawing.line(0)
    region: dict[str, Any] = {"device": "cuda", "dtype": "float16", "enabled": True, "cache": True}
    last = drawing.line(head, drawing.event(e.AutocastEnter, **region), drawing.event(e.Forward))
    drawing.way(last, head)
    assert drawing.findings() == []


def test_only_what_is_selected_is_reported() -> None:
    drawing = Drawing()
    drawing.line(0, *window(drawing, drawing.event(e.Clip)))
    assert [f.code for f in check(drawing.program, frozenset({"AMP201"}))] == ["AMP201"]
    assert check(drawing.program, frozenset({"AMP202"})) == []


KINDS = [e.ZeroGrad, e.Unscale, e.Clip, e.GradRead, e.GradEdit, e.GradDivide, e.ScalerStep, e.Step, e.Update]


@quick
@given(st.data())
def test_the_checker_accepts_any_graph(data: st.DataObject) -> None:
    """Random events and edges give findings of known rules, in order, each at an event of the graph."""
    drawing = Drawing(optimizers=data.draw(st.integers(1, 2)))
    tests = [drawing.test(f"flag{n}") for n in range(data.draw(st.integers(0, 3)))]
    count = data.draw(st.integers(1, 12))
    for _ in range(count):
        kind = data.draw(st.sampled_from([*KINDS, e.Backward, e.End, e.LoopExit, e.Handoff, e.ScalerNew]))
        i = data.draw(st.integers(0, len(drawing.optimizers) - 1))
        event = drawing.event(kind, i)
        if kind == e.Backward and data.draw(st.booleans()):
            event.subject = drawing.scaler.key
        drawing.node(event)
    for start in range(count + 1):
        for _ in range(data.draw(st.integers(0, 2))):
            test = data.draw(st.none() | st.sampled_from(tests)) if tests else None
            drawing.way(start, data.draw(st.integers(1, count)), test, data.draw(st.booleans()))
    findings = drawing.findings()
    assert [f.order() for f in findings] == sorted(f.order() for f in findings)
    assert {f.code for f in findings} <= set(RULES)
    assert all(1 <= f.line <= drawing.lines for f in findings), shown(findings)
    assert all(1 <= step.site.line <= drawing.lines for f in findings for step in f.trace)
