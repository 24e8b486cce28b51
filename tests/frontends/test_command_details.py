"""Messages of the command about fixes and unknown texts, and the page of a check, in one process."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest
from report_pages import finding

from pytest_amp_check.frontends import cli, fix_command, html
from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.protocol.fix import SAFE, UNSAFE, Fix
from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.protocol.sites import Site

KNOWN = "`amp-check rules` lists the rules, and a PyTorch message is found by its text"
BAD, GOOD = RULES["AMP201"].bad_example, RULES["AMP201"].good_example


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "AMP_CHECK_DEBUG"):
        monkeypatch.delenv(name, raising=False)


def amp_check(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Run a command in this process. Return its exit code, standard output, and standard error."""
    code = cli.main([*argv])
    reported = capsys.readouterr()
    return code, reported.out, reported.err


# Fixes.


def test_fixes_that_were_made_are_listed_by_file_and_rule(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("b.py", "a.py"):
        Path(name).write_text(BAD)
    code, out, err = amp_check(capsys, "check", "--fix", "--show-fixes", "a.py", "b.py")
    assert code == 0
    assert out == "Found 2 errors in 2 files (2 fixed, 0 remaining).\n"
    assert err == (
        "Fixed 2 findings:\n"
        "- a.py:\n    1 x AMP201 (clip-before-unscale)\n"
        "- b.py:\n    1 x AMP201 (clip-before-unscale)\n"
    )
    assert amp_check(capsys, "check", "--fix", "--show-fixes", "a.py") == (
        0,
        "No AMP mistakes found in 1 file.\n",
        "Fixed 0 findings.\n",
    )


def test_one_fix_is_no_plural(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.py").write_text(BAD)
    assert amp_check(capsys, "check", "--fix", "--show-fixes", "a.py")[2] == (
        "Fixed 1 finding:\n- a.py:\n    1 x AMP201 (clip-before-unscale)\n"
    )


def test_a_difference_says_how_much_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.py").write_text(BAD)
    code, out, err = amp_check(capsys, "check", "--diff", "a.py")
    assert (code, err) == (1, "Would fix 1 finding in 1 file.\n")
    assert out.startswith("--- a.py\n+++ a.py\n@@ ")
    added = [line for line in out.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert [line.lstrip("+ ") for line in added] == ["scaler.unscale_(optimizer)"]
    Path("b.py").write_text(BAD)
    assert amp_check(capsys, "check", "--diff", ".")[2] == "Would fix 2 findings in 2 files.\n"
    assert amp_check(capsys, "check", "--diff", "--exit-zero", ".")[0] == 0
    # No file was written.
    assert Path("a.py").read_text() == BAD
    Path("a.py").write_text(GOOD)
    assert amp_check(capsys, "check", "--diff", "a.py") == (0, "", "Nothing would be fixed.\n")


def test_a_difference_says_what_could_not_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.py").write_text(BAD.replace("import torch", "import torch("))
    code, out, err = amp_check(capsys, "check", "--diff", "a.py")
    assert (code, out) == (0, "")
    warned, last = err.splitlines()
    assert warned.startswith("amp-check: warning: a.py:1: ")
    assert last == "Nothing would be fixed."


def test_a_difference_has_colour(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.py").write_text(BAD)
    plain = amp_check(capsys, "check", "--diff", "a.py")[1]
    painted = amp_check(capsys, "check", "--diff", "--color", "always", "a.py")[1]
    lines = dict(zip(plain.splitlines(), painted.splitlines(), strict=True))
    for start, colour in (("--- ", "\x1b[1m"), ("+++ ", "\x1b[1m"), ("@@ ", "\x1b[36m"), ("+ ", "\x1b[32m")):
        (found,) = {painted for line, painted in lines.items() if line.startswith(start)}
        assert found.startswith(colour)


def fixable(*applicabilities: str | None) -> list[Finding]:
    made = []
    for applicability in applicabilities:
        each = Finding("AMP201", "clip", "error", "scaled", Site("a.py", 2, 0, 2, 4))
        if applicability is not None:
            each.fix = Fix(applicability, "unscale first", lambda: ())
        made.append(each)
    return made


@pytest.mark.parametrize(
    ("applicabilities", "unsafe", "said"),
    [
        ((), False, ""),
        ((None,), True, ""),
        ((SAFE,), False, "[*] 1 fixable with --fix."),
        ((SAFE, SAFE, None), True, "[*] 2 fixable with --fix."),
        ((UNSAFE,), False, "No fixes available (1 hidden fix can be enabled with --unsafe-fixes)."),
        ((UNSAFE, UNSAFE), False, "No fixes available (2 hidden fixes can be enabled with --unsafe-fixes)."),
        ((SAFE, UNSAFE), False, "[*] 1 fixable with --fix (1 hidden fix can be enabled with --unsafe-fixes)."),
        ((SAFE, UNSAFE), True, "[*] 2 fixable with --fix."),
    ],
)
def test_what_can_be_fixed_is_said_with_its_flags(
    applicabilities: tuple[str | None, ...], unsafe: bool, said: str
) -> None:
    assert fix_command.summarize_fixable(fixable(*applicabilities), unsafe=unsafe) == said


def test_comments_that_silence_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.py").write_text(BAD)
    assert amp_check(capsys, "check", "--add-ignores", "a.py") == (0, "Silenced 1 finding in 1 file.\n", "")
    assert amp_check(capsys, "check", "a.py")[0] == 0
    assert amp_check(capsys, "check", "--add-ignores", "a.py") == (0, "Silenced 0 findings in 0 files.\n", "")
    Path("b.py").write_text(BAD)
    assert amp_check(capsys, "check", "--add-ignores", "--quiet", "b.py") == (0, "", "")


def test_a_fix_of_standard_input_is_written_there(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    given = io.TextIOWrapper(io.BytesIO(BAD.encode()), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", given)
    assert cli.main(["check", "--fix", "-"]) == 0
    reported = capsysbinary.readouterr()
    assert reported.out.decode().count("scaler.unscale_(optimizer)") == 1
    assert reported.err.decode() == "Found 1 error in 1 file (1 fixed, 0 remaining).\n"


def test_standard_input_has_a_name(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    for argv, name in (((), "<stdin>"), (("--stdin-filename", "src/a.py"), "src/a.py")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(BAD.encode()), encoding="utf-8"))
        code, out, _ = amp_check(capsys, "check", "-", *argv, "--output-format", "concise")
        assert code == 1
        assert out.startswith(f"{name}:")
        # Its fix is written to standard output, and so it is offered.
        assert " AMP201 [*] [error]" in out


def test_no_fix_is_offered_where_none_would_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "beside.py").write_text(BAD)
    (tmp_path / "project/link.py").symlink_to(tmp_path / "beside.py")
    (tmp_path / "project/own.py").write_text(BAD)
    monkeypatch.chdir(tmp_path / "project")
    _, out, _ = amp_check(capsys, "check", ".", "--output-format", "concise")
    link, own = out.splitlines()[:2]
    assert link.startswith("link.py:")
    assert " AMP201 [error]" in link
    assert own.startswith("own.py:")
    assert " AMP201 [*] [error]" in own


# Unknown texts.


@pytest.mark.parametrize(("length", "shown"), [(60, "x y" + "z" * 57), (61, "x y" + "z" * 57 + "...")])
def test_a_long_text_that_is_not_known_is_cut(length: int, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = amp_check(capsys, "explain", "x y" + "z" * (length - 3))
    assert code == 2
    assert err == f"amp-check: error: {shown!r} matches no known PyTorch message: {KNOWN}\n"


def test_a_word_that_is_not_known_is_a_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert amp_check(capsys, "explain", "qqqqqqqq") == (
        2,
        "",
        f"amp-check: error: unknown rule 'qqqqqqqq': {KNOWN}\n",
    )


def test_pages_of_several_messages_follow_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = "No inf checks were recorded for this optimizer.", "No inf checks were recorded prior to update."
    code, out, _ = amp_check(capsys, "explain", first, second)
    assert code == 0
    titles = [line for line in out.splitlines() if line.startswith("# ")]
    assert sorted(titles) == [f"# {first}", f"# {second}"]
    assert f"\n\n{titles[1]}\n" in out


def test_an_explanation_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = amp_check(capsys, "explain", "ALL")
    assert code == 0
    pages = re.split(r"^(?=# AMP\d{3} )", out, flags=re.MULTILINE)[1:]
    assert len(pages) == len(RULES)
    assert {page.split()[1]: len(page.splitlines()) for page in pages if len(page.splitlines()) > 41} == {}
    code, family, _ = amp_check(capsys, "explain", "amp2")
    assert code == 0
    assert family.strip() == "".join(page for page in pages if page.startswith("# AMP2")).strip()


@pytest.mark.parametrize("command", ["check", "explain", "rules", "completion", "run"])
def test_a_wrong_flag_shows_how_commands_are_used(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = amp_check(capsys, command, "--no-such-flag")
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert lines[0].startswith("usage: amp-check ")
    assert lines[-1].startswith("amp-check: error: ")


def test_help_names_every_command_and_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = amp_check(capsys, "--help")
    assert (code, err) == (0, "")
    assert amp_check(capsys) == (0, out, "")
    assert out.startswith(
        "usage: amp-check [-h] [--version] COMMAND ...\n\n"
        "Finds the mistakes that PyTorch mixed-precision training code makes silently.\n\n"
    )
    listed = [line.split()[0] for line in out.splitlines() if line.startswith("    ") and not line.startswith("     ")]
    assert listed == ["check", "run", "explain", "rules", "clean", "version", "completion", "server", "mcp"]
    assert all(len(line) <= 96 for line in out.splitlines())
    for command in listed:
        code, out, err = amp_check(capsys, command, "--help")
        assert (code, err) == (0, "")
        assert out.startswith(f"usage: amp-check {command} [")
    assert "pytest-amp-check[mcp]" in out


def test_help_of_check_lists_topics_values_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = amp_check(capsys, "check", "--help")
    topics = [line.rstrip(":") for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert topics[:4] == ["positional arguments", "options", "rules", "files"]
    assert "fixes" in topics
    assert "recording" not in topics
    shown = " ".join(out.split())
    assert "lowest severity that fails the check (one of error, warning, info; default: warning)" in shown
    assert "--no-fix" not in shown
    assert "--no-cache, -n" in shown


def test_a_wrong_flag_shows_the_usage_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = amp_check(capsys, "check", "--no-such-flag")
    assert err.startswith("usage: amp-check check [OPTION ...] [PATH ...]\n")


# Settings and files.


def test_files_and_settings_are_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    Path("a.py").write_text(BAD)
    Path("pyproject.toml").write_text('[tool.amp-check]\nignore = ["AMP201"]\n')
    assert amp_check(capsys, "check", "--show-files", ".") == (0, "a.py\n", "")
    code, out, err = amp_check(capsys, "check", "--show-settings", "--jobs", "3", ".")
    assert (code, err) == (0, "")
    rows = out.splitlines()
    (ignored,) = [row for row in rows if row.startswith("ignore =")]
    assert ignored.startswith('ignore = ["AMP201"]  # ignore in [tool.amp-check] of ')
    assert ignored.endswith("pyproject.toml")
    assert "jobs = 3  # --jobs" in rows
    assert "baseline =  # the default" in rows
    assert amp_check(capsys, "check", "--show-files", "-o", "files.txt", ".") == (0, "", "")
    assert Path("files.txt").read_text() == "a.py\n"


# The page of a check.


def tiles(page: str) -> list[str]:
    start = page.index('<dl class="tiles">')
    found = page[start:].partition("</dl>")[0].split("<div>")[1:]
    return [each.replace("</dd></div>", "").replace("<dt>", "").replace("</dt><dd>", "|") for each in found]


def test_the_page_of_a_check_counts_files_and_findings() -> None:
    found = [finding(), finding(severity="info"), finding(filename="b <c>.py")]
    page = html.render_check_report(found, 1005, "amp-check check .")
    assert tiles(page) == [
        "Files read|1,005<small>1,003 without findings</small>",
        "Findings|3<small>2 errors, 1 info</small>",
    ]
    assert "<h1>amp-check check .</h1>" in page
    assert '<div class="wide full" role="region" tabindex="0" aria-label="Files">' in page
    assert '<th scope="col">File</th><th scope="col">Findings</th>' in page
    assert '<a href="#file-1">examples/train.py</a>' in page
    assert '<a href="#file-2">b &lt;c&gt;.py</a>' in page
    assert "<summary>2 files</summary>" in page
    assert page.count('id="rule-AMP201"') == 1


def test_the_page_of_a_check_that_found_nothing() -> None:
    page = html.render_check_report([], 2, "amp-check check .")
    assert tiles(page) == ["Files read|2<small>2 without findings</small>", "Findings|0"]
    assert "No AMP mistakes were found in these files." in page
    assert "<summary>0 files</summary>" in page


def test_the_page_of_a_check_shows_so_many_files() -> None:
    found = [finding(filename=f"f{number:03}.py") for number in range(301)]
    page = html.render_check_report(found, 301, "amp-check check .")
    assert '<a href="#file-300">f299.py</a>' in page
    assert "f300.py" not in page
    assert '<p class="muted">1 more files with findings are not shown.</p>' in page
    assert 'placeholder="Filter files"' in page


def test_the_page_of_a_check_has_what_the_terminal_shows(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.py").write_text(BAD)
    code, out, _ = amp_check(capsys, "check", "--report", "found.html", "a.py")
    assert code == 1
    page = Path("found.html").read_text(encoding="utf-8")
    assert "<h1>amp-check check a.py</h1>" in page
    (row,) = [line for line in out.splitlines() if "clip_grad_norm_(" in line and "|" in line]
    assert '<span class="t-source">' in page
    assert row.split("|")[1].strip().split("(")[0] in page
    assert '<summary>Trace</summary><ol><li><span class="path">a.py:' in page
    assert (
        'class="help"><span class="t-dim">  more: </span><span class="t-command">amp-check explain AMP201</span>'
        in page
    )


def test_a_report_that_cannot_be_written_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.py").write_text(BAD)
    code, out, err = amp_check(capsys, "check", "--report", "a.py/found.html", "a.py")
    assert code == 2
    assert "AMP201" in out
    path = os.path.abspath("a.py/found.html")
    problem = f"the report cannot be written to {path}: {os.strerror(errno.EEXIST)}: name another file"
    assert err == f"amp-check: error: {problem}\n"


# Targets of written fixes.


@pytest.mark.parametrize(
    ("argv", "written"),
    [
        ((".",), ["project"]),
        (("--fix", ".", "../beside"), ["beside", "project"]),
        ((".", "../beside"), ["project"]),
        (("--config", "pyproject.toml", ".", "../beside"), ["beside", "project"]),
        (("--no-fix", ".", "../beside"), []),
    ],
)
def test_a_project_has_fixes_written_in_it_alone(
    argv: tuple[str, ...],
    written: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for folder in ("project", "beside"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(BAD)
    (tmp_path / "project/pyproject.toml").write_text("[tool.amp-check]\nfix = true\n")
    monkeypatch.chdir(tmp_path / "project")
    _, _, err = amp_check(capsys, "check", *argv)
    changed = sorted(path.parent.name for path in tmp_path.glob("*/train.py") if path.read_text() != BAD)
    assert changed == written
    refused = [line for line in err.splitlines() if "was not written" in line]
    assert len(refused) == (1 if written == ["project"] and "../beside" in argv else 0)
