"""Patches of functions that clip gradients, or compute norms of gradients."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import clip_grad

from .table import Patch

if TYPE_CHECKING:
    from ..recorder import Recorder


def patches() -> list[Patch]:
    # Every function of the module that clips, or computes a norm, calls this function first.
    rows = [Patch(clip_grad, "_group_tensors_by_device_and_dtype", on_call=_notify_grouping)]
    if not hasattr(clip_grad, "_get_total_norm"):
        # Before torch 2.6 the norm is computed where it is used, and only this function is called in between.
        rows.append(Patch(clip_grad, "_has_foreach_support", on_call=_notify_multiplication))
    for owner, name in ((torch.Tensor, "norm"), (torch, "norm"), (torch.linalg, "norm"), (torch.linalg, "vector_norm")):
        rows.append(Patch(owner, name, on_return=_notify_own_norm, only_user_calls=True, may_be_compiled=True))
    fully = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    if fully is not None:
        rows.append(Patch(fully.FullyShardedDataParallel, "clip_grad_norm_", on_call=_notify_sharded_clip))
    return rows


def _notify_grouping(recorder: Recorder, *args: Any, **kwargs: Any) -> None:
    """Report the norm that a function of ``torch.nn.utils.clip_grad`` computes, or the clip that it makes."""
    # Frame 2 skips the patch between that function and this one.
    frame = sys._getframe(2)
    name = frame.f_code.co_name
    if name == "_clip_grads_with_norm_":
        recorder.clipping_listener.record_norm(frame.f_locals.get("total_norm"))
    outer = _clipping_frame(frame) if name in ("_get_total_norm", "_clip_grads_with_norm_") else None
    if outer is None and name == "_get_total_norm":
        recorder.clipping_listener.record_norm_read(frame.f_locals.get("tensors"))
    elif outer is None or name == "_get_total_norm":
        _notify_clip(recorder, outer or frame)


def _notify_own_norm(recorder: Recorder, norm: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    # The functions have different names for the tensor.
    tensor = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), None)
    if tensor is not None:
        recorder.clipping_listener.note_norm(norm, tensor)


def _notify_multiplication(recorder: Recorder, *args: Any, **kwargs: Any) -> None:
    """Report the norm by which ``clip_grad_norm_`` is about to multiply gradients."""
    values = sys._getframe(2).f_locals
    if "clip_coef" in values:
        recorder.clipping_listener.record_norm(values.get("total_norm"))


def _clipping_frame(frame: FrameType) -> FrameType | None:
    """Return the frame of clip_grad_norm_ around a helper, or None. torch's own wrappers are skipped."""
    caller = frame.f_back
    while caller is not None and caller.f_code.co_name == "_no_grad_wrapper":
        caller = caller.f_back
    return caller if caller is not None and caller.f_code.co_name == "clip_grad_norm_" else None


def _notify_clip(recorder: Recorder, frame: FrameType) -> None:
    values, name = frame.f_locals, frame.f_code.co_name
    limit = values.get("clip_value" if name == "clip_grad_value_" else "max_norm")
    if limit is None:
        return
    parameters = values.get("parameters")
    if isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    # A generator is exhausted by now; its gradients are in the list of grads.
    params = parameters if isinstance(parameters, (list, tuple)) else []
    grads = values.get("grads")
    recorder.clipping_listener.record_clip(
        params,
        limit,
        grads=() if params or not isinstance(grads, list) else grads,
        nonfinite_error=bool(values.get("error_if_nonfinite")),
        norm=name == "clip_grad_norm_",
        joint=name != "clip_grad_value_",
    )


def _notify_sharded_clip(recorder: Recorder, module: Any, max_norm: Any, *args: Any, **kwargs: Any) -> None:
    recorder.clipping_listener.record_clip(list(module.parameters()), max_norm, nonfinite_error=False)
