"""The same training steps again, from the same state and on the same data, and watched while they run."""

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

from ..record.active import hidden
from .snapshot import Bare, Found, Named, Snapshot, followed, reachable


class Replay:
    """Training steps that can run again: the step function, its data, and the state as it was before the first step.

    ``step(batch)`` is called once a batch, ``steps`` times in all (once through ``batches`` if None, in circles if
    there are fewer batches than that). ``state`` lists what the steps train: models, optimizers, scalers, schedulers,
    generators. If it is None, they are found from the function: its closure, the globals and helpers that it uses,
    its ``self``, the arguments of a ``functools.partial``, its defaults. Plain values beside them, such as a counter of
    micro-batches, are rewound too; with ``state``, only those that the function holds itself. ``also`` names what is
    rewound in either case. Raises ValueError for arguments with which nothing can run again.
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
            raise ValueError(f"step is {_kind(step)}, not a function: pass the function that trains on one batch")
        if steps is not None and (type(steps) is not int or steps < 1):
            raise ValueError(f"steps is {steps!r}: pass how many times the step is to run, at least 1, or nothing")
        if isinstance(batches, (str, Tensor)) or not hasattr(batches, "__iter__"):
            raise ValueError(f"batches is {_kind(batches)}: pass a list of batches or a data loader")
        if steps is None and isinstance(batches, (itertools.count, itertools.cycle, itertools.repeat)):
            raise ValueError("batches never ends: pass steps, how many times the step is to run")
        self.step = step
        #: Drawn once, so that every replay sees the same data.
        self.batches = list(itertools.islice(batches, steps))
        if not self.batches:
            raise ValueError("batches is empty: pass at least one batch")
        #: How many times the step runs.
        self.steps = len(self.batches) if steps is None else steps
        self._state: list[Named] | None = None
        if state is not None:
            given = list(state)
            self._state = [(_given_name(step, item, number), item) for number, item in enumerate(given)]
            for item in given:
                if not followed(item) and not isinstance(item, (Tensor, torch.Generator, dict, list)):
                    raise ValueError(f"state holds {_kind(item)}: pass models, optimizers, scalers and schedulers")
        self._also = [("", item) for item in also]
        #: The state before the first step.
        self.start = Snapshot(self._roots())
        found = self.found()
        if not (found.models or found.optimizers):
            raise ValueError(
                "no model and no optimizer was found that the step uses: pass state=[model, optimizer, scaler]"
            )

    def run(self) -> None:
        """Runs the steps from the present state, as the user's own run."""
        for number in range(self.steps):
            self.call(number)

    def call(self, number: int) -> Any:
        """What the step returns for its batch ``number``, counted from 0."""
        return self.step(self.batches[number % len(self.batches)])

    def found(self) -> Found:
        """The parts of the state as the step would find them now: a loaded model may be a new object."""
        return Found(self._roots())

    def snapshot(self) -> Snapshot:
        """The state as it is now."""
        return Snapshot(self._roots())

    @contextlib.contextmanager
    def rewound(self) -> Iterator[None]:
        """A region that begins in the state before the first step, and after which all is as it was before it."""
        unrepeatable = self.found().iterators
        if unrepeatable:
            raise ValueError(
                f"the step draws from `{unrepeatable[0]}`, an iterator that cannot be rewound: "
                "pass what it yields as batches, or state=[...] if the step does not draw from it"
            )
        now = self.snapshot()
        try:
            self.start.restore()
            # Steps that run again to be compared are not what a program trains.
            with hidden():
                yield
        finally:
            now.restore()

    def _roots(self) -> list[Named]:
        step: list[Named] = [("", self.step)] if self._state is None else [*self._state, ("", Bare(self.step))]
        return [*step, *self._also, ("batches", self.batches)]


def _given_name(step: object, item: object, number: int) -> str:
    """The name by which the step knows an object that was given in a list."""
    return next((name for name, each in reachable([("", step)]) if each is item and name), f"state[{number}]")


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


@dataclass
class Term:
    """What one value of a loss function counts for in a backward pass.

    ``weights``: the sum of its samples' weights, once for each way to count samples that the reduction leaves open.
    ``each``: the weight of one sample, where a sum or no reduction gave all the same. ``count``: samples.
    """

    name: str
    weights: tuple[float, ...]
    each: float | None
    count: float


@dataclass
class Backward:
    """One backward pass: the call of the step in which it ran, the unscaled loss, and what that consists of."""

    call: int
    loss: float
    terms: list[Term] = field(default_factory=list)


@dataclass
class Window:
    """The backward passes since an optimizer's previous step, and the step, which may have been skipped.

    ``accumulated`` are the unscaled gradients after the last backward pass, ``used`` those that the optimizer got,
    by ``id`` of the parameter; both only where asked for. ``cleared`` is the call whose backward pass found the
    gradients of the one before it gone.
    """

    backwards: list[Backward] = field(default_factory=list)
    stepped: int | None = None
    skipped: bool = False
    cleared: int | None = None
    accumulated: dict[int, Tensor] = field(default_factory=dict)
    used: dict[int, Tensor] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        """In how many calls of the step its backward passes ran."""
        return len({each.call for each in self.backwards})

    def divided(self) -> float:
        """By what the gradients were multiplied between the last backward pass and the step; 1.0 if unknown."""
        pairs = [(self.used[key], value) for key, value in self.accumulated.items() if key in self.used]
        below = sum(float((value.double() ** 2).sum()) for _, value in pairs)
        return sum(float((used.double() * value.double()).sum()) for used, value in pairs) / below if below else 1.0


class Watch:
    """Sees backward passes, optimizer steps and skips while steps are replayed; restores all that it patches.

    ``gradients`` keeps gradients of every window, ``criteria`` what torch's loss functions count for, ``dropout=False``
    turns dropout off, so that two ways to cut a batch can be compared. ``skips`` are the calls of ``scaler.step``, by
    number, that must be skipped, and ``scale`` a constant loss scale in place of the scalers' own.
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
        #: Whether each call of ``scaler.step`` was skipped.
        self.skipped: list[bool] = []
        #: The dtypes of the enabled autocast regions that were entered.
        self.dtypes: set[torch.dtype] = set()
        #: Closed windows by ``id`` of the optimizer, and the open one last.
        self.windows: dict[int, list[Window]] = {}
        self._replay = replay
        self._gradients, self._criteria, self._dropout, self._skips, self._scale = (
            gradients,
            criteria,
            dropout,
            skips,
            scale,
        )
        self._call = 0
        self._backwards: list[Backward] = []
        self._scaled: list[tuple[Tensor, float]] = []
        self._values: list[_Value] = []
        self._depth = 0
        self._stepping: set[int] = set()
        self._optimizers: list[torch.optim.Optimizer] = []

    def play(self, calls: Iterable[int]) -> None:
        """Runs calls of the step, watched."""
        for self._call in calls:
            self._backwards.clear()
            returned = self._replay.call(self._call)
            self.losses.append(self._loss(returned))
            self._scaled.clear()
            self._values.clear()

    def once(self, function: Callable[[Any], Any], batch: Any) -> None:
        """Runs another function on a batch, watched."""
        function(batch)
        self._scaled.clear()
        self._values.clear()

    def closed(self) -> list[list[Window]]:
        """For every optimizer that stepped, or was skipped, the windows that ended so."""
        ended = [[window for window in windows if window.stepped is not None] for windows in self.windows.values()]
        return [windows for windows in ended if windows]

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """A region in which it sees what happens."""
        with contextlib.ExitStack() as restored:
            self._optimizers = list(self._replay.found().optimizers.values())
            self.windows = {id(optimizer): [Window()] for optimizer in self._optimizers}
            restored.callback(register_optimizer_step_pre_hook(self._before_step).remove)
            self._patch(restored, torch.autograd, "_engine_run_backward", self._backward)
            self._patch(restored, torch.amp.autocast_mode.autocast, "__enter__", self._enter)
            for kind in _scalers():
                for name, changed in (("scale", self._scale_loss), ("step", self._step)):
                    if name in vars(kind):
                        self._patch(restored, kind, name, changed)
            if self._criteria or not self._dropout:
                restored.enter_context(_Functions(self))
            yield

    def _patch(self, restored: contextlib.ExitStack, owner: Any, name: str, changed: Callable[..., Any]) -> None:
        original = vars(owner)[name]

        def patched(*args: Any, **kwargs: Any) -> Any:
            return changed(original, *args, **kwargs)

        restored.callback(setattr, owner, name, original)
        setattr(owner, name, patched)

    def _enter(self, original: Callable[..., Any], region: Any) -> Any:
        if region._enabled:
            self.dtypes.add(region.fast_dtype)
        return original(region)

    def _scale_loss(self, original: Callable[..., Any], scaler: torch.amp.GradScaler, outputs: Any) -> Any:
        if self._scale is not None and scaler.is_enabled():
            scaler._init_scale = self._scale
            if scaler._scale is not None:
                scaler._scale.fill_(self._scale)
        result = original(scaler, outputs)
        if scaler.is_enabled():
            tensors = [result] if isinstance(result, Tensor) else result if isinstance(result, (list, tuple)) else []
            self._scaled += [(tensor, scaler.get_scale()) for tensor in tensors]
        return result

    def _step(
        self,
        original: Callable[..., Any],
        scaler: torch.amp.GradScaler,
        optimizer: torch.optim.Optimizer,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if not scaler.is_enabled():
            return original(scaler, optimizer, *args, **kwargs)
        if self._skips is not None and len(self.skipped) < len(self._skips) and self._skips[len(self.skipped)]:
            _overflow(scaler, optimizer)
        self._stepping.add(id(optimizer))
        try:
            result = original(scaler, optimizer, *args, **kwargs)
        finally:
            self._stepping.discard(id(optimizer))
        found = scaler._found_inf_per_device(optimizer).values()
        self.skipped.append(any(bool(each.item()) for each in found))
        self._close(optimizer, skipped=self.skipped[-1])
        return result

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        window = self.windows.setdefault(id(optimizer), [Window()])[-1]
        if self._gradients:
            # Fused optimizers divide by the scale themselves, in the step.
            scale = getattr(optimizer, "grad_scale", None)
            window.used = _gradients(optimizer, 1.0 if scale is None else float(scale))
        if id(optimizer) not in self._stepping:
            self._close(optimizer, skipped=False)

    def _close(self, optimizer: torch.optim.Optimizer, *, skipped: bool) -> None:
        windows = self.windows.setdefault(id(optimizer), [Window()])
        windows[-1].stepped, windows[-1].skipped = self._call, skipped
        windows.append(Window())

    def _backward(self, original: Callable[..., Any], roots: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if self._depth or not kwargs.get("accumulate_grad") or not all(isinstance(root, Tensor) for root in roots):
            return original(roots, *args, **kwargs)
        scale = next((scale for tensor, scale in self._scaled if any(_leads(root, tensor) for root in roots)), 1.0)
        weights = [
            torch.ones_like(root) if given is None else given for root, given in zip(roots, args[0], strict=True)
        ]
        value = sum(
            float((root.detach().double() * given.double()).sum()) for root, given in zip(roots, weights, strict=True)
        )
        backward = Backward(self._call, value / scale)
        if self._values:
            tensors = tuple(value.tensor for value in self._values)
            fractions = tuple(given / scale for given in weights)
            # Only from the root to the loss functions: the model's own graph is not walked.
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
            backward.terms = [value.term(factor.detach()) for value, factor in pairs if factor is not None]
            self._values = [value for value, factor in pairs if factor is None]
        self._find_cleared()
        self._depth += 1
        try:
            result = original(roots, *args, **kwargs)
        finally:
            self._depth -= 1
        self._backwards.append(backward)
        for optimizer in self._optimizers:
            window = self.windows[id(optimizer)][-1]
            window.backwards.append(backward)
            if self._gradients:
                window.accumulated = _gradients(optimizer, scale)
        return result

    def _find_cleared(self) -> None:
        """Notes the windows whose gradients are gone although more of them are to come."""
        if not self._gradients:
            return
        for optimizer in self._optimizers:
            window = self.windows[id(optimizer)][-1]
            had = any(bool(each.any()) for each in window.accumulated.values())
            if (
                window.cleared is None
                and had
                and not any(bool(each.any()) for each in _gradients(optimizer, 1.0).values())
            ):
                window.cleared = self._call

    def _loss(self, returned: Any) -> float | None:
        """The loss of a call: what it returned, or what ran backward."""
        if isinstance(returned, collections.abc.Mapping):
            returned = returned.get("loss")
        elif not isinstance(returned, (Tensor, float, int)):
            returned = getattr(returned, "loss", None)
        if isinstance(returned, Tensor) and returned.numel() == 1:
            returned = float(returned.detach())
        if isinstance(returned, (float, int)) and not isinstance(returned, bool):
            scale = next(
                (scale for tensor, scale in self._scaled if tensor.numel() == 1 and float(tensor.detach()) == returned),
                1.0,
            )
            return returned / scale
        return sum(each.loss for each in self._backwards) if self._backwards else None


class _Functions(TorchFunctionMode):
    """Sees calls of torch's functions by any name that they were imported by."""

    def __init__(self, watch: Watch) -> None:
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
        if not watch._dropout and func in _DROPOUTS:
            position, name, off = _DROPOUTS[func]
            if len(args) > position:
                args = [*args[:position], off, *args[position + 1 :]]
            else:
                named = {**named, name: off}
        result = func(*args, **named)
        if watch._criteria and func in _CRITERIA and isinstance(result, Tensor) and result.requires_grad:
            watch._values.append(_value(func, args, named, result))
        return result


def _named(*names: str) -> list[Callable[..., Any]]:
    """Functions of torch.nn.functional, without those that this torch does not have."""
    return [getattr(functional, name) for name in names if hasattr(functional, name)]


#: Where a function's switch for dropout is, what it is called, and what turns it off.
_DROPOUTS: dict[Callable[..., Any], tuple[int, str, bool | float]] = {
    **dict.fromkeys(
        _named(*"dropout alpha_dropout dropout1d dropout2d dropout3d feature_alpha_dropout".split()),
        (2, "training", False),
    ),
    functional.multi_head_attention_forward: (13, "training", False),
    functional.scaled_dot_product_attention: (4, "dropout_p", 0.0),
    torch.dropout: (2, "train", False),
}
#: Loss functions whose mean is over classified samples, over elements, and over rows.
_CLASSIFIED = _named("cross_entropy", "linear_cross_entropy", "nll_loss")
_BY_ELEMENT = _named(
    *"binary_cross_entropy binary_cross_entropy_with_logits gaussian_nll_loss hinge_embedding_loss huber_loss".split(),
    *"kl_div l1_loss mse_loss poisson_nll_loss smooth_l1_loss soft_margin_loss".split(),
)
_BY_ROW = _named(
    *"cosine_embedding_loss ctc_loss margin_ranking_loss multi_margin_loss multilabel_margin_loss".split(),
    *"multilabel_soft_margin_loss triplet_margin_loss triplet_margin_with_distance_loss".split(),
)
_CRITERIA = {*_CLASSIFIED, *_BY_ELEMENT, *_BY_ROW}


@dataclass
class _Value:
    """What a loss function returned, how it was reduced, and over how many samples: elements, or rows of the batch."""

    name: str
    tensor: Tensor
    reduction: str
    count: float
    rows: int

    def term(self, factor: Tensor) -> Term:
        """What it counts for in a loss whose derivative by it is ``factor``."""
        total = float(factor.double().sum())
        if self.reduction in ("mean", "batchmean"):
            return Term(self.name, (total,), None, self.rows if self.reduction == "batchmean" else self.count)
        even = float(factor.min()) == float(factor.max())
        each = float(factor.flatten()[0]) if even else None
        if self.reduction == "sum":
            return Term(self.name, (total * self.count, total * self.rows), each, self.count)
        return Term(self.name, (total, total * self.rows / self.tensor.numel()), each, self.count)


def _value(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], result: Tensor) -> _Value:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    reduction = given["reduction"]
    if given.get("size_average") is not None or given.get("reduce") is not None:
        legacy = torch.nn._reduction.legacy_get_string
        reduction = legacy(given["size_average"], given["reduce"], emit_warning=False)
    first, *_ = (each for each in given.values() if isinstance(each, Tensor))
    rows = first.shape[0] if first.dim() else 1
    count: float = rows if function in _BY_ROW else first.numel()
    if function in _CLASSIFIED:
        target, weight = given["target"], given.get("weight")
        if target.is_floating_point():
            count = rows
        else:
            known = target[target != (-100 if given["ignore_index"] is None else given["ignore_index"])]
            count = known.numel() if weight is None else float(weight[known].sum())
    return _Value(function.__name__, result, reduction, count, rows)


def _scalers() -> list[type]:
    """The classes that define a scaler's methods: those of torch, as far as they are loaded."""
    sharded = sys.modules.get("torch.distributed.fsdp.sharded_grad_scaler")
    return [torch.amp.GradScaler, *([sharded.ShardedGradScaler] if sharded else [])]


def _gradients(optimizer: torch.optim.Optimizer, scale: float) -> dict[int, Tensor]:
    """Copies of an optimizer's gradients, divided by the scale, by ``id`` of the parameter."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {id(p): p.grad.detach().float() / scale for p in parameters if p.grad is not None}


def _overflow(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
    """Makes the scaler skip its next step, whether or not it has looked at the gradients yet."""
    for found in scaler._found_inf_per_device(optimizer).values():
        found.fill_(1.0)
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if gradients:
        gradients[0].mul_(float("inf"))


def _leads(root: Tensor, tensor: Tensor) -> bool:
    """Whether a tensor is the root of a backward pass, or a few operations away from it."""
    if root is tensor:
        return True
    wanted, waiting = tensor.grad_fn, [root.grad_fn]
    for _ in range(64):
        if wanted is None or not waiting:
            return False
        node = waiting.pop(0)
        if node is wanted:
            return True
        if node is not None:
            waiting += [following for following, _ in node.next_functions]
    return False
