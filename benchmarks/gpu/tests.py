"""Every test that is marked ``gpu``, one row each. In a dry run, all tests must be skipped for the same reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gpu.reporter import DRY, ROWS
from gpu.results import Row

ROOT = Path(__file__).resolve().parents[2]
#: Seconds between two checks of pytest's output.
PAUSE = 0.2


def rows(*, dry: bool) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as scratch:
        written = Path(scratch, "rows")
        written.touch()
        environment = os.environ | {
            ROWS: str(written),
            DRY: "1" if dry else "",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]),
        }
        # A warning of another torch version is not a failure.
        more = ["-m", "gpu", "-p", "gpu.reporter", "-p", "no:cacheprovider", "-q", "-W", "default"]
        command = [sys.executable, "-m", "pytest", *more, "--basetemp", str(Path(scratch, "tests"))]
        process = subprocess.Popen(command, cwd=ROOT, env=environment)
        rest = ""
        with written.open(encoding="utf-8") as made:
            while True:
                over = process.poll() is not None
                *lines, rest = (rest + made.read()).split("\n")
                yield from map(json.loads, lines)
                if over:
                    break
                time.sleep(PAUSE)
        # Each failure has a row. Any other code means that the tests could not run.
        if process.returncode not in (0, 1):
            raise SystemExit(f"pytest ended with {process.returncode}")
