"""A module that its table does not list ends everything with a sentence that says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_amp_check.protocol import registration
from pytest_amp_check.protocol.frameworks import Engine
from pytest_amp_check.protocol.registration import NotRegistered, incomplete_tables, require_listed

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a source checkout with two modules, one of them in a folder."""
    package = tmp_path / "pytest_amp_check"
    (package / "rules" / "scaling").mkdir(parents=True)
    (package / "rules" / "__pycache__").mkdir()
    for name in ("__init__", "first", "scaling/__init__", "scaling/second"):
        (package / "rules" / f"{name}.py").write_text("RULE = 1\n", encoding="utf-8")
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(registration, "_PACKAGE", str(package))
    return tmp_path


def test_all_modules_are_listed(checkout: Path) -> None:
    require_listed("rules", ["first", "scaling/second"], "list it", marker="RULE")


def test_a_module_that_is_not_listed_is_named(checkout: Path) -> None:
    with pytest.raises(NotRegistered, match=r"^pytest_amp_check/rules/scaling/second\.py is not registered: list it$"):
        require_listed("rules", ["first"], "list it", marker="RULE")


def test_a_module_without_the_marker_needs_no_row(checkout: Path) -> None:
    require_listed("rules", [], "list it", marker="ROW")


def test_an_installed_package_is_not_searched(checkout: Path) -> None:
    (checkout / "pyproject.toml").unlink()
    require_listed("rules", [], "list it", marker="RULE")


def test_who_writes_the_table_may_lack_rows_until_it_is_written(checkout: Path) -> None:
    with incomplete_tables():
        require_listed("rules", [], "list it", marker="RULE")
    with pytest.raises(NotRegistered):
        require_listed("rules", [], "list it", marker="RULE")


#: A new module of a folder with a table, the first module that reads the table, and what the sentence says to do.
ADDED = [
    ("static/libraries", "def register(handlers):\n    pass", "static.entry_points", "add the module to LIBRARIES"),
    (
        "runtime/record/listeners",
        "from .listener import Listener\n\nclass Mine(Listener):\n    pass",
        "runtime.record.recorder",
        "create its listener in Recorder",
    ),
    ("runtime/record/patches", "def patches():\n    return []", "runtime.record.attach", "add the module to TABLES"),
]


@pytest.mark.long
def test_a_new_module_of_a_folder_with_a_table_is_never_silent(tmp_path: Path) -> None:
    """One process for all folders, which loads and compiles their common modules once. A failure names the folder."""
    shutil.copytree(ROOT / "pytest_amp_check", tmp_path / "pytest_amp_check", ignore=shutil.ignore_patterns("*.pyc"))
    (tmp_path / "pyproject.toml").touch()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    code = (
        f"import importlib, os, sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        f"for folder, text, reader, _ in {ADDED!r}:\n"
        "    added = f'pytest_amp_check/{folder}/added.py'\n"
        "    with open(added, 'w') as file:\n"
        "        file.write(f'\\n{text}\\n')\n"
        "    try:\n"
        "        importlib.import_module(f'pytest_amp_check.{reader}')\n"
        "        print(f'{reader} is silent')\n"
        "    except Exception as error:\n"
        "        print(error)\n"
        "    os.remove(added)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True)
    for line, (folder, _, _, remedy) in zip(done.stdout.splitlines(), ADDED, strict=True):
        assert line.startswith(f"pytest_amp_check/{folder}/added.py is not registered: {remedy}")


def test_a_method_of_an_engine_has_a_known_effect() -> None:
    with pytest.raises(ValueError, match="unscales: no such effect"):
        Engine({"unscale_gradients": "unscales"})


@pytest.mark.parametrize(
    ("module", "source", "says"),
    [
        ("protocol/rules/scaling/new_rule.py", "\nRULE = Rule(\n", "run python benchmarks/readme.py"),
        ("static/libraries/new_model.py", "\ndef register(handlers: HandlerTable) -> None: ...\n", "LIBRARIES"),
    ],
)
def test_the_command_says_what_is_to_be_done(module: str, source: str, says: str, tmp_path: Path) -> None:
    package = tmp_path / "pytest_amp_check"
    for path in (ROOT / "pytest_amp_check").rglob("*.py"):
        copied = package / path.relative_to(ROOT / "pytest_amp_check")
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.symlink_to(path)
    (tmp_path / "pyproject.toml").touch()
    (package / module).write_text(source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest_amp_check", "check", "--no-cache", str(ROOT / "fixtures" / "headline.py")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert f"pytest_amp_check/{module} is not registered" in done.stderr
    assert says in done.stderr
