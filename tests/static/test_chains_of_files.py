"""Models that one file casts, a second one builds and a third one trains (AMP501), and arguments of decorators."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check import check_paths
from pytest_amp_check.static.engine import check_source

CAST = """\
from torch import nn


def convert_weights(model: nn.Module):
    def convert(layer):
        if isinstance(layer, nn.Linear):
            layer.weight.data = layer.weight.data.half()

    model.apply(convert)
"""
FACTORY = """\
import torch
from {cast} import convert_weights


def create_model(precision="fp32"):
    model = torch.nn.Linear(8, 8)
    if precision == "fp16":
        {convert}
    return model
"""
TRAIN = """\
import torch
from {factory} import create_model


def main(args, loader):
    model = create_model(args.precision)
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""


@pytest.mark.parametrize("is_package", [False, True])
@pytest.mark.parametrize(("convert", "expected"), [("convert_weights(model)", ["AMP501"]), ("model.eval()", [])])
def test_a_cast_two_imports_away(tmp_path: Path, convert: str, expected: list[str], *, is_package: bool) -> None:
    folder = tmp_path / "net" if is_package else tmp_path
    folder.mkdir(exist_ok=True)
    if is_package:
        (folder / "__init__.py").write_text("from .factory import create_model\n")
    (folder / "cast.py").write_text(CAST)
    (folder / "factory.py").write_text(FACTORY.format(cast=".cast" if is_package else "cast", convert=convert))
    (tmp_path / "train.py").write_text(TRAIN.format(factory="net" if is_package else "factory"))
    findings = check_paths([tmp_path]).findings
    assert [(f.code, Path(f.filename).name) for f in findings] == [(code, "cast.py") for code in expected]


#: A script whose only call passes nothing.
CONFIGURED = """\
import functools

import gin
import torch
from accelerate import Accelerator


{decorator}
def {name}(loader=None, model=None, epochs=None, steps=None, amp=False):
    if epochs is None and steps is None:
        raise ValueError("one of them is needed")
    accelerator = Accelerator(mixed_precision="fp16" if amp else "no")
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    model.train()
    if epochs is not None:
        for _ in range(epochs):
            for batch in loader:
                optimizer.zero_grad()
                accelerator.backward(model(batch))
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
    else:
        for _ in range(steps):
            optimizer.zero_grad()
            accelerator.backward(model(next(loader)))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


if __name__ == "__main__":
    {name}()
"""


@pytest.mark.parametrize("name", ["main", "train"])
@pytest.mark.parametrize("decorator", ["@gin.configurable", '@gin.configurable("run")'])
def test_a_decorator_may_pass_arguments(decorator: str, name: str) -> None:
    findings = check_source(CONFIGURED.format(decorator=decorator, name=name), "train.py")
    assert [finding.code for finding in findings] == ["AMP201", "AMP201"]


def test_methods_of_the_same_name_call_no_function() -> None:
    source = CONFIGURED.format(decorator="@functools.cache", name="train").replace("and steps is None", "and False")
    assert [finding.code for finding in check_source(source, "train.py")] == ["AMP201"]


WIDENED = """\
import torch


def restore(model):
    model.half()
    return model


def main(args, loader):
    model = torch.nn.Linear(8, 8)
    restore(model)
    if args.precision == "amp" or args.precision == "fp32":
        {widen}
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda") if args.precision == "amp" else None
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=args.precision == "amp"):
            loss = torch.nn.functional.mse_loss(model(x), y)
        if args.precision == "amp":
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
"""


@pytest.mark.parametrize(("widen", "severity"), [("model.float()", "warning"), ("model.train()", "error")])
def test_no_path_leads_from_low_weights_to_the_scaler(widen: str, severity: str) -> None:
    findings = check_source(WIDENED.format(widen=widen), "train.py")
    assert [(finding.code, finding.severity) for finding in findings] == [("AMP501", severity)]
