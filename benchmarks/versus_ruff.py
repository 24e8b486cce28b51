"""How long ``amp-check check`` takes on a large tree, compared with ``ruff check`` without its cache.

python benchmarks/versus_ruff.py [TREE] [--pairs 5]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import paired


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", nargs="?", help="the directory to check; the installed torch package if none is given")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each command (default: 5)")
    given = parser.parse_args()
    tree = given.tree
    if tree is None:
        torch = find_spec("torch")
        if torch is None or not torch.submodule_search_locations:
            sys.exit("torch is not installed: name a directory to check")
        tree = torch.submodule_search_locations[0]
    sources = [path.read_bytes() for path in Path(tree).rglob("*.py")]
    ruff = paired.installed("ruff")
    version = subprocess.run([*ruff, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    check = [*paired.installed("amp-check"), "check", tree]
    timing = paired.compare(check, [*ruff, "check", "--no-cache", "--isolated", tree], pairs=given.pairs)
    print(paired.machine())
    print(f"{len(sources)} files, {sum(map(len, sources)) / 1e6:.1f} MB, {sum(s.count(10) for s in sources)} lines")
    print(f"amp-check check: {timing.first:.2f} s; {version} check --no-cache --isolated: {timing.second:.2f} s")
    print(f"median of {given.pairs} pairs: {timing} times as long as ruff")


if __name__ == "__main__":
    main()
