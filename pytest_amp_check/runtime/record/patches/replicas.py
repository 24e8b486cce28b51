"""Patches of DistributedDataParallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn.parallel import DistributedDataParallel

from .table import Patch

if TYPE_CHECKING:
    from ..recorder import Recorder


def patches() -> list[Patch]:
    return [
        Patch(DistributedDataParallel, "forward", on_call=_notify_forward),
        Patch(DistributedDataParallel, "register_comm_hook", on_call=_notify_comm_hook),
    ]


def _notify_forward(recorder: Recorder, module: Any, *args: Any, **kwargs: Any) -> None:
    recorder.replicas.record_forward(module)


def _notify_comm_hook(recorder: Recorder, module: Any, state: object, hook: Any) -> None:
    recorder.replicas.record_comm_hook(hook)
