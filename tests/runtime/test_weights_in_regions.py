"""Weights that a program writes in an autocast region, which keeps casts of them: what a run reports, and where."""

# mypy: allow-untyped-calls

from __future__ import annotations

from pathlib import Path

import pytest
from programs import run_program

pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("patched_once")

PROGRAM = """\
import torch
from torch import nn

torch.manual_seed(0)
model, other = nn.Linear(8, 8), nn.Linear(8, 8)
frozen = nn.Linear(8, 8).requires_grad_(False)
both = nn.Sequential(model, other)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = {{name: value.clone() for name, value in model.state_dict().items()}}
ones = torch.ones(8, 8)
x = torch.randn(4, 8)
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16{options}):
    with torch.enable_grad():
        {first}
    {write}
    with torch.enable_grad():
        {second}
"""


def run(tmp_path: Path, write: str, first: str = "model(x)", second: str = "model(x)", options: str = "") -> list[str]:
    source = PROGRAM.format(write=write, first=first, second=second, options=options)
    return [finding.label for finding in run_program(source, tmp_path / "train.py").findings]


OUTDATED = "write@region-then-forward"


@pytest.mark.parametrize(
    "write",
    [
        "model.weight.mul_(0.5)",
        "model.weight.data.mul_(0.5)",
        "model.weight.data = model.weight.data * 0.5",
        "model.weight[0] = 0.0",
        "model.weight[0].zero_()",
        "model.weight.copy_(ones)",
        "model.bias.add_(1.0)",
        "torch.mul(model.weight, 0.5, out=model.weight)",
        "torch._foreach_mul_(list(model.parameters()), 0.5)",
        "torch._foreach_mul_([ones, model.bias], 0.5)",
        "nn.init.zeros_(model.weight)",
        "model.load_state_dict(state)",
        "both.load_state_dict(both.state_dict())",
        "nn.utils.vector_to_parameters(torch.zeros(72), model.parameters())",
        "model.weight.set_(ones)",
    ],
)
def test_a_forward_after_a_write_uses_outdated_casts(write: str, tmp_path: Path) -> None:
    assert run(tmp_path, f"{write}  # AMP101") == [OUTDATED]


@pytest.mark.parametrize(
    "write",
    [
        "pass",
        "other.weight.mul_(0.5)",
        "frozen.weight.mul_(0.5)",
        "ones.mul_(0.5)",
        "torch.mul(ones, 0.5, out=ones)",
        "other.load_state_dict(other.state_dict())",
        "model.weight * 0.5",
        "model.weight.mul_(0.5); torch.clear_autocast_cache()",
        "x.mul_(0.5)",
    ],
)
def test_a_forward_after_other_calls(write: str, tmp_path: Path) -> None:
    assert run(tmp_path, write) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # The forward before the write casts nothing, or the one after it.
        ("pass", "model(x)"),
        ("other(x)", "model(x)"),
        ('with torch.autocast("cpu", enabled=False): model(x)', "model(x)"),
        ("model(x)", "other(x)"),
        ("model(x)", "pass"),
        ("model(x)", 'with torch.autocast("cpu", enabled=False): model(x)'),
    ],
)
def test_a_write_between_forwards_that_share_no_cast(first: str, second: str, tmp_path: Path) -> None:
    assert run(tmp_path, "model.weight.mul_(0.5)", first, second) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [("both(x)", "model(x)"), ("model(x)", "both(x)"), ("model(x)", "other(x); model(x)"), ("model(x); other(x)",) * 2],
)
def test_a_write_between_forwards_of_several_modules(first: str, second: str, tmp_path: Path) -> None:
    assert run(tmp_path, "model.weight.mul_(0.5)  # AMP101", first, second) == [OUTDATED]


def test_a_region_without_a_cache(tmp_path: Path) -> None:
    assert run(tmp_path, "model.weight.mul_(0.5)", options=", cache_enabled=False") == []


def test_a_write_between_two_regions(tmp_path: Path) -> None:
    source = PROGRAM.format(write="pass", first="model(x)", second="pass", options="")
    region = source[source.index("with torch.no_grad()") :]
    run_program(f"{source}with torch.no_grad():\n    model.weight.mul_(0.5)\n{region}", tmp_path / "train.py")


OWN_REGION = """\
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(4, 8)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layer(x)


model = Own()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.mark.parametrize("write", ["optimizer.step()", "model.layer.weight.data.mul_(0.5)"])
def test_a_region_around_modules_with_regions_of_their_own(write: str, tmp_path: Path) -> None:
    region = 'with torch.autocast("cpu", enabled=False):'
    mark = "  # AMP101"
    for lines, is_marked in [
        ((f"{region}\n    for _ in range(2):", "        "), True),
        # Each call casts anew.
        (("for _ in range(2):", "    "), False),
    ]:
        head, indent = lines
        body = [
            "optimizer.zero_grad()",
            "model(x).float().square().mean().backward()",
            f"{write}{mark * is_marked}",
        ]
        program = "\n".join([OWN_REGION + head, *(indent + line for line in body), ""])
        run_program(program, tmp_path / "train.py")


def test_a_training_inside_one_region(tmp_path: Path) -> None:
    source = PROGRAM.format(write="pass", first="pass", second="pass", options="")
    training = """\
with torch.autocast("cpu", dtype=torch.bfloat16):
    for _ in range(3):
        optimizer.zero_grad()
        model(x).float().square().mean().backward()  # AMP103
        optimizer.step()  # AMP101
"""
    findings = run_program(source + training, tmp_path / "train.py").findings
    assert OUTDATED in [finding.label for finding in findings]


@pytest.mark.filterwarnings("ignore:Using .torch.compile.module.. when there are global hooks")
def test_a_compiled_module_casts_its_weights_in_each_call(tmp_path: Path) -> None:
    compiled = 'compiled = torch.compile(model, backend="aot_eager")\n        compiled(x)'
    assert run(tmp_path, "model.weight.mul_(0.5)", first=compiled, second="compiled(x)") == []


def test_a_compiled_module_beside_a_module_with_outdated_casts(tmp_path: Path) -> None:
    compiled = 'compiled = torch.compile(other, backend="aot_eager")\n        compiled(x); model(x)'
    assert run(tmp_path, "model.weight.mul_(0.5)  # AMP101", first=compiled) == [OUTDATED]


DETACHED = """\
import torch
from torch import nn

torch.manual_seed(0)
model, other = nn.Linear(8, 8), nn.Linear(8, 8)
frozen = nn.Linear(8, 8).requires_grad_(False)
x = torch.randn(4, 8)
with torch.autocast("cpu", dtype=torch.bfloat16{options}):
    {first}
    {second}
"""


@pytest.mark.parametrize(
    ("first", "second", "options"),
    [
        ("with torch.no_grad(): model(x)", "model(x)  # AMP109", ""),
        ("with torch.no_grad(): model(x)", "model(x); model(x)  # AMP109", ""),
        ("with torch.no_grad(): nn.Sequential(model)(x)", "model(x)  # AMP109", ""),
        ("with torch.no_grad(): model(x)", "other(x)", ""),
        ("with torch.no_grad(): frozen(x)", "frozen(x)", ""),
        ("model(x)", "model(x)", ""),
        ("model(x)", "with torch.no_grad(): model(x)", ""),
        ("with torch.no_grad(): model(x)", "with torch.no_grad(): model(x)", ""),
        # Regions that cache nothing, or no longer.
        ("with torch.no_grad(): model(x)", "model(x)", ", cache_enabled=False"),
        ("with torch.no_grad(): model(x)", "model(x)", ", enabled=False"),
        ("with torch.no_grad(): model(x)", "torch.clear_autocast_cache(); model(x)", ""),
    ],
)
def test_casts_without_gradients_that_older_versions_of_torch_keep(
    first: str, second: str, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for listener in ("weights", "autocast"):
        monkeypatch.setattr(f"pytest_amp_check.runtime.record.listeners.{listener}.KEEPS_DETACHED", True)
    run_program(DETACHED.format(first=first, second=second, options=options), tmp_path / "train.py")


def test_casts_without_gradients_that_newer_versions_of_torch_replace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for listener in ("weights", "autocast"):
        monkeypatch.setattr(f"pytest_amp_check.runtime.record.listeners.{listener}.KEEPS_DETACHED", False)
    program = DETACHED.format(first="with torch.no_grad(): model(x)", second="model(x)", options="")
    run_program(program, tmp_path / "train.py")


REFUSED = """\
import contextlib
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 8)
x = torch.randn(4, 8)
with contextlib.suppress(RuntimeError), torch.autocast("cpu", dtype=torch.bfloat16, enabled={enabled}):
    model(x[:, :3])
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    with torch.enable_grad():
        {first}
    model.weight.mul_(0.5){mark}
    with torch.enable_grad():
        model(x)
"""


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize(("first", "mark"), [("pass", ""), ("model(x)", "  # AMP101")])
def test_a_forward_that_raised_before_the_region_casts_nothing_in_it(
    first: str, mark: str, tmp_path: Path, *, enabled: bool
) -> None:
    run_program(REFUSED.format(first=first, mark=mark, enabled=enabled), tmp_path / "train.py")


TWO_REGIONS = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 8)
x = torch.randn(4, 8)
with torch.autocast("cpu", dtype=torch.bfloat16):
    {first}
{between}
with torch.autocast("cpu", dtype=torch.bfloat16):
    {second}
"""
WRITE = "model.weight.data.mul_(0.5)"


@pytest.mark.parametrize(
    ("first", "between", "second"),
    [
        ("model(x)", "pass", f"{WRITE}; model(x)"),
        (f"model(x); {WRITE}", "pass", "model(x)"),
        ("model(x)", WRITE, "model(x)"),
        (f"model(x); {WRITE}", "pass", f"model(x); {WRITE}"),
        ("model(x)", "pass", f"model(x); {WRITE}; model(x)  # AMP101"),
        (f"model(x); {WRITE}; model(x)  # AMP101", "pass", "model(x)"),
        # The casts of an outer region outlive an inner one.
        (
            f"model(x)\n    with torch.autocast('cpu', enabled=False): pass\n    {WRITE}; model(x)  # AMP101",
            "pass",
            "pass",
        ),
    ],
)
def test_casts_end_with_the_outermost_region(first: str, between: str, second: str, tmp_path: Path) -> None:
    run_program(TWO_REGIONS.format(first=first, between=between, second=second), tmp_path / "train.py")
