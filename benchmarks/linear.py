"""Growth of the check time with size: files of 500 to 8,000 lines, and trees in 1, 2 and 4 copies.

    python benchmarks/linear.py [--only SHAPE ...] [--times 3] [--tree FOLDER ...]

For each shape of program, the script prints the processor time of the analysis at every size. The growth factor
compares the time per line of the largest size with the smallest size for which startup is negligible. The limit is 1.3.
For a generated file of 4.7 MB, the script prints the processor time. The limit is 3 s.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pytest_amp_check.protocol.rules import RULES  # noqa: E402
from pytest_amp_check.static.engine import check_paths, check_source  # noqa: E402
from pytest_amp_check.static.settings import Settings  # noqa: E402

LINES = (500, 1_000, 2_000, 4_000, 8_000)
COPIES = (1, 2, 4)
MOST = 1.3
#: Bytes of the generated file.
GENERATED = 4_700_000
SETTINGS = Settings(select=frozenset(code for code, rule in RULES.items() if rule.on_by_default))

HEAD = "import torch\nfrom torch import nn\n\n"
STEP = """\
def train{n}(model, loader, optimizer, criterion, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

"""
ALONE = STEP.replace("{n}", "")


def repeated(text: str, lines: int, last: str = "") -> str:
    """Repeat numbered copies of a text, up to a number of lines."""
    number = max(lines // text.count("\n"), 1)
    return HEAD + "".join(text.replace("{n}", str(n)).replace("{next}", str(n + 1)) for n in range(number)) + last


def called(lines: int) -> str:
    """Return functions that one loop calls, one after the other."""
    piece = "def part{n}(x, scaler):\n    x = x * {n}\n    if x.sum() > {n}:\n"
    piece += "        scaler.scale(x).backward()\n    return x\n\n"
    calls = "".join(f"        x = part{n}(x, scaler)\n" for n in range(max(lines // 7, 1)))
    head = "def train(loader, scaler, optimizer):\n    for x in loader:\n        optimizer.zero_grad()\n"
    return repeated(piece, lines * 6 // 7) + head + calls + "        scaler.step(optimizer)\n        scaler.update()\n"


def called_by_all(lines: int) -> str:
    """Return one function that trains, called by many others."""
    return HEAD + ALONE + repeated("def run{n}(a, b, c, d, e):\n    train(a, b, c, d, e)\n\n", lines)[len(HEAD) :]


def chain(lines: int) -> str:
    """Return functions of which each calls the next."""
    piece = "def part{n}(x, scaler):\n    y = part{next}(x, scaler)\n    scaler.scale(y).backward()\n    return y\n\n"
    return repeated(piece, lines)


def twice(lines: int) -> str:
    """Return functions of which each calls the one before it twice."""
    calls = ((n, f"    part{n - 1}(s, o)\n" * 2) for n in range(1, lines // 4))
    first = HEAD + ALONE + "scaler = torch.amp.GradScaler()\ndef part0(s, o):\n    s.step(o)\n    s.update()\n\n"
    return first + "".join(f"def part{n}(s, o):\n{body}\n" for n, body in calls) + f"part{lines // 4 - 1}(scaler, o)\n"


def methods(lines: int) -> str:
    """Return one class with very many methods."""
    body = "".join(
        "    " + line + "\n" if line else "\n" for line in STEP.replace("model, ", "self, model, ").split("\n")
    )
    return HEAD + "class Trainer:\n" + repeated(body, lines)[len(HEAD) :]


def switches(lines: int) -> str:
    """Return a class with very many disabled flags, and disabled dictionary keys and parameters."""
    body = "".join(f"        self.flag{n} = False\n" for n in range(lines // 3))
    keys = "config = {\n" + "".join(f"    'key{n}': False,\n" for n in range(lines // 3)) + "}\n"
    given = "".join(f"def part{n}(x, amp=False): x.backward()\n" for n in range(lines // 3))
    return HEAD + "class C:\n    def __init__(self):\n" + body + "\n" + keys + given + ALONE


def fills(lines: int) -> str:
    """Return large named constants, and tensors that are filled."""
    piece = "LARGE{n} = 1{n}00000\nx = x.masked_fill(mask, value{n})\n"
    return repeated(piece, lines, ALONE)


def branches(lines: int) -> str:
    """Return one loop with very many conditions."""
    rows = "".join(f"        if flag{n}:\n            print({n})\n" for n in range(lines // 2))
    return HEAD + ALONE.replace("        scaler.step", f"{rows}        scaler.step")


def assignments(lines: int) -> str:
    """Return one function of very many statements that train nothing."""
    rows = "".join(f"        x{n} = model.part{n}(x{max(n - 1, 0)}, size={n})\n" for n in range(lines))
    return HEAD + ALONE.replace("        scaler.step", f"{rows}        scaler.step")


def table(lines: int) -> str:
    """Return a program below a table of numbers."""
    return HEAD + "TABLE = {\n" + "".join(f"    'k{n}': ({n}, {n}.5, 'v{n}'),\n" for n in range(lines)) + "}\n" + ALONE


def nested(lines: int) -> str:
    """Return many groups of functions that are nested 15 deep."""
    piece = "".join("    " * n + f"def f{n}_{{n}}(x):\n" for n in range(15)) + "    " * 15 + "x.backward()\n"
    return repeated(piece, lines, ALONE)


def suppressed(lines: int) -> str:
    """Return a program with suppression comments."""
    return repeated(STEP.replace("1.0)", "1.0)  # amp: ignore[AMP201]"), lines)


def modules(lines: int) -> str:
    """Return modules whose forward has ops that lose accuracy in low precision."""
    piece = (
        "class Net{n}(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.fc = nn.Linear(8, 8)\n\n"
        "    def forward(self, x):\n        y = self.fc(x)\n        return (y.exp() + 1e-8).log().sum()\n\n"
    )
    return repeated(piece, lines, ALONE)


SHAPES: dict[str, Callable[[int], str]] = {
    "functions that train": lambda lines: repeated(STEP, lines),
    **{
        each.__name__.replace("_", " "): each
        for each in (
            *(called, called_by_all, chain, twice, methods, switches, fills, branches),
            *(assignments, table, nested, suppressed, modules),
        )
    },
}


def seconds(act: Callable[[], object], times: int) -> float:
    """Return the smallest processor time of ``times`` attempts."""
    taken: list[float] = []
    for _ in range(times):
        start = time.process_time()
        act()
        taken.append(time.process_time() - start)
    return min(taken)


def growth(name: str, sizes: Iterable[tuple[int, Callable[[], object]]], times: int) -> bool:
    """Print a row with the time for each size. Return True if the growth is within the limit."""
    taken = [(size, seconds(act, times)) for size, act in sizes]
    (least, first), (most, last) = taken[0], taken[-1]
    for size, spent in taken:
        if spent >= 0.05:
            least, first = size, spent
            break
    factor = (last / most) / (first / least)
    print(
        f"{name:24} {'  '.join(f'{spent:8.3f}' for _, spent in taken)}   {factor:5.2f}{'' if factor <= MOST else ' !'}"
    )
    return factor <= MOST


def copies(folder: Path, number: int, into: Path) -> Path:
    """Create a tree with copies of a folder."""
    for each in range(number):
        if not (into / f"copy{each}").exists():
            shutil.copytree(folder, into / f"copy{each}", ignore=shutil.ignore_patterns(".git"))
    return into


def main() -> int:
    parser = argparse.ArgumentParser(description="How the time of a check grows with what is checked.")
    parser.add_argument("--only", nargs="*", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--tree", nargs="*", default=[str(ROOT / "fixtures")])
    given = parser.parse_args()
    check_source(HEAD + ALONE)  # warms up the imports
    well = True
    print(f"{'lines':24} {'  '.join(f'{size:8,}' for size in LINES)}   times proportional")
    for name in given.only:
        texts = [(size, SHAPES[name](size)) for size in LINES]
        sizes = [(text.count("\n"), lambda text=text: check_source(text, "train.py", SETTINGS)) for _, text in texts]
        well = growth(name, sizes, given.times) and well
    for folder in map(Path, given.tree):
        with tempfile.TemporaryDirectory() as name:
            trees = [(number, str(copies(folder, number, Path(name) / str(number)))) for number in COPIES]
            rows = [(number, lambda tree=tree: check_paths([tree], SETTINGS)) for number, tree in trees]
            well = growth(f"copies of {folder.name}", rows, given.times) and well
    text = repeated("ROW{n} = ({n}, {n}.25, 'name of {n}')\n", GENERATED // 41) + ALONE
    text += "x.masked_fill(mask, -1e9)\n"
    spent = seconds(lambda: check_source(text, "train.py", SETTINGS), 1)
    print(f"a generated file of {len(text) / 1e6:.1f} MB: {spent:.1f} s")
    return 0 if well and spent < 3 else 1


if __name__ == "__main__":
    sys.exit(main())
