"""A rule is data, in one file: what it is called, what it says, which faults it owns, why, and its proof."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from .events import Event, EventKind, Program
from .finding import ERROR, INFO, SEVERITIES, WARNING
from .fix import APPLICABILITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["ERROR", "INFO", "WARNING", "Rule", "ViolationKind"]

STATIC, RUNTIME, BOTH = "static", "runtime", "both"


class ViolationKind:
    """One way to break a rule: the label that a judge gives it, and all that is known of what has that label.

    message     what a user reads: a template over the names the user gave things, ``{scaler}``, ``{optimizer}``,
                ``{call}``, ... What is wrong comes first, what to do after the colon.
    severity    overrides the rule's.
    blame       kinds of the event to blame, the latest before the event that settles the fault; that one where none
                are given. ``each`` such event since the gradients were last used is blamed, ``unscaled`` only those of
                a loss that no scaler has scaled.
    witness     kinds of events that the path to it shows besides the blamed and the settling one; the first begins it.
    every_path  it counts only where every path that reaches the place commits it.
    next_turn   it lies between an event of one turn of a loop and one of a later turn, which the first cannot commit.
    yields_to   labels of the same cause, which say more where they blame the same event.
    yields_where_settled
                the same, where the same event settles them.
    unless      the name of what excuses it, one of the excuses that :mod:`.judge` knows.
    possible    it rests on what is not known, so that it is never certain.
    otherwise   facts of the event that is blamed, and its label where one of them is so.
    needs_update
                it follows from a scaler that is never updated, which is told at its step, unless that is.
    any_precision
                it is as wrong without mixed precision.
    supposed    code that cannot be read may keep it from being one: it is never certain.
    reads       what is blamed only reads: where it stands in a helper, whoever calls that is blamed.
    follows     the beginning of codes: where one of them is found, this is what comes of it, and not told.
    of_training it is a matter of what training learns: a test that steps no optimizer loses nothing by it.
    of_loss     it is a matter of how the loss was made: where a helper of another file is given the loss, whoever gives
                it is blamed.
    owned       the method of a scaler, or of an optimizer, that nobody calls, which is certain only of one that nobody
                else has.
    proven      a run that finds it has seen it happen, and shows it though its rule is off by default.
    spared_by   kinds of events one of which would have kept it from being one: the tests that led past them are the
                condition under which it happens.
    skipped     something skips what is left of an iteration, which its message names.
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
        label_overrides: tuple[tuple[str, str], ...] = (),
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


#: What is known of a rule before its module is loaded: code, name, family, severity, readers, default, applicability;
#: words; the kinds that it judges events of alone, those for which it judges the program, the labels of its faults.
Listing = tuple[
    tuple[str, str, str, str, str, bool, str], tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]
]
#: Labels of faults, each with values for the message template.
Labels = Iterator[tuple[str, Mapping[str, str]]]
#: (label, event blamed, values for the template, other events of the witness).
Verdicts = Iterator[tuple[str, Event, Mapping[str, str], tuple[Event, ...]]]
#: Judges one event by itself.
FactJudge = Callable[[Event, Program], Labels]
#: Judges a whole program.
WholeJudge = Callable[[Program], Verdicts]


class Rule:
    """A rule of the catalogue.

    code        ``AMPnnn``; the hundreds name the family, a folder of ``protocol/rules``; never reused.
    name        kebab-case, the wrong thing; reads after "allow".
    severity    ``error``, ``warning`` or ``info``.
    summary     one sentence for lists.
    faults      label -> :class:`Fault`. Labels of the automaton (``clip@scaled``) or of the rule's own judges.
    why         why it is wrong, a short paragraph in Markdown.
    harm        what it was measured to do, with the figures.
    bad, good   runnable Python; each line that must be found carries ``# AMPnnn``. ``good`` is ``bad`` put right.
    silent      look-alikes, each (reason, Python) that must give no finding of this rule: programs in the folder
                ``lookalikes`` beside the rule, which the catalogue reads.
    fix         how to put it right, one sentence.
    applicability
                of the fix that ``check --fix`` makes where it is certain what is right: ``safe``, or ``unsafe`` for
                one that changes what may have been tuned around; empty where there is none.
    sources     where the claim comes from.
    readers     ``static``, ``runtime`` or ``both``.
    words       what a file must hold to be read for it: one of these, each of which is a word, several of which all
                must be there, or something that ``static`` looks at more closely. None where it is found in
                whatever is read for others, or in runs alone.
    on          event kind -> judge of that event alone.
    whole       event kind -> judge of a whole program, asked where the program has an event of that kind.
    default     whether the rule is on without being selected.
    together    the sentence that tells people of all its places in one file, where one for each would bury the rest;
                ``{places}`` are their lines. Empty where each is told by itself, as in what machines read.
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
        "negative_examples",
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
        negative_examples: tuple[tuple[str, str], ...] = (),
        detected_by: str = BOTH,
        prescan_words: tuple[str, ...] = (),
        event_checks: Mapping[str, FactJudge] | None = None,
        program_checks: Mapping[str, WholeJudge] | None = None,
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
        self.negative_examples = negative_examples
        self.detected_by = detected_by
        self.prescan_words = prescan_words
        self.event_checks = dict(event_checks or {})
        self.program_checks = dict(program_checks or {})
        self.on_by_default = on_by_default
        self.applicability = applicability
        self.grouped_message = grouped_message

    def as_dict(self) -> dict[str, Any]:
        """The rule as plain data, for ``amp-check rules --output-format json``."""
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
            "silent": [{"reason": reason, "code": code} for reason, code in self.negative_examples],
            "sources": list(self.sources),
            "readers": self.detected_by,
            "default": self.on_by_default,
        }
