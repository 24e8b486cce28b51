"""The VS Code extension: its tests under node, its package, and what it declares."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import pytest_amp_check

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "editors" / "vscode"
MANIFEST: dict[str, Any] = json.loads((FOLDER / "package.json").read_text(encoding="utf-8"))
SETTINGS: dict[str, Any] = MANIFEST["contributes"]["configuration"]["properties"]
needs_node = pytest.mark.skipif(
    shutil.which("npm") is None or not (FOLDER / "node_modules" / "esbuild").is_dir(),
    reason="needs `npm ci` in editors/vscode",
)


def run_script(name: str, *arguments: str, **variables: str) -> str:
    """Run a script of package.json and return its output."""
    done = subprocess.run(
        [shutil.which("npm") or "npm", "run", "--silent", name, "--", *arguments],
        cwd=FOLDER,
        env={**os.environ, **variables},
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_node
@pytest.mark.long
def test_the_tests_of_the_extension_pass_with_this_server() -> None:
    pytest.importorskip("pygls")
    run_script("types")
    command = json.dumps([sys.executable, "-m", "pytest_amp_check"])
    output = run_script("test", AMP_CHECK=command)
    # The first character depends on the version of node.
    figures = {name: int(value) for name, value in re.findall(r"^. (\w+) (\d+)$", output, re.MULTILINE)}
    assert figures["pass"] > 20
    assert (figures["fail"], figures["skipped"]) == (0, 0)


@needs_node
@pytest.mark.long
def test_the_package_has_the_bundle_and_no_other_code(tmp_path: Path) -> None:
    package = tmp_path / "amp-check.vsix"
    run_script("package", str(package))
    with zipfile.ZipFile(package) as packed:
        assert sorted(packed.namelist()) == [
            "[Content_Types].xml",
            "extension.vsixmanifest",
            "extension/LICENSE.txt",
            "extension/changelog.md",
            "extension/dist/extension.js",
            "extension/dist/licenses.txt",
            "extension/package.json",
            "extension/readme.md",
        ]
        declared = json.loads(packed.read("extension/package.json"))
        bundle = packed.read("extension/dist/extension.js").decode()
        licenses = packed.read("extension/dist/licenses.txt").decode()
        assert packed.read("extension/LICENSE.txt") == (ROOT / "LICENSE").read_bytes()
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (repository,) = re.findall(r'^Repository = "(.*)"$', project, re.MULTILINE)
    assert declared["repository"]["url"] == f"{repository}.git"
    assert declared["main"] == "./dist/extension.js"
    # VS Code has this module alone, and node its own.
    required = set(re.findall(r'\brequire\("([^"]+)"\)', bundle))
    assert "vscode" in required
    modules = json.loads(
        subprocess.check_output(["node", "-p", "JSON.stringify(require('module').builtinModules)"], encoding="utf-8")
    )
    assert {name.removeprefix("node:") for name in required} - {"vscode"} <= set(modules)
    assert re.search(r"^vscode-languageclient \d", licenses, re.MULTILINE)
    assert package.stat().st_size < 200_000


def test_the_extension_has_the_version_of_the_package() -> None:
    assert MANIFEST["version"] == pytest_amp_check.__version__
    locked = json.loads((FOLDER / "package-lock.json").read_text(encoding="utf-8"))
    assert locked["packages"][""]["version"] == pytest_amp_check.__version__
    changes = (FOLDER / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {pytest_amp_check.__version__}\n" in changes


def test_the_locked_packages_name_no_address() -> None:
    """Another registry than the one in use would otherwise be asked for them."""
    assert '"resolved"' not in (FOLDER / "package-lock.json").read_text(encoding="utf-8")


def test_the_readme_has_all_settings_and_commands() -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^\| `(amp-check\.[\w.]+)` \| (.+?) \|", readme, re.MULTILINE))
    defaults = {name: json.dumps(declared["default"]).strip('"') for name, declared in SETTINGS.items()}
    assert {name: text.strip("`") for name, text in shown.items()} == {
        name: default or "empty" for name, default in defaults.items()
    }
    for command in MANIFEST["contributes"]["commands"]:
        assert f"`{command['category']}: {command['title']}`" in readme


def test_a_folder_that_is_not_trusted_chooses_no_command() -> None:
    restricted = MANIFEST["capabilities"]["untrustedWorkspaces"]["restrictedConfigurations"]
    assert {"amp-check.path", "amp-check.arguments"} <= set(restricted) <= set(SETTINGS)


def test_the_extension_starts_for_the_languages_of_the_server() -> None:
    source = (FOLDER / "src" / "extension.ts").read_text(encoding="utf-8")
    languages = set(re.findall(r'\blanguage: "(\w+)"', source))
    assert languages == {"python"}
    assert MANIFEST["activationEvents"] == [f"onLanguage:{language}" for language in sorted(languages)]
