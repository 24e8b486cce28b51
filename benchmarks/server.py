"""Response time of the language server to an edit, and its stability over a thousand edits.

python benchmarks/server.py [--edits 1000] [--seed 0]

A trainer of 500 lines that imports from six other files is open in an editor that talks to ``amp-check server`` over
stdio. The time runs from the message of an edit to the diagnostics of that version, including the server's pause for
the next key. The edits of the first part type a statement and remove it again. The edits of the second part are random,
in three files, with requests between them. At the end, the initial texts must have the initial diagnostics. Needs the
extra ``[server]``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import paired

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from edited import PROJECT, edits  # noqa: E402 - they stand with the tests
from editor import Editor  # noqa: E402

#: Characters typed one by one at the end of the first loop over a loader, and the line before them.
TYPED = "\n        optimizer.step()"
AFTER = "        losses.update(loss.detach(), inputs.size(0))"
#: Files that are open during random edits, and the number of edits per request.
OPEN = ("train.py", "engine/scaler.py", "losses.py")
ASKED_AFTER = 25
#: Number of edits per awaited answer. The other edits arrive while earlier versions are being checked.
ANSWERED = 4


def typing(text: str) -> Iterator[str]:
    """Yield the versions of the trainer while a statement is typed and removed."""
    before, after = text.split(AFTER, 1)
    ways = [*range(1, len(TYPED) + 1), *range(len(TYPED) - 1, -1, -1)]
    for length in ways:
        yield before + AFTER + TYPED[:length] + after


def answers(folder: Path) -> tuple[list[float], float]:
    """Return the seconds until each typed edit is answered, and the CPU seconds of the server per edit.

    The folder was checked before.
    """
    path, text = folder / "train.py", PROJECT["train.py"]
    taken: list[float] = []
    with Editor(folder) as editor:
        address = editor.open(path, text)
        editor.found(address)
        worked = editor.worked()
        for version in typing(text):
            begun = time.perf_counter()
            editor.answer(address, editor.type(address, version))
            taken.append(time.perf_counter() - begun)
        if editor.said:
            sys.exit(f"the server said: {editor.said}")
        return taken, (editor.worked() - worked) / len(taken)


def survival(folder: Path, number: int, seed: int) -> tuple[int, float]:
    """Make random edits. Return the number of completely checked texts, and the seconds for all edits."""
    with Editor(folder) as editor:
        opened = {editor.open(folder / name, PROJECT[name]): PROJECT[name] for name in OPEN}
        first = {address: editor.places(address) for address in opened}
        versions = {address: edits(text, seed + at) for at, (address, text) in enumerate(opened.items())}
        begun, asked = time.perf_counter(), 0
        for at in range(number):
            address = list(opened)[at % len(opened)]
            version = editor.type(address, next(versions[address]))
            if at % ANSWERED == 0:
                editor.answer(address, version)
            if at % ASKED_AFTER == 0:
                editor.actions(address)
                editor.hover(address, at % 500 + 1, 8)
                asked += 1
        for address, text in opened.items():
            editor.type(address, text)
        last = {address: editor.places(address) for address in opened}
        if last != first:
            sys.exit(f"after the edits {last} was found, and {first} before them")
        if editor.said:
            sys.exit(f"the server said: {editor.said}")
        return asked, time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edits", type=int, default=1000, help="edits made at random (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="of the random edits (default: 0)")
    given = parser.parse_args()
    print(paired.machine())
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where).resolve()
        for name, text in PROJECT.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        taken, worked = answers(folder)
        taken.sort()
        print(
            f"{len(taken)} edits of {len(PROJECT['train.py'].splitlines())} lines: median "
            f"{statistics.median(taken) * 1e3:.0f} ms, of ten the slowest {taken[len(taken) * 9 // 10] * 1e3:.0f} ms, "
            f"the slowest {taken[-1] * 1e3:.0f} ms; a processor worked {worked * 1e3:.0f} ms for one"
        )
        asked, seconds = survival(folder, given.edits, given.seed)
        print(f"{given.edits} random edits and {2 * asked} questions in {seconds:.0f} s: the same findings at the end")


if __name__ == "__main__":
    main()
