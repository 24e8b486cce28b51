"""Agreement of CI, pre-commit and pytest about a project, and about a new mistake in the project.

``python benchmarks/verdicts.py CHECKOUT [CHECKOUT ...] [--mistakes 3] [--alone 40] [--only-alone] [--operator NAME
...]``

Each checkout is set up in a copy, as by a user who adds amp-check to a project:

- check: ``amp-check check .``, which CI runs
- commit: ``pre-commit run --all-files`` with the hook of this repository, which names all files in batches
- pytest: ``pytest --amp-check --amp-only static``; test modules are not imported: their dependencies are missing
- alone: files by name, one in each call, as when one file is committed: all with findings, and some without

Findings are compared by file, line, code and severity. A frontend must fail exactly if it reports a failing finding.
Then a baseline of all findings is written, with which all frontends must pass. Mistakes (of ``mistakes.py``) are
inserted, one at a time: each frontend must fail with the same new findings, in the file of the mistake. A row of the
table is a project, with its differences printed below. ``--only-alone`` compares only files by name with the folder,
which needs no pre-commit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mistakes import WANTED, Place, mutated, places

ROOT = Path(__file__).resolve().parent.parent
#: Locations of findings, with their codes and severities.
Found = frozenset[tuple[str, int, str, str]]
#: First line of a finding. The pattern excludes the lines of pytest's summary of failures.
_HEADLINE = re.compile(r"(?!FAILED )(\S.*?):(?:cell \d+:)?(\d+):\d+: (AMP\d{3})(?: \[\*\])? \[(\w+)\]")
FAILING = ("error", "warning")
LINES = ["--output-format", "json-lines"]
LIMIT_S = 900
#: Seed for drawing the files without findings that are checked by name.
SEED = 17


class Verdict(NamedTuple):
    """The result of a frontend for a project."""

    found: Found
    code: int

    @property
    def fails(self) -> bool:
        """True if a finding has a failing severity."""
        return any(severity in FAILING for *_, severity in self.found)


def run(command: Sequence[str], project: Path) -> subprocess.CompletedProcess[str]:
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("AMP_CHECK_", "PYTEST_"))}
    return subprocess.run(
        command,
        cwd=project,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
        timeout=LIMIT_S,
        env=keep | {"PRE_COMMIT_HOME": str(project.parent / "pre-commit"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )


def of_records(done: subprocess.CompletedProcess[str]) -> Verdict:
    """Return the result from the JSON lines of an output. Paths are relative to the project."""
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = frozenset(
        (Path(row["filename"]).as_posix(), row["location"]["row"], row["code"], row["severity"]) for row in rows
    )
    return Verdict(found, done.returncode)


def check(project: Path) -> Verdict:
    return of_records(run([sys.executable, "-m", "pytest_amp_check", "check", *LINES, "."], project))


def commit(project: Path) -> Verdict:
    return of_records(run([sys.executable, "-m", "pre_commit", "run", "--all-files", "--verbose"], project))


def pytest(project: Path) -> Verdict:
    flags = ["--amp-check", "--amp-only", "static", "-p", "pytest_amp_check.frontends.plugin", "--noconftest", "-q"]
    # No test of the project runs, and the project's addopts may require plugins that are not installed.
    flags += ["-o", "python_files=", "-o", "addopts=", "-p", "no:cacheprovider", "."]
    done = run([sys.executable, "-m", "pytest", *flags], project)
    rows = {match.groups() for match in map(_HEADLINE.match, done.stdout.splitlines()) if match}
    found = frozenset((Path(path).as_posix(), int(line), code, severity) for path, line, code, severity in rows)
    return Verdict(found, done.returncode)


DOORS: dict[str, Callable[[Path], Verdict]] = {"check": check, "commit": commit, "pytest": pytest}


def set_up(checkout: Path, folder: Path) -> Path:
    """Copy a checkout into a new repository with the hook."""
    import yaml

    project = folder / checkout.name
    shutil.copytree(checkout, project, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    declared = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    hook = next(each for each in declared if each["id"] == "amp-check")
    entry = hook["entry"].replace("amp-check", f"{sys.executable} -m pytest_amp_check", 1)
    local = {**hook, "entry": entry, "language": "system", "args": LINES}
    config = json.dumps({"repos": [{"repo": "local", "hooks": [local]}]})
    (project / ".pre-commit-config.yaml").write_text(config, encoding="utf-8")
    run(["git", "init", "-q"], project)
    keep(project)
    return project


def keep(project: Path) -> None:
    """Add all files to git, because pre-commit asks git for the list of files."""
    run(["git", "add", "-A", "-f"], project)


def differences(verdicts: dict[str, Verdict]) -> Iterator[str]:
    """Yield differences from the first frontend, and exit codes that contradict the findings."""
    first = next(iter(verdicts.values()))
    for door, verdict in verdicts.items():
        yield from (f"{door} alone: {one}" for one in sorted(verdict.found - first.found))
        yield from (f"{door} lacks: {one}" for one in sorted(first.found - verdict.found))
        if verdict.code != int(verdict.fails):
            yield f"{door} ends with {verdict.code}"


class Alone(NamedTuple):
    """Files checked by name, and differences from the findings of the folder check."""

    names: list[str]
    wrong: list[str]


def alone(project: Path, whole: Found, number: int) -> Alone:
    """Check each file with findings by name, and ``number`` random files without findings."""
    listed = run([sys.executable, "-m", "pytest_amp_check", "check", "--show-files", "."], project).stdout.splitlines()
    guilty = sorted({path for path, *_ in whole})
    others = sorted({Path(name).as_posix() for name in listed} - set(guilty))
    chance = random.Random(SEED)  # noqa: S311 - files, not secrets
    names = guilty + chance.sample(others, min(number, len(others)))
    wrong: list[str] = []
    for name in names:
        done = run([sys.executable, "-m", "pytest_amp_check", "check", *LINES, name], project)
        said = [json.loads(line) for line in done.stdout.splitlines()]
        # A finding of another file is shown for this file too, with the other file's name.
        own = {
            (name, one["location"]["row"], one["code"], one["severity"])
            for one in said
            if "the mistake is at" not in one["message"]
        }
        here = {one for one in whole if one[0] == name}
        wrong += [f"by name alone: {one}" for one in sorted(own - here)]
        wrong += [f"by name lacks: {one}" for one in sorted(here - own)]
    return Alone(names, wrong)


def candidates(project: Path, operators: Sequence[str]) -> Iterator[tuple[Path, str, Place]]:
    """Yield locations for mistakes, of each operator in turn, so that the first few differ."""
    by_operator: dict[str, list[tuple[Path, str, Place]]] = {name: [] for name in operators}
    for path in sorted(project.rglob("*.py")):
        try:
            source = path.read_text(encoding="utf-8")
            found = places(source) if "scaler" in source.lower() else []
        except (SyntaxError, ValueError):
            continue
        for place in found:
            if place.operator in by_operator:
                by_operator[place.operator].append((path, source, place))
    waiting = list(by_operator.values())
    while any(waiting):
        yield from (each.pop(0) for each in waiting if each)


def plant(project: Path, number: int, operators: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield mistakes that the folder check reports, each with the differences between the frontends."""
    done = 0
    for path, source, place in candidates(project, operators):
        name = path.relative_to(project).as_posix()
        path.write_text(mutated(source, place), encoding="utf-8")
        keep(project)
        verdicts = {"check": check(project)}
        if any(code in WANTED[place.operator] for _, _, code, _ in verdicts["check"].found):
            verdicts |= {door: act(project) for door, act in DOORS.items() if door != "check"}
            wrong = list(differences(verdicts))
            if all(one[0] != name for one in verdicts["check"].found):
                wrong.append(f"shown in {sorted({one[0] for one in verdicts['check'].found})}")
            yield f"{place.operator} in {name}:{place.start[0]}", wrong
            done += 1
        path.write_text(source, encoding="utf-8")
        keep(project)
        if done == number:
            return


def only_alone(checkout: Path, files: int) -> None:
    with tempfile.TemporaryDirectory(prefix="verdicts") as folder:
        project = set_up(checkout, Path(folder))
        whole = check(project).found
        names, wrong = alone(project, whole, files)
        print(f"| {checkout.name} | {len(whole)} | {len(names)} | {len(wrong)} |")
        for said in wrong:
            print(f"  DIFFERS {said}")
        sys.stdout.flush()


def row(checkout: Path, mistakes: int, files: int, operators: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="verdicts") as folder:
        project = set_up(checkout, Path(folder))
        verdicts = {door: act(project) for door, act in DOORS.items()}
        wrong = list(differences(verdicts))
        by_name = alone(project, verdicts["check"].found, files)
        wrong += by_name.wrong
        (project / "amp-check.toml").write_text('baseline = "amp-baseline.json"\n', encoding="utf-8")
        run([sys.executable, "-m", "pytest_amp_check", "check", "--update-baseline", "."], project)
        keep(project)
        after = {door: act(project) for door, act in DOORS.items()}
        wrong += [f"with the baseline, {said}" for said in differences(after)]
        wrong += [f"with the baseline, {door} finds {len(each.found)}" for door, each in after.items() if each.found]
        planted = list(plant(project, mistakes, operators))
        wrong += [f"{what}: {said}" for what, each in planted for said in each]
        same = len({verdict.found for verdict in verdicts.values()}) == 1
        failing = sum(not each for _, each in planted)
        print(
            f"| {checkout.name} | {' / '.join(str(len(each.found)) for each in verdicts.values())} | "
            f"{'yes' if same else 'no'} | {'passes' if not any(each.fails for each in after.values()) else 'fails'} | "
            f"{failing} of {len(planted)} | {len(by_name.names)} |"
        )
        for what, _ in planted:
            print(f"  {what}")
        for said in wrong:
            print(f"  DIFFERS {said}")
        sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--mistakes", type=int, default=3, help="mistakes for each project")
    parser.add_argument("--alone", type=int, default=40, help="files without findings that are checked by name")
    parser.add_argument("--only-alone", action="store_true", help="compare nothing but files by name with the folder")
    parser.add_argument("--operator", action="append", choices=sorted(WANTED), help="which mistakes")
    given = parser.parse_args()
    if given.only_alone:
        print("| project | findings | files by name | differences |")
        print("| --- | --- | --- | --- |")
        for checkout in given.checkouts:
            only_alone(checkout.resolve(), given.alone)
        return
    print(
        "| project | findings: check / commit / pytest | the same | with a baseline | mistakes that all frontends name "
        "| files by name |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for checkout in given.checkouts:
        row(checkout.resolve(), given.mistakes, given.alone, given.operator or sorted(WANTED))


if __name__ == "__main__":
    main()
