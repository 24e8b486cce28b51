"""What a recording remembers of optimizers, scalers and passes."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from ...protocol.events import Event, Site, Thing
    from .checkpoint import Contents
    from .source import Spoken
    from .steps import StepRecord

#: Parameters of an optimizer that are looked at to see whether a backward fed it, before all are.
SENTINELS = 4


class Known:
    """What is remembered of an optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, thing: Thing) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.thing = thing
        self.said: Spoken | None = None
        self.params: list[torch.Tensor] = []
        self.sentinels: list[torch.Tensor] = []
        #: The latest backward that fed it, and whether the step before was skipped.
        self.backward: Event | None = None
        self.loss: Loss | None = None
        self.norm: Any = None
        self.skipped = False
        self.skips_in_a_row = 0
        self.steps = 0
        #: Whether its gradients have been used by a step, and not cleared since.
        self.used = False
        self.scaler: Scaler | None = None
        #: Whether its gradients are multiplied by a scale now, were unscaled by the user, were edited since then.
        self.under_scale = False
        self.unscaled = False
        self.edited: Site | None = None
        #: Whether the program has looked at a number of any tensor since it unscaled the gradients.
        self.looked = False
        #: Optimizer steps, skipped or not, and backwards that were not given up, since its scheduler last moved.
        self.steps_since = 0
        self.backwards_since = 0
        self.state_id = 0
        self.state_site: Site | None = None
        #: That its state was loaded.
        self.restored: Event | None = None
        self.looked_at: list[tuple[int, int]] = []
        self.refresh(optimizer)

    def refresh(self, optimizer: torch.optim.Optimizer) -> None:
        """Take its parameters anew."""
        self.params = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        step = max(1, len(self.params) // SENTINELS)
        self.sentinels = [*self.params[::step], *self.params[-1:]]

    def saved_in(self, contents: Contents) -> bool:
        """Whether its state, or a copy of it, is among what is saved."""
        if self.state_id in contents.states:
            return True
        optimizer = self.optimizer()
        if not self.state_id or optimizer is None:
            return False
        return tuple(len(group["params"]) for group in optimizer.param_groups) in contents.shapes

    def sentinel_marks(self) -> list[tuple[int, int]]:
        """What changes when a gradient is replaced or edited in place."""
        marks = []
        for p in self.sentinels:
            grad = p._grad  # the same as p.grad, which is patched
            marks.append((0, 0) if grad is None else (id(grad), grad._version))
        return marks

    def holds(self, leaves: frozenset[int]) -> bool:
        """Whether one of its parameters is among those that a backward reaches."""
        return any(id(p) in leaves for p in self.params)


class Scaler:
    """What is remembered of a GradScaler."""

    def __init__(self, scaler: Any, thing: Thing) -> None:
        self.scaler = weakref.ref(scaler)
        self.thing = thing
        self.said: Spoken | None = None
        self.scale = 1.0
        self.asked = False
        self.steps = 0
        self.skips = 0
        self.skips_in_a_row = 0
        self.waiting: list[StepRecord] = []
        self.stepped = False


class Loss:
    """A value that ran backward: the tensor, and the scale it was multiplied by."""

    __slots__ = ("scale", "tensor")

    def __init__(self, tensor: torch.Tensor, scale: float) -> None:
        self.tensor = tensor
        self.scale = scale


class Pass:
    """A backward pass that is running."""

    def __init__(
        self, event: Event, before: list[tuple[Known, list[tuple[int, int]]]], scale: float, leaves: frozenset[int]
    ) -> None:
        self.event = event
        self.leaves = leaves
        self.before = before
        self.scale = scale
        self.loss: torch.Tensor | None = None


class Penalty:
    """Scaled gradients that ``torch.autograd.grad`` made to be differentiated once more."""

    def __init__(self, event: Event, grads: list[torch.Tensor], scale: float) -> None:
        self.event = event
        self.grads = grads
        self.scale = scale
        self._sum = 0.0
        self._size = 0.0
        self._hooks: list[Any] = []

    def watch(self) -> None:
        """Learn, in the backward pass that follows, how the loss depends on these gradients."""
        for grad in self.grads:
            register: Any = grad.register_hook
            self._hooks.append(register(functools.partial(self._learn, grad.detach())))

    def _learn(self, grad: torch.Tensor, derivative: torch.Tensor) -> None:
        product = grad.double() * derivative.detach().double()
        self._sum += float(product.sum())
        self._size += float(product.abs().sum())

    def counts(self) -> bool:
        """Whether the scale matters.

        A loss that does not change with a common factor of them, as one that uses their direction alone, has a
        derivative of zero along it (Euler).
        """
        for hook in self._hooks:
            hook.remove()
        self.grads = []
        return not abs(self._sum) <= 1e-3 * self._size
