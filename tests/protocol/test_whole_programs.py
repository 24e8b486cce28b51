"""The checks of whole programs, on manual graphs: events that belong together."""

from __future__ import annotations

from typing import Any

import pytest
from event_fields import set_attributes

from pytest_amp_check.protocol import events as e
from pytest_amp_check.protocol.event_graph import Graph, Node, Program
from pytest_amp_check.protocol.events import UNKNOWN, Event
from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.protocol.sites import Site

LOADS: dict[str, Any] = {"holds_scaler": True, "scope_scalers": ("scaler",)}


def at(line: int, function: str = "main", caller: Site | None = None) -> Site:
    return Site("train.py", line, function=function, caller=caller)


def graph_of(*events: Event, ways: tuple[tuple[int, int], ...] | None = None) -> Graph:
    """Return a graph of events in sequence, or with edges between event numbers from one; 0 is the entry node."""
    graph = Graph("main")
    graph.nodes = [Node(), *(Node(event) for event in events)]
    for start, end in ways if ways is not None else ((i, i + 1) for i in range(len(events))):
        graph.nodes[start].edges.append((end, -1, True))
    return graph


def program_of(*graphs: Graph, **facts: Any) -> Program:
    program = Program()
    program.graphs = list(graphs)
    set_attributes(program, **facts)
    return program


def checked(code: str, program: Program) -> list[tuple[str, int, dict[str, str]]]:
    """Return the label, the line and the values of each violation of a rule."""
    checks = RULES[code].program_checks.values()
    return [(label, event.site.line, dict(values)) for check in checks for label, event, values, _ in check(program)]


def load(line: int = 1, site: Site | None = None, **facts: Any) -> Event:
    return e.OptimizerLoad(site or at(line), **{**LOADS, **facts}, names={"optimizer": "opt"})


def scaler_load(line: int = 2, site: Site | None = None, **facts: Any) -> Event:
    return e.ScalerLoad(site or at(line), 0, **facts)


AGAIN = e.Again(at(9))
NOT_LOADED = ("load:no-scaler", 1, {"optimizer": "opt", "scaler": "scaler"})
CALLED = at(1, "restore", at(7))


@pytest.mark.parametrize(
    ("graphs", "found"),
    [
        ([graph_of(load())], True),
        ([graph_of(load(holds_scaler=False))], False),
        ([graph_of(load(scope_scalers=()))], False),
        # Before the load, after it, and on another path.
        ([graph_of(load(), scaler_load())], False),
        ([graph_of(scaler_load(), load())], False),
        ([graph_of(load(), scaler_load(), ways=((0, 1), (0, 2)))], True),
        ([graph_of(load(), e.Step(at(3)), scaler_load())], False),
        # A path through a loop counts; a path through another call of the function does not.
        ([graph_of(load(), scaler_load(), ways=((0, 1), (1, 1), (1, 2)))], False),
        ([graph_of(load(), AGAIN, scaler_load())], True),
        ([graph_of(load(), scaler_load(of_others=True))], True),
        # In another function.
        ([graph_of(load()), graph_of(scaler_load())], False),
        ([graph_of(load()), graph_of(scaler_load(of_others=True))], True),
        # One location in two functions, with a load of the scaler in one of them, on another path.
        ([graph_of(load()), graph_of(load(), scaler_load(), ways=((0, 1), (0, 2)))], True),
        ([graph_of(load()), graph_of(load(), scaler_load())], False),
        # The call of a function is visible: as an entry point it shows nothing.
        (
            [graph_of(load(site=CALLED)), graph_of(load(site=at(1, "restore")), scaler_load(site=at(2, "restore")))],
            True,
        ),
        ([graph_of(load(site=CALLED), scaler_load(site=at(2, "restore", at(7))))], False),
        ([graph_of(load(site=at(1, "restore")), scaler_load(site=at(2, "restore")))], False),
    ],
)
def test_a_scaler_is_loaded_where_the_optimizer_is(graphs: list[Graph], found: bool) -> None:
    places = checked("AMP402", program_of(*graphs))
    assert [*dict.fromkeys((label, line) for label, line, _ in places)] == [NOT_LOADED[:2]] * found
    assert all(values == NOT_LOADED[2] for _, _, values in places)


@pytest.mark.parametrize(
    ("dtypes", "found"), [(set(), True), ({"float16"}, True), ({"float16", "bfloat16"}, True), ({"bfloat16"}, False)]
)
def test_what_a_scaler_of_bfloat16_has_learnt_is_nothing_to_save_or_to_load(dtypes: set[str], found: bool) -> None:
    assert checked("AMP402", program_of(graph_of(load()), loss_dtypes=dtypes)) == [NOT_LOADED] * found
    saved = e.Save(at(1), optimizers=("opt",), scope_scalers=("scaler",))
    names = {"optimizer": "opt", "scaler": "scaler", "kept_scaler": "scaler", "if_any": ""}
    assert checked("AMP401", program_of(graph_of(saved), loss_dtypes=dtypes)) == [("save:no-scaler", 1, names)] * found


@pytest.mark.parametrize(
    ("facts", "known", "label"),
    [
        ({}, {}, "save:no-scaler"),
        ({}, {"resumes": True}, "save:no-scaler"),
        ({}, {"resumes": False}, "save:no-scaler-unresumed"),
        ({"objects": True}, {}, "save:no-scaler-object"),
        ({"open": True}, {}, ""),
        ({"scalers": ("scaler",)}, {}, ""),
        ({"whole_scalers": ("scaler",)}, {}, ""),
        ({"optimizers": ()}, {}, ""),
        ({"scope_scalers": ()}, {}, ""),
        ({}, {"recreated_names": {"scaler"}}, ""),
        ({}, {"recreated_names": {"other"}}, "save:no-scaler"),
    ],
)
def test_what_a_checkpoint_lacks(facts: dict[str, Any], known: dict[str, Any], label: str) -> None:
    saved = e.Save(at(1), **{"optimizers": ("opt",), "scope_scalers": ("scaler",), **facts})
    assert [said for said, _, _ in checked("AMP401", program_of(graph_of(saved), **known))] == (
        [label] if label else []
    )


@pytest.mark.parametrize(("optimizers", "found"), [((), False), (("opt",), True)])
def test_a_scaler_that_is_saved_in_a_file_of_its_own_is_saved(optimizers: tuple[str, ...], found: bool) -> None:
    saved = e.Save(at(1), optimizers=("opt",), scope_scalers=("scaler",))
    other = e.Save(at(2), scalers=("scaler",), optimizers=optimizers)
    assert [line for _, line, _ in checked("AMP401", program_of(graph_of(saved, other)))] == [1] * found


def compressed(scale: dict[str, object], hook: dict[str, Any], step: dict[str, Any], **facts: Any) -> list[Any]:
    """Return the AMP604 violations. ``facts`` are attributes of the optimizer."""
    program = Program()
    scaler, optimizer = program.add_object("scaler", "scaler"), program.add_object("optimizer", "opt", **facts)
    made = e.ScalerNew(at(1), scaler.key, arguments=scale)
    hooked = e.CommHook(at(2), **hook)
    stepped = e.ScalerStep(at(3), scaler.key, **{"object": optimizer.key, **step})
    program.graphs = [graph_of(made, hooked, stepped, stepped)]
    program.attributes.scalers.live_scalers = [scaler]
    return checked("AMP604", program)


@pytest.mark.parametrize(
    ("scale", "hook", "step", "owns", "found"),
    [
        ({}, {}, {}, None, True),
        ({"init_scale": 1024.0}, {}, {}, None, False),
        ({"init_scale": 1025}, {}, {}, None, True),
        ({"init_scale": UNKNOWN}, {}, {}, None, True),
        # The module of the hook, and the modules of the optimizer.
        ({}, {"subject": 7}, {}, (7,), True),
        ({}, {"subject": 7}, {}, (8,), False),
        ({}, {"subject": 7}, {}, None, True),
        ({}, {}, {}, (8,), True),
        ({}, {"subject": 7}, {"object": None}, (8,), True),
        # Predicates.
        ({}, {"guards": ((0, True),)}, {"guards": ((0, True),)}, None, True),
        ({}, {"guards": ((0, True),)}, {"guards": ((0, False),)}, None, False),
        ({}, {"guards": ((0, True),)}, {"guards": ((1, False),)}, None, True),
    ],
)
def test_a_hook_that_compresses_what_a_scaler_has_scaled(
    scale: dict[str, object], hook: dict[str, Any], step: dict[str, Any], owns: tuple[int, ...] | None, found: bool
) -> None:
    reported = compressed(scale, hook, step, owns=owns)
    assert reported == [("hook@scaled", 2, {"scaler": "the scaler"})] * found


def test_the_scaler_of_a_hook_is_called_what_its_step_calls_it() -> None:
    assert compressed({}, {}, {"names": {"scaler": "self.scaler"}}) == [("hook@scaled", 2, {"scaler": "self.scaler"})]


@pytest.mark.parametrize(
    ("around", "applied", "found"),
    [
        ((), False, True),
        ((), True, False),
        (("backward",), True, False),
        (("region",), True, False),
        (("backward", "region"), True, True),
        (("backward", "region", "float32"), True, True),
        (("backward", "region", "bfloat16"), True, False),
        (("backward", "region", "bfloat16"), False, True),
        (("backward", "region-off"), True, False),
    ],
)
def test_a_custom_function_that_training_in_autocast_comes_upon(
    around: tuple[str, ...], applied: bool, found: bool
) -> None:
    others = {
        "backward": e.Backward(at(2)),
        "region": e.AutocastEnter(at(3), enabled=True),
        "region-off": e.AutocastEnter(at(3), enabled=False),
        "float32": e.ModuleCast(at(4), dtype="float32"),
        "bfloat16": e.ModuleCast(at(4), dtype="bfloat16"),
    }
    function = e.CustomFunction(at(1), applied=applied, how="forward")
    program = program_of(graph_of(function, *(others[name] for name in around)))
    assert checked("AMP107", program) == [("function:forward", 1, {})] * found


@pytest.mark.parametrize(
    ("called", "by_event", "expected"),
    [
        ("scaler", {"scaler": "self.scaler"}, "self.scaler"),
        ("scaler", {}, "scaler"),
        ("", {}, "the scaler"),
    ],
)
def test_anomalies_are_looked_for_beside_a_live_scaler(called: str, by_event: dict[str, object], expected: str) -> None:
    program = program_of(graph_of(e.Anomaly(at(1), names=by_event), e.Anomaly(at(2), idle=True)))
    assert checked("AMP213", program) == []
    program.attributes.scalers.live_scalers = [program.add_object("scaler", called)]
    assert checked("AMP213", program) == [("anomaly-nonfinite", 1, {"scaler": expected})]


@pytest.mark.parametrize(
    ("device", "entered", "found"),
    [
        ("cuda", ["mps"], True),
        ("cuda", ["mps", "mps"], True),
        ("cuda", ["cuda"], False),
        ("cuda", ["mps", "cuda"], False),
        ("cuda", [], False),
        ("cuda", ["cpu"], False),
        ("cpu", ["mps"], False),
        (None, ["mps"], False),
        ("xpu", ["cuda"], True),
    ],
)
def test_a_scaler_of_another_device_than_the_regions(device: str | None, entered: list[str], found: bool) -> None:
    program = Program()
    scaler, dead = (program.add_object("scaler", name, device=device) for name in ("scaler", "dead"))
    made = [e.ScalerNew(at(1 + n), each.key) for n, each in enumerate((scaler, dead))]
    nothing = e.AutocastEnter(at(8), enabled=False, device="xpu", null=True)
    regions = [e.AutocastEnter(at(9), enabled=True, device=each) for each in entered]
    program.graphs = [graph_of(*made, nothing, *regions)]
    program.attributes.scalers.live_scalers = [scaler]
    values = {"device": str(device), "other": entered[0] if entered else ""}
    assert checked("AMP216", program) == [("scaler:other-device", 1, values)] * found
