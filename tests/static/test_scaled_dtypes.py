"""The training dtype of an unknown model, and the need for a scaler: AMP502, AMP503, AMP216."""

from __future__ import annotations

import pytest

from pytest_amp_check import check_source

LOOP = """
import torch
from torch.amp import GradScaler

def train(net, optimizer, loader, loss_fn, args):
    {scaler}
    for x, y in loader:
        with {region}:
            loss = loss_fn(net(x), y)
        {steps}
        optimizer.zero_grad()
"""
SCALED = "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()"
PLAIN = "loss.backward(); optimizer.step()"


def codes(source: str) -> list[str]:
    return sorted(f.code for f in check_source(source, "train.py") if f.code not in ("AMP901", "AMP401"))


@pytest.mark.parametrize(
    ("region", "found"),
    [
        ('torch.autocast("cuda", dtype=torch.bfloat16)', True),
        ('torch.autocast("cuda", dtype=torch.bfloat16, enabled=args.amp)', True),
        ('torch.autocast("cpu", enabled=args.amp)', True),
        ('torch.autocast("cuda", dtype=torch.float16)', False),
        ('torch.autocast("cuda", dtype=torch.float16, enabled=args.amp)', False),
        ('torch.autocast("cuda", dtype=args.dtype)', False),
        ('torch.autocast("cuda", dtype=torch.bfloat16 if args.bf16 else torch.float16)', True),
        ('torch.autocast("cuda", torch.bfloat16 if args.bf16 else torch.float16)', True),
        ("args.region()", False),
    ],
)
def test_a_scaler_has_nothing_to_do_in_bfloat16_nor_where_a_flag_leaves_float32(region: str, found: bool) -> None:
    source = LOOP.format(scaler='scaler = GradScaler("cuda")', region=region, steps=SCALED)
    assert codes(source) == ["AMP503"] * found
    shared = LOOP.format(scaler='scaler = GradScaler("cuda", enabled=args.fp16)', region=region, steps=SCALED)
    assert codes(shared) == []


@pytest.mark.parametrize(
    ("enabled", "found"),
    [
        ('args.dtype == "bfloat16"', True),
        ('"bf16" == args.dtype', True),
        ("args.dtype == torch.bfloat16", True),
        ('args.dtype == "float16"', False),
        ('args.dtype != "bfloat16"', False),
        ("args.dtype == torch.float16", False),
        ("args.amp", False),
    ],
)
def test_a_scaler_that_is_on_for_bfloat16_alone(enabled: str, found: bool) -> None:
    scaler = f'scaler = GradScaler("cuda", enabled={enabled})'
    source = LOOP.format(scaler=scaler, region='torch.autocast("cuda", dtype=args.dtype)', steps=SCALED)
    assert codes(source) == ["AMP216"] * found


CHOICES = [
    "dtype = torch.bfloat16 if args.bf16 else torch.float16",
    'dtype = {{"fp16": torch.float16, "bf16": torch.bfloat16}}[args.precision]',
    "dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16",
    "dtype = torch.bfloat16 if args.bf16 else None",
    "dtype = chosen_dtype(args.precision)",
]
DTYPE_HELPER = """
def chosen_dtype(name):
    if name is None:
        return None
    assert name in ("bf16", "fp16")
    if name == "bf16":
        return torch.bfloat16
    return torch.float16
"""


def chosen(choice: str, scaler: str, region: str = "", steps: str = SCALED) -> list[str]:
    made = f"{choice.format()}; scaler = GradScaler({scaler})"
    return codes(
        LOOP.format(scaler=made, region=f'torch.autocast("cuda", dtype=dtype{region})', steps=steps) + DTYPE_HELPER
    )


@pytest.mark.parametrize("choice", CHOICES)
def test_a_scaler_stays_enabled_where_the_region_is_in_bfloat16(choice: str) -> None:
    assert chosen(choice, '"cuda"') == ["AMP503"]
    assert chosen(choice, "enabled=args.amp", ", enabled=args.amp") == ["AMP503"]
    assert chosen(choice, "enabled=args.amp is not None") == ["AMP503"]


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(
    "scaler",
    [
        "enabled=dtype == torch.float16",
        "enabled=dtype is torch.float16",
        "enabled=dtype != torch.bfloat16",
        'enabled=args.precision == "fp16"',
        "enabled=not args.bf16",
        "enabled=args.scale_losses",
        "enabled=False",
    ],
)
def test_a_scaler_that_a_condition_may_disable_for_bfloat16(choice: str, scaler: str) -> None:
    assert chosen(choice, scaler) == []


def test_a_flag_of_float16_beside_a_flag_of_bfloat16() -> None:
    assert chosen(CHOICES[0], "enabled=args.fp16", ", enabled=args.fp16 or args.bf16") == []


def test_a_loss_that_is_scaled_in_one_dtype_alone() -> None:
    choice = CHOICES[0]
    steps = """
        if dtype == torch.float16:
            scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()
        else:
            loss.backward(); optimizer.step()
"""
    assert chosen(choice, "", steps=steps) == []
    assert chosen(choice, "", steps=steps.replace("dtype == torch.float16", "args.scaled")) == []
    guarded = "if loss.isfinite(): scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()"
    assert chosen(choice, "", steps=guarded) == ["AMP503"]


def test_a_scaler_that_is_made_for_one_dtype() -> None:
    made = """
    dtype = torch.bfloat16 if args.bf16 else torch.float16
    if args.bf16:
        scaler = GradScaler("cuda", enabled=False)
    else:
        scaler = GradScaler("cuda")
"""
    source = LOOP.format(scaler=made, region='torch.autocast("cuda", dtype=dtype)', steps=SCALED)
    assert codes(source) == []


FLOAT16 = 'torch.autocast("cuda", dtype=torch.float16)'
ALONE = LOOP.format(scaler="", region=FLOAT16, steps=PLAIN)
BESIDE = LOOP.format(scaler='scaler = GradScaler("cuda")', region=FLOAT16, steps=SCALED).replace("train(", "scaled(")


def test_a_loop_without_a_scaler_beside_one_with_a_scaler() -> None:
    assert codes(ALONE + BESIDE) == ["AMP502"]
    bfloat16 = ALONE.replace("float16", "bfloat16")
    assert codes(bfloat16 + BESIDE) == []


@pytest.mark.parametrize(
    "steps",
    [
        # The scaler is used if there is one.
        f"if args.scaler:\n            scaler = args.scaler; {SCALED}\n        else:\n            {PLAIN}",
        # Other code steps, and may scale.
        "args.step(loss, optimizer)",
        "loss.backward(); args.step(optimizer)",
    ],
)
def test_a_loop_of_which_it_is_not_sure_that_no_scaler_serves_it(steps: str) -> None:
    assert codes(LOOP.format(scaler="", region=FLOAT16, steps=steps) + BESIDE) == []


@pytest.mark.parametrize(
    "device",
    [
        '"cuda"',
        "device.type",
        "str(device)",
        '"cuda" if torch.cuda.is_available() else "cpu"',
        'torch.device("cuda:0").type',
    ],
)
def test_the_type_of_a_device_says_the_dtype_of_a_region(device: str) -> None:
    made = 'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n'
    optimizer = "optimizer = torch.optim.SGD(net.parameters(), 0.1)"
    source = LOOP.format(scaler=optimizer, region=f"torch.autocast(device_type={device})", steps=PLAIN)
    assert codes(source.replace("def train", f"{made}def train")) == ["AMP502"]


@pytest.mark.parametrize("device", ["args.device", "torch.device(args.device).type", 'torch.device("cpu").type'])
def test_a_device_that_is_not_known_or_whose_dtype_is_bfloat16(device: str) -> None:
    optimizer = "optimizer = torch.optim.SGD(net.parameters(), 0.1)"
    source = LOOP.format(scaler=optimizer, region=f"torch.autocast(device_type={device})", steps=PLAIN)
    assert codes(source) == []


def test_a_name_that_no_import_explains_is_given_no_wrong_arguments() -> None:
    source = """
import torch
from contextlib import nullcontext

def predict(net, x, mixed):
    context = autocast if mixed else nullcontext
    with context():
        return net(x)
"""
    assert codes(source) == []
    imported = source.replace("import torch\n", "import torch\nfrom torch import autocast\n")
    assert codes(imported) == ["AMP106"]


CHOSEN = """\
import torch
def train(model, loader, optimizer, scaler, args):
    autocast = torch.cuda.amp.autocast if {condition} else torch.cpu.amp.autocast
    for x in loader:
        optimizer.zero_grad()
        with autocast({dtype}):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.parametrize("condition", ["torch.cuda.is_available()", "args.gpu"])
@pytest.mark.parametrize(("dtype", "reported"), [("", False), ("dtype=torch.bfloat16", True)])
def test_the_kind_of_autocast_is_chosen_before_it_is_made(condition: str, dtype: str, reported: bool) -> None:
    codes = {finding.code for finding in check_source(CHOSEN.format(condition=condition, dtype=dtype))}
    assert ("AMP503" in codes) == reported


SUMMED = """
import torch

class Trainer:
    def __init__(self, model, optimizer, device):
        self.model, self.optimizer = model, optimizer
        self.scaler = torch.amp.GradScaler("cuda"){made}

    def loss(self, part):
        with torch.autocast("cuda", dtype=torch.{dtype}):
            return self.criterion(self.model(part), part)

    def train(self, loader):
        for parts in loader:
            self.optimizer.zero_grad()
            losses = [self.loss(part) for part in parts]
            loss = {loss}
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
"""


@pytest.mark.parametrize("made", ["", ' if device == "cuda:0" else None'])
@pytest.mark.parametrize("loss", ["self.total", "self.total / len(parts)"])
def test_a_loss_of_unknown_code_needs_no_scaler_if_all_regions_are_in_bfloat16(made: str, loss: str) -> None:
    source = SUMMED.format(made=made, loss=loss, dtype="bfloat16")
    assert codes(source) == ["AMP503"]
    assert codes(source.replace("torch.bfloat16", "torch.float16")) == []
    other = '\n    def validate(self, x):\n        with torch.autocast("cuda"):\n            return self.model(x)\n'
    assert codes(source + other) == []
