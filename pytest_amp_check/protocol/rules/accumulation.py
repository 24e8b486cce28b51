"""AMP3xx: gradient accumulation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..events import DIVIDED_TWICE, Event, Program
from ..fix import SAFE, UNSAFE
from ..rule import ERROR, INFO, STATIC, WARNING, Fault, Rule

_EXAMPLES = "PyTorch docs, Automatic Mixed Precision examples: Gradient accumulation"

_SETUP = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(8, 16), torch.randn(8, 1)) for _ in range(16)]
k = 4

"""

_RIGHT = (
    _SETUP
    + """\
for i, (x, y) in enumerate(batches):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss / k).backward()
    if (i + 1) % k == 0:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
)

_CANONICAL = """\
import torch

def train(model, loader, optimizer, loss_fn, k):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
            loss = loss / k
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""

_TAIL_FLUSH = """\
import torch

def train(model, loader, optimizer, loss_fn, k):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y) / k
        scaler.scale(loss).backward()
        if (i + 1) % k == 0 or (i + 1) == len(loader):
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""

_TIMM = """\
import torch

def train_one_epoch(model, loader, optimizer, loss_fn, loss_scaler, k):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        need_update = (i + 1) % k == 0
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y) / k
        loss_scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters(), need_update=need_update)
        if need_update:
            optimizer.zero_grad()
"""

_ACCELERATE = """\
from accelerate import Accelerator

def train(model, optimizer, loader, loss_fn):
    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = loss_fn(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
"""

_MMENGINE = """\
from mmengine.optim import AmpOptimWrapper

def train(model, optimizer, loader):
    wrapper = AmpOptimWrapper(optimizer=optimizer, accumulative_counts=4)
    for data in loader:
        with wrapper.optim_context(model):
            loss = model(data)
        wrapper.update_params(loss)
"""

_DEEPSPEED = """\
import deepspeed

def train(model, config, loader, loss_fn):
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    for x, y in loader:
        loss = loss_fn(engine(x), y)
        engine.backward(loss)
        engine.step()
"""

MISSING_ACCUMULATION_DIVISION = Rule(
    "AMP301",
    "missing-accumulation-division",
    WARNING,
    "The losses of an accumulation window are summed, not averaged.",
    faults={
        "step@undivided": Fault(
            "`{loss}` is summed over the micro-batches of an accumulation window, not averaged: "
            "divide it by their number before backward"
        ),
        "step@undivided-vague": Fault(
            "`{loss}` comes from code that was not read, and is summed over the micro-batches of an accumulation "
            "window: if it is a mean, divide it by their number before backward",
            INFO,
        ),
    },
    why="""\
`backward()` adds to `.grad`. With `k` micro-batches for one step and a loss that is a mean over its own micro-batch,
the gradients are `k` times those of the large batch that accumulation is to stand for. The learning rate is multiplied
by `k` in effect, a clip bites `k` times harder, and the scale overflows earlier. Where all losses are sums, or are
divided by the total of all samples or tokens, nothing is to be done.
""",
    harm="""\
SGD's update was exactly 2.000, 4.000 and 8.000 times too large for k = 2, 4 and 8. Adam and AdamW normalise it away
(1.000001), so only clipping, weight decay and the loss scale are off there. With micro-batches of 100, 5, 50 and 2
items even the mean of means is wrong (relative gradient error 1.21); the sum of losses over the total number of items
is right to 1.4e-7.
""",
    bad=_SETUP
    + """\
for i, (x, y) in enumerate(batches):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()  # AMP301
    if (i + 1) % k == 0:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    good=_RIGHT,
    applicability=UNSAFE,
    fix="Divide each micro-batch's loss by the number of micro-batches: `scaler.scale(loss / k).backward()`.",
    sources=(
        f"{_EXAMPLES} (loss = loss / iters_to_accumulate)",
        "Hugging Face, 'Fixing gradient accumulation' (October 2024): unequal micro-batches",
        "measured: update ratios for k = 2, 4, 8 with SGD, Adam and AdamW",
    ),
    # What a run shows of micro-batches that should be averaged, it shows as well of several tasks or generator losses
    # that are meant to add up, and of a learning rate that was divided instead. The source tells them apart: by the
    # counter that decides on the step, the loop over the pieces of one batch, and the words of the divisor.
    readers=STATIC,
    silent=(
        (
            "a framework's own backward divides, whatever has computed the loss",
            """\
def train(loader, optimizer, loss_of, k):
    accelerator = make_accelerator(k)
    for i, batch in enumerate(loader):
        loss = loss_of(batch)
        accelerator.backward(loss)
        if (i + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        ("the loss is divided before it is scaled", _CANONICAL),
        ("the loss is divided, and the tail of the epoch is flushed", _TAIL_FLUSH),
        ("the loss is divided in a timm-style loop", _TIMM),
        ("accelerate divides in backward()", _ACCELERATE),
        ("mmengine divides in update_params()", _MMENGINE),
        ("DeepSpeed divides in engine.backward()", _DEEPSPEED),
        (
            "divided inside scale()",
            """\
import torch

def train(model, loader, optimizer, loss_fn, k):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss / k).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
        ),
        (
            "the scaled loss is divided",
            """\
import torch

def train(model, loader, optimizer, loss_fn, k):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        (scaler.scale(loss) / k).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
        ),
        (
            "the gradients are divided after unscale_",
            """\
import torch

def train(model, loader, optimizer, loss_fn, k):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.unscale_(optimizer)
            for p in model.parameters():
                p.grad.div_(k)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
        ),
        (
            "the learning rate is divided instead",
            """\
import torch

def train(model, loader, loss_fn, lr, k):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr / k)
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
        ),
        (
            "a sum over tokens is divided by the total of the window",
            """\
import torch
import torch.nn.functional as F

def train(model, windows, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for window in windows:
        total = sum(int((y != -100).sum()) for _, y in window)
        optimizer.zero_grad()
        for x, y in window:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y, reduction="sum") / total
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        (
            "losses reduced by a sum are meant to add up",
            """\
import torch
import torch.nn.functional as F

def train(model, loader, optimizer, k):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(model(x), y, reduction="sum")
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
        ),
        (
            "the loss is normalised to a nominal batch size",
            """\
import torch

def train(model, loader, optimizer, loss_fn, k, nominal=64):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y) * x.shape[0] / nominal
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
        ),
        (
            "the window is one micro-batch long",
            """\
import torch

K = 1

def train(model, loader, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        if (i + 1) % K == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
        ),
        (
            "two different losses of one batch add up",
            """\
import torch

def train(model, loader, optimizer, loss_fn, penalty):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss, extra = loss_fn(model(x), y), penalty(model)
        scaler.scale(loss).backward()
        scaler.scale(extra).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        ),
    ),
)

_SETUP_ACCELERATE = """\
import torch
from accelerate import Accelerator
from torch import nn

torch.manual_seed(0)
k = 4
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=k)
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = accelerator.prepare(model, optimizer)

for _ in range(16):
    x, y = torch.randn(8, 16), torch.randn(8, 1)
    with accelerator.accumulate(model):
        loss = nn.functional.mse_loss(model(x), y)
"""


def _divided_twice(event: Event, program: Program) -> Iterator[tuple[str, Mapping[str, str]]]:
    yield "loss:divided-twice", {name: str(event.facts[name]) for name in ("divisor", "framework", "way")}


DOUBLE_DIVISION = Rule(
    "AMP302",
    "double-division",
    ERROR,
    "The loss is divided by the number of micro-batches although the framework divides it too.",
    faults={
        "loss:divided-twice": Fault(
            "The loss is divided by `{divisor}`, by which {framework} divides it once more {way}: remove this division"
        ),
    },
    why="""\
`accelerator.backward(loss)` divides by the `gradient_accumulation_steps` of the Accelerator, on every call, inside and
outside of `accumulate()`. `engine.backward()` of DeepSpeed, `update_params()` of mmengine and the automatic
optimization of Lightning divide alike. A loss that the program has divided itself is then divided by `k * k`: the
gradients are `k` times too small, and with float16 they underflow that much earlier.

Lightning's `manual_backward()`, Fabric's and timm's backward do not divide: there the division is the program's.
""",
    harm="""\
With accelerate and k = 4 the norm of the window's gradients was 0.3688 instead of 1.4751, a quarter. SGD learns at a
quarter of its rate, nothing is raised, and the loss goes down all the same.
""",
    bad=_SETUP_ACCELERATE
    + """\
        loss = loss / k  # AMP302
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
""",
    good=_SETUP_ACCELERATE
    + """\
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
""",
    fix="Remove the program's own division, or build the framework's object without the number of micro-batches.",
    sources=(
        "accelerate 1.15, accelerator.py: Accelerator.backward divides by gradient_accumulation_steps",
        "DeepSpeed 0.19, runtime/engine.py: backward(loss, scale_wrt_gas=True)",
        "mmengine 0.10, optim/optimizer/optimizer_wrapper.py: update_params calls scale_loss",
        "Lightning 2.6, pytorch/loops/optimization/automatic.py: closure_loss is divided by accumulate_grad_batches",
        "measured: gradient norms with accelerate, k = 4",
    ),
    readers=STATIC,
    on={DIVIDED_TWICE: _divided_twice},
    silent=(
        ("accelerate divides alone", _ACCELERATE),
        ("mmengine divides alone", _MMENGINE),
        ("DeepSpeed divides alone", _DEEPSPEED),
        (
            "an Accelerator that was not told of the window divides by one",
            """\
from accelerate import Accelerator

def train(model, optimizer, loader, loss_fn, k):
    accelerator = Accelerator(mixed_precision="fp16")
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y) / k
        accelerator.backward(loss)
        if (i + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        (
            "a division by something else: the tokens of the window, with accelerate's own division undone",
            """\
from accelerate import Accelerator

def train(model, optimizer, windows, loss_fn, k):
    accelerator = Accelerator(gradient_accumulation_steps=k)
    model, optimizer = accelerator.prepare(model, optimizer)
    for window, tokens in windows:
        for x, y in window:
            with accelerator.accumulate(model):
                loss = loss_fn(model(x), y) * k / tokens
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
""",
        ),
        (
            "the divided loss is only logged",
            """\
from accelerate import Accelerator

def train(model, optimizer, loader, loss_fn, k):
    accelerator = Accelerator(gradient_accumulation_steps=k)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    total = 0.0
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = loss_fn(model(x), y)
            total += loss.detach() / k
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        (
            "one way divides and calls backward, the other calls accelerator.backward",
            """\
from accelerate import Accelerator

def train(model, optimizer, loader, loss_fn, k, plain):
    accelerator = Accelerator(gradient_accumulation_steps=k)
    for x, y in loader:
        loss = loss_fn(model(x), y)
        if plain:
            loss = loss / k
            loss.backward()
        else:
            accelerator.backward(loss)
""",
        ),
        (
            "Lightning's manual_backward does not divide",
            """\
import lightning as L
import torch.nn.functional as F

class Model(L.LightningModule):
    def __init__(self, k):
        super().__init__()
        self.automatic_optimization = False
        self.k = k

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        loss = F.mse_loss(self(batch[0]), batch[1]) / self.k
        self.manual_backward(loss)
        if (batch_idx + 1) % self.k == 0:
            opt.step()
            opt.zero_grad()
""",
        ),
        (
            "DeepSpeed is told not to divide",
            """\
import deepspeed

def train(model, config, loader, loss_fn):
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    for x, y in loader:
        loss = loss_fn(engine(x), y) / engine.gradient_accumulation_steps()
        engine.backward(loss, scale_wrt_gas=False)
        engine.step()
""",
        ),
    ),
)

_UNSCALED_EARLY = (
    "`{scaler}.unscale_({optimizer})` runs before the accumulation window is complete: "
    "call it once, where `{scaler}.step({optimizer})` follows"
)

UNSCALE_OR_UPDATE_IN_WINDOW = Rule(
    "AMP303",
    "unscale-or-update-in-window",
    ERROR,
    "unscale_() or update() runs before the accumulation window is complete.",
    faults={
        "unscale@window": Fault(_UNSCALED_EARLY),
        # The same, where no condition is known to hold the step back.
        "step@early": Fault(_UNSCALED_EARLY),
        "update@window": Fault(
            "`{scaler}.update()` runs before the accumulation window is complete: call it once, after `{scaler}.step()`"
        ),
    },
    why="""\
All micro-batches of a window must be scaled by the same number and unscaled once, together. `unscale_()` in the middle
leaves gradients to which the next backward adds 65536 times larger ones, and `update()` in the middle may change the
scale from one micro-batch to the next. Both belong under the test that decides about the step.
""",
    harm="""\
`unscale_()` after the first of four micro-batches made the update 51,000 times too large, with no error. `unscale_()`
in every micro-batch raises RuntimeError `unscale_() has already been called on this optimizer since the last
update().`; with `update()` beside it there is no error, and the micro-batches counted with weights of about 0, 0,
1.5e-5 and 1. An `update()` alone in every micro-batch raises AssertionError `No inf checks were recorded prior to
update.`
""",
    bad=_SETUP
    + """\
for i, (x, y) in enumerate(batches):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss / k).backward()
    scaler.unscale_(optimizer)  # AMP303
    if (i + 1) % k == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    good=_RIGHT,
    applicability=SAFE,
    fix="Move `unscale_()` and `update()` under the test that guards `scaler.step()`.",
    sources=(
        f"{_EXAMPLES} (the scale is updated once per effective batch)",
        "measured: update ratios and micro-batch weights with unscale_ and update inside the window",
    ),
    silent=(
        ("unscale_, step and update stand under one test", _CANONICAL),
        ("the test also flushes the tail", _TAIL_FLUSH),
        ("a timm-style loss scaler is told when to update", _TIMM),
        ("accelerate knows where the window ends", _ACCELERATE),
        ("mmengine counts the micro-batches itself", _MMENGINE),
        (
            "the window is one micro-batch long",
            """\
import torch

K = 1

def train(model, loader, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if (i + 1) % K == 0:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
""",
        ),
        (
            "the end of the window is kept in a name and tested twice",
            """\
import torch

def train(model, loader, optimizer, loss_fn, k, max_norm):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        last = (i + 1) % k == 0
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y) / k
        scaler.scale(loss).backward()
        if last and max_norm:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
        ),
        (
            "the micro-batches before the last leave the iteration early",
            """\
import torch

def train(model, loader, optimizer, loss_fn, k):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y) / k
        scaler.scale(loss).backward()
        if (i + 1) % k != 0:
            continue
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
        ),
        (
            "update(new_scale) follows a schedule of its own, at the end of the window",
            """\
import torch

def train(model, loader, optimizer, loss_fn, schedule, k):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y) / k
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update(float(schedule(i)))
            optimizer.zero_grad()
""",
        ),
        (
            "an inner loop over the micro-batches, the step after it",
            """\
import torch

def train(model, windows, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for window in windows:
        optimizer.zero_grad()
        for x, y in window:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = loss_fn(model(x), y) / len(window)
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
""",
        ),
    ),
)

WINDOW_BOUNDARY = Rule(
    "AMP304",
    "window-boundary",
    ERROR,
    "The borders of the accumulation window lose or mis-weight micro-batches.",
    faults={
        "zero@window": Fault(
            "Gradients of `{optimizer}` are cleared inside the accumulation window, so only its last micro-batch "
            "counts: clear them once, after the step"
        ),
        "window:off-by-one": Fault(
            "`{window}` is already true for the first micro-batch, so the first window holds that one alone: "
            "count from one, as in `(i + 1) % k == 0`",
            WARNING,
        ),
    },
    why="""\
`zero_grad()` in every iteration throws away what the window has gathered, all but the last micro-batch, which is still
divided by `k`: the run costs `k` passes per step and learns from one, at a `k`-th of its weight. A test like
`i % k == 0` with `i` counted from zero is true at once: the first step sees one micro-batch, and all later windows are
shifted, with a remainder at the end.
""",
    harm="""\
Cleared in every micro-batch, the gradient norm of the window was 0.0212 instead of 0.0409, with no error. With
`i % k == 0` the windows held 1, 4, 4, ... micro-batches and 3 were left over; the first update was 0.0147 instead of
0.0409.
""",
    bad=_SETUP
    + """\
for i, (x, y) in enumerate(batches):
    optimizer.zero_grad()  # AMP304
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss / k).backward()
    if (i + 1) % k == 0:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
""",
    good=_RIGHT,
    fix="Clear gradients under the same test as the step, after it, and let it count from one: `(i + 1) % k == 0`.",
    applicability=UNSAFE,
    sources=(
        f"{_EXAMPLES} (zero_grad stands with the step)",
        "measured: gradient norms of the window and sizes of the first update",
    ),
    readers=STATIC,
    silent=(
        ("cleared after the step, counted from one", _CANONICAL),
        ("the tail is flushed by the same test", _TAIL_FLUSH),
        ("a timm-style loop clears where it updates", _TIMM),
        ("accelerate's zero_grad does nothing inside the window", _ACCELERATE),
        (
            "enumerate starts at one",
            """\
import torch

def train(model, loader, optimizer, loss_fn, k):
    scaler = torch.amp.GradScaler("cuda")
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader, start=1):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y) / k
        scaler.scale(loss).backward()
        if i % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
        ),
        (
            "the global step is one at the first test",
            """\
import torch

def train(model, loader, optimizer, loss_fn, k):
    scaler = torch.amp.GradScaler("cuda")
    global_step = 0
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y) / k
        scaler.scale(loss).backward()
        global_step += 1
        if global_step % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
        ),
        (
            "cleared at the first micro-batch of each window",
            """\
import torch

def train(model, loader, optimizer, loss_fn, k):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        if i % k == 0:
            optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y) / k
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
""",
        ),
        (
            "the loader drops the last batch and its length is a multiple of k",
            """\
import torch
from torch.utils.data import DataLoader

def train(model, dataset, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    loader = DataLoader(dataset, batch_size=8, drop_last=True)
    assert len(loader) % 4 == 0
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y) / 4
        scaler.scale(loss).backward()
        if (i + 1) % 4 == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
        ),
        (
            "the tail is flushed after the loop",
            """\
import torch

def train(model, loader, optimizer, loss_fn, k):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y) / k
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    if len(loader) % k != 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
        ),
        (
            "i % k == 0 decides about the log, not about the step",
            """\
import torch

def train(model, loader, optimizer, loss_fn, log, k):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if i % k == 0:
            log(loss.item())
""",
        ),
    ),
)

_DDP = """\
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

"""

UNSYNCED_LAST_BACKWARD = Rule(
    "AMP305",
    "unsynced-last-backward",
    ERROR,
    "The last micro-batch of a window runs backward under no_sync(), so the processes go apart.",
    faults={
        "step@apart": Fault(
            "`{loss}` runs backward under `no_sync()` as the last one before `{optimizer}` is stepped, so each process "
            "applies gradients of its own: leave `no_sync()` before the last micro-batch of the window"
        ),
    },
    why="""\
Under `no_sync()` a backward adds to the gradients of its own process alone. It is the first backward outside of it
that averages over the processes what has gathered. Where the window's last backward runs under `no_sync()`, the step is
made of gradients that nobody has averaged: each process trains a model of its own, only one of which is saved.
""",
    harm="""\
Two processes, four micro-batches a window, SGD: with the condition of `no_sync()` the wrong way round, the gradients of
the first step differed by 106 % from process to process, and the parameters by 10 % after ten steps; with `no_sync()`
around every micro-batch by 94 % and 21 %. With `no_sync()` around all but the last, by nothing.
""",
    bad=_DDP
    + """\
def train(net, loader, k):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        last = (i + 1) % k == 0
        with model.no_sync() if last else nullcontext():
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y) / k
            scaler.scale(loss).backward()  # AMP305
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
    good=_DDP
    + """\
def train(net, loader, k):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        last = (i + 1) % k == 0
        with nullcontext() if last else model.no_sync():
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y) / k
            scaler.scale(loss).backward()
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
    fix="Enter `no_sync()` for all micro-batches of a window but the last.",
    sources=(
        "PyTorch docs, DistributedDataParallel.no_sync",
        "measured: two processes with gloo, differences of gradients and parameters",
    ),
    readers=STATIC,
    silent=(
        (
            "the last micro-batch has a backward of its own outside",
            _DDP
            + """\
def train(net, loader, k):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        if (i + 1) % k:
            with model.no_sync(), torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y) / k
                scaled = scaler.scale(loss)
            with model.no_sync():
                scaled.backward()
            continue
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y) / k
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
        ),
        (
            "the gradients are averaged by hand",
            _DDP
            + """\
def train(net, windows):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for window in windows:
        for x, y in window:
            with model.no_sync():
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = F.cross_entropy(model(x), y) / len(window)
                scaler.scale(loss).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad.div_(dist.get_world_size())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
        ),
        (
            "whether the last backward is left out is decided elsewhere",
            _DDP
            + """\
def train(net, loader, k, skips):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with model.no_sync() if skips(i) else nullcontext():
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y) / k
            scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
        ),
    ),
)

MISSING_NO_SYNC = Rule(
    "AMP306",
    "missing-no-sync",
    INFO,
    "DistributedDataParallel averages the gradients after every micro-batch, not once for each step.",
    faults={
        "backward@averaged": Fault(
            "`{loss}` runs backward outside of `no_sync()` in every micro-batch of a window, so the gradients of "
            "`{module}` are averaged over the processes each time: enter `no_sync()` for all micro-batches but the last"
        ),
    },
    default=False,
    why="""\
A backward through `DistributedDataParallel` sends the gradients of all parameters to all processes. In an accumulation
window only the sum of its micro-batches is stepped, and the average of a sum is the sum of averages: it is enough to
average once, in the last backward. The result is the same but for rounding; what is lost is time on the network.
""",
    harm="""\
Two processes with gloo, windows of four micro-batches: 16 all-reduces and 8.7 MB of gradients in four steps without
`no_sync()`, 4 and 2.2 MB with it around all but the last, and the same parameters to 12 digits.
""",
    bad=_DDP
    + """\
def train(net, loader, k):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y) / k
        scaler.scale(loss).backward()  # AMP306
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
    good=_DDP
    + """\
def train(net, loader, k):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        last = (i + 1) % k == 0
        with nullcontext() if last else model.no_sync():
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y) / k
            scaler.scale(loss).backward()
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
    fix="Enter `no_sync()` around forward and backward of all micro-batches of a window but the last.",
    sources=(
        "PyTorch docs, DistributedDataParallel.no_sync",
        "measured: two processes with gloo, all-reduces counted by a communication hook",
    ),
    readers=STATIC,
    silent=(
        (
            "every backward is stepped",
            _DDP
            + """\
def train(net, loader):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        (
            "the last micro-batch alone is averaged",
            _DDP
            + """\
def train(net, windows):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for window in windows:
        for x, y in window[:-1]:
            with model.no_sync():
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = F.cross_entropy(model(x), y) / len(window)
                scaler.scale(loss).backward()
        x, y = window[-1]
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y) / len(window)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
        ),
        (
            "one process trains alone",
            """\
import torch
import torch.nn.functional as F

def train(model, loader, k):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y) / k
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
        ),
        (
            "FSDP2 leaves the averaging out by a setting of the module",
            """\
import torch
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

def train(net, loader, k):
    model = fully_shard(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        model.set_requires_gradient_sync((i + 1) % k == 0)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y) / k
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
        ),
        (
            "DDP is told by its flag",
            _DDP
            + """\
def train(net, loader, k):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        model.require_backward_grad_sync = (i + 1) % k == 0
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y) / k
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
        ),
        (
            "accelerate knows the window",
            """\
from accelerate import Accelerator

def train(model, optimizer, loader, loss_fn):
    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_fn(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        (
            "Lightning enters no_sync() itself",
            """\
import lightning as L
import torch
from torch import nn


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 4)

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = L.Trainer(strategy="ddp", devices=2, precision="16-mixed", accumulate_grad_batches=4)
trainer.fit(Module(), loader)
""",
        ),
        (
            "DeepSpeed's engine knows the window",
            """\
import deepspeed
import torch.nn.functional as F

def train(net, loader, config):
    engine, optimizer, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    for x, y in loader:
        engine.backward(F.cross_entropy(engine(x), y))
        engine.step()
""",
        ),
        (
            "a context that cannot be read may leave the averaging out",
            _DDP
            + """\
def train(net, loader, window):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with window.part(model, i):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y) / window.size
            scaler.scale(loss).backward()
        if (i + 1) % window.size == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
        ),
    ),
)

RULES: tuple[Rule, ...] = (
    MISSING_ACCUMULATION_DIVISION,
    DOUBLE_DIVISION,
    UNSCALE_OR_UPDATE_IN_WINDOW,
    WINDOW_BOUNDARY,
    UNSYNCED_LAST_BACKWARD,
    MISSING_NO_SYNC,
)
