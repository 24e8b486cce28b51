"""Which parameters are in float16 where a scaler refuses their gradients, and where they came to be."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..record.recorder import Recorder
from ..record.source import SiteText
from .explanation import Explanation, RaisedError
from .gradients import find_stepped_optimizer
from .naming import format_parameter_names


def explain_half_parameters(raised: RaisedError, recorder: Recorder) -> Sequence[Explanation] | None:
    """Have the rule of such weights blame where they were cast or made; tell of those that were there before."""
    tracked = find_stepped_optimizer(raised, recorder)
    if tracked is None:
        return None
    half_params = [p for p in tracked.params if p.dtype is torch.float16]
    if not half_params:
        return None
    if recorder.weights.low_precision.report_casts(half_params):
        return ()
    names: dict[str, object] = {
        "optimizer": tracked.name or "",
        "call": SiteText(raised.site),
        "parameters": format_parameter_names(half_params, raised.frames),
    }
    return [Explanation("raised:half-parameters", raised.site, names)]
