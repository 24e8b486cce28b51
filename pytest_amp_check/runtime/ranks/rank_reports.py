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
from ...protocol.ranks import RankReport
from ..record.sharding import are_shards
from ..record.sites import innermost_user_site, is_inner, is_library
from ..record.source import SiteText
from ..run import Run

#: Ends the name of what a rank has told; written under another name and then given this one, so it is whole.
_TOLD = ".told"
#: A frame as faulthandler writes it.
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$')


def make_rank_report(run: Run, rank: int, failure: str = "", *, stopped: bool = False) -> RankReport:
    """What a recording that has ended tells, in the words that other processes understand.

    ``stopped`` says of one that has not ended that it stands still between two backward passes, by itself.
    """
    recorder = run._recorder
    backwards: dict[tuple[str, int], tuple[Site, str, int]] = {}
    for site, count in recorder.backward.begun_counts.items():
        own_site = innermost_user_site(site)
        key = (own_site.path, own_site.line)
        earlier_count = backwards[key][2] if key in backwards else 0
        backwards[key] = (own_site, str(SiteText(site)) or "backward", earlier_count + count)
    scaled = [step for step in run.steps if step.scaler is not None]
    first = scaled[0] if scaled else None
    return RankReport(
        rank,
        run.findings,
        backward_counts=backwards,
        step_count=run.steps_total,
        skipped_steps=frozenset(step.index for step in scaled if step.skipped),
        step_site=None if first is None else innermost_user_site(first._site),
        scaler_name="" if first is None else first.scaler or "",
        in_process_group=_is_grouped(run),
        averages_grads=recorder.replicas.averages_gradients or _has_shards(run),
        # In a backward pass it waited for the others.
        ended_by_exception=stopped or (run._stop_position is not None and run._stop_position not in backwards),
        failure=failure,
    )


def _is_grouped(run: Run) -> bool:
    """Whether what it has trained has belonged to several ranks."""
    return run._recorder.replicas.is_grouped or _has_shards(run)


def _has_shards(run: Run) -> bool:
    """Whether parameters that it steps are parts of larger ones, which all ranks gather together."""
    for tracked in run._recorder.recording.registry.optimizers.values():
        if are_shards(tracked.params) or any(type(p).__name__ == "DTensor" for p in tracked.params):
            return True
    return False


class RankFolder:
    """Where the ranks of one machine tell each other: files that none but their owner can write or read."""

    def __init__(self, path: str) -> None:
        """Use a folder, which is made where it is not there. Raises PermissionError where it is somebody else's."""
        self.path = path
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        status = os.stat(path, follow_symlinks=False)
        if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o077):
            raise PermissionError(f"{path} is not of this user alone")

    def path_of(self, name: str) -> str:
        return os.path.join(self.path, name)

    def write(self, name: str, value: Any) -> None:
        """Leave something under a name. What cannot be written raises."""
        data = pickle.dumps(value)
        temporary_path = self.path_of(f"{name}.{os.getpid()}")
        with open(temporary_path, "wb") as file:
            file.write(data)
        os.replace(temporary_path, self.path_of(name + _TOLD))

    def read(self, name: str) -> Any:
        """What was left under a name, None where nothing is."""
        try:
            with open(self.path_of(name + _TOLD), "rb") as file:
                return pickle.load(file)  # noqa: S301 - the folder is this user's alone
        except FileNotFoundError:
            return None

    def report_names(self) -> list[str]:
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


def describe_exit(code: int | None) -> str:
    """In words, how a process ended: by its exit code as multiprocessing tells it, negative for a signal."""
    if code is None:
        return "had not ended"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def parse_position(dump: str) -> str:
    """Where the main thread of a process stands, from what faulthandler writes: "train.py:31 in step", or nothing."""
    # The main thread is the last, and its innermost frame the first.
    _, _, last = dump.rstrip().rpartition("(most recent call first):\n")
    for line in last.splitlines():
        frame = _FRAME.match(line)
        if frame is not None and not (is_inner(frame[1]) or is_library(frame[1]) or frame[1].startswith("<")):
            return f"{os.path.basename(frame[1])}:{frame[2]} in {frame[3]}"
    return ""


def indent_lines(sentences: Sequence[str]) -> str:
    return "\n".join(f"  {sentence}" for sentence in sentences)
