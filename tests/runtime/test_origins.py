"""Findings of a run about the autocast state of the forward behind a loss."""

from __future__ import annotations

import pytest
from marks import shown

torch = pytest.importorskip("torch")

import runpy  # noqa: E402
from pathlib import Path  # noqa: E402

from agreement import recorded  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("patched_once"),
    pytest.mark.skipif(
        torch.__version__ < "2.5", reason="before torch 2.5 a node of the graph does not tell the dtype of what it gave"
    ),
]

SETUP = """\
import contextlib
import torch
from torch import nn
from context import region

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
x, y = torch.randn(4, 8), torch.randn(4, 1)
"""
LOOP = """\
for _ in range({iterations}):
    optimizer.zero_grad()
    with region():
        output = model(x)
    with {around}:
        loss = nn.functional.mse_loss(output, y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
#: Contents of the file beside the program that may enter autocast. The program itself does not name autocast.
PLAIN = "import contextlib as c\nregion = c.nullcontext\n"
DISABLED = "import torch\nregion = lambda: torch.autocast('cpu', dtype=torch.bfloat16, enabled={enabled})\n"
BFLOAT16 = "import torch\nregion = lambda: torch.autocast('cpu', dtype=torch.bfloat16)\n"


def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, context: str = PLAIN) -> list[tuple[int, str]]:
    """Run a program. Return its findings: line in the text after the setup, and code."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "context", raising=False)
    (tmp_path / "context.py").write_text(context, encoding="utf-8")
    script = tmp_path / "program.py"
    script.write_text(SETUP + body, encoding="utf-8")
    hooks = len(torch.nn.modules.module._global_forward_pre_hooks)
    run = recorded(lambda: runpy.run_path(str(script), run_name="__main__"))
    assert run.failure is None
    assert run.error is None
    assert len(torch.nn.modules.module._global_forward_pre_hooks) == hooks
    print(shown(run.findings))  # noqa: T201 - shown where a test fails
    return [(f.line - SETUP.count("\n"), f.code) for f in run.findings]


def test_a_training_in_float32_is_reported_at_the_call_of_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = LOOP.format(iterations=2, around="contextlib.nullcontext()")
    assert found(tmp_path, monkeypatch, body) == [(4, "AMP110")]


def test_the_call_of_the_model_that_gave_the_loss_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "other = nn.Linear(8, 1)\n" + LOOP.format(iterations=2, around="contextlib.nullcontext()")
    body = body.replace("        output =", "        teacher = other(x).detach()\n        output =")
    body = body.replace("    scaler.step", "    other(x)\n    scaler.step")
    assert found(tmp_path, monkeypatch, body) == [(6, "AMP110")]


def test_one_step_is_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(tmp_path, monkeypatch, LOOP.format(iterations=1, around="contextlib.nullcontext()")) == []


def test_a_region_in_another_file_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = LOOP.format(iterations=3, around="contextlib.nullcontext()")
    assert "AMP110" not in {code for _, code in found(tmp_path, monkeypatch, body, BFLOAT16)}


@pytest.mark.parametrize("enabled", ["MIXED", "False"])
def test_a_region_that_is_always_disabled_is_named_where_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: str
) -> None:
    body = LOOP.format(iterations=3, around="contextlib.nullcontext()")
    context = "MIXED = False\n" + DISABLED.format(enabled=enabled)
    assert found(tmp_path, monkeypatch, body, context) == [(3 - SETUP.count("\n"), "AMP110")]


@pytest.mark.parametrize(
    ("context", "unused"),
    [
        (PLAIN, "def never():\n    with torch.autocast('cpu'):\n        return model(x)\n"),
        (PLAIN, "from torch.amp import autocast\nif __name__ == '__main__':\n    pass\n"),
    ],
    ids=["entered by code that never runs", "imported and not used"],
)
def test_autocast_that_nothing_can_switch_on_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: str, unused: str
) -> None:
    body = unused + LOOP.format(iterations=3, around="contextlib.nullcontext()")
    assert found(tmp_path, monkeypatch, body, context) == [(4 + unused.count("\n"), "AMP110")]


def test_an_island_in_float32_beside_a_mixed_training_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "with torch.autocast('cpu', dtype=torch.float16):\n    model(x)\n"
    body += LOOP.format(iterations=3, around="region()")
    assert found(tmp_path, monkeypatch, body, DISABLED.format(enabled=False)) == []


def test_a_region_around_the_loss_alone_is_too_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = LOOP.format(iterations=2, around="torch.autocast('cpu', dtype=torch.bfloat16)")
    assert found(tmp_path, monkeypatch, body) == [(4, "AMP110"), (7, "AMP503")]


def test_a_program_that_chooses_not_to_enter_autocast_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = "torch.autocast('cpu') if mixed else contextlib.nullcontext()"
    body = "mixed = False\n" + LOOP.format(iterations=2, around=around)
    assert found(tmp_path, monkeypatch, body) == []


@pytest.mark.parametrize(
    "model",
    ["nn.Linear(8, 1).half()", "nn.Linear(8, 1).double()", "nn.LayerNorm(8)"],
    ids=["float16 by hand", "float64, which autocast leaves alone", "nothing that autocast would lower"],
)
def test_other_forwards_need_no_autocast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    body = f"model = {model}\nx = x.to(next(model.parameters()).dtype)\n"
    body += "masters = [nn.Parameter(torch.zeros(1))]\noptimizer = torch.optim.SGD(masters, lr=0.1)\n"
    body += "masters[0].grad = torch.zeros(1)\n"
    body += "for _ in range(3):\n    scaler.scale(model(x).float().mean()).backward()\n"
    assert found(tmp_path, monkeypatch, body) == []


def test_a_forward_before_the_recording_is_not_checked() -> None:
    from pytest_amp_check import record

    model = torch.nn.Linear(8, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    losses = [model(torch.ones(4, 8)).mean() for _ in range(3)]
    with record() as run:
        for loss in losses:
            scaler.scale(loss).backward()
    assert [f.code for f in run.findings] == []


SCALED = """\
for _ in range(2):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        output = model(x)
    loss = {loss}
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("loss", "lines"),
    [
        ("nn.functional.cross_entropy(output, y.half())", [5]),
        ("nn.functional.cross_entropy(output, y)", []),
        ("nn.CrossEntropyLoss()(output.squeeze(-1), y.argmax())", [5]),
        ("nn.functional.nll_loss(output.log_softmax(-1), torch.zeros(4).long())", [5]),
        ("nn.functional.cross_entropy(output.float(), y)", []),
        ("nn.functional.mse_loss(output, y)", []),
        ("nn.functional.cross_entropy(output.detach(), y.half()) + output.float().sum()", []),
    ],
)
def test_a_loss_of_a_low_precision_output_after_the_region(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str, lines: list[int]
) -> None:
    places = found(tmp_path, monkeypatch, SCALED.format(loss=loss))
    assert [place for place in places if place[1] == "AMP104"] == [(line, "AMP104") for line in lines]


def test_a_model_that_is_low_precision_by_itself_has_left_no_region(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "model, x = model.bfloat16(), x.bfloat16()\n"
    body += "with region():\n    pass\n"
    body += "for _ in range(2):\n    nn.functional.cross_entropy(model(x), y.bfloat16()).backward()\n"
    assert found(tmp_path, monkeypatch, body, BFLOAT16) == []


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
@pytest.mark.parametrize("loss", ["BCELoss", "CrossEntropyLoss"])
def test_losses_are_scripted_while_a_run_is_recorded_and_after_it(loss: str) -> None:
    from pytest_amp_check import record

    module = getattr(torch.nn, loss)()
    x, y = torch.rand(4, 2), torch.rand(4, 2)
    expected = module(x, y)
    with record():
        inside = torch.jit.script(module)
        assert torch.equal(inside(x, y), expected)
    assert torch.equal(torch.jit.script(module)(x, y), expected)
    assert torch.equal(inside(x, y), expected)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_a_scripted_part_hides_the_dtype_of_its_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # TorchScript makes a single node of a function from its third call on.
    scripted = """\
@torch.jit.script
def activate(x):
    return (x * x).sigmoid() * x

for _ in range(3):
    activate(torch.ones(4, 1, requires_grad=True))
"""
    body = LOOP.format(iterations=2, around="contextlib.nullcontext()")
    assert found(tmp_path, monkeypatch, scripted + body) == [(4 + scripted.count("\n"), "AMP110")]
    body = body.replace("(output, y)", "(activate(output), y)")
    assert found(tmp_path, monkeypatch, scripted + body) == []
