"""Flags of unknown truth in place of the dtype, the second argument since ``torch.autocast`` names the device."""

from __future__ import annotations

import pytest
from marks import marks, places

from pytest_amp_check import check_source

PROGRAMS = {
    "the switch of the scaler": """\
def train(model, loader, optimizer, config):
    mixed = config["mixed"]
    scaler = torch.amp.GradScaler("cuda", enabled=mixed)
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", mixed):  # AMP106
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    "the switch of another region": """\
def score(model, x, options):
    with torch.autocast("cuda", enabled=options.half):
        first = model(x)
    with torch.autocast("cuda", dtype=options.half):  # AMP106
        return model(first)
""",
    "an attribute that switches": """\
class Trainer:
    def __init__(self, model, optimizer, **options):
        self.model, self.optimizer = model, optimizer
        self.fast = options["fast"]
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.fast)

    def step(self, x):
        self.optimizer.zero_grad()
        with torch.autocast(x.device.type, self.fast):  # AMP106
            loss = self.model(x).mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
""",
    "an annotated flag": """\
def score(model, x, fast: bool):
    with torch.amp.autocast("cuda", fast):  # AMP106
        return model(x)
""",
    "an annotated flag of the constructor": """\
class Scorer:
    def __init__(self, model, *, fast: bool = False):
        self.model, self.fast = model, fast

    def score(self, x):
        with torch.autocast("cuda", self.fast):  # AMP106
            return self.model(x)
""",
    "a flag by its default": """\
def score(model, x, fast=True):
    with torch.autocast("cuda", fast):  # AMP106
        return model(x)
""",
    "a comparison": """\
def score(model, x, precision):
    with torch.autocast("cuda", precision == "fp16"):  # AMP106
        return model(x)
""",
    "a negation": """\
def score(model, x, options):
    with torch.autocast("cuda", dtype=not options.wide):  # AMP106
        return model(x)
""",
    "flags in their own place": """\
def score(model, x, options, fast: bool, dtype):
    with torch.autocast("cuda", dtype, fast):
        x = model(x)
    with torch.autocast("cuda", enabled=options.half):
        x = model(x)
    with torch.autocast("cuda", torch.float16, options.half):
        return model(x)
""",
    "the first place of the former region": """\
def score(model, x, options, fast: bool):
    with torch.cuda.amp.autocast(fast):
        x = model(x)
    with torch.cuda.amp.autocast(options.half != "no", torch.float16):
        return model(x)
""",
    "unknown dtypes": """\
def score(model, x, options, kind: "bool | torch.dtype", chosen=None):
    with torch.autocast("cuda", options.half):
        x = model(x)
    with torch.autocast("cuda", kind):
        x = model(x)
    with torch.autocast("cuda", chosen):
        x = model(x)
    with torch.autocast("cuda", options.low or torch.float16):
        x = model(x)
    with torch.autocast("cuda", torch.float16 if options.low else torch.bfloat16):
        return model(x)
""",
    "a dtype that also switches": """\
def score(model, x, amp_dtype=None):
    with torch.autocast("cuda", dtype=amp_dtype, enabled=amp_dtype):
        x = model(x)
    with torch.autocast("cuda", dtype=amp_dtype, enabled=amp_dtype is not None):
        return model(x)
""",
    "a flag that becomes a dtype": """\
def score(model, x, fast=True):
    fast = torch.float16 if fast else torch.bfloat16
    with torch.autocast("cuda", fast):
        return model(x)
""",
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_flag_is_no_dtype(program: str) -> None:
    source = "import torch\n" + program
    found = {(line, code) for line, code in places(check_source(source)) if code == "AMP106"}
    assert found == marks(source)


def test_the_fix_names_the_switch() -> None:
    source = "import torch\n" + PROGRAMS["the switch of the scaler"]
    finding = next(each for each in check_source(source) if each.code == "AMP106")
    assert "the flag mixed as its dtype" in finding.message
    assert "write `enabled=mixed`" in finding.message
