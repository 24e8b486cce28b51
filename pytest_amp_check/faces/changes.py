"""What is new since a revision of git: the files of that revision are checked too, and what they had is left out.

So a finding counts as new wherever it stands: in a changed line, or in an unchanged caller of a changed function.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

from ..protocol.regular_files import LARGEST_DOCUMENT
from . import baseline
from .text import Sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..protocol.finding import Finding

#: Files that say which torch a project asks for, and where it begins.
DECLARING = (".toml", ".cfg", ".txt", ".in", ".yml", ".yaml")


#: Bytes of a file that is too large to be read which are passed over at once.
PIECE = 1_000_000


class NoRevision(ValueError):
    """What changed cannot be told; the message is one sentence."""


class Unanswered(NoRevision):
    """git hangs, so that asking again is of no use."""


def new_since(
    revision: str,
    paths: Sequence[str],
    findings: Sequence[Finding],
    sources: Sources,
    check: Callable[[list[str]], list[Finding]],
) -> list[Finding]:
    """The findings that files had not at a revision of git: where it and this work tree went apart.

    ``check`` gives the findings in files and folders.
    """
    import tempfile

    top = _git(os.curdir, "rev-parse", "--show-toplevel", asked="git finds no repository around this folder").strip()
    top = os.path.realpath(top)
    commit = _git(
        top, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", asked=f"git knows no revision {revision!r}"
    ).strip()
    # What the other side has done since is no change of this one. A shallow clone may lack where they parted.
    base = _maybe_git(top, "merge-base", commit, "HEAD").strip() or commit
    if not findings:
        return []
    renamed = dict(_renamed(top, base))
    with tempfile.TemporaryDirectory(prefix="amp-check-") as made:
        # The way to it leads over links in places.
        folder = os.path.realpath(made)
        _write(top, base, folder)
        former = {now: then for then, now in renamed.items()}
        there = [at for path in paths if os.path.exists(at := _moved(path, top, folder, former))]
        before = check(there) if there else []
        old = baseline._counter_of(baseline.key(finding, Sources(), folder) for finding in before)
    known = baseline._counter({})
    for (path, code, function, line), count in old.items():
        known[renamed.get(path, path), code, function, line] += count
    return baseline.new(findings, sources, top, known)[0]


def _moved(path: str, top: str, folder: str, former: dict[str, str]) -> str:
    """The place of a path of the work tree in the folder of a revision, in which it may have a former name."""
    name = os.path.relpath(os.path.realpath(path), top).replace(os.sep, "/")
    return os.path.normpath(os.path.join(folder, former.get(name, name)))


def _write(top: str, commit: str, folder: str) -> None:
    """Write the files of a commit that hold source, or say what a project needs: as they are, no filter runs."""
    from ..static.sources.source_files import SUFFIXES

    inside = os.path.join(folder, "")
    names = [
        name
        for name in _git(top, "ls-tree", "-r", "-z", "--name-only", commit, asked="git cannot list it").split("\0")
        # git itself refuses to look up a name that leads out of its tree, which no git makes.
        if name.endswith(SUFFIXES + DECLARING) and ".." not in name.split("/")
    ]
    os.mkdir(os.path.join(folder, ".git"))
    for name, data in _contents(top, commit, names):
        path = os.path.normpath(os.path.join(folder, *name.split("/")))
        if not path.startswith(inside):
            # No git makes such a tree, and none has to read one.
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)


def _contents(top: str, commit: str, names: list[str]) -> Iterator[tuple[str, bytes]]:
    """What files of a commit hold."""
    from ..static.sources import git

    with (
        subprocess.Popen(
            [*git.COMMAND, "cat-file", "--batch"],
            cwd=top,
            env=git.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process,
        git.ended_after(process, git.PATIENCE_FOR_FILES),
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        for name in names:
            if "\n" in name:
                continue
            with suppress(BrokenPipeError):
                process.stdin.write(os.fsencode(f"{commit}:{name}\n"))
                process.stdin.flush()
            head = process.stdout.readline().split()
            if not head:
                raise NoRevision(f"--diff-base: git ended, or hung, before it showed {name}: leave --diff-base out")
            if head[-1:] == [b"missing"]:
                process.stdin.close()
                raise NoRevision(
                    f"--diff-base: this clone lacks {name} of that revision, and amp-check fetches nothing: "
                    f"`git diff {commit[:12]} HEAD` does"
                )
            if len(head) != 3:
                continue
            size = int(head[2])
            data = process.stdout.read(min(size, LARGEST_DOCUMENT))
            left = size + 1 - len(data)
            while left > 0 and (more := process.stdout.read(min(left, PIECE))):
                left -= len(more)
            # What is not read of the work tree is not read of a revision.
            if head[1] == b"blob" and size <= LARGEST_DOCUMENT:
                yield name, data
        process.stdin.close()


def _renamed(top: str, commit: str) -> Iterator[tuple[str, str]]:
    """Files that were renamed since a commit: the old name and the new one.

    As the index has them: to look at the work tree, git would run the filters that its configuration names, and a name
    that it has not been told of it does not know there either.
    """
    words = _maybe_git(
        top,
        "diff",
        "--cached",
        "--no-ext-diff",
        "--no-textconv",
        "--name-status",
        "-M",
        "-z",
        "--diff-filter=R",
        commit,
    ).split("\0")
    for at in range(0, len(words) - 2, 3):
        yield words[at + 1], words[at + 2]


def _git(folder: str, *words: str, asked: str) -> str:
    from ..static.sources import git

    try:
        return os.fsdecode(git.answer(folder, *words))
    except OSError as error:
        raise NoRevision(f"--diff-base needs git: {error.strerror}") from None
    except subprocess.CalledProcessError:
        raise NoRevision(f"--diff-base: {asked}") from None
    except git.Unanswered as error:
        raise Unanswered(f"--diff-base: git {error}: remove the cause, or leave --diff-base out") from None


def _maybe_git(folder: str, *words: str) -> str:
    try:
        return _git(folder, *words, asked="")
    except Unanswered:
        raise
    except NoRevision:
        return ""
