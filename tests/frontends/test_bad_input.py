"""Files that cannot be written, read or parsed: one sentence each, the correct exit code, and no lost data."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path
from urllib.parse import unquote

import pytest
from doors import flake8
from samples import sample
from warm import RECORDER, run_command, run_pytest, warm_python

from pytest_amp_check.frontends.formats import FORMATS
from pytest_amp_check.protocol.rules import RULES

pytest_plugins = ["pytester"]

BAD = RULES["AMP201"].bad_example
GOOD = RULES["AMP201"].good_example
FULL = "/dev/full"
needs_full = pytest.mark.skipif(not os.path.exists(FULL), reason="there is no device that is always full")
LOST = "amp-check: error: output could not be written completely: no space left on device"


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "AMP_CHECK_DEBUG", "PYTHONUNBUFFERED", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_amp_check.frontends.plugin")


def amp_check(*argv: str, cwd: str = ".") -> subprocess.CompletedProcess[str]:
    return run_command(*argv, cwd=cwd)


@pytest.fixture(scope="module")
def project_of_many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with many files for tests of output. Its cache serves all of them."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "train.py").write_text(BAD)
    write_many(folder / "many", 80)
    return folder


def write_many(folder: Path, files: int) -> None:
    """Write files with a mistake each. Each file is longer than the file size limit of a test."""
    folder.mkdir()
    for number in range(files):
        (folder / f"train_{number}.py").write_text(BAD + "# and a comment\n" * 300)


# A disk that is full.

#: Commands that print, an odd number.
PRINTING = [
    *(["check", "many", "--output-format", name] for name in FORMATS),
    ["check", "train.py"],
    ["check", "--diff", "train.py"],
    ["check", "--statistics", "train.py"],
    ["rules"],
    ["explain", "AMP201"],
    ["--help"],
    ["check", "--help"],
    ["--version"],
]


@needs_full
@pytest.mark.parametrize(
    ("unbuffered", "argv"),
    # Half of the pairs: each command once, with and without a buffer in turn.
    sample(product(["", "1"], PRINTING), 2),
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_output_that_cannot_be_written_is_said_and_fails(
    argv: list[str], unbuffered: str, project_of_many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    monkeypatch.chdir(project_of_many)
    with open(FULL, "w") as full:
        done = subprocess.run(
            [warm_python(), "-m", "pytest_amp_check", *argv], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (2, [LOST])
    assert "internal error" not in done.stderr and "Traceback" not in done.stderr


@needs_full
def test_an_error_that_cannot_be_written_keeps_its_exit_code() -> None:
    with open(FULL, "w") as full:
        command = [sys.executable, "-m", "pytest_amp_check", "check", "nowhere.py"]
        assert subprocess.run(command, stdout=subprocess.DEVNULL, stderr=full).returncode == 2


@needs_full
def test_a_run_whose_summary_cannot_be_written_fails_with_one_code() -> None:
    pytest.importorskip("torch")
    Path("train.py").write_text("import torch\n")
    with open(FULL, "w") as full:
        command = [warm_python(RECORDER), "-m", "pytest_amp_check", "run", "train.py"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (2, [LOST])


def test_a_report_that_cannot_be_written_leaves_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    from pytest_amp_check.frontends import html

    Path("report.html").write_text("the last one")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))
    try:
        with pytest.raises(html.ReportUnavailable, match=r"the report cannot be written to report\.html"):
            html.write_report([], "report.html")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir() == ["report.html"]
    assert Path("report.html").read_text() == "the last one"


def on_a_full_disk(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run the command with a limit of 2,048 bytes for each written file.

    Bytecode is not written, because Python would treat a truncated file as complete.
    """
    resource = pytest.importorskip("resource")
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    return subprocess.run(
        [sys.executable, "-m", "pytest_amp_check", *argv],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard)),
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


def many() -> None:
    write_many(Path("many"), 20)


@pytest.mark.exhaustive(every=4)
@pytest.mark.parametrize("name", FORMATS)
def test_a_file_of_findings_that_cannot_be_written_keeps_the_last_one(
    name: str, project_of_many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project_of_many)
    shown = amp_check("check", "many", "--output-format", name).stdout
    Path("found").write_text("the last one")
    before = sorted(os.listdir())
    done = on_a_full_disk("check", "many", "--output-format", name, "--output-file", "found")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("found cannot be written: file too large")
    # The findings are shown instead, because the analysis may have taken long.
    assert done.stdout == shown
    assert sorted(os.listdir()) == before
    assert Path("found").read_text() == "the last one"


@needs_full
@pytest.mark.parametrize("name", FORMATS)
def test_findings_may_be_written_to_a_device_that_is_full(name: str) -> None:
    Path("train.py").write_text(BAD)
    done = amp_check("check", "train.py", "--output-format", name, "--output-file", FULL)
    assert (done.returncode, done.stderr) == (
        2,
        f"amp-check: error: {FULL} cannot be written: no space left on device\n",
    )
    assert "AMP201" in done.stdout


def test_a_baseline_that_cannot_be_written_keeps_the_last_one() -> None:
    many()
    amp_check("check", "many", "--no-cache", "--baseline", "known.json", "--update-baseline")
    last = Path("known.json").read_text()
    Path("many/train_0.py").write_text(GOOD)
    for known in ("known.json", "new.json"):
        done = on_a_full_disk("check", "many", "--no-cache", "--baseline", known, "--update-baseline")
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].endswith(f"{known} cannot be written: file too large")
    assert sorted(os.listdir()) == ["known.json", "many"]
    assert Path("known.json").read_text() == last


@pytest.mark.parametrize("flag", ["--fix", "--add-ignores"])
def test_files_that_cannot_be_put_right_stay_as_they_are(flag: str) -> None:
    many()
    Path("small.py").write_text(BAD)
    before = {path: path.read_text() for path in Path("many").iterdir()}
    done = on_a_full_disk("check", "many", "small.py", flag, "--no-cache")
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if line.startswith("amp-check: error: ")]
    assert said == [f"amp-check: error: {path} cannot be written: file too large" for path in sorted(map(str, before))]
    assert {path: path.read_text() for path in Path("many").iterdir()} == before
    # The other files are still fixed.
    assert Path("small.py").read_text() != BAD


# Closed output pipes.


@pytest.mark.parametrize("name", FORMATS)
def test_a_reader_that_leaves_is_answered_by_an_exit_code(
    name: str, project_of_many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project_of_many)
    with subprocess.Popen(
        [warm_python(), "-m", "pytest_amp_check", "check", "many", "--output-format", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == ""
        # 1, or 128 more than the number of the signal, 13.
        assert process.wait() in (1, 141)


# Invalid settings.

WRONG = {
    "[tool.amp-check": "is not valid TOML: ",
    '[tool.amp-check]\nselct = ["AMP2"]\n': "did you mean 'select'?",
    "[tool.amp-check]\nselect = 1\n": "must be a list of strings",
    '[tool.amp-check]\nselect = ["AMP999"]\n': "unknown rule 'AMP999': did you mean 'AMP901'?",
    '[tool.amp-check]\nbaseline = "gone.json"\n': "gone.json",
}


@pytest.mark.parametrize("toml", WRONG)
def test_wrong_settings_are_one_sentence_at_every_door(toml: str, pytester: pytest.Pytester) -> None:
    Path("train.py").write_text(BAD)
    Path("pyproject.toml").write_text(toml)
    done = amp_check("check", "train.py")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("amp-check: error: ") and WRONG[toml] in line
    result = run_pytest(pytester, "--amp-check", "--amp-only=static", "train.py", trains=False)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    # If pytest cannot read the file either, pytest itself reports the error.
    assert WRONG[toml].removeprefix("is not valid TOML: ") in result.stderr.str()
    done = flake8("--enable-extensions=AMP", "train.py")
    assert (done.returncode, done.stderr) == (1, "")
    (line,) = (line for line in done.stdout.splitlines() if "AMP" in line)
    assert line.startswith("train.py:1:1: AMP903 not-checked: ") and WRONG[toml] in line
    if "gone.json" not in toml:
        # The file may become invalid during a watch.
        done = amp_check("check", "train.py", "--watch")
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


@needs_full
def test_what_is_no_file_is_no_baseline() -> None:
    done = amp_check("check", "--baseline", FULL)
    said = "it is no regular file, and pipes, sockets and devices are not read"
    assert (done.returncode, done.stderr) == (2, f"amp-check: error: {FULL} cannot be read: {said}\n")


@needs_full
@pytest.mark.parametrize(
    "argv", [["--output-file", FULL], ["--fix", "--show-fixes"], ["nowhere"], ["--output-format", "github"]]
)
def test_other_output_that_cannot_be_written_is_said_too(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", FULL)
    Path("train.py").write_text(BAD)
    with open(FULL, "w") as full:
        command = [warm_python(), "-m", "pytest_amp_check", "check", "train.py", *argv]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        assert subprocess.run(command, stdout=full, stderr=full).returncode == 2
    assert done.returncode == 2
    assert "internal error" not in done.stderr and "Traceback" not in done.stderr


# Missing input.


IS_ROOT = os.name == "posix" and os.geteuid() == 0
#: Prefix that starts a command without root's right to read every file.
AS_OTHERS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if IS_ROOT else []


@pytest.mark.skipif(
    os.name != "posix" or (IS_ROOT and shutil.which("setpriv") is None), reason="whoever runs this may read all"
)
@pytest.mark.parametrize(
    ("named", "at", "reason"),
    [
        ("pkg/secret.py", "pkg/secret.py", "it cannot be opened"),
        ("pkg/closed", "pkg/closed", "this directory cannot be listed"),
        ("pkg/closed/inner.py", "pkg/closed/inner.py", "it cannot be opened"),
        # A link that leads into the unreadable folder.
        ("pkg/behind.py", "pkg/behind.py", "it cannot be opened"),
    ],
)
def test_what_may_not_be_read_is_said_of_a_folder_as_by_name(named: str, at: str, reason: str) -> None:
    Path("pkg/closed").mkdir(parents=True)
    for name in ("pkg/secret.py", "pkg/closed/inner.py"):
        Path(name).write_text(GOOD)
    Path("pkg/behind.py").symlink_to("closed/inner.py")
    said = f"{at}:1:1: AMP903 [error] unreadable-source: This source could not be read ({reason}, permission denied)"
    Path("pkg/secret.py").chmod(0)
    Path("pkg/closed").chmod(0)
    try:
        for path in (named, "pkg") if at != "pkg/closed/inner.py" else (named,):
            done = subprocess.run(
                [*AS_OTHERS, sys.executable, "-m", "pytest_amp_check", "check", path, "--output-format", "concise"],
                capture_output=True,
                text=True,
            )
            assert (done.returncode, done.stderr) == (1, "")
            assert said in done.stdout
    finally:
        Path("pkg/closed").chmod(0o700)


@pytest.mark.skipif(sys.platform == "win32", reason="the shell is POSIX")
@pytest.mark.parametrize("words", ["check -", "check - --fix", "explain -"])
def test_a_standard_input_that_is_closed_is_said(words: str) -> None:
    command = f"'{sys.executable}' -m pytest_amp_check {words} <&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "amp-check: error: standard input is closed, so nothing can be read from it\n"


def test_what_is_explained_need_not_be_text() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest_amp_check", "explain", "-"], input=b"\xff\xfe not a message", capture_output=True
    )
    assert done.returncode == 2
    assert b"internal error" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="the shell is POSIX")
@pytest.mark.parametrize("files", [8, 12, 16, 20])
def test_few_open_files_are_enough_or_said(files: int) -> None:
    Path("many").mkdir()
    for number in range(20):
        Path("many", f"train_{number}.py").write_text(BAD + "# " + "x" * 100_000 + "\n")
    command = f"ulimit -n {files}; '{sys.executable}' -m pytest_amp_check check many --jobs 6 --output-format concise"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert "internal error" not in done.stderr and "Traceback" not in done.stderr
    assert done.returncode == 1
    assert done.stdout.count("AMP201") == 20


@pytest.mark.parametrize("config", [[], ["--config", "fixable=" + "[" * 5000 + "]" * 5000], ["--config", "deep.toml"]])
def test_brackets_in_brackets_in_a_configuration(config: list[str]) -> None:
    Path("deep.toml").write_text("fixable = " + "[" * 5000 + "]" * 5000)
    Path("amp-check.toml").write_text("" if config else Path("deep.toml").read_text())
    Path("train.py").write_text(BAD)
    done = amp_check("check", "train.py", *config)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(" is nested too deeply to be read\n")
    assert done.stderr.count("\n") == 1


def test_brackets_in_brackets_in_a_baseline() -> None:
    Path("train.py").write_text(BAD)
    Path("known.json").write_text('{"version": 1, "findings": ' + "[" * 100_000 + "]" * 100_000 + "}")
    done = amp_check("check", "train.py", "--baseline", "known.json")
    assert done.returncode == 2
    assert "known.json is no baseline" in done.stderr


def test_a_source_text_may_begin_with_a_byte_order_mark() -> None:
    from pytest_amp_check import check_source

    (plain,) = check_source(BAD)
    (marked,) = check_source("\ufeff" + BAD)
    assert (marked.code, marked.line) == (plain.code, plain.line) == ("AMP201", plain.line)


# Characters that move the cursor, or reverse the order of other characters.

ODD = "a\x1b[31m\u202eb\x9b2J\u2066.py"
#: Characters that no output contains unescaped.
RAW = ("\x1b", "\x9b", "\u202e", "\u2066", "\x07")


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file system that takes any characters")
@pytest.mark.parametrize("name", FORMATS)
def test_no_format_shows_them_as_they_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", os.path.abspath("summary.md"))
    Path(ODD).write_text(BAD.replace("max_norm=0.1)", "max_norm=0.1)  # \x1b]0;\u202e\x07\u2066"), encoding="utf-8")
    for more in ([], ["--show-fixes", "--fix", "--fixable", "AMP901"]):
        done = amp_check("check", ".", "--output-format", name, "--no-cache", *more)
        assert done.returncode == 1
        assert "AMP201" in done.stdout
        for raw in RAW:
            assert raw not in done.stdout
            assert raw not in done.stderr
    if os.path.exists("summary.md"):
        assert not any(raw in Path("summary.md").read_text(encoding="utf-8") for raw in RAW)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file system that takes any characters")
@pytest.mark.parametrize(
    "argv", [["--diff"], ["--fix", "--show-fixes"], ["--show-files"], ["--verbose"], ["--statistics"]]
)
def test_nothing_else_that_is_said_shows_them(argv: list[str]) -> None:
    Path(ODD).write_text(BAD.replace("max_norm=0.1)", "max_norm=0.1)  # \x1b]0;\u202e\x07\u2066"), encoding="utf-8")
    for place in (".", ODD):
        done = amp_check("check", place, *argv, "--no-cache")
        assert not any(raw in done.stdout + done.stderr for raw in RAW)
    assert not any(raw in amp_check("check", f"{ODD}x", *argv).stderr for raw in RAW)


def test_a_diff_keeps_white_space_and_says_what_it_has_spelled_out() -> None:
    Path("train.py").write_text(BAD.replace("max_norm=0.1)", "max_norm=0.1)\t# é \x1b[2J\u202e"), encoding="utf-8")
    line = next(line for line in amp_check("check", "--diff", "train.py").stdout.splitlines() if "max_norm" in line)
    assert line.endswith("max_norm=0.1)\t# é \\x1b[2J\\u202e  # AMP201")


# Paths for CI hosts.


def annotated(text: str) -> list[str]:
    return [part.partition("file=")[2].split(",")[0] for part in text.splitlines() if part.startswith("::error")]


def artifacts(text: str) -> list[str]:
    (run,) = json.loads(text)["runs"]
    places = [result["locations"][0]["physicalLocation"]["artifactLocation"] for result in run["results"]]
    assert all(place["uriBaseId"] == "%SRCROOT%" for place in places)
    return [unquote(place["uri"]) for place in places]


@pytest.mark.parametrize(
    ("cwd", "path"), [(".", "src/pkg/train.py"), ("src", "pkg"), ("src/pkg", "."), ("tests", "../src/pkg/train.py")]
)
def test_paths_for_hosts_start_from_the_repository(cwd: str, path: str) -> None:
    for folder in (".git", "src/pkg", "tests"):
        Path(folder).mkdir(parents=True)
    Path("src/pkg/train.py").write_text(BAD)
    for given in (path, os.path.abspath(os.path.join(cwd, path))):
        github = amp_check("check", given, "--output-format", "github", "--no-cache", cwd=cwd)
        sarif = amp_check("check", given, "--output-format", "sarif", "--no-cache", cwd=cwd)
        assert annotated(github.stdout) == ["src/pkg/train.py"]
        assert artifacts(sarif.stdout) == ["src/pkg/train.py"]


def test_paths_outside_of_any_repository_start_from_the_working_folder() -> None:
    Path("src").mkdir()
    Path("src/train.py").write_text(BAD)
    assert annotated(amp_check("check", "train.py", "--output-format", "github", cwd="src").stdout) == ["train.py"]


# Invalid notebooks.


@pytest.mark.parametrize(
    "text", ['{"cells": 3}', '{"cells": null}', '{"cells": {"a": 1}}', '{"worksheets": 1}', "", "\n"]
)
def test_a_broken_notebook_is_no_success(text: str) -> None:
    Path("train.ipynb").write_text(text)
    for path in ("train.ipynb", "."):
        done = amp_check("check", path, "--output-format", "concise", "--no-cache")
        assert done.returncode == 1
        assert done.stdout.startswith("train.ipynb:1:1: AMP903 [error] ")
        assert done.stderr == ""


# Misspelled words.


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["check", "--slect", "AMP2", "."], "unrecognized arguments: --slect: did you mean '--select'?"),
        (
            ["check", "--output-fromat=json"],
            "unrecognized arguments: --output-fromat=json: did you mean '--output-format'?",
        ),
        (
            ["check", "--stdin-file", "a.py", "-"],
            "unrecognized arguments: --stdin-file: did you mean '--stdin-filename'?",
        ),
        (["rules", "--outputformat"], "unrecognized arguments: --outputformat: did you mean '--output-format'?"),
        (["run", "--devices", "cpu", "a.py"], "unrecognized arguments: --devices: did you mean '--device'?"),
        (["--versoin"], "unrecognized arguments: --versoin: did you mean '--version'?"),
        (["check", "--zzz"], "unrecognized arguments: --zzz"),
    ],
)
def test_a_wrong_flag_is_answered_with_the_nearest(argv: list[str], said: str) -> None:
    done = amp_check(*argv)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == f"amp-check: error: {said}"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--amp-slect=AMP2"], "unrecognized argument --amp-slect: did you mean '--amp-select'?"),
        (["--amp-chek"], "unrecognized argument --amp-chek: did you mean '--amp-check'?"),
        (["-o", "amp_slect=AMP2"], "unknown option 'amp_slect' of -o: did you mean 'amp_select'?"),
    ],
)
def test_a_wrong_word_for_pytest_is_answered_with_the_nearest(
    pytester: pytest.Pytester, argv: list[str], said: str
) -> None:
    result = run_pytest(pytester, "--amp-check", *argv, trains=False)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"amp-check: {said}" in result.stderr.str()


def test_a_wrong_key_of_an_ini_file_is_answered_with_the_nearest(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\namp_chek_paths = src\n")
    result = run_pytest(pytester, "--amp-check", trains=False)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "tox.ini: did you mean 'amp_check_paths'?" in result.stderr.str()


def test_options_of_others_are_left_to_them(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "def pytest_addoption(parser):\n"
        "    parser.addoption('--amp-selekt', default='')\n    parser.addini('amp_selekt', 'theirs')\n"
    )
    pytester.makeini("[pytest]\namp_selekt = 1\n")
    result = run_pytest(pytester, "--amp-check", "--amp-selekt=1", trains=False)
    # The conftest itself is an item.
    result.assert_outcomes(passed=1)
    result = pytester.runpytest_subprocess("--", "--amp-slect")
    assert "did you mean" not in result.stderr.str()
