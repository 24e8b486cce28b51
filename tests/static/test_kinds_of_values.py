"""What the analyzer knows about the kind of a value: conditions that hold, that fail, and that may do both."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.interpreter.values.tensors import TensorValue
from pytest_amp_check.static.interpreter.values.value import (
    DIVIDED,
    NO_NORMALIZATION,
    NO_ORIGIN,
    Const,
    Normalization,
    Origin,
    UnknownValue,
)

#: A float16 backward without a scaler in each branch: it is found in the branches that may run.
PROGRAM = """\
import torch
from torch import nn

class Own:
    size = 1

model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    value = {value}
    if {test}:
        loss.backward()
    else:
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
YES, NO, EITHER = [14], [16], [14, 16]


def branches(value: str, test: str) -> list[int]:
    return [f.line for f in check_source(PROGRAM.format(value=value, test=test)) if f.code == "AMP502"]


@pytest.mark.parametrize(
    ("value", "test", "expected"),
    [
        ("model", "isinstance(value, nn.Module)", YES),
        ("model", "isinstance(value, torch.optim.Optimizer)", NO),
        ("model", "isinstance(value, (list, tuple))", NO),
        ("model", "isinstance(value, dict)", NO),
        ("model", "isinstance(value, str)", NO),
        ("model", "isinstance(value, nn.Linear)", EITHER),
        ("model", "isinstance(value, Own)", EITHER),
        ("model", "isinstance(value, (list, Own))", EITHER),
        ("optimizer", "isinstance(value, torch.optim.Optimizer)", YES),
        ("optimizer", "isinstance(value, nn.Module)", NO),
        ("optimizer", "isinstance(value, Own)", NO),
        ("optimizer", "isinstance(value, (Own, Own))", NO),
        ("optimizer", "isinstance(value, torch.optim.SGD)", EITHER),
        ("[x]", "isinstance(value, list)", EITHER),
        ("[x]", "isinstance(value, (list, tuple))", YES),
        ("(x, y)", "isinstance(value, (list, tuple))", YES),
        ("[x]", "isinstance(value, (tuple, list, dict))", YES),
        ("[x]", "isinstance(value, dict)", NO),
        ("[x]", "isinstance(value, (str, dict))", NO),
        ("[x]", "isinstance(value, Own)", EITHER),
        ('{"a": x}', "isinstance(value, dict)", YES),
        ('{"a": x}', "isinstance(value, (list, dict))", YES),
        ('{"a": x}', "isinstance(value, (list, tuple))", NO),
        ("dict(a=x)", "isinstance(value, dict)", YES),
        ("model.state_dict()", "isinstance(value, dict)", YES),
        ('"text"', "isinstance(value, str)", YES),
        ('"text"', "isinstance(value, (str, list))", YES),
        ('"text"', "isinstance(value, (list, dict))", NO),
        ("None", "isinstance(value, Own)", NO),
        ("None", "isinstance(value, str)", NO),
        ("unknown", "isinstance(value, str)", EITHER),
        ("unknown", "isinstance(value, (list, tuple))", EITHER),
        ("model.parameters()", "isinstance(value, torch.Tensor)", NO),
        ("model.parameters()", "isinstance(value, nn.Parameter)", NO),
        ("next(model.parameters())", "isinstance(value, torch.Tensor)", EITHER),
    ],
)
def test_isinstance(value: str, test: str, expected: list[int]) -> None:
    assert branches(value, test) == expected


@pytest.mark.parametrize(
    ("value", "test", "expected"),
    [
        ("torch", 'hasattr(value, "autocast")', YES),
        ("torch", 'hasattr(torch.amp, "GradScaler")', YES),
        ("torch", 'hasattr(value, "a_name_that_torch_lacks")', EITHER),
        ("optimizer", 'hasattr(value, "step")', YES),
        ("optimizer", 'hasattr(value, "zero_grad")', YES),
        ("optimizer", 'hasattr(value, "backward")', EITHER),
        ("optimizer", "hasattr(value, name)", EITHER),
        ("model", 'hasattr(value, "parameters")', YES),
        ("model", 'hasattr(value, "no_sync")', EITHER),
        ("unknown", 'hasattr(value, "step")', EITHER),
        # The object or None: the object exactly where the flag holds.
        ("optimizer if flag else None", 'hasattr(value, "step")', EITHER),
        ("optimizer if flag else None", 'hasattr(value, "step") and not flag', NO),
        ("optimizer if flag else None", 'hasattr(value, "step") or not flag', YES),
        ('optimizer if flag else "off"', 'hasattr(value, "step") and not flag', NO),
        ("optimizer if flag else model", 'hasattr(value, "zero_grad")', YES),
        # Another object may have the attribute, too.
        ("optimizer if flag else unknown", 'hasattr(value, "step") and not flag', EITHER),
        ("optimizer if flag else unknown", 'hasattr(value, "step") or not flag', EITHER),
        ("None if flag else 'off'", 'hasattr(value, "step") and flag', EITHER),
    ],
)
def test_hasattr(value: str, test: str, expected: list[int]) -> None:
    assert branches(value, test) == expected


@pytest.mark.parametrize(
    ("value", "test", "expected"),
    [
        ("model if flag else [x]", "isinstance(value, (list, tuple)) and flag", NO),
        ("model if flag else [x]", "isinstance(value, (list, tuple)) or flag", YES),
        ("model if flag else None", "isinstance(value, nn.Module) and not flag", NO),
        ("model if flag else optimizer", "isinstance(value, nn.Module) or not flag", YES),
        ("model if flag else optimizer", "isinstance(value, (list, tuple))", NO),
        ('"text" if flag else [x]', "isinstance(value, str) and not flag", NO),
        ('"text" if flag else [x]', "isinstance(value, str) or not flag", YES),
        ("model if flag else unknown", "isinstance(value, nn.Module) and not flag", EITHER),
    ],
)
def test_isinstance_of_one_of_two(value: str, test: str, expected: list[int]) -> None:
    assert branches(value, test) == expected


@pytest.mark.parametrize(
    ("value", "test", "expected"),
    [
        ("float(2)", "value == 2.0", YES),
        ('float("2.5")', "value > 2", YES),
        ('float("x")', "value > 2", EITHER),
        ("bool(None)", "value", NO),
        ("bool(1)", "value", YES),
        ("bool(unknown)", "value", EITHER),
        ("bool(unknown)", "value and not unknown", NO),
        ('getattr(Own, "size")', "value == 1", YES),
        ("getattr(Own, name)", "value == 1", EITHER),
        ('"A".lower()', 'value == "a"', YES),
        ('" a ".strip()', 'value == "a"', YES),
        ('"a-b".replace("-", "_")', 'value == "a_b"', YES),
        ('"a".join(names)', 'value == "a"', EITHER),
        ("divmod(7, 2)[0]", "value == 3", YES),
        ("divmod(7, 2)[1]", "value == 1", YES),
    ],
)
def test_other_builtins(value: str, test: str, expected: list[int]) -> None:
    assert branches(value, test) == expected


#: All truths of a group, one attribute at a time.
SUMMED = Normalization(is_divided=True, is_only_summed=True, is_sample_mean=True)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (SUMMED, SUMMED, SUMMED),
        (SUMMED, DIVIDED, DIVIDED),
        (DIVIDED, SUMMED, DIVIDED),
        (SUMMED, NO_NORMALIZATION, NO_NORMALIZATION),
        # The code that computes a value from two others decides about the divisors.
        (Normalization(factors=frozenset({1})), Normalization(), Normalization(factors=frozenset({1}))),
    ],
)
def test_a_value_of_two_is_divided_as_both_are(one: Normalization, other: Normalization, both: Normalization) -> None:
    assert one.join(other) == both


def test_a_value_of_two_comes_from_where_each_of_them_comes() -> None:
    outside, graded = Origin(is_from_outside=True), Origin(is_from_gradient=True)
    assert outside.join(graded) == graded.join(outside) == Origin(is_from_outside=True, is_from_gradient=True)
    assert NO_ORIGIN.join(NO_ORIGIN) is NO_ORIGIN


def test_a_tensor_of_several_has_their_groups() -> None:
    parts = [TensorValue(), TensorValue(), TensorValue()]
    for part in parts[:2]:
        part.normalization = SUMMED
    parts[2].normalization, parts[1].origin = DIVIDED, Origin(is_from_gradient=True)
    made = TensorValue.join(parts)
    assert (made.normalization, made.origin) == (DIVIDED, Origin(is_from_gradient=True))


def test_values_share_their_groups_until_code_says_more() -> None:
    values = [Const(1), UnknownValue(1, "x"), TensorValue()]
    assert all(value.normalization is NO_NORMALIZATION and value.origin is NO_ORIGIN for value in values)
    values[1].set_divided(is_divided=True)
    assert [value.normalization.is_divided for value in values] == [False, True, False]
    assert UnknownValue(2, "y", is_from_outside=True).origin.is_argument
