"""Names of another file that may do a part of a training, and other names: users of the former are analyzed."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from trees import write

from pytest_amp_check import check_paths

#: The function ``uses`` is an entry point if its call may run a backward and a step.
USES = """\
import torch
{imports}


def train(m, x):
    with torch.autocast("cuda"):
        m(x).backward()


def uses(m, i):
    if i % 4 == 0:
        {call}(m)
"""


def is_relevant(
    root: Path, tools: str, imports: str = "from tools import run", call: str = "run", at: str = "a.py"
) -> bool:
    """Check a file beside other files. Return True if the call of an imported name may be relevant."""
    write(root, tools)
    path = root / at
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(USES.format(imports=imports, call=call), encoding="utf-8")
    line = path.read_text(encoding="utf-8").split("\n").index("def uses(m, i):") + 1
    reached = check_paths([str(root)]).reached
    return (str(path), line) in reached


def tool(text: str) -> str:
    """Return a tree with one file, which the checked file imports."""
    return "=== tools.py\n" + textwrap.dedent(text)


#: Definitions of the name ``run``, each with True if it may do a part of a training.
DEFINED = {
    "a function": ("def run(m):\n    m.backward()\n", True),
    "a function that does nothing": ("def run(m):\n    print(m)\n", False),
    "an async one": ("async def run(m):\n    m.backward()\n", True),
    "beside one that matters": ("def run(m):\n    print(m)\n\n\ndef other(m):\n    m.backward()\n", False),
    "beside an async one that matters": (
        "def run(m):\n    print(m)\n\n\nasync def other(m):\n    m.backward()\n",
        False,
    ),
    "below one that matters": ("def other(m):\n    m.backward()\n\n\ndef run(m):\n    print(m)\n", False),
    "by one that matters": ("def run(m):\n    other(m)\n\n\ndef other(m):\n    m.backward()\n", True),
    "by one that uses one": (
        "def run(m):\n    one(m)\n\n\ndef one(m):\n    other(m)\n\n\ndef other(m):\n    m.backward()\n",
        True,
    ),
    "by one that does nothing": ("def run(m):\n    other(m)\n\n\ndef other(m):\n    print(m)\n", False),
    "each by the other": ("def run(m):\n    other(m)\n\n\ndef other(m):\n    run(m)\n\n\nx = 'backward('\n", False),
    "twice": ("def run(m):\n    print(m)\n\n\ndef run(m):\n    m.backward()\n", True),
    "twice, the other way": ("def run(m):\n    m.backward()\n\n\ndef run(m):\n    print(m)\n", True),
    "a class": ("class run:\n    def __init__(self, m):\n        m.backward()\n", True),
    "a class that does nothing": ("class run:\n    def __init__(self, m):\n        print(m)\n", False),
    "a method of a class is no name of the file": (
        "def run(m):\n    print(m)\n\n\nclass Other:\n    def run(self, m):\n        m.backward()\n",
        False,
    ),
    "an attribute of a class is none either": (
        "def run(m):\n    print(m)\n\n\nclass Other:\n    run = None\n\n    def do(self, m):\n        m.backward()\n",
        False,
    ),
    "a local name of a function is none either": (
        "def run(m):\n    print(m)\n\n\ndef other(m):\n    run = m.backward()\n",
        False,
    ),
    "a decorator": ("@other\ndef run(m):\n    print(m)\n\n\ndef other(f):\n    f.backward()\n", True),
    "a decorator that does nothing": (
        "@other\ndef run(m):\n    print(m)\n\n\ndef other(f):\n    return f\n\n\ndef back(m):\n    m.backward()\n",
        False,
    ),
    "two decorators": (
        "@plain\n@other\ndef run(m):\n    pass\n\n\ndef plain(f):\n    pass\n\n\ndef other(f):\n    f.backward()\n",
        True,
    ),
    "two decorators, the other way": (
        "@other\n@plain\ndef run(m):\n    pass\n\n\ndef plain(f):\n    pass\n\n\ndef other(f):\n    f.backward()\n",
        True,
    ),
    "the decorator of what follows": (
        "def run(m):\n    print(m)\n\n\n@other\ndef next(m):\n    pass\n\n\ndef other(f):\n    f.backward()\n",
        False,
    ),
    "arguments over lines": ("def run(\n    m,\n):\n    m.backward()\n", True),
    "a closing bracket at the margin": ("run = partial(\n    other,\n)\n\n\ndef other(m):\n    m.backward()\n", True),
    "another name": ("def other(m):\n    m.backward()\n\n\nrun = other\n", True),
    "a name with a type": ("def other(m):\n    m.backward()\n\n\nrun: object = other\n", True),
    "a name of two": ("def other(m):\n    m.backward()\n\n\nx, run = None, other\n", True),
    "a name of two statements": ("def other(m):\n    m.backward()\n\n\nrun = None\nx = other\n", False),
    "compared": (
        "def other(m):\n    m.backward()\n\n\ndef run(m):\n    print(m)\n\n\nif run == other:\n    pass\n",
        False,
    ),
    "in a test": ("if x:\n    def run(m):\n        m.backward()\n", True),
    "in a test, as a class": (
        "if x:\n    class run:\n        def __init__(self, m):\n            m.backward()\n",
        True,
    ),
    "in a test beside one that matters": (
        "if x:\n    def run(m):\n        pass\n\n\ndef other(m):\n    m.backward()\n",
        False,
    ),
    "in documentation": ('def run(m):\n    """Call m.backward()."""\n    print(m)\n', False),
    "no name of the file": ("def other(m):\n    print(m)\n", False),
    "no name of a file that matters": ("def other(m):\n    m.backward()\n", True),
    "from a file": ("from inner import run\n", True),
    "from a file that has it by another name": ("from inner import back as run\n", True),
    "from a file, where it does nothing": ("from inner import show as run\n", False),
    "from a file, by what uses it": ("from inner import back\n\n\ndef run(m):\n    back(m)\n", True),
    "from a file, by what uses what does nothing": ("from inner import show\n\n\ndef run(m):\n    show(m)\n", False),
    "from a file, by what uses something else": ("from inner import back\n\n\ndef run(m):\n    m.show()\n", False),
    "by a file": ("import inner\n\n\ndef run(m):\n    inner.show(m)\n", True),
    "by a file that does nothing": ("import plain\n\n\ndef run(m):\n    plain.show(m)\n", False),
    "by a package": ("import pkg\n\n\ndef run(m):\n    pkg.show(m)\n", True),
    "all of a file": ("from inner import *\n", True),
    "all of a file, where another name does nothing": ("from plain import *\n", False),
    "all of two files": ("from plain import *\nfrom inner import *\n", True),
    "all of no file": ("from nowhere import *\n", False),
    "all of no file, beside what matters": ("from nowhere import *\n\n\ndef other(m):\n    m.backward()\n", False),
    "an import that may fail": (
        "try:\n    from nowhere import run\nexcept ImportError:\n    from inner import run\n",
        True,
    ),
    "what steps in for an import is not asked": (
        "try:\n    from nowhere import run\nexcept ImportError:\n    def run(m):\n        m.backward()\n",
        False,
    ),
    "from no file": ("from nowhere import run\n", False),
    "from itself": ("from tools import run\n", False),
    "from a file in a circle": ("from circle import run\n", False),
}
INNER = """\
=== inner.py
def run(m):
    back(m)


def back(m):
    m.backward()


def show(m):
    print(m)
=== plain.py
def run(m):
    print(m)
=== pkg/__init__.py
=== circle.py
from tools import run
"""


@pytest.mark.parametrize("how", DEFINED)
@pytest.mark.parametrize("package", [False, True])
def test_a_name_by_what_defines_it(tmp_path: Path, how: str, *, package: bool) -> None:
    text, expected = DEFINED[how]
    write(tmp_path, INNER)
    if package:
        # The re-exporting package is asked for the name first, and then the file that defines it.
        tree = tool(text) + "=== all/__init__.py\nfrom tools import run\n"
        assert is_relevant(tmp_path, tree, "from all import run") is expected
    else:
        assert is_relevant(tmp_path, tool(text)) is expected


BACK, SHOW = "def run(m):\n    m.backward()\n", "def run(m):\n    print(m)\n"


@pytest.mark.parametrize(
    ("imports", "call", "files", "expected"),
    [
        # A module is relevant as a whole, regardless of the used name.
        ("import tools", "tools.run", {"tools.py": BACK}, True),
        ("import tools", "tools.other", {"tools.py": BACK}, True),
        ("import tools", "tools.run", {"tools.py": SHOW}, False),
        ("import tools as t", "t.run", {"tools.py": BACK}, True),
        ("import tools as t", "tools.run", {"tools.py": BACK}, False),
        ("from pkg import tools", "tools.run", {"pkg/__init__.py": "", "pkg/tools.py": BACK}, True),
        ("from pkg import tools", "tools.run", {"pkg/__init__.py": "", "pkg/tools.py": SHOW}, False),
        ("from pkg import tools", "tools.run", {"pkg/tools.py": BACK}, True),
        ("from pkg import tools", "tools.run", {"pkg/tools.py": SHOW}, False),
        # The content of a package is in other files.
        ("import pkg", "pkg.run", {"pkg/__init__.py": SHOW}, True),
        ("import pkg", "pkg.run", {"pkg/tools.py": SHOW}, True),
        ("from pkg import run", "run", {"pkg/tools.py": SHOW}, True),
        ("from pkg import run", "run", {"pkg/__init__.py": SHOW}, False),
        ("from pkg import run", "run", {"pkg/__init__.py": BACK}, True),
        # A package may look up a name that it mentions.
        ("from pkg import run", "run", {"pkg/__init__.py": "__all__ = ['run']\n"}, True),
        ("from pkg import run", "run", {"pkg/__init__.py": "__all__ = ['other']\n"}, False),
        ("from tools import run", "run", {"tools.py": "__all__ = ['run']\n"}, False),
        # Relevant code may give its file any name; imported names are searched in their own file.
        ("from tools import run", "run", {"tools.py": "globals().update(a=m.backward())\n"}, True),
        ("from tools import run", "run", {"tools.py": "globals().update(a=m.forward())\n"}, False),
        (
            "from tools import run",
            "run",
            {"tools.py": "from plain import *\nglobals().update(a=m.backward())\n", "plain.py": SHOW},
            False,
        ),
        # Relative imports.
        ("from .tools import run", "run", {"tools.py": BACK}, True),
        ("from . import tools", "tools.run", {"tools.py": BACK}, True),
        ("from . import tools", "tools.run", {"tools.py": SHOW}, False),
        ("from .tools import run", "run", {"tools.py": "from .inner import run\n", "inner.py": BACK}, True),
        ("from .tools import run", "run", {"tools.py": "from .inner import run\n", "inner.py": SHOW}, False),
        ("from .tools import run", "run", {"tools.py": "from . import inner\nrun = inner.x\n", "inner.py": BACK}, True),
        (
            "from .tools import run",
            "run",
            {"tools.py": "from . import inner\nrun = inner.x\n", "inner.py": SHOW},
            False,
        ),
        ("from .tools import run", "run", {"tools.py": "from ..inner import run\n", "inner.py": BACK}, False),
        # The names of torch and the frameworks are known without a file.
        ("from torch import run", "run", {"torch.py": BACK}, False),
        ("from accelerate import Accelerator as run", "run", {"accelerate.py": BACK}, True),
        ("from nowhere import run", "run", {"tools.py": BACK}, False),
    ],
)
def test_what_an_import_leads_to(
    tmp_path: Path, imports: str, call: str, files: dict[str, str], *, expected: bool
) -> None:
    tree = "".join(f"=== {name}\n{text}" for name, text in files.items())
    assert is_relevant(tmp_path, tree, imports, call) is expected


#: Base classes for a class in a file without training. The analyzed methods belong to the file of the base.
BASES = {
    "a base that trains": ("class Base:\n    def back(self, loss):\n        loss.backward()\n", True),
    "a base that does not": ("class Base:\n    def show(self, loss):\n        print(loss)\n", False),
    "a base of a base": (
        "class First:\n    def back(self, loss):\n        loss.backward()\n\n\nclass Base(First):\n    pass\n",
        True,
    ),
    "a base that calls a function that trains": (
        "def back(loss):\n    loss.backward()\n\n\nclass Base:\n    def run(self, loss):\n        back(loss)\n",
        False,
    ),
    "a base of a base from another file": ("from first import First\n\n\nclass Base(First):\n    pass\n", True),
    "a base that another file has": ("from first import First as Base\n", True),
    "a base that a call makes": (
        "from first import First\n\n\nclass Base(mix(First)):\n    pass\n",
        True,
    ),
    "a base beside one that trains": (
        "class First:\n    def back(self, loss):\n        loss.backward()\n\n\nclass Base:\n    pass\n",
        False,
    ),
}


@pytest.mark.parametrize("base", BASES)
def test_a_class_by_what_it_derives_from(tmp_path: Path, base: str) -> None:
    text, expected = BASES[base]
    first = "=== first.py\nclass First:\n    def back(self, loss):\n        loss.backward()\n"
    derived = """\
import torch
from bases import Base

class Derived(Base):
    def region(self):
        return torch.autocast("cuda")

    def uses(self, loss):
        with self.region():
            return loss
"""
    write(tmp_path, f"{first}=== bases.py\n{text}=== a.py\n{derived}")
    reached = check_paths([str(tmp_path)]).reached
    # Without training, a region is relevant only to the function that opens it.
    assert (str(tmp_path / "a.py"), 5) in reached
    assert ((str(tmp_path / "a.py"), 8) in reached) is expected
