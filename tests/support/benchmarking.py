"""Access to the scripts in benchmarks/ for tests of their output."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def benchmark(name: str) -> dict[str, Any]:
    """Run a benchmark script and return the globals. The script can import the modules beside it."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return runpy.run_path(str(BENCHMARKS / f"{name}.py"))
    finally:
        sys.path.remove(str(BENCHMARKS))
