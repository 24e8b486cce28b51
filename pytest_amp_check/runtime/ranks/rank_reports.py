"""Rank reports: the data that a rank sends about its run, and the transport through files."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
from collections.abc import Sequence
from typing import Any

from ...protocol import events as e
from ...protocol.ranks import RankReport
from ...protocol.sites import Site
from ..record.sharding import are_shards
from ..record.sites import innermost_user_site, is_inner, is_library
from ..record.source.call_texts import SiteText
from ..run import Run

#: Suffix of a report file. A report is written under another name and then renamed, so a reader sees only whole
#: reports.
_REPORTED = ".report"
#: A frame as faulthandler writes it.
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$')


def make_rank_report(run: Run, rank: int, failure: str = "", *, stopped: bool = False) -> RankReport:
    """Return the report of a recording as data for other processes.

    ``stopped`` is True for an unfinished recording that hangs between two backward passes without waiting for others.
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
    scale, tracker = (scaled[-1].scale_after, scaled[-1].growth_tracker) if scaled else (None, None)
    is_set = any(
        isinstance(event, e.ScalerLoad) or (isinstance(event, e.Update) and event.new_scale)
        for event in recorder.recording.run_checker.distinct_events.values()
    )
    return RankReport(
        rank,
        run.findings,
        backward_counts=backwards,
        step_count=run.steps_total,
        skipped_steps=frozenset(step.index for step in scaled if step.skipped),
        step_site=None if first is None else innermost_user_site(first._site),
        scaler_name="" if first is None else first.scaler or "",
        # A program that sets the scale itself may do it equally on all ranks.
        scaler_state=None if is_set or scale is None or tracker is None else (scale, tracker, len(scaled)),
        in_process_group=_is_grouped(run),
        has_replicas=recorder.replicas.has_replicas,
        averages_grads=recorder.replicas.averages_gradients or _has_shards(run),
        # An exception inside a backward pass does not count, because there the rank waited for the others.
        ended_by_exception=stopped or (run._stop_position is not None and run._stop_position not in backwards),
        failure=failure,
    )


def _is_grouped(run: Run) -> bool:
    """Return True if the trained modules belong to several ranks."""
    return run._recorder.replicas.is_grouped or _has_shards(run)


def _has_shards(run: Run) -> bool:
    """Return True if stepped parameters are shards of larger parameters, which all ranks gather together."""
    for tracked in run._recorder.recording.registry.optimizers.values():
        if are_shards(tracked.params) or any(type(p).__name__ == "DTensor" for p in tracked.params):
            return True
    return False


class RankFolder:
    """A folder through which the ranks of one machine exchange data. Only the owner can read or write the files."""

    def __init__(self, path: str) -> None:
        """Use a folder, and create the folder if missing.

        Raise PermissionError if other users have access or own the folder.
        """
        self.path = path
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        status = os.stat(path, follow_symlinks=False)
        if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o077):
            raise PermissionError(f"{path} is not of this user alone")

    def path_of(self, name: str) -> str:
        return os.path.join(self.path, name)

    def write(self, name: str, value: Any) -> None:
        """Write a value under a name, atomically. Raise if the value cannot be pickled."""
        data = pickle.dumps(value)
        temporary_path = self.path_of(f"{name}.{os.getpid()}")
        with open(temporary_path, "wb") as file:
            file.write(data)
        os.replace(temporary_path, self.path_of(name + _REPORTED))

    def read(self, name: str) -> Any:
        """Return the value under a name, or None without a value."""
        try:
            with open(self.path_of(name + _REPORTED), "rb") as file:
                return pickle.load(file)  # noqa: S301 - the folder is this user's alone
        except FileNotFoundError:
            return None

    def report_names(self) -> list[str]:
        """Return the names with a value."""
        return sorted(each.removesuffix(_REPORTED) for each in os.listdir(self.path) if each.endswith(_REPORTED))

    def remove(self) -> None:
        import shutil

        shutil.rmtree(self.path, ignore_errors=True)


def has_ended(process: int) -> bool:
    """Return True if a process of this user has ended, including a zombie whose exit code was not collected."""
    try:
        os.kill(process, 0)
        with open(f"/proc/{process}/stat", "rb") as file:
            # The process name in parentheses may contain anything. The state follows it, and is Z for a zombie.
            return file.read().rpartition(b")")[2].split()[:1] == [b"Z"]
    except ProcessLookupError:
        return True
    except OSError:
        # Only Linux has this file.
        return False


def describe_exit(code: int | None) -> str:
    """Describe the end of a process by the exit code from multiprocessing. A negative exit code is a signal."""
    if code is None:
        return "had not ended"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def parse_position(dump: str) -> str:
    """Return the position of the main thread from a faulthandler dump: "train.py:31 in step", or ""."""
    # The main thread comes last in the dump, with its innermost frame first.
    _, _, last = dump.rstrip().rpartition("(most recent call first):\n")
    for line in last.splitlines():
        frame = _FRAME.match(line)
        if frame is not None and not (is_inner(frame[1]) or is_library(frame[1]) or frame[1].startswith("<")):
            return f"{os.path.basename(frame[1])}:{frame[2]} in {frame[3]}"
    return ""


def indent_lines(sentences: Sequence[str]) -> str:
    return "\n".join(f"  {sentence}" for sentence in sentences)
