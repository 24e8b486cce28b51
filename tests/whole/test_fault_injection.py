"""A part of benchmarks/fault_injection.py: signals at random moments, and missing resources."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarking import benchmark

SCRIPT = benchmark("fault_injection")
#: Kinds of trials. The others need seconds to load torch, or more trials for a result.
KINDS = ["check, SIGTERM", "fix, SIGINT", "fix, SIGKILL", "full disk"]


@pytest.mark.long
@pytest.mark.exhaustive
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked for in /proc, disks are mounted")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_is_whole(kind: str) -> None:
    outcome = SCRIPT["tried"](kind, seed=0, trials=1)
    if not outcome.trials:
        pytest.skip("no file system can be mounted here")
    assert outcome.failures == []
    assert outcome.trials == 1


def test_a_damaged_project_is_detected(tmp_path: Path) -> None:
    """The checks of a trial detect incomplete files, other modes and leftover files."""
    folder = SCRIPT["project"](tmp_path / "project", 3)
    outcome = SCRIPT["Outcome"]()
    SCRIPT["look"](folder, outcome, "before")
    assert outcome.failures == []
    (folder / "src/train_00.py").write_text("import tor")
    (folder / "src/train_01.py").chmod(0o600)
    (folder / "src/.amp-check-1-0").write_text("")
    SCRIPT["look"](folder, outcome, "after")
    assert outcome.failures == [
        "after: .amp-check-1-0 was left beside the sources",
        "after: train_00.py is no longer whole",
        "after: train_01.py has another mode",
    ]
