"""Trials of the mutation test: a mistake in a rewritten program, and a check that the linter finds the mistake."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from marks import MISTAKES
from mutants import Mutant, mutants
from rewriting import NEW, written

from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.static.engine import check_paths, check_source
from pytest_amp_check.static.settings import Settings

#: Settings with all rules, because the marks include rules that are off by default.
EVERYTHING = Settings(select=MISTAKES)

if TYPE_CHECKING:
    from marks import Places
    from variants import Trees, Variant

FIXTURES = Path(__file__).parents[2] / "fixtures"
#: The operator name of a program without a mistake.
NONE = "nothing"


def programs() -> dict[str, str]:
    """Return the fixture scripts that train and carry no marks."""
    sources = {
        path.relative_to(FIXTURES).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(FIXTURES.rglob("*.py"))
    }
    return {
        name: text for name, text in sources.items() if "backward" in text and not re.search(r"# .*\bAMP\d{3}\b", text)
    }


class Trial(NamedTuple):
    """A mutant of a program in one variant, and the exact findings expected in it."""

    program: str
    operator: str
    variant: str
    trees: Trees
    expected: Places

    def found(self, folder: Path) -> Places:
        """Return the linter's findings by line of the mutated program. Write programs of two files to a folder."""
        texts: dict[str, str] = {}
        origins: dict[str, dict[tuple[int, int], int]] = {}
        for file, tree in self.trees.items():
            texts[file], origins[file] = written(tree)
        if len(texts) == 1:
            (file,) = texts
            return {
                (_line(finding, origins[file]), finding.code) for finding in check_source(texts[file], file, EVERYTHING)
            }
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8")
        findings = check_paths([str(folder)], EVERYTHING).findings
        places = {(_line(finding, origins[Path(finding.filename).name]), finding.code) for finding in findings}
        return {self._inside(*place) if place[0] < NEW else place for place in places}

    def _inside(self, call: int, code: str) -> tuple[int, str]:
        """Return the expected location of a finding at the call of a function in another file.

        Both locations may be correct.
        """
        lines = sorted(line for line, expected in self.expected if expected == code and line >= -call)
        return (lines[0], code) if lines else (call, code)


def _line(finding: Finding, origin: Mapping[tuple[int, int], int]) -> int:
    return origin.get((finding.line, finding.site.column), NEW)


def trials(
    sources: Mapping[str, str], variants: Mapping[str, Variant], *, share: float = 1.0, mistakes: bool = True
) -> Iterator[Trial]:
    """Yield the mutants of programs in all variants, or a fixed random share of the mutants.

    Without ``mistakes``, yield the programs themselves.
    """
    chance = Random(0)  # noqa: S311 - the same trials each time
    for program, source in sources.items():
        for mutant in mutants_of(source) if mistakes else [Mutant(NONE, ast.parse(source), lambda twin: None, set())]:
            for name, variant in variants.items():
                if chance.random() < share:
                    trees = variant(mutant.tree())
                    if trees is not None:
                        yield Trial(program, mutant.operator, name, trees, mutant.expected)


@functools.cache
def mutants_of(source: str) -> list[Mutant]:
    """Return all mutants of a program. Each mutant makes its own tree, so that several tests can share the mutants."""
    return list(mutants(ast.parse(source)))


class Tally:
    """Counts of all trials and of correct trials, by operator and by variant."""

    def __init__(self) -> None:
        self.made: Counter[tuple[str, str]] = Counter()
        self.right: Counter[tuple[str, str]] = Counter()
        self.wrong: list[str] = []

    def take(self, trial: Trial, folder: Path) -> None:
        found = trial.found(folder)
        self.made[trial.operator, trial.variant] += 1
        if found == trial.expected:
            self.right[trial.operator, trial.variant] += 1
            return
        missing, extra = sorted(trial.expected - found), sorted(found - trial.expected)
        self.wrong.append(f"{trial.program}: {trial.operator}, {trial.variant}: missing {missing}, extra {extra}")

    def rates(self, by: int) -> dict[str, tuple[int, int]]:
        """Return the correct and the total trials of each operator (``by=0``) or each variant (``by=1``)."""
        made: Counter[str] = Counter()
        right: Counter[str] = Counter()
        for pair, count in self.made.items():
            made[pair[by]] += count
            right[pair[by]] += self.right[pair]
        return {name: (right[name], made[name]) for name in made}

    @property
    def rate(self) -> float:
        return self.right.total() / max(1, self.made.total())

    def lowest(self, by: int, least: int = 1) -> float:
        """Return the lowest correct share among the groups with at least ``least`` trials."""
        return min((right / made for right, made in self.rates(by).values() if made >= least), default=0.0)

    def __str__(self) -> str:
        """Return a table of correct and total trials, and the failures."""
        rows = [("operator", *row) for row in _rows(self.rates(0))] + [
            ("variant", *row) for row in _rows(self.rates(1))
        ]
        rows.append(("", "all", self.right.total(), self.made.total()))
        lines = [f"{kind:9}{name:36}{right:6} of {made:6}  {right / made:7.1%}" for kind, name, right, made in rows]
        return "\n".join([*lines, *self.wrong])


def _rows(rates: Mapping[str, tuple[int, int]]) -> list[tuple[str, int, int]]:
    return [(name, right, made) for name, (right, made) in rates.items()]
