"""Modules whose gradients are averaged over ranks, and casts of gradients for the communication."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from ....protocol import events as e
from ..recording import Recording
from ..source.call_texts import SiteText
from .listener import Listener, listener_method

#: Names of torch's communication hooks that cast gradients to float16, including the wrapper of another hook.
_FP16_HOOKS = frozenset({"fp16_compress_hook", "fp16_compress_wrapper_hook"})


class ReplicaListener(Listener):
    """A listener for DistributedDataParallel."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: True if a module ran that averages gradients in every backward pass over all ranks.
        self.averages_gradients = False
        #: True if a module ran that averages gradients over ranks, possibly inside its ``join()``.
        self.has_replicas = False
        #: True if this process belonged to a group of several processes at a step.
        self.is_grouped = False
        #: The rank of this process in that group, or None.
        self.rank: int | None = None

    @listener_method
    def record_forward(self, module: Any) -> None:
        """Record a replica's forward pass. Inside its ``join()`` ranks may have different numbers of batches."""
        joined = getattr(getattr(module, "_join_config", None), "enable", False)
        self.has_replicas = True
        self.averages_gradients = self.averages_gradients or not joined

    def record_step(self) -> None:
        """Record the process group before a scaler's step. The group may be destroyed before the end of the run."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self.is_grouped, self.rank = True, dist.get_rank()

    @listener_method
    def record_comm_hook(self, hook: Any) -> None:
        """Record that the program chooses a function to average gradients."""
        if getattr(hook, "__name__", "") in _FP16_HOOKS:
            site = self.sites.current_site()
            self.recording.emit(e.CommHook(site, names={"call": SiteText(site)}))
