"""Ranks of a script: those that a launcher such as torchrun starts side by side, and those that the script starts."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from ...protocol.ranks import RankReport
from ..record.active import hide_recorders
from ..record.sites import is_inner, is_library
from ..run import Run, record
from .rank_reports import RankFolder, describe_exit, has_ended, make_rank_report
from .termination import TerminationRequest

#: Exit code of a rank that was ended because none moved any more: that of the command timeout.
STUCK = 124
#: Seconds for which a rank that is told to end waits for what the others have told; torchrun ends it after 30.
_LAST_WORD = 15.0
#: Seconds after which a rank that waits for others waits in vain, where one of them has failed: fewer than those.
_IN_VAIN = 8.0
#: Seconds that a rank which has told has to end, and that one which has failed has before others do.
_LEAVING, _GOING = 5.0, 30.0
#: Seconds that may be needed to tell what was recorded, for which no device that stands still as well is waited for.
_TELLING = 10.0
#: How often, in seconds, one looks for what others have told, and at whether a rank moves: that so often in the limit.
_LOOK, _GLANCE, _LOOKS = 0.05, 1.0, 20
#: Of the standard library, and of torch, what starts processes that train nothing.
_WORKERS = ("torch.utils.data.", "torch._inductor.", "torch.distributed.elastic.")
#: By what torch.multiprocessing.spawn calls the function that it is given.
_SPAWNED = "torch.multiprocessing.spawn._wrap"
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_BEGUN, _MOVES = "{}.begun", "{}.moves"
#: Where torch waits for other ranks, in a backward pass, a forward pass of replicas, or a collective.
_WAITS = tuple(
    os.path.join(os.path.dirname(torch.__file__), part, "") for part in ("distributed", "autograd", "nn/parallel")
)


class GatheredRanks:
    """What the ranks of a script told: ``told`` and ``runs`` by rank, ``missing`` why others did not, of ``size``."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rank_reports: list[RankReport] = []
        self.runs: dict[int, dict[str, Any]] = {}
        self.missing_ranks: dict[int, str] = {}

    def add_report(self, rank: int, data: Mapping[str, Any]) -> None:
        report: RankReport = data["told"]
        report.rank = rank
        self.rank_reports.append(report)
        if data["run"] is not None:
            self.runs[rank] = data["run"]
        if report.failure:
            self.missing_ranks[rank] = report.failure


class LaunchedRank:
    """The process itself, as one of the ranks that a launcher has started on this machine.

    The first of them tells what all have found; ``first`` says whether this is that one.
    """

    def __init__(self, rank: int, size: int, local_rank: int, local_size: int, limit: float) -> None:
        self.rank, self.size = rank, size
        self._local_rank, self._local_size = local_rank, local_size
        self.is_first = local_rank == 0
        self._limit_seconds = limit
        # The launcher is the parent of all of them, and starts them anew after a failure.
        parts = (os.getppid(), os.environ.get("MASTER_PORT", ""), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        name = "-".join(["amp-check-ranks", *map(str, parts)])
        self._folder = RankFolder(os.path.join(tempfile.gettempdir(), name))
        self._folder.write(_BEGUN.format(local_rank), os.getpid())

    def watch_progress(self, run: Run, on_stuck: Callable[[], object]) -> contextlib.AbstractContextManager[object]:
        """A region in which this rank ends where no rank of this machine, which has all of them, moves any more.

        It tells what was recorded before. The first one calls ``last`` then, for what all of them have told.
        """
        if self._local_size < self.size:
            return contextlib.nullcontext()
        return _watch_progress(
            self._folder,
            str(self._local_rank),
            self._limit_seconds,
            run,
            self.rank,
            on_stuck if self.is_first else None,
        )

    def write_report(self, run: Run, *, failed: bool = False) -> bool:
        """Tell what was recorded, and say whether the first rank may hear it, which may have given this one up."""
        data = {"told": make_rank_report(run, self.rank), "run": run.as_dict(), "failed": failed}
        try:
            self._folder.write(str(self._local_rank), data)
        except FileNotFoundError:
            return False
        return True

    def gather_reports(self, is_ending: Callable[[], bool]) -> GatheredRanks:
        """What all have told, in time; ``ending`` says whether somebody wants this process to end."""
        gathered = GatheredRanks(self.size)
        until = time.monotonic() + (self._limit_seconds or float("inf"))
        waiting_ranks = list(range(self._local_size))
        first = self.rank - self._local_rank
        while waiting_ranks:
            if is_ending():
                until = min(until, time.monotonic() + _LAST_WORD)
            for local in list(waiting_ranks):
                # Asked first: one that ends now has told before.
                is_ended = self._has_ended(local)
                data = self._folder.read(str(local))
                if data is not None:
                    gathered.add_report(first + local, data)
                elif is_ended:
                    gathered.missing_ranks[first + local] = "ended without a word of what it had recorded"
                elif time.monotonic() >= until:
                    within = "" if is_ending() else f" within {self._limit_seconds:g} s of the end of rank {self.rank}"
                    gathered.missing_ranks[first + local] = f"has not told what it recorded{within}"
                else:
                    continue
                waiting_ranks.remove(local)
            if waiting_ranks:
                time.sleep(_LOOK)
        # The launcher takes the end of this one, where it fails, for a reason to end the others, which is no news then.
        until = time.monotonic() + _LEAVING
        others = [local for local in range(self._local_size) if local != self._local_rank]
        while not is_ending() and time.monotonic() < until and not all(map(self._has_ended, others)):
            time.sleep(_LOOK)
        self._folder.remove()
        return gathered

    def _has_ended(self, local: int) -> bool:
        process = self._folder.read(_BEGUN.format(local))
        return process is not None and has_ended(process)


def find_launched_rank(limit: float) -> LaunchedRank | None:
    """The process as a rank, None where no launcher has started it as one of several.

    ``limit`` is in seconds: how long ranks are waited for, and how long they may all stand still; 0 for ever.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    try:
        rank, size, local_rank, local_size = (int(os.environ[name]) for name in names)
    except (KeyError, ValueError):
        return None
    return LaunchedRank(rank, size, local_rank, local_size, limit) if size > 1 else None


class StartedProcesses:
    """Records the processes that the program starts to train in, as by ``torch.multiprocessing.spawn``."""

    def __init__(self, record_options: Mapping[str, Any], limit: float) -> None:
        self._record_options = dict(record_options)
        self._limit_seconds = limit
        self._folder: RankFolder | None = None
        self._processes: list[BaseProcess] = []
        self._targets: list[str] = []

    @contextlib.contextmanager
    def record_started(self) -> Iterator[None]:
        """A region in which processes are recorded that are started in it."""
        original = BaseProcess.start

        def start(process: BaseProcess) -> None:
            target = getattr(process, "_target", None)
            if target is not None and _may_train(target):
                if self._folder is None:
                    self._folder = RankFolder(tempfile.mkdtemp(prefix="amp-check-"))
                number = len(self._processes)
                self._processes.append(process)
                self._targets.append(_qualified_name(target))
                process._target = _RecordingTarget(  # type: ignore[attr-defined]
                    target, self._folder.path, number, self._limit_seconds, self._record_options
                )
            original(process)

        BaseProcess.start = start  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            BaseProcess.start = original  # type: ignore[method-assign]

    def gather_reports(self) -> GatheredRanks | None:
        """What those that trained have told, None where there were none; others may have been started beside them."""
        if self._folder is None:
            return None
        by_number = {number: self._folder.read(str(number)) for number in range(len(self._processes))}
        self._folder.remove()
        trained = {number: each for number, each in by_number.items() if each is not None and _has_trained(each)}
        ranks = {self._targets[number] for number in trained} | {_SPAWNED}
        missing = [number for number, each in by_number.items() if each is None and self._targets[number] in ranks]
        if not (trained or missing):
            return None
        gathered = GatheredRanks(len(trained) + len(missing))
        for number, each in trained.items():
            rank = each["told"].rank
            gathered.add_report(number if rank is None else rank, each)
        for number in missing:
            code = self._processes[number].exitcode
            how = "still runs" if code is None else describe_exit(code)
            gathered.missing_ranks[number] = f"{how}, and has not told what it recorded"
        return gathered


class StartedThreads:
    """Records the threads that the program starts to train in, each by itself; ``runs`` are theirs, by their names."""

    def __init__(self, record_options: Mapping[str, Any]) -> None:
        self._record_options = dict(record_options)
        self._threads: list[threading.Thread] = []
        self._named_runs: list[tuple[str, Run]] = []

    @contextlib.contextmanager
    def record_started(self) -> Iterator[None]:
        """A region in which threads are recorded that are started in it."""
        original = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if _may_train_in(thread):
                thread.run = functools.partial(self._record_thread, thread.run)  # type: ignore[method-assign]
                self._threads.append(thread)
            original(thread)

        threading.Thread.start = start  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            threading.Thread.start = original  # type: ignore[method-assign]

    def _record_thread(self, run: Callable[[], object]) -> None:
        name = threading.current_thread().name
        title = f"{self._record_options.get('title', '')}: {name}"
        with record(**{**self._record_options, "title": title}) as recorded_run:
            recorded_run.select("ALL")
            self._named_runs.append((name, recorded_run))
            run()

    def join_threads(self) -> None:
        """Wait for those that Python waits for before it ends."""
        for thread in self._threads:
            if not thread.daemon:
                thread.join()

    @property
    def runs(self) -> dict[str, Run]:
        """What those have recorded that trained."""
        return {name: run for name, run in self._named_runs if run.steps_total or run.findings}


def _may_train_in(thread: threading.Thread) -> bool:
    """Whether it runs what a program gave it, or a pool, and is none of a library's or of Python's own."""
    target = getattr(thread, "_target", None) or type(thread)
    module = str(getattr(target, "__module__", ""))
    file = str(getattr(sys.modules.get(module), "__file__", ""))
    ours = is_inner(file) or is_library(file) or file.startswith(_STANDARD)
    return module == "concurrent.futures.thread" or not ours


def _has_trained(data: Mapping[str, Any]) -> bool:
    report: RankReport = data["told"]
    return bool(report.backward_counts or report.findings or report.failure or report.step_count)


def _qualified_name(target: Callable[..., Any]) -> str:
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', '')}"


def _may_train(target: Callable[..., Any]) -> bool:
    module = str(getattr(target, "__module__", ""))
    if _qualified_name(target) == _SPAWNED:
        return True
    file = str(getattr(sys.modules.get(module), "__file__", ""))
    standard = file.startswith(_STANDARD) and not is_library(file)
    return not standard and not module.startswith(_WORKERS)


class _RecordingTarget:
    """What a started process calls in the place of its target."""

    def __init__(
        self, target: Callable[..., Any], folder: str, number: int, limit: float, record_options: Mapping[str, Any]
    ) -> None:
        self._target = target
        self._folder = folder
        self._number = number
        self._limit_seconds = limit
        self._record_options = dict(record_options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        folder = RankFolder(self._folder)
        name = str(self._number)
        folder.write(_BEGUN.format(name), os.getpid())
        # A process that is forked has the recordings of its parent, which nobody reads here.
        with hide_recorders():
            recording = record(**self._record_options)
            recording.run.select("ALL")
            ending = TerminationRequest()
            with contextlib.ExitStack() as stack:
                stack.enter_context(
                    _watch_progress(folder, name, self._limit_seconds, recording.run, self._number, lets_go=True)
                )
                # Who started this one ends it, where another has failed, and leaves it some time.
                stack.callback(ending.end_process)
                if _qualified_name(self._target) == _SPAWNED:
                    stack.enter_context(ending.handle_signal())
                failed = True
                try:
                    with recording as run:
                        result = self._run_target(recording, ending, args, kwargs)
                    failed = False
                finally:
                    report = make_rank_report(run, _rank_of(run, self._number))
                    folder.write(name, {"told": report, "run": run.as_dict(), "failed": failed})
                return result

    def _run_target(self, recording: record, ending: TerminationRequest, args: Any, kwargs: Any) -> Any:
        try:
            with ending:
                return self._target(*args, **kwargs)
        except SystemExit as leave:
            recording.broken_by(ending.exit_cause(leave))
            raise


def _rank_of(run: Run, number: int) -> int:
    """The rank as the program knows it, or else the number of the process."""
    rank = run._recorder.replicas.rank
    return number if rank is None else rank


# A rank that stands still.


@contextlib.contextmanager
def _watch_progress(
    folder: RankFolder,
    name: str,
    limit: float,
    run: Run,
    rank: int,
    on_stuck: Callable[[], object] | None = None,
    *,
    lets_go: bool = False,
) -> Iterator[None]:
    """A region in which this process ends once no process of the folder has moved for some seconds; 0 for never.

    It ends, too, where it waits for one that has failed. ``last`` is called before. ``lets_go`` says that it lets one
    that has failed end first, of which whoever started both tells the exception.
    """
    if not limit:
        yield
        return
    is_over = threading.Event()

    def watch_folder() -> None:
        # Whoever gathers what ranks tell may have given this one up, and taken the folder away.
        with contextlib.suppress(FileNotFoundError):
            _watch_until_over(folder, name, limit, run, rank, on_stuck, is_over, lets_go=lets_go)

    watch = threading.Thread(target=watch_folder, daemon=True)
    watch.start()
    try:
        yield
    finally:
        is_over.set()
        watch.join()


def _watch_until_over(
    folder: RankFolder,
    name: str,
    limit: float,
    run: Run,
    rank: int,
    on_stuck: Callable[[], object] | None,
    is_over: threading.Event,
    *,
    lets_go: bool,
) -> None:
    main = threading.main_thread().ident
    moves = folder.path_of(_MOVES.format(name))
    with open(moves, "w", encoding="utf-8"):
        pass
    last_marks: list[int] = []
    moved_at = failing_at = time.monotonic()
    while not is_over.wait(min(limit / _LOOKS, _GLANCE)):
        frame = sys._current_frames().get(main or 0)
        marks = _frame_marks(frame)
        moment = time.monotonic()
        if marks != last_marks:
            last_marks, moved_at = marks, moment
            os.utime(moves)
        elif lets_go and moment - moved_at < _GOING and _is_failed_rank_running(folder, name):
            failing_at = moment
        elif reason := _reason_to_give_up(
            folder, name, moment - max(moved_at, failing_at), limit, waits=_is_waiting(frame)
        ):
            number = _rank_of(run, rank)
            failure = f"{reason}: it stood at {_format_position(frame)}"
            folder.write(name, _make_late_report(run, number, failure, waits=_is_waiting(frame)))
            if on_stuck is None:
                sys.stderr.write(f"amp-check: error: rank {number} {failure}\n")
            else:
                on_stuck()
            sys.stdout.flush()
            sys.stderr.flush()
            # Its main thread waits in native code, which no exception reaches.
            os._exit(STUCK)


def _reason_to_give_up(folder: RankFolder, name: str, seconds: float, limit: float, *, waits: bool) -> str:
    """Why a rank that has not moved for some seconds never will, or nothing."""
    if seconds >= limit and _all_stand(folder, limit):
        return f"had not moved for {limit:g} s, nor had any other"
    if waits and seconds >= _IN_VAIN:
        for other in _begun_names(folder):
            data = folder.read(other)
            if other != name and (has_ended(folder.read(_BEGUN.format(other))) if data is None else data["failed"]):
                return f"waited for rank {other}, which had failed"
    return ""


def _is_failed_rank_running(folder: RankFolder, name: str) -> bool:
    """Whether another rank has told that it failed, and has not ended yet."""
    names = folder.report_names()
    for other in _begun_names(folder):
        if other != name and other in names and not has_ended(folder.read(_BEGUN.format(other))):
            data = folder.read(other)
            if data is not None and data["failed"]:
                return True
    return False


def _make_late_report(run: Run, rank: int, failure: str, *, waits: bool) -> dict[str, Any]:
    """What a recording tells whose thread stands still: all that it knows, or that it stands alone.

    ``waits`` says whether that is for other ranks.
    """
    reports: list[dict[str, Any]] = []

    def make_report() -> None:
        # What is recorded may have to wait for a device.
        report = make_rank_report(run, rank, failure, stopped=not waits)
        reports.append({"told": report, "run": run.as_dict(), "failed": True})

    finding = threading.Thread(target=make_report, daemon=True)
    finding.start()
    finding.join(_TELLING)
    return reports[0] if reports else {"told": RankReport(rank, failure=failure), "run": None, "failed": True}


def _is_waiting(frame: FrameType | None) -> bool:
    """Whether a thread stands where torch waits for other ranks."""
    return frame is not None and frame.f_code.co_filename.startswith(_WAITS)


def _frame_marks(frame: FrameType | None) -> list[int]:
    """Where a thread is, in each of its calls."""
    marks = []
    while frame is not None:
        marks += [id(frame.f_code), frame.f_lasti]
        frame = frame.f_back
    return marks


def _format_position(frame: FrameType | None) -> str:
    while frame is not None:
        path = frame.f_code.co_filename
        if not (is_inner(path) or is_library(path)):
            return f"{os.path.basename(path)}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return "a place that is not known"


def _all_stand(folder: RankFolder, limit: float) -> bool:
    """Whether this is one of several ranks, each of which has told at its end, or has not moved for some seconds."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return False
    names = folder.report_names()
    for name in _begun_names(folder):
        with contextlib.suppress(FileNotFoundError):
            if name not in names and time.time() - os.stat(folder.path_of(_MOVES.format(name))).st_mtime < limit:
                return False
    return True


def _begun_names(folder: RankFolder) -> list[str]:
    """The names of the processes that have begun."""
    end = _BEGUN.format("")
    return [each.removesuffix(end) for each in folder.report_names() if each.endswith(end)]
