"""Findings of a run about running sums in low precision."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._pytree import tree_map  # noqa: E402

from pytest_amp_check import record  # noqa: E402

pytestmark = pytest.mark.usefixtures("patched_once")

BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16


def added(total: Any, terms: list[Any], how: str = "+=") -> list[str]:
    """Return the findings of a run that adds terms to a sum."""
    with record() as run:
        for term in terms:
            if how == "+=":
                total += term
            elif how == "sub_":
                total.sub_(-term)
            elif how == "alpha":
                total.add_(term / 2, alpha=2)
            elif how == "epochs":
                total += term
                if total > 50:
                    total.zero_()
    assert run.failure is None
    return [finding.code for finding in run.findings]


def ones(count: int, dtype: Any = BFLOAT16) -> list[Any]:
    return [torch.ones((), dtype=dtype)] * count


@pytest.mark.parametrize("how", ["+=", "sub_", "alpha"])
def test_a_sum_that_has_stopped_growing_is_found_once(how: str) -> None:
    assert added(torch.zeros((), dtype=BFLOAT16), ones(1000), how) == ["AMP508"]


def test_the_sum_is_named_where_the_term_is_added() -> None:
    total = torch.zeros(1, dtype=FLOAT16)
    with record() as run:
        for _ in range(5000):
            total += 1.0
    (finding,) = run.findings
    assert finding.code == "AMP508"
    assert "`total` sums over the iterations in float16" in finding.message
    assert total.item() == 2048.0


@pytest.mark.parametrize(
    ("total", "terms", "how"),
    [
        pytest.param(torch.zeros(()), ones(1000), "+=", id="a float32 buffer promotes"),
        pytest.param(torch.zeros((), dtype=BFLOAT16), ones(200), "+=", id="nothing is lost yet"),
        pytest.param(torch.zeros((), dtype=FLOAT16), ones(1000, FLOAT16), "+=", id="float16 holds such a sum"),
        pytest.param(torch.zeros((), dtype=BFLOAT16), ones(1000), "epochs", id="it starts anew from zero"),
        pytest.param(torch.zeros(4, dtype=BFLOAT16), ones(1000), "+=", id="a stream, which layers add to"),
        pytest.param(
            torch.zeros((), dtype=BFLOAT16), [x for one in ones(500) for x in (one, -one)], "+=", id="terms that cancel"
        ),
        pytest.param(torch.ones((), dtype=BFLOAT16), [256.0, -256.0] * 20, "+=", id="large terms that cancel"),
        pytest.param(torch.zeros((), dtype=BFLOAT16), [0.0] * 40, "+=", id="zeros"),
        pytest.param(torch.zeros((), dtype=BFLOAT16), [1.001] * 20, "+=", id="a rounding of each term"),
        pytest.param(torch.zeros((), dtype=BFLOAT16), [0.5] * 40, "sub_", id="halves"),
        pytest.param(torch.zeros((), dtype=BFLOAT16), [one / 2 for one in ones(40)], "sub_", id="tensors of halves"),
    ],
)
def test_sums_that_are_right(total: Any, terms: list[Any], how: str) -> None:
    assert added(copy.deepcopy(total), terms, how) == []


def test_what_cannot_be_followed_is_left_alone() -> None:
    with torch.inference_mode():
        assert added(torch.zeros((), dtype=BFLOAT16), ones(1000)) == []
    assert added(torch.zeros((), dtype=BFLOAT16, device="meta"), ones(1000)) == []

    def total(x: Any) -> Any:
        kept = x.clone()
        for _ in range(1000):
            kept += 1
        return kept

    with record() as run:
        assert torch.vmap(total)(torch.zeros(2, dtype=BFLOAT16)).tolist() == [256.0, 256.0]
    assert run.failure is None
    assert run.findings == []


def test_a_sum_is_checked_again_when_its_terms_have_doubled() -> None:
    # After 16 terms the sum is right, after 32 terms it is not.
    assert added(torch.tensor(236.0, dtype=BFLOAT16), ones(33)) == ["AMP508"]
    assert added(torch.tensor(236.0, dtype=BFLOAT16), ones(32)) == []


def test_a_sum_that_starts_anew_from_a_large_value_is_followed_again() -> None:
    total = torch.zeros((), dtype=BFLOAT16)

    def add(count: int) -> None:
        nonlocal total
        for _ in range(count):
            total += 1.0

    with record() as run:
        add(20)
        total.fill_(256.0)
        add(17)
    assert run.failure is None
    assert [finding.code for finding in run.findings] == ["AMP508"]


def counted(dtype: Any, each: int, how: str = "index_add_", value: float = 1.0) -> list[str]:
    """Return the messages of a run that adds a value to two bins, ``each`` times to each bin."""
    where = torch.arange(2).repeat(each)
    source = torch.full((2 * each,), value, dtype=dtype)
    with record() as run:
        for _ in range(3):
            counts = torch.zeros(2, dtype=dtype)
            if how == "index_add_":
                counts.index_add_(0, where, source)
            elif how == "named":
                counts.index_add_(dim=0, index=where, source=source)
            else:
                counts.scatter_add_(0, where, source)
    assert run.failure is None
    return [finding.message for finding in run.findings]


@pytest.mark.parametrize("how", ["index_add_", "scatter_add_", "named"])
def test_counts_that_low_precision_does_not_hold_are_found_once(how: str) -> None:
    (message,) = counted(BFLOAT16, 300, how)
    assert message.startswith("`counts` counts in bfloat16, where 1 added to 256 changes nothing: ")
    (message,) = counted(FLOAT16, 2100, how)
    assert message.startswith("`counts` counts in float16, where 1 added to 2048 changes nothing: ")


def test_counts_that_are_right() -> None:
    assert counted(BFLOAT16, 250) == []
    assert counted(FLOAT16, 2000, "scatter_add_") == []
    assert counted(torch.float32, 2100) == []
    assert counted(BFLOAT16, 300, value=2.0) == []  # a sum of features, which the next layer normalizes


def tokens(dtype: Any, each: int, additions: int, *, is_new: bool = False) -> list[str]:
    """Return the messages of a run that counts the tokens of four experts in place."""
    load = torch.zeros(4, dtype=dtype)
    with record() as run:
        for _ in range(additions):
            load = torch.zeros(4, dtype=dtype) if is_new else load
            load += torch.bincount(torch.arange(4).repeat(each), minlength=4)
    assert run.failure is None
    return [finding.message for finding in run.findings]


def test_counts_of_integers_that_low_precision_does_not_hold_are_found_once() -> None:
    (message,) = tokens(FLOAT16, 150, 20)
    assert message.startswith("`load` counts in float16, where 1 added to 2048 changes nothing: ")
    (message,) = tokens(BFLOAT16, 20, 20)
    assert message.startswith("`load` counts in bfloat16, where 1 added to 256 changes nothing: ")


def test_counts_of_integers_that_are_right() -> None:
    assert tokens(FLOAT16, 100, 20) == []
    assert tokens(torch.float32, 150, 20) == []
    assert tokens(FLOAT16, 1500, 20, is_new=True) == []  # each batch counts anew
    assert tokens(FLOAT16, 2500, 20, is_new=True) == []
    assert tokens(FLOAT16, 0, 20) == []


@pytest.mark.parametrize(
    ("each", "additions", "is_found"),
    # After 2, 4 and 8 additions, the largest integer up to which float16 holds all is 2048.
    [(1024, 1, False), (1024, 2, True), (1023, 2, False), (700, 3, False), (700, 4, True), (400, 7, False)],
)
def test_counts_of_integers_are_checked_when_the_additions_have_doubled(
    each: int, additions: int, is_found: bool
) -> None:
    assert len(tokens(FLOAT16, each, additions)) == is_found


def test_counts_without_an_element_are_right() -> None:
    load = torch.zeros(0, dtype=FLOAT16)
    with record() as run:
        for _ in range(4):
            load += torch.zeros(0, dtype=torch.int64)
    assert (run.failure, run.findings) == (None, [])


@pytest.mark.parametrize(("others", "is_kept", "is_found"), [(255, True, True), (256, True, False), (256, False, True)])
def test_counts_are_followed_up_to_a_number_while_they_live(others: int, is_kept: bool, is_found: bool) -> None:
    kept = [torch.zeros(2, dtype=FLOAT16) for _ in range(others)]
    with record() as run:
        for i in range(others):
            kept[i] += torch.ones(2, dtype=torch.int64)
        if not is_kept:
            kept.clear()
        load = torch.zeros(2, dtype=FLOAT16)
        for _ in range(2):
            load += torch.full((2,), 1024)
    assert run.failure is None
    assert [finding.label for finding in run.findings] == ["sum:count"] * is_found


def test_the_sum_and_its_gradient_are_what_they_are_without_a_recording() -> None:
    def run() -> tuple[Any, Any]:
        x = torch.full((), 0.37, dtype=BFLOAT16, requires_grad=True)
        total = torch.zeros((), dtype=BFLOAT16)
        for _ in range(64):
            total += x * x
        total.backward()
        return total.detach(), x.grad

    expected = run()
    with record():
        assert run() == expected


def test_a_sum_and_counts_in_functions_that_torch_calls() -> None:
    total, counts = torch.zeros((), dtype=BFLOAT16), torch.zeros(2, dtype=BFLOAT16)
    load = torch.zeros(2, dtype=BFLOAT16)

    def add(term: Any) -> None:
        total.add_(term)

    def count(term: Any) -> None:
        counts.index_add_(0, torch.zeros(300, dtype=torch.int64), term.expand(300))

    def count_tokens(term: Any) -> None:
        load.add_(torch.full((2,), 200))

    for function, terms, label in ((add, 1000, "sum:low"), (count, 1, "sum:count"), (count_tokens, 2, "sum:count")):
        with record() as run:
            tree_map(function, ones(terms))
        assert run.failure is None
        assert [finding.label for finding in run.findings] == [label]
