"""Constants that float16 cannot represent, or rounds to another value: written to items, and as bounds."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import torch
from torch import nn

encoder = nn.Linear(8, 8)
optimizer = torch.optim.Adam(encoder.parameters())
scaler = torch.amp.GradScaler("cuda")
eps = 1e-4


def train(loader):
    for x, mask in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.DTYPE):
            y = encoder(x)
            scores = y @ x
            STATEMENT
            loss = scores.softmax(-1).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


def found(statement: str, dtype: str = "float16") -> list[str]:
    source = PROGRAM.replace("STATEMENT", statement).replace("DTYPE", dtype)
    return [finding.label for finding in check_source(source) if finding.code in ("AMP505", "AMP506")]


@pytest.mark.parametrize(
    ("statement", "label"),
    [
        ("scores[0, 1] = 1e9", "fill:overflow"),
        ("scores[mask] = -1e9", "fill:overflow"),
        ("scores[:, mask] = -100000", "fill:overflow"),
        ("scores[0, 1] = float('-inf')", ""),
        ("scores[0, 1] = -1e4", ""),
        ("x[0, 1] = -1e9", ""),
        ("y.float()[0, 1] = -1e9", ""),
        ("scores = y.clamp(-1e9, 1e9)", "fill:bound"),
        ("scores = torch.clamp(y, max=1e5)", "fill:bound"),
        ("scores = y.float().clamp(max=1e9)", ""),
        ("scores = x.clamp(max=1e9)", ""),
        ("scores = y.clamp(max=60000)", ""),
        ("scores = y.clamp(max=float('inf'))", ""),
    ],
)
def test_what_float16_does_not_have(statement: str, label: str) -> None:
    assert set(found(statement)) == ({label} if label else set())


@pytest.mark.parametrize(
    ("statement", "in_float16", "in_bfloat16"),
    [
        ("p = y.sigmoid().clamp(1e-4, 1 - 1e-4)", True, True),
        ("p = torch.clamp(y.sigmoid(), min=eps, max=1 - eps)", True, True),
        ("p = y.sigmoid().clamp(max=0.9999)", True, True),
        ("p = y.sigmoid().clamp_max(0.9999)", True, True),
        ("p = y.sigmoid().clamp(1e-3, 1 - 1e-3)", False, True),
        ("p = y.sigmoid().clamp(0.01, 0.99)", False, False),
        ("p = y.sigmoid().clamp(0, 1)", False, False),
        ("p = y.float().sigmoid().clamp(1e-4, 1 - 1e-4)", False, False),
        ("p = y.softmax(-1).clamp(1e-4, 1 - 1e-4)", False, False),
        ("p = x.clamp(1e-4, 1 - 1e-4)", False, False),
    ],
)
def test_a_bound_that_rounds_to_one(statement: str, in_float16: bool, in_bfloat16: bool) -> None:
    assert ("epsilon:to-one" in found(statement)) == in_float16
    assert ("epsilon:to-one" in found(statement, "bfloat16")) == in_bfloat16


def test_torch_rounds_so() -> None:
    torch = pytest.importorskip("torch")
    for dtype, below, above in ((torch.float16, 1 - 2.0**-12, 0.9998), (torch.bfloat16, 1 - 2.0**-9, 0.9985)):
        one = torch.ones(1, dtype=dtype)
        assert (one.clamp(max=above) == 1).all()
        assert (one.clamp(max=below - 2.0**-13) < 1).all()
    with pytest.raises(RuntimeError, match="overflow"):
        torch.ones(1, dtype=torch.float16).clamp(max=1e9)


IN_A_REGION = """\
import torch
net = torch.nn.Linear(4, 4)
def scores(x, mask):
    with torch.autocast("cuda", dtype=torch.{dtype}):
        y = net(x)
    y[mask] = -1e6
    return y
"""


@pytest.mark.parametrize(("dtype", "reported"), [("float16", True), ("bfloat16", False), ("float32", False)])
def test_a_fill_is_too_large_for_what_the_region_computes_in(dtype: str, reported: bool) -> None:
    codes = [finding.code for finding in check_source(IN_A_REGION.format(dtype=dtype))]
    assert codes == (["AMP506"] if reported else [])


IN_A_TEST = """\
import torch


def test_attention():
    q, k = torch.randn(2, 4, 8), torch.randn(2, 4, 8)
    scores = torch.matmul(q, k.transpose(-2, -1)).masked_fill(torch.ones(4, 4).triu(1).bool(), -1e9)
    assert scores.softmax(-1).isfinite().all()


def test_region(model, x):
    with torch.autocast("cuda"):
        scores = model(x) @ x
        assert scores.dtype == torch.float16
"""


def test_nobody_enters_autocast_around_a_test() -> None:
    assert check_source(IN_A_TEST, "test_attention.py") == []
    assert [f.code for f in check_source(IN_A_TEST.replace("test_", "check_"), "attention.py")] == ["AMP506"]
    known = IN_A_TEST.replace("model(x) @ x", "(model(x) @ x).masked_fill(x > 0, -1e9)")
    assert [f.line for f in check_source(known, "test_attention.py")] == [12]
