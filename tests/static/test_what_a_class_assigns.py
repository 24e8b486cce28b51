"""Assignments of attributes by a class and by other code, which decide about a condition."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

TRAINING = """\
import torch
from torch import nn


class Training:
    {shared}

    def __init__(self, model, clip=None):
        self.model = model
        self.opt = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")
        {init}

    def run(self, loader):
        for x, y in loader:
            self.opt.zero_grad()
            with torch.autocast("cuda"):
                loss = nn.functional.mse_loss(self.model(x), y)
            self.scaler.scale(loss).backward()
            {body}
            self.scaler.step(self.opt)
            self.scaler.update()

    {more}
"""
CLIP = "nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)"
NEVER, MAYBE, ALWAYS = "never", "maybe", "always"


def found(init: str = "", shared: str = "", more: str = "", body: str = CLIP) -> str:
    """Return ALWAYS, MAYBE or NEVER for a definite, a possible or no finding about the clip of scaled gradients."""
    source = TRAINING.format(
        init=(init or "pass").replace("\n", "\n        "),
        shared=(shared or "pass").replace("\n", "\n    "),
        more=(more or "pass").replace("\n", "\n    "),
        body=body.replace("\n", "\n            "),
    )
    findings = check_source(source, "train.py")
    assert {finding.code for finding in findings} <= {"AMP201"}
    assert len(findings) < 2
    return ALWAYS if findings and findings[0].certain else MAYBE if findings else NEVER


@pytest.mark.parametrize(
    ("init", "shared", "more", "expected"),
    [
        ("self.clip = None", "", "", NEVER),
        ("self.clip: float | None = None", "", "", NEVER),
        ("self.other, self.clip = 1, None", "", "", NEVER),
        ("", "clip = None", "", NEVER),
        ("self.clip = True", "", "", ALWAYS),
        ("self.clip = 5.0", "", "", ALWAYS),
        ("self.other, self.clip = None, 5.0", "", "", ALWAYS),
        # A disabled flag of the class itself may be meant to be changed.
        ("self.clip = False", "", "", MAYBE),
        ("self.clip = clip", "", "", MAYBE),
        # Another method changes it.
        ("self.clip = None", "", "def set(self):\n    self.clip = 1.0", MAYBE),
        ("self.clip = None", "", "def set(self):\n    self.other, self.clip = 1, 2", MAYBE),
        ("self.clip = None", "", "def set(self):\n    self.other = 1.0", NEVER),
        ("self.clip = None", "", "def set(self, other):\n    other.clip = 1.0", MAYBE),
        # Another method may change it under a dynamic name.
        ("self.clip = None", "", "def set(self, name, value):\n    setattr(self, name, value)", MAYBE),
        ("self.clip = None", "def set(self, name, value):\n    setattr(self, name, value)", "", MAYBE),
        ("self.clip = None", "", "def set(self, names, value):\n    setattr(self, names[0], value)", MAYBE),
        ("self.clip = None", "", "def set(self, value):\n    setattr(self, 'other', value)", NEVER),
        ("self.clip = None", "", "def set(self, name, other):\n    setattr(other, name, 1)", NEVER),
        ("self.clip = None", "", "def set(self, values):\n    self.__dict__.update(values)", MAYBE),
        ("self.clip = None", "", "def set(self, other, values):\n    other.__dict__.update(values)", NEVER),
        ("self.clip = None", "", "def set(self, values):\n    vars(self).update(values)", MAYBE),
        ("self.clip = None", "", "def set(self, other, values):\n    vars(other).update(values)", NEVER),
    ],
)
def test_an_attribute_that_is_asked_for(init: str, shared: str, more: str, expected: str) -> None:
    assert found(init, shared, more, f"if self.clip:\n    {CLIP}") == expected


def test_a_counter_is_some_number() -> None:
    assert found("self.n = 0", body=f"self.n += 1\nif self.n % 4 == 0:\n    {CLIP}") == MAYBE


@pytest.mark.parametrize(
    ("init", "more", "body"),
    [
        ("", "@staticmethod\ndef do(p):\n    nn.utils.clip_grad_norm_(p, 1.0)", "self.do(self.model.parameters())"),
        ("", "@classmethod\ndef do(cls, p):\n    nn.utils.clip_grad_norm_(p, 1.0)", "self.do(self.model.parameters())"),
        (
            "",
            "@property\ndef params(self):\n    return self.model.parameters()",
            "nn.utils.clip_grad_norm_(self.params, 1.0)",
        ),
        (
            "",
            "def params(self):\n    for p in self.model.parameters():\n        yield p",
            "nn.utils.clip_grad_norm_(self.params(), 1.0)",
        ),
        ("", "def hook(self):\n    raise NotImplementedError", f"self.hook()\n{CLIP}"),
        ("", "def hook(self):\n    raise NotImplementedError('later')", f"self.hook()\n{CLIP}"),
        ("self.do = lambda p: nn.utils.clip_grad_norm_(p, 1.0)", "", "self.do(self.model.parameters())"),
        ("do = nn.utils.clip_grad_norm_\nself.do = do", "", "self.do(self.model.parameters(), 1.0)"),
        ("from torch.nn.utils import clip_grad_norm_ as do\nself.do = do", "", "self.do(self.model.parameters(), 1.0)"),
    ],
)
def test_a_method_by_any_way(init: str, more: str, body: str) -> None:
    assert found(init, more=more, body=body) == ALWAYS
