"""Contexts that ``with`` statements enter."""

from __future__ import annotations

from ....protocol.events import Anomaly
from ..conditions import Formula
from .value import Value


class NullContext(Value):
    """Context that does not change autocast."""

    kind = "null context"
    is_relevant = True

    __slots__ = ()


class AnomalyMode(Value):
    """Anomaly detection that ``event`` enabled."""

    kind = "anomaly detection"
    is_relevant = True

    __slots__ = ("event",)

    def __init__(self, event: Anomaly) -> None:
        super().__init__()
        self.event = event


class GradMode(Value):
    """Context such as ``torch.no_grad()``."""

    kind = "grad mode"
    is_relevant = True

    __slots__ = ()


class NoSyncContext(Value):
    """Context in which processes do not average gradients, such as ``model.no_sync()``, if ``enabled``."""

    kind = "no sync"
    is_relevant = True

    __slots__ = ("enabled",)

    def __init__(self, enabled: Formula = True) -> None:
        super().__init__()
        self.enabled = enabled


class Float8Context(Value):
    """Region of TransformerEngine whose modules compute in float8 under the condition ``enabled``."""

    kind = "float8"
    is_relevant = True

    __slots__ = ("enabled",)

    def __init__(self, enabled: Formula) -> None:
        super().__init__()
        self.enabled = enabled


class StackContext(Value):
    """``ExitStack``, its counts at entry, and the contexts that code enters on the stack.

    open_region_count      autocast regions that were open before
    possible_region_count  unknown contexts that were open before
    no_sync_count          contexts without gradient averaging (``no_sync``) that were open before
    no_grad_count          contexts without gradients (``no_grad``) that were open before
    float8_count           TransformerEngine regions that were open before
    path_length            number of conditions on the path before
    is_released            ``pop_all`` moved the contexts to another stack, so they may stay open
    """

    kind = "stack"
    is_relevant = True
    open_region_count: int
    possible_region_count: int
    no_sync_count: int
    no_grad_count: int
    float8_count: int
    path_length: int

    __slots__ = (
        "entered_contexts",
        "float8_count",
        "is_released",
        "no_grad_count",
        "no_sync_count",
        "open_region_count",
        "path_length",
        "possible_region_count",
    )

    def __init__(self) -> None:
        super().__init__()
        self.entered_contexts: list[Value] = []
        self.path_length = 0
        self.is_released = False
