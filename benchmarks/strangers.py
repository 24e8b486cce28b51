"""Detection rate in public repositories that the analyzer was not tuned for: insert mistakes, and count named ones.

``python benchmarks/strangers.py FOLDER [--half read|scored|both] [--clone] [--max N] [--out FILE.jsonl]``

``strangers.txt`` lists the repositories with their commits. The script looks for them in FOLDER as ``owner+name/repo``
(a git directory) or ``owner+name``, and clones missing repositories from GitHub with ``--clone``. A hash of its name
assigns a repository to a half. Developers may read the missed mistakes of the first half and learn from them; the
second half is only scored. The score of the second half is the meaningful score. If the first score is much better, the
tool is overfitted to the first half.

A mutant counts as named if a code of its operator is reported more often in the file than before. Files with such a
finding are skipped. Some mutants cannot be named, because a wrapper of another package supplies the missing call.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from mistakes import WANTED, Place, mutated, places

LIST = Path(__file__).with_name("strangers.txt")
HALVES = ("read", "scored")
#: Mutants of one file, and of one repository, so that no large repository dominates the score.
PER_FILE, PER_REPOSITORY = 3, 8
LARGEST = 3_000_000
LIMIT_S = 300


class Repository(NamedTuple):
    """A public repository at a commit."""

    name: str
    commit: str

    @property
    def folder(self) -> str:
        return self.name.replace("/", "+")

    @property
    def half(self) -> str:
        """The half of the repository, determined by the name alone, so that nobody can choose it."""
        return HALVES[int(hashlib.sha256(self.name.encode()).hexdigest(), 16) % 2]


class Mutant(NamedTuple):
    """A mistake in one file of a repository."""

    repository: Repository
    path: str
    place: Place


def listed() -> list[Repository]:
    rows = (line.split() for line in LIST.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return [Repository(name, commit) for name, commit in filter(None, rows)]


def git_directory(repository: Repository, folder: Path, *, clone: bool) -> Path | None:
    for known in (folder / repository.folder / "repo", folder / repository.folder / ".git"):
        if known.is_dir():
            return known
    if not clone:
        return None
    target = folder / repository.folder
    address = f"https://github.com/{repository.name}"
    subprocess.run(["git", "clone", "--quiet", "--no-checkout", address, str(target)], check=True)
    return target / ".git"


def exported(repository: Repository, git: Path, folder: Path) -> Path | None:
    """Export the Python files and the configuration of a commit. Return None if the commit has no such files."""
    command = ["git", "--git-dir", str(git)]
    listing = subprocess.run(
        [*command, "ls-tree", "-r", "-z", "-l", repository.commit], capture_output=True, check=True
    ).stdout
    wanted: list[tuple[bytes, str]] = []
    for row in filter(None, listing.split(b"\0")):
        about, _, name = row.partition(b"\t")
        mode, kind, key, size = about.split()
        path = name.decode("utf-8", "surrogateescape")
        if kind == b"blob" and mode != b"120000" and path.endswith((".py", ".toml", ".cfg")) and int(size) < LARGEST:
            wanted.append((key, path))
    keys = b"".join(key + b"\n" for key, _ in wanted)
    held = subprocess.run([*command, "cat-file", "--batch"], input=keys, capture_output=True, check=True).stdout
    at = 0
    target = folder / repository.folder
    for _, path in wanted:
        head, _, _ = held[at : at + 200].partition(b"\n")
        at += len(head) + 1
        if head.endswith(b"missing"):
            continue
        length = int(head.split()[2])
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(held[at : at + length])
        at += length + 1
    return target if target.is_dir() else None


def mutants(repository: Repository, tree: Path, chance: random.Random) -> list[Mutant]:
    """Return some mutants of a repository. Tests are skipped, because they make mistakes on purpose."""
    found: list[Mutant] = []
    for file in sorted(tree.rglob("*.py")):
        path = file.relative_to(tree).as_posix()
        try:
            source = file.read_text(encoding="utf-8")
            here = places(source) if "caler" in source and "/test" not in f"/{path}" else []
        except (OSError, ValueError, SyntaxError, RecursionError):
            continue
        chance.shuffle(here)
        found += [Mutant(repository, path, place) for place in here[:PER_FILE]]
    chance.shuffle(found)
    return found[:PER_REPOSITORY]


def codes(tree: Path, path: str) -> Counter[str] | None:
    """Count the reports of each code in one file of a repository. Return None after a timeout or invalid output."""
    command = [sys.executable, "-m", "pytest_amp_check", "check", path, "--output-format", "json", "--no-cache"]
    try:
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        return Counter(row["code"] for row in json.loads(done.stdout))
    except (subprocess.TimeoutExpired, ValueError):
        return None


def tried(tree: Path, chosen: Iterable[Mutant]) -> Iterator[dict[str, Any]]:
    """Check each mutant of a repository. Yield rows with "named": true, false, or None without an answer."""
    before: dict[str, Counter[str] | None] = {}
    for mutant in chosen:
        file, operator = tree / mutant.path, mutant.place.operator
        source = file.read_bytes()
        changed = mutated(source.decode(), mutant.place)
        if mutant.path not in before:
            before[mutant.path] = codes(tree, mutant.path)
        try:
            file.write_text(changed, encoding="utf-8")
            after = codes(tree, mutant.path)
        finally:
            file.write_bytes(source)
        base = before[mutant.path]
        row: dict[str, Any] = {
            "repository": mutant.repository.name,
            "half": mutant.repository.half,
            "path": mutant.path,
            "line": mutant.place.start[0],
            "operator": operator,
            "named": None,
        }
        if base is not None and after is not None:
            if any(base[code] for code in WANTED[operator]):
                continue
            row["named"] = any(after[code] for code in WANTED[operator])
        yield row


def scored(rows: Iterable[dict[str, Any]], half: str) -> str:
    named, total = Counter[str](), Counter[str]()
    for row in rows:
        if row["half"] == half and row["named"] is not None:
            total[row["operator"]] += 1
            named[row["operator"]] += row["named"]
    lines = [f"== the half that is {half}"]
    lines += [
        f"{name:24} {named[name]:4} of {total[name]:4}  {named[name] / total[name]:.2f}" for name in sorted(total)
    ]
    lines.append(f"{'in all':24} {named.total():4} of {total.total():4}  {named.total() / max(total.total(), 1):.3f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", choices=(*HALVES, "both"), default="both")
    parser.add_argument("--clone", action="store_true", help="clone what is not in the folder")
    parser.add_argument("--max", type=int, default=340, help="mutants of each half")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, help="write each mutant's result as a line of JSON")
    arguments = parser.parse_args()
    halves = HALVES if arguments.half == "both" else (arguments.half,)
    with tempfile.TemporaryDirectory() as scratch:
        trees: dict[Repository, Path] = {}
        for repository in (each for each in listed() if each.half in halves):
            git = git_directory(repository, arguments.folder, clone=arguments.clone)
            tree = exported(repository, git, Path(scratch)) if git is not None else None
            if tree is None:
                print(f"{repository.name} is not there", file=sys.stderr)
            else:
                trees[repository] = tree
        work: dict[Repository, list[Mutant]] = defaultdict(list)
        for half in halves:
            # Each half has its own generator, so that its sample does not depend on the selection of the other half.
            chance = random.Random(f"{half} {arguments.seed}")  # noqa: S311
            mine = [repository for repository in trees if repository.half == half]
            pool = [mutant for repository in mine for mutant in mutants(repository, trees[repository], chance)]
            chance.shuffle(pool)
            for mutant in pool[: arguments.max]:
                work[mutant.repository].append(mutant)
        with ThreadPoolExecutor(os.cpu_count()) as workers:
            done = workers.map(lambda each: list(tried(trees[each], work[each])), work)
            rows = [row for found in done for row in found]
    if arguments.out:
        arguments.out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for half in halves:
        print(scored(rows, half))


if __name__ == "__main__":
    main()
