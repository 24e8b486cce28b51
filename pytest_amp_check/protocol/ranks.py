"""Findings of the processes of a distributed run as one list, and the mistakes that no rank can see by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from .events import Event, Site
from .finding import Finding
from .report import make_finding

#: Steps that a message names.
_NAMED = 3


class Told:
    """What one rank tells of its run.

    ``findings`` are its own. ``backwards`` says how many backward passes began at each place, and how the program calls
    them there. ``skips`` holds the steps through a scaler that it skipped, by their numbers from 0, out of ``steps``;
    ``step_site`` and ``scaler`` are where it steps, and by what. ``grouped`` says that it belonged to a process group
    of several while it trained, ``averages`` that gradients were averaged inside of backward, each of which needs all
    ranks. ``failure`` is what has kept it from telling more, in words; ``stopped`` says that an exception of its own
    has ended it between two backward passes.
    """

    __slots__ = (
        "averages",
        "backwards",
        "failure",
        "findings",
        "grouped",
        "rank",
        "scaler",
        "skips",
        "step_site",
        "steps",
        "stopped",
    )

    def __init__(
        self,
        rank: int,
        findings: Sequence[Finding] = (),
        *,
        backwards: Mapping[tuple[str, int], tuple[Site, str, int]] | None = None,
        steps: int = 0,
        skips: frozenset[int] = frozenset(),
        step_site: Site | None = None,
        scaler: str = "",
        grouped: bool = False,
        averages: bool = False,
        failure: str = "",
        stopped: bool = False,
    ) -> None:
        self.rank = rank
        self.findings = findings
        self.backwards = dict(backwards or {})
        self.steps = steps
        self.skips = skips
        self.step_site = step_site
        self.scaler = scaler
        self.grouped = grouped
        self.averages = averages
        self.failure = failure
        self.stopped = stopped


def once(findings: Iterable[Finding]) -> list[Finding]:
    """Findings of several recordings of one process, each place once."""
    found: dict[tuple[str, str, str, int, int], Finding] = {}
    for finding in findings:
        found.setdefault(_place(finding), finding)
    return sorted(found.values(), key=Finding.order)


def _place(finding: Finding) -> tuple[str, str, str, int, int]:
    site = finding.site
    return (finding.code, finding.label, site.path, site.line, site.column)


def together(told: Sequence[Told], size: int) -> list[Finding]:
    """The findings of all ranks, each once, with the ranks that have it; and what they show side by side.

    ``size`` is how many ranks there were, whether they all have told or not.
    """
    found: dict[tuple[str, str, str, int, int], list[tuple[int, Finding]]] = {}
    for each in told:
        for finding in each.findings:
            found.setdefault(_place(finding), []).append((each.rank, finding))
    merged = [_named(same, size) for same in found.values()]
    apart = list(_left_out(told, size)) or list(_skipped_apart(told))
    # The scaler that asks its own shard alone is told of already: that ranks disagree is what comes of it.
    known = {(finding.code, finding.filename, finding.line) for finding in merged}
    merged += [finding for finding in apart if (finding.code, finding.filename, finding.line) not in known]
    return sorted(merged, key=Finding.order)


def _named(same: Sequence[tuple[int, Finding]], size: int) -> Finding:
    """One finding of those that several ranks have."""
    ranks = tuple(sorted({rank for rank, _ in same}))
    finding = min(same, key=lambda pair: (not pair[1].certain, pair[0]))[1]
    finding.ranks = ranks
    finding.message = f"{finding.message} ({named(ranks, size)})"
    return finding


def named(ranks: Sequence[int], size: int) -> str:
    """Some ranks in words: "rank 1 of 2", "both ranks", "all 4 ranks"."""
    if len(ranks) == size > 1:
        return "both ranks" if size == 2 else f"all {size} ranks"
    return f"{_ranks(ranks)} of {size}"


def _ranks(ranks: Sequence[int]) -> str:
    words = [str(rank) for rank in ranks]
    if len(words) == 1:
        return f"rank {words[0]}"
    return f"ranks {', '.join(words[:-1])} and {words[-1]}"


def _left_out(told: Sequence[Told], size: int) -> Iterator[Finding]:
    """Backward passes that average gradients, and that some ranks have run more often than others."""
    sharing = [each for each in told if each.averages]
    places = {place: (site, call) for each in sharing for place, (site, call, _) in each.backwards.items()}
    for place, (site, call) in places.items():
        counts: dict[int, list[int]] = {}
        for each in sharing:
            count = each.backwards[place][2] if place in each.backwards else 0
            counts.setdefault(count, []).append(each.rank)
        # A rank that has told nothing may have run any number: only those that have told are counted. One that an
        # exception has ended runs fewer than those that wait for it.
        fewest = counts[min(counts)]
        if len(counts) > 1 and not any(each.stopped for each in sharing if each.rank in fewest):
            words = [f"{_times(count)} on {_ranks(counts[count])}" for count in sorted(counts, reverse=True)]
            ranks = tuple(sorted(counts[min(counts)]))
            yield _of("backward@ranks", site, {"call": call, "counts": " and ".join(words)}, ranks)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times" if count else "never"


def _skipped_apart(told: Sequence[Told]) -> Iterator[Finding]:
    """Steps that some ranks have skipped and others have taken."""
    sharing = [each for each in told if each.grouped and each.step_site is not None]
    if len(sharing) < 2 or len({(each.step_site.path, each.step_site.line) for each in sharing if each.step_site}) > 1:
        # They do not run the same steps.
        return
    common = min(each.steps for each in sharing)
    skipped: dict[int, set[int]] = {}
    for each in sharing:
        for number in each.skips:
            if number < common:
                skipped.setdefault(number, set()).add(each.rank)
    apart = {number: ranks for number, ranks in sorted(skipped.items()) if len(ranks) < len(sharing)}
    if not apart:
        return
    first = next(iter(apart.values()))
    numbers = [number for number, ranks in apart.items() if ranks == first]
    more = len(numbers) - _NAMED
    listed = ", ".join(str(number) for number in numbers[:_NAMED]) + (f" and {more} more" if more > 0 else "")
    values = {
        "scaler": sharing[0].scaler,
        "turns": f"step{'s' if len(numbers) > 1 else ''} {listed}",
        "ranks": _ranks(sorted(first)),
        "others": _ranks(sorted({each.rank for each in sharing} - first)),
    }
    site = sharing[0].step_site
    assert site is not None
    yield _of("step@ranks", site, values, tuple(sorted(first)))


def _of(label: str, site: Site, values: Mapping[str, str], ranks: tuple[int, ...]) -> Finding:
    events: list[Event] = []
    finding = make_finding(label, site, events, {name: text for name, text in values.items() if text}, ())
    finding.ranks = ranks
    return finding
