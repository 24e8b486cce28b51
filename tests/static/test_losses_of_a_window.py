"""Losses that are divided by the number of micro-batches of an accumulation window, or may be."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

TRAIN = """\
import operator

import torch
from torch import nn
from torch.nn import functional as F

model = nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
crit = nn.CrossEntropyLoss()
total_crit = nn.MSELoss(reduction="sum")
K = 4
for i, (x, y) in enumerate(loader):
    {statements}
    {backward}
    if (i + 1) % K == 0:
        {step}
        opt.zero_grad()
"""
#: Expression of the loss, and the violation of its backward, "" for none.
LOSSES = [
    ("loss = F.mse_loss(model(x), y)", "step@undivided"),
    ("loss = F.mse_loss(model(x), y) / K", ""),
    ("loss = F.mse_loss(model(x), y) / 4", ""),
    ("loss = F.mse_loss(model(x), y) / 8", ""),
    ("loss = F.mse_loss(model(x), y) / len(x)", "step@undivided"),
    ("loss = F.mse_loss(model(x), y) / x.shape[0]", "step@undivided"),
    ("loss = F.mse_loss(model(x), y) / x.size(0)", "step@undivided"),
    ("loss = F.mse_loss(model(x), y) / n", ""),
    ("loss = F.mse_loss(model(x), y) * 0.25", ""),
    ("loss = F.mse_loss(model(x), y) * 0.3", "step@undivided"),
    ("loss = F.mse_loss(model(x), y) * 2", "step@undivided"),
    ("loss = F.mse_loss(model(x), y) * 0.75", "step@undivided"),
    ("loss = F.mse_loss(model(x), y) * (1 / K)", ""),
    ("loss = 0.25 * F.mse_loss(model(x), y)", ""),
    ("loss = F.mse_loss(model(x), y) * weight", ""),
    ("loss = F.mse_loss(model(x), y).mul(0.25)", ""),
    ("loss = F.mse_loss(model(x), y).div(K)", ""),
    ("loss = F.mse_loss(model(x), y)\nloss.div_(K)", ""),
    ("loss = F.mse_loss(model(x), y)\nloss /= K", ""),
    ("loss = F.mse_loss(model(x), y)\nloss = loss / K", ""),
    ("loss = torch.div(F.mse_loss(model(x), y), K)", ""),
    ("loss = torch.mul(F.mse_loss(model(x), y), 0.25)", ""),
    ("loss = operator.truediv(F.mse_loss(model(x), y), K)", ""),
    ("loss = torch.true_divide(F.mse_loss(model(x), y), K)", ""),
    ('loss = F.mse_loss(model(x), y, reduction="sum")', ""),
    ('loss = F.mse_loss(model(x), y, reduction="sum") / K', ""),
    ('loss = F.mse_loss(model(x), y, reduction="sum") / len(x)', "step@undivided"),
    ('loss = F.mse_loss(model(x), y, reduction="none").mean()', "step@undivided"),
    ('loss = F.mse_loss(model(x), y, reduction="none").sum()', ""),
    ('loss = F.mse_loss(model(x), y, reduction="none").sum() / K', ""),
    ("loss = F.mse_loss(model(x), y, reduction=how)", ""),
    ("loss = F.mse_loss(model(x), y, size_average=False)", ""),
    ("loss = F.mse_loss(model(x), y, size_average=True)", "step@undivided"),
    ("loss = total_crit(model(x), y)", ""),
    ("loss = total_crit(model(x), y) / len(x)", "step@undivided"),
    ("loss = crit(model(x), y)", "step@undivided"),
    ("loss = crit(model(x), y) / K", ""),
    ("loss = crit(model(x) / K, y)", "step@undivided"),
    ("loss = crit(model(x), y) + F.mse_loss(model(x), y)", "step@undivided"),
    ("loss = crit(model(x), y) / K + F.mse_loss(model(x), y) / K", ""),
    ("loss = crit(model(x), y) / K + F.mse_loss(model(x), y)", "step@undivided"),
    ("loss = (crit(model(x), y) + F.mse_loss(model(x), y)) / K", ""),
    ("loss = 0.25 * (crit(model(x), y) + F.mse_loss(model(x), y))", ""),
    ("loss = sum([crit(model(x), y), F.mse_loss(model(x), y)])", "step@undivided"),
    ("loss = sum([crit(model(x), y), F.mse_loss(model(x), y)]) / K", ""),
    ("loss = torch.stack([crit(model(x), y)]).mean()", "step@undivided"),
    ("loss = torch.log(crit(model(x), y) / K)", "step@undivided"),
    ("loss = (crit(model(x), y) / K).sqrt()", "step@undivided"),
    ("loss = torch.exp(crit(model(x), y) / K)", "step@undivided"),
    ("loss = (crit(model(x), y) / K).mean()", ""),
    ("loss = (crit(model(x), y) / K).sum()", ""),
    ("loss = (crit(model(x), y) / K).float()", ""),
    ("loss = (crit(model(x), y) / K).clone()", ""),
    ("loss = (crit(model(x), y) / K).squeeze()", ""),
    ("loss = abs(crit(model(x), y) / K)", ""),
    ("loss = crit(model(x), y) / K / 2", ""),
    ("loss = crit(model(x), y) / (2 * K)", ""),
    ("loss = crit(model(x), y) / float(K)", ""),
    ("loss = crit(model(x), y) / max(K, 1)", ""),
    ("loss = model(x).mean()", "step@undivided"),
    ("loss = model(x).sum()", ""),
    ("loss = model(x).norm()", "step@undivided"),
    ("loss = crit(model(x), y).mean()", "step@undivided"),
    # The criterion returns the mean over all elements, and the sum of one number is this number.
    ("loss = crit(model(x), y).sum()", "step@undivided"),
    ("loss = -crit(model(x), y)", "step@undivided"),
    ("loss = max(crit(model(x), y), F.mse_loss(model(x), y))", "step@undivided"),
    ("loss = unknown(model(x), y)", "step@undivided"),
    ("loss = unknown(model(x), y) / K", ""),
    ("loss = model(x).loss", "step@undivided"),
    ('loss = model(x)["loss"]', "step@undivided-vague"),
    ("loss, _ = model(x)", "step@undivided-vague"),
]


@pytest.mark.parametrize(("statements", "label"), LOSSES)
@pytest.mark.parametrize("scaled", [False, True])
def test_a_loss_that_is_added_up(statements: str, label: str, *, scaled: bool) -> None:
    backward, step = "loss.backward()", "opt.step()"
    if scaled:
        backward, step = "scaler.scale(loss).backward()", "scaler.step(opt)\n        scaler.update()"
    source = TRAIN.format(statements=statements.replace("\n", "\n    "), backward=backward, step=step)
    if scaled:
        source = source.replace("K = 4", 'K = 4\nscaler = torch.amp.GradScaler("cuda")')
    found = [finding for finding in check_source(source, "train.py") if finding.code != "AMP110"]
    assert [finding.label for finding in found] == ([label] if label else [])
    for finding in found:
        assert source.split("\n")[finding.line - 1].strip() == backward
