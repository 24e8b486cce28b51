"""Reports of several ranks, merged without a process for each rank."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.protocol.ranks import RankReport, deduplicate, describe_ranks, merge_ranks
from pytest_amp_check.protocol.sites import Site

STEP, BACKWARD = Site("train.py", 9, 4), Site("train.py", 7, 4)


def finding(line: int = 3, code: str = "AMP201", *, certain: bool = True, message: str = "Clipped.") -> Finding:
    return Finding(code, "a-rule", "error", message, Site("train.py", line, 4), certain=certain, label="label")


def reported(findings: list[Finding]) -> list[tuple[str, int, str, tuple[int, ...]]]:
    return [(each.code, each.line, each.message, each.ranks) for each in findings]


def steps(rank: int, skips: set[int], *, steps: int = 8, site: Site | None = STEP, **more: Any) -> RankReport:
    more = {"in_process_group": True, "scaler_name": "scaler", **more}
    return RankReport(rank, step_count=steps, skipped_steps=frozenset(skips), step_site=site, **more)


def backwards(rank: int, count: int, *, averages: bool = True, stopped: bool = False) -> RankReport:
    passes = {("train.py", 7): (BACKWARD, "loss.backward", count)} if count >= 0 else {}
    return RankReport(rank, backward_counts=passes, averages_grads=averages, ended_by_exception=stopped)


@pytest.mark.parametrize(
    ("ranks", "size", "words"),
    [
        ([0], 1, "rank 0 of 1"),
        ([1], 2, "rank 1 of 2"),
        ([0, 1], 2, "both ranks"),
        ([0, 1], 3, "ranks 0 and 1 of 3"),
        ([0, 1, 2], 3, "all 3 ranks"),
        ([0, 2, 3], 8, "ranks 0, 2 and 3 of 8"),
    ],
)
def test_ranks_in_words(ranks: list[int], size: int, words: str) -> None:
    assert describe_ranks(ranks, size) == words


def test_a_finding_of_several_ranks_is_reported_once_with_its_ranks() -> None:
    first, second = RankReport(0, [finding(5), finding(3)]), RankReport(1, [finding(3), finding(4, "AMP202")])
    assert reported(merge_ranks([first, second], 2)) == [
        ("AMP201", 3, "Clipped. (both ranks)", (0, 1)),
        ("AMP202", 4, "Clipped. (rank 1 of 2)", (1,)),
        ("AMP201", 5, "Clipped. (rank 0 of 2)", (0,)),
    ]


def test_the_words_are_those_of_the_first_rank_that_is_certain() -> None:
    each = [RankReport(rank, [finding(certain=rank > 0, message=f"By {rank}.")]) for rank in (2, 1, 0)]
    assert reported(merge_ranks(each, 4)) == [("AMP201", 3, "By 1. (ranks 0, 1 and 2 of 4)", (0, 1, 2))]


def test_recordings_of_one_process_tell_each_place_once() -> None:
    assert reported(deduplicate([finding(5), finding(3), finding(5, message="Again."), finding(5, "AMP202")])) == [
        ("AMP201", 3, "Clipped.", ()),
        ("AMP201", 5, "Clipped.", ()),
        ("AMP202", 5, "Clipped.", ()),
    ]


@pytest.mark.parametrize(
    ("runs", "said", "ranks"),
    [
        ([{2}, set()], "skipped step 2 on rank 0 and took it on rank 1, so", (0,)),
        ([set(), {0}, {0}], "skipped step 0 on ranks 1 and 2 and took it on rank 0, so", (1, 2)),
        ([set(), {5, 1}], "skipped steps 1, 5 on rank 1 and", (1,)),
        ([{1, 2, 3}, set()], "skipped steps 1, 2, 3 on rank 0 and", (0,)),
        ([{1, 2, 3, 4}, set()], "skipped steps 1, 2, 3 and 1 more on rank 0 and", (0,)),
        # A step that all ranks skip is an overflow that all ranks have detected.
        ([{1, 4}, {1}], "skipped step 4 on rank 0 and", (0,)),
        # The first of the steps decides the ranks.
        ([{4}, {1}, {6}], "skipped step 1 on rank 1 and took it on ranks 0 and 2, so", (1,)),
    ],
)
def test_steps_that_some_ranks_skip_and_others_take(runs: list[set[int]], said: str, ranks: tuple[int, ...]) -> None:
    (mismatch,) = merge_ranks([steps(rank, skips) for rank, skips in enumerate(runs)], len(runs))
    assert (mismatch.code, mismatch.label, mismatch.site, mismatch.ranks) == ("AMP602", "step@ranks", STEP, ranks)
    assert mismatch.message.startswith(f"`scaler` {said}")


def test_a_scaler_without_a_name_is_called_what_it_is() -> None:
    (mismatch,) = merge_ranks([steps(rank, {rank}, scaler_name="") for rank in range(2)], 2)
    assert mismatch.message.startswith("the scaler skipped step 0 on rank 0")


@pytest.mark.parametrize(
    "ranks",
    [
        [],
        [steps(0, {1})],
        [steps(0, {1}), steps(1, {1})],
        # One of the ranks has made fewer steps.
        [steps(0, {4}), steps(1, set(), steps=4)],
        # The ranks do not train together, do not step, or step at other locations.
        [steps(0, {1}), steps(1, set(), in_process_group=False)],
        [steps(0, {1}), steps(1, set(), site=None)],
        [steps(0, {1}), steps(1, set(), site=Site("train.py", 10))],
        [steps(0, {1}), steps(1, set(), site=Site("other.py", 9))],
        [backwards(0, 3), backwards(1, 3)],
        [backwards(0, 3), backwards(1, 2, averages=False)],
        # A rank that an exception has ended has fewer backwards than the waiting ranks.
        [backwards(0, 3), backwards(1, 2, stopped=True)],
    ],
)
def test_ranks_that_agree_or_have_nothing_to_agree_on(ranks: list[RankReport]) -> None:
    assert merge_ranks(ranks, 2) == []


@pytest.mark.parametrize(
    ("counts", "said", "ranks"),
    [
        ([3, 2], "3 times on rank 0 and 2 times on rank 1", (1,)),
        ([1, 0, 1], "once on ranks 0 and 2 and never on rank 1", (1,)),
        ([1, 2], "2 times on rank 1 and once on rank 0", (0,)),
        # A location that a rank has never reached.
        ([2, -1], "2 times on rank 0 and never on rank 1", (1,)),
    ],
)
def test_backward_passes_that_some_ranks_leave_out(counts: list[int], said: str, ranks: tuple[int, ...]) -> None:
    (mismatch,) = merge_ranks([backwards(rank, count) for rank, count in enumerate(counts)], len(counts))
    assert (mismatch.code, mismatch.label, mismatch.site, mismatch.ranks) == (
        "AMP607",
        "backward@ranks",
        BACKWARD,
        ranks,
    )
    assert mismatch.message.startswith(f"`loss.backward` began {said}, but")


def test_that_the_rank_with_most_was_ended_does_not_explain_the_others() -> None:
    assert [each.ranks for each in merge_ranks([backwards(0, 3, stopped=True), backwards(1, 2)], 2)] == [(1,)]


def test_a_missing_backward_explains_why_ranks_skip_different_steps() -> None:
    both = [backwards(0, 3), backwards(1, 2)]
    for rank, each in enumerate(both):
        each.step_count, each.skipped_steps, each.step_site, each.in_process_group = 8, frozenset({rank}), STEP, True
    assert [each.code for each in merge_ranks(both, 2)] == ["AMP607"]


def test_a_finding_of_one_rank_about_its_scaler_is_not_repeated() -> None:
    own = finding(9, "AMP602")
    both = [steps(0, {1}, findings=[own]), steps(1, set())]
    assert reported(merge_ranks(both, 2)) == [("AMP602", 9, "Clipped. (rank 0 of 2)", (0,))]
    elsewhere = [steps(0, {1}, findings=[finding(8, "AMP602")]), steps(1, set())]
    assert [each.line for each in merge_ranks(elsewhere, 2)] == [8, 9]
    assert [each.line for each in merge_ranks([steps(0, {1}, findings=[finding(12)]), steps(1, set())], 2)] == [9, 12]


def test_a_rank_tells_nothing_where_nothing_is_known() -> None:
    silent = RankReport(3)
    assert (silent.rank, silent.findings, silent.backward_counts, silent.skipped_steps) == (3, (), {}, frozenset())
    assert (silent.step_count, silent.step_site, silent.scaler_name, silent.failure) == (0, None, "", "")
    assert not (silent.in_process_group or silent.averages_grads or silent.ended_by_exception)
    assert RankReport(1, failure="It was ended.").failure == "It was ended."
