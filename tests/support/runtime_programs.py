"""Small training programs, each with one mistake that a run reveals. The line of the mistake carries a mark.

``rows`` name the rows of RULEBOOK.md's table of misuses that torch does not catch (S01 and following), or the text of
the exception where torch raises. A program consists of the setup and a body that trains on ``batches``.
"""

from __future__ import annotations

from typing import NamedTuple

SCALER = 'scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)\n'
SETUP = """\
import io

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
start = [p.detach().clone() for p in model.parameters()]
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
BATCH_COUNT = 3
batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(BATCH_COUNT)]
losses = []


def loss_of(x, y):
    with torch.autocast("cpu", dtype=torch.float16):
        return F.mse_loss(model(x), y)


def moved():
    return max((p.detach() - q).abs().max().item() for p, q in zip(model.parameters(), start))


def is_finite():
    return all(p.isfinite().all().item() for p in model.parameters())

"""

#: The correct program, which ``moved()`` is compared with: 1e-3 to 1e-2 after one iteration, up to 3e-2 after three.
RIGHT = """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
"""


class Program(NamedTuple):
    """A program and the harm that its run shows.

    body          the code after the setup; the lines of expected findings carry ``# AMPnnn``.
    shows         an expression that is true after the program has run: the harm.
    raises        text of the exception with which torch ends the program, if torch raises.
    batch_counts  numbers of batches to run the program with; the mistake is present in each case.
    codes         rules that must be selected because they are off by default.
    late          True if a recording that begins after the setup also shows the mistake.
    """

    name: str
    rows: str
    body: str
    shows: str = ""
    raises: str = ""
    batch_counts: tuple[int, ...] = (1, 3)
    codes: tuple[str, ...] = ()
    late: bool = True

    @property
    def setup(self) -> str:
        """The setup, with a scaler if the body uses one."""
        return SETUP if "scaler" in self.body else SETUP.replace(SCALER, "")

    @property
    def starts(self) -> int:
        """The line on which the body starts."""
        return self.setup.count("\n") + 1

    def marked(self, line: str, code: str) -> Program:
        """Return the program with a mark on a line of its body."""
        assert self.body.count(f"{line}\n") == 1
        return self._replace(body=self.body.replace(f"{line}\n", f"{line}  # {code}\n"))

    def source(self, batch_count: int) -> str:
        """Return the source of the whole program for a number of batches."""
        return self.setup.replace("BATCH_COUNT = 3", f"BATCH_COUNT = {batch_count}") + self.body


#: Gradients clipped while scaled: SGD moves by max_norm / scale.
CLIPPED = (
    Program(
        "clip_grad_norm_",
        "S01",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # AMP201
    scaler.step(optimizer)
    scaler.update()
""",
        shows="moved() < 1e-5",
    ),
    Program(
        "clip_grad_norm_ imported by name",
        "S01",
        """
from torch.nn.utils import clip_grad_norm_

for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    clip_grad_norm_(model.parameters(), 0.1)  # AMP201
    scaler.step(optimizer)
    scaler.update()
""",
        shows="moved() < 1e-5",
    ),
    Program(
        "clip_grad_value_ imported by name",
        "S02",
        """
from torch.nn.utils import clip_grad_value_ as clip

for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    clip(model.parameters(), 0.1)  # AMP201
    scaler.step(optimizer)
    scaler.update()
""",
        shows="moved() < 1e-5",
    ),
    Program(
        "clip_grad_value_ hides an overflow",
        "S02",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    model[2].weight.grad.fill_(float("inf"))
    nn.utils.clip_grad_value_(model[2].parameters(), 0.1)  # AMP201
    nn.utils.clip_grad_value_(model[0].parameters(), 0.1)  # AMP201
    scaler.step(optimizer)
    scaler.update()
""",
        shows="moved() < 1e-5 and scaler.get_scale() == 2.0**10",
    ),
    Program(
        "clip_grad_norm_ of the module it is defined in, one tensor at a time",
        "S01",
        """
from torch.nn.utils import clip_grad

for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    for p in model.parameters():
        clip_grad.clip_grad_norm_(p, 0.1, foreach=False)  # AMP201
    scaler.step(optimizer)
    scaler.update()
""",
        shows="moved() < 1e-5",
    ),
    Program(
        "clip before a fused optimizer",
        "S01",
        """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # AMP201
    scaler.step(optimizer)
    scaler.update()
""",
        shows="moved() < 1e-5",
    ),
    Program(
        "clip before Adam, where it hardly shows",
        "S01",
        """
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # AMP201
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
""",
        shows="moved() > 5e-3",
    ),
    Program(
        "clip in a function of its own",
        "S01",
        """
def clip(module, limit):
    nn.utils.clip_grad_norm_(module.parameters(), limit)  # AMP201


def train_step(x, y):
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    clip(model, 0.1)
    scaler.step(optimizer)
    scaler.update()


for x, y in batches:
    train_step(x, y)
""",
        shows="moved() < 1e-5",
    ),
    Program(
        "clip of what two optimizers hold",
        "S01",
        """
first = torch.optim.SGD(model[0].parameters(), lr=0.01)
second = torch.optim.SGD(model[2].parameters(), lr=0.01)
for x, y in batches:
    first.zero_grad()
    second.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # AMP201
    scaler.step(first)
    scaler.step(second)
    scaler.update()
""",
        shows="moved() < 1e-5",
    ),
    Program(
        "clip of what one of two optimizers holds",
        "S17",
        """
first = torch.optim.SGD(model[0].parameters(), lr=0.01)
second = torch.optim.SGD(model[2].parameters(), lr=0.01)
for x, y in batches:
    first.zero_grad()
    second.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(first)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # AMP212
    scaler.step(first)
    scaler.step(second)
    scaler.update()
""",
        shows="moved() < 1e-2",
    ),
    Program(
        "error_if_nonfinite",
        "S34",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)  # AMP213
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "error_if_nonfinite on an overflow",
        "S34",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, 1e30 * y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)  # AMP213
    scaler.step(optimizer)
    scaler.update()
""",
        raises="is non-finite, so it cannot be clipped",
    ),
)


def edited(name: str, row: str, edit: str, setup: str = "", shows: str = "") -> Program:
    """Return a program that edits scaled gradients."""
    return Program(
        name,
        row,
        f"""{setup}
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
{edit}
    scaler.step(optimizer)
    scaler.update()
""",
        shows=shows,
    )


FUSED = "\noptimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)"

#: Gradients edited or read while scaled.
TOUCHED = (
    edited(
        "clamp_",
        "S20",
        """\
    for p in model.parameters():
        p.grad.clamp_(-0.01, 0.01)  # AMP202""",
        shows="moved() < 1e-6",
    ),
    edited(
        "clamp_ before a fused optimizer",
        "S20",
        """\
    for p in model.parameters():
        p.grad.clamp_(-0.01, 0.01)  # AMP202""",
        FUSED,
    ),
    edited(
        "nan_to_num_",
        "S03",
        """\
    for p in model.parameters():
        p.grad.nan_to_num_(0.0, 0.0, 0.0)  # AMP202""",
    ),
    edited(
        "nan_to_num_ hides an overflow",
        "S03",
        """\
    model[2].weight.grad.fill_(float("inf"))
    for p in model.parameters():
        p.grad.nan_to_num_()  # AMP202""",
        shows="moved() > 1e30",
    ),
    edited(
        "a clamped gradient is set",
        "S20",
        """\
    for p in model.parameters():
        p.grad = p.grad.clamp(-0.01, 0.01)  # AMP202""",
        shows="moved() < 1e-6",
    ),
    edited(
        "weight decay by hand",
        "S19",
        """\
    for p in model.parameters():
        p.grad.add_(p.detach(), alpha=0.1)  # AMP202""",
    ),
    edited(
        "noise",
        "S19",
        """\
    with torch.no_grad():
        for p in model.parameters():
            p.grad += 0.01 * torch.randn_like(p)  # AMP202""",
    ),
    edited(
        "all gradients in one call",
        "S20",
        """\
    torch._foreach_clamp_max_([p.grad for p in model.parameters()], 0.01)  # AMP202""",
    ),
    edited(
        "grad.data",
        "S20",
        """\
    for p in model.parameters():
        p.grad.data.clamp_(-0.01, 0.01)  # AMP202""",
        shows="moved() < 1e-6",
    ),
    edited(
        "an edit before unscale_",
        "S20",
        """\
    for p in model.parameters():
        p.grad.clamp_(-0.01, 0.01)  # AMP202
    scaler.unscale_(optimizer)""",
        shows="moved() < 1e-6",
    ),
    edited(
        "an edit in a function of its own",
        "S20",
        """\
    clip_by_hand(model.parameters(), 0.01)""",
        """
def clip_by_hand(parameters, limit):
    for p in parameters:
        p.grad.clamp_(-limit, limit)  # AMP202

""",
        shows="moved() < 1e-6",
    ),
    edited(
        "a norm that is only measured",
        "S21",
        """\
    losses.append(nn.utils.clip_grad_norm_(model.parameters(), float("inf")))  # AMP202""",
        shows="losses[0] > 100",
    ),
    edited(
        "get_total_norm",
        "S21",
        """\
    losses.append(nn.utils.get_total_norm([p.grad for p in model.parameters()]))  # AMP202""",
        shows="losses[0] > 100",
    ),
    edited(
        "a norm that is measured, then used",
        "S01",
        """\
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])  # AMP202
    nn.utils.clip_grads_with_norm_(model.parameters(), 0.1, norm)  # AMP201""",
        shows="moved() < 1e-5",
    ),
)


def divided(name: str, division: str, setup: str = "", shows: str = "moved() < 1e-4") -> Program:
    """Return a program that divides gradients by the scale manually, in addition to the scaler's division."""
    return edited(name, "S13", division, setup, shows)


#: Gradients divided by the scale twice.
TWICE = (
    divided(
        "mul_ by the inverse scale",
        """\
    inverse = 1.0 / scaler.get_scale()
    for p in model.parameters():
        p.grad.mul_(inverse)  # AMP210""",
    ),
    divided(
        "/= the scale",
        """\
    for p in model.parameters():
        p.grad /= scaler.get_scale()  # AMP210""",
    ),
    divided(
        "*= the inverse scale",
        """\
    for p in model.parameters():
        p.grad *= 1.0 / scaler.get_scale()  # AMP210""",
    ),
    divided(
        "a divided gradient is set",
        """\
    for p in model.parameters():
        p.grad = p.grad / scaler.get_scale()  # AMP210""",
    ),
    divided(
        "grad.data.div_",
        """\
    for p in model.parameters():
        p.grad.data.div_(scaler.get_scale())  # AMP210""",
    ),
    divided(
        "all in one call",
        """\
    torch._foreach_mul_([p.grad for p in model.parameters()], 1.0 / scaler.get_scale())  # AMP210""",
    ),
    divided(
        "before a fused optimizer",
        """\
    for p in model.parameters():
        p.grad.div_(scaler.get_scale())  # AMP210""",
        "\noptimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)",
    ),
    divided(
        "before unscale_",
        """\
    for p in model.parameters():
        p.grad.div_(scaler.get_scale())  # AMP210
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)""",
    ),
    divided(
        "after unscale_",
        """\
    scaler.unscale_(optimizer)
    for p in model.parameters():
        p.grad.div_(scaler.get_scale())  # AMP210""",
    ),
    Program(
        "a wrapper with another id",
        "S14",
        """
class Wrapper:
    def __init__(self, inner):
        self.inner = inner
        self.param_groups = inner.param_groups

    def step(self):
        self.inner.step()


wrapper = Wrapper(optimizer)
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(wrapper)  # AMP210
    scaler.update()
""",
        shows="moved() < 1e-4",
    ),
    Program(
        "parameters in two optimizers",
        "S15",
        """
first = torch.optim.SGD(model.parameters(), lr=0.0)
second = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in batches:
    first.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(first)
    scaler.step(second)  # AMP210
    scaler.update()
""",
        shows="moved() < 1e-4",
    ),
)

#: Steps and backwards that bypass the scaler.
BYPASSED = (
    Program(
        "optimizer.step() after a scaled backward",
        "S04",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    optimizer.step()  # AMP204
""",
        shows="not moved() < 1",
    ),
    Program(
        "a fused Adam is stepped directly, where it does not show",
        "S04",
        """
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    optimizer.step()  # AMP204
""",
        shows="moved() < 0.05",
    ),
    Program(
        "one of two optimizers is stepped directly",
        "S04",
        """
first = torch.optim.SGD(model[0].parameters(), lr=0.01)
second = torch.optim.SGD(model[2].parameters(), lr=0.01)
for x, y in batches:
    first.zero_grad()
    second.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(first)
    second.step()  # AMP204
    scaler.update()
""",
        shows="not moved() < 1",
    ),
    Program(
        "unscale_, then optimizer.step()",
        "S05",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, 1e30 * y)).backward()
    scaler.unscale_(optimizer)
    optimizer.step()  # AMP204
    scaler.update()
""",
        shows="not is_finite()",
    ),
    Program(
        "both steps",
        "S04",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    optimizer.step()  # AMP204
    scaler.update()
""",
    ),
    Program(
        "a step in a hook of each parameter",
        "S27",
        """
optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}


def apply(p):
    optimizers[p].step()  # AMP204
    optimizers[p].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(apply)
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
""",
        shows="not moved() < 1",
    ),
    Program(
        "the scaled loss is dropped",
        "S06",
        """
for x, y in batches:
    optimizer.zero_grad()
    loss = loss_of(x, y)
    scaler.scale(loss)
    loss.backward()  # AMP203
    scaler.step(optimizer)
    scaler.update()
""",
        shows="moved() < 1e-4",
    ),
    Program(
        "the scaled loss is dropped, with unscale_ and a fused optimizer",
        "S06",
        """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
for x, y in batches:
    optimizer.zero_grad()
    loss = loss_of(x, y)
    scaler.scale(loss)
    torch.autograd.backward(loss)  # AMP203
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
""",
        shows="moved() < 1e-4",
    ),
    Program(
        "nothing is ever scaled",
        "Attempted step but _scale is None",
        """
for x, y in batches:
    optimizer.zero_grad()
    loss_of(x, y).backward()  # AMP203
    scaler.step(optimizer)
    scaler.update()
""",
        raises="Attempted step but _scale is None",
    ),
    Program(
        "a second loss is not scaled",
        "S07",
        """
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
        penalty = model[0].weight.square().sum()
    scaler.scale(loss).backward()
    penalty.backward()  # AMP203
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "a closure",
        "S16",
        """
for x, y in batches:
    def closure():
        optimizer.zero_grad()
        loss = loss_of(x, y)
        scaler.scale(loss).backward()
        return loss

    closure()
    scaler.step(optimizer, closure)  # AMP211
    scaler.update()
""",
        shows="not moved() < 1",
    ),
    Program(
        "a closure of LBFGS",
        "S16",
        """
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=2)
for x, y in batches:
    def closure():
        optimizer.zero_grad()
        loss = loss_of(x, y)
        scaler.scale(loss).backward()
        return loss

    closure()
    scaler.step(optimizer, closure)  # AMP211
    scaler.update()
""",
    ),
    Program(
        "a closure by keyword",
        "Closure use is not currently supported",
        """
for x, y in batches:
    def closure():
        optimizer.zero_grad()
        loss = loss_of(x, y)
        scaler.scale(loss).backward()
        return loss

    closure()
    scaler.step(optimizer, closure=closure)  # AMP211
    scaler.update()
""",
        raises="Closure use is not currently supported",
    ),
)

#: Calls of the protocol in a wrong order.
OUT_OF_ORDER = (
    Program(
        "no update",
        "step() has already been called",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)  # AMP206
""",
        raises="step() has already been called since the last update()",
        batch_counts=(3,),
    ),
    Program(
        "no update after the only step",
        "missing update, one iteration",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)  # AMP206
""",
        batch_counts=(1,),
    ),
    Program(
        "no update, with unscale_",
        "unscale_() is being called after step()",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)  # AMP206
""",
        raises="unscale_() is being called after step()",
        batch_counts=(3,),
    ),
    Program(
        "an update between two steps",
        "S09",
        """
first = torch.optim.SGD(model[0].parameters(), lr=0.01)
second = torch.optim.SGD(model[2].parameters(), lr=0.01)
for x, y in batches:
    first.zero_grad()
    second.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(first)
    scaler.update()  # AMP207
    scaler.step(second)
    scaler.update()
""",
    ),
    Program(
        "an update between two fused steps that overflow",
        "S09",
        """
first = torch.optim.SGD(model[0].parameters(), lr=0.01, fused=True)
second = torch.optim.SGD(model[2].parameters(), lr=0.01, fused=True)
for x, y in batches:
    first.zero_grad()
    second.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    model[0].weight.grad.fill_(float("inf"))
    scaler.step(first)
    scaler.update()  # AMP207
    scaler.step(second)
    scaler.update()
""",
        shows="scaler.get_scale() == 2.0**10 / 2**BATCH_COUNT",
    ),
    Program(
        "two updates",
        "No inf checks were recorded prior to update",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
    scaler.update()  # AMP207
""",
        raises="No inf checks were recorded prior to update",
    ),
    Program(
        "update between unscale_ and step",
        "S11",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    scaler.update()  # AMP209
    scaler.step(optimizer)
    scaler.update()
""",
        shows="moved() < 1e-4",
    ),
    Program(
        "an iteration given up after unscale_",
        "S12",
        """
for i, (x, y) in enumerate(batches):
    scaler.scale(loss_of(x, y)).backward()
    if i == 0:
        scaler.unscale_(optimizer)  # AMP209
        optimizer.zero_grad()
        continue
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
        shows="not moved() < 1",
        batch_counts=(2, 3),
    ),
    Program(
        "every iteration given up after unscale_",
        "S12",
        """
for i, (x, y) in enumerate(batches):
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)  # AMP209
    if i == 0:
        optimizer.zero_grad()
        continue
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
        raises="unscale_() has already been called on this optimizer",
        batch_counts=(2, 3),
    ),
    Program(
        "unscale_ twice",
        "unscale_() has already been called",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.unscale_(optimizer)  # AMP209
    scaler.step(optimizer)
    scaler.update()
""",
        raises="unscale_() has already been called on this optimizer",
    ),
    Program(
        "unscale_ after step",
        "unscale_() is being called after step()",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.unscale_(optimizer)  # AMP209
    scaler.update()
""",
        raises="unscale_() is being called after step()",
    ),
    Program(
        "zero_grad between backward and step",
        "S22",
        """
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    optimizer.zero_grad(set_to_none=False)  # AMP215
    scaler.step(optimizer)
    scaler.update()
""",
        shows="moved() == 0.0",
    ),
    Program(
        "zero_grad between backward and the step of a fused optimizer",
        "S22",
        """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    model.zero_grad(set_to_none=False)  # AMP215
    scaler.step(optimizer)
    scaler.update()
""",
        shows="moved() == 0.0",
    ),
    Program(
        "zero_grad between unscale_ and step",
        "S22",
        """
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    optimizer.zero_grad(set_to_none=False)  # AMP215
    scaler.step(optimizer)
    scaler.update()
""",
        shows="moved() == 0.0",
    ),
    Program(
        "zero_grad between backward and step, all of which stand under one condition",
        "S22",
        """
for x, y in batches:
    loss = loss_of(x, y)
    if loss.item() > 0:
        scaler.scale(loss).backward()
        optimizer.zero_grad(set_to_none=False)  # AMP215
        scaler.step(optimizer)
        scaler.update()
""",
        shows="moved() == 0.0",
    ),
    Program(
        "zero_grad leaves no gradient for the step",
        "No inf checks were recorded for this optimizer",
        """
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    optimizer.zero_grad()  # AMP215
    scaler.step(optimizer)
    scaler.update()
""",
        raises="No inf checks were recorded for this optimizer",
    ),
    Program(
        "no zero_grad",
        "S23",
        """
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()  # AMP215
    scaler.step(optimizer)
    scaler.update()
""",
        batch_counts=(3,),
    ),
    Program(
        "no zero_grad, fused",
        "S23",
        """
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()  # AMP215
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
        batch_counts=(3,),
    ),
    Program(
        "no zero_grad, and an overflow that stays",
        "S24",
        """
for i, (x, y) in enumerate(batches):
    scaler.scale(loss_of(x, 1e30 * y if i == 0 else y)).backward()  # AMP215
    scaler.step(optimizer)
    scaler.update()
""",
        shows="moved() == 0.0 and scaler.get_scale() == 2.0**7",
        batch_counts=(3,),
    ),
    Program(
        "a penalty on scaled gradients",
        "S18",
        """
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
    grads = torch.autograd.grad(scaler.scale(loss), list(model.parameters()), create_graph=True)  # AMP214
    penalty = sum(g.float().square().sum() for g in grads).sqrt()
    losses.append(penalty.item())
    scaler.scale(loss + penalty).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        shows="losses[0] > 100",
    ),
    Program(
        "gradients are broken after unscale_",
        "S26",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    [p.grad.div_(0.0) for p in model.parameters()]; scaler.step(optimizer)  # AMP218
    scaler.update()
""",
        shows="not is_finite()",
    ),
    Program(
        "gradients are clipped to a norm that is NaN",
        "S26",
        """
limit = float("nan")
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), limit); scaler.step(optimizer)  # AMP218
    scaler.update()
""",
        shows="not is_finite()",
    ),
)

#: Accumulation windows.
WINDOWS = (
    Program(
        "unscale_ after the first micro-batch only",
        "S41",
        """
for i, (x, y) in enumerate(batches):
    scaler.scale(loss_of(x, y) / 2).backward()
    if i % 2 == 0:
        scaler.unscale_(optimizer)  # AMP303
    else:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
        shows="not moved() < 1",
        batch_counts=(2, 4),
    ),
    Program(
        "unscale_ for every micro-batch",
        "S42",
        """
for i, (x, y) in enumerate(batches):
    scaler.scale(loss_of(x, y) / 2).backward()
    scaler.unscale_(optimizer)  # AMP303
    if (i + 1) % 2 == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
        raises="unscale_() has already been called on this optimizer",
        batch_counts=(2, 4),
    ),
    Program(
        "unscale_ and update for every micro-batch",
        "S42",
        """
for i, (x, y) in enumerate(batches):
    scaler.scale(loss_of(x, y) / 2).backward()
    scaler.unscale_(optimizer)  # AMP303
    if (i + 1) % 2 == 0:
        scaler.step(optimizer)
        optimizer.zero_grad()
    scaler.update()
""",
        batch_counts=(2, 4),
    ),
    Program(
        "update for every micro-batch",
        "S42",
        """
for i, (x, y) in enumerate(batches):
    scaler.scale(loss_of(x, y) / 2).backward()
    if (i + 1) % 2 == 0:
        scaler.step(optimizer)
        optimizer.zero_grad()
    scaler.update()  # AMP207
""",
        raises="No inf checks were recorded prior to update",
        batch_counts=(2, 4),
        late=False,
    ),
)

#: Autocast regions.
REGIONS = (
    Program(
        "the loop is inside one region",
        "S50",
        """
with torch.autocast("cpu", dtype=torch.float16):
    for _ in range(4):
        optimizer.zero_grad()
        loss = F.mse_loss(model(batches[0][0]), batches[0][1])
        losses.append(loss.item())
        scaler.scale(loss).backward()  # AMP103
        scaler.step(optimizer)  # AMP101
        scaler.update()
""",
        shows="len(set(losses)) == 1 and moved() > 1e-3",
    ),
    Program(
        "the loop is inside one region, in bfloat16, fused",
        "S50",
        """
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
with torch.autocast("cpu", dtype=torch.bfloat16):
    for _ in range(4):
        optimizer.zero_grad()
        loss = F.mse_loss(model(batches[0][0]), batches[0][1])
        losses.append(loss.item())
        loss.backward()  # AMP103
        optimizer.step()  # AMP101
""",
        shows="len(set(losses)) == 1 and moved() > 1e-3",
    ),
    Program(
        "a disabled region is open around the loop",
        "S51",
        """
with torch.autocast("cpu", enabled=False):
    for _ in range(4):
        optimizer.zero_grad()
        loss = loss_of(*batches[0])
        losses.append(loss.item())
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # AMP101
        scaler.update()
""",
        shows="len(set(losses)) == 1 and moved() > 1e-3",
    ),
    Program(
        "a region of another device is open around the loop",
        "S51",
        """
with torch.autocast("cuda", enabled=False):
    for _ in range(4):
        optimizer.zero_grad()
        loss = loss_of(*batches[0])
        losses.append(loss.item())
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # AMP101
        scaler.update()
""",
        shows="len(set(losses)) == 1 and moved() > 1e-3",
    ),
    Program(
        "the training function is decorated",
        "S52",
        """
@torch.autocast("cpu", dtype=torch.bfloat16)
def train(x, y):
    for _ in range(4):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        losses.append(loss.item())
        loss.backward()  # AMP103
        optimizer.step()  # AMP101


train(*batches[0])
""",
        shows="len(set(losses)) == 1 and moved() > 1e-3",
    ),
    Program(
        "weights are loaded inside a region",
        "S53",
        """
x, y = batches[0]
zeros = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    before = model[0](x)
    model.load_state_dict(zeros)  # AMP101
    after = model[0](x)
""",
        shows="model[0].weight.abs().sum() == 0 and after.abs().sum() > 0",
    ),
    Program(
        "weights are written inside a region",
        "S53",
        """
x, y = batches[0]
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    before = model[0](x)
    for p in model.parameters():
        p.zero_()  # AMP101
    after = model[0](x)
""",
        shows="model[0].weight.abs().sum() == 0 and after.abs().sum() > 0",
    ),
    Program(
        "weights are replaced inside a region",
        "S53",
        """
x, y = batches[0]
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    before = model[0](x)
    for p in model.parameters():
        p.data = torch.zeros_like(p)  # AMP101
    after = model[0](x)
""",
        shows="model[0].weight.abs().sum() == 0 and after.abs().sum() > 0",
    ),
    Program(
        "a context is entered while it is open",
        "S54",
        """
context = torch.autocast("cpu", dtype=torch.bfloat16)
x, y = batches[0]
with context:
    hidden = model[1](model[0](x))
    with context:  # AMP102
        model[2](hidden)
stays = torch.is_autocast_enabled("cpu")
torch.set_autocast_enabled("cpu", False)
""",
        shows="stays",
    ),
    Program(
        "a decorated function calls itself",
        "S54",
        """
@torch.autocast("cpu", dtype=torch.bfloat16)  # AMP102
def forward(x, depth):
    x = model[1](model[0](x))
    return model[2](x) if depth == 0 else forward(x[:, :4], depth - 1)


forward(batches[0][0], 2)
stays = torch.is_autocast_enabled("cpu")
torch.set_autocast_enabled("cpu", False)
""",
        shows="stays",
    ),
    Program(
        "backward inside the region of its forward",
        "S58",
        """
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()  # AMP103
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "a step inside a region",
        "S66",
        """
for x, y in batches:
    optimizer.zero_grad()
    loss = loss_of(x, y)
    scaler.scale(loss).backward()
    with torch.autocast("cpu", dtype=torch.float16):
        scaler.step(optimizer)  # AMP103
    scaler.update()
""",
    ),
)

#: Dtypes.
DTYPES = (
    Program(
        "float16 without a scaler",
        "S36",
        """
for x, y in batches:
    optimizer.zero_grad()
    loss = 1e-6 * loss_of(x, y)
    loss.backward()  # AMP502
    losses.append((model[0].weight.grad == 0).float().mean().item())
    optimizer.step()
""",
        shows="losses[0] > 0.5",
    ),
    Program(
        "float16 with a scaler that is made and never used",
        "S36",
        """
scaler = torch.amp.GradScaler("cpu")
for x, y in batches:
    optimizer.zero_grad()
    loss = 1e-6 * loss_of(x, y)
    loss.backward()  # AMP502
    losses.append((model[0].weight.grad == 0).float().mean().item())
    optimizer.step()
""",
        shows="losses[0] > 0.5",
    ),
    Program(
        "a scaler with bfloat16",
        "S35",
        """
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()  # AMP503
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "binary cross entropy in a region",
        "S78",
        """
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.binary_cross_entropy(torch.sigmoid(model(x)), (y > 0).float())  # AMP504
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "BCELoss in a region",
        "S78",
        """
criterion = nn.BCELoss()
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = criterion(torch.sigmoid(model(x)), (y > 0).float())  # AMP504
    loss.backward()
    optimizer.step()
""",
    ),
    Program(
        "bfloat16 weights are trained",
        "S77",
        """
model.to(torch.bfloat16)  # AMP501
start = [p.detach().clone() for p in model.parameters()]
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for x, y in batches:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x.bfloat16()).float(), y)
    loss.backward()
    optimizer.step()
""",
        shows="(model[0].weight == start[0]).float().mean() > 0.8",
    ),
    Program(
        "float16 weights of a fused optimizer",
        "S31",
        """
model.half()  # AMP501
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
for x, y in batches:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x.half()).float(), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        shows="model[0].weight.dtype == torch.float16",
    ),
    Program(
        "float16 weights of a plain optimizer",
        "Attempting to unscale FP16 gradients",
        """
model.half()  # AMP501
for x, y in batches:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x.half()).float(), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        raises="Attempting to unscale FP16 gradients",
    ),
    Program(
        "a scale that never grows",
        "S29",
        """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=0)  # AMP216
"""
        + RIGHT,
        shows="scaler.get_scale() == 2.0**10",
    ),
    Program(
        "an initial scale in the place of the device",
        "S30",
        """
scaler = torch.amp.GradScaler(1024.0)  # AMP216
"""
        + RIGHT,
        shows="scaler._init_scale == 65536.0 and scaler.is_enabled()",
    ),
)

#: Checkpoints, schedules, and scales that collapse.
OVER_TIME = (
    Program(
        "a checkpoint without the scaler",
        "S37",
        RIGHT
        + """\
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, io.BytesIO())  # AMP401
""",
    ),
    Program(
        "a checkpoint of the whole scaler",
        "S38",
        RIGHT
        + """\
torch.save({"optimizer": optimizer.state_dict(), "scaler": scaler}, io.BytesIO())  # AMP402
""",
    ),
    Program(
        "the state of the scaler is taken before update",
        "S38",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, 1e30 * y)).backward()
    scaler.step(optimizer)
    state = scaler.state_dict()  # AMP402
    scaler.update()
""",
        shows='state["scale"] == 2 * scaler.get_scale()',
    ),
    Program(
        "a schedule that advances on skipped steps",
        "S33",
        """
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
for i in range(4):
    x, y = batches[0]
    optimizer.zero_grad()
    scaler.scale(loss_of(x, 1e30 * y if i == 2 else y)).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()  # AMP403
""",
        codes=("AMP403",),
    ),
    Program(
        "a schedule that advances with every micro-batch",
        "S48",
        """
import warnings

warnings.simplefilter("ignore")  # torch sees that the schedule moves before the first step
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
for i in range(4):
    x, y = batches[0]
    scaler.scale(loss_of(x, y) / 2).backward()
    if i % 2 == 1:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    scheduler.step()  # AMP403
""",
        codes=("AMP403",),
    ),
    Program(
        "a loss that is NaN for ever",
        "S25",
        """
for _ in range(30):
    x, y = batches[0]
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y * float("nan"))).backward()
    scaler.step(optimizer); scaler.update()  # AMP801
""",
        shows="moved() == 0.0 and scaler.get_scale() == 2.0**-20",
    ),
    Program(
        "a loss that becomes NaN after the scale has settled, fused",
        "S25",
        """
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
for i in range(40):
    x, y = batches[0]
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y if i < 20 else y * float("nan"))).backward()
    scaler.step(optimizer); scaler.update()  # AMP801
""",
        shows="scaler.get_scale() == 2.0**-10 and is_finite()",
    ),
    Program(
        "no gradient is ever finite since a new scaler starts too high each time",
        "S10",
        """
for _ in range(30):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)  # AMP208
    x, y = batches[0]
    optimizer.zero_grad()
    scaler.scale(loss_of(x, 100 * y)).backward()
    scaler.step(optimizer); scaler.update()  # AMP801
""",
        shows="moved() == 0.0 and scaler.get_scale() == 2.0**23",
    ),
)

#: A norm that the program computes itself, for manual clipping. The limit shows in two steps.
NORM = "    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()\n"


def clipped_by_hand(name: str, edit: str, before: str = NORM) -> Program:
    """Return a program that multiplies gradients by a factor computed from their norm."""
    made = edited(f"a clip by hand, {name}", "S01", before + edit)
    return made._replace(body=made.body.replace("loss_of(x, y)", "loss_of(x, 5 * y)"), batch_counts=(3,))


BY_HAND = (
    clipped_by_hand(
        "mul_ by a tensor",
        """\
    for p in model.parameters():
        p.grad.detach().mul_(torch.clamp(0.1 / (norm + 1e-6), max=1.0))  # AMP201""",
    ),
    clipped_by_hand(
        "mul_ of grad.data by a number",
        """\
    for p in model.parameters():
        p.grad.data.mul_(0.1 / norm.item())  # AMP201""",
    ),
    clipped_by_hand(
        "div_",
        """\
    for p in model.parameters():
        p.grad.div_(norm)  # AMP201""",
    ),
    clipped_by_hand(
        "an operator in place",
        """\
    for p in model.parameters():
        p.grad *= 0.1 / norm  # AMP201""",
    ),
    clipped_by_hand(
        "all in one call",
        """\
    torch._foreach_mul_([p.grad for p in model.parameters()], float(0.1 / norm))  # AMP201""",
    ),
    clipped_by_hand(
        "assigned",
        """\
    for p in model.parameters():
        p.grad = p.grad * (0.1 / norm)  # AMP201""",
    ),
    clipped_by_hand(
        "grad.data assigned",
        """\
    for p in model.parameters():
        p.grad.data = p.grad.data * (0.1 / norm)  # AMP201""",
    ),
    clipped_by_hand(
        "by the largest value",
        """\
    for p in model.parameters():
        p.grad.mul_(0.1 / largest)  # AMP201""",
        "    largest = max(p.grad.abs().max() for p in model.parameters())\n",
    ),
    clipped_by_hand(
        "each by its own norm",
        """\
    for p in model.parameters():
        p.grad.mul_(0.1 / p.grad.norm())  # AMP201""",
        "",
    ),
)


def hooked(name: str, hook: str, register: str = "register_hook") -> Program:
    """Return a program with parameter hooks that change gradients."""
    return Program(
        f"a hook, {name}",
        "S20",
        f"""
def change(given):
{hook}


for p in model.parameters():
    p.{register}(change)
{RIGHT.replace("loss_of(x, y)", "loss_of(x, 5 * y)")}""",
        batch_counts=(3,),
    )


HOOKED = (
    hooked("that clamps", "    return given.clamp(-1e-2, 1e-2)").marked("def change(given):", "AMP202"),
    hooked("that normalises", "    return given / given.norm()").marked("def change(given):", "AMP201"),
    hooked("that clamps in place", "    given.clamp_(-1e-2, 1e-2)").marked("def change(given):", "AMP202"),
    hooked("that normalises in place", "    given.div_(given.norm())").marked("def change(given):", "AMP201"),
    hooked(
        "that clamps in place once gradients are accumulated",
        "    given.grad.clamp_(-1e-2, 1e-2)",
        "register_post_accumulate_grad_hook",
    ).marked("    given.grad.clamp_(-1e-2, 1e-2)", "AMP202"),
    hooked(
        "that clips once gradients are accumulated",
        "    nn.utils.clip_grad_norm_([given], 1.0)",
        "register_post_accumulate_grad_hook",
    ).marked("    nn.utils.clip_grad_norm_([given], 1.0)", "AMP201"),
)

#: Gradients multiplied by factors that are not clip coefficients.
NOT_CLIPPED = (
    clipped_by_hand(
        "of gradients that are unscaled",
        """\
    for p in model.parameters():
        p.grad.mul_(0.1 / norm)""",
        "    scaler.unscale_(optimizer)\n" + NORM,
    ),
    clipped_by_hand(
        "with a limit that is scaled too",
        """\
    for p in model.parameters():
        p.grad.mul_(limit / norm)""",
        NORM + "    limit = 0.1 * scaler.get_scale()\n",
    ),
    clipped_by_hand(
        "that is an average over samples of which there are more each time",
        """\
    losses.extend(range(8))
    for p in model.parameters():
        p.grad.div_(len(losses))""",
    ),
    clipped_by_hand(
        "that is an average over two processes",
        """\
    for p in model.parameters():
        p.grad.mul_(0.5)""",
    ),
    hooked("that halves", "    return given * 0.5"),
    hooked("that halves in place", "    given.mul_(0.5)"),
    hooked("that keeps some rows in place", "    given.mul_(torch.arange(given.numel()).view_as(given) % 2)"),
    hooked("that looks", "    losses.append(given.abs().max())"),
    hooked("that keeps some rows", "    return given * (torch.arange(given.numel()).view_as(given) % 2)"),
    hooked(
        "that halves once gradients are accumulated",
        "    given.grad.mul_(0.5)",
        "register_post_accumulate_grad_hook",
    ),
)

#: Gradients cleared before the step on purpose.
GIVEN_UP = (
    Program(
        "a loss that is large is dropped by a function",
        "S22",
        """
def drop():
    optimizer.zero_grad(set_to_none=False)


for x, y in batches:
    optimizer.zero_grad()
    loss = loss_of(x, y)
    scaler.scale(loss).backward()
    if loss.item() > 0:
        drop()
    scaler.step(optimizer)
    scaler.update()
""",
        shows="moved() == 0.0",
    ),
    Program(
        "gradients that are large are dropped, with a step of their own",
        "S22",
        """
for x, y in batches:
    optimizer.zero_grad()
    loss = loss_of(x, y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-6)
    if norm > 1e-6:
        optimizer.zero_grad(set_to_none=False)
        scaler.step(optimizer)
        scaler.update()
        continue
    scaler.step(optimizer)
    scaler.update()
""",
        shows="moved() == 0.0",
    ),
    Program(
        "gradients are dropped one by one",
        "S22",
        """
for x, y in batches:
    optimizer.zero_grad()
    loss = loss_of(x, y)
    scaler.scale(loss).backward()
    if loss.item() > 0:
        for p in model.parameters():
            p.grad.zero_()
    scaler.step(optimizer)
    scaler.update()
""",
        shows="moved() == 0.0",
    ),
    Program(
        "a batch is dropped where something is raised",
        "S22",
        """
for x, y in batches:
    optimizer.zero_grad()
    loss = loss_of(x, y)
    scaler.scale(loss).backward()
    try:
        losses[0]
    except IndexError:
        optimizer.zero_grad(set_to_none=False)
    scaler.step(optimizer)
    scaler.update()
""",
        shows="moved() == 0.0",
    ),
)

#: Work of a program beside each step, with a step that overflows.
BESIDE = """
{before}
for i in range(4):
    x, y = batches[0]
    optimizer.zero_grad()
    scaler.scale(loss_of(x, 1e30 * y if i == 2 else y)).backward()
{beside}
"""
STEPS = "    scaler.step(optimizer){mark}\n    scaler.update()\n"
AVERAGE = "average = torch.optim.swa_utils.AveragedModel(model)"
HOOK = "optimizer.register_step_post_hook(lambda *given: losses.append(given))"
SKIPPED = (
    Program(
        "weights that are averaged after a skipped step",
        "S33",
        BESIDE.format(
            before=AVERAGE, beside=STEPS.format(mark="") + "    average.update_parameters(model)  # AMP403\n"
        ),
        shows="average.n_averaged.item() == 4",
    ),
    Program(
        "a hook on the steps of a fused optimizer",
        "S33",
        BESIDE.format(before=f"{FUSED}\n{HOOK}", beside=STEPS.format(mark="  # AMP403")),
        shows="len(losses) == 4",
    ),
)
NOT_SKIPPED = (
    Program(
        "an exponential average of weights, which moves towards the same weights again",
        "S33",
        BESIDE.format(
            before="average = torch.optim.swa_utils.AveragedModel(\n"
            "    model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)\n)",
            beside=STEPS.format(mark="") + "    average.update_parameters(model)\n",
        ),
        shows="average.n_averaged.item() == 4",
    ),
    Program(
        "a momentum encoder, which moves towards the same weights again",
        "S33",
        BESIDE.format(
            before="import copy\nfollower = copy.deepcopy(model).requires_grad_(False)",
            beside=STEPS.format(mark="")
            + "    for kept, p in zip(follower.parameters(), model.parameters()):\n"
            + "        kept.data.mul_(0.9).add_(p.data, alpha=0.1)\n",
        ),
        shows="any(not torch.equal(p, q) for p, q in zip(follower.parameters(), model.parameters()))",
    ),
    Program(
        "weights that are averaged where the optimizer has stepped",
        "S33",
        BESIDE.format(
            before=AVERAGE,
            beside="    scale = scaler.get_scale()\n"
            + STEPS.format(mark="")
            + "    if scaler.get_scale() >= scale:\n        average.update_parameters(model)\n",
        ),
        shows="average.n_averaged.item() == 3",
    ),
    Program(
        "weights that are averaged once for several steps",
        "S33",
        BESIDE.format(
            before=AVERAGE,
            beside=STEPS.format(mark="")
            + "    if i % 2 == 0:\n        continue\n    average.update_parameters(model)\n",
        ),
    ),
    Program(
        "a hook on the steps of an optimizer that is not called where they are skipped",
        "S33",
        BESIDE.format(before=HOOK, beside=STEPS.format(mark="")),
        shows="len(losses) == 3",
    ),
)

#: Mistakes that the first version of the recorder did not look for.
GAPS = (
    *SKIPPED,
    *BY_HAND,
    *HOOKED,
    Program(
        "another scaler steps what one has scaled",
        "AMP205",
        """
other = nn.Linear(4, 1)
plain = torch.optim.SGD(other.parameters(), lr=0.01)
another = torch.amp.GradScaler("cpu", init_scale=2.0**12)
for x, y in batches:
    optimizer.zero_grad()
    plain.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(other(x), y)
    another.scale(loss).backward()
    another.step(plain)
    another.step(optimizer)  # AMP205
    another.update()
""",
        shows="0 < moved() < 2e-3",
        batch_counts=(3,),
    ),
)

#: Correct runs that resemble the mistakes above.
NEGATIVE_EXAMPLES = (
    *NOT_CLIPPED,
    *GIVEN_UP,
    *NOT_SKIPPED,
    Program("the right program", "all", RIGHT, shows="1e-3 < moved() < 5e-2"),
    Program(
        "one line that runs backward for two models, one of them without a scaler",
        "AMP204",
        """
def backward(loss):
    loss.backward()


other = nn.Linear(4, 1)
beside = torch.optim.SGD(other.parameters(), lr=0.01)
for x, y in batches:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = F.mse_loss(other(x), y)
    for loss in (plain, scaler.scale(loss_of(x, y))):
        backward(loss)
    beside.step()
    scaler.step(optimizer)
    scaler.update()
    beside.zero_grad()
    optimizer.zero_grad()
""",
        shows="1e-3 < moved() < 5e-2",
    ),
    Program(
        "a run that breaks off between step and update",
        "AMP206",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    raise KeyboardInterrupt("the user has seen enough")
    scaler.update()
""",
        raises="the user has seen enough",
    ),
    Program(
        "a run that breaks off inside backward",
        "AMP207",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    hidden = model(x)
    hidden.register_hook(lambda gradient: 1 / 0)
    hidden.sum().backward()
""",
        raises="division by zero",
    ),
    Program(
        "a step that fails and is not taken",
        "AMP206",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    try:
        if len(losses) == 0:
            losses.append(1)
            raise ValueError("a bad batch")
        scaler.step(optimizer)
    except ValueError:
        optimizer.zero_grad()
    scaler.update()
""",
    ),
    edited(
        "a gradient that is halved",
        "AMP202",
        """\
    for p in model.parameters():
        p.grad *= 0.5""",
        shows="1e-3 < moved() < 5e-2",
    ),
    edited(
        "all gradients in one call, multiplied",
        "AMP202",
        """\
    torch._foreach_mul_([p.grad for p in model.parameters()], 0.9)""",
    ),
    edited(
        "grad.data, multiplied",
        "AMP202",
        """\
    for p in model.parameters():
        p.grad.data.mul_(0.9)""",
    ),
    edited(
        "gradients that are set to copies of themselves",
        "AMP202",
        """\
    for p in model.parameters():
        p.grad = p.grad.clone()""",
        shows="1e-3 < moved() < 5e-2",
    ),
    Program(
        "two losses of one batch",
        "AMP301",
        """
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        output = model(x)
        first, second = F.mse_loss(output, y), F.l1_loss(output, y)
    scaler.scale(first).backward(retain_graph=True)
    scaler.scale(second).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        shows="moved() > 1e-3",
    ),
    Program(
        "weights are written between regions",
        "AMP101",
        """
x, y = batches[0]
for _ in range(3):
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        losses.append(model(x).sum().item())
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5)
    model.load_state_dict(model.state_dict())
""",
        shows="len(set(losses)) == 3",
    ),
    Program(
        "weights are written inside a region, and not used in it again",
        "AMP101",
        """
x, y = batches[0]
for _ in range(3):
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        losses.append(model(x).sum().item())
        for p in model.parameters():
            p.mul_(0.5)
""",
        shows="len(set(losses)) == 3",
    ),
    Program(
        "a model that is exported in float16",
        "AMP501",
        RIGHT
        + """\
import copy
exported = copy.deepcopy(model).half().eval()
with torch.no_grad():
    exported(batches[0][0].half())
""",
        shows="1e-3 < moved() < 5e-2",
    ),
    Program(
        "evaluation in float16",
        "AMP502",
        """
for x, y in batches:
    with torch.no_grad():
        losses.append(loss_of(x, y).item())
    loss_of(x, y)
""",
        shows="moved() == 0.0",
    ),
    Program(
        "float32 training beside it",
        "AMP203",
        """
other = nn.Linear(4, 1)
plain = torch.optim.Adam(other.parameters())
for x, y in batches:
    optimizer.zero_grad()
    plain.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    F.mse_loss(other(x), y).backward()
    nn.utils.clip_grad_norm_(other.parameters(), 0.1)
    plain.step()
    scaler.step(optimizer)
    scaler.update()
""",
        shows="1e-3 < moved() < 5e-2",
    ),
    Program(
        "two scalers, each with an optimizer of its own",
        "AMP205",
        """
other = nn.Linear(4, 1)
second = torch.optim.SGD(other.parameters(), lr=0.01)
another = torch.amp.GradScaler("cpu", init_scale=2.0**12)
for x, y in batches:
    optimizer.zero_grad()
    second.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(other(x), y)
    (another.scale(loss) + scaler.scale(loss_of(x, y))).backward()
    another.step(second)
    scaler.step(optimizer)
    scaler.update()
    another.update()
""",
        shows="1e-3 < moved() < 5e-2",
    ),
    Program(
        "a scaler that was switched off by its owner",
        "AMP217",
        """
scaler = torch.amp.GradScaler("cpu", enabled=False)
for x, y in batches:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    ),
)

MISTAKES = (*CLIPPED, *TOUCHED, *TWICE, *BYPASSED, *OUT_OF_ORDER, *WINDOWS, *REGIONS, *DTYPES, *OVER_TIME, *GAPS)
