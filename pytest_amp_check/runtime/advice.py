"""The advice that a run gives, each with the measured evidence. The recorder never applies advice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..protocol.byte_sizes import format_size
from .measure.headroom import MOST
from .measure.memory import ADVICE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .measure.dtypes import Dtypes
    from .measure.memory import Memory
    from .measure.numerics import Counts, Numerics
    from .record.steps import StepRecord

#: Share of a module's gradients (0 to 1) that float16 must lose before the advice names the module.
LOST = 0.01
#: Factor by which a module's outputs may grow without overflow for its headroom to count as sufficient. Training rarely
#: makes outputs grow more at once.
ROOM = 4.0
#: Share of a memory budget from which on the advice names the largest consumers.
NEAR = 0.9
#: Largest number of modules of one kind, and of contributors to memory, in the advice.
_MOST = 5


class Advice:
    """One recommendation: the action ``what``, the measured ``evidence``, and the topic ``about``."""

    __slots__ = ("about", "evidence", "what")

    def __init__(self, about: str, what: str, evidence: str) -> None:
        self.about = about
        self.what = what
        self.evidence = evidence

    def as_dict(self) -> dict[str, str]:
        return {"about": self.about, "what": self.what, "evidence": self.evidence}

    def __str__(self) -> str:
        return f"{self.what}: {self.evidence}"

    def __repr__(self) -> str:
        return f"<advice on {self.about}: {self}>"


def advise(
    steps: Sequence[StepRecord], total: int, dtypes: Dtypes | None, numerics: Numerics | None, memory: Memory | None
) -> list[Advice]:
    """Return the advice for a run of ``total`` steps, limited to the data that the run recorded."""
    scaled = [step for step in steps if step.scaler is not None]
    # A long run drops its first steps, and the advice on the initial scale needs them.
    found = list(_initial_scale_advice(scaled)) if total == len(steps) else []
    if scaled and numerics is not None:
        # Only float16 gradients are scaled, so these two kinds of advice apply to scaled runs only.
        found += [*_underflow_advice(numerics), *_headroom_advice(numerics, dtypes)]
    if memory is not None:
        found += [*_autocast_advice(memory), *_budget_advice(memory)]
    return found


def _initial_scale_advice(scaled: Sequence[StepRecord]) -> Iterator[Advice]:
    """Recommend the initial scale at which the first steps are not skipped."""
    first_taken = next((index for index, step in enumerate(scaled) if not step.skipped), 0)
    if not first_taken or len({step.scaler for step in scaled}) > 1:
        return
    first, fitting = scaled[0].scale_before, scaled[first_taken].scale_before
    if first is None or fitting is None or not 0 < fitting < first:
        return
    steps = f"steps {scaled[0].index} to {scaled[first_taken - 1].index} were" if first_taken > 1 else "step 0 was"
    exponent = math.log2(fitting)
    value = f"2.0**{int(exponent)}" if exponent.is_integer() else f"{fitting:g}"
    yield Advice(
        "initial scale",
        f"construct {scaled[0].scaler} with init_scale={value}",
        f"{steps} skipped while the scale fell from {first:.10g} to {fitting:g}, where step "
        f"{scaled[first_taken].index} was taken",
    )


def _underflow_advice(numerics: Numerics) -> Iterator[Advice]:
    """Recommend a remedy for modules whose gradients float16 rounds to zero despite the loss scale."""
    modules: dict[str, list[Counts]] = {}
    for name, parameter_counts in numerics.parameters(without_scaling=False).items():
        modules.setdefault(name.rpartition(".")[0] or name, []).append(parameter_counts)
    shares = []
    for name, counts in modules.items():
        nonzero = sum(each.nonzero + each.flushed for each in counts)
        lost = sum(each.lost + each.flushed for each in counts)
        if nonzero and lost >= LOST * nonzero:
            shares.append((lost / nonzero, name))
    low, high = numerics.scales or (0.0, 0.0)
    scale = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    for share, name in sorted(shares, key=lambda pair: (-pair[0], pair[1]))[:_MOST]:
        yield Advice(
            "underflow",
            f"run `{name}` in an autocast region that is off, or let the scale grow",
            f"float16 rounds {share:.1%} of its gradients to zero at a loss scale of {scale}",
        )


def _headroom_advice(numerics: Numerics, dtypes: Dtypes | None) -> Iterator[Advice]:
    """Recommend a remedy for modules whose outputs are close to the largest float16 number."""
    outputs = numerics.headroom.as_dict()["outputs"].items()
    near_limit = [(name, most) for name, most in outputs if MOST <= most * ROOM < math.inf]
    if dtypes is not None:
        # If output dtypes are recorded, modules that do not output float16 are dropped: the float16 limit does not
        # apply.
        known = dtypes.as_dict()["modules"]
        near_limit = [(name, most) for name, most in near_limit if "float16" in known.get(name, "").split(", ")]
    for name, most in near_limit[:_MOST]:
        yield Advice(
            "headroom",
            f"run `{name}` in an autocast region that is off, or scale its inputs down",
            f"its outputs reach {most:.4g}, and float16 ends at {MOST:g}, {MOST / most:.1f} times as much",
        )


def _autocast_advice(memory: Memory) -> Iterator[Advice]:
    """Explain why mixed precision needs more memory than float32."""
    if memory.cost_of_autocast:
        yield Advice(
            "memory",
            "use larger batches, or leave large weights that are used once out of autocast",
            f"mixed precision needs more memory than float32 here, because {memory.cost_of_autocast}",
        )


def _budget_advice(memory: Memory) -> Iterator[Advice]:
    """Recommend savings if the peak is near or above the memory budget, and name the largest consumers."""
    if not memory.budget or memory.peak < NEAR * memory.budget:
        return
    category = max(memory.at_peak, key=lambda name: memory.at_peak[name])
    makers = [
        f"{name} ({what}) {format_size(size)}, {size / memory.peak:.0%}"
        for what, name, size in memory.contributors(None, _MOST)
    ]
    yield Advice(
        "memory",
        ADVICE[category],
        f"the peak is {memory.peak / memory.budget:.0%} of the budget of {format_size(memory.budget)}, of which "
        f"{category} are {memory.at_peak[category] / memory.peak:.0%}; the largest are {'; '.join(makers)}",
    )
    for what, saved, peak in memory.options(int(NEAR * memory.budget)):
        yield Advice(
            "memory",
            what,
            f"the step would need {format_size(peak)}, {peak / memory.budget:.0%} of the budget, "
            f"{format_size(saved)} less ({saved / memory.peak:.0%})",
        )
