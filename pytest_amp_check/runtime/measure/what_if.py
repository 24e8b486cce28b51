"""What a recorded step would need if something about it were otherwise, told without running it again."""

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
from ...protocol.optable import policy
from .block import Block
from .recomputed import Interval, Unanswerable, Uses, as_recorded, peak_of, recomputed
from .stand_ins import without_values
from .storages import Storages
from .trace import FOREVER, Step, Stepped, values_in
from .without_values import Change, Replay, Replayed, in_a_later_micro_batch, intervals_of, replayed, unchanged

#: How many proposals to recompute modules are shown, and how many single modules are tried.
SHOWN, TRIED = 3, 60
#: Micro-batches that are told, as parts of the recorded one.
PARTS = (2, 4)
#: How much of a peak may be unknown for an answer to be right.
NEGLIGIBLE = 0.01
#: A module whose name ends in a number is one of a row.
_IN_ROW = re.compile(r"(?:(.*)\.)?(\d+)")


class WhatIf(NamedTuple):
    """What one change would do."""

    #: What is otherwise.
    change: str
    #: Bytes at the peak of the step then, and how many fewer they are; None where that cannot be told.
    peak: int | None
    saved: int | None
    #: What to write for it.
    how: str
    #: Why there is no answer.
    reason: str = ""
    #: What it changes: "checkpoint", "weights", "optimizer", "batch", or "accumulation", which trains on as much.
    kind: str = ""

    def __repr__(self) -> str:
        return f"<WhatIf {' '.join(_row(self))}>"


class WhatIfs(list[WhatIf]):
    """Answers, those that save most first. ``peak`` is that of the step as it was recorded, in bytes."""

    def __init__(self, answers: Iterable[WhatIf], peak: int) -> None:
        super().__init__(sorted(answers, key=lambda each: (each.saved is None, -(each.saved or 0))))
        self.peak = peak

    def __repr__(self) -> str:
        rows = [_row(each) for each in self]
        wide = max((len(row[0]) for row in rows), default=0)
        lines = [f"The step needs {format_size(self.peak)}. It would need"]
        lines += [f"  {peak:>10}  {change:<{wide}}  {saved}".rstrip() for change, peak, saved in rows]
        return "\n".join(lines)


def best(answers: WhatIfs, enough: int) -> list[WhatIf]:
    """Of each kind of change that trains on as much the smallest one with a peak of ``enough`` bytes, or the largest.

    Those that save most come first, and what saves next to nothing is left out.
    """
    found: dict[str, list[WhatIf]] = {}
    for each in answers:
        if each.kind != "batch" and each.saved is not None and each.saved > answers.peak * NEGLIGIBLE:
            found.setdefault(each.kind, []).append(each)
    chosen = []
    for of_one_kind in found.values():
        fit = [each for each in of_one_kind if each.peak is not None and each.peak <= enough]
        chosen.append(fit[-1] if fit else of_one_kind[0])
    return sorted(chosen, key=lambda each: -(each.saved or 0))


def _row(answer: WhatIf) -> tuple[str, str, str]:
    if answer.peak is None or answer.saved is None:
        return answer.change, "?", answer.reason
    part = answer.saved / max(1, answer.peak + answer.saved)
    less = "less" if answer.saved >= 0 else "more"
    return answer.change, format_size(answer.peak), f"{format_size(abs(answer.saved))} {less} ({abs(part):.1%})"


class Steps:
    """The recorded steps that a question is about: what all of them need at the most is what training needs.

    ``besides`` are bytes that no tensor accounts for.
    """

    def __init__(self, steps: Sequence[Step], *, as_cuda: bool, besides: int) -> None:
        self.as_cuda = as_cuda
        self._steps = steps
        self._besides = besides
        self._uses: dict[int, Uses] = {}
        self._same: dict[int, Replay] = {}
        self.peak = max((step.peak for step in steps), default=0) + besides

    def answer(self, kind: str, change: str, how: str, told: Callable[[Step], int]) -> WhatIf:
        """What ``told`` says of the peaks of all steps."""
        try:
            peaks = [self._checked(step, told) for step in self._steps]
        except Unanswerable as reason:
            return WhatIf(change, None, None, how, str(reason), kind)
        peak = max(peaks) + self._besides
        return WhatIf(change, peak, self.peak - peak, how, kind=kind)

    def _checked(self, step: Step, told: Callable[[Step], int]) -> int:
        if step.incomplete:
            raise Unanswerable(step.incomplete)
        return told(step)

    def uses(self, step: Step) -> Uses:
        found = self._uses.get(id(step))
        if found is None:
            found = self._uses[id(step)] = Uses(step)
        return found

    def _replayed(self, step: Step, change: Change) -> Replayed:
        if id(step) not in self._same:
            self._same[id(step)] = unchanged(step)
        return replayed(step, change, self._same[id(step)])

    def names(self) -> list[str]:
        """The modules that were called, in the order of their first calls."""
        return list(dict.fromkeys(call.name for step in self._steps for call in step.calls if call.end < FOREVER))

    def rounded(self, size: int) -> int:
        return -(-size // 512) * 512 if self.as_cuda else size

    def checkpoint(self, names: Sequence[str], change: str = "") -> WhatIf:
        """Modules that are computed again in the backward pass."""
        called = set(self.names())

        def told(step: Step) -> int:
            there = {call.name for call in step.calls}
            return peak_of(recomputed(self.uses(step), [n for n in names if n in there or n not in called]))

        how = "torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False) for " + ", ".join(names)
        return self.answer("checkpoint", change or f"checkpoint {', '.join(names)}", how, told)

    def proposals(self) -> Iterator[WhatIf]:
        """Modules in rows, all of a row and every second, and the single module that saves most."""
        names = self.names()
        found = []
        for row, inner in _rows(names).items():
            title = f"{row} ({len(inner)} modules)" if row else f"{inner[0]} to {inner[-1]}"
            found.append(self.checkpoint(inner, f"checkpoint {title}"))
            if len(inner) >= 4:
                found.append(self.checkpoint(inner[::2], f"checkpoint every second of {title}"))
        found.sort(key=lambda each: -(each.saved or 0))
        kept = self._kept()
        largest = sorted(names, key=lambda name: kept[name], reverse=True)[:TRIED]
        single = max((self.checkpoint([name]) for name in largest), key=lambda each: each.saved or 0, default=None)
        yield from (each for each in found[: SHOWN - 1] if each.saved is not None and each.saved > 0)
        if single is not None and single.saved is not None and single.saved > 0:
            yield single

    def _kept(self) -> Counter[str]:
        """Bytes that were made in calls of each module, and were still there when the call had ended."""
        kept: Counter[str] = Counter()
        for step in self._steps:
            # In the order in which they were born.
            made = sorted(
                (life.born, life.died, step.sizes[block]) for block, life in step.lives.items() if life.born > 0
            )
            for call in step.calls:
                inside = made[bisect_left(made, (call.start,)) : bisect_left(made, (call.end,))]
                kept[call.name] += sum(size for _, died, size in inside if died > call.end)
        return kept

    def low_weights(self) -> WhatIf:
        """``model.to(torch.bfloat16)``; without autocast its inputs are then of bfloat16, too."""

        def told(step: Step) -> int:
            if step.vain_casts > step.peak * NEGLIGIBLE:
                size = format_size(step.vain_casts)
                raise Unanswerable(f"the program casts {size} to float32 that are of it now, and would be copies then")
            lowered = _lowered(step)
            try:
                low = self._replayed(step, Change(lowered))
            except Unanswerable:
                # As recurrent layers make their first state of the dtype of what they are given.
                made = _made_in_modules(step)
                if made <= lowered:
                    raise
                low = self._replayed(step, Change(lowered | made))
            self._refuse_new_casts(step, low)
            return peak_of(intervals_of(step, low, self.rounded))

        how = "model.to(torch.bfloat16), and without autocast the batch and its targets too"
        return self.answer("weights", "weights in bfloat16", how, told)

    def _refuse_new_casts(self, step: Step, low: Replayed) -> None:
        """Where autocast would cast to float32 what was of it, there is no answer: who keeps these is not known."""
        if not _in_low_precision(step):
            return
        kind = "cuda" if self.as_cuda else "cpu"
        cast = {name: size for name, size in low.given_low.items() if policy(kind, name).startswith("fp32")}
        if sum(cast.values()) > step.peak * NEGLIGIBLE:
            size, names = format_size(sum(cast.values())), ", ".join(sorted(cast))
            raise Unanswerable(f"autocast would cast {size} to float32 for {names} that are of it now")

    def smaller_batches(self, part: int, dim: int) -> Iterator[WhatIf]:
        """The batch that modules are given, cut along a dimension, and all of its parts one after the other."""
        known: dict[int, Replayed] = {}

        def smaller(step: Step) -> Replayed:
            if id(step) not in known:
                known[id(step)] = cut(step)
            return known[id(step)]

        def cut(step: Step) -> Replayed:
            batch = _batch_of(step, dim)
            if batch is None:
                raise Unanswerable("no tensor was given to a module, or not along that dimension")
            if batch % part:
                raise Unanswerable(f"a batch of {batch} cannot be cut into {part}")
            return self._replayed(step, Change(dim=dim, batch=batch, smaller=batch // part))

        def alone(step: Step) -> int:
            return peak_of(intervals_of(step, smaller(step), self.rounded))

        def accumulated(step: Step) -> int:
            told = smaller(step)
            first = intervals_of(step, told, self.rounded)
            return max(peak_of(first), peak_of(in_a_later_micro_batch(self.uses(step), told, self.rounded)))

        yield self.answer("batch", f"1/{part} of the batch", f"give the model 1/{part} of the batch", alone)
        how = f"give the model {part} parts of the batch one after the other, and step after all of them"
        yield self.answer("accumulation", f"{part} micro-batches, accumulated", how, accumulated)

    def optimizers(self) -> Iterator[WhatIf]:
        """The other ways in which torch's own optimizers step."""
        stepped = [step.stepped for step in self._steps if step.stepped is not None]
        kinds = {_way(each, as_cuda=self.as_cuda) for each in stepped}
        for way, settings in _WAYS.items():
            if kinds != {way}:
                names = ", ".join(f"{key}={value}" for key, value in settings.items())
                yield self.answer(
                    "optimizer", f"{way} optimizer", f"{names} for the optimizer", partial(self._step, way)
                )

    def _step(self, way: str, step: Step) -> int:
        if step.stepped is None:
            raise Unanswerable("no optimizer stepped")
        now = _bytes_of_step(step.stepped, _way(step.stepped, as_cuda=self.as_cuda), as_cuda=self.as_cuda)
        then = _bytes_of_step(step.stepped, way, as_cuda=self.as_cuda)
        before, within = _around_step(step)
        start = sum(step.sizes[block] for block, life in step.lives.items() if life.born <= step.step_at < life.died)
        if abs((within - start) - now.peak) > max(4096, within // 200):
            raise Unanswerable(
                f"its step needs {format_size(within - start)} and not the {format_size(now.peak)} of torch's own"
            )
        more = then.state - now.state if step.stepped.has_state else 0
        return max(before + more, within + more + then.peak - now.peak)


def _around_step(step: Step) -> tuple[int, int]:
    """The peak outside of the optimizer's step, and that within it."""
    outside: list[Interval] = []
    within: list[Interval] = []
    for born, died, size in as_recorded(step):
        if died[0] > step.step_at:
            within.append((max(born, (step.step_at, 0)), died, size))
        if born[0] <= step.step_at:
            outside.append((born, died, size))
    return peak_of(outside), peak_of(within)


#: How optimizers step, and the arguments that say so.
_WAYS: dict[str, dict[str, bool]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "for-loop": {"foreach": False, "fused": False},
}


def _way(stepped: Stepped, *, as_cuda: bool) -> str:
    group = stepped.groups[0][0]
    if group.get("fused"):
        return "fused"
    foreach = group.get("foreach")
    return "foreach" if foreach or (foreach is None and as_cuda and "foreach" in group) else "for-loop"


class _StepBytes(NamedTuple):
    #: The most bytes above those that were there when the step began.
    peak: int
    #: Bytes of the optimizer's state.
    state: int


def _bytes_of_step(stepped: Stepped, way: str, *, as_cuda: bool) -> _StepBytes:
    """What one step of an optimizer needs, told by stepping tensors without values."""
    settings = _WAYS[way]
    if not stepped.kind.__module__.startswith("torch.optim."):
        raise Unanswerable(f"{stepped.kind.__name__} is not one of torch's own optimizers")
    absent = [name for name, wanted in settings.items() if wanted and name not in stepped.groups[0][0]]
    if absent:
        raise Unanswerable(f"{stepped.kind.__name__} has no argument {absent[0]}")
    with ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        stack.enter_context(without_values())
        groups: list[dict[str, Any]] = []
        for options, shapes in stepped.groups:
            parameters = []
            for shape, dtype, has_gradient in shapes:
                parameter = torch.nn.Parameter(torch.empty(shape, dtype=dtype))
                if has_gradient:
                    parameter.grad = torch.empty(shape, dtype=dtype)
                parameters.append(parameter)
            known: dict[str, Any] = {
                name: settings.get(name, False) for name in ("foreach", "fused") if name in options
            }
            groups.append({**options, **known, "params": parameters})
        try:
            optimizer = stepped.kind(groups)  # type: ignore[call-arg]
            if stepped.has_state:
                optimizer.step()
            storages = Storages(torch.device("cpu"), as_cuda=as_cuda, fake=True)
            storages.include_optimizer(optimizer)
            storages.start()
            try:
                before = sum(storages.alive().values())
                optimizer.step()
                state = storages.alive().get("optimizer state", 0)
            finally:
                storages.stop()
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            raise Unanswerable(f"{stepped.kind.__name__} does not step so: {str(error).splitlines()[0]}") from error
    return _StepBytes(storages.ledger.peak_total - before, state)


def _rows(names: Sequence[str]) -> dict[str, list[str]]:
    """Names that end in numbers by what they begin with, where there are several."""
    rows: dict[str, list[str]] = {}
    for name in names:
        found = _IN_ROW.fullmatch(name)
        if found is not None:
            rows.setdefault(found[1] or "", []).append(name)
    return {row: inner for row, inner in rows.items() if len(inner) > 1}


def _batch_of(step: Step, dim: int) -> int | None:
    """The size of the first tensor that a module is given, along a dimension."""
    shape = next((call.shape for call in step.calls if call.shape), ())
    return shape[dim] if len(shape) > dim else None


def _in_low_precision(step: Step) -> bool:
    """Whether something of the forward passes is of low precision already, as under autocast."""
    return any(
        value.dtype in (torch.float16, torch.bfloat16) for op in step.ops if not op.backward for value in op.results
    )


def _lowered(step: Step) -> frozenset[Block]:
    """The blocks that a cast of the model to low precision changes from outside of the step."""
    entering: set[Block] = set()
    if not _in_low_precision(step):
        # A loss refuses targets of another dtype than what the model gives.
        entering.update(block for block in step.lives if block.category == "inputs")
        over = -1
        for call in step.calls:
            if call.start > over:
                over = call.end
                entering.update(block for block in call.given if block.category != "parameters")
    found = set(entering)
    for block, life in step.lives.items():
        if life.born < 0 and block.category in {"parameters", "gradients"}:
            found.add(block)
    for op in step.ops:
        for value in values_in((op.args, op.kwargs)):
            held = value.block
            # Not the numbers that optimizers and scalers count with.
            if held is None or held.category not in {"optimizer state", "other"} or sum(value.shape) <= 1:
                continue
            if step.lives[held].born < 0:
                found.add(held)
    return frozenset(found)


def _made_in_modules(step: Step) -> frozenset[Block]:
    """The blocks that modules make from nothing while they run forward."""
    calls = [(call.start, call.end) for call in step.calls]
    return frozenset(
        value.block
        for op in step.ops
        if not op.backward and next(iter(values_in((op.args, op.kwargs))), None) is None
        for value in op.results
        if value.block is not None and any(start < op.start < end for start, end in calls)
    )


def answers(
    steps: Sequence[Step], *, as_cuda: bool, besides: int, checkpoint: Sequence[str] | None, batch_dim: int
) -> WhatIfs:
    """What the steps would need; see :meth:`.memory.Memory.what_if`."""
    asked = Steps(steps, as_cuda=as_cuda, besides=besides)
    if checkpoint is not None:
        return WhatIfs([asked.checkpoint(list(checkpoint))], asked.peak)
    with _disable_current_modes():
        found = [
            *asked.proposals(),
            asked.low_weights(),
            *asked.optimizers(),
            *(each for part in PARTS for each in asked.smaller_batches(part, batch_dim)),
        ]
    return WhatIfs(found, asked.peak)
