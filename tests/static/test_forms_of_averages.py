"""Averages of weights kept in a low dtype: forms of the copy and of the update."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

UPDATES = {
    "a difference taken away": "s.sub_((1 - self.decay) * (s - p.to(s.dtype)))",
    "a difference added": "s.add_((p.to(s.dtype) - s) * (1 - self.decay))",
    "a difference added by an operator": "s += (1 - self.decay) * (p.to(s.dtype) - s)",
    "lerp, copied": "s.copy_(torch.lerp(s, p.to(s.dtype), 1 - self.decay))",
    "a sum, copied": "s.copy_(self.decay * s + (1 - self.decay) * p.to(s.dtype))",
    "a sum, assigned": "s.data = s.data * self.decay + p.data.to(s.dtype) * (1 - self.decay)",
    "in place": "s.mul_(self.decay).add_(p.to(s.dtype) * (1 - self.decay))",
}
A_LIST = """\
import torch

class Average:
    def __init__(self, model, decay):
        self.shadow = [p.detach().clone().{cast} for p in model.parameters()]
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow, model.parameters()):
            {update}
"""
A_DICT = """\
import torch

class Average:
    def __init__(self, model, decay):
        self.decay, self.shadow = decay, {{}}
        for name, p in model.named_parameters():
            self.shadow[name] = p.data.clone().{cast}

    @torch.no_grad()
    def update(self, model):
        for name, p in model.named_parameters():
            s = self.shadow[name]
            {update}
"""
A_DEFAULT = """\
import copy
import torch

class Average:
    def __init__(self, model, decay, dtype=torch.{dtype}):
        self.model = copy.deepcopy(model).to(dtype)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.model.parameters(), model.parameters()):
            {update}
"""


def codes(text: str) -> list[str]:
    return [finding.code for finding in check_source(text, "average.py")]


@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_forms_of_the_update(update: str) -> None:
    for form in (A_LIST, A_DICT):
        assert codes(form.format(cast="bfloat16()", update=update)) == ["AMP508"]
        assert codes(form.format(cast="float()", update=update)) == []
    assert codes(A_DEFAULT.format(dtype="bfloat16", update=update)) == ["AMP508"]
    assert codes(A_DEFAULT.format(dtype="float32", update=update)) == []


LISTS = """\
import torch

class Average:
    def __init__(self, model, decay):
        self.shadow = [p.detach().clone().{cast} for p in model.parameters()]
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        given = [p.detach() for p in model.parameters()]
        {update}
"""


@pytest.mark.parametrize(
    ("update", "is_average"),
    [
        ("torch._foreach_lerp_(self.shadow, given, 1 - self.decay)", True),
        ("torch._foreach_mul_(self.shadow, self.decay); torch._foreach_add_(self.shadow, given, alpha=0.1)", True),
        ("torch._foreach_copy_(self.shadow, given)", False),
    ],
)
def test_lists_of_weights(update: str, is_average: bool) -> None:
    expected = ["AMP508"] if is_average else []
    assert codes(LISTS.format(cast="bfloat16()", update=update)) == expected
    assert codes(LISTS.format(cast="float()", update=update)) == []


def test_a_low_copy_that_is_no_average() -> None:
    assert codes(A_LIST.format(cast="bfloat16()", update="s.copy_(p)")) == []
    assert codes(A_DICT.format(cast="bfloat16()", update="s.add_(p)")) == []
