"""Other tools that run amp-check."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

FLAKE8 = (sys.executable, "-m", "flake8")


def flake8(*argv: str, stdin: str | None = None, command: Sequence[str] = FLAKE8) -> subprocess.CompletedProcess[str]:
    """Run flake8 in this folder with the installed plugin, or else with the plugin as declared in pyproject.toml."""
    pytest.importorskip("flake8")
    plugins = ""
    if not importlib.metadata.entry_points(group="flake8.extension", name="AMP"):
        plugins = "[flake8:local-plugins]\nextension =\n    AMP = pytest_amp_check.frontends.flake8:Plugin\n"
    config = Path("flake8.ini")
    config.write_text(f"[flake8]\n{plugins}", encoding="utf-8")
    whole = [*command, "--config", str(config), *argv]
    return subprocess.run(whole, capture_output=True, encoding="utf-8", input=stdin, check=False)


def console_script(path: Path, entry: str = "pytest_amp_check.__main__:run", before: str = "") -> Path:
    """Write a command as installers do: a script whose own folder comes first in Python's search path.

    ``before`` is code to run before the function named by ``entry``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    module, _, function = entry.partition(":")
    path.write_text(
        f"#!{sys.executable}\nimport sys\n{before}\nfrom {module} import {function}\n\n"
        f'if __name__ == "__main__":\n    sys.exit({function}())\n',
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path
