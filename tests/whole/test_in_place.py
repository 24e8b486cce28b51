"""Every in-place edit of gradients in the table of ops, in source and in a run: both have the same findings.

The effect of a method on scaled gradients is stated here manually: only the names come from the table.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from samples import sample

from pytest_amp_check.protocol.optable import FOREACH_IN_PLACE, IN_PLACE
from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

torch = pytest.importorskip("torch")

from agreement import recorded  # noqa: E402 - needs torch

#: torch warns that index_reduce may change.
pytestmark = [pytest.mark.usefixtures("patched_once"), pytest.mark.filterwarnings("ignore:index_reduce")]

PROGRAM = """
import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Parameter(torch.arange(1.0, 3.0))
        self.two = nn.Parameter(torch.arange(1.0, 5.0).reshape(2, 2))
        self.three = nn.Parameter(torch.arange(1.0, 9.0).reshape(2, 2, 2))

    def forward(self, x):
        return (x @ self.two * self.one).sum() + self.three.square().mean()


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
index, mask = torch.tensor([0]), torch.tensor([True, False])
for step in range(2):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(2, 2))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    BEFORE
    for p in model.parameters():
        other, at = torch.ones_like(p), torch.zeros_like(p).long()
        EDIT
    scaler.step(optimizer)
    scaler.update()
"""
LINE = PROGRAM.split("\n").index("        EDIT") + 1
#: The rules that in-place edits of gradients break: an edit while they are scaled, a division by the scale beside
#: unscale_, and clearing them before they are used.
EDIT, DIVISION, CLEARED = "AMP202", "AMP210", "AMP215"

#: Arguments -> methods whose effect on scaled gradients differs from the effect on unscaled gradients.
EDITS = {
    "": (
        "acos_ acosh_ arccos_ arccosh_ arcsin_ arcsinh_ arctan_ arctanh_ asin_ asinh_ atan_ atanh_ bernoulli_ "
        "cauchy_ ceil_ cos_ cosh_ digamma_ erf_ erfc_ erfinv_ exp2_ exp_ expm1_ exponential_ fix_ floor_ "
        "frac_ i0_ lgamma_ log10_ log1p_ log2_ log_ log_normal_ logical_not_ logit_ nan_to_num_ normal_ "
        "random_ reciprocal_ round_ rsqrt_ sgn_ sigmoid_ sign_ sin_ sinc_ sinh_ sqrt_ square_ tan_ tanh_ "
        "trunc_ uniform_"
    ),
    "0.5": (
        "add_ clamp_ clamp_max_ clamp_min_ clip_ eq_ floor_divide_ fmod_ ge_ geometric_ greater_ "
        "greater_equal_ gt_ le_ less_ less_equal_ lt_ ne_ not_equal_ pow_ remainder_ sub_ subtract_"
    ),
    "1": "mvlgamma_ polygamma_",
    "-1": "cumprod_",
    "other": ("arctan2_ atan2_ heaviside_ hypot_ igamma_ igammac_ logical_and_ logical_or_ logical_xor_ nextafter_"),
    "other, other": "addcdiv_ addcmul_",
    "other, 0.1": "lerp_",
    "lambda x: x + 1": "apply_",
    "other, lambda x, y: x + y": "map_",
    "other, other, lambda x, y, z: x + y": "map2_",
    "at, other": "put_",
    "(index,), other[0]": "index_put_",
    "0, index, other[:1]": "index_add_ index_copy_",
    "0, index, other[:1], 'amax'": "index_reduce_",
    "0, index, 0.5": "index_fill_",
    "0, at, other": "scatter_ scatter_add_",
    "0, at, other, 'amax'": "scatter_reduce_",
    "other.bool(), other": "masked_scatter_",
    "other.bool(), 0.5": "masked_fill_",
}
#: The same for gradients with exactly this number of dimensions.
EDITS_OF = {
    (1, "torch.ones(2, 2), torch.ones(2)"): "addmv_",
    (2, "torch.ones(2, 2), torch.ones(2, 2)"): "addmm_",
    (2, "torch.ones(2), torch.ones(2)"): "addr_",
    (2, "torch.ones(1, 2, 2), torch.ones(1, 2, 2)"): "addbmm_",
    (2, "2, 0, 1.0"): "renorm_",
    (2, "0.5"): "fill_diagonal_",
    (3, "torch.ones(2, 2, 2), torch.ones(2, 2, 2)"): "baddbmm_",
}
#: Methods whose result scales with the gradients, or that copy gradients from elsewhere.
HARMLESS = {
    "": "abs_ absolute_ conj_physical_ deg2rad_ neg_ negative_ rad2deg_ relu_",
    "0": "cumsum_",
    "2.0": "div_ divide_ mul_ multiply_ true_divide_",
    "other": "copysign_ ldexp_",
    "-other": "copy_",
    "2 * other": "xlogy_",
}
HARMLESS_OF = {(2, ""): "tril_ triu_"}
#: Statements with operators.
OPERATORS = {
    "__iadd__": ("p.grad += 0.5", EDIT),
    "__isub__": ("p.grad -= 0.5", EDIT),
    "__imul__": ("p.grad *= 0.5", ""),
    "__itruediv__": ("p.grad /= 0.5", ""),
    "__ifloordiv__": ("p.grad //= 0.5", EDIT),
    "__imod__": ("p.grad %= 0.5", EDIT),
    "__ipow__": ("p.grad **= 2", EDIT),
    "__setitem__": ("p.grad[0] = 0.5", EDIT),
}
#: Arguments after the list -> functions on lists of tensors.
FOREACH_EDITS = {
    "": (
        "acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 reciprocal "
        "round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
    ),
    ", 0.5": "add clamp_max clamp_min maximum minimum pow sub",
    ", [other], 0.1": "lerp",
    ", [other], [other]": "addcdiv addcmul",
}
FOREACH_HARMLESS = {"": "abs neg", ", 0.5": "mul div", ", [-other]": "copy"}


def statements() -> Iterator[tuple[str, str, str]]:
    """Yield name in the table, statement with the name, and the rule that the statement breaks on scaled gradients."""
    yield "zero_", "p.grad.zero_()", CLEARED
    yield "fill_", "p.grad.fill_(0.5)", EDIT
    yield "_foreach_zero_", "torch._foreach_zero_([p.grad])", CLEARED
    for table, rule in ((EDITS, EDIT), (HARMLESS, "")):
        for arguments, names in table.items():
            yield from ((name, f"p.grad.{name}({arguments})", rule) for name in names.split())
    for table_of, rule in ((EDITS_OF, EDIT), (HARMLESS_OF, "")):
        for (dimensions, arguments), names in table_of.items():
            for name in names.split():
                yield name, f"p.dim() == {dimensions} and p.grad.{name}({arguments})", rule
    yield from ((name, statement, rule) for name, (statement, rule) in OPERATORS.items())
    for table, rule in ((FOREACH_EDITS, EDIT), (FOREACH_HARMLESS, "")):
        for arguments, names in table.items():
            for name in (f"_foreach_{each}_" for each in names.split()):
                yield name, f"torch.{name}([p.grad]{arguments})", rule


STATEMENTS = list(statements())
#: The statements that are also run after `unscale_`, unless all are asked for.
FEWER_STATEMENTS = sample(STATEMENTS, 2)
#: Statements whose effect depends on the number.
OF_NUMBERS = [
    ("p.grad.fill_(0)", CLEARED),
    ("p.grad.fill_(float('inf'))", ""),
    ("p.grad.masked_fill_(other.bool(), float('inf'))", ""),
    ("p.grad.index_fill_(0, index, 0.0)", ""),
    ("p.grad[index] = 0", ""),
    ("p.grad.div_(2.0, rounding_mode='floor')", EDIT),
    ("p.grad.copy_(p.grad.clamp(-0.1, 0.1))", EDIT),
    *((f"p.grad.{name}(scaler.get_scale())", DIVISION) for name in ("div_", "divide_", "true_divide_")),
    *((f"p.grad.{name}(1 / scaler.get_scale())", DIVISION) for name in ("mul_", "multiply_")),
    ("p.grad /= scaler.get_scale()", DIVISION),
    ("p.grad *= 1 / scaler.get_scale()", DIVISION),
    ("torch._foreach_div_([p.grad], scaler.get_scale())", DIVISION),
    ("torch._foreach_mul_([p.grad], 1 / scaler.get_scale())", DIVISION),
]


#: Gradients by their dimensions.
GRADIENTS = {
    1: [0.0, 0.5],
    2: [[0.5, 2.0], [float("inf"), 0.0]],
    3: [[[0.0, 0.5], [0.25, 1.0]], [[2.0, 1.25], [3.0, 0.75]]],
}


def edited(statement: str, grad: Any) -> Any:
    """Return gradients after a statement, which always draws the same random numbers."""
    torch.manual_seed(0)
    p = SimpleNamespace(grad=grad.clone(), dim=grad.dim)
    other, at = torch.ones_like(grad), torch.zeros_like(grad).long()
    exec(statement, {"torch": torch, "p": p, "other": other, "at": at, "index": torch.tensor([0])})  # noqa: S102
    return p.grad


def needs(statement: str) -> None:
    """Skip the test if this torch lacks the function: 2.4 lacks ``_foreach_rsqrt_``."""
    asked = re.search(r"torch\.(_foreach_\w+)", statement)
    if asked is not None and not hasattr(torch, asked[1]):
        pytest.skip(f"this torch has no {asked[1]}")


#: Statements without copies, because copied values need not be scaled.
COMPUTED = [(statement, rule) for name, statement, rule in STATEMENTS if name not in ("copy_", "_foreach_copy_")]


@pytest.mark.parametrize(("statement", "rule"), COMPUTED, ids=[statement for statement, _ in COMPUTED])
def test_what_an_edit_does_to_a_scale(statement: str, rule: str) -> None:
    """Only a statement that breaks the rule gives other results for scaled gradients than scaled results."""
    needs(statement)
    grad = torch.tensor(GRADIENTS[next((n for n in GRADIENTS if f"p.dim() == {n}" in statement), 2)])
    follows = torch.equal(edited(statement, grad * 1024), edited(statement, grad) * 1024)
    assert follows == (rule != EDIT)


def said(statement: str, before: str, script: Path) -> tuple[dict[tuple[int, str], str], dict[tuple[int, str], str]]:
    """Return the findings of the program with a statement, in source and in a run: (line, code) -> message."""
    needs(statement)
    source = PROGRAM.replace("EDIT", statement).replace("BEFORE", before)
    script.write_text(source, encoding="utf-8")
    select = frozenset({EDIT, DIVISION, CLEARED})
    run = recorded(lambda: runpy.run_path(str(script), run_name="__main__"))
    assert run.error is None
    assert run.failure is None
    in_source = {(f.line, f.code): f.message for f in check_source(source, "script.py", Settings(select=select))}
    return in_source, {(f.line, f.code): f.message for f in run.findings if f.code in select}


def test_every_edit_of_the_table_is_tried() -> None:
    tried = [name for name, _, _ in STATEMENTS]
    assert sorted(tried) == sorted([*IN_PLACE, *FOREACH_IN_PLACE])


@pytest.mark.exhaustive(every=3)
@pytest.mark.parametrize(("name", "statement", "rule"), STATEMENTS, ids=[name for name, _, _ in STATEMENTS])
def test_an_edit_of_scaled_gradients(name: str, statement: str, rule: str, tmp_path: Path) -> None:
    in_source, in_a_run = said(statement, "pass", tmp_path / "script.py")
    assert in_source.keys() == ({(LINE, rule)} if rule else set())
    assert in_a_run == in_source


@pytest.mark.parametrize(("statement", "rule"), OF_NUMBERS, ids=[statement for statement, _ in OF_NUMBERS])
def test_an_edit_by_what_its_number_is(statement: str, rule: str, tmp_path: Path) -> None:
    in_source, in_a_run = said(statement, "pass", tmp_path / "script.py")
    assert in_source.keys() == ({(LINE, rule)} if rule else set())
    assert in_a_run == in_source


@pytest.mark.exhaustive(every=3)
@pytest.mark.parametrize(("name", "statement", "rule"), FEWER_STATEMENTS, ids=[name for name, _, _ in FEWER_STATEMENTS])
def test_an_edit_of_unscaled_gradients(name: str, statement: str, rule: str, tmp_path: Path) -> None:
    in_source, in_a_run = said(statement, "scaler.unscale_(optimizer)", tmp_path / "script.py")
    assert in_source.keys() == ({(LINE, CLEARED)} if rule == CLEARED else set())
    assert in_a_run == in_source
