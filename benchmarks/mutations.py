"""Detection rate of the linter: every mistake in every correct fixture in every variant.

``python benchmarks/mutations.py [SHARE]`` checks a share of the mutants, always the same. Programs of two files are
counted separately.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from trials import Tally, programs, trials  # noqa: E402
from variants import ACROSS_FILES, VARIANTS, Variant  # noqa: E402


def tallied(variants: Mapping[str, Variant], share: float, *, mistakes: bool) -> Tally:
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        for trial in trials(programs(), variants, share=share, mistakes=mistakes):
            tally.take(trial, Path(folder))
    return tally


def main() -> None:
    share = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    for title, variants in (("in one file", VARIANTS), ("in two files", ACROSS_FILES)):
        for what, mistakes in (("without a mistake", False), ("with a mistake", True)):
            start = time.perf_counter()
            tally = tallied(variants, share if mistakes else 1.0, mistakes=mistakes)
            print(f"== {title}, {what}: {time.perf_counter() - start:.0f} s")
            print(tally)


if __name__ == "__main__":
    main()
