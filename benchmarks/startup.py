"""Time of ``amp-check check`` on one small file, compared with starting Python without work.

python benchmarks/startup.py [FILE] [--pairs 5] [--times 10]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import paired

#: A file that must be analyzed in full: it clips before it unscales.
SMALL = """\
import torch
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", help="the file to check; a small training loop if none is given")
    parser.add_argument("--pairs", type=int, default=5, help="samples of each command (default: 5)")
    parser.add_argument("--times", type=int, default=10, help="runs that make up a sample (default: 10)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = given.file
        if file is None:
            file = str(Path(folder) / "train.py")
            Path(file).write_text(SMALL, encoding="utf-8")
        check = [*paired.installed("amp-check"), "check", file]
        timing = paired.compare(check, [sys.executable, "-c", "pass"], pairs=given.pairs, times=given.times)
    print(paired.machine())
    print(f"amp-check check of one file: {timing.first * 1e3:.1f} ms; python -c pass: {timing.second * 1e3:.1f} ms")
    print(f"median of {given.pairs} pairs: {timing} times the start of Python")


if __name__ == "__main__":
    main()
