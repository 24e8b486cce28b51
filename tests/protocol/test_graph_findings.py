"""Details of findings in a graph beside the rule: their location, the callers, and the trace."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from drawing import Drawing
from event_fields import set_attributes

from pytest_amp_check import check_source
from pytest_amp_check.protocol import events as e
from pytest_amp_check.protocol.event_graph import Graph, Node, Program, WindowTruth
from pytest_amp_check.protocol.graph_checker import check
from pytest_amp_check.protocol.sites import Site
from pytest_amp_check.protocol.source_text import NegatedText, SourceText


def codes(drawing: Drawing) -> list[str]:
    return [finding.code for finding in drawing.findings() if finding.code != "AMP502"]


def called(function: str, line: int, column: int = 0, *, path: str = "test_train.py", by: str = "test_it") -> Site:
    """Return a location in a helper with a caller."""
    return Site("helpers.py", 3, function=function, caller=Site(path, line, column, function=by))


@pytest.mark.parametrize(
    ("backward", "step", "expected"),
    [
        # A test that calls one function several times is a trial.
        (called("train", 5), called("train", 6), []),
        (called("train", 5, 4), called("train", 5, 20), []),
        (called("train", 5, by="run"), called("train", 6, by="run"), []),
        # One call, two functions, no test, and no helper.
        (called("train", 5), called("train", 5), ["AMP203"]),
        (called("train", 5), called("step", 6), ["AMP203"]),
        (called("train", 5, path="train.py", by="main"), called("train", 6, path="train.py", by="main"), ["AMP203"]),
        (Site("test_train.py", 5), Site("test_train.py", 6), ["AMP203"]),
        (called("train", 5), Site("test_train.py", 6, function="test_it"), ["AMP203"]),
        (Site("test_train.py", 5, function="test_it"), called("train", 6), ["AMP203"]),
        # Functions with the same name in two files are different.
        (
            called("train", 5),
            Site("other.py", 3, function="train", caller=Site("test_train.py", 6, function="test_it")),
            ["AMP203"],
        ),
        # The call by the test also decides at greater depth.
        (
            Site("deep.py", 9, function="inner", caller=called("train", 5)),
            Site("deep.py", 8, function="other", caller=called("train", 6)),
            [],
        ),
        (
            Site("deep.py", 9, function="inner", caller=called("train", 5)),
            Site("deep.py", 8, function="inner", caller=called("step", 6)),
            ["AMP203"],
        ),
    ],
)
def test_a_test_that_tries_a_function_out_trains_nothing(backward: Site, step: Site, expected: list[str]) -> None:
    drawing = Drawing()
    events = [drawing.event(kind) for kind in (e.ZeroGrad, e.Backward, e.ScalerStep, e.Update)]
    events[1].site, events[2].site = backward, step
    drawing.line(0, *events)
    assert codes(drawing) == expected


@pytest.mark.parametrize(
    ("made", "line"),
    [
        # The loss is computed in the helper, or by its caller, or at an unknown location.
        (Site("helpers.py", 2, function="accumulate", caller=Site("train.py", 9, function="main")), 3),
        (Site("train.py", 8, function="main"), 10),
        (Site("losses.py", 7, function="loss", caller=Site("train.py", 8, function="main")), 10),
        (None, 3),
    ],
)
def test_who_gives_a_helper_a_loss_that_is_not_divided_is_blamed(made: Site | None, line: int) -> None:
    drawing = Drawing()
    facts: dict[str, Any] = {"inside": e.MICRO}
    if made is not None:
        facts["forward"] = e.Forward(made)
    backward = drawing.scaled_backward(**facts)
    backward.site = Site("helpers.py", 3, function="accumulate", caller=Site("train.py", 10, function="main"))
    step = [drawing.event(kind) for kind in (e.ScalerStep, e.Update)]
    for event, place in zip(step, (20, 21), strict=True):
        event.site = Site("train.py", place, function="main")
    clear = drawing.event(e.ZeroGrad)
    drawing.line(0, clear, backward, backward, *step)
    (finding,) = drawing.findings()
    assert (finding.code, finding.line) == ("AMP301", line)


@pytest.mark.parametrize("skips", [True, False])
def test_what_skips_the_step_is_named_before_what_comes_of_it(skips: bool) -> None:
    drawing = Drawing()
    node = drawing.line(0, drawing.event(e.ZeroGrad), drawing.scaled_backward(), drawing.event(e.Unscale))
    skipping = drawing.node()
    drawing.way(node, skipping)
    if skips:
        drawing.graph.nodes[skipping].skip_statement = ("continue", Site("train.py", 90))
    last = [
        drawing.event(e.ZeroGrad),
        drawing.scaled_backward(),
        drawing.event(e.ScalerStep),
        drawing.event(e.Update),
    ]
    drawing.line(skipping, *last)
    (finding,) = drawing.findings()
    assert finding.code == "AMP209"
    assert [step.site.line for step in finding.trace] == ([3, 90, 5] if skips else [3, 5])
    assert [step.text for step in finding.trace].count("the step is skipped") == skips
    assert finding.names.get("skip") == ("`continue` skips the step" if skips else None)


def test_a_statement_that_skips_what_came_before_is_not_named() -> None:
    drawing = Drawing()
    skipping = drawing.node()
    drawing.way(0, skipping)
    drawing.graph.nodes[skipping].skip_statement = ("continue", Site("train.py", 90))
    events = [drawing.event(e.ZeroGrad), drawing.scaled_backward(), drawing.event(e.Unscale)]
    events += [drawing.event(e.ZeroGrad), drawing.scaled_backward(), drawing.event(e.ScalerStep)]
    drawing.line(skipping, *events, drawing.event(e.Update))
    (finding,) = drawing.findings()
    assert "skip" not in finding.names


def test_a_finding_knows_the_functions_whose_reading_has_come_upon_it() -> None:
    program = Program()
    scaler = program.add_object("scaler", "scaler")
    set_attributes(program, enters_autocast=False, live_scalers=(scaler,))
    fill = e.Fill(Site("train.py", 4), value=-1e9, eligible=True)
    scale = e.Scale(Site("train.py", 7), scaler.key, forward_read=True)
    for line, events in ((1, [fill]), (3, [scale, fill]), (9, [])):
        graph = Graph("f", ("train.py", line))
        graph.nodes = [Node(event) for event in (None, *events)]
        program.graphs.append(graph)
    filled, scaled = frozenset({fill.site.call_key}), frozenset({scale.site.call_key})
    assert [(finding.code, finding.discovery.entries) for finding in check(program)] == [
        ("AMP506", {("train.py", 1): filled, ("train.py", 3): filled}),
        ("AMP110", {("train.py", 3): scaled}),
    ]


@pytest.mark.parametrize("read", [True, False])
def test_what_a_program_lacks_is_certain_where_its_forward_was_read(read: bool) -> None:
    drawing = Drawing()
    set_attributes(drawing.program, enters_autocast=False, live_scalers=(drawing.scaler,))
    scale = drawing.event(e.Scale, forward_read=read)
    scale.subject = drawing.scaler.key
    drawing.line(0, scale)
    assert [(finding.code, finding.certain) for finding in drawing.findings()] == [("AMP110", read)]


@pytest.mark.parametrize(("saved", "expected"), [("scaler", ["AMP208"]), ("other", ["AMP208", "AMP401"])])
def test_a_scaler_that_is_made_anew_all_the_time_is_not_missed_in_a_checkpoint(saved: str, expected: list[str]) -> None:
    drawing = Drawing()
    kinds = [e.OptimizerNew, *[e.ScalerNew, e.ZeroGrad, e.Backward, e.ScalerStep, e.Update] * 2]
    events = [drawing.event(kind) if kind != e.Backward else drawing.scaled_backward() for kind in kinds]
    for event in events:
        event.names = {"scaler": "scaler"}
    save = drawing.event(e.Save, optimizers=(drawing.optimizers[0].key,), scope_scalers=(saved,))
    drawing.line(0, *events, save)
    assert codes(drawing) == expected


@pytest.mark.parametrize(
    ("left", "said"), [((1, 4), "the last of 4 micro-batches"), ((2, 5), "the last 2 of 5 micro-batches")]
)
def test_micro_batches_that_are_left_over_are_counted(left: tuple[int, int], said: str) -> None:
    drawing = Drawing()
    full = drawing.test("(i + 1) % k == 0")
    full.is_window_predicate, full.site = True, Site("train.py", 50)
    full.window_truth = WindowTruth(trailing_microbatches=left)
    head = drawing.line(0, drawing.event(e.OptimizerNew))
    loop = drawing.node()
    drawing.way(head, loop)
    drawing.graph.nodes[loop].forgotten_predicates = 1 << full.key
    flush = [drawing.event(kind) for kind in (e.ScalerStep, e.Update, e.ZeroGrad)]
    drawing.way(drawing.diamond(drawing.line(loop, drawing.scaled_backward(division=e.DIVIDED)), full, flush), loop)
    (finding,) = drawing.findings()
    assert (finding.code, finding.line) == ("AMP304", 50)
    assert said in finding.message
    assert "`(i + 1) % k == 0`" in finding.message


@pytest.mark.parametrize(
    ("asked", "denied", "truth", "condition"),
    [
        ("use_amp", False, True, "when `use_amp` is true"),
        ("use_amp", False, False, "when `use_amp` is false"),
        ("n % 4 > 0", True, True, "when `n % 4 > 0` is false"),
        ("n % 4 > 0", True, False, "when `n % 4 > 0` is true"),
        # A text that begins and ends like a negation is not one.
        ("not (a or b) if c else f(d)", False, True, "when `not (a or b) if c else f(d)` is true"),
    ],
)
def test_a_condition_that_is_denied_is_said_without_its_denial(
    asked: str, denied: bool, truth: bool, condition: str
) -> None:
    drawing = Drawing()
    test = drawing.test()
    words = SourceText(ast.parse(asked, mode="eval").body, 80)
    test.text = NegatedText(words) if denied else words
    node = drawing.line(0, drawing.event(e.ZeroGrad), drawing.scaled_backward())
    clip = [drawing.event(e.Clip)]
    node = drawing.diamond(node, test, clip if truth else (), () if truth else clip)
    drawing.line(node, drawing.event(e.ScalerStep), drawing.event(e.Update))
    (finding,) = drawing.findings()
    assert (finding.code, finding.condition) == ("AMP201", condition)


def test_a_question_without_words_is_no_condition() -> None:
    drawing = Drawing()
    node = drawing.line(0, drawing.event(e.ZeroGrad), drawing.scaled_backward())
    node = drawing.diamond(node, drawing.test(""), [drawing.event(e.Clip)])
    drawing.line(node, drawing.event(e.ScalerStep), drawing.event(e.Update))
    (finding,) = drawing.findings()
    assert (finding.certain, finding.condition) == (False, "")


def test_a_choice_between_conditions_is_said_as_it_is_written() -> None:
    source = """\
import torch


def train(model, loader, optimizer, a, b, c, d):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x, y)
        scaler.scale(loss).backward()
        if not (a or b) if c else d(x):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""
    (finding,) = check_source(source)
    assert finding.condition == "when `not (a or b) if c else d(x)` is true"


@pytest.mark.parametrize("truth", [True, False])
def test_a_way_that_one_answer_opens_alone_is_gone_with_that_answer(truth: bool) -> None:
    drawing = Drawing()
    test = drawing.test()
    node = drawing.line(0, drawing.event(e.ZeroGrad), drawing.scaled_backward())
    asking, after = drawing.node(), drawing.node()
    drawing.way(node, asking)
    drawing.way(asking, after, test, truth)
    node = drawing.diamond(after, test, [drawing.event(e.Clip)])
    drawing.line(node, drawing.event(e.ScalerStep), drawing.event(e.Update))
    assert codes(drawing) == (["AMP201"] if truth else [])


@pytest.mark.parametrize(("function", "line"), [("main", 50), ("evaluate", 3)])
def test_who_asks_a_helper_to_read_gradients_is_blamed(function: str, line: int) -> None:
    drawing = Drawing()
    backward, read = drawing.scaled_backward(), drawing.event(e.GradRead)
    backward.site = Site("train.py", 49, function="main")
    read.site = Site("norms.py", 3, function="norm", caller=Site("train.py", 50, function=function))
    last = [drawing.event(kind) for kind in (e.ScalerStep, e.Update)]
    drawing.line(0, drawing.event(e.ZeroGrad), backward, read, *last)
    (finding,) = drawing.findings()
    assert (finding.code, finding.line) == ("AMP202", line)
