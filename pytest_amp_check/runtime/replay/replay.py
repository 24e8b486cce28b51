"""The replay of training steps from the same state and on the same data, and a watch over the replayed steps."""

from __future__ import annotations

import collections.abc
import contextlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from ..record.active import hide_recorders
from .snapshot import Named, Snapshot, StateParts, UnfollowedFunction, holds_state, iter_reachable


class Replay:
    """Training steps that can be replayed: the step function, its data, and the state before the first step.

    ``step(batch)`` is called once for each batch, ``steps`` times in total. None stands for one pass through
    ``batches``; with fewer batches than steps the batches repeat. ``state`` lists the trained objects: models,
    optimizers, scalers, schedulers, generators. None stands for a search from the function: its closure, the used
    globals and helpers, its ``self``, the arguments of a ``functools.partial``, its defaults. Plain values found in the
    search, such as a counter of micro-batches, are rewound too. With ``state``, only plain values in the function's own
    closure are rewound. ``also`` names further objects to rewind in either case. Raise ValueError for arguments with
    which no step can be replayed.
    """

    def __init__(
        self,
        step: Callable[[Any], Any],
        batches: Iterable[Any],
        steps: int | None = None,
        state: Iterable[object] | None = None,
        also: Sequence[object] = (),
    ) -> None:
        if not callable(step):
            raise ValueError(
                f"step is {_describe_type(step)}, not a function: pass the function that trains on one batch"
            )
        if steps is not None and (type(steps) is not int or steps < 1):
            raise ValueError(f"steps is {steps!r}: pass how many times the step is to run, at least 1, or nothing")
        if isinstance(batches, (str, Tensor)) or not hasattr(batches, "__iter__"):
            raise ValueError(f"batches is {_describe_type(batches)}: pass a list of batches or a data loader")
        if steps is None and isinstance(batches, (itertools.count, itertools.cycle, itertools.repeat)):
            raise ValueError("batches never ends: pass steps, how many times the step is to run")
        self.step = step
        #: The batches, drawn once so that every replay gets the same data.
        self.batches = list(itertools.islice(batches, steps))
        if not self.batches:
            raise ValueError("batches is empty: pass at least one batch")
        #: Number of calls of the step.
        self.steps = len(self.batches) if steps is None else steps
        self._state_roots: list[Named] | None = None
        if state is not None:
            state_items = list(state)
            self._state_roots = [(_state_name(step, item, number), item) for number, item in enumerate(state_items)]
            for item in state_items:
                if not holds_state(item) and not isinstance(item, (Tensor, torch.Generator, dict, list)):
                    raise ValueError(
                        f"state holds {_describe_type(item)}: pass models, optimizers, scalers and schedulers"
                    )
        self._also_rewound = [("", item) for item in also]
        #: The state before the first step.
        self.start_snapshot = Snapshot(self._roots())
        parts = self.find_state()
        if not (parts.models or parts.optimizers):
            raise ValueError(
                "no model and no optimizer was found that the step uses: pass state=[model, optimizer, scaler]"
            )

    def run(self) -> None:
        """Run the steps from the present state, as the user's own run."""
        __tracebackhide__ = True
        for number in range(self.steps):
            self.call_step(number)

    def call_step(self, number: int) -> Any:
        """Call the step with batch ``number``, counted from 0, and return its result."""
        __tracebackhide__ = True
        return self.step(self.batches[number % len(self.batches)])

    def find_state(self) -> StateParts:
        """Return the parts of the state as the step finds them now: a loaded model may be a new object."""
        return StateParts(self._roots())

    def take_snapshot(self) -> Snapshot:
        """Return a snapshot of the present state."""
        return Snapshot(self._roots())

    @contextlib.contextmanager
    def rewind(self) -> Iterator[None]:
        """Open a region that begins in the state before the first step, and restore the present state afterwards.

        Raise ValueError if the step draws from an iterator, which cannot be rewound.
        """
        unrepeatable = self.find_state().iterators
        if unrepeatable:
            raise ValueError(
                f"the step draws from `{unrepeatable[0]}`, an iterator that cannot be rewound: "
                "pass what it yields as batches, or state=[...] if the step does not draw from it"
            )
        present = self.take_snapshot()
        try:
            self.start_snapshot.restore()
            # Recorders ignore replayed steps, because only the first run is the training of the program.
            with hide_recorders():
                yield
        finally:
            present.restore()

    def _roots(self) -> list[Named]:
        step: list[Named] = (
            [("", self.step)]
            if self._state_roots is None
            else [*self._state_roots, ("", UnfollowedFunction(self.step))]
        )
        return [*step, *self._also_rewound, ("batches", self.batches)]


def _state_name(step: object, item: object, number: int) -> str:
    """Return the name by which the step refers to an object of the ``state`` list, else "state[number]"."""
    return next((name for name, each in iter_reachable([("", step)]) if each is item and name), f"state[{number}]")


def _describe_type(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


@dataclass
class Term:
    """The weight of one loss function value in a backward pass.

    ``weights``: the sum of the sample weights, with one entry for each method of counting samples that the reduction
    permits. ``sample_weight``: the weight of one sample, if a sum or no reduction gives all samples the same weight;
    else None. ``sample_count``: the number of samples.
    """

    name: str
    weights: tuple[float, ...]
    sample_weight: float | None
    sample_count: float


@dataclass
class Backward:
    """One backward pass: the index of its step call, the unscaled loss, and the terms of the loss."""

    call_index: int
    loss: float
    terms: list[Term] = field(default_factory=list)


@dataclass
class Window:
    """The backward passes since an optimizer's previous step, and the step, which may be skipped.

    ``accumulated_grads`` are the unscaled gradients after the last backward pass, and ``step_grads`` the gradients at
    the optimizer's step, by ``id`` of the parameter. Both are empty unless the watch keeps gradients. ``clear_call`` is
    the index of the call whose backward pass found the previous gradients cleared.
    """

    backwards: list[Backward] = field(default_factory=list)
    step_call: int | None = None
    is_skipped: bool = False
    clear_call: int | None = None
    accumulated_grads: dict[int, Tensor] = field(default_factory=dict)
    step_grads: dict[int, Tensor] = field(default_factory=dict)

    @property
    def call_count(self) -> int:
        """The number of step calls with backward passes of this window."""
        return len({each.call_index for each in self.backwards})

    def grad_factor(self) -> float:
        """Return the factor applied to the gradients between the last backward pass and the step; 1.0 if unknown."""
        pairs = [
            (self.step_grads[key], value) for key, value in self.accumulated_grads.items() if key in self.step_grads
        ]
        total = sum(float((value.double() ** 2).sum()) for _, value in pairs)
        return sum(float((used.double() * value.double()).sum()) for used, value in pairs) / total if total else 1.0


class ReplayWatch:
    """A watch over backward passes, optimizer steps and skips of replayed steps. All patches are removed at the end.

    ``gradients`` keeps the gradients of every window. ``criteria`` keeps the weights of torch's loss functions.
    ``dropout=False`` disables dropout, for a comparison of two cuts of a batch. ``skips`` lists for each call of
    ``scaler.step`` if the call must be skipped. ``scale`` is a constant loss scale that replaces the scalers' own.
    """

    def __init__(
        self,
        replay: Replay,
        *,
        gradients: bool = False,
        criteria: bool = False,
        dropout: bool = True,
        skips: Sequence[bool] | None = None,
        scale: float | None = None,
    ) -> None:
        self.losses: list[float | None] = []
        #: For each call of ``scaler.step``: True if the call was skipped.
        self.skipped_steps: list[bool] = []
        #: The dtypes of the enabled autocast regions that were entered.
        self.dtypes: set[torch.dtype] = set()
        #: ``id`` of the optimizer to its closed windows, followed by the open window.
        self.windows: dict[int, list[Window]] = {}
        self._replay = replay
        self._keeps_gradients, self._sees_criteria, self._allows_dropout, self._forced_skips, self._forced_scale = (
            gradients,
            criteria,
            dropout,
            skips,
            scale,
        )
        self._call_index = 0
        self._call_backwards: list[Backward] = []
        self._scaled_losses: list[tuple[Tensor, float]] = []
        self._values: list[_CriterionValue] = []
        self._backward_depth = 0
        self._stepping_ids: set[int] = set()
        self._optimizers: list[torch.optim.Optimizer] = []

    def play_calls(self, calls: Iterable[int]) -> None:
        """Run the step calls with these indices under the watch."""
        for self._call_index in calls:
            self._call_backwards.clear()
            returned = self._replay.call_step(self._call_index)
            self.losses.append(self._loss_of_call(returned))
            self._scaled_losses.clear()
            self._values.clear()

    def play_function(self, function: Callable[[Any], Any], batch: Any) -> None:
        """Run another function on a batch under the watch."""
        function(batch)
        self._scaled_losses.clear()
        self._values.clear()

    def closed_windows(self) -> list[list[Window]]:
        """Return the closed windows of every optimizer that has any. A step or a skip closes a window."""
        ended_windows = [
            [window for window in windows if window.step_call is not None] for windows in self.windows.values()
        ]
        return [windows for windows in ended_windows if windows]

    @contextlib.contextmanager
    def observe(self) -> Iterator[None]:
        """Open a region in which the watch is active."""
        with contextlib.ExitStack() as stack:
            self._optimizers = list(self._replay.find_state().optimizers.values())
            self.windows = {id(optimizer): [Window()] for optimizer in self._optimizers}
            stack.callback(register_optimizer_step_pre_hook(self._before_step).remove)
            self._patch_attribute(stack, torch.autograd, "_engine_run_backward", self._run_backward)
            self._patch_attribute(stack, torch.amp.autocast_mode.autocast, "__enter__", self._enter_region)
            for kind in _scaler_classes():
                for name, replacement in (("scale", self._scale_loss), ("step", self._scaler_step)):
                    if name in vars(kind):
                        self._patch_attribute(stack, kind, name, replacement)
            if self._sees_criteria or not self._allows_dropout:
                stack.enter_context(_CriterionMode(self))
            yield

    def _patch_attribute(
        self, stack: contextlib.ExitStack, owner: Any, name: str, replacement: Callable[..., Any]
    ) -> None:
        original = vars(owner)[name]

        def patched_call(*args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        stack.callback(setattr, owner, name, original)
        setattr(owner, name, patched_call)

    def _enter_region(self, original: Callable[..., Any], region: Any) -> Any:
        if region._enabled:
            self.dtypes.add(region.fast_dtype)
        return original(region)

    def _scale_loss(self, original: Callable[..., Any], scaler: torch.amp.GradScaler, outputs: Any) -> Any:
        if self._forced_scale is not None and scaler.is_enabled():
            scaler._init_scale = self._forced_scale
            if scaler._scale is not None:
                scaler._scale.fill_(self._forced_scale)
        result = original(scaler, outputs)
        if scaler.is_enabled():
            tensors = [result] if isinstance(result, Tensor) else result if isinstance(result, (list, tuple)) else []
            self._scaled_losses += [(tensor, scaler.get_scale()) for tensor in tensors]
        return result

    def _scaler_step(
        self,
        original: Callable[..., Any],
        scaler: torch.amp.GradScaler,
        optimizer: torch.optim.Optimizer,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if not scaler.is_enabled():
            return original(scaler, optimizer, *args, **kwargs)
        if (
            self._forced_skips is not None
            and len(self.skipped_steps) < len(self._forced_skips)
            and self._forced_skips[len(self.skipped_steps)]
        ):
            _force_overflow(scaler, optimizer)
        self._stepping_ids.add(id(optimizer))
        try:
            result = original(scaler, optimizer, *args, **kwargs)
        finally:
            self._stepping_ids.discard(id(optimizer))
        found_inf = scaler._found_inf_per_device(optimizer).values()
        self.skipped_steps.append(any(bool(each.item()) for each in found_inf))
        self._close_window(optimizer, skipped=self.skipped_steps[-1])
        return result

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        window = self.windows.setdefault(id(optimizer), [Window()])[-1]
        if self._keeps_gradients:
            # Fused optimizers divide by the scale inside their step.
            scale = getattr(optimizer, "grad_scale", None)
            window.step_grads = _copy_gradients(optimizer, 1.0 if scale is None else float(scale))
        if id(optimizer) not in self._stepping_ids:
            self._close_window(optimizer, skipped=False)

    def _close_window(self, optimizer: torch.optim.Optimizer, *, skipped: bool) -> None:
        windows = self.windows.setdefault(id(optimizer), [Window()])
        windows[-1].step_call, windows[-1].is_skipped = self._call_index, skipped
        windows.append(Window())

    def _run_backward(self, original: Callable[..., Any], roots: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if (
            self._backward_depth
            or not kwargs.get("accumulate_grad")
            or not all(isinstance(root, Tensor) for root in roots)
        ):
            return original(roots, *args, **kwargs)
        scale = next(
            (scale for tensor, scale in self._scaled_losses if any(_is_near_root(root, tensor) for root in roots)), 1.0
        )
        weights = [
            torch.ones_like(root) if weight is None else weight for root, weight in zip(roots, args[0], strict=True)
        ]
        value = sum(
            float((root.detach().double() * weight.double()).sum()) for root, weight in zip(roots, weights, strict=True)
        )
        backward = Backward(self._call_index, value / scale)
        if self._values:
            tensors = tuple(value.tensor for value in self._values)
            fractions = tuple(weight / scale for weight in weights)
            # This backward pass runs only from the root to the loss functions, and not through the model.
            factors = original(
                roots,
                fractions,
                True,
                False,
                tensors,
                allow_unreachable=True,
                accumulate_grad=False,
            )
            pairs = list(zip(self._values, factors, strict=True))
            backward.terms = [value.make_term(factor.detach()) for value, factor in pairs if factor is not None]
            self._values = [value for value, factor in pairs if factor is None]
        self._find_cleared()
        self._backward_depth += 1
        try:
            result = original(roots, *args, **kwargs)
        finally:
            self._backward_depth -= 1
        self._call_backwards.append(backward)
        for optimizer in self._optimizers:
            window = self.windows[id(optimizer)][-1]
            window.backwards.append(backward)
            if self._keeps_gradients:
                window.accumulated_grads = _copy_gradients(optimizer, scale)
        return result

    def _find_cleared(self) -> None:
        """Mark the windows whose gradients were cleared before a further backward pass."""
        if not self._keeps_gradients:
            return
        for optimizer in self._optimizers:
            window = self.windows[id(optimizer)][-1]
            had_gradients = any(bool(each.any()) for each in window.accumulated_grads.values())
            if (
                window.clear_call is None
                and had_gradients
                and not any(bool(each.any()) for each in _copy_gradients(optimizer, 1.0).values())
            ):
                window.clear_call = self._call_index

    def _loss_of_call(self, result: Any) -> float | None:
        """Return the loss of a call: the returned loss, else the sum of the backward losses, else None."""
        if isinstance(result, collections.abc.Mapping):
            result = result.get("loss")
        elif not isinstance(result, (Tensor, float, int)):
            result = getattr(result, "loss", None)
        if isinstance(result, Tensor) and result.numel() == 1:
            result = float(result.detach())
        if isinstance(result, (float, int)) and not isinstance(result, bool):
            scale = next(
                (
                    scale
                    for tensor, scale in self._scaled_losses
                    if tensor.numel() == 1 and float(tensor.detach()) == result
                ),
                1.0,
            )
            return result / scale
        return sum(each.loss for each in self._call_backwards) if self._call_backwards else None


class _CriterionMode(TorchFunctionMode):
    """A function mode that sees calls of torch's functions under any imported name."""

    def __init__(self, watch: ReplayWatch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self,
        func: Callable[..., Any],
        kinds: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        watch = self._watch
        if not watch._allows_dropout and func in _DROPOUTS:
            position, name, off = _DROPOUTS[func]
            if len(args) > position:
                args = [*args[:position], off, *args[position + 1 :]]
            else:
                named = {**named, name: off}
        result = func(*args, **named)
        if watch._sees_criteria and func in _CRITERIA and isinstance(result, Tensor) and result.requires_grad:
            watch._values.append(_make_criterion_value(func, args, named, result))
        return result


def _existing_functions(*names: str) -> list[Callable[..., Any]]:
    """Return functions of torch.nn.functional, without functions that are missing in this torch version."""
    return [getattr(functional, name) for name in names if hasattr(functional, name)]


#: Function to the position and name of its dropout argument, and the value that disables dropout.
_DROPOUTS: dict[Callable[..., Any], tuple[int, str, bool | float]] = {
    **dict.fromkeys(
        _existing_functions(*"dropout alpha_dropout dropout1d dropout2d dropout3d feature_alpha_dropout".split()),
        (2, "training", False),
    ),
    functional.multi_head_attention_forward: (13, "training", False),
    functional.scaled_dot_product_attention: (4, "dropout_p", 0.0),
    torch.dropout: (2, "train", False),
}
#: Loss functions whose mean is over classified samples, over elements, and over rows.
_CLASSIFIED = _existing_functions("cross_entropy", "linear_cross_entropy", "nll_loss")
_BY_ELEMENT = _existing_functions(
    *"binary_cross_entropy binary_cross_entropy_with_logits gaussian_nll_loss hinge_embedding_loss huber_loss".split(),
    *"kl_div l1_loss mse_loss poisson_nll_loss smooth_l1_loss soft_margin_loss".split(),
)
_BY_ROW = _existing_functions(
    *"cosine_embedding_loss ctc_loss margin_ranking_loss multi_margin_loss multilabel_margin_loss".split(),
    *"multilabel_soft_margin_loss triplet_margin_loss triplet_margin_with_distance_loss".split(),
)
_CRITERIA = {*_CLASSIFIED, *_BY_ELEMENT, *_BY_ROW}


@dataclass
class _CriterionValue:
    """The result of a loss function, with the reduction and the number of samples: elements, or rows of the batch."""

    name: str
    tensor: Tensor
    reduction: str
    sample_count: float
    row_count: int

    def make_term(self, factor: Tensor) -> Term:
        """Return the weight of this value in a loss whose derivative by the value is ``factor``."""
        total = float(factor.double().sum())
        if self.reduction in ("mean", "batchmean"):
            return Term(
                self.name, (total,), None, self.row_count if self.reduction == "batchmean" else self.sample_count
            )
        even = float(factor.min()) == float(factor.max())
        sample_weight = float(factor.flatten()[0]) if even else None
        if self.reduction == "sum":
            return Term(
                self.name, (total * self.sample_count, total * self.row_count), sample_weight, self.sample_count
            )
        return Term(self.name, (total, total * self.row_count / self.tensor.numel()), sample_weight, self.sample_count)


def _make_criterion_value(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], result: Tensor
) -> _CriterionValue:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = bound.arguments
    reduction = arguments["reduction"]
    if arguments.get("size_average") is not None or arguments.get("reduce") is not None:
        legacy = torch.nn._reduction.legacy_get_string
        reduction = legacy(arguments["size_average"], arguments["reduce"], emit_warning=False)
    first, *_ = (each for each in arguments.values() if isinstance(each, Tensor))
    rows = first.shape[0] if first.dim() else 1
    count: float = rows if function in _BY_ROW else first.numel()
    if function in _CLASSIFIED:
        target, weight = arguments["target"], arguments.get("weight")
        if target.is_floating_point():
            count = rows
        else:
            counted = target[target != (-100 if arguments["ignore_index"] is None else arguments["ignore_index"])]
            count = counted.numel() if weight is None else float(weight[counted].sum())
    return _CriterionValue(function.__name__, result, reduction, count, rows)


def _scaler_classes() -> list[type]:
    """Return the loaded torch classes that define a scaler's methods."""
    sharded = sys.modules.get("torch.distributed.fsdp.sharded_grad_scaler")
    return [torch.amp.GradScaler, *([sharded.ShardedGradScaler] if sharded else [])]


def _copy_gradients(optimizer: torch.optim.Optimizer, scale: float) -> dict[int, Tensor]:
    """Return copies of an optimizer's gradients, divided by the scale, by ``id`` of the parameter."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {id(p): p.grad.detach().float() / scale for p in parameters if p.grad is not None}


def _force_overflow(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
    """Make the scaler skip its next step, also if the scaler has already checked the gradients."""
    for found_inf in scaler._found_inf_per_device(optimizer).values():
        found_inf.fill_(1.0)
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if gradients:
        gradients[0].mul_(float("inf"))


def _is_near_root(root: Tensor, tensor: Tensor) -> bool:
    """Return True if a tensor is the root of a backward pass, or at most 64 graph nodes away from the root."""
    if root is tensor:
        return True
    target, pending = tensor.grad_fn, [root.grad_fn]
    for _ in range(64):
        if target is None or not pending:
            return False
        node = pending.pop(0)
        if node is target:
            return True
        if node is not None:
            pending += [next_node for next_node, _ in node.next_functions]
    return False
