r"""Cost of ``amp-check check`` on a large tree: time beside other linters, memory, and growth with the number of lines.

    python benchmarks/large_tree.py [TREE] [--pairs 5] [--rival NAME=COMMAND ...] [--growth PATH ...]

TREE is the installed torch package by default. Each command runs alternately with its counterpart, so that a machine
that slows down affects both, and the ratio of each pair is taken. The result is the median of the ratios.

- Cold: ``amp-check check --no-cache TREE`` and ``ruff check --no-cache --isolated TREE``.
- Warm: both with separate caches in a temporary folder, filled by an earlier run.
- Floor: the processor time of the prescan of every file, and of parsing and indexing the files that pass, without any
  analysis, beside the time of the whole of ruff: the lower limit of a cold run.
- Memory: of the cold run, of all its processes together and of the largest, on Linux.
- Growth: the seconds per line in 1, 4 and 16 copies of some files (``fixtures/`` by default). All three include the
  cost of starting. The differences between the three do not, and "further lines" shows these.
- Rivals: linters with other rules on the same files; cold, and in copies of the files, because some linters exclude
  an installed tree. Rivals may take minutes, so they can run on a part of the tree (``--rival-files``, every n-th
  file) and only once (``--rival-pairs``). amp-check then analyzes the same part, so that its start weighs more.

The figures in an issue or a changelog were measured with these tools, each in a separate environment:

    python -m venv rivals && rivals/bin/pip install torchfix==0.7.0 torch-preflight==0.5.0
    python benchmarks/large_tree.py --rival "TorchFix 0.7.0=rivals/bin/torchfix" \
        --rival "torch-preflight 0.5.0=rivals/bin/torch-preflight check --quiet" --rival-files 200

Both use all processors by default, as amp-check does. TorchFix exits with 0 even if it has findings.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import paired
import resident

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
COPIES = (1, 4, 16)
PARTS = ("cold", "warm", "floor", "memory", "growth", "rivals")


def files_below(path: Path) -> list[Path]:
    """Return the Python files of a tree, or the named file."""
    return [path] if path.is_file() else sorted(found for found in path.rglob("*.py") if found.is_file())


def lines_of(files: Sequence[Path]) -> int:
    return sum(file.read_bytes().count(10) for file in files)


@contextmanager
def copied(files: Sequence[Path], base: Path, copies: int = 1) -> Iterator[str]:
    """Copy some files into numbered folders. Each copy contains its number, so that no two files are the same."""
    with tempfile.TemporaryDirectory(prefix="tree") as folder:
        for number in range(copies):
            for file in files:
                place = Path(folder) / f"copy{number:02}" / file.relative_to(base)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(file.read_bytes() + b"\n# copy %d\n" % number)
        yield folder


def cold(ours: list[str], pairs: int, tree: str, ruff: list[str]) -> None:
    version = subprocess.run([*ruff, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    timing = paired.compare([*ours, tree], [*ruff, "check", "--no-cache", "--isolated", tree], pairs=pairs)
    print(f"cold: amp-check {timing.first:.2f} s, {version} {timing.second:.2f} s; median of {pairs}: {timing}")


def warm(ours: list[str], pairs: int, tree: str, ruff: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="cache") as cache:
        own, other = Path(cache) / "amp-check", Path(cache) / "ruff"
        theirs = [*ruff, "check", "--isolated", "--cache-dir", str(other), tree]
        timing = paired.compare([*ours, "--cache-dir", str(own), tree], theirs, pairs=pairs)
    print(f"warm: amp-check {timing.first:.2f} s, ruff {timing.second:.2f} s; median of {pairs}: {timing}")


#: Program that scans the files of a tree, and parses and indexes the files that a check would analyze.
FLOOR = """
import ast, gc, sys, warnings
from pytest_amp_check.static.sources import prefilter, code_blocks, source_files
from pytest_amp_check.static.project.name_index import build_module
gc.disable()
warnings.simplefilter("ignore")
read = 0
for path in source_files.find_sources([sys.argv[1]], ()):
    try:
        if not prefilter.prescan_file(path, largest=0).may_have_findings or not path.endswith(".py"):
            continue
        text = code_blocks.decode_source(path, source_files.load_bytes(path))
        build_module(path, text, ast.parse(text))
        read += 1
    except (source_files.Unreadable, SyntaxError, ValueError):
        continue
print(read)
"""


def floor(pairs: int, tree: str, ruff: list[str]) -> None:
    taken = [
        (
            # Unlike a linter, the program exits with 1 only if it fails.
            paired.run([sys.executable, "-c", FLOOR, tree], codes=(0,)).busy,
            paired.run([*ruff, "check", "--no-cache", "--isolated", tree]).busy,
        )
        for _ in range(pairs)
    ]
    first, second = (statistics.median(column) for column in zip(*taken, strict=True))
    ratio = statistics.median(one / other for one, other in taken)
    print(
        f"floor: {first:.2f} s of CPU to look, parse and index, {second:.2f} s for ruff; median of {pairs}: {ratio:.2f}"
    )


def memory(ours: list[str], tree: str) -> None:
    peak = resident.peak([*ours, tree])
    if peak is None:
        print("memory: not measured, there is no /proc here")
        return
    print(f"memory: {peak.together / 1e6:.0f} MB of all processes, {peak.largest / 1e6:.0f} MB of the largest")


def growth(ours: list[str], rounds: int, sources: Sequence[Path], least: int) -> None:
    """Print the seconds per line as a tree grows: the files once, four times and sixteen times."""
    base = Path(os.path.commonpath([source if source.is_dir() else source.parent for source in sources]))
    files = [file for source in sources for file in files_below(source)]
    own = lines_of(files)
    once = max(1, -(-least // max(own, 1)))
    taken: dict[int, list[paired.Run]] = {times: [] for times in COPIES}
    for _ in range(rounds):
        for times in COPIES:
            with copied(files, base, once * times) as tree:
                taken[times].append(paired.run([*ours, tree]))
    print(f"growth: {len(files)} files of {own} lines, {once} copies for 1x; medians of {rounds} rounds")
    before: tuple[int, float] | None = None
    for times in COPIES:
        # Each copy has two more lines, which hold its number.
        lines = (own + 2 * len(files)) * once * times
        wall = statistics.median(run.seconds for run in taken[times])
        busy = statistics.median(run.busy for run in taken[times])
        further = ""
        if before is not None:
            further = f"; further lines {1e6 * (busy - before[1]) / (lines - before[0]):.2f} us of CPU each"
        print(
            f"  {times:>2}x: {lines:>8} lines in {wall:6.2f} s, {1e6 * wall / lines:6.2f} us a line"
            f" ({1e6 * busy / lines:.2f} us of CPU){further}"
        )
        before = lines, busy


def rival(ours: list[str], pairs: int, tree: Path, count: int, name: str, command: list[str]) -> None:
    files = files_below(tree)
    part = files[:: max(1, len(files) // count)][:count] if count else files
    with copied(part, tree if tree.is_dir() else tree.parent) as folder:
        # The rival runs once less: it has no cache that a first run would fill.
        paired.run([*ours, folder])
        timing = paired.compare([*command, folder], [*ours, folder], pairs=pairs, warm_up=False)
    print(
        f"{name}: {timing.first:.1f} s, amp-check {timing.second:.2f} s, on {len(part)} files of {lines_of(part)} lines"
        f"; median of {pairs}: {timing} times as long as amp-check"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", nargs="?", help="the directory to check; the installed torch package if none is given")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each command, and rounds of growth (default: 5)")
    parser.add_argument("--rival", action="append", default=[], metavar="NAME=COMMAND", help="another linter")
    parser.add_argument("--rival-files", type=int, default=0, help="files that rivals get (default: all)")
    parser.add_argument("--rival-pairs", type=int, default=1, help="runs of each rival (default: 1)")
    parser.add_argument("--growth", nargs="+", type=Path, default=[FIXTURES], metavar="PATH", help="what is copied")
    parser.add_argument("--growth-lines", type=int, default=10_000, help="lines of 1x at least (default: 10000)")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts")
    given = parser.parse_args()
    tree = given.tree
    if tree is None:
        torch = find_spec("torch")
        if torch is None or not torch.submodule_search_locations:
            sys.exit("torch is not installed: name a directory to check")
        tree = torch.submodule_search_locations[0]
    rivals = [(name, shlex.split(command)) for name, _, command in (text.partition("=") for text in given.rival)]
    for name, command in rivals:
        if not command or shutil.which(command[0]) is None:
            sys.exit(f"{name!r} is not NAME=COMMAND with a command that can be run")
    check = [*paired.installed("amp-check"), "check"]
    known = subprocess.run([*check, "--help"], capture_output=True, text=True, check=True).stdout
    ours = [*check, "--no-cache"] if "--no-cache" in known else check
    ruff = paired.installed("ruff")
    files = files_below(Path(tree))
    print(paired.machine())
    print(f"{len(files)} files, {sum(file.stat().st_size for file in files) / 1e6:.1f} MB, {lines_of(files)} lines")
    parts = given.only or PARTS
    if "cold" in parts:
        cold(ours, given.pairs, tree, ruff)
    if "warm" in parts and "--cache-dir" in known:
        warm(check, given.pairs, tree, ruff)
    if "floor" in parts:
        floor(given.pairs, tree, ruff)
    if "memory" in parts:
        memory(ours, tree)
    if "growth" in parts:
        growth(ours, given.pairs, given.growth, given.growth_lines)
    if "rivals" in parts:
        for name, command in rivals:
            rival(ours, given.rival_pairs, Path(tree), given.rival_files, name, command)


if __name__ == "__main__":
    main()
