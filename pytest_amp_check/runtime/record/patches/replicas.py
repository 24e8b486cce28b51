"""Patches of DistributedDataParallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn.parallel import DistributedDataParallel

from .table import Patch

if TYPE_CHECKING:
    from ..recorder import Recorder


def patches() -> list[Patch]:
    return [
        Patch(DistributedDataParallel, "forward", before=_runs),
        Patch(DistributedDataParallel, "register_comm_hook", before=_hooked),
    ]


def _runs(recorder: Recorder, module: Any, *args: Any, **kwargs: Any) -> None:
    recorder.replicas.runs(module)


def _hooked(recorder: Recorder, module: Any, state: object, hook: Any) -> None:
    recorder.replicas.hooked(hook)
