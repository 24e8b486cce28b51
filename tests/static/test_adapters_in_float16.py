"""Adapters that get the float16 of the weights they are added to, and code that casts them to float32."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check.static.engine import check_paths, check_source

TRAINING = """\
import torch
from diffusers import UNet2DConditionModel
from diffusers.training_utils import cast_training_params


def train(loader, config, args):
    unet = UNet2DConditionModel.from_pretrained("x")
    encoder = UNet2DConditionModel.from_pretrained("y")
    {added}
    params = [p for p in unet.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.mse_loss(unet(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
HELPER = """

def widen(models, dtype=torch.float32):
    if not isinstance(models, list):
        models = [models]
    for model in models:
        for param in model.parameters():
            if param.requires_grad:
                param.data = param.to(dtype)
"""
ADDED = "unet.to(torch.float16)\nunet.add_adapter(config)\n"


def found(added: str, helper: str = "") -> list[str]:
    source = TRAINING.format(added=added.replace("\n", "\n    ")) + helper
    lines = source.splitlines()
    return [lines[f.line - 1].strip() for f in check_source(source) if f.code == "AMP501"]


def test_adapters_of_a_float16_model_are_float16() -> None:
    assert found(ADDED) == ["unet.add_adapter(config)"]


@pytest.mark.parametrize(
    "cast",
    [
        "cast_training_params(unet, dtype=torch.float32)",
        "cast_training_params([unet, encoder])",
        "models = [unet]\nif args.train_encoder:\n    models.append(encoder)\ncast_training_params(models)",
        "for p in unet.parameters():\n    if p.requires_grad:\n        p.data = p.to(torch.float32)",
        "for n, p in unet.named_parameters():\n    if 'lora' in n:\n        p.data = p.data.float()",
        "widen(unet)",
        "widen([unet])",
        "models = [unet]\nif args.train_encoder:\n    models.append(encoder)\nwiden(models)",
    ],
)
def test_a_cast_to_float32_afterwards(cast: str) -> None:
    assert found(ADDED + cast, HELPER if "widen" in cast else "") == []


@pytest.mark.parametrize("cast", ["cast_training_params(unet, dtype=torch.float16)", "widen(unet, torch.float16)"])
def test_a_cast_to_float16_afterwards(cast: str) -> None:
    assert "unet.add_adapter(config)" in found(ADDED + cast, HELPER if "widen" in cast else "")


@pytest.mark.parametrize(
    ("cast", "expected"),
    [
        ("if args.half:\n    unet.to(torch.float16)", ["unet.to(torch.float16)"]),
        ("if not args.lora:\n    encoder.to(torch.float16)", []),
        ("unet.to(torch.float16)", ["unet.to(torch.float16)"]),
    ],
)
def test_a_cast_of_the_model_after_the_adapters(cast: str, expected: list[str]) -> None:
    assert found(f"if args.lora:\n    unet.add_adapter(config)\n    encoder.add_adapter(config)\n{cast}") == expected


def test_a_function_that_casts_only_is_followed_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "precision.py").write_text(f"import torch\n{HELPER}")
    train = tmp_path / "train.py"
    source = TRAINING.format(added=(ADDED + "widen(unet)").replace("\n", "\n    "))
    train.write_text("from precision import widen\n" + source)
    assert [f.code for f in check_paths([str(train)]).findings if f.code == "AMP501"] == []
    train.write_text("from precision import widen\n" + source.replace("widen(unet)\n", "pass\n"))
    assert [f.code for f in check_paths([str(train)]).findings if f.code == "AMP501"] == ["AMP501"]
