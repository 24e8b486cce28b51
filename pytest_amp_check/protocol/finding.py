"""Findings as data, which the frontends render."""

from __future__ import annotations

from .rules import LABELS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .fix import Fix
    from .sites import Call, Site


class TraceStep:
    """One event of a trace: location and description, in the user's names.

    ``is_event`` is False for what a message presupposes, and for conditions. No decision depends on such steps.
    """

    __slots__ = ("is_event", "site", "text")

    def __init__(self, site: Site, text: str, *, is_event: bool = True) -> None:
        self.site = site
        self.text = text
        self.is_event = is_event

    def move(self, site: Site) -> TraceStep:
        """Return the same step at another location."""
        return TraceStep(site, self.text, is_event=self.is_event)

    def as_dict(self) -> dict[str, Any]:
        return {
            "filename": self.site.path,
            "cell": self.site.cell,
            "location": {"row": self.site.line, "column": self.site.column + 1},
            "text": self.text,
        }


def describe_uncertainty(condition: str, *, traced: bool) -> str:
    """Return why a possible mistake may not occur.

    ``condition`` names the paths (``when use_amp is true``), or an assumption (``if the inputs are in low precision``).
    ``traced`` is True if a trace shows one of the paths.
    """
    if condition.startswith("if "):
        return f"only {condition}"
    if condition:
        return f"only on some paths, {condition}"
    return "only on some paths" if traced else "possible: it depends on values that the code does not show"


class Discovery:
    """The analysis that found a mistake.

    ``calls`` are the calls of the program that the finding depends on. ``entries`` are the entry points (path and line)
    whose analysis found the mistake, each with these calls.
    """

    __slots__ = ("calls", "entries")

    def __init__(self) -> None:
        self.calls: frozenset[Call] = frozenset()
        self.entries: dict[tuple[str, int], frozenset[Call]] = {}

    def add_entry(self, entry: tuple[str, int]) -> None:
        self.entries[entry] = self.calls

    def merge(self, other: Discovery) -> None:
        """Add the entry points whose analysis found the same mistake."""
        self.entries |= other.entries


class Finding:
    """A mistake, its location, and the events that lead to the mistake.

    ``certain`` is True if the mistake occurs on every path to the location, and False if only on some paths. Then
    ``condition`` may name the paths (``when use_amp is true``). ``discovery`` is the analysis that found the mistake.

    ``message`` is the problem and the remedy in one text, and ``remedy`` the remedy alone, "" if there is none.
    ``edit_places`` are the locations of calls and names that the remedy mentions and the location does not show.

    ``follows`` is True if the finding may be a consequence of other findings of a run, which are shown first.

    ``label`` is the violation label, and ``names`` are the values of the message template. ``fix`` is the fix, if
    requested and available. ``elsewhere`` is the location of the mistake if the finding is reported at another location
    that takes part. ``ranks`` are the ranks of a distributed run with the finding, empty for a single process.
    """

    __slots__ = (
        "certain",
        "code",
        "condition",
        "discovery",
        "edit_places",
        "elsewhere",
        "fix",
        "follows",
        "label",
        "message",
        "name",
        "names",
        "ranks",
        "remedy",
        "severity",
        "site",
        "trace",
    )

    def __init__(
        self,
        code: str,
        name: str,
        severity: str,
        message: str,
        site: Site,
        *,
        certain: bool = True,
        condition: str = "",
        trace: tuple[TraceStep, ...] = (),
        label: str = "",
        names: dict[str, str] | None = None,
        remedy: str = "",
    ) -> None:
        self.code = code
        self.name = name
        self.severity = severity
        self.message = message
        self.site = site
        self.certain = certain
        self.condition = condition
        self.trace = trace
        self.label = label
        self.names = names or {}
        self.remedy = remedy
        self.edit_places: tuple[TraceStep, ...] = ()
        self.fix: Fix | None = None
        self.follows = False
        self.elsewhere: Site | None = None
        self.discovery = Discovery()
        self.ranks: tuple[int, ...] = ()

    @property
    def filename(self) -> str:
        return self.site.path

    @property
    def line(self) -> int:
        return self.site.line

    @property
    def cell(self) -> int | None:
        return self.site.cell

    @property
    def event_steps(self) -> list[TraceStep]:
        """Steps of the trace that are events, on which the finding depends."""
        return [step for step in self.trace if step.is_event]

    @property
    def is_proven(self) -> bool:
        """True if a run that shows the mistake proves the harm. Then the run shows rules that are off, too."""
        return self.label in LABELS and LABELS[self.label][1].certainty.is_proven

    @property
    def uncertainty(self) -> str:
        """Why the mistake may not occur, as text; "" for a certain finding."""
        return "" if self.certain else describe_uncertainty(self.condition, traced=bool(self.trace))

    @property
    def problem(self) -> str:
        """Message without the remedy."""
        return self.message.replace(f": {self.remedy}", "", 1) if self.remedy else self.message

    @property
    def effect(self) -> str:
        """What the mistake does to training, as its rule declares it; "" for a finding without a label."""
        if self.label not in LABELS:
            return ""
        always, cases = LABELS[self.label][0].list_effects(self.label)
        for case, effect in cases.items():
            name, _, value = case.partition("=")
            if self.names.get(name) == value:
                return effect
        return always

    def order(self) -> tuple[bool, str, int, int, int, str]:
        """Return the sort key of findings: causes before consequences, then file, cell, line, column, code."""
        return (self.follows, self.site.path, self.site.cell or 0, self.site.line, self.site.column, self.code)

    def as_dict(self) -> dict[str, Any]:
        """Return the finding in the JSON format of ruff, extended by severity, certainty and trace."""
        ranks = {"ranks": list(self.ranks)} if self.ranks else {}
        return {
            **ranks,
            "code": self.code,
            "name": self.name,
            "severity": self.severity,
            "message": self.message,
            "effect": self.effect or None,
            "remedy": self.remedy or None,
            "filename": self.site.path,
            "cell": self.cell,
            "location": {"row": self.site.line, "column": self.site.column + 1},
            "end_location": {"row": self.site.end_line, "column": self.site.end_column + 1},
            "certain": self.certain,
            "condition": self.condition or None,
            "uncertainty": self.uncertainty or None,
            "witness": [step.as_dict() for step in self.trace],
            "edit_places": [step.as_dict() for step in self.edit_places],
            "fix": self.fix.as_dict() if self.fix is not None else None,
            "url": None,
        }

    def __repr__(self) -> str:
        return f"<{self.code} {self.site.location_text} {self.message}>"


def merge_finding(found: dict[tuple[str, str, int, int], Finding], finding: Finding) -> None:
    """Add a finding to a dict. Equal findings are merged, and a definite finding replaces a possible finding."""
    key = (finding.code, finding.site.path, finding.site.line, finding.site.column)
    known = found.get(key)
    if known is None:
        found[key] = finding
    elif known is not finding:
        kept, other = (finding, known) if finding.certain and not known.certain else (known, finding)
        kept.discovery.merge(other.discovery)
        found[key] = kept
