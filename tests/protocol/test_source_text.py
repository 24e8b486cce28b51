"""The source text of an expression, shortened efficiently for long expressions."""

from __future__ import annotations

import ast

import pytest

from pytest_amp_check.protocol.source_text import SourceText, find_access_path


@pytest.mark.parametrize("link", ["(x)", ".y()", ".y[0]", "(x).y"])
@pytest.mark.parametrize("links", [1, 9, 12, 18, 19, 20, 60, 61, 400])
def test_of_many_calls_in_a_row_the_first_are_said(links: int, link: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    unparse = ast.unparse

    def noted(node: ast.AST) -> str:
        written.append(unparse(node))
        return written[-1]

    monkeypatch.setattr(ast, "unparse", noted)
    text = "f" + link * links
    assert str(SourceText(ast.parse(text, mode="eval").body)) == (text if len(text) <= 60 else f"{text[:57]}...")
    assert all(len(each) <= 200 for each in written)


@pytest.mark.parametrize(("length", "said"), [(60, "x" * 60), (61, "x" * 57 + "...")])
def test_words_of_sixty_characters_are_said_as_they_are(length: int, said: str) -> None:
    assert str(SourceText(ast.parse("x" * length, mode="eval").body)) == said


@pytest.mark.parametrize(
    ("text", "words"),
    [("a+b", "a + b"), ("f(\n    a,\n    b\n)", "f(a, b)"), ("lambda  x: x", "lambda x: x"), ("a . b", "a.b")],
)
def test_words_stand_on_one_line(text: str, words: str) -> None:
    assert str(SourceText(ast.parse(text, mode="eval").body)) == words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", "a"),
        ("self.a.b", "self.a.b"),
        ("a[0].b", "a[0].b"),
        ("a['key']", "a['key']"),
        ("a[i]", "a[i]"),
        ("a[self.i][j]", "a[self.i][j]"),
        # An unknown item cannot be distinguished from others, and neither can the result of a call.
        ("a[i + 1]", None),
        ("a[f(i)].b", None),
        ("f()", None),
        ("f().a", None),
        ("f()[0]", None),
        ("1", None),
    ],
)
def test_what_a_value_can_be_recognised_by(text: str, expected: str | None) -> None:
    assert find_access_path(ast.parse(text, mode="eval").body) == expected
