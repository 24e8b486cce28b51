"""Losses, gradients and statistics that are not finite, and what a program called since gradients were last used."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ....protocol import events as e
from ....protocol.events import Site
from ..forwards import _compiled
from ..graph import tensors, values
from ..loose_ops import LooseOps
from ..recording import Recording
from ..sums import can_follow
from ..tape import Call, Slot, Tape, user_frame
from ..tracked import TrackedOptimizer, TrackedScaler
from .listener import Listener, listens

if TYPE_CHECKING:
    from ..tracked import BackwardPass

#: Findings of one recording: what comes later is mostly a consequence.
MOST = 4
#: Steps that a scaler has skipped without cause for an alarm, after which only long rows of skips are looked into.
TRIALS = 4
#: Skips in a row that no search for a scale needs, see AMP801.
IN_A_ROW = 8

LOSS, GRADIENTS, STATISTICS, PARAMETERS, SKIPPED = "loss", "gradients", "statistics", "parameters", "skipped"


class Pass(NamedTuple):
    """A backward pass: what it ran from, as slots of the tape, and the values that were not given by the tape."""

    roots: tuple[Slot | None, ...]
    site: Site
    scale: float
    value: float | None


class Alarm(NamedTuple):
    """Something is not finite: ``what``, in which step, counted from 0, and what has been called until then."""

    what: str
    step: int
    calls: dict[int, Call]
    backward: Pass | None
    params: Sequence[torch.Tensor]
    optimizers: Sequence[torch.optim.Optimizer]
    buffers: Sequence[tuple[nn.Module, str]]
    place: Callable[[Sequence[tuple[CodeType, int]]], Site]


class Cause(NamedTuple):
    """What has been found out: a label of the rule, where, the words of its message, and the path that led there."""

    how: str
    site: Site | None
    names: dict[str, str]
    witness: tuple[tuple[Site, str], ...]


#: Finds out where something that is not finite came from; None where that is no mistake.
Explain = Callable[[Alarm], Cause | None]


class Finite(Listener):
    """Looks at each backward pass whether loss and gradients are finite, and has it explained where they are not."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: Set by whoever makes the recording; without it nothing is watched.
        self.explain: Explain | None = None
        self._tape = Tape()
        self._ops = LooseOps(self._op_begins)
        self._compiled = _compiled()
        #: Whether ops before the first module of a step are few enough to be seen.
        self._early = True
        self._running: Pass | None = None
        self._last: Pass | None = None
        self._found = 0
        self._trials = 0
        #: Modules with statistics, by the outermost module that was called.
        self._statistics: dict[int, tuple[nn.Module, list[tuple[nn.Module, str]]]] = {}
        self._told: set[tuple[int, str]] = set()
        self._fed: Sequence[torch.optim.Optimizer] = ()

    @property
    def _watches(self) -> bool:
        return self.explain is not None and self._found < MOST

    # What is called.

    @listens
    def module_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        self._ops.end()
        if not self._watches or self.recording.backwards:
            return None
        if not torch.is_grad_enabled() or torch.jit.is_tracing():
            return None
        if id(module) not in self._statistics:
            self._statistics[id(module)] = module, list(_statistics(module))
        return self._tape.begin(module, args, kwargs, user_frame(sys._getframe(3)))

    @listens
    def module_ended(self, call: Call | None, result: Any) -> None:
        if call is None:
            return
        self._tape.end(call, result)
        self._watch_ops()

    def _watch_ops(self) -> None:
        """See ops outside of modules, unless code is compiled, which would have to be done anew."""
        if _compiled() == self._compiled:
            self._ops.begin()

    def _op_begins(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None
    ) -> Callable[[Any], None] | None:
        if self.recording.busy or self.recording.failure is not None:
            return None
        if function in _RUNS_BACKWARD:
            return None
        try:
            call = self._tape.begin(function, args, kwargs, frame)
        except Exception as error:  # noqa: BLE001 - as for every listener
            self.recording.failure = error
            return None
        return lambda result: self._tape.end(call, result)

    # Backward passes.

    def backward_begins(self, outputs: Any, site: Site) -> None:
        """Called by the listener of backward passes, as those below are by others."""
        if self._ops.exhausted:
            self._early = self._early and bool(self._tape.calls)
        self._ops.end()
        self._running = None
        if not self._watches:
            return
        self._tape.prune()
        roots = tensors(outputs)
        if not roots or not can_follow(roots[0]):
            return
        # On a GPU this number would have to be waited for.
        on_cpu = _is_here(roots[0])
        value = float(roots[0].detach().sum()) if on_cpu else None
        self._running = Pass(tuple(self._tape.slot(root) for root in roots), site, 1.0, value)

    def backward_ended(self, running: BackwardPass, fed: Sequence[torch.optim.Optimizer]) -> None:
        last, self._running = self._running, None
        self._last, self._fed = last, fed
        if last is None or last.value is None:
            self._tape.clear()
            return
        scaled = running.event.subject is not None
        if scaled:
            self._last = last._replace(scale=running.scale.value)
        params = [p for optimizer in fed for group in optimizer.param_groups for p in group["params"]]
        if not math.isfinite(last.value):
            self._alarm(LOSS, params)
        elif not scaled and _not_finite([p._grad for p in params]):
            self._alarm(GRADIENTS, params)
        else:
            self._look_at_statistics(params)
        if not scaled:
            self._tape.prune()

    def _look_at_statistics(self, params: Sequence[torch.Tensor]) -> None:
        bad = self._bad_statistics()
        if bad:
            self._told.update((id(module), name) for module, name in bad)
            self._alarm(STATISTICS, params, bad)

    def _bad_statistics(self) -> list[tuple[nn.Module, str]]:
        places = [place for _, found in self._statistics.values() for place in found]
        if not places or not _not_finite([getattr(module, name) for module, name in places]):
            return []
        return [
            (module, name)
            for module, name in places
            if (id(module), name) not in self._told and not _is_finite(getattr(module, name))
        ]

    # Steps.

    def step_begins(self) -> None:
        self._ops.end()

    def step_ended(self) -> None:
        """A step without a scaler."""
        if self._watches and self._early and self._last is not None and self._last.value is not None:
            self._watch_ops()

    def skipped(self, tracked: TrackedOptimizer, holder: TrackedScaler, optimizer: torch.optim.Optimizer) -> None:
        """A scaler has made a step, or skipped it because of its loss scale, or because of a gradient that is bad."""
        if self._last is None or self._last.value is None or not self._watches:
            return
        scaler = holder.scaler()
        if scaler is not None and tracked.skipped and math.isfinite(self._last.value):
            tracker = scaler._growth_tracker
            settled = tracker is not None and int(tracker.item()) > 0 and self._trials < TRIALS
            # Of the row that this one belongs to, all before it are counted.
            if settled or tracked.skips_in_a_row == IN_A_ROW:
                self._trials += 1
                params = [p for group in optimizer.param_groups for p in group["params"]]
                self._fed = [optimizer]
                self._alarm(SKIPPED, params)
        self._tape.prune()
        self.step_ended()

    def conclude(self) -> None:
        """The recording ends: what the last step has spoilt is seen by no later one."""
        self._ops.end()
        if not self._watches:
            return
        optimizers = [held for tracked in self.registry.optimizers.values() if (held := tracked.optimizer()) is not None]
        params = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
        here = [p.detach() for p in params if _is_here(p)]
        if not self._found and self.recording.steps.total and _not_finite(here):
            self._fed = optimizers
            self._alarm(PARAMETERS, params)
        self._look_at_statistics(params)
        self._tape.clear()
        self._statistics.clear()

    def _alarm(
        self, what: str, params: Sequence[torch.Tensor], buffers: Sequence[tuple[nn.Module, str]] = ()
    ) -> None:
        assert self.explain is not None
        total = self.recording.steps.total
        # What is seen when a step has ended belongs to that step.
        step = total - 1 if what in (PARAMETERS, SKIPPED) and total else total
        alarm = Alarm(
            what, step, self._tape.calls, self._last, params, self._fed, buffers, self.sites.chain
        )
        cause = self.explain(alarm)
        if cause is None:
            return
        self._found += 1
        if self._found >= MOST or cause.how in _LASTING:
            self._found = MOST
        site = cause.site or (self._last.site if self._last is not None else None)
        if site is None:
            site = next((self.sites.chain([call.place]) for call in self._tape.calls.values() if call.place), None)
        if site is None:
            site = Site("<unknown>", 1)
        self.recording.emit(
            e.NOT_FINITE, site, names=dict(cause.names), how=cause.how, step=step, witness=cause.witness
        )


#: Causes that spoil all steps that follow.
_LASTING = frozenset({"parameter", "state", "rate", "gradient"})
_RUNS_BACKWARD = frozenset({torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad})


def _statistics(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """The running statistics of a module and of those in it."""
    for each in module.modules():
        for name, buffer in each._buffers.items():
            if name.startswith("running_") and buffer is not None and buffer.is_floating_point() and _is_here(buffer):
                yield each, name


def _is_here(tensor: torch.Tensor) -> bool:
    """Whether a tensor's numbers may be asked for without waiting for a device."""
    return tensor.layout is torch.strided and tensor.untyped_storage().device.type == "cpu"


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(values(tensor.detach())).all())


def _not_finite(some: Sequence[torch.Tensor | None]) -> bool:
    """Whether any of some tensors holds a value that is not finite."""
    given = [tensor for tensor in some if tensor is not None and tensor.is_floating_point()]
    if not given:
        return False
    if all(tensor.layout is torch.strided for tensor in given):
        norms = torch._foreach_norm([tensor.detach() for tensor in given])
        if math.isfinite(float(torch.stack([norm.float() for norm in norms]).sum())):
            return False
    # The square of a large number may not be finite where the number is.
    return not all(_is_finite(tensor) for tensor in given)
