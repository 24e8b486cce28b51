"""Manual checks in a statement of a program, as far as the source text shows them."""

from __future__ import annotations

import ast

import pytest

from pytest_amp_check.protocol.checks import find_finite_call, raises_on_nonfinite

REFUSES = {
    "assert torch.isfinite(grad_norm)": "torch.isfinite",
    "assert math.isfinite(norm), norm": "math.isfinite",
    "assert not isnan(total_norm)": "isnan",
    "assert all(p.grad.isfinite().all() for p in model.parameters())": "p.grad.isfinite",
    "if torch.isnan(norm): raise ValueError": "torch.isnan",
    "if norm > 10 or norm.isinf():\n    print(norm)\n    raise ValueError": "norm.isinf",
    "if isfinite(norm) == ok: raise ValueError": "isfinite",
    "if torch.isnan(norm): sys.exit(1)": "torch.isnan",
    "if torch.isnan(norm):\n    print(norm)\n    exit()": "torch.isnan",
    "if norm.isfinite():\n    print(norm)\nelse:\n    os._exit(3)": "norm.isfinite",
}
ALLOWS = [
    "assert torch.isfinite(loss)",
    "assert torch.isfinite(loss_norm + norm) and loss",
    "assert torch.isfinite(x)",
    "assert norm > 0",
    "if torch.isnan(norm): print(norm)",
    "if torch.isnan(norm): trainer.exit(1)",
    "if torch.isnan(norm):\n    sys.exit(1)\n    print(norm)",
    "if norm.isfinite():\n    print(norm)\nelse:\n    skipped += 1",
    "if torch.isnan(norm):\n    raise_later = 1",
    "if norm.isfinite():\n    print(norm)\nelse:\n    raise ValueError\n    print(norm)",
    "if torch.isnan(norm):\n    raise ValueError\n    print(norm)",
    "while torch.isnan(norm): raise ValueError",
    "torch.isnan(norm)",
]


@pytest.mark.parametrize("source", REFUSES)
def test_a_statement_refuses_gradients_that_are_not_finite(source: str) -> None:
    (statement,) = ast.parse(source).body
    assert isinstance(statement, (ast.If, ast.Assert))
    assert raises_on_nonfinite(statement)
    assert ast.unparse(find_finite_call(statement)) == REFUSES[source]


@pytest.mark.parametrize("source", ALLOWS)
def test_others_do_not(source: str) -> None:
    (statement,) = ast.parse(source).body
    assert not raises_on_nonfinite(statement)


def test_what_asks_for_nothing_is_the_test_as_a_whole() -> None:
    (statement,) = ast.parse("assert norm == norm.isfinite").body
    assert isinstance(statement, ast.Assert)
    assert find_finite_call(statement) is statement.test
