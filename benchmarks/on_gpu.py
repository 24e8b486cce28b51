"""Test of the GPU claims of README and docs on a real GPU: one command, no network.

    python benchmarks/on_gpu.py                       every part, at most nine minutes on one modern GPU
    python benchmarks/on_gpu.py --only dtypes,memory  some parts
    python benchmarks/on_gpu.py --wheels DIR          with missing packages, from wheels in a folder
    python benchmarks/on_gpu.py --dry-run             every part on the CPU under emulation, at small sizes

The requirements are this checkout, Python 3.10, torch 2.4 with CUDA, and pytest, libcst and rich, or newer versions.
Each part is a process with its own time limit. Results are written as they arrive, to ``gpu-<gpu>-torch<version>.json``
and ``.md`` in benchmarks/results (by a dry run only if requested). The exit code is 0 if every claim of the parts is
confirmed, 1 with the claim's name if a claim is refuted or undecided, and 2 if nothing can run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import IO, Any, NamedTuple

from gpu.claims import CLAIMS
from gpu.results import Results

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


class Part(NamedTuple):
    """A part of the benchmark: time limit in seconds, and description."""

    limit: int
    what: str


#: The parts by importance: an interrupted run has finished the most important parts. The sum of the limits is less than
#: 9 minutes.
PARTS = {
    "tests": Part(170, "every test that is marked gpu"),
    "dtypes": Part(40, "PyTorch's autocast table and more, op by op, beside the emulation"),
    "training": Part(75, "small models on CUDA and under emulation: findings, dtypes, skipped steps, losses"),
    "memory": Part(90, "estimates made without a GPU beside the allocator's peak"),
    "cost": Part(65, "what recording adds to a step: time, synchronisations, memory"),
    "speed": Part(70, "whether assert_speedup says five times the same"),
    "harm": Part(25, "what the examples of the rules do on CUDA, beside the CPU"),
}
#: Folders of this machine, which the results do not show.
_PREFIXES = re.compile(rf"/\S*/site-packages/|{re.escape(str(ROOT))}/")
#: Name of the process that describes the machine before the first part. It is not a part.
ABOUT = "about"
#: Seconds between two checks of a part's output.
PAUSE = 0.5
#: Factor for the time limits in a dry run, because the machine may be slow.
PATIENCE = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, divided by commas: {', '.join(PARTS)}")
    parser.add_argument("--wheels", type=Path, help="folder of wheels of packages that are not installed")
    parser.add_argument("--results", type=Path, help="folder for the results, instead of benchmarks/results")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, under emulation, at small sizes")
    # Each part also runs as this command, in a separate process.
    parser.add_argument("--part", choices=[*PARTS, ABOUT], help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        return _run_part(options.part, options.rows, dry=options.dry_run)
    chosen = [name.strip() for name in options.only.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in PARTS]
    if unknown or not chosen:
        parser.error(f"--only takes parts, not {', '.join(unknown) or 'nothing'}: {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as scratch:
        environment = _environment(options.wheels, scratch)
        if isinstance(environment, str):
            print(f"on_gpu: {environment}", file=sys.stderr)
            return 2
        about = _about(environment, scratch, dry=options.dry_run)
        if isinstance(about, str):
            print(f"on_gpu: {about}", file=sys.stderr)
            return 2
        folder = options.results or (Path(scratch) / "results" if options.dry_run else RESULTS)
        return _run(chosen, Results(folder, about), environment, dry=options.dry_run)


def _environment(wheels: Path | None, scratch: str) -> dict[str, str] | str:
    """Return the environment of the processes, with package and wheels on the search path, or an error message."""
    paths = [str(ROOT)]
    if wheels is not None:
        found = sorted(map(str, wheels.glob("*.whl")))
        if not found:
            return f"there is no wheel in {wheels}: pip download --no-deps --dest {wheels} libcst rich pytest"
        target = str(Path(scratch) / "site")
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile")
        done = subprocess.run([*pip, "--target", target, *found], capture_output=True, text=True, check=False)
        if done.returncode:
            return f"pip cannot install the wheels in {wheels}: {done.stderr.strip()}"
        paths.append(target)
    inherited = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [inherited])]),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        # Small models are slower if threads wait for each other.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    environment.pop("PYTEST_ADDOPTS", None)
    try:
        metadata.distribution("pytest-amp-check")
    except metadata.PackageNotFoundError:
        environment["PYTEST_PLUGINS"] = "pytest_amp_check.frontends.plugin"
    return environment


def _about(environment: dict[str, str], scratch: str, *, dry: bool) -> dict[str, Any] | str:
    """Return a description of the machine from a separate process, or the reason why nothing can run."""
    rows = Path(scratch, ABOUT)
    command = _command(ABOUT, dry=dry, rows=rows)
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"the machine cannot be asked what it is: {done.stderr.strip()[-500:]}"
    row: dict[str, Any] = json.loads(rows.read_text(encoding="utf-8"))
    missing = row.pop("missing")
    if missing:
        return f"{missing} cannot be imported: install it, or put its wheel into a folder and name that with --wheels"
    if not dry and not row["cuda devices"]:
        return f"torch {row['torch']} sees no CUDA device: --dry-run walks every part on the CPU"
    return row


def _command(part: str, *, dry: bool, rows: Path) -> list[str]:
    more = ["--dry-run"] if dry else []
    return [sys.executable, str(Path(__file__).resolve()), "--part", part, "--rows", str(rows), *more]


def _run(chosen: Sequence[str], results: Results, environment: dict[str, str], *, dry: bool) -> int:
    print(", ".join(f"{name} {value}" for name, value in results.header.items()), flush=True)
    start = time.perf_counter()
    claims = [claim for claim in CLAIMS if claim.part in chosen]
    claims = [claim for claim in claims if not (claim.needs_gpu if dry else claim.needs_no_gpu)]
    for name in PARTS:
        if name in chosen:
            ended = _watch(name, results, environment, dry=dry)
            results.check(claim for claim in claims if claim.part == name)
            results.write()
            taken = results.parts[name]["seconds"]
            print(f"{name}: {ended}, {len(results.of(name))} rows in {taken:.0f} s", flush=True)
    for row in results.rows:
        if row.get("kind") == "not run":
            print(f"  not run  {row['what']}: {row['outcome']}")
    failed = [claim for claim in claims if results.verdicts[claim.name]]
    for claim in claims:
        verdict = results.verdicts[claim.name]
        print(f"  {'FAILS' if verdict else 'holds'}  {claim.name}" + (f": {verdict}" if verdict else ""))
    for claim in failed:
        print(f"on_gpu: the claim {claim.name} does not hold ({claim.text})", file=sys.stderr)
    if not dry:
        print(f"written to {results.path} and {results.summary.name}")
    print(f"{len(claims) - len(failed)} of {len(claims)} claims hold, {time.perf_counter() - start:.0f} s")
    incomplete = [name for name in chosen if results.parts[name]["ended"] != "complete" or not results.of(name)]
    for name in incomplete:
        print(f"on_gpu: the part {name} {results.parts[name]['ended']}", file=sys.stderr)
    return 1 if failed or incomplete else 0


def _watch(name: str, results: Results, environment: dict[str, str], *, dry: bool) -> str:
    """Run a part, collect the rows, and end the part at the time limit. Return a phrase about the end."""
    start = time.perf_counter()
    state = results.parts[name] = {"ended": "running", "seconds": 0.0}
    with tempfile.TemporaryDirectory() as scratch:
        rows, said = Path(scratch, "rows"), Path(scratch, "said")
        rows.touch()
        with said.open("w") as output, rows.open(encoding="utf-8") as made:
            process = subprocess.Popen(
                _command(name, dry=dry, rows=rows),
                env=environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Child processes of the part end with the part.
                start_new_session=True,
            )
            limit = PARTS[name].limit * (PATIENCE if dry else 1)
            try:
                ended = _taken(name, process, made, results, start, limit)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if ended != "complete":
            state["said"] = _PREFIXES.sub("", said.read_text(encoding="utf-8", errors="replace"))[-2000:]
            print(state["said"], file=sys.stderr)
    state["ended"], state["seconds"] = ended, round(time.perf_counter() - start, 1)
    return ended


def _taken(
    name: str, process: subprocess.Popen[bytes], made: IO[str], results: Results, start: float, limit: int
) -> str:
    """Collect the rows of a part until the end or the time limit. Return a phrase about the end."""
    rest = ""
    while True:
        over = process.poll() is not None
        *lines, rest = (rest + made.read()).split("\n")
        results.rows += ({"part": name, **json.loads(line)} for line in lines)
        results.parts[name]["seconds"] = round(time.perf_counter() - start, 1)
        if lines:
            results.write()
        if over:
            return "complete" if process.returncode == 0 else f"ended with {process.returncode}"
        if time.perf_counter() - start > limit:
            return f"was cut off after {limit} s"
        time.sleep(PAUSE)


def _run_part(name: str, rows: Path, *, dry: bool) -> int:
    """Run a part in this process. Return the exit code."""
    with rows.open("a", encoding="utf-8") as written:
        for row in _made(name, dry=dry):
            written.write(json.dumps(row) + "\n")
            written.flush()
    return 0


def _made(name: str, *, dry: bool) -> Iterator[dict[str, Any]]:
    made: Iterator[dict[str, Any]] = import_module(f"gpu.{name}").rows(dry=dry)
    return made


if __name__ == "__main__":
    sys.exit(main())
