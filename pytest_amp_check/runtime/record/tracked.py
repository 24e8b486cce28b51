"""The recorded state of an optimizer, a scaler, and a backward pass."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from .deferred_values import ONE, DeferredNumber, FoundInf, ScaledValue
from .windows import Windows

if TYPE_CHECKING:
    import torch

    from ...protocol.events import Backward, OptimizerLoad
    from ...protocol.sites import Site
    from ...protocol.tracked_objects import TrackedObject
    from .checkpoint_contents import CheckpointContents
    from .source.call_texts import SiteText
    from .steps import StepRecord

#: Number of parameters that are sampled to see if a backward pass reached an optimizer.
SENTINELS = 4
#: Largest number of kept losses of one accumulation window.
LOSSES = 4096


class TrackedOptimizer:
    """The recorded state of an optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, tracked_object: TrackedObject) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.tracked_object = tracked_object
        #: The source text of the optimizer, "" if unknown, and the location of its construction, None if unknown.
        self.name: SiteText | str = ""
        self.construction_site: Site | None = None
        self.params: list[torch.Tensor] = []
        self.sentinels: list[torch.Tensor] = []
        #: The latest backward pass that accumulated into the optimizer, the losses of the passes since the last step,
        #: the gradient norm, and the flag of the last step.
        self.backward: Backward | None = None
        self.losses: deque[ScaledValue] = deque(maxlen=LOSSES)
        self.norm: ScaledValue | None = None
        self.last_found_inf = FoundInf()
        self.skips_in_a_row = 0
        self.steps = 0
        #: True if a step used the gradients and nothing cleared them since.
        self.is_used = False
        self.scaler: TrackedScaler | None = None
        #: Location at which the scaler of the last step was constructed, or None.
        self.scaler_site: Site | None = None
        #: True if the gradients are scaled now; True if the user has unscaled them; location of the last edit since
        #: then.
        self.is_scaled = False
        self.is_unscaled = False
        self.edit_site: Site | None = None
        #: True if a gradient was set to zero in place since the gradients were cleared or stepped.
        self.has_zeroed_gradient = False
        #: True if no backward pass ran since the gradients were cleared.
        self.is_cleared = False
        #: True if the program read a number of any tensor since it unscaled the gradients.
        self.has_taken_number = False
        #: Steps, skipped or not, and backward passes without a clear, since the optimizer's scheduler last stepped.
        self.steps_since = 0
        self.backwards_since = 0
        #: The optimizer's accumulation windows.
        self.windows = Windows()
        #: ``id`` of the last result of ``state_dict()``, and the location of the call.
        self.state_id = 0
        self.state_site: Site | None = None
        #: The event that loaded the optimizer's state, until the next step of a scaler.
        self.load_event: OptimizerLoad | None = None
        #: The sentinels' marks at the last look at the gradients.
        self.gradient_marks: list[tuple[int, int]] = []
        self.refresh_params(optimizer)

    def refresh_params(self, optimizer: torch.optim.Optimizer) -> None:
        """Read the optimizer's parameters again."""
        self.params = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        step = max(1, len(self.params) // SENTINELS)
        self.sentinels = [*self.params[::step], *self.params[-1:]]

    def is_saved_in(self, contents: CheckpointContents) -> bool:
        """Return True if a checkpoint contains the optimizer's state, or a copy of the state."""
        if self.state_id in contents.state_ids:
            return True
        optimizer = self.optimizer()
        if not self.state_id or optimizer is None:
            return False
        return tuple(len(group["params"]) for group in optimizer.param_groups) in contents.group_sizes

    def sentinel_marks(self) -> list[tuple[int, int]]:
        """Return (id, version) of the sentinels' gradients. A replaced or edited gradient has other marks."""
        # _grad is the same as grad, but is not patched.
        return [(0, 0) if (grad := p._grad) is None else (id(grad), grad._version) for p in self.sentinels]

    def holds_any(self, leaves: frozenset[int]) -> bool:
        """Return True if one of the optimizer's parameters is among the leaves of a backward pass."""
        return any(id(p) in leaves for p in self.params)


class TrackedScaler:
    """The recorded state of a GradScaler."""

    def __init__(self, scaler: Any, tracked_object: TrackedObject) -> None:
        self.scaler = weakref.ref(scaler)
        self.tracked_object = tracked_object
        #: The source text of the scaler, "" if unknown.
        self.name: SiteText | str = ""
        self.scale = ONE
        #: True if the program read the scale since the last update.
        self.has_read_scale = False
        self.steps = 0
        self.skips = 0
        self.skips_in_a_row = 0
        #: The steps since the last update.
        self.steps_since_update: list[StepRecord] = []


def feed_optimizer(backward: Backward, key: int) -> None:
    """Note that a backward pass has reached an optimizer."""
    assert isinstance(backward.feeds, set)
    backward.feeds.add(key)


class BackwardPass:
    """A running backward pass.

    ``leaf_ids`` are the ids of the reached parameters. If ``is_exact``, they are from the pass's own graph, else from
    the first pass at the same location. ``marks_before`` are the marks of each optimizer's gradients at the start.
    ``scale`` is the loss scale, ``loss_dtype`` the dtype of the loss before scaling, and ``roots`` the tensors that run
    backward.
    """

    def __init__(
        self,
        event: Backward,
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
