"""Programs that tests execute under the recorder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from marks import marks, places, shown

from pytest_amp_check import record
from pytest_amp_check.runtime.run import Run


def run_program(source: str, path: Path, *, names: dict[str, Any] | None = None, **options: Any) -> Run:
    """Record a program. Check that the findings are at the lines that the source marks with codes.

    ``names``: variables that the program finds. ``options``: arguments of ``record``.
    """
    path.write_text(source, encoding="utf-8")
    with record(**options) as run:
        exec(compile(source, str(path), "exec"), {"__name__": "__main__", **(names or {})})  # noqa: S102 - our own programs
    assert run.failure is None, repr(run.failure)
    assert places(run.findings) == marks(source, "runtime"), shown(run.findings)
    return run
