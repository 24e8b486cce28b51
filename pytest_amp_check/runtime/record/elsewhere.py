"""What runs elsewhere than the protocol takes it to: on a shard of the gradients, in another thread, in a trace."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ...protocol.events import Site

#: What torch says of a trace that finds a cast weight in the cache of a region.
CONSTANT = "requires grad as a constant"
#: Modules whose op autocast casts on every device.
_CAST = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)


def are_shards(params: Iterable[Any]) -> bool:
    """Whether some parameters are what FullyShardedDataParallel leaves on this rank of larger ones."""
    if "torch.distributed.fsdp._flat_param" not in sys.modules:
        return False
    for p in params:
        if getattr(p, "_fsdp_flattened", False):
            whole = getattr(p, "_unpadded_unsharded_size", None)
            if not p.numel() or (whole is not None and p.numel() < whole.numel()):
                return True
    return False


def unsynchronised(scaler: Any, optimizer: Any, params: Sequence[Any]) -> str:
    """Why ranks can disagree about whether a step is skipped: "" where they cannot."""
    if not are_shards(params):
        return ""
    sharded = sys.modules.get("torch.distributed.fsdp.sharded_grad_scaler")
    if sharded is None or not isinstance(scaler, sharded.ShardedGradScaler):
        return "plain" if type(scaler).__module__.startswith("torch.") else ""
    return "fused" if getattr(optimizer, "_step_supports_amp_scaling", False) else ""


class Watch:
    """A thread that was given work in a region: ``on`` and ``off`` say whether modules ran there with autocast.

    ``depth`` is how many regions were open, ``site`` where the work was given.
    """

    __slots__ = ("depth", "device", "off", "on", "site")

    def __init__(self, site: Site, depth: int, device: str) -> None:
        self.site = site
        self.depth = depth
        self.device = device
        self.on = False
        self.off = False

    def look(self, module: torch.nn.Module, args: Any) -> None:
        """A module runs in the thread."""
        if isinstance(module, _CAST) and module.weight.dtype == torch.float32:
            if torch.is_autocast_enabled(self.device):
                self.on = True
            else:
                self.off = True


def watched(function: Callable[..., Any], watches: Sequence[Watch], local: Any) -> Callable[..., Any]:
    """The function, watched in the thread that runs it; ``local`` holds what watches the thread that asks."""

    def look(module: torch.nn.Module, args: Any) -> None:
        if local.watches is watches and not torch.compiler.is_compiling():
            for watch in watches:
                watch.look(module, args)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        before, local.watches = local.watches, watches
        # The hook is called in every thread, and looks in this one alone.
        hook = torch.nn.modules.module.register_module_forward_pre_hook(look)
        try:
            return function(*args, **kwargs)
        finally:
            hook.remove()
            local.watches = before

    return run
