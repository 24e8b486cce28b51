"""``pytest --amp-check``: files as items, in every mode in which pytest runs items."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from warm import run_pytest

from pytest_amp_check.protocol.rules import RULES

# Loaded here, so that runs inside this process do not load these modules again each time.
from pytest_amp_check.static import cache, engine, entry_points  # noqa: F401

pytest_plugins = ["pytester"]

BAD = RULES["AMP201"].bad_example
GOOD = RULES["AMP201"].good_example
INFO = RULES["AMP503"].bad_example
#: Training code that must not run during a check.
LOUD = GOOD + "\nraise SystemExit('this script was run')\n"
TEST = "def test_pass():\n    pass\n"

needs_xdist = pytest.mark.skipif(importlib.util.find_spec("xdist") is None, reason="needs pytest-xdist")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let inner runs load only this plugin: other installed plugins take up to a second to import."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_amp_check.frontends.plugin")


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """Create a package with training code that cannot be imported, and tests beside the package."""
    for path, text in {
        "src/pkg/__init__.py": "raise RuntimeError('the package was imported')\n",
        "src/pkg/bad.py": BAD,
        "src/pkg/good.py": GOOD,
        "tests/conftest.py": "",
        "tests/test_one.py": TEST,
        "tests/deep/conftest.py": "",
        "tests/deep/test_two.py": TEST,
    }.items():
        file = pytester.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return pytester


def nodes(result: pytest.RunResult) -> list[str]:
    """Return the node ids that ``--co -q`` lists."""
    return [line for line in result.outlines if "::" in line]


def summary(result: pytest.RunResult) -> list[str]:
    """Return the lines of our section at the end."""
    lines = result.outlines
    starts = [number for number, line in enumerate(lines) if re.fullmatch(r"=+ amp-check =+", line)]
    assert len(starts) == 1
    section = []
    for line in lines[starts[0] + 1 :]:
        if line.startswith("=") or re.search(r" in [\d.]+s", line):
            break
        section.append(line)
    return [line for line in section if line]


def test_nothing_happens_without_the_option(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\namp_check_paths = src\namp_select = NO_SUCH_RULE\n")
    (project.path / "pyproject.toml").write_text("[tool.amp-check]\nno-such-key = 1\n")
    result = project.runpytest_subprocess("tests", "-v")
    result.assert_outcomes(passed=2)
    assert "amp-check" not in result.stdout.str()


def test_the_plugin_imports_nothing_heavy() -> None:
    program = (
        "import sys, pytest; before = set(sys.modules); import pytest_amp_check.frontends.plugin;"
        "new = set(sys.modules) - before; print(sorted(m for m in new if not m.startswith('pytest_amp_check')));"
        "print(sorted(m for m in new if '.static' in m or '.rules' in m))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n[]\n"


def test_a_script_is_an_item_that_fails_with_its_findings(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(train=BAD)
    result = pytester.runpytest("--amp-check", "train.py", "-v")
    result.assert_outcomes(failed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "train.py::amp-check FAILED*",
            "*_ amp-check: train.py _*",
            "train.py:*: AMP201 [[]error[]] clip-before-unscale: *",
            "*| *clip_grad_norm_(*",
            "   | *^^^^*",
            "  more: amp-check explain AMP201",
            "*= amp-check =*",
            "1  AMP201  [[]error[]]  clip-before-unscale",
            "Found 1 error in 1 file.",
            "FAILED train.py::amp-check*",
        ]
    )
    assert "Traceback" not in result.stdout.str()
    assert "plugin.py" not in result.stdout.str()


def test_a_good_script_passes_and_is_not_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(train=LOUD)
    result = pytester.runpytest("--amp-check", "train.py")
    result.assert_outcomes(passed=1)
    assert summary(result) == ["No AMP mistakes found in 1 file."]


def test_what_was_found_is_remembered_unless_pytest_keeps_no_cache(project: pytest.Pytester) -> None:
    folder = project.path / ".amp_check_cache"
    project.runpytest("--amp-check", "-p", "no:cacheprovider", "src")
    assert not folder.exists()
    first = project.runpytest("--amp-check", "src")
    assert folder.is_dir()
    assert summary(project.runpytest("--amp-check", "src")) == summary(first)
    (project.path / "src" / "pkg" / "bad.py").write_text(GOOD)
    project.runpytest("--amp-check", "src").assert_outcomes(passed=3)


def test_info_does_not_fail_and_is_shown_at_the_end(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(train=INFO)
    result = pytester.runpytest("--amp-check", "--amp-select=AMP503", "train.py")
    result.assert_outcomes(passed=1)
    counted, shown, total = summary(result)
    assert counted == "1  AMP503  [info]  scaler-with-bf16"
    assert shown.startswith("train.py:")
    assert "AMP503 [info] scaler-with-bf16: " in shown
    assert total == "Found 1 info in 1 file."


def test_a_folder_gives_each_python_file_once_and_tests_as_they_were(project: pytest.Pytester) -> None:
    result = project.runpytest("--amp-check", "--co", "-q")
    assert sorted(nodes(result)) == [
        "src/pkg/__init__.py::amp-check",
        "src/pkg/bad.py::amp-check",
        "src/pkg/good.py::amp-check",
        "tests/conftest.py::amp-check",
        "tests/deep/conftest.py::amp-check",
        "tests/deep/test_two.py::amp-check",
        "tests/deep/test_two.py::test_pass",
        "tests/test_one.py::amp-check",
        "tests/test_one.py::test_pass",
    ]
    result = project.runpytest("--amp-check")
    result.assert_outcomes(passed=8, failed=1)


def test_arguments_that_overlap_do_not_double_items(project: pytest.Pytester) -> None:
    arguments = ("src", "src/pkg/bad.py", ".", "tests/test_one.py", "tests/test_one.py")
    result = project.runpytest("--amp-check", "--co", "-q", *arguments)
    listed = [node for node in nodes(result) if node.endswith("::amp-check")]
    assert len(listed) == len(set(listed))
    assert {"src/pkg/bad.py::amp-check", "tests/test_one.py::amp-check"} <= set(listed)


def test_a_test_module_named_on_the_command_line_is_tested_and_checked(project: pytest.Pytester) -> None:
    result = project.runpytest("--amp-check", "--co", "-q", "tests/test_one.py")
    assert sorted(nodes(result)) == ["tests/test_one.py::amp-check", "tests/test_one.py::test_pass"]


def test_items_can_be_named(project: pytest.Pytester) -> None:
    result = project.runpytest("--amp-check", "src/pkg/bad.py::amp-check", "tests/test_one.py::test_pass", "-v")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["src/pkg/bad.py::amp-check FAILED*", "tests/test_one.py::test_pass PASSED*"])


def test_a_test_named_in_a_script_is_still_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(train=TEST)
    for argument, expected in (
        ("train.py", ["train.py::amp-check"]),
        ("train.py::amp-check", ["train.py::amp-check"]),
        ("train.py::test_pass", ["train.py::test_pass"]),
    ):
        result = pytester.runpytest("--amp-check", "--co", "-q", argument)
        assert nodes(result) == expected


def test_python_files_says_what_a_test_module_is(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(check_model=TEST)
    (pytester.path / "pytest.ini").write_text("[pytest]\npython_files = check_*.py\n")
    result = pytester.runpytest("--amp-check", "--co", "-q", "check_model.py")
    assert sorted(nodes(result)) == ["check_model.py::amp-check", "check_model.py::test_pass"]


@pytest.mark.parametrize("workers", [(), pytest.param(("-p", "xdist", "-n", "2"), marks=needs_xdist)])
def test_a_file_named_by_testpaths_keeps_its_tests(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(checks=TEST)
    pytester.makeini("[pytest]\ntestpaths = checks.py\n")
    run_pytest(pytester, "--amp-check", *workers, trains=False, warm_children=True).assert_outcomes(passed=2)
    run_pytest(pytester, "--amp-check", *workers, "checks.py", trains=False, warm_children=True).assert_outcomes(
        passed=1
    )


@pytest.mark.parametrize("where", ["pytest.ini", "pyproject.toml"])
def test_own_paths_are_checked_besides_what_pytest_collects(project: pytest.Pytester, where: str) -> None:
    (project.path / "pytest.ini").write_text(
        "[pytest]\ntestpaths = tests/deep\n" + ("amp_check_paths = src\n" if where == "pytest.ini" else "")
    )
    if where == "pyproject.toml":
        (project.path / where).write_text('[tool.amp-check]\npaths = ["src"]\n')
    result = project.runpytest("--amp-check", "--co", "-q")
    assert nodes(result) == [
        "tests/deep/conftest.py::amp-check",
        "tests/deep/test_two.py::test_pass",
        "tests/deep/test_two.py::amp-check",
        "src/pkg/__init__.py::amp-check",
        "src/pkg/bad.py::amp-check",
        "src/pkg/good.py::amp-check",
    ]
    result = project.runpytest("--amp-check")
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(["collected 6 items"])
    # Files that pytest collects anyway are not listed twice.
    result = project.runpytest("--amp-check", "--co", "-q", "src", "tests/test_one.py")
    assert len(nodes(result)) == len(set(nodes(result))) == 5
    # The node id of one item selects exactly this item.
    result = project.runpytest("--amp-check", "--co", "-q", "tests/test_one.py::test_pass")
    assert nodes(result) == ["tests/test_one.py::test_pass"]
    result = project.runpytest("--amp-check", "--co", "-q", "src/pkg/bad.py::amp-check")
    assert nodes(result) == ["src/pkg/bad.py::amp-check"]


def test_own_paths_may_lie_outside_and_be_single_files(
    project: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "train.py"
    outside.write_text(BAD)
    project.makeini(f"[pytest]\ntestpaths = tests/deep\namp_check_paths = src/pkg/bad.py {outside}\n")
    result = project.runpytest("--amp-check", "-q")
    result.assert_outcomes(passed=3, failed=2)


def test_selecting_by_keyword_and_marker(project: pytest.Pytester) -> None:
    def listed(*arguments: str) -> list[str]:
        return nodes(project.runpytest("--amp-check", "--co", "-q", "--strict-markers", *arguments))

    assert listed("-k", "bad") == ["src/pkg/bad.py::amp-check"]
    assert len(listed("-k", "amp-check")) == 7
    assert listed("-k", "not amp-check") == ["tests/deep/test_two.py::test_pass", "tests/test_one.py::test_pass"]
    assert len(listed("-m", "amp_check")) == 7
    assert listed("-m", "not amp_check") == ["tests/deep/test_two.py::test_pass", "tests/test_one.py::test_pass"]
    assert len(listed("--deselect", "src/pkg/bad.py::amp-check")) == 8
    project.makeini("[pytest]\ntestpaths = tests\namp_check_paths = src\n")
    assert listed("-k", "bad") == ["src/pkg/bad.py::amp-check"]
    assert listed("-m", "amp_check", "-k", "pkg and not good") == [
        "src/pkg/__init__.py::amp-check",
        "src/pkg/bad.py::amp-check",
    ]


def test_the_marker_is_registered(pytester: pytest.Pytester) -> None:
    pytester.runpytest("--markers").stdout.fnmatch_lines(["@pytest.mark.amp_check: *"])


def test_nothing_checked_is_said(project: pytest.Pytester) -> None:
    result = project.runpytest("--amp-check", "-m", "not amp_check")
    assert summary(result) == ["No file was checked, and no test trained."]
    result = project.runpytest("--amp-check", "-m", "not amp_check", "--amp-only=static")
    assert summary(result) == ["No file was checked."]


def test_last_failed_runs_only_what_failed(project: pytest.Pytester) -> None:
    for ini in ("[pytest]\n", "[pytest]\ntestpaths = tests\namp_check_paths = src\n"):
        project.makeini(ini)
        project.runpytest("--amp-check").assert_outcomes(passed=8, failed=1)
        result = project.runpytest("--amp-check", "--lf", "-v")
        assert result.parseoutcomes().get("failed") == 1
        assert "passed" not in result.parseoutcomes()
        result.stdout.fnmatch_lines(["src/pkg/bad.py::amp-check FAILED*"])
    (project.path / "src/pkg/bad.py").write_text(GOOD)
    result = project.runpytest("--amp-check", "--lf")
    assert result.parseoutcomes()["passed"] == 1


def test_exitfirst_stops_at_the_first_finding(project: pytest.Pytester) -> None:
    result = project.runpytest("--amp-check", "-x")
    assert result.parseoutcomes() == {"failed": 1, "passed": 1}
    assert summary(result)[-1] == "Found 1 error in 2 files."


def test_it_works_without_the_cache(project: pytest.Pytester) -> None:
    result = project.runpytest("--amp-check", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=8, failed=1)
    assert "Error" not in result.stderr.str()


def test_a_second_run_passes_what_passed(project: pytest.Pytester) -> None:
    for _ in range(2):
        project.runpytest("--amp-check").assert_outcomes(passed=8, failed=1, skipped=0)


@pytest.mark.parametrize(("flags", "shown"), [((), True), (("-q",), True), (("-qq",), False), (("-vv",), True)])
def test_verbosity(project: pytest.Pytester, flags: tuple[str, ...], shown: bool) -> None:
    result = project.runpytest("--amp-check", *flags)
    assert result.ret == 1
    assert ("Found 1 error in 7 files." in result.outlines) is shown
    assert "AMP201" in result.stdout.str()


def test_junit_xml(project: pytest.Pytester) -> None:
    project.runpytest("--amp-check", "--junit-xml=report.xml")
    cases = {
        (case.get("classname"), case.get("name")): case
        for case in ET.parse(project.path / "report.xml").iter("testcase")
    }
    assert len(cases) == 9
    failure = cases["src.pkg.bad", "amp-check"].find("failure")
    assert failure is not None
    assert failure.text is not None
    assert failure.text.startswith("src/pkg/bad.py:")
    assert "AMP201" in (failure.get("message") or "")
    assert "Traceback" not in failure.text
    assert cases["src.pkg.good", "amp-check"].find("failure") is None


def test_pytest_finds_the_plugin_by_itself() -> None:
    (point,) = importlib.metadata.entry_points(group="pytest11", name="amp_check")
    assert point.value == "pytest_amp_check.frontends.plugin"


@needs_xdist
@pytest.mark.parametrize(
    "distribution",
    [
        "load",
        "each",
        pytest.param("loadfile", marks=pytest.mark.exhaustive),
        pytest.param("worksteal", marks=pytest.mark.exhaustive),
    ],
)
def test_workers_share_one_analysis(project: pytest.Pytester, distribution: str) -> None:
    # The analysis is counted from outside: a conftest writes a line each time it runs.
    (project.path / "conftest.py").write_text(
        "import os\n"
        "from pytest_amp_check.static import engine\n"
        "real = engine.check_paths\n"
        "def counted(paths, *more, **named):\n"
        "    with open(os.path.join(os.path.dirname(__file__), 'analyses'), 'a') as file:\n"
        "        file.write(f'{len(paths)}\\n')\n"
        "    return real(paths, *more, **named)\n"
        "engine.check_paths = counted\n"
    )
    for index in range(20):
        (project.path / "src" / f"more{index}.py").write_text(GOOD)
    arguments = ["--amp-check", "-p", "xdist", "-n", "2", "--dist", distribution, "--basetemp=base"]
    result = run_pytest(project, *arguments, "-v", "--junit-xml=report.xml", trains=False, warm_children=True)
    times = 2 if distribution == "each" else 1
    result.assert_outcomes(passed=29 * times, failed=times)
    assert (project.path / "analyses").read_text() == "28\n"
    assert summary(result) == ["1  AMP201  [error]  clip-before-unscale", "Found 1 error in 28 files."]
    result.stdout.fnmatch_lines(["*FAILED*src/pkg/bad.py::amp-check*", "*_ amp-check: src/pkg/bad.py _*"])
    assert "Traceback" not in result.stdout.str()


@needs_xdist
def test_workers_leave_nothing_behind(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    left = project.mkdir("tmp")
    monkeypatch.setenv("TMPDIR", str(left))
    project.runpytest_subprocess("--amp-check", "-p", "xdist", "-n", "2", "tests").assert_outcomes(passed=6)
    assert list(left.glob("amp-check-*")) == []


@needs_xdist
def test_workers_check_own_paths_too(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\ntestpaths = tests\namp_check_paths = src\n")
    result = run_pytest(project, "--amp-check", "-p", "xdist", "-n", "2", trains=False, warm_children=True)
    result.assert_outcomes(passed=8, failed=1)
    assert summary(result)[-1] == "Found 1 error in 7 files."


def test_an_item_that_was_not_analysed_with_the_others_is_analysed(project: pytest.Pytester) -> None:
    # A plugin that reorders or adds items late must not hide files.
    (project.path / "conftest.py").write_text(
        "import pytest\n"
        "@pytest.hookimpl(trylast=True)\n"
        "def pytest_collection_modifyitems(session, items):\n"
        "    items.reverse()\n"
    )
    result = project.runpytest("--amp-check")
    assert result.parseoutcomes()["failed"] == 1


def test_exclude_leaves_out_what_pytest_visits_but_not_what_is_named(project: pytest.Pytester) -> None:
    (project.path / "pyproject.toml").write_text('[tool.amp-check]\nexclude = ["src/pkg", "conftest.py"]\n')
    result = project.runpytest("--amp-check", "--co", "-q")
    assert [node for node in nodes(result) if node.endswith("amp-check")] == [
        "tests/deep/test_two.py::amp-check",
        "tests/test_one.py::amp-check",
    ]
    result = project.runpytest("--amp-check", "--co", "-q", "src/pkg/bad.py")
    assert nodes(result) == ["src/pkg/bad.py::amp-check"]


def test_rules_are_chosen(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(train=BAD)
    pytester.runpytest("--amp-check", "--amp-ignore=AMP2", "train.py").assert_outcomes(passed=1)
    pytester.runpytest("--amp-check", "--amp-select=AMP1", "train.py").assert_outcomes(passed=1)
    pytester.runpytest("--amp-check", "--amp-select=AMP2", "train.py").assert_outcomes(failed=1)
    for line in (
        "amp_ignore = clip-before-unscale",
        "amp_per_file_ignores = tr*.py: AMP2",
        "amp_severity = AMP201=info",
    ):
        pytester.makeini(f"[pytest]\n{line}\n")
        pytester.runpytest("--amp-check", "train.py").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("ini", "flags", "said"),
    [
        ("", ("--amp-select=AMP2O1",), "amp-check: --amp-select: unknown rule 'AMP2O1': did you mean 'AMP201'?"),
        ("amp_ignore = AMP2O1", (), "unknown rule 'AMP2O1': did you mean 'AMP201'?"),
        ("amp_severity = AMP201", (), "must be RULE=SEVERITY, not 'AMP201'"),
        ("amp_check_paths = nowhere", (), "does not exist"),
    ],
)
def test_wrong_configuration_is_a_usage_error(
    pytester: pytest.Pytester, ini: str, flags: tuple[str, ...], said: str
) -> None:
    pytester.makepyfile(train=GOOD)
    pytester.makeini(f"[pytest]\n{ini}\n")
    result = pytester.runpytest("--amp-check", *flags, "train.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in result.stderr.str()
    assert "Traceback" not in result.stderr.str()


def test_a_broken_file_is_a_finding_and_not_a_collection_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(train=BAD + "\ndef broken(:\n")
    result = pytester.runpytest("--amp-check", "train.py")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["train.py:*: AMP903 *"])


def test_a_file_behind_a_link_is_found_at_both_names(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(train=BAD)
    link = Path(pytester.path / "link.py")
    try:
        link.symlink_to("train.py")
    except OSError:
        pytest.skip("this file system has no links")
    pytester.runpytest("--amp-check", "train.py", "link.py").assert_outcomes(failed=2)


def test_a_test_that_changes_the_folder_changes_nothing(pytester: pytest.Pytester, tmp_path: Path) -> None:
    pytester.makepyfile(test_a=f"import os\ndef test_move():\n    os.chdir({str(tmp_path)!r})\n", train=BAD)
    result = run_pytest(pytester, "--amp-check", "test_a.py", "train.py", trains=False)
    result.assert_outcomes(passed=2, failed=1)
    assert "AMP201" in result.stdout.str()


# Other options of pytest, and the configuration files of single files.

EXAMPLE = '''import torch\n\n\ndef double(x):\n    """\n    >>> double(2)\n    4\n    """\n    return 2 * x\n'''


def test_examples_in_a_named_script_are_run_where_pytest_is_asked_for_them(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(train=EXAMPLE)
    result = pytester.runpytest("--amp-check", "--doctest-modules", "train.py", "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines_random(["train.py::train.double PASSED*", "train.py::amp-check PASSED*"])
    pytester.makepyfile(train=LOUD)
    pytester.runpytest("--amp-check", "train.py", "-v").assert_outcomes(passed=1)


@pytest.fixture
def configured(project: pytest.Pytester) -> pytest.Pytester:
    """Add a generated module to the package, which is checked by configuration."""
    (project.path / "src/pkg/gen").mkdir()
    (project.path / "src/pkg/gen/made.py").write_text(BAD)
    project.makeini("[pytest]\namp_check_paths = src\n")
    return project


ALL = {"src/pkg/__init__.py", "src/pkg/bad.py", "src/pkg/good.py", "src/pkg/gen/made.py"}


def checked(result: pytest.RunResult) -> set[str]:
    return {node.removesuffix("::amp-check") for node in nodes(result) if node.endswith("::amp-check")}


@pytest.mark.parametrize(
    ("flags", "ignored"),
    [
        ([], set()),
        (["--ignore=src/pkg/bad.py"], {"src/pkg/bad.py"}),
        (["--ignore=src/pkg/gen"], {"src/pkg/gen/made.py"}),
        (["--ignore-glob=*/good.py"], {"src/pkg/good.py"}),
        (["--ignore=src"], ALL),
        (["-o", "norecursedirs=gen"], {"src/pkg/gen/made.py"}),
        # A named folder is entered, regardless of its name.
        (["-o", "norecursedirs=src gen"], {"src/pkg/gen/made.py"}),
    ],
)
def test_what_an_option_ignores_is_no_item(configured: pytest.Pytester, flags: list[str], ignored: set[str]) -> None:
    result = run_pytest(configured, "--amp-check", "--co", "-q", "tests/deep", *flags, trains=False)
    assert checked(result) - {"tests/deep/conftest.py", "tests/deep/test_two.py"} == ALL - ignored


@pytest.mark.parametrize(
    ("conftest", "text", "ignored"),
    [
        (
            "conftest.py",
            "collect_ignore = ['src/pkg/bad.py', 'src/pkg/gen']",
            {"src/pkg/bad.py", "src/pkg/gen/made.py"},
        ),
        ("conftest.py", "collect_ignore_glob = ['*/good.py']", {"src/pkg/good.py"}),
        ("src/conftest.py", "collect_ignore = ['pkg/bad.py']", {"src/pkg/bad.py"}),
        ("src/conftest.py", "collect_ignore_glob = ['pkg/g*']", {"src/pkg/good.py", "src/pkg/gen/made.py"}),
    ],
)
def test_what_a_conftest_ignores_is_no_item(
    configured: pytest.Pytester, conftest: str, text: str, ignored: set[str]
) -> None:
    (configured.path / conftest).write_text(text + "\n")
    result = run_pytest(configured, "--amp-check", "--co", "-q", "tests/deep", trains=False)
    found = checked(result) - {"tests/deep/conftest.py", "tests/deep/test_two.py", "src/conftest.py"}
    assert found == ALL - ignored


def test_a_conftest_of_the_checked_folder_that_fails_is_said(configured: pytest.Pytester) -> None:
    (configured.path / "src/conftest.py").write_text("raise RuntimeError('this conftest')\n")
    result = run_pytest(configured, "--amp-check", "tests/deep", trains=False)
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*this conftest*"])


def test_who_selects_files_is_not_given_those_of_the_configuration(configured: pytest.Pytester) -> None:
    for selected in (["tests/test_one.py"], ["tests/test_one.py::test_pass"], ["tests/test_one.py", "src/pkg/good.py"]):
        result = run_pytest(configured, "--amp-check", "--co", "-q", *selected, trains=False)
        assert not checked(result) & (ALL - {*selected})
    for selected in ([], ["tests"], ["tests/deep", "tests/test_one.py"]):
        result = run_pytest(configured, "--amp-check", "--co", "-q", *selected, trains=False)
        assert checked(result) >= ALL
    result = run_pytest(configured, "--amp-check", "--co", "-q", "-o", "testpaths=tests/test_one.py", trains=False)
    assert checked(result) >= ALL


def test_what_pytest_keeps_for_itself_is_no_item(project: pytest.Pytester) -> None:
    (project.path / ".pytest_cache").mkdir()
    (project.path / ".pytest_cache/README.md").write_text("# pytest cache\n")
    result = run_pytest(project, "--amp-check", "--co", "-q", "-o", "norecursedirs=nothing", trains=False)
    assert checked(result) >= {"src/pkg/bad.py", "src/pkg/good.py"}
    assert not [name for name in checked(result) if name.startswith(".pytest_cache")]


def test_the_nearest_configuration_holds_for_each_item(project: pytest.Pytester) -> None:
    (project.path / "pyproject.toml").write_text("[tool.amp-check]\nignore = ['AMP201']\nforce-exclude = true\n")
    for name in ("inner/train.py", "inner/gen/made.py"):
        (project.path / name).parent.mkdir(exist_ok=True)
        (project.path / name).write_text(BAD)
    table = "[tool.amp-check]\nexclude = ['gen']\nforce-exclude = true\n"
    (project.path / "inner/pyproject.toml").write_text(table)
    result = run_pytest(project, "--amp-check", "-v", "-p", "no:cacheprovider", ".", trains=False)
    lines = [line for line in result.outlines if "::amp-check " in line and not line.startswith("FAILED")]
    ended = {line.split("::")[0]: line.split()[1] for line in lines}
    assert ended["inner/train.py"] == "FAILED"
    assert ended["src/pkg/bad.py"] == "PASSED"
    assert "inner/gen/made.py" not in ended


def test_a_file_that_is_named_and_excluded_is_skipped(project: pytest.Pytester) -> None:
    (project.path / "src/pyproject.toml").write_text("[tool.amp-check]\nexclude = ['bad.py']\nforce-exclude = true\n")
    result = run_pytest(project, "--amp-check", "-rs", "-p", "no:cacheprovider", "src/pkg/bad.py", trains=False)
    result.assert_outcomes(skipped=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["No file was checked*", "SKIPPED * src/pkg/bad.py: exclude and force-exclude leave it out"]
    )


@pytest.mark.skipif(pytest.version_tuple < (9,), reason="pytest 8 shows nothing there of a failure that is text")
def test_the_summary_line_of_an_item_shows_its_worst_finding(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    pytester.makepyfile(train=INFO.rstrip("\n") + "\n\n\n" + BAD)
    result = run_pytest(pytester, "--amp-check", "--amp-select", "AMP503,AMP201", "train.py", trains=False)
    result.assert_outcomes(failed=1)
    (line,) = [line for line in result.outlines if line.startswith("FAILED train.py::amp-check")]
    assert " AMP201 " in line
    shown = [line for line in result.outlines if re.match(r"train\.py:\d+:\d+: AMP", line)]
    assert [line.split()[1] for line in shown][:2] == ["AMP201", "AMP503"]
