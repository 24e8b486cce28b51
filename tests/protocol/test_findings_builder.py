"""From a violation to a finding: the names in its message, its location, and the advice for a scaling framework."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_amp_check.protocol import events as e
from pytest_amp_check.protocol.event_graph import Program
from pytest_amp_check.protocol.events import Event
from pytest_amp_check.protocol.findings_builder import (
    adapt_to_framework,
    add_framework_advice,
    check_event,
    choose_location,
    describe_violation,
    make_finding,
)
from pytest_amp_check.protocol.message_templates import describe_event
from pytest_amp_check.protocol.sites import Site

SITE = Site("train.py", 3)


def message(label: str, *events: Event, **values: str) -> str:
    return make_finding(label, SITE, list(events), values, ()).message


def test_the_names_are_those_of_the_first_event_that_has_one() -> None:
    clip = e.Clip(SITE, names={"call": "clip_grad_norm_"})
    step = e.ScalerStep(SITE, names={"call": "step", "scaler": "self.scaler", "optimizer": ""})
    assert message("clip@scaled", clip, step) == (
        "`clip_grad_norm_` clips gradients that are still multiplied by the loss scale: "
        "write `self.scaler.unscale_(optimizer)` in the line before it"
    )
    # A value from a check has priority over a name of the event.
    assert "`self.scaler.unscale_(opt)`" in message("clip@scaled", clip, step, optimizer="opt")


def test_what_has_no_name_is_put_in_words_outside_of_code() -> None:
    assert message("clip@scaled").startswith("this call clips gradients")
    assert message("plain-step@scaled", scaler="s").startswith("`optimizer.step()` applies gradients")
    assert message("plain-step@scaled").endswith(
        "write `scaler.step(optimizer)` and then `scaler.update()` in its place"
    )


def test_advice_is_filled_with_the_same_names() -> None:
    advice = "call `{scaler}.clip_grad_norm_`, where `{window}` holds"
    assert message("clip@scaled-framework", framework="accelerate", scaler="acc", advice=advice) == (
        "this call clips gradients that accelerate keeps multiplied by the loss scale: "
        "call `acc.clip_grad_norm_`, where the step condition holds"
    )


def test_what_nobody_gives_is_called_by_its_field() -> None:
    assert message("fill:overflow").startswith("this call writes value into a tensor")


def test_a_check_may_decide_how_severe_a_violation_is() -> None:
    finding = make_finding("clip@scaled", SITE, [], {"severity": "info"}, ())
    assert (finding.severity, finding.certain, finding.names) == ("info", True, {"severity": "info"})
    assert make_finding("clip@scaled", SITE, [], {}, ()).severity == "error"
    assert make_finding("scale@no-autocast-unknown", SITE, [], {}, ()).severity == "info"


@pytest.mark.parametrize("guessed", [True, False])
def test_what_is_guessed_of_an_event_is_not_certain(guessed: bool) -> None:
    event = e.Fill(SITE, value=-1e9, eligible=True, guessed=guessed)
    (finding,) = check_event(event, Program())
    assert (finding.code, finding.site, finding.certain) == ("AMP506", SITE, not guessed)


def test_an_event_in_words_is_what_its_first_rule_says_of_it() -> None:
    fill = e.Fill(SITE, value=-1e9, eligible=True, names={"call": "masked_fill"})
    assert describe_violation(fill, Program()) == (
        "`masked_fill` writes -1e+09 into a tensor that may be float16, which ends at 65504"
    )
    assert describe_violation(e.Fill(SITE, value=1.0, eligible=True), Program()) == ""


def test_what_an_event_did_depends_on_whether_a_scaler_did_it() -> None:
    assert describe_event(e.Backward(SITE)) == "backward adds gradients of an unscaled loss"
    assert describe_event(e.Backward(SITE, 0)) == "backward adds gradients multiplied by the loss scale"


def test_losses_in_a_trace_are_sentences() -> None:
    assert describe_event(e.Loss(SITE)) == "the loss is computed"
    assert describe_event(e.Scale(SITE, 0)) == "the loss is scaled"


def acting(framework: str = "", name: str = "accelerator", **facts: Any) -> Program:
    """Return a program whose first object is a scaler, of a framework if ``framework`` is given."""
    program = Program()
    if framework:
        facts["framework"] = framework
    program.add_object("scaler", name, **facts)
    return program


STEP = e.ScalerStep(SITE, 0)
NOBODYS = e.Clip(SITE)


@pytest.mark.parametrize(
    ("label", "program", "events", "said", "values"),
    [
        # torch's own scaler, or no scaler.
        ("clip@scaled", acting(), [STEP], "clip@scaled", {}),
        ("clip@scaled", acting("accelerate"), [NOBODYS], "clip@scaled", {}),
        (
            "clip@scaled",
            acting("mmengine", "wrapper"),
            [NOBODYS, STEP],
            "clip@scaled-framework",
            {
                "severity": "error",
                "framework": "mmengine",
                "advice": "give `clip_grad=dict(max_norm=...)` to the wrapper, which unscales them first",
                "scaler": "wrapper",
            },
        ),
        # An unnamed object gets its usual name, if there is one.
        (
            "update@pending",
            acting("fabric", ""),
            [STEP],
            "update@pending-framework",
            {
                "severity": "error",
                "framework": "Fabric",
                "advice": "let each loss run backward just before its own optimizer steps",
                "scaler": "fabric",
            },
        ),
        (
            "clip@scaled",
            acting("mmengine", ""),
            [STEP],
            "clip@scaled-framework",
            {
                "severity": "error",
                "framework": "mmengine",
                "advice": "give `clip_grad=dict(max_norm=...)` to the wrapper, which unscales them first",
            },
        ),
        # Without specific advice, the scaler is an attribute of the engine.
        (
            "step@divided",
            acting("accelerate"),
            [STEP],
            "step@divided",
            {"severity": "error", "scaler": "accelerator.scaler"},
        ),
        ("step@divided", acting("fabric"), [STEP], "step@divided", {"severity": "error"}),
        # The severity is at most the certainty that the framework scales.
        ("step@divided", acting("fabric", doubt="info"), [STEP], "step@divided", {"severity": "info"}),
        ("step@another", acting("fabric", doubt="error"), [STEP], "step@another", {"severity": "error"}),
        # A mistake that is as wrong without mixed precision does not concern the framework.
        ("backward@stale", acting("accelerate"), [STEP], "backward@stale", {}),
    ],
)
def test_what_is_said_where_a_framework_scales(
    label: str, program: Program, events: list[Event], said: str, values: dict[str, str]
) -> None:
    assert adapt_to_framework(label, events, program) == (said, values)


@pytest.mark.parametrize(
    ("kind", "facts", "names", "scaler"),
    [
        (e.ScalerStep, {}, {"scaler": "accelerator.scaler"}, "accelerator.scaler"),
        (e.Unscale, {}, {"scaler": "grad_scaler"}, "grad_scaler"),
        # A call of the engine, and a call that is not the scaler's.
        (e.ScalerStep, {"framework": True}, {"scaler": "acc"}, "acc.scaler"),
        (e.Backward, {}, {"scaler": "acc"}, "acc.scaler"),
        (e.Update, {}, {}, "accelerator.scaler"),
    ],
)
def test_the_scaler_of_an_engine_is_called_what_the_program_calls_it(
    kind: e.EventKind, facts: dict[str, Any], names: dict[str, object], scaler: str
) -> None:
    event = kind(SITE, 0, **facts, names=names)
    assert adapt_to_framework("step@divided", [event], acting("accelerate"))[1]["scaler"] == scaler


@pytest.mark.parametrize(
    ("label", "framework", "said", "names"),
    [
        ("clip@scaled", "apex", "clip@scaled-framework", {"framework": "apex"}),
        ("clip@scaled", "fabric", "clip@scaled-framework", {"framework": "Fabric", "scaler": "fabric"}),
        ("read@scaled", "lightning", "read@scaled-framework", {"framework": "Lightning"}),
        ("read@scaled", "fabric", "read@scaled", None),
        ("clip@scaled", "", "clip@scaled", None),
    ],
)
def test_what_is_said_where_the_code_of_a_framework_has_called_torch(
    label: str, framework: str, said: str, names: dict[str, str] | None
) -> None:
    reported, values = add_framework_advice(label, framework)
    advice = values.pop("advice", "")
    assert reported == said
    assert bool(advice) is (names is not None)
    # The framework's name for the optimizer is not a name of the program.
    assert values == ({} if names is None else {**names, "optimizer": "the optimizer"})


def called(*places: tuple[str, int]) -> Site:
    """Return a location reached by calls, the outermost first. Each function has the name of its file."""
    site: Site | None = None
    for path, line in places:
        site = Site(path, line, 4, function=path.removesuffix(".py"), caller=site)
    assert site is not None
    return site


A, B, C, X = ("train.py", 10), ("run.py", 20), ("clip.py", 30), ("step.py", 40)


@pytest.mark.parametrize(
    ("blamed", "partner", "reads", "expected"),
    [
        # In one function, in one file, and in files without known calls of each other.
        ([A], [("train.py", 12)], False, A),
        ([C], [A], False, C),
        ([A, C], [("train.py", 12)], False, C),
        ([A, C], [B, X], False, C),
        ([A, C], [A, ("clip.py", 31)], False, C),
        # A helper of another file whose caller also calls the other location: the point where the paths branch.
        ([A, C], [A], False, A),
        ([A, C], [A, X], False, C),
        ([A, B, C], [A, ("run.py", 21)], False, B),
        ([A, B, C], [A, B], False, B),
        ([A, B, C], [A, B, X], False, C),
        ([A, B], [A, B, X], False, B),
        # For an event that only reads, the cause is its caller.
        ([A, C], [("train.py", 12)], True, A),
        ([A, C], [("train.py", 12), X], True, A),
        ([A, B, C], [A, ("run.py", 21)], True, B),
        ([A, C], [B], True, C),
        ([A], [("train.py", 12)], True, A),
    ],
)
def test_a_helper_that_is_right_in_itself_is_not_blamed(
    blamed: list[tuple[str, int]], partner: list[tuple[str, int]], reads: bool, expected: tuple[str, int]
) -> None:
    site = choose_location(called(*blamed), called(*partner), reads=reads)
    assert (site.path, site.line) == expected


def test_two_functions_of_one_file_do_not_call_each_others_helpers() -> None:
    read = Site("clip.py", 30, function="norm", caller=Site("train.py", 10, function="train"))
    step = Site("train.py", 12, function="evaluate")
    assert choose_location(read, step, reads=True) is read
