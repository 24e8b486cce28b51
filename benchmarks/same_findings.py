"""Comparison of the findings of two checkouts: a change of words or structure must not change any finding.

    python benchmarks/same_findings.py OLD NEW [FOLDER ...]

OLD and NEW are checkouts of this project. Each checks ``fixtures/`` of NEW and the named folders, with all rules and
without a cache. Compared are the code, the file, the cell, the line, the column and the certainty of each finding, but
not its message. The exit status is 1 if a finding differs or a check ends with an error.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

#: Exit codes of a check that was completed, with and without findings.
COMPLETED = (0, 1)


class Place(NamedTuple):
    """The parts of a finding that words do not change."""

    code: str
    path: str
    cell: int
    line: int
    column: int
    certain: bool

    def __str__(self) -> str:
        cell = f":cell {self.cell}" if self.cell else ""
        return f"{self.path}{cell}:{self.line}:{self.column} {self.code}{'' if self.certain else ' (possible)'}"


def check(checkout: Path, folder: Path) -> tuple[Counter[Place], float]:
    """Return the findings of a folder, as a checkout reports them, and the seconds of the check."""
    start = time.perf_counter()
    options = ["--isolated", "--no-cache", "--select", "ALL", "--output-format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest_amp_check", "check", *options, str(folder)],
        cwd=checkout,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode not in COMPLETED:
        sys.exit(f"the check of {folder} by {checkout} ended with {done.returncode}: {done.stderr.decode()[-500:]}")
    findings = Counter(
        Place(
            each["code"],
            os.path.relpath(checkout / each["filename"], folder),
            each["cell"] or 0,
            each["location"]["row"],
            each["location"]["column"],
            each["certain"],
        )
        for each in json.loads(done.stdout)
    )
    return findings, time.perf_counter() - start


def compare(old: Path, new: Path, folders: Iterable[Path]) -> int:
    """Print what differs in each folder, and return the number of differences."""
    differences = total = 0
    for folder in folders:
        (before, first_s), (after, second_s) = check(old, folder), check(new, folder)
        lost, gained = before - after, after - before
        total += sum(after.values())
        differences += sum(lost.values()) + sum(gained.values())
        print(
            f"{folder}: {sum(before.values())} and {sum(after.values())} findings, {first_s:.1f} s and {second_s:.1f} s"
        )
        for sign, places in (("-", lost), ("+", gained)):
            for place in sorted(places.elements()):
                print(f"  {sign} {place}")
    print(f"{total} findings, {differences} differences")
    return differences


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("folders", type=Path, nargs="*")
    given = parser.parse_args()
    old, new = given.old.resolve(), given.new.resolve()
    for checkout in (old, new):
        if not (checkout / "pytest_amp_check" / "__main__.py").is_file():
            parser.error(f"{checkout} is no checkout of this project")
    folders = [new / "fixtures", *(folder.resolve() for folder in given.folders)]
    sys.exit(1 if compare(old, new, folders) else 0)


if __name__ == "__main__":
    main()
