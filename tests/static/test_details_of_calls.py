"""Calls in one step of training, each in all of its names and forms: the label of the finding, or none."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn
from lib import clear_grads, move, wipe, zero_grads

model = nn.Linear(2, 2)
"""


def labels(program: str) -> list[str]:
    return [finding.label for finding in check_source(HEAD + program, "train.py")]


STEP = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    {begin}
    with torch.autocast("cuda"):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("begin", "is_cleared"),
    [
        ("pass", False),
        ("optimizer.zero_grad()", True),
        ("clear_grads(model.parameters())", True),
        ("clear_grads(list(model.parameters()))", True),
        ("zero_grads([p for p in model.parameters()])", True),
        ("zero_grads(params=model.parameters())", True),
        # Only a name that speaks of clearing is believed.
        ("wipe(list(model.parameters()))", False),
        ("move(list(model.parameters()))", False),
        ("print(list(model.parameters()))", False),
    ],
)
def test_an_unknown_function_may_clear_the_parameters_given_to_it(begin: str, is_cleared: bool) -> None:
    assert labels(STEP.format(begin=begin)) == ["backward@stale"] * (not is_cleared)


@pytest.mark.parametrize("test", ["isinstance(*pair)", "isinstance(x)", "isinstance(x, *kinds)", "isinstance()"])
def test_a_test_for_a_class_that_is_not_written_out(test: str) -> None:
    assert labels(STEP.format(begin=f"optimizer.zero_grad()\n    if {test}:\n        break")) == []
    assert labels(STEP.format(begin=f"if {test}:\n        break")) == ["backward@stale"]


OWN = """\
class Own(torch.optim.SGD):
    def {name}(self):
        {body}

optimizer = Own({given}, lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    with torch.autocast("cuda"):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
EACH = "for group in self.param_groups:\n            for p in group['params']:\n                p.grad = None"


@pytest.mark.parametrize("given", ["model.parameters()", "params=model.parameters()"])
@pytest.mark.parametrize(
    ("name", "body", "may_clear"),
    [
        ("step", "super().step()", False),
        ("step", "super().step()\n        self.zero_grad()", True),
        ("step", f"super().step()\n        {EACH}", True),
        ("finish", EACH, True),
        ("finish", "self.zero_grad(set_to_none=True)", True),
        ("finish", "print(self.param_groups)", False),
        # Nobody calls it.
        ("zero_grad", "super().zero_grad()", False),
        ("zero_grad", EACH, False),
    ],
)
def test_a_method_of_an_own_optimizer_may_clear_in_its_step(name: str, body: str, may_clear: bool, given: str) -> None:
    assert labels(OWN.format(name=name, body=body, given=given)) == ["backward@stale"] * (not may_clear)


WRITE = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        first = model(x)
        with torch.no_grad():
            for p in {params}:
                {statement}
        loss = F.mse_loss(first + model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize("params", ["model.parameters()", 'optimizer.param_groups[0]["params"]'])
@pytest.mark.parametrize("of", ["p", "p.data"])
@pytest.mark.parametrize(
    ("method", "writes"),
    [
        *((f"{method}(x)", True) for method in ("copy_", "add_", "mul_", "sub_", "fill_")),
        ("zero_()", True),
        ("lerp_(x, 0.1)", True),
        *((f"{method}(x)", False) for method in ("copy", "add", "mul", "sub", "lerp")),
    ],
)
def test_a_write_of_weights_whose_casts_the_region_keeps(method: str, writes: bool, of: str, params: str) -> None:
    found = labels(WRITE.format(params=params, statement=f"{of}.{method}"))
    assert found == ["write@region-then-forward"] * writes


BY_HAND = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
context = torch.autocast("cuda")
for x, y in loader:
    optimizer.zero_grad()
    context.__enter__()
    {inside}
    context.__exit__(None, None, None)
    {behind}
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
LOSS = "loss = F.mse_loss(model(x), y)"


@pytest.mark.parametrize(
    ("inside", "behind", "label"),
    [
        (LOSS, "pass", ""),
        ("out = model(x)", "loss = F.mse_loss(out, y)", ""),
        ("pass", LOSS, "scale@outside-autocast"),
        (LOSS, "with context:\n        shown = model(x)", ""),
        (LOSS, "context.__enter__()\n    shown = model(x)\n    context.__exit__(None, None, None)", ""),
        ("pass", f"with context:\n        {LOSS}", ""),
        (f"with context:\n        {LOSS}", "pass", "enter@entered"),
        (f"with context:\n        pass\n    {LOSS}", "pass", "enter@entered"),
        (f"with torch.autocast('cuda'):\n        {LOSS}", "pass", ""),
    ],
)
def test_a_region_that_is_entered_and_left_by_calls(inside: str, behind: str, label: str) -> None:
    assert labels(BY_HAND.format(inside=inside, behind=behind)) == [label] * bool(label)


DISABLED = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=False)
for i, (x, y) in enumerate(loader):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.mse_loss(model(x), y)
    {scale}.backward()
    {each}
    if (i + 1) % 4 == 0:
        {step}
        scaler.update()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("scale", ["scaler.scale(loss)", "scaler.scale(outputs=loss)", "loss"])
@pytest.mark.parametrize("step", ["scaler.step(optimizer)", "scaler.step(optimizer=optimizer)", "optimizer.step()"])
@pytest.mark.parametrize(
    ("each", "steps_each_time"),
    [
        ("pass", False),
        ("scaler.unscale_(optimizer)", False),
        ("scaler.unscale_(optimizer=optimizer)", False),
        ("scaler.update(2.0)", False),
        ("scaler.step(optimizer)", True),
        ("scaler.step(optimizer=optimizer)", True),
    ],
)
def test_a_disabled_scaler_only_steps(each: str, steps_each_time: bool, step: str, scale: str) -> None:
    """The loss of four micro-batches is not divided, unless each micro-batch is stepped."""
    found = labels(DISABLED.format(scale=scale, each=each, step=step))
    assert found == ["step@undivided"] * (not steps_each_time)


BARE = """\
def train(loader, stack, region):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        {enter}
        scaler.scale(F.mse_loss(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.parametrize(
    ("enter", "may_be_region"),
    [
        ("stack.enter_context(region)", True),
        ("stack.enter_context(torch.autocast('cuda'))", True),
        ("stack.enter_context()", False),
        ("stack.push(region)", False),
        ("pass", False),
    ],
)
def test_a_context_that_an_unknown_stack_enters_may_be_a_region(enter: str, may_be_region: bool) -> None:
    assert labels(BARE.format(enter=enter)) == ["scale@no-autocast"] * (not may_be_region)


CLOSURE = """\
optimizer = torch.optim.LBFGS(model.parameters())

class Trainer:
    def compute(self{more}):
        {clear}
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.mse_loss(model(self.x), self.y)
        loss.backward()
        return loss

trainer = Trainer()
for x, y in loader:
    def closure({parameters}):
        {clear}
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss
    optimizer.step({arguments})
"""
IF_ASKED = "optimizer.zero_grad() if clears else None"


@pytest.mark.parametrize(
    ("parameters", "clear", "arguments", "is_stale"),
    [
        ("", "optimizer.zero_grad()", "closure", False),
        ("", "pass", "closure", True),
        ("", "pass", "closure=closure", True),
        ("", "pass", "lambda: closure()", True),
        # Optimizers of other packages pass further arguments on, as many as the closure accepts.
        ("clears", IF_ASKED, "closure, True", False),
        ("clears", IF_ASKED, "closure, False", True),
        ("", "optimizer.zero_grad()", "closure, False", False),
        ("clears", IF_ASKED, "trainer.compute, True", False),
        ("clears", IF_ASKED, "trainer.compute, False", True),
        ("", "pass", "trainer.compute", True),
    ],
)
def test_a_step_calls_its_closure(parameters: str, clear: str, arguments: str, is_stale: bool) -> None:
    more = f", {parameters}" if parameters else ""
    program = CLOSURE.format(parameters=parameters, more=more, clear=clear, arguments=arguments)
    assert labels(program) == ["backward@stale"] * is_stale


BY_NAME = """\
from torch import optim

rule = {made}(model.parameters(), lr=0.2)
for u, v in loader:
    F.mse_loss(model(u), v).backward()
    rule.step()
"""


@pytest.mark.parametrize(
    ("made", "is_optimizer"),
    [
        ("torch.optim.SGD", True),
        ("getattr(torch.optim, 'SGD')", True),
        ("getattr(torch.optim, name)", True),
        ("getattr(optim, name)", True),
        ("getattr(optim, name, optim.SGD)", True),
        ("getattr(torch, name)", False),
        ("getattr(optim.lr_scheduler, name)", False),
        ("getattr(parts, name)", False),
    ],
)
def test_an_optimizer_that_is_got_by_a_name(made: str, is_optimizer: bool) -> None:
    assert labels(BY_NAME.format(made=made)) == ["backward@stale"] * is_optimizer


@pytest.mark.parametrize(
    ("freeze", "is_trained"),
    [
        ("pass", True),
        ("model.requires_grad_(False)", False),
        ("model.requires_grad_(requires_grad=False)", False),
        ("model.requires_grad_(requires_grad=True)", True),
        ("model.requires_grad_()", True),
        ("model.requires_grad_(flag)", True),
    ],
)
def test_a_model_in_float16_that_may_be_frozen(freeze: str, is_trained: bool) -> None:
    program = f"model.half()\n{freeze}\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    program += "for x, y in loader:\n    optimizer.zero_grad()\n"
    program += "    F.mse_loss(model(x).float(), y).backward()\n    optimizer.step()\n"
    codes = [finding.code for finding in check_source(HEAD + program, "train.py")]
    assert codes == ["AMP501"] * is_trained


BEHIND = """\
scale = nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(x)
    loss = ({output}).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("output", "is_low"),
    [
        ("out", True),
        ("out.half()", True),
        ("out.to(torch.float16)", True),
        ("out.type(torch.float16)", True),
        ("out.to('cuda')", True),
        ("out.float()", False),
        ("out.double()", False),
        ("out.to(torch.float32)", False),
        ("out.to(dtype=torch.float32)", False),
        ("out.type(torch.float32)", False),
        ("out.type(torch.float64)", False),
        ("out.float().mul(2)", False),
        # A float32 operand with dimensions makes the product float32.
        ("out * scale", False),
        ("out.mul(scale)", False),
        ("out.mul(y.float())", False),
    ],
)
def test_squares_behind_a_region_are_low_unless_the_output_is_converted(output: str, is_low: bool) -> None:
    assert labels(BEHIND.format(output=output)) == ["fragile:squares"] * is_low
