"""Plugin of pytest, ``-p gpu.reporter``, that writes a row for each finished test."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

#: The environment variables with the path of the file, and with the flag of a dry run.
ROWS, DRY = "AMP_CHECK_GPU_ROWS", "AMP_CHECK_GPU_DRY"
#: Reason why a test that is marked ``gpu`` is skipped without a GPU. On a GPU, a test may lack a package, and is then
#: named. In a dry run, only this reason is accepted, because another reason would hide that the test also needs a GPU.
NO_GPU = "needs a CUDA device"
#: Characters of a failure that are kept, from its end, which is the most informative part.
KEPT = 1500


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" and report.passed:
        return
    row = {"kind": "test", "what": report.nodeid, "agrees": report.passed, "outcome": report.outcome}
    if report.skipped:
        reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
        dry = bool(os.environ.get(DRY))
        kind = "test" if dry or reason == NO_GPU else "not run"
        row |= {"kind": kind, "outcome": f"skipped: {reason}", "agrees": dry and reason == NO_GPU}
    elif report.failed:
        row["outcome"] = f"failed: {report.longreprtext[-KEPT:]}"
    with Path(os.environ[ROWS]).open("a", encoding="utf-8") as rows:
        rows.write(json.dumps(row) + "\n")
