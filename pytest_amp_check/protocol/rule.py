"""A rule is data, in one file: what it is called, what it says, which faults it owns, why, and its proof."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from .events import Event, Kind, Program
from .finding import ERROR, INFO, SEVERITIES, WARNING
from .fix import APPLICABILITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["ERROR", "INFO", "WARNING", "Fault", "Rule"]

STATIC, RUNTIME, BOTH = "static", "runtime", "both"


class Fault:
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
        "any_precision",
        "blame",
        "each",
        "every_path",
        "follows",
        "message",
        "needs_update",
        "next_turn",
        "of_loss",
        "of_training",
        "otherwise",
        "owned",
        "possible",
        "proven",
        "reads",
        "severity",
        "skipped",
        "spared_by",
        "supposed",
        "unless",
        "unscaled",
        "witness",
        "yields_to",
        "yields_where_settled",
    )

    def __init__(
        self,
        message: str,
        severity: str = "",
        *,
        blame: tuple[Kind, ...] = (),
        each: bool = False,
        unscaled: bool = False,
        witness: tuple[Kind, ...] = (),
        every_path: bool = False,
        next_turn: bool = False,
        yields_to: tuple[str, ...] = (),
        yields_where_settled: tuple[str, ...] = (),
        unless: str = "",
        possible: bool = False,
        otherwise: tuple[tuple[str, str], ...] = (),
        needs_update: bool = False,
        any_precision: bool = False,
        reads: bool = False,
        supposed: bool = False,
        follows: str = "",
        of_training: bool = False,
        of_loss: bool = False,
        owned: str = "",
        proven: bool = False,
        spared_by: tuple[Kind, ...] = (),
        skipped: bool = False,
    ) -> None:
        self.message = message
        self.severity = severity
        self.blame = blame
        self.each = each
        self.unscaled = unscaled
        self.witness = witness
        self.every_path = every_path
        self.next_turn = next_turn
        self.yields_to = yields_to
        self.yields_where_settled = yields_where_settled
        self.unless = unless
        self.possible = possible
        self.otherwise = otherwise
        self.needs_update = needs_update
        self.any_precision = any_precision
        self.reads = reads
        self.supposed = supposed
        self.follows = follows
        self.of_training = of_training
        self.of_loss = of_loss
        self.owned = owned
        self.proven = proven
        self.spared_by = spared_by
        self.skipped = skipped


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
        "bad",
        "code",
        "default",
        "faults",
        "fix",
        "good",
        "harm",
        "name",
        "on",
        "readers",
        "severity",
        "silent",
        "sources",
        "summary",
        "together",
        "whole",
        "why",
        "words",
    )

    def __init__(
        self,
        code: str,
        name: str,
        severity: str,
        summary: str,
        *,
        faults: Mapping[str, Fault],
        why: str,
        harm: str,
        bad: str,
        good: str,
        fix: str,
        sources: tuple[str, ...],
        silent: tuple[tuple[str, str], ...] = (),
        readers: str = BOTH,
        words: tuple[str, ...] = (),
        on: Mapping[str, FactJudge] | None = None,
        whole: Mapping[str, WholeJudge] | None = None,
        default: bool = True,
        applicability: str = "",
        together: str = "",
    ) -> None:
        missing = [
            k for k, v in (("bad", bad), ("good", good), ("why", why), ("harm", harm), ("fix", fix)) if not v.strip()
        ]
        if missing or not sources or not faults:
            what = ", ".join(missing + (["sources"] if not sources else []) + (["faults"] if not faults else []))
            raise ValueError(f"rule {code} has no {what}: a rule without its proof is not a rule")
        if severity not in SEVERITIES or readers not in (STATIC, RUNTIME, BOTH):
            raise ValueError(f"rule {code}: severity {severity!r} or readers {readers!r} is not one of the known words")
        if applicability and applicability not in APPLICABILITIES:
            raise ValueError(f"rule {code}: a fix is {' or '.join(APPLICABILITIES)}, not {applicability!r}")
        if f"# {code}" not in bad or f"# {code}" in good:
            raise ValueError(f"rule {code}: bad must carry the mark '# {code}' and good must not")
        self.code = code
        self.name = name
        self.severity = severity
        self.summary = summary
        self.faults = dict(faults)
        self.why = why
        self.harm = harm
        self.bad = bad
        self.good = good
        self.fix = fix
        self.sources = sources
        self.silent = silent
        self.readers = readers
        self.words = words
        self.on = dict(on or {})
        self.whole = dict(whole or {})
        self.default = default
        self.applicability = applicability
        self.together = together

    def as_dict(self) -> dict[str, Any]:
        """The rule as plain data, for ``amp-check rules --output-format json``."""
        return {
            "code": self.code,
            "name": self.name,
            "severity": self.severity,
            "summary": self.summary,
            "why": self.why,
            "harm": self.harm,
            "bad": self.bad,
            "good": self.good,
            "fix": self.fix,
            "applicability": self.applicability or None,
            "silent": [{"reason": reason, "code": code} for reason, code in self.silent],
            "sources": list(self.sources),
            "readers": self.readers,
            "default": self.default,
        }
