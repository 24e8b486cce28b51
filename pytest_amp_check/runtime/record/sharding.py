"""Sharded modules: modules whose gradients are distributed over ranks, and modules with a precision policy."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from .regions import LOW


def are_shards(params: Iterable[Any]) -> bool:
    """Return True if a parameter is this rank's part of a larger parameter of FullyShardedDataParallel."""
    if "torch.distributed.fsdp._flat_param" not in sys.modules or not _is_distributed():
        return False
    for p in params:
        if getattr(p, "_fsdp_flattened", False):
            whole = getattr(p, "_unpadded_unsharded_size", None)
            if not p.numel() or (whole is not None and p.numel() < whole.numel()):
                return True
    return False


def _is_distributed() -> bool:
    """Return True if a process group exists. torch imports the modules for it even without a group."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def unsynchronized_reason(scaler: Any, optimizer: Any, params: Sequence[Any]) -> str:
    """Return the reason why ranks may disagree about skipping a step, or "" if they cannot."""
    if not are_shards(params):
        return ""
    sharded = sys.modules.get("torch.distributed.fsdp.sharded_grad_scaler")
    if sharded is None or not isinstance(scaler, sharded.ShardedGradScaler):
        return "plain" if type(scaler).__module__.startswith("torch.") else ""
    return "fused" if getattr(optimizer, "_step_supports_amp_scaling", False) else ""


def policy_low_dtypes(leaves: frozenset[int]) -> frozenset[str]:
    """Return the low-precision dtypes of ``fully_shard`` policies whose parameters are among the leaves."""
    composed = sys.modules.get("torch.distributed._composable_state") if _is_distributed() else None
    return frozenset(
        LOW[group.mp_policy.param_dtype]
        for group in (_sharded_groups(composed) if composed is not None else ())
        if group.mp_policy.param_dtype in LOW
        # The leaves of a graph are the unsharded parameters, as gathered for the forward pass.
        and any(id(getattr(p, "_unsharded_param", None)) in leaves for p in group.fsdp_params)
    )


def _sharded_groups(composed: Any) -> Iterator[Any]:
    """Yield the groups of jointly sharded parameters of all sharded modules."""
    for reference in list(composed._module_state_mapping.values()):
        state = reference() if isinstance(reference, weakref.ref) else reference
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            groups = [getattr(state, "_fsdp_param_group", None)]
        yield from filter(None, groups)
