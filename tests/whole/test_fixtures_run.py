"""Every fixture is a program that runs, and the other tests can parse every mark in a fixture."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import os
import random
import re
import runpy
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from marks import one_sided
from samples import sample

from pytest_amp_check.protocol.rule import BOTH
from pytest_amp_check.protocol.rules import RULES

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2] / "fixtures"
SCRIPTS = sorted(ROOT.rglob("*.py"))
PAIRED = (
    "autocast",
    "scaling",
    "accumulation",
    "checkpoint",
    "numerics",
    "distributed",
    "overhead",
    "dynamics",
    "migration",
    "trainers",
)

#: Rules that no script can break by training: they need a framework that divides, several processes, an unused
#: suppression, invalid source, a call that no path reaches, or an exception that ends the script. Every other rule has
#: a script that breaks it, and beside it a correct script for the same work: a fixture, or the examples of the rule.
NO_SCRIPT = {"AMP302", "AMP305", "AMP306", "AMP810", "AMP902", "AMP903", "AMP904"}


#: Scripts that torch 2.4 ends with an exception, and why.
REFUSED_BY_2_4 = {
    "autocast/loss_outside_autocast_mse_good.py": "the backward of mse_loss does not promote two dtypes",
    "distributed/capture_with_cast_cache_bad.py": "the check of a trace finds the casts in it by itself",
    "numerics/low_precision_master_weights_bad.py": "the CPU has no kernel of mse_loss for bfloat16",
}


CODES = r"AMP\d{3}(?: AMP\d{3})*"
ONE_SIDED = rf"(?:static-only|runtime-only): {CODES} [a-z][^#]*[^.\s#]"
MARK = re.compile(rf"  # (?:{CODES}|{ONE_SIDED}(?:  # {ONE_SIDED})?)$")
MENTION = re.compile(r"AMP\d|static-only|runtime-only")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def codes_in(path: Path) -> set[str]:
    return set(re.findall(r"AMP\d{3}", path.read_text(encoding="utf-8")))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Isolate a script, and restore the global state afterwards."""
    threads = torch.get_num_threads()
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        # Some of the scripts show that autocast can stay on after its last exit.
        for device in ("cpu", "cuda"):
            torch.set_autocast_enabled(device, False)
        torch.clear_autocast_cache()
        torch.set_num_threads(threads)
        torch.set_rng_state(torch_state)
        random.setstate(python_state)


@pytest.mark.parametrize("script", sample(SCRIPTS, 6, 1), ids=name_of)
def test_runs_to_its_end(script: Path, alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.__version__ < "2.5" and name_of(script) in REFUSED_BY_2_4:
        pytest.skip(REFUSED_BY_2_4[name_of(script)])
    monkeypatch.setattr(sys, "argv", [str(script)])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        # Some of the scripts are about deprecated names and about autocast that disables itself.
        warnings.simplefilter("ignore")
        runpy.run_path(str(script), run_name="__main__")
    assert printed.getvalue().strip(), "a fixture says what came of its training"
    assert not os.listdir(), "a fixture leaves no file behind"


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(source, id=name)
        for name, source in (
            *((name_of(path), path.read_text(encoding="utf-8")) for path in SCRIPTS),
            *(
                (f"{rule.code}-{kind}", getattr(rule, kind))
                for rule in RULES.values()
                for kind in ("bad_example", "good_example")
            ),
        )
        if 'init_process_group("gloo"' in source and "DistributedDataParallel" in source
    ],
)
def test_no_reducer_outlives_its_process_group(
    source: str, alone: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its destructor holds the GIL while it joins threads of gloo, which may wait for the GIL: occasionally, a run hangs
    # (torch 2.13).
    script = tmp_path_factory.mktemp("scripts") / "script.py"
    script.write_text(source, encoding="utf-8")
    gc.collect()

    def reducers() -> set[object]:
        return {each for each in gc.get_objects() if type(each) is torch.nn.parallel.DistributedDataParallel}

    # An earlier test in the same process may keep objects of its script alive.
    known = reducers()
    destroy = torch.distributed.destroy_process_group
    left: list[int] = []

    def look_and_destroy() -> None:
        left.append(sum(each not in known for each in reducers()))
        destroy()

    monkeypatch.setattr(torch.distributed, "destroy_process_group", look_and_destroy)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runpy.run_path(str(script), run_name="__main__")
    assert left == [0]


def marked_lines() -> Iterator[tuple[str, str]]:
    """Yield every line that mentions a code, with the location of the line."""
    for script in SCRIPTS:
        for number, line in enumerate(script.read_text(encoding="utf-8").splitlines(), start=1):
            if MENTION.search(line):
                yield f"{name_of(script)}:{number}", line


def test_marks_are_well_formed() -> None:
    broken = [f"{place}: {line.strip()}" for place, line in marked_lines() if not MARK.search(line)]
    assert not broken, "a mark is `# AMP201 AMP301` or `# static-only: AMP207 reason` at the end of a line of code"


def test_only_marks_of_rules_that_both_readers_decide_take_a_side() -> None:
    for script in SCRIPTS:
        for number, code, reader in one_sided(script.read_text(encoding="utf-8")):
            assert RULES[code].detected_by == BOTH, f"{name_of(script)}:{number}: {reader}-only goes without saying"


def test_marks_stand_on_code() -> None:
    empty = [place for place, line in marked_lines() if not line.split("#")[0].strip()]
    assert not empty


def test_a_mark_names_a_code_once() -> None:
    for place, line in marked_lines():
        codes = re.findall(r"AMP\d{3}", line)
        assert len(codes) == len(set(codes)), place


def test_wrong_scripts_are_marked_and_right_ones_are_not() -> None:
    kinds = {path: path.stem.rpartition("_") for path in SCRIPTS if path.parent.name in PAIRED}
    assert [name_of(path) for path, (stem, _, kind) in kinds.items() if not stem or kind not in ("bad", "good")] == []
    assert [name_of(path) for path, (*_, kind) in kinds.items() if bool(codes_in(path)) != (kind == "bad")] == []


def test_idioms_are_not_marked() -> None:
    idioms = [path for path in SCRIPTS if path.parent.name == "idioms"]
    assert idioms
    assert [name_of(path) for path in idioms if codes_in(path)] == []


def test_a_wrong_script_of_a_rule_has_a_right_one_beside_it() -> None:
    alone = []
    for code in sorted(RULES.keys() - NO_SCRIPT):
        wrong = [path for path in SCRIPTS if path.stem.endswith("_bad") and codes_in(path) == {code}]
        right = [path.with_name(path.stem.removesuffix("_bad") + "_good.py") for path in wrong]
        if wrong and not any(path.exists() for path in right):
            alone.append(code)
    assert alone == [], "no script shows the fix of these mistakes"


def test_headline_has_its_four_mistakes() -> None:
    marks = re.findall(r"AMP\d{3}", (ROOT / "headline.py").read_text(encoding="utf-8"))
    assert sorted(marks) == ["AMP103", "AMP201", "AMP301", "AMP401"]
