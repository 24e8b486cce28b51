"""The scripts in benchmarks, for the tests of what they say."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def benchmark(name: str) -> dict[str, Any]:
    """What a script defines; it finds those beside it while it is read, as when it is run."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return runpy.run_path(str(BENCHMARKS / f"{name}.py"))
    finally:
        sys.path.remove(str(BENCHMARKS))
