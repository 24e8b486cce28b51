"""Non-finite losses, gradients and statistics, and the tape of the program's calls since gradients were last used."""

from __future__ import annotations

import functools
import math
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _disable_current_modes

from ....protocol import events as e
from ....protocol.sites import Site
from ..active import THREAD
from ..deferred_values import DeferredNumber, FoundInf, read_item
from ..delayed_reads import DeviceTransfer, PreviousWeights, Weights
from ..derivatives import Derivative, Derivatives
from ..forwards import compiled_code_count
from ..graph import dense_values, storage_pointer
from ..loose_ops import LooseOps
from ..recording import Recording
from ..sums import can_observe
from ..tape import Slot, Tape, TapedCall, user_frame
from ..tracked import TrackedOptimizer
from .listener import Listener, listener_method
from .overflows import OverflowListener
from .weights import WeightListener

if TYPE_CHECKING:
    from ..tracked import BackwardPass

#: Largest number of findings of one recording, because later non-finite values are mostly consequences.
MOST = 4
#: Number of skipped non-finite losses with an unreported cause after which no more are examined.
QUIET = 16
#: Number of examined skips without a mistake after which only long runs of skips are examined.
TRIALS = 4
#: Largest number of elements of a gradient for a check of all elements.
LARGE = 1 << 14
#: Consecutive skips that no scaler needs after its first applied step, and before it; see AMP801.
IN_A_ROW, WARM_UP = 8, 18

#: Largest number of elements of the program's own buffers that are checked, to bound the cost.
SMALL = 1 << 14
#: Prefix of the names of torch's running statistics.
RUNNING = "running_"
#: Number of steps that tests of a single skipped step do not make.
SEVERAL = 2
#: Exemptions: overflows that do not occur in float32, overflows of operands that are already large, and losses that the
#: program computes with an infinity, as tests of skipped steps do.
ONLY_LOW, OF_LARGE, INTENDED = "only low", "of large", "intended"
LOSS, GRADIENTS, STATISTICS, PARAMETERS, SKIPPED = "loss", "gradients", "statistics", "parameters", "skipped"


class TapedBackward(NamedTuple):
    """A backward pass: the values, and the roots as slots of the tape (None for roots that are not on the tape)."""

    root_slots: tuple[Slot | None, ...]
    site: Site
    scale: float
    loss_value: float | None
    is_scaled: bool


class NonFiniteRecord(NamedTuple):
    """A non-finite value: its ``kind``, the step, counted from 0, and the calls so far."""

    kind: str
    step: int
    calls: dict[int, TapedCall]
    backward: TapedBackward | None
    params: Sequence[torch.Tensor]
    optimizers: Sequence[torch.optim.Optimizer]
    buffers: Sequence[tuple[nn.Module, str]]
    #: Parameters that have changed since then, with their old values.
    previous_weights: Weights
    derivatives: Mapping[int, Derivative]
    locate: Callable[[Sequence[tuple[CodeType, int]]], Site]
    #: True if a scaler has skipped every step so far, so that no step has changed the weights.
    only_skipped: bool


class PendingCheck(NamedTuple):
    """A backward pass on a device whose check for finite values is not finished."""

    transfer: DeviceTransfer
    backward: TapedBackward
    scale: DeferredNumber
    calls: dict[int, TapedCall]
    step: int
    optimizer_refs: list[weakref.ref[torch.optim.Optimizer]]
    #: Hidden overflows of its forward pass, which are reported if the loss is finite.
    hidden: Sequence[e.Event]

    def known_backward(self) -> TapedBackward:
        """Wait for the device, and return the pass with loss and scale."""
        loss_value, *_ = self.transfer.wait_for_numbers()
        return self.backward._replace(loss_value=loss_value, scale=self.scale.value)


class PendingSkip(NamedTuple):
    """A step that a fused optimizer makes or skips on a device.

    ``numbers`` are the scaler's found_inf and its growth tracker before the update.
    """

    numbers: DeviceTransfer
    check: PendingCheck
    tracked: TrackedOptimizer
    scaler_ref: weakref.ref[Any]
    optimizer_ref: weakref.ref[torch.optim.Optimizer]


class NonFiniteCause(NamedTuple):
    """The cause of a non-finite value: the label of a violation, location, values of the message, and trace."""

    label: str
    site: Site | None
    names: dict[str, str]
    trace: tuple[tuple[Site, str], ...]
    #: The reason why a scaler may handle the overflow of a scaled loss, or "".
    exemption: str = ""
    #: The non-finite tensor that the program passed in, if no op of the step produced it.
    given_tensor: torch.Tensor | None = None


class PendingCause(NamedTuple):
    """A cause that is reported unless the scale is found to sink.

    ``is_reported``: always report the cause. ``exemption``: report the cause only if the scaler never steps, or, for a
    loss that is infinite on purpose, in several steps. Without both, the cause is never reported.
    """

    event: e.NotFinite
    is_reported: bool
    exemption: str


#: Finds the cause of a non-finite value. None if there is no mistake.
Explain = Callable[[NonFiniteRecord], NonFiniteCause | None]


class NonFiniteListener(Listener):
    """A listener that checks loss and gradients of each backward pass, and explains non-finite values."""

    def __init__(self, recording: Recording, overflows: OverflowListener, weights: WeightListener) -> None:
        super().__init__(recording)
        self._overflows = overflows
        #: Set by the creator of the recording. None disables the watch.
        self.explain: Explain | None = None
        self._tape = Tape()
        #: Gradients that ``torch.autograd.grad`` returned to the program.
        self.derivatives = Derivatives()
        self._loose_ops = recording.loose_ops = LooseOps(
            self._record_op, self._tape.end_call, weights.record_overwritten
        )
        self._compiled_count = compiled_code_count()
        self._running_backward: TapedBackward | None = None
        self._last_backward: TapedBackward | None = None
        self._reported_count = 0
        self._skip_trials = self._silent_losses = 0
        #: True after the first applied step of a scaler, which shows that its scale fits.
        self._has_stepped = False
        #: Number of steps with a non-finite loss, and index of the first, counted from 0.
        self.bad_losses = 0
        self.first_bad_loss: int | None = None
        #: Causes that are dropped if the scaler's scale proves to sink, because that finding says the same.
        self._pending_causes: list[PendingCause] = []
        #: Outermost called module to the statistics buffers of its submodules.
        self._statistics: weakref.WeakKeyDictionary[nn.Module, list[tuple[weakref.ref[nn.Module], str]]] = (
            weakref.WeakKeyDictionary()
        )
        self._reported_statistics: set[tuple[int, str]] = set()
        #: Pending checks on a device and skips of fused optimizers, oldest first; the check of the latest pass, or None
        #: if its loss is on the CPU; the loss of the running pass; and the weights before the latest steps.
        self._pending_checks: list[PendingCheck] = []
        self._pending_skips: list[PendingSkip] = []
        self._last_check: PendingCheck | None = None
        self._running_root: torch.Tensor | None = None
        self._previous_weights = PreviousWeights()
        #: The reported non-finite input of a step, until a later step shows the op that computes it.
        self._input_event: e.NotFinite | None = None
        #: True after the first non-finite input: steps are then watched from their beginning.
        self._watches_preparation = False
        #: Numbers of the first call after the last step, and of the first call of the forward pass, None before it.
        self._preparation_start = 0
        self._forward_start: int | None = None
        #: Non-finite results of steps that are explained, while the program holds them.
        self._known_results: list[weakref.ref[torch.Tensor]] = []

    @property
    def is_watching(self) -> bool:
        """True if the watch is enabled."""
        return self.explain is not None

    @property
    def _may_report(self) -> bool:
        return self.explain is not None and self._reported_count < MOST

    # Calls of the program.

    @listener_method
    def record_module_begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TapedCall | None:
        self._loose_ops.stop_watching()
        self._note_forward()
        if not self._may_report or self.recording.backward_depth:
            return None
        if torch.is_inference_mode_enabled() or torch._C._get_tracing_state() is not None:
            return None
        if not torch.is_grad_enabled():
            # For example a frozen encoder. An evaluation has many of these calls and may keep all of their results.
            self._tape.drop_gradless_calls()
        elif module not in self._statistics and not any(map(is_lazy, module.buffers())):
            self._statistics[module] = list(_iter_statistics(module))
        return self._tape.begin_call(module, args, kwargs, user_frame(sys._getframe()))

    @listener_method
    def record_module_end(self, call: TapedCall | None, result: Any) -> None:
        if call is None:
            return
        self._tape.end_call(call, result)
        self._watch_ops()

    def note_region(self) -> None:
        """Start watching ops when an autocast region is entered, because the forward pass follows."""
        self._note_forward()
        if self._may_report and not self.recording.backward_depth and not THREAD.in_module:
            self._watch_ops()

    def _note_forward(self) -> None:
        if self._forward_start is None:
            self._forward_start = self._tape.next_serial

    def _watch_ops(self) -> None:
        """Watch ops outside of modules, unless code was compiled, which would have to be compiled again."""
        if compiled_code_count() == self._compiled_count:
            self._loose_ops.start_watching()

    def _record_op(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None
    ) -> TapedCall | None:
        if self.recording.is_busy or self.recording.failure is not None:
            return None
        if function in _RUNS_BACKWARD:
            return None
        try:
            return self._tape.begin_call(function, args, kwargs, frame)
        except Exception as error:  # noqa: BLE001 - as for every listener
            self.recording.failure = error
            return None

    def record_scaling(self, loss: torch.Tensor, scale: torch.Tensor, result: Any) -> None:
        """Record the multiplication of a loss by the scale, while :class:`.LooseOps` is paused."""
        if self._loose_ops.may_report():
            factor = scale.to(device=loss.device, non_blocking=True)
            call = self._tape.begin_call(torch.Tensor.mul, (loss, factor), {}, user_frame(sys._getframe()))
            self._tape.end_call(call, result)

    # Backward passes.

    @listener_method
    def record_backward_call(self) -> None:
        if not self.recording.backward_depth:
            self._loose_ops.stop_watching()

    def begin_backward(self, outputs: Sequence[torch.Tensor], site: Site) -> float | None:
        """Prepare for a backward pass. Return the value of a single loss on the CPU, else None.

        The listener of backward passes calls this method; other listeners call the methods below.
        """
        self._loose_ops.stop_watching()
        self._running_backward = self._running_root = None
        if self.explain is None:
            return None
        roots = [root for root in outputs if root.is_floating_point()]
        if not roots or not all(map(can_observe, roots)):
            return None
        # On a GPU, reading this number would wait for the device.
        value = _sum_of_roots(roots) if all(map(_is_on_cpu, roots)) else None
        if not self._may_report:
            if value is not None and not math.isfinite(value):
                self._count_bad_loss(self.recording.steps.total)
            return None
        self._finish_checks(before_step=None)
        self._tape.prune_calls()
        self._tape.pass_count += 1
        if value is None and _is_on_gpu(roots[0]):
            self._running_root = roots[0].detach()
        self._running_backward = TapedBackward(tuple(map(self._tape.slot_of, roots)), site, 1.0, value, False)
        return value if len(outputs) == 1 and roots[0].numel() == 1 else None

    def end_backward(self, running: BackwardPass, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        ended, self._running_backward = self._running_backward, None
        self._last_backward, self._last_check = ended, None
        is_scaled = running.event.subject is not None
        if ended is None or ended.loss_value is None:
            if self._running_root is not None:
                assert ended is not None
                self._start_check(ended._replace(is_scaled=is_scaled), running, optimizers)
            else:
                self._tape.clear()
            self._running_root = None
            return
        for event in self._overflows.take_found():
            if math.isfinite(ended.loss_value):
                self.recording.run_checker.add_event(event)
        if is_scaled:
            self._last_backward = ended._replace(scale=running.scale.value, is_scaled=True)
        if not math.isfinite(ended.loss_value):
            self._count_bad_loss(self.recording.steps.total)
            # The same forward pass may also have made statistics non-finite.
            bad = self._bad_statistics()
            is_reported = self._report_nonfinite(LOSS, optimizers, bad)
            if is_scaled and bad and not is_reported and self._may_report:
                # The scaler skips the step, but the statistics stay non-finite.
                self._report_nonfinite(STATISTICS, optimizers, bad)
            self._reported_statistics.update((id(module), name) for module, name in bad)
        elif not is_scaled and _has_nonfinite([p._grad for p in _optimizer_params(optimizers)]):
            self._report_nonfinite(GRADIENTS, optimizers)
        else:
            self._check_statistics(optimizers)
        if not is_scaled:
            self._tape.prune_calls()

    def _start_check(
        self, last: TapedBackward, running: BackwardPass, optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """Start an asynchronous check for finite loss and gradients on a device."""
        assert self._running_root is not None
        totals = [self._running_root.float().sum()]
        sampled = [] if last.is_scaled else _sampled_gradients([p._grad for p in _optimizer_params(optimizers)])
        if sampled and all(_is_on_gpu(gradient) for gradient in sampled):
            norms = torch._foreach_norm([gradient.detach() for gradient in sampled])
            totals.append(torch.stack([norm.float() for norm in norms]).sum())
        calls, step = dict(self._tape.calls), self.recording.steps.total
        optimizer_refs = [weakref.ref(each) for each in optimizers]
        transfer, hidden = DeviceTransfer(torch.stack(totals)), self._overflows.take_found()
        self._last_check = PendingCheck(transfer, last, running.scale, calls, step, optimizer_refs, hidden)
        self._pending_checks.append(self._last_check)

    def _finish_checks(self, before_step: int | None) -> None:
        """Finish the checks that are ready, and wait for the checks of steps before ``before_step``."""
        while self._pending_checks and self._may_report:
            check = self._pending_checks[0]
            if not check.transfer.is_ready and (before_step is None or check.step >= before_step):
                return
            del self._pending_checks[0]
            value, *norms = check.transfer.wait_for_numbers()
            if not math.isfinite(value):
                kind = LOSS
                self._count_bad_loss(check.step)
            else:
                for event in check.hidden:
                    self.recording.run_checker.add_event(event)
                if not norms or math.isfinite(norms[0]):
                    continue
                kind = GRADIENTS
            optimizers = [optimizer for reference in check.optimizer_refs if (optimizer := reference()) is not None]
            with self._as_of(check):
                self._report_nonfinite(kind, optimizers, late_step=check.step)

    @contextmanager
    def _as_of(self, check: PendingCheck) -> Iterator[None]:
        """In this context, the latest pass and its calls are those of an earlier pass."""
        last, calls = self._last_backward, self._tape.calls
        self._last_backward, self._tape.calls = check.known_backward(), check.calls
        try:
            yield
        finally:
            self._last_backward, self._tape.calls = last, calls

    def _count_bad_loss(self, step: int) -> None:
        self.bad_losses += 1
        if self.first_bad_loss is None:
            self.first_bad_loss = step

    def _check_statistics(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        bad = self._bad_statistics()
        if bad:
            self._reported_statistics.update((id(module), name) for module, name in bad)
            self._report_nonfinite(STATISTICS, optimizers, bad)

    def _bad_statistics(self) -> list[tuple[nn.Module, str]]:
        buffers = [
            (module, name)
            for statistics in self._statistics.values()
            for reference, name in statistics
            if (module := reference()) is not None and module._buffers.get(name) is not None
        ]
        if not buffers or not _any_nonfinite([module._buffers[name] for module, name in buffers]):
            return []
        return [
            (module, name)
            for module, name in buffers
            if (id(module), name) not in self._reported_statistics and _holds_non_finite(module, name)
        ]

    # Steps.

    def begin_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._loose_ops.stop_watching()
        if self._pending_checks or self._pending_skips:
            # The weights kept for the previous step are replaced by the weights for this step.
            total = self.recording.steps.total
            self._finish_checks(before_step=total)
            self._finish_skips()
            if self._pending_checks:
                self._previous_weights.save_weights(optimizer, total)

    def end_step(self) -> None:
        """Watch what follows a step, if an earlier step got a non-finite input of unknown origin."""
        if self._watches_preparation and self._may_report and not self.recording.backward_depth:
            self._preparation_start, self._forward_start = self._tape.next_serial, None
            self._watch_ops()

    def check_skip(self, tracked: TrackedOptimizer, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        """Examine a step that a scaler applied, or skipped because of its scale or a non-finite gradient."""
        found_inf = tracked.last_found_inf
        readings = self.recording.deferred_values
        if not found_inf.is_known:
            # The device decides about the step of a fused optimizer, and nothing has waited for it.
            readings.run_when_known(functools.partial(self._note_outcome, found_inf))
            # A graph that is being captured cannot be asked.
            if self._last_check is not None and self._may_report and readings.can_fetch:
                self._defer_skip(self._last_check, tracked, scaler, optimizer)
            return
        self._note_outcome(found_inf)
        if not found_inf or not self._may_report:
            return
        if self._last_check is not None:
            # A skip waits for the device anyway. The count of skips in a row has to include this one.
            self._finish_checks(before_step=self.recording.steps.total)
            self._last_backward = self._last_check.known_backward()
            if readings.can_fetch:
                readings.fetch_all()
        self._examine_skip(tracked, scaler, optimizer, int(read_item(scaler._growth_tracker)))

    def _defer_skip(
        self, check: PendingCheck, tracked: TrackedOptimizer, scaler: Any, optimizer: torch.optim.Optimizer
    ) -> None:
        tracker = scaler._growth_tracker
        found_inf = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()
        numbers = [each.to(tracker.device, torch.float32, non_blocking=True).reshape(()) for each in found_inf]
        transfer = DeviceTransfer(torch.stack([torch.stack(numbers).sum(), tracker.float().reshape(())]))
        self._pending_skips.append(PendingSkip(transfer, check, tracked, weakref.ref(scaler), weakref.ref(optimizer)))

    def _note_outcome(self, found_inf: FoundInf) -> None:
        if not found_inf:
            self._has_stepped = True
            self._report_pending()

    def _finish_skips(self) -> None:
        """Wait for the steps that a device decides about, and examine those that were skipped."""
        while self._pending_skips and self._may_report:
            skip = self._pending_skips.pop(0)
            found_inf, tracker = skip.numbers.wait_for_numbers()
            scaler, optimizer = skip.scaler_ref(), skip.optimizer_ref()
            if not found_inf or scaler is None or optimizer is None:
                continue
            # The outcomes of the earlier steps decide what a skip means.
            if self.recording.deferred_values.can_fetch:
                self.recording.deferred_values.fetch_all()
            with self._as_of(skip.check):
                self._examine_skip(skip.tracked, scaler, optimizer, int(tracker), late_step=skip.check.step)

    def _examine_skip(
        self,
        tracked: TrackedOptimizer,
        scaler: Any,
        optimizer: torch.optim.Optimizer,
        growth_tracker: int,
        *,
        late_step: int | None = None,
    ) -> None:
        """Report the cause of a skipped step of a finite loss, if the scale does not explain the skip."""
        backward = self._last_backward
        if backward is None or backward.loss_value is None or not math.isfinite(backward.loss_value):
            return
        is_settled = growth_tracker > 0 and self._skip_trials < TRIALS
        # A run may be too short for its scaler to find a scale, so the first skip is examined, too.
        is_first = not (self._has_stepped or self._skip_trials)
        # After this skip the scale is below 1, and AMP801 reports the cause.
        sinks = scaler.get_backoff_factor() <= scaler.get_backoff_factor() * backward.scale < 1.0
        if is_settled or is_first or sinks or tracked.skips_in_a_row == (IN_A_ROW if self._has_stepped else WARM_UP):
            self._skip_trials += 1
            self._report_nonfinite(SKIPPED, [optimizer], late_step=late_step)

    @property
    def pending_cause(self) -> e.NotFinite | None:
        """The most recent cause of skipped steps since the scaler's last applied step, or None."""
        return self._pending_causes[-1].event if self._pending_causes else None

    def _report_pending(self) -> None:
        for event, is_reported, exemption in self._pending_causes:
            may_be_meant = exemption == INTENDED and self.recording.steps.total < SEVERAL
            if is_reported or (exemption and not self._has_stepped and not may_be_meant):
                self.recording.run_checker.add_event(event)
        self._pending_causes.clear()

    def conclude(self) -> None:
        """Finish at the end of the recording. Also check parameters that the last step may have made non-finite."""
        self._loose_ops.stop_watching()
        self._check_at_end()
        chain = self.recording.run_checker
        if self._pending_causes:
            chain.flush()
            if not any(finding.code == "AMP801" for finding in chain.event_findings.values()):
                self._report_pending()
        self._tape.clear()
        self.derivatives.clear()
        self._pending_checks.clear()
        self._pending_skips.clear()
        self._last_check = None
        self._previous_weights.clear()

    def _check_at_end(self) -> None:
        self._finish_checks(before_step=self.recording.steps.total + 1)
        self._finish_skips()
        if not self._may_report:
            return
        optimizers = [
            optimizer for tracked in self.registry.optimizers.values() if (optimizer := tracked.optimizer()) is not None
        ]
        params = [p.detach() for p in _optimizer_params(optimizers) if _is_on_cpu(p) or _is_on_gpu(p)]
        if not self._reported_count and self.recording.steps.total and _any_nonfinite(params):
            self._report_nonfinite(PARAMETERS, optimizers)
        self._check_statistics(optimizers)

    def _report_nonfinite(
        self,
        kind: str,
        optimizers: Sequence[torch.optim.Optimizer],
        buffers: Sequence[tuple[nn.Module, str]] = (),
        *,
        late_step: int | None = None,
    ) -> bool:
        """Explain a non-finite value and report the cause. Return True if the cause is reported."""
        assert self.explain is not None
        total = self.recording.steps.total
        # A value that is found after a step belongs to that step.
        step = late_step if late_step is not None else total - 1 if kind in (PARAMETERS, SKIPPED) and total else total
        locate = self.sites.site_of_calls
        weights = [] if late_step is None else self._previous_weights.weights_before(late_step)
        nonfinite = NonFiniteRecord(
            kind,
            step,
            self._tape.calls,
            self._last_backward,
            _optimizer_params(optimizers),
            optimizers,
            buffers,
            weights,
            self.derivatives.by_storage(),
            locate,
            self._last_backward is not None and self._last_backward.is_scaled and not self._has_stepped,
        )
        is_scaled = self._last_backward is not None and self._last_backward.is_scaled and kind in (LOSS, SKIPPED)
        if is_scaled and self._silent_losses >= QUIET:
            return False
        with self.registry.preserve_marks():
            cause = self.explain(nonfinite)
        if cause is None:
            return False
        # In low precision the first scales may be too large until the scaler has found its scale.
        if_never_stepped = (
            is_scaled and kind == LOSS and cause.exemption in (ONLY_LOW, INTENDED) and not self._has_stepped
        )
        is_reported = not is_scaled or kind == SKIPPED or (self._is_worth_reporting(cause) and not if_never_stepped)
        if cause.label == STATISTIC and kind != STATISTICS and self._reported_statistics:
            # The code that made a buffer non-finite is already reported.
            return False
        follows = self._reported_count > 0
        if cause.given_tensor is not None and self._is_known_result(cause.given_tensor):
            return False
        self._remember_results()
        # Only reported causes count against the limit of findings. Overflows that scalers handle have a limit of their
        # own.
        self._reported_count += is_reported
        self._silent_losses += not is_reported
        if cause.label in PERSISTENT_CAUSES:
            self._reported_count = MOST
            if follows:
                # Non-finite gradients, which are already reported, were applied.
                return False
        site = self._construction_site(optimizers) if cause.label in _OF_OPTIMIZER else None
        site = site or cause.site or (self._last_backward.site if self._last_backward is not None else None)
        known_positions = (call.positions for call in self._tape.calls.values() if call.positions)
        site = site or next(map(locate, known_positions), None) or Site("<unknown>", 1)
        statistics = _describe_statistics(buffers) if is_scaled else ""
        event = e.NotFinite(site, how=cause.label, buffers=statistics, trace=cause.trace, names=dict(cause.names))
        self._withdraw_input(cause.site)
        if cause.label == INPUT and is_reported:
            self._input_event, self._watches_preparation = event, True
        if is_scaled:
            is_repeated = any(pending.exemption for pending in self._pending_causes)
            exemption = cause.exemption if if_never_stepped and not is_repeated else ""
            self._pending_causes.append(PendingCause(event, is_reported, exemption))
        else:
            self.recording.run_checker.add_event(event)
        return is_reported

    def _withdraw_input(self, site: Site | None) -> None:
        """Withdraw a reported non-finite input, if an op before the forward pass of a later step computes it."""
        event = self._input_event
        forward_start = self._tape.next_serial if self._forward_start is None else self._forward_start
        prepared = (self._tape.calls.get(serial) for serial in range(self._preparation_start, forward_start))
        if event is None or not any(
            call is not None and call.positions and self.sites.site_of_calls(call.positions) is site
            for call in prepared
        ):
            return
        self._input_event = None
        pending_causes = [cause for cause in self._pending_causes if cause.event is not event]
        if len(pending_causes) == len(self._pending_causes):
            self.recording.run_checker.withdraw_event(event)
        self._pending_causes = pending_causes

    def _remember_results(self) -> None:
        """Keep the live non-finite results of the calls so far. What a later step reads of them is explained."""
        results = (reference for call in self._tape.calls.values() for reference in call.result_refs)
        self._known_results = [reference for reference in self._known_results if reference() is not None]
        self._known_results += [
            reference
            for reference in results
            if (tensor := reference()) is not None
            and tensor.is_floating_point()
            and tensor.layout is torch.strided
            and not _is_finite(tensor)
        ]

    def _is_known_result(self, tensor: torch.Tensor) -> bool:
        """Return True if a tensor is a result of a step whose non-finite value is explained, or a view of one."""
        known = (reference() for reference in self._known_results)
        return any(each is not None and storage_pointer(each) == storage_pointer(tensor) for each in known)

    def _construction_site(self, optimizers: Sequence[torch.optim.Optimizer]) -> Site | None:
        """Return the location at which the first of some optimizers got its learning rate, or None."""
        sites = (self.registry.track_optimizer(optimizer).construction_site for optimizer in optimizers)
        return next((site for site in sites if site is not None), None)

    def _is_worth_reporting(self, cause: NonFiniteCause) -> bool:
        """Return True if a loss that a scaler skips is more than a large number."""
        if cause.label == "unexplained":
            assert self._last_backward is not None
            assert self._last_backward.loss_value is not None
            return math.isnan(self._last_backward.loss_value)
        return cause.exemption not in (OF_LARGE, INTENDED)


#: Labels of a learning rate that is too large, of weights that other state of the optimizer made too large, and of a
#: buffer that is not finite.
RATE, GROWN, STATISTIC = "rate", "grown", "statistic"
#: Label of a non-finite tensor that no op of the step produced.
INPUT = "input"
#: Labels of causes in an optimizer, which are located at its construction.
_OF_OPTIMIZER = frozenset({"state", RATE, GROWN})
#: Labels of causes in state that outlives the step, so that all later steps fail, too.
PERSISTENT_CAUSES = frozenset({"parameter", *_OF_OPTIMIZER})
_RUNS_BACKWARD = frozenset({torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad})


def _describe_statistics(buffers: Sequence[tuple[nn.Module, str]]) -> str:
    """Return a clause about statistics that a skipped step leaves non-finite, or ""."""
    if not buffers:
        return ""
    module, name = buffers[0]
    return f", and `{name}` of {type(module).__name__} keeps it for evaluation although the step is skipped"


def _optimizer_params(optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.Tensor]:
    return [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]


def _iter_statistics(module: nn.Module) -> Iterator[tuple[weakref.ref[nn.Module], str]]:
    """Yield the running statistics of a module and its submodules, and small finite buffers of the program's modules.

    A forward pass may update such a buffer, for example a codebook or an average.
    """
    for each in module.modules():
        for name, buffer in each._buffers.items():
            if buffer is None or not buffer.is_floating_point() or not _is_on_cpu(buffer):
                continue
            is_own = not type(each).__module__.startswith("torch.") and buffer.numel() <= SMALL
            if name.startswith(RUNNING) or (is_own and _is_finite(buffer)):
                yield weakref.ref(each), name


def _holds_non_finite(module: nn.Module, name: str) -> bool:
    """Return True if a buffer is not finite, and no mask."""
    buffer = module._buffers[name]
    if buffer is None or _is_finite(buffer):
        return False
    return name.startswith(RUNNING) or bool(buffer.isnan().any() or buffer.isposinf().any())


def _is_on_cpu(tensor: torch.Tensor) -> bool:
    """Return True if a tensor can be read without waiting for a device."""
    return tensor.layout is torch.strided and tensor.untyped_storage().device.type == "cpu"


def _is_on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.untyped_storage().device.type == "cuda"


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(dense_values(tensor.detach())).all())


def _has_nonfinite(gradients: Sequence[torch.Tensor | None]) -> bool:
    """Return True if gradients are non-finite, according to the first row and column of large gradients.

    A non-finite value in a layer's output makes a row of its weight's gradient non-finite, and a non-finite value in a
    layer's input makes a column non-finite: 0 times NaN is NaN.
    """
    return _any_nonfinite(_sampled_gradients(gradients))


def _sampled_gradients(gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    sampled: list[torch.Tensor] = []
    for gradient in gradients:
        if gradient is None:
            continue
        if gradient.dim() < 2 or gradient.numel() <= LARGE or gradient.layout is not torch.strided:
            sampled.append(gradient)
        else:
            sampled += [gradient[0], gradient.flatten(1)[:, 0] if gradient.is_contiguous() else gradient[..., 0]]
    return sampled


def _any_nonfinite(tensors: Sequence[torch.Tensor | None]) -> bool:
    """Return True if any tensor holds a non-finite value."""
    floating = [tensor for tensor in tensors if tensor is not None and tensor.is_floating_point()]
    if not floating:
        return False
    with _without_dispatch_modes():
        if all(tensor.layout is torch.strided for tensor in floating):
            norms = torch._foreach_norm([tensor.detach() if tensor.requires_grad else tensor for tensor in floating])
            if math.isfinite(float(torch.stack([norm.float() for norm in norms]).sum())):
                return False
        # The norm may overflow although all numbers are finite, so the elements are checked, too.
        return not all(_is_finite(tensor) for tensor in floating)


def _sum_of_roots(roots: Sequence[torch.Tensor]) -> float:
    """Return the sum of a backward pass's roots. The sum is finite only if all roots are."""
    with _without_dispatch_modes():
        numbers: list[float] = torch.stack([root.detach().sum(dtype=torch.float64) for root in roots]).tolist()
    return sum(numbers)


def _without_dispatch_modes() -> AbstractContextManager[None]:
    """Return a region whose ops no dispatch mode of the program sees."""
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()
