"""The README's claims about GPUs, and the required rows of a part for each claim: source of the README's table.

Standard library only: the command that runs the parts imports this module before any package is known to be installed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

Rows = Sequence[dict[str, Any]]


class Claim(NamedTuple):
    """A claim: name, deciding part, and text.

    ``refuted`` returns the evidence of the part's rows against the claim, or "" if they confirm it. ``needs_gpu`` is
    True if emulation cannot decide the claim, so that a dry run omits it, and ``needs_no_gpu`` if only a dry run
    decides it.
    """

    name: str
    part: str
    text: str
    refuted: Callable[[Rows], str]
    needs_gpu: bool = False
    needs_no_gpu: bool = False


def _listed(wrong: Iterable[str], most: int = 8) -> str:
    names = list(wrong)
    return "; ".join(names[:most]) + (f"; and {len(names) - most} more" if len(names) > most else "")


def _every(kind: str, tells: str = "what", more: str = "") -> Callable[[Rows], str]:
    """Require that there are rows of a kind and that each agrees."""

    def refuted(rows: Rows) -> str:
        same = [row for row in rows if row["kind"] == kind]
        if not same:
            return f"no row about {kind}"
        return _listed(f"{row[tells]}{more and f' ({row[more]})'}" for row in same if not row["agrees"])

    return refuted


#: Largest relative errors of memory estimates, in the median and at worst.
MEDIAN, WORST = 0.01, 0.05


def _estimates(rows: Rows) -> str:
    errors = {row["what"]: abs(row["error"]) for row in rows if row["kind"] == "estimate"}
    if not errors:
        return "no row about estimates"
    median, worst = statistics.median(errors.values()), max(errors, key=lambda what: errors[what])
    wrong = [f"the median error is {median:.1%}"] * (median > MEDIAN)
    wrong += [f"{worst} is {errors[worst]:.1%} off"] * (errors[worst] > WORST)
    return _listed(wrong)


def _at_most(kind: str, column: str, limits: dict[str, float]) -> Callable[[Rows], str]:
    """Require that a figure in the rows of a kind is within the limit for the row's subject."""

    def refuted(rows: Rows) -> str:
        found = {row["what"]: row[column] for row in rows if row["kind"] == kind}
        missing = [f"no row about {what}" for what in limits if what not in found]
        over = [
            f"{what}: {found[what]:.4g} {column}, at most {limit:g}"
            for what, limit in limits.items()
            if found.get(what, 0) > limit
        ]
        return _listed(missing + over)

    return refuted


CLAIMS = (
    Claim(
        "gpu-tests",
        "tests",
        "Every test that is marked `gpu` passes, but for those that lack a package, which are named.",
        _every("test", more="outcome"),
    ),
    Claim(
        "dtypes-of-ops",
        "dtypes",
        "Each op of PyTorch's own autocast table, and others, gives the dtypes under emulation that it gives on CUDA, "
        "in float16 and in bfloat16; two that only cuDNN has cannot be called.",
        _every("forward", more="dtypes"),
    ),
    Claim(
        "dtypes-of-gradients",
        "dtypes",
        "So do their backward passes.",
        _every("backward", more="dtypes"),
    ),
    Claim(
        "training-findings",
        "training",
        "Thirteen small models trained for 200 steps on CUDA and under emulation have the same findings: of the step "
        "in which an overflow was planted, and no other.",
        _every("findings", more="seen"),
    ),
    Claim("training-dtypes", "training", "They have the same dtypes.", _every("dtypes", more="seen")),
    Claim(
        "training-skips",
        "training",
        "They skip the step in which an overflow was planted, and only that, with for-loop, foreach and fused "
        "optimizers; the run says so.",
        _every("skips", more="seen"),
    ),
    Claim(
        "training-losses",
        "training",
        "Their losses are alike: within 1 % at the first step, and in the mean of the last tenth within 1 % of the "
        "first loss.",
        _every("losses", more="seen"),
    ),
    Claim(
        "memory-estimated",
        "memory",
        f"What `estimate_memory()` tells without a GPU is within {MEDIAN:.0%} of the allocator's peak in the median of "
        f"more than twenty trainings, and within {WORST:.0%} in the worst.",
        _estimates,
    ),
    Claim(
        "memory-measured",
        "memory",
        "`measure_memory()` tells the allocator's peak, and its categories sum up to it.",
        _every("measured", more="seen"),
    ),
    Claim(
        "recording-in-time",
        "cost",
        "After its first steps, recording takes at most 10 % of a step of 20 ms, and at most 5 % of one of 80 ms.",
        _at_most("plain", "added", {"20 ms": 0.10, "80 ms": 0.05}),
        needs_gpu=True,
    ),
    Claim(
        "recording-does-not-wait",
        "cost",
        "Recording waits for the GPU at most once in sixteen steps, where no part of it is asked for that costs more.",
        _every("synchronisations", more="added"),
    ),
    Claim(
        "recording-holds-nothing",
        "cost",
        "When a recording is over it holds at most 1 MiB of the GPU's memory.",
        _every("held", more="bytes"),
    ),
    Claim(
        "speedup-decided",
        "speed",
        "`assert_speedup` gives the same verdict five times, passes where AMP has to win and fails where it cannot.",
        _every("speedup", more="seen"),
        needs_gpu=True,
    ),
    Claim(
        "speedup-unavailable",
        "speed",
        "Without a GPU `assert_speedup` decides nothing and says so.",
        _every("without a GPU", more="seen"),
        needs_no_gpu=True,
    ),
    Claim(
        "harm-on-cuda",
        "harm",
        "What a rule's example was measured to do wrong on the CPU it does wrong on CUDA.",
        _every("harm", more="seen"),
    ),
)
