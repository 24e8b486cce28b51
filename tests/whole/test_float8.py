"""TransformerEngine's own autocast: backward must run outside of the region, for analyzer and recorder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from marks import marks, places

from pytest_amp_check import check_source

pytestmark = pytest.mark.usefixtures("patched_once")

HEAD = """\
import contextlib

import torch
import transformer_engine.pytorch as te


def train(model, loader, loss_fn, recipe, fp8):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for x, y in loader:
        optimizer.zero_grad()
"""
PROGRAMS = {
    "its older name": """\
        with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
            loss = loss_fn(model(x), y)
            loss.backward()  # AMP103
""",
    "its newer name, inside autocast of torch that is left": """\
        with te.autocast(recipe=recipe):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = loss_fn(model(x), y)
            loss.backward()  # AMP103
""",
    "where it is enabled": """\
        with te.autocast(enabled=fp8):
            loss = loss_fn(model(x), y)
            loss.backward()  # AMP103
""",
    "where there is one": """\
        with te.autocast() if fp8 else contextlib.nullcontext():
            loss = loss_fn(model(x), y)
            loss.backward()  # AMP103
""",
    "on a stack": """\
        with contextlib.ExitStack() as stack:
            stack.enter_context(te.autocast())
            loss = loss_fn(model(x), y)
            loss.backward()  # AMP103
""",
    "it is off": """\
        with te.autocast(enabled=False):
            loss = loss_fn(model(x), y)
            loss.backward()
""",
    "it is off for a part": """\
        with te.autocast():
            hidden = model(x)
            with te.autocast(enabled=False):
                loss = loss_fn(hidden, y)
                loss.backward()
""",
    "it is left": """\
        with contextlib.ExitStack() as stack:
            stack.enter_context(te.autocast(enabled=fp8))
            loss = loss_fn(model(x), y)
        loss.backward()
""",
}


@pytest.mark.parametrize("body", PROGRAMS.values(), ids=PROGRAMS)
def test_the_source_tells_of_a_backward_inside(body: str) -> None:
    source = f"{HEAD}{body}        optimizer.step()\n"
    assert places(check_source(source)) == marks(source)


def engine(name: str) -> ModuleType:
    """Return a module with the state of TransformerEngine's autocast, whose location depends on the release."""
    module = ModuleType(f"transformer_engine.pytorch.{name}")

    class FP8GlobalStateManager:
        FP8_ENABLED = False

        @classmethod
        def is_fp8_enabled(cls) -> bool:
            return cls.FP8_ENABLED

    @contextmanager
    def autocast(enabled: bool = True) -> Iterator[None]:
        before, FP8GlobalStateManager.FP8_ENABLED = FP8GlobalStateManager.FP8_ENABLED, enabled
        yield
        FP8GlobalStateManager.FP8_ENABLED = before

    vars(module).update(FP8GlobalStateManager=FP8GlobalStateManager, autocast=autocast)
    return module


@pytest.mark.parametrize("name", ["quantization", "fp8"])
@pytest.mark.parametrize(("enabled", "inside"), [(True, True), (True, False), (False, True)])
def test_a_run_tells_of_a_backward_inside(
    monkeypatch: pytest.MonkeyPatch, name: str, *, enabled: bool, inside: bool
) -> None:
    torch = pytest.importorskip("torch")
    from pytest_amp_check import record

    module: Any = engine(name)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record() as run:
        with module.autocast(enabled):
            loss = model(torch.randn(8, 4)).square().mean()
            line = sys._getframe().f_lineno + 2
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        optimizer.step()
    assert run.failure is None
    assert [(f.code, f.line, f.label) for f in run.findings] == [
        ("AMP103", line, "backward@float8") for _ in range(enabled and inside)
    ]
