"""AMP904 unjudged-call."""

from __future__ import annotations

from ...rule import INFO, STATIC, Rule, ViolationKind

RULE = Rule(
    "AMP904",
    "unjudged-call",
    INFO,
    "An AMP call that the check could not analyze.",
    effect="no harm by itself, but a mistake in this call is not found",
    detected_by=STATIC,
    on_by_default=False,
    prescan_words=("scaler",),
    violations={
        "call:not-reached": ViolationKind(
            "`{call}` was not checked, because no analyzed path reaches it: delete it if it cannot run, or test it "
            "with the `amp` fixture"
        ),
        "call:not-known": ViolationKind(
            "`{call}` was not checked, because the object it is called on is unknown: annotate the type of the "
            "object, or test the code with the `amp` fixture"
        ),
        "call:not-followed": ViolationKind(
            "`{call}` was not followed, because its calls are too deep or other files hold too much code: test the "
            "code with the `amp` fixture"
        ),
        "call:joined": ViolationKind(
            "The calls in `{function}` were checked with joined states, because it has too many paths: split the "
            "function, or test it with the `amp` fixture"
        ),
    },
    rationale="""\
No finding means correct code only for analyzed code. Code behind a `return`, or a call on an unknown object, is not
checked. This rule lists each unanalyzed call of `scale`, `backward`, `unscale_`, `step`, `update`, `zero_grad`, of a
clip and of `torch.save`. Either no path reaches such a call, or its effect is unknown. The rule also lists calls of
functions that a limit kept from being checked together with their caller, and functions with too many paths to check
each path. Their states are joined, so a mistake may be missed. `amp-check check --show-blind-spots` switches the rule
on, and `--statistics` counts its findings.
""",
    harm="""\
None by itself. A mistake in an unanalyzed call is not found, and the missing finding looks like a proof.
""",
    bad_example="""\
import torch


def finish(scaler, optimizer):
    raise NotImplementedError
    scaler.step(optimizer)  # AMP904
""",
    good_example="""\
import torch


def finish(scaler, optimizer):
    scaler.step(optimizer)
    scaler.update()
""",
    fix_advice=(
        "Delete code that cannot run, annotate the types of objects from other code, or test the function with the "
        "`amp` fixture, which checks real calls."
    ),
    sources=("The project's own measurements: blind spots in public repositories.",),
)
