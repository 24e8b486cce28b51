"""``record()``, and what is known of a run: findings, steps, dtypes, magnitudes, memory, and assertions about them."""

from __future__ import annotations

import itertools
import linecache
import math
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from ..protocol.finding import ERROR, INFO, WARNING, Finding
from ..protocol.rules import RULES
from ..protocol.selection import resolve_codes, resolve_for_runs
from ..protocol.suppressions import Suppressions
from .record.attach import begin_recording, end_recording
from .record.recorder import Recorder
from .record.sites import stop_position
from .record.steps import StepLog, StepRecord

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from ..protocol.messages import Message
    from .advice import Advice
    from .baselines import Baselines
    from .measure.dtypes import Dtypes
    from .measure.memory import Memory
    from .measure.numerics import Numerics
    from .record.listeners.non_finite import NonFiniteCause, NonFiniteRecord
    from .replay.replay import Replay

#: Findings that an assertion's message shows in full.
SHOWN = 10


class Run:
    """What a recording knows. It can be asked while the recording lasts and after it, also after an exception."""

    def __init__(self, recorder: Recorder, *, title: str = "") -> None:
        self._recorder = recorder
        self.title = title
        self.dtypes: Dtypes | None = None
        self.numerics: Numerics | None = None
        self.memory: Memory | None = None
        #: Whether each step has the norm of its gradients as it finds them, and not that which the program clipped by.
        self.norms = False
        #: The message of torch that has ended it, where that is one that users of mixed precision meet.
        self.ended_by: Message | None = None
        self._stop_position: tuple[str, int] | None = None
        #: Set by ``amp.run``: how to run the same steps again.
        self.replay: Replay | None = None
        #: Set by the fixture ``amp``: where the baselines of its test are.
        self.baselines: Baselines | None = None
        self._selected_rules: frozenset[str] = resolve_for_runs(None, (), RULES)
        #: Whether comments silence findings.
        self.suppress = True
        self._suppressions: dict[str, Suppressions] = {}

    @property
    def findings(self) -> list[Finding]:
        """The mistakes found so far, by the rules that are on and without those that a comment silences, by place."""
        found = self._recorder.findings(self._selected_rules)
        return [finding for finding in found if not self._is_suppressed(finding)]

    def _is_suppressed(self, finding: Finding) -> bool:
        if not self.suppress:
            return False
        path = finding.filename
        if path not in self._suppressions:
            self._suppressions[path] = Suppressions.from_text("".join(linecache.getlines(path)))
        return self._suppressions[path].suppresses_finding(finding)

    def select(self, *words: str) -> Run:
        """Choose the rules that are on: codes, prefixes, names or ALL. An unknown word raises ``UnknownRule``."""
        self._selected_rules = resolve_codes(words, (), RULES)
        return self

    @property
    def failure(self) -> Exception | None:
        """The error that ended the recording early, None as a rule. The program that was recorded went on."""
        return self._recorder.recording.failure

    def _all_steps(self) -> StepLog:
        """Steps and totals over them, complete: this waits for the device where it has to."""
        self._recorder.recording.deferred_values.fetch_all()
        return self._recorder.recording.steps

    @property
    def steps(self) -> Sequence[StepRecord]:
        """The latest steps of all optimizers, in order; the oldest of a long run are dropped."""
        return self._all_steps().recent_steps

    @property
    def steps_total(self) -> int:
        """How many steps there were, taken or skipped."""
        return self._all_steps().total

    @property
    def skipped_total(self) -> int:
        """How many of them a scaler skipped."""
        return self._all_steps().skipped_count

    @property
    def scale_history(self) -> list[tuple[int, float]]:
        """(step, loss scale from there on), at changes only."""
        return list(self._all_steps().scale_history)

    def as_dict(self) -> dict[str, Any]:
        """Everything that is known, as plain data."""
        headroom = {} if self.numerics is None else {"headroom": self.numerics.headroom.as_dict()}
        return {
            **headroom,
            "title": self.title,
            "torch": torch.__version__,
            "device": _device_name(),
            "platform": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
            "steps": self.rows(),
            "steps_total": self.steps_total,
            "skipped_total": self.skipped_total,
            "scale_history": [list(change) for change in self.scale_history],
            "states": self._recorder.recording.run_checker.history_data(),
            "grad_norm": "at the step" if self.norms else "before clipping",
            "numerics": None if self.numerics is None else self.numerics.as_dict(),
            "memory": None if self.memory is None else self.memory.as_dict(),
            "dtypes": None if self.dtypes is None else self.dtypes.as_dict(),
            "advice": [each.as_dict() for each in self.advice()],
            "findings": [finding.as_dict() for finding in self.findings],
            "failure": None if self.failure is None else f"{type(self.failure).__name__}: {self.failure}",
        }

    def advice(self) -> list[Advice]:
        """What the run advises, with what it has shown: ``what`` to do, and the ``evidence``. Nothing is applied.

        An initial scale at which the first steps are not skipped; with ``numerics`` modules whose gradients underflow,
        or whose outputs come near to float16's end; with ``memory``, once a budget was asserted, what needs most of it.
        """
        from .advice import advise

        return advise(self.steps, self.steps_total, self.dtypes, self.numerics, self.memory)

    def rows(self) -> list[dict[str, Any]]:
        """What is known of each step that was kept, as plain data.

        With ``numerics`` a step that was looked at has "underflow", the share (0 to 1) of its gradients that float16
        loses at the loss scale; with ``memory`` each has "memory", the most bytes since the step before.
        """
        lost = {} if self.numerics is None else self.numerics.lost_by_step
        peaks = {} if self.memory is None else self.memory.peak_by_step
        rows = []
        for step in self.steps:
            row = step.as_dict()
            if self.numerics is not None:
                row["underflow"] = lost.get(step.index)
            if self.memory is not None:
                row["memory"] = peaks.get(step.index)
            rows.append(row)
        return rows

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Everything that is known as JSON, which is written to a file too where one is named."""
        from .exports import as_json

        text = as_json(self.as_dict())
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return text

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` with a row for each step, see :meth:`rows`. ImportError where there is no pandas."""
        from .exports import as_dataframe

        return as_dataframe(self.rows())

    def to_tensorboard(self, into: Any) -> None:
        """Scale, skips, underflow, memory, loss and gradient norm of each step, for TensorBoard.

        ``into`` is a folder, or a ``SummaryWriter``. ImportError where a folder is named and there is no tensorboard.
        """
        from .exports import write_tensorboard

        write_tensorboard(self.rows(), into)

    def to_wandb(self, into: Any = None) -> None:
        """The same for Weights & Biases: ``into`` is a run of it, by default the active one, which has to be there."""
        from .exports import write_wandb

        write_wandb(self.rows(), into)

    # Assertions.

    def assert_no_findings(self, allow: Iterable[str] = (), *, allow_no_steps: bool = False) -> None:
        """Fail if an error or a warning was found, of rules that ``allow`` (codes, prefixes or names) does not name.

        A recording in which no optimizer was stepped fails too, as nothing was judged, unless ``allow_no_steps``.
        """
        __tracebackhide__ = True
        words = [allow] if isinstance(allow, str) else list(allow)
        allowed = resolve_codes(words, (), RULES) if words else frozenset()
        self._assert_recorded()
        worse = [f for f in self.findings if f.severity in (ERROR, WARNING) and f.code not in allowed]
        if worse:
            lines = [line for finding in worse[:SHOWN] for line in finding_lines(finding)]
            if len(worse) > SHOWN:
                lines.append(f"and {len(worse) - SHOWN} more")
            count = f"{len(worse)} mistake{'s' if len(worse) > 1 else ''} in mixed-precision training"
            raise AssertionError("\n".join([f"{count}:", *lines]))
        if not self.steps_total and not allow_no_steps:
            raise AssertionError(
                "No training step was recorded, so there was nothing to judge: nothing stepped an optimizer in this"
                " thread while the recording lasted (allow_no_steps=True where none is meant to)"
            )

    def _assert_recorded(self) -> None:
        __tracebackhide__ = True
        if self.failure is not None:
            error = f"{type(self.failure).__name__}: {self.failure}"
            raise AssertionError(
                f"The recorder failed ({error}), so this run was not recorded to its end: please report it"
            )

    def assert_finite(self) -> None:
        """Fail if a loss, a gradient, a parameter or a statistic was not finite; tells where that came from.

        A step that a scaler has skipped because its loss scale was too large is no such case; a loss that is not finite
        at any scale is. ValueError for a recording that does not watch for it, as one with ``memory=True``.
        """
        __tracebackhide__ = True
        self._assert_recorded()
        if not self._recorder.nonfinite.is_watching:
            raise ValueError(
                "This run was recorded with memory=True, which leaves out the watch for what is not finite"
            )
        found = self._recorder.findings(frozenset({"AMP801", "AMP802"}))
        bad = self.bad_losses
        if not (found or bad):
            return
        lines = [line for finding in found[:SHOWN] for line in finding_lines(finding)]
        if bad:
            lines.insert(
                0, f"the loss was not finite in {bad} of {self.steps_total} steps, first in step {self.first_bad_loss}"
            )
        raise AssertionError("\n".join(["The training did not stay finite:", *lines]))

    @property
    def bad_losses(self) -> int:
        """How many backward passes ran from a loss that was not finite, skipped by a scaler or not."""
        return self._recorder.nonfinite.bad_losses

    @property
    def first_bad_loss(self) -> int | None:
        """The step, counted from 0, of the first of them; None without any."""
        return self._recorder.nonfinite.first_bad_loss

    def assert_scale(
        self,
        minimum: float | None = None,
        maximum: float | None = None,
        max_skipped: int | None = None,
        recovers_within: int | None = None,
        grows: bool | None = None,
    ) -> None:
        """Fail unless the loss scale behaved.

        ``minimum`` and ``maximum`` bound the scale after every update; ``max_skipped`` the number of skipped steps in
        all; ``recovers_within`` the length of any row of skipped steps; ``grows`` says whether it has to have grown
        (True) or must not have (False). Without any step through an enabled scaler the assertion fails: there was
        nothing to judge.
        """
        __tracebackhide__ = True
        if all(x is None for x in (minimum, maximum, max_skipped, recovers_within, grows)):
            raise ValueError("assert_scale() was given nothing to check: pass minimum=, maximum=, max_skipped=, ...")
        self._assert_recorded()
        steps = self._all_steps()
        if steps.lowest_scale is None or steps.highest_scale is None:
            raise AssertionError(
                "No enabled GradScaler made a step in this recording, so its scale cannot be judged: step through"
                " `scaler.step(optimizer)`; on a machine without CUDA a GradScaler for cuda switches itself off (use"
                " emulate_cuda(), --amp-device emulate or GradScaler('cpu'))"
            )
        wrong = []
        values = list(steps.scale_history)
        if minimum is not None and steps.lowest_scale < minimum:
            when = _first_step_text(values, lambda scale: scale < minimum)
            fell = f"the scale fell to {_format_scale(steps.lowest_scale)}, below {_format_scale(minimum)}{when}"
            wrong.append(f"{fell}: gradients overflow again and again")
        if maximum is not None and steps.highest_scale > maximum:
            when = _first_step_text(values, lambda scale: scale > maximum)
            wrong.append(
                f"the scale rose to {_format_scale(steps.highest_scale)}, above {_format_scale(maximum)}{when}"
            )
        skips = [step.index for step in steps.recent_steps if step.skipped]
        if max_skipped is not None and steps.skipped_count > max_skipped:
            wrong.append(
                f"{steps.skipped_count} of {steps.total} steps were skipped, more than "
                f"{max_skipped}{_format_steps(skips)}"
            )
        if recovers_within is not None and steps.longest_skip_run > recovers_within:
            row = f"{steps.longest_skip_run} steps in a row were skipped, more than {recovers_within}"
            wrong.append(
                f"{row}{_format_steps(_longest_row(skips))}: a loss that is not finite at any scale, or gradients "
                f"that are"
                " never cleared"
            )
        if grows is not None:
            growths = [after for before, after in itertools.pairwise(values) if after[1] > before[1]]
            if bool(growths) != grows:
                wrong.append(
                    "the scale never grew: run longer than growth_interval, or set a shorter one in the test"
                    if grows
                    else f"the scale grew to {_format_scale(growths[0][1])} at step {growths[0][0]}"
                )
        if wrong:
            history = ", ".join(f"{_format_scale(scale)} from step {index}" for index, scale in values[-SHOWN:])
            raise AssertionError("\n".join(["The loss scale did not behave:", *wrong, f"scale: {history}"]))

    def assert_dtypes(self, expected: Mapping[str, Any]) -> None:
        """Fail unless the dtypes are as expected; see :func:`.dtypes.assert_dtypes`. Needs ``record(dtypes=True)``."""
        __tracebackhide__ = True
        from .measure.dtypes import assert_dtypes

        assert_dtypes(_require_part(self.dtypes, "dtypes"), expected)

    def assert_underflow(self, *, below: float, without_scaling: bool = False) -> None:
        """Fail if float16 would lose too many gradients to zero; see :func:`.numerics.assert_underflow`."""
        __tracebackhide__ = True
        from .measure.numerics import assert_underflow

        assert_underflow(_require_part(self.numerics, "numerics"), below=below, without_scaling=without_scaling)

    def assert_memory(
        self,
        *,
        peak: str | int | None = None,
        parameters: str | int | None = None,
        gradients: str | int | None = None,
        optimizer_state: str | int | None = None,
        activations: str | int | None = None,
        inputs: str | int | None = None,
        temporaries: str | int | None = None,
        autocast_cache: str | int | None = None,
        workspace: str | int | None = None,
        other: str | int | None = None,
    ) -> None:
        """Fail if memory exceeds a limit, in bytes or as ``"1.5 GiB"``; see :func:`.memory.assert_memory`.

        Needs ``record(memory=True)``.
        """
        __tracebackhide__ = True
        from .measure.memory import assert_memory

        assert_memory(
            _require_part(self.memory, "memory"),
            peak=peak,
            parameters=parameters,
            gradients=gradients,
            optimizer_state=optimizer_state,
            activations=activations,
            inputs=inputs,
            temporaries=temporaries,
            autocast_cache=autocast_cache,
            workspace=workspace,
            other=other,
        )

    def assert_baseline(self, name: str = "run", *, memory: float | None = None) -> None:
        """Fail where dtypes, memory, skipped steps or the loss scale are not what the baseline of this test says.

        Baselines lie beside the tests, in ``amp_baselines``, one for each kind of device and version of torch, and are
        written by ``pytest --amp-update-baselines``. ``memory`` is how far each category may be from what it was, as a
        part of that (0.02); everything else has to be the same. ``name`` tells several runs of a test apart. What the
        run has recorded is compared: ``amp.record(model, dtypes=True, memory=True)``. Needs the fixture ``amp``.
        """
        __tracebackhide__ = True
        self._assert_recorded()
        if self.baselines is None:
            raise ValueError(
                "assert_baseline() needs a run of the fixture amp: amp.record(model) or amp.run(step, ...)"
            )
        from .baselines import MEMORY, make_entry

        current = make_entry(self.steps, self.steps_total, self.scale_history, self.dtypes, self.memory)
        self.baselines.compare(current, name, MEMORY if memory is None else memory)

    def assert_matches_fp32(
        self,
        *,
        rtol: float,
        atol: float = 1e-6,
        updates: float = 0.2,
        what: Literal["both", "loss", "parameters"] = "both",
    ) -> None:
        """Fail unless the same steps in float32 train the same; see :func:`.precision.assert_matches_fp32`."""
        __tracebackhide__ = True
        from .replay.precision import assert_matches_fp32

        assert_matches_fp32(
            self._required_replay("assert_matches_fp32"), rtol=rtol, atol=atol, updates=updates, what=what
        )

    def assert_accumulation_equivalent(
        self, k: int, *, whole: Callable[[Any], object] | None = None, rtol: float = 0.02
    ) -> None:
        """Fail unless k micro-batches do what one batch of them does.

        See :func:`.accumulation.assert_accumulation_equivalent`.
        """
        __tracebackhide__ = True
        from .replay.accumulation import assert_accumulation_equivalent

        assert_accumulation_equivalent(
            self._required_replay("assert_accumulation_equivalent"), k, whole=whole, rtol=rtol
        )

    def assert_resumes(
        self, save: Callable[..., Any], load: Callable[[Any], object], *, at: int | None = None, rtol: float = 0.0
    ) -> None:
        """Fail unless training goes on from a checkpoint as if it had not stopped; names what is missing from it.

        See :func:`.resuming.assert_resumes`.
        """
        __tracebackhide__ = True
        from .replay.resuming import assert_resumes

        assert_resumes(self._required_replay("assert_resumes"), save, load, at=at, rtol=rtol)

    def assert_speedup(self, *, over_fp32: float, pairs: int = 9) -> float:
        """Fail unless the steps are faster than in float32 by this factor; gives the factor. Needs a GPU.

        See :func:`.speed.assert_speedup`.
        """
        __tracebackhide__ = True
        from .replay.speed import assert_speedup

        return assert_speedup(self._required_replay("assert_speedup"), over_fp32=over_fp32, pairs=pairs)

    def _required_replay(self, what: str) -> Replay:
        __tracebackhide__ = True
        if self.replay is None:
            raise ValueError(
                f"{what}() has to run the steps again, and record() cannot: use `run = amp.run(step, batches)` of the"
                " fixture amp, or pytest_amp_check.run_steps(step, batches)"
            )
        return self.replay


def _require_part(collector: Any, option: str) -> Any:
    __tracebackhide__ = True
    if collector is None:
        raise ValueError(f"This run was recorded without its {option}: pass {option}=True to record()")
    return collector


def _format_scale(scale: float) -> str:
    """A loss scale as scalers move it, in powers of two where it is one: "65536 (2^16)"."""
    fraction, exponent = math.frexp(scale)
    return f"{scale:g} (2^{exponent - 1})" if fraction == 0.5 and scale != 1.0 else f"{scale:g}"


def _first_step_text(history: Sequence[tuple[int, float]], is_wrong: Callable[[float], bool]) -> str:
    """From which step on the scale was first so, where that is still known."""
    first_index = next((index for index, scale in history if is_wrong(scale)), None)
    return "" if first_index is None else f", first at step {first_index}"


def _format_steps(steps: Sequence[int]) -> str:
    """The steps, consecutive ones taken together: " (steps 2, 5 to 8)"."""
    rows: list[list[int]] = []
    for step in steps:
        if rows and rows[-1][-1] == step - 1:
            rows[-1].append(step)
        else:
            rows.append([step])
    words = [str(row[0]) if len(row) == 1 else f"{row[0]} to {row[-1]}" for row in rows[:SHOWN]]
    more = ", ..." if len(rows) > SHOWN else ""
    return f" (step{'s' if len(steps) > 1 else ''} {', '.join(words)}{more})" if words else ""


def _longest_row(steps: Sequence[int]) -> Sequence[int]:
    """The longest row of consecutive numbers, the first of several."""
    longest = range(0)
    start = 0
    for index, step in enumerate(steps):
        if index and steps[index - 1] != step - 1:
            start = index
        if index + 1 - start > len(longest):
            longest = range(start, index + 1)
    return [steps[index] for index in longest]


def _device_name() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return "CPU"


def _explain_nonfinite(nonfinite: NonFiniteRecord) -> NonFiniteCause | None:
    """Plays a step again that was not finite; loaded where that happens."""
    from .replay.first_non_finite import explain_nonfinite

    return explain_nonfinite(nonfinite)


def finding_lines(finding: Finding) -> list[str]:
    lines = [
        f"{finding.filename}:{finding.line}: {finding.code} [{finding.severity}] {finding.name}: {finding.message}"
    ]
    lines += [f"    {number}. {s.site.path}:{s.site.line}: {s.text}" for number, s in enumerate(finding.witness, 1)]
    if finding.severity != INFO:
        lines.append(f"    amp-check explain {finding.code}")
    return lines


class record:  # noqa: N801 - used like a function: `with record() as run:`
    """Records what this thread trains, for as long as the ``with`` block lasts, and gives a :class:`Run`.

    The results of the training do not change: every call is handed on as it is, nothing draws random numbers, and all
    that was patched is restored at the end, also after an exception. Recordings can be nested.

    ``model`` names parameters and modules in what is collected; with ``search`` it is looked for among all objects, as
    what holds the parameters of the optimizers. ``dtypes``, ``ops``, ``numerics``, ``memory`` and
    ``norms`` are parts that cost time, and are made only when asked for: the dtypes of module outputs, parameters,
    gradients and optimizer state; those of every op; histograms of gradient magnitudes; memory by category; the
    unscaled gradient norm of every step. ``numerics=10`` looks at every tenth step. ``memory="1.5 GiB"`` is a budget,
    which reports draw as a line, and advice is about; ``run.assert_memory`` is what fails.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        *,
        dtypes: bool = False,
        ops: bool = False,
        numerics: bool | int = False,
        memory: bool | str = False,
        norms: bool = False,
        search: bool = False,
        title: str = "",
        automatic: bool = False,
    ) -> None:
        if model is not None and not isinstance(model, torch.nn.Module):
            raise TypeError(f"record() takes a torch.nn.Module, not {type(model).__name__}: pass the model, or nothing")
        frame = sys._getframe(1)
        self._recorder = Recorder(automatic=automatic, outermost=frame)
        # What is recorded of memory is what the program holds, and nothing is kept to be played again.
        self._recorder.nonfinite.explain = None if memory else _explain_nonfinite
        self.run = Run(self._recorder, title=title)
        self._is_broken = False
        collectors = self._recorder.recording.collectors
        self._recorder.recording.has_dispatch_watcher = bool(ops or memory)
        if dtypes or ops:
            from .measure.dtypes import Dtypes

            self.run.dtypes = Dtypes(model, ops=ops)
            collectors.append(self.run.dtypes)
        if numerics:
            from .measure.numerics import Numerics

            self.run.numerics = Numerics(model, every=1 if numerics is True else numerics)
            collectors.append(self.run.numerics)
        if norms:
            from .measure.norms import Norms

            collectors.append(Norms(self._recorder.recording.steps))
            self.run.norms = True
        if search and model is None:
            from .measure.discovery import Discovery

            # It names what the others see.
            collectors.insert(0, Discovery(collectors))
        if memory:
            from .measure.memory import Memory

            self.run.memory = Memory(model, budget=memory if isinstance(memory, str) else None)
            # Its dispatch mode has to be the outermost, to see what the others do not.
            collectors.insert(0, self.run.memory)

    def show_from(self, frame: FrameType) -> None:
        """Show no calls above this frame in the chain of calls that leads to a place."""
        self._recorder.recording.sites.show_from(frame)

    def __enter__(self) -> Run:
        begin_recording(self._recorder)
        return self.run

    def broken_by(self, error: BaseException) -> None:
        """An exception has ended what is recorded, also where it does not leave the ``with`` block."""
        self._is_broken = True
        if isinstance(error, SystemExit) and error.__context__ is not None:
            # What handles an exception by leaving, as torch.multiprocessing.spawn does, was ended by that.
            error = error.__context__
        from .explain.explain import explain_exception

        self.run.ended_by = explain_exception(self._recorder, error)
        self.run._stop_position = stop_position(error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not self._is_broken:
            self.broken_by(error)
        end_recording(self._recorder, broken=self._is_broken)
