"""Groups of cases of a parametrized test, each an item of a worker of xdist: the reports of a case take 2 ms.

Each case runs as it does alone. A case that does not pass is reported by its own name, and all cases of a group that
pass by one report. Without workers, each case is an item, so a name on the command line selects it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator

import pytest
from _pytest.runner import runtestprotocol

#: Cases in an item: few enough for workers to share the cases of a test.
SIZE = 20
#: Attribute of a report with the node id of its case: a worker only sends reports of the item that it runs.
CASE = "case_nodeid"


class CaseGroup(pytest.Item):
    """Item that runs cases of a parametrized test, each with its own setup, call and teardown."""

    cases: list[pytest.Function]

    @classmethod
    def from_cases(cls, cases: list[pytest.Function]) -> CaseGroup:
        """Create a group with the marks and the parent of its cases, named after the first and the last case."""
        first = cases[0]
        assert first.parent is not None
        name = f"{first.originalname}[{first.callspec.id} ... {cases[-1].callspec.id}]"
        group: CaseGroup = cls.from_parent(first.parent, name=name)
        group.cases = cases
        group.own_markers = first.own_markers
        return group

    def runtest(self) -> None:
        raise AssertionError("GroupRunner runs the cases")

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        path, line, _ = self.cases[0].reportinfo()
        return path, line, self.name

    def run_cases(self, nextitem: pytest.Item | None) -> None:
        """Run all cases. Log each report of a case that does not pass, and one report for all that pass."""
        passed: list[pytest.TestReport] = []
        self.ihook.pytest_runtest_logstart(nodeid=self.nodeid, location=self.location)
        for case, following in itertools.zip_longest(self.cases, self.cases[1:], fillvalue=nextitem):
            assert case is not None
            for report in runtestprotocol(case, log=False, nextitem=following):
                if not report.passed or hasattr(report, "wasxfail"):
                    vars(report)[CASE], report.nodeid = report.nodeid, self.nodeid
                    self.ihook.pytest_runtest_logreport(report=report)
                elif report.when == "call":
                    passed.append(report)
        if passed:
            whole = passed[-1]
            whole.nodeid, whole.location = self.nodeid, self.location
            whole.duration = sum(report.duration for report in passed)
            self.ihook.pytest_runtest_logreport(report=whole)
        self.ihook.pytest_runtest_logfinish(nodeid=self.nodeid, location=self.location)


class GroupRunner:
    """Plugin of a worker that makes groups of cases, and runs them."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = group_cases(items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if not isinstance(item, CaseGroup):
            return None
        item.run_cases(nextitem)
        return True


class CaseNames:
    """Plugin of the process that gets the reports of workers: reports of cases get their own names again."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        report.nodeid = vars(report).get(CASE, report.nodeid)


def group_cases(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield groups of the cases of each test, and other items as they are."""
    for test, members in itertools.groupby(items, _test_of):
        if test is None:
            yield from members
            continue
        cases = [each for each in members if isinstance(each, pytest.Function)]
        for start in range(0, len(cases), SIZE):
            group = cases[start : start + SIZE]
            yield group[0] if len(group) == 1 else CaseGroup.from_cases(group)


def _test_of(item: pytest.Item) -> tuple[object, str] | None:
    """Return the parent and the name that the cases of a test share, or None for an item without a group."""
    if not isinstance(item, pytest.Function) or item.get_closest_marker("long"):
        return None
    case = getattr(item, "callspec", None)
    # The marks of a group are those of its test: a case with other marks has no group.
    return None if case is None or case.marks else (item.parent, item.originalname)
