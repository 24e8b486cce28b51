"""Dtypes, regions, losses and functions that a setting selects from a dict."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check.static.engine import check_paths, check_source

TRAIN = """\
import contextlib
import torch
from torch import nn
from torch.nn import functional as F

{table}

def train(config, loader):
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    {made}
    for x, y in loader:
        optimizer.zero_grad()
        with {region}:
            loss = {loss}
        {step}
"""
PLAIN = "loss.backward()\n        optimizer.step()"
SCALED = "scaler.scale(loss).backward()\n        scaler.step(optimizer)\n        scaler.update()"
SCALER = 'scaler = torch.amp.GradScaler("cuda", enabled=config.dtype == "fp16")'
DTYPES = '{"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}'
REGIONS = """{
    "half": torch.autocast("cuda", dtype=torch.float16),
    "bf16": torch.autocast("cuda", dtype=torch.bfloat16),
    "none": contextlib.nullcontext(),
}"""


def codes(
    made: str = "pass", region: str = "contextlib.nullcontext()", loss: str = "", step: str = PLAIN, table: str = ""
) -> list[str]:
    loss = loss or "F.cross_entropy(model(x).float(), y)"
    source = TRAIN.format(table=table, made=made, region=region, loss=loss, step=step)
    return [finding.code for finding in check_source(source, "train.py")]


@pytest.mark.parametrize(
    ("table", "lookup"),
    [
        ("", f"{DTYPES}[config.dtype]"),
        (f"KINDS = {DTYPES}", "KINDS[config.dtype]"),
        (f"KINDS: dict[str, torch.dtype] = {DTYPES}", "KINDS[config.dtype]"),
        (f"KINDS = {DTYPES}", "KINDS.get(config.dtype)"),
        (f"KINDS = {DTYPES}", "KINDS.get(config.dtype, torch.float32)"),
        ("KINDS = dict(half=torch.half, wide=torch.float32, brain=torch.bfloat16)", "KINDS[config.dtype]"),
    ],
)
def test_a_dtype_from_a_table(table: str, lookup: str) -> None:
    assert codes(f"kind = {lookup}", 'torch.autocast("cuda", dtype=kind)', table=table) == ["AMP502"]
    assert codes(f"kind = {lookup}\n    model.to(dtype=kind)", table=table) == ["AMP501"]
    assert codes(f"model.to({lookup})", table=table) == ["AMP501"]


@pytest.mark.parametrize(
    "table",
    [
        '{"bf16": torch.bfloat16, "fp32": torch.float32}',
        '{"bf16": torch.bfloat16, "other": torch.bfloat16}',
        "{1: torch.float32, 2: torch.float64}",
        '{"a": unknown, "b": 3}',
    ],
)
def test_a_table_without_float16(table: str) -> None:
    assert codes(f"kind = {table}[config.dtype]", 'torch.autocast("cuda", dtype=kind)') == []


def test_a_table_of_wide_dtypes_casts_to_no_low_dtype() -> None:
    assert codes('model.to({"single": torch.float32, "double": torch.float64}[config.dtype])') == []


def test_a_scaler_that_is_enabled_for_the_same_key() -> None:
    made = f"kind = {DTYPES}[config.dtype]\n    {SCALER}"
    assert codes(made, 'torch.autocast("cuda", dtype=kind)', step=SCALED) == []


@pytest.mark.parametrize("lookup", [f"{REGIONS}[config.region]", f"{REGIONS}.get(config.region)"])
def test_a_region_from_a_table(lookup: str) -> None:
    assert codes(region=lookup) == ["AMP502"]
    assert codes(f"region = {lookup}".replace("\n", " "), "region") == ["AMP502"]


def test_a_region_from_a_table_with_a_scaler() -> None:
    made = 'scaler = torch.amp.GradScaler("cuda", enabled=config.region == "half")'
    assert codes(made, f"{REGIONS}[config.region]", step=SCALED) == []


@pytest.mark.parametrize(
    "getter",
    ["def pick(name):\n    return LOSSES[name]", "def pick(name):\n    return LOSSES.get(name)", "pick = None"],
)
def test_a_loss_from_a_table(getter: str) -> None:
    table = f'LOSSES = {{"ce": nn.CrossEntropyLoss, "bce": nn.BCELoss, "mse": nn.MSELoss}}\n{getter}'
    made = "criterion = " + ("LOSSES[config.loss]()" if "None" in getter else "pick(config.loss)()")
    region, loss = 'torch.autocast("cuda", dtype=torch.float16)', "criterion(model(x).sigmoid(), y)"
    scaled = f'{made}\n    scaler = torch.amp.GradScaler("cuda")'
    assert codes(scaled, region, loss, SCALED, table) == ["AMP504"]
    right = table.replace("nn.BCELoss", "nn.BCEWithLogitsLoss")
    assert codes(scaled, region, loss, SCALED, right) == []


def test_dtypes_of_a_sharding_policy() -> None:
    source = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

def shard(model, config):
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16}
    policy = MixedPrecision(param_dtype=kinds[config.dtype], reduce_dtype=REDUCED)
    return FullyShardedDataParallel(model, mixed_precision=policy)
"""
    found = check_source(source.replace("REDUCED", "kinds[config.dtype]"), "train.py")
    assert [(each.code, each.certain) for each in found] == [("AMP508", False)]
    # A setting of its own lets the user choose.
    assert check_source(source.replace("REDUCED", "kinds[config.reduce]"), "train.py") == []
    assert check_source(source.replace("REDUCED", "torch.float32"), "train.py") == []


def test_the_key_of_a_known_item() -> None:
    assert codes(f'kind = {DTYPES}["bf16"]', 'torch.autocast("cuda", dtype=kind)') == []
    assert codes(f'kind = {DTYPES}["fp16"]', 'torch.autocast("cuda", dtype=kind)') == ["AMP502"]


def test_optimizers_in_a_dict_are_all_stepped() -> None:
    source = """\
import torch
scaler = torch.amp.GradScaler("cuda")
first, second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
optimizers = {"first": torch.optim.SGD(first.parameters()), "second": torch.optim.SGD(second.parameters())}
for x in loader:
    for name in optimizers:
        optimizers[name].zero_grad()
    with torch.autocast("cuda"):
        loss = second(first(x)).mean()
    scaler.scale(loss).backward()
    for name in optimizers:
        scaler.step(optimizers[name])
    scaler.update()
"""
    assert check_source(source, "train.py") == []


HELPERS = [
    f"KINDS = {DTYPES}\n",
    f"KINDS: dict = {DTYPES}\n",
    """\
def pick(name):
    if name == "fp16":
        return torch.float16
    if name == "bf16":
        return torch.bfloat16
    return torch.float32
""",
    f"def pick(name):\n    return {DTYPES}[name]\n",
    "KIND = torch.float16\n",
]


@pytest.mark.parametrize("helper", HELPERS)
@pytest.mark.parametrize("as_module", [False, True])
def test_a_dtype_that_another_file_gives(tmp_path: Path, helper: str, *, as_module: bool) -> None:
    name = "pick" if "pick" in helper else "KINDS" if "KINDS" in helper else "KIND"
    use = {"pick": "pick(config.dtype)", "KINDS": "KINDS[config.dtype]", "KIND": "KIND"}[name]
    imported = "import helpers\n" if as_module else f"from helpers import {name}\n"
    kind = f"helpers.{use}" if as_module else use

    def codes(text: str, made: str, region: str) -> list[str]:
        (tmp_path / "helpers.py").write_text(f"import torch\n\n{text}")
        loss = "F.cross_entropy(model(x).float(), y)"
        train = TRAIN.format(table="", made=made, region=region, loss=loss, step=PLAIN)
        (tmp_path / "train.py").write_text(imported + train)
        return [each.code for each in check_paths([str(tmp_path)]).findings]

    region = f'torch.autocast("cuda", dtype={kind})'
    assert codes(helper, "pass", region) == ["AMP502"]
    assert codes(helper, f"model.to({kind})", "contextlib.nullcontext()") == ["AMP501"]
    wide = helper.replace("bfloat16", "float64").replace("float16", "float32")
    assert codes(wide, "pass", region) == []
    assert codes(wide, f"model.to({kind})", "contextlib.nullcontext()") == []


@pytest.mark.parametrize("chosen", [f"{DTYPES}[config.dtype]", "torch.float32 if config.wide else torch.float16"])
def test_a_choice_of_dtypes_is_no_argument_that_autocast_refuses(chosen: str) -> None:
    asked = "config.wide" if "wide" in chosen else 'config.dtype == "fp32"'
    region = f'contextlib.nullcontext() if {asked} else torch.autocast("cpu", dtype=kind)'
    assert "AMP106" not in codes(f"kind = {chosen}", region)
    assert "AMP106" in codes("kind = torch.float32", 'torch.autocast("cpu", dtype=kind)')
