"""What a recording remembers of an optimizer, a scaler, and a backward pass."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from .deferred_values import ONE, DeferredNumber, FoundInf, ScaledValue
from .windows import Windows

if TYPE_CHECKING:
    import torch

    from ...protocol.events import Event, Site, TrackedObject
    from .checkpoint_contents import CheckpointContents
    from .source import SiteText
    from .steps import StepRecord

#: Parameters of an optimizer that are looked at to see whether a backward fed it, before all are.
SENTINELS = 4


class TrackedOptimizer:
    """What is remembered of an optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, tracked_object: TrackedObject) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.tracked_object = tracked_object
        #: What the program calls it.
        self.name: SiteText | None = None
        self.params: list[torch.Tensor] = []
        self.sentinels: list[torch.Tensor] = []
        #: The latest backward that fed it, and whether the step before was skipped.
        self.backward: Event | None = None
        self.loss: ScaledValue | None = None
        self.norm: ScaledValue | None = None
        self.last_found_inf = FoundInf()
        self.skips_in_a_row = 0
        self.steps = 0
        #: Whether its gradients have been used by a step, and not cleared since.
        self.is_used = False
        self.scaler: TrackedScaler | None = None
        #: Whether its gradients are multiplied by a scale now, were unscaled by the user, were edited since then.
        self.is_scaled = False
        self.is_unscaled = False
        self.edit_site: Site | None = None
        #: Whether a gradient was set to zero in place since the gradients were cleared or stepped.
        self.has_zeroed_gradient = False
        #: Whether the program has asked for a number of any tensor since it unscaled the gradients.
        self.has_taken_number = False
        #: Optimizer steps, skipped or not, and backwards that were not given up, since its scheduler last moved.
        self.steps_since = 0
        self.backwards_since = 0
        #: Its accumulation windows.
        self.windows = Windows()
        #: The identity of the state that ``state_dict()`` gave last, and where it was asked for.
        self.state_id = 0
        self.state_site: Site | None = None
        #: That its state was loaded.
        self.load_event: Event | None = None
        #: The marks of its sentinels when its gradients were looked at last.
        self.gradient_marks: list[tuple[int, int]] = []
        self.refresh_params(optimizer)

    def refresh_params(self, optimizer: torch.optim.Optimizer) -> None:
        """Read its parameters again."""
        self.params = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        step = max(1, len(self.params) // SENTINELS)
        self.sentinels = [*self.params[::step], *self.params[-1:]]

    def is_saved_in(self, contents: CheckpointContents) -> bool:
        """Whether its state, or a copy of it, is among what is saved."""
        if self.state_id in contents.state_ids:
            return True
        optimizer = self.optimizer()
        if not self.state_id or optimizer is None:
            return False
        return tuple(len(group["params"]) for group in optimizer.param_groups) in contents.group_sizes

    def sentinel_marks(self) -> list[tuple[int, int]]:
        """What changes when a gradient is replaced or edited in place."""
        # _grad is the same as grad, which is patched.
        return [(0, 0) if (grad := p._grad) is None else (id(grad), grad._version) for p in self.sentinels]

    def holds_any(self, leaves: frozenset[int]) -> bool:
        """Whether one of its parameters is among those that a backward reaches."""
        return any(id(p) in leaves for p in self.params)


class TrackedScaler:
    """What is remembered of a GradScaler."""

    def __init__(self, scaler: Any, tracked_object: TrackedObject) -> None:
        self.scaler = weakref.ref(scaler)
        self.tracked_object = tracked_object
        #: What the program calls it.
        self.name: SiteText | None = None
        self.scale = ONE
        #: Whether the program has asked for the scale since the last update.
        self.has_read_scale = False
        self.steps = 0
        self.skips = 0
        self.skips_in_a_row = 0
        #: The steps since the last update.
        self.steps_since_update: list[StepRecord] = []


class BackwardPass:
    """A backward pass that is running.

    ``leaves`` are identities of the parameters that it reaches, of its own graph if they are ``exact``, else of that of
    the first pass at its place, ``before`` the marks of each optimizer's gradients when it began, ``scale`` what the
    loss was multiplied by, ``dtype`` what it was before, ``roots`` the tensors that it runs from.
    """

    def __init__(
        self,
        event: Event,
        marks_before: list[tuple[TrackedOptimizer, list[tuple[int, int]]]],
        scale: DeferredNumber,
        leaf_ids: frozenset[int],
        loss: ScaledValue | None,
        loss_dtype: torch.dtype | None,
        roots: list[torch.Tensor],
        *,
        is_exact: bool,
    ) -> None:
        self.event = event
        self.is_exact = is_exact
        self.leaf_ids = leaf_ids
        self.marks_before = marks_before
        self.scale = scale
        self.loss = loss
        self.loss_dtype = loss_dtype
        self.roots = roots
