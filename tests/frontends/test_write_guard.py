"""Files that a check may write: named files, with links resolved; configuration may only name files in its folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from warm import run_command

from pytest_amp_check.protocol.rules import RULES

BAD, GOOD = RULES["AMP201"].bad_example.replace("  # AMP201", ""), RULES["AMP201"].good_example
as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture(autouse=True)
def _around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a project as working folder, and an unrelated folder beside the project."""
    for name in ("NO_COLOR", "FORCE_COLOR", "AMP_CHECK_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    for folder in ("project", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(BAD)
    monkeypatch.chdir(tmp_path / "project")


def amp_check(*argv: str) -> tuple[int, str, list[str]]:
    done = run_command("check", "--output-format", "concise", *argv)
    return done.returncode, done.stdout, done.stderr.splitlines()


def outside() -> str:
    return Path("../other/train.py").read_text()


def through(path: str) -> str:
    return (
        f"amp-check: warning: {path} was not written: a symbolic link leads from there to "
        f"{os.path.realpath('../other/train.py')}, outside of what was named: name that file"
    )


# Links.


@pytest.mark.parametrize("flag", ["--fix", "--fix-only", "--diff", "--add-ignores"])
@pytest.mark.parametrize("given", [(), (".",), ("../project",)])
@pytest.mark.parametrize(("link", "target", "path"), [("a.py", "train.py", "a.py"), ("sub", "", "sub/train.py")])
def test_nothing_is_written_through_a_link_that_leads_out(
    flag: str, given: tuple[str, ...], link: str, target: str, path: str
) -> None:
    Path(link).symlink_to(Path("../other", target))
    code, out, err = amp_check(flag, "--no-cache", *given)
    assert outside() == BAD
    assert err[0] == through(os.path.join(*given, path) if given != (".",) else path)
    assert f"+++ {path}" not in out
    if flag == "--fix":
        # The unfixed file is still shown, and fails; the file in the project was fixed.
        assert (code, out.count("AMP201")) == (1, 1)
        assert Path("train.py").read_text() == GOOD


@pytest.mark.parametrize(("link", "target", "named"), [("a.py", "train.py", "a.py"), ("sub", "", "sub/train.py")])
def test_a_link_that_is_named_is_written_through_only_within_the_tree(link: str, target: str, named: str) -> None:
    Path(link).symlink_to(Path("../other", target))
    assert amp_check("--fix", named)[2] == [through(named)]
    assert amp_check("--fix", os.path.abspath(named))[2] == [through(os.path.abspath(named))]
    assert outside() == BAD
    assert amp_check("--fix", "../other/train.py")[0] == 0
    assert outside() == GOOD
    Path("inner").mkdir()
    Path("inner/b.py").symlink_to("../train.py")
    assert amp_check("--fix", "inner/b.py")[0] == 0
    assert Path("train.py").read_text() == GOOD


def offered(*argv: str) -> tuple[int, str]:
    """Return the number of findings marked as fixable, and the last line."""
    _, out, _ = amp_check("--no-cache", *argv)
    return out.count("AMP201 [*]"), out.splitlines()[-1]


def test_fixes_are_offered_where_they_would_be_made() -> None:
    assert offered(".") == (1, "[*] 1 fixable with --fix.")
    Path("a.py").symlink_to("../other/train.py")
    assert offered(".") == (1, "[*] 1 fixable with --fix.")
    assert offered("a.py") == (0, "Found 1 error in 1 file.")
    assert offered("a.py", "--fix") == (0, "Found 1 error in 1 file.")
    assert offered("../other/train.py") == (1, "[*] 1 fixable with --fix.")
    (shown,) = json.loads(amp_check("a.py", "--output-format", "json")[1])
    assert shown["fix"] is None
    configuration('paths = ["../other"]')
    assert offered() == (0, "Found 1 error in 1 file.")
    Path("train.py").chmod(0o444)
    assert offered("train.py") == (0, "Found 1 error in 1 file.")


def test_a_folder_that_is_named_is_written_wherever_it_lies() -> None:
    Path("sub").symlink_to("../other")
    assert amp_check("--fix", "sub")[0] == 0
    assert outside() == GOOD


# Configuration of the project.


def configuration(text: str) -> str:
    Path("pyproject.toml").write_text(f"[tool.amp-check]\n{text}\n")
    return f"[tool.amp-check] of {os.path.abspath('pyproject.toml')}"


@pytest.mark.parametrize("asked", ["fix = true", "fix-only = true"])
def test_a_project_has_nothing_written_outside_of_it(asked: str) -> None:
    table = configuration(f'{asked}\nunsafe-fixes = true\npaths = ["../other", "."]\ncache = false')
    _, _, err = amp_check()
    place = os.path.realpath("../other/train.py")
    key = asked.partition(" ")[0]
    assert err[0] == (
        f"amp-check: warning: {place} was not written: {key} in {table} speaks of that project alone: "
        "name the file, and give --fix"
    )
    assert outside() == BAD
    assert Path("train.py").read_text() == GOOD


@pytest.mark.parametrize("flag", ["--fix", "--add-ignores"])
def test_paths_of_a_project_are_not_those_that_are_named(flag: str) -> None:
    table = configuration('paths = ["../other"]')
    _, _, err = amp_check(flag, "--no-cache")
    assert f"was not written: paths in {table} speaks of that project alone" in err[0]
    assert outside() == BAD
    amp_check("--fix", "../other")
    assert outside() == GOOD


def test_a_configuration_that_is_named_is_the_word_of_who_names_it() -> None:
    Path("ci").mkdir()
    Path("ci/mine.toml").write_text("fix = true\n")
    assert amp_check("--config", "ci/mine.toml", ".")[0] == 0
    assert Path("train.py").read_text() == GOOD


def test_a_cache_lies_where_the_project_does_or_where_it_is_named() -> None:
    configuration('cache-dir = "../elsewhere"')
    code, out, err = amp_check(".")
    assert (code, out) == (2, "")
    assert err[0].startswith(
        f"amp-check: error: the cache would be written to {os.path.realpath('../elsewhere')}, outside of "
    )
    assert err[0].endswith("name that place by --cache-dir")
    assert not os.path.exists("../elsewhere")
    assert amp_check(".", "--cache-dir", "../elsewhere")[0] == 1
    assert os.path.exists("../elsewhere/CACHEDIR.TAG")


def test_a_report_lies_where_the_project_does_or_where_it_is_named() -> None:
    configuration('report = "../elsewhere.html"')
    code, out, err = amp_check(".")
    assert (code, out) == (2, "")
    assert err[0].startswith(
        f"amp-check: error: the report would be written to {os.path.realpath('../elsewhere.html')}, outside of "
    )
    assert err[0].endswith(": name that place by --report")
    assert not os.path.exists("../elsewhere.html")


def test_the_cache_that_a_repository_brings_as_a_link_is_not_used() -> None:
    Path("../empty").mkdir()
    Path(".amp_check_cache").symlink_to("../empty")
    code, _, err = amp_check(".")
    assert code == 2
    assert "the cache would be written to" in err[0]
    assert os.listdir("../empty") == []


def test_a_baseline_is_written_in_the_project_or_where_it_is_named() -> None:
    configuration('baseline = "../known.json"')
    code, _, err = amp_check(".", "--update-baseline")
    assert code == 2
    assert err[0].startswith("amp-check: error: the baseline would be written to ")
    assert not os.path.exists("../known.json")
    assert amp_check(".", "--update-baseline", "--baseline", "../known.json")[0] == 0
    assert os.path.exists("../known.json")


def test_a_report_is_written_in_the_project_or_where_it_is_named() -> None:
    configuration('report = "../report.html"')
    code, _, err = amp_check(".")
    assert code == 2
    assert err[0].startswith("amp-check: error: the report would be written to ")
    assert not os.path.exists("../report.html")
    assert amp_check(".", "--report", "../report.html")[0] == 1
    assert os.path.exists("../report.html")


def test_no_link_beside_a_baseline_is_written_through() -> None:
    for name in ("known.json.part", f".amp-check-{os.getpid()}-0"):
        Path(name).symlink_to("../other/train.py")
    assert amp_check(".", "--no-cache", "--update-baseline", "--baseline", "known.json")[0] == 0
    assert json.loads(Path("known.json").read_text())["version"] == 1
    assert outside() == BAD


# A cache folder that is something else.


@pytest.mark.parametrize(
    "name", ["train.json", "0123456789abcdef0123456789abcdef.json", "CACHEDIR.TAG", "pyvenv.cfg", ".gitignore"]
)
def test_a_folder_that_is_no_cache_is_refused_and_left_alone(name: str) -> None:
    tag = "Signature: 8a477f597d28d172789f06886806bc55\n# This is a cache of another tool.\n"
    Path("data").mkdir()
    Path("data", name).write_text(tag)
    code, out, err = amp_check(".", "--cache-dir", "data")
    assert (code, out) == (2, "")
    (said,) = err
    assert said == (
        f"amp-check: error: `{os.path.abspath('data')}` holds something else than a cache of amp-check: "
        "name another folder by --cache-dir, or give --no-cache"
    )
    assert os.listdir("data") == [name]
    assert Path("data", name).read_text() == tag


def test_an_empty_folder_becomes_a_cache_and_one_that_a_kill_has_left_goes_on_to_be_one() -> None:
    Path("kept").mkdir()
    Path("kept/.amp-check-17-0").write_text("Signature: 8a4")
    for _ in range(2):
        assert amp_check(".", "--cache-dir", "kept")[0] == 1
        assert {".gitignore", "CACHEDIR.TAG"} <= set(os.listdir("kept"))


def test_only_what_a_cache_writes_is_removed_from_it() -> None:
    assert amp_check(".", "--cache-dir", "kept")[0] == 1
    (own,) = Path("kept").glob("*.json")
    foreign = {"a" * 32 + ".txt", "notes.json", "Z" * 32 + ".json", "readme"}
    for name in foreign:
        Path("kept", name).write_text("mine")
        os.utime(Path("kept", name), (0, 0))
    for number in range(40):
        Path("kept", f"{number:032x}.json").write_text("{}")
        os.utime(Path("kept", f"{number:032x}.json"), (number, number))
    own.unlink()
    assert amp_check(".", "--cache-dir", "kept")[0] == 1
    left = set(os.listdir("kept"))
    assert foreign <= left
    assert len(left - foreign - {".gitignore", "CACHEDIR.TAG"}) == 30


def test_pytest_refuses_the_same_folders(tmp_path: Path) -> None:
    Path("data").mkdir()
    Path("data/mine.txt").write_text("mine")
    configuration('cache-dir = "data"')
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_PLUGINS": "pytest_amp_check.frontends.plugin",
    }
    command = [sys.executable, "-m", "pytest", "--amp-check", "--amp-only=static", "."]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "holds something else than a cache of amp-check" in done.stderr
    assert os.listdir("data") == ["mine.txt"]


# No files.


def test_a_check_that_found_no_file_is_no_success() -> None:
    Path("docs").mkdir()
    said = "no Python file, notebook or Markdown was found in docs"
    for flags in ((), ("--fix",), ("--diff",), ("--exit-zero",), ("--add-ignores",)):
        code, _, err = amp_check("docs", *flags)
        assert code == 2
        assert err[0] == f"amp-check: error: {said}: use --allow-no-files if this is expected"
    code, out, err = amp_check("docs", "--allow-no-files")
    assert (code, out, err) == (0, "No AMP mistakes found in 0 files.\n", [f"amp-check: warning: {said}"])
    command = [sys.executable, "-m", "pytest_amp_check", "check", "docs", "--output-format", "json"]
    assert json.loads(subprocess.run(command, capture_output=True, text=True).stdout) == []
    configuration('allow-no-files = true\nexclude = ["*.py"]')
    assert amp_check(".")[0] == 0


def test_files_that_are_named_and_left_out_on_purpose_are_right() -> None:
    # As pre-commit names changed files.
    configuration('exclude = ["train.py"]')
    assert amp_check("train.py", "--force-exclude")[0] == 0
    assert amp_check(".", "--force-exclude")[0] == 2


# Metadata of a file.


@as_root
def test_a_fixed_file_keeps_its_owner_group_and_mode() -> None:
    os.chown("train.py", 12345, 23456)
    os.chmod("train.py", 0o2764)
    assert amp_check("--fix", "train.py")[0] == 0
    found = os.stat("train.py")
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (12345, 23456, 0o2764)
    assert Path("train.py").read_text() == GOOD


@pytest.mark.skipif(not hasattr(os, "setxattr"), reason="this system has no attributes of files")
def test_a_fixed_file_keeps_what_hangs_on_it() -> None:
    try:
        os.setxattr("train.py", "user.origin", b"here")
    except OSError:
        pytest.skip("this file system has no attributes of files")
    assert amp_check("--fix", "train.py")[0] == 0
    assert os.getxattr("train.py", "user.origin") == b"here"


def test_hard_links_are_said() -> None:
    os.link("train.py", "../second.py")
    code, _, err = amp_check("--fix", "train.py")
    assert (code, err) == (
        0,
        ["amp-check: warning: train.py: it had 1 other name (hard links), which keep what it held"],
    )
    assert Path("train.py").read_text() == GOOD
    assert Path("../second.py").read_text() == BAD


# Configuration of git in a repository.


def git(*words: str, given: bytes = b"") -> str:
    who = {f"GIT_{role}_{key}": "a@b" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    done = subprocess.run(["git", *words], input=given, capture_output=True, check=True, env={**os.environ, **who})
    return done.stdout.decode().strip()


@pytest.fixture
def hostile() -> Path:
    """Create a repository of two commits whose configuration starts a program wherever git may start one."""
    ran = Path("ran").resolve()
    program = Path("program").resolve()
    program.write_text(f'#!/bin/sh\necho "$0 $*" >> {ran}\nexit 1\n')
    program.chmod(0o755)
    git("init", "-q")
    Path("old.py").write_text(BAD + "# one\n")
    Path("gone.py").write_text("gone = 1\n")
    git("add", "old.py", "gone.py")
    git("commit", "-q", "-m", "one")
    git("mv", "old.py", "new.py")
    Path(".gitattributes").write_text("*.py filter=own diff=own merge=own\n")
    git("add", ".gitattributes", "train.py")
    git("commit", "-q", "-m", "two")
    hooks = Path(".git/own")
    hooks.mkdir()
    for hook in ("post-index-change", "post-checkout", "reference-transaction", "fsmonitor-watchman", "pre-auto-gc"):
        (hooks / hook).symlink_to(program)
    for key in (
        *("core.fsmonitor", "core.pager", "core.sshCommand", "core.editor", "core.askPass", "core.gitProxy"),
        *("core.alternateRefsCommand", "pager.diff", "pager.rev-parse", "pager.ls-tree", "pager.cat-file"),
        *("diff.external", "diff.own.command", "diff.own.textconv", "merge.own.driver", "filter.own.clean"),
        *("filter.own.smudge", "filter.own.process", "credential.helper", "gpg.program", "sequence.editor"),
        *("remote.origin.uploadpack", "uploadpack.packObjectsHook", "trace2.eventTarget"),
    ):
        git("config", key, str(program))
    # git fetches a missing promised object, and the repository's configuration names the program for that.
    for key, value in (
        *(
            ("core.hooksPath", str(hooks.resolve())),
            ("core.repositoryFormatVersion", "1"),
            ("protocol.allow", "always"),
        ),
        *(("extensions.partialClone", "origin"), ("remote.origin.promisor", "true")),
        *(("protocol.file.allow", "always"), ("remote.origin.url", str(Path("../other").resolve()))),
    ):
        git("config", key, value)
    os.utime("new.py", (1, 1))
    ran.unlink(missing_ok=True)
    return ran


@pytest.mark.skipif(sys.platform == "win32", reason="the program is a script of a shell")
def test_git_starts_nothing_that_a_repository_names(hostile: Path) -> None:
    code, out, _ = amp_check("--no-cache", ".", "--diff-base", "HEAD~")
    assert (code, out.count("AMP201"), out.partition(":")[0]) == (1, 1, "train.py")
    assert not hostile.exists()
    blob = git("rev-parse", "HEAD~:gone.py")
    Path(".git/objects", blob[:2], blob[2:]).unlink()
    base = git("rev-parse", "--short=12", "HEAD~")
    hostile.unlink(missing_ok=True)
    code, _, err = amp_check("--no-cache", ".", "--diff-base", "HEAD~")
    said = "amp-check: error: --diff-base: this clone lacks gone.py of that revision, and amp-check fetches nothing: "
    assert (code, err) == (2, [f"{said}`git diff {base} HEAD` does"])
    assert not hostile.exists()
    # git itself would fetch it with the program that the repository names.
    subprocess.run(["git", "cat-file", "-p", "HEAD~:gone.py"], stdin=subprocess.DEVNULL, capture_output=True)
    assert hostile.exists()


def test_a_tree_of_git_that_leads_out_of_it_writes_nothing_there() -> None:
    git("init", "-q")
    blob = git("hash-object", "-w", "--stdin", given=BAD.encode())
    evil = b"100644 evil.py\0" + bytes.fromhex(blob)
    tree = git("hash-object", "-t", "tree", "-w", "--stdin", "--literally", given=evil)
    for _ in range(8):
        up = b"40000 ..\0" + bytes.fromhex(tree)
        tree = git("hash-object", "-t", "tree", "-w", "--stdin", "--literally", given=up)
    commit = git("commit-tree", tree, "-m", "evil")
    git("update-ref", "HEAD", commit)
    assert amp_check("--no-cache", "train.py", "--diff-base", "HEAD")[0] == 1
    assert not os.path.exists("/evil.py")
