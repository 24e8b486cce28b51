"""The command amp-check, as a user runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
from warm import run_command

import pytest_amp_check
from pytest_amp_check.frontends import cli
from pytest_amp_check.protocol.rules import RULES

BAD = RULES["AMP201"].bad_example
GOOD = RULES["AMP201"].good_example
INFO = RULES["AMP503"].bad_example
LINE = 1 + next(n for n, line in enumerate(BAD.split("\n")) if "# AMP201" in line)
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "AMP_CHECK_DEBUG"):
        monkeypatch.delenv(name, raising=False)


def amp_check(*argv: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return run_command(*argv, stdin=stdin, env=os.environ | (env or {}))


def failed(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one-line error of a failed run."""
    assert done.returncode == 2
    assert done.stdout == ""
    *_, sentence = done.stderr.splitlines()
    assert sentence.startswith("amp-check: error: ")
    assert "Traceback" not in done.stderr
    return sentence.removeprefix("amp-check: error: ")


def test_a_bad_script_is_found_with_its_place_and_fails() -> None:
    Path("train.py").write_text(BAD)
    done = amp_check("check", "train.py")
    assert done.returncode == 1
    assert done.stderr == ""
    assert done.stdout.startswith(f"train.py:{LINE}:")
    assert "AMP201 [*] [error] clip-before-unscale: " in done.stdout
    assert f"{LINE} |     torch.nn.utils.clip_grad_norm_(" in done.stdout
    assert "  more: amp-check explain AMP201\n" in done.stdout
    assert done.stdout.endswith("\nFound 1 error in 1 file.\n[*] 1 fixable with --fix.\n")


def test_a_good_script_passes() -> None:
    Path("train.py").write_text(GOOD)
    done = amp_check("check", "train.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "No AMP mistakes found in 1 file.\n", "")


def test_info_is_shown_but_does_not_fail() -> None:
    Path("train.py").write_text(INFO)
    done = amp_check("check", "--select", "AMP503", "train.py")
    assert done.returncode == 0
    assert "AMP503 [info]" in done.stdout
    assert amp_check("check", "--select", "AMP503", "--severity", "AMP503=warning", "train.py").returncode == 1


def test_without_a_path_the_folder_is_checked_or_what_pyproject_names() -> None:
    for folder in ("src", "other"):
        Path(folder).mkdir()
        Path(folder, "train.py").write_text(BAD)
    done = amp_check("check", "--output-format", "concise")
    assert [line.split(":")[0] for line in done.stdout.splitlines()[:-2]] == ["other/train.py", "src/train.py"]
    Path("pyproject.toml").write_text('[tool.amp-check]\npaths = ["src"]\n')
    done = amp_check("check", "--output-format", "concise")
    assert [line.split(":")[0] for line in done.stdout.splitlines()[:-2]] == ["src/train.py"]
    assert amp_check("check", "other", "--output-format", "concise").stdout.startswith("other/train.py:")


def test_a_folder_without_python_is_said_and_is_no_success() -> None:
    done = amp_check("check", ".")
    assert done.returncode == 2
    said = "no Python file, notebook or Markdown was found in ."
    assert done.stderr == f"amp-check: error: {said}: use --allow-no-files if this is expected\n"
    done = amp_check("check", ".", "--allow-no-files")
    assert (done.returncode, done.stderr) == (0, f"amp-check: warning: {said}\n")


def test_standard_input_has_the_name_it_is_given() -> None:
    done = amp_check("check", "-", stdin=BAD.encode())
    assert done.returncode == 1
    assert done.stdout.startswith(f"<stdin>:{LINE}:")
    assert f"{LINE} |     torch.nn.utils.clip_grad_norm_(" in done.stdout
    done = amp_check("check", "-", "--stdin-filename", "src/train.py", stdin=GOOD.encode())
    assert (done.returncode, done.stdout) == (0, "No AMP mistakes found in 1 file.\n")
    assert amp_check("check", "-", "--stdin-filename", "a.py", stdin=BAD.encode()).stdout.startswith(f"a.py:{LINE}:")


def test_standard_input_in_other_encodings() -> None:
    assert amp_check("check", "-", stdin=b"\xef\xbb\xbf" + BAD.encode()).returncode == 1
    assert amp_check("check", "-", stdin=b"# coding: latin-1\n# \xe9\n" + BAD.encode()).returncode == 1
    sentence = failed(amp_check("check", "-", stdin=b"x = '\xff'\n"))
    assert sentence.startswith("standard input cannot be read: byte 0xff on line 1 is not UTF-8")


def test_standard_input_finds_the_configuration_of_the_file_it_stands_for() -> None:
    Path("src").mkdir()
    Path("src/pyproject.toml").write_text('[tool.amp-check]\nignore = ["AMP201"]\n')
    assert amp_check("check", "-", "--stdin-filename", "src/train.py", stdin=BAD.encode()).returncode == 0
    assert amp_check("check", "-", "--stdin-filename", "train.py", stdin=BAD.encode()).returncode == 1


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("check", "nope.py"), "`nope.py` does not exist"),
        (("check", "--select", "AMP2O1"), "--select: unknown rule 'AMP2O1': did you mean 'AMP201'?"),
        (("check", "--output-format", "xml"), "argument --output-format: invalid choice: 'xml'"),
        (("check", "--selec", "AMP201"), "unrecognized arguments: --selec"),
        (("check", "-", "train.py"), "- reads standard input and cannot be given together with paths"),
        (("check", "--stdin-filename", "x.py"), "--stdin-filename names standard input: give - as the path"),
        (
            ("check", "--statistics", "--output-format", "sarif"),
            "--statistics counts as full, concise, agent or json, not as sarif",
        ),
        (("train.py",), "'train.py' is not a command: to check it, run amp-check check train.py"),
        (("chek", "train.py"), "'chek' is not a command: did you mean 'check'?"),
        (("zzz",), "'zzz' is not a command: the commands are check, run, explain, rules"),
        (("explain", "AMP2O1"), "unknown rule 'AMP2O1': did you mean 'AMP201'?"),
        (("explain",), "the following arguments are required: RULE or TEXT"),
    ],
)
def test_wrong_input_is_one_clear_sentence_and_exit_code_2(argv: tuple[str, ...], said: str) -> None:
    assert failed(amp_check(*argv)).startswith(said)


def test_run_asks_for_a_script_and_not_for_what_that_is_given() -> None:
    assert failed(amp_check("run")) == "the following arguments are required: SCRIPT"


def test_a_wrong_pyproject_fails_and_names_the_nearest_key() -> None:
    Path("train.py").write_text(GOOD)
    Path("pyproject.toml").write_text("[tool.amp-check]\nselct = []\n")
    assert failed(amp_check("check", "train.py")).endswith("did you mean 'select'?")


def test_exit_zero_shows_but_does_not_fail() -> None:
    Path("train.py").write_text(BAD)
    done = amp_check("check", "--exit-zero", ".")
    assert done.returncode == 0
    assert "AMP201" in done.stdout
    Path("pyproject.toml").write_text("[tool.amp-check]\nexit-zero = true\n")
    assert amp_check("check", ".").returncode == 0
    assert amp_check("check", "--no-exit-zero", ".").returncode == 1
    assert amp_check("check", "--exit-zero", "nope.py").returncode == 2


def test_rules_are_chosen_by_flag_and_by_file() -> None:
    Path("old").mkdir()
    Path("old/train.py").write_text(BAD)
    Path("new.py").write_text(BAD)
    assert amp_check("check", "--ignore", "AMP2", ".").returncode == 0
    assert amp_check("check", "--select", "AMP1", ".").returncode == 0
    done = amp_check("check", "--per-file-ignores", "old/*.py:clip-before-unscale", "--output-format", "concise", ".")
    assert [line.split(":")[0] for line in done.stdout.splitlines()[:-2]] == ["new.py"]
    done = amp_check("check", "--exclude", "old", "--output-format", "concise", ".")
    assert [line.split(":")[0] for line in done.stdout.splitlines()[:-2]] == ["new.py"]
    assert done.stdout.endswith("Found 1 error in 1 file.\n[*] 1 fixable with --fix.\n")


def test_patterns_in_pyproject_count_from_its_folder() -> None:
    for folder in ("old", "src/old"):
        Path(folder).mkdir(parents=True)
        Path(folder, "train.py").write_text(BAD)
    Path("pyproject.toml").write_text('[tool.amp-check]\nper-file-ignores = {"old/*" = ["ALL"]}\n')
    done = amp_check("check", "--output-format", "concise", ".")
    assert [line.split(":")[0] for line in done.stdout.splitlines()[:-2]] == ["src/old/train.py"]
    Path("pyproject.toml").write_text('[tool.amp-check]\nexclude = ["src/old"]\n')
    done = amp_check("check", "--output-format", "concise", ".")
    assert [line.split(":")[0] for line in done.stdout.splitlines()[:-2]] == ["old/train.py"]


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege")
def test_patterns_count_behind_a_link_too() -> None:
    Path("real/gen").mkdir(parents=True)
    Path("real/gen/train.py").write_text(BAD)
    Path("real/pyproject.toml").write_text('[tool.amp-check]\nexclude = ["gen/*.py"]\n')
    Path("link").symlink_to("real")
    assert amp_check("check", "link", "--allow-no-files").stdout == "No AMP mistakes found in 0 files.\n"
    Path("real/pyproject.toml").write_text('[tool.amp-check]\nper-file-ignores = {"gen/*.py" = ["ALL"]}\n')
    assert amp_check("check", "link").returncode == 0


def test_machine_formats_hold_nothing_else() -> None:
    Path("train.py").write_text(BAD)
    done = amp_check("check", "--output-format", "json", ".")
    assert done.returncode == 1
    (found,) = json.loads(done.stdout)
    assert (found["code"], found["filename"], found["location"]["row"]) == ("AMP201", "train.py", LINE)
    github = amp_check("check", "--output-format", "github", ".").stdout.splitlines()
    assert github[0].startswith(f"::error title=AMP201 clip-before-unscale,file=train.py,line={LINE},")
    assert github[-1] == "::notice title=amp-check::Found 1 error in 1 file."
    sarif = json.loads(amp_check("check", "--output-format", "sarif", ".").stdout)
    assert [result["ruleId"] for result in sarif["runs"][0]["results"]] == ["AMP201"]
    Path("train.py").write_text(GOOD)
    assert amp_check("check", "--output-format", "json", ".").stdout == "[]\n"
    assert amp_check("check", "--output-format", "github", ".").stdout == ""
    assert json.loads(amp_check("check", "--output-format", "sarif", ".").stdout)["runs"][0]["results"] == []


def test_statistics() -> None:
    Path("a.py").write_text(BAD)
    Path("b.py").write_text(BAD)
    done = amp_check("check", "--statistics", ".")
    assert done.returncode == 1
    assert done.stdout == "2  AMP201  [error]  clip-before-unscale\nFound 2 errors in 2 files.\n"
    assert json.loads(amp_check("check", "--statistics", "--output-format", "json", ".").stdout) == [
        {"code": "AMP201", "name": "clip-before-unscale", "severity": "error", "count": 2}
    ]


@pytest.mark.parametrize("word", ["AMP201", "amp201", "clip-before-unscale"])
def test_explain_prints_all_of_a_rule(word: str) -> None:
    done = amp_check("explain", word, "--all")
    assert (done.returncode, done.stderr) == (0, "")
    rule = RULES["AMP201"]
    assert done.stdout.startswith("# AMP201 clip-before-unscale\n")
    for part in (
        rule.summary,
        rule.rationale,
        rule.harm,
        rule.bad_example,
        rule.good_example,
        rule.fix_advice,
        *rule.sources,
    ):
        assert part.strip() in done.stdout
    assert "# amp: ignore[AMP201]" in done.stdout


def test_explain_shows_the_change_on_one_screen() -> None:
    shown = amp_check("explain", "AMP201").stdout
    assert "Severity: error." in shown
    assert "it always clips" in shown
    assert "\n+    scaler.unscale_(optimizer)\n" in shown
    assert RULES["AMP201"].fix_advice.strip() in shown
    assert shown.endswith("`amp-check explain AMP201 --all`\n")


def test_explain_shows_several_rules() -> None:
    shown = amp_check("explain", "AMP30").stdout
    codes = [line[2:8] for line in shown.splitlines() if line.startswith("# AMP")]
    assert codes == ["AMP301", "AMP302", "AMP303", "AMP304", "AMP305", "AMP306"]
    every = json.loads(amp_check("explain", "ALL", "--output-format", "json").stdout)
    assert [each["code"] for each in every] == list(RULES)


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (("AMP201",), ["AMP201 clip-before-unscale", "it always clips"]),
        (("Attempting to unscale FP16 gradients.",), ["Attempting to unscale FP16 gradients.", "Sources"]),
    ],
)
def test_explain_opens_a_page_in_the_browser(words: tuple[str, ...], texts: list[str]) -> None:
    browser = Path("browser.sh")
    browser.write_text('#!/bin/sh\necho "$1" > opened.txt\n')
    browser.chmod(0o755)
    done = amp_check("explain", "--web", *words, env={"BROWSER": f"{browser.resolve()} %s"})
    assert (done.returncode, done.stderr) == (0, "")
    assert Path("opened.txt").read_text() == done.stdout
    page = Path(url2pathname(urlsplit(done.stdout.strip()).path))
    shown = page.read_text(encoding="utf-8")
    page.unlink()
    assert shown.startswith("<!DOCTYPE html>")
    assert [text for text in texts if text not in shown] == []


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("AMP2O1",), "unknown rule 'AMP2O1': did you mean 'AMP201'?"),
        (("AMP201", "--output-format", "json"), "--web shows a page and JSON is none: leave one of them out"),
    ],
)
def test_explain_opens_no_page_of_nothing(argv: tuple[str, ...], sentence: str) -> None:
    assert failed(amp_check("explain", "--web", *argv)) == sentence


@pytest.mark.parametrize(
    "words",
    [
        ("Attempting to unscale FP16 gradients.",),
        ("Attempting", "to", "unscale", "FP16", "gradients"),
        ("unscale-float16-gradients",),
    ],
)
def test_explain_finds_a_message_of_torch_by_its_text(words: tuple[str, ...]) -> None:
    done = amp_check("explain", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# Attempting to unscale FP16 gradients.\n")
    for section in ("What it means", "Causes and fixes", "Rules", "Sources"):
        assert f"\n## {section}\n" in done.stdout
    assert "`amp-check explain AMP501`" in done.stdout


def test_explain_reads_a_traceback_from_standard_input() -> None:
    log = b"step 10\nTraceback (most recent call last):\nAssertionError: No inf checks were recorded prior to update.\n"
    done = amp_check("explain", "-", stdin=log)
    assert done.stdout.startswith("# No inf checks were recorded prior to update.\n")
    reported = json.loads(amp_check("explain", "-", "--output-format", "json", stdin=log).stdout)
    assert [message["name"] for message in reported] == ["no-inf-checks-before-update"]
    assert all(cause["remedy"] for cause in reported[0]["causes"])


def test_explain_offers_the_nearest_messages() -> None:
    done = amp_check("explain", "no inf checks recorded for my optimizer")
    assert done.returncode == 2
    assert "matches no known PyTorch message; closest: no-inf-checks (No inf checks were recorded" in done.stderr
    assert done.stderr.count("\n") == 1
    done = amp_check("explain", "hello there world")
    assert done.returncode == 2
    assert "'hello there world' matches no known PyTorch message: `amp-check rules` lists" in done.stderr


def test_every_rule_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for code, rule in RULES.items():
        assert cli.main(["explain", code]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"# {code} {rule.name}\n")
        assert shown.count("```") == 2
        assert shown.count("\n") <= 60


def test_explain_and_rules_as_json() -> None:
    assert json.loads(amp_check("explain", "AMP201", "--output-format", "json").stdout) == RULES["AMP201"].as_dict()
    shown = json.loads(amp_check("rules", "--output-format", "json").stdout)
    assert shown == [rule.as_dict() for rule in RULES.values()]


def test_rules_lists_the_catalogue() -> None:
    lines = amp_check("rules").stdout.splitlines()
    assert len(lines) == len(RULES)
    for line, rule in zip(lines, RULES.values(), strict=True):
        assert line.split()[:3] == [rule.code, rule.name, rule.severity]
        assert rule.summary in line


def test_version_and_help() -> None:
    assert amp_check("--version").stdout == f"amp-check {pytest_amp_check.__version__}\n"
    for argv in ((), ("--help",)):
        done = amp_check(*argv)
        assert done.returncode == 0
        assert all(command in done.stdout for command in ("check", "explain", "rules"))
    done = amp_check("check", "--help")
    assert done.returncode == 0
    assert "--per-file-ignores" in done.stdout


def test_colour_on_request_has_the_same_words() -> None:
    Path("train.py").write_text(BAD)
    plain = amp_check("check", "train.py")
    coloured = amp_check("check", "train.py", env={"FORCE_COLOR": "1"})
    assert "\x1b[" not in plain.stdout
    assert "\x1b[" in coloured.stdout
    assert ANSI.sub("", coloured.stdout) == plain.stdout
    assert "\x1b[" in amp_check("explain", "AMP201", env={"FORCE_COLOR": "1"}).stdout
    assert "\x1b[" not in amp_check("explain", "AMP201", env={"FORCE_COLOR": "1", "NO_COLOR": "1"}).stdout


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are POSIX")
def test_colour_on_a_terminal() -> None:
    import pty

    Path("train.py").write_text(GOOD)
    for env, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        ours, theirs = pty.openpty()
        subprocess.run(
            [sys.executable, "-m", "pytest_amp_check", "check", "train.py"],
            stdout=theirs,
            stderr=theirs,
            env=os.environ | {"TERM": "xterm"} | env,
        )
        os.close(theirs)
        shown = os.read(ours, 10_000)
        os.close(ours)
        assert b"No AMP mistakes found in 1 file." in shown
        assert (b"\x1b[" in shown) is coloured


def test_a_plain_check_imports_nothing_heavy() -> None:
    Path("train.py").write_text(BAD)
    Path("pyproject.toml").write_text("[project]\n")
    program = (
        "import sys; from pytest_amp_check.frontends.cli import main; code = main(['check', 'train.py']);"
        "heavy = {'torch', 'libcst', 'rich', 'pytest', 'json', 'tomllib', 'tomli', 'pathlib', 'dataclasses', 'typing'};"
        "names = ('cache', 'fixes.notebook_json', 'fixes.deprecations', 'sources.markdown', 'sources.notebooks');"
        "own = {f'pytest_amp_check.static.{name}' for name in names};"
        "print(code, sorted((heavy | own) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "1 []"


def test_the_package_is_imported_lazily_and_has_its_names() -> None:
    program = (
        "import sys, pytest_amp_check; assert not [m for m in sys.modules if m.startswith('pytest_amp_check.')];"
        "from pytest_amp_check import Finding, check_paths, check_source, __version__;"
        "assert 'torch' not in sys.modules; print(*sorted(n for n in dir(pytest_amp_check) if n[0] != '_'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert {"Finding", "check_paths", "check_source"} <= set(done.stdout.split())
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        pytest_amp_check.nothing  # noqa: B018


def test_a_closed_pipe_is_no_traceback() -> None:
    for number in range(300):
        Path(f"train{number}.py").write_text(BAD)
    command = [sys.executable, "-m", "pytest_amp_check", "check", "."]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


@pytest.mark.skipif(sys.platform == "win32", reason="the shell is POSIX")
@pytest.mark.parametrize(("closed", "code"), [(">&-", 1), ("2>&-", 1), (">&- 2>&-", 1)])
def test_a_closed_output_is_no_traceback(closed: str, code: int) -> None:
    Path("train.py").write_text(BAD)
    command = f"'{sys.executable}' -m pytest_amp_check check train.py {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.returncode == code
    assert done.stderr == ""


def test_all_output_is_written_before_the_process_ends() -> None:
    for number in range(50):
        Path(f"train{number}.py").write_text(BAD)
    done = amp_check("check", "--output-format", "concise", ".")
    assert done.stdout.count(" AMP201 ") == 50
    assert done.stdout.endswith("Found 50 errors in 50 files.\n[*] 50 fixable with --fix.\n")


def test_paths_alone_are_taken_as_with_flags() -> None:
    Path("train.py").write_text(BAD)
    plain = amp_check("check", "train.py")
    flagged = amp_check("check", "train.py", "--output-format", "full")
    assert (plain.returncode, plain.stdout) == (flagged.returncode, flagged.stdout)
    assert failed(amp_check("check", "-", "train.py")) == failed(amp_check("check", "-", "train.py", "--exit-zero"))


def test_an_interrupt_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(given: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "check", interrupted)
    assert cli.main(["check"]) == 130
    assert capsys.readouterr() == ("", "amp-check: interrupted\n")


def test_an_error_of_our_own_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(given: object) -> int:
        raise RuntimeError("first\nsecond")

    monkeypatch.setitem(cli.COMMANDS, "check", broken)
    assert cli.main(["check"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("amp-check: error: internal error: RuntimeError: first second: please report it")
    assert err.count("\n") == 1
    monkeypatch.setenv("AMP_CHECK_DEBUG", "1")
    with pytest.raises(RuntimeError):
        cli.main(["check"])


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file system that takes any bytes")
def test_a_file_name_that_is_no_text_is_shown() -> None:
    name = b"tr\xe9in.py"
    with open(name, "w") as file:
        file.write(BAD)
    for form in ("full", "concise", "json", "github", "sarif"):
        done = amp_check("check", "--output-format", form, ".")
        assert done.returncode == 1, done.stderr
        assert "AMP201" in done.stdout


def test_an_ascii_terminal_gets_every_finding() -> None:
    Path("train.py").write_text(BAD.replace("max_norm=0.1)", "max_norm=0.1)  # é 日本"), encoding="utf-8")
    done = amp_check("check", "train.py", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.returncode == 1
    assert "AMP201" in done.stdout
