"""The user's own words for an expression: the beginning of long ones, without writing all of them."""

from __future__ import annotations

import ast

import pytest

from pytest_amp_check.protocol.words import Words


@pytest.mark.parametrize("calls", [1, 18, 19, 20, 60, 61, 400])
def test_of_many_calls_in_a_row_the_first_are_said(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    unparse = ast.unparse

    def noted(node: ast.AST) -> str:
        written.append(unparse(node))
        return written[-1]

    monkeypatch.setattr(ast, "unparse", noted)
    text = "f" + "(x)" * calls
    assert str(Words(ast.parse(text, mode="eval").body)) == (text if len(text) <= 60 else f"{text[:57]}...")
    assert all(len(each) <= 200 for each in written)
