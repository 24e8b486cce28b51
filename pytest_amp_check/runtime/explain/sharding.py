"""The parameters that are sharded together with other parameters of another dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.finding import TraceStep
from ..record.recorder import Recorder
from ..record.regions import LOW
from .explanation import Explanation, RaisedError
from .naming import format_parameter_names, user_modules
from .operands import dtype_name, failed_operation

if TYPE_CHECKING:
    import torch


def explain_mixed_parameters(raised: RaisedError, recorder: Recorder) -> list[Explanation] | None:
    """Explain parameters of two dtypes that must be in one buffer."""
    for _, module in user_modules(raised.frames):
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for p in module.parameters():
            by_dtype.setdefault(p.dtype, []).append(p)
        if len(by_dtype) < 2:
            continue
        fewest, most = sorted(by_dtype, key=lambda kind: (len(by_dtype[kind]), kind not in LOW))[:2]
        rarer_params = by_dtype[fewest]
        cast_site = recorder.weights.low_precision.site_of(rarer_params[0])
        trace = (
            [TraceStep(cast_site, f"parameters are brought to {dtype_name(fewest)}")] if cast_site is not None else []
        )
        names = {
            "call": failed_operation(raised).text,
            "first": dtype_name(most),
            "second": dtype_name(fewest),
            "because": f", as {format_parameter_names(rarer_params, raised.frames)} have the latter",
        }
        return [
            Explanation("raised:sharded-dtypes", raised.site, names, (*trace, TraceStep(raised.site, "torch refuses")))
        ]
    return None
