"""The rehearsal of a release: it builds and tries what a release publishes, and fails where a release would."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from benchmarking import benchmark

pytest.importorskip("hatchling")
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "rehearse.py"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not ROOT.joinpath(".git").exists(), reason="needs the repository"),
]


@pytest.mark.exhaustive
def test_a_release_is_built_and_tried(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, str(SCRIPT), "--into", str(tmp_path / "dist")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    made = {path.suffix: path for path in (tmp_path / "dist").iterdir()}
    built = {".vsix"} if (ROOT / "editors" / "vscode" / "node_modules").is_dir() else set()
    assert set(made) == {".whl", ".gz", ""} | built
    wheel, site = made[".whl"], made[""]
    assert site.name == "site"
    with zipfile.ZipFile(wheel) as packed:
        assert "pytest_amp_check/monitors/lightning.py" in packed.namelist()
    assert (site / "rules" / "AMP201" / "index.html").is_file()
    # Files of an earlier release are not mixed with new ones.
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60)
    assert done.returncode == 2
    assert "is not empty" in done.stderr


@pytest.mark.exhaustive
def test_a_tag_of_another_version_is_refused(tmp_path: Path) -> None:
    script = benchmark("rehearse")
    with pytest.raises(script["Failed"], match=r"^the tag v9.9.9 is not v\d+\.\d+\.\d+, the version of the package$"):
        script["rehearse"]("HEAD", "v9.9.9", tmp_path)


def test_a_tag_that_does_not_exist_is_named(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "v9.9.9", "--into", str(tmp_path / "dist")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("The rehearsal failed: `git archive")
    assert "v9.9.9" in done.stderr


def test_a_wheel_with_other_files_is_refused(tmp_path: Path) -> None:
    script = benchmark("rehearse")
    for name, files in {"one.whl": ("a", "b"), "other.whl": ("a", "c")}.items():
        with zipfile.ZipFile(tmp_path / name, "w") as packed:
            for file in files:
                packed.writestr(file, file)
    with pytest.raises(script["Failed"], match=r"differs from the wheel of the tree in b, c$"):
        script["compare_wheels"](tmp_path / "one.whl", tmp_path / "other.whl")
