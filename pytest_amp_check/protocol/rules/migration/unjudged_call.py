"""AMP904 unjudged-call."""

from __future__ import annotations

from ...rule import INFO, STATIC, Rule, ViolationKind

RULE = Rule(
    "AMP904",
    "unjudged-call",
    INFO,
    "A call of the protocol that the check could not judge: a blind spot.",
    detected_by=STATIC,
    on_by_default=False,
    prescan_words=("scaler",),
    violations={
        "call:not-reached": ViolationKind(
            "`{call}` was not judged: no path that was read leads here, so a mistake in it would go unseen"
        ),
        "call:not-known": ViolationKind(
            "`{call}` was not judged: it is not known what it is called on, so a mistake in it would go unseen"
        ),
    },
    rationale="""\
No finding means that the code is right only where it was read. What stands behind a `return`, or is called on an object
of which nothing is known, stays in the dark. This rule lists each call of `scale`, `backward`, `unscale_`, `step`,
`update`, `zero_grad`, of a clip and of `torch.save` that the text holds and that no path has reached, or of which it
could not be told what it does. `amp-check check --show-blind-spots` switches it on, and `--statistics` counts it.
""",
    harm="""\
Nothing by itself. A mistake in a call that was not judged is not found, and silence is taken for proof.
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
    fix_advice="Delete code that cannot run; give an object that comes from afar an annotation; or test the "
    "function with the"
    " fixture `amp`, which judges what really happens.",
    sources=("The project's own measurements: blind spots in public repositories.",),
)
