"""Gradients of which a rank holds a part, as FullyShardedDataParallel leaves them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any


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
