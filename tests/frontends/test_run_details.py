"""Exit and run names of ``amp-check run``; the marker of tests skipped by pytest; charts in the summary."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

# Loaded here: a run of pytest inside of a test removes its imports from the loaded modules again.
import torch._dynamo  # noqa: F401
from warm import run_module

from pytest_amp_check.frontends import cli
from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.runtime.record import attach  # noqa: F401

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
TRAINS = """\
import sys
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
for i in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(8, 4)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('over')", 1, "over\n"),
        ("raise ValueError('over')", 1, "ValueError: over\n"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
    ],
)
def test_a_run_ends_as_its_script_does_and_has_its_words_for_a_title(
    end: str, code: int, said: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAINS + end + "\n", encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    arguments = ("pytest_amp_check", "run", "--data", "run.json", "--quiet", "train.py", "--epochs", "3")
    done = run_module(*arguments, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.endswith(said)
    (run,) = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["runs"]
    assert run["title"] == "train.py --epochs 3"
    assert [step["index"] for step in run["steps"]] == [0, 1, 2]


def test_completion_knows_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert cli.main(["completion", "bash"]) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in ("check", "run", "explain", "rules", "completion", "server"))
    assert "--per-file-ignores" in out


def test_what_is_left_out_is_selected_by_the_marker_too(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_amp_check.frontends.plugin")
    pytester.makepyfile(train=RULES["AMP201"].bad_example, other=RULES["AMP201"].good_example)
    pytester.makepyprojecttoml('[tool.amp-check]\nexclude = ["train.py"]\nforce-exclude = true\n')
    given = ("--amp-check", "--amp-only=static", "train.py", "other.py")
    pytester.runpytest_inprocess(*given, "-m", "amp_check").assert_outcomes(skipped=1, passed=1)
    pytester.runpytest_inprocess(*given, "-m", "not amp_check").assert_outcomes(deselected=2)


def test_charts_in_the_summary_are_no_wider_than_the_terminal(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_amp_check.frontends.plugin")
    monkeypatch.setenv("COLUMNS", "60")
    body = TRAINS.replace("range(3)", "range(100)").replace(".mean()", ".mean() * (1e30 if i == 50 else 1)")
    pytester.makepyfile(test_a="def test_a():\n" + "".join(f"    {line}\n" for line in body.splitlines()))
    lines = pytester.runpytest_inprocess("--amp-check", "--amp-only=runtime", "-v", "test_a.py").outlines
    (chart,) = [line for line in lines if line.lstrip().startswith("scale ")]
    assert "of 100 steps skipped" in chart
    # Indented by two columns, unlike the chart alone in the summary.
    assert len(chart.strip()) == 58
