"""The GPU benchmark without a GPU: all parts work in a dry run, and a broken feature makes the run fail by name."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarking import BENCHMARKS, benchmark
from warm import RECORDER, TORCH, run_module, run_python

torch = pytest.importorskip("torch")

ROOT = BENCHMARKS.parent
KIT = benchmark("on_gpu")
CLAIMS = {claim.name: claim for claim in KIT["CLAIMS"]}
#: Claims of each part that a machine without a GPU can decide, except for the two parts of the first test.
WITHOUT_A_GPU = {
    "tests": ["gpu-tests"],
    "training": ["training-findings", "training-dtypes", "training-skips", "training-losses"],
    "memory": ["memory-estimated", "memory-measured"],
    "cost": ["recording-does-not-wait", "recording-holds-nothing"],
    "harm": ["harm-on-cuda"],
}
no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="the kit would start for real")


def run(*flags: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run the command as in a checkout."""
    script, loaded = str(root / "benchmarks" / "on_gpu.py"), RECORDER if root == ROOT else TORCH
    return run_python(script, *flags, cwd=ROOT, env=os.environ, warm_children=True, loaded=loaded)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of the files that the benchmark needs, to be changed."""
    for name in ("benchmarks", "pytest_amp_check", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "results", "silent"))
    return tmp_path


def change(path: Path, before: str, after: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")


@pytest.mark.long
@pytest.mark.exhaustive
def test_a_dry_run_writes_rows_and_verdicts(tmp_path: Path) -> None:
    done = run("--dry-run", "--only", "dtypes,speed", "--results", str(tmp_path))
    assert done.returncode == 0, done.stderr
    version = torch.__version__.partition("+")[0]
    whole = json.loads((tmp_path / f"gpu-dry-run-torch{version}.json").read_text(encoding="utf-8"))
    assert {"gpu", "driver", "CUDA", "torch", "Python", "commit", "date"} <= whole["header"].keys()
    assert {name: part["ended"] for name, part in whole["parts"].items()} == {"dtypes": "complete", "speed": "complete"}
    assert whole["claims"] == {"dtypes-of-ops": "", "dtypes-of-gradients": "", "speedup-unavailable": ""}
    found = {row["what"]: row["dtypes"] for row in whole["rows"] if row.get("kind") == "forward"}
    assert found["mm, float16"] == "CUDA float16; emulated float16"
    assert found["nn.LSTM, bfloat16"] == "CUDA float16, float16, float16; emulated float16, float16, float16"
    assert found["cudnn_convolution, float16"] == "CUDA float16; emulated NotImplementedError"
    summary = (tmp_path / f"gpu-dry-run-torch{version}.md").read_text(encoding="utf-8")
    assert "| dtypes-of-ops | holds |" in summary
    assert re.search(r"^## speed\n\ncomplete, \d+ s, 2 rows$", summary, re.MULTILINE)


@pytest.mark.long
@pytest.mark.exhaustive
@pytest.mark.parametrize("part", sorted(KIT["PARTS"].keys() - {"dtypes", "speed"}))
def test_what_each_other_part_claims_holds_in_a_dry_run(part: str, tmp_path: Path) -> None:
    done = run("--dry-run", "--only", part, "--results", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.json")
    whole = json.loads(path.read_text(encoding="utf-8"))
    assert {name: each["ended"] for name, each in whole["parts"].items()} == {part: "complete"}
    assert whole["claims"] == dict.fromkeys(WITHOUT_A_GPU[part], "")


@pytest.mark.long
@pytest.mark.exhaustive
def test_a_dtype_that_is_wrong_fails_by_name(checkout: Path) -> None:
    policies = next((checkout / "pytest_amp_check" / "protocol").rglob("optable.py"))
    change(policies, " softplus ", " ")
    done = run("--dry-run", "--only", "dtypes", root=checkout)
    assert done.returncode == 1
    assert "FAILS  dtypes-of-ops: softplus, float16 (CUDA float32; emulated float16); softplus, bfloat16" in done.stdout
    assert "on_gpu: the claim dtypes-of-ops does not hold (Each op of PyTorch's own autocast table" in done.stderr
    assert "holds  dtypes-of-gradients" in done.stdout
    # The copy has no git history.
    assert re.search(r"commit sources [0-9a-f]{12},", done.stdout)


@pytest.mark.long
@pytest.mark.exhaustive
def test_a_part_that_is_cut_off_keeps_what_it_has_done(checkout: Path, tmp_path: Path) -> None:
    change(checkout / "benchmarks" / "on_gpu.py", '"harm": Part(25,', '"harm": Part(2,')
    row = {"kind": "harm", "what": "AMP201", "agrees": True}
    (checkout / "benchmarks" / "gpu" / "harm.py").write_text(
        f"import time\n\ndef rows(*, dry):\n    yield {row}\n    time.sleep(60)\n"
    )
    done = run("--dry-run", "--only", "harm,speed", "--results", str(tmp_path / "made"), root=checkout)
    assert done.returncode == 1
    assert "FAILS  harm-on-cuda: not decided: harm was cut off after 6 s" in done.stdout
    assert "on_gpu: the part harm was cut off after 6 s" in done.stderr
    (path,) = (tmp_path / "made").glob("*.json")
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert {"part": "harm", **row} in rows
    # The following part still runs.
    assert "holds  speedup-unavailable" in done.stdout


@pytest.mark.exhaustive
def test_a_part_that_raises_is_said(checkout: Path) -> None:
    (checkout / "benchmarks" / "gpu" / "speed.py").write_text("def rows(*, dry):\n    raise OSError('no such thing')\n")
    done = run("--dry-run", "--only", "speed", root=checkout)
    assert done.returncode == 1
    assert "OSError: no such thing" in done.stderr
    assert "on_gpu: the part speed ended with 1" in done.stderr


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--only", "dtypes,speeds"), "--only takes parts, not speeds: tests, dtypes, training,"),
        (("--only", ","), "--only takes parts, not nothing: tests,"),
        pytest.param((), "sees no CUDA device: --dry-run walks every part on the CPU", marks=no_cuda),
    ],
)
def test_what_cannot_be_run_is_said_in_a_sentence(flags: Sequence[str], says: str) -> None:
    done = run(*flags)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_without_wheels(tmp_path: Path) -> None:
    done = run("--dry-run", "--wheels", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"on_gpu: there is no wheel in {tmp_path}: pip download ")


def test_wheels_that_cannot_be_installed(tmp_path: Path) -> None:
    (tmp_path / "libcst-1.0-py3-none-any.whl").write_bytes(b"no wheel")
    done = run("--dry-run", "--wheels", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"on_gpu: pip cannot install the wheels in {tmp_path}: ")


@pytest.mark.parametrize(
    ("dry", "outcomes"),
    [
        (
            "",
            {
                "passes": ("test", True),
                "lacks": ("not run", False),
                "elsewhere": ("test", False),
                "fails": ("test", False),
            },
        ),
        # A dry run only shows that the tests are skipped, and the reason.
        (
            "1",
            {"passes": ("test", True), "lacks": ("test", False), "elsewhere": ("test", True), "fails": ("test", False)},
        ),
    ],
)
def test_what_a_test_on_a_gpu_shows(tmp_path: Path, dry: str, outcomes: dict[str, tuple[str, bool]]) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_passes(): pass\n"
        "def test_lacks(): pytest.skip('needs a package')\n"
        "def test_elsewhere(): pytest.skip('needs a CUDA device')\n"
        "def test_fails(): raise OSError('no such kernel')\n"
    )
    rows = tmp_path / "rows"
    environment = {
        **os.environ,
        "PYTHONPATH": str(BENCHMARKS),
        "AMP_CHECK_GPU_ROWS": str(rows),
        "AMP_CHECK_GPU_DRY": dry,
    }
    run_module("pytest", "-p", "gpu.reporter", "-p", "no:cacheprovider", "test_it.py", cwd=tmp_path, env=environment)
    found = {row["what"].partition("::test_")[2]: row for row in map(json.loads, rows.read_text().splitlines())}
    assert {name: (row["kind"], row["agrees"]) for name, row in found.items()} == outcomes
    assert "OSError: no such kernel" in found["fails"]["outcome"]


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_without_rows_does_not_hold(name: str) -> None:
    assert CLAIMS[name].refuted([]).startswith("no row about ")


def estimates(*errors: float) -> list[dict[str, Any]]:
    return [{"kind": "estimate", "what": f"model {i}", "error": error} for i, error in enumerate(errors)]


@pytest.mark.parametrize(
    ("claim", "rows", "says"),
    [
        ("memory-estimated", estimates(0.0, -0.01, 0.05), ""),
        ("memory-estimated", estimates(0.01, 0.01, -0.09), "model 2 is 9.0% off"),
        ("memory-estimated", estimates(-0.03, 0.03, 0.0), "the median error is 3.0%"),
        (
            "recording-in-time",
            [
                {"kind": "plain", "what": "20 ms", "added": 0.25},
                {"kind": "plain", "what": "80 ms", "added": 0.01},
                {"kind": "memory", "what": "80 ms", "added": 9.0},
            ],
            "20 ms: 0.25 added, at most 0.1",
        ),
        ("recording-in-time", [{"kind": "plain", "what": "20 ms", "added": 0.0}], "no row about 80 ms"),
        (
            "training-skips",
            [
                {"kind": "skips", "what": "MLP", "agrees": True, "seen": "[3]; emulated [3]"},
                {"kind": "skips", "what": "GAN", "agrees": False, "seen": "[]; emulated [3]"},
            ],
            "GAN ([]; emulated [3])",
        ),
    ],
)
def test_what_refutes_a_claim(claim: str, rows: list[dict[str, Any]], says: str) -> None:
    assert CLAIMS[claim].refuted(rows) == says


def test_the_limits_of_the_parts_leave_time_to_spare() -> None:
    parts: dict[str, Any] = KIT["PARTS"]
    assert sum(part.limit for part in parts.values()) <= 9 * 60
    assert {claim.part for claim in CLAIMS.values()} == parts.keys()
