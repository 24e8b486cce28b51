"""Findings of runs that depend on the source code around a call."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

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
    ("setup", "step", "is_reported"),
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
def test_a_step_past_the_scaler_may_depend_on_a_check(tmp_path: Path, setup: str, step: str, is_reported: bool) -> None:
    labels = [label for _, label in found(tmp_path / "train.py", STEP.format(setup=setup, step=step))]
    assert labels == ["plain-step@unscaled"] * is_reported


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


CLEAR = """\
import torch
from torch import nn

{head}
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)


def clear():
    {helper}


for turn in range(3):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(1, 2)).sum()
    {body}
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("head", "helper", "body", "is_found"),
    [
        ("", "pass", "BACKWARD; CLEAR", True),
        ("", "pass", "BACKWARD\n    if turn >= 0: CLEAR", False),
        ("", "pass", "BACKWARD\n    if turn < 0:\n        pass\n    else:\n        CLEAR", False),
        # Conditions that never change.
        ("", "pass", "BACKWARD\n    if True: CLEAR", True),
        ("", "pass", "BACKWARD\n    if not False: CLEAR", True),
        ("", "pass", "BACKWARD\n    if not turn > 9: CLEAR", False),
        ("FRESH = True", "pass", "BACKWARD\n    if FRESH: CLEAR", True),
        ("FRESH = False", "pass", "BACKWARD\n    if not FRESH: CLEAR", True),
        ("FRESH = bool(1)", "pass", "BACKWARD\n    if FRESH: CLEAR", False),
        ("FRESH = OTHER = True", "pass", "BACKWARD\n    if FRESH: CLEAR", False),
        ("FRESH = True; FRESH = bool(1)", "pass", "BACKWARD\n    if FRESH: CLEAR", False),
        ("FRESH = False; FRESH = True", "pass", "BACKWARD\n    if FRESH: CLEAR", False),
        ("FRESH = True\nfor FRESH in [True]: pass", "pass", "BACKWARD\n    if FRESH: CLEAR", False),
        ("FRESH = True\ndef other(FRESH): pass", "pass", "BACKWARD\n    if FRESH: CLEAR", False),
        ("FRESH = True\ndef other(fresh): pass", "pass", "BACKWARD\n    if FRESH: CLEAR", True),
        # The end of a window.
        ("", "pass", "BACKWARD\n    if turn % 1 == 0: CLEAR", True),
        ("", "pass", "BACKWARD\n    if 0 == turn % 1: CLEAR", True),
        ("", "pass", "BACKWARD\n    if turn % 1 + 1 == 1: CLEAR", False),
        # The backward has the same condition, or another one.
        ("", "pass", "if turn >= 0: BACKWARD; CLEAR", True),
        ("", "pass", "if turn >= 0:\n        BACKWARD\n        CLEAR", True),
        ("", "pass", "if turn >= 0: BACKWARD\n    if turn >= 0: CLEAR", False),
        ("", "pass", "if turn < 0:\n        pass\n    else:\n        BACKWARD\n        CLEAR", True),
        ("", "pass", "for i in range(2):\n        if i == 0: BACKWARD\n        else: CLEAR", False),
        ("", "pass", "for i in range(2):\n        if i == 1: CLEAR\n        else: BACKWARD", False),
        ("", "pass", "if turn >= 0: BACKWARD\n    CLEAR", True),
        # So are cases.
        ("", "pass", "BACKWARD\n    match turn:\n        case 9: pass\n        case _: CLEAR", False),
        ("", "pass", "BACKWARD\n    match turn:\n        case 0 | 1 | 2: CLEAR", False),
        (
            "",
            "pass",
            "match turn:\n        case 9: pass\n        case _:\n            BACKWARD\n            CLEAR",
            True,
        ),
        (
            "",
            "pass",
            "for i in range(2):\n        match i:\n            case 0: BACKWARD\n            case 1: CLEAR",
            False,
        ),
        ("", "pass", "BACKWARD\n    match turn % 1:\n        case 0: CLEAR", True),
        ("KIND = 'a'", "pass", "BACKWARD\n    match KIND:\n        case 'a': CLEAR", True),
        # Error handlers are conditions, too.
        ("", "pass", "BACKWARD\n    try: 1 / 0\n    except ArithmeticError: CLEAR", False),
        ("", "pass", "try: 1 / 0\n    except ArithmeticError:\n        BACKWARD\n        CLEAR", True),
        ("", "pass", "BACKWARD\n    try: CLEAR\n    except ArithmeticError: pass", True),
        ("", "pass", "BACKWARD\n    try: pass\n    finally: CLEAR", True),
        # Other statements are none.
        ("", "pass", "BACKWARD\n    for _ in range(1): CLEAR", True),
        ("", "pass", "BACKWARD\n    with torch.no_grad(): CLEAR", True),
        ("", "pass", "BACKWARD\n    with torch.no_grad():\n        if turn >= 0: CLEAR", False),
        # Conditions of the calls that lead to the clear.
        ("", "CLEAR", "BACKWARD; clear()", True),
        ("", "CLEAR", "BACKWARD\n    if turn >= 0: clear()", False),
        ("", "if turn >= 0: CLEAR", "BACKWARD; clear()", False),
    ],
)
def test_gradients_are_cleared_on_purpose_under_a_condition_of_the_clear_alone(
    tmp_path: Path, head: str, helper: str, body: str, is_found: bool
) -> None:
    program = CLEAR.format(head=head, helper=helper, body=body)
    program = program.replace("BACKWARD", "scaler.scale(loss).backward()")
    program = program.replace("CLEAR", "optimizer.zero_grad(set_to_none=False)")
    lines = [number for number, line in enumerate(program.splitlines(), 1) if "zero_grad" in line]
    assert found(tmp_path / "train.py", program) == [(line, "step@discarded") for line in lines] * is_found


WINDOW = """\
import torch
from argparse import Namespace
from torch import nn

{head}
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
state = Namespace()


def step():
    scaler.step(optimizer)
    scaler.update()


for i in range(16):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(1, 2)).sum()
    {body}
    optimizer.zero_grad()
"""
IS_LAST = "(i + 1) % 4 == 0"


@pytest.mark.parametrize(
    ("head", "body", "is_found"),
    [
        ("", f"BACKWARD\n    if {IS_LAST}: step()", True),
        ("", "BACKWARD\n    if i in (3, 7, 11, 15): step()", False),
        ("", "BACKWARD\n    if i not in (3, 7, 11, 15):\n        pass\n    else:\n        step()", False),
        # Names that hold the remainder.
        ("", f"BACKWARD\n    last = {IS_LAST}\n    if last: step()", True),
        ("", f"BACKWARD\n    done = last = {IS_LAST}\n    if last: step()", True),
        ("", f"BACKWARD\n    last: bool = {IS_LAST}\n    if last: step()", True),
        ("", f"BACKWARD\n    last: bool\n    last = {IS_LAST}\n    if last: step()", True),
        ("", f"BACKWARD\n    print(last := {IS_LAST})\n    if last: step()", True),
        ("", f"BACKWARD\n    state.last = {IS_LAST}\n    if state.last: step()", True),
        ("", f"BACKWARD\n    state.last = {IS_LAST}; last = i in (3, 7, 11, 15)\n    if last: step()", False),
        # Counters.
        ("seen = 0", "BACKWARD\n    seen += 1\n    if seen in (4, 8, 12, 16): step()", True),
        ("seen = 0", "BACKWARD\n    seen = seen + 1\n    if seen in (4, 8, 12, 16): step()", False),
        # Cases.
        ("", "BACKWARD\n    match i:\n        case 3 | 7 | 11 | 15: step()", False),
        ("", "BACKWARD\n    match (i + 1) % 4:\n        case 0: step()", True),
        ("", f"match i:\n        case _:\n            BACKWARD\n            if {IS_LAST}: step()", True),
        # Conditions that never change, or that the backward has as well.
        ("ON = True", f"BACKWARD\n    if ON:\n        if {IS_LAST}: step()", True),
        ("ON = bool(1)", f"BACKWARD\n    if ON:\n        if {IS_LAST}: step()", False),
        ("", f"if i >= 0:\n        BACKWARD\n        if {IS_LAST}: step()", True),
        ("", f"if i < 0:\n        pass\n    else:\n        BACKWARD\n        if {IS_LAST}: step()", True),
        ("", f"if i >= 0: BACKWARD\n    if i >= 0:\n        if {IS_LAST}: step()", False),
    ],
)
def test_a_count_ends_a_window_and_another_condition_chooses_batches(
    tmp_path: Path, head: str, body: str, is_found: bool
) -> None:
    program = WINDOW.format(head=head, body=body.replace("BACKWARD", "scaler.scale(loss).backward()"))
    line = program[: program.index("optimizer.zero_grad()")].count("\n") + 1
    assert found(tmp_path / "train.py", program) == [(line, "zero@window")] * is_found


EARLY = """\
import torch
from torch import nn

model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)


def step():
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


i = -1
{loop}
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(1, 2)).sum()
    scaler.scale(loss).backward()
    {body}
"""
#: The line after the backward.
AFTER_BACKWARD = 20


@pytest.mark.parametrize("loop", ["for i in range(16):", "while (i := i + 1) < 16:"])
@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("if i % 4 == 0: step()", AFTER_BACKWARD),
        ("if i % 4 != 0: continue\n    step()", AFTER_BACKWARD),
        ("if i % 4 != 0:\n        print()\n        continue\n    step()", AFTER_BACKWARD),
        ("if i % 4 != 0: pass\n    if i % 4 == 0: step()", AFTER_BACKWARD + 1),
        # The innermost of several.
        ("if i % 2 == 0:\n        if i % 4 == 0: step()", AFTER_BACKWARD + 1),
        ("if i >= 0:\n        if i % 4 == 0:\n            if i >= 0: step()", AFTER_BACKWARD + 1),
        # No comparison of a remainder, or none on which the step depends.
        ("if not i % 4: step()", None),
        ("if i % 4: continue\n    step()", None),
        ("if i in (0, 4, 8, 12): step()", None),
        ("if i % 4 != 0: pass\n    if i in (0, 4, 8, 12): step()", None),
        ("if i in (0, 4, 8, 12): step()\n    if i % 4 != 0: continue", None),
    ],
)
def test_the_condition_that_ends_the_first_window_early(tmp_path: Path, loop: str, body: str, line: int | None) -> None:
    reported = found(tmp_path / "train.py", EARLY.format(loop=loop, body=body))
    assert reported == ([] if line is None else [(line, "window:off-by-one")])


def test_code_that_is_freed_during_the_run_gives_its_locations_to_no_other_code() -> None:
    with record() as run:
        for line in range(40):
            exec("\n" * line + "import torch; torch.sin(torch.tensor([9000.0]).half())", {})  # noqa: S102 - ours
    assert run.failure is None
    assert [finding.line for finding in run.findings] == list(range(1, 41))


def test_code_that_is_no_program_has_no_location() -> None:
    names: dict[str, Any] = {}
    source = """\
import torch
from pytest_amp_check import record
with record() as run:
    torch.sin(torch.tensor([9000.0]).half())
"""
    exec(compile(source, "<frozen program>", "exec"), names)  # noqa: S102 - ours
    assert names["run"].failure is None
    assert [(finding.filename, finding.line) for finding in names["run"].findings] == [("<unknown>", 1)]
