"""The time limit of the suite: a hanging test fails by name, and the following tests run in the same process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import os, threading, time
import pytest

before = os.getpid()

@pytest.mark.timeout(0.5)
def test_that_hangs():
    threading.Event().wait()

def test_after_it():
    assert os.getpid() == before
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGALRM: pytest-timeout ends the process there")
def test_a_test_that_hangs_is_named_and_the_run_goes_on(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    assert float(pytestconfig.getini("timeout")) >= 900
    (tmp_path / "test_some.py").write_text(TESTS, encoding="utf-8")
    flags = ["-p", "no:cacheprovider", "-rA", "-o", f"timeout_method={pytestconfig.getini('timeout_method')}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *flags, "test_some.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "FAILED test_some.py::test_that_hangs" in done.stdout
    assert "PASSED test_some.py::test_after_it" in done.stdout
