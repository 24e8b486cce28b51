"""Agreement of analyzer and recorder on programs from the tests' grammar.

``python benchmarks/generated.py [N] [SEED]`` checks N programs; each seed gives other programs. For each kind of
disagreement, the shortest program is printed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from agreement import verdict  # noqa: E402
from grammar import programs  # noqa: E402


def generated(count: int, number: int) -> list[str]:
    """Generate ``count`` different programs."""
    made: dict[str, None] = {}

    @seed(number)
    @settings(
        max_examples=2 * count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs())
    def take(source: str) -> None:
        if len(made) < count:
            made.setdefault(source)

    take()
    return list(made)


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    number = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    start = time.perf_counter()
    shortest: dict[str, tuple[str, str]] = {}
    tally = {"agree": 0, "disagree": 0, "with a finding": 0, "raised": 0}
    with tempfile.TemporaryDirectory() as folder:
        for source in generated(count, number):
            checked = verdict(source, Path(folder) / "generated.py")
            reported = checked.disagreements()
            tally["disagree" if reported else "agree"] += 1
            tally["with a finding"] += bool(checked.run.findings)
            tally["raised"] += checked.run.error is not None
            for line in reported:
                kind = " ".join(word for word in line.split()[:5] if not word.isdigit())
                if kind not in shortest or len(source) < len(shortest[kind][1]):
                    shortest[kind] = (line, source)
    for line, source in shortest.values():
        print(f"== {line}\n{source}")
    print(", ".join(f"{number} {what}" for what, number in tally.items()), f"in {time.perf_counter() - start:.0f} s")
    return 1 if shortest else 0


if __name__ == "__main__":
    sys.exit(main())
