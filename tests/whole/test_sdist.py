"""The source distribution contains the files that its own tests read."""

from __future__ import annotations

import re
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
#: Files that hatchling adds itself.
ADDED = {"LICENSE", "README.md", "pyproject.toml"}


def test_what_the_tests_read_is_in_the_source_distribution() -> None:
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
    assert {"action", ".pre-commit-hooks.yaml"} <= read
    assert read <= included | ADDED
    assert [name for name in sorted(included) if not (ROOT / name).exists()] == []
