"""Rules as data, one file for each rule: names, messages, violations, rationale, measured harm and examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from .event_graph import Program
from .events import Event, EventKind
from .fast_namedtuple import NamedTuple
from .fix import APPLICABILITIES
from .severities import ERROR, INFO, SEVERITIES, WARNING

#: Most characters of an effect, so that it stays on one line of a terminal.
LONGEST_EFFECT = 110

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    Checked = TypeVar("Checked", bound=Event)

__all__ = ["ERROR", "INFO", "WARNING", "Rule", "ViolationKind"]

STATIC, RUNTIME, BOTH = "static", "runtime", "both"


class Cause:
    """The event that a violation reports.

    - ``kinds``: kinds of the event to report: the latest such event before the event that detects the violation.
    - ``every``: every such event since the last use of the gradients is reported.
    - ``unscaled_only``: only backwards of unscaled losses are reported.
    - ``only_reads``: the cause only reads. A cause in a helper is reported at the caller of the helper.
    - ``concerns_loss``: the violation concerns the computation of the loss. If a helper in another file receives the
      loss, the caller is reported.
    - ``label_overrides``: pairs of a test of the cause and the label used if the test is true.
    - ``label_in_window``: label used if the detecting event waits for the end of a window and the cause does not.
    """

    __slots__ = (
        "concerns_loss",
        "every",
        "kinds",
        "label_in_window",
        "label_overrides",
        "only_reads",
        "unscaled_only",
    )

    def __init__(
        self,
        *kinds: EventKind,
        every: bool = False,
        unscaled_only: bool = False,
        only_reads: bool = False,
        concerns_loss: bool = False,
        label_overrides: tuple[tuple[Callable[[Event | None], bool], str], ...] = (),
        label_in_window: str = "",
    ) -> None:
        self.kinds = kinds
        self.every = every
        self.unscaled_only = unscaled_only
        self.only_reads = only_reads
        self.concerns_loss = concerns_loss
        self.label_overrides = label_overrides
        self.label_in_window = label_in_window


class Precedence:
    """The programs, paths and findings beside which a violation is not reported.

    - ``needs_every_path``: the violation counts only if every path to the node has the violation.
    - ``needs_every_iteration``: with ``needs_every_path``, the violation also counts if every path with the same choice
      of flags, which no loop changes, has the violation.
    - ``needs_repeated_call``: the violation counts only if code of the project calls the function in a loop.
    - ``needs_training``: the violation concerns the result of training. A test that steps no optimizer is not affected.
    - ``needs_update``: the violation follows from a scaler that is never updated. Without any update, the step is
      reported instead.
    - ``yields_to``: labels of the same cause that say more, if they report the same event.
    - ``yields_where_detected``: labels of the same cause that say more, if the same event detects the violation.
    - ``consequence_of``: prefix of rule codes. If such a rule is found, this violation is a consequence and is not
      reported.
    """

    __slots__ = (
        "consequence_of",
        "needs_every_iteration",
        "needs_every_path",
        "needs_repeated_call",
        "needs_training",
        "needs_update",
        "yields_to",
        "yields_where_detected",
    )

    def __init__(
        self,
        *,
        needs_every_path: bool = False,
        needs_every_iteration: bool = False,
        needs_repeated_call: bool = False,
        needs_training: bool = False,
        needs_update: bool = False,
        yields_to: tuple[str, ...] = (),
        yields_where_detected: tuple[str, ...] = (),
        consequence_of: str = "",
    ) -> None:
        self.needs_every_path = needs_every_path
        self.needs_every_iteration = needs_every_iteration
        self.needs_repeated_call = needs_repeated_call
        self.needs_training = needs_training
        self.needs_update = needs_update
        self.yields_to = yields_to
        self.yields_where_detected = yields_where_detected
        self.consequence_of = consequence_of


class Certainty:
    """The certainty of a violation that is not definite on each path where it is found.

    - ``is_possible``: the violation depends on unknown facts, and is never definite.
    - ``always_possible``: unanalyzed code may prevent the violation, so the violation is never definite in source.
    - ``is_proven``: a run that finds the violation proves the harm, and reports the violation even if the rule is off
      by default.
    - ``missing_method``: method of a scaler or optimizer that is never called. The violation is definite only for a
      local object.
    - ``assumption``: what must be true of unknown values for a possible violation, as a template that follows "only
      if". It stands where no condition on the path is known.
    """

    __slots__ = ("always_possible", "assumption", "is_possible", "is_proven", "missing_method")

    def __init__(
        self,
        *,
        is_possible: bool = False,
        always_possible: bool = False,
        is_proven: bool = False,
        missing_method: str = "",
        assumption: str = "",
    ) -> None:
        self.assumption = assumption
        self.is_possible = is_possible
        self.always_possible = always_possible
        self.is_proven = is_proven
        self.missing_method = missing_method


#: The detecting event is reported.
_DETECTED = Cause()
_ALWAYS = Precedence()
_DEFINITE = Certainty()


class Edit(NamedTuple):
    """An edit that a remedy needs beside that at the location of the finding.

    - ``text``: what to write there, in the imperative, as a template over source texts.
    - ``beside``: kinds of events beside which to write.
    - ``search``: how to find the location, a key of ``_SEARCHES`` in :mod:`.edit_places`. "event" is an event of the
      kinds in ``beside``.
    - ``is_always_shown``: the edit is shown even if the code around the finding shows its line.
    """

    text: str
    beside: tuple[EventKind, ...] = ()
    search: str = "event"
    is_always_shown: bool = False


class TraceContext:
    """Events and edits that a finding shows beside the violation, so that its message can be believed and followed.

    - ``begins_with``: kinds of events of which the latest before the others begins the trace, as the step before an
      uncleared backward.
    - ``region_around``: kind of event whose autocast region the trace shows.
    - ``shows_earlier``: the trace shows the latest event before the cause that has the kind and the subject of the
      detecting event.
    - ``region_before``: the trace shows the region before the event that made its tensors low, if one fits.
    - ``shows_scaler``: the trace shows where the scaler is constructed.
    - ``background_kinds``: kinds of events that a program check adds to the trace, and on which the violation does not
      depend.
    - ``shows_window_end``: the trace ends with the step at the end of the accumulation window.
    - ``shows_skip``: a statement skips the rest of an iteration. The trace shows it, and the message names it.
    - ``edits``: what to write at other locations, in the order in which to show the edits.
    """

    __slots__ = (
        "background_kinds",
        "begins_with",
        "edits",
        "region_around",
        "region_before",
        "shows_earlier",
        "shows_scaler",
        "shows_skip",
        "shows_window_end",
    )

    def __init__(
        self,
        *,
        begins_with: tuple[EventKind, ...] = (),
        region_around: EventKind | None = None,
        region_before: bool = False,
        shows_scaler: bool = False,
        shows_earlier: bool = False,
        shows_window_end: bool = False,
        shows_skip: bool = False,
        background_kinds: tuple[EventKind, ...] = (),
        edits: tuple[Edit, ...] = (),
    ) -> None:
        self.begins_with = begins_with
        self.region_around = region_around
        self.region_before = region_before
        self.shows_scaler = shows_scaler
        self.shows_earlier = shows_earlier
        self.shows_window_end = shows_window_end
        self.shows_skip = shows_skip
        self.background_kinds = background_kinds
        self.edits = edits


_NO_CONTEXT = TraceContext()
_NO_CASES: Mapping[str, str] = {}


class ViolationKind:
    """A kind of violation of a rule: the label from the checker, and all attributes of this label.

    - ``message``: message for the user: a template over source texts, ``{scaler}``, ``{optimizer}``, ``{call}``, ...
      The problem comes first, the remedy after the colon.
    - ``effect``: effect on training instead of the rule's. A statement that holds for every program with the violation.
    - ``effect_cases``: more precise effects. The key is a value of the finding, such as ``dtype=float16`` or
      ``scaling=live``. The first case that holds replaces ``effect``.
    - ``severity``: severity instead of the rule's.
    - ``cause``: the event to report instead of the detecting event.
    - ``trace_kinds``: kinds of events that the trace shows beside the cause and the detecting event; the first begins
      the trace.
    - ``trace_context``: other events that the trace shows.
    - ``precedence``: the programs, paths and findings beside which the violation is not reported.
    - ``certainty``: the certainty, if the violation is not definite wherever it is found.
    - ``exemption``: name of the exemption, a key of ``EXCUSES`` in :mod:`.effects.violations`.
    - ``sparing_kinds``: kinds of events that would have prevented the violation. The predicates that led past such an
      event are the condition of the violation.
    - ``in_next_iteration``: the violation lies between an event of one iteration and an event of a later iteration. The
      first iteration cannot have the violation.
    - ``any_precision``: the violation is as wrong without mixed precision.
    """

    __slots__ = (
        "any_precision",
        "cause",
        "certainty",
        "effect",
        "effect_cases",
        "exemption",
        "in_next_iteration",
        "message",
        "precedence",
        "severity",
        "sparing_kinds",
        "trace_context",
        "trace_kinds",
    )

    def __init__(
        self,
        message: str,
        severity: str = "",
        *,
        effect: str = "",
        effect_cases: Mapping[str, str] = _NO_CASES,
        cause: Cause = _DETECTED,
        trace_kinds: tuple[EventKind, ...] = (),
        trace_context: TraceContext = _NO_CONTEXT,
        precedence: Precedence = _ALWAYS,
        certainty: Certainty = _DEFINITE,
        exemption: str = "",
        sparing_kinds: tuple[EventKind, ...] = (),
        in_next_iteration: bool = False,
        any_precision: bool = False,
    ) -> None:
        self.message = message
        self.effect = effect
        self.effect_cases = effect_cases
        self.severity = severity
        self.cause = cause
        self.trace_kinds = trace_kinds
        self.trace_context = trace_context
        self.precedence = precedence
        self.certainty = certainty
        self.exemption = exemption
        self.sparing_kinds = sparing_kinds
        self.in_next_iteration = in_next_iteration
        self.any_precision = any_precision


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
    - ``effect``: what the mistake does to training, one clause of at most 110 characters. A violation with another
      effect declares its own.
    - ``effect_cases``: more precise effects by a value of the finding, for the violations without an own effect.
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
        "effect",
        "effect_cases",
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
        effect: str,
        effect_cases: Mapping[str, str] = _NO_CASES,
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
                ("effect", effect),
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
        said_by_violations = (
            said for kind in violations.values() for said in (kind.effect, *kind.effect_cases.values())
        )
        for said in (effect, *effect_cases.values(), *said_by_violations):
            if len(said) > LONGEST_EFFECT:
                raise ValueError(
                    f"rule {code}: the effect has {len(said)} characters, at most {LONGEST_EFFECT}: {said}"
                )
        if applicability and applicability not in APPLICABILITIES:
            raise ValueError(f"rule {code}: a fix is {' or '.join(APPLICABILITIES)}, not {applicability!r}")
        if f"# {code}" not in bad_example or f"# {code}" in good_example:
            raise ValueError(f"rule {code}: bad must carry the mark '# {code}' and good must not")
        self.code = code
        self.name = name
        self.severity = severity
        self.summary = summary
        self.effect = effect
        self.effect_cases = effect_cases
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

    def list_effects(self, label: str) -> tuple[str, Mapping[str, str]]:
        """Return the effect of a violation, and the more precise effects by a value of the finding."""
        kind = self.violations[label]
        if kind.effect:
            return kind.effect, kind.effect_cases
        return self.effect, kind.effect_cases or self.effect_cases

    def as_dict(self) -> dict[str, object]:
        """Return the rule as plain data for ``amp-check rules --output-format json``."""
        return {
            "code": self.code,
            "name": self.name,
            "severity": self.severity,
            "summary": self.summary,
            "effect": self.effect,
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
