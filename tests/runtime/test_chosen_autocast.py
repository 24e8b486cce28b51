"""A training in float32 is reported unless its own code, or a neighboring file, decides about entering autocast."""

from __future__ import annotations

import runpy
import sys
import warnings
from pathlib import Path

import pytest
from agreement import check_script, recorded
from programs import run_program

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.usefixtures("patched_once"),
    pytest.mark.skipif(
        torch.__version__ < "2.5", reason="before torch 2.5 a node of the graph does not tell the dtype of what it gave"
    ),
]

PROGRAM = """\
import torch
from torch import nn
import beside

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
x, y = torch.randn(4, 8), torch.randn(4, 1)
{more}
for _ in range(3):
    optimizer.zero_grad()
    loss = beside.loss_of(model, x, y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
BESIDE = """\
import torch
{more}

def loss_of(model, x, y):
    return torch.nn.functional.mse_loss(model(x), y)
"""


def codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, more: str = "", beside: str = "") -> list[str]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    (tmp_path / "beside.py").write_text(BESIDE.format(more=beside), encoding="utf-8")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(more=more), encoding="utf-8")
    run = recorded(lambda: runpy.run_path(str(script), run_name="__main__"))
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    assert run.failure is None
    assert run.error is None
    return [finding.code for finding in run.findings]


#: Code without a decision about autocast: its caller enters autocast.
PLAIN = (
    "",
    "region = torch.autocast('cpu')",
    "region = torch.autocast('cpu', enabled=True)",
    "def never():\n    with torch.autocast('cpu'):\n        pass",
    "def never():\n    with torch.autocast('cpu', enabled=True):\n        pass",
    "class Never:\n    @torch.autocast('cpu')\n    def forward(self):\n        pass",
    "if x is None:\n    def never():\n        with torch.autocast('cpu'):\n            pass",
    "from torch.amp import autocast as region",
    "def never():\n    if __name__ == '__main__':\n        with torch.autocast('cpu'):\n            pass",
)
#: Code that decides about autocast, and has decided against it in this run.
CHOOSING = (
    "use_autocast = False",
    "def never(autocast=None):\n    pass",
    "model.autocast = False",
    "def never(state):\n    return state.autocast.get()",
    "def never(flag):\n    with torch.autocast('cpu', enabled=flag):\n        pass",
    "def never(flag):\n    if flag:\n        with torch.autocast('cpu'):\n            pass",
    "def never(flag):\n    return torch.autocast('cpu') if flag else None",
    "def never(flag):\n    return flag and torch.autocast('cpu')",
    "def never():\n    try:\n        return torch.autocast('cpu')\n    except TypeError:\n        return None",
)


@pytest.mark.parametrize("more", PLAIN)
def test_a_program_that_decides_nothing_is_reported_for_its_float32(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert codes(tmp_path, monkeypatch, more=more) == ["AMP110"]


@pytest.mark.parametrize("more", CHOOSING)
def test_a_program_that_decides_about_autocast_is_not_reported(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert codes(tmp_path, monkeypatch, more=more) == []


def test_a_file_beside_the_program_that_the_scaling_does_not_come_through_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert codes(tmp_path, monkeypatch, beside="mixed = torch.is_autocast_enabled") == ["AMP110"]


def test_a_file_beside_the_program_that_has_turned_a_region_off_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = "mixed = False\nregion = torch.autocast('cpu', enabled=mixed)"
    assert codes(tmp_path, monkeypatch, beside=off) == []
    assert codes(tmp_path, monkeypatch, beside="region = torch.autocast('cpu', enabled=True)") == ["AMP110"]
    # A region that is not entered, and that is not turned off either.
    on = "mixed = False\nregion = torch.autocast('cpu', cache_enabled=mixed)"
    assert codes(tmp_path, monkeypatch, beside=on) == ["AMP110"]


RECOMPUTED = """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, module, x, *parameters):
        ctx.module = module
        ctx.dtype = torch.get_autocast_dtype("cpu")
        ctx.save_for_backward(x)
        return module(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad(), {context}:
            output = ctx.module(x)
        output.backward(gradient.to(output.dtype))
        return None, x.grad, *(None for _ in ctx.module.parameters())


model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        output = {call}
    output.float().square().mean().backward()
    optimizer.step()
"""
BY_FUNCTION = "Recomputed.apply(model, torch.randn(4, 8).requires_grad_(), *model.parameters())"
BY_TORCH = "checkpoint(model, torch.randn(4, 8), use_reentrant=False)"


@pytest.mark.parametrize(
    ("context", "call", "lines"),
    [
        ('torch.autocast("cpu")', BY_FUNCTION, [18]),
        ("torch.cpu.amp.autocast()", BY_FUNCTION, [18]),
        ('torch.autocast("cpu", dtype=ctx.dtype)', BY_FUNCTION, []),
        ('torch.autocast("cpu", enabled=False)', BY_FUNCTION, []),
        ('torch.autocast("cpu")', BY_TORCH, []),
    ],
    ids=["default dtype", "default dtype of a subclass", "dtype of the forward", "disabled", "torch's checkpoint"],
)
def test_a_backward_that_recomputes_in_another_dtype(context: str, call: str, lines: list[int], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RECOMPUTED.format(context=context, call=call), encoding="utf-8")
    run = recorded(lambda: runpy.run_path(str(script), run_name="__main__"))
    assert run.failure is None
    assert run.error is None
    findings = [finding for finding in run.findings if finding.code == "AMP107"]
    assert [finding.line for finding in findings] == lines
    for finding in findings:
        assert finding.message.startswith(
            "The backward of `Recomputed` recomputes other values, because it runs in bfloat16 and the forward "
            "ran in float16"
        )


def test_a_dtype_that_torch_restores_for_an_earlier_graph(tmp_path: Path) -> None:
    source = f"""{RECOMPUTED[: RECOMPUTED.index("class")]}
model, x = nn.Linear(8, 8), torch.randn(4, 8)
with torch.autocast("cpu", dtype=torch.bfloat16):
    earlier = checkpoint(model, x, use_reentrant=False)
model.bias.sum().backward()
with torch.autocast("cpu", dtype=torch.float16):
    later = model(x)
earlier.float().sum().backward()
"""
    assert run_program(source, tmp_path / "train.py").findings == []


@pytest.mark.parametrize(
    ("region", "is_chosen"),
    [
        ("torch.autocast('cpu', enabled=mixed)", True),
        ("torch.autocast('cpu', torch.bfloat16, mixed)", True),
        ("torch.autocast(device_type='cpu', dtype=torch.bfloat16, enabled=mixed)", True),
        ("torch.cpu.amp.autocast(mixed)", True),
        ("torch.autocast('cpu', enabled=not mixed)", False),
        ("torch.autocast('cpu')", False),
    ],
)
def test_any_file_that_has_turned_a_region_off_by_a_variable_decides(
    region: str, is_chosen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"import torch\n\nmixed = False\nuse_autocast = mixed\nregion = {region}\n"
    (tmp_path / "regions_elsewhere.py").write_text(text, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = codes(tmp_path, monkeypatch, more="import regions_elsewhere")
    del sys.modules["regions_elsewhere"]
    assert [code for code in found if code != "AMP701"] == ([] if is_chosen else ["AMP110"])


NESTED = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)


torch.manual_seed(0)
first, second = Net(nn.Linear(8, 8)), Net(Net(nn.Sequential(nn.Linear(8, 1))))
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
for _ in range(3):
    optimizer.zero_grad()
    hidden = first(torch.ones(4, 8))
    made = second(hidden)  # AMP110
    scaler.scale(made.square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def test_the_call_of_the_program_that_made_the_float32_of_a_loss_is_named(tmp_path: Path) -> None:
    message = check_script(NESTED, tmp_path)
    assert "run `second` and the loss in" in message
