"""Rules as data, one file for each rule: names, messages, violations, rationale, measured harm and examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from .events import Event, EventKind, Program
from .finding import ERROR, INFO, SEVERITIES, WARNING
from .fix import APPLICABILITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    Checked = TypeVar("Checked", bound=Event)

__all__ = ["ERROR", "INFO", "WARNING", "Rule", "ViolationKind"]

STATIC, RUNTIME, BOTH = "static", "runtime", "both"


class ViolationKind:
    """A kind of violation of a rule: the label from the checker, and all attributes of this label.

    - ``message``: message for the user: a template over source texts, ``{scaler}``, ``{optimizer}``, ``{call}``, ...
      The problem comes first, the remedy after the colon.
    - ``severity``: severity instead of the rule's.
    - ``cause_kinds``: kinds of the event to report: the latest such event before the event that detects the violation.
      Empty: the detecting event is reported.
    - ``every_cause``: every such event since the last use of the gradients is reported.
    - ``unscaled_only``: only backwards of unscaled losses are reported.
    - ``trace_kinds``: kinds of events that the trace shows beside the cause and the detecting event; the first begins
      the trace.
    - ``needs_every_path``: the violation counts only if every path to the node has the violation.
    - ``in_next_iteration``: the violation lies between an event of one iteration and an event of a later iteration. The
      first iteration cannot have the violation.
    - ``yields_to``: labels of the same cause that say more, if they report the same event.
    - ``yields_where_detected``: labels of the same cause that say more, if the same event detects the violation.
    - ``exemption``: name of the exemption, a key of ``EXCUSES`` in :mod:`.effects.violations`.
    - ``is_possible``: the violation depends on unknown facts, and is never definite.
    - ``label_overrides``: pairs of a test of the cause and the label used if the test is true.
    - ``needs_update``: the violation follows from a scaler that is never updated. Without any update, the step is
      reported instead.
    - ``any_precision``: the violation is as wrong without mixed precision.
    - ``always_possible``: unanalyzed code may prevent the violation, so the violation is never definite.
    - ``cause_only_reads``: the cause only reads. A cause in a helper is reported at the caller of the helper.
    - ``consequence_of``: prefix of rule codes. If such a rule is found, this violation is a consequence and is not
      reported.
    - ``concerns_training``: the violation concerns the result of training. A test that steps no optimizer is not
      affected.
    - ``concerns_loss``: the violation concerns the computation of the loss. If a helper in another file receives the
      loss, the caller is reported.
    - ``missing_method``: method of a scaler or optimizer that is never called. The violation is definite only for a
      local object.
    - ``is_proven``: a run that finds the violation proves the harm, and reports the violation even if the rule is off
      by default.
    - ``sparing_kinds``: kinds of events that would have prevented the violation. The predicates that led past such an
      event are the condition of the violation.
    - ``names_skip``: a statement skips the rest of an iteration, and the message names this statement.
    """

    __slots__ = (
        "always_possible",
        "any_precision",
        "cause_kinds",
        "cause_only_reads",
        "concerns_loss",
        "concerns_training",
        "consequence_of",
        "every_cause",
        "exemption",
        "in_next_iteration",
        "is_possible",
        "is_proven",
        "label_overrides",
        "message",
        "missing_method",
        "names_skip",
        "needs_every_path",
        "needs_update",
        "severity",
        "sparing_kinds",
        "trace_kinds",
        "unscaled_only",
        "yields_to",
        "yields_where_detected",
    )

    def __init__(
        self,
        message: str,
        severity: str = "",
        *,
        cause_kinds: tuple[EventKind, ...] = (),
        every_cause: bool = False,
        unscaled_only: bool = False,
        trace_kinds: tuple[EventKind, ...] = (),
        needs_every_path: bool = False,
        in_next_iteration: bool = False,
        yields_to: tuple[str, ...] = (),
        yields_where_detected: tuple[str, ...] = (),
        exemption: str = "",
        is_possible: bool = False,
        label_overrides: tuple[tuple[Callable[[Event | None], bool], str], ...] = (),
        needs_update: bool = False,
        any_precision: bool = False,
        cause_only_reads: bool = False,
        always_possible: bool = False,
        consequence_of: str = "",
        concerns_training: bool = False,
        concerns_loss: bool = False,
        missing_method: str = "",
        is_proven: bool = False,
        sparing_kinds: tuple[EventKind, ...] = (),
        names_skip: bool = False,
    ) -> None:
        self.message = message
        self.severity = severity
        self.cause_kinds = cause_kinds
        self.every_cause = every_cause
        self.unscaled_only = unscaled_only
        self.trace_kinds = trace_kinds
        self.needs_every_path = needs_every_path
        self.in_next_iteration = in_next_iteration
        self.yields_to = yields_to
        self.yields_where_detected = yields_where_detected
        self.exemption = exemption
        self.is_possible = is_possible
        self.label_overrides = label_overrides
        self.needs_update = needs_update
        self.any_precision = any_precision
        self.cause_only_reads = cause_only_reads
        self.always_possible = always_possible
        self.consequence_of = consequence_of
        self.concerns_training = concerns_training
        self.concerns_loss = concerns_loss
        self.missing_method = missing_method
        self.is_proven = is_proven
        self.sparing_kinds = sparing_kinds
        self.names_skip = names_skip


#: Data of a rule without loading the rule's module: code, name, family, severity, detected_by, default, applicability;
#: prescan words; kinds with event checks, kinds with program checks, and labels of the violations.
Listing = tuple[
    tuple[str, str, str, str, str, bool, str], tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]
]
#: Violation labels, each with values for the message template.
Labels = Iterator[tuple[str, Mapping[str, str]]]
#: (label, cause, values for the template, other events of the trace).
Verdicts = Iterator[tuple[str, Event, Mapping[str, str], tuple[Event, ...]]]
#: Check of a single event.
EventCheck = Callable[[Event, Program], Labels]
#: Check of a whole program.
ProgramCheck = Callable[[Program], Verdicts]


class Rule:
    """A rule of the catalogue.

    - ``code``: ``AMPnnn``; the hundreds name the family, a folder of ``protocol/rules``; never reused.
    - ``name``: kebab-case name of the mistake; reads after "allow".
    - ``severity``: ``error``, ``warning`` or ``info``.
    - ``summary``: one sentence for lists.
    - ``violations``: label -> :class:`ViolationKind`. Labels of the automaton (``clip@scaled``) or of the rule's own
      checks.
    - ``rationale``: why the mistake is wrong, a short paragraph in Markdown.
    - ``harm``: measured effect, with figures.
    - ``bad_example``, ``good_example``: runnable Python; each line that must be found carries ``# AMPnnn``.
      ``good_example`` is the corrected ``bad_example``.
    - ``fix_advice``: how to fix the mistake, one sentence.
    - ``applicability``: of the fix by ``check --fix``, if the right code is certain: ``safe``, or ``unsafe`` for a fix
      that may change tuned values. Empty if the rule has no fix.
    - ``sources``: sources of the claim.
    - ``detected_by``: ``static``, ``runtime`` or ``both``.
    - ``prescan_words``: texts of which a file must contain one to be analyzed for the rule. An entry is a word, several
      words that must all occur, or a name of a closer test in ``static``. Empty if the rule is found in files that are
      analyzed for other rules, or only in runs.
    - ``event_checks``: event kind -> check of a single event.
    - ``program_checks``: event kind -> check of a whole program, called if the program has an event of this kind.
    - ``on_by_default``: True if the rule is on without being selected.
    - ``grouped_message``: one sentence for all findings of the rule in one file, if separate findings would be too
      many; ``{places}`` are the lines. Empty if each finding is shown separately. Machine formats always list separate
      findings.
    """

    __slots__ = (
        "applicability",
        "bad_example",
        "code",
        "detected_by",
        "event_checks",
        "fix_advice",
        "good_example",
        "grouped_message",
        "harm",
        "name",
        "on_by_default",
        "prescan_words",
        "program_checks",
        "rationale",
        "severity",
        "sources",
        "summary",
        "violations",
    )

    def __init__(
        self,
        code: str,
        name: str,
        severity: str,
        summary: str,
        *,
        violations: Mapping[str, ViolationKind],
        rationale: str,
        harm: str,
        bad_example: str,
        good_example: str,
        fix_advice: str,
        sources: tuple[str, ...],
        detected_by: str = BOTH,
        prescan_words: tuple[str, ...] = (),
        event_checks: Mapping[type[Checked], Callable[[Checked, Program], Labels]] | None = None,
        program_checks: Mapping[EventKind, ProgramCheck] | None = None,
        on_by_default: bool = True,
        applicability: str = "",
        grouped_message: str = "",
    ) -> None:
        missing = [
            k
            for k, v in (
                ("bad_example", bad_example),
                ("good_example", good_example),
                ("rationale", rationale),
                ("harm", harm),
                ("fix_advice", fix_advice),
            )
            if not v.strip()
        ]
        if missing or not sources or not violations:
            what = ", ".join(
                missing + (["sources"] if not sources else []) + (["violations"] if not violations else [])
            )
            raise ValueError(f"rule {code} has no {what}: a rule without its proof is not a rule")
        if severity not in SEVERITIES or detected_by not in (STATIC, RUNTIME, BOTH):
            raise ValueError(
                f"rule {code}: severity {severity!r} or readers {detected_by!r} is not one of the known words"
            )
        if applicability and applicability not in APPLICABILITIES:
            raise ValueError(f"rule {code}: a fix is {' or '.join(APPLICABILITIES)}, not {applicability!r}")
        if f"# {code}" not in bad_example or f"# {code}" in good_example:
            raise ValueError(f"rule {code}: bad must carry the mark '# {code}' and good must not")
        self.code = code
        self.name = name
        self.severity = severity
        self.summary = summary
        self.violations = dict(violations)
        self.rationale = rationale
        self.harm = harm
        self.bad_example = bad_example
        self.good_example = good_example
        self.fix_advice = fix_advice
        self.sources = sources
        self.detected_by = detected_by
        self.prescan_words = prescan_words
        # A check is called with events of its kind only.
        self.event_checks: dict[EventKind, EventCheck] = dict(event_checks or {})  # type: ignore[arg-type]
        self.program_checks = dict(program_checks or {})
        self.on_by_default = on_by_default
        self.applicability = applicability
        self.grouped_message = grouped_message

    def as_dict(self) -> dict[str, Any]:
        """Return the rule as plain data for ``amp-check rules --output-format json``."""
        return {
            "code": self.code,
            "name": self.name,
            "severity": self.severity,
            "summary": self.summary,
            "why": self.rationale,
            "harm": self.harm,
            "bad": self.bad_example,
            "good": self.good_example,
            "fix": self.fix_advice,
            "applicability": self.applicability or None,
            "sources": list(self.sources),
            "readers": self.detected_by,
            "default": self.on_by_default,
        }
