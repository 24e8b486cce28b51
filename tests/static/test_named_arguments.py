"""Arguments that are passed by name, as torch names them: the findings are those of the same calls by position."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from samples import sample

from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.static.engine import check_source

torch = pytest.importorskip("torch")

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
#: The example of AMP903 is no Python.
EXAMPLES = {code: rule for code, rule in RULES.items() if code != "AMP903"}
PROGRAMS = {
    **{f"{code} bad": rule.bad_example for code, rule in EXAMPLES.items()},
    **{f"{code} good": EXAMPLES[code].good_example for code in sample(EXAMPLES, 2)},
    **{
        path.relative_to(FIXTURES).as_posix(): path.read_text(encoding="utf-8")
        for path in sample(sorted(FIXTURES.rglob("*_bad.py")), 3)
    },
}
#: The class whose methods a name in a program has, by a part of the name.
RECEIVERS = {
    "scaler": torch.amp.GradScaler,
    "optimizer": torch.optim.SGD,
    "loss": torch.Tensor,
    "model": torch.nn.Module,
}


def imports_of(tree: ast.Module) -> dict[str, Any]:
    """Return what the names mean that a program imports from torch."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.partition(".")[0] == "torch":
                    module = importlib.import_module(each.name)
                    found[each.asname or "torch"] = module if each.asname else torch
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            module = importlib.import_module(str(node.module))
            found |= {each.asname or each.name: getattr(module, each.name, None) for each in node.names}
    return found


def callee_of(func: ast.expr, names: dict[str, Any]) -> Any:
    """Return the function or class of torch that an expression calls, or None."""
    if isinstance(func, ast.Name):
        return names.get(func.id)
    if not isinstance(func, ast.Attribute):
        return None
    owner = callee_of(func.value, names)
    if owner is not None:
        return getattr(owner, func.attr, None)
    text = ast.unparse(func.value).lower()
    cls = next((cls for part, cls in RECEIVERS.items() if part in text and "(" not in text), None)
    method = getattr(cls, func.attr, None)
    return None if method is None else functools.partial(method, None)


def parameters_of(callee: Callable[..., object], number: int) -> list[str]:
    """Return the names of the first parameters, or [] if the callee does not take that many by name."""
    try:
        parameters = list(inspect.signature(callee).parameters.values())[:number]
    except (TypeError, ValueError):
        return []
    by_name = len(parameters) == number and all(each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters)
    return [each.name for each in parameters] if by_name else []


def with_named_arguments(text: str) -> str:
    """Return a program whose calls of torch pass all arguments by name. Comments and line breaks are lost."""
    tree = ast.parse(text)
    names = imports_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and not any(isinstance(each, ast.Starred) for each in node.args):
            callee = callee_of(node.func, names)
            parameters = parameters_of(callee, len(node.args)) if callable(callee) else []
            pairs = zip(parameters, node.args, strict=False)
            if parameters:
                node.keywords = [*(ast.keyword(name, value) for name, value in pairs), *node.keywords]
                node.args = []
    return ast.unparse(ast.fix_missing_locations(tree))


def found(text: str) -> list[tuple[str, int]]:
    return sorted((finding.label, finding.line) for finding in check_source(text, "train.py"))


def test_calls_of_torch_are_rewritten() -> None:
    program = "import torch\nscaler.step(optimizer)\ntorch.autocast('cuda')\nother(1)"
    rewritten = "import torch\nscaler.step(optimizer=optimizer)\ntorch.autocast(device_type='cuda')\nother(1)"
    assert with_named_arguments(program) == rewritten


@pytest.mark.exhaustive(every=4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_named_arguments_change_nothing(name: str) -> None:
    # Without comments and other line breaks, as the rewritten program.
    assert found(with_named_arguments(PROGRAMS[name])) == found(ast.unparse(ast.parse(PROGRAMS[name])))
