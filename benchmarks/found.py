"""Real mistakes in public projects: commits that fix one, and whether the linter names it before and not after.

    python benchmarks/found.py FOLDER            checks, and writes docs/found.md
    python benchmarks/found.py FOLDER --clone    clones missing repositories from GitHub into FOLDER first

``found.csv`` lists the commits: repository, commit before, fix, file, line, code, and the mistake in words. A mistake
is named if a finding of the code is within three lines of the line at the commit before, for AMP401 in the file, and
fewer findings of the code are in the file at the fix. The page has the named ones, and says how many of the list are
named. The list is a sample that the rules were developed on, so it is no measure of unseen code.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from strangers import Repository, exported, git_directory

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "benchmarks" / "found.csv"
PAGE = ROOT / "docs" / "found.md"
#: Lines between a finding and the listed line.
NEAR = 3
#: Largest time of one check in seconds.
LIMIT_S = 600

HEAD = """\
# Found in the wild

These commits of public projects fix a mixed-precision mistake that raised no error. `amp-check check` names each
mistake in the commit before the fix, where the fix changes the code, and no longer in the fix itself.
`python benchmarks/found.py` regenerates the page.

| Project | Mistake | Rule | Fix |
| --- | --- | --- | --- |
"""


class Fix(NamedTuple):
    """A commit that fixes a mistake. ``before`` and ``fix`` are commits, ``mistake`` is the mistake in words."""

    repository: str
    before: str
    fix: str
    path: str
    line: int
    code: str
    mistake: str


def listed_fixes() -> list[Fix]:
    with LIST.open(encoding="utf-8", newline="") as file:
        return [Fix(**{**row, "line": int(row["line"])}) for row in csv.DictReader(file)]  # type: ignore[arg-type]


def findings(fix: Fix, commit: str, folder: Path, scratch: Path) -> list[int]:
    """Return the lines of the findings of the code in the file at a commit. The whole project is checked."""
    repository = Repository(fix.repository, commit)
    git = git_directory(repository, folder, clone=False)
    tree = exported(repository, git, scratch / commit) if git is not None else None
    if tree is None:
        raise SystemExit(f"{fix.repository} is not in {folder}: name the folder of its clone, or pass --clone")
    command = [sys.executable, "-m", "pytest_amp_check", "check", ".", "--isolated", "--no-cache"]
    done = subprocess.run(
        [*command, "--select", fix.code, "--output-format", "json"],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return [row["location"]["row"] for row in json.loads(done.stdout) if row["filename"] == fix.path]


def is_named(fix: Fix, folder: Path) -> bool:
    with tempfile.TemporaryDirectory() as scratch:
        before, after = (findings(fix, commit, folder, Path(scratch)) for commit in (fix.before, fix.fix))
    near = [line for line in before if fix.code == "AMP401" or abs(line - fix.line) <= NEAR]
    return bool(near) and len(after) < len(before)


def page(named: Iterable[Fix], listed: int) -> str:
    rows = []
    for fix in sorted(named):
        project = f"https://github.com/{fix.repository}"
        rows.append(
            f"| [{fix.repository}]({project}) `{fix.path.rpartition('/')[2]}:{fix.line}` | {fix.mistake} "
            f"| [{fix.code}](rules/{fix.code}.md) | [{fix.fix[:8]}]({project}/commit/{fix.fix}) |"
        )
    count = f"These are {len(rows)} of {listed} listed mistakes. The rules were developed on this list.\n"
    return HEAD + "\n".join(rows) + "\n\n" + count


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the repositories, as owner+name")
    parser.add_argument("--clone", action="store_true", help="clone missing repositories from GitHub")
    options = parser.parse_args(arguments)
    fixes, named = listed_fixes(), []
    for fix in fixes:
        git_directory(Repository(fix.repository, fix.before), options.folder, clone=options.clone)
        if is_named(fix, options.folder):
            named.append(fix)
        answer = "named " if fix in named[-1:] else "missed"
        print(f"{answer} {fix.code} {fix.repository} {fix.path}:{fix.line}", flush=True)
    PAGE.write_text(page(named, len(fixes)), encoding="utf-8")
    print(f"{len(named)} of {len(fixes)} named")
    return 0


if __name__ == "__main__":
    sys.exit(main())
