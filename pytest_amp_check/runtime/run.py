"""``record()`` and its result: findings, steps, dtypes, magnitudes, memory, and assertions about a recorded run."""

from __future__ import annotations

import html
import itertools
import math
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from ..protocol.finding import Finding
from ..protocol.rules import RULES
from ..protocol.selection import resolve_codes, resolve_for_runs
from ..protocol.severities import ERROR, INFO, WARNING
from ..protocol.sites import Site
from ..protocol.suppressions import Suppressions
from .record.attach import begin_recording, end_recording
from .record.cells import find_suppressed_text, locate_finding
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
    from .record.non_finite.causes import NonFiniteCause
    from .record.non_finite.records import NonFiniteRecord
    from .replay.replay import Replay

#: Largest number of findings, skipped-step rows and scale changes that one assertion message lists.
SHOWN = 10


class Run:
    """The data of one recording.

    A run can be queried during the recording and after its end, also after an exception.
    """

    def __init__(self, recorder: Recorder, *, title: str = "") -> None:
        self._recorder = recorder
        self.title = title
        self.dtypes: Dtypes | None = None
        self.numerics: Numerics | None = None
        self.memory: Memory | None = None
        #: True if the gradient norm of each step is measured at the step. False: the norm is the value that the
        #: program's clipping computed.
        self.norms = False
        #: The message for the torch exception that ended the run, if the exception is a known mixed-precision error;
        #: else None.
        self.ended_by: Message | None = None
        self._stop_position: tuple[str, int] | None = None
        #: Set by ``amp.run``: runs the same steps again. None for a plain ``record()``.
        self.replay: Replay | None = None
        #: Set by the fixture ``amp``: the baseline files of the running test. None without the fixture.
        self.baselines: Baselines | None = None
        self._selected_rules: frozenset[str] = resolve_for_runs(None, (), RULES)
        #: True if suppression comments in the source silence findings.
        self.suppress = True
        self._suppressions: dict[str, Suppressions] = {}

    @property
    def findings(self) -> list[Finding]:
        """The findings so far, sorted by source location. Disabled rules and suppression comments remove findings."""
        found = self._recorder.findings(self._selected_rules)
        return [locate_finding(finding) for finding in found if not self._is_suppressed(finding)]

    @property
    def explanations(self) -> list[Finding]:
        """The findings that explain the torch exception that ended the run. Empty without such an exception."""
        codes = () if self.ended_by is None else ("AMP810", *self.ended_by.rule_codes)
        return [finding for finding in self.findings if finding.code in codes]

    def _is_suppressed(self, finding: Finding) -> bool:
        if not self.suppress:
            return False
        path, text, finding = find_suppressed_text(finding)
        if path not in self._suppressions:
            self._suppressions[path] = Suppressions.from_text(text)
        return self._suppressions[path].suppresses_finding(finding)

    def select(self, *words: str) -> Run:
        """Select the rules by codes, prefixes, names or ALL, and return this run.

        Raise ``UnknownRule`` for an unknown word.
        """
        self._selected_rules = resolve_codes(words, (), RULES)
        return self

    @property
    def failure(self) -> Exception | None:
        """The exception that ended the recording early, usually None.

        The recorded program continues after such an exception.
        """
        return self._recorder.recording.failure

    def __repr__(self) -> str:
        """Return steps, skips, the first and the last loss scale, and the codes of the findings."""
        return f"<Run: {self._summarize()}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Write the summary and the findings as text, which IPython shows in a terminal."""
        lines = [line for finding in self.findings for line in finding_lines(finding)]
        printer.text("\n".join([repr(self), *lines]))

    def _repr_html_(self) -> str:
        """Return the summary and the findings as HTML, which notebooks show."""
        rows = "".join(
            f"<tr><td>{finding.code}</td><td>{finding.severity}</td><td>{html.escape(_describe_place(finding))}</td>"
            f'<td style="text-align: left">{html.escape(finding.message)}</td></tr>'
            for finding in self.findings
        )
        table = f"<table>{rows}</table>" if rows else ""
        return f"<p>{html.escape(self._summarize())}</p>{table}"

    def _summarize(self) -> str:
        total = self.steps_total
        counted = "1 step" if total == 1 else f"{total} steps"
        parts = [f"{counted}, {self.skipped_total} skipped" if total else "no step"]
        if scales := [scale for _, scale in self.scale_history]:
            parts.append(f"loss scale {scales[0]:g}" + (f" to {scales[-1]:g}" if len(scales) > 1 else ""))
        codes = [finding.code for finding in self.findings]
        parts.append(f"findings: {', '.join(sorted(set(codes)))}" if codes else "no findings")
        return ", ".join(parts)

    def _all_steps(self) -> StepLog:
        """Return the complete log of steps and totals. Wait for the GPU if recorded numbers are still on the device."""
        self._recorder.recording.deferred_values.fetch_all()
        return self._recorder.recording.steps

    @property
    def steps(self) -> Sequence[StepRecord]:
        """The latest steps of all optimizers, in order. The oldest steps of a long run are dropped."""
        return self._all_steps().recent_steps

    @property
    def steps_total(self) -> int:
        """The number of steps of all optimizers, applied or skipped."""
        return self._all_steps().total

    @property
    def skipped_total(self) -> int:
        """The number of steps that a scaler skipped."""
        return self._all_steps().skipped_count

    @property
    def scale_history(self) -> list[tuple[int, float]]:
        """Pairs (step index, loss scale from this step on), one for each change of the scale."""
        return list(self._all_steps().scale_history)

    def as_dict(self) -> dict[str, Any]:
        """Return all recorded data as plain data for JSON."""
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
        """Return the advice that follows from the run, each with an action ``what`` and the measured ``evidence``.

        Nothing is applied.

        Possible advice: an initial scale at which the first steps are not skipped. With ``numerics``: modules whose
        gradients underflow, or whose outputs are close to the float16 limit. With ``memory``: the reason why mixed
        precision needs more memory than float32, if it does; and with a memory budget the largest memory consumers.
        """
        from .advice import advise

        return advise(self.steps, self.steps_total, self.dtypes, self.numerics, self.memory)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row of plain data for each kept step.

        With ``numerics``, each sampled step has "underflow": the share (0 to 1) of its gradients that float16 rounds to
        zero at the loss scale. With ``memory``, each step has "memory": the peak in bytes since the previous step.
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
        """Return all recorded data as JSON, and also write the JSON to ``path`` if given."""
        from .exports import as_json

        text = as_json(self.as_dict())
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return text

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with one row for each step; see ``rows``.

        Raise ImportError without pandas.
        """
        from .exports import as_dataframe

        return as_dataframe(self.rows())

    def to_tensorboard(self, into: Any) -> None:
        """Write scale, skips, underflow, memory, loss and gradient norm of each step for TensorBoard.

        ``into`` is a folder or a ``SummaryWriter``. Raise ImportError if ``into`` is a folder and tensorboard is not
        installed.
        """
        from .exports import write_tensorboard

        write_tensorboard(self.rows(), into)

    def to_wandb(self, into: Any = None) -> None:
        """Log the figures of ``to_tensorboard`` to Weights & Biases.

        ``into`` is a wandb run. None stands for the active run; raise ValueError if no run is active.
        """
        from .exports import write_wandb

        write_wandb(self.rows(), into)

    # Assertions.

    def assert_no_findings(self, allow: Iterable[str] = (), *, allow_no_steps: bool = False) -> None:
        """Fail if the run has an error or a warning of a rule that ``allow`` (codes, prefixes or names) does not list.

        A recording without any optimizer step also fails, because nothing was checked. ``allow_no_steps=True`` permits
        such a recording.
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
                "No training step was recorded: no optimizer was stepped in this thread during the recording"
                " (pass allow_no_steps=True if that is expected)"
            )

    def _assert_recorded(self) -> None:
        __tracebackhide__ = True
        if self.failure is not None:
            error = f"{type(self.failure).__name__}: {self.failure}"
            raise AssertionError(
                f"The recorder failed ({error}), so this run was not recorded to its end: please report it"
            )

    def assert_finite(self) -> None:
        """Fail if a loss, gradient, parameter or statistic was not finite. The message names the cause.

        A step that a scaler skipped because of a too large loss scale does not fail. A loss that is not finite at any
        scale does. Raise ValueError if the recording does not watch for non-finite values, as with ``memory=True``.
        """
        __tracebackhide__ = True
        self._assert_recorded()
        if not self._recorder.nonfinite_reports.is_watching:
            raise ValueError(
                "This run was recorded with memory=True, which leaves out the watch for what is not finite"
            )
        found = [locate_finding(each) for each in self._recorder.findings(frozenset({"AMP801", "AMP802"}))]
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
        """The number of backward passes that started from a non-finite loss, including skipped steps."""
        return self._recorder.nonfinite_reports.bad_losses

    @property
    def first_bad_loss(self) -> int | None:
        """The index, counted from 0, of the first step with a non-finite loss; None if every loss was finite."""
        return self._recorder.nonfinite_reports.first_bad_loss

    def assert_scale(
        self,
        minimum: float | None = None,
        maximum: float | None = None,
        max_skipped: int | None = None,
        recovers_within: int | None = None,
        grows: bool | None = None,
    ) -> None:
        """Fail if the loss scale leaves the given limits.

        ``minimum`` and ``maximum`` bound the scale after every update. ``max_skipped`` bounds the total number of
        skipped steps. ``recovers_within`` bounds the length of any run of consecutive skipped steps. ``grows``: True if
        the scale must have grown, False if the scale must not have grown. The assertion fails if no step ran through an
        enabled scaler, because nothing was checked.
        """
        __tracebackhide__ = True
        if all(x is None for x in (minimum, maximum, max_skipped, recovers_within, grows)):
            raise ValueError("assert_scale() was given nothing to check: pass minimum=, maximum=, max_skipped=, ...")
        self._assert_recorded()
        steps = self._all_steps()
        if steps.lowest_scale is None or steps.highest_scale is None:
            raise AssertionError(
                "No enabled GradScaler made a step in this recording, so its scale cannot be checked: step through"
                " `scaler.step(optimizer)`, or leave this assertion out for bfloat16, which needs no scaler; on a"
                " machine without CUDA a GradScaler for cuda switches itself off (use emulate_cuda(), --amp-device"
                " emulate or GradScaler('cpu'))"
            )
        wrong = []
        values = list(steps.scale_history)
        if minimum is not None and steps.lowest_scale < minimum:
            when = _first_step_text(values, lambda scale: scale < minimum)
            below = f"{_format_scale(steps.lowest_scale)}, below {_format_scale(minimum)}{when}"
            wrong.append(
                f"the scale fell to {below}: gradients overflow again and again"
                if steps.skipped_count
                else f"the scale was {below}, and no step was skipped: begin with a larger `init_scale`"
            )
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
        """Fail if a dtype differs from the expected dtype; see the function ``assert_dtypes``.

        Needs ``record(dtypes=True)``.
        """
        __tracebackhide__ = True
        from .measure.dtypes import assert_dtypes

        assert_dtypes(self._require_part(self.dtypes, "dtypes"), expected)

    def assert_underflow(self, *, below: float, without_scaling: bool = False) -> None:
        """Fail if float16 rounds too many gradients to zero; see the function ``assert_underflow``."""
        __tracebackhide__ = True
        from .measure.numerics import assert_underflow

        assert_underflow(self._require_part(self.numerics, "numerics"), below=below, without_scaling=without_scaling)

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
        """Fail if memory exceeds a limit, in bytes or as ``"1.5 GiB"``; see the function ``assert_memory``.

        Needs ``record(memory=True)``.
        """
        __tracebackhide__ = True
        from .measure.memory import assert_memory

        assert_memory(
            self._require_part(self.memory, "memory"),
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
        """Fail if dtypes, memory, skipped steps or the loss scale differ from the baseline of this test.

        Baselines are files beside the tests in ``amp_baselines``, with one entry for each kind of device and torch
        version. ``pytest --amp-update-baselines`` writes the files. ``memory`` is the allowed relative difference of
        each memory category (default 0.02); all other data must be equal. ``name`` distinguishes several runs of one
        test. Only recorded data is compared: ``amp.record(model, dtypes=True, memory=True)``. Needs the fixture
        ``amp``; raise ValueError without the fixture.
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
        """Fail if the same steps in float32 train differently; see the function ``assert_matches_fp32``."""
        __tracebackhide__ = True
        from .replay.precision import assert_matches_fp32

        assert_matches_fp32(
            self._required_replay("assert_matches_fp32"), rtol=rtol, atol=atol, updates=updates, what=what
        )

    def assert_accumulation_equivalent(
        self, k: int, *, whole: Callable[[Any], object] | None = None, rtol: float = 0.02
    ) -> None:
        """Fail if k micro-batches train differently from one batch of the same data.

        See the function ``assert_accumulation_equivalent``.
        """
        __tracebackhide__ = True
        from .replay.accumulation import assert_accumulation_equivalent

        assert_accumulation_equivalent(
            self._required_replay("assert_accumulation_equivalent"), k, whole=whole, rtol=rtol
        )

    def assert_resumes(
        self, save: Callable[..., Any], load: Callable[[Any], object], *, at: int | None = None, rtol: float = 0.0
    ) -> None:
        """Fail if training from a checkpoint differs from uninterrupted training. The message names the missing state.

        See the function ``assert_resumes``.
        """
        __tracebackhide__ = True
        from .replay.resuming import assert_resumes

        assert_resumes(self._required_replay("assert_resumes"), save, load, at=at, rtol=rtol)

    def assert_speedup(self, *, over_fp32: float, pairs: int = 9) -> float:
        """Fail if the steps are not faster than in float32 by the factor ``over_fp32``. Return the measured factor.

        Needs a GPU.

        See the function ``assert_speedup``.
        """
        __tracebackhide__ = True
        from .replay.speed import assert_speedup

        return assert_speedup(self._required_replay("assert_speedup"), over_fp32=over_fp32, pairs=pairs)

    def _require_part(self, collector: Any, option: str) -> Any:
        """Return the collected data of an option. Raise ValueError with the call to change if the option was off."""
        __tracebackhide__ = True
        if collector is None:
            opened = "record()" if self.replay is None else "run_steps()"
            if self.baselines is not None:
                opened = "amp.record()" if self.replay is None else "amp.run()"
            raise ValueError(f"This run was recorded without its {option}: pass {option}=True to {opened}")
        return collector

    def _required_replay(self, what: str) -> Replay:
        __tracebackhide__ = True
        if self.replay is None:
            raise ValueError(
                f"{what}() has to run the steps again, and record() cannot: use `run = amp.run(step, batches)` of the"
                " fixture amp, or pytest_amp_check.run_steps(step, batches)"
            )
        return self.replay


def _describe_place(finding: Finding) -> str:
    """Return the location of a finding. In a notebook, the file is the one that shows the location."""
    return finding.site.location_text if finding.cell is None else f"cell {finding.cell}, line {finding.line}"


def _format_scale(scale: float) -> str:
    """Format a loss scale, with the power of two if the scale is one: "65536 (2^16)"."""
    fraction, exponent = math.frexp(scale)
    return f"{scale:g} (2^{exponent - 1})" if fraction == 0.5 and scale != 1.0 else f"{scale:g}"


def _first_step_text(history: Sequence[tuple[int, float]], is_wrong: Callable[[float], bool]) -> str:
    """Return ", first at step N" for the first scale that satisfies ``is_wrong``, or "" if no kept scale does."""
    first_index = next((index for index, scale in history if is_wrong(scale)), None)
    return "" if first_index is None else f", first at step {first_index}"


def _format_steps(steps: Sequence[int]) -> str:
    """Format step numbers as ranges: " (steps 2, 5 to 8)". Return "" without steps."""
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
    """Return the longest run of consecutive numbers; the first run of several with equal length."""
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
    """Replay a non-finite step to find its cause. The replay module is imported only for such a step."""
    from .replay.first_non_finite import explain_nonfinite

    return explain_nonfinite(nonfinite)


def shown_location(site: Site) -> str:
    """Return a source location for people, with a path that is relative to the working folder if the file is inside."""
    try:
        folder = os.getcwd()
    except OSError:  # a working folder that was removed
        return site.location_text
    return site.location_text.removeprefix(os.path.join(folder, ""))


def finding_lines(finding: Finding) -> list[str]:
    lines = [f"{shown_location(finding.site)}: {finding.code} [{finding.severity}] {finding.name}: {finding.message}"]
    lines += [f"    {number}. {shown_location(step.site)}: {step.text}" for number, step in enumerate(finding.trace, 1)]
    if finding.severity != INFO:
        lines.append(f"    amp-check explain {finding.code}")
    return lines


class record:  # noqa: N801 - used like a function: `with record() as run:`
    """A context manager that records the training of the current thread and returns a ``Run``.

    The results of the training do not change. Every call is passed on unchanged, and no random numbers are drawn. All
    patches are removed at the end, also after an exception. Recordings can be nested.

    ``model`` gives the collected data parameter names and module names. With ``search`` the model is looked up among
    all objects as the owner of the optimizers' parameters. ``dtypes``, ``ops``, ``numerics``, ``memory`` and ``norms``
    cost time and are collected only on request:

    - ``dtypes``: dtypes of module outputs, parameters, gradients and optimizer state.
    - ``ops``: dtypes of every op.
    - ``numerics``: histograms of gradient magnitudes. ``numerics=10`` samples every tenth step.
    - ``memory``: memory by category. ``memory="1.5 GiB"`` is a budget: reports draw a line at the budget, and advice
      refers to the budget. Only ``run.assert_memory`` fails.
    - ``norms``: the unscaled gradient norm of every step.
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
        # Replaying a step keeps tensors alive, and the memory figures would include these tensors.
        self._recorder.nonfinite_reports.explain = None if memory else _explain_nonfinite
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

            # Discovery gives names to the data of the other collectors, so it must come first.
            collectors.insert(0, Discovery(collectors))
        if memory:
            from .measure.memory import Memory

            self.run.memory = Memory(model, budget=memory if isinstance(memory, str) else None)
            # The dispatch mode of Memory must be the outermost mode to see the allocations that inner modes make.
            collectors.insert(0, self.run.memory)

    def show_from(self, frame: FrameType) -> None:
        """Hide the frames above this frame in the call chains that lead to source locations."""
        self._recorder.recording.sites.show_from(frame)

    def __enter__(self) -> Run:
        begin_recording(self._recorder)
        return self.run

    def broken_by(self, error: BaseException) -> None:
        """Store the exception that ended the recorded program, also if the exception stays in the ``with`` block."""
        self._is_broken = True
        if isinstance(error, SystemExit) and error.__context__ is not None:
            # Code such as torch.multiprocessing.spawn handles an exception by exiting; the handled exception is the
            # real cause.
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
