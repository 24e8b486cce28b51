"""The marker ``exhaustive``: marked tests are deselected, unless EXHAUSTIVE_TESTS=1 asks for every case."""

from __future__ import annotations

import pytest
import samples

pytest_plugins = ["pytester"]

TESTS = """
import pytest

def test_quick():
    pass

@pytest.mark.exhaustive
def test_costly():
    pass

@pytest.mark.exhaustive(every=3)
@pytest.mark.parametrize("letter", "abcdefg")
def test_letters(letter):
    pass

@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.exhaustive), 3])
def test_numbers(number):
    pass
"""
CONFTEST = """
import samples

def pytest_configure(config):
    config.addinivalue_line("markers", "exhaustive: as in the suite")

pytest_collection_modifyitems = samples.deselect_exhaustive
"""


@pytest.mark.usefixtures("this_plugin_alone")
@pytest.mark.parametrize("exhaustive", [False, True])
def test_marked_tests_run_where_every_case_is_asked_for(
    exhaustive: bool, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "EXHAUSTIVE", exhaustive)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_inprocess("-v", "-p", "no:cacheprovider")
    passed = [line.partition("::")[2].split()[0] for line in result.outlines if " PASSED" in line]
    left_out = ["test_costly", *(f"test_letters[{each}]" for each in "bcef"), "test_numbers[2]"]
    assert ("test_letters[d]" in passed) and ("test_numbers[3]" in passed)
    assert sorted({*left_out} & {*passed}) == (sorted(left_out) if exhaustive else [])
    result.assert_outcomes(passed=12 if exhaustive else 6, deselected=0 if exhaustive else 6)
