"""A float32 parameter with a dimension promotes other operands to float32; a number or a low parameter does not."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

TRAIN = """\
import torch
from torch import nn
from torch.nn import functional as F

gauge = {gauge}
stem = nn.Linear(6, 4)
opt = torch.optim.SGD([*stem.parameters(), gauge], lr=0.1)
amp = torch.amp.GradScaler("cuda")
for rows, kinds in loader:
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        scores = {scores}
    loss = F.cross_entropy(scores, kinds)
    amp.scale(loss).backward()
    amp.step(opt)
    amp.update()
"""
PRODUCT = "stem(rows) * gauge"
WIDE = "nn.Parameter(torch.ones(4))"
#: The parameter, the operation on the low result of a layer, and True if the result stays low.
GAUGES = [
    (WIDE, PRODUCT, False),
    ("nn.Parameter(torch.ones(1))", PRODUCT, False),
    ("nn.Parameter(torch.zeros(1, 4))", PRODUCT, False),
    ("nn.Parameter(torch.rand(4))", PRODUCT, False),
    ("nn.Parameter(torch.randn(4))", PRODUCT, False),
    ("nn.Parameter(torch.empty(4))", PRODUCT, False),
    ("nn.Parameter(torch.full((4,), 2.0))", PRODUCT, False),
    ("nn.Parameter(torch.tensor([1.0]))", PRODUCT, False),
    ("nn.Parameter(torch.Tensor([1.0]))", PRODUCT, False),
    ("nn.Parameter(torch.FloatTensor([1.0, 2.0]))", PRODUCT, False),
    ("nn.Parameter(torch.ones([]))", PRODUCT, True),
    ("nn.Parameter(torch.ones(()))", PRODUCT, True),
    ("nn.Parameter(torch.full((), 2.0))", PRODUCT, True),
    ("nn.Parameter(torch.tensor(1.0))", PRODUCT, True),
    ("nn.Parameter(torch.zeros(4, dtype=torch.float16))", PRODUCT, True),
    (WIDE, "gauge * stem(rows)", False),
    (WIDE, "stem(rows) + gauge", False),
    (WIDE, "stem(rows) - gauge", False),
    (WIDE, "stem(rows) / gauge", False),
    (WIDE, "stem(rows) @ gauge", True),
    (WIDE, "stem(rows) * gauge.exp()", False),
    (WIDE, "stem(rows) * gauge.clamp(max=100)", False),
    (WIDE, "stem(rows) * gauge.square().sqrt()", False),
    (WIDE, "stem(rows) * gauge.float()", False),
    (WIDE, "stem(rows) * gauge.sum()", True),
    ("nn.Parameter(torch.tensor(1.0))", "stem(rows) * gauge.exp()", True),
    (WIDE, "stem(rows) * 2.0", True),
    (WIDE, "stem(rows)", True),
    (WIDE, "stem(rows).float()", False),
    (WIDE, "stem(rows).to(torch.float32)", False),
    (WIDE, "stem(rows).to(dtype=torch.float64)", False),
    (WIDE, "stem(rows).type(torch.float32)", False),
    (WIDE, "stem(rows).to(torch.float16)", True),
    (WIDE, "stem(rows).relu()", True),
    (WIDE, "stem(rows).log_softmax(-1)", False),
    (WIDE, "F.log_softmax(stem(rows), -1)", False),
    (WIDE, "F.layer_norm(stem(rows), (4,))", False),
    (WIDE, "F.relu(stem(rows))", True),
    (WIDE, "torch.exp(stem(rows))", False),
    (WIDE, "stem(rows).view(-1, 4)", True),
]


@pytest.mark.parametrize(("gauge", "scores", "low"), GAUGES)
def test_a_loss_of_what_a_parameter_has_met(gauge: str, scores: str, *, low: bool) -> None:
    source = TRAIN.format(gauge=gauge, scores=scores)
    found = [each for each in check_source(source, "train.py") if each.code == "AMP104"]
    assert [(each.line, each.label) for each in found] == [(13, "loss@outside")] * low


#: A classifier that computes its loss after the region.
CLASSIFIER = """\
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, x):
        return {result}

def train({parameters}):
    {model}
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    amp = torch.amp.GradScaler("cuda")
    for rows, kinds in loader:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            scores = net(rows)
        loss = {loss}
        amp.scale(loss).backward()
        amp.step(opt)
        amp.update()
"""
OWN = {"parameters": "loader", "model": "net = Net().cuda()"}
GIVEN = {"parameters": "net, loader", "model": "net.train()"}
NLL = "F.nll_loss(scores, kinds)"


@pytest.mark.parametrize(
    ("result", "train", "loss", "low"),
    [
        ("F.log_softmax(self.fc(x), -1)", OWN, NLL, False),
        ("F.log_softmax(self.fc(x), -1)", OWN, "F.cross_entropy(scores, kinds)", False),
        ("F.log_softmax(self.fc(x), -1)", GIVEN, NLL, False),
        ("F.log_softmax(self.fc(x), -1)", GIVEN, "nn.NLLLoss()(scores, kinds)", False),
        ("F.log_softmax(self.fc(x), -1)", GIVEN, "F.ctc_loss(scores, kinds, a, b)", False),
        ("self.fc(x)", OWN, NLL, True),
        ("self.fc(x)", OWN, "F.cross_entropy(scores, kinds)", True),
        ("self.fc(x)", GIVEN, "F.cross_entropy(scores, kinds)", True),
        ("self.fc(x).relu()", OWN, "nn.CrossEntropyLoss()(scores, kinds)", True),
    ],
)
def test_a_loss_of_log_probabilities_is_float32(result: str, train: dict[str, str], loss: str, *, low: bool) -> None:
    source = CLASSIFIER.format(result=result, loss=loss, **train)
    found = [each for each in check_source(source, "train.py") if each.code == "AMP104"]
    assert [(each.line, each.label) for each in found] == [(21, "loss@outside")] * low
