"""Other tools that run this one."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest


def flake8(*argv: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """A run of flake8 in this folder, with the plugin as it is installed, or else as pyproject.toml declares it."""
    pytest.importorskip("flake8")
    plugins = ""
    if not importlib.metadata.entry_points(group="flake8.extension", name="AMP"):
        plugins = "[flake8:local-plugins]\nextension =\n    AMP = pytest_amp_check.faces.flake8:Plugin\n"
    config = Path("flake8.ini")
    config.write_text(f"[flake8]\n{plugins}", encoding="utf-8")
    command = [sys.executable, "-m", "flake8", "--config", str(config), *argv]
    return subprocess.run(command, capture_output=True, encoding="utf-8", input=stdin, check=False)
