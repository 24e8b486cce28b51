"""``pytest --amp-check``: test functions are recorded unchanged, and fail if they train with a mistake."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import torch

# Loaded here, so that runs inside this process do not load these modules again each time.
import torch._dynamo
from warm import run_pytest

from pytest_amp_check.frontends import html
from pytest_amp_check.runtime import session  # noqa: F401
from pytest_amp_check.runtime.measure import memory, numerics  # noqa: F401
from pytest_amp_check.runtime.record import active, attach
from pytest_amp_check.runtime.replay import accumulation, precision, resuming  # noqa: F401
from pytest_amp_check.runtime.run import Run

pytest_plugins = ["pytester"]

#: Training code with a selectable mistake.
TRAIN = """\
import torch

def train(mistake="", dtype=torch.float16, skip=False):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    for step in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = model(torch.randn(8, 4)).float().square().mean()
        if skip and step == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if mistake == "clip":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # line 16
        if mistake == "raw":
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    return loss
"""
CLIP = "AMP201 clip-before-unscale at train.py:16"
ONE = f"Its mixed-precision training has 1 mistake: {CLIP}"

FLAGS = ("--amp-check", "--amp-only=runtime", "-W", "error", "-p", "no:cacheprovider")


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"needs {module}")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let inner runs load only this plugin: other installed plugins take up to a second to import."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_amp_check.frontends.plugin")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(train=TRAIN)
    return pytester


def run(project: pytest.Pytester, tests: str, *flags: str) -> pytest.RunResult:
    """Run the tests of one module with only the recorder of --amp-check."""
    project.makepyfile(test_a=f"import pytest\nfrom train import train\n\n{tests}")
    return project.runpytest_inprocess(*FLAGS, *flags, "test_a.py")


def summary(result: pytest.RunResult) -> list[str]:
    """Return the lines of our section at the end."""
    lines = result.outlines
    (start,) = [number for number, line in enumerate(lines) if line.strip("=") == " amp-check "]
    rest = lines[start + 1 :]
    end = next(number for number, line in enumerate(rest) if line.startswith("=") or " in 0." in line)
    return rest[:end]


BAD = "def test_bad():\n    train('clip')\n"


def test_a_mistake_fails_a_test_that_passed(project: pytest.Pytester) -> None:
    result = run(project, BAD)
    result.assert_outcomes(failed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "test_a.py F*",
            "*_ test_bad _*",
            ONE,
            "*- amp-check -*",
            "train.py:16:13: AMP201 [[]error[]] clip-before-unscale: *multiplied by the loss scale",
            "16 |             torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # line 16",
            "   |             ^^^^^^^^^^^^^^*",
            "  trace:",
            "    1. train.py:14 (called from test_a.py:5): backward adds gradients multiplied by the loss scale",
            "         scaler.scale(loss).backward()",
            "    2. train.py:16: *",
            "  more: amp-check explain AMP201",
            "scale *0 of 3 steps skipped",
            "*= amp-check =*",
            "1  AMP201  [[]error[]]  clip-before-unscale",
            "Found 1 error in 1 test that trains.",
            f"FAILED test_a.py::test_bad - {ONE[:20]}*",
        ]
    )
    # Neither a traceback nor the frames between pytest and the test.
    for foreign in ("Traceback", "_pytest", "pluggy/", "site-packages"):
        assert foreign not in result.stdout.str()


def test_right_training_passes(project: pytest.Pytester) -> None:
    result = run(project, "def test_good():\n    train()\ndef test_other():\n    pass\n")
    result.assert_outcomes(passed=2)
    assert summary(result) == ["No AMP mistakes found in 1 test that trains."]


def test_nothing_is_said_of_tests_that_do_not_train(project: pytest.Pytester) -> None:
    result = run(project, "def test_other():\n    pass\n")
    result.assert_outcomes(passed=1)
    assert summary(result) == ["No test trained."]


def test_nothing_happens_without_the_option(project: pytest.Pytester) -> None:
    project.makepyfile(test_a="from train import train\n" + BAD)
    result = project.runpytest_inprocess("test_a.py", "-W", "error")
    result.assert_outcomes(passed=1)
    assert "amp-check" not in result.stdout.str()


def test_both_halves_tell_the_same_mistake_once(project: pytest.Pytester) -> None:
    project.makepyfile(test_a="from train import train\n" + BAD)
    result = project.runpytest_inprocess("--amp-check", "--amp-select=AMP201", "-W", "error")
    result.assert_outcomes(failed=2, passed=1)
    assert summary(result) == [
        "1  AMP201  [error]  clip-before-unscale",
        "Found 1 error in 2 files.",
        "Found 1 error in 1 test that trains.",
    ]
    project.runpytest_inprocess("--amp-check", "--amp-only=static").assert_outcomes(failed=1, passed=2)
    project.runpytest_inprocess("--amp-check", "--amp-only=runtime").assert_outcomes(failed=1)


def test_a_failed_test_keeps_its_failure_and_gets_the_section(project: pytest.Pytester) -> None:
    result = run(project, BAD + "    assert 1 == 2\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*assert 1 == 2", "test_a.py:6: AssertionError", "*- amp-check -*", "train.py:16:13: AMP201 *"]
    )
    assert "Its mixed-precision training" not in result.stdout.str()
    assert summary(result)[-1] == "Found 1 error in 1 test that trains."


def test_fixtures_are_recorded_up_to_the_end_of_the_call(project: pytest.Pytester) -> None:
    fixture = "@pytest.fixture\ndef trained():\n    train('clip')\n    yield\n    train('raw')\n"
    result = run(project, fixture + "def test_it(trained):\n    pass\n")
    result.assert_outcomes(failed=1)
    assert summary(result)[0] == "1  AMP201  [error]  clip-before-unscale"
    assert "optimizer.step" not in result.stdout.str()
    run(project, "def test_it():\n    train('raw')\n").assert_outcomes(failed=1)


def test_an_error_in_setup_stays_one(project: pytest.Pytester) -> None:
    fixture = "@pytest.fixture\ndef trained():\n    train('clip')\n    raise ValueError('no data')\n"
    result = run(project, fixture + "def test_it(trained):\n    pass\ndef test_good():\n    train()\n")
    result.assert_outcomes(errors=1, passed=1)
    assert summary(result) == ["No AMP mistakes found in 1 test that trains."]


def test_a_skipped_test_stays_skipped(project: pytest.Pytester) -> None:
    result = run(project, BAD + "    pytest.skip('no')\n@pytest.mark.skip\ndef test_never():\n    train('clip')\n")
    result.assert_outcomes(skipped=2)
    assert "AMP201" not in result.stdout.str()


@pytest.mark.parametrize(
    ("mark", "outcome"),
    [
        ("xfail", "xfailed"),
        ("xfail(strict=True, reason='known')", "xfailed"),
        ("xfail(False, reason='not here')", "failed"),
        ("xfail(raises=ValueError)", "failed"),
        ("xfail(raises=ValueError, strict=True)", "failed"),
    ],
)
def test_a_mistake_is_a_way_to_fail_as_expected(project: pytest.Pytester, mark: str, outcome: str) -> None:
    result = run(project, f"@pytest.mark.{mark}\n{BAD}", "-rxfX", "--junit-xml=report.xml")
    assert result.parseoutcomes() == {outcome: 1}
    # Expected failures are not counted.
    assert ("Found 1 error in 1 test that trains." in result.outlines) is (outcome == "failed")
    if "known" in mark:
        result.stdout.fnmatch_lines(["XFAIL test_a.py::test_bad - known"])
    (case,) = ET.parse(project.path / "report.xml").iter("testcase")
    assert (case.find("failure") is None) is (outcome == "xfailed")


def test_an_expected_failure_without_one_passes_unexpectedly(project: pytest.Pytester) -> None:
    result = run(project, "@pytest.mark.xfail\ndef test_good():\n    train()\n")
    assert result.parseoutcomes() == {"xpassed": 1}


def test_xfail_by_a_failure_of_the_user(project: pytest.Pytester) -> None:
    result = run(project, f"@pytest.mark.xfail\n{BAD}    assert False\n")
    assert result.parseoutcomes() == {"xfailed": 1}


def test_junit_xml(project: pytest.Pytester) -> None:
    run(project, BAD, "--junit-xml=report.xml")
    (case,) = ET.parse(project.path / "report.xml").iter("testcase")
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("message") == ONE


def test_shared_code_is_reported_once_in_full_with_the_number_of_tests(project: pytest.Pytester) -> None:
    result = run(project, "@pytest.mark.parametrize('n', range(4))\ndef test_bad(n):\n    train('clip')\n")
    result.assert_outcomes(failed=4)
    assert result.outlines.count("  trace:") == 1
    assert result.outlines.count("  in full at test_a.py::test_bad[0]") == 3
    counted, reported, total = summary(result)
    assert counted == "1  AMP201  [error]  clip-before-unscale"
    assert reported.startswith("train.py:16:13: AMP201 [error]")
    assert reported.endswith(" (in 4 tests)")
    assert total == "Found 1 error in 4 tests that train."


def test_info_does_not_fail_and_is_reported_at_the_end(project: pytest.Pytester) -> None:
    bfloat16 = "import torch\ndef test_bf16():\n    train(dtype=torch.bfloat16)\n"
    result = run(project, bfloat16, "--amp-select=AMP503")
    result.assert_outcomes(passed=1)
    counted, reported, total = summary(result)
    assert counted == "1  AMP503  [info]  scaler-with-bf16"
    assert "AMP503 [info] scaler-with-bf16: " in reported
    assert reported.endswith(" (in 1 test)")
    assert total == "Found 1 info in 1 test that trains."
    run(project, bfloat16, "--amp-select=AMP201").assert_outcomes(passed=1)


def test_rules_that_are_off_by_default_can_be_chosen(project: pytest.Pytester) -> None:
    scheduled = TRAIN.replace("    for step", "    plan = torch.optim.lr_scheduler.StepLR(optimizer, 1)\n    for step")
    project.makepyfile(train=scheduled.replace("    return", "        plan.step()\n    return"))
    test = "def test_it():\n    train(skip=True)\n"
    reported = "1  AMP403  [info]  scheduler-cadence"
    # A step was skipped, which is shown in any case.
    assert summary(run(project, test))[0] == reported
    assert "AMP403" not in run(project, test, "--amp-ignore=AMP403").stdout.str()
    assert "AMP403" not in run(project, test, "--amp-select=AMP2").stdout.str()
    assert summary(run(project, test, "--amp-select=AMP403"))[0] == reported
    assert "AMP403" not in run(project, "def test_it():\n    train()\n").stdout.str()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("pytest.ini", "[pytest]\namp_ignore = clip-before-unscale\n"),
        ("pytest.ini", "[pytest]\namp_per_file_ignores = tr*.py: AMP2\n"),
        ("pytest.ini", "[pytest]\namp_severity = AMP201=info\n"),
        ("pyproject.toml", '[tool.amp-check]\nselect = ["AMP1"]\n'),
        ("train.py", TRAIN.replace("# line 16", "# amp: ignore[AMP201] on purpose")),
        ("train.py", TRAIN.replace("# line 16", "# noqa: AMP201")),
        ("train.py", "# amp: ignore-file[AMP201] old\n" + TRAIN),
    ],
)
def test_what_silences_a_file_silences_a_run(project: pytest.Pytester, path: str, text: str) -> None:
    (project.path / path).write_text(text)
    run(project, BAD).assert_outcomes(passed=1)


def test_a_comment_for_another_rule_silences_nothing(project: pytest.Pytester) -> None:
    (project.path / "train.py").write_text(TRAIN.replace("# line 16", "# amp: ignore[AMP202] on purpose"))
    run(project, BAD).assert_outcomes(failed=1)


def test_rules_can_be_allowed_by_test_class_and_module(project: pytest.Pytester) -> None:
    result = run(
        project,
        "pytestmark = pytest.mark.amp_allow('AMP203', reason='never mind')\n"
        "@pytest.mark.amp_allow('clip-before-unscale', reason='shows what is wrong')\n"
        "def test_by_name():\n    train('clip')\n"
        "@pytest.mark.amp_allow('AMP202', 'AMP2', reason='all of them')\n"
        "class TestAll:\n"
        "    def test_clip(self):\n        train('clip')\n"
        "    @pytest.mark.amp_allow('AMP101', reason='adds to it')\n"
        "    def test_more(self):\n        train('clip')\n"
        "@pytest.mark.amp_allow('AMP202', reason='another')\n"
        "def test_other_rule():\n    train('clip')\n",
    )
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["FAILED test_a.py::test_other_rule*"])


def test_a_test_that_records_itself_sees_the_mistakes_and_is_not_checked_again(project: pytest.Pytester) -> None:
    result = run(
        project,
        "from pytest_amp_check import record\n"
        "def test_explicit():\n"
        "    with record() as run:\n"
        "        train('clip')\n"
        "    assert [f.code for f in run.findings] == ['AMP201']\n"
        "@pytest.mark.amp(device='cpu')\n"
        "def test_fixture(amp):\n"
        "    with amp.record() as run:\n"
        "        train('clip')\n"
        "    assert [f.code for f in run.findings] == ['AMP201']\n"
        "def test_before_and_after():\n"
        "    train('clip')\n"
        "    with record():\n"
        "        train()\n",
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["FAILED test_a.py::test_before_and_after*"])


def test_steps_that_an_assertion_runs_again_are_not_checked(project: pytest.Pytester) -> None:
    result = run(
        project,
        "import torch\n"
        "def test_it(amp):\n"
        "    model = torch.nn.Linear(4, 1).to(amp.device)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "    scaler = amp.scaler()\n"
        "    def step(x):\n"
        "        optimizer.zero_grad()\n"
        "        with amp.autocast():\n"
        "            loss = model(x).float().square().mean()\n"
        "        scaler.scale(loss).backward()\n"
        "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        "        scaler.step(optimizer)\n"
        "        scaler.update()\n"
        "    run = amp.run(step, [torch.randn(8, 4, device=amp.device)], steps=3)\n"
        "    assert [f.code for f in run.findings] == ['AMP201']\n"
        "    with pytest.raises(AssertionError):\n"
        "        run.assert_matches_fp32(rtol=1e-3)\n",
    )
    result.assert_outcomes(passed=1)
    assert summary(result) == ["No test trained."]


def test_test_classes_of_unittest(project: pytest.Pytester) -> None:
    result = run(
        project,
        "import unittest\n"
        "class TestIt(unittest.TestCase):\n"
        "    def setUp(self):\n        train()\n"
        "    def test_good(self):\n        train()\n"
        "    def test_bad(self):\n        train('clip')\n"
        "    def test_fails(self):\n        train('clip')\n        self.assertEqual(1, 2)\n"
        "    @unittest.expectedFailure\n"
        "    def test_expected(self):\n        train('clip')\n        self.assertEqual(1, 2)\n"
        "    def test_skips(self):\n        train('clip')\n        self.skipTest('no')\n",
    )
    assert result.parseoutcomes() == {"passed": 1, "failed": 2, "xfailed": 1, "skipped": 1}
    result.stdout.fnmatch_lines(["*_ TestIt.test_bad _*", ONE])


@pytest.mark.skipif(int(pytest.__version__.split(".")[0]) < 9, reason="subtests came with pytest 9")
def test_subtests_are_checked_with_their_test(project: pytest.Pytester) -> None:
    result = run(
        project,
        "def test_them(subtests):\n"
        "    for mistake in ('', 'clip'):\n"
        "        with subtests.test(mistake):\n            train(mistake)\n",
    )
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["*_ test_them _*", ONE])


def test_the_folder_may_change(project: pytest.Pytester, tmp_path: Path) -> None:
    result = run(project, f"def test_bad(monkeypatch):\n    monkeypatch.chdir({str(tmp_path)!r})\n    train('clip')\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([ONE, "16 |  *clip_grad_norm_*"])


def patched() -> list[object]:
    """Return the current values of some attributes that a recording patches."""
    return [
        torch.amp.GradScaler.step,
        torch.amp.GradScaler.update,
        torch.Tensor.backward,
        torch.nn.Module.to,
        torch.autocast.__enter__,
        torch.Tensor.__dict__.get("grad"),
        torch.serialization._save,
        attach._users,
        active.THREAD.active_recorders,
    ]


def test_a_test_that_is_set_up_again_is_recorded_once(project: pytest.Pytester) -> None:
    """Plugins like pytest-rerunfailures run a test again inside one protocol, also after a failed setup."""
    project.makeconftest(
        "from _pytest.runner import runtestprotocol\n"
        "def pytest_runtest_protocol(item, nextitem):\n"
        "    first = runtestprotocol(item, nextitem=nextitem, log=False)\n"
        "    assert [(each.when, each.outcome) for each in first] == [('setup', 'failed'), ('teardown', 'passed')]\n"
        "    runtestprotocol(item, nextitem=nextitem, log=True)\n"
        "    return True\n"
    )
    before = patched()
    again = "@pytest.fixture\ndef late(seen=[]):\n    seen.append(1)\n    assert len(seen) > 1\n"
    result = run(project, again + "def test_bad(late):\n    train('clip')\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([ONE])
    assert patched() == before


def test_torch_is_left_as_it_was(project: pytest.Pytester) -> None:
    before = patched()
    run(project, BAD + "def test_good():\n    train()\n").assert_outcomes(failed=1, passed=1)
    assert patched() == before
    run(project, "def test_exit():\n    train()\n    pytest.exit('enough')\n")
    assert patched() == before
    run(project, "@pytest.fixture\ndef broken():\n    train()\n    pytest.exit('no')\ndef test_it(broken):\n    pass\n")
    assert patched() == before


def test_what_others_patch_comes_and_goes_as_they_want(project: pytest.Pytester) -> None:
    before = patched()
    result = run(
        project,
        "import torch\n"
        "def fake(self, *args):\n    return 'fake'\n"
        "@pytest.fixture(scope='module', autouse=True)\n"
        "def _all():\n"
        "    with pytest.MonkeyPatch.context() as patch:\n"
        "        patch.setattr(torch.nn.Module, 'to', fake)\n        yield\n"
        "@pytest.mark.parametrize('n', range(3))\n"
        "def test_module(n, monkeypatch):\n"
        "    assert torch.nn.Linear(1, 1).to('cpu') == 'fake'\n"
        "    monkeypatch.setattr(torch.amp.GradScaler, 'update', fake)\n"
        "    assert torch.amp.GradScaler('cpu').update() == 'fake'\n"
        "def test_after():\n"
        "    train('clip')\n",
    )
    result.assert_outcomes(passed=3, failed=1)
    assert result.outlines.count(ONE) == 1
    assert patched() == before


def test_the_recorder_changes_no_random_number(project: pytest.Pytester) -> None:
    test = "import torch, pathlib\ndef test_it():\n    pathlib.Path('{}').write_text(str(torch.rand(3).tolist()))\n"
    torch.manual_seed(7)
    run(project, test.format("with")).assert_outcomes(passed=1)
    torch.manual_seed(7)
    project.makepyfile(test_a=test.format("without"))
    project.runpytest_inprocess("test_a.py").assert_outcomes(passed=1)
    assert (project.path / "with").read_text() == (project.path / "without").read_text()


def test_a_failure_of_the_recorder_is_reported_and_fails_no_test(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "failure", property(lambda self: ValueError("odd")))
    result = run(project, "def test_one():\n    train()\ndef test_two():\n    train()\n")
    result.assert_outcomes(passed=2)
    assert summary(result)[-1] == (
        "amp-check: the recorder failed in 2 tests, such as test_a.py::test_one, and has not seen all of it: "
        "ValueError: odd: please report it"
    )


def test_skipped_steps_are_drawn_when_asked(project: pytest.Pytester) -> None:
    tests = "def test_skips():\n    train(skip=True)\ndef test_good():\n    train()\n"
    assert summary(run(project, tests)) == ["No AMP mistakes found in 2 tests that train."]
    result = run(project, tests, "-v")
    result.assert_outcomes(passed=2)
    first, second, *_ = summary(result)
    assert first == "test_a.py::test_skips"
    assert second.startswith("  scale")
    assert second.endswith("1 of 3 steps skipped")
    assert "  test_a.py::test_good" not in summary(result)


def test_it_works_without_other_plugins(project: pytest.Pytester) -> None:
    result = run(project, BAD, "-p", "no:terminal", "-p", "no:junitxml", "-p", "no:capture")
    assert result.ret == 1


# Other plugins.


@pytest.mark.long
@needs("xdist")
def test_workers(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_a="import pytest\nfrom train import train\n"
        "@pytest.mark.parametrize('n', range(4))\ndef test_bad(n):\n    train('clip')\n"
        "def test_good():\n    train(skip=True)\n"
        "@pytest.mark.amp_memory('1 KiB')\ndef test_memory():\n    import torch\n    torch.zeros(1024)\n"
    )
    flags = ("-p", "xdist", "-n", "2", "-v", "--amp-report=amp.html")
    result = run_pytest(project, *FLAGS, *flags, "test_a.py", warm_children=True)
    result.assert_outcomes(failed=5, passed=1)
    assert result.outlines.count("  trace:") == 1
    counted, reported, first, *_, total, report = summary(result)
    assert counted == "1  AMP201  [error]  clip-before-unscale"
    assert reported.endswith(" (in 4 tests)")
    assert first == "test_a.py::test_good"
    assert total == "Found 1 error in 5 tests that train."
    assert report == "The report of 5 runs is in amp.html."
    assert "test_a.py::test_bad[3]" in (project.path / "amp.html").read_text()


@needs("xdist")
def test_workers_say_what_cannot_be_meant(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_a="import pytest\n"
        "@pytest.mark.amp_memory('1 gig')\ndef test_size():\n    pass\n"
        "def test_fixture(amp):\n    pass\n"
        "def test_other():\n    pass\n"
    )
    project.makeini("[pytest]\namp_dtype = float8\n")
    result = project.runpytest_subprocess("-W", "error", "-p", "xdist", "-n", "2", "test_a.py")
    result.assert_outcomes(errors=2, passed=1)
    result.stdout.fnmatch_lines_random(
        [
            "amp-check: @pytest.mark.amp_memory of test_a.py::test_size: '1 gig' is not a size: *",
            "amp-check: amp_dtype in *ini must be float16 or bfloat16, not 'float8': did you mean 'float16'[?]",
        ]
    )


@needs("pytest_rerunfailures")
def test_reruns_are_checked_again(project: pytest.Pytester) -> None:
    tests = "tries = []\ndef test_flaky():\n    tries.append(1)\n    train('clip' if len(tries) == 1 else '')\n"
    result = run(project, tests + BAD, "-p", "pytest_rerunfailures", "--reruns=1")
    assert result.parseoutcomes() == {"passed": 1, "failed": 1, "rerun": 2}
    assert summary(result) == ["1  AMP201  [error]  clip-before-unscale", "Found 1 error in 2 tests that train."]


@needs("pytest_randomly")
def test_seeds_of_the_fixture_hold_against_those_of_randomly(project: pytest.Pytester) -> None:
    tests = (
        "import pathlib, random\nimport numpy, torch\n"
        "@pytest.fixture\ndef drawn(amp):\n    return [random.random(), torch.rand(1).item(), numpy.random.rand()]\n"
        "def test_it(drawn):\n"
        "    numbers = [*drawn, random.random(), torch.rand(1).item(), numpy.random.rand()]\n"
        "    assert len(set(numbers)) == 6\n"
        "    with open('numbers', 'a') as file:\n        print(numbers, file=file)\n"
    )
    randomly = ("-p", "pytest_randomly")
    for flags in ((), randomly, (*randomly, "--randomly-seed=5")):
        run(project, tests, "--amp-device=cpu", *flags).assert_outcomes(passed=1)
    first, second, third = (project.path / "numbers").read_text().splitlines()
    assert first == second == third


@pytest.mark.parametrize(
    ("plugin", "mark"),
    [
        pytest.param("pytest_asyncio.plugin", "pytest.mark.asyncio", marks=needs("pytest_asyncio")),
        pytest.param("anyio.pytest_plugin", "pytest.mark.anyio", marks=needs("anyio")),
    ],
)
def test_async_tests(project: pytest.Pytester, plugin: str, mark: str) -> None:
    result = run(
        project,
        "import asyncio\n"
        "@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
        f"@{mark}\nasync def test_good():\n    await asyncio.sleep(0)\n    train()\n"
        f"@{mark}\nasync def test_bad():\n    await asyncio.sleep(0)\n    train('clip')\n"
        f"@{mark}\n@pytest.mark.amp(device='cpu', dtype='bfloat16')\n"
        "async def test_amp(amp):\n"
        "    with amp.record() as run:\n        train('clip')\n"
        "    await asyncio.sleep(0)\n    assert run.findings\n",
        "-p",
        plugin,
        *(("-o", "asyncio_default_fixture_loop_scope=function") if "asyncio" in plugin else ()),
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines([ONE, "    1. train.py:14 (called from test_a.py:*): *"])
    for foreign in ("asyncio/", "site-packages"):
        assert foreign not in result.stdout.str().replace(f"rootdir: {project.path}", "")


# torch: loaded late, or not installed.


def python(project: pytest.Pytester, first: str, *arguments: str) -> pytest.RunResult:
    """Run pytest in a separate process that executes a line first."""
    program = f"import sys; {first}; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    return project.run(sys.executable, "-c", program, "-p", "no:cacheprovider", "-W", "error", *arguments)


def test_torch_is_not_loaded_for_tests_that_do_not_use_it(project: pytest.Pytester) -> None:
    project.makepyfile(
        train="x = 1\n",
        test_a="import sys\ndef test_it():\n    pass\ndef test_no_torch():\n    assert 'torch' not in sys.modules\n",
    )
    python(project, "pass", "--amp-check").assert_outcomes(passed=4)


@pytest.mark.long
def test_a_test_may_be_the_first_to_import_torch(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_a="def test_other():\n    pass\ndef test_bad():\n    from train import train\n    train('clip')\n"
    )
    result = python(project, "pass", "--amp-check", "--amp-only=runtime", "test_a.py")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([ONE])


def test_without_torch_source_is_read_and_one_line_says_so(project: pytest.Pytester) -> None:
    project.makepyfile(train="x = 1\n", test_a="def test_it():\n    pass\n")
    result = python(project, "sys.modules['torch'] = None", "--amp-check")
    result.assert_outcomes(passed=3)
    said = "amp-check: source is read; tests are not recorded, because torch is not installed"
    assert result.outlines.count(said) == 1
    assert "No AMP mistakes found in 2 files." in result.outlines
    result = python(project, "sys.modules['torch'] = None", "--amp-check", "--amp-only=runtime")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.errlines == ["ERROR: amp-check: --amp-only needs torch: pip install 'pytest-amp-check[torch]'", ""]


def test_without_torch_fixture_and_budget_say_so(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_a="import pytest\ndef test_amp(amp):\n    pass\n"
        "@pytest.mark.amp_memory('1 GiB')\ndef test_memory():\n    pass\n"
    )
    result = python(project, "sys.modules['torch'] = None")
    result.assert_outcomes(errors=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "the fixture amp needs torch: pip install 'pytest-amp-check[torch]'",
            "amp_memory needs torch, which is not installed: nothing was measured",
        ]
    )


def test_the_plugin_can_be_turned_off(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_PLUGINS")
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    off = ("-p", "no:amp_check", "-p", "no:asyncio")
    project.makepyfile(test_a="def test_it():\n    pass\n")
    python(project, "pass", *off).assert_outcomes(passed=1)
    assert python(project, "pass", *off, "--amp-check").ret == pytest.ExitCode.USAGE_ERROR


# The report.


def test_the_report_shows_every_test_that_trains(project: pytest.Pytester) -> None:
    result = run(
        project,
        BAD + "def test_good():\n    train(skip=True)\n"
        "def test_other():\n    pass\n"
        "@pytest.mark.amp(device='cpu')\n"
        "def test_own(amp):\n    with amp.record(title='by hand'):\n        train()\n",
        "--amp-report=out/amp.html",
    )
    result.assert_outcomes(passed=3, failed=1)
    assert summary(result)[-1] == "The report of 3 runs is in out/amp.html."
    page = (project.path / "out" / "amp.html").read_text()
    for title in ("test_a.py::test_bad", "test_a.py::test_good", "test_a.py::test_own: by hand", "clip-before-unscale"):
        assert title in page
    assert "test_a.py::test_other" not in page


def test_recorded_tests_are_shown_beside_those_of_another_day(project: pytest.Pytester) -> None:
    result = run(project, BAD, "--amp-data=before.json")
    assert summary(result)[-1] == "The data of 1 run is in before.json."
    again = run(project, "def test_bad():\n    train()\n", "--amp-report=amp.html", "--amp-compare=before.json")
    again.assert_outcomes(passed=1)
    page = (project.path / "amp.html").read_text()
    assert '<a href="#compare-1">test_a.py::test_bad beside test_a.py::test_bad</a>' in page
    assert "<td>only in the other</td>" in page


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--amp-compare=gone.json", "--amp-report=x.html"), "--amp-compare: *gone.json cannot be read: no such file"),
        (("--amp-compare=test_a.py",), "--amp-compare shows other runs in a report: name that by --amp-report"),
        (("--amp-compare=test_a.py", "--amp-report=x.html"), "--amp-compare: *test_a.py holds no run: name a file of"),
    ],
)
def test_what_cannot_be_compared_is_said_at_the_start(
    project: pytest.Pytester, flags: tuple[str, ...], said: str
) -> None:
    result = run(project, BAD, *flags)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{said}*"])


def test_data_that_cannot_be_written_at_the_end_fails_the_run(project: pytest.Pytester) -> None:
    result = run(project, "def test_good():\n    train()\n", "--amp-data=none/x.json")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert summary(result)[-1].endswith("none/x.json cannot be written: no such file or directory")


def test_a_report_that_cannot_be_written_is_said_at_the_start(project: pytest.Pytester) -> None:
    (project.path / "folder").mkdir()
    result = run(project, BAD, "--amp-report=folder")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "it is a folder" in result.stderr.str()
    assert "Traceback" not in result.stderr.str()


def test_a_report_that_cannot_be_written_at_the_end_fails_the_run(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(runs: object, path: str, *, others: object) -> None:
        raise html.ReportUnavailable("the disk is full")

    monkeypatch.setattr(html, "write_report", full)
    result = run(project, "def test_good():\n    train()\n", "--amp-report=amp.html")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert summary(result)[-1] == "amp-check: error: the disk is full"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--amp-only=static",), "--amp-only says how --amp-check works: give that too"),
        (("--amp-report=x.html",), "--amp-report says how --amp-check works: give that too"),
        (("--amp-check", "--amp-only=both"), "--amp-only must be one of static, runtime, not 'both'"),
        (
            ("--amp-check", "--amp-only=static", "--amp-report=x.html"),
            "--amp-report needs recorded tests: leave --amp-only out",
        ),
    ],
)
def test_wrong_flags_are_one_sentence(project: pytest.Pytester, flags: tuple[str, ...], said: str) -> None:
    result = project.runpytest_inprocess(*flags)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.errlines == [f"ERROR: amp-check: {said}", ""]


def test_a_test_that_torch_ends_says_why(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        import torch

        def test_ends():
            hidden = torch.eye(4).half()
            torch.inverse(hidden)

        def test_expects_it():
            with pytest.raises(RuntimeError, match="Low precision"):
                torch.inverse(torch.eye(4).half())
        """.replace("\n        ", "\n"),
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*linalg.inv: Low precision dtypes not supported. Got Half",
            "*- amp-check -*",
            "test_a.py:9:5: AMP810 [[]error] refused-by-torch: `torch.inverse` has no kernel for float16, *",
        ]
    )


# Charts in the summary.

ASKS = """
from train import train

def test_asks(amp):
    with amp.record(numerics=True, memory=True):
        train()

def test_quiet():
    train()
"""


def summary_of(result: pytest.RunResult) -> list[str]:
    lines = [str(line) for line in result.outlines]
    return lines[next(i for i, line in enumerate(lines) if "amp-check ==" in line or "= amp" in line) :]


@pytest.mark.long
@pytest.mark.parametrize("workers", [(), pytest.param(("-p", "xdist", "-n", "1"), marks=needs("xdist"))])
def test_what_tests_ask_for_is_charted_in_the_summary(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "64")
    monkeypatch.setenv("TERM", "dumb")
    project.makepyfile(test_asks=ASKS)
    result = run_pytest(project, *FLAGS, *workers, "-v", warm_children=True)
    shown = summary_of(result)
    assert "test_asks.py::test_asks" in shown
    assert "  scale     128 ::: 128, 0 of 3 steps skipped" in shown
    assert any(line.startswith("  memory    ") for line in shown)
    assert any(line.startswith("  underflow ") for line in shown)
    assert any(line.rstrip().endswith("#") and "temporaries" in line for line in shown)
    assert max(len(line) for line in shown if line.lstrip().startswith(("parameters", "temporaries"))) <= 64
    # A color terminal shows the same text, in color.
    coloured = run_pytest(project, *FLAGS, *workers, "-v", "--color=yes", warm_children=True)
    assert "\x1b[" in "".join(line for line in coloured.outlines if "of 3 steps skipped" in line)
    reported = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in summary_of(coloured)]
    assert reported[:-1] == shown[:-1]
    # A training without problems is not mentioned, and no training is mentioned without -v.
    assert not any("test_quiet" in line for line in shown)
    assert "  scale " not in "\n".join(summary_of(run_pytest(project, *FLAGS, *workers, warm_children=True)))
