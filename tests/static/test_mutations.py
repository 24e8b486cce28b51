"""Mistakes in correct programs are found at the correct line, in every restructured variant of the programs."""

from __future__ import annotations

import ast
import contextlib
import io
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from random import Random

import pytest
import torch
from mutants import OPERATORS
from rewriting import copied, written
from samples import EXHAUSTIVE
from trials import Tally, Trial, mutants_of, programs, trials
from variants import ACROSS_FILES, MAIN, VARIANTS

PROGRAMS = programs()
#: Required detection rate of all mistakes together, and of each kind and each variant.
ALL, EACH = 0.95, 0.85
#: Minimum mutants of each operator, about nine tenths of the current number, so that no operator stops working.
ENOUGH = {
    "drop unscale_": 40,
    "clip above unscale_": 40,
    "backward into autocast": 150,
    "step into autocast": 100,
    "loss out of autocast": 5,
    "optimizer.step()": 150,
    "loss not scaled": 140,
    "drop update": 140,
    "scaler into loop": 70,
    "drop division": 22,
    "drop scaler's state": 12,
    "drop zero_grad": 100,
}
AS_IT_IS = {"as it is": VARIANTS["as it is"]}
#: Variants that print more, or other names.
PRINTS_DIFFER = {"renamed", "misnamed", "tried"}
#: Minimum trials of a kind for the required rate of each kind, because a single trial of fewer would weigh too much.
FEW = 12


def share(part: float) -> float:
    return 1.0 if EXHAUSTIVE else part


def tallied(made: Iterable[Trial], folder: Path) -> Tally:
    tally = Tally()
    for trial in made:
        tally.take(trial, folder)
    return tally


def test_every_operator_makes_enough_mutants() -> None:
    made = Counter(mutant.operator for source in PROGRAMS.values() for mutant in mutants_of(source))
    assert set(ENOUGH) == set(OPERATORS)
    assert all(made[operator] >= least for operator, least in ENOUGH.items()), made


@pytest.mark.long
def test_mutants_are_found(tmp_path: Path) -> None:
    """A fixed share of the mutants, in unchanged programs, is found. The benchmark checks all mutants."""
    tally = tallied(trials(PROGRAMS, AS_IT_IS, share=share(0.07)), tmp_path)
    assert tally.rate >= ALL, f"\n{tally}"
    assert tally.lowest(0, least=FEW) >= EACH, f"\n{tally}"


@pytest.mark.long
@pytest.mark.exhaustive
def test_mutants_are_found_in_every_variant(tmp_path: Path) -> None:
    """A fixed share of the mutants in a share of the variants is found. The benchmark checks all mutants."""
    tally = tallied(trials(PROGRAMS, VARIANTS, share=share(0.008)), tmp_path)
    assert tally.rate >= ALL, f"\n{tally}"
    assert min(tally.lowest(0, least=FEW), tally.lowest(1, least=FEW)) >= EACH, f"\n{tally}"


@pytest.mark.long
@pytest.mark.exhaustive
def test_variants_without_a_mistake_are_silent(tmp_path: Path) -> None:
    """A quarter of the whole trainers and a share of the other programs have no findings in any variant."""
    trainers = {name: text for name, text in PROGRAMS.items() if name.startswith("trainers")}
    others = {name: text for name, text in PROGRAMS.items() if name not in trainers}
    made = chain(
        trials(trainers, VARIANTS, share=share(0.25), mistakes=False),
        trials(others, VARIANTS, share=share(0.05), mistakes=False),
    )
    tally = tallied(made, tmp_path)
    assert set(tally.rates(1)) == set(VARIANTS), f"\n{tally}"
    assert tally.rate == 1.0, f"\n{tally}"


@pytest.mark.long
@pytest.mark.exhaustive
def test_mutants_are_found_across_files(tmp_path: Path) -> None:
    tally = tallied(trials(PROGRAMS, ACROSS_FILES, share=share(0.014)), tmp_path)
    assert set(tally.rates(1)) == set(ACROSS_FILES), f"\n{tally}"
    assert tally.rate >= ALL, f"\n{tally}"


@pytest.mark.long
@pytest.mark.exhaustive
def test_variants_of_two_files_without_a_mistake_are_silent(tmp_path: Path) -> None:
    tally = tallied(trials(PROGRAMS, ACROSS_FILES, share=share(0.07), mistakes=False), tmp_path)
    assert set(tally.rates(1)) == set(ACROSS_FILES), f"\n{tally}"
    assert tally.rate == 1.0, f"\n{tally}"


# The mutants and variants themselves.


def printed(texts: dict[str, str], folder: Path) -> str:
    """Return the output of a program of one or two files."""
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    others = [Path(file).stem for file in texts if file != MAIN]
    output = io.StringIO()
    sys.path.insert(0, str(folder))
    try:
        with contextlib.redirect_stdout(output):
            torch.manual_seed(0)
            exec(compile(texts[MAIN], MAIN, "exec"), {"__name__": "__main__"})  # noqa: S102 - our own fixtures
    finally:
        sys.path.remove(str(folder))
        for other in others:
            sys.modules.pop(other, None)
    return output.getvalue()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A separate folder, arguments and random state for a program."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [MAIN])
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


@pytest.mark.exhaustive(every=6)
@pytest.mark.parametrize("name", [name for name in [*VARIANTS, *ACROSS_FILES] if name not in PRINTS_DIFFER])
def test_a_variant_does_what_the_program_does(name: str, alone: Path) -> None:
    """For each variant, two randomly drawn programs print the same before and after."""
    fitting = []
    order = [program for program in PROGRAMS if program.startswith(("trainers", "accumulation", "scaling"))]
    Random(name).shuffle(order)  # noqa: S311 - the same programs each time
    for program in order:
        tree = ast.parse(PROGRAMS[program])
        trees = {**VARIANTS, **ACROSS_FILES}[name](copied(tree))
        if trees is not None:
            fitting.append((program, trees))
        if len(fitting) == 2:
            break
    assert fitting
    for program, trees in fitting:
        texts = {file: written(tree)[0] for file, tree in trees.items()}
        assert printed(texts, alone) == printed({MAIN: PROGRAMS[program]}, alone), f"{program}\n{texts}"
