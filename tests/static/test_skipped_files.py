"""Paths that the search through folders excludes or skips, with reasons, and unreadable files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_amp_check.static.sources.source_files import (
    ExclusionTest,
    FolderExclusions,
    InputError,
    SkippedPaths,
    Unreadable,
    UnsavedFiles,
    content_digest,
    decode_python,
    decode_utf8,
    decode_with_encoding,
    encode_python,
    exclusion_test,
    file_stat,
    find_sources,
    folders_upward,
    git_ignored,
    import_stem,
    is_excluded_below,
    load_bytes,
    load_or_nothing,
    read_python,
    work_tree,
)

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="links and rights are POSIX")


def tree(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n", encoding="utf-8")
    return root


def walk(
    root: Path, *exclude: str, nearer: FolderExclusions | None = None, gitignore: bool = True
) -> tuple[list[str], dict[str, list[str]]]:
    """Find the files below a folder. Return the files, and the skipped paths by reason."""
    left = SkippedPaths()
    found = find_sources([str(root)], exclude, left, nearer, gitignore=gitignore)
    reasons = {"excluded": left.excluded_paths, "ignored": left.git_ignored_paths, "links": left.circular_links}
    relative = {why: [Path(p).relative_to(root).as_posix() for p in paths] for why, paths in reasons.items() if paths}
    return [Path(path).relative_to(root).as_posix() for path in found], relative


class TestLeft:
    def test_patterns_are_reported_with_the_paths_that_they_exclude(self, tmp_path: Path) -> None:
        tree(tmp_path, "a.py", "b.py", "c/d.py", "c/e.txt", "b.txt")
        assert walk(tmp_path, "b.*", "c") == (["a.py"], {"excluded": ["b.py", "c"]})

    def test_paths_without_source_are_not_reported(self, tmp_path: Path) -> None:
        tree(tmp_path, "a.py", "b.txt", "__pycache__/c.py", "x.egg-info/d.py")
        assert walk(tmp_path, "*.txt", "__pycache__") == (["a.py"], {})

    def test_paths_that_git_ignores_are_reported_unless_git_is_not_asked(self, tmp_path: Path) -> None:
        subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
        tree(tmp_path, "a.py", "made/b.py", "c_pb2.py")
        (tmp_path / ".gitignore").write_text("made/\n*_pb2.py\n")
        assert walk(tmp_path) == (["a.py"], {"ignored": ["c_pb2.py", "made"]})
        assert walk(tmp_path, gitignore=False) == (["a.py", "c_pb2.py", "made/b.py"], {})

    @POSIX
    def test_links_that_lead_in_a_circle_are_reported(self, tmp_path: Path) -> None:
        tree(tmp_path, "a.py", "b/c.py")
        (tmp_path / "b" / "up").symlink_to(tmp_path)
        (tmp_path / "knot").symlink_to("knot")
        (tmp_path / "knot.py").symlink_to("knot.py")
        assert walk(tmp_path) == (["a.py", "b/c.py", "knot.py"], {"links": ["knot", "knot.py", "b/up"]})

    def test_a_folder_may_have_patterns_of_its_own(self, tmp_path: Path) -> None:
        tree(tmp_path, "a/x.py", "a/b/x.py", "a/b/y.py", "c/y.py")
        inner = str((tmp_path / "a" / "b").resolve())

        def nearer(folder: str) -> ExclusionTest | None:
            return exclusion_test(["y.py"]) if folder == inner else None

        assert walk(tmp_path, "x.py", nearer=nearer) == (
            ["a/b/x.py", "c/y.py"],
            {"excluded": ["a/x.py", "a/b/y.py"]},
        )
        # A folder given by name is still inside its parent folders.
        assert walk(tmp_path / "a" / "b", "x.py", nearer=nearer) == (["x.py"], {"excluded": ["y.py"]})

    def test_a_file_that_is_named_may_be_left_out_all_the_same(self, tmp_path: Path) -> None:
        tree(tmp_path, "a.py", "b.py")
        left = SkippedPaths()
        named = [str(tmp_path / "a.py"), str(tmp_path / "b.py")]
        assert find_sources(named, (), left, forced=lambda path: path.endswith("a.py")) == named[1:]
        assert left.excluded_paths == named[:1]

    @POSIX
    def test_a_link_that_is_named_and_leads_nowhere_says_where(self, tmp_path: Path) -> None:
        (tmp_path / "a.py").symlink_to("gone.py")
        with pytest.raises(InputError) as raised:
            find_sources([str(tmp_path / "a.py")])
        assert str(raised.value) == f"`{tmp_path / 'a.py'}` is a symbolic link to `gone.py`, which does not exist"

    @POSIX
    def test_a_link_that_is_named_and_leads_to_itself_is_taken_so_that_reading_it_says_why(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "a.py"
        path.symlink_to("a.py")
        assert find_sources([str(path)]) == [str(path)]
        with pytest.raises(Unreadable, match=r"^it cannot be opened, too many levels of symbolic links$"):
            load_bytes(str(path))


class TestPatterns:
    @pytest.mark.parametrize(
        ("patterns", "excluded"),
        [
            ([], []),
            (["a.py"], ["/r/a.py", "/r/c/a.py"]),
            (["a.py", "!a.py"], []),
            (["!a.py", "a.py"], ["/r/a.py", "/r/c/a.py"]),
            (["!a.py"], []),
            (["*.py", "!b.py"], ["/r/a.py", "/r/c/a.py"]),
            (["*.py", "!b.py", "c/*"], ["/r/a.py", "/r/c/a.py"]),
            (["*.py", "!c/*", "c/b*"], ["/r/a.py", "/r/b.py"]),
            (["/r/a.py"], ["/r/a.py"]),
            (["/r/*"], ["/r/a.py", "/r/b.py", "/r/c/a.py"]),
            (["./c/a.py"], ["/r/c/a.py"]),
            (["**/c/a.py"], ["/r/c/a.py"]),
            (["r/**/a.py"], ["/r/a.py", "/r/c/a.py"]),
            (["/"], []),
            ([""], []),
            (["c/"], []),
        ],
    )
    def test_the_last_one_that_matches_decides(self, patterns: list[str], excluded: list[str]) -> None:
        test = exclusion_test(patterns)
        paths = ["/r/a.py", "/r/b.py", "/r/c/a.py"]
        assert [path for path in paths if test(os.path.basename(path), path)] == excluded

    def test_a_file_is_left_out_with_a_folder_around_it(self) -> None:
        test = exclusion_test(["c", "a.py"])
        assert is_excluded_below("/r/c/b.py", "/r", test)
        assert is_excluded_below("/r/a.py", "/r", test)
        assert not is_excluded_below("/r/b.py", "/r", test)
        # Folders above the root do not count.
        assert not is_excluded_below("/c/r/b.py", "/c/r", test)


class TestPaths:
    @pytest.mark.parametrize(
        ("path", "name"),
        [("/a/b.py", "b"), ("/a/__init__.py", "a"), ("/a/b", "b"), ("b.py", "b"), ("/a/c.d.py", "c.d")],
    )
    def test_the_name_that_a_file_is_imported_by(self, path: str, name: str) -> None:
        assert import_stem(path) == name

    def test_folders_around_a_folder(self) -> None:
        assert list(folders_upward("/a/b/c")) == ["/a/b/c", "/a/b", "/a", "/"]
        assert list(folders_upward("/")) == ["/"]

    def test_the_work_tree_around_a_folder(self, tmp_path: Path) -> None:
        tree(tmp_path, "a/b/c.py", "a/.git/HEAD")
        assert work_tree(str(tmp_path / "a" / "b")) == str(tmp_path / "a")
        assert work_tree(str(tmp_path / "a")) == str(tmp_path / "a")
        (tmp_path / "a" / "b" / ".git").write_text("gitdir: elsewhere")
        assert work_tree(str(tmp_path / "a" / "b")) == str(tmp_path / "a" / "b")

    def test_a_folder_that_is_ignored_itself_ignores_nothing(self, tmp_path: Path) -> None:
        subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
        tree(tmp_path, "made/b.py", "kept/c.pyc", "kept/d.py")
        (tmp_path / ".gitignore").write_text("made/\n*.pyc\n")
        top = str(tmp_path.resolve())
        assert git_ignored(top, os.path.join(top, "made")) == frozenset()
        assert git_ignored(top, os.path.join(top, "kept")) == {os.path.join(top, "kept", "c.pyc")}


class TestUnsaved:
    def test_texts_stand_for_files_while_they_are_held(self, tmp_path: Path) -> None:
        path = str(tree(tmp_path, "a.py") / "a.py")
        on_disk = file_stat(path)
        assert on_disk is not None
        assert on_disk[0] == 6
        with UnsavedFiles({path: b"y = 22\n", str(tmp_path / "new.py"): b""}):
            assert load_bytes(path) == b"y = 22\n"
            assert load_bytes(os.path.relpath(path)) == b"y = 22\n"
            assert read_python(str(tmp_path / "new.py")) == ""
            held = file_stat(path)
            assert held is not None
            assert held[:3] == [7, 0, 0]
            with pytest.raises(Unreadable, match="7 bytes of code, which is more than max-file-size allows: 6"):
                load_bytes(path, 6)
            assert load_bytes(path, 7) == b"y = 22\n"
            with pytest.raises(Unreadable):
                load_bytes(str(tmp_path / "other.py"))
        assert load_bytes(path) == b"x = 1\n"
        assert file_stat(path) == on_disk
        with UnsavedFiles({path: b"y = 22\n"}):
            assert file_stat(path) == held
        with UnsavedFiles({path: b"y = 23\n"}):
            assert file_stat(path) != held

    def test_the_status_of_a_file_changes_with_it(self, tmp_path: Path) -> None:
        path = tree(tmp_path, "a.py") / "a.py"
        before = file_stat(str(path))
        path.write_text("x = 10\n")
        assert file_stat(str(path)) != before
        assert file_stat(str(tmp_path / "none.py")) is None
        assert file_stat("a\0b") is None


class TestReading:
    def test_a_file_that_grows_while_it_is_read_is_read_to_its_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "a.py"
        path.write_bytes(b"0123456789")
        sizes = iter([3, 3])
        real = os.stat

        def stat(given: str) -> os.stat_result:
            found = real(given)
            return os.stat_result([*found[:6], next(sizes), *found[7:10]])

        monkeypatch.setattr(os, "stat", stat)
        assert load_bytes(str(path)) == b"0123456789"
        # A file that shrinks while it is read has its remaining content.
        monkeypatch.setattr(os, "stat", lambda given: os.stat_result([*real(given)[:6], 99, *real(given)[7:10]]))
        assert load_bytes(str(path)) == b"0123456789"

    def test_what_cannot_be_read_holds_nothing_for_who_only_looks(self, tmp_path: Path) -> None:
        assert load_or_nothing(str(tmp_path)) == b""
        assert load_or_nothing(str(tmp_path / "none.py")) == b""
        assert load_or_nothing(str(tree(tmp_path, "a.py") / "a.py")) == b"x = 1\n"

    def test_a_digest_is_of_the_content(self) -> None:
        assert content_digest(b"a") == content_digest(b"a") != content_digest(b"b")
        assert len(content_digest(b"")) == 32

    @pytest.mark.parametrize(
        ("data", "text", "codec"),
        [
            (b"x\r\ny\r", "x\r\ny\r", "utf-8"),
            (b"\xef\xbb\xbfx\n", "x\n", "utf-8-sig"),
            (b"\xef\xbb\xbf# coding: UTF_8\n", "# coding: UTF_8\n", "utf-8-sig"),
            (b"# coding: latin-1\n\xe9", "# coding: latin-1\né", "latin-1"),
            (b"# coding: latin-1-dos\n\xe9", "# coding: latin-1-dos\né", "latin-1"),
            (b"# coding: latin-1-mac\n\xe9", "# coding: latin-1-mac\né", "latin-1"),
            (b"#!/bin/python\n# coding=latin-1\n\xe9", "#!/bin/python\n# coding=latin-1\né", "latin-1"),
            (b"\x0c\t # coding: latin-1\n\xe9", "\x0c\t # coding: latin-1\né", "latin-1"),
        ],
    )
    def test_a_text_with_its_line_ends_and_the_encoding_that_gives_its_bytes_back(
        self, data: bytes, text: str, codec: str
    ) -> None:
        assert decode_with_encoding(data) == (text, codec)
        assert text.encode(codec) == data
        assert decode_python(data) == text.replace("\r\n", "\n").replace("\r", "\n")

    @pytest.mark.parametrize(
        ("text", "data"),
        [
            ("x = 'é'\n", "x = 'é'\n".encode()),
            ("# coding: latin-1\né\n", b"# coding: latin-1\n\xe9\n"),
            ("# coding: ascii\né\n", "# coding: ascii\né\n".encode()),
            ("# coding: klingon\né\n", "# coding: klingon\né\n".encode()),
            ("\ud800\n", b"?\n"),
        ],
    )
    def test_the_bytes_of_a_text_are_those_that_its_coding_line_wants(self, text: str, data: bytes) -> None:
        assert encode_python(text) == data

    def test_what_is_utf_8_by_its_format(self) -> None:
        assert decode_utf8(b"\xef\xbb\xbf{\r\n}\r") == "{\n}\n"
        with pytest.raises(Unreadable) as raised:
            decode_utf8(b"{\n\xff}")
        assert (raised.value.reason, raised.value.line) == ("byte 0xff on line 2 is not UTF-8", 2)
        with pytest.raises(Unreadable) as raised:
            decode_utf8(b"{\n\n\0}")
        assert (raised.value.reason, raised.value.line) == (
            "there is a null byte on line 3, so it is no text in UTF-8",
            3,
        )
