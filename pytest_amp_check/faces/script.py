"""Runs a user's script or module as Python would, in this process, so that it can be recorded."""

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
    from ..runtime.ranks.ending import Ending
    from ..runtime.ranks.scripts import Gathered, Launched
    from ..runtime.run import Run
    from ..static.engine import Settings
    from .text import Sources

#: The exit code of a Python program that an exception has ended.
RAISED = 1
INTERRUPTED = 130
#: Of how many steps a report looks at the gradients of one.
EVERY = 10


class Unrunnable(Exception):
    """What is to be run cannot be; the message is one sentence."""


def prepare(target: str, *, module: bool) -> str:
    """What will run: the path of a script or the name of a module. Raises :class:`Unrunnable` where there is none."""
    if module:
        from importlib.util import find_spec

        # As Python does for -m, so that modules beside the caller are found.
        sys.path.insert(0, os.getcwd())
        try:
            found = find_spec(target)
        except (ImportError, ValueError) as error:
            raise Unrunnable(f"module {target!r} cannot be found: {error}") from None
        if found is None:
            raise Unrunnable(f"there is no module {target!r}: for a file, leave out -m")
        return target
    if not os.path.exists(target):
        raise Unrunnable(f"there is no file {target!r}" + (": for a module, write -m" if "/" not in target else ""))
    if os.path.isdir(target):
        raise Unrunnable(f"{target!r} is a folder: name the script that trains")
    return target


class Recorded:
    """A script or module that is run under the recorder."""

    def __init__(self, target: str, arguments: Sequence[str], *, module: bool) -> None:
        self.target = target
        self.arguments = arguments
        self.module = module
        #: Why something could not be written, one sentence.
        self._unwritten = ""
        self._run: Run | None = None
        #: Those of threads that the script has trained in.
        self._beside: list[Run] = []
        #: What several ranks have told, where there are several, and whether another one tells it.
        self._ranks: Gathered | None = None
        self.told_elsewhere = False

    def run(
        self, device: str, limit: float, last: Callable[[], object], *, whole: bool, memory: bool | str = False
    ) -> int:
        """Run it on a device; gives the exit code of the script.

        ``limit`` is for how many seconds its ranks are waited for, where there are any, and ``last`` is called before
        they are ended because none has moved for as long: it tells what was recorded. ``whole`` says that what costs
        some time is recorded too, for a report; ``memory`` is that of :class:`~pytest_amp_check.runtime.run.record`.
        """
        from contextlib import ExitStack
        from importlib.util import find_spec

        if find_spec("torch") is None:
            raise Unrunnable("amp-check run needs torch: install the build you train with, or pytest-amp-check[torch]")
        from ..runtime.ranks.ending import Ending
        from . import signals

        ending = Ending()
        with ExitStack() as stack:
            _prepare_device(device, stack)
            # What a request to end would do to the command is put aside for what it does to the run.
            signals.usual()
            stack.enter_context(ending.listening())
            code = self._recorded(whole, memory, limit, last, ending)
        sys.stdout.flush()
        return code

    @property
    def wrong(self) -> str:
        """Why a part of the recording is missing, or was not written, one sentence."""
        assert self._run is not None
        failure = next((run.failure for run in self._recordings() if run.failure is not None), None)
        if self._unwritten:
            return self._unwritten
        if failure is not None:
            return (
                f"the recorder failed ({type(failure).__name__}: {failure}), so the script was not recorded to its "
                "end: please report it"
            )
        missing = {} if self._ranks is None else self._ranks.missing
        return "; ".join(f"rank {rank} {why}" for rank, why in sorted(missing.items()))

    def write_report(
        self, path: str, findings: Sequence[Finding], others: Sequence[Mapping[str, Any]], sources: Sources
    ) -> None:
        """Write a page of what was recorded, with these findings, beside other runs where there are any."""
        from . import html
        from .page.findings import shown

        assert self._run is not None
        runs = []
        for run in self.runs():
            # Of several ranks each has its own.
            mine = [finding for finding in findings if not finding.ranks or run.get("rank") in finding.ranks]
            runs.append({**run, "findings": shown(mine, sources)})
        try:
            html.write(runs, path, title=f"amp-check run {self._run.title}", others=others)
        except html.ReportUnavailable as error:
            self._unwritten = str(error)

    def write_data(self, path: str) -> None:
        """Write all that was recorded as JSON."""
        from ..runtime.exports import as_json
        from . import files

        try:
            files.write(path, as_json({"runs": self.runs()}))
        except OSError as error:
            self._unwritten = f"{path} cannot be written: {(error.strerror or 'error').lower()}"

    def _recorded(
        self, wanted: bool, memory: bool | str, limit: float, last: Callable[[], object], ending: Ending
    ) -> int:
        """Run it under the recorder, and gather what its ranks have told; ``wanted`` says that all of it is shown."""
        from contextlib import ExitStack

        from ..runtime.ranks.scripts import Started, Threads, launched
        from ..runtime.run import record

        with ExitStack() as stack:
            # What costs little enough to be looked at in passing.
            parts: dict[str, Any] = {"dtypes": wanted, "norms": wanted, "memory": memory}
            parts.update(search=wanted or bool(memory), numerics=EVERY if wanted else 0)
            parts.update(title=" ".join([self.target, *self.arguments]))
            recording = record(**parts)
            threads = Threads(parts)
            # Below the recording, which asks who starts a thread.
            stack.enter_context(threads.recording())
            self._run = stack.enter_context(recording)
            self._run.select("ALL")
            rank = launched(limit)
            if rank is not None:
                stack.enter_context(rank.watched(self._run, lambda: self._tell_of_all(rank, last)))
            started = Started(parts, limit)
            stack.enter_context(started.recording())
            code = execute(self.target, self.arguments, module=self.module, raised=recording.broken_by, within=ending)
            if not ending.asked:
                threads.wait()
        self._beside = list(threads.runs.values())
        self._ranks = started.gather()
        if rank is not None:
            self._tell_as_rank(rank, code, ending)
        return code

    def _tell_of_all(self, rank: Launched, last: Callable[[], object]) -> None:
        """As the first rank of a machine on which all stand still, tell what they have recorded."""
        self._ranks = rank.gather(lambda: False)
        last()

    def _tell_as_rank(self, rank: Launched, code: int, ending: Ending) -> None:
        """Leave what was recorded for the first rank of the machine, which tells what all have found."""
        assert self._run is not None
        heard = rank.leave(self._run, failed=bool(code))
        # One that has failed makes the launcher end the others: it tells for itself.
        self.told_elsewhere = heard and not rank.first and not code
        if rank.first:
            self._ranks = rank.gather(lambda: ending.asked)
        elif code or not heard:
            from ..runtime.ranks.scripts import Gathered
            from ..runtime.ranks.telling import tell

            self._ranks = Gathered(rank.size)
            self._ranks.add(rank.rank, {"told": tell(self._run, rank.rank), "run": self._run.as_dict()})

    def _recordings(self) -> list[Run]:
        """Those of this process: of the script, where it has trained itself or no thread has, and of its threads."""
        assert self._run is not None
        alone = not self._beside or self._run.steps_total or self._run.findings
        return [*([self._run] if alone else []), *self._beside]

    def runs(self) -> list[dict[str, Any]]:
        """What was recorded, as plain data: of the script and its threads, or of each of its ranks."""
        assert self._run is not None
        if self._ranks is None:
            return [run.as_dict() for run in self._recordings()]
        return [
            {**run, "title": f"{self._run.title}: rank {rank}", "rank": rank}
            for rank, run in sorted(self._ranks.runs.items())
        ]

    @property
    def steps(self) -> int:
        """How many training steps were recorded, on all ranks or in all threads together."""
        if self._ranks is None:
            return sum(run.steps_total for run in self._recordings())
        return sum(run["steps_total"] for run in self._ranks.runs.values())

    def findings(self, settings: Settings) -> list[Finding]:
        """What was found, as the configuration wants it."""
        from ..protocol.ranks import once, together
        from .judged import settle

        for run in self._recordings():
            run.suppress = settings.suppress
        if self._ranks is not None:
            found = together(self._ranks.told, self._ranks.size)
        elif len(self._recordings()) > 1:
            found = once(finding for run in self._recordings() for finding in run.findings)
        else:
            found = self._recordings()[0].findings
        return settle(found, settings, folder=os.path.join(os.getcwd(), ""))

    def excesses(self) -> list[str]:
        """Of the script, or each of its ranks, that needed more memory than its limit, how much that was."""
        from . import charts

        over = []
        for run in self.runs():
            memory = run.get("memory") or {"budget": None}
            limit = memory["budget"]
            peak = 0 if limit is None else memory["peak"]["total"]
            if limit is not None and peak > limit:
                who = f"rank {run['rank']}" if "rank" in run else self.target
                makers = memory["contributors"][:3]
                most = "; ".join(f"{name} ({category}) {charts.size(each)}" for category, name, each in makers)
                much = f"{charts.size(peak)} of memory at its peak, {charts.size(peak - limit)} more than the limit of"
                over.append(f"{who} needed {much} {charts.size(limit)}; most of it was {most}")
        return over

    def show(self, stream: TextIO) -> None:
        """What the run looked like, in a few lines."""
        import shutil

        from . import charts, text

        if not self.steps:
            return
        width = shutil.get_terminal_size((80, 24)).columns
        # Of several ranks the first.
        data = self.runs()[0]
        lines = charts.told(data, width, charts.encoding_of(stream))
        if lines:
            text.write([[("", "")], *lines, [("", "")]], stream, text.colour_wanted(stream))

    def summary(self, counts: Mapping[str, int]) -> str:
        """The last line: how much was found, in how many steps."""
        from . import text

        steps = self.steps
        if not steps:
            return self._ended(
                "No training step was recorded: nothing stepped an optimizer in this process or a thread of its own"
                " (--allow-no-steps where none is meant to)."
            )
        trained = f"{steps} training step{'s' if steps > 1 else ''}"
        if self._ranks is not None:
            ranks = sorted(self._ranks.runs)
            trained += f" on {len(ranks)} ranks" if len(ranks) > 1 else f" on rank {ranks[0]}"
        elif len(self._recordings()) > 1:
            trained += f" in {len(self._recordings())} threads"
        if not sum(counts.values()):
            bad = [run for run in self._recordings() if run.bad_losses]
            if bad:
                count, first = sum(run.bad_losses for run in bad), bad[0].first_bad_loss
                return self._ended(f"The loss was not finite in {count} of {trained}, first in step {first}.")
            if sum(run.skipped_total for run in self._recordings()) == steps:
                return self._ended(f"No mistakes found in {trained}, but a scaler skipped all of them.")
            return self._ended(f"No mistakes found in {trained}.")
        return self._ended(f"{text.tally(counts, 1).partition(' in ')[0]} in {trained}.")

    def _ended(self, sentence: str) -> str:
        """The last line, with what torch has ended the run by."""
        message = None if self._run is None else self._run.ended_by
        if message is None:
            return sentence
        return f"{sentence} It ended in an exception of torch: amp-check explain {message.name}"


def _prepare_device(device: str, stack: ExitStack) -> None:
    """Make the process look as the device wants it; ``auto`` leaves it as it is."""
    if device == "cpu":
        # Read by torch when it first asks for its devices.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif device == "emulate":
        from ..runtime.emulate.cuda import emulate_cuda

        stack.enter_context(emulate_cuda())
    elif device != "auto":
        from ..runtime.session import choose, missing

        if why := missing(device):
            raise Unrunnable(why)
        choose(device)


def execute(
    target: str,
    arguments: Sequence[str],
    *,
    module: bool,
    raised: Callable[[BaseException], object],
    within: Ending,
) -> int:
    """Run it, and give the exit code that it would have ended with. Its output, and its traceback, are its own.

    ``raised`` is given the exception that has ended it, if one has; ``within`` is a region for the script alone, and
    not for what is said of its end.
    """
    from . import signals

    sys.argv = [target, *arguments]
    # What they do to the script is its own affair.
    signals.usual()
    try:
        with within:
            if module:
                import runpy

                runpy.run_module(target, run_name="__main__", alter_sys=True)
            else:
                _script(target)
    except SystemExit as leave:
        # A launcher asked for it, or what handles an exception does.
        if within.asked or leave.__context__ is not None:
            raised(within.reason(leave))
        if leave.code is None or isinstance(leave.code, int):
            return leave.code or 0
        sys.stderr.write(f"{leave.code}\n")
        return RAISED
    except KeyboardInterrupt as error:
        _show(error)
        raised(error)
        return INTERRUPTED
    except BaseException as error:  # noqa: BLE001 - whatever has ended the script is shown as Python shows it
        _show(error)
        raised(error)
        return RAISED
    return 0


def _script(path: str) -> None:
    from types import ModuleType

    with open(path, "rb") as file:
        source = file.read()
    # The module stays: what the script defines can be pickled, and found by the processes that it starts.
    main = ModuleType("__main__")
    main.__file__ = path
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    exec(compile(source, path, "exec"), main.__dict__)  # noqa: S102 - running the user's script is the command


def _show(error: BaseException) -> None:
    """Show an exception as Python does, without the calls of this package among its own."""
    import traceback

    sys.stdout.flush()
    told = traceback.TracebackException.from_exception(error)
    each: traceback.TracebackException | None = told
    while each is not None:
        each.stack = traceback.StackSummary.from_list(list(_without_ours(each.stack)))
        each = each.__cause__ or each.__context__
    sys.stderr.write("".join(told.format()))


def _without_ours(stack: Iterable[FrameSummary]) -> Iterator[FrameSummary]:
    """The calls of a program, and those of torch, but for the one by which a kernel of the emulation goes on."""
    emulated = False
    for frame in stack:
        if not _is_ours(frame.filename) and not (emulated and frame.name == "redispatch"):
            yield frame
        emulated = _is_ours(frame.filename)


def _is_ours(path: str) -> bool:
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    return path.startswith((here, "<frozen runpy>")) or os.path.basename(path) == "runpy.py"
