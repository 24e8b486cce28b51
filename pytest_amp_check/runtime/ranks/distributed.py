"""Runs a function on several ranks, each a process of its own on this machine, and records all of them."""

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

from ...protocol.finding import ERROR, WARNING, Finding
from ...protocol.ranks import Told, together
from ...protocol.rules import RULES
from ...protocol.selection import resolve
from ..emulate.cuda import emulate_cuda
from ..record.sites import is_ours
from ..replay.snapshot import seed_all
from ..run import Run, lines_of, record
from .telling import Folder, how_ended, listed, standing, tell

#: Seconds after which ranks are ended that have not come to their own end.
TIMEOUT = 120.0
#: Seconds that the others have to end by themselves once one has failed, and that a rank has to say where it stands.
_GRACE, _WORD = 5.0, 1.0
#: What a rank leaves in the folder beside what it tells.
_OUTPUT, _STANDS = "rank{}.out", "rank{}.stands"


class RankFailed(AssertionError):
    """A rank raised, died, or had not ended in time. The message names it, and what the ranks found until then."""


class Ranks:
    """What several ranks did: ``findings`` of all of them with their ranks, ``results`` that the function returned.

    ``runs`` holds what each recorded, as plain data (:meth:`Run.as_dict`), by rank.
    """

    def __init__(self, findings: list[Finding], results: list[Any], runs: list[dict[str, Any]]) -> None:
        self.findings = findings
        self.results = results
        self.runs = runs

    def assert_no_findings(self, allow: Iterable[str] = (), *, allow_no_steps: bool = False) -> None:
        """Fail if some rank, or all together, made a mistake; the arguments are those of a run's own."""
        __tracebackhide__ = True
        words = [allow] if isinstance(allow, str) else list(allow)
        allowed = resolve(words, (), RULES) if words else frozenset()
        worse = [f for f in self.findings if f.severity in (ERROR, WARNING) and f.code not in allowed]
        if worse:
            count = f"{len(worse)} mistake{'s' if len(worse) > 1 else ''} in mixed-precision training"
            lines = [line for finding in worse for line in lines_of(finding)]
            raise AssertionError("\n".join([f"{count} on {len(self.runs)} ranks:", *lines]))
        idle = [rank for rank, run in enumerate(self.runs) if not run["steps_total"]]
        if idle and not allow_no_steps:
            raise AssertionError(
                f"No training step was recorded on rank {idle[0]}, so there was nothing to judge there: nothing stepped"
                " an optimizer (allow_no_steps=True where none is meant to)"
            )


class _Given:
    """What a rank is given."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        nprocs: int,
        folder: str,
        timeout: float,
        backend: str | None,
        emulated: bool,
        seed: int,
        rules: frozenset[str] | None,
        parts: Mapping[str, Any],
    ) -> None:
        self.function = function
        self.args = tuple(args)
        self.nprocs = nprocs
        self.folder = folder
        self.timeout = timeout
        self.backend = backend
        self.emulated = emulated
        self.seed = seed
        self.rules = rules
        self.parts = dict(parts)
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

    The function is given to new processes, so it stands at the top of a module. With ``backend=None`` it makes the
    group itself; ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR`` and ``MASTER_PORT`` are set as torchrun sets
    them. ``emulated`` gives each CUDA's dtypes on the CPU, ``timeout`` is in seconds, for everything together, and
    ``parts`` are those of :class:`~pytest_amp_check.runtime.run.record`. Raises :class:`RankFailed` where a rank
    raises, dies or hangs, and ValueError for what no process can be given.
    """
    __tracebackhide__ = True
    if nprocs < 1:
        raise ValueError(f"nprocs must be 1 or more, not {nprocs}")
    with tempfile.TemporaryDirectory(prefix="amp-check-") as parent:
        folder = Folder(os.path.join(parent, "ranks"))
        chosen = None if rules is None else frozenset(rules)
        given = _Given(function, args, nprocs, folder.path, timeout, backend, emulated, seed, chosen, parts)
        processes = _start(given)
        wrong = _await(processes, folder, timeout)
        _show_output(folder, nprocs)
        return _gathered(folder, nprocs, wrong)


def _start(given: _Given) -> list[Any]:
    # A server that has torch loaded already forks ranks in no time. It has not trained, so forking it is safe.
    forks = "forkserver" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
    if forks:
        # What torch itself loads when a replica or an optimizer is made takes as long as torch.
        context.set_forkserver_preload([__name__, "torch._dynamo", "torch.distributed.fsdp"])
    port = str(_free_port())
    processes = [context.Process(target=_rank, args=(given, rank, port)) for rank in range(given.nprocs)]
    try:
        # Before any rank waits for one that cannot be started.
        pickle.dumps(given)
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

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _await(processes: Sequence[Any], folder: Folder, timeout: float) -> dict[int, str]:
    """Wait until all ranks have ended, or it is no use any more; gives what went wrong, the first rank that did first.

    What a rank does after another has failed comes of that most often.
    """
    limit = time.monotonic() + timeout
    running = dict(enumerate(processes))
    wrong: dict[int, str] = {}
    late = False
    while running:
        left = limit - time.monotonic()
        if left <= 0:
            break
        wait([process.sentinel for process in running.values()], left)
        for rank, process in list(running.items()):
            if not process.is_alive():
                process.join()
                del running[rank]
                if process.exitcode and not wrong:
                    limit = min(limit, time.monotonic() + _GRACE)
                    late = True
                if process.exitcode:
                    wrong[rank] = how_ended(process.exitcode)
    stood = _end(running, folder)
    for rank in running:
        where = f": it stood at {stood[rank]}" if stood[rank] else ""
        after = f"{_GRACE:g} s after" if late else f"within {timeout:g} s"
        wrong[rank] = f"had not ended {after}{' another had failed' if late else ''}{where}"
    return wrong


def _end(running: Mapping[int, Any], folder: Folder) -> dict[int, str]:
    """End what still runs; gives where each stood."""
    for process in running.values():
        if hasattr(signal, "SIGUSR1"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGUSR1)
    stood = {}
    until = time.monotonic() + _WORD
    for rank in running:
        stood[rank] = ""
        while not stood[rank] and time.monotonic() < until:
            with contextlib.suppress(OSError), open(folder.place(_STANDS.format(rank)), encoding="utf-8") as file:
                stood[rank] = standing(file.read())
            time.sleep(0.02)
    for process in running.values():
        process.kill()
        process.join()
    return stood


def _show_output(folder: Folder, nprocs: int) -> None:
    """What the ranks have written, one after the other, each line with its rank."""
    for rank in range(nprocs):
        with contextlib.suppress(OSError), open(folder.place(_OUTPUT.format(rank)), encoding="utf-8") as file:
            for line in file:
                sys.stdout.write(f"[rank {rank}] {line.rstrip()}\n")


def _gathered(folder: Folder, nprocs: int, wrong: Mapping[int, str]) -> Ranks:
    __tracebackhide__ = True
    read: dict[int, Any] = {rank: folder.read(str(rank)) for rank in range(nprocs)}
    told: list[Told] = [each["told"] for each in read.values() if each is not None]
    findings = together(told, nprocs)
    raising = [rank for rank, each in read.items() if each is not None and each["raised"]]
    # By when they raised: what the others have raised comes of the first most often.
    failed = {rank: read[rank]["raised"] for rank in sorted(raising, key=lambda rank: read[rank]["at"])}
    if wrong or failed:
        raise RankFailed(_failure(wrong, failed, findings, nprocs))
    return Ranks(findings, [each["result"] for each in read.values()], [each["run"] for each in read.values()])


def _failure(wrong: Mapping[int, str], failed: Mapping[int, str], findings: Sequence[Finding], nprocs: int) -> str:
    # A rank that says nothing was not waited for by itself; what a rank has raised says more than that it ended.
    sentences = [f"rank {rank} {how}" for rank, how in wrong.items() if rank not in failed]
    sentences += [f"rank {rank} raised:\n{said.strip()}" for rank, said in failed.items()]
    lines = [f"Not all of {nprocs} ranks came to their end:", listed(sentences)]
    if findings:
        lines += ["What they show until then:", *(line for finding in findings for line in lines_of(finding))]
    return "\n".join(lines)


# In the process of a rank.


def _rank(given: _Given, rank: int, port: str) -> None:
    folder = Folder(given.folder)
    with contextlib.ExitStack() as stack:
        _settle_down(given, rank, port, folder, stack)
        if given.emulated:
            stack.enter_context(emulate_cuda())
        seed_all(given.seed)
        recording = record(**given.parts)
        if given.rules is not None:
            recording.run.select(*given.rules)
        result, raised = None, ""
        with recording as run:
            try:
                if given.backend is not None:
                    _join(given, given.backend, rank, folder)
                result = given.function(rank, *given.args)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the test is told of it
                recording.broken_by(error)
                raised = _traceback(error)
        _leave(folder, rank, run, result, raised)
    if not raised and dist.is_initialized():
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of a backend may wait for ranks that have failed.
    os._exit(1 if raised else 0)


def _join(given: _Given, backend: str, rank: int, folder: Folder) -> None:
    """Make the process group."""
    within = dt.timedelta(seconds=given.timeout)
    # A file needs no port that another program may take meanwhile.
    store = dist.FileStore(folder.place("store"), given.nprocs)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=given.nprocs, timeout=within)
    # A rank that has nothing to do would be gone before the others have found it.
    dist.barrier()


def _settle_down(given: _Given, rank: int, port: str, folder: Folder, stack: contextlib.ExitStack) -> None:
    """Make the process look as one that torchrun starts, with its output kept for the test."""
    os.environ.clear()
    os.environ.update(given.environment)
    sys.path[:] = given.path
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(given.nprocs),
        LOCAL_WORLD_SIZE=str(given.nprocs),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
    )
    if sys.platform == "linux":
        # All ranks are on this machine, whose own name need not lead anywhere.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    output = open(folder.place(_OUTPUT.format(rank)), "w", encoding="utf-8", buffering=1)  # noqa: SIM115
    stack.enter_context(output)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    if hasattr(signal, "SIGUSR1"):
        stands = open(folder.place(_STANDS.format(rank)), "w", encoding="utf-8")  # noqa: SIM115
        stack.enter_context(stands)
        faulthandler.register(signal.SIGUSR1, file=stands, all_threads=True)


def _traceback(error: BaseException) -> str:
    """An exception as Python shows it, without the calls of this package among its own."""
    told = traceback.TracebackException.from_exception(error)
    told.stack = traceback.StackSummary.from_list([frame for frame in told.stack if not is_ours(frame.filename)])
    return "".join(told.format())


def _leave(folder: Folder, rank: int, run: Run, result: Any, raised: str) -> None:
    told = {
        "told": tell(run, rank, raised),
        "run": run.as_dict(),
        "result": result,
        "raised": raised,
        "at": time.time(),
    }
    try:
        folder.write(str(rank), told)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        wrong = f"what the function returned cannot be given to another process: {error}"
        folder.write(str(rank), {**told, "result": None, "raised": raised or wrong})
