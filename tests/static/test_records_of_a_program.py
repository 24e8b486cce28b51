"""Classes whose objects hold exactly their declared fields, so that the analyzer can unpack the objects."""

from __future__ import annotations

import pytest

from pytest_amp_check import check_source

#: A disabled scaler scales nothing, so that the clip is correct: known only if the record can be unpacked.
PROGRAM = """\
import torch
from torch import nn

{record}

def train(model, opt, loader):
    a, b = Pair(torch.amp.GradScaler("cuda", enabled=False), opt)
    for x in loader:
        b.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x)
        a.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        a.step(b)
        a.update()
"""
FIELDS = "\n    one: object\n    two: object\n"


def has_known_parts(record: str) -> bool:
    """Return True if the analyzer knows the parts of a record."""
    found = {f.code for f in check_source(PROGRAM.format(record=record), "a.py")}
    return "AMP201" not in found


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ("class Pair(NamedTuple):" + FIELDS, True),
        ("class Pair(typing.NamedTuple):" + FIELDS, True),
        ("@dataclass\nclass Pair:" + FIELDS, True),
        ("@dataclasses.dataclass\nclass Pair:" + FIELDS, True),
        ("@dataclass(frozen=True)\nclass Pair:" + FIELDS, True),
        ("@attrs.define\nclass Pair:" + FIELDS, True),
        ("@frozen\nclass Pair:" + FIELDS, True),
        ("class Pair(BaseModel):" + FIELDS, True),
        ("class Pair:" + FIELDS, False),
        ("class Pair(Other):" + FIELDS, False),
        ("@other\nclass Pair:" + FIELDS, False),
        ("@other(dataclass)\nclass Pair:" + FIELDS, False),
        ("@dataclass.other\nclass Pair:" + FIELDS, False),
        # Classes that define their own constructor or iteration.
        ("@dataclass\nclass Pair:" + FIELDS + "    def __init__(self, *given):\n        self.given = given\n", False),
        ("@dataclass\nclass Pair:" + FIELDS + "    def __iter__(self):\n        return iter(given)\n", False),
        ("@dataclass\nclass Pair:" + FIELDS + "    def other(self):\n        return iter(given)\n", True),
        # Class members that are not fields.
        ("@dataclass\nclass Pair:\n    zero = 1" + FIELDS, True),
        ("@dataclass\nclass Pair:\n    zero: int" + FIELDS, False),
        ("@dataclass\nclass Pair:\n    two: object\n    one: object\n", True),
        ("@dataclass\nclass Pair:\n    one: object\n", False),
    ],
)
def test_what_is_a_record(record: str, *, expected: bool) -> None:
    assert has_known_parts(record) is expected


#: The clip of gradients that are still scaled runs only if a setting is on.
SET = """\
import torch
from torch import nn


def train(model, opt, loader, settings):
    scaler = torch.amp.GradScaler("cuda")
    settings["clip"] = None
    for x in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x)
        scaler.scale(loss).backward()
        if settings["clip"]:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        {after}
"""


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("pass", False),
        ("settings['clip'] = 1.0", True),
        ("settings['other'] = 1.0", False),
        ("if x: settings['clip'] = 1.0", True),
        ("settings['clip'], y = 1.0, 2.0", True),
        ("y = settings['clip']", False),
        ("other['clip'] = None", False),
    ],
)
def test_an_item_that_a_loop_sets_for_the_next_iteration(after: str, *, expected: bool) -> None:
    found = [f.code for f in check_source(SET.format(after=after), "a.py") if f.code == "AMP201"]
    assert found == (["AMP201"] if expected else [])
