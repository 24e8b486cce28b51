"""Where tests run: those for a GPU where there is one, and some of them under the emulation too."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_amp_check.runtime.session import Session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


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
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_amp_check.faces.plugin")


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
