"""Ranks of a script: those that a launcher such as torchrun starts side by side, and those that the script starts."""

from __future__ import annotations

import contextlib
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

import torch.distributed as dist

from ...protocol.ranks import Told
from ..record.active import hidden
from ..record.sites import is_inner, is_library
from ..run import Run, record
from .telling import Folder, how_ended, tell

#: Exit code of a rank that was ended because none moved any more: that of the command timeout.
STUCK = 124
#: Seconds for which a rank that is told to end waits for what the others have told.
_LAST_WORD = 1.0
#: Seconds that a rank which has told has to end.
_LEAVING = 5.0
#: How often, in seconds, one looks for what others have told, and of the limit how often at whether a rank moves.
_LOOK, _LOOKS = 0.05, 20
#: Of the standard library, and of torch, what starts processes that train nothing.
_WORKERS = ("torch.utils.data.", "torch._inductor.", "torch.distributed.elastic.")
#: By what torch.multiprocessing.spawn calls the function that it is given.
_SPAWNED = "torch.multiprocessing.spawn._wrap"
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_BEGUN, _MOVES = "{}.begun", "{}.moves"


class Gathered:
    """What the ranks of a script told: ``told`` and ``runs`` by rank, ``missing`` why others did not, of ``size``."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.told: list[Told] = []
        self.runs: dict[int, dict[str, Any]] = {}
        self.missing: dict[int, str] = {}

    def add(self, rank: int, left: Mapping[str, Any]) -> None:
        told: Told = left["told"]
        told.rank = rank
        self.told.append(told)
        self.runs[rank] = left["run"]
        if told.failure:
            self.missing[rank] = told.failure


class Launched:
    """The process itself, as one of the ranks that a launcher has started on this machine.

    The first of them tells what all have found; ``first`` says whether this is that one.
    """

    def __init__(self, rank: int, size: int, local_rank: int, local_size: int, limit: float) -> None:
        self.rank, self.size = rank, size
        self._local_rank, self._local_size = local_rank, local_size
        self.first = local_rank == 0
        self._limit = limit
        # The launcher is the parent of all of them, and starts them anew after a failure.
        parts = (os.getppid(), os.environ.get("MASTER_PORT", ""), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        name = "-".join(["amp-check-ranks", *map(str, parts)])
        self._folder = Folder(os.path.join(tempfile.gettempdir(), name))
        self._folder.write(_BEGUN.format(local_rank), os.getpid())

    def watched(self) -> contextlib.AbstractContextManager[object]:
        """A region in which this rank ends where no rank of this machine, which has all of them, moves any more."""
        if self._local_size < self.size:
            return contextlib.nullcontext()
        return _watched(self._folder, str(self._local_rank), self.rank, self._limit)

    def leave(self, run: Run, failure: str = "") -> bool:
        """Tell what was recorded, and say whether the first rank may hear it, which may have given this one up."""
        told = {"told": tell(run, self.rank, failure), "run": run.as_dict()}
        try:
            self._folder.write(str(self._local_rank), told)
        except FileNotFoundError:
            return False
        return True

    def gather(self, ending: Callable[[], bool]) -> Gathered:
        """What all have told, in time; ``ending`` says whether somebody wants this process to end."""
        gathered = Gathered(self.size)
        until = time.monotonic() + (self._limit or float("inf"))
        waiting = list(range(self._local_size))
        first = self.rank - self._local_rank
        while waiting:
            if ending():
                until = min(until, time.monotonic() + _LAST_WORD)
            for local in list(waiting):
                # Asked first: one that ends now has told before.
                ended = self._has_ended(local)
                left = self._folder.read(str(local))
                if left is not None:
                    gathered.add(first + local, left)
                elif ended:
                    gathered.missing[first + local] = "ended without a word of what it had recorded"
                elif time.monotonic() >= until:
                    within = "" if ending() else f" within {self._limit:g} s of the end of rank {self.rank}"
                    gathered.missing[first + local] = f"has not told what it recorded{within}"
                else:
                    continue
                waiting.remove(local)
            if waiting:
                time.sleep(_LOOK)
        # The launcher takes the end of this one, where it fails, for a reason to end the others, which is no news then.
        until = time.monotonic() + _LEAVING
        others = [local for local in range(self._local_size) if local != self._local_rank]
        while not ending() and time.monotonic() < until and not all(map(self._has_ended, others)):
            time.sleep(_LOOK)
        self._folder.remove()
        return gathered

    def _has_ended(self, local: int) -> bool:
        process = self._folder.read(_BEGUN.format(local))
        if process is None:
            return False
        try:
            os.kill(process, 0)
        except OSError:
            return True
        return False


def launched(limit: float) -> Launched | None:
    """The process as a rank, None where no launcher has started it as one of several.

    ``limit`` is in seconds: how long ranks are waited for, and how long they may all stand still; 0 for ever.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    try:
        rank, size, local_rank, local_size = (int(os.environ[name]) for name in names)
    except (KeyError, ValueError):
        return None
    return Launched(rank, size, local_rank, local_size, limit) if size > 1 else None


class Started:
    """Records the processes that the program starts to train in, as by ``torch.multiprocessing.spawn``."""

    def __init__(self, parts: Mapping[str, Any], limit: float) -> None:
        self._parts = dict(parts)
        self._limit = limit
        self._folder: Folder | None = None
        self._processes: list[BaseProcess] = []
        self._targets: list[str] = []

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """A region in which processes are recorded that are started in it."""
        original = BaseProcess.start

        def start(process: BaseProcess) -> None:
            target = getattr(process, "_target", None)
            if target is not None and _may_train(target):
                if self._folder is None:
                    self._folder = Folder(tempfile.mkdtemp(prefix="amp-check-"))
                number = len(self._processes)
                self._processes.append(process)
                self._targets.append(_named(target))
                process._target = _Recorded(  # type: ignore[attr-defined]
                    target, self._folder.path, number, self._limit, self._parts
                )
            original(process)

        BaseProcess.start = start  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            BaseProcess.start = original  # type: ignore[method-assign]

    def gather(self) -> Gathered | None:
        """What those that trained have told, None where there were none; others may have been started beside them."""
        if self._folder is None:
            return None
        read = {number: self._folder.read(str(number)) for number in range(len(self._processes))}
        self._folder.remove()
        trained = {number: each for number, each in read.items() if each is not None and _has_trained(each)}
        ranks = {self._targets[number] for number in trained} | {_SPAWNED}
        missing = [number for number, each in read.items() if each is None and self._targets[number] in ranks]
        if not (trained or missing):
            return None
        gathered = Gathered(len(trained) + len(missing))
        for number, each in trained.items():
            rank = each["told"].rank
            gathered.add(number if rank is None else rank, each)
        for number in missing:
            gathered.missing[number] = f"{how_ended(self._processes[number].exitcode)} before it told what it recorded"
        return gathered


def _has_trained(left: Mapping[str, Any]) -> bool:
    told: Told = left["told"]
    return bool(told.backwards or told.findings or told.failure or left["run"]["steps_total"])


def _named(target: Callable[..., Any]) -> str:
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', '')}"


def _may_train(target: Callable[..., Any]) -> bool:
    module = str(getattr(target, "__module__", ""))
    if _named(target) == _SPAWNED:
        return True
    file = str(getattr(sys.modules.get(module), "__file__", ""))
    standard = file.startswith(_STANDARD) and not is_library(file)
    return not standard and not module.startswith(_WORKERS)


class _Recorded:
    """What a started process calls in the place of its target."""

    def __init__(
        self, target: Callable[..., Any], folder: str, number: int, limit: float, parts: Mapping[str, Any]
    ) -> None:
        self._target = target
        self._folder = folder
        self._number = number
        self._limit = limit
        self._parts = dict(parts)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        folder = Folder(self._folder)
        name = str(self._number)
        folder.write(_BEGUN.format(name), os.getpid())
        # A process that is forked has the recordings of its parent, which nobody reads here.
        with hidden(), _watched(folder, name, self._number, self._limit):
            recording = record(**self._parts)
            recording.run.select("ALL")
            try:
                with recording as run:
                    return self._target(*args, **kwargs)
            finally:
                rank = run._recorder.replicas.rank
                folder.write(name, {"told": tell(run, self._number if rank is None else rank), "run": run.as_dict()})


# A rank that stands still.


@contextlib.contextmanager
def _watched(folder: Folder, name: str, rank: int, limit: float) -> Iterator[None]:
    """A region in which this process ends once no process of the folder has moved for some seconds; 0 for never."""
    if not limit:
        yield
        return
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(folder, name, rank, limit, over), daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def _watch(folder: Folder, name: str, rank: int, limit: float, over: threading.Event) -> None:
    main = threading.main_thread().ident
    moves = folder.place(_MOVES.format(name))
    with open(moves, "w", encoding="utf-8"):
        pass
    before: list[int] = []
    since = time.monotonic()
    while not over.wait(limit / _LOOKS):
        frame = sys._current_frames().get(main or 0)
        now = _marks(frame)
        if now != before:
            before, since = now, time.monotonic()
            os.utime(moves)
        elif time.monotonic() - since >= limit and _all_stand(folder, limit):
            where = _where(frame)
            failure = f"had not moved for {limit:g} s, nor had any other: it stood at {where}"
            folder.write(name, {"told": Told(rank, failure=failure), "run": {"steps_total": 0}})
            sys.stderr.write(f"amp-check: error: rank {rank} {failure}\n")
            sys.stderr.flush()
            # Its main thread waits in native code, which no exception reaches.
            os._exit(STUCK)


def _marks(frame: FrameType | None) -> list[int]:
    """Where a thread is, in each of its calls."""
    marks = []
    while frame is not None:
        marks += [id(frame.f_code), frame.f_lasti]
        frame = frame.f_back
    return marks


def _where(frame: FrameType | None) -> str:
    while frame is not None:
        path = frame.f_code.co_filename
        if not (is_inner(path) or is_library(path)):
            return f"{os.path.basename(path)}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return "a place that is not known"


def _all_stand(folder: Folder, limit: float) -> bool:
    """Whether this is one of several ranks, each of which has told at its end, or has not moved for some seconds."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return False
    names = folder.names()
    for begun in (each for each in names if each.endswith(".begun")):
        name = begun.removesuffix(".begun")
        with contextlib.suppress(FileNotFoundError):
            if name not in names and time.time() - os.stat(folder.place(_MOVES.format(name))).st_mtime < limit:
                return False
    return True
