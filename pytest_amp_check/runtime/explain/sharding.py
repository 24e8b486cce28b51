"""Which of the parameters that are sharded together have another dtype than the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.finding import Step
from ..record.recorder import Recorder
from ..record.regions import LOW
from .explanation import Explanation, Raised
from .naming import modules, parameters_named
from .operands import dtype_name, operation

if TYPE_CHECKING:
    import torch


def mixed_parameters(raised: Raised, recorder: Recorder) -> list[Explanation] | None:
    """Explain parameters of two dtypes that are to lie in one buffer."""
    for _, module in modules(raised.frames):
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for p in module.parameters():
            by_dtype.setdefault(p.dtype, []).append(p)
        if len(by_dtype) < 2:
            continue
        fewest, most = sorted(by_dtype, key=lambda kind: (len(by_dtype[kind]), kind not in LOW))[:2]
        odd = by_dtype[fewest]
        birth = recorder.weights.births.of(odd[0])
        path = [Step(birth, f"parameters are brought to {dtype_name(fewest)}")] if birth is not None else []
        names = {
            "call": operation(raised).text,
            "first": dtype_name(most),
            "second": dtype_name(fewest),
            "because": f", as {parameters_named(odd, raised.frames)} have the latter",
        }
        return [Explanation("raised:sharded-dtypes", raised.site, names, (*path, Step(raised.site, "torch refuses")))]
    return None
