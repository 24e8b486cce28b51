"""Syntax of newer Pythons: analyzed if the running Python can parse it, else a warning with the version."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.static.engine import check_source

#: A training step with a clip of scaled gradients. The construct is in its second line.
STEP = """import torch
{construct}
scaler = torch.amp.GradScaler("cuda")

def train(model, optimizer, batch):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(batch)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
RUNNING = f"{sys.version_info[0]}.{sys.version_info[1]}"

NEWER = {
    "groups of exceptions": ((3, 11), "try:\n    pass\nexcept* ValueError:\n    pass"),
    "unpacking in an index": ((3, 11), "name: tuple[int, *Rest]"),
    "unpacking in an annotation": ((3, 11), "def named(*names: *Names): pass"),
    "a type": ((3, 12), "type Batch = dict[str, int]"),
    "a generic type": ((3, 12), "type Batch[T] = dict[str, T]"),
    "a generic function": ((3, 12), "def first[T](items: list[T]) -> T: pass"),
    "a generic coroutine": ((3, 12), "async def first[T](items: list[T]) -> T: pass"),
    "a generic class": ((3, 12), "class Loader[T](list[T]): pass"),
    "the same quotes in a field": ((3, 12), 'name = f"{config["name"]} of {config["run"]}"'),
    "the same quotes in a format": ((3, 12), 'name = f"{loss:{config["width"]}}"'),
    "a string in a field": ((3, 12), """print(f'{", ".join(f'{name}' for name in names)}')"""),
    "the quotes of a string around it": ((3, 12), """name = f"{f'{config["user's"]}'}\""""),
    "a backslash in a field": ((3, 12), r"""name = f'{"\n".join(names)}'"""),
    "text before a field": ((3, 12), 'name = f"a{config["name"]}"'),
    "a brace before it": ((3, 12), 'name = f"{{" f"{config["name"]}"'),
    "an escape before it": ((3, 12), 'name = f"\\"" f"{config["name"]}"'),
    "a string as a width": ((3, 12), 'name = f"{loss:{"9"}}"'),
    "a bracket in a slice": ((3, 12), 'name = f"{config[1:"]"]}"'),
    "a field over several lines": ((3, 12), 'name = f"{\n    config\n}"'),
    "a comment in a field": ((3, 12), 'name = f"""{\n    config["name"]  # the run\'s\n}"""'),
    "a type parameter with a default": ((3, 13), "class Loader[T = int]: pass"),
    "a template string": ((3, 14), 'name = t"hello {RUN!r:>{width}}"'),
    "a raw template string": ((3, 14), 'name = tr"\\d{RUN}"'),
    "exceptions without parentheses": ((3, 14), "try:\n    pass\nexcept ValueError, errors.Other:\n    pass"),
    "exceptions as a list": ((3, 14), "try:\n    pass\nexcept* OSError, ValueError:\n    pass"),
    "a lazy import": ((3, 15), "lazy import json"),
    "a lazy import of a name": ((3, 15), "lazy from json import dumps"),
    "unpacking in a comprehension": ((3, 15), "names = [*each for each in groups]"),
    "unpacking of dictionaries": ((3, 15), "names = {**each for each in groups}"),
}
newer = pytest.mark.parametrize(("version", "construct"), NEWER.values(), ids=NEWER)

#: Texts that no Python accepts, similar to newer syntax.
BROKEN = [
    "print 'loss'",
    "try:\n    pass\nexcept ValueError, error:\n    print error",
    "def first[T(items): pass",
    "type = 3 4",
    'name = f"{config"',
    'name = f"loss of {config}',
    # Newer syntax behind the error does not explain the error.
    'print name\nname = f"{config["name"]}"',
    'name = f"""loss of {config}',
    "name = 'it''s\nrest = 2",
    'name = f"{config}" rest',
    "<<<<<<< HEAD",
    "lazy = import json",
    pytest.param(
        # With a statement of Python 2: Python 3.14 accepts ``error`` as a second class.
        "try:\n    pass\nexcept* ValueError, error:\n    print error",
        marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="the star needs Python 3.11 in itself"),
    ),
    # Syntax that every supported Python has.
    'name = f"{code:#x}" rest',
    'name = "of #" rest',
    "names = [*each, *rest",
    "try:\n    pass\nexcept OSError, ValueError as error:\n    pass",
]


def summary(finding: Finding) -> tuple[str, int, str]:
    return finding.code, finding.line, finding.severity


@newer
def test_newer_syntax_is_analyzed_or_names_the_python_it_needs(version: tuple[int, int], construct: str) -> None:
    text = STEP.format(construct=construct)
    clip = text.splitlines().index("    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)") + 1
    (found,) = check_source(text)
    if sys.version_info >= version:
        assert summary(found) == ("AMP201", clip, "error")
        return
    needed = f"{version[0]}.{version[1]}"
    assert (found.code, found.severity) == ("AMP903", "warning")
    assert 2 <= found.line <= 1 + len(construct.splitlines())
    assert found.message == (
        f"This source needs Python {needed}, but amp-check runs on {RUNNING}, so nothing in it was checked: run "
        f"amp-check with Python {needed} or newer"
    )


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="needs a Python that is older than the syntax")
def test_newer_syntax_in_the_first_line_names_the_python_it_needs() -> None:
    (found,) = check_source("type Batch = dict[str, int]\n" + STEP.format(construct=""))
    assert summary(found) == ("AMP903", 1, "warning")
    assert found.message.startswith("This source needs Python 3.12, ")


LISTS = """import torch

def build(groups):
    return [*each for each in groups]

def train(models, loader):
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    scaler = torch.amp.GradScaler("cuda")
    every = [*each for each in [optimizers]]
    options = {**each for each in [{"scaler": scaler}]}
    for batch in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = sum(model(batch) for model in models)
        options["scaler"].scale(loss).backward()
        for optimizer in every:
            scaler.step(optimizer)
            optimizer.zero_grad()
"""


@pytest.mark.skipif(sys.version_info < (3, 15), reason="unpacking in comprehensions needs Python 3.15")
def test_what_comprehensions_unpack_is_followed() -> None:
    """The scaler from a dictionary is never updated, and the optimizers are the elements of the list."""
    assert [found.code for found in check_source(LISTS)] == ["AMP206"]


@pytest.mark.parametrize("construct", BROKEN)
def test_what_no_python_accepts_stays_an_error(construct: str) -> None:
    (found,) = check_source(STEP.format(construct=construct))
    assert (found.code, found.severity) == ("AMP903", "error")
    assert "not valid Python" in found.message


@pytest.mark.skipif(sys.version_info >= (3, 15), reason="needs a Python that is older than the syntax")
def test_documents_name_the_python_that_they_need(tmp_path: Path) -> None:
    text = STEP.format(construct="lazy import json")
    cells = [{"cell_type": "code", "source": "x = 1", "outputs": []}, {"cell_type": "code", "source": text}]
    notebook = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    (in_notebook,) = check_source(notebook, "train.ipynb")
    (in_markdown,) = check_source(f"# Use\n\n```python\n{text}```\n", "use.md")
    assert (in_notebook.code, in_notebook.severity, in_notebook.line, in_notebook.site.cell) == (
        "AMP903",
        "warning",
        2,
        2,
    )
    assert (in_markdown.code, in_markdown.severity, in_markdown.line) == ("AMP903", "warning", 5)


class Future(ast.expr):
    """An expression of a future Python: a plain field, a list field with a gap, and a node field."""

    _fields = ("is_lazy", "label", "parts", "inner")


class FutureStatement(ast.stmt):
    """A statement of a future Python that contains other statements."""

    _fields = ("is_lazy", "body")


class FromTheFuture(ast.NodeTransformer):
    """Transformer that replaces constants and ``while`` statements by nodes that no Python has."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        made = Future()
        made.is_lazy, made.label, made.parts, made.inner = 1, "text", [None, node], node  # type: ignore[attr-defined]
        return ast.copy_location(made, node)

    def visit_While(self, node: ast.While) -> ast.AST:
        made = FutureStatement()
        made.is_lazy, made.body = 1, node.body  # type: ignore[attr-defined]
        return ast.copy_location(made, node)


def test_nodes_and_fields_that_no_python_has_yet_are_unknown_where_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    text = STEP.format(construct="while names:\n    names = later(1, *[2])\nepochs = 3 + later(4)")
    expected = [summary(found) for found in check_source(text)]
    assert [code for code, _, _ in expected] == ["AMP201"]
    parse = ast.parse
    changed = []

    def parse_future(*args: object, **more: object) -> ast.AST:
        tree = parse(*args, **more)  # type: ignore[call-overload]
        if more:
            return tree  # type: ignore[no-any-return]  # a text of a message
        body = [FromTheFuture().visit(each) for each in tree.body[1:3]]
        changed.extend(body)
        tree.body[1:3] = body
        return tree  # type: ignore[no-any-return]

    monkeypatch.setattr(ast, "parse", parse_future)
    assert [summary(found) for found in check_source(text)] == expected
    assert isinstance(changed[0], FutureStatement)
