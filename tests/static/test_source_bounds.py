"""Work and memory of analyzing one file, with any content: bounded, and reported if the bound is exceeded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pytest_amp_check.protocol.graph_exploration as protocol_check
from pytest_amp_check import check_paths
from pytest_amp_check.protocol.byte_sizes import LARGEST_FILE
from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings
from pytest_amp_check.static.sources import tokens
from pytest_amp_check.static.sources.tokens import is_dense

HEAD = "import torch\nscaler = torch.amp.GradScaler('cuda')\n"
DENSE = HEAD + "scaler.update()\n" * 100_000
MANY = f"it has more than {tokens.MAX_TOKENS:,} tokens of code, which is too much to analyze: split it, or raise"


def found(path: Path, largest: int = LARGEST_FILE) -> list[Finding]:
    return check_paths([str(path)], Settings(largest=largest)).findings


@pytest.mark.parametrize("name", ["dense.py", "dense.ipynb", "dense.md"])
def test_a_file_of_too_many_tokens_is_not_parsed(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    cell: dict[str, object] = {"cell_type": "code", "source": DENSE, "outputs": []}
    notebook = json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4})
    path.write_text({"dense.py": DENSE, "dense.ipynb": notebook, "dense.md": f"```python\n{DENSE}```\n"}[name])
    (finding,) = found(path)
    assert (finding.code, MANY in finding.message) == ("AMP903", True)


def test_a_higher_limit_of_bytes_allows_for_more_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "ALWAYS_PARSED", 1_000)
    monkeypatch.setattr(tokens, "MAX_TOKENS", 1_000)
    path = tmp_path / "train.py"
    path.write_text(HEAD + "scaler.update()\n" * 300)
    assert [finding.code for finding in found(path, largest=10_000)] == ["AMP903"]
    assert "AMP903" not in {finding.code for finding in found(path, largest=50_000)}
    assert "AMP903" not in {finding.code for finding in found(path, largest=0)}


def test_a_file_that_is_not_parsed_is_asked_for_nothing_by_others(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(DENSE)
    (tmp_path / "train.py").write_text("from helper import scaler\nscaler.step(optimizer)\n")
    codes = {(Path(finding.filename).name, finding.code) for finding in found(tmp_path)}
    assert ("helper.py", "AMP903") in codes


@pytest.mark.parametrize(
    "text",
    [
        # Data, and prose: large files that cost little.
        "x = '" + "word " * 500_000 + "'\n",
        "# a banner\n" * 150_000,
        "#" * 3_000_000 + "\n",
        "x = [\n" + "    0.123456789012, 0.123456789012,\n" * 60_000 + "]\n",
        "x = b'" + "\\x00" * 1_000_000 + "'\n",
    ],
    ids=["prose", "comments", "banner", "numbers", "bytes"],
)
def test_what_costs_little_is_not_dense(text: str) -> None:
    assert not is_dense(text)


@pytest.mark.parametrize(
    "text", ["a\n" * 300_000, "a;" * 300_000, "[]," * 200_000, "~a," * 200_000, "'" + "\n'" * 300_000 + "\n'" * 300_000]
)
def test_what_costs_most_is_dense(text: str) -> None:
    assert is_dense(text)


def test_the_most_tokens_are_not_too_many() -> None:
    text = "ab\n" * 200_000
    assert not is_dense(text, 400_000)
    assert is_dense(text, 399_999)


def many_branches(number: int) -> str:
    body = (
        f"    if c[{i}]: scaler.scale(loss).backward()\n    if d{i}: scaler.step(o)\n    if e{i}: scaler.update()\n"
        for i in range(number)
    )
    return HEAD + "def train(o, loss, *c):\n" + "".join(body)


@pytest.mark.parametrize(("name", "bound"), [("MOST_SPENT", 1_000), ("MOST_LOOKED", 100)])
def test_a_function_beyond_the_bound_is_reported_as_not_checked(
    name: str, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = many_branches(30)
    every = [finding for finding in check_source(source) if finding.code != "AMP903"]
    monkeypatch.setattr(protocol_check, name, bound)
    bounded = check_source(source)
    (said,) = (finding for finding in bounded if finding.code == "AMP903")
    assert "takes too long to analyze, so `train` and the code after it were not checked" in said.message
    assert len(bounded) - 1 < len(every)
