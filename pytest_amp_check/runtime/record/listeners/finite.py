"""Losses, gradients and statistics that are not finite, and what a program called since gradients were last used."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from ....protocol import events as e
from ....protocol.events import Event, Site
from ..active import THREAD
from ..forwards import compiled
from ..graph import values
from ..late import KeptWeights, Reading, Weights
from ..loose_ops import LooseOps
from ..readings import Number
from ..recording import Recording
from ..sums import can_follow
from ..tape import Call, Slot, Tape, user_frame
from ..tracked import TrackedOptimizer, TrackedScaler
from .listener import Listener, listens

if TYPE_CHECKING:
    from ..tracked import BackwardPass

#: Findings of one recording: what comes later is mostly a consequence.
MOST = 4
#: Losses that a scaler skipped, each for a cause that is not told, after which no more are looked into.
QUIET = 16
#: Steps that a scaler has skipped without cause for an alarm, after which only long rows of skips are looked into.
TRIALS = 4
#: Elements of a gradient up to which all are looked at.
LARGE = 1 << 14
#: Skips in a row that no scaler needs once it has found its scale, and none before it has, see AMP801.
IN_A_ROW, WARM_UP = 8, 18

#: Overflows that the same step does not have in float32, and those of operands that are large already.
ONLY_LOW, OF_LARGE = "only low", "of large"
LOSS, GRADIENTS, STATISTICS, PARAMETERS, SKIPPED = "loss", "gradients", "statistics", "parameters", "skipped"


class Pass(NamedTuple):
    """A backward pass: what it ran from, as slots of the tape, and the values that were not given by the tape."""

    roots: tuple[Slot | None, ...]
    site: Site
    scale: float
    value: float | None
    scaled: bool
    #: The scale, where it lies on a device.
    number: Number | None = None


class Alarm(NamedTuple):
    """Something is not finite: ``what``, in which step, counted from 0, and what has been called until then."""

    what: str
    step: int
    calls: dict[int, Call]
    backward: Pass | None
    params: Sequence[torch.Tensor]
    optimizers: Sequence[torch.optim.Optimizer]
    buffers: Sequence[tuple[nn.Module, str]]
    #: Parameters that have changed since then, with what they were.
    weights: Weights
    place: Callable[[Sequence[tuple[CodeType, int]]], Site]


class Late(NamedTuple):
    """A backward pass of a device that has yet to say whether it was finite."""

    reading: Reading
    backward: Pass
    calls: dict[int, Call]
    step: int
    fed: list[weakref.ref[torch.optim.Optimizer]]


class Cause(NamedTuple):
    """What has been found out: a label of the rule, where, the words of its message, and the path that led there."""

    how: str
    site: Site | None
    names: dict[str, str]
    witness: tuple[tuple[Site, str], ...]
    #: Of a loss that is scaled: why its overflow may be what a scaler is there for.
    excuse: str = ""


class Waiting(NamedTuple):
    """A cause that is told unless the scale is found to sink: always, if the scaler never steps, or never."""

    event: Event
    told: bool
    lasting: bool


#: Finds out where something that is not finite came from; None where that is no mistake.
Explain = Callable[[Alarm], Cause | None]


class Finite(Listener):
    """Looks at each backward pass whether loss and gradients are finite, and has it explained where they are not."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: Set by whoever makes the recording; without it nothing is watched.
        self.explain: Explain | None = None
        self._tape = Tape()
        self._ops = recording.loose_ops = LooseOps(self._op_begins, self._tape.end)
        self._compiled = compiled()
        self._running: Pass | None = None
        self._last: Pass | None = None
        self._found = 0
        self._trials = self._quiet = 0
        #: Whether a scaler has made a step: its scale was found.
        self._stepped = False
        #: Steps whose loss was not finite: how many, and the first, counted from 0.
        self.bad_losses = 0
        self.first_bad_loss: int | None = None
        #: What a scaler may still show to be a scale that sinks, which says the same.
        self._waiting: list[Waiting] = []
        #: Modules with statistics, by the outermost module that was called.
        self._statistics: weakref.WeakKeyDictionary[nn.Module, list[tuple[weakref.ref[nn.Module], str]]] = (
            weakref.WeakKeyDictionary()
        )
        self._has_statistics = False
        self._told: set[tuple[int, str]] = set()
        #: Passes of a device, the oldest first, the loss of the one that runs, and the weights before the latest steps.
        self._late: list[Late] = []
        self._root: torch.Tensor | None = None
        self._kept = KeptWeights()

    @property
    def watches(self) -> bool:
        """Whether anything is watched."""
        return self.explain is not None

    @property
    def _watches(self) -> bool:
        return self.explain is not None and self._found < MOST

    # What is called.

    @listens
    def module_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        self._ops.end()
        if not self._watches or self.recording.backwards:
            return None
        if torch.is_inference_mode_enabled() or torch._C._get_tracing_state() is not None:
            return None
        if not torch.is_grad_enabled():
            # As a frozen encoder; an evaluation has many of them, and may keep all that they make.
            self._tape.drop_aside()
        elif module not in self._statistics:
            found = self._statistics[module] = list(_statistics(module))
            self._has_statistics |= bool(found)
        return self._tape.begin(module, args, kwargs, user_frame(sys._getframe(3)))

    @listens
    def module_ended(self, call: Call | None, result: Any) -> None:
        if call is None:
            return
        self._tape.end(call, result)
        self._watch_ops()

    def region_entered(self) -> None:
        """An autocast region is entered, in which the forward follows."""
        if self._watches and not self.recording.backwards and not THREAD.in_module:
            self._watch_ops()

    def _watch_ops(self) -> None:
        """See ops outside of modules, unless code is compiled, which would have to be done anew."""
        if compiled() == self._compiled:
            self._ops.begin()

    def _op_begins(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None
    ) -> Call | None:
        if self.recording.busy or self.recording.failure is not None:
            return None
        if function in _RUNS_BACKWARD:
            return None
        try:
            return self._tape.begin(function, args, kwargs, frame)
        except Exception as error:  # noqa: BLE001 - as for every listener
            self.recording.failure = error
            return None

    def scaled(self, loss: torch.Tensor, scale: torch.Tensor, result: Any) -> None:
        """A scaler has multiplied a loss by its scale, while :class:`LooseOps` was aside."""
        if self._ops.may_tell():
            factor = scale.to(device=loss.device, non_blocking=True)
            call = self._tape.begin(torch.Tensor.mul, (loss, factor), {}, user_frame(sys._getframe(1)))
            self._tape.end(call, result)

    # Backward passes.

    @listens
    def backward_called(self) -> None:
        if not self.recording.backwards:
            self._ops.end()

    def backward_begins(self, outputs: Sequence[torch.Tensor], site: Site) -> float | None:
        """Called by the listener of backward passes, as those below are by others; gives a loss that it has read."""
        self._ops.end()
        self._running = self._root = None
        if self.explain is None:
            return None
        roots = [root for root in outputs if root.is_floating_point()]
        if not roots or not all(map(can_follow, roots)):
            return None
        # On a GPU this number would have to be waited for.
        value = _total(roots) if all(map(_is_here, roots)) else None
        if not self._watches:
            if value is not None and not math.isfinite(value):
                self._saw_bad_loss(self.recording.steps.total)
            return None
        self._read_late(before=None)
        self._tape.prune()
        self._tape.passes += 1
        if value is None and _is_on_gpu(roots[0]):
            self._root = roots[0].detach()
        self._running = Pass(tuple(map(self._tape.slot, roots)), site, 1.0, value, False)
        return value if len(outputs) == 1 and roots[0].numel() == 1 else None

    def backward_ended(self, running: BackwardPass, fed: Sequence[torch.optim.Optimizer]) -> None:
        last, self._running = self._running, None
        self._last = last
        scaled = running.event.subject is not None
        if last is None or last.value is None:
            if last is not None and self._root is not None:
                self._send(last._replace(scaled=scaled), running, fed)
            else:
                self._tape.clear()
            self._root = None
            return
        if scaled:
            self._last = last._replace(scale=running.scale.value, scaled=True)
        if not math.isfinite(last.value):
            self._saw_bad_loss(self.recording.steps.total)
            self._alarm(LOSS, fed)
            # The same forward has spoilt them.
            self._told.update((id(module), name) for module, name in self._bad_statistics())
        elif not scaled and _spoilt([p._grad for p in _params(fed)]):
            self._alarm(GRADIENTS, fed)
        else:
            self._look_at_statistics(fed)
        if not scaled:
            self._tape.prune()

    def _send(self, last: Pass, running: BackwardPass, fed: Sequence[torch.optim.Optimizer]) -> None:
        """Ask a device whether loss and gradients are finite."""
        assert self._root is not None
        totals = [self._root.float().sum()]
        looked = [] if last.scaled else _looked([p._grad for p in _params(fed)])
        if looked and all(_is_on_gpu(gradient) for gradient in looked):
            norms = torch._foreach_norm([gradient.detach() for gradient in looked])
            totals.append(torch.stack([norm.float() for norm in norms]).sum())
        last = last._replace(number=running.scale)
        calls, step = dict(self._tape.calls), self.recording.steps.total
        self._late.append(Late(Reading(torch.stack(totals)), last, calls, step, [weakref.ref(each) for each in fed]))

    def _read_late(self, before: int | None) -> None:
        """Read what is there, and wait for what is about steps before one."""
        while self._late and self._watches:
            late = self._late[0]
            if not late.reading.is_there and (before is None or late.step >= before):
                return
            del self._late[0]
            value, *norms = late.reading.read()
            if not math.isfinite(value):
                what = LOSS
                self._saw_bad_loss(late.step)
            elif norms and not math.isfinite(norms[0]):
                what = GRADIENTS
            else:
                continue
            scale = late.backward.number.value if late.backward.scaled and late.backward.number is not None else 1.0
            last, calls = self._last, self._tape.calls
            self._last = late.backward._replace(value=value, scale=scale)
            self._tape.calls = late.calls
            fed = [optimizer for reference in late.fed if (optimizer := reference()) is not None]
            self._alarm(what, fed, at=late.step)
            self._last, self._tape.calls = last, calls

    def _saw_bad_loss(self, step: int) -> None:
        self.bad_losses += 1
        if self.first_bad_loss is None:
            self.first_bad_loss = step

    def _look_at_statistics(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        bad = self._bad_statistics()
        if bad:
            self._told.update((id(module), name) for module, name in bad)
            self._alarm(STATISTICS, optimizers, bad)

    def _bad_statistics(self) -> list[tuple[nn.Module, str]]:
        places = [
            (module, name)
            for found in (self._statistics.values() if self._has_statistics else ())
            for reference, name in found
            if (module := reference()) is not None and module._buffers.get(name) is not None
        ]
        if not places or not _not_finite([module._buffers[name] for module, name in places]):
            return []
        return [
            (module, name)
            for module, name in places
            if (id(module), name) not in self._told and not _is_finite(getattr(module, name))
        ]

    # Steps.

    def step_begins(self, optimizer: torch.optim.Optimizer) -> None:
        self._ops.end()
        if self._late:
            # What is kept for the step before gives way to what is kept for this one.
            total = self.recording.steps.total
            self._read_late(before=total)
            if self._late:
                self._kept.keep(optimizer, total)

    def skipped(self, tracked: TrackedOptimizer, holder: TrackedScaler, optimizer: torch.optim.Optimizer) -> None:
        """A scaler has made a step, or skipped it because of its loss scale, or because of a gradient that is bad."""
        if not tracked.skipped:
            self._stepped = True
            self._tell()
        if self._last is None or self._last.value is None or not self._watches:
            return
        scaler = holder.scaler()
        if scaler is not None and tracked.skipped and math.isfinite(self._last.value):
            tracker = scaler._growth_tracker
            settled = tracker is not None and int(tracker.item()) > 0 and self._trials < TRIALS
            # After this one the scale is below 1, and AMP801 says why.
            sinks = scaler.get_backoff_factor() <= scaler.get_backoff_factor() * self._last.scale < 1.0
            if settled or sinks or tracked.skips_in_a_row == (IN_A_ROW if self._stepped else WARM_UP):
                self._trials += 1
                self._alarm(SKIPPED, [optimizer])

    @property
    def waiting(self) -> Event | None:
        """The latest cause of steps that a scaler has skipped since it last made one."""
        return self._waiting[-1].event if self._waiting else None

    def _tell(self) -> None:
        for event, told, lasting in self._waiting:
            if told or (lasting and not self._stepped):
                self.recording.chain.add(event)
        self._waiting.clear()

    def conclude(self) -> None:
        """The recording ends: what the last step has spoilt is seen by no later one."""
        self._ops.end()
        self._look_at_the_end()
        chain = self.recording.chain
        if self._waiting:
            chain.settle()
            if not any(label.startswith("scale:") for label, _ in chain.judged):
                self._tell()
        self._tape.clear()
        self._statistics.clear()
        self._late.clear()
        self._kept.forget()

    def _look_at_the_end(self) -> None:
        self._read_late(before=self.recording.steps.total + 1)
        if not self._watches:
            return
        optimizers = [
            held for tracked in self.registry.optimizers.values() if (held := tracked.optimizer()) is not None
        ]
        here = [p.detach() for p in _params(optimizers) if _is_here(p) or _is_on_gpu(p)]
        if not self._found and self.recording.steps.total and _not_finite(here):
            self._alarm(PARAMETERS, optimizers)
        self._look_at_statistics(optimizers)

    def _alarm(
        self,
        what: str,
        optimizers: Sequence[torch.optim.Optimizer],
        buffers: Sequence[tuple[nn.Module, str]] = (),
        *,
        at: int | None = None,
    ) -> None:
        assert self.explain is not None
        total = self.recording.steps.total
        # What is seen when a step has ended belongs to that step.
        step = at if at is not None else total - 1 if what in (PARAMETERS, SKIPPED) and total else total
        chain = self.sites.of
        weights = [] if at is None else self._kept.before(at)
        alarm = Alarm(
            what, step, self._tape.calls, self._last, _params(optimizers), optimizers, buffers, weights, chain
        )
        scaled = self._last is not None and self._last.scaled and what in (LOSS, SKIPPED)
        if scaled and self._quiet >= QUIET:
            return
        with self.registry.replaying():
            cause = self.explain(alarm)
        if cause is None:
            return
        # The first scales may be too large for what is low, until one is found.
        lasting = scaled and what == LOSS and cause.excuse == ONLY_LOW and not self._stepped
        is_told = not scaled or what == SKIPPED or (self._is_told(cause) and not lasting)
        follows = self._found > 0
        # What a scaler is there for is looked into again and again only where it is told.
        self._found += is_told
        self._quiet += not is_told
        if cause.how in LASTING:
            self._found = MOST
            if follows:
                # Gradients that were not finite, and told of, have been applied.
                return
        site = cause.site or (self._last.site if self._last is not None else None)
        if site is None:
            site = next((self.sites.of([call.place]) for call in self._tape.calls.values() if call.place), None)
        if site is None:
            site = Site("<unknown>", 1)
        facts = {"how": cause.how, "witness": cause.witness}
        event = Event(e.NOT_FINITE, site, None, None, facts, dict(cause.names))
        if scaled:
            again = lasting and any(waiting.lasting for waiting in self._waiting)
            self._waiting.append(Waiting(event, is_told, lasting and not again))
        else:
            self.recording.chain.add(event)

    def _is_told(self, cause: Cause) -> bool:
        """Whether a loss that a scaler skips is more than a large number."""
        value = self._last.value if self._last is not None else None
        if cause.how == "unexplained":
            return value is not None and math.isnan(value)
        return cause.excuse != OF_LARGE


#: Causes that lie in what the steps leave behind, and spoil all that follow.
LASTING = frozenset({"parameter", "state", "rate"})
_RUNS_BACKWARD = frozenset({torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad})


def _params(optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.Tensor]:
    return [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]


def _statistics(module: nn.Module) -> Iterator[tuple[weakref.ref[nn.Module], str]]:
    """The running statistics of a module and of those in it."""
    for each in module.modules():
        for name, buffer in each._buffers.items():
            if name.startswith("running_") and buffer is not None and buffer.is_floating_point() and _is_here(buffer):
                yield weakref.ref(each), name


def _is_here(tensor: torch.Tensor) -> bool:
    """Whether a tensor's numbers may be asked for without waiting for a device."""
    return tensor.layout is torch.strided and tensor.untyped_storage().device.type == "cpu"


def _is_on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.untyped_storage().device.type == "cuda"


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(values(tensor.detach())).all())


def _spoilt(gradients: Sequence[torch.Tensor | None]) -> bool:
    """Whether gradients are not finite, as far as the first row and column of large ones show it.

    A value of a layer's output that is not finite spoils a row of the gradient of its weight, and one of its input a
    column: 0 times NaN is NaN.
    """
    return _not_finite(_looked(gradients))


def _looked(gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    looked: list[torch.Tensor] = []
    for gradient in gradients:
        if gradient is None:
            continue
        if gradient.dim() < 2 or gradient.numel() <= LARGE or gradient.layout is not torch.strided:
            looked.append(gradient)
        else:
            looked += [gradient[0], gradient.flatten(1)[:, 0] if gradient.is_contiguous() else gradient[..., 0]]
    return looked


def _not_finite(some: Sequence[torch.Tensor | None]) -> bool:
    """Whether any of some tensors holds a value that is not finite."""
    given = [tensor for tensor in some if tensor is not None and tensor.is_floating_point()]
    if not given:
        return False
    with _unseen():
        if all(tensor.layout is torch.strided for tensor in given):
            norms = torch._foreach_norm([tensor.detach() if tensor.requires_grad else tensor for tensor in given])
            if len({norm.dtype for norm in norms}) > 1:
                norms = tuple(norm.float() for norm in norms)
            if math.isfinite(float(torch.stack(norms).sum(dtype=torch.float32))):
                return False
        # The square of a large number may not be finite where the number is.
        return not all(_is_finite(tensor) for tensor in given)


def _total(roots: Sequence[torch.Tensor]) -> float:
    """The sum of what a backward pass runs from, which is finite if all of it is."""
    with _unseen():
        # Of a list no number has to be fetched from a device, as of a tensor with one number.
        if len(roots) == 1 and roots[0].numel() == 1:
            found: list[float] = roots[0].detach().view(1).tolist()
        else:
            found = torch.stack([root.detach().sum(dtype=torch.float64) for root in roots]).tolist()
    return sum(found)


def _unseen() -> AbstractContextManager[None]:
    """A region whose ops no dispatch mode of the program sees."""
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()
