"""What a program does beside each step of an optimizer, which goes on where a scaler skips the step."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....protocol import events as e
from ..hand_averages import AfterSkip
from ..readings import FoundInf
from ..recording import Recording
from ..source import SourceText
from ..tracked import TrackedOptimizer
from .listener import Listener, listens

if TYPE_CHECKING:
    import torch

#: Skipped steps of an optimizer after which averages are looked for.
LOOKS = 8


class Followers(Listener):
    """Listens to weights that are averaged over time or over processes, and to hooks on an optimizer's steps."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: What averages -> how many steps the optimizer had made when it did so last.
        self._steps: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        #: Set while what a program averages by hand is looked for.
        self.after_skip: AfterSkip | None = None
        #: Keys of the optimizers after whose skipped steps enough was looked at.
        self._looked: dict[int, int] = {}

    @listens
    def averaged(self, averaging: Any, model: Any) -> None:
        """The weights of a model are averaged over time."""
        tracked = self._trains(model)
        if tracked is not None and self._is_next(averaging, tracked):
            self._followed(tracked, tracked.skipped, str(SourceText(self.sites.here())) or "the average")

    @listens
    def averaged_over_processes(self, averager: Any) -> None:
        """The program averages weights over processes, of all models."""
        tracked = self._trains(None)
        if tracked is not None and self._is_next(averager, tracked) and _averages(averager):
            call = str(SourceText(self.sites.here())) or "the averager"
            self._followed(tracked, tracked.skipped, call, "averaged")

    def _is_next(self, averaging: object, tracked: TrackedOptimizer) -> bool:
        """Whether the optimizer has made one step, or skipped it, since this averaged the last time."""
        since = tracked.steps - self._steps.get(averaging, tracked.steps - 1)
        self._steps[averaging] = tracked.steps
        return since == 1

    def _trains(self, model: Any) -> TrackedOptimizer | None:
        """The one optimizer that a scaler steps and that trains a model, if there is one."""
        ids = None if model is None else {id(p) for p in model.parameters()}
        found = [
            tracked
            for tracked in self.registry.optimizers.values()
            if tracked.steps and (ids is None or any(id(p) in ids for p in tracked.params))
        ]
        return found[0] if len(found) == 1 else None

    def stepped(self, tracked: TrackedOptimizer, optimizer: Any, skipped: FoundInf) -> None:
        """A scaler has stepped an optimizer, or skipped its step."""
        self._hooks_called(tracked, optimizer, skipped)
        after = self.after_skip
        if after is not None and after.tracked is tracked:
            if after.places and not after.again:
                after.again = True
                return
            after = None
        if after is None:
            looked = self._looked.get(tracked.thing.key, 0)
            if skipped and looked < LOOKS:
                self._looked[tracked.thing.key] = looked + 1
                trained = [p for other in self.registry.optimizers.values() for p in other.params]
                after = AfterSkip(tracked, skipped, trained)
        if after is not self.after_skip:
            self.after_skip = after
            self.recording.follows = after is not None
            self.recording.choose_watching()

    @listens
    def changed(self, tensor: torch.Tensor, effect: str, given: Sequence[Any]) -> None:
        """A tensor is about to be changed in place, or to be given other values, while :attr:`after_skip` is set."""
        after = self.after_skip
        if after is None or self.recording.backwards or not after.averages(tensor, effect, given):
            return
        site = self.sites.here()
        if not after.again:
            after.places.add(id(site))
        elif id(site) in after.places:
            after.places.clear()
            self._looked[after.tracked.thing.key] = LOOKS
            self._followed(after.tracked, after.skipped, str(SourceText(site)) or "the average")

    def _hooks_called(self, tracked: TrackedOptimizer, optimizer: Any, skipped: FoundInf) -> None:
        """The hooks of an optimizer that looks for overflows by itself are called in any case."""
        own = optimizer.__dict__.get("_optimizer_step_post_hooks") or {}
        if own and getattr(optimizer, "_step_supports_amp_scaling", False):
            hook = next(iter(own.values()))
            self._followed(tracked, skipped, getattr(hook, "__name__", "") or "the hook")
        averager = getattr(optimizer, "averager", None)
        if averager is not None and _averages(averager):
            self._followed(tracked, skipped, str(SourceText(self.sites.here())) or "the step", "left-out")

    def _followed(self, tracked: TrackedOptimizer, skipped: FoundInf, call: str, how: str = "followed") -> None:
        names: dict[str, object] = {"call": call, "optimizer": tracked.name or ""}
        if tracked.scaler is not None and tracked.scaler.name is not None:
            names["scaler"] = tracked.scaler.name
        optimizer = tracked.thing.key
        self.recording.emit(e.STEP_FOLLOWED, self.sites.here(), None, optimizer, skipped=skipped, how=how, names=names)


def _averages(averager: Any) -> bool:
    """Whether one of torch's averagers averages weights with other processes: before that, all have the same."""
    group = getattr(averager, "process_group", None)
    return group is not None and group.size() > 1 and averager.step >= getattr(averager, "warmup_steps", 0)
