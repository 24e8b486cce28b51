"""A dtype that a setting chooses is the one that the path allows."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

CHOICE = """\
import torch

def train(args, model):
    dtype = torch.float32
    if args.precision == "fp16":
        dtype = torch.float16
    elif args.precision == "bf16":
        dtype = torch.bfloat16
    {path}
        {cast}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for x in args.data:
        model(x.to(dtype)).float().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("cast", ["model.to(dtype)", "model.to(args.device, dtype=dtype)"])
@pytest.mark.parametrize(
    ("path", "dtype"),
    [
        ('assert args.precision == "fp16"\n    if args.full:', "float16"),
        ('assert args.precision == "bf16"\n    if args.full:', "bfloat16"),
        ('if args.precision != "bf16": raise ValueError\n    if args.full:', "bfloat16"),
        ('if args.precision == "bf16":', "bfloat16"),
        ('if args.precision == "fp16" and args.full:', "float16"),
    ],
)
def test_a_cast_is_to_the_dtype_of_its_path(path: str, dtype: str, cast: str) -> None:
    found = [finding for finding in check_source(CHOICE.format(path=path, cast=cast)) if finding.code == "AMP501"]
    assert [finding.names["dtype"] for finding in found] == [dtype]


@pytest.mark.parametrize("path", ['assert args.precision == "fp32"\n    if args.full:', 'if args.precision == "tf32":'])
def test_a_cast_on_a_path_in_float32_is_none_to_a_low_dtype(path: str) -> None:
    assert check_source(CHOICE.format(path=path, cast="model.to(dtype)")) == []
