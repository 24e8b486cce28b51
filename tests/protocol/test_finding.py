"""A finding as data: its order among others, its form for other programs, and duplicates."""

from __future__ import annotations

from pytest_amp_check.protocol.finding import Finding, TraceStep, merge_finding
from pytest_amp_check.protocol.fix import SAFE, Edit, Fix
from pytest_amp_check.protocol.sites import Site

SITE = Site("train.py", 3, 4, 3, 21)


def found(code: str = "AMP201", site: Site = SITE, *, certain: bool = True) -> Finding:
    trace = (TraceStep(Site("train.py", 2, 8), "backward"), TraceStep(SITE, "the clip"))
    return Finding(code, "clip-before-unscale", "error", "Clipped.", site, certain=certain, trace=trace)


def test_rows_and_columns_are_counted_from_one() -> None:
    finding = found()
    finding.fix = Fix(SAFE, "Unscale first.", lambda: [Edit(3, 0, 4, 2, "b"), Edit(1, 5, 1, 6, "a", cell=2)])
    assert finding.as_dict() == {
        "code": "AMP201",
        "name": "clip-before-unscale",
        "severity": "error",
        "message": "Clipped.",
        "effect": None,
        "remedy": None,
        "filename": "train.py",
        "cell": None,
        "location": {"row": 3, "column": 5},
        "end_location": {"row": 3, "column": 22},
        "certain": True,
        "condition": None,
        "uncertainty": None,
        "witness": [
            {"filename": "train.py", "cell": None, "location": {"row": 2, "column": 9}, "text": "backward"},
            {"filename": "train.py", "cell": None, "location": {"row": 3, "column": 5}, "text": "the clip"},
        ],
        "edit_places": [],
        "fix": {
            "applicability": "safe",
            "message": "Unscale first.",
            "edits": [
                {"content": "b", "location": {"row": 3, "column": 1}, "end_location": {"row": 4, "column": 3}},
                {
                    "cell": 2,
                    "content": "a",
                    "location": {"row": 1, "column": 6},
                    "end_location": {"row": 1, "column": 7},
                },
            ],
        },
        "url": None,
    }


def test_the_ranks_of_a_finding_are_listed_where_there_are_several() -> None:
    finding = found()
    finding.ranks = (0, 2)
    assert finding.as_dict()["ranks"] == [0, 2]


def test_findings_are_in_the_order_of_their_places() -> None:
    one, two = found(site=Site("a.py", 9)), found(site=Site("b.py", 1, 7))
    three, four = found("AMP207", Site("b.py", 1, 7)), found(site=Site("b.py", 1, 8))
    five, six = found(site=Site("b.py", 2)), found(site=Site("b.py", 1, cell=1))
    assert sorted([six, five, four, three, two, one], key=Finding.order) == [one, two, three, four, five, six]


def test_of_the_same_finding_the_certain_one_is_kept_with_who_has_come_upon_it() -> None:
    kept: dict[tuple[str, str, int, int], Finding] = {}
    possible, certain, again = found(certain=False), found(), found()
    for number, finding in enumerate((possible, certain, again)):
        finding.discovery.entries = {("train.py", number): frozenset()}
        merge_finding(kept, finding)
    merge_finding(kept, found("AMP207"))
    assert [finding.code for finding in kept.values()] == ["AMP201", "AMP207"]
    assert kept["AMP201", "train.py", 3, 4] is certain
    assert certain.discovery.entries.keys() == {("train.py", 0), ("train.py", 1), ("train.py", 2)}


def test_what_is_known_of_a_finding_and_what_is_not() -> None:
    plain = found()
    assert (plain.filename, plain.line, plain.cell, plain.names, plain.is_proven) == ("train.py", 3, None, {}, False)
    assert repr(plain) == "<AMP201 train.py:3 Clipped.>"
    known = Finding("AMP201", "n", "error", "m", Site("a.ipynb", 1, cell=2), condition="when", names={"params": "p"})
    assert (known.cell, known.names) == (2, {"params": "p"})
    assert known.as_dict()["cell"] == 2
    assert known.as_dict()["condition"] == "when"


def test_edits_and_fixes_are_shown_as_they_are() -> None:
    edit = Edit(1, 0, 2, 3, "x")
    fix = Fix(SAFE, "Move it.", lambda: [edit, Edit(1, 0, 1, 0, "y", cell=1)])
    assert repr(edit) == "<edit 1:0-2:3 'x'>"
    assert repr(fix) == "<safe fix: Move it.>"
    assert fix.identity_key() == ((0, 1, 0, 2, 3, "x"), (1, 1, 0, 1, 0, "y"))
