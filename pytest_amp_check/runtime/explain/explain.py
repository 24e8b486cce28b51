"""The cause of a torch exception that ended a run, if the catalog of messages knows the exception."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from ...protocol import events as e
from ...protocol.finding import Finding, TraceStep
from ...protocol.messages import Message, find_messages
from ...protocol.sites import Site
from ..record.recorder import Recorder
from ..record.sites import innermost_user_site, is_library
from ..record.source.call_texts import SiteText
from . import clashes, devices, gradients, half_parameters, passes, sharding, states
from .explanation import Explanation, RaisedError
from .frames import frames_of, site_of

#: Largest number of chained exceptions that are examined.
CHAIN = 8
#: Largest number of quoted characters of an exception's text.
QUOTED = 160
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep

#: Returns the explanations of an exception. Empty if a finding of a rule already says everything. None if unknown.
Explainer = Callable[[RaisedError, Recorder], Sequence[Explanation] | None]
#: Name of a message to its explainer.
EXPLAINERS: dict[str, Explainer] = {
    "unscale-float16-gradients": half_parameters.explain_half_parameters,
    "no-inf-checks": gradients.explain_missing_gradients,
    "empty-scaler-state": states.explain_empty_state,
    "not-an-optimizer": gradients.explain_other_object,
    "no-inf-checks-before-update": gradients.explain_empty_update,
    "no-graph": gradients.explain_missing_graph,
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
        clashes.explain_mixed_dtypes,
    ),
    **dict.fromkeys(("not-implemented-for-half", "fft-of-half"), clashes.explain_missing_kernel),
    "no-kernel-on-this-processor": clashes.explain_missing_primitive,
    "custom-bwd-alone": passes.explain_undecorated_forward,
    "half-overflow": clashes.explain_large_number,
    "bce-unsafe": clashes.explain_unsafe_loss,
    "anomaly-nan": passes.explain_anomaly,
    "checkpoint-metadata": passes.explain_recomputed_dtype,
    "sharded-dtypes": sharding.explain_mixed_parameters,
    "result-type": states.explain_integer_result,
    "gradient-dtype": states.explain_gradient_dtype,
    "numpy-of-bfloat16": states.explain_numpy_dtype,
    "optimizer-state-dtypes": states.explain_optimizer_state,
    "mixed-sharded-gradients": states.explain_partial_sharding,
    "device-not-there": devices.explain_missing_device,
}


def explain_exception(recorder: Recorder, error: BaseException) -> Message | None:
    """Add the reason for a torch exception to the findings. Return the message of the exception, or None if unknown.

    If a rule has already found the mistake, no second finding is added.
    """
    recording = recorder.recording
    raised = _recognize_exception(recorder, error)
    if raised is None or recording.failure is not None:
        return None
    was_busy, recording.is_busy = recording.is_busy, True
    try:
        findings = [finding for finding in recorder.findings() if finding.code in raised.message.rule_codes]
        if not _is_explained_by(findings, raised):
            explainer = EXPLAINERS.get(raised.message.name)
            explanations = explainer(raised, recorder) if explainer is not None else None
            reported_lines = {(finding.site.path, finding.site.line) for finding in findings}
            for explanation in [_explain_generically(raised)] if explanations is None else explanations:
                if (explanation.site.path, explanation.site.line) not in reported_lines:
                    _emit_explanation(recorder, explanation)
    except Exception as wrong:  # noqa: BLE001 - as of a listener: it is reported, and the user's own error is shown
        recording.failure = wrong
    finally:
        recording.is_busy = was_busy
    return raised.message


def _recognize_exception(recorder: Recorder, error: BaseException) -> RaisedError | None:
    """Return the earliest chained exception that the catalog knows, or None."""
    for each in reversed(list(_exception_chain(error))):
        frames = frames_of(each)
        if not isinstance(each, Exception) or not any(frame.is_user for frame in frames):
            continue
        # Exceptions raised by the program itself are ignored, regardless of their text. Exceptions of a kernel library
        # are not.
        if frames[-1].is_user and not is_library(frames[-1].path) and frames[-1].has_raised:
            continue
        # A test that asserts the text of a message has that text in its own exception.
        if isinstance(each, AssertionError) and not frames[-1].path.startswith(_TORCH):
            continue
        messages = find_messages(str(each))
        if messages and type(each).__module__.startswith(("builtins", "torch")):
            return RaisedError(
                each, messages[0], frames, innermost_user_site(site_of(frames, recorder.recording.sites))
            )
    return None


def _exception_chain(error: BaseException) -> Iterator[BaseException]:
    each: BaseException | None = error
    for _ in range(CHAIN):
        if each is None:
            return
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _is_explained_by(findings: Iterable[Finding], raised: RaisedError) -> bool:
    """Return True if the trace of a finding for this message contains a line of the exception's frames."""
    lines = {(frame.path, frame.line) for frame in raised.frames if frame.is_user}
    for finding in findings:
        sites = [finding.site, *(step.site for step in finding.trace)]
        if any((site.path, site.line) in lines for site in sites):
            return True
    return False


def _explain_generically(raised: RaisedError) -> Explanation:
    names = {"call": SiteText(raised.site), "text": _first_line(raised.error), "page": raised.message.name}
    return Explanation("raised:known", raised.site, names, ())


def _first_line(error: BaseException) -> str:
    """Return the first line of an exception's text, shortened, without characters that end a quotation."""
    line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    line = " ".join(line.replace("`", "'").split())
    return line if len(line) <= QUOTED else f"{line[:QUOTED].rstrip()}..."


def _emit_explanation(recorder: Recorder, explanation: Explanation) -> None:
    # An unnamed object is named by its role, so empty values are dropped. Only an empty "because" stays.
    values = {
        name: text for name, value in explanation.message_values.items() if (text := str(value)) or name == "because"
    }
    trace = explanation.trace if _adds_location(explanation.trace, explanation.site) else ()
    trace_facts = tuple((step.site, step.text) for step in trace)
    names = dict(explanation.message_values)
    recorder.recording.emit(
        e.Raised(explanation.site, label=explanation.label, values=values, trace=trace_facts, names=names)
    )


def _adds_location(trace: tuple[TraceStep, ...], site: Site) -> bool:
    """Return True if a trace has a location other than the location of the finding."""
    return any((step.site.path, step.site.line) != (site.path, site.line) for step in trace)
