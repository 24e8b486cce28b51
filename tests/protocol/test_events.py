"""The vocabulary: every kind of event declares its attributes, and each attribute is emitted and read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_amp_check
from pytest_amp_check.protocol import events, torch_api
from pytest_amp_check.protocol.events import Event, EventKind, Program, Site
from pytest_amp_check.protocol.rules import LABELS

ROOT = Path(pytest_amp_check.__file__).parent
KINDS = {name: kind for name, kind in vars(events).items() if isinstance(kind, EventKind)}
every_kind = pytest.mark.parametrize("name", KINDS)


def code(*folders: str) -> Iterator[ast.AST]:
    """Yield the nodes of all modules in some folders of the package."""
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def text_of(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def looked_up(node: ast.AST) -> tuple[ast.expr, str] | None:
    """Return container and key of a lookup by name, such as ``facts["owners"]`` or ``facts.get("owners")``."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return node.value, text_of(node.slice)
    if isinstance(node, ast.Call) and method_of(node) in ("get", "setdefault") and node.args:
        assert isinstance(node.func, ast.Attribute)
        return node.func.value, text_of(node.args[0])
    return None


def method_of(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


def kind_named(node: ast.AST) -> str:
    """Return the constant that an argument names, such as ``e.BACKWARD`` or ``BACKWARD``, or an empty string."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name if name in KINDS else ""


def keys_set(node: ast.AST) -> Iterator[str]:
    """Yield the keys with which values are stored in a dictionary."""
    if isinstance(node, ast.Dict):
        yield from (text_of(key) for key in node.keys if key is not None)
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        yield text_of(node.slice)
    elif isinstance(node, ast.Call) and method_of(node) in ("update", "setdefault"):
        yield from (keyword.arg or "" for keyword in node.keywords)
        yield from map(text_of, node.args[:1])


@pytest.fixture(scope="module")
def read() -> set[str]:
    """Return the names that the package looks up anywhere, or uses for label overrides."""
    told = {fact for _, fault in LABELS.values() for fact, _ in fault.label_overrides}
    return told | {found[1] for node in code("protocol", "static", "runtime") if (found := looked_up(node))}


@pytest.fixture(scope="module")
def emitted() -> dict[str, set[str]]:
    """Return constant of a kind -> attributes at its emissions. The key "" has the attributes that are set later."""
    found: dict[str, set[str]] = {name: set() for name in ("", *KINDS)}
    for node in code("static", "runtime"):
        found[""].update(keys_set(node))
        if isinstance(node, ast.Call):
            named = {kind for part in node.args for leaf in ast.walk(part) if (kind := kind_named(leaf))}
            for kind in named:
                found[kind].update(keyword.arg or "" for keyword in node.keywords)
    return found


def test_kinds_are_all_different() -> None:
    assert len({str(kind) for kind in KINDS.values()}) == len(KINDS) > 40


@every_kind
def test_what_a_kind_declares_is_emitted_and_read(name: str, read: set[str], emitted: dict[str, set[str]]) -> None:
    kind = KINDS[name]
    facts = kind.attributes - ({"loops"} if kind.has_loops else frozenset())
    assert facts - emitted[name] - emitted[""] == set(), "nobody emits these"
    assert kind.attributes - read == set(), "nobody reads these"
    assert kind.attributes.issuperset(kind.deciding_attributes or ())


def test_what_is_read_of_facts_is_declared() -> None:
    declared = frozenset().union(*(kind.attributes for kind in KINDS.values()), events.PROGRAM.split())
    declared = declared.union(*(facts.split() for facts in events.THINGS.values()))
    declared = declared.union(*(entry.attributes for entry in torch_api.SURFACE.values()))
    for node in code("protocol", "static", "runtime"):
        found = looked_up(node)
        if found is not None and found[1]:
            whose = found[0].attr if isinstance(found[0], ast.Attribute) else getattr(found[0], "id", "")
            if whose == "facts":
                assert found[1] in declared, f"{ast.unparse(node)}: nobody emits it"


def test_facts_that_nobody_declares_fail_in_tests() -> None:
    with pytest.raises(AssertionError, match="a step event has no fact 'disabled'"):
        Event(events.STEP, Site("train.py", 1), attributes={"disabled": True})
    event = Event(events.STEP, Site("train.py", 1), attributes={"checked": True})
    with pytest.raises(AssertionError, match="has no fact 'disabled'"):
        event.attributes["disabled"] = True
    with pytest.raises(AssertionError, match="a module has no fact 'upcast'"):
        Program().add_object("module", "model", upcast=True)
    with pytest.raises(AssertionError, match="a program has no fact"):
        Program().attributes["colour"] = "red"


@every_kind
def test_what_a_kind_says_is_a_clause(name: str) -> None:
    for words in (KINDS[name].description, KINDS[name].scaled_description):
        assert words == words.strip() and not words.endswith(".") and words[0].islower()


def test_things_and_events_are_shown_by_what_they_are() -> None:
    program = Program()
    first, second = program.add_object("module", "model"), program.add_object("optimizer", "opt")
    assert (repr(first), repr(second)) == ("<module 0 model>", "<optimizer 1 opt>")
    assert program.optimizer_keys == [1]
    assert repr(Event(events.STEP, Site("train.py", 3, 4), None, 1)) == "<step None 1 @train.py:3:4>"
    assert repr(Site("a.ipynb", 3, 4, cell=2)) == "a.ipynb:cell 2:3:4"
    assert repr(torch_api.ApiEntry("torch.save", "save")) == "<save torch.save>"


def test_a_module_is_whole_with_the_parts_of_its_parts() -> None:
    program = Program()
    keys = [program.add_object("module", name).key for name in ("model", "encoder", "layer", "other")]
    for key, parts in ((0, {1}), (1, {2, 0})):
        program.objects[keys[key]].attributes["parts"] = parts
    assert program.with_submodules([0]) == {0, 1, 2}
    assert program.with_submodules([2, 3]) == {2, 3}


def test_a_program_calls_things_by_their_names() -> None:
    program = Program()
    program.add_object("scaler", "scaler")
    assert (program.name_of(0), program.name_of("self.scaler")) == ("scaler", "self.scaler")


def test_of_a_test_nothing_is_known_at_first() -> None:
    test = events.Predicate(3, "flag", None)
    assert (test.key, test.text, test.site, test.implications, test.checked_optimizers) == (
        3,
        "flag",
        None,
        [],
        frozenset(),
    )
    assert (test.trailing_microbatches, test.eventual_truth, test.eventually_excluded) == (None, None, None)
    assert not (
        test.is_window_predicate
        or test.is_off_by_one
        or test.is_flag
        or test.compares_scales
        or test.asks_first_iteration
    )
