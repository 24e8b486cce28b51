"""Search and decoding of source files."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_amp_check.static.sources import git as git_calls
from pytest_amp_check.static.sources.block import find_parse_error
from pytest_amp_check.static.sources.git import kill_after
from pytest_amp_check.static.sources.newer_syntax import Rejection, explain_rejection
from pytest_amp_check.static.sources.source_files import (
    InputError,
    Unreadable,
    decode_python,
    find_sources,
    read_python,
)


def tree(root: Path, *names: str) -> Path:
    """Create empty files below ``root``. A name that ends in a slash is a directory."""
    for name in names:
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    return root


def found(root: Path, *exclude: str) -> list[str]:
    return [Path(path).relative_to(root).as_posix() for path in find_sources([str(root)], exclude)]


def git(root: Path, *arguments: str) -> None:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
    subprocess.run(command, cwd=root, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "-q")
    (root / ".gitignore").write_text("/generated/\n*_pb2.py\n!kept_pb2.py\n")
    return tree(root, "generated/a.py", "generated/deep/b.py", "src/c.py", "src/c_pb2.py", "src/kept_pb2.py")


class TestFind:
    def test_directory_is_walked_and_sorted(self, tmp_path: Path) -> None:
        tree(tmp_path, "b.py", "a/z.py", "a/b/c.py", "c.txt", "d.pyc", "e.pyi", "empty/")
        assert found(tmp_path) == ["a/b/c.py", "a/z.py", "b.py", "e.pyi"]

    def test_paths_stay_as_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tree(tmp_path, "src/a.py", "b.py")
        monkeypatch.chdir(tmp_path)
        assert find_sources(["."]) == ["b.py", os.path.join("src", "a.py")]
        assert find_sources(["src"]) == [os.path.join("src", "a.py")]
        assert find_sources(["src/"]) == ["src/a.py"]
        assert find_sources([os.path.join(".", "src")]) == [os.path.join(".", "src", "a.py")]
        assert find_sources([os.path.join("src", "..", "b.py")]) == [os.path.join("src", "..", "b.py")]
        assert find_sources([str(tmp_path / "src")]) == [str(tmp_path / "src" / "a.py")]

    def test_named_files_are_taken_whatever_they_are(self, tmp_path: Path) -> None:
        tree(tmp_path, "script", "build/x.py", "node_modules/y.py")
        named = [str(tmp_path / name) for name in ("script", "build/x.py", "node_modules/y.py")]
        assert find_sources(named, exclude=["*"]) == named

    def test_each_file_comes_once_in_the_order_of_the_paths(self, tmp_path: Path) -> None:
        tree(tmp_path, "a.py", "b/c.py")
        named = [str(tmp_path / "b"), str(tmp_path), str(tmp_path / "a.py"), str(tmp_path / "b" / ".." / "a.py")]
        assert find_sources(named) == [str(tmp_path / "b" / "c.py"), str(tmp_path / "a.py")]

    def test_missing_path_says_what_to_do(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"`.*nowhere\.py` does not exist: check its spelling"):
            find_sources([str(tmp_path), str(tmp_path / "nowhere.py")])
        with pytest.raises(InputError):
            find_sources([""])

    @pytest.mark.parametrize(
        "name",
        [
            ".git/hooks/x.py",
            ".hg/x.py",
            ".svn/x.py",
            "a/__pycache__/x.py",
            ".tox/py/x.py",
            ".nox/x.py",
            ".mypy_cache/x.py",
            ".ruff_cache/x.py",
            ".pytest_cache/x.py",
            ".eggs/x.py",
            "some.egg-info/x.py",
            "web/node_modules/x.py",
            "notebooks/.ipynb_checkpoints/x.py",
        ],
    )
    def test_directories_without_source_of_the_project(self, tmp_path: Path, name: str) -> None:
        tree(tmp_path, name, "a.py")
        assert found(tmp_path) == ["a.py"]

    @pytest.mark.parametrize("mark", ["pyvenv.cfg", "conda-meta/"])
    def test_environments_are_known_by_their_mark(self, tmp_path: Path, mark: str) -> None:
        tree(tmp_path, f"env/{mark}", "env/lib/x.py", "environment/y.py")
        assert found(tmp_path) == ["environment/y.py"]

    def test_build_and_dist_only_where_a_project_builds(self, tmp_path: Path) -> None:
        tree(tmp_path, "build/a.py", "dist/a.py", "package/build/b.py", "other/setup.py", "other/dist/c.py")
        assert found(tmp_path) == ["other/setup.py", "package/build/b.py"]

    @pytest.mark.parametrize("root", ["env", "build", "env/lib/site-packages", "node_modules", ".tox"])
    def test_a_root_is_walked_wherever_it_lies(self, tmp_path: Path, root: str) -> None:
        tree(tmp_path, "env/pyvenv.cfg", f"{root}/package/x.py")
        assert found(tmp_path / root) == ["package/x.py"]

    def test_hidden_directories_are_source(self, tmp_path: Path) -> None:
        tree(tmp_path, ".github/scripts/x.py")
        assert found(tmp_path) == [".github/scripts/x.py"]

    def test_a_directory_that_cannot_be_listed_is_not_passed_over(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tree(tmp_path, "a.py", "locked/b.py")
        real = os.scandir

        def scandir(path: str) -> object:
            if path.endswith("locked"):
                raise PermissionError(13, "Permission denied")
            return real(path)

        monkeypatch.setattr(os, "scandir", scandir)
        assert found(tmp_path) == ["a.py", "locked"]
        with pytest.raises(Unreadable, match="this directory cannot be listed, permission denied"):
            read_python(str(tmp_path / "locked"))

    @pytest.mark.parametrize("path", ["a\0b.py", "a\0/", "\0"])
    def test_a_null_byte_is_refused(self, path: str, tmp_path: Path) -> None:
        tree(tmp_path, "a.py")
        with pytest.raises(InputError, match="holds a null byte, which no path has: check where it comes from"):
            find_sources([str(tmp_path), path])


class TestExclude:
    @pytest.mark.parametrize(
        ("pattern", "left"),
        [
            ("b.py", ["a/x_test.py", "c/a/d.py"]),
            ("a", ["b.py"]),
            ("a/", ["b.py"]),
            ("*_test.py", ["b.py", "c/a/d.py"]),
            ("c/a", ["a/x_test.py", "b.py"]),
            ("./c/a", ["a/x_test.py", "b.py"]),
            ("c/*", ["a/x_test.py", "b.py"]),
            ("**/d.py", ["a/x_test.py", "b.py"]),
            ("c/**/d.py", ["a/x_test.py", "b.py"]),
            ("x/c", ["a/x_test.py", "b.py", "c/a/d.py"]),
            ("", ["a/x_test.py", "b.py", "c/a/d.py"]),
            ("aX", ["a/x_test.py", "b.py", "c/a/d.py"]),
        ],
    )
    def test_patterns(self, tmp_path: Path, pattern: str, left: list[str]) -> None:
        tree(tmp_path, "b.py", "a/x_test.py", "c/a/d.py")
        assert found(tmp_path, pattern) == left

    def test_absolute_pattern(self, tmp_path: Path) -> None:
        tree(tmp_path, "a/b.py", "c/a/b.py")
        assert found(tmp_path, str(tmp_path / "a")) == ["c/a/b.py"]

    def test_several_patterns(self, tmp_path: Path) -> None:
        tree(tmp_path, "a/b.py", "c/d.py", "e.py", "f.py")
        assert found(tmp_path, "a", "c/*.py", "e*") == ["f.py"]

    @pytest.mark.parametrize(
        ("include", "exclude", "left"),
        [
            (["a/*"], [], ["a/b.py", "a/c/d.pyi"]),
            (["*.pyi"], [], ["a/c/d.pyi"]),
            (["e.py", "a/b.py"], [], ["a/b.py", "e.py"]),
            (["a/*"], ["c"], ["a/b.py"]),
            (["a/*"], ["a"], []),
            (["a"], [], []),
            (["x"], [], []),
        ],
    )
    def test_files_that_are_included(
        self, tmp_path: Path, include: list[str], exclude: list[str], left: list[str]
    ) -> None:
        tree(tmp_path, "a/b.py", "a/c/d.pyi", "e.py")
        paths = find_sources([str(tmp_path)], exclude, include=include)
        assert [Path(path).relative_to(tmp_path).as_posix() for path in paths] == left


class TestLinks:
    def test_loop_ends(self, tmp_path: Path) -> None:
        tree(tmp_path, "a/b.py")
        (tmp_path / "a" / "again").symlink_to(tmp_path, target_is_directory=True)
        (tmp_path / "a" / "self").symlink_to(tmp_path / "a", target_is_directory=True)
        (tmp_path / "knot").symlink_to(tmp_path / "knot")
        assert found(tmp_path) == ["a/b.py"]

    def test_links_below_the_root_add_nothing(self, tmp_path: Path) -> None:
        tree(tmp_path, "z/b.py", "env/pyvenv.cfg", "env/lib/x.py")
        (tmp_path / "a").symlink_to(tmp_path / "z", target_is_directory=True)
        (tmp_path / "b.py").symlink_to(tmp_path / "z" / "b.py")
        (tmp_path / "packages").symlink_to(tmp_path / "env" / "lib", target_is_directory=True)
        assert found(tmp_path) == ["z/b.py"]

    def test_links_to_elsewhere_are_followed_once(self, tmp_path: Path) -> None:
        root = tree(tmp_path / "root", "a.py")
        tree(tmp_path / "elsewhere", "b.py", "sub/c.py")
        for name in ("first", "second"):
            (root / name).symlink_to(tmp_path / "elsewhere", target_is_directory=True)
        (root / "b.py").symlink_to(tmp_path / "elsewhere" / "b.py")
        assert found(root) == ["a.py", "b.py", "first/sub/c.py"]

    def test_a_linked_folder_that_links_to_itself_is_walked_once(self, tmp_path: Path) -> None:
        root = tree(tmp_path / "root", "a.py")
        tree(tmp_path / "elsewhere", "sub/c.py")
        for link in (root / "link", tmp_path / "elsewhere" / "sub" / "again"):
            link.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
        assert found(root) == ["a.py", "link/sub/c.py"]

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
    def test_pipes_and_links_to_pipes_are_passed_over(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.py")
        (tmp_path / "link.py").symlink_to(tmp_path / "pipe.py")
        assert found(tmp_path) == []
        with pytest.raises(Unreadable, match=r"^it is no regular file, and pipes, sockets and devices are not read$"):
            read_python(str(tmp_path / "link.py"))

    def test_two_names_of_one_root(self, tmp_path: Path) -> None:
        tree(tmp_path / "root", "a.py")
        (tmp_path / "link").symlink_to(tmp_path / "root", target_is_directory=True)
        assert find_sources([str(tmp_path / "link"), str(tmp_path / "root")]) == [str(tmp_path / "link" / "a.py")]

    def test_dangling_links_are_passed_over(self, tmp_path: Path) -> None:
        (tmp_path / ".#a.py").symlink_to("user@host.1234")
        assert found(tmp_path) == []


class TestGit:
    def test_ignored_files_and_directories(self, repository: Path) -> None:
        assert found(repository) == ["src/c.py", "src/kept_pb2.py"]
        assert found(repository / "src") == ["c.py", "kept_pb2.py"]

    def test_an_ignored_root_is_walked(self, repository: Path) -> None:
        assert found(repository / "generated") == ["a.py", "deep/b.py"]
        assert found(repository / "generated" / "deep") == ["b.py"]

    def test_an_ignored_file_is_taken_when_named(self, repository: Path) -> None:
        path = str(repository / "src" / "c_pb2.py")
        assert find_sources([path]) == [path]

    def test_tracked_files_are_not_ignored(self, repository: Path) -> None:
        git(repository, "add", "--force", "generated/a.py")
        assert found(repository) == ["generated/a.py", "src/c.py", "src/kept_pb2.py"]

    def test_repositories_below_the_root_have_their_own_rules(self, tmp_path: Path, repository: Path) -> None:
        tree(tmp_path, "loose_pb2.py")
        assert found(tmp_path) == ["loose_pb2.py", "repository/src/c.py", "repository/src/kept_pb2.py"]
        everything = find_sources([str(tmp_path)], gitignore=False)
        assert str(repository / "src" / "c_pb2.py") in everything
        assert str(repository / "generated" / "a.py") in everything

    def test_names_that_look_like_patterns(self, repository: Path) -> None:
        tree(repository, "[src]/d.py", "[src]/d_pb2.py", ":(top)/e.py")
        assert found(repository / "[src]") == ["d.py"]
        assert found(repository / ":(top)") == ["e.py"]

    def test_the_environment_of_a_hook_does_not_mislead(
        self, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
        monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other" / "index"))
        assert found(repository) == ["src/c.py", "src/kept_pb2.py"]

    def test_without_git_everything_is_found(self, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")
        assert "src/c_pb2.py" in found(repository)

    def test_what_only_looks_like_a_repository(self, tmp_path: Path) -> None:
        (tmp_path / ".git").write_text("gitdir: nowhere\n")
        tree(tmp_path, "a.py")
        assert found(tmp_path) == ["a.py"]

    def test_a_monitor_that_the_repository_names_is_not_run(self, repository: Path, tmp_path: Path) -> None:
        monitor = tmp_path / "monitor"
        monitor.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\n")
        monitor.chmod(0o755)
        git(repository, "config", "core.fsmonitor", str(monitor))
        assert found(repository) == ["src/c.py", "src/kept_pb2.py"]
        assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="the slow git is a shell script")
class TestSlowGit:
    """A git that answers late, with the time limits of this class: 0.1 and 0.5 seconds."""

    @pytest.fixture
    def run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], bytes]:
        monkeypatch.setattr(git_calls, "FIRST_TIMEOUT", 0.1)
        monkeypatch.setattr(git_calls, "ANSWER_TIMEOUT", 0.5)
        tree(tmp_path / "work", ".git/config", "src/.gitignore", "a.py")

        def run_script(script: str) -> bytes:
            tree(tmp_path, "bin/")
            (tmp_path / "bin" / "git").write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / "bin" / "git").chmod(0o755)
            monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
            return git_calls.run_git(str(tmp_path / "work"), "status")

        return run_script

    def test_a_late_answer_is_an_answer(self, run: Callable[[str], bytes]) -> None:
        assert run("echo now") == b"now\n"
        assert run("sleep 0.3; echo later") == b"later\n"

    def test_a_refusal_is_another_error_than_no_answer(self, run: Callable[[str], bytes]) -> None:
        with pytest.raises(subprocess.CalledProcessError):
            run("echo no; exit 1")

    def test_no_answer_ends_the_wait(self, run: Callable[[str], bytes], tmp_path: Path) -> None:
        began = time.monotonic()
        with pytest.raises(git_calls.GitNotResponding) as raised:
            run("exec sleep 100")
        assert str(raised.value) == f"does not answer within 0.5 seconds in {tmp_path / 'work'}"
        assert 0.5 <= time.monotonic() - began < 50

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
    @pytest.mark.parametrize("name", [".git/index", ".git/info/exclude", ".gitattributes", "src/deep/.gitignore"])
    def test_a_pipe_that_git_waits_for_is_named(self, run: Callable[[str], bytes], tmp_path: Path, name: str) -> None:
        path = tmp_path / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
        with pytest.raises(git_calls.GitNotResponding) as raised:
            run("exec sleep 100")
        assert str(raised.value) == f"cannot read {path}, which is no regular file"

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
    @pytest.mark.parametrize("name", ["pipe", ".git/hooks/.gitignore", ".git/pipe"])
    def test_a_pipe_that_git_does_not_read_is_no_cause(
        self, run: Callable[[str], bytes], tmp_path: Path, name: str
    ) -> None:
        path = tmp_path / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
        with pytest.raises(git_calls.GitNotResponding, match=r"^does not answer within"):
            run("exec sleep 100")


class TestKillAfter:
    @staticmethod
    def start(program: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-S", "-c", program])

    def test_a_process_that_ends_is_not_waited_for_any_longer(self) -> None:
        began = time.monotonic()
        with self.start("raise SystemExit(3)") as process, kill_after(process, 100):
            assert process.wait() == 3
        assert time.monotonic() - began < 50

    def test_a_process_that_takes_longer_is_killed(self) -> None:
        with self.start("import time\ntime.sleep(100)") as process, kill_after(process, 0.05):
            assert process.wait() == -9

    def test_an_error_kills_the_process_at_once(self) -> None:
        began = time.monotonic()
        with (
            pytest.raises(KeyError, match="while it runs"),
            self.start("import time\ntime.sleep(100)") as process,
            kill_after(process, 100),
        ):
            raise KeyError("while it runs")
        assert process.returncode == -9
        assert time.monotonic() - began < 50


def test_a_parser_error_without_a_line_is_reported_at_the_first_line() -> None:
    assert explain_rejection("x = 1\n", ValueError("no text")) == Rejection(1, "no text", "")
    error = SyntaxError("invalid syntax")
    error.lineno = None
    running = f"{sys.version_info[0]}.{sys.version_info[1]}"
    said = f"it is not valid Python {running}: invalid syntax"
    assert explain_rejection("x = = 1\n", error) == Rejection(1, said, "")
    error.lineno = 2
    assert explain_rejection("x = 1\nx = = 1\n", error) == Rejection(2, said, "")


def test_text_with_a_null_byte_is_no_python() -> None:
    assert find_parse_error("x = 1") is None
    rejection = find_parse_error("x = '\0'")
    assert rejection is not None
    assert rejection.line == 1
    assert "null bytes" in rejection.reason


class TestDecode:
    @pytest.mark.parametrize(
        ("data", "text"),
        [
            (b"", ""),
            ("x = 'é'\n".encode(), "x = 'é'\n"),
            (b"\xef\xbb\xbf" + "x = 'é'\n".encode(), "x = 'é'\n"),
            (b"\xef\xbb\xbf# coding: utf-8\n", "# coding: utf-8\n"),
            (b"\xef\xbb\xbf# coding: utf8\n", "# coding: utf8\n"),
            (b"\xef\xbb\xbf# coding: UTF_8\n", "# coding: UTF_8\n"),
            (b"# -*- coding: latin-1 -*-\nx = '\xe9'\n", "# -*- coding: latin-1 -*-\nx = 'é'\n"),
            (b"#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\nx = '\x80'", None),
            (b"# -*- coding: iso-8859-15-unix -*- \xa4\n", "# -*- coding: iso-8859-15-unix -*- €\n"),
            (b"\n# coding: latin-1\n\xe9 = 1\n", "\n# coding: latin-1\né = 1\n"),
            (b"# coding: euc_jp\n'\xa4\xa2'\n", "# coding: euc_jp\n'あ'\n"),
        ],
    )
    def test_encodings(self, data: bytes, text: str | None) -> None:
        assert decode_python(data) == (
            text if text is not None else "#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\nx = '€'"
        )

    def test_a_coding_line_that_is_none(self) -> None:
        # Only a comment on the first two lines counts, and the second only below a blank line or a comment.
        with pytest.raises(Unreadable, match="0xe9 on line 2 is not UTF-8, and no coding line"):
            decode_python(b"x = 1\n# coding: latin-1 \xe9\n")
        with pytest.raises(Unreadable, match="0xe9 on line 3"):
            decode_python(b"\n\n# coding: latin-1 \xe9\n")
        with pytest.raises(Unreadable, match="0xe9 on line 1"):
            decode_python(b"\r\r# coding: latin-1 \xe9\r")
        assert decode_python(b"encoding = 'latin-1'\n") == "encoding = 'latin-1'\n"

    @pytest.mark.parametrize(
        ("data", "reason", "line"),
        [
            (b"a\nb\n\xff\n", "byte 0xff on line 3 is not UTF-8, and no coding line names another encoding", 3),
            (b"# coding: ascii\nx = '\xe9'\n", "byte 0xe9 on line 2 is not ascii", 2),
            (b"# coding: klingon\n", "its coding line names klingon, which is no encoding that Python knows", 1),
            (b"# coding: hex\n00\n", "its coding line names hex, which is no encoding that Python knows", 1),
            (
                b"\xef\xbb\xbf# coding: latin-1\n",
                "it begins with the mark of UTF-8 and its coding line says latin-1",
                1,
            ),
            (b"x\n\0", "there is a null byte on line 2, so it is no text in UTF-8", 2),
            ("import torch\n".encode("utf-16"), "there is a null byte on line 1, so it is no text in UTF-8", 1),
        ],
    )
    def test_unreadable(self, data: bytes, reason: str, line: int) -> None:
        with pytest.raises(Unreadable) as caught:
            decode_python(data)
        assert caught.value.reason == str(caught.value) == reason
        assert caught.value.line == line

    def test_too_large(self, tmp_path: Path) -> None:
        path = tmp_path / "large.py"
        path.write_bytes(b" " * 3_000_000)
        said = "it has 3,000,000 bytes of code, which is more than max-file-size allows: 2,999,999"
        with pytest.raises(Unreadable, match=said):
            read_python(str(path), 2_999_999)
        assert read_python(str(path), 3_000_000) == read_python(str(path)) == " " * 3_000_000

    @given(
        st.lists(st.sampled_from(["x = 1", "'''", "# a", "\f", "\x0b", "\x1c", "\x85", "\u2028"]), max_size=8),
        st.data(),
    )
    def test_lines_are_those_that_python_counts(self, parts: list[str], data: st.DataObject) -> None:
        ends = st.sampled_from(["\n", "\r\n", "\r"])
        text = "".join(part + data.draw(ends) for part in parts) + "here = 1\n"
        lines = decode_python(text.encode()).split("\n")
        assert "\r" not in "".join(lines)
        try:
            tree = ast.parse(text)
        except SyntaxError:
            return
        name = next(node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "here")
        assert lines[name.lineno - 1] == "here = 1"

    def test_files(self, tmp_path: Path) -> None:
        (tmp_path / "a.py").write_bytes(b"x = 1\r\ny = 2\r")
        assert read_python(str(tmp_path / "a.py")) == "x = 1\ny = 2\n"
        with pytest.raises(Unreadable, match=r"^it is a directory$"):
            read_python(str(tmp_path))
        with pytest.raises(Unreadable, match="it cannot be opened, no such file or directory"):
            read_python(str(tmp_path / "b.py"))

    @given(st.binary(max_size=200))
    def test_any_bytes_are_text_or_have_a_reason(self, data: bytes) -> None:
        try:
            text = decode_python(data)
        except Unreadable as error:
            assert str(error)
            assert 1 <= error.line <= data.count(b"\n") + 1
        else:
            assert "\r" not in text
            assert "\0" not in text
