"""The device that a program requested and that does not exist, and the scaler for another device."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...protocol import events as e
from ...protocol.finding import TraceStep
from ..record.recorder import Recorder
from ..record.source.syntax import text_at
from .explanation import Explanation, RaisedError


def explain_missing_device(raised: RaisedError, recorder: Recorder) -> Sequence[Explanation] | None:
    """Explain a missing device by a scaler for another device than the training device."""
    match = re.search(r"support for (\w+) devices|not compiled with (\w+) enabled", str(raised.error))
    if match is None:
        return None
    requested_device = (match[1] or match[2]).lower()
    for event in recorder.recording.run_checker.distinct_events.values():
        if isinstance(event, e.ScalerNew):
            device = event.arguments.get("device", "cuda")
            # A scaler that is disabled by a condition, such as a condition on the dtype, may be enabled in other runs.
            by_condition = "enabled=" in (text := text_at(event.site).replace(" ", "")) and "enabled=False" not in text
            is_disabled = device == "cpu" or (event.arguments.get("enabled") is False and not by_condition)
            if isinstance(device, str) and not device.startswith(requested_device) and not is_disabled:
                path = (
                    TraceStep(event.site, f"a scaler for {device} is made"),
                    TraceStep(raised.site, f"{requested_device} is used"),
                )
                names = {**event.names, "device": device, "asked": requested_device}
                return [Explanation("raised:other-device", event.site, names, path)]
    return None
