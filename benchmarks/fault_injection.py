"""Fault injection: end the command at random moments or remove its resources, and check files and error messages.

    python benchmarks/fault_injection.py [--seed 0] [--trials 20] [--only NAME ...]

Each trial gets a fresh project: files with a mistake that --fix can fix, long enough that several processes analyze
them. Signals arrive at a moment between the start and the usual end. Afterwards:

- Each source has its old content or the content after the fix, with its old mode, and no file lies beside it. (After
  SIGKILL, which cannot be handled, a temporary file may remain; these are counted.)
- Standard error has no traceback of this package, and the exit code is the signal's or the usual exit code.
- No process of the command is left.
- The same command, run again with the remaining cache, gives the usual result.

A signal in the first tenths of a second can reach Python before this package is loaded: these cases are counted too.
The full disk and the read-only disk are small file systems in memory, which only root may mount. Without root, these
two are skipped with a notice. The exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pytest_amp_check.protocol.rules import RULES

BAD, GOOD = RULES["AMP201"].bad_example.replace("  # AMP201", ""), RULES["AMP201"].good_example
#: Text that makes the analysis of a file slow enough, and the number of files at which worker processes are started.
PADDING = f"# {'padding ' * 15}\n" * 400
FILES = 24
MODE = 0o640
#: Seconds to wait for any process that should end by itself.
PATIENCE = 120
SIGNALS = ("SIGINT", "SIGTERM", "SIGKILL")
LINES = {130: "amp-check: interrupted\n", 143: "amp-check: terminated\n"}
CHECK = ("check", "src", "--jobs", "3", "--output-format", "json")
FIX = ("check", "src", "--fix", "--output-format", "json")
#: A script that trains for some time.
TRAINING = """\
import torch
from torch import nn

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for _ in range(200):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.randn(16, 8)).float().pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
Environment = dict[str, str]


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Outcome:
    """Results of the trials of one kind: their number, the failures, and counted observations."""

    def __init__(self) -> None:
        self.trials = 0
        self.failures: list[str] = []
        self.seen: Counter[str] = Counter()

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.failures.append(what)


def environment(**more: str | None) -> Environment:
    """Return the environment of this process without variables that change the output of the command."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AMP_CHECK_")}
    changed = {**kept, "OMP_NUM_THREADS": "1", **more}
    return {name: value for name, value in changed.items() if value is not None}


def amp_check(folder: Path, *argv: str, before: Sequence[str] = (), env: Environment | None = None) -> Done:
    command = [*before, sys.executable, "-m", "pytest_amp_check", *argv]
    done = subprocess.run(
        command, cwd=folder, env=env or environment(), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


def project(folder: Path, files: int = FILES, padding: str = PADDING) -> Path:
    """Create a fresh project in a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "src").mkdir(parents=True)
    (folder / "train.py").write_text(TRAINING)
    for number in range(files):
        path = folder / "src" / f"train_{number:02}.py"
        path.write_text(BAD + padding)
        path.chmod(MODE)
    return folder


def look(folder: Path, outcome: Outcome, what: str, *, parts: bool = False, padding: str = PADDING) -> None:
    """Check the files of a project after a fault."""
    for path in sorted((folder / "src").iterdir()):
        if path.name.startswith(".amp-check-"):
            outcome.seen["files beside sources"] += 1
            outcome.expect(parts, f"{what}: {path.name} was left beside the sources")
            path.unlink()
            continue
        outcome.expect(path.read_text() in (BAD + padding, GOOD + padding), f"{what}: {path.name} is no longer whole")
        outcome.expect(stat.S_IMODE(path.stat().st_mode) == MODE, f"{what}: {path.name} has another mode")


def is_quiet(done: Done) -> bool:
    """Return True if the output shows no internals of this package."""
    return "internal error" not in done.err and not ("Traceback" in done.err and "/pytest_amp_check/" in done.err)


# Signals.


def processes(session: int) -> dict[int, float]:
    """Return the remaining processes of a session, each with its CPU seconds, including awaited children."""
    found = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if int(words[3]) == session and words[0] != "Z":
            found[int(name)] = sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
    return found


def usual(folder: Path, argv: Sequence[str]) -> tuple[Done, float]:
    """Run a command without a fault. Return result and CPU seconds."""
    project(folder)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = amp_check(folder, *argv)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def killed(argv: Sequence[str], name: str, chance: random.Random, trials: int, folder: Path) -> Outcome:
    """Send a signal to a command at a random moment, ``trials`` times."""
    outcome = Outcome()
    if not os.path.exists("/proc/self/stat"):
        return outcome
    whole, seconds = usual(folder, argv)
    for trial in range(trials):
        outcome.trials += 1
        what = f"{' '.join(argv[:3])}, {name}, trial {trial}"
        project(folder)
        done, left = _struck(folder, argv, name, chance.uniform(0, seconds))
        _check_end(outcome, what, done, whole, name, script=argv[0] == "run")
        outcome.expect(not left, f"{what}: processes {left} are left")
        look(folder, outcome, what, parts=name == "SIGKILL")
        again = amp_check(folder, *argv)
        same = again == whole if argv == CHECK else again.code == whole.code
        outcome.expect(same, f"{what}: the next one says {again.err[:200]!r}, and ends with {again.code}")
    return outcome


def _struck(folder: Path, argv: Sequence[str], name: str, seconds: float) -> tuple[Done, list[int]]:
    command = [sys.executable, "-m", "pytest_amp_check", *argv]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        # Measured in CPU seconds: the wall-clock time of a command depends on the load of the machine.
        while sum(processes(process.pid).values()) < seconds and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(getattr(signal, name))
        out, err = process.communicate(timeout=PATIENCE)
    deadline = time.monotonic() + 10
    while (left := list(processes(process.pid))) and time.monotonic() < deadline:
        time.sleep(0.02)
    return Done(process.returncode, out, err), left


def _check_end(outcome: Outcome, what: str, done: Done, whole: Done, name: str, *, script: bool) -> None:
    number = getattr(signal, name)
    outcome.expect(is_quiet(done), f"{what}: {done.err[-300:]!r}")
    if name == "SIGINT" and not done.out and _ended_in_startup(done.err):
        outcome.seen["met Python or the script"] += 1
    elif done.code == whole.code:
        outcome.seen["came too late"] += 1
        outcome.expect(done.out == whole.out or script, f"{what}: it ended as usual, and said something else")
    elif name == "SIGKILL":
        outcome.expect(done.code == -number, f"{what}: it ended with {done.code}")
    elif done.code == -number:
        # The end of Python itself: before this package is loaded, or in the script that runs.
        outcome.seen["met Python or the script"] += 1
    elif script and name == "SIGTERM" and not done.err:
        # The script ends like a script that exits by itself, and the findings up to that moment are reported.
        outcome.seen["ended the script and reported the end"] += 1
        outcome.expect(done.code == 128 + number and bool(done.out), f"{what}: {done.code}, and nothing was reported")
    else:
        said = LINES.get(done.code) == done.err or (script and "KeyboardInterrupt" in done.err)
        outcome.expect(done.code == 128 + number and said, f"{what}: it ended with {done.code} and {done.err[-200:]!r}")


def _ended_in_startup(err: str) -> bool:
    """Return True if Python was interrupted while it loaded its own modules. It exits with 1, as with findings."""
    own = ("Could not import runpy module\n", "Fatal Python error: init_")
    return err.startswith(own) and err.rstrip().endswith("KeyboardInterrupt")


# Missing resources.


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[bool]:
    """Mount a small file system in a folder. Yield True if the mount succeeded."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    mounted = (
        shutil.which("mount") is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def full_disk(chance: random.Random, trials: int, folder: Path) -> Outcome:
    """Run --fix with disk space for some of the files at most, and often for none."""
    outcome = Outcome()
    for trial in range(trials):
        what = f"full disk, trial {trial}"
        with small_disk(folder, 1024) as mounted:
            if not mounted:
                break
            outcome.trials += 1
            project(folder / "project", 10, "")
            with open(folder / "filling", "wb", buffering=0) as filling:
                try:
                    while filling.write(b"x" * 1024):
                        pass
                except OSError:
                    filling.truncate(max(0, filling.tell() - chance.randrange(12) * 4096))
            done = amp_check(folder / "project", *FIX)
            outcome.expect(is_quiet(done) and done.code in (0, 2), f"{what}: {done.code}, {done.err[-300:]!r}")
            said = done.err.count("cannot be written: no space left on device")
            sources = [path.read_text() for path in (folder / "project/src").glob("*.py")]
            outcome.expect(sources.count(BAD) == said, f"{what}: {sources.count(BAD)} not fixed, {said} said")
            outcome.seen["files not fixed, and said"] += said
            look(folder / "project", outcome, what, padding="")
    return outcome


def read_only(chance: random.Random, trials: int, folder: Path) -> Outcome:
    """Run checks and fixes on a read-only file system."""
    outcome = Outcome()
    for trial in range(trials):
        with small_disk(folder, 4096) as mounted:
            if not mounted:
                break
            outcome.trials += 1
            project(folder / "project", chance.randrange(1, 6), "")
            subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
            found, fixed = amp_check(folder / "project", *CHECK), amp_check(folder / "project", *FIX)
            outcome.expect((found.code, found.err) == (1, ""), f"read-only, trial {trial}: {found}")
            outcome.expect(fixed.code == 2 and is_quiet(fixed), f"read-only, trial {trial}: {fixed}")
            look(folder / "project", outcome, f"read-only, trial {trial}", padding="")
    return outcome


def nowhere(chance: random.Random, trials: int, folder: Path) -> Outcome:
    """Run checks without HOME, and without TMPDIR or with a missing TMPDIR."""
    outcome = Outcome()
    project(folder)
    whole = amp_check(folder, *CHECK, "--no-cache")
    for trial in range(trials):
        outcome.trials += 1
        env = environment(HOME=None, TMPDIR=chance.choice((None, "/nowhere", "")), XDG_CACHE_HOME=None)
        done = amp_check(folder, *CHECK, env=env)
        outcome.expect(done == whole, f"without HOME, trial {trial}: {done.err[-300:]!r}")
    return outcome


def closed(chance: random.Random, trials: int, folder: Path) -> Outcome:
    """Close each subset of standard input, output and error before the start, and close the output pipes early."""
    outcome = Outcome()
    sets = [which for number in range(4) for which in itertools.combinations((0, 1, 2), number)]
    for trial, argv in itertools.product(range(trials), (CHECK, FIX)):
        which = sets[trial % len(sets)]
        what = f"{' '.join(argv[:3])}, closed {which}"
        outcome.trials += 1
        project(folder)
        shut = " ".join(f"{number}{'<' if number == 0 else '>'}&-" for number in which)
        done = amp_check(folder, *argv, before=("sh", "-c", f'exec "$@" {shut}', "sh"))
        outcome.expect(is_quiet(done) and done.code == (1 if argv == CHECK else 0), f"{what}: {done}")
        look(folder, outcome, what)
        outcome.trials += 1
        project(folder)
        gone = f'"$@" | head -c {chance.randrange(20_000)} > /dev/null'
        done = amp_check(folder, *argv, before=("sh", "-c", gone, "sh"))
        outcome.expect(is_quiet(done), f"{what}, a reader that goes: {done.err[-300:]!r}")
        look(folder, outcome, what)
    return outcome


def together(chance: random.Random, trials: int, folder: Path) -> Outcome:
    """Run several commands at once on one cache. Some commands fix files that the others analyze."""
    outcome = Outcome()
    for trial in range(trials):
        outcome.trials += 1
        what = f"several at once, trial {trial}"
        project(folder)
        kinds = [chance.choice((CHECK, CHECK, FIX)) for _ in range(4)]
        command = [sys.executable, "-m", "pytest_amp_check"]
        running = []
        for kind in kinds:
            pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            running.append(subprocess.Popen([*command, *kind], cwd=folder, env=environment(), text=True, **pipes))
            time.sleep(chance.uniform(0, 0.2))
        for process in running:
            out, err = process.communicate(timeout=PATIENCE)
            done = Done(process.returncode, out, err)
            outcome.expect(is_quiet(done) and done.code in (0, 1, 2), f"{what}: {done.code}, {err[-300:]!r}")
        look(folder, outcome, what)
        cached, fresh = amp_check(folder, *CHECK), amp_check(folder, *CHECK, "--no-cache")
        outcome.expect(cached == fresh, f"{what}: the cache says something else")
    return outcome


#: The command with a clock that differs from the system's.
SHIFTED = """\
import sys, time
from pytest_amp_check.static import cache
cache.time_ns = lambda: time.time_ns() + int(sys.argv.pop(1)) * 10**9
from pytest_amp_check.__main__ import run
run()
"""


def clock(chance: random.Random, trials: int, folder: Path) -> Outcome:
    """Run the command with a clock hours ahead of or behind the run before, with edits in between."""
    outcome = Outcome()
    project(folder, 8)
    paths = sorted((folder / "src").iterdir())
    for trial in range(trials):
        outcome.trials += 1
        path = chance.choice(paths)
        path.write_text(chance.choice((BAD, GOOD)) + PADDING)
        at = time.time() + chance.randrange(-100_000, 100_000)
        os.utime(path, (at, at))
        shift = chance.randrange(-100_000, 100_000)
        command = ["-c", SHIFTED.replace("int(sys.argv.pop(1))", str(shift)), *CHECK]
        done = subprocess.run(
            [sys.executable, *command], cwd=folder, env=environment(), capture_output=True, text=True, check=False
        )
        fresh = amp_check(folder, *CHECK, "--no-cache")
        outcome.expect((done.returncode, done.stdout) == (fresh.code, fresh.out), f"clock, trial {trial}: it is wrong")
    return outcome


def few_files(chance: random.Random, trials: int, folder: Path) -> Outcome:
    """Limit the file descriptors, and request more processes than the limit allows."""
    outcome = Outcome()
    project(folder)
    whole = amp_check(folder, *CHECK, "--no-cache")
    for trial in range(trials):
        outcome.trials += 1
        # Python itself does not start with fewer.
        number, jobs = chance.randrange(8, 40), chance.randrange(1, 9)
        argv = ["check", "src", "--jobs", str(jobs), "--output-format", "json", "--no-cache"]
        done = amp_check(folder, *argv, before=("sh", "-c", f'ulimit -n {number}; exec "$@"', "sh"))
        outcome.seen["said that there are too few"] += done.code == 2
        ok = done == whole or (done.code == 2 and done.err.count("\n") == 1)
        outcome.expect(ok and is_quiet(done), f"{number} descriptors, {jobs} jobs, trial {trial}: {done.err[-300:]!r}")
    return outcome


Injection = Callable[[random.Random, int, Path], Outcome]
INJECTIONS: dict[str, Injection] = {
    **{
        f"{kind}, {name}": (lambda chance, trials, folder, a=argv, n=name: killed(a, n, chance, trials, folder))  # type: ignore[misc]
        for kind, argv in (("check", CHECK), ("fix", FIX), ("run", ("run", "train.py")))
        for name in SIGNALS
    },
    "full disk": full_disk,
    "read-only tree": read_only,
    "no HOME, no TMPDIR": nowhere,
    "closed pipes": closed,
    "several at once": together,
    "clock": clock,
    "few descriptors": few_files,
}


def tried(name: str, seed: int, trials: int) -> Outcome:
    """Run the trials of one kind. The trials depend only on seed and kind."""
    with tempfile.TemporaryDirectory(prefix="amp-fault-injection-") as made:
        chance = random.Random(f"{seed} {name}")  # noqa: S311 - moments, not secrets
        return INJECTIONS[name](chance, trials, Path(made, "project"))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=20, help="of each kind")
    parser.add_argument("--only", nargs="+", choices=INJECTIONS, default=list(INJECTIONS))
    given = parser.parse_args()
    failures: list[str] = []
    print(f"Seed {given.seed}.\n\n| fault | trials | failures | seen |\n| --- | ---: | ---: | --- |")
    for name in given.only:
        outcome = tried(name, given.seed, given.trials)
        failures += outcome.failures
        seen = ", ".join(f"{count} {what}" for what, count in sorted(outcome.seen.items()) if count)
        if not outcome.trials:
            seen = "left out: this system, or this user, cannot"
        print(f"| {name} | {outcome.trials} | {len(outcome.failures)} | {seen} |", flush=True)
    for each in failures:
        print(f"- {each}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
