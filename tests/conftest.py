"""Devices of the tests: GPU tests run on a GPU, some also under emulation. Hooks and fixtures of all tests."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import signal
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook
from event_fields import fields_of, message_fields
from item_groups import CaseNames, GroupRunner
from samples import EXHAUSTIVE, deselect_exhaustive

from pytest_amp_check.frontends.options.agents import VARIABLES
from pytest_amp_check.protocol import events, tracked_objects

if TYPE_CHECKING:
    from pytest_amp_check.runtime.session import Session

# A loaded machine is no reason to fail.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

# Some of these programs have names of tests, and importing a program runs it.
collect_ignore = ["protocol/negative_examples"]


def pytest_configure(config: pytest.Config) -> None:
    chosen = str(config.option.markexpr)
    if "gpu" not in chosen or "not gpu" in chosen:
        # Except for tests of the GPU itself, which `-m gpu` selects, a machine with a GPU runs the same tests as one
        # without: programs for the CPU would find it, and shards of two ranks need two.
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    # Before torch is loaded. Its threads keep processors busy while they wait for each other, and processors are few
    # and shared: training tests took six times as long, and proved nothing more.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Otherwise inductor starts processes that load torch, for the few models that tests compile.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    # Programs of tests load models by name, which must fail at once: no test uses a network.
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name in VARIABLES:
        # A coding agent that runs the tests must not change the output of the commands in them.
        os.environ.pop(name, None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As in the background of a shell. Child processes of tests would inherit this, and some of them get Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # As under nohup. The handler has no effect here, but child processes do not inherit handlers.
        signal.signal(signal.SIGHUP, lambda number, frame: None)
    config.pluginmanager.register(GroupRunner() if hasattr(config, "workerinput") else CaseNames())
    if pytest.version_tuple < (9,):
        # pytest 8 cannot rewrite modules of an editable install, and warns about it in every run inside of a test.
        pytest.MonkeyPatch().setattr(AssertionRewritingHook, "_warn_already_imported", lambda *_: None)


def pytest_report_header() -> str | None:
    # Workers of xdist report no deselected tests.
    return None if EXHAUSTIVE else "deselected: tests of the marker exhaustive, which EXHAUSTIVE_TESTS=1 runs"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Exclude permanent objects from the garbage collector: torch, thousands of tests and their arguments.

    Each run of pytest inside of a test ends with several collections, each recording searches the live objects, and
    memory tests count them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Exclude the permanent objects that the tests of a file have created as well."""
    yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    deselect_exhaustive(config, items)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    # Long tests first, so that no worker is left with a long test at the end.
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def _has_cuda() -> bool:
    # Checked only on demand: some of the tests are only about source, and run without torch.
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


@pytest.fixture
def alone_in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Give a script a separate folder and arguments, and a fast compiler backend."""
    import torch

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["script.py"])


@pytest.fixture(scope="module")
def patched_once() -> Iterator[None]:
    """Patch torch once for all recordings of a file, as a test session does.

    Patching takes 5 ms, more than many of the recorded programs. With REPEAT_PATCHES=1, each recording patches again: a
    mutation test runs only the tests that reach a mutant, which may be in a patch.
    """
    from pytest_amp_check.runtime.record.attach import keep_patches

    if os.environ.get("REPEAT_PATCHES"):
        yield
        return
    release_patches = keep_patches()
    yield
    release_patches()


@pytest.fixture
def this_plugin_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs of pytest inside a test load only this plugin, installed or not, and no other installed plugin."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_amp_check.frontends.plugin")


@pytest.fixture(params=["emulate", pytest.param("cuda", marks=pytest.mark.gpu)])
def where(request: pytest.FixtureRequest) -> str:
    """Return the device for statements about CUDA: the emulation everywhere, and CUDA if available."""
    return str(request.param)


@pytest.fixture
def half(where: str) -> Iterator[Session]:
    """Open a session in float16 on the emulated device, and on the real device."""
    from pytest_amp_check.runtime.session import session

    with session(where, "float16") as made:
        yield made


@pytest.fixture(params=["float16", "bfloat16"])
def low(where: str, request: pytest.FixtureRequest) -> Iterator[Session]:
    """Open sessions in both low dtypes on the emulated device, and on the real device."""
    from pytest_amp_check.runtime.session import session

    with session(where, request.param) as made:
        yield made


#: Kinds of events with a declared field: each event repeats the fields of its kind.
_DECLARED: set[tuple[events.EventKind, str]] = set()


def check_fields(kind: events.EventKind, names: Iterable[str]) -> None:
    """Reject fields that a kind of event does not declare."""
    for name in names:
        if (kind, name) not in _DECLARED:
            assert name in fields_of(kind), (
                f"a {events.name_of_kind(kind)} event has no field {name!r}: declare it in {kind}"
            )
            _DECLARED.add((kind, name))


def check_names(names: Mapping[str, object]) -> None:
    """Reject a name that no message uses. A message without its name would show a general word instead."""
    unused = names.keys() - message_fields()
    assert not unused, f"no message has a field for {sorted(unused)}"


@functools.cache
def check_attribute(name: str) -> None:
    """Reject an attribute that no role of a tracked object declares."""
    assert hasattr(tracked_objects.ObjectAttributes, name), (
        f"an object has no attribute {name!r}: declare it for its role"
    )


@pytest.fixture(autouse=True, scope="session")
def facts_are_declared() -> Iterator[None]:
    """Fail if analyzer or recorder sets an attribute that no class declares, where mypy does not look."""
    with pytest.MonkeyPatch.context() as patch:
        event, attributes = events.Event.__init__, tracked_objects.ObjectAttributes.__init__

        def made_event(self: events.Event, *args: Any, **fields: Any) -> None:
            check_fields(type(self), fields)
            event(self, *args, **fields)
            check_names(self.names)

        def set_field(self: events.Event, name: str, value: Any) -> None:
            check_fields(type(self), (name,))
            if name == "names":
                check_names(value)
            object.__setattr__(self, name, value)

        def made_attributes(self: tracked_objects.ObjectAttributes, **more: Any) -> None:
            for name in more:
                check_attribute(name)
            attributes(self, **more)

        def set_attribute(self: tracked_objects.ObjectAttributes, name: str, value: object) -> None:
            check_attribute(name)
            object.__setattr__(self, name, value)

        patch.setattr(events.Event, "__init__", made_event)
        patch.setattr(events.Event, "__setattr__", set_field, raising=False)
        patch.setattr(tracked_objects.ObjectAttributes, "__init__", made_attributes)
        patch.setattr(tracked_objects.ObjectAttributes, "__setattr__", set_attribute, raising=False)
        yield
