"""Execution of a user's script, notebook or module as Python does, in this process, for recording."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import ExitStack
    from traceback import FrameSummary
    from typing import Any, TextIO

    from ..protocol.finding import Finding
    from ..runtime.ranks.scripts import GatheredRanks, LaunchedRank
    from ..runtime.ranks.termination import TerminationRequest
    from ..runtime.run import Run
    from ..static.settings import Settings
    from .source_lines import SourceLines

#: Exit code of a Python program that ends with an exception.
RAISED = 1
INTERRUPTED = 130
#: Exit code with which the recorded data of stalled ranks is reported: that of findings.
STALLED = 1
#: Number of steps between two gradient samples in a report.
EVERY = 10


class CannotRun(Exception):
    """Error for a target that cannot run; the message is one sentence."""


def find_target(target: str, *, module: bool) -> str:
    """Return the path of a script or the name of a module. Raise :class:`CannotRun` if the target does not exist."""
    if module:
        from importlib.util import find_spec

        # As Python does for -m, to find modules in the working folder.
        sys.path.insert(0, os.getcwd())
        try:
            found = find_spec(target)
        except (ImportError, ValueError) as error:
            raise CannotRun(f"module {target!r} cannot be found: {error}") from None
        if found is None:
            raise CannotRun(f"there is no module {target!r}: for a file, leave out -m")
        return target
    if not os.path.exists(target):
        raise CannotRun(f"there is no file {target!r}" + (": for a module, write -m" if "/" not in target else ""))
    if os.path.isdir(target):
        raise CannotRun(f"{target!r} is a folder: name the script that trains")
    return target


class RecordedScript:
    """A script, notebook or module that runs under the recorder."""

    def __init__(self, target: str, arguments: Sequence[str], *, is_module: bool) -> None:
        """Prepare the run. Raise :class:`CannotRun` for a notebook that cannot run."""
        self.target = target
        self.arguments = arguments
        self._execute = _make_executor(target, is_module=is_module)
        #: Reason for a failed write, one sentence.
        self._write_error = ""
        self._main_run: Run | None = None
        #: Runs of threads in which the script trained.
        self._thread_runs: list[Run] = []
        self._gathered_ranks: GatheredRanks | None = None

    def run_script(
        self,
        device: str,
        limit: float,
        report: Callable[[int], int],
        *,
        is_full: bool,
        memory: bool | str = False,
    ) -> int:
        """Run the script on a device, report the recorded data, and return the exit code of the command.

        ``limit`` is the number of seconds to wait for other ranks. ``report`` is called with the exit code of the
        script, unless another rank reports the findings, and before stalled ranks are ended. ``report`` returns the
        exit code of the command. ``is_full`` also records expensive data for a report. ``memory`` is an argument of
        :class:`~pytest_amp_check.runtime.run.record`.
        """
        from contextlib import ExitStack
        from importlib.util import find_spec

        if find_spec("torch") is None:
            raise CannotRun("amp-check run needs torch: install the build you train with, or pytest-amp-check[torch]")
        from ..runtime.ranks.termination import TerminationRequest
        from . import signals

        ending = TerminationRequest()
        with ExitStack() as requests:
            with ExitStack() as stack:
                _prepare_device(device, stack)
                # During the run, a request to end must end the run, not the command.
                signals.restore_defaults()
                requests.enter_context(ending.handle_signal())
                rank, code = self._run_recorded(is_full, memory, limit, report, ending)
            sys.stdout.flush()
            if rank is None:
                requests.close()
                return report(code)
            # A launcher asks all ranks to end as soon as one has failed, also ranks that have not printed their report.
            is_reported = self._report_rank(rank, code, ending)
            code = code if is_reported else report(code)
            sys.stdout.flush()
            return code

    @property
    def error_sentence(self) -> str:
        """Reason for a missing or unwritten part of the recording, one sentence."""
        assert self._main_run is not None
        failure = next((run.failure for run in self._collect_local_runs() if run.failure is not None), None)
        if self._write_error:
            return self._write_error
        if failure is not None:
            return (
                f"the recorder failed ({type(failure).__name__}: {failure}), so the script was not recorded to its "
                "end: please report it"
            )
        missing = {} if self._gathered_ranks is None else self._gathered_ranks.missing_ranks
        return "; ".join(f"rank {rank} {why}" for rank, why in sorted(missing.items()))

    def write_report(
        self, path: str, findings: Sequence[Finding], others: Sequence[Mapping[str, Any]], sources: SourceLines
    ) -> None:
        """Write the HTML report of the recorded runs with these findings, beside other runs if given."""
        from . import html
        from .page.findings import serialize_findings

        assert self._main_run is not None
        runs = []
        for run in self.collect_runs():
            # Each rank has separate findings.
            mine = [finding for finding in findings if not finding.ranks or run.get("rank") in finding.ranks]
            runs.append({**run, "findings": serialize_findings(mine, sources)})
        try:
            html.write_report(runs, path, title=f"amp-check run {self._main_run.title}", others=others)
        except html.ReportUnavailable as error:
            self._write_error = str(error)

    def write_data(self, path: str) -> None:
        """Write all recorded data as JSON."""
        from ..runtime.exports import as_json
        from . import files

        try:
            files.write_file(path, as_json({"runs": self.collect_runs()}))
        except OSError as error:
            self._write_error = f"{path} cannot be written: {(error.strerror or 'error').lower()}"

    def _run_recorded(
        self,
        is_full: bool,
        memory: bool | str,
        limit: float,
        report: Callable[[int], int],
        ending: TerminationRequest,
    ) -> tuple[LaunchedRank | None, int]:
        """Run the script under the recorder. ``is_full`` records all data.

        Return this process as a rank, or None unless a launcher has started several, and the exit code of the script.
        """
        from contextlib import ExitStack

        from ..runtime.ranks.scripts import StartedProcesses, StartedThreads, find_launched_rank
        from ..runtime.run import record

        with ExitStack() as stack:
            # Cheap data is always recorded.
            parts: dict[str, Any] = {"dtypes": is_full, "norms": is_full, "memory": memory}
            parts.update(search=is_full or bool(memory), numerics=EVERY if is_full else 0)
            parts.update(title=" ".join([self.target, *self.arguments]))
            recording = record(**parts)
            threads = StartedThreads(parts)
            # Entered before the recording, which asks for the starter of a thread.
            stack.enter_context(threads.record_started())
            self._main_run = stack.enter_context(recording)
            self._main_run.select("ALL")
            rank = find_launched_rank(limit)
            if rank is not None:
                stack.enter_context(
                    rank.watch_progress(self._main_run, lambda: self._report_stalled_ranks(rank, report))
                )
            started = StartedProcesses(parts, limit)
            stack.enter_context(started.record_started())
            code = execute_target(
                self.target, self.arguments, self._execute, on_exception=recording.broken_by, region=ending
            )
            if not ending.is_requested:
                threads.join_threads()
        self._thread_runs = list(threads.runs.values())
        self._gathered_ranks = started.gather_reports()
        return rank, code

    def _report_stalled_ranks(self, rank: LaunchedRank, report: Callable[[int], int]) -> None:
        """Report the recorded data of all ranks of a machine, as the first rank, when all ranks are stalled."""
        self._gathered_ranks = rank.gather_reports(lambda: False)
        report(STALLED)

    def _report_rank(self, rank: LaunchedRank, code: int, ending: TerminationRequest) -> bool:
        """Store the recorded data for the first rank of the machine, which reports the findings of all ranks.

        Return True if the first rank reports the findings of this rank, too.
        """
        assert self._main_run is not None
        heard = rank.write_report(self._main_run, failed=bool(code))
        if rank.is_first:
            self._gathered_ranks = rank.gather_reports(lambda: ending.is_requested)
            return False
        # A failed rank makes the launcher end the other ranks, so a failed rank reports itself.
        if code or not heard:
            from ..runtime.ranks.rank_reports import make_rank_report
            from ..runtime.ranks.scripts import GatheredRanks

            self._gathered_ranks = GatheredRanks(rank.size)
            self._gathered_ranks.add_report(
                rank.rank, {"report": make_rank_report(self._main_run, rank.rank), "run": self._main_run.as_dict()}
            )
        return heard and not code

    def _collect_local_runs(self) -> list[Run]:
        """Return the runs of this process: of the script, if the script or no thread trained, and of the threads."""
        assert self._main_run is not None
        alone = not self._thread_runs or self._main_run.steps_total or self._main_run.findings
        return [*([self._main_run] if alone else []), *self._thread_runs]

    def collect_runs(self) -> list[dict[str, Any]]:
        """Return the recorded runs as plain data: of the script and the threads, or of each rank."""
        assert self._main_run is not None
        if self._gathered_ranks is None:
            return [run.as_dict() for run in self._collect_local_runs()]
        return [
            {**run, "title": f"{self._main_run.title}: rank {rank}", "rank": rank}
            for rank, run in sorted(self._gathered_ranks.runs.items())
        ]

    @property
    def step_count(self) -> int:
        """Number of recorded training steps, over all ranks or threads."""
        if self._gathered_ranks is None:
            return sum(run.steps_total for run in self._collect_local_runs())
        return sum(run["steps_total"] for run in self._gathered_ranks.runs.values())

    def collect_findings(self, settings: Settings) -> list[Finding]:
        """Return the findings, filtered by the configuration."""
        from ..protocol.ranks import deduplicate, merge_ranks
        from .run_findings import apply_settings

        for run in self._collect_local_runs():
            run.suppress = settings.suppress
        if self._gathered_ranks is not None:
            found = merge_ranks(self._gathered_ranks.rank_reports, self._gathered_ranks.size)
        elif len(self._collect_local_runs()) > 1:
            found = deduplicate(finding for run in self._collect_local_runs() for finding in run.findings)
        else:
            found = self._collect_local_runs()[0].findings
        return apply_settings(found, settings, folder=os.path.join(os.getcwd(), ""))

    def find_memory_excesses(self) -> list[str]:
        """Return a sentence for the script, or for each rank, that exceeded the memory limit."""
        from . import charts

        over = []
        for run in self.collect_runs():
            memory = run.get("memory") or {"budget": None}
            limit = memory["budget"]
            peak = 0 if limit is None else memory["peak"]["total"]
            if limit is not None and peak > limit:
                who = f"rank {run['rank']}" if "rank" in run else self.target
                makers = memory["contributors"][:3]
                most = "; ".join(f"{name} ({category}) {charts.describe_size(each)}" for category, name, each in makers)
                much = (
                    f"{charts.describe_size(peak)} of memory at its peak, {charts.describe_size(peak - limit)} "
                    f"more than the limit of"
                )
                over.append(f"{who} needed {much} {charts.describe_size(limit)}; most of it was {most}")
        return over

    def show_charts(self, stream: TextIO) -> None:
        """Show charts of the run in a few lines."""
        import shutil

        from . import charts, output

        if not self.step_count:
            return
        width = shutil.get_terminal_size((80, 24)).columns
        # Only the first rank is shown.
        data = self.collect_runs()[0]
        lines = charts.render_run(data, width, charts.find_encoding(stream))
        if lines:
            output.write_lines([[("", "")], *lines, [("", "")]], stream, output.is_color_wanted(stream))

    def summarize_run(self, counts: Mapping[str, int]) -> str:
        """Return the last line: the numbers of findings and steps."""
        from . import summaries

        steps = self.step_count
        if not steps and any(counts.values()):
            return self._add_torch_exception(
                f"{summaries.summarize_counts(counts, 1).partition(' in ')[0]} before the first training step."
            )
        if not steps:
            return self._add_torch_exception(
                "No training step was recorded: no optimizer was stepped in this process or one of its threads"
                " (use --allow-no-steps if that is expected)."
            )
        trained = f"{steps} training step{'s' if steps > 1 else ''}"
        if self._gathered_ranks is not None:
            ranks = sorted(self._gathered_ranks.runs)
            trained += f" on {len(ranks)} ranks" if len(ranks) > 1 else f" on rank {ranks[0]}"
        elif len(self._collect_local_runs()) > 1:
            trained += f" in {len(self._collect_local_runs())} threads"
        if not any(counts.values()):
            bad = [run for run in self._collect_local_runs() if run.bad_losses]
            if bad:
                count, first = sum(run.bad_losses for run in bad), bad[0].first_bad_loss
                return self._add_torch_exception(
                    f"The loss was not finite in {count} of {trained}, first in step {first}."
                )
            if sum(run.skipped_total for run in self._collect_local_runs()) == steps:
                return self._add_torch_exception(f"No mistakes found in {trained}, but a scaler skipped all of them.")
            return self._add_torch_exception(f"No mistakes found in {trained}.")
        return self._add_torch_exception(f"{summaries.summarize_counts(counts, 1).partition(' in ')[0]} in {trained}.")

    def _add_torch_exception(self, sentence: str) -> str:
        """Return the last line, extended by the torch exception that ended the run."""
        message = None if self._main_run is None else self._main_run.ended_by
        if message is None:
            return sentence
        return f"{sentence} It ended in an exception of torch: amp-check explain {message.name}"


def _prepare_device(device: str, stack: ExitStack) -> None:
    """Prepare the process for a device; ``auto`` changes nothing."""
    if device == "cpu":
        # torch reads the variable at the first request for devices.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif device == "emulate":
        from ..runtime.emulate.cuda import emulate_cuda

        stack.enter_context(emulate_cuda())
    elif device != "auto":
        from ..runtime.session import unavailable_reason, use_device

        if why := unavailable_reason(device):
            raise CannotRun(why)
        use_device(device)


def execute_target(
    target: str,
    arguments: Sequence[str],
    execute: Callable[[], object],
    *,
    on_exception: Callable[[BaseException], object],
    region: TerminationRequest,
) -> int:
    """Run a target, and return the exit code of the target. The target writes its own output and traceback.

    ``execute`` runs the code of the target.
    ``on_exception`` receives the exception that ended the target, if any. ``region`` is a context for the target only,
    not for the output about the end.
    """
    from . import signals

    sys.argv = [target, *arguments]
    # The script handles signals itself.
    signals.restore_defaults()
    try:
        with region:
            execute()
    except SystemExit as leave:
        # Exit requested by a launcher, or by an exception handler.
        if region.is_requested or leave.__context__ is not None:
            on_exception(region.exit_cause(leave))
        if leave.code is None or isinstance(leave.code, int):
            return leave.code or 0
        sys.stderr.write(f"{leave.code}\n")
        return RAISED
    except KeyboardInterrupt as error:
        _show_exception(error)
        on_exception(error)
        return INTERRUPTED
    except BaseException as error:  # noqa: BLE001 - whatever has ended the script is shown as Python shows it
        _show_exception(error)
        on_exception(error)
        return RAISED
    return 0


def _make_executor(target: str, *, is_module: bool) -> Callable[[], object]:
    """Return the function that runs the code of a target. Raise :class:`CannotRun` for a notebook that cannot run."""
    from functools import partial

    from . import notebook_runs

    if is_module:
        import runpy

        return partial(runpy.run_module, target, run_name="__main__", alter_sys=True)
    if not notebook_runs.is_notebook(target):
        return partial(_run_script_file, target)
    try:
        return notebook_runs.Notebook(target).run
    except notebook_runs.NotRunnable as error:
        raise CannotRun(str(error)) from None


def _run_script_file(path: str) -> None:
    from types import ModuleType

    with open(path, "rb") as file:
        source = file.read()
    # The module remains, so that the script's definitions can be pickled, and found by child processes.
    main = ModuleType("__main__")
    main.__file__ = path
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    # The script does not inherit the imports from __future__ of this module.
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - running the user's script is the command


def _show_exception(error: BaseException) -> None:
    """Show an exception as Python does, without frames of this package."""
    import traceback

    sys.stdout.flush()
    exception_text = traceback.TracebackException.from_exception(error)
    each: traceback.TracebackException | None = exception_text
    while each is not None:
        each.stack = traceback.StackSummary.from_list(list(_drop_own_frames(each.stack)))
        each = each.__cause__ or each.__context__
    sys.stderr.write("".join(exception_text.format()))


def _drop_own_frames(stack: Iterable[FrameSummary]) -> Iterator[FrameSummary]:
    """Yield the frames of the program and of torch, without the frame through which an emulated kernel continues."""
    emulated = False
    for frame in stack:
        if not _is_own_file(frame.filename) and not (emulated and frame.name == "redispatch"):
            yield frame
        emulated = _is_own_file(frame.filename)


def _is_own_file(path: str) -> bool:
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    return path.startswith((here, "<frozen runpy>")) or os.path.basename(path) == "runpy.py"
