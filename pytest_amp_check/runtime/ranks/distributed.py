"""Recorded runs of a function on several ranks, each in a separate process on this machine."""

from __future__ import annotations

import contextlib
import datetime as dt
import faulthandler
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

import torch
import torch.distributed as dist

from ...protocol.finding import Finding
from ...protocol.ranks import RankReport, merge_ranks
from ...protocol.rules import RULES
from ...protocol.selection import resolve_codes
from ...protocol.severities import ERROR, WARNING
from ..emulate.cuda import emulate_cuda
from ..record.sites import is_ours
from ..replay.snapshot import seed_all
from ..run import Run, finding_lines, record
from .rank_reports import RankFolder, describe_exit, indent_lines, make_rank_report, parse_position

#: Seconds that all ranks have for the function once they have begun it, and seconds that they have to begin: on a busy
#: machine loading torch takes minutes.
TIMEOUT, _BEGINNING = 120.0, 600.0
#: Seconds that the other ranks have to end after a failure, and seconds that a rank has to report its position.
_GRACE, _WORD = 5.0, 1.0
#: Seconds between two looks at the ranks that have not begun the function.
_INTERVAL = 0.05
#: Files of a rank in the folder, in addition to its report: the output, the stack dump, and the sign that it has begun.
_OUTPUT, _STANDS, _BEGAN = "rank{}.out", "rank{}.stands", "rank{}.began"


class RankFailed(AssertionError):
    """An error for a rank that raised, died, or did not end in time.

    The message names the rank and lists the findings so far.
    """


class Ranks:
    """The results of several ranks: ``findings`` of all ranks, and ``results`` returned by the function.

    ``runs`` holds the recorded data of each rank as plain data (``as_dict``).
    """

    def __init__(self, findings: list[Finding], results: list[Any], runs: list[dict[str, Any]]) -> None:
        self.findings = findings
        self.results = results
        self.runs = runs

    def assert_no_findings(self, allow: Iterable[str] = (), *, allow_no_steps: bool = False) -> None:
        """Fail if a rank, or all ranks together, made a mistake.

        The arguments are the arguments of ``assert_no_findings``.
        """
        __tracebackhide__ = True
        words = [allow] if isinstance(allow, str) else list(allow)
        allowed = resolve_codes(words, (), RULES) if words else frozenset()
        worse = [f for f in self.findings if f.severity in (ERROR, WARNING) and f.code not in allowed]
        if worse:
            count = f"{len(worse)} mistake{'s' if len(worse) > 1 else ''} in mixed-precision training"
            lines = [line for finding in worse for line in finding_lines(finding)]
            raise AssertionError("\n".join([f"{count} on {len(self.runs)} ranks:", *lines]))
        idle = [rank for rank, run in enumerate(self.runs) if not run["steps_total"]]
        if idle and not allow_no_steps:
            raise AssertionError(
                f"No training step was recorded on rank {idle[0]}: no optimizer was stepped there"
                " (pass allow_no_steps=True if that is expected)"
            )


class _RankTask:
    """The input of a rank's process."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        nprocs: int,
        folder: str,
        timeout: float,
        backend: str | None,
        is_emulated: bool,
        seed: int,
        rules: frozenset[str] | None,
        record_options: Mapping[str, Any],
    ) -> None:
        self.function = function
        self.args = tuple(args)
        self.nprocs = nprocs
        self.folder = folder
        self.timeout = timeout
        self.backend = backend
        self.is_emulated = is_emulated
        self.seed = seed
        self.rules = rules
        self.record_options = dict(record_options)
        self.environment = dict(os.environ)
        self.path = list(sys.path)


def distributed(
    function: Callable[..., Any],
    nprocs: int = 2,
    args: Sequence[Any] = (),
    *,
    timeout: float = TIMEOUT,
    backend: str | None = "gloo",
    emulated: bool = False,
    seed: int = 0,
    rules: Iterable[str] | None = None,
    **parts: Any,
) -> Ranks:
    """Call ``function(rank, *args)`` on ``nprocs`` ranks at once, recorded, in a process group of ``backend``.

    The function is sent to new processes, so the function must be defined at the top level of a module. With
    ``backend=None`` the function must create the group. ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR`` and
    ``MASTER_PORT`` are set as by torchrun. ``emulated`` gives each rank CUDA's dtypes on the CPU. ``timeout`` is in
    seconds, from the moment when all ranks have loaded torch. ``parts`` are the options of
    ``record``. Raise ``RankFailed`` if a rank raises, dies or hangs, and
    ValueError for arguments that cannot be sent to a process.
    """
    __tracebackhide__ = True
    if nprocs < 1:
        raise ValueError(f"nprocs must be 1 or more, not {nprocs}")
    with tempfile.TemporaryDirectory(prefix="amp-check-") as parent:
        folder = RankFolder(os.path.join(parent, "ranks"))
        chosen = None if rules is None else frozenset(rules)
        task = _RankTask(function, args, nprocs, folder.path, timeout, backend, emulated, seed, chosen, parts)
        processes = _start_processes(task)
        failures = _wait_for_ranks(processes, folder, timeout)
        _show_output(folder, nprocs)
        return _gather_results(folder, nprocs, failures)


def _start_processes(task: _RankTask) -> list[Any]:
    # A server that has already loaded torch forks ranks quickly. The server has not trained, so a fork is safe.
    forks = "forkserver" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
    if forks:
        # These modules, which torch loads for the first replica or optimizer, take as long to load as torch itself.
        context.set_forkserver_preload([__name__, "torch._dynamo", "torch.distributed.fsdp"])
    port = str(_free_port())
    processes = [context.Process(target=_run_rank, args=(task, rank, port)) for rank in range(task.nprocs)]
    try:
        # Checked before any process starts; otherwise started ranks would wait for ranks that cannot start.
        pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            "distributed() gives the function and its arguments to new processes: a function at the top of a module,"
            f" and arguments that can be pickled ({error})"
        ) from None
    for process in processes:
        process.start()
    return processes


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for_ranks(processes: Sequence[Any], folder: RankFolder, timeout: float) -> dict[int, str]:
    """Wait until all ranks have ended or the time is over. Return the failures by rank, first failure first.

    The order matters because later failures are mostly consequences of the first failure.
    """
    allowed = max(_BEGINNING, timeout)
    limit = time.monotonic() + allowed
    running = dict(enumerate(processes))
    starting = set(running)
    failures: dict[int, str] = {}
    has_failed_rank = False
    while running:
        if starting and not failures:
            starting = {rank for rank in starting & running.keys() if not _has_begun(folder, rank)}
            if not starting:
                allowed = timeout
                limit = time.monotonic() + allowed
        seconds_left = limit - time.monotonic()
        if seconds_left <= 0:
            break
        sentinels = [process.sentinel for process in running.values()]
        wait(sentinels, min(_INTERVAL, seconds_left) if starting else seconds_left)
        for rank, process in list(running.items()):
            if not process.is_alive():
                process.join()
                del running[rank]
                if process.exitcode and not failures:
                    limit = min(limit, time.monotonic() + _GRACE)
                    has_failed_rank = True
                if process.exitcode:
                    failures[rank] = describe_exit(process.exitcode)
    positions = _end_processes(running, folder)
    for rank in running:
        position = f": it stood at {positions[rank]}" if positions[rank] else ""
        time_text = f"{_GRACE:g} s after" if has_failed_rank else f"within {allowed:g} s"
        failures[rank] = f"had not ended {time_text}{' another had failed' if has_failed_rank else ''}{position}"
    return failures


def _has_begun(folder: RankFolder, rank: int) -> bool:
    return os.path.exists(folder.path_of(_BEGAN.format(rank)))


def _end_processes(running: Mapping[int, Any], folder: RankFolder) -> dict[int, str]:
    """Kill the running processes. Return the position of each process."""
    for process in running.values():
        if hasattr(signal, "SIGUSR1"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGUSR1)
    positions = {}
    until = time.monotonic() + _WORD
    for rank in running:
        positions[rank] = ""
        while not positions[rank] and time.monotonic() < until:
            with contextlib.suppress(OSError), open(folder.path_of(_STANDS.format(rank)), encoding="utf-8") as file:
                positions[rank] = parse_position(file.read())
            time.sleep(0.02)
    for process in running.values():
        process.kill()
        process.join()
    return positions


def _show_output(folder: RankFolder, nprocs: int) -> None:
    """Print the output of the ranks one after the other, each line with the rank."""
    for rank in range(nprocs):
        with contextlib.suppress(OSError), open(folder.path_of(_OUTPUT.format(rank)), encoding="utf-8") as file:
            for line in file:
                sys.stdout.write(f"[rank {rank}] {line.rstrip()}\n")


def _gather_results(folder: RankFolder, nprocs: int, failures: Mapping[int, str]) -> Ranks:
    __tracebackhide__ = True
    by_rank: dict[int, Any] = {rank: folder.read(str(rank)) for rank in range(nprocs)}
    reports: list[RankReport] = [each["report"] for each in by_rank.values() if each is not None]
    findings = merge_ranks(reports, nprocs)
    raising_ranks = [rank for rank, each in by_rank.items() if each is not None and each["raised"]]
    # Sorted by time: later exceptions are mostly consequences of the first exception.
    raised_texts = {
        rank: by_rank[rank]["raised"] for rank in sorted(raising_ranks, key=lambda rank: by_rank[rank]["at"])
    }
    if failures or raised_texts:
        raise RankFailed(_failure_message(failures, raised_texts, findings, nprocs))
    return Ranks(findings, [each["result"] for each in by_rank.values()], [each["run"] for each in by_rank.values()])


def _failure_message(
    failures: Mapping[int, str], raised_texts: Mapping[int, str], findings: Sequence[Finding], nprocs: int
) -> str:
    # The exception of a rank says more than its exit code, so only ranks without an exception are listed by exit code.
    sentences = [f"rank {rank} {how}" for rank, how in failures.items() if rank not in raised_texts]
    sentences += [f"rank {rank} raised:\n{raised_text.strip()}" for rank, raised_text in raised_texts.items()]
    lines = [f"Some of {nprocs} ranks did not finish:", indent_lines(sentences)]
    if findings:
        lines += ["Findings until then:", *(line for finding in findings for line in finding_lines(finding))]
    return "\n".join(lines)


# Code that runs in the process of a rank.


def _run_rank(task: _RankTask, rank: int, port: str) -> None:
    folder = RankFolder(task.folder)
    with contextlib.ExitStack() as stack:
        _prepare_process(task, rank, port, folder, stack)
        if task.is_emulated:
            stack.enter_context(emulate_cuda())
        seed_all(task.seed)
        recording = record(**task.record_options)
        if task.rules is not None:
            recording.run.select(*task.rules)
        result, raised = None, ""
        with open(folder.path_of(_BEGAN.format(rank)), "w", encoding="utf-8"):
            pass
        with recording as run:
            try:
                if task.backend is not None:
                    _join_process_group(task, task.backend, rank, folder)
                result = task.function(rank, *task.args)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the test reports it
                recording.broken_by(error)
                raised = _format_traceback(error)
        _write_result(folder, rank, run, result, raised)
    if not raised and dist.is_initialized():
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of a backend may wait forever for failed ranks.
    os._exit(1 if raised else 0)


def _join_process_group(task: _RankTask, backend: str, rank: int, folder: RankFolder) -> None:
    """Create the process group."""
    time_limit = dt.timedelta(seconds=task.timeout)
    # A file store needs no port, which another program could take meanwhile.
    store = dist.FileStore(folder.path_of("store"), task.nprocs)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=task.nprocs, timeout=time_limit)
    # Without the barrier, a rank without work could end before the others have connected to it.
    dist.barrier()


def _prepare_process(task: _RankTask, rank: int, port: str, folder: RankFolder, stack: contextlib.ExitStack) -> None:
    """Set up the process as torchrun does, with the output redirected to a file for the test."""
    os.environ.clear()
    os.environ.update(task.environment)
    sys.path[:] = task.path
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(task.nprocs),
        LOCAL_WORLD_SIZE=str(task.nprocs),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
    )
    if sys.platform == "linux":
        # All ranks are on this machine, and its host name may not resolve.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    output = open(folder.path_of(_OUTPUT.format(rank)), "w", encoding="utf-8", buffering=1)  # noqa: SIM115
    stack.enter_context(output)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    if hasattr(signal, "SIGUSR1"):
        stands = open(folder.path_of(_STANDS.format(rank)), "w", encoding="utf-8")  # noqa: SIM115
        stack.enter_context(stands)
        faulthandler.register(signal.SIGUSR1, file=stands, all_threads=True)


def _format_traceback(error: BaseException) -> str:
    """Format an exception as Python does, without the frames of this package."""
    summary = traceback.TracebackException.from_exception(error)
    summary.stack = traceback.StackSummary.from_list([frame for frame in summary.stack if not is_ours(frame.filename)])
    return "".join(summary.format())


def _write_result(folder: RankFolder, rank: int, run: Run, result: Any, raised: str) -> None:
    data = {
        "report": make_rank_report(run, rank, raised),
        "run": run.as_dict(),
        "result": result,
        "raised": raised,
        "at": time.time(),
    }
    try:
        folder.write(str(rank), data)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        reason = f"what the function returned cannot be given to another process: {error}"
        folder.write(str(rank), {**data, "result": None, "raised": raised or reason})
