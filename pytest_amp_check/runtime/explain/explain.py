"""Names the cause of an exception of torch's that has ended a run, where the catalogue of messages knows it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from ...protocol import events as e
from ...protocol.events import Site
from ...protocol.finding import Finding, Step
from ...protocol.messages import Message, find
from ..record.recorder import Recorder
from ..record.sites import is_library, own
from ..record.source import SourceText
from . import clashes, devices, gradients, half_parameters, passes, sharding, states
from .explanation import Explanation, Raised
from .frames import frames_of, site_of

#: Exceptions that caused one another, of which each is looked at.
CHAIN = 8
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep

#: Gives nothing where the finding of a rule that it has asked for says all, and None where it does not know.
Explainer = Callable[[Raised, Recorder], Sequence[Explanation] | None]
#: Name of a message -> who finds out why it was raised.
EXPLAINERS: dict[str, Explainer] = {
    "unscale-float16-gradients": half_parameters.explain,
    "no-inf-checks": gradients.without_gradients,
    "no-inf-checks-before-update": gradients.unfed_update,
    "no-graph": gradients.without_graph,
    **dict.fromkeys(
        (
            "expected-scalar-type",
            "found-dtype",
            "matrix-dtypes",
            "input-and-weight-types",
            "write-dtypes",
            "attention-dtypes",
            "solver-dtypes",
        ),
        clashes.mixed,
    ),
    **dict.fromkeys(("not-implemented-for-half", "fft-of-half"), clashes.no_kernel),
    "no-kernel-on-this-processor": clashes.missing_primitive,
    "custom-bwd-alone": passes.half_decorated,
    "half-overflow": clashes.too_large,
    "bce-unsafe": clashes.unsafe_loss,
    "anomaly-nan": passes.anomaly,
    "checkpoint-metadata": passes.recomputed,
    "sharded-dtypes": sharding.mixed_parameters,
    "result-type": states.integers,
    "gradient-dtype": states.gradient,
    "numpy-of-bfloat16": states.to_numpy,
    "optimizer-state-dtypes": states.optimizer_state,
    "mixed-sharded-gradients": states.half_sharded,
    "device-not-there": devices.missing,
}


def explain(recorder: Recorder, error: BaseException) -> Message | None:
    """Add to what a recording has found why torch has ended it; gives the message where it is known.

    Where a rule of the protocol has found the mistake already, that stays the one finding of it.
    """
    recording = recorder.recording
    raised = _recognised(recorder, error)
    if raised is None or recording.failure is not None:
        return None
    before, recording.busy = recording.busy, True
    try:
        findings = [finding for finding in recorder.findings() if finding.code in raised.message.rules]
        if not _leads_there(findings, raised):
            explainer = EXPLAINERS.get(raised.message.name)
            found = explainer(raised, recorder) if explainer is not None else None
            blamed = {(finding.site.path, finding.site.line) for finding in findings}
            for explanation in [_known(raised)] if found is None else found:
                if (explanation.site.path, explanation.site.line) not in blamed:
                    _tell(recorder, explanation)
    except Exception as wrong:  # noqa: BLE001 - as of a listener: it is reported, and the user's own error is shown
        recording.failure = wrong
    finally:
        recording.busy = before
    return raised.message


def _recognised(recorder: Recorder, error: BaseException) -> Raised | None:
    """The exception among those that led to this one that the catalogue knows, the first that was raised."""
    for each in reversed(list(_chain(error))):
        frames = frames_of(each)
        if not isinstance(each, Exception) or not any(frame.is_user for frame in frames):
            continue
        # What the program raises itself is its own affair, whatever it says; not so what a library of kernels raises.
        if frames[-1].is_user and not is_library(frames[-1].path) and frames[-1].raises:
            continue
        # A test that asserts something about a message has its words in its own exception.
        if isinstance(each, AssertionError) and not frames[-1].path.startswith(_TORCH):
            continue
        messages = find(str(each))
        if messages and type(each).__module__.startswith(("builtins", "torch")):
            return Raised(each, messages[0], frames, own(site_of(frames, recorder.recording.sites)))
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    each: BaseException | None = error
    for _ in range(CHAIN):
        if each is None:
            return
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _leads_there(findings: Iterable[Finding], raised: Raised) -> bool:
    """Whether what rules have found that the message belongs to leads to the place where it was raised."""
    lines = {(frame.path, frame.line) for frame in raised.frames if frame.is_user}
    for finding in findings:
        places = [finding.site, *(step.site for step in finding.witness)]
        if any((site.path, site.line) in lines for site in places):
            return True
    return False


def _known(raised: Raised) -> Explanation:
    names = {"call": SourceText(raised.site), "text": raised.message.text, "page": raised.message.name}
    return Explanation("raised:known", raised.site, names, ())


def _tell(recorder: Recorder, explanation: Explanation) -> None:
    # A thing without a name is called by its role; a reason that is not known is left out.
    values = {name: text for name, value in explanation.names.items() if (text := str(value)) or name == "because"}
    path = explanation.path if _leads(explanation.path, explanation.site) else ()
    witness = [(step.site, step.text) for step in path]
    names = dict(explanation.names)
    recorder.recording.emit(
        e.RAISED, explanation.site, label=explanation.label, values=values, witness=witness, names=names
    )


def _leads(path: tuple[Step, ...], site: Site) -> bool:
    """Whether a path says more than where the finding is."""
    return any((step.site.path, step.site.line) != (site.path, site.line) for step in path)
