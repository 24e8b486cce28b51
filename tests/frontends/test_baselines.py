"""``run.assert_baseline()``: recorded results are stored beside the test as JSON, and any difference fails by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from warm import run_pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("this_plugin_alone")

TESTS = """
import pytest
import torch

@pytest.mark.parametrize("width", [16, 32])
def test_trains(amp, width):
    amp_model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Linear(width, 1)).to(amp.device)
    optimizer = torch.optim.SGD(amp_model.parameters(), lr=0.01)
    scaler = amp.scaler(init_scale=SCALE)
    extra = torch.zeros(EXTRA)
    with amp.record(amp_model, dtypes=True, memory=True) as run:
        for x in torch.randn(4, 64, 8, device=amp.device):
            optimizer.zero_grad()
            with amp.autocast():
                hidden = amp_model[0](x)
                with torch.autocast("cuda", enabled=INNER):
                    loss = amp_model[1](hidden CAST).float().square().mean() * 16
            kept = torch.ones(EXTRA, device=amp.device)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    run.assert_baseline()
"""
SAME = {"SCALE": "128.0", "INNER": "True", "CAST": "", "EXTRA": "1"}
FILES = ("test_trains-16-", "test_trains-32-")


def write(pytester: pytest.Pytester, **changed: str) -> None:
    text = TESTS
    for name, value in {**SAME, **changed}.items():
        text = text.replace(name, value)
    (pytester.path / "test_a.py").write_text(text)


def run(pytester: pytest.Pytester, *flags: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-W", "error", "-p", "no:cacheprovider", "--amp-device", "emulate", *flags)


def baselines(pytester: pytest.Pytester) -> list[Path]:
    return sorted((pytester.path / "amp_baselines" / "test_a").glob("*.json"))


@pytest.fixture
def written(pytester: pytest.Pytester) -> pytest.Pytester:
    write(pytester)
    run(pytester, "--amp-update-baselines").assert_outcomes(passed=2)
    return pytester


def test_what_is_written_is_for_people_to_read(written: pytest.Pytester) -> None:
    first, second = baselines(written)
    assert first.name.startswith(FILES[0])
    assert second.name.startswith(FILES[1])
    known: dict[str, Any] = json.loads(first.read_text())
    ((environment, runs),) = known.items()
    assert environment == f"CUDA on the CPU, torch {'.'.join(torch.__version__.split('.')[:2])}"
    entry = runs["run"]
    assert (entry["steps"], entry["skipped"], entry["scale"]) == (4, [], [[0, 128.0]])
    assert entry["dtypes"]["modules"] == {"0": "float16", "1": "float16"}
    # 8 * 16 + 16 weights of the first layer and 16 + 1 of the second take two and one blocks of 512 bytes, and so on.
    assert entry["memory"]["parameters"] == 4 * 512
    before = [path.stat().st_mtime_ns for path in baselines(written)]
    run(written, "--amp-update-baselines").assert_outcomes(passed=2)
    # Unchanged files are not written again.
    assert [path.stat().st_mtime_ns for path in baselines(written)] == before


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"INNER": "False", "CAST": ".float()"}, ["  modules 1: float32, was float16"]),
        (
            {"SCALE": "2.0 ** 40"},
            [
                "  skipped steps: 4, were 0 (step 0 is, step 1 is, step 2 is, step 3 is)",
                "  loss scale: 1.09951e+12 from step 0, *; was 128 from step 0",
            ],
        ),
        ({"SCALE": "256.0"}, ["  loss scale: 256 from step 0; was 128 from step 0"]),
        ({"EXTRA": "2000"}, ["  memory, peak: * KiB, was * KiB (+*"]),
    ],
)
def test_a_difference_fails_and_is_named(written: pytest.Pytester, changed: dict[str, str], said: list[str]) -> None:
    write(written, **changed)
    result = run(written, "-k", "16")
    result.assert_outcomes(failed=1, deselected=1)
    for line in said:
        escaped = line.replace("[", "[[]")
        result.stdout.fnmatch_lines([f"E*The run differs from its baseline 'run' in *{FILES[0]}*", f"E *{escaped}*"])
    result.stdout.fnmatch_lines(
        ['E *where that is meant: pytest --amp-update-baselines "test_a.py::test_trains[[]16]"']
    )


def test_a_difference_that_is_meant_becomes_the_baseline(written: pytest.Pytester) -> None:
    write(written, INNER="False", CAST=".float()", SCALE="2.0 ** 40", EXTRA="2000")
    run(written).assert_outcomes(failed=2)
    run(written, "--amp-update-baselines").assert_outcomes(passed=2)
    run(written).assert_outcomes(passed=2)


def test_five_percent_of_memory_and_one_more_skip_are_differences(written: pytest.Pytester) -> None:
    path = baselines(written)[0]
    known = json.loads(path.read_text())
    (runs,) = known.values()
    entry = runs["run"]
    entry["memory"]["activations"] = int(entry["memory"]["activations"] / 1.05)
    entry["skipped"] = [2]
    path.write_text(json.dumps(known))
    result = run(written, "-k", "16")
    result.stdout.fnmatch_lines(["E *memory, activations: *(+5.0%, *", "E *skipped steps: 0, were 1 (step 2 was)"])


def test_a_baseline_that_is_missing_fails(pytester: pytest.Pytester) -> None:
    write(pytester)
    result = run(pytester)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        ["E*There is no baseline 'run' for CUDA on the CPU, torch * (it has none): pytest --amp-update-baselines *"]
    )


def test_orphans_fail_in_ci(written: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    write(written)
    gone = (written.path / "test_a.py").read_text().replace("[16, 32]", "[16]")
    (written.path / "test_a.py").write_text(gone)
    shutil.copytree(written.path / "amp_baselines" / "test_a", written.path / "amp_baselines" / "test_old")
    monkeypatch.delenv("CI", raising=False)
    result = run(written)
    result.stdout.fnmatch_lines(
        [f"*{FILES[1]}*: no test asserts it any more", "*test_old*: no test asserts it any more"]
    )
    assert result.ret == 0
    monkeypatch.setenv("CI", "true")
    assert run(written).ret == pytest.ExitCode.TESTS_FAILED
    # A run of only some tests does not treat the other baselines as obsolete.
    assert run(written, "test_a.py::test_trains").ret == 0
    assert run(written, "--amp-update-baselines").ret == 0
    assert [path.name.startswith(FILES[0]) for path in baselines(written)] == [True]
    assert run(written).ret == 0


def test_a_baseline_that_is_asked_for_no_more_fails(written: pytest.Pytester) -> None:
    text = (written.path / "test_a.py").read_text()
    (written.path / "test_a.py").write_text(text.replace("run.assert_baseline()", "run.assert_baseline('other')"))
    run(written, "--amp-update-baselines").assert_outcomes(passed=2)
    (written.path / "test_a.py").write_text(text.replace("    run.assert_baseline()", ""))
    result = run(written)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*It has not asserted its baseline 'other' in *"])


def test_a_run_of_its_own_name_is_needed_for_each(written: pytest.Pytester) -> None:
    text = (written.path / "test_a.py").read_text()
    (written.path / "test_a.py").write_text(f"{text}    run.assert_baseline()\n")
    run(written).stdout.fnmatch_lines(["E*ValueError: assert_baseline() was called twice for the baseline 'run'*"])


@pytest.mark.long
def test_workers_of_xdist_share_them(written: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_amp_check.frontends.plugin,xdist.plugin")
    shutil.rmtree(written.path / "amp_baselines")
    flags = ("-p", "no:cacheprovider", "--amp-device", "emulate", "-n", "2")
    run_pytest(written, *flags, "--amp-update-baselines", warm_children=True).assert_outcomes(passed=2)
    assert len(baselines(written)) == 2
    monkeypatch.setenv("CI", "true")
    write(written, SCALE="256.0")
    (written.path / "amp_baselines" / "test_a" / "test_gone.json").write_text("{}")
    result = run_pytest(written, *flags, warm_children=True)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*test_gone.json: no test asserts it any more"])
