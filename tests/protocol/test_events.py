"""The vocabulary: every kind of event declares its attributes, and each attribute is emitted and read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from event_fields import every_kind as kinds_of_events
from event_fields import fields_of, own_fields, set_attributes

import pytest_amp_check
from pytest_amp_check.protocol import event_graph, events, torch_api
from pytest_amp_check.protocol.event_graph import Program
from pytest_amp_check.protocol.events import Event, name_of_kind
from pytest_amp_check.protocol.sites import Site
from pytest_amp_check.protocol.tracked_objects import ModuleDtypes, ModuleTraining, ObjectAttributes

ROOT = Path(pytest_amp_check.__file__).parent
#: The modules that declare events and attributes.
DECLARING = {
    *(ROOT / "protocol" / "events").glob("*.py"),
    *(ROOT / "protocol" / f"{name}.py" for name in ("event_graph", "sites", "tracked_objects")),
}
KINDS = {kind.__name__: kind for kind in kinds_of_events()}
every_kind = pytest.mark.parametrize("name", KINDS)
#: Kinds that only show that a call is known, and that it may raise.
ONLY_KNOWN = {"AutogradGrad"}


def code(*folders: str) -> Iterator[ast.AST]:
    """Yield the nodes of all modules in some folders of the package."""
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            if path not in DECLARING:
                yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def read() -> set[str]:
    """Return the names that the package reads as attributes anywhere, or that decide the effect of an event."""
    loaded = (node for node in code("protocol", "static", "runtime") if isinstance(node, ast.Attribute))
    deciding = (kind.traits.deciding_fields or () for kind in KINDS.values())
    return {node.attr for node in loaded if isinstance(node.ctx, ast.Load)}.union(*deciding)


@pytest.fixture(scope="module")
def written() -> dict[str, set[str]]:
    """Return kind -> fields that are passed at its emissions. The key "" has the fields that are set later."""
    found: dict[str, set[str]] = {name: set() for name in ("", *KINDS)}
    for node in code("static", "runtime"):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found[""].add(node.attr)
        elif isinstance(node, ast.Call):
            named = {kind for part in (node.func, *node.args) for leaf in ast.walk(part) if (kind := kind_named(leaf))}
            for kind in named:
                found[kind].update(keyword.arg or "" for keyword in node.keywords)
    return found


def kind_named(node: ast.AST) -> str:
    """Return the kind that an argument names, such as ``e.Backward`` or ``Backward``, or an empty string."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name if name in KINDS else ""


def test_there_are_many_kinds() -> None:
    assert len(KINDS) > 40
    assert len({name_of_kind(kind) for kind in KINDS.values()}) == len(KINDS)


@every_kind
def test_the_package_lists_each_kind(name: str) -> None:
    assert getattr(events, name, None) is KINDS[name], "import it in protocol/events/__init__.py"
    assert name in events.__all__, "list it in protocol/events/__init__.py"


@pytest.fixture(scope="module")
def named() -> dict[str, set[str]]:
    """Return folder of the package -> kinds that its code names."""
    folders = ("protocol", "static", "runtime")
    return {folder: {kind for node in code(folder) if (kind := kind_named(node))} for folder in folders}


@every_kind
def test_a_kind_is_emitted_and_used(name: str, named: dict[str, set[str]]) -> None:
    emitted = named["static"] | named["runtime"]
    assert name in emitted, "emit it in a model of static/libraries or in a listener of runtime/record/listeners"
    assert name in named["protocol"] | ONLY_KNOWN, "handle it in protocol/effects/__init__.py, or check it in a rule"


@every_kind
def test_what_a_kind_declares_is_emitted_and_read(name: str, read: set[str], written: dict[str, set[str]]) -> None:
    kind = KINDS[name]
    fields = fields_of(kind) - fields_of(Event)
    assert fields - written[name] - written[""] == set(), "pass these to the event, or remove them"
    assert fields - read == set(), "read these in a check or a handler, or remove them"
    assert fields_of(kind).issuperset(kind.traits.deciding_fields or ())


def test_what_several_kinds_have_in_common_is_declared_once() -> None:
    for kind in KINDS.values():
        declared = [name for each in kind.__mro__ for name in own_fields(each)]
        assert len(declared) == len(set(declared))


def test_a_constant_outside_of_the_traits_fails_where_the_kind_is_defined() -> None:
    with pytest.raises(TypeError, match=r"event Replayed: declare may_violate in `traits = KindTraits\(\.\.\.\)`"):
        type("Replayed", (Event,), {"may_violate": True})


def test_fields_that_nobody_declares_fail_in_tests() -> None:
    facts: dict[str, Any] = {"disabled": True}
    with pytest.raises(AssertionError, match="a step event has no field 'disabled'"):
        events.Step(Site("train.py", 1), **facts)
    event = events.Step(Site("train.py", 1), checked=True)
    with pytest.raises(AssertionError, match="has no field 'disabled'"):
        setattr(event, *facts.popitem())
    with pytest.raises(AssertionError, match="an object has no attribute 'upcast'"):
        Program().add_object("module", "model", upcast=True)
    with pytest.raises(AssertionError, match="no attribute 'colour'"):
        set_attributes(Program(), colour="red")


@every_kind
def test_what_a_kind_says_is_a_clause(name: str) -> None:
    for words in (KINDS[name].traits.description, KINDS[name].traits.scaled_description):
        assert words == words.strip() and not words.endswith(".") and words == words[:1].lower() + words[1:]


def test_an_object_that_is_either_of_two_has_what_each_of_them_sets() -> None:
    one, other, either = (ObjectAttributes() for _ in range(3))
    one.dtypes, other.dtypes = ModuleDtypes(low="float16"), ModuleDtypes(casts=True, low="bfloat16")
    other.freeze()
    other.set_trainer(is_float16=False)
    one.set_trainer(is_float16=True)
    either.set_to_either(one, other)
    assert either.dtypes == ModuleDtypes(casts=True, low="float16")
    assert either.training == ModuleTraining(frozen=True, trainer_float16=True)
    assert "shape" not in vars(either)


def test_an_object_that_is_either_of_two_unknown_ones_is_as_unknown() -> None:
    either = ObjectAttributes()
    either.set_to_either(ObjectAttributes(), ObjectAttributes(owns=frozenset({1})))
    assert vars(either) == {"owns": frozenset({1})}


def test_objects_and_events_have_a_descriptive_repr() -> None:
    program = Program()
    first, second = program.add_object("module", "model"), program.add_object("optimizer", "opt")
    assert (repr(first), repr(second)) == ("<module 0 model>", "<optimizer 1 opt>")
    assert program.optimizer_keys == [1]
    assert repr(events.Step(Site("train.py", 3, 4), None, 1)) == "<step None 1 @train.py:3:4>"
    assert repr(Site("a.ipynb", 3, 4, cell=2)) == "a.ipynb:cell 2:3:4"
    assert repr(torch_api.ApiEntry("torch.save", "save")) == "<save torch.save>"


def test_a_module_is_whole_with_the_parts_of_its_parts() -> None:
    program = Program()
    keys = [program.add_object("module", name).key for name in ("model", "encoder", "layer", "other")]
    for key, parts in ((0, {1}), (1, {2, 0})):
        program.objects[keys[key]].attributes.parts = parts
    assert program.with_submodules([0]) == {0, 1, 2}
    assert program.with_submodules([2, 3]) == {2, 3}


def test_a_program_names_its_objects() -> None:
    program = Program()
    program.add_object("scaler", "scaler")
    assert (program.name_of(0), program.name_of("self.scaler")) == ("scaler", "self.scaler")


def test_of_a_test_nothing_is_known_at_first() -> None:
    test = event_graph.Predicate(3, "flag", None)
    assert (test.key, test.text, test.site, test.implications, test.checked_optimizers) == (
        3,
        "flag",
        None,
        [],
        frozenset(),
    )
    assert (
        test.window_truth.trailing_microbatches,
        test.window_truth.eventual_truth,
        test.window_truth.eventually_excluded,
    ) == (None, None, None)
    assert not (
        test.is_window_predicate
        or test.window_truth.is_off_by_one
        or test.is_flag
        or test.compares_scales
        or test.asks_first_iteration
    )
