"""The causes of non-finite values, in words: from the producing op, its operands, and the optimizer's last step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ...protocol.sites import Site
from ..record.derivatives import Derivative
from ..record.non_finite.causes import GROWN as GROWN_WEIGHTS
from ..record.non_finite.causes import RATE, STATISTIC, NonFiniteCause
from ..record.non_finite.records import GRADIENTS, PARAMETERS, SKIPPED, STATISTICS, NonFiniteRecord
from ..record.non_finite.statistics import RUNNING
from .magnitudes import Magnitudes, is_finite, measure_magnitudes
from .op_trace import BUFFER, OP, PARAMETER, ModuleEntry, NonFiniteOrigin, Underflow

#: Magnitude that no weight reaches with a sound learning rate.
GROWN = 1e4
#: Largest magnitude that float16 rounds to zero.
_VANISHES = 2.0**-25
#: Magnitude that no entry of an optimizer's gradient statistics reaches with sound gradients.
_KEPT = 1e6

OVERFLOW, UNDERFLOW, DOMAIN, MASK, PRODUCT, INFINITY, DATA, WEIGHT, STATE, UPDATED, BACKWARD, ALIGNMENT, UNKNOWN = (
    "overflow underflow domain mask product infinity input parameter state buffer gradient alignment unexplained"
).split()
#: Start of the names of parameters that only an optimizer holds.
_IN_OPTIMIZER = "param_groups"
#: Losses over all alignments of a target with an input, which are infinite if there is no alignment.
_ALIGNMENTS = frozenset({"_ctc_loss", "_cudnn_ctc_loss", "ctc_loss"})


class Evidence:
    """The known data besides the op: the recorded non-finite value, the named modules, and the last called modules."""

    def __init__(self, nonfinite: NonFiniteRecord, modules: dict[str, nn.Module]) -> None:
        self.nonfinite = nonfinite
        self.modules = modules
        self.last_modules: list[ModuleEntry] = []
        #: The reason why the step could not be replayed, or "".
        self.failure = ""


class OptimizerDamage(NamedTuple):
    """Damage to the parameters by an optimizer: the label of the cause, the first affected step, and the reason."""

    label: str
    since_step: int
    reason: str


def cause_of(evidence: Evidence, origin: NonFiniteOrigin | None) -> NonFiniteCause:
    """Return the cause for an origin. None stands for parameters that the last optimizer step made non-finite."""
    if origin is None:
        name, parameter = _first_nonfinite(evidence)
        return _cause_of_parameter(evidence, name, parameter, None)
    return _cause_of_origin(evidence, origin)


def is_low(origin: NonFiniteOrigin) -> bool:
    """Return True if an op in float16 or bfloat16 produced the value."""
    return origin.kind == OP and origin.result is not None and origin.result.dtype in (torch.float16, torch.bfloat16)


def is_scale_product(origin: NonFiniteOrigin, scale: float) -> bool:
    """Return True if the op multiplied a finite loss by the loss scale."""
    return origin.kind == OP and any(
        size.shape in ((), (1,)) and size.largest == scale for _, size in origin.operands[1:]
    )


def _cause_of_origin(evidence: Evidence, origin: NonFiniteOrigin) -> NonFiniteCause:
    nonfinite = evidence.nonfinite
    if origin.kind == PARAMETER and origin.tensor is not None:
        return _cause_of_parameter(evidence, origin.name, origin.tensor, origin)
    names = {"step": str(nonfinite.step), "where": _module_text(origin), "first": "output"}
    names["values"] = _format_operands(origin)
    if origin.kind == BUFFER or nonfinite.kind == STATISTICS:
        return _cause_of_statistic(evidence, origin, names)
    if origin.kind != OP:
        names.update(first="input", what=str(origin.result))
        trace = _build_trace(origin, "the input is not finite")
        return NonFiniteCause(DATA, origin.site, names, trace, given_tensor=origin.tensor)
    if origin.has_nan_argument:
        names.update(first="input", what="a number that is NaN")
        return NonFiniteCause(DATA, origin.site, names, _build_trace(origin, "the number is NaN"))
    names["op"] = origin.name.removesuffix("_")
    damage = _grown_weights(evidence)
    if origin.in_backward:
        names.update(first="gradient", reason=_explain_gradient(origin))
        return NonFiniteCause(
            BACKWARD,
            origin.site,
            names,
            _build_trace(origin, f"the gradient of `{names['op']}` is the first non-finite value"),
        )
    if origin.is_mask:
        return NonFiniteCause(
            INFINITY, origin.site, names, _build_trace(origin, f"the output of `{names['op']}` is infinite")
        )
    if origin.mask_origins:
        return _cause_of_masked(origin, names)
    if origin.has_infinite_argument and names["op"] == "mul" and any(size.has_zeros for _, size in origin.operands):
        return NonFiniteCause(PRODUCT, origin.site, names, _build_trace(origin, "the product is NaN"))
    label, reason = _explain_op(origin)
    if label == OVERFLOW and names["op"] in _ALIGNMENTS:
        return NonFiniteCause(
            ALIGNMENT, origin.site, names, _build_trace(origin, f"the output of `{names['op']}` is infinite")
        )
    names["reason"] = reason
    if damage is not None:
        label, names["reason"] = damage.label, damage.reason
        names["since"] = str(damage.since_step)
        names["greatest"] = f"{_greatest_weight(evidence):.2g}"
    return NonFiniteCause(
        label, origin.site, names, _build_trace(origin, f"the output of `{names['op']}` is the first non-finite value")
    )


def cause_of_derivative(evidence: Evidence, origin: NonFiniteOrigin, derivative: Derivative) -> NonFiniteCause:
    """Return the cause for a gradient from ``torch.autograd.grad`` that is not finite, of an unscaled loss."""
    names = {"step": str(evidence.nonfinite.step), "where": "code outside of modules", "first": "gradient"}
    names.update(op="torch.autograd.grad", values=str(origin.result), reason=_explain_gradient(origin))
    trace = _build_trace(origin, "the loss contains this gradient")
    return NonFiniteCause(BACKWARD, derivative.site, names, ((derivative.site, "the gradient is computed"), *trace))


def unexplained_cause(evidence: Evidence) -> NonFiniteCause:
    """Return the cause for a step whose replay failed or did not reproduce the non-finite value."""
    nonfinite = evidence.nonfinite
    what = {GRADIENTS: "gradients", SKIPPED: "gradients", STATISTICS: "statistics"}.get(nonfinite.kind, "loss")
    if nonfinite.kind == STATISTICS and nonfinite.buffers:
        module, buffer = nonfinite.buffers[0]
        name = next((name for name, each in evidence.modules.items() if each is module), "")
        module_text = _format_module(name, type(module).__name__)
        names = {"step": str(nonfinite.step), "where": module_text, "name": buffer, "since": str(nonfinite.step)}
        names["reason"] = "no op of the step produced the value, so other code wrote to it"
        return NonFiniteCause(STATISTIC, None, names, _module_trace(evidence.last_modules))
    reason = evidence.failure or "the step, played again, does not show it"
    return NonFiniteCause(
        UNKNOWN,
        None,
        {"step": str(nonfinite.step), "what": what, "reason": reason},
        _module_trace(evidence.last_modules),
    )


# Causes by the part of the step that is not finite first.


def _cause_of_parameter(
    evidence: Evidence, name: str, parameter: torch.Tensor, origin: NonFiniteOrigin | None
) -> NonFiniteCause:
    nonfinite = evidence.nonfinite
    damage = _optimizer_damage(evidence, parameter)
    owner = name.rpartition(".")[0]
    kind = type(evidence.modules[owner]).__name__ if owner in evidence.modules else ""
    module_text = _format_module(owner, kind) if kind else "the model"
    if name.startswith(_IN_OPTIMIZER):
        module_text = "the optimizer"
    names = {
        "step": str(nonfinite.step),
        "where": module_text,
        "name": name,
        "since": str(nonfinite.step),
        "first": "weight",
    }
    names.update(op="the forward", values="", reason="it was changed by other code than the optimizer's step")
    label = WEIGHT
    if nonfinite.step == 0:
        names["reason"] = "it is non-finite from the start"
    if damage is not None:
        label, names["reason"] = damage.label, damage.reason
        names.update(since=str(damage.since_step), step=str(damage.since_step))
        names["first"] = "state" if label == STATE else "weight"
    trace = () if origin is None else _build_trace(origin, f"the {names['first']} is the first non-finite value")
    return NonFiniteCause(label, origin.site if origin is not None else None, names, trace)


def _cause_of_statistic(evidence: Evidence, origin: NonFiniteOrigin, names: dict[str, str]) -> NonFiniteCause:
    nonfinite = evidence.nonfinite
    module, buffer = nonfinite.buffers[0] if nonfinite.buffers else (None, origin.name)
    if module is not None:
        name = next((name for name, each in evidence.modules.items() if each is module), "")
        names["where"] = _format_module(name, type(module).__name__)
    names.update(name=buffer, first="state", since=str(nonfinite.step))
    names["reason"] = "it was non-finite before this step"
    if origin.kind == OP:
        _, reason = _explain_op(origin)
        names["reason"] = f"`{origin.name}` produces it from {_format_operands(origin)}, {reason}"
        if nonfinite.backward is not None and nonfinite.backward.is_scaled:
            names["reason"] += "; a step that the scaler skips keeps it"
        if not buffer.startswith(RUNNING):
            trace = _build_trace(origin, f"the update of `{buffer}` is not finite")
            return NonFiniteCause(UPDATED, origin.site, names, trace)
    return NonFiniteCause(
        STATISTIC, origin.site, names, _build_trace(origin, "the statistic is the first non-finite value")
    )


def _cause_of_masked(origin: NonFiniteOrigin, names: dict[str, str]) -> NonFiniteCause:
    """Return the cause for an op that got intended infinities and produced NaN."""
    if "softmax" in origin.name or "attention" in origin.name:
        names["reason"] = "all entries of one input row are -inf"
        return NonFiniteCause(
            MASK, origin.site, names, _build_trace(origin, "the output of the softmax is the first non-finite value")
        )
    if any(each.kind not in (OP, BUFFER) for each in origin.mask_origins):
        names.update(first="input", what=str(origin.mask_origins[0].result))
        return NonFiniteCause(DATA, origin.site, names, _build_trace(origin, "the input is not finite"))
    names["reason"] = "an infinity that the code filled in is combined with another infinity or a zero"
    return NonFiniteCause(
        MASK, origin.site, names, _build_trace(origin, f"the output of `{names['op']}` is the first non-finite value")
    )


# Damage by the optimizer.


def _first_nonfinite(evidence: Evidence) -> tuple[str, torch.Tensor]:
    names = {id(p): name for p, name in optimized_parameters(evidence.nonfinite.optimizers)}
    for name, module in evidence.modules.items():
        for parameter_name, p in module.named_parameters(recurse=False):
            names[id(p)] = f"{name}.{parameter_name}".lstrip(".")
    bad = next(p for p in evidence.nonfinite.params if not is_finite(p))
    return names.get(id(bad), "a parameter"), bad


def optimized_parameters(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[tuple[torch.Tensor, str]]:
    """Yield the parameters of optimizers with their places there: names for tensors that no module holds."""
    for optimizer in optimizers:
        for number, group in enumerate(optimizer.param_groups):
            for index, p in enumerate(group["params"]):
                yield p, f'{_IN_OPTIMIZER}[{number}]["params"][{index}]'


def _param_groups(evidence: Evidence) -> Iterator[tuple[torch.optim.Optimizer, dict[str, Any]]]:
    for optimizer in evidence.nonfinite.optimizers:
        for group in optimizer.param_groups:
            yield optimizer, group


def _optimizer_damage(evidence: Evidence, parameter: torch.Tensor) -> OptimizerDamage | None:
    """Return the damage of the latest optimizer step to a parameter, or None if no damage is visible."""
    nonfinite = evidence.nonfinite
    since_step = nonfinite.step if nonfinite.kind == PARAMETERS else nonfinite.step - 1
    if since_step < 0:
        return None
    for optimizer, group in _param_groups(evidence):
        own_parameter = next((p for p in group["params"] if _is_same_tensor(p, parameter)), None)
        if own_parameter is None:
            continue
        gradient = own_parameter.grad
        if nonfinite.kind == PARAMETERS and gradient is not None and not is_finite(gradient):
            # The gradients of each backward pass are finite, so other code has changed this one.
            return OptimizerDamage(STATE, since_step, "its gradient is not finite")
        for key, value in optimizer.state.get(own_parameter, {}).items():
            if isinstance(value, torch.Tensor) and value.is_floating_point() and not is_finite(value):
                return OptimizerDamage(
                    STATE, since_step, f"`{key}` in the state of {type(optimizer).__name__} is not finite"
                )
        eps = group.get("eps")
        if own_parameter.dtype is torch.float16 and isinstance(eps, float) and eps <= _VANISHES:
            reason = f"{type(optimizer).__name__} computes in float16, in which its eps of {eps:g} is zero"
            return OptimizerDamage(STATE, since_step, reason)
        rate = float(group.get("lr", 0.0))
        if not math.isfinite(rate) or _greatest_weight(evidence) >= GROWN:
            return OptimizerDamage(
                RATE,
                since_step,
                f"the learning rate is {rate:g} and weights are up to {_greatest_weight(evidence):.2g}",
            )
    if nonfinite.kind == PARAMETERS:
        return OptimizerDamage(STATE, since_step, "its update is not finite although the gradients are")
    return None


def _grown_weights(evidence: Evidence) -> OptimizerDamage | None:
    """Return the damage if finite weights have become too large for any computation, else None."""
    greatest = _greatest_weight(evidence)
    if greatest < GROWN or not evidence.nonfinite.step or evidence.nonfinite.only_skipped:
        return None
    since_step = evidence.nonfinite.step - 1
    for optimizer, group in _param_groups(evidence):
        rate = float(group.get("lr", 0.0))
        if rate > 1.0:
            continue
        owner = f"in the state of {type(optimizer).__name__}"
        state = [
            (key, measure_magnitudes(value))
            for p in group["params"]
            for key, value in optimizer.state.get(p, {}).items()
            if isinstance(value, torch.Tensor) and value.is_floating_point()
        ]
        sizes = [(key, size.largest or 0.0) for key, size in state if key.startswith(("exp_avg", "momentum"))]
        key, most = max(sizes, key=lambda pair: pair[1], default=("", 0.0))
        if most >= _KEPT:
            return OptimizerDamage(GROWN_WEIGHTS, since_step, f"`{key}` {owner} is as large as {most:.2g}")
        low = next(((key, size.dtype) for key, size in state if size.dtype is torch.float16 and size.has_zeros), None)
        if low is not None:
            reason = f"`{low[0]}` {owner} is in float16, where small numbers are zero"
            return OptimizerDamage(GROWN_WEIGHTS, since_step, reason)
    rates = sorted({float(group.get("lr", 0.0)) for _, group in _param_groups(evidence)})
    rates_text = ", ".join(f"{rate:g}" for rate in rates) or "unknown"
    return OptimizerDamage(
        RATE, since_step, f"weights have grown up to {greatest:.2g}, and the learning rate is {rates_text}"
    )


def _greatest_weight(evidence: Evidence) -> float:
    sizes = [
        measure_magnitudes(p).largest or 0.0 for p in evidence.nonfinite.params if p.is_floating_point() and p.numel()
    ]
    return max(sizes, default=0.0)


def _is_same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one is other or one.data_ptr() == other.data_ptr()


# Texts.

_Operands = list[Magnitudes]


def _zero_or_less(operands: _Operands) -> str:
    lowest = operands[0].minimum if operands else None
    if lowest is not None and lowest < 0:
        return "a negative number"
    return "zero" if operands and operands[0].has_zeros else ""


def _reason_of_zero(what: str) -> Callable[[_Operands], str]:
    def zero_reason(operands: _Operands) -> str:
        operand = _zero_or_less(operands)
        return f"the {what} of {operand}" if operand else ""

    return zero_reason


def _division_reason(operands: _Operands) -> str:
    return (
        "a division by zero"
        if (len(operands) > 1 and operands[1].has_zeros) or (len(operands) == 1 and operands[0].has_zeros)
        else ""
    )


def _power_reason(operands: _Operands) -> str:
    operand = _zero_or_less(operands)
    return f"a power of {operand}" if operand else ""


def _range_reason(operands: _Operands) -> str:
    return "outside of -1 to 1, where it is defined" if operands and (operands[0].largest or 0.0) >= 1.0 else ""


def _spread_reason(operands: _Operands) -> str:
    return "a spread of a single value, or of none"


#: Op to a function that returns the reason why the operands are outside of the op's domain, or "".
_DOMAINS: dict[str, Callable[[_Operands], str]] = {
    "log": _reason_of_zero("logarithm"),
    "log2": _reason_of_zero("logarithm"),
    "log10": _reason_of_zero("logarithm"),
    "log1p": lambda given: "the logarithm of zero or a negative number" if (given[0].minimum or 0.0) <= -1.0 else "",
    "sqrt": _reason_of_zero("square root"),
    "rsqrt": _reason_of_zero("inverse square root"),
    "reciprocal": lambda given: "a division by zero" if given and given[0].has_zeros else "",
    "div": _division_reason,
    "pow": _power_reason,
    "acos": _range_reason,
    "asin": _range_reason,
    "atanh": _range_reason,
    "erfinv": _range_reason,
    "std": _spread_reason,
    "var": _spread_reason,
    "var_mean": _spread_reason,
    "std_mean": _spread_reason,
    "mean": lambda given: "a mean of nothing" if given and not math.prod(given[0].shape) else "",
    "nll_loss_forward": lambda given: "a mean over targets of which all are ignored",
    "nll_loss2d_forward": lambda given: "a mean over targets of which all are ignored",
    "native_batch_norm": lambda given: "a variance over a single value",
    "_native_batch_norm_legit": lambda given: "a variance over a single value",
}
#: Ops that produce NaN outside of their domain. Infinities of these ops come from other, too large values.
_OF_NOTHING = frozenset({"nll_loss_forward", "nll_loss2d_forward", "native_batch_norm", "_native_batch_norm_legit"})


def _explain_op(origin: NonFiniteOrigin) -> tuple[str, str]:
    """Return the label and the reason why an op with finite operands produced a non-finite result."""
    operands = [magnitude for _, magnitude in origin.operands]
    name = origin.name.removesuffix("_").removeprefix("_foreach_")
    domain = _DOMAINS.get(name)
    reason = domain(operands) if domain is not None and operands else ""
    result = origin.result
    if reason and not (name in _OF_NOTHING and result is not None and (result.has_inf or result.has_negative_inf)):
        because = reason if origin.operand_reason is None else f"{reason}, as {origin.operand_reason}"
        return (UNDERFLOW if isinstance(origin.operand_reason, Underflow) else DOMAIN), because
    if result is None:
        return OVERFLOW, "its result is not finite"
    most = torch.finfo(result.dtype).max
    dtype = str(result.dtype).removeprefix("torch.")
    if result.has_inf or result.has_negative_inf or result.dtype is torch.float16:
        return OVERFLOW, f"its result is above {most:.6g}, the most that {dtype} holds"
    return DOMAIN, "not defined there"


def _explain_gradient(origin: NonFiniteOrigin) -> str:
    name = origin.name.rstrip("0123456789").removesuffix("Backward").lower()
    infinite = {
        "sqrt": "the derivative of a square root is infinite at zero",
        "pow": "the derivative of this power is infinite at zero",
        "log": "the derivative of a logarithm is infinite at zero",
        "div": "it divides by a value that is zero, or underflows when it is squared",
        "linalgvectornorm": "the derivative of a norm is not defined at zero",
        "acos": "its derivative is infinite at -1 and 1",
        "asin": "its derivative is infinite at -1 and 1",
        "std": "the derivative of a spread is infinite where it is zero",
    }
    if name in infinite:
        return infinite[name]
    if origin.result is not None and origin.result.dtype is torch.float16:
        return "it is above 65504, the most that float16 holds, even without a loss scale"
    return "it has no finite value there"


def _module_text(origin: NonFiniteOrigin) -> str:
    return str(origin.module) if origin.module is not None else "code outside of modules"


def _format_module(name: str, kind: str) -> str:
    return f"`{name}` ({kind})" if name and name != kind else f"`{kind}`"


def _format_operands(origin: NonFiniteOrigin) -> str:
    operands = [f"`{name}` {size}" if name else str(size) for name, size in origin.operands]
    return "; ".join(operands) or "no operands"


def _module_trace(modules: list[ModuleEntry]) -> tuple[tuple[Site, str], ...]:
    return tuple(
        (
            module.site,
            f"{module} gives {', '.join(str(size) for size in module.output_magnitudes) or 'no float tensor'}",
        )
        for module in modules
        if module.site is not None
    )


def _build_trace(origin: NonFiniteOrigin, last: str) -> tuple[tuple[Site, str], ...]:
    """Return the trace of an origin: the modules before the origin with their output magnitudes, and the origin."""
    steps = _module_trace(origin.modules_before)
    return steps if origin.site is None else (*steps, (origin.site, last))
