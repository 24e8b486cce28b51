"""New findings since a git revision: the files of the revision are also checked, and their findings are removed.

A finding counts as new at any location: in a changed line, or in an unchanged caller of a changed function.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

from ..protocol.regular_files import LARGEST_DOCUMENT
from . import baseline
from .source_lines import SourceLines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..protocol.finding import Finding

#: Suffixes of files that declare a project's torch version, and the project root.
DECLARING = (".toml", ".cfg", ".txt", ".in", ".yml", ".yaml")


#: Block size in bytes for skipping the content of a file that is too large.
PIECE = 1_000_000


class NoRevision(ValueError):
    """Error for changes that cannot be determined; the message is one sentence."""


class GitTimeout(NoRevision):
    """Error for a git process that does not respond. Repeated calls are useless."""


def find_new_since(
    revision: str,
    paths: Sequence[str],
    findings: Sequence[Finding],
    sources: SourceLines,
    check: Callable[[list[str]], list[Finding]],
) -> list[Finding]:
    """Return the findings that did not exist at the merge base of a git revision and this work tree.

    ``check`` returns the findings in files and folders.
    """
    import tempfile

    top = _run_git(
        os.curdir, "rev-parse", "--show-toplevel", problem="git finds no repository around this folder"
    ).strip()
    top = os.path.realpath(top)
    commit = _run_git(
        top, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", problem=f"git knows no revision {revision!r}"
    ).strip()
    # Later commits of the other branch are no changes of this branch. A shallow clone may lack the merge base.
    base = _try_git(top, "merge-base", commit, "HEAD").strip() or commit
    if not findings:
        return []
    renamed = dict(_find_renamed(top, base))
    with tempfile.TemporaryDirectory(prefix="amp-check-") as made:
        # The path of the temporary folder contains links on some systems.
        folder = os.path.realpath(made)
        _write_revision(top, base, folder)
        former = {now: then for then, now in renamed.items()}
        there = [at for path in paths if os.path.exists(at := _find_revision_path(path, top, folder, former))]
        before = check(there) if there else []
        old = baseline._count_keys(baseline.make_finding_key(finding, SourceLines(), folder) for finding in before)
    known = baseline._make_counter({})
    for (path, code, function, line), count in old.items():
        known[renamed.get(path, path), code, function, line] += count
    return baseline.split_new(findings, sources, top, known)[0]


def _find_revision_path(path: str, top: str, folder: str, former: dict[str, str]) -> str:
    """Return the path in the folder of a revision for a work tree path, with the former name of a renamed file."""
    name = os.path.relpath(os.path.realpath(path), top).replace(os.sep, "/")
    return os.path.normpath(os.path.join(folder, former.get(name, name)))


def _write_revision(top: str, commit: str, folder: str) -> None:
    """Write the source files and project files of a commit, unchanged and without git filters."""
    from ..static.sources.configurations import may_configure_training
    from ..static.sources.source_files import SUFFIXES

    inside = os.path.join(folder, "")
    names = [
        name
        for name in _run_git(top, "ls-tree", "-r", "-z", "--name-only", commit, problem="git cannot list it").split(
            "\0"
        )
        # git itself refuses names that lead out of the tree, and never creates such names.
        if (name.endswith(SUFFIXES + DECLARING) or may_configure_training(name)) and ".." not in name.split("/")
    ]
    os.mkdir(os.path.join(folder, ".git"))
    for name, data in _read_contents(top, commit, names):
        path = os.path.normpath(os.path.join(folder, *name.split("/")))
        if not path.startswith(inside):
            # git never creates such a tree, so the entry is skipped.
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)


def _read_contents(top: str, commit: str, names: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the contents of files of a commit."""
    from ..static.sources import git

    with (
        subprocess.Popen(
            [*git.COMMAND, "cat-file", "--batch"],
            cwd=top,
            env=git.git_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process,
        git.kill_after(process, git.FILES_TIMEOUT),
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
            # The same limits apply as for the work tree.
            if head[1] == b"blob" and size <= LARGEST_DOCUMENT:
                yield name, data
        process.stdin.close()


def _find_renamed(top: str, commit: str) -> Iterator[tuple[str, str]]:
    """Yield the old and new names of files renamed since a commit, according to the index.

    A comparison with the work tree would run the filters in git's configuration, and would not know untracked names
    either.
    """
    words = _try_git(
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


def _run_git(folder: str, *words: str, problem: str) -> str:
    from ..static.sources import git

    try:
        return os.fsdecode(git.run_git(folder, *words))
    except OSError as error:
        raise NoRevision(f"--diff-base needs git: {error.strerror}") from None
    except subprocess.CalledProcessError:
        raise NoRevision(f"--diff-base: {problem}") from None
    except git.GitNotResponding as error:
        raise GitTimeout(f"--diff-base: git {error}: remove the cause, or leave --diff-base out") from None


def _try_git(folder: str, *words: str) -> str:
    try:
        return _run_git(folder, *words, problem="")
    except GitTimeout:
        raise
    except NoRevision:
        return ""
