"""Models that a function of another file, or the configuration of DeepSpeed, makes compute in low precision."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_amp_check import check_paths

SHARD = """\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def shard(model):
    policy = MixedPrecisionPolicy(param_dtype={dtype}, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model
"""
OBJECTIVE = """\
def logps(logits, labels):
    return {logits}.log_softmax(dim=-1).gather(2, labels.unsqueeze(2)).squeeze(2).sum(-1)
"""
TRAIN = """\
import torch
from transformers import AutoModelForCausalLM
{imports}


def main(loader):
    model = {model}
    {call}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for ids, labels in loader:
        loss = -logps(model(ids){logits}, labels).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def found(folder: Path, **files: str) -> set[tuple[str, str, str]]:
    """File, code and line text of each finding about low precision, except stored weights."""
    for name, text in files.items():
        (folder / f"{name.replace('__', '.')}").write_text(text)
    findings = [f for f in check_paths([folder]).findings if f.code in ("AMP505", "AMP507", "AMP508", "AMP509")]
    return {
        (Path(f.filename).name, f.code, Path(f.filename).read_text().splitlines()[f.line - 1].strip()) for f in findings
    }


@pytest.mark.parametrize("model", ["torch.nn.Linear(8, 8)", 'AutoModelForCausalLM.from_pretrained("x")', "build()"])
@pytest.mark.parametrize("call", ["model = shard(model)", "shard(model)"])
@pytest.mark.parametrize("files", [1, 2, 3])
def test_a_function_shards_with_a_low_policy(tmp_path: Path, model: str, call: str, files: int) -> None:
    imports = {1: "", 2: "from sharding import shard", 3: "from sharding import shard\nfrom objective import logps"}
    logits = ".logits" if "from_pretrained" in model else ""

    def write(dtype: str, operand: str) -> dict[str, str]:
        train = TRAIN.format(imports=imports[files], model=model, call=call, logits=logits)
        objective, sharding = OBJECTIVE.format(logits=operand), SHARD.format(dtype=dtype)
        if files == 3:
            return {"train__py": train, "objective__py": objective, "sharding__py": sharding}
        if files == 2:
            return {"train__py": objective + train, "sharding__py": sharding}
        return {"train__py": sharding + objective + train}

    place = "objective.py" if files == 3 else "train.py"
    line = OBJECTIVE.format(logits="logits").splitlines()[1].strip()
    for name in ("wide", "upcast", "low"):
        (tmp_path / name).mkdir()
    assert found(tmp_path / "low", **write("torch.bfloat16", "logits")) == {(place, "AMP507", line)}
    assert found(tmp_path / "wide", **write("torch.float32", "logits")) == set()
    assert found(tmp_path / "upcast", **write("torch.bfloat16", "logits.float()")) == set()


ROTARY = """\
import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / (10000 ** (torch.arange(0, dim, 2).float() / dim)))

    def forward(self, x):
        t = torch.arange(x.shape[1], device=x.device){positions}
        angles = torch.outer(t, self.inv_freq)
        return angles.cos(), angles.sin()


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.rotary = Rotary(64)

    def forward(self, ids):
        x = self.embed(ids)
        cos, sin = self.rotary(x)
        return x * cos.sum() + x * sin.sum()
"""
ENGINE = """\
import argparse
import deepspeed
from model import Decoder

CONFIG = {config}


def main(loader):
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="conf/ds.json")
    args = parser.parse_args()
    model = Decoder()
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={given})
    for ids in loader:
        loss = engine(ids).float().mean()
        engine.backward(loss)
        engine.step()
"""
ON, OFF = {"bf16": {"enabled": True}}, {"bf16": {"enabled": False}}


@pytest.mark.parametrize("given", ["CONFIG", '"conf/ds.json"', "args.config", repr(ON)])
def test_deepspeed_makes_the_model_low(tmp_path: Path, given: str) -> None:
    def check(config: dict[str, dict[str, bool]], positions: str) -> list[tuple[int, str, str]]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        (folder / "conf").mkdir(parents=True)
        (folder / "conf" / "ds.json").write_text(json.dumps(config))
        (folder / "train.py").write_text(
            ENGINE.format(config=repr(config), given=given.replace(repr(ON), repr(config)))
        )
        (folder / "model.py").write_text(ROTARY.format(positions=positions))
        return [(f.line, f.code, f.severity) for f in check_paths([folder]).findings if f.code == "AMP509"]

    assert check(ON, ".type_as(self.inv_freq)") == [(11, "AMP509", "warning")]
    # Another run may switch it on, so it is a note with a condition.
    assert check(OFF, ".type_as(self.inv_freq)") == [(11, "AMP509", "info")]


def test_the_weights_of_deepspeed_are_not_the_masters(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENGINE.format(config=repr(ON), given="CONFIG"))
    (tmp_path / "model.py").write_text(ROTARY.format(positions=".float()"))
    assert [f.code for f in check_paths([tmp_path]).findings if f.code == "AMP501"] == []
