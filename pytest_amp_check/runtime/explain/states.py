"""Tensors that belong together and have two dtypes: gradients of parameters, states of optimizers, sums of integers."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import torch

from ...protocol.words import Words
from ..record.recorder import Recorder
from .clashes import history
from .explanation import Explanation, Raised
from .gradients import stepped
from .naming import parameters_named
from .operands import Operand, dtype_name, operation, parts
from .origins import Origin
from .values import dtype, tensor


def gradient(raised: Raised, recorder: Recorder) -> Sequence[Explanation] | None:
    """Explain a gradient of another dtype than its parameter."""
    node, scope = raised.user.operation(), raised.user.scope
    if not isinstance(node, ast.Assign) or scope is None or not isinstance(node.targets[0], ast.Attribute):
        return None
    owner = node.targets[0].value
    first, second = dtype(owner, scope), dtype(node.value, scope)
    if first is None or second is None:
        return None
    given = Operand(
        f"`{Words(node.value)}`", second, None, Origin(node.value, scope, raised.frames[: _user(raised)]), held=False
    )
    because, path = history(raised, recorder, [given], None)
    names = {
        "call": str(Words(node.targets[0])),
        "first": dtype_name(first),
        "tensor": given.words,
        "tensor_name": str(Words(owner)),
        "because": because,
    }
    return [Explanation("raised:gradient-dtype", raised.site, names, path)]


def _user(raised: Raised) -> int:
    return raised.frames.index(raised.user) + 1


def integers(raised: Raised, recorder: Recorder) -> Sequence[Explanation] | None:
    """Explain floating values that are written into integers."""
    node, scope = raised.user.operation(), raised.user.scope
    found = [] if node is None or scope is None else [(part, tensor(part, scope)) for part in parts(node, scope)]
    whole = next((part for part, value in found if value is not None and not value.is_floating_point()), None)
    kind = None if whole is None or scope is None else dtype(whole, scope)
    if whole is None or kind is None:
        return None
    names = {"call": str(Words(whole)), "first": dtype_name(kind)}
    return [Explanation("raised:integers", raised.site, names)]


def to_numpy(raised: Raised, recorder: Recorder) -> Sequence[Explanation] | None:
    """Explain a tensor of a dtype that NumPy does not have."""
    low = next((operand for operand in operation(raised).operands if operand.is_low), None)
    if low is None:
        return None
    because, path = history(raised, recorder, [low], recorder.regions_left(raised.error))
    names = {"tensor": low.text, "dtype": dtype_name(low.dtype), "because": because}
    return [Explanation("raised:numpy", raised.site, names, path)]


def optimizer_state(raised: Raised, recorder: Recorder) -> Sequence[Explanation] | None:
    """Explain a state of an optimizer that has another dtype than its parameter."""
    for frame in reversed(raised.frames):
        optimizer = frame.frame.f_locals.get("self")
        if isinstance(optimizer, torch.optim.Optimizer):
            for p, state in optimizer.state.items():
                for key, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor) and key != "step" and value.dtype is not p.dtype:
                        names = {
                            "call": operation(raised).text,
                            "key": f"{key}",
                            "first": dtype_name(value.dtype),
                            "tensor": f"{parameters_named([p], raised.frames)} in {dtype_name(p.dtype)}",
                        }
                        return [Explanation("raised:state-dtype", raised.site, names)]
    return None


def half_sharded(raised: Raised, recorder: Recorder) -> Sequence[Explanation] | None:
    """Explain an optimizer of which some parameters are sharded and some are not."""
    tracked = stepped(raised, recorder)
    if tracked is None:
        return None
    plain = [p for p in tracked.params if not hasattr(p, "device_mesh")]
    if not plain or len(plain) == len(tracked.params):
        return None
    names: dict[str, object] = {
        "optimizer": tracked.name or "",
        "parameters": parameters_named(plain, raised.frames),
    }
    return [Explanation("raised:half-sharded", raised.site, names)]
