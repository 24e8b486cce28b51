"""Groups of cases in workers of xdist: each case runs as it does alone, and each that fails is reported by its name."""

from __future__ import annotations

import item_groups
import pytest

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.fixture(scope="module")
def shared():
    return []

@pytest.fixture
def closed(request):
    yield
    assert "closed" not in request.node.name

@pytest.mark.parametrize("number", range(45))
def test_numbers(number, tmp_path, shared, monkeypatch):
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    monkeypatch.setattr(pytest, "of_one_case", number, raising=False)
    shared.append(number)
    assert shared == list(range(number + 1))
    assert number not in (3, 41), f"{number} is wrong"

@pytest.mark.parametrize("letter", "abcd")
class TestLetters:
    def test_letter(self, letter):
        assert not hasattr(self, "letter")
        self.letter = letter
        if letter == "b":
            pytest.skip("no b")
        if letter == "c":
            pytest.xfail("no c")

    def test_other(self, letter):
        assert not hasattr(pytest, "of_one_case")

@pytest.mark.parametrize("what", ["open", "closed"])
def test_teardown(what, closed):
    pass

@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.xfail(strict=True)), 3])
def test_marks(number):
    assert number != 2

@pytest.mark.long
@pytest.mark.parametrize("number", range(3))
def test_long(number):
    pass
"""


@pytest.mark.usefixtures("this_plugin_alone")
def test_cases_run_as_they_do_alone(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = long: takes seconds")
    pytester.makepyfile(TESTS)
    plugins = [item_groups.GroupRunner(), item_groups.CaseNames()]
    result = pytester.runpytest_inprocess("-v", "-ra", "-p", "no:cacheprovider", plugins=plugins)
    named = [
        line.partition(" - ")[0].split("::", 1)[1] for line in result.outlines if line.startswith(("FAILED", "ERROR"))
    ]
    assert named == ["test_teardown[closed]", "test_numbers[3]", "test_numbers[41]"]
    result.stdout.fnmatch_lines(["*_ test_numbers[[]41[]] _*", "E * AssertionError: 41 is wrong"])
    result.stdout.fnmatch_lines(["XFAIL *::test_letter[[]c[]] - no c", "XFAIL *::test_marks[[]2[]]*"])
    # The cases of each group that pass are one report: three groups of numbers, one of each of the others.
    passed = [line.partition("::")[2].partition(" PASSED")[0] for line in result.outlines if " PASSED" in line]
    assert passed == [
        *("test_numbers[0 ... 19]", "test_numbers[20 ... 39]", "test_numbers[40 ... 44]"),
        *("TestLetters::test_letter[a ... d]", "TestLetters::test_other[a ... d]", "test_teardown[open ... closed]"),
        # Marked cases and long tests are items of their own.
        *("test_marks[1]", "test_marks[3]", "test_long[0]", "test_long[1]", "test_long[2]"),
    ]
    result.assert_outcomes(passed=11, failed=2, errors=1, skipped=1, xfailed=2)


@pytest.mark.usefixtures("this_plugin_alone")
def test_without_workers_each_case_is_an_item(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = long: takes seconds")
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", plugins=[item_groups.CaseNames()])
    result.assert_outcomes(passed=56, failed=2, errors=1, skipped=1, xfailed=2)
