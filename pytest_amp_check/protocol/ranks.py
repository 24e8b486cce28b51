"""Findings of all ranks of a distributed run as one list, and mistakes that no single rank can detect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from .events import Event
from .finding import Finding
from .findings_builder import make_finding
from .sites import Site

#: Code, label, path, cell, line and column of a finding.
_Key = tuple[str, str, str, int | None, int, int]

#: Maximum number of steps in a message.
_NAMED = 3


class RankReport:
    """The report of one rank.

    ``findings`` are the rank's own findings. ``backward_counts`` holds the number of backward passes at each location,
    and the source text of the call. ``skipped_steps`` are the numbers (from 0) of the scaler steps that were skipped,
    out of ``step_count``. ``step_site`` and ``scaler_name`` are the location and the scaler of the step.
    ``scaler_state`` holds the last scale, the scaler's count of steps since the scale changed, and the number of scaler
    steps, or None if unknown. ``has_replicas`` is True if a module averaged gradients, possibly inside its ``join()``.

    ``in_process_group`` is True if the rank trained in a process group with several ranks. ``averages_grads`` is True
    if backward averaged gradients, which needs all ranks. ``failure`` describes the reason for an incomplete report.
    ``ended_by_exception`` is True if an exception of the rank ended the run between two backward passes.
    """

    __slots__ = (
        "averages_grads",
        "backward_counts",
        "ended_by_exception",
        "failure",
        "findings",
        "has_replicas",
        "in_process_group",
        "rank",
        "scaler_name",
        "scaler_state",
        "skipped_steps",
        "step_count",
        "step_site",
    )

    def __init__(
        self,
        rank: int,
        findings: Sequence[Finding] = (),
        *,
        backward_counts: Mapping[tuple[str, int], tuple[Site, str, int]] | None = None,
        step_count: int = 0,
        skipped_steps: frozenset[int] = frozenset(),
        step_site: Site | None = None,
        scaler_name: str = "",
        scaler_state: tuple[float, int, int] | None = None,
        has_replicas: bool = False,
        in_process_group: bool = False,
        averages_grads: bool = False,
        failure: str = "",
        ended_by_exception: bool = False,
    ) -> None:
        self.rank = rank
        self.findings = findings
        self.backward_counts = dict(backward_counts or {})
        self.step_count = step_count
        self.skipped_steps = skipped_steps
        self.step_site = step_site
        self.scaler_name = scaler_name
        self.scaler_state = scaler_state
        self.has_replicas = has_replicas
        self.in_process_group = in_process_group
        self.averages_grads = averages_grads
        self.failure = failure
        self.ended_by_exception = ended_by_exception


def deduplicate(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings of several recordings of one process, once for each location."""
    found: dict[_Key, Finding] = {}
    for finding in findings:
        found.setdefault(_finding_key(finding), finding)
    return sorted(found.values(), key=Finding.order)


def _finding_key(finding: Finding) -> _Key:
    site = finding.site
    return (finding.code, finding.label, site.path, site.cell, site.line, site.column)


def merge_ranks(reports: Sequence[RankReport], size: int) -> list[Finding]:
    """Return the findings of all ranks, merged with the list of ranks, and the differences between ranks.

    ``size`` is the number of ranks, including ranks without report.
    """
    found: dict[_Key, list[tuple[int, Finding]]] = {}
    for each in reports:
        for finding in each.findings:
            found.setdefault(_finding_key(finding), []).append((each.rank, finding))
    merged = [_merge_same(same, size) for same in found.values()]
    rank_differences = (
        list(_find_uneven_backwards(reports, size))
        or list(_find_uneven_skips(reports))
        or list(_find_uneven_scales(reports))
    )
    # A scaler that checks only the local shard is already reported; the disagreement of ranks is the consequence.
    known = {(finding.code, finding.filename, finding.line) for finding in merged}
    merged += [finding for finding in rank_differences if (finding.code, finding.filename, finding.line) not in known]
    return sorted(merged, key=Finding.order)


def _merge_same(same: Sequence[tuple[int, Finding]], size: int) -> Finding:
    """Return one finding for equal findings of several ranks."""
    ranks = tuple(sorted({rank for rank, _ in same}))
    finding = min(same, key=lambda pair: (not pair[1].certain, pair[0]))[1]
    finding.ranks = ranks
    finding.message = f"{finding.message} ({describe_ranks(ranks, size)})"
    return finding


def describe_ranks(ranks: Sequence[int], size: int) -> str:
    """Return a description of ranks: "rank 1 of 2", "both ranks", "all 4 ranks"."""
    if len(ranks) == size > 1:
        return "both ranks" if size == 2 else f"all {size} ranks"
    return f"{_list_ranks(ranks)} of {size}"


def _list_ranks(ranks: Sequence[int]) -> str:
    words = [str(rank) for rank in ranks]
    if len(words) == 1:
        return f"rank {words[0]}"
    return f"ranks {', '.join(words[:-1])} and {words[-1]}"


def _find_uneven_backwards(reports: Sequence[RankReport], size: int) -> Iterator[Finding]:
    """Yield findings of gradient-averaging backward passes that some ranks ran more often than other ranks."""
    sharing = [each for each in reports if each.averages_grads]
    places = {place: (site, call) for each in sharing for place, (site, call, _) in each.backward_counts.items()}
    for place, (site, call) in places.items():
        counts: dict[int, list[int]] = {}
        for each in sharing:
            count = each.backward_counts[place][2] if place in each.backward_counts else 0
            counts.setdefault(count, []).append(each.rank)
        # A rank without report may have run any number of passes, so only reporting ranks count. A rank ended by an
        # exception runs fewer passes than the ranks that wait for this rank.
        fewest = counts[min(counts)]
        if len(counts) > 1 and not any(each.ended_by_exception for each in sharing if each.rank in fewest):
            words = [
                f"{_describe_count(count)} on {_list_ranks(counts[count])}" for count in sorted(counts, reverse=True)
            ]
            ranks = tuple(sorted(counts[min(counts)]))
            yield _make_rank_finding("backward@ranks", site, {"call": call, "counts": " and ".join(words)}, ranks)


def _describe_count(count: int) -> str:
    return "once" if count == 1 else f"{count} times" if count else "never"


def _find_uneven_skips(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Yield findings of steps that some ranks skipped and other ranks applied."""
    sharing = [each for each in reports if each.in_process_group and each.step_site is not None]
    if len(sharing) < 2 or len({(each.step_site.path, each.step_site.line) for each in sharing if each.step_site}) > 1:
        # The ranks run different steps.
        return
    common = min(each.step_count for each in sharing)
    skipped: dict[int, set[int]] = {}
    for each in sharing:
        for number in each.skipped_steps:
            if number < common:
                skipped.setdefault(number, set()).add(each.rank)
    uneven_skips = {number: ranks for number, ranks in sorted(skipped.items()) if len(ranks) < len(sharing)}
    if not uneven_skips:
        return
    first = next(iter(uneven_skips.values()))
    numbers = [number for number, ranks in uneven_skips.items() if ranks == first]
    more = len(numbers) - _NAMED
    listed = ", ".join(str(number) for number in numbers[:_NAMED]) + (f" and {more} more" if more > 0 else "")
    values = {
        "scaler": sharing[0].scaler_name,
        "skipped": f"step{'s' if len(numbers) > 1 else ''} {listed}",
        "ranks": _list_ranks(sorted(first)),
        "others": _list_ranks(sorted({each.rank for each in sharing} - first)),
    }
    site = sharing[0].step_site
    assert site is not None
    yield _make_rank_finding("step@ranks", site, values, tuple(sorted(first)))


def _find_uneven_scales(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Yield a finding if scalers of ranks that average gradients have different scales, or change them apart."""
    sharing = [each for each in reports if each.has_replicas and each.step_site is not None and each.scaler_state]
    sites = [each.step_site for each in sharing if each.step_site is not None]
    # A rank that an exception ended has made fewer steps.
    if len({(site.path, site.line) for site in sites}) != 1 or any(each.ended_by_exception for each in sharing):
        return
    counts: dict[str, list[int]] = {}
    scales: dict[str, list[int]] = {}
    for each in sharing:
        assert each.scaler_state is not None
        scale, tracker, steps = each.scaler_state
        scales.setdefault(f"{scale:g}", []).append(each.rank)
        counts.setdefault(f"{steps} steps, the last {tracker} at one scale,", []).append(each.rank)
    states = counts if len(scales) == 1 else scales
    if len(states) > 1:
        words = [f"{state} on {_list_ranks(sorted(ranks))}" for state, ranks in states.items()]
        found = "the scales " if states is scales else ""
        values = {"scaler": sharing[0].scaler_name, "states": f"{found}{' and '.join(words)}"}
        ranks = tuple(sorted(each.rank for each in sharing))
        yield _make_rank_finding("update@ranks", sites[0], values, ranks)


def _make_rank_finding(label: str, site: Site, values: Mapping[str, str], ranks: tuple[int, ...]) -> Finding:
    events: list[Event] = []
    finding = make_finding(label, site, events, {name: text for name, text in values.items() if text}, ())
    finding.ranks = ranks
    return finding
