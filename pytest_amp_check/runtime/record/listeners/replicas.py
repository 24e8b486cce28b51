"""Modules whose gradients are averaged over ranks: that there are any, and what their gradients are cast to for it."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from ....protocol import events as e
from ..recording import Recording
from ..source import SiteText
from .listener import Listener, listener_method

#: Names of the hooks that cast gradients to float16, as torch calls them, the one that wraps another too.
_FP16_HOOKS = frozenset({"fp16_compress_hook", "fp16_compress_wrapper_hook"})


class ReplicaListener(Listener):
    """Listens to DistributedDataParallel."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: Whether some module has run that averages gradients in every backward, with no rank left out.
        self.averages_gradients = False
        #: Whether this process has belonged to a group of several when it stepped.
        self.is_grouped = False
        #: Its number in that group.
        self.rank: int | None = None

    @listener_method
    def record_forward(self, module: Any) -> None:
        """A replica runs forward. Under its ``join()`` ranks may have different numbers of batches."""
        joined = getattr(getattr(module, "_join_config", None), "enable", False)
        self.averages_gradients = self.averages_gradients or not joined

    def record_step(self) -> None:
        """A scaler is about to step."""
        if not self.is_grouped:
            self.is_grouped = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
            if self.is_grouped:
                self.rank = dist.get_rank()

    @listener_method
    def record_comm_hook(self, hook: Any) -> None:
        """Gradients are to be averaged by a function of the program's choice."""
        if getattr(hook, "__name__", "") in _FP16_HOOKS:
            site = self.sites.current_site()
            self.recording.emit(e.COMM_HOOK, site, names={"call": SiteText(site)})
