"""What changes nothing about a program changes nothing about its findings."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from marks import marks
from rewriting import found_in
from transformations import NOISE, TRANSFORMATIONS, noisy

from pytest_amp_check.protocol.rule import RUNTIME
from pytest_amp_check.protocol.rules import RULES

FIXTURES = Path(__file__).parents[2] / "fixtures"
#: Every whole trainer, what is deprecated, and each eighth of the other small scripts.
SAMPLE = [
    *sorted(FIXTURES.glob("trainers/*.py")),
    *sorted(FIXTURES.glob("migration/*_bad.py")),
    *sorted(FIXTURES.glob("[!mt]*/*.py"))[::8],
    FIXTURES / "headline.py",
]


def programs() -> Iterator[tuple[str, str]]:
    for code, rule in RULES.items():
        # Comments and broken syntax do not survive a tree; a blind spot is no mistake.
        if rule.detected_by != RUNTIME and code not in ("AMP902", "AMP903", "AMP904"):
            yield f"{code}-bad", rule.bad_example
            yield f"{code}-good", rule.good_example
    for script in SAMPLE:
        yield script.relative_to(FIXTURES).as_posix(), script.read_text(encoding="utf-8")


PROGRAMS = dict(programs())

#: A scheduler that moves in another function than the scaler steps, or by another name, is not judged: it may be an
#: epoch's. It may only shrink.
NOT_FOLLOWED = {("AMP403-bad", name) for name in ("bound methods", "through functions", "through lambdas")}
#: Those that can follow one another in any order.
MIXABLE = [name for name in TRANSFORMATIONS if not name.startswith(("written", "import", "in attributes"))]


@pytest.mark.parametrize("name", [name for name in TRANSFORMATIONS if name != "written again"])
def test_a_transformation_transforms(name: str) -> None:
    for source in PROGRAMS.values():
        before = ast.parse(source)
        if ast.dump(TRANSFORMATIONS[name](copy.deepcopy(before))) != ast.dump(before):
            return
    raise AssertionError(f"{name} changes no program")


@pytest.mark.long
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_what_changes_nothing_changes_no_finding(name: str) -> None:
    """One test for all programs, as there are thousands of pairs; it names every program that fails.

    Every rule's examples take part in each, and a third of the fixtures, another in the next.
    """
    wrong: list[str] = []
    turn = list(TRANSFORMATIONS).index(name) % 3
    fixtures = [program for program in PROGRAMS if program.endswith(".py")]
    for program, source in PROGRAMS.items():
        if program.endswith(".py") and fixtures.index(program) % 3 != turn:
            continue
        if (program, name) in NOT_FOLLOWED:
            continue
        found, text = found_in(TRANSFORMATIONS[name](ast.parse(source)))
        if found != marks(source):
            missing, extra = sorted(marks(source) - found), sorted(found - marks(source))
            wrong.append(f"{program}: missing {missing}, extra {extra}\n{text if not wrong else ''}")
    assert not wrong, "\n".join(wrong)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), program=st.sampled_from(sorted(set(PROGRAMS) - {p for p, _ in NOT_FOLLOWED})))
def test_no_mixture_of_transformations_changes_a_finding(data: st.DataObject, program: str) -> None:
    """Two of the transformations after one another, then statements that do nothing at places drawn by chance."""
    source = PROGRAMS[program]
    tree = ast.parse(source)
    names = data.draw(st.lists(st.sampled_from(MIXABLE), min_size=1, max_size=2, unique=True))
    for name in names:
        tree = TRANSFORMATIONS[name](tree)
    tree = noisy(tree, lambda: data.draw(st.none() | st.integers(0, len(NOISE) - 1)))
    found, text = found_in(tree)
    assert found == marks(source), f"{program}: {names}\n{text}"
