"""Files that are written atomically: the new content appears as a whole or not at all, with the file's old metadata."""

from __future__ import annotations

import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from pytest_amp_check.static.sources import atomic_replace
from pytest_amp_check.static.sources.atomic_replace import TEMPORARY_PREFIX, replace_file

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="rights, links and signals are POSIX")


def test_a_new_file_is_written_as_any_is(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    assert replace_file(str(path), b"x = 1\n") == []
    assert path.read_bytes() == b"x = 1\n"
    (tmp_path / "b.py").touch()
    assert path.stat().st_mode == (tmp_path / "b.py").stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["a.py", "b.py"]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o444, 0o666])
@pytest.mark.parametrize("is_synced", [True, False])
def test_a_file_keeps_its_mode(tmp_path: Path, mode: int, *, is_synced: bool) -> None:
    path = tmp_path / "a.py"
    path.write_text("old")
    path.chmod(mode)
    assert replace_file(str(path), b"new", is_synced=is_synced) == []
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert os.listdir(tmp_path) == ["a.py"]


@pytest.mark.parametrize("names", [1, 2])
def test_other_names_of_a_file_keep_what_it_held(tmp_path: Path, names: int) -> None:
    path = tmp_path / "a.py"
    path.write_text("old")
    for number in range(names):
        os.link(path, tmp_path / f"{number}.py")
    said = "1 other name" if names == 1 else "2 other names"
    assert replace_file(str(path), b"new") == [f"it had {said} (hard links), which keep what it held"]
    assert [(tmp_path / f"{number}.py").read_text() for number in range(names)] == ["old"] * names


def test_a_link_is_replaced_and_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real.py").write_text("old")
    link = tmp_path / "a.py"
    link.symlink_to("real.py")
    assert replace_file(str(link), b"new") == []
    assert not link.is_symlink()
    assert (link.read_text(), (tmp_path / "real.py").read_text()) == ("new", "old")


def test_a_name_that_is_taken_is_not_written_over(tmp_path: Path) -> None:
    taken = [tmp_path / f"{TEMPORARY_PREFIX}{os.getpid()}-{number}" for number in (0, 1)]
    for each in taken:
        each.write_text("of another")
    replace_file(str(tmp_path / "a.py"), b"new")
    assert [each.read_text() for each in taken] == ["of another", "of another"]
    assert (tmp_path / "a.py").read_text() == "new"
    assert len(os.listdir(tmp_path)) == 3


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_what_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "a.py"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="the disk is full"):
        replace_file(str(path), b"new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.py"]
    if failing == "fsync":
        # Without the need for durability, the write does not wait for the disk.
        replace_file(str(path), b"new", is_synced=False)
        assert path.read_text() == "new"


def test_the_disk_has_all_content_before_the_old_file_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: sizes.append(os.fstat(handle).st_size))
    replace_file(str(tmp_path / "a.py"), b"x" * 1000)
    assert sizes == [1000]


@pytest.mark.skipif(not hasattr(os, "setxattr"), reason="this system has no extended attributes")
def test_extended_attributes_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.py"
    path.write_text("old")
    kept: dict[str, bytes] = {}

    def set_attribute(part: str, name: str, value: bytes) -> None:
        if name == "security.label":
            raise PermissionError(1, "Operation not permitted")
        assert os.path.basename(part).startswith(TEMPORARY_PREFIX)
        kept[name] = value

    monkeypatch.setattr(os, "listxattr", lambda given: ["security.label", "user.origin"] if given == str(path) else [])
    monkeypatch.setattr(os, "getxattr", lambda given, name: f"{Path(given).name} {name}".encode())
    monkeypatch.setattr(os, "setxattr", set_attribute)
    assert replace_file(str(path), b"new") == []
    assert kept == {"user.origin": b"a.py user.origin"}
    assert path.read_text() == "new"


def test_an_owner_that_cannot_be_kept_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.py"
    path.write_text("old")
    real = os.lstat
    other = [*real(path)]
    other[5] += 1
    asked: list[tuple[int, int]] = []

    def chown(_: str, user: int, group: int) -> None:
        asked.append((user, group))
        if len(asked) > 1:
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "lstat", lambda given: os.stat_result(other) if given == str(path) else real(given))
    monkeypatch.setattr(os, "chown", chown)
    assert replace_file(str(path), b"new") == []
    assert replace_file(str(path), b"newer") == ["its owner and group could not be kept"]
    assert asked == [(other[4], other[5])] * 2
    assert path.read_text() == "newer"


def test_signals_that_end_the_process_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert atomic_replace.termination_signals() == [signal.SIGHUP, signal.SIGINT, signal.SIGTERM]
    real = os.replace
    blocked: list[set[int]] = []

    def replace(part: str, path: str) -> None:
        blocked.append({int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())})
        real(part, path)

    monkeypatch.setattr(os, "replace", replace)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    replace_file(str(tmp_path / "a.py"), b"new")
    assert blocked[0] >= {signal.SIGHUP, signal.SIGINT, signal.SIGTERM}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
