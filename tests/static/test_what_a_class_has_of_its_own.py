"""Inherited methods are analyzed again for a class with other attributes or methods that the inherited methods use."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from pytest_amp_check import check_paths, check_source

PROGRAM = """\
import torch


class Base:
    n = 2

    def __init__(self, m):
        self.m = m

    def run(self, x):
        with torch.autocast("cuda"):
            return self.help(self.m(x), self.n, self.flag)

    def help(self, *given):
        self.inner = self.more(given)

    def more(self, given):
        raise NotImplementedError


class First({base}):
{first}


class Second({base}):
{second}
"""
UNUSED = "def unused(self):\n    pass"


def inherit(root: Path, first: str, second: str = UNUSED, base: str = "Base") -> list[bool]:
    """Check a file of two derived classes. Return for each class True if the inherited method is analyzed again."""
    text = PROGRAM.format(base=base, first=indent(first, " " * 4), second=indent(second, " " * 4))
    (root / "a.py").write_text(text, encoding="utf-8")
    lines = text.split("\n")
    reached = check_paths([str(root)]).reached
    return [(str(root / "a.py"), -lines.index(f"class {name}({base}):") - 1) in reached for name in ("First", "Second")]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (UNUSED, False),
        ("pass", False),
        # Attributes that the method uses, directly or through its calls.
        ("n = 4", True),
        ("flag = True", True),
        ("m = torch.nn.Linear(2, 2)", True),
        ("given = 4", False),
        ("more = None", True),
        ("inner = None", True),
        ("n: int = 4", True),
        ("n: int", False),
        ("a, n = 3, 4", True),
        ("n = a = 4", True),
        ("a = n = 4", True),
        ("a = 4", False),
        ("if True:\n    n = 4", False),
        # Methods, if they or the methods that they override are relevant.
        ("def help(self, *given):\n    torch.autocast('cuda').__enter__()", True),
        ("def help(self, *given):\n    print(given)", False),
        ("def more(self, given):\n    torch.autocast('cuda').__enter__()", True),
        ("def other(self, given):\n    torch.autocast('cuda').__enter__()", False),
        ("def run(self, x):\n    return x", False),
        # Attributes that its methods assign, including the constructor.
        ("def __init__(self, m):\n    self.flag = m", True),
        ("def __init__(self, m):\n    self.other = m", False),
        ("def __init__(self, m):\n    m.flag = m", False),
        ("def __init__(self, m):\n    flag = m", False),
        ("def __init__(self, m):\n    self.m.flag = m", False),
        ("def __init__(this, m):\n    this.flag = m", True),
        ("def __init__(this, self):\n    self.flag = this", False),
        ("def set(self, m):\n    self.flag = m", True),
        ("def set(self, m):\n    self.flag: object = m", True),
        ("def set(self, m):\n    self.a, self.flag = m, m", True),
        ("def set(self, m):\n    self.a, self.b = m, self.flag", False),
        ("def set(self, m):\n    if m:\n        self.flag = m", True),
        ("def set(self, m):\n    for x in m:\n        self.flag = x", True),
        ("def set(self, m):\n    try:\n        m()\n    except ValueError:\n        self.flag = m", True),
        ("def set(self, m):\n    try:\n        m()\n    finally:\n        self.flag = m", True),
        ("def set(self, m):\n    match m:\n        case 1:\n            self.flag = m", True),
        ("@staticmethod\ndef set():\n    self.flag = 1", False),
        # Dynamic names may be any name.
        ("def set(self, name):\n    setattr(self, name, 1)", True),
        ("def set(self, name):\n    setattr(self, 'other', 1)", False),
        ("def set(self, name):\n    setattr(name, name, 1)", False),
        ("def set(self, name):\n    setattr(self, f'x_{name}', 1)", False),
        ("def set(self, name):\n    setattr(self, 'x' + name, 1)", False),
        ("def set(self, name):\n    setattr(self, name.text, 1)", True),
        ("def set(self, name):\n    setattr(self, name(), 1)", True),
        ("def set(self, name):\n    setattr(self, name)", False),
        ("def set(self, name):\n    self.__dict__.update(name)", True),
        ("def set(self, name):\n    self.__dict__.pop(name)", False),
        ("def set(self, name):\n    name.__dict__.update(name)", False),
        ("def set(self, name):\n    self.other.update(name)", False),
        ("def set(self, name):\n    vars(self).update(name)", True),
        ("def set(self, name):\n    vars(self).pop(name)", False),
        ("def set(self, name):\n    vars(name).update(name)", False),
        ("def set(self, name):\n    dict(self).update(name)", False),
        (
            "def first(self, name):\n    vars(self).update(name)\ndef second(self, name):\n    vars(name).update(1)",
            True,
        ),
        (
            "def first(self, name):\n    vars(name).update(1)\ndef second(self, name):\n    vars(self).update(name)",
            True,
        ),
    ],
)
def test_what_a_class_has(tmp_path: Path, body: str, *, expected: bool) -> None:
    assert inherit(tmp_path, body) == [expected, False]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # Another number changes nothing; 0 and 1 may act as flags.
        ("n = 4", "n = 8", False),
        ("n = 4.5", "n = 8", False),
        ("n = -4", "n = 8", True),
        ("n = 4", "n = 0", True),
        ("n = 4", "n = 1", True),
        ("n = 4", "n = 1.0", True),
        ("n = 4", "n = True", True),
        ("n = 4", "n = 'text'", True),
        ("n = 4", "n = None", True),
        ("n = 4", "n = f()", True),
        ("n = 4", "n = 8\nn = None", True),
        ("n = 4", "n = None\nn = 8", True),
        ("n = 4", "n = 8\nn = 16", False),
        ("n = 4", "n = 8\nflag = 16", True),
        ("n = 4", "n = 8\nunused = 16", False),
        ("n = 4", "flag = 8", True),
        ("n = 4", "n = 8\ndef set(self):\n    self.n = 16", False),
        ("n = 4", "n = 8\ndef set(self, m):\n    self.n = m", True),
        ("n = 4", "n = 8\ndef help(self, *given):\n    torch.autocast('cuda')", True),
        ("n = None", "n = None", True),
        ("n = None", "n = 8", True),
    ],
)
def test_classes_that_differ_in_a_number_are_alike(tmp_path: Path, first: str, second: str, *, expected: bool) -> None:
    assert inherit(tmp_path, first, second) == [True, expected]


#: The clip of gradients that are still scaled runs only in a class that sets a limit.
LIMITED = """\
import torch


class Base:
    limit = 0

    def run(self, loader):
        for x in loader:
            self.opt.zero_grad()
            with torch.autocast("cuda"):
                loss = self.model(x)
            self.scaler.scale(loss).backward()
            if self.limit:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.limit)
            self.scaler.step(self.opt)
            self.scaler.update()


class First(Base):
    limit = {first}


class Second(Base):
    limit = {second}
"""


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("None", "2.0", ["AMP201"]),
        ("2.0", "None", ["AMP201"]),
        ("2.0", "3.0", ["AMP201"]),
        ("0", "3.0", ["AMP201"]),
        ("None", "0", []),
        ("0", "None", []),
    ],
)
def test_a_number_in_one_class_hides_behind_none_of_another(first: str, second: str, expected: list[str]) -> None:
    assert [f.code for f in check_source(LIMITED.format(first=first, second=second), "a.py")] == expected
