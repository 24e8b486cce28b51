"""Relevant names of other files: effects of the definitions, through names and files of any depth."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from pytest_amp_check.static.project.exports import AFFECTS_PROTOCOL, Exports
from pytest_amp_check.static.project.project import Project
from pytest_amp_check.static.sources.source_files import find_sources, load_bytes


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")


def ask(root: Path, name: str, of: str = "lib.py") -> bool:
    """Return True if a name of a file may be relevant to an importing file."""
    tree = Project()
    tree.add_files(find_sources([str(root)], ()), [str(root)])
    answer = Exports(load_bytes, AFFECTS_PROTOCOL).relevance_of_name(str(root / of), name, tree.find_import)
    assert {Path(path) for path in answer.dependencies} >= {root / of}
    return answer.is_relevant


LIB = {
    "a function that steps": "def f(opt):\n    opt.step()\n",
    "a function that calls one": "def f(opt):\n    g(opt)\n\ndef g(opt):\n    opt.step()\n",
    "a decorated one": "@g\ndef f(): ...\n\ndef g(f):\n    return autocast('cuda')(f)\n",
    "a method": "class f:\n    def run(self, loss):\n        loss.backward()\n",
    "a class that derives from one": "class f(Base): ...\n\nclass Base:\n    def run(self, opt):\n        opt.step()\n",
    "an object": "f = make()\n\ndef make():\n    return GradScaler()\n",
    "one of two objects": "e, f = make()\n\ndef make():\n    return GradScaler()\n",
    "an annotated object": "f: object = make()\n\ndef make():\n    return GradScaler()\n",
    "a function defined on one way": "if FAST:\n    def f(loss):\n        loss.backward()\n",
    "a function over blank lines": "def f(opt):\n    x = 1\n\n    # a comment\n# another\n\n    opt.step()\n",
    "a name that code of its own gives": "globals().update(f=lambda opt: opt.step())\n",
    "two that call each other": "def f(opt):\n    g(opt)\n\ndef g(opt):\n    f(opt)\n    opt.zero_grad()\n",
}
NOT = {
    "a constant": "f = 3\n\ndef g(opt):\n    opt.step()\n",
    "a function that does nothing": "def f(x):\n    return x + 1\n\ndef g(opt):\n    opt.step()\n",
    "a function that is called": "def g(opt):\n    opt.step()\n    f()\n\ndef f():\n    return 1\n",
    "a class that does nothing": "class f:\n    x = 1\n\nclass g:\n    def run(self, opt):\n        opt.step()\n",
    "documentation": 'def f():\n    """\n    with autocast("cuda"): ...\n    """\n\ndef g(opt):\n    opt.step()\n',
    "two that call each other": "def f(x):\n    g(x)\n\ndef g(x):\n    f(x)\n\ndef h(opt):\n    opt.step()\n",
    "an empty file": "",
}


@pytest.mark.parametrize("text", LIB.values(), ids=LIB)
def test_relevant_names(text: str, tmp_path: Path) -> None:
    write(tmp_path, {"lib.py": text})
    assert ask(tmp_path, "f")


@pytest.mark.parametrize("text", NOT.values(), ids=NOT)
def test_irrelevant_names(text: str, tmp_path: Path) -> None:
    write(tmp_path, {"lib.py": text})
    assert not ask(tmp_path, "f")


THERE = "def act(opt):\n    opt.step()\n\ndef idle():\n    return 1\n"
HANDED_ON = {
    "by name": "from .there import {name} as f\n",
    "on several lines": "from .there import (\n    other,  # as it was\n    {name} as f,\n)\n",
    "where it is used": "def f(*args):\n    from .there import {name}\n    return {name}(*args)\n",
    "by a function": "from .there import {name}\n\ndef f(*args):\n    return {name}(*args)\n",
    "for the types alone": "if TYPE_CHECKING:\n    from .there import {name} as f\nelse:\n    f = lazily()\n",
}


@pytest.mark.parametrize("text", HANDED_ON.values(), ids=HANDED_ON)
@pytest.mark.parametrize(("name", "is_relevant"), [("act", True), ("idle", False)])
def test_a_name_that_a_package_re_exports_is_searched_where_it_is_defined(
    text: str, name: str, is_relevant: bool, tmp_path: Path
) -> None:
    write(tmp_path, {"pkg/__init__.py": text.format(name=name), "pkg/there.py": THERE})
    assert ask(tmp_path, "f", "pkg/__init__.py") is is_relevant


@pytest.mark.parametrize(("name", "is_relevant"), [("act", True), ("idle", False)])
def test_names_that_a_star_import_re_exports(name: str, is_relevant: bool, tmp_path: Path) -> None:
    write(tmp_path, {"pkg/__init__.py": "from .there import *\n", "pkg/there.py": THERE})
    assert ask(tmp_path, name, "pkg/__init__.py") is is_relevant


def test_a_name_that_a_package_may_load_lazily_is_relevant(tmp_path: Path) -> None:
    write(tmp_path, {"pkg/__init__.py": "attach(__name__, {'there': ['act']})\n", "pkg/there.py": THERE})
    assert ask(tmp_path, "act", "pkg/__init__.py")
    assert not ask(tmp_path, "other", "pkg/__init__.py")
