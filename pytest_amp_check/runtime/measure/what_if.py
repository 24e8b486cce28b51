"""Estimates of a recorded step's memory under changes, without running the step again."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ...protocol.byte_sizes import format_size
from ...protocol.optable import find_policy
from .block import Block
from .meta_replay import (
    Change,
    MetaReplay,
    ReplayResult,
    intervals_of,
    later_microbatch_intervals,
    replay_changed,
    replay_unchanged,
)
from .recomputed import BlockUses, Interval, UnanswerableError, peak_of, recomputed_intervals, recorded_intervals
from .stand_ins import without_values
from .step_recording import FOREVER, OptimizerSpec, RecordedStep, values_in
from .storages import Storages

#: Largest number of proposals to recompute modules, and largest number of single modules that are tried.
SHOWN, TRIED = 3, 60
#: Numbers of micro-batches into which the recorded batch is cut.
PARTS = (2, 4)
#: Largest share of a peak that may be unknown in an answer.
NEGLIGIBLE = 0.01
#: A module name that ends in a number, such as "layers.3": one of a numbered row.
_IN_ROW = re.compile(r"(?:(.*)\.)?(\d+)")


class WhatIf(NamedTuple):
    """The effect of one change."""

    #: The change in words.
    change: str
    #: Peak of the step in bytes after the change, and bytes saved; None if there is no estimate.
    peak: int | None
    saved: int | None
    #: The code to write for the change.
    how: str
    #: The reason why there is no estimate, or "".
    reason: str = ""
    #: The kind of change: "checkpoint", "weights", "optimizer", "batch", or "accumulation", which keeps the amount of
    #: data.
    kind: str = ""

    def __repr__(self) -> str:
        return f"<WhatIf {' '.join(_format_row(self))}>"


class WhatIfs(list[WhatIf]):
    """Answers, largest saving first. ``peak`` is the recorded peak of the step in bytes."""

    def __init__(self, answers: Iterable[WhatIf], peak: int) -> None:
        super().__init__(sorted(answers, key=lambda each: (each.saved is None, -(each.saved or 0))))
        self.peak = peak

    def __repr__(self) -> str:
        rows = [_format_row(each) for each in self]
        wide = max((len(row[0]) for row in rows), default=0)
        lines = [f"The step needs {format_size(self.peak)}. It would need"]
        lines += [f"  {peak:>10}  {change:<{wide}}  {saved}".rstrip() for change, peak, saved in rows]
        return "\n".join(lines)


def best_answers(answers: WhatIfs, enough: int) -> list[WhatIf]:
    """Choose one answer of each kind of change that keeps the amount of training data.

    The smallest change whose peak is at most ``enough`` bytes is chosen, or else the largest change. The result is
    sorted, largest saving first. Negligible savings are omitted.
    """
    by_kind: dict[str, list[WhatIf]] = {}
    for each in answers:
        if each.kind != "batch" and each.saved is not None and each.saved > answers.peak * NEGLIGIBLE:
            by_kind.setdefault(each.kind, []).append(each)
    chosen = []
    for same_kind in by_kind.values():
        fit = [each for each in same_kind if each.peak is not None and each.peak <= enough]
        chosen.append(fit[-1] if fit else same_kind[0])
    return sorted(chosen, key=lambda each: -(each.saved or 0))


def _format_row(answer: WhatIf) -> tuple[str, str, str]:
    if answer.peak is None or answer.saved is None:
        return answer.change, "?", answer.reason
    part = answer.saved / max(1, answer.peak + answer.saved)
    less = "less" if answer.saved >= 0 else "more"
    return answer.change, format_size(answer.peak), f"{format_size(abs(answer.saved))} {less} ({abs(part):.1%})"


class WhatIfQuery:
    """The recorded steps of a question. The highest peak of all steps counts.

    ``extra_bytes`` are bytes without a tensor.
    """

    def __init__(self, steps: Sequence[RecordedStep], *, as_cuda: bool, extra_bytes: int) -> None:
        self.as_cuda = as_cuda
        self._steps = steps
        self._extra_bytes = extra_bytes
        self._uses: dict[int, BlockUses] = {}
        self._unchanged_replays: dict[int, MetaReplay] = {}
        self.peak = max((step.peak for step in steps), default=0) + extra_bytes

    def answer(self, kind: str, change: str, how: str, changed_peak: Callable[[RecordedStep], int]) -> WhatIf:
        """Return the answer for one change.

        ``changed_peak`` computes the new peak of a step or raises UnanswerableError.
        """
        try:
            peaks = [self._checked_peak(step, changed_peak) for step in self._steps]
        except UnanswerableError as reason:
            return WhatIf(change, None, None, how, str(reason), kind)
        peak = max(peaks) + self._extra_bytes
        return WhatIf(change, peak, self.peak - peak, how, kind=kind)

    def _checked_peak(self, step: RecordedStep, changed_peak: Callable[[RecordedStep], int]) -> int:
        if step.incomplete_reason:
            raise UnanswerableError(step.incomplete_reason)
        return changed_peak(step)

    def uses_of(self, step: RecordedStep) -> BlockUses:
        uses = self._uses.get(id(step))
        if uses is None:
            uses = self._uses[id(step)] = BlockUses(step)
        return uses

    def _replay_step(self, step: RecordedStep, change: Change) -> ReplayResult:
        if id(step) not in self._unchanged_replays:
            self._unchanged_replays[id(step)] = replay_unchanged(step)
        return replay_changed(step, change, self._unchanged_replays[id(step)])

    def module_names(self) -> list[str]:
        """Return the names of the called modules, in the order of their first calls."""
        return list(dict.fromkeys(call.name for step in self._steps for call in step.calls if call.end < FOREVER))

    def round_size(self, size: int) -> int:
        return -(-size // 512) * 512 if self.as_cuda else size

    def answer_checkpoint(self, names: Sequence[str], change: str = "") -> WhatIf:
        """Estimate the effect of recomputing these modules in the backward pass."""
        called = set(self.module_names())

        def changed_peak(step: RecordedStep) -> int:
            present_names = {call.name for call in step.calls}
            return peak_of(
                recomputed_intervals(self.uses_of(step), [n for n in names if n in present_names or n not in called])
            )

        how = "torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False) for " + ", ".join(names)
        return self.answer("checkpoint", change or f"checkpoint {', '.join(names)}", how, changed_peak)

    def propose_checkpoints(self) -> Iterator[WhatIf]:
        """Yield the best checkpoint proposals: rows of modules, every second module of a row, and the best module."""
        names = self.module_names()
        proposals = []
        for row, inner in _numbered_rows(names).items():
            title = f"{row} ({len(inner)} modules)" if row else f"{inner[0]} to {inner[-1]}"
            proposals.append(self.answer_checkpoint(inner, f"checkpoint {title}"))
            if len(inner) >= 4:
                proposals.append(self.answer_checkpoint(inner[::2], f"checkpoint every second of {title}"))
        proposals.sort(key=lambda each: -(each.saved or 0))
        kept_bytes = self._kept_bytes()
        largest = sorted(names, key=lambda name: kept_bytes[name], reverse=True)[:TRIED]
        single = max(
            (self.answer_checkpoint([name]) for name in largest), key=lambda each: each.saved or 0, default=None
        )
        yield from (each for each in proposals[: SHOWN - 1] if each.saved is not None and each.saved > 0)
        if single is not None and single.saved is not None and single.saved > 0:
            yield single

    def _kept_bytes(self) -> Counter[str]:
        """Return for each module the bytes created in its calls that were alive after the call."""
        kept_bytes: Counter[str] = Counter()
        for step in self._steps:
            # Sorted by creation.
            created = sorted(
                (life.created_at, life.freed_at, step.sizes[block])
                for block, life in step.lifetimes.items()
                if life.created_at > 0
            )
            for call in step.calls:
                inside = created[bisect_left(created, (call.start,)) : bisect_left(created, (call.end,))]
                kept_bytes[call.name] += sum(size for _, died, size in inside if died > call.end)
        return kept_bytes

    def answer_low_weights(self) -> WhatIf:
        """Estimate the effect of ``model.to(torch.bfloat16)``. Without autocast the inputs are then bfloat16, too."""

        def changed_peak(step: RecordedStep) -> int:
            if step.noop_cast_bytes > step.peak * NEGLIGIBLE:
                size = format_size(step.noop_cast_bytes)
                raise UnanswerableError(
                    f"the program casts {size} to float32 that are of it now, and would be copies then"
                )
            lowered_blocks = _lowered_blocks(step)
            try:
                low = self._replay_step(step, Change(lowered_blocks))
            except UnanswerableError:
                # For example, recurrent layers create their first state in the dtype of their input.
                created_blocks = _blocks_made_in_modules(step)
                if created_blocks <= lowered_blocks:
                    raise
                low = self._replay_step(step, Change(lowered_blocks | created_blocks))
            self._refuse_new_casts(step, low)
            return peak_of(intervals_of(step, low, self.round_size))

        how = "model.to(torch.bfloat16), and without autocast the batch and its targets too"
        return self.answer("weights", "weights in bfloat16", how, changed_peak)

    def _refuse_new_casts(self, step: RecordedStep, low: ReplayResult) -> None:
        """Raise UnanswerableError if autocast would cast lowered tensors back to float32.

        The lifetime of such copies is unknown.
        """
        if not _in_low_precision(step):
            return
        kind = "cuda" if self.as_cuda else "cpu"
        cast = {
            name: size for name, size in low.lowered_input_bytes.items() if find_policy(kind, name).startswith("fp32")
        }
        if sum(cast.values()) > step.peak * NEGLIGIBLE:
            size, names = format_size(sum(cast.values())), ", ".join(sorted(cast))
            raise UnanswerableError(f"autocast would cast {size} to float32 for {names} that are of it now")

    def answer_smaller_batches(self, part: int, dim: int) -> Iterator[WhatIf]:
        """Estimate the effect of a batch cut along a dimension: one of its parts alone, and all parts accumulated."""
        replays: dict[int, ReplayResult] = {}

        def replay_smaller(step: RecordedStep) -> ReplayResult:
            if id(step) not in replays:
                replays[id(step)] = replay_cut(step)
            return replays[id(step)]

        def replay_cut(step: RecordedStep) -> ReplayResult:
            batch = _batch_of(step, dim)
            if batch is None:
                raise UnanswerableError("no tensor was given to a module, or not along that dimension")
            if batch % part:
                raise UnanswerableError(f"a batch of {batch} cannot be cut into {part}")
            return self._replay_step(step, Change(dim=dim, batch_size=batch, smaller_size=batch // part))

        def peak_alone(step: RecordedStep) -> int:
            return peak_of(intervals_of(step, replay_smaller(step), self.round_size))

        def peak_accumulated(step: RecordedStep) -> int:
            result = replay_smaller(step)
            first = intervals_of(step, result, self.round_size)
            return max(peak_of(first), peak_of(later_microbatch_intervals(self.uses_of(step), result, self.round_size)))

        yield self.answer("batch", f"1/{part} of the batch", f"give the model 1/{part} of the batch", peak_alone)
        how = f"give the model {part} parts of the batch one after the other, and step after all of them"
        yield self.answer("accumulation", f"{part} micro-batches, accumulated", how, peak_accumulated)

    def answer_optimizers(self) -> Iterator[WhatIf]:
        """Estimate the effect of the other step implementations of torch's own optimizers."""
        optimizer_specs = [step.optimizer_spec for step in self._steps if step.optimizer_spec is not None]
        kinds = {_step_implementation(each, as_cuda=self.as_cuda) for each in optimizer_specs}
        for implementation, settings in _WAYS.items():
            if kinds != {implementation}:
                names = ", ".join(f"{key}={value}" for key, value in settings.items())
                yield self.answer(
                    "optimizer",
                    f"{implementation} optimizer",
                    f"{names} for the optimizer",
                    partial(self._optimizer_step_peak, implementation),
                )

    def _optimizer_step_peak(self, implementation: str, step: RecordedStep) -> int:
        if step.optimizer_spec is None:
            raise UnanswerableError("no optimizer stepped")
        current_bytes = _bytes_of_step(
            step.optimizer_spec, _step_implementation(step.optimizer_spec, as_cuda=self.as_cuda), as_cuda=self.as_cuda
        )
        changed_bytes = _bytes_of_step(step.optimizer_spec, implementation, as_cuda=self.as_cuda)
        outside, within = _peaks_around_step(step)
        start = sum(
            step.sizes[block]
            for block, life in step.lifetimes.items()
            if life.created_at <= step.step_at < life.freed_at
        )
        if abs((within - start) - current_bytes.peak) > max(4096, within // 200):
            raise UnanswerableError(
                f"its step needs {format_size(within - start)} and not the {format_size(current_bytes.peak)} of "
                f"torch's own"
            )
        more = changed_bytes.state - current_bytes.state if step.optimizer_spec.has_state else 0
        return max(outside + more, within + more + changed_bytes.peak - current_bytes.peak)


def _peaks_around_step(step: RecordedStep) -> tuple[int, int]:
    """Return the peak outside of the optimizer's step and the peak within the step."""
    outside: list[Interval] = []
    within: list[Interval] = []
    for start, end, size in recorded_intervals(step):
        if end[0] > step.step_at:
            within.append((max(start, (step.step_at, 0)), end, size))
        if start[0] <= step.step_at:
            outside.append((start, end, size))
    return peak_of(outside), peak_of(within)


#: Implementations of optimizer steps, and the arguments that select them.
_WAYS: dict[str, dict[str, bool]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "for-loop": {"foreach": False, "fused": False},
}


def _step_implementation(optimizer_spec: OptimizerSpec, *, as_cuda: bool) -> str:
    group = optimizer_spec.groups[0][0]
    if group.get("fused"):
        return "fused"
    foreach = group.get("foreach")
    return "foreach" if foreach or (foreach is None and as_cuda and "foreach" in group) else "for-loop"


class _StepBytes(NamedTuple):
    #: Peak in bytes above the bytes at the start of the step.
    peak: int
    #: Bytes of the optimizer's state.
    state: int


def _bytes_of_step(optimizer_spec: OptimizerSpec, implementation: str, *, as_cuda: bool) -> _StepBytes:
    """Return the memory of one optimizer step, measured with fake tensors."""
    settings = _WAYS[implementation]
    if not optimizer_spec.optimizer_class.__module__.startswith("torch.optim."):
        raise UnanswerableError(f"{optimizer_spec.optimizer_class.__name__} is not one of torch's own optimizers")
    absent = [name for name, wanted in settings.items() if wanted and name not in optimizer_spec.groups[0][0]]
    if absent:
        raise UnanswerableError(f"{optimizer_spec.optimizer_class.__name__} has no argument {absent[0]}")
    with ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        stack.enter_context(without_values())
        groups: list[dict[str, Any]] = []
        for options, shapes in optimizer_spec.groups:
            parameters = []
            for shape, dtype, has_gradient in shapes:
                parameter = torch.nn.Parameter(torch.empty(shape, dtype=dtype))
                if has_gradient:
                    parameter.grad = torch.empty(shape, dtype=dtype)
                parameters.append(parameter)
            chosen: dict[str, Any] = {
                name: settings.get(name, False) for name in ("foreach", "fused") if name in options
            }
            groups.append({**options, **chosen, "params": parameters})
        try:
            optimizer = optimizer_spec.optimizer_class(groups)  # type: ignore[call-arg]
            if optimizer_spec.has_state:
                optimizer.step()
            storages = Storages(torch.device("cpu"), as_cuda=as_cuda, fake=True)
            storages.include_optimizer(optimizer)
            storages.start()
            try:
                initial_bytes = sum(storages.alive().values())
                optimizer.step()
                state = storages.alive().get("optimizer state", 0)
            finally:
                storages.stop()
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            raise UnanswerableError(
                f"{optimizer_spec.optimizer_class.__name__} does not step so: {str(error).splitlines()[0]}"
            ) from error
    return _StepBytes(storages.ledger.peak_total - initial_bytes, state)


def _numbered_rows(names: Sequence[str]) -> dict[str, list[str]]:
    """Group names that end in numbers by their prefix; only groups of at least two names."""
    rows: dict[str, list[str]] = {}
    for name in names:
        match = _IN_ROW.fullmatch(name)
        if match is not None:
            rows.setdefault(match[1] or "", []).append(name)
    return {row: inner for row, inner in rows.items() if len(inner) > 1}


def _batch_of(step: RecordedStep, dim: int) -> int | None:
    """Return the size along ``dim`` of the first tensor that a module received, or None."""
    shape = next((call.input_shape for call in step.calls if call.input_shape), ())
    return shape[dim] if len(shape) > dim else None


def _in_low_precision(step: RecordedStep) -> bool:
    """Return True if the forward passes already use low precision, as under autocast."""
    return any(
        value.dtype in (torch.float16, torch.bfloat16) for op in step.ops if not op.in_backward for value in op.results
    )


def _lowered_blocks(step: RecordedStep) -> frozenset[Block]:
    """Return the blocks from outside of the step that a cast of the model to low precision changes."""
    entering: set[Block] = set()
    if not _in_low_precision(step):
        # Losses refuse targets whose dtype differs from the dtype of the model's output.
        entering.update(block for block in step.lifetimes if block.category == "inputs")
        last_end = -1
        for call in step.calls:
            if call.start > last_end:
                last_end = call.end
                entering.update(block for block in call.given_blocks if block.category != "parameters")
    lowered = set(entering)
    for block, life in step.lifetimes.items():
        if life.created_at < 0 and block.category in {"parameters", "gradients"}:
            lowered.add(block)
    for op in step.ops:
        for value in values_in((op.args, op.kwargs)):
            argument_block = value.block
            # Single numbers are the counters of optimizers and scalers, which stay float32.
            if (
                argument_block is None
                or argument_block.category not in {"optimizer state", "other"}
                or sum(value.shape) <= 1
            ):
                continue
            if step.lifetimes[argument_block].created_at < 0:
                lowered.add(argument_block)
    return frozenset(lowered)


def _blocks_made_in_modules(step: RecordedStep) -> frozenset[Block]:
    """Return the blocks that modules create without a tensor input during the forward pass."""
    calls = [(call.start, call.end) for call in step.calls]
    return frozenset(
        value.block
        for op in step.ops
        if not op.in_backward and next(iter(values_in((op.args, op.kwargs))), None) is None
        for value in op.results
        if value.block is not None and any(start < op.start < end for start, end in calls)
    )


def answer_what_if(
    steps: Sequence[RecordedStep], *, as_cuda: bool, extra_bytes: int, checkpoint: Sequence[str] | None, batch_dim: int
) -> WhatIfs:
    """Answer the questions of ``what_if``."""
    query = WhatIfQuery(steps, as_cuda=as_cuda, extra_bytes=extra_bytes)
    if checkpoint is not None:
        return WhatIfs([query.answer_checkpoint(list(checkpoint))], query.peak)
    with _disable_current_modes():
        all_answers = [
            *query.propose_checkpoints(),
            query.answer_low_weights(),
            *query.answer_optimizers(),
            *(each for part in PARTS for each in query.answer_smaller_batches(part, batch_dim)),
        ]
    return WhatIfs(all_answers, query.peak)
