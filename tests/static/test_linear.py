"""Input designed to be slow: the work grows linearly with its size, and endless input is not analyzed."""

from __future__ import annotations

import ast
import json
import os
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

from pytest_amp_check.frontends.options import ConfigError, resolve_options
from pytest_amp_check.protocol import graph_exploration
from pytest_amp_check.static.engine import check_paths, check_source
from pytest_amp_check.static.interpreter import functions
from pytest_amp_check.static.interpreter.interpreter import Interpreter
from pytest_amp_check.static.interpreter.values.value import Value
from pytest_amp_check.static.project import assignments, name_index, syntax
from pytest_amp_check.static.sources import block, notebooks
from pytest_amp_check.static.sources.newer_syntax import Rejection


def parsed(monkeypatch: pytest.MonkeyPatch, lines: int) -> int:
    """Return the number of parses of a cell with ``lines`` shell commands that lack the shell sign."""
    seen: list[str] = []
    known = block.find_parse_error

    def counted(text: str) -> Rejection | None:
        seen.append(text)
        return known(text)

    with monkeypatch.context() as patched:
        patched.setattr(notebooks, "find_parse_error", counted)
        cell = {"cell_type": "code", "source": "ls x\n" * lines}
        notebooks.split_programs(json.dumps({"cells": [cell]}))
    return len(seen)


def test_commands_without_their_sign_are_parsed_a_number_of_times_that_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert parsed(monkeypatch, 5) == 7
    assert parsed(monkeypatch, 400) == parsed(monkeypatch, 800) <= notebooks.MAX_COMMANDS + 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    os.mkfifo(path)
    (finding,) = check_paths([str(path)]).findings
    assert finding.code == "AMP903"
    assert "pipes, sockets and devices are not read" in finding.message
    assert check_paths([str(tmp_path)]).files == 0


def test_a_device_is_not_read() -> None:
    (finding,) = check_paths([os.devnull]).findings
    assert (finding.code, finding.line) == ("AMP903", 1)


def walked(monkeypatch: pytest.MonkeyPatch, depth: int) -> int:
    """Return the number of nodes that are visited in functions nested to a depth."""
    seen: list[object] = []
    known = syntax.children

    def counted(node: ast.AST) -> list[ast.AST]:
        seen.append(node)
        return known(node)

    heads = "".join(" " * level + f"def f{level}():\n" for level in range(depth))
    text = f"import torch\n{heads}{' ' * depth}optimizer.zero_grad()\n{' ' * depth}scaler.step(optimizer)\n"
    with monkeypatch.context() as patched:
        patched.setattr(assignments, "children", counted)
        patched.setattr(name_index, "children", counted)
        patched.setattr(syntax, "children", counted)
        check_source(text)
    return len(seen)


def test_functions_in_functions_are_gone_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    check_source("import torch\nscaler.step(optimizer)\n")
    walks = [walked(monkeypatch, depth) for depth in (20, 40, 80)]
    assert walks[2] - walks[1] <= 2.2 * (walks[1] - walks[0])


def test_a_number_of_more_digits_than_python_reads_is_refused(tmp_path: Path) -> None:
    (tmp_path / "amp-check.toml").write_text(f"jobs = {'1' * 5_000}\n")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        resolve_options({}, start=str(tmp_path))


@pytest.mark.parametrize("label", ["no:such", ""])
def test_a_cache_cannot_name_a_violation_that_no_rule_has(tmp_path: Path, label: str) -> None:
    (tmp_path / "train.py").write_text("import torch\nscaler = torch.amp.GradScaler()\nscaler.step(optimizer)\n")
    cache = tmp_path / "cache"
    plain = check_paths([str(tmp_path)]).findings
    check_paths([str(tmp_path)], cache=str(cache))
    (kept,) = cache.glob("*.json")
    text = kept.read_text()
    for finding in plain:
        assert f'"{finding.label}"' in text
        text = text.replace(f'"{finding.label}"', f'"{label}"')
    kept.write_text(text)
    found = check_paths([str(tmp_path)], cache=str(cache)).findings
    assert [f.as_dict() for f in found] == [f.as_dict() for f in plain] != []


def calls_of_check(text: str) -> int:
    """Return the number of Python calls of a check."""
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        check_source(text)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return count


def called(functions: int) -> int:
    """Return the number of Python calls of the analysis of helpers of which each calls the one before it twice."""
    first = "import torch\nscaler = torch.amp.GradScaler()\ndef f0(s, o):\n    s.step(o)\n    s.update()\n"
    helpers = "".join(f"def f{n}(s, o):\n    f{n - 1}(s, o)\n    f{n - 1}(s, o)\n" for n in range(1, functions))
    return calls_of_check(f"{first}{helpers}f{functions - 1}(scaler, optimizer)\n")


def test_what_helpers_beyond_the_budget_step_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    check_source("import torch\nscaler.step(optimizer)\n")
    # Most of the helpers are beyond this budget as well, and counting calls up to the real one takes 20 times as long.
    monkeypatch.setattr(functions, "GRAPH_BUDGET", 500)
    assert called(60) <= 1.3 * called(30)


def test_branches_are_searched_once_for_all_sums() -> None:
    once = "if verbose is None:\n    shown = 1\ntotal = total + shown\n"
    few, more, most = (calls_of_check(f"import torch\n{once * n}scaler.step(optimizer)\n") for n in (50, 100, 200))
    assert most - more <= 2.2 * (more - few)


def calls_of_products(functions: int) -> int:
    """Return the number of Python calls of a check of functions with products, of which each calls eight others."""
    once = "def f{n}(a, b):\n    c = a @ b\n{calls}    return torch.floor(c)\n"
    calls = ["".join(f"    f{(n + step) % functions}(c, b)\n" for step in range(1, 9)) for n in range(functions)]
    helpers = "".join(once.format(n=n, calls=each) for n, each in enumerate(calls))
    uses = "def train(a, b):\n    with torch.autocast('cuda'):\n        f0(a, b)\n"
    return calls_of_check(f"import torch\n{helpers}{uses}")


def test_functions_with_products_are_searched_once() -> None:
    calls_of_products(10)
    few, more, most = map(calls_of_products, (20, 40, 80))
    assert most - more <= 2.6 * (more - few)


def loops(models: int) -> str:
    """Return a program of as many training loops, one behind another, with an optimizer each."""
    loop = (
        "model{0} = nn.Linear(8, 1)\nmodel{0}.to(torch.bfloat16)\n"
        "opt{0} = torch.optim.SGD(model{0}.parameters(), lr=1)\n"
        "for x in batches:\n    model{0}(x).mean().backward()\n    opt{0}.step()\n    opt{0}.zero_grad()\n"
    )
    return "import torch\nfrom torch import nn\n" + "".join(loop.format(number) for number in range(models))


def test_loops_one_behind_another_need_no_joined_states(monkeypatch: pytest.MonkeyPatch) -> None:
    check_source(loops(1))
    # As if there were so many optimizers that no pair is left for each. A step looks back over the loops before its
    # own, so that twice the loops take about three times the calls; joined states took six times the calls.
    monkeypatch.setattr(graph_exploration, "LIMIT", 0)
    assert calls_of_check(loops(40)) <= 3.5 * calls_of_check(loops(20))


@pytest.mark.parametrize(
    "chain", [".half()", ".half().cuda()", ".half().view(1)", ".to(dtype).train()", ".cuda().float()"]
)
def test_a_chain_of_casts_is_not_evaluated_for_each_cast(chain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cast looked at its receiver by another evaluation, which took twice as long with each further cast."""
    calls = 0
    evaluate = Interpreter.evaluate

    def counting(self: Interpreter, node: ast.expr) -> Value:
        nonlocal calls
        calls += 1
        return evaluate(self, node)

    monkeypatch.setattr(Interpreter, "evaluate", counting)

    def count(number: int) -> int:
        nonlocal calls
        calls = 0
        source = f"import torch\nnet = build(){chain * number}\nopt = torch.optim.SGD(net.parameters(), 0.1)\n"
        check_source(f"{source}net(x).backward()\nopt.step()\n", "train.py")
        return calls

    # Links between the casts are evaluated once for each cast behind them.
    assert count(12) < (6 if "view" in chain else 3) * count(6)


def _nested_loops(depth: int) -> str:
    """Return a training in nested loops, each of which sets a variable that may hold an object."""
    lines = ["import torch", "def train(model, loader, optimizer, cfg):", "    scaler = torch.amp.GradScaler('cuda')"]
    lines.append("    best = None")
    for level in range(depth):
        lines += [f"{'    ' * (level + 1)}for i{level} in range(cfg.n{level}):", f"{'    ' * (level + 2)}last = None"]
    inside = "    " * (depth + 1)
    lines += [f"{inside}loss = model(loader.next()).mean()", f"{inside}scaler.scale(loss).backward()"]
    lines += [f"{inside}{part}" for part in ("scaler.step(optimizer)", "scaler.update()", "best = last = loss")]
    return "\n".join(lines) + "\n"


def test_the_work_grows_linearly_with_the_depth_of_nested_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Interpreter.execute_block
    counts: list[int] = []

    def counted(interp: Interpreter, statements: list[ast.stmt]) -> object:
        counts[-1] += len(statements)
        return known(interp, statements)

    monkeypatch.setattr(Interpreter, "execute_block", counted)
    for depth in (4, 8, 16):
        counts.append(0)
        assert {finding.code for finding in check_source(_nested_loops(depth))} == {"AMP110", "AMP215"}
    four, eight, sixteen = counts
    assert eight < 2 * four
    assert sixteen < 2 * eight
