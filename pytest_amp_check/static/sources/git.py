"""Calls of git in untrusted repositories: git starts no program that the repository's configuration names.

A pipe in place of a file makes git wait forever, so git is killed after a time limit.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from subprocess import Popen

#: git command without a file system monitor, hooks and a pager.
COMMAND = (
    "git",
    "--no-pager",
    "--literal-pathspecs",
    "-c",
    "core.fsmonitor=false",
    "-c",
    f"core.hooksPath={os.devnull}",
)
#: Seconds for one answer of git: a cold file system may need many seconds, and a pipe never answers.
ANSWER_TIMEOUT = 60
#: Seconds for git to print all files of a revision.
FILES_TIMEOUT = 600
#: Seconds after which the cause of a delay is searched for. Nearly every answer is faster.
FIRST_TIMEOUT = 2
#: Files below ``.git``, and in each folder, that git opens for an answer.
_GIT_FILES = ("config", "HEAD", "index", os.path.join("info", "exclude"), "packed-refs")
_IN_FOLDERS = (".gitignore", ".gitattributes", ".gitmodules")
#: Variables that a git hook sets for its own repository, which may be another repository.
_HOOK_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX")
#: Variables that forbid git to fetch missing objects, because the configuration names the program for it. The first
#: variable works from git 2.45 on; the second forbids all protocols in earlier versions. The last variable keeps git
#: from writing the index.
_GIT_VARIABLES = {
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": ":",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
}


def git_environment() -> dict[str, str]:
    """Return the environment variables for git."""
    return {name: value for name, value in os.environ.items() if name not in _HOOK_VARIABLES} | _GIT_VARIABLES


class GitNotResponding(Exception):
    """Error for a git that does not answer. The message lacks the subject, such as "does not answer"."""


def run_git(folder: str, *words: str) -> bytes:
    """Run a git command in a folder and return its output.

    Raise OSError if git cannot be started, CalledProcessError if git refuses, and :class:`GitNotResponding` if git
    hangs.
    """
    import subprocess

    command = [*COMMAND, *words]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=git_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            printed = _wait_for_output(process, folder)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return printed


@contextmanager
def kill_after(process: Popen[bytes], seconds: float) -> Iterator[None]:
    """Kill a process that still runs after ``seconds``."""
    from threading import Timer

    timer = Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    except BaseException:
        process.kill()
        raise
    finally:
        timer.cancel()
        # A running thread would prevent the next processes from being forked.
        timer.join()


def _wait_for_output(process: Popen[bytes], folder: str) -> bytes:
    import subprocess

    began = monotonic()
    try:
        return process.communicate(timeout=FIRST_TIMEOUT)[0]
    except subprocess.TimeoutExpired:
        for path in _read_by_git(folder):
            if _may_hang(path):
                raise GitNotResponding(f"cannot read {path}, which is no regular file") from None
            if process.poll() is not None or monotonic() - began > ANSWER_TIMEOUT:
                break
    try:
        return process.communicate(timeout=max(ANSWER_TIMEOUT - (monotonic() - began), 0))[0]
    except subprocess.TimeoutExpired:
        raise GitNotResponding(f"does not answer within {ANSWER_TIMEOUT} seconds in {folder}") from None


def _read_by_git(top: str) -> Iterator[str]:
    """Yield the files that git opens in a work tree, existing or not."""
    yield from (os.path.join(top, ".git", name) for name in _GIT_FILES)
    for folder, inner, _ in os.walk(top):
        if ".git" in inner:
            inner.remove(".git")
        yield from (os.path.join(folder, name) for name in _IN_FOLDERS)


def _may_hang(path: str) -> bool:
    """Return True if opening a path may block forever."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
