"""Ranks of a script: ranks that a launcher such as torchrun starts, and ranks that the script starts."""

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
from ..emulate.cuda import emulate_cuda, is_emulating
from ..record.active import hide_recorders
from ..record.sites import is_inner, is_library
from ..run import Run, record
from .rank_reports import RankFolder, describe_exit, has_ended, make_rank_report
from .termination import TerminationRequest

#: Exit code of a rank that ended because no rank made progress: the exit code of the command timeout.
STUCK = 124
#: Seconds for which a rank that is asked to end waits for the reports of the others; torchrun kills it after 30.
_LAST_WORD = 15.0
#: Seconds after which a rank stops waiting for a failed rank. Must be smaller than _LAST_WORD.
_FAILED_RANK_WAIT = 8.0
#: Seconds that a rank has to end after its report, and seconds that a failed rank has to end before the others end.
_LEAVING, _GOING = 5.0, 30.0
#: Seconds allowed for making a late report. A device that hangs is not waited for longer.
_TELLING = 10.0
#: Seconds between two looks for reports, largest number of seconds between two progress checks, and number of progress
#: checks within the limit.
_LOOK, _GLANCE, _LOOKS = 0.05, 1.0, 20
#: Modules of the standard library and of torch that start processes without training.
_WORKERS = ("torch.utils.data.", "torch._inductor.", "torch.distributed.elastic.")
#: Qualified name of the function that torch.multiprocessing.spawn runs in each process.
_SPAWNED = "torch.multiprocessing.spawn._wrap"
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_BEGUN, _MOVES = "{}.begun", "{}.moves"
#: Folders of torch code that waits for other ranks: a backward pass, a forward pass of replicas, or a collective.
_WAITS = tuple(
    os.path.join(os.path.dirname(torch.__file__), part, "") for part in ("distributed", "autograd", "nn/parallel")
)


class GatheredRanks:
    """The reports of a script's ranks.

    ``rank_reports`` lists the reports and ``runs`` the run data by rank. ``missing_ranks`` has the reason for each
    missing or failed rank. ``size`` is the number of ranks.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.rank_reports: list[RankReport] = []
        self.runs: dict[int, dict[str, Any]] = {}
        self.missing_ranks: dict[int, str] = {}

    def add_report(self, rank: int, data: Mapping[str, Any]) -> None:
        report: RankReport = data["report"]
        report.rank = rank
        self.rank_reports.append(report)
        if data["run"] is not None:
            self.runs[rank] = data["run"]
        if report.failure:
            self.missing_ranks[rank] = report.failure


class LaunchedRank:
    """The current process as one of the ranks that a launcher started on this machine.

    The first of these ranks reports the findings of all; ``is_first`` is True for that rank.
    """

    def __init__(self, rank: int, size: int, local_rank: int, local_size: int, limit: float) -> None:
        self.rank, self.size = rank, size
        self._local_rank, self._local_size = local_rank, local_size
        self.is_first = local_rank == 0
        self._limit_seconds = limit
        # The launcher is the parent of all ranks, and restarts the ranks after a failure.
        parts = (os.getppid(), os.environ.get("MASTER_PORT", ""), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        name = "-".join(["amp-check-ranks", *map(str, parts)])
        self._folder = RankFolder(os.path.join(tempfile.gettempdir(), name))
        self._folder.write(_BEGUN.format(local_rank), os.getpid())

    def watch_progress(self, run: Run, on_stuck: Callable[[], object]) -> contextlib.AbstractContextManager[object]:
        """Return a region that ends this process if no rank makes progress.

        Works only if all ranks are on this machine.

        Before the end the process writes a report of the recording. The first rank then calls ``on_stuck`` to report
        for all ranks.
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
        """Write the report of this rank. Return False if the first rank no longer waits for the report."""
        data = {"report": make_rank_report(run, self.rank), "run": run.as_dict(), "failed": failed}
        try:
            self._folder.write(str(self._local_rank), data)
        except FileNotFoundError:
            return False
        return True

    def gather_reports(self, is_ending: Callable[[], bool]) -> GatheredRanks:
        """Wait for the reports of all ranks and return them.

        ``is_ending`` returns True if this process is asked to end.
        """
        gathered = GatheredRanks(self.size)
        until = time.monotonic() + (self._limit_seconds or float("inf"))
        waiting_ranks = list(range(self._local_size))
        first = self.rank - self._local_rank
        while waiting_ranks:
            if is_ending():
                until = min(until, time.monotonic() + _LAST_WORD)
            for local in list(waiting_ranks):
                # Checked before the read: a rank that ends in between has already written its report.
                is_ended = self._has_ended(local)
                data = self._folder.read(str(local))
                if data is not None:
                    gathered.add_report(first + local, data)
                elif is_ended:
                    gathered.missing_ranks[first + local] = "exited without reporting its results"
                elif time.monotonic() >= until:
                    within = "" if is_ending() else f" within {self._limit_seconds:g} s of the end of rank {self.rank}"
                    gathered.missing_ranks[first + local] = f"has not reported what it recorded{within}"
                else:
                    continue
                waiting_ranks.remove(local)
            if waiting_ranks:
                time.sleep(_LOOK)
        # A launcher that sees this rank fail would kill the others, so the others may end by themselves first.
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
    """Return this process as a rank, or None unless a launcher has started several ranks.

    ``limit`` is in seconds: the longest wait for ranks, and the longest time without progress of any rank; 0 for no
    limit.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    try:
        rank, size, local_rank, local_size = (int(os.environ[name]) for name in names)
    except (KeyError, ValueError):
        return None
    return LaunchedRank(rank, size, local_rank, local_size, limit) if size > 1 else None


class StartedProcesses:
    """A recorder of the processes that the program starts for training, as by ``torch.multiprocessing.spawn``."""

    def __init__(self, record_options: Mapping[str, Any], limit: float) -> None:
        self._record_options = dict(record_options)
        self._limit_seconds = limit
        self._folder: RankFolder | None = None
        self._processes: list[BaseProcess] = []
        self._targets: list[str] = []

    @contextlib.contextmanager
    def record_started(self) -> Iterator[None]:
        """Open a region that records started processes."""
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
                    target,
                    self._folder.path,
                    number,
                    self._limit_seconds,
                    self._record_options,
                    emulated=is_emulating(),
                )
            original(process)

        BaseProcess.start = start  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            BaseProcess.start = original  # type: ignore[method-assign]

    def gather_reports(self) -> GatheredRanks | None:
        """Return the reports of the processes that trained, or None without any. Other processes are ignored."""
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
            rank = each["report"].rank
            gathered.add_report(number if rank is None else rank, each)
        for number in missing:
            code = self._processes[number].exitcode
            how = "still runs" if code is None else describe_exit(code)
            gathered.missing_ranks[number] = f"{how}, and has not reported what it recorded"
        return gathered


class StartedThreads:
    """A recorder of the threads that the program starts for training, with one run for each thread."""

    def __init__(self, record_options: Mapping[str, Any]) -> None:
        self._record_options = dict(record_options)
        self._threads: list[threading.Thread] = []
        self._named_runs: list[tuple[str, Run]] = []

    @contextlib.contextmanager
    def record_started(self) -> Iterator[None]:
        """Open a region that records started threads."""
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
        """Wait for the non-daemon threads, as Python does at its exit."""
        for thread in self._threads:
            if not thread.daemon:
                thread.join()

    @property
    def runs(self) -> dict[str, Run]:
        """The runs of threads that trained, by the name of the thread."""
        return {name: run for name, run in self._named_runs if run.steps_total or run.findings}


def _may_train_in(thread: threading.Thread) -> bool:
    """Return True if a thread runs a function of the program or a thread pool, and not code of a library or Python."""
    target = getattr(thread, "_target", None) or type(thread)
    module = str(getattr(target, "__module__", ""))
    file = str(getattr(sys.modules.get(module), "__file__", ""))
    ours = is_inner(file) or is_library(file) or file.startswith(_STANDARD)
    return module == "concurrent.futures.thread" or not ours


def _has_trained(data: Mapping[str, Any]) -> bool:
    report: RankReport = data["report"]
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
    """The target of a started process, which records the original target."""

    def __init__(
        self,
        target: Callable[..., Any],
        folder: str,
        number: int,
        limit: float,
        record_options: Mapping[str, Any],
        *,
        emulated: bool,
    ) -> None:
        self._target = target
        self._folder = folder
        self._number = number
        self._limit_seconds = limit
        self._record_options = dict(record_options)
        self._is_emulated = emulated

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        folder = RankFolder(self._folder)
        name = str(self._number)
        folder.write(_BEGUN.format(name), os.getpid())
        # A forked process inherits the recordings of its parent, which nobody evaluates here. Neither a forked nor a
        # spawned process is in the emulation of its parent.
        with hide_recorders(), emulate_cuda() if self._is_emulated else contextlib.nullcontext():
            recording = record(**self._record_options)
            recording.run.select("ALL")
            ending = TerminationRequest()
            with contextlib.ExitStack() as stack:
                stack.enter_context(
                    _watch_progress(folder, name, self._limit_seconds, recording.run, self._number, lets_go=True)
                )
                # The parent process ends this process if another has failed, and grants it some time.
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
                    folder.write(name, {"report": report, "run": run.as_dict(), "failed": failed})
                return result

    def _run_target(self, recording: record, ending: TerminationRequest, args: Any, kwargs: Any) -> Any:
        try:
            with ending:
                return self._target(*args, **kwargs)
        except SystemExit as leave:
            recording.broken_by(ending.exit_cause(leave))
            raise


def _rank_of(run: Run, number: int) -> int:
    """Return the rank according to the program, else the number of the process."""
    rank = run._recorder.replicas.rank
    return number if rank is None else rank


# Ranks without progress.


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
    """Open a region that ends this process if no process of the folder makes progress for ``limit`` seconds.

    A limit of 0 disables the watch. The process also ends while waiting for a failed rank. ``on_stuck`` is called
    before the end. With ``lets_go`` a failed rank may end first, because the parent of both processes reports the
    exception of the failed rank.
    """
    if not limit:
        yield
        return
    is_over = threading.Event()

    def watch_folder() -> None:
        # The process that gathers the reports may have stopped waiting for this rank and removed the folder.
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
            # The main thread waits in native code, so an exception would not end it.
            os._exit(STUCK)


def _reason_to_give_up(folder: RankFolder, name: str, seconds: float, limit: float, *, waits: bool) -> str:
    """Return the reason why a rank without progress will never continue, or ""."""
    if seconds >= limit and _all_stand(folder, limit):
        return f"had not moved for {limit:g} s, nor had any other"
    if waits and seconds >= _FAILED_RANK_WAIT:
        for other in _begun_names(folder):
            data = folder.read(other)
            if other != name and (has_ended(folder.read(_BEGUN.format(other))) if data is None else data["failed"]):
                return f"waited for rank {other}, which had failed"
    return ""


def _is_failed_rank_running(folder: RankFolder, name: str) -> bool:
    """Return True if another rank has reported a failure and has not ended yet."""
    names = folder.report_names()
    for other in _begun_names(folder):
        if other != name and other in names and not has_ended(folder.read(_BEGUN.format(other))):
            data = folder.read(other)
            if data is not None and data["failed"]:
                return True
    return False


def _make_late_report(run: Run, rank: int, failure: str, *, waits: bool) -> dict[str, Any]:
    """Return the report of a recording whose thread does not continue: its data, or only the failure after a timeout.

    ``waits`` is True if the thread waits for other ranks.
    """
    reports: list[dict[str, Any]] = []

    def make_report() -> None:
        # Reading the recorded numbers may wait for a device.
        report = make_rank_report(run, rank, failure, stopped=not waits)
        reports.append({"report": report, "run": run.as_dict(), "failed": True})

    finding = threading.Thread(target=make_report, daemon=True)
    finding.start()
    finding.join(_TELLING)
    return reports[0] if reports else {"report": RankReport(rank, failure=failure), "run": None, "failed": True}


def _is_waiting(frame: FrameType | None) -> bool:
    """Return True if a thread is in torch code that waits for other ranks."""
    return frame is not None and frame.f_code.co_filename.startswith(_WAITS)


def _frame_marks(frame: FrameType | None) -> list[int]:
    """Return the position of a thread in each call, for comparison."""
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
    """Return True if each of several ranks has written its final report or made no progress for ``limit`` seconds."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return False
    names = folder.report_names()
    for name in _begun_names(folder):
        with contextlib.suppress(FileNotFoundError):
            if name not in names and time.time() - os.stat(folder.path_of(_MOVES.format(name))).st_mtime < limit:
                return False
    return True


def _begun_names(folder: RankFolder) -> list[str]:
    """Return the names of the started processes."""
    end = _BEGUN.format("")
    return [each.removesuffix(end) for each in folder.report_names() if each.endswith(end)]
