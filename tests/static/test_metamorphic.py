"""Changes that preserve the behavior of a program preserve its findings."""

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
from samples import sample
from transformations import NOISE, TRANSFORMATIONS, noisy

from pytest_amp_check.protocol.rule import RUNTIME
from pytest_amp_check.protocol.rules import RULES

FIXTURES = Path(__file__).parents[2] / "fixtures"
#: Every whole trainer, deprecated code, and each eighth of the other small scripts, all in an exhaustive run.
SAMPLE = [
    *sorted(FIXTURES.glob("trainers/*.py")),
    *sorted(FIXTURES.glob("migration/*_bad.py")),
    *sample(sorted(FIXTURES.glob("[!mt]*/*.py")), 8),
    FIXTURES / "headline.py",
]


def programs() -> Iterator[tuple[str, str]]:
    for code, rule in RULES.items():
        # Comments and broken syntax do not survive a tree. An unanalyzed call is not a mistake.
        if rule.detected_by != RUNTIME and code not in ("AMP902", "AMP903", "AMP904"):
            yield f"{code}-bad", rule.bad_example
            yield f"{code}-good", rule.good_example
    for script in SAMPLE:
        yield script.relative_to(FIXTURES).as_posix(), script.read_text(encoding="utf-8")


PROGRAMS = dict(programs())

#: A scheduler is not checked if it moves in another function than the scaler's step, or under another name: it may be
#: an epoch's scheduler. The set may only shrink.
NOT_FOLLOWED = {
    (program, name)
    for program in (
        "AMP403-bad",
        "checkpoint/scheduler_cadence_bad.py",
        "checkpoint/scheduler_cadence_micro_batch_bad.py",
    )
    for name in ("bound methods", "through functions", "through lambdas")
}
#: A class that shards its module and steps the scaler is reported at the scaler's construction as well.
NOT_FOLLOWED |= {("AMP602-bad", name) for name in ("in a method", "in attributes")}
#: A hook that the analysis does not see under these names.
NOT_FOLLOWED.add(("scaling/scaled_grad_touched_hook_bad.py", "misnamed"))
#: Transformations that can follow one another in any order.
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
    """A transformation changes no finding of any program; a failure names every program that differs.

    One test covers many programs, because there are thousands of pairs: an 18th of the rules' examples and a 26th of
    the fixtures, with others in the next transformation.
    """
    wrong: list[str] = []
    offset = list(TRANSFORMATIONS).index(name)
    fixtures = [program for program in PROGRAMS if program.endswith(".py")]
    examples = [program for program in PROGRAMS if not program.endswith(".py")]
    for program in [*sample(examples, 18, offset), *sample(fixtures, 26, offset)]:
        source = PROGRAMS[program]
        if (program, name) in NOT_FOLLOWED:
            continue
        found, text = found_in(TRANSFORMATIONS[name](ast.parse(source)))
        if found != marks(source):
            missing, extra = sorted(marks(source) - found), sorted(found - marks(source))
            wrong.append(f"{program}: missing {missing}, extra {extra}\n{text if not wrong else ''}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.exhaustive
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), program=st.sampled_from(sorted(set(PROGRAMS) - {p for p, _ in NOT_FOLLOWED})))
def test_no_mixture_of_transformations_changes_a_finding(data: st.DataObject, program: str) -> None:
    """Two successive transformations, and statements without effect at random positions, change no finding."""
    source = PROGRAMS[program]
    tree = ast.parse(source)
    names = data.draw(st.lists(st.sampled_from(MIXABLE), min_size=1, max_size=2, unique=True))
    for name in names:
        tree = TRANSFORMATIONS[name](tree)
    tree = noisy(tree, lambda: data.draw(st.none() | st.integers(0, len(NOISE) - 1)))
    found, text = found_in(tree)
    assert found == marks(source), f"{program}: {names}\n{text}"
