"""Where tests run: those for a GPU where there is one, and some of them under the emulation too. What holds in all."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook

from pytest_amp_check.protocol import events

if TYPE_CHECKING:
    from pytest_amp_check.runtime.session import Session


def pytest_configure() -> None:
    # Before torch is loaded. Its threads keep processors busy while they wait for each other, which are few and shared:
    # tests that train took six times as long, and proved no more.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As in the background of a shell. What tests start would inherit that, and they send Ctrl-C to some of it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # As under nohup. It stays without effect here, but nobody inherits a handler.
        signal.signal(signal.SIGHUP, lambda number, frame: None)
    if pytest.version_tuple < (9,):
        # pytest 8 cannot rewrite what an editable install has it load, and says so in every run inside of a test.
        pytest.MonkeyPatch().setattr(AssertionRewritingHook, "_warn_already_imported", lambda *_: None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Let no search for cycles go through what stays until the end: torch, thousands of tests and their arguments.

    Each run of pytest inside of a test ends with several such searches, each recording looks through the objects there
    are, and tests of memory count them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """What the tests of a file have loaded and remembered stays as well."""
    yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    # So that none of them is left to one worker alone in the end.
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def _has_cuda() -> bool:
    # Looked for only where a test asks: some of the tests are about source alone, and run without torch.
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


@pytest.fixture
def alone_in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Give a script a folder and arguments of its own, and a compiler that is quick."""
    import torch

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["script.py"])


@pytest.fixture
def this_plugin_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of pytest inside a test load this plugin, installed or not, and no other that happens to be installed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_amp_check.frontends.plugin")


@pytest.fixture(params=["emulate", pytest.param("cuda", marks=pytest.mark.gpu)])
def where(request: pytest.FixtureRequest) -> str:
    """The devices on which what is said of CUDA is tested: the emulation everywhere, and CUDA where it is."""
    return str(request.param)


@pytest.fixture
def half(where: str) -> Iterator[Session]:
    """A session in float16 on the emulated device, and on the real one."""
    from pytest_amp_check.runtime.session import session

    with session(where, "float16") as made:
        yield made


@pytest.fixture(params=["float16", "bfloat16"])
def low(where: str, request: pytest.FixtureRequest) -> Iterator[Session]:
    """Sessions in both low dtypes on the emulated device, and on the real one."""
    from pytest_amp_check.runtime.session import session

    with session(where, request.param) as made:
        yield made


class Declared(dict[str, Any]):
    """Facts of an event, a thing or a program, none of which is other than declared."""

    def __init__(self, owner: str, allowed: frozenset[str], facts: dict[str, Any]) -> None:
        super().__init__()
        self.owner = owner
        self.allowed = allowed
        self.update(facts)

    def __setitem__(self, name: str, value: Any) -> None:
        assert name in self.allowed, f"{self.owner} has no fact {name!r}: declare it in protocol/events.py"
        super().__setitem__(name, value)

    def update(self, *args: Any, **facts: Any) -> None:
        for name, value in dict(*args, **facts).items():
            self[name] = value

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]


@pytest.fixture(autouse=True, scope="session")
def facts_are_declared() -> Iterator[None]:
    """Let no reader emit a fact that its kind of event, or its role, does not declare."""
    with pytest.MonkeyPatch.context() as patch:
        event, thing, program = events.Event.__init__, events.TrackedObject.__init__, events.Program.__init__

        def made_event(self: events.Event, kind: events.EventKind, *args: Any, **more: Any) -> None:
            event(self, kind, *args, **more)
            self.attributes = Declared(f"a {kind} event", kind.attributes, self.attributes)

        def made_thing(self: events.TrackedObject, *args: Any, **more: Any) -> None:
            thing(self, *args, **more)
            allowed = frozenset(events.THINGS.get(self.role, "").split())
            self.attributes = Declared(f"a thing that is a {self.role}", allowed, self.attributes)

        def made_program(self: events.Program) -> None:
            program(self)
            self.attributes = Declared("a program", frozenset(events.PROGRAM.split()), self.attributes)

        patch.setattr(events.Event, "__init__", made_event)
        patch.setattr(events.TrackedObject, "__init__", made_thing)
        patch.setattr(events.Program, "__init__", made_program)
        yield
