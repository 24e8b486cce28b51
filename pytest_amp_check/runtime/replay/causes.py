"""Why a value is not finite, in words: from the op that made it, its operands, and what the optimizer has done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from ...protocol.events import Site
from ..record.listeners.finite import GRADIENTS, PARAMETERS, SKIPPED, STATISTICS, Alarm, Cause
from .magnitudes import Magnitudes, is_finite, magnitudes
from .watched import BUFFER, OP, PARAMETER, Module, Origin

#: Magnitudes that no weight has which a sound learning rate has led to.
GROWN = 1e4
#: What float16 rounds to zero.
_VANISHES = 2.0**-25
#: The same of what an optimizer keeps of gradients.
_KEPT = 1e6

OVERFLOW, DOMAIN, MASK, DATA, WEIGHT, STATE, RATE, STATISTIC, BACKWARD, UNKNOWN = (
    "overflow domain mask input parameter state rate statistic gradient unexplained".split()
)


class Evidence:
    """What is known beside the op: the alarm, the names of modules, and those that ran last."""

    def __init__(self, alarm: Alarm, modules: dict[str, nn.Module]) -> None:
        self.alarm = alarm
        self.modules = modules
        self.last: list[Module] = []
        #: Why the step could not be played again.
        self.failure = ""


class Spoilt(NamedTuple):
    """What an optimizer has done to the parameters: a cause, the step since when, and words for it."""

    how: str
    since: int
    words: str


def cause_of(evidence: Evidence, origin: Origin | None) -> Cause:
    """What is said of an origin; without one, of parameters that the last step has spoilt."""
    if origin is None:
        name, parameter = _first_spoilt(evidence)
        return _of_parameter(evidence, name, parameter, None)
    return _of_origin(evidence, origin)


def is_low(origin: Origin) -> bool:
    """Whether an op in float16 or bfloat16 made it."""
    return origin.kind == OP and origin.result is not None and origin.result.dtype in (torch.float16, torch.bfloat16)


def is_of_the_scale(origin: Origin, scale: float) -> bool:
    """Whether an op has multiplied a loss that was finite by the loss scale."""
    return origin.kind == OP and any(
        size.shape in ((), (1,)) and size.greatest == scale for _, size in origin.operands[1:]
    )


def _of_origin(evidence: Evidence, origin: Origin) -> Cause:
    alarm = evidence.alarm
    if origin.kind == PARAMETER and origin.value is not None:
        return _of_parameter(evidence, origin.name, origin.value, origin)
    names = {"step": str(alarm.step), "where": _where(origin), "first": "output"}
    names["values"] = _shown(origin)
    if origin.kind == BUFFER or alarm.what == STATISTICS:
        return _of_statistic(evidence, origin, names)
    if origin.kind != OP:
        names.update(first="input", what=str(origin.result))
        return Cause(DATA, origin.site, names, _witness(origin, "the input is not finite"))
    names["op"] = origin.name.removesuffix("_")
    grown = _grown(evidence)
    if origin.backward:
        names.update(first="gradient", reason=_reason_of_gradient(origin))
        return Cause(BACKWARD, origin.site, names, _witness(origin, f"the gradient of `{names['op']}` went bad first"))
    if origin.masked:
        return _of_masked(origin, names)
    how, reason = _reason(origin)
    names["reason"] = reason
    if grown is not None:
        how, names["reason"] = grown.how, grown.words
        names["since"] = str(grown.since)
    return Cause(how, origin.site, names, _witness(origin, f"the output of `{names['op']}` went bad first"))


def unexplained(evidence: Evidence) -> Cause:
    """What is said where the step did not show it again, or could not be played again."""
    alarm = evidence.alarm
    bad = {GRADIENTS: "gradients", SKIPPED: "gradients", STATISTICS: "statistics"}.get(alarm.what, "loss")
    if alarm.what == STATISTICS and alarm.buffers:
        module, buffer = alarm.buffers[0]
        name = next((name for name, each in evidence.modules.items() if each is module), "")
        where = _called(name, type(module).__name__)
        names = {"step": str(alarm.step), "where": where, "name": buffer, "since": str(alarm.step)}
        names["reason"] = "no op of the step has made it so, other code wrote to it"
        return Cause(STATISTIC, None, names, _ways(evidence.last))
    reason = evidence.failure or "the step, played again, does not show it"
    return Cause(UNKNOWN, None, {"step": str(alarm.step), "what": bad, "reason": reason}, _ways(evidence.last))


# The parts of a step that go bad.


def _of_parameter(evidence: Evidence, name: str, parameter: torch.Tensor, origin: Origin | None) -> Cause:
    alarm = evidence.alarm
    found = _by_optimizer(evidence, parameter)
    owner = name.rpartition(".")[0]
    kind = type(evidence.modules[owner]).__name__ if owner in evidence.modules else ""
    where = _called(owner, kind) if kind else "the model"
    names = {"step": str(alarm.step), "where": where, "name": name, "since": str(alarm.step), "first": "weight"}
    names.update(op="the forward", values="", reason="it was changed by other code than the optimizer's step")
    how = WEIGHT
    if alarm.step == 0:
        names["reason"] = "it was so from the beginning"
    if found is not None:
        how, names["reason"] = found.how, found.words
        names.update(since=str(found.since), step=str(found.since))
        names["first"] = "state" if how == STATE else "weight"
    witness = () if origin is None else _witness(origin, f"the {names['first']} went bad first")
    return Cause(how, origin.site if origin is not None else None, names, witness)


def _of_statistic(evidence: Evidence, origin: Origin, names: dict[str, str]) -> Cause:
    alarm = evidence.alarm
    module, buffer = alarm.buffers[0] if alarm.buffers else (None, origin.name)
    if module is not None:
        name = next((name for name, each in evidence.modules.items() if each is module), "")
        names["where"] = _called(name, type(module).__name__)
    names.update(name=buffer, first="state", since=str(alarm.step))
    names["reason"] = "it was so before this step"
    if origin.kind == OP:
        _, reason = _reason(origin)
        names["reason"] = f"`{origin.name}` has made it so from {_shown(origin)}, {reason}"
    return Cause(STATISTIC, origin.site, names, _witness(origin, "the statistic went bad first"))


def _of_masked(origin: Origin, names: dict[str, str]) -> Cause:
    """An op got infinities that were meant, and gave NaN."""
    if "softmax" in origin.name or "attention" in origin.name:
        names["reason"] = "a row of its input is -inf as a whole"
        return Cause(MASK, origin.site, names, _witness(origin, "the output of the softmax went bad first"))
    if any(each.kind not in (OP, BUFFER) for each in origin.masked):
        names.update(first="input", what=str(origin.masked[0].result))
        return Cause(DATA, origin.site, names, _witness(origin, "the input is not finite"))
    names["reason"] = "an infinity that was filled in meets another or a zero"
    return Cause(MASK, origin.site, names, _witness(origin, f"the output of `{names['op']}` went bad first"))


# What the optimizer did.


def _first_spoilt(evidence: Evidence) -> tuple[str, torch.Tensor]:
    named = {
        id(p): f"{name}.{own}".lstrip(".")
        for name, module in evidence.modules.items()
        for own, p in module.named_parameters(recurse=False)
    }
    bad = next(p for p in evidence.alarm.params if not is_finite(p))
    return named.get(id(bad), "a parameter"), bad


def _groups(evidence: Evidence) -> Iterator[tuple[torch.optim.Optimizer, dict[str, Any]]]:
    for optimizer in evidence.alarm.optimizers:
        for group in optimizer.param_groups:
            yield optimizer, group


def _by_optimizer(evidence: Evidence, parameter: torch.Tensor) -> Spoilt | None:
    """What the latest step did to make a parameter what it is, as far as it shows."""
    alarm = evidence.alarm
    since = alarm.step if alarm.what == PARAMETERS else alarm.step - 1
    if since < 0:
        return None
    for optimizer, group in _groups(evidence):
        held = next((p for p in group["params"] if _same(p, parameter)), None)
        if held is None:
            continue
        for key, value in optimizer.state.get(held, {}).items():
            if isinstance(value, torch.Tensor) and value.is_floating_point() and not is_finite(value):
                return Spoilt(STATE, since, f"`{key}` in the state of {type(optimizer).__name__} is not finite")
        eps = group.get("eps")
        if held.dtype is torch.float16 and isinstance(eps, float) and eps <= _VANISHES:
            words = f"{type(optimizer).__name__} computes in float16, in which its eps of {eps:g} is zero"
            return Spoilt(STATE, since, words)
        rate = float(group.get("lr", 0.0))
        if not math.isfinite(rate) or _greatest(evidence) >= GROWN:
            return Spoilt(RATE, since, f"the learning rate is {rate:g} and weights are up to {_greatest(evidence):.2g}")
    if alarm.what == PARAMETERS:
        return Spoilt(STATE, since, "its update is not finite although the gradients are")
    return None


def _grown(evidence: Evidence) -> Spoilt | None:
    """That weights which are finite have become too large for anything."""
    greatest = _greatest(evidence)
    if greatest < GROWN or not evidence.alarm.step:
        return None
    since = evidence.alarm.step - 1
    for optimizer, group in _groups(evidence):
        rate = float(group.get("lr", 0.0))
        kept = [
            (key, magnitudes(value).greatest or 0.0)
            for p in group["params"]
            for key, value in optimizer.state.get(p, {}).items()
            if isinstance(value, torch.Tensor) and value.is_floating_point() and key.startswith(("exp_avg", "momentum"))
        ]
        key, most = max(kept, key=lambda pair: pair[1], default=("", 0.0))
        if rate <= 1.0 and most >= _KEPT:
            return Spoilt(STATE, since, f"`{key}` in the state of {type(optimizer).__name__} is as large as {most:.2g}")
    rates = sorted({float(group.get("lr", 0.0)) for _, group in _groups(evidence)})
    told = ", ".join(f"{rate:g}" for rate in rates) or "unknown"
    return Spoilt(RATE, since, f"weights have grown up to {greatest:.2g}, and the learning rate is {told}")


def _greatest(evidence: Evidence) -> float:
    sizes = [magnitudes(p).greatest or 0.0 for p in evidence.alarm.params if p.is_floating_point() and p.numel()]
    return max(sizes, default=0.0)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one is other or one.data_ptr() == other.data_ptr()


# Words.

_Operands = list[Magnitudes]


def _zero_or_less(given: _Operands) -> str:
    lowest = given[0].lowest if given else None
    if lowest is not None and lowest < 0:
        return "a negative number"
    return "zero" if given and given[0].zeros else ""


def _named(what: str) -> Callable[[_Operands], str]:
    def reason(given: _Operands) -> str:
        operand = _zero_or_less(given)
        return f"the {what} of {operand}" if operand else ""

    return reason


def _division(given: _Operands) -> str:
    return "a division by zero" if (len(given) > 1 and given[1].zeros) or (len(given) == 1 and given[0].zeros) else ""


def _power(given: _Operands) -> str:
    operand = _zero_or_less(given)
    return f"a power of {operand}" if operand else ""


def _outside(given: _Operands) -> str:
    return "outside of -1 to 1, where it is defined" if given and (given[0].greatest or 0.0) >= 1.0 else ""


def _alone(given: _Operands) -> str:
    return "a spread of a single value, or of none"


#: Ops by what their operands must not be.
_DOMAINS: dict[str, Callable[[_Operands], str]] = {
    "log": _named("logarithm"),
    "log2": _named("logarithm"),
    "log10": _named("logarithm"),
    "log1p": lambda given: "the logarithm of zero or a negative number" if (given[0].lowest or 0.0) <= -1.0 else "",
    "sqrt": _named("square root"),
    "rsqrt": _named("inverse square root"),
    "reciprocal": lambda given: "a division by zero" if given and given[0].zeros else "",
    "div": _division,
    "pow": _power,
    "acos": _outside,
    "asin": _outside,
    "atanh": _outside,
    "erfinv": _outside,
    "std": _alone,
    "var": _alone,
    "var_mean": _alone,
    "std_mean": _alone,
    "mean": lambda given: "a mean of nothing" if given and not math.prod(given[0].shape) else "",
    "nll_loss_forward": lambda given: "a mean over targets of which all are ignored",
    "nll_loss2d_forward": lambda given: "a mean over targets of which all are ignored",
    "native_batch_norm": lambda given: "a variance over a single value",
    "_native_batch_norm_legit": lambda given: "a variance over a single value",
}
#: Those that give NaN then: infinities they give of other values, which are too large.
_OF_NOTHING = frozenset({"nll_loss_forward", "nll_loss2d_forward", "native_batch_norm", "_native_batch_norm_legit"})


def _reason(origin: Origin) -> tuple[str, str]:
    """Why an op with finite operands gave what is not finite."""
    operands = [magnitude for _, magnitude in origin.operands]
    name = origin.name.removesuffix("_").removeprefix("_foreach_")
    domain = _DOMAINS.get(name)
    reason = domain(operands) if domain is not None and operands else ""
    result = origin.result
    if reason and not (name in _OF_NOTHING and result is not None and (result.above or result.below)):
        return DOMAIN, reason if origin.vain is None else f"{reason}, as {origin.vain}"
    if result is None:
        return OVERFLOW, "its result is not finite"
    most = torch.finfo(result.dtype).max
    dtype = str(result.dtype).removeprefix("torch.")
    if result.above or result.below or result.dtype is torch.float16:
        return OVERFLOW, f"its result is above {most:.6g}, the most that {dtype} holds"
    return DOMAIN, "it has no value there"


def _reason_of_gradient(origin: Origin) -> str:
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


def _where(origin: Origin) -> str:
    return str(origin.module) if origin.module is not None else "code outside of modules"


def _called(name: str, kind: str) -> str:
    return f"`{name}` ({kind})" if name and name != kind else f"`{kind}`"


def _shown(origin: Origin) -> str:
    operands = [f"`{name}` {size}" if name else str(size) for name, size in origin.operands]
    return "; ".join(operands) or "no operands"


def _ways(modules: list[Module]) -> tuple[tuple[Site, str], ...]:
    return tuple(
        (module.site, f"{module} gives {', '.join(str(size) for size in module.output) or 'no float tensor'}")
        for module in modules
        if module.site is not None
    )


def _witness(origin: Origin, last: str) -> tuple[tuple[Site, str], ...]:
    """The modules before an origin with the magnitudes of what they gave, and the origin."""
    steps = _ways(origin.before)
    return steps if origin.site is None else (*steps, (origin.site, last))
