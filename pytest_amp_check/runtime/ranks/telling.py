"""What a rank tells of its run, and how it comes to the process that asks."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
from collections.abc import Sequence
from typing import Any

from ...protocol.events import Site
from ...protocol.ranks import Told
from ..record.sharding import are_shards
from ..record.sites import is_inner, is_library, own
from ..record.source import SourceText
from ..run import Run

#: Ends the name of what a rank has told; written under another name and then given this one, so it is whole.
_TOLD = ".told"
#: A frame as faulthandler writes it.
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$')


def tell(run: Run, rank: int, failure: str = "", *, stopped: bool = False) -> Told:
    """What a recording that has ended tells, in the words that other processes understand.

    ``stopped`` says of one that has not ended that it stands still between two backward passes, by itself.
    """
    recorder = run._recorder
    backwards: dict[tuple[str, int], tuple[Site, str, int]] = {}
    for site, count in recorder.backward.begun.items():
        mine = own(site)
        place = (mine.path, mine.line)
        before = backwards[place][2] if place in backwards else 0
        backwards[place] = (mine, str(SourceText(site)) or "backward", before + count)
    scaled = [step for step in run.steps if step.scaler is not None]
    first = scaled[0] if scaled else None
    return Told(
        rank,
        run.findings,
        backwards=backwards,
        steps=run.steps_total,
        skips=frozenset(step.index for step in scaled if step.skipped),
        step_site=None if first is None else own(first._site),
        scaler="" if first is None else first.scaler or "",
        grouped=_is_grouped(run),
        averages=recorder.replicas.averages or _shards(run),
        # In a backward pass it waited for the others.
        stopped=stopped or (run._stopped is not None and run._stopped not in backwards),
        failure=failure,
    )


def _is_grouped(run: Run) -> bool:
    """Whether what it has trained has belonged to several ranks."""
    return run._recorder.replicas.grouped or _shards(run)


def _shards(run: Run) -> bool:
    """Whether parameters that it steps are parts of larger ones, which all ranks gather together."""
    for tracked in run._recorder.recording.registry.optimizers.values():
        if are_shards(tracked.params) or any(type(p).__name__ == "DTensor" for p in tracked.params):
            return True
    return False


class Folder:
    """Where the ranks of one machine tell each other: files that none but their owner can write or read."""

    def __init__(self, path: str) -> None:
        """Use a folder, which is made where it is not there. Raises PermissionError where it is somebody else's."""
        self.path = path
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        status = os.stat(path, follow_symlinks=False)
        if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o077):
            raise PermissionError(f"{path} is not of this user alone")

    def place(self, name: str) -> str:
        return os.path.join(self.path, name)

    def write(self, name: str, value: Any) -> None:
        """Leave something under a name. What cannot be written raises."""
        data = pickle.dumps(value)
        waiting = self.place(f"{name}.{os.getpid()}")
        with open(waiting, "wb") as file:
            file.write(data)
        os.replace(waiting, self.place(name + _TOLD))

    def read(self, name: str) -> Any:
        """What was left under a name, None where nothing is."""
        try:
            with open(self.place(name + _TOLD), "rb") as file:
                return pickle.load(file)  # noqa: S301 - the folder is this user's alone
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """The names under which something was left."""
        return sorted(each.removesuffix(_TOLD) for each in os.listdir(self.path) if each.endswith(_TOLD))

    def remove(self) -> None:
        import shutil

        shutil.rmtree(self.path, ignore_errors=True)


def has_ended(process: int) -> bool:
    """Whether a process of this user has ended, also one whose parent has not asked yet for its exit code."""
    try:
        os.kill(process, 0)
        with open(f"/proc/{process}/stat", "rb") as file:
            # Its name, between parentheses, may be any; after it stands the state, which is Z until it is asked.
            return file.read().rpartition(b")")[2].split()[:1] == [b"Z"]
    except ProcessLookupError:
        return True
    except OSError:
        # Elsewhere than on Linux there is no such file.
        return False


def how_ended(code: int | None) -> str:
    """In words, how a process ended: by its exit code as multiprocessing tells it, negative for a signal."""
    if code is None:
        return "had not ended"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def standing(dump: str) -> str:
    """Where the main thread of a process stands, from what faulthandler writes: "train.py:31 in step", or nothing."""
    # The main thread is the last, and its innermost frame the first.
    _, _, last = dump.rstrip().rpartition("(most recent call first):\n")
    for line in last.splitlines():
        frame = _FRAME.match(line)
        if frame is not None and not (is_inner(frame[1]) or is_library(frame[1]) or frame[1].startswith("<")):
            return f"{os.path.basename(frame[1])}:{frame[2]} in {frame[3]}"
    return ""


def listed(sentences: Sequence[str]) -> str:
    return "\n".join(f"  {sentence}" for sentence in sentences)
