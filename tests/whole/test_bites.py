"""The mutations that ``benchmarks/bites.py`` makes in our own code, and the switches of mutants."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarking import benchmark

BITES = benchmark("bites")
SOURCE = '''\
"""What runs when a module is imported is left alone."""
LIMIT = 3 + 4


def up_to_five(count: "int" = 1, *found) -> "str":
    """And so is this."""
    assert count != 8
    if not found and count < LIMIT:
        return f"{count + 1}"
    kept = []
    for each in found:
        if each == 5:
            break
        kept.append(each)
    return kept
'''
#: Line and description of each change, and the results of the function for 2, for 2 and 5, and for 2 and 4.
CHANGES = [
    (8, "and for or", "not found or count < LIMIT", ("3", "3", "3")),
    (8, "not", "found", ([], "3", "3")),
    (8, "comparison", "count <= LIMIT", ("3", [], [4])),
    (9, "returned", "None", (None, [], [4])),
    (12, "comparison", "each != 5", ("3", [5], [])),
    (12, "constant", "6", ("3", [5], [4])),
    (13, "statement", None, ("3", [5], [4])),
    (14, "statement", None, ("3", [], [])),
    (15, "returned", "None", ("3", None, None)),
]


def results(switch: Any) -> tuple[Any, ...]:
    tree = ast.parse(SOURCE)
    BITES["switched"](tree, enumerate(BITES["mutants"]("source.py", tree)))
    names = {BITES["SWITCH"]: switch}
    exec(compile(tree, "source.py", "exec"), names)  # noqa: S102 - what is compiled here
    up_to_five: Any = names["up_to_five"]
    return up_to_five(2), up_to_five(2, 5), up_to_five(2, 4)


def test_every_change_that_fits_is_made_in_functions_alone() -> None:
    made = [
        (mutant.node.lineno, mutant.kind, mutant.made and ast.unparse(mutant.made))
        for mutant in BITES["mutants"]("source.py", ast.parse(SOURCE))
    ]
    assert made == [(line, kind, new) for line, kind, new, _ in CHANGES]


def test_a_switch_enables_one_change() -> None:
    assert results(lambda number: False) == ("3", [], [4])
    for number, (*_, expected) in enumerate(CHANGES):
        assert results(lambda asked, number=number: asked == number) == expected, number


def test_switches_know_what_came_past_them() -> None:
    switches = BITES["Switches"]()
    results(switches)
    # Calls with an empty list, with a five, and with a four reach all switches.
    assert switches.reached == set(range(len(CHANGES)))


def test_processes_that_tests_start_see_mutants(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    module = BITES["PACKAGE"] / "protocol" / "byte_sizes.py"
    tree, file = ast.parse(module.read_bytes()), module.relative_to(BITES["ROOT"]).as_posix()
    numbered = [*enumerate(BITES["mutants"](file, tree))]
    # format_size() returns None for a size with a unit.
    wrong = [number for number, each in numbered if each.kind == "returned"][-2]
    BITES["switched"](tree, numbered)
    (tmp_path / "reached").mkdir()
    BITES["share"]({str(module): tree}, numbered, tmp_path)
    program = "from pytest_amp_check.protocol.byte_sizes import format_size; print(format_size(3 << 30))"

    def said(mutant: str) -> str:
        more = {BITES["MUTANT"]: mutant, BITES["REACHED"]: str(tmp_path / "reached")}
        command, environment = [sys.executable, "-c", program], {**os.environ, **more}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert said("") == "3.00 GiB\n"
    assert said(str(wrong)) == "None\n"
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(tmp_path), "elsewhere"]
    files = [*(tmp_path / "reached").iterdir()]
    assert len(files) == 2
    assert all(str(wrong) in path.read_text(encoding="utf-8").split() for path in files)


@pytest.mark.long
@pytest.mark.exhaustive
def test_a_sample_is_the_same_for_the_same_seed() -> None:
    one, again, other = (BITES["sample"](seed, 20, ["static/sources", "static/project"]) for seed in (1, 1, 2))
    assert one.reported == again.reported != other.reported
    assert len(one.reported) == 20
    assert one.of == other.of > 1000
