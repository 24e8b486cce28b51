"""Findings of runs that depend on the source code around a call."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from pytest_amp_check import record
from pytest_amp_check.runtime.record.cells import CellCode, register_cell

pytestmark = pytest.mark.usefixtures("patched_once")


def found(path: Path, program: str) -> list[tuple[int, str]]:
    """Run a program from a file. Return line and label of each finding."""
    path.write_text(program, encoding="utf-8")
    with record() as run:
        exec(compile(program, str(path), "exec"), {"__name__": "__main__"})  # noqa: S102 - ours
    assert run.failure is None
    return [(finding.line, finding.label) for finding in run.findings]


ANGLES = """\
import torch

class Holder: pass

def call(holder, x):
    {before}
    angles = {angles}
    {after}
    return torch.{call}

call(Holder(), torch.tensor([9000.0]))
"""


@pytest.mark.parametrize(
    ("before", "angles", "after", "call", "line"),
    [
        ("pass", "x.half()", "pass", "sin(angles)", 7),
        # Other targets of assignments, and other variables.
        ("first, holder.kept = 1, 2", "x.half()", "other = 3", "cos(angles)", 7),
        ("holder.angles = x.bfloat16()", "x.half()", "holder.angles = x", "sin(angles)", 7),
        ("low = x.half()", "low * 1", "low = x.bfloat16()", "sin(angles)", 6),
        # The latest assignment before the call.
        ("angles = x.bfloat16()", "x.half()", "pass", "sin(angles)", 7),
        ("pass", "x.half()", "angles = angles + 0", "sin(angles)", 7),
        # The cast of an integer variable comes first.
        ("steps = torch.arange(9000, 9001); low = (x * 0 + 1).half()", "low * steps.half()", "pass", "sin(angles)", 7),
        ("steps = torch.ones(1); low = x.half()", "low * steps.half()", "pass", "sin(angles)", 6),
        # Nothing is assigned, or nothing rounds.
        ("holder.low = x.half()", "x", "pass", "sin(holder.low)", 9),
        ("half = torch.half", "torch.ones(1, dtype=half) * 9000", "pass", "sin(angles)", 9),
    ],
)
def test_angles_are_rounded_where_their_variable_is_assigned(
    tmp_path: Path, before: str, angles: str, after: str, call: str, line: int
) -> None:
    program = ANGLES.format(before=before, angles=angles, after=after, call=call)
    ((found_line, label),) = found(tmp_path / "train.py", program)
    assert (found_line, label) == (line, "positions:radians" if line == 9 else "positions:cast")


STEP = """\
import torch
from torch import nn

model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
{setup}
for i in range(2):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(1, 2)).sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    {step}
    scaler.update()
"""
FUNCTION = "    def step():\n        optimizer.step()"


@pytest.mark.parametrize(
    ("setup", "step", "is_told"),
    [
        ("", "optimizer.step()", True),
        ("", "if i >= 0:\n        optimizer.step()", True),
        ("", "for _ in range(1):\n        optimizer.step()", True),
        # The gradients may be checked.
        ("", "if torch.isfinite(loss):\n        optimizer.step()", False),
        ("", "if len(model.weight):\n        optimizer.step()", False),
        ("", "if not len(model.weight):\n        pass\n    else:\n        optimizer.step()", False),
        ("", "if i >= 0:\n        if len(model.weight):\n            optimizer.step()", False),
        ("", "try:\n        pass\n    finally:\n        if len(model.weight):\n            optimizer.step()", False),
        (
            "",
            "try:\n        1 / 0\n    except ArithmeticError:\n        if len([i]):\n            optimizer.step()",
            False,
        ),
        ("", "match i:\n        case _:\n            if len([i]):\n                optimizer.step()", False),
        ("", "match i:\n        case _:\n            optimizer.step()", True),
        # The condition of a definition is none of its calls.
        (f"if len(model.weight):\n{FUNCTION}", "step()", True),
        (f"if i >= 0 if 'i' in vars() else True:\n{FUNCTION}", "step()", True),
    ],
)
def test_a_step_past_the_scaler_may_depend_on_a_check(tmp_path: Path, setup: str, step: str, is_told: bool) -> None:
    labels = [label for _, label in found(tmp_path / "train.py", STEP.format(setup=setup, step=step))]
    assert labels == ["plain-step@unscaled"] * is_told


PRODUCT = """\
import torch
from torch import einsum, outer

positions, low = torch.tensor([[9000.0]]), torch.ones(1, 1, dtype=torch.float16)
high = positions.half()
angles = {angles}
torch.sin(angles)
"""


@pytest.mark.parametrize(
    ("angles", "label"),
    [
        *(
            (f"positions.{cast}", "positions:cast")
            for cast in ("half()", "bfloat16()", "to(torch.half)", "type(torch.half)", "type_as(low)")
        ),
        ("positions.float().add(0).half()", "positions:cast"),
        ("low @ low * 9000", "positions:angles"),
        ("torch.mm(low, low) * 9000", "positions:angles"),
        ("low.matmul(low) * 9000", "positions:angles"),
        ("torch.bmm(low[None], low[None]) * 9000", "positions:angles"),
        ("einsum('ij,jk->ik', low, low) * 9000", "positions:angles"),
        ("outer(low[0], low[0]) * 9000", "positions:angles"),
        ("low * 9000", "positions:radians"),
        ("torch.full((1,), 9000.0, dtype=torch.half)", "positions:radians"),
    ],
)
def test_the_expression_that_rounds_angles(tmp_path: Path, angles: str, label: str) -> None:
    assert found(tmp_path / "train.py", PRODUCT.format(angles=angles)) == [
        (7 if label.endswith("radians") else 6, label)
    ]


def test_the_column_in_a_line_with_letters_of_several_bytes_is_unknown(tmp_path: Path) -> None:
    columns = {}
    for name in ("größe", "size"):
        body = f"    {name} = x.half()\n    torch.sin({name})\n"
        program = f"import torch\n\ndef call(x):\n{body}\ncall(torch.tensor([9000.0]))\n"
        path = tmp_path / f"{name}.py"
        path.write_text(program, encoding="utf-8")
        with record() as run:
            exec(compile(program, str(path), "exec"), {"__name__": "__main__"})  # noqa: S102 - ours
        (columns[name],) = [(finding.line, finding.site.column) for finding in run.findings]
    assert columns == {"größe": (4, 0), "size": (4, 11)}


READ = """\
import torch
from torch import nn

model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
kept = []
{first}
{second}
    {body}
    {last}
for i in range(2):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(1, 2)).sum()
    scaler.scale(loss).backward()
    read()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("first", "second", "body", "last", "is_found"),
    [
        ("pass", "def read():", "NORM", "pass", True),
        # Of the code in other functions nothing is known, and of that in the same function nothing is reported.
        ("scaler.get_scale()", "def read():", "NORM", "pass", True),
        ("pass", "def read(scale=scaler.get_scale()):", "NORM", "pass", False),
        ("pass", "def read():", "NORM", "kept.append(scaler.get_scale())", False),
        ("pass", "def read():", "kept.append(model.weight.grad.norm().item() / scaler.get_scale())", "pass", False),
        ("scale = 8.0", "def read():", "NORM", "pass", True),
        ("pass", "def read():", "scale = 8.0", "NORM", False),
        ("pass", "def read(scale=8.0):", "NORM", "pass", False),
        ("pass", "def read(init_scale=8.0):", "NORM", "pass", True),
        ("scaler.get_scale()", "def read():", "pass", "NORM", True),
        # A comparison does not depend on the scale.
        ("pass", "def read():", "kept.append(model.weight.grad.norm().item() == 0.0)", "pass", False),
        ("pass", "def read():", "kept.append(model.weight.grad.norm().item() != 0.0)", "pass", False),
        ("pass", "def read():", "kept.append(0.0 == 0.0)", "NORM", True),
    ],
)
def test_a_norm_that_is_read_near_code_with_the_scale(
    tmp_path: Path, first: str, second: str, body: str, last: str, is_found: bool
) -> None:
    program = READ.format(first=first, second=second, body=body, last=last)
    program = program.replace("NORM", "kept.append(model.weight.grad.norm().item())")
    labels = [label for _, label in found(tmp_path / "train.py", program)]
    assert labels == ["read@scaled"] * is_found


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code of Python 3.10 has no columns")
@pytest.mark.parametrize(("cuts", "column"), [((), 9), ((0,), 9), ((0, 4), 13)])
def test_the_column_in_a_cell_counts_what_is_cut_off_the_line(cuts: tuple[int, ...], column: int) -> None:
    name = f"<cell with {len(cuts)} cuts>"
    register_cell(name, CellCode("book.ipynb", 3, cuts))
    code = "import torch\nscaler = torch.amp.GradScaler('cpu', init_scale=-1.0)\n"
    with record() as run:
        exec(compile(code, name, "exec"), {"__name__": "__main__"})  # noqa: S102 - ours
    assert run.failure is None
    ((path, cell, line, found_column),) = [
        (finding.site.path, finding.site.cell, finding.site.line, finding.site.column) for finding in run.findings
    ]
    assert (path, cell, line, found_column) == ("book.ipynb", 3, 2, column)
