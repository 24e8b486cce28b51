"""Which parameters are in float16 where a scaler refuses their gradients, and where they came to be."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..record.recorder import Recorder
from ..record.source import SourceText
from .explanation import Explanation, Raised
from .gradients import stepped
from .naming import parameters_named


def explain(raised: Raised, recorder: Recorder) -> Sequence[Explanation] | None:
    """Have the rule of such weights blame where they were cast or made; tell of those that were there before."""
    tracked = stepped(raised, recorder)
    if tracked is None:
        return None
    half = [p for p in tracked.params if p.dtype is torch.float16]
    if not half:
        return None
    if recorder.weights.births.blame(half):
        return ()
    names: dict[str, object] = {
        "optimizer": tracked.name or "",
        "call": SourceText(raised.site),
        "parameters": parameters_named(half, raised.frames),
    }
    return [Explanation("raised:half-parameters", raised.site, names)]
