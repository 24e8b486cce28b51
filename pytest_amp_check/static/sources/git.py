"""git, asked of a repository that anybody may have written: nothing is started that its configuration names.

A pipe in the place of a file that git reads makes git wait for ever, so that git is ended after some time.
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

#: Neither a file system monitor nor hooks nor a pager.
COMMAND = (
    "git",
    "--no-pager",
    "--literal-pathspecs",
    "-c",
    "core.fsmonitor=false",
    "-c",
    f"core.hooksPath={os.devnull}",
)
#: Seconds that git is given for one answer: a cold file system may need many, and a pipe never answers.
ANSWER_TIMEOUT = 60
#: Seconds that git is given to show all files of a revision.
FILES_TIMEOUT = 600
#: Seconds after which the cause is looked for: nearly every answer comes sooner.
FIRST_TIMEOUT = 2
#: Files below ``.git``, and in each folder, that git opens to answer.
_GIT_FILES = ("config", "HEAD", "index", os.path.join("info", "exclude"), "packed-refs")
_IN_FOLDERS = (".gitignore", ".gitattributes", ".gitmodules")
#: What a hook of git sets for its own repository, which need not be this one.
_HOOK_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX")
#: An object that is not there is not fetched: what does so is named by the configuration, too. That is the first
#: variable from git 2.45 on, and the second one, which allows no way to fetch, before. The index stays as it is.
_GIT_VARIABLES = {
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": ":",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
}


def git_environment() -> dict[str, str]:
    """The variables that git is started with."""
    return {name: value for name, value in os.environ.items() if name not in _HOOK_VARIABLES} | _GIT_VARIABLES


class GitNotResponding(Exception):
    """git does not answer; the message is one sentence without its subject, such as "does not answer"."""


def run_git(folder: str, *words: str) -> bytes:
    """Return what a command of git prints in a folder.

    Raise OSError where git cannot be started, CalledProcessError where it refuses, :class:`Unanswered` where it hangs.
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
    """Kill a process that is still under way after some seconds."""
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
        # A thread under way would keep the next processes from being forked.
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
    """Iterate over the files that git opens in a work tree, whether they exist or not."""
    yield from (os.path.join(top, ".git", name) for name in _GIT_FILES)
    for folder, inner, _ in os.walk(top):
        if ".git" in inner:
            inner.remove(".git")
        yield from (os.path.join(folder, name) for name in _IN_FOLDERS)


def _may_hang(path: str) -> bool:
    """Return True if opening a path may wait for ever."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
