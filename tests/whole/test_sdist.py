"""The source distribution contains the files that its own tests read."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent


def test_what_the_tests_read_is_in_the_source_distribution(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = {name.strip("/") for name in declared["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]}
    read = {
        name
        for path in TESTS.rglob("*.py")
        for name in re.findall(r'ROOT / "([^"/]+)', path.read_text(encoding="utf-8"))
        if (ROOT / name).exists()
    }
    assert {"action", ".pre-commit-hooks.yaml", "LICENSE", "README.md", "pyproject.toml"} <= read
    # Built, because hatchling adds some files itself, but no readme that a hook provides.
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    (built,) = tmp_path.iterdir()
    with tarfile.open(built) as packed:
        packaged = {name.split("/")[1] for name in packed.getnames()}
    assert sorted(read - packaged) == []
    assert [name for name in sorted(included) if not (ROOT / name).exists()] == []
