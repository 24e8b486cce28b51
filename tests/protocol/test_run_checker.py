"""The check of a run on manual events: findings are kept, withdrawn and reported once, for runs of any length."""

from __future__ import annotations

from typing import Any

import pytest
from event_fields import set_attributes

from pytest_amp_check.protocol import events as e
from pytest_amp_check.protocol import run_checker
from pytest_amp_check.protocol.effects import apply_event
from pytest_amp_check.protocol.event_graph import Program
from pytest_amp_check.protocol.events import Event, EventKind, Symbol, name_of_kind
from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.protocol.run_checker import RunChecker
from pytest_amp_check.protocol.sites import Site


class Training:
    """A run with a scaler and an optimizer. The same words are the same source location."""

    def __init__(self) -> None:
        self.program = Program()
        self.scaler = self.program.add_object("scaler", Symbol("scaler"), Site("train.py", 1), enabled=True)
        self.optimizer = self.program.add_object("optimizer", Symbol("optimizer"), Site("train.py", 2))
        self.chain = RunChecker(self.program)
        self.sites: dict[str, Site] = {}

    def at(self, place: str) -> Site:
        return self.sites.setdefault(place, Site("train.py", len(self.sites) + 10))

    def add(self, kind: EventKind, place: str | None = None, *, subject: int | None = None, **facts: Any) -> None:
        optimizer = self.optimizer.key
        made = kind(self.at(place or name_of_kind(kind)), subject, **facts)
        if kind in (e.Unscale, e.ScalerStep, e.Step):
            made.object = optimizer
        if kind in (e.Unscale, e.ScalerStep, e.Update, e.Backward) and subject is None:
            made.subject = self.scaler.key
        self.chain.add_event(made)

    def backward(self, place: str = "backward", **facts: Any) -> None:
        facts = {"feeds": (self.optimizer.key,), "division": e.DIVIDED, **facts}
        self.add(e.Backward, place, **facts)

    def step(self, *, zero: bool = True, update: bool = True, clip: str = "", unscale: bool = False) -> None:
        """Add the events of one iteration."""
        if zero:
            self.add(e.ZeroGrad)
        self.backward()
        if unscale:
            self.add(e.Unscale)
        if clip:
            self.add(e.Clip, clip)
        self.add(e.ScalerStep)
        if update:
            self.add(e.Update)

    def reported(self) -> list[tuple[str, int]]:
        return [(finding.code, finding.line) for finding in self.chain.collect_findings()]


@pytest.fixture
def run() -> Training:
    return Training()


def only(run: Training) -> Finding:
    (finding,) = run.chain.collect_findings()
    return finding


@pytest.mark.parametrize("steps", [1, 2, 40])
def test_a_right_run_of_any_length_gives_nothing(run: Training, steps: int) -> None:
    for _ in range(steps):
        run.step(unscale=True, clip="clip")
        run.chain.flush()
    run.chain.close()
    assert run.reported() == []


@pytest.mark.parametrize("steps", [1, 2, 40])
def test_a_mistake_is_reported_once_however_often_it_is_made(run: Training, steps: int) -> None:
    for _ in range(steps):
        run.step(clip="clip")
    run.chain.close()
    finding = only(run)
    assert (finding.code, finding.site) == ("AMP201", run.at("clip"))
    assert finding.certain
    assert [step.site for step in finding.trace] == [
        run.at("backward"),
        run.at("clip"),
        run.at(name_of_kind(e.ScalerStep)),
    ]


def test_a_mistake_that_is_made_late_is_found_after_many_right_steps(run: Training) -> None:
    for _ in range(20):
        run.step(unscale=True, clip="clip")
    run.step(clip="another clip")
    run.chain.close()
    assert run.reported() == [("AMP201", run.at("another clip").line)]


def test_the_path_is_shown_where_a_long_run_has_gone_on_since(run: Training) -> None:
    for _ in range(run_checker.RECENT):
        run.step()
        run.chain.flush()
    run.step(clip="clip")
    finding = only(run)
    assert [step.site for step in finding.trace] == [
        run.at("backward"),
        run.at("clip"),
        run.at(name_of_kind(e.ScalerStep)),
    ]


@pytest.mark.parametrize(("broken", "expected"), [(False, ["AMP206"]), (True, [])])
def test_what_is_left_undone_at_the_end_was_cut_off_where_the_run_was(
    run: Training, broken: bool, expected: list[str]
) -> None:
    run.step(update=False)
    run.chain.close(broken=broken)
    assert [code for code, _ in run.reported()] == expected


def test_a_scaler_that_is_updated_at_times_is_not_forgotten(run: Training) -> None:
    run.step()
    run.step(update=False)
    run.chain.close()
    assert run.reported() == []


@pytest.mark.parametrize("broken", [False, True])
def test_gradients_that_nobody_has_cleared(run: Training, broken: bool) -> None:
    for _ in range(3):
        run.step(zero=False)
    run.chain.close(broken=broken)
    assert [code for code, _ in run.reported()] == ([] if broken else ["AMP215"])


def test_who_clears_gradients_in_the_end_has_accumulated_them(run: Training) -> None:
    for _ in range(3):
        run.step(zero=False)
    assert [code for code, _ in run.reported()] == ["AMP215"]
    run.add(e.ZeroGrad)
    run.chain.close()
    assert run.reported() == []


def test_a_clear_that_is_only_guessed_takes_nothing_back(run: Training) -> None:
    for _ in range(3):
        run.step(zero=False)
    run.add(e.ZeroGrad, "guessed", guessed=True)
    assert [code for code, _ in run.reported()] == ["AMP215"]


@pytest.mark.parametrize(("update", "expected"), [(True, []), (False, ["AMP206"])])
def test_an_optimizer_that_is_gone_has_left_its_step_as_it_was(
    run: Training, update: bool, expected: list[str]
) -> None:
    run.step(update=update)
    run.chain.forget_optimizer(run.optimizer.key)
    assert [code for code, _ in run.reported()] == expected
    # The optimizer is freed.
    run.chain.forget_optimizer(run.optimizer.key)
    assert [code for code, _ in run.reported()] == expected


def test_weights_that_are_written_in_a_region_are_stale_there_however_long_it_lasts(run: Training) -> None:
    run.add(e.AutocastEnter, "region", instance=1, enabled=True, device="cuda", dtype="float16", cache=True)
    run.add(e.ParamWrite, "written")
    for _ in range(2 * run_checker.RECENT):
        run.add(e.Clip, "elsewhere", owners=())
    run.add(e.Forward, "forward")
    run.add(e.AutocastExit, "left", depth=0)
    assert run.reported() == [("AMP101", run.at("written").line)]


def test_weights_that_are_written_in_a_region_are_new_to_the_next_one(run: Training) -> None:
    for _ in range(2):
        run.add(e.AutocastEnter, "region", instance=1, enabled=True, device="cuda", dtype="float16", cache=True)
        run.add(e.Forward, "forward")
        run.add(e.ParamWrite, "written")
        run.add(e.AutocastExit, "left")
    assert run.reported() == []


def test_a_region_that_was_left_covers_nothing(run: Training) -> None:
    run.add(e.AutocastEnter, "region", instance=1, enabled=True, device="cuda", dtype="float16", cache=True)
    run.add(e.AutocastExit, "left")
    run.step()
    run.chain.close()
    assert run.reported() == []


def test_an_optimizer_that_is_found_after_its_backward_has_gradients(run: Training) -> None:
    run.add(e.Backward, "backward", feeds=(), division=e.DIVIDED)
    run.chain.flush()
    run.chain.adopt_optimizer(run.optimizer.key, e.Backward(run.at("backward"), run.scaler.key))
    run.add(e.Clip)
    run.add(e.ScalerStep)
    run.add(e.Update)
    run.chain.close()
    assert run.reported() == [("AMP201", run.at(name_of_kind(e.Clip)).line)]


@pytest.mark.parametrize(("places", "expected"), [(["one", "one"], ["AMP301"]), (["one", "two"], [])])
def test_a_place_that_feeds_twice_accumulates(run: Training, places: list[str], expected: list[str]) -> None:
    for _ in range(3):
        run.add(e.ZeroGrad)
        for place in places:
            run.backward(place, division=e.LossDivision())
        run.add(e.ScalerStep)
        run.add(e.Update)
    run.chain.close()
    assert [code for code, _ in run.reported()] == expected


def test_a_place_that_feeds_in_each_iteration_accumulates_where_one_of_them_feeds_twice(run: Training) -> None:
    for passes in (1, 1, 1, 2):
        run.add(e.ZeroGrad)
        for _ in range(passes):
            run.backward(division=e.LossDivision())
        run.add(e.ScalerStep)
        run.add(e.Update)
        run.chain.flush()
    run.chain.close()
    assert [code for code, _ in run.reported()] == ["AMP301"]


@pytest.mark.parametrize(
    ("misplaced", "expected"), [((True, True, True), ["AMP215"]), ((True, False, True), []), ((True,), ["AMP215"])]
)
def test_gradients_that_are_cleared_before_each_step_are_never_used(
    run: Training, misplaced: tuple[bool, ...], expected: list[str]
) -> None:
    for wrong in misplaced:
        run.add(e.ZeroGrad, "before")
        run.backward()
        if wrong:
            run.add(e.ZeroGrad, "between")
        run.add(e.ScalerStep)
        run.add(e.Update)
    run.chain.close()
    assert [code for code, _ in run.reported()] == expected


@pytest.mark.parametrize(
    ("scaled", "known", "expected"),
    [
        (True, False, ["AMP201"]),
        (False, False, []),
        # Its later events are kept.
        (True, True, []),
        (False, True, ["AMP204"]),
    ],
)
def test_an_optimizer_that_is_found_has_the_gradients_of_that_backward(
    run: Training, scaled: bool, known: bool, expected: list[str]
) -> None:
    run.add(e.Backward, "backward", feeds=(), division=e.DIVIDED)
    if known:
        run.add(e.Unscale)
    run.chain.flush()
    run.chain.adopt_optimizer(run.optimizer.key, e.Backward(run.at("backward"), run.scaler.key if scaled else None))
    run.add(e.Clip)
    if scaled:
        run.add(e.ScalerStep)
        run.add(e.Update)
    else:
        run.add(e.Step)
    run.chain.close()
    assert [code for code, _ in run.reported()] == expected


@pytest.mark.parametrize("gone", ["first", "second"])
def test_an_optimizer_is_checked_as_before_after_another_one_is_gone(run: Training, gone: str) -> None:
    other = run.program.add_object("optimizer", Symbol("other"), Site("train.py", 3))
    keys = {"first": run.optimizer.key, "second": other.key}
    for key in keys.values():
        run.add(e.OptimizerNew, f"made {key}", subject=key)
        run.add(e.ZeroGrad, f"clear {key}", owners=(key,))
        run.backward(f"backward {key}", feeds=(key,))
    run.chain.forget_optimizer(keys.pop(gone))
    (left,) = keys.values()
    run.optimizer = run.program.objects[left]
    run.add(e.Clip, owners=(left,))
    run.add(e.ScalerStep)
    run.add(e.Update)
    for _ in range(2):
        run.step(unscale=True, clip="right")
    run.chain.close()
    assert run.reported() == [("AMP201", run.at(name_of_kind(e.Clip)).line)]


def test_an_optimizer_that_comes_after_one_that_is_gone_knows_nothing_of_its_gradients(run: Training) -> None:
    run.step(update=False)
    run.chain.forget_optimizer(run.optimizer.key)
    run.optimizer = run.program.add_object("optimizer", Symbol("later"), Site("train.py", 3))
    run.add(e.Update)
    for _ in range(3):
        run.step()
    run.chain.close()
    assert run.reported() == [("AMP206", run.at(name_of_kind(e.ScalerStep)).line)]


def test_a_repeated_step_is_not_checked_again(run: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Event] = []

    def counted(checker: Any, index: int, event: Event, *rest: Any) -> Any:
        checked.append(event)
        return apply_event(checker, index, event, *rest)

    monkeypatch.setattr(run_checker, "apply_event", counted)
    counts = []
    for _ in range(6):
        checked.clear()
        run.step(unscale=True, clip="clip")
        run.chain.flush()
        counts.append([type(event) for event in checked])
    assert counts[0] == [e.ZeroGrad, e.Backward, e.Unscale, e.Clip, e.ScalerStep, e.Update]
    # The check asks each time if a location has accumulated before.
    assert counts[-2] == counts[-1] == [e.Backward]


def test_a_mistake_in_every_iteration_is_checked_in_every_iteration(run: Training) -> None:
    for _ in range(4):
        run.add(e.ZeroGrad)
        run.backward()
        run.add(e.ZeroGrad, "between")
        run.add(e.ScalerStep)
        run.add(e.Update)
        run.chain.flush()
    assert [code for code, _ in run.reported()] == ["AMP215"]
    run.step()
    assert run.reported() == []


def fill(run: Training, place: str, value: float = -1e9) -> Event:
    return e.Fill(run.at(place), value=value, eligible=True)


def test_an_event_is_checked_by_itself_once_for_each_location(run: Training) -> None:
    for place, value in (("one", -1e9), ("one", -1e8), ("two", 1.0), ("three", 1e7)):
        run.chain.add_event(fill(run, place, value))
    assert run.reported() == [("AMP506", run.at("one").line), ("AMP506", run.at("three").line)]
    assert "-1e+09" in run.chain.collect_findings()[0].message


def test_a_consequence_of_another_mistake_is_not_reported(run: Training) -> None:
    run.chain.add_event(e.NotFinite(run.at("parameter"), how="parameter"))
    run.chain.add_event(e.NotFinite(run.at("overflow"), how="overflow"))
    assert [code for code, _ in run.reported()] == ["AMP802", "AMP802"]
    run.chain.add_event(fill(run, "fill"))
    assert [code for code, _ in run.reported()] == ["AMP802", "AMP802", "AMP506"]
    run.step(clip="clip")
    # The overflow is a separate mistake.
    assert [code for code, _ in run.reported()] == ["AMP802", "AMP506", "AMP201"]
    assert run.reported()[0] == ("AMP802", run.at("overflow").line)


def test_a_finding_keeps_the_trace_that_its_event_has_when_it_is_checked(run: Training) -> None:
    event = e.NotFinite(run.at("there"), how="overflow")
    run.chain.check_event(event)
    event.trace = ((run.at("before"), "it grew"),)
    run.chain.check_event(event)
    assert only(run).trace == ()
    later = e.NotFinite(run.at("later"), how="overflow", trace=((run.at("before"), "it grew"),))
    run.chain.check_event(later)
    assert [(step.site, step.text) for step in run.chain.collect_findings()[1].trace] == [(run.at("before"), "it grew")]


class Counting(RunChecker):
    """A run checker that records the processed causes."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.noted: list[tuple[str, EventKind, int | None]] = []

    def on_violation(self, violation: tuple[str, run_checker.Identity], optimizer: int | None) -> None:
        self.noted.append((violation[0], violation[1][0], optimizer))


def test_each_violation_is_passed_on_with_its_optimizer(run: Training) -> None:
    run.chain = counting = Counting(run.program)
    for _ in range(2):
        run.step(clip="clip")
    run.chain.add_event(fill(run, "fill"))
    run.add(e.AutocastEnter, "region", instance=1, enabled=True, device="cuda", dtype="float16", cache=True)
    run.backward("within")
    run.chain.flush()
    assert counting.noted == [
        ("clip@scaled", e.Clip, run.optimizer.key),
        ("clip@scaled", e.Clip, run.optimizer.key),
        ("fill:overflow", e.Fill, None),
        ("backward@region", e.Backward, None),
    ]


def test_a_repeated_step_is_not_checked_again_after_a_mistake(run: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Event] = []

    def counted(checker: Any, index: int, event: Event, *rest: Any) -> Any:
        checked.append(event)
        return apply_event(checker, index, event, *rest)

    monkeypatch.setattr(run_checker, "apply_event", counted)
    run.step(clip="wrong")
    for _ in range(5):
        checked.clear()
        run.step(unscale=True, clip="clip")
        run.chain.flush()
    assert [type(event) for event in checked] == [e.Backward]


REGION: dict[str, Any] = {"instance": 1, "enabled": True, "device": "cuda", "dtype": "float16", "cache": True}


def test_a_region_is_known_however_long_it_lasts(run: Training) -> None:
    run.add(e.AutocastEnter, "region", **REGION)
    for _ in range(2 * run_checker.RECENT):
        run.add(e.Clip, "elsewhere", owners=())
    run.backward()
    finding = only(run)
    assert (finding.code, finding.site) == ("AMP103", run.at("backward"))


def test_what_has_opened_regions_is_kept_until_all_are_left(run: Training) -> None:
    kept = []
    for instance in (1, 2):
        run.add(e.AutocastEnter, f"region {instance}", **{**REGION, "instance": instance})
    for _ in range(3):
        run.chain.flush()
        kept.append(len(run.chain.pinned_events))
        run.add(e.AutocastExit, "left")
    assert kept == [2, 2, 0]


def test_what_is_kept_of_a_run_is_bounded(run: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_checker, "DISTINCT", 5)
    for number in range(40):
        run.add(e.ZeroGrad, f"zero {number}")
        run.backward(f"backward {number}")
        run.add(e.ScalerStep, f"step {number}")
        run.add(e.Update, f"update {number}")
        run.chain.flush()
        assert len(run.chain.known_transitions) <= 5
    assert len(run.chain.distinct_events) == 5
    assert len(run.chain.recent_events) == 160
    assert run.reported() == []


@pytest.mark.parametrize(("autocast", "expected"), [(False, ["AMP110"]), (True, [])])
def test_a_run_is_checked_as_a_whole_once_for_each_location(run: Training, autocast: bool, expected: list[str]) -> None:
    set_attributes(run.program, enters_autocast=autocast, live_scalers=(run.scaler,))
    for _ in range(3):
        run.add(e.Scale, "scale", subject=run.scaler.key, forward_read=True)
        run.step()
    assert [code for code, _ in run.reported()] == expected


@pytest.mark.parametrize(("loads", "expected"), [(False, ["AMP402"]), (True, [])])
def test_in_one_run_what_is_loaded_late_is_loaded(run: Training, loads: bool, expected: list[str]) -> None:
    loaded = e.OptimizerLoad(run.at("load"), None, run.optimizer.key, names={"optimizer": "optimizer"})
    loaded.__dict__.update(holds_scaler=True, scope_scalers=("scaler",))
    run.chain.add_event(loaded)
    run.step()
    if loads:
        run.add(e.ScalerLoad, subject=run.scaler.key)
    run.step()
    assert [code for code, _ in run.reported()] == expected


@pytest.mark.parametrize(
    ("framework", "of_framework", "expected"),
    [
        # A user of the framework cannot fix a mistake that is completely in the framework's code.
        ("lightning", ("region", "backward"), []),
        ("lightning", ("backward",), ["backward@region"]),
        ("lightning", ("region",), []),
        ("accelerate", ("region", "backward"), ["backward@region"]),
        ("", ("region", "backward"), ["backward@region"]),
    ],
)
def test_mistakes_that_a_framework_makes_itself(
    run: Training, framework: str, of_framework: tuple[str, ...], expected: list[str]
) -> None:
    places = [run.at(place) for place in of_framework]
    run.chain = RunChecker(run.program, find_framework=lambda site: framework if site in places else "")
    run.add(e.AutocastEnter, "region", **REGION)
    run.backward()
    assert [finding.label for finding in run.chain.collect_findings()] == expected


def test_a_mistake_in_the_code_of_a_framework_is_reported_where_the_program_calls_it(run: Training) -> None:
    places = {run.at("clip"): run.at("call")}
    run.chain = RunChecker(
        run.program,
        find_own_site=lambda site: places.get(site, site),
        find_framework=lambda site: "fabric" if site in places else "",
    )
    run.step(clip="clip")
    finding = only(run)
    assert (finding.label, finding.site) == ("clip@scaled-framework", run.at("call"))
    assert "`fabric.clip_gradients`" in finding.message


def test_a_helper_that_only_reads_is_not_blamed_in_a_run_either(run: Training) -> None:
    call = Site("train.py", 50, function="train")
    helper = Site("norms.py", 3, function="norm", caller=call)
    run.sites |= {"backward": Site("train.py", 49, function="train"), "measured": helper}
    run.add(e.ZeroGrad)
    run.backward()
    run.add(e.GradRead, "measured", owners=(run.optimizer.key,))
    run.add(e.ScalerStep)
    run.add(e.Update)
    finding = only(run)
    assert (finding.code, finding.site) == ("AMP202", call)
    assert [step.site for step in finding.trace] == [run.at("backward"), helper]


def test_an_optimizer_that_is_found_belongs_to_the_scaler_of_that_backward(run: Training) -> None:
    other = run.program.add_object("scaler", Symbol("other"), Site("train.py", 5), enabled=True)
    run.add(e.Backward, "backward", feeds=(), division=e.DIVIDED)
    run.chain.flush()
    run.chain.adopt_optimizer(run.optimizer.key, e.Backward(run.at("backward"), run.scaler.key))
    run.add(e.ScalerStep, subject=other.key)
    assert [finding.label for finding in run.chain.collect_findings()] == ["step@another"]


def test_a_step_in_a_region_is_reported_where_no_backward_is_in_it(run: Training) -> None:
    run.add(e.Backward, "backward", feeds=(run.optimizer.key,), division=e.DIVIDED)
    run.chain.pending_events[-1].subject = None
    run.add(e.AutocastEnter, "region", **REGION)
    run.add(e.Step)
    run.add(e.AutocastExit, "left")
    assert [finding.label for finding in run.chain.collect_findings()] == ["step@region"]
    run.add(e.ZeroGrad)
    run.add(e.AutocastEnter, "region", **REGION)
    run.backward("within")
    run.add(e.AutocastExit, "left")
    assert [finding.label for finding in run.chain.collect_findings()] == ["backward@region"]


def test_what_follows_in_a_state_is_forgotten_with_an_optimizer(run: Training) -> None:
    first, second, third = (
        run.program.add_object("optimizer", Symbol(name), Site("train.py", 3)).key for name in "abc"
    )

    def fed(*optimizers: int) -> None:
        for key in optimizers:
            run.add(e.OptimizerNew, f"made {key}", subject=key)
        run.backward(f"backward {optimizers}", feeds=optimizers)
        run.add(e.ZeroGrad, "clear", owners=(second,))
        run.chain.flush()

    fed(first, second)
    run.chain.forget_optimizer(first)
    # The remaining two are like the former two, but the cleared optimizer is now the first.
    fed(second, third)
    run.backward("again", feeds=(second,))
    for key in (second, third):
        run.chain.add_event(e.ScalerStep(run.at(f"step {key}"), run.scaler.key, key))
    run.add(e.Update)
    assert run.reported() == []
