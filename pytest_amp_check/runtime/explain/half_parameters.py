"""The float16 parameters whose gradients a scaler refuses, and the locations of their casts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..record.recorder import Recorder
from ..record.source.call_texts import SiteText
from .explanation import Explanation, RaisedError
from .gradients import find_stepped_optimizer
from .naming import format_parameter_names


def explain_half_parameters(raised: RaisedError, recorder: Recorder) -> Sequence[Explanation] | None:
    """Report casts and creations of float16 parameters through the rule for such weights.

    If the parameters were float16 before the recording, return an explanation instead.
    """
    tracked = find_stepped_optimizer(raised, recorder)
    if tracked is None:
        return None
    half_params = [p for p in tracked.params if p.dtype is torch.float16]
    if not half_params:
        return None
    if recorder.weights.low_precision.report_casts(half_params):
        return ()
    names: dict[str, object] = {
        "optimizer": tracked.name,
        "call": SiteText(raised.site),
        "parameters": format_parameter_names(half_params, raised.frames),
    }
    return [Explanation("raised:half-parameters", raised.site, names)]
