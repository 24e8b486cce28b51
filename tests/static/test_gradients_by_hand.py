"""Manual operations on scaled gradients: harmful edits, clears, divisions and reads, and harmless operations."""

from __future__ import annotations

import pytest

from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

TRAIN = """\
import torch
from torch import nn

model = nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    opt.zero_grad()
    with torch.autocast("cuda"):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    for p in model.parameters():
        {statements}
    scaler.step(opt)
    scaler.update()
"""
#: Statements, and the violation of the last statement, "" for none.
STATEMENTS = [
    ("p.grad.add_(1)", "edit@scaled"),
    ("p.grad.sub_(1)", "edit@scaled"),
    ("p.grad.mul_(0.5)", ""),
    ("p.grad.div_(2)", ""),
    ("p.grad.div_(2, rounding_mode='floor')", "edit@scaled"),
    ("p.grad.clamp_(-1, 1)", "edit@scaled"),
    ("p.grad.clamp_min_(0)", "edit@scaled"),
    ("p.grad.clip_(-1, 1)", "edit@scaled"),
    ("p.grad.nan_to_num_()", "edit@scaled"),
    ("p.grad.zero_()", "step@discarded"),
    ("p.grad.fill_(0)", "step@discarded"),
    ("p.grad.fill_(1)", "edit@scaled"),
    ("p.grad.fill_(float('inf'))", ""),
    ("p.grad.copy_(x)", ""),
    ("p.grad.copy_(p.grad * 2)", ""),
    ("p.grad.copy_(p.grad.clamp(-1, 1))", "edit@scaled"),
    ("p.grad.neg_()", ""),
    ("p.grad.abs_()", ""),
    ("p.grad.pow_(2)", "edit@scaled"),
    ("p.grad.addcmul_(x, y)", "edit@scaled"),
    ("p.grad.lerp_(x, 0.5)", "edit@scaled"),
    ("p.grad.masked_fill_(m, 0)", ""),
    ("p.grad.index_fill_(0, i, 0)", ""),
    ("p.grad[0] = 0", ""),
    ("p.grad[0] = 1", "edit@scaled"),
    ("p.grad[0] = float('inf')", ""),
    ("p.grad += 1", "edit@scaled"),
    ("p.grad -= p", "edit@scaled"),
    ("p.grad *= 2", ""),
    ("p.grad /= 2", ""),
    ("p.grad = None", "step@discarded"),
    ("p.grad = x", ""),
    ("p.grad = p.grad * 2", ""),
    ("p.grad = p.grad + p", "read@scaled"),
    ("p.grad.data.add_(1)", "edit@scaled"),
    ("p.grad.data = x", ""),
    ("p.grad.detach_()", ""),
    ("p.grad.requires_grad_(False)", ""),
    ("p.data.add_(1)", ""),
    ("p.data = x", ""),
    ("p.add_(1)", ""),
    ("p.requires_grad = False", ""),
    ("p.requires_grad_(False)", ""),
    ("p.copy_(x)", ""),
    ("p.grad.data.clamp_(-1, 1)", "edit@scaled"),
    ("torch._foreach_mul_([p.grad], 2)", ""),
    ("torch._foreach_add_([p.grad], 1)", "edit@scaled"),
    ("p.grad.sign_()", "edit@scaled"),
    ("print(p.grad.norm())", "read@scaled"),
    ("print(p.grad.abs().max())", "read@scaled"),
    ("print(p.grad.mean())", "read@scaled"),
    ("print(p.grad.isnan().any())", ""),
    ("print(torch.isfinite(p.grad).all())", ""),
    ("print(torch.norm(p.grad))", "read@scaled"),
    ("n = p.grad.norm()\nprint(n / scaler.get_scale())", ""),
    ("log(p.grad.norm())", "read@scaled"),
    ("print(p.grad.shape)", ""),
    ("print(float(p.grad.sum()))", "read@scaled"),
    ("print(str(p.grad))", "read@scaled"),
    ("print(len(p.grad))", ""),
    ("h = p.grad.sign()\nprint(h)", ""),
    ("h = torch.zeros_like(p.grad)\nprint(h)", ""),
    ("p.grad.mul_(1 / scaler.get_scale())", "step@divided"),
    ("p.grad.div_(scaler.get_scale())", "step@divided"),
    ("p.grad.mul_(scaler.get_scale())", ""),
    ("p.grad = p.grad / scaler.get_scale()", "step@divided"),
    ("p.grad *= 1 / scaler.get_scale()", "step@divided"),
    ("p.grad /= scaler.get_scale() * 2", "step@divided"),
    ("p.grad.data.mul_(1.0 / scaler.get_scale())", "step@divided"),
    ("p.grad.mul_(scaler._scale.reciprocal())", "step@divided"),
    ("p.grad.mul_(scaler._scale.double().reciprocal().float())", "step@divided"),
    ("torch._foreach_div_([p.grad], scaler.get_scale())", "step@divided"),
    ("torch.distributed.all_reduce(p.grad)", ""),
    ("c = 1.0 / (p.grad.norm() + 1e-6)\np.grad.mul_(c)", "clip@scaled-by-hand"),
    ("c = min(1.0, 1.0 / (p.grad.norm() + 1e-6))\np.grad *= c", "clip@scaled-by-hand"),
]


@pytest.mark.parametrize(("statements", "label"), STATEMENTS)
def test_what_is_done_to_scaled_gradients(statements: str, label: str) -> None:
    source = TRAIN.format(statements=statements.replace("\n", "\n        "))
    options = Settings(select=frozenset(RULES) - {"AMP701", "AMP702"})
    line = 13 + statements.count("\n")
    assert [(found.line, found.label) for found in check_source(source, "train.py", options)] == (
        [(line, label)] if label else []
    )


@pytest.mark.parametrize(("statements", "label"), STATEMENTS)
def test_what_is_done_to_unscaled_gradients(statements: str, label: str) -> None:
    """Unscaled gradients may be edited and read; clearing or dividing unscaled gradients is still wrong."""
    source = TRAIN.format(statements=statements.replace("\n", "\n        "))
    source = source.replace("    for p in", "    scaler.unscale_(opt)\n    for p in")
    found = [finding.label for finding in check_source(source, "train.py")]
    assert found == ([label] if label in ("step@discarded", "step@divided") else [])


OUTER = """\
import torch

def train(model, loader, saved):
    inner, outer = torch.optim.AdamW(model.parameters()), torch.optim.SGD(model.parameters(), lr=0.7)
    scaler = torch.amp.GradScaler("cuda")
    for step, x in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(inner)
        scaler.update()
        inner.zero_grad()
        if step % 100 == 0:
            {edit}
            outer.step()
            outer.zero_grad()
"""


@pytest.mark.parametrize("params", ["inner.param_groups", "outer.param_groups"])
def test_assigned_gradients_are_those_of_each_optimizer_of_the_model(params: str) -> None:
    edit = f"""for q, p in zip(saved, [p for group in {params} for p in group["params"]]):
                p.grad = q - p.data"""
    assert check_source(OUTER.format(edit=edit)) == []
    assert "AMP204" in [finding.code for finding in check_source(OUTER.format(edit="pass"))]
