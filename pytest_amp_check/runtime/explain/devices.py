"""Which device a program asked for that is not there, and what in it is made for another one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...protocol import events as e
from ...protocol.finding import Step
from ..record.recorder import Recorder
from ..record.source import text_at
from .explanation import Explanation, Raised


def missing(raised: Raised, recorder: Recorder) -> Sequence[Explanation] | None:
    """Tell of a scaler that is for another device than the one that the program trains on."""
    said = re.search(r"support for (\w+) devices|not compiled with (\w+) enabled", str(raised.error))
    if said is None:
        return None
    asked = (said[1] or said[2]).lower()
    for event in recorder.recording.chain.distinct.values():
        if event.kind == e.SCALER_NEW:
            device = event.facts["arguments"].get("device", "cuda")
            # What is off because of a condition, such as one about the dtype, is on where that is otherwise.
            by_condition = "enabled=" in (text := text_at(event.site).replace(" ", "")) and "enabled=False" not in text
            off = device == "cpu" or (event.facts["arguments"].get("enabled") is False and not by_condition)
            if isinstance(device, str) and not device.startswith(asked) and not off:
                path = (Step(event.site, f"a scaler for {device} is made"), Step(raised.site, f"{asked} is used"))
                names = {**event.names, "device": device, "asked": asked}
                return [Explanation("raised:other-device", event.site, names, path)]
    return None
