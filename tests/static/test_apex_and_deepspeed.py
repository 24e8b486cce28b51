"""Programs with apex.amp and DeepSpeed: unscaled gradients, clipped copies of parameters, and divided losses."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

APEX = """\
import torch
from apex import amp
from torch import nn

net, side = nn.Linear(8, 1), nn.Linear(8, 1)
first = torch.optim.SGD(net.parameters(), lr=0.1)
second = torch.optim.SGD(side.parameters(), lr=0.1)
[net, side], [first, second] = amp.initialize([net, side], [first, second], {initialized})
for x, y in loader:
    first.zero_grad()
    second.zero_grad()
    loss = nn.functional.mse_loss(net(x) + side(x), y)
    with amp.scale_loss(loss, {scaled}) as scaled:
        scaled.backward()
    {clipped}
    first.step()
    second.step()
"""
CLIPPED, FIRST, SECOND = 15, 16, 17
BOTH = "[first, second]"
MASTER_FIRST, MASTER_SECOND = "amp.master_params(first)", "amp.master_params(optimizer=second)"


@pytest.mark.parametrize(
    ("initialized", "scaled", "clipped", "expected"),
    [
        ('opt_level="O1"', BOTH, "", []),
        # Gradients of an optimizer that the block does not name stay scaled.
        ('opt_level="O1"', "first", "", [("AMP204", SECOND)]),
        ('opt_level="O1"', "optimizers=second", "", [("AMP204", FIRST)]),
        ('opt_level="O1"', "some_optimizers", "", []),
        ('opt_level="O1"', f"{BOTH}, delay_unscale=True", "", [("AMP204", FIRST), ("AMP204", SECOND)]),
        ('opt_level="O1"', f"{BOTH}, delay_unscale=False", "", []),
        # Each optimizer has its own parameters.
        ('opt_level="O1"', "first", MASTER_FIRST, [("AMP204", SECOND)]),
        ('opt_level="O1"', "first", MASTER_SECOND, [("AMP201", CLIPPED), ("AMP204", SECOND)]),
        # O2 keeps float32 copies, which the optimizers update, unless the program disables them.
        ('opt_level="O2"', BOTH, "net.parameters()", [("AMP201", CLIPPED)]),
        ('opt_level="O2", master_weights=True', BOTH, "net.parameters()", [("AMP201", CLIPPED)]),
        ('opt_level="O2", master_weights=False', BOTH, "net.parameters()", []),
        ('opt_level="O2"', BOTH, MASTER_FIRST, []),
        ('opt_level="O2"', BOTH, "torch.nn.Linear(2, 2).parameters()", []),
        ('opt_level="O1"', BOTH, "net.parameters()", []),
        ('opt_level="O3"', BOTH, "net.parameters()", []),
        ("opt_level=level", BOTH, "net.parameters()", []),
    ],
)
def test_apex(initialized: str, scaled: str, clipped: str, expected: list[tuple[str, int]]) -> None:
    clip = f"nn.utils.clip_grad_norm_({clipped}, 1.0)" if clipped else "pass"
    findings = check_source(APEX.format(initialized=initialized, scaled=scaled, clipped=clip))
    assert [(finding.code, finding.line) for finding in findings] == expected


def test_apex_names_the_copies() -> None:
    text = APEX.format(
        initialized='opt_level="O2"', scaled=BOTH, clipped="nn.utils.clip_grad_norm_(net.parameters(), 1)"
    )
    (finding,) = check_source(text)
    assert finding.message == (
        "`nn.utils.clip_grad_norm_` has no effect, because opt_level O2 of apex steps float32 copies of these "
        "parameters: pass `amp.master_params(first)` to it in their place"
    )


DEEPSPEED = """\
import deepspeed
import torch
from torch import nn

{model}
engine, optimizer, loader, scheduler = deepspeed.initialize(args=args, model=model)
for x, y in loader:
    loss = nn.functional.mse_loss(engine(x), y)
    engine.backward({loss})
    engine.step()
"""
KNOWN, UNKNOWN = "model = nn.Linear(8, 1)", "model = build(args)"
CALL = "engine.gradient_accumulation_steps()"
CERTAIN = f"The loss is divided by `{CALL}`, and DeepSpeed divides it again in `engine.backward`: remove this division"
BY_NAME = (
    "The loss is divided by `args.gradient_accumulation_steps`, and DeepSpeed divides it by its own number of "
    "micro-batches in `engine.backward`: remove this division if both numbers are the same"
)


@pytest.mark.parametrize("model", [KNOWN, UNKNOWN])
@pytest.mark.parametrize(
    ("loss", "messages"),
    [
        ("loss", []),
        ("loss / 4", []),
        (f"loss / {CALL}", [CERTAIN]),
        ("loss / args.gradient_accumulation_steps", [BY_NAME]),
        (f"loss / {CALL}, scale_wrt_gas=True", [CERTAIN]),
        # DeepSpeed does not divide, or perhaps does not.
        (f"loss / {CALL}, scale_wrt_gas=False", []),
        ("loss / args.gradient_accumulation_steps, scale_wrt_gas=False", []),
        (f"loss / {CALL}, scale_wrt_gas=args.divide", []),
    ],
)
def test_deepspeed_divides_the_loss(model: str, loss: str, messages: list[str]) -> None:
    findings = check_source(DEEPSPEED.format(model=model, loss=loss))
    assert [(finding.code, finding.line, finding.message) for finding in findings] == [
        ("AMP302", 9, message) for message in messages
    ]


def test_a_module_without_deepspeed_divides_nothing() -> None:
    plain = DEEPSPEED.replace(
        "engine, optimizer, loader, scheduler = deepspeed.initialize(args=args, model=model)", "engine = model"
    )
    assert check_source(plain.format(model=KNOWN, loss=f"loss / {CALL}")) == []


@pytest.mark.parametrize(
    ("loss", "is_divided_twice"),
    [
        (f"loss / {CALL}", True),
        (f"loss / {CALL}, scale_wrt_gas=True", True),
        (f"loss / {CALL}, scale_wrt_gas=False", False),
        ("loss / steps", False),
        ("loss / other.gradient_accumulation_steps()", False),
        ("loss", False),
    ],
)
def test_an_engine_from_elsewhere_that_has_the_number_as_a_method(loss: str, is_divided_twice: bool) -> None:
    source = f"""\
import torch


class Loop:
    def __init__(self, engine, loss_function):
        self.engine, self.loss_function = engine, loss_function

    def run(self, batches, steps, other):
        engine = self.engine
        for batch in batches:
            loss = self.loss_function(engine, batch)
            engine.backward({loss})
            engine.step()
"""
    found = [(f.code, f.line, f.certain) for f in check_source(source)]
    assert found == ([("AMP302", 12, False)] if is_divided_twice else [])


#: A checkpoint for resuming, whose state of apex may be elsewhere.
CHECKPOINT = """\
import torch
from apex import amp

def contents(net, optim):
    return {{"net": net.state_dict(), "optim": optim.state_dict()}}

def main(net, loader, args):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer = amp.initialize(net, optimizer, {initialized})
    optimizer.load_state_dict(torch.load(args.path)["optim"])
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), y)
        {backward}
        optimizer.step()
    state = contents(net, optimizer)
    {more}
    torch.save(state, args.path)
"""
SCALED_BACKWARD = "with amp.scale_loss(loss, optimizer) as scaled: scaled.backward()"


@pytest.mark.parametrize(
    ("initialized", "backward", "more", "codes"),
    [
        ('opt_level="O1"', SCALED_BACKWARD, "", ["AMP401"]),
        ("opt_level=args.level, loss_scale=args.scale", SCALED_BACKWARD, "", ["AMP401"]),
        ('opt_level="O3", loss_scale="dynamic"', SCALED_BACKWARD, "", ["AMP401"]),
        ('opt_level="O2", loss_scale=None', SCALED_BACKWARD, 'state["epoch"] = 3', ["AMP401"]),
        ('opt_level="O1"', SCALED_BACKWARD, 'state["amp"] = amp.state_dict()', []),
        ('opt_level="O1"', SCALED_BACKWARD, 'torch.save(amp.state_dict(), "scales.pt")', []),
        ('opt_level="O1"', SCALED_BACKWARD, "state.update(scales=amp.state_dict())", []),
        # A constant scale is no state.
        ('opt_level="O2", loss_scale=128.0', SCALED_BACKWARD, "", []),
        ('opt_level="O2", loss_scale="128.0"', SCALED_BACKWARD, "", []),
        ('opt_level="O0"', SCALED_BACKWARD, "", []),
        ('opt_level="O3"', SCALED_BACKWARD, "", []),
        ('opt_level="O1", enabled=False', SCALED_BACKWARD, "", []),
        ('opt_level="O1"', "loss.backward()", "", []),
    ],
)
def test_apex_has_state_that_checkpoints_need(initialized: str, backward: str, more: str, codes: list[str]) -> None:
    source = CHECKPOINT.format(initialized=initialized, backward=backward, more=more or "pass")
    findings = [finding for finding in check_source(source) if finding.code in ("AMP401", "AMP402")]
    assert [finding.code for finding in findings] == codes
    assert all("amp.state_dict()`" in finding.message for finding in findings)
    assert all(finding.line == 5 for finding in findings)


KEPT_BY_A_CLASS = """\
import torch
from apex import amp

class Gan(torch.nn.Module):
    def __init__(self, fp16):
        super().__init__()
        self.generator = torch.nn.Linear(4, 4).cuda()
        self.optimizer = torch.optim.Adam(self.generator.parameters())
        if fp16:
            {initialized}

class Trainer:
    def __init__(self, fp16=True):
        self.gan = Gan(fp16)
        self.fp16 = fp16

    def train(self, x):
        loss = self.gan.generator(x).mean()
        self.gan.optimizer.zero_grad()
        if self.fp16:
            {backward}
        else:
            loss.backward()
        self.gan.optimizer.step()

    def save(self, path):
        state = {{"gan": self.gan.state_dict(), "optimizer": self.gan.optimizer.state_dict()}}
        {more}
        torch.save(state, path)

    def load(self, path):
        self.gan.optimizer.load_state_dict(torch.load(path)["optimizer"])
"""
INITIALIZED = "self.generator, self.optimizer = amp.initialize(self.generator, self.optimizer, opt_level='O1')"
SCALED_IN_CLASS = "with amp.scale_loss(loss, self.gan.optimizer) as scaled: scaled.backward()"


@pytest.mark.parametrize(
    ("initialized", "backward", "more", "lines"),
    [
        (INITIALIZED, SCALED_IN_CLASS, "pass", [27]),
        (
            "(self.generator,), (self.optimizer,) = amp.initialize([self.generator], [self.optimizer], opt_level='O2')",
            SCALED_IN_CLASS,
            "pass",
            [27],
        ),
        (INITIALIZED, SCALED_IN_CLASS, 'state["amp"] = amp.state_dict()', []),
        (INITIALIZED.replace("'O1'", "'O1', loss_scale=128"), SCALED_IN_CLASS, "pass", []),
    ],
)
def test_a_class_that_saves_what_apex_scales_needs_its_state(
    initialized: str, backward: str, more: str, lines: list[int]
) -> None:
    source = KEPT_BY_A_CLASS.format(initialized=initialized, backward=backward, more=more)
    findings = [finding for finding in check_source(source) if finding.code in ("AMP401", "AMP402")]
    assert [(finding.code, finding.line) for finding in findings] == [("AMP401", line) for line in lines]


BOUNDARY = """\
from engines import build_engine


class Loop:
    def __init__(self, config):
        self.engine, self.settings = build_engine(config)
        self.every = self.settings["{key}"]

    def step(self, batch):
        loss = self.engine(**batch).loss
        self.engine.backward({loss})
        is_last = self.engine.{asked}()
        self.engine.step()
        return is_last
"""


@pytest.mark.parametrize(
    ("loss", "key", "asked", "is_divided_twice"),
    [
        ("loss / self.every", "gradient_accumulation_steps", "is_gradient_accumulation_boundary", False),
        ("loss / self.grad_accum", "gradient_accumulation_steps", "is_gradient_accumulation_boundary", True),
        ("loss / self.settings['{key}']", "gradient_accumulation_steps", "is_gradient_accumulation_boundary", True),
        ("loss / self.grad_accum", "gradient_accumulation_steps", "is_last", False),
        ("loss", "gradient_accumulation_steps", "is_gradient_accumulation_boundary", False),
    ],
)
def test_an_engine_from_elsewhere_that_knows_the_end_of_a_window(
    loss: str, key: str, asked: str, is_divided_twice: bool
) -> None:
    source = BOUNDARY.format(loss=loss.format(key=key), key=key, asked=asked)
    assert [finding.code for finding in check_source(source)] == ["AMP302"] * is_divided_twice


@pytest.mark.parametrize(("entry", "is_divided_twice"), [("gradient_accumulation_steps", True), ("batch_size", False)])
def test_a_variable_holds_the_number_of_deepspeed(entry: str, is_divided_twice: bool) -> None:
    source = f"""\
import deepspeed
import torch

def train(model, loader, config):
    n = config["{entry}"]
    engine, *_ = deepspeed.initialize(model=model, config=config)
    for batch in loader:
        loss = engine(batch).mean() / n
        engine.backward(loss)
        engine.step()
"""
    assert [finding.code for finding in check_source(source)] == ["AMP302"] * is_divided_twice


HELPER = """\
import deepspeed
import torch

def run_backward(model, optimizer, loss, args):
    if {flag}:
        model.backward(loss)
    elif args.fp16:
        optimizer.backward(loss, update_master_grads=False)
    else:
        loss.backward()
    if args.clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)

def train_step(data, model, optimizer, args, forward):
    while True:
        loss, _ = forward(data, model)
        {division}
        run_backward(model, optimizer, loss, args)
        {step}
"""
ASKS = (
    "if model.is_gradient_accumulation_boundary():\n            model.step()\n            break\n        model.step()"
)


@pytest.mark.parametrize(
    ("flag", "division", "step", "is_divided_twice"),
    [
        ("args.deepspeed", "loss /= args.gradient_accumulation_steps", ASKS, True),
        ("args.deepspeed", "loss /= args.gradient_accumulation_steps", "model.step()", True),
        ("args.use_deepspeed", "loss = loss / args.gradient_accumulation_steps", "model.step()", True),
        ("args.engine", "loss /= args.gradient_accumulation_steps", ASKS, True),
        ("args.engine", "loss /= args.gradient_accumulation_steps", "model.step()", False),
        ("not args.deepspeed", "loss /= args.gradient_accumulation_steps", "model.step()", False),
        ("args.deepspeed", "loss /= args.world_size", ASKS, False),
        (
            "args.deepspeed",
            "if not args.deepspeed:\n            loss = loss / args.gradient_accumulation_steps",
            ASKS,
            False,
        ),
    ],
)
def test_a_helper_that_runs_the_backward_of_an_engine(
    flag: str, division: str, step: str, is_divided_twice: bool
) -> None:
    findings = check_source(HELPER.format(flag=flag, division=division, step=step))
    assert [each.line for each in findings if each.code == "AMP302"] == [17] * is_divided_twice
