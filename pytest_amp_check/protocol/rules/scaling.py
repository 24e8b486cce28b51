"""AMP2xx: the gradient scaling protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..events import CLIP, GRAD_INVALID, PENALTY, SCALER_NEW, SCALER_STEP, Event, Program, Site, Symbol
from ..fix import SAFE, UNSAFE
from ..rule import ERROR, INFO, RUNTIME, STATIC, WARNING, Fault, Rule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeGuard

_Labels = Iterator[tuple[str, Mapping[str, str]]]

#: Below this many clean steps a doubling costs more skipped steps than it gains: 7 of 200 at 10, 94 of 200 at 1.
_SHORT_INTERVAL = 50
#: Above this the first steps of any ordinary loss overflow in float16.
_LARGE_SCALE = 2.0**24

#: An integer below this is taken for the index of a device, not for a scale.
_DEVICES = 16


def _closure(event: Event, program: Program) -> _Labels:
    if event.facts.get("closure"):
        yield "step-closure", {}


def _penalty(event: Event, program: Program) -> _Labels:
    yield "penalty@scaled", {}


def _disabled_itself(event: Event, program: Program) -> _Labels:
    if event.facts.get("disabled_itself"):
        yield "scaler:disabled-itself", {}


def _invalidated(event: Event, program: Program) -> _Labels:
    yield "grads:invalid", {}


def _in_test(site: Site) -> bool:
    """Whether a place lies in test code, where odd scales are chosen on purpose."""
    file = site.path.replace("\\", "/").rpartition("/")[2]
    if file.startswith("test_") or file.endswith("_test.py") or file == "conftest.py":
        return True
    return any(part.startswith("test_") for frame in site.frames() for part in frame.function.split("."))


def _number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _text(value: Any) -> str:
    if isinstance(value, Symbol):
        return "a torch.device" if value == "torch.device()" else str(value)
    return f"{value:.10g}" if isinstance(value, float) and not value.is_integer() else repr(value)


def _misconfigured(event: Event, program: Program) -> _Labels:
    arguments: dict[str, Any] = event.facts.get("arguments", {})
    if arguments.get("enabled") is False:
        return
    device, scale = arguments.get("device"), arguments.get("init_scale")
    if type(device) is int and 0 <= device < _DEVICES:
        yield "scaler:index-as-device", {"value": _text(device)}
        return
    if isinstance(device, (bool, int, float)):
        keyword = "enabled" if isinstance(device, bool) else "init_scale"
        yield "scaler:number-as-device", {"value": _text(device), "keyword": keyword}
        return
    if isinstance(scale, bool):
        yield "scaler:bool-as-scale", {"value": _text(scale), "number": str(float(scale))}
        return
    if isinstance(scale, str) and (not isinstance(scale, Symbol) or scale == "torch.device()"):
        yield "scaler:device-as-scale", {"value": _text(scale)}
        return
    if _number(scale) and scale <= 0:
        yield "scaler:zero-scale", {"value": _text(scale)}
    elif _number(scale) and scale > _LARGE_SCALE and not _in_test(event.site):
        yield "scaler:init-scale", {"value": _text(scale)}
    growth, backoff = arguments.get("growth_factor"), arguments.get("backoff_factor")
    bad_growth, bad_backoff = _number(growth) and growth <= 1, _number(backoff) and backoff >= 1
    if bad_growth and bad_backoff:
        yield "scaler:factors-swapped", {"growth": _text(growth), "backoff": _text(backoff)}
    elif bad_growth:
        yield "scaler:growth-factor", {"value": _text(growth)}
    elif bad_backoff:
        yield "scaler:backoff-factor", {"value": _text(backoff)}
    elif _number(backoff) and backoff <= 0:
        yield "scaler:zero-backoff", {"value": _text(backoff)}
    interval = arguments.get("growth_interval")
    if _number(interval) and not _in_test(event.site):
        if interval <= 0:
            yield "scaler:no-growth", {"value": _text(interval)}
        elif interval < _SHORT_INTERVAL:
            yield "scaler:growth-interval", {"value": _text(interval)}


_EXAMPLES = "PyTorch docs, Automatic Mixed Precision examples"
_SCALER_SOURCE = "torch/amp/grad_scaler.py"

_SETUP = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(32, 16), torch.randn(32, 1)) for _ in range(8)]

"""

_ACTOR_CRITIC = """\
import torch
from torch import nn

torch.manual_seed(0)
actor, critic = nn.Linear(16, 4), nn.Linear(16, 1)
actor_optimizer = torch.optim.AdamW(actor.parameters(), lr=1e-3)
critic_optimizer = torch.optim.AdamW(critic.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(32, 16), torch.randn(32, 4), torch.randn(32, 1)) for _ in range(8)]

"""

#: A model, an optimizer and one batch; what is added to it is one step.
_STEP_SETUP = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x, y = torch.randn(32, 16), torch.randn(32, 1)
with torch.autocast("cpu", dtype=torch.float16):
    loss = nn.functional.mse_loss(model(x), y)

"""

_CANONICAL = """\
import torch

def train(model, loader, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""

_ENABLED_FLAG = """\
import torch

def train(model, loader, optimizer, loss_fn, use_amp):
    scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
    for x, y in loader:
        with torch.autocast("cuda", enabled=use_amp):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""

_TWO_BRANCHES = """\
import contextlib
import torch

def train(model, loader, optimizer, loss_fn, fp16):
    scaler = torch.amp.GradScaler("cuda") if fp16 else None
    context = torch.autocast("cuda", dtype=torch.float16) if fp16 else contextlib.nullcontext()
    for x, y in loader:
        optimizer.zero_grad()
        with context:
            loss = loss_fn(model(x), y)
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        else:
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
"""

_DISABLED = """\
import torch

scaler = torch.amp.GradScaler("cuda", enabled=False)

def train_step(model, optimizer, loss_fn, x, y):
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
"""

_BFLOAT16 = """\
import torch

def train(model, loader, optimizer, loss_fn):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_fn(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
"""

_TIMM = """\
import torch

def train_one_epoch(model, loader, optimizer, loss_fn, loss_scaler, k):
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
    accelerator = Accelerator(mixed_precision="fp16")
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        loss = loss_fn(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
"""

_FABRIC = """\
from lightning.fabric import Fabric

def train(model, optimizer, loader, loss_fn):
    fabric = Fabric(precision="16-mixed")
    model, optimizer = fabric.setup(model, optimizer)
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
"""

_MMENGINE = """\
from mmengine.optim import AmpOptimWrapper

def train(model, optimizer, loader):
    wrapper = AmpOptimWrapper(optimizer=optimizer, clip_grad=dict(max_norm=1.0))
    for data in loader:
        with wrapper.optim_context(model):
            loss = model(data)
        wrapper.update_params(loss)
"""

_OWN_CHECK = """\
import torch

def train_step(model, optimizer, scaler, loss):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scale = scaler.get_scale()
    found_inf = False
    for p in model.parameters():
        p.grad.div_(scale)
        found_inf = found_inf or not bool(torch.isfinite(p.grad).all())
    if not found_inf:
        optimizer.step()
    scaler.update(scale * 0.5 if found_inf else scale)
"""

_GAN_ONE_UPDATE = """\
import torch

def train(generator, discriminator, opt_g, opt_d, loader, g_loss, d_loss):
    scaler = torch.amp.GradScaler("cuda")
    for real, noise in loader:
        opt_d.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            fake = generator(noise)
            loss_d = d_loss(discriminator(real), discriminator(fake.detach()))
        scaler.scale(loss_d).backward()
        scaler.step(opt_d)
        opt_g.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss_g = g_loss(discriminator(fake))
        scaler.scale(loss_g).backward()
        scaler.step(opt_g)
        scaler.update()
"""

_GAN_FULL_CYCLES = """\
import torch

def train(generator, discriminator, opt_g, opt_d, loader, g_loss, d_loss):
    scaler = torch.amp.GradScaler("cuda")
    for real, noise in loader:
        opt_d.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            fake = generator(noise)
            loss_d = d_loss(discriminator(real), discriminator(fake.detach()))
        scaler.scale(loss_d).backward()
        scaler.step(opt_d)
        scaler.update()
        opt_g.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss_g = g_loss(discriminator(fake))
        scaler.scale(loss_g).backward()
        scaler.step(opt_g)
        scaler.update()
"""

_SKIP_WITH_UPDATE = """\
import torch

def train(model, loader, optimizer, loss_fn, limit):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if norm > limit:
            optimizer.zero_grad()
            scaler.update()
            continue
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""

_SKIP_DETECTED = """\
import torch

def train(model, loader, optimizer, scheduler, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scale_before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() >= scale_before:
            scheduler.step()
"""

_GUARDED_STEP = """\
import torch

def train(model, loader, optimizers, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            if any(p.grad is not None for group in optimizer.param_groups for p in group["params"]):
                scaler.step(optimizer)
        scaler.update()
"""

_PENALTY_UNSCALED = """\
import torch

def train_step(model, optimizer, scaler, loss_fn, x, y):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = loss_fn(model(x), y)
    scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
    inv_scale = 1.0 / scaler.get_scale()
    grads = [g * inv_scale for g in scaled]
    with torch.autocast("cuda", dtype=torch.float16):
        loss = loss + sum(g.pow(2).sum() for g in grads).sqrt()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""

_SCALED_TERMS = """\
import torch
from torch import nn

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(x)
            loss = nn.functional.mse_loss(output, y)
            auxiliary = nn.functional.l1_loss(output, y)
        (scaler.scale(loss) + scaler.scale(auxiliary)).backward()
        scaler.step(optimizer)
        scaler.update()
"""

_SCALER_EACH = """\
import torch
from torch import nn

first, second = nn.Linear(8, 1), nn.Linear(8, 1)
opt_first = torch.optim.SGD(first.parameters(), lr=1e-3)
opt_second = torch.optim.SGD(second.parameters(), lr=1e-3)
scaler_first = torch.amp.GradScaler("cpu")
scaler_second = torch.amp.GradScaler("cpu", init_scale=2.0**12)
for x in torch.randn(4, 16, 8):
    opt_first.zero_grad()
    opt_second.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        a, b = first(x).float().square().mean(), second(x).float().square().mean()
    (scaler_first.scale(a) + scaler_second.scale(b)).backward()
    scaler_first.step(opt_first)
    scaler_second.step(opt_second)
    scaler_first.update()
    scaler_second.update()
"""

_WEIGHTED_TERMS = """\
import torch
from torch import nn

def train(model, loader, optimizer, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(x)
            loss = nn.functional.mse_loss(output, y) + 512.0 * nn.functional.l1_loss(output, y)
        total = 0.25 * scaler.scale(loss) + 0.75 * scaler.scale(nn.functional.huber_loss(output.float(), y))
        total.backward()
        scaler.step(optimizer)
        scaler.update()
"""

_DETACHED_TERM = """\
import torch
from torch import nn

def train(model, loader, optimizer, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(x)
            loss = nn.functional.mse_loss(output, y)
            offset = nn.functional.l1_loss(output, y).detach()
        (scaler.scale(loss) + offset).backward()
        scaler.step(optimizer)
        scaler.update()
"""

_SCALED_BY_HAND = """\
import torch
from torch import nn

def train(model, loader, optimizer, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(x)
            loss = nn.functional.mse_loss(output, y)
        total = scaler.scale(loss) + scaler.get_scale() * nn.functional.l1_loss(output.float(), y)
        total.backward()
        scaler.step(optimizer)
        scaler.update()
"""

_SCALE_UNDONE = """\
import torch
from torch import nn

def train(model, loader, optimizer, scaler, log):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            scaled = scaler.scale(nn.functional.mse_loss(model(x), y))
        loss = scaled / scaler.get_scale()
        log(loss.item())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

_SCALER_OR_NONE = """\
import torch
from torch import nn

def train(model, loader, optimizer, scaler, use_amp):
    scaler = scaler if use_amp else None
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, enabled=use_amp):
            output = model(x)
            loss = nn.functional.mse_loss(output, y)
            auxiliary = nn.functional.l1_loss(output, y)
        if scaler is not None:
            loss, auxiliary = scaler.scale(loss), scaler.scale(auxiliary)
        (loss + auxiliary).backward()
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
"""

_EXPECTS_ERROR = """\
import pytest
import torch

def test_second_step_raises(model, loss):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.step(optimizer)
    scaler.update()
"""


def _clips_copies(event: Event, program: Program) -> Iterator[tuple[str, Mapping[str, str]]]:
    if event.facts.get("copies"):
        yield "clip@copies", {"level": str(event.facts["copies"])}


_APEX = """\
from apex import amp
from torch.nn.utils import clip_grad_norm_

def train(model, optimizer, loader, loss_fn):
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2")
    for x, y in loader:
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        clip_grad_norm_(amp.master_params(optimizer), 1.0)
        optimizer.step()
"""

CLIP_BEFORE_UNSCALE = Rule(
    "AMP201",
    "clip-before-unscale",
    ERROR,
    "Gradients are clipped while they are still multiplied by the loss scale.",
    faults={
        "clip@scaled": Fault(
            "`{call}` clips gradients that are still multiplied by the loss scale: "
            "call `{scaler}.unscale_({optimizer})` before it"
        ),
        "clip@scaled-framework": Fault(
            "`{call}` clips gradients that {framework} keeps multiplied by the loss scale: {advice}"
        ),
        "clip@copies": Fault(
            "`{call}` clips float16 copies that opt_level {level} of apex keeps scaled and does not step: "
            "clip `amp.master_params(optimizer)`"
        ),
    },
    why="""\
After `scaler.scale(loss).backward()` every gradient is multiplied by the loss scale, 65536 at the start. A clip at that
point compares the scaled norm with `max_norm`, so it always clips, and `scaler.step()` then divides the clipped
gradients by the scale once more: the real threshold is `max_norm / scale`, and it moves whenever the scale moves.
Clipping by value also hides overflows: infinite gradients become finite before the scaler looks for them, so the step
is not skipped and the scale never backs off.
""",
    harm="""\
With `max_norm=0.1` the gradient norm after the step was 1.526e-6 instead of 0.1, and the norm that the call reported
was 4241.6 instead of 0.0647. SGD's update became 43,000 times too small (91,000 times with `max_norm=0.01`). Adam and
AdamW normalise gradients and move only 1.8 to 4.4 times too little, so a loss curve does not show it. With
`clip_grad_value_` SGD's update was 107,000 times too small, and with infinite gradients in every iteration the scale
stayed at 65536 for good, where a correct loop backs off to 4096 within four iterations.
""",
    bad=_SETUP
    + """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)  # AMP201
    scaler.step(optimizer)
    scaler.update()
""",
    good=_SETUP
    + """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)
    scaler.step(optimizer)
    scaler.update()
""",
    applicability=SAFE,
    fix="Call `scaler.unscale_(optimizer)` between backward and the clip; `scaler.step()` does not unscale again.",
    sources=(
        f"{_EXAMPLES}: Gradient clipping",
        "in public code: pytorch/examples#1196, milesial/Pytorch-UNet#468, Lightning-AI/pytorch-lightning#9330",
        "measured: gradient norms and update sizes of the same model with and without unscale_",
    ),
    silent=(
        ("the gradients are unscaled before the clip", _CANONICAL),
        ("the scaler may be disabled by a flag, and the loop is right either way", _ENABLED_FLAG),
        (
            "two tests of the same scaler guard unscale_ and step; the clip between them serves both branches",
            _TWO_BRANCHES,
        ),
        ("the scaler is switched off for good", _DISABLED),
        ("bfloat16 needs no scaler, so nothing is scaled", _BFLOAT16),
        ("accelerate unscales inside its own clip_grad_norm_", _ACCELERATE),
        ("Fabric unscales inside clip_gradients", _FABRIC),
        ("a timm-style loss scaler runs backward, unscale, clip, step and update in one call", _TIMM),
        ("mmengine's optimizer wrapper unscales before it clips", _MMENGINE),
        ("the skip branch calls update() before it goes on", _SKIP_WITH_UPDATE),
        (
            "the threshold is multiplied by the scale, which is the same as clipping unscaled gradients",
            """\
import torch

def train_step(model, optimizer, scaler, loss, max_norm):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
""",
        ),
        (
            "an infinite max_norm clips nothing and only measures (that is AMP202's matter)",
            """\
import torch

def train_step(model, optimizer, scaler, loss):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
    scaler.step(optimizer)
    scaler.update()
    return norm / scaler.get_scale()
""",
        ),
        (
            "the clip belongs to the branch without a scaler",
            """\
import torch

def train_step(model, optimizer, scaler, loss):
    optimizer.zero_grad()
    if scaler is None:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        ("apex unscales where the block ends, and its master parameters are clipped", _APEX),
    ),
    on={CLIP: _clips_copies},
)

SCALED_GRAD_TOUCHED = Rule(
    "AMP202",
    "scaled-grad-touched",
    ERROR,
    "Gradients are edited or read while they are still multiplied by the loss scale.",
    faults={
        "edit@scaled": Fault(
            "Gradients of `{optimizer}` are edited while they are still multiplied by the loss scale: "
            "call `{scaler}.unscale_({optimizer})` before the edit"
        ),
        "read@scaled": Fault(
            "Gradients of `{optimizer}` are read while they are still multiplied by the loss scale: "
            "call `{scaler}.unscale_({optimizer})` first, or divide what is read by `{scaler}.get_scale()`",
            INFO,
        ),
    },
    why="""\
Between the scaled backward and `unscale_()` a gradient is the true gradient times the loss scale. Whatever is added to
it there (weight decay, noise, a clamp, a replacement for NaN) is divided by the scale afterwards and vanishes, and an
edit that turns infinities into numbers takes the overflow away before the scaler can see it. A norm that is only
logged is wrong by the same factor and jumps whenever the scale changes.
""",
    harm="""\
Hand-made weight decay or noise on scaled gradients contributed 0.0 where 5.4e-4 was meant; a hook clamping to 0.01
moved parameters by 6.3e-8 instead of 2.6e-3. `grad.nan_to_num_()` before the step put a parameter at -5.2e32 after one
step, because the overflow became the largest finite number and was applied; with zeros in its place the parameters
never moved and the scale never backed off. Logged norms and scaled losses were 65536 times too large.
""",
    bad=_SETUP
    + """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    for p in model.parameters():
        p.grad.add_(p.detach(), alpha=1e-2)  # AMP202
    scaler.step(optimizer)
    scaler.update()
""",
    good=_SETUP
    + """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        p.grad.add_(p.detach(), alpha=1e-2)
    scaler.step(optimizer)
    scaler.update()
""",
    fix="Call `scaler.unscale_(optimizer)` before gradients are edited or logged.",
    sources=(
        f"{_EXAMPLES}: Working with unscaled gradients",
        "measured: nan_to_num_, weight decay, clamping hooks and logged norms on scaled and on unscaled gradients",
    ),
    silent=(
        ("clipping after unscale_ edits true gradients", _CANONICAL),
        ("asking whether a gradient is there reads no value", _GUARDED_STEP),
        ("the results of autograd.grad are unscaled by hand before they are used", _PENALTY_UNSCALED),
        ("the loop unscales and checks by hand, and steps the optimizer itself", _OWN_CHECK),
        ("no scaler, nothing scaled", _BFLOAT16),
        (
            "dropping gradients is the same at every scale",
            """\
import torch

def train_step(model, frozen, optimizer, scaler, loss):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    for p in frozen.parameters():
        if p.grad is not None:
            p.grad.zero_()
    for p in model.embedding.parameters():
        p.grad = None
    scaler.step(optimizer)
    scaler.update()
""",
        ),
        (
            "all_reduce sums and averages scaled gradients of one scale",
            """\
import torch
import torch.distributed as dist

def train_step(model, optimizer, scaler, loss):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    scaler.step(optimizer)
    scaler.update()
""",
        ),
        (
            "the direction and the sign of a gradient do not depend on the scale",
            """\
import torch

def train_step(model, optimizer, scaler, loss, history):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    for p in model.parameters():
        history.append(torch.sign(p.grad))
        history.append(p.grad / p.grad.norm())
    scaler.step(optimizer)
    scaler.update()
""",
        ),
        (
            "what is read is divided by the scale",
            """\
import torch

def train_step(model, optimizer, scaler, loss, log):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    for name, p in model.named_parameters():
        log(name, p.grad.norm() / scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
""",
        ),
        (
            "the statistic is divided by the scale after it is computed",
            """\
import torch

def train_step(model, optimizer, scaler, loss, log):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    total = torch.norm(torch.stack([p.grad.norm() for p in model.parameters()]))
    total = total / scaler.get_scale()
    log("grad_norm", total)
    scaler.step(optimizer)
    scaler.update()
""",
        ),
        (
            "gradients are logged after unscale_",
            """\
import torch

def train_step(model, optimizer, scaler, loss, writer, step):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for name, p in model.named_parameters():
        writer.add_histogram(name, p.grad, step)
    scaler.step(optimizer)
    scaler.update()
""",
        ),
    ),
)

BACKWARD_ON_UNSCALED_LOSS = Rule(
    "AMP203",
    "backward-on-unscaled-loss",
    ERROR,
    "A loss runs backward unscaled although its gradients are stepped by a scaler.",
    faults={
        "step@raw": Fault(
            "`{loss}` runs backward without the loss scale, yet `{scaler}.step({optimizer})` divides its gradients by "
            "it: write `{scaler}.scale({loss}).backward()`"
        ),
        "step@raw-framework": Fault(
            "`{loss}` runs backward without the loss scale, by which {framework} divides its gradients: {advice}"
        ),
    },
    why="""\
`scaler.step()` divides every gradient of its optimizer by the loss scale; it cannot know that a gradient was never
multiplied by it. torch notices only when `scale()` was never called at all (`Attempted step but _scale is None`). As
soon as one loss of the program is scaled, the unscaled one passes silently, and small gradients get no protection from
underflow either.
""",
    harm="""\
SGD's update became 65536 times too small (measured ratio 1.58e-5), Adam's half as large (0.498). Nothing is raised once
the scaler has scaled any other loss.
""",
    bad=_ACTOR_CRITIC
    + """\
for x, action, value in batches:
    actor_optimizer.zero_grad()
    critic_optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        actor_loss = nn.functional.mse_loss(actor(x), action)
        critic_loss = nn.functional.mse_loss(critic(x), value)
    scaler.scale(actor_loss).backward()
    critic_loss.backward()  # AMP203
    scaler.step(actor_optimizer)
    scaler.step(critic_optimizer)
    scaler.update()
""",
    good=_ACTOR_CRITIC
    + """\
for x, action, value in batches:
    actor_optimizer.zero_grad()
    critic_optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        actor_loss = nn.functional.mse_loss(actor(x), action)
        critic_loss = nn.functional.mse_loss(critic(x), value)
    scaler.scale(actor_loss).backward()
    scaler.scale(critic_loss).backward()
    scaler.step(actor_optimizer)
    scaler.step(critic_optimizer)
    scaler.update()
""",
    applicability=SAFE,
    fix="Run every loss whose parameters the scaler steps backward through `scaler.scale(loss).backward()`.",
    sources=(
        f"{_EXAMPLES}: Working with multiple models, losses, and optimizers (each loss is scaled)",
        f"{_SCALER_SOURCE}: step() unscales whatever it finds",
        "measured: update ratio 1.58e-5 with SGD, 0.498 with Adam",
    ),
    silent=(
        ("the loss is scaled", _CANONICAL),
        ("the raw backward belongs to the branch without a scaler", _TWO_BRANCHES),
        ("the scaler is disabled by the same flag as autocast", _ENABLED_FLAG),
        ("bfloat16 without a scaler", _BFLOAT16),
        ("each of the two losses is scaled", _GAN_ONE_UPDATE),
        ("accelerator.backward scales", _ACCELERATE),
        ("autograd.grad of a scaled loss, unscaled by hand, enters a loss that is scaled", _PENALTY_UNSCALED),
        (
            "one expression serves both cases",
            """\
import torch

def train_step(model, optimizer, scaler, loss):
    optimizer.zero_grad()
    (scaler.scale(loss) if scaler is not None else loss).backward()
    if scaler is not None:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
""",
        ),
        (
            "a second model trains without the scaler",
            """\
import torch

def train(model, probe, loader, loss_fn):
    optimizer = torch.optim.AdamW(model.parameters())
    probe_optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        probe_optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            features = model(x)
            loss = loss_fn(features, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        probe_loss = loss_fn(probe(features.detach().float()), y)
        probe_loss.backward()
        probe_optimizer.step()
""",
        ),
        (
            "torch.autograd.backward takes the scaled loss",
            """\
import torch

def train_step(model, optimizer, scaler, loss):
    optimizer.zero_grad()
    torch.autograd.backward(scaler.scale(loss))
    scaler.step(optimizer)
    scaler.update()
""",
        ),
        (
            "a sum of scaled losses is a scaled loss",
            """\
import torch

def train_step(model, optimizer, scaler, loss, auxiliary):
    optimizer.zero_grad()
    total = scaler.scale(loss) + scaler.scale(auxiliary)
    total.backward()
    scaler.step(optimizer)
    scaler.update()
""",
        ),
        (
            "autograd.grad of an unscaled loss leaves .grad alone",
            """\
import torch

def train_step(model, optimizer, scaler, loss, saliency_of, x):
    optimizer.zero_grad()
    saliency = torch.autograd.grad(loss, x, retain_graph=True)[0]
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return saliency_of(saliency)
""",
        ),
    ),
)

SCALER_STEP_BYPASSED = Rule(
    "AMP204",
    "scaler-step-bypassed",
    ERROR,
    "optimizer.step() is called directly on gradients that a scaler has scaled.",
    faults={
        "plain-step@scaled": Fault(
            "`{optimizer}.step()` applies gradients that are still multiplied by the loss scale: "
            "call `{scaler}.step({optimizer})` and then `{scaler}.update()` instead"
        ),
        "plain-step@scaled-framework": Fault(
            "`{optimizer}.step()` applies gradients that {framework} keeps multiplied by the loss scale: {advice}"
        ),
        "plain-step@unscaled": Fault(
            "`{optimizer}.step()` ignores the inf check that `{scaler}.unscale_({optimizer})` has made: "
            "call `{scaler}.step({optimizer})` instead"
        ),
        "plain-step@stepped": Fault(
            "`{optimizer}.step()` applies the gradients once more after `{scaler}.step({optimizer})`, "
            "even where that one was skipped: remove it"
        ),
    },
    why="""\
`scaler.step(optimizer)` does three things that `optimizer.step()` does not: it divides the gradients by the loss scale,
it looks for infinities and NaN, and it skips the step when there are any. Calling the optimizer directly applies
gradients 65536 times too large, or, after `unscale_()`, applies the infinities that the scaler has just found.
""",
    harm="""\
SGD's update became 65536 times too large. Adam and AdamW do not care for the size of a gradient (ratio 1.0002), so the
run looks healthy until the first overflow, which nothing guards: after `unscale_()` and a plain step the parameters
were non-finite on the first infinite gradient, where the correct loop stayed finite. The same holds for optimizers
stepped from a gradient hook.
""",
    bad=_SETUP
    + """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    optimizer.step()  # AMP204
""",
    good=_SETUP
    + """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    applicability=SAFE,
    fix="Replace `optimizer.step()` by `scaler.step(optimizer)` and `scaler.update()`.",
    sources=(
        "PyTorch docs, torch.amp.GradScaler.step",
        "measured: update ratio 65536.0 with SGD, 1.0002 with Adam; parameters after an injected infinity",
    ),
    silent=(
        ("the scaler steps", _CANONICAL),
        ("the plain step is the other side of a test for the scaler", _TWO_BRANCHES),
        ("no scaler in this loop", _BFLOAT16),
        ("the loop has its own check for infinities and unscales by hand", _OWN_CHECK),
        ("accelerate's optimizer calls the scaler inside step()", _ACCELERATE),
        ("Fabric's optimizer calls the scaler inside step()", _FABRIC),
        ("mmengine's wrapper steps", _MMENGINE),
        (
            "the optimizer stepped directly is fed by another, unscaled loss",
            """\
import torch

def train_step(model, centers, optimizer, center_optimizer, scaler, loss, center_loss):
    optimizer.zero_grad()
    center_optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    center_loss(centers).backward()
    center_optimizer.step()
""",
        ),
        (
            "a literally disabled scaler scales nothing",
            """\
import torch

def train_step(model, optimizer, loss):
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    optimizer.step()
""",
        ),
        (
            "the branch is chosen by the precision",
            """\
import torch

class Trainer:
    def __init__(self, model, optimizer, precision):
        self.model, self.optimizer, self.precision = model, optimizer, precision
        self.scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16")

    def step(self, loss):
        self.optimizer.zero_grad()
        if self.precision == "fp16":
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()
""",
        ),
        (
            "the wrapped optimizer's step calls the scaler",
            """\
import torch

class ScaledOptimizer:
    def __init__(self, optimizer, scaler):
        self.optimizer, self.scaler = optimizer, scaler

    def step(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()

def train_step(model, base, scaler, loss):
    optimizer = ScaledOptimizer(base, scaler)
    base.zero_grad()
    scaler.scale(loss).backward()
    optimizer.step()
""",
        ),
    ),
)

LOSS_SCALED_UNEVENLY = Rule(
    "AMP205",
    "loss-scaled-unevenly",
    ERROR,
    "Terms of a loss, or losses of one optimizer, are multiplied by different factors.",
    faults={
        "backward@uneven": Fault(
            "`{call}` runs backward from a sum of terms that are not all multiplied by the same loss scale: "
            "add the terms first, and scale their sum"
        ),
        "scale@scaled": Fault(
            "`{call}` scales a loss that is multiplied by a loss scale already: scale it once, where it runs backward"
        ),
        "step@uneven": Fault(
            "`{call}` adds gradients to those of `{optimizer}` that another scaler has scaled: "
            "use one scaler for all losses that feed an optimizer"
        ),
    },
    why="""\
`scaler.step()` divides every gradient by one number, the loss scale. A term that was added without the scale is divided
all the same and vanishes; a loss that was scaled twice stays too large by the scale; and where two scalers have scaled
what feeds one optimizer, the terms weigh as their scales happen to, which move apart at the first overflow.
""",
    harm="""\
A penalty that was added to the scaled loss moved parameters by 3.3e-4 at a scale of 256, by 1.5e-5 at 1024 and by 0.0
at 65536, where 0.050 was meant. A loss that was scaled twice made SGD's update 256.0 times too large at a scale of 256;
at 65536 every step overflowed until the scale had fallen to 128, nine skipped steps, and it stayed too large from there
on. With two scalers at 65536 and 4096 the second loss weighed 0.0625 times what was meant, and 16.0 times with the
scales the other way around.
""",
    bad=_SETUP
    + """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        output = model(x)
        loss = nn.functional.mse_loss(output, y)
    penalty = output.float().square().mean()
    total = scaler.scale(loss) + 0.1 * penalty
    total.backward()  # AMP205
    scaler.step(optimizer)
    scaler.update()
""",
    good=_SETUP
    + """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        output = model(x)
        loss = nn.functional.mse_loss(output, y)
    penalty = output.float().square().mean()
    total = loss + 0.1 * penalty
    scaler.scale(total).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    fix="Add the terms of a loss first and scale their sum once, with the scaler that steps the optimizer.",
    sources=(
        f"{_EXAMPLES}: Working with multiple models, losses, and optimizers (one scaler, each loss scaled once)",
        "measured: update sizes of the same model with a term left unscaled, a loss scaled twice, and two scalers",
    ),
    silent=(
        ("each loss is scaled once, and the sum of both runs backward", _SCALED_TERMS),
        ("two scalers, and each has parameters of its own", _SCALER_EACH),
        ("constant weights of the terms are no scales", _WEIGHTED_TERMS),
        ("what is added carries no gradient", _DETACHED_TERM),
        ("the other term is multiplied by the loss scale by hand", _SCALED_BY_HAND),
        ("the scale is divided away before the loss is scaled again", _SCALE_UNDONE),
        ("the scaler may be None, and then neither term is scaled", _SCALER_OR_NONE),
        ("gradients of a scaled loss are divided by the scale before they enter the next one", _PENALTY_UNSCALED),
        ("accelerate scales the loss that it is given", _ACCELERATE),
    ),
)

MISSING_SCALER_UPDATE = Rule(
    "AMP206",
    "missing-scaler-update",
    ERROR,
    "scaler.step() is not followed by scaler.update().",
    faults={
        "step@stepped": Fault(
            "`{scaler}.step({optimizer})` is reached again without a `{scaler}.update()` in between: "
            "call `{scaler}.update()` once after the last step of every iteration"
        ),
        "end@stepped": Fault(
            "`{scaler}.step({optimizer})` is never followed by `{scaler}.update()`: "
            "call `{scaler}.update()` once after the last step of every iteration"
        ),
        "unscale@step-pending": Fault(
            "`{scaler}.step({optimizer})` is not followed by `{scaler}.update()` before gradients are unscaled again: "
            "call `{scaler}.update()` once after the last step of every iteration"
        ),
    },
    why="""\
`update()` closes an iteration: it halves the scale after an overflow, lets it grow after enough clean steps, and makes
the scaler ready for the next `step()`. Without it the scale never adapts. torch raises `step() has already been called
since the last update().`, but only in the second iteration of the same scaler, so a smoke test of one step passes, and
code that steps each scaler once never hears of it.
""",
    harm="""\
The second iteration raises RuntimeError (`unscale_() is being called after step().` where the loop also unscales).
Where a scaler steps once only, nothing is raised and the scale stays where it was: an overflow is skipped and repeats.
""",
    bad=_SETUP
    + """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # AMP206
""",
    good=_SETUP
    + """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    applicability=SAFE,
    fix="Call `scaler.update()` once per iteration, after the last `scaler.step()`.",
    sources=(
        "PyTorch docs, torch.amp.GradScaler.update",
        f"{_SCALER_SOURCE}: step() raises when its optimizer is already in the stage STEPPED",
    ),
    silent=(
        ("update follows step", _CANONICAL),
        ("two optimizers step, one update closes the iteration", _GAN_ONE_UPDATE),
        ("the scaler is disabled by a literal", _DISABLED),
        ("a step is guarded, the update is not", _GUARDED_STEP),
        ("the scale is read between step and update", _SKIP_DETECTED),
        ("a timm-style loss scaler updates inside its call", _TIMM),
        ("mmengine's wrapper updates", _MMENGINE),
        ("Fabric's optimizer updates", _FABRIC),
        ("a test that expects torch's own error", _EXPECTS_ERROR),
        (
            "the update is in a helper",
            """\
import torch

class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.scaler = torch.amp.GradScaler("cuda")

    def finish(self):
        self.scaler.update()
        self.optimizer.zero_grad()

    def train(self, loader, loss_fn):
        for x, y in loader:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = loss_fn(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.finish()
""",
        ),
        (
            "the update is in a callback that is given the scaler",
            """\
import torch

def train(model, loader, optimizer, loss_fn, callbacks):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        callbacks.after_step(scaler)
""",
        ),
        (
            "the update is in a finally",
            """\
import torch

def train_step(model, optimizer, scaler, loss):
    optimizer.zero_grad()
    try:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
    finally:
        scaler.update()
""",
        ),
        (
            "a fixed scale is set with update(new_scale)",
            """\
import torch

def train(model, loader, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update(1024.0)
""",
        ),
    ),
)

UPDATE_BEFORE_ALL_STEPS = Rule(
    "AMP207",
    "update-before-all-steps",
    ERROR,
    "scaler.update() runs while an optimizer still holds gradients of the old scale, or with no step to judge.",
    faults={
        "update@pending": Fault(
            "`{scaler}.update()` changes the scale while `{optimizer}` still holds gradients of the old one: "
            "step every optimizer first, then update once"
        ),
        "update@nothing": Fault(
            "`{scaler}.update()` finds no step or unscale_ since the last update, so torch raises: "
            "call it once per iteration, after `{scaler}.step({optimizer})`"
        ),
    },
    why="""\
Gradients carry the scale they were made with, and `step()` divides by the scale of the moment. An `update()` between
the steps of two optimizers may double or halve the scale, and the second step then divides by the wrong number; it also
makes the scaler forget the first optimizer's overflow. One `update()` after all steps is right, and so is a complete
cycle of backward, step and update for each optimizer in turn.
""",
    harm="""\
The second optimizer's update came out exactly 2.0 times too large where the first had overflowed and 0.5 times where
the scale had grown; in all other iterations it was right, which makes this hard to find. An `update()` with no step
before it raises AssertionError `No inf checks were recorded prior to update.`
""",
    bad=_ACTOR_CRITIC
    + """\
for x, action, value in batches:
    actor_optimizer.zero_grad()
    critic_optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        actor_loss = nn.functional.mse_loss(actor(x), action)
        critic_loss = nn.functional.mse_loss(critic(x), value)
    scaler.scale(actor_loss).backward()
    scaler.scale(critic_loss).backward()
    scaler.step(actor_optimizer)
    scaler.update()  # AMP207
    scaler.step(critic_optimizer)
    scaler.update()
""",
    good=_ACTOR_CRITIC
    + """\
for x, action, value in batches:
    actor_optimizer.zero_grad()
    critic_optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        actor_loss = nn.functional.mse_loss(actor(x), action)
        critic_loss = nn.functional.mse_loss(critic(x), value)
    scaler.scale(actor_loss).backward()
    scaler.scale(critic_loss).backward()
    scaler.step(actor_optimizer)
    scaler.step(critic_optimizer)
    scaler.update()
""",
    fix="Step every optimizer that holds scaled gradients, then call `scaler.update()` once.",
    applicability=SAFE,
    sources=(
        f"{_EXAMPLES}: Working with multiple models, losses, and optimizers (update once, at the end)",
        "PyTorch docs, torch.amp.GradScaler.update",
        "measured: update ratios 2.0, 0.5 and 1.0 of the second optimizer; complete cycles differ by 0.0",
    ),
    silent=(
        ("one optimizer, one update", _CANONICAL),
        ("one update after both steps", _GAN_ONE_UPDATE),
        ("each optimizer completes its own cycle before the other's backward: bit-identical", _GAN_FULL_CYCLES),
        ("an update closes an iteration that was skipped after unscale_", _SKIP_WITH_UPDATE),
        ("update(new_scale) needs no step before it", _OWN_CHECK),
        ("at least one of several guarded steps runs", _GUARDED_STEP),
        (
            "the second optimizer steps every n-th iteration, on gradients made after the update",
            """\
import torch

def train(generator, critic, opt_g, opt_c, loader, g_loss, c_loss, n_critic):
    scaler = torch.amp.GradScaler("cuda")
    for i, (real, noise) in enumerate(loader):
        opt_c.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss_c = c_loss(critic(real), critic(generator(noise).detach()))
        scaler.scale(loss_c).backward()
        scaler.step(opt_c)
        scaler.update()
        if i % n_critic == 0:
            opt_g.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss_g = g_loss(critic(generator(noise)))
            scaler.scale(loss_g).backward()
            scaler.step(opt_g)
            scaler.update()
""",
        ),
    ),
)

SCALER_RECREATED_IN_LOOP = Rule(
    "AMP208",
    "scaler-recreated-in-loop",
    ERROR,
    "A GradScaler is constructed inside the training loop that uses it.",
    faults={
        "new@used": Fault(
            "`{scaler}` is constructed anew in every pass of the loop that uses it, so what it learned of the scale is "
            "lost: construct it once, before the loop"
        ),
    },
    why="""\
The scale is learned: it starts at 65536, halves on every overflow and grows after 2000 clean steps. A new scaler starts
over. Where the loss needs a smaller scale, every iteration overflows at the first value again, the step is skipped, and
the scaler that knows so is thrown away. Construct it once per run, before the loop over epochs.
""",
    harm="""\
Constructed in every iteration: 0 of 30 steps were taken and the scale read 32768 for ever, with no error; constructed
once: 24 of 30 taken, settled at 1024.
""",
    bad="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = [(torch.randn(32, 16), 100 * torch.randn(32, 1)) for _ in range(8)]

for x, y in batches:
    scaler = torch.amp.GradScaler("cpu")  # AMP208
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    good="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = [(torch.randn(32, 16), 100 * torch.randn(32, 1)) for _ in range(8)]

scaler = torch.amp.GradScaler("cpu")
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    applicability=SAFE,
    fix="Construct the GradScaler once, before the loop.",
    sources=(
        f"{_EXAMPLES}: Typical mixed precision training (the scaler is created once at the beginning of training)",
        "measured: steps taken and scale over 30 iterations",
    ),
    readers=STATIC,
    silent=(
        ("constructed before the loop", _CANONICAL),
        (
            "one scaler for each fold, with its own model",
            """\
import torch

def cross_validate(folds, build, loss_fn):
    for loader in folds:
        model = build()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
""",
        ),
        (
            "constructed in a function that is called once per run",
            """\
import torch

def build(config):
    return torch.amp.GradScaler("cuda", enabled=config["amp"])

def main(config, model, optimizer, loader, loss_fn):
    scaler = build(config)
    for _ in range(config["epochs"]):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", enabled=config["amp"]):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
""",
        ),
        (
            "constructed anew and given the old state back",
            """\
import torch

def train(model, optimizer, stages, loss_fn):
    state = None
    for loader in stages:
        scaler = torch.amp.GradScaler("cuda")
        if state is not None:
            scaler.load_state_dict(state)
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        state = scaler.state_dict()
""",
        ),
    ),
)

UNSCALE_OUT_OF_ORDER = Rule(
    "AMP209",
    "unscale-out-of-order",
    ERROR,
    "scaler.unscale_() is not followed by step() and update() before the next backward.",
    faults={
        "backward@unscaled": Fault(
            "`{scaler}.unscale_({optimizer})` is still open when the next backward runs, so that the scaler takes "
            "scaled gradients for unscaled ones: call `{scaler}.update()` also on the way that skips the step"
        ),
        "backward@unscaled-framework": Fault(
            "`{call}` unscales gradients, and the next backward runs before their step, so that {framework} takes "
            "scaled gradients for unscaled ones: {advice}"
        ),
        "unscale@unscaled": Fault(
            "`{scaler}.unscale_({optimizer})` is called twice for one update, so torch raises: "
            "call it once, before the gradients are first used"
        ),
        "unscale@stepped": Fault(
            "`{scaler}.unscale_({optimizer})` comes after the step, so torch raises: "
            "call it between backward and `{scaler}.step({optimizer})`"
        ),
        "step@unscaled-updated": Fault(
            "`{scaler}.update()` between unscale_ and step makes the scaler forget that the gradients are unscaled and "
            "divide them again: call it after `{scaler}.step({optimizer})`"
        ),
    },
    why="""\
`unscale_()` marks its optimizer as unscaled, and only `update()` takes the mark away. A branch that leaves the
iteration in between (the norm is too large, the loss is NaN: `zero_grad(); continue`) keeps the mark, and the next step
believes that freshly scaled gradients are already unscaled. An `update()` between `unscale_()` and `step()` takes the
mark away too early, and the gradients are divided twice.
""",
    harm="""\
After a skipped iteration without `update()` the next step was 65535.9 times too large; where that iteration calls
`unscale_()` as well, torch raises RuntimeError `unscale_() has already been called on this optimizer since the last
update().`, often hours into a run, at the first bad batch. `unscale_()`, `update()`, `step()` in that order made the
update 63,000 times too small.
""",
    bad=_SETUP
    + """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # AMP209
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    if norm > 0.8:
        optimizer.zero_grad()
        continue
    scaler.step(optimizer)
    scaler.update()
""",
    good=_SETUP
    + """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    if norm > 0.8:
        optimizer.zero_grad()
        scaler.update()
        continue
    scaler.step(optimizer)
    scaler.update()
""",
    fix="Let every path from `unscale_()` reach `update()` before the next backward, and let `step()` come before it.",
    sources=(
        "PyTorch docs, torch.amp.GradScaler.unscale_ (once per optimizer per step)",
        "Haian-Jin/LVSM#19: a skip branch without update()",
        f"{_SCALER_SOURCE}: the stage is reset by update() alone",
        "measured: update ratios after a skipped iteration and after unscale_, update, step",
    ),
    silent=(
        ("unscale_, clip, step, update", _CANONICAL),
        ("the skip branch calls update() before it goes on", _SKIP_WITH_UPDATE),
        ("two tests of the same scaler agree", _TWO_BRANCHES),
        (
            "the skip branch keeps the scale with update(get_scale())",
            """\
import torch

def train(model, loader, optimizer, loss_fn, limit):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) > limit:
            scaler.update(scaler.get_scale())
            continue
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        (
            "the iteration is skipped before unscale_",
            """\
import torch

def train(model, loader, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        if not torch.isfinite(loss):
            continue
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        (
            "each of two optimizers is unscaled once",
            """\
import torch

def train_step(encoder, decoder, opt_e, opt_d, scaler, loss):
    opt_e.zero_grad()
    opt_d.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt_e)
    scaler.unscale_(opt_d)
    torch.nn.utils.clip_grad_norm_([*encoder.parameters(), *decoder.parameters()], 1.0)
    scaler.step(opt_e)
    scaler.step(opt_d)
    scaler.update()
""",
        ),
        (
            "a test that expects torch's own error",
            """\
import pytest
import torch

def test_second_unscale_raises(model, loss):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
""",
        ),
    ),
)

DOUBLE_UNSCALE = Rule(
    "AMP210",
    "double-unscale",
    ERROR,
    "Gradients are divided by the loss scale twice.",
    faults={
        "step@divided": Fault(
            "Gradients of `{optimizer}` are divided by the loss scale by hand, and `{scaler}` divides them as well: "
            "replace the division by `{scaler}.unscale_({optimizer})`"
        ),
        "unscale@divided": Fault(
            "Gradients of `{optimizer}` are divided by the loss scale by hand, and `{scaler}.unscale_({optimizer})` "
            "divides them again: remove the division"
        ),
        "step@borrowed": Fault(
            "Gradients of `{optimizer}` are divided by the loss scale twice, because `{scaler}` was given another "
            "optimizer with the same parameters before: unscale and step one and the same object, and give each "
            "parameter to one optimizer"
        ),
    },
    why="""\
`scaler.step()` unscales unless `unscale_()` was called for that very optimizer object since the last update. It does
not notice a division by hand, nor an `unscale_()` that was given another object with the same parameters: the
optimizer inside a wrapper, or a second optimizer that shares some of them. The gradients then shrink by the square of
the scale, to where float32 rounds most of them away, and the infinities are looked for after the fact.
""",
    harm="""\
Dividing by `get_scale()` by hand and calling `scaler.step()` made SGD's update 74,000 times too small. Unscaling a
wrapped optimizer and stepping its wrapper (two objects, so two unscalings), and one parameter in two optimizers, gave
the same: a ratio of 1.35e-5.
""",
    bad=_SETUP
    + """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    for p in model.parameters():
        p.grad /= scaler.get_scale()  # AMP210
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    good=_SETUP
    + """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    fix="Leave the division to `scaler.unscale_(optimizer)`, on the same optimizer object that is stepped.",
    sources=(
        f"{_SCALER_SOURCE}: what is unscaled is remembered per id(optimizer)",
        "measured: update ratio 1/74,000 after a division by hand, 1.35e-5 for wrappers and shared parameters",
    ),
    silent=(
        ("unscaled once, by the scaler", _CANONICAL),
        ("results of autograd.grad, which step() never sees, are unscaled by hand", _PENALTY_UNSCALED),
        ("unscaled by hand and stepped without the scaler", _OWN_CHECK),
        ("two tests of the same scaler agree", _TWO_BRANCHES),
        (
            "a wrapper that gives its inner optimizer to both calls",
            """\
import torch

class Scaled:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler("cuda")

    def step(self, params, max_norm):
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(params, max_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
""",
        ),
        (
            "what is divided is a copy for the log",
            """\
import torch

def train_step(model, optimizer, scaler, loss, log):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    norms = [p.grad.norm() / scaler.get_scale() for p in model.parameters()]
    log(torch.stack(norms).norm())
    scaler.step(optimizer)
    scaler.update()
""",
        ),
        (
            "gradients are divided by the number of micro-batches, not by the scale",
            """\
import torch

def train_step(model, optimizer, scaler, losses):
    optimizer.zero_grad()
    for loss in losses:
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        p.grad.div_(len(losses))
    scaler.step(optimizer)
    scaler.update()
""",
        ),
    ),
)

CLOSURE_WITH_SCALER = Rule(
    "AMP211",
    "closure-with-scaler",
    ERROR,
    "A closure is given to scaler.step(), which supports none while it is enabled.",
    faults={
        "step-closure": Fault(
            "`{scaler}.step({optimizer}, ...)` is given a closure, which no enabled GradScaler supports: "
            "use an optimizer without a closure, or bfloat16 without a scaler"
        ),
    },
    on={SCALER_STEP: _closure},
    why="""\
An optimizer with a closure (LBFGS, SAM) evaluates the loss again inside `step()`, after the scaler has unscaled and
checked the gradients. The new gradients are neither unscaled nor checked. torch rejects `closure=f` with `Closure use
is not currently supported if GradScaler is enabled.`, but a closure passed by position goes through unseen.
""",
    harm="""\
By position and with `scale()` inside the closure, SGD's update was 65536 times too large and one iteration of LBFGS 9.6
times; without `scale()` inside, the closure's gradients ran unprotected. By keyword torch raises RuntimeError.
""",
    bad="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
x, y = torch.randn(64, 16), torch.randn(64, 1)


def closure():
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    return loss


for _ in range(4):
    closure()
    scaler.step(optimizer, closure)  # AMP211
    scaler.update()
""",
    good="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
x, y = torch.randn(64, 16), torch.randn(64, 1)


def closure():
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for _ in range(4):
    optimizer.step(closure)
""",
    fix="Use an optimizer that needs no closure, or train in bfloat16 or float32, where a closure needs no scaler.",
    sources=(
        "PyTorch docs, torch.amp.GradScaler.step (closure use is not supported)",
        f"{_SCALER_SOURCE}: only the keyword is checked",
        "measured: update ratios with the closure passed by position",
    ),
    silent=(
        ("no closure", _CANONICAL),
        (
            "the scaler is disabled, so step() is the optimizer's own",
            """\
import torch

def fit(optimizer, closure):
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    scaler.step(optimizer, closure)
    scaler.update()
""",
        ),
        (
            "the closure is None",
            """\
import torch

def train_step(model, optimizer, scaler, loss):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer, None)
    scaler.update()
""",
        ),
        (
            "a wrapper hands on a closure that is None unless someone passes one",
            """\
import torch

class ScaledOptimizer:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler("cuda")

    def step(self, closure=None):
        self.scaler.step(self.optimizer, closure)
        self.scaler.update()
""",
        ),
        (
            "the bfloat16 path gives the closure to the optimizer itself",
            """\
import torch

def fit(model, optimizer, loss_fn, x, y):
    def closure():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_fn(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
""",
        ),
    ),
)

CLIP_INCLUDES_SCALED_PARAMS = Rule(
    "AMP212",
    "clip-includes-scaled-params",
    ERROR,
    "One clip covers unscaled gradients and gradients that are still multiplied by the loss scale.",
    faults={
        "clip@partly": Fault(
            "`{call}` covers gradients of `{optimizer}`, which are still multiplied by the loss scale, together with "
            "unscaled ones: call `{scaler}.unscale_({optimizer})` before it"
        ),
    },
    why="""\
`unscale_()` divides the gradients of the one optimizer it is given. A clip over the parameters of several optimizers
takes one norm over all of them, and gradients that are still multiplied by the scale dominate it. Every gradient is
then multiplied by `max_norm` over a norm that has little to do with the true one, those that were unscaled correctly
as well. Every optimizer whose parameters the clip covers has to be unscaled first.
""",
    harm="""\
With one of two optimizers unscaled the clip saw a norm of 3128 instead of 0.0653, and the updates of both optimizers
were 3,100 times too small. Nothing is raised.
""",
    bad=_ACTOR_CRITIC
    + """\
for x, action, value in batches:
    actor_optimizer.zero_grad()
    critic_optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(actor(x), action) + nn.functional.mse_loss(critic(x), value)
    scaler.scale(loss).backward()
    scaler.unscale_(actor_optimizer)
    nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], max_norm=0.5)  # AMP212
    scaler.step(actor_optimizer)
    scaler.step(critic_optimizer)
    scaler.update()
""",
    good=_ACTOR_CRITIC
    + """\
for x, action, value in batches:
    actor_optimizer.zero_grad()
    critic_optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(actor(x), action) + nn.functional.mse_loss(critic(x), value)
    scaler.scale(loss).backward()
    scaler.unscale_(actor_optimizer)
    scaler.unscale_(critic_optimizer)
    nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], max_norm=0.5)
    scaler.step(actor_optimizer)
    scaler.step(critic_optimizer)
    scaler.update()
""",
    fix="Call `scaler.unscale_()` for every optimizer whose parameters the clip covers, or clip each one by itself.",
    applicability=SAFE,
    sources=(
        f"{_EXAMPLES}: Gradient clipping, and Working with multiple models, losses, and optimizers",
        "measured: the clipped norm and the updates of two optimizers, one of them unscaled",
    ),
    silent=(
        ("one optimizer, unscaled before the clip", _CANONICAL),
        (
            "every optimizer that the clip covers is unscaled",
            """\
import torch

def train_step(encoder, decoder, opt_e, opt_d, scaler, loss):
    opt_e.zero_grad()
    opt_d.zero_grad()
    scaler.scale(loss).backward()
    for optimizer in (opt_e, opt_d):
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_([*encoder.parameters(), *decoder.parameters()], 1.0)
    for optimizer in (opt_e, opt_d):
        scaler.step(optimizer)
    scaler.update()
""",
        ),
        (
            "the clip covers the network that is unscaled, and the other one is not clipped",
            _ACTOR_CRITIC
            + """\
for x, action, value in batches:
    actor_optimizer.zero_grad()
    critic_optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(actor(x), action) + nn.functional.mse_loss(critic(x), value)
    scaler.scale(loss).backward()
    scaler.unscale_(actor_optimizer)
    nn.utils.clip_grad_norm_(actor.parameters(), max_norm=0.5)
    scaler.step(actor_optimizer)
    scaler.step(critic_optimizer)
    scaler.update()
""",
        ),
        (
            "the clip names frozen parameters too, which have no gradients",
            _ACTOR_CRITIC
            + """\
critic.requires_grad_(False)
for x, action, _ in batches:
    actor_optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(actor(x), action) - critic(x).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(actor_optimizer)
    nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], max_norm=0.5)
    scaler.step(actor_optimizer)
    scaler.update()
""",
        ),
        (
            "the other optimizer's gradients are cleared before the clip",
            _ACTOR_CRITIC
            + """\
for x, action, _ in batches:
    actor_optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(actor(x), action) - critic(x).mean()
    scaler.scale(loss).backward()
    critic_optimizer.zero_grad()
    scaler.unscale_(actor_optimizer)
    nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], max_norm=0.5)
    scaler.step(actor_optimizer)
    scaler.update()
""",
        ),
    ),
)

NONFINITE_ERROR_IN_CLIP = Rule(
    "AMP213",
    "nonfinite-error-in-clip",
    WARNING,
    "error_if_nonfinite=True turns the overflows that a scaler skips into crashes.",
    faults={
        "clip-nonfinite": Fault(
            "`error_if_nonfinite=True` lets `{call}` raise on every overflow that `{scaler}` would only skip: "
            "drop the argument and leave infinities to `{scaler}.step({optimizer})`"
        ),
    },
    why="""\
Overflow is how a dynamic scale finds its value: it happens in the first iterations and again each time the scale has
grown. The scaler records it in `unscale_()`, skips the step and halves the scale. With `error_if_nonfinite=True` the
clip that follows raises before the scaler can do so.
""",
    harm="""\
The first overflow, usually within the first few iterations, ends the run with RuntimeError `The total norm of order 2.0
for gradients from `parameters` is non-finite, so it cannot be clipped.` The same loop without the argument skips one
step and goes on.
""",
    bad="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(32, 16), 100 * torch.randn(32, 1)) for _ in range(8)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)  # AMP213
    scaler.step(optimizer)
    scaler.update()
""",
    good="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(32, 16), 100 * torch.randn(32, 1)) for _ in range(8)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    applicability=UNSAFE,
    fix="Drop `error_if_nonfinite=True`; `scaler.step()` skips the step, and `scaler.update()` lowers the scale.",
    sources=(
        "torch/nn/utils/clip_grad.py: clip_grad_norm_ raises on a non-finite norm",
        "measured: a crash on the first overflow after unscale_",
    ),
    silent=(
        ("the default of error_if_nonfinite is False", _CANONICAL),
        (
            "the error is caught, and the iteration still ends with update()",
            """\
import torch

def train_step(model, optimizer, scaler, loss):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    try:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        scaler.step(optimizer)
    except RuntimeError:
        optimizer.zero_grad()
    scaler.update()
""",
        ),
        (
            "bfloat16 has no routine overflows and no scaler",
            """\
import torch

def train_step(model, optimizer, loss_fn, x, y):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = loss_fn(model(x), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.step()
""",
        ),
        (
            "float32 training may ask for the error",
            """\
import torch

def train_step(model, optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.step()
""",
        ),
        (
            "the scaler is switched off",
            """\
import torch

def train_step(model, optimizer, loss):
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    scaler.step(optimizer)
    scaler.update()
""",
        ),
    ),
)

PENALTY_ON_SCALED_GRADS = Rule(
    "AMP214",
    "penalty-on-scaled-grads",
    ERROR,
    "Gradients of a scaled loss enter a new loss without being divided by the scale.",
    faults={
        "penalty@scaled": Fault(
            "Gradients of a scaled loss enter a new loss while they are still multiplied by the loss scale: "
            "multiply them by `1.0 / {scaler}.get_scale()` first"
        ),
    },
    on={PENALTY: _penalty},
    why="""\
A gradient penalty makes gradients with `torch.autograd.grad` and puts their norm into the loss. Scaling the loss keeps
those gradients from underflowing, but the penalty must be computed from true gradients. `unscale_()` and `step()` work
on `.grad` and never see them, so they have to be divided by hand.
""",
    harm="""\
The penalty's norm was 65536.0 times too large at the first scale (1024.0 times at a scale of 1024); a squared norm is
wrong by the square, 2^32, and the penalty changes whenever the scale does.
""",
    bad=_SETUP
    + """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    grads = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)  # AMP214
    with torch.autocast("cpu", dtype=torch.float16):
        penalty = sum(g.pow(2).sum() for g in grads).sqrt()
        loss = loss + 0.1 * penalty
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    good=_SETUP
    + """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
    inv_scale = 1.0 / scaler.get_scale()
    grads = [g * inv_scale for g in scaled]
    with torch.autocast("cpu", dtype=torch.float16):
        penalty = sum(g.pow(2).sum() for g in grads).sqrt()
        loss = loss + 0.1 * penalty
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    fix="Multiply the results of `torch.autograd.grad` by `1.0 / scaler.get_scale()` before they enter the loss.",
    sources=(
        f"{_EXAMPLES}: Gradient penalty",
        "measured: the penalty's norm at scales 65536 and 1024",
    ),
    silent=(
        ("the gradients are multiplied by the inverse scale", _PENALTY_UNSCALED),
        (
            "autograd.grad of an unscaled loss gives true gradients",
            """\
import torch

def train_step(model, optimizer, scaler, loss_fn, x, y):
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    grads = torch.autograd.grad(loss, model.parameters(), create_graph=True)
    loss = loss + sum(g.pow(2).sum() for g in grads)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        ),
        (
            "only the ratio of two scaled norms is used",
            """\
import torch

def train_step(layer, optimizer, scaler, reconstruction, adversarial):
    optimizer.zero_grad()
    a = torch.autograd.grad(scaler.scale(reconstruction), layer.weight, retain_graph=True)[0]
    b = torch.autograd.grad(scaler.scale(adversarial), layer.weight, retain_graph=True)[0]
    weight = (a.norm() / b.norm()).detach()
    loss = reconstruction + weight * adversarial
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        ),
        (
            "the scale is divided away after the norm",
            """\
import torch

def train_step(model, optimizer, scaler, loss, x):
    optimizer.zero_grad()
    scaled = torch.autograd.grad(scaler.scale(loss), x, create_graph=True)[0]
    grad = scaled / scaler.get_scale()
    total = loss + (grad.norm(2) - 1) ** 2
    scaler.scale(total).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        ),
    ),
)

ZERO_GRAD_MISPLACED = Rule(
    "AMP215",
    "zero-grad-misplaced",
    ERROR,
    "Gradients are cleared before the step that needs them, or never.",
    faults={
        "step@discarded": Fault(
            "Gradients of `{optimizer}` are cleared between backward and `{scaler}.step({optimizer})`: "
            "clear them before backward or after the step"
        ),
        "backward@stale": Fault(
            "Gradients of `{optimizer}` are not cleared between a step and the next backward: "
            "call `{optimizer}.zero_grad()` once in every iteration",
            WARNING,
        ),
    },
    why="""\
`zero_grad()` between backward and `scaler.step()` leaves nothing to apply. With the default `set_to_none=True` torch
stumbles over it (`No inf checks were recorded for this optimizer.`); with `set_to_none=False`, and where other
parameters still have gradients, it is silent. Without any `zero_grad()` AMP hides the usual sign: after a step the old
gradients are unscaled while the new ones are 65536 times as large, so the step sizes look right until an overflow stays
in `.grad`.
""",
    harm="""\
With `set_to_none=False` between backward and step the update was exactly 0, with no error (AdamW still decayed its
weights); with the default torch raises AssertionError. With no `zero_grad()` at all, three steps measured 4.459e-3,
4.436e-3 and 4.415e-3 (right: 4.459, 4.436, 4.414), while the same code with the scaler disabled grew to 13.29e-3; after
a single overflow the infinity never left `.grad`, every later step was skipped, and the scale fell from 65536 to 512 in
seven iterations and on towards 0.
""",
    bad=_SETUP
    + """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    optimizer.zero_grad(set_to_none=False)  # AMP215
    scaler.step(optimizer)
    scaler.update()
""",
    good=_SETUP
    + """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    fix="Call `optimizer.zero_grad()` once in every iteration, before backward or after the step.",
    sources=(
        f"{_SCALER_SOURCE}: step() raises when no gradient was checked",
        "nerfstudio-project/nerfstudio#1919: an optimizer whose gradients are all None",
        "measured: update sizes with zero_grad between backward and step, and without any",
    ),
    silent=(
        ("cleared before backward", _CANONICAL),
        ("cleared after the update", _ENABLED_FLAG),
        ("cleared in a branch that takes no step", _SKIP_WITH_UPDATE),
        ("the step of an optimizer without gradients is guarded", _GUARDED_STEP),
        ("cleared at the end of an accumulation window, in a timm-style loop", _TIMM),
        (
            "cleared between step and update",
            """\
import torch

def train(model, loader, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        optimizer.zero_grad(set_to_none=False)
        scaler.update()
""",
        ),
        (
            "the model clears the gradients",
            """\
import torch

def train(model, loader, loss_fn):
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        model.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        (
            "the gradients are set to None parameter by parameter",
            """\
import torch

def train(model, loader, loss_fn):
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        for p in model.parameters():
            p.grad = None
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        (
            "the optimizer's own class clears after its step",
            """\
import torch

class ZeroingAdamW(torch.optim.AdamW):
    def step(self, closure=None):
        result = super().step(closure)
        self.zero_grad()
        return result

def train(model, loader, loss_fn):
    optimizer = ZeroingAdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        (
            "a step hook clears",
            """\
import torch

def train(model, loader, loss_fn):
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.register_step_post_hook(lambda opt, args, kwargs: opt.zero_grad())
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        ),
        (
            "accumulation clears only where it steps",
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
""",
        ),
        (
            "the generator's backward leaves gradients in the discriminator, which are cleared before its own backward",
            """\
import torch

def train(generator, discriminator, opt_g, opt_d, loader, g_loss, d_loss):
    scaler = torch.amp.GradScaler("cuda")
    for real, noise in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss_g = g_loss(discriminator(generator(noise)))
        opt_g.zero_grad()
        scaler.scale(loss_g).backward()
        opt_d.zero_grad()
        scaler.step(opt_g)
        with torch.autocast("cuda", dtype=torch.float16):
            loss_d = d_loss(discriminator(real), discriminator(generator(noise).detach()))
        scaler.scale(loss_d).backward()
        scaler.step(opt_d)
        scaler.update()
""",
        ),
    ),
)

SCALER_MISCONFIGURED = Rule(
    "AMP216",
    "scaler-misconfigured",
    WARNING,
    "GradScaler's arguments land in the wrong place, or disable or destabilise its dynamic scale.",
    faults={
        "scaler:number-as-device": Fault(
            "`{value}` lands in the `device` parameter of `{call}`, which comes first, and is ignored: "
            "pass it as `{keyword}={value}`"
        ),
        "scaler:index-as-device": Fault(
            "`{call}` is given {value} as its `device`, which is a device type and not an index: pass `'cuda'` or "
            "`'cpu'`"
        ),
        "scaler:bool-as-scale": Fault(
            "`{value}` lands in the `init_scale` parameter of `{call}`, so the loss scale is {number}: "
            "pass it as `enabled={value}`"
        ),
        "scaler:device-as-scale": Fault(
            "`{call}` is given {value} as its `init_scale`, which must be a number: "
            "pass a device to `torch.amp.GradScaler`, which takes it first"
        ),
        "scaler:zero-scale": Fault(
            "`init_scale={value}` multiplies every loss by a number that is not positive: pass a power of two, or "
            "`enabled=False`"
        ),
        "scaler:init-scale": Fault(
            "`init_scale={value}` is above 2**24, so the first steps overflow and are skipped: start at the default of "
            "2**16"
        ),
        "scaler:factors-swapped": Fault(
            "`growth_factor` is {growth} and `backoff_factor` is {backoff}, the wrong way round, so torch raises: "
            "pass both by name"
        ),
        "scaler:growth-factor": Fault(
            "`growth_factor={value}` lets the scale never grow, so torch raises: pass a number above 1.0, by default "
            "2.0"
        ),
        "scaler:backoff-factor": Fault(
            "`backoff_factor={value}` does not lower the scale after an overflow, so torch raises: "
            "pass a number below 1.0, by default 0.5"
        ),
        "scaler:zero-backoff": Fault(
            "`backoff_factor={value}` makes the scale zero or negative after the first overflow: "
            "pass a number between 0.0 and 1.0, by default 0.5"
        ),
        "scaler:no-growth": Fault(
            "`growth_interval={value}` lets the scale fall but never grow again: pass a positive number of steps, by "
            "default 2000"
        ),
        "scaler:growth-interval": Fault(
            "`growth_interval={value}` raises the scale into overflow so often that many steps are skipped: "
            "pass a few hundred steps or more, by default 2000"
        ),
    },
    on={SCALER_NEW: _misconfigured},
    why="""\
`torch.amp.GradScaler` takes the device first, unlike the older `torch.cuda.amp.GradScaler`, so a number moved over from
there becomes the device and is never looked at. A growth interval that is too short raises the scale into the next
overflow again and again, and every overflow costs a step. One that is not positive never raises it. The limits of 50
steps and 2^24 are this tool's judgement; torch sets none. `ShardedGradScaler` takes `backoff_factor` before
`growth_factor`, the other way round than `GradScaler`.
""",
    harm="""\
`torch.amp.GradScaler(1024.)` is enabled on the device 1024.0 and starts at a scale of 65536, with no error; the older
`GradScaler(True)` starts at 1.0. With `growth_interval=1` 94 of 200 steps were skipped, with 10 it was 7 of 200, with 0
the scale never grew. Factors beyond their limits raise AssertionError.
""",
    bad="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(1024.0)  # AMP216
batches = [(torch.randn(32, 16), torch.randn(32, 1)) for _ in range(8)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    good="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
batches = [(torch.randn(32, 16), torch.randn(32, 1)) for _ in range(8)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    fix="Name the arguments: `torch.amp.GradScaler('cuda', init_scale=..., growth_interval=...)`.",
    applicability=SAFE,
    sources=(
        "PyTorch docs, torch.amp.GradScaler: arguments",
        f"{_SCALER_SOURCE} and torch/distributed/fsdp/sharded_grad_scaler.py: the order of the parameters",
        "measured: skipped steps at growth intervals 0, 1 and 10",
    ),
    silent=(
        ("the default arguments", _CANONICAL),
        ("enabled is given by name", _ENABLED_FLAG),
        ("a scaler that is switched off", _DISABLED),
        (
            "a test wants the scale to grow at once",
            """\
import torch

def test_scale_grows(model, optimizer, loss):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=1)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() > 0
""",
        ),
        (
            "a fixed scale, kept with update(new_scale)",
            """\
import torch

class StaticScaler:
    def __init__(self, loss_scale):
        self.scaler = torch.amp.GradScaler("cuda", init_scale=loss_scale)
        self.loss_scale = float(loss_scale)

    def step(self, optimizer, loss):
        optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(optimizer)
        self.scaler.update(self.loss_scale)
""",
        ),
        (
            "in the older class init_scale does come first",
            """\
from torch.cuda.amp import GradScaler

scaler = GradScaler(1024.0)
""",
        ),
        (
            "the arguments come from a configuration",
            """\
import torch

def build(config):
    return torch.amp.GradScaler(config.device, **config.scaler)
""",
        ),
        (
            "ShardedGradScaler with its arguments named",
            """\
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

scaler = ShardedGradScaler("cuda", init_scale=2.0**14, growth_factor=2.0, backoff_factor=0.5)
""",
        ),
    ),
)

SCALER_DISABLED = Rule(
    "AMP217",
    "scaler-disabled",
    INFO,
    "The scaler switched itself off because its device is not there, so nothing about scaling was exercised.",
    faults={
        "scaler:disabled-itself": Fault(
            "`{call}` switched itself off because this machine has no such device, so this run shows nothing about "
            'scaling: run it under `emulate_cuda()` or with `--amp-device emulate`, or construct `GradScaler("cpu")`'
        ),
    },
    on={SCALER_NEW: _disabled_itself},
    readers=RUNTIME,
    why="""\
`GradScaler("cuda")` on a machine without CUDA warns once and becomes a scaler that does nothing: `scale()` gives its
argument back, `step()` is the optimizer's own, `update()` is empty. A test of the training step passes then, whatever
the order of its calls. `emulate_cuda()` (in pytest `--amp-device emulate`) runs the same code on the CPU with a live
scaler and CUDA's dtypes; `GradScaler("cpu")` is live anywhere.
""",
    harm="""\
A loop that scales its loss and then calls `optimizer.step()` past the scaler made a right update under a scaler that
had switched itself off, whose `get_scale()` read 1.0 and whose `state_dict()` was empty. Under a live scaler the first
update of the same loop was 65536 times as large.
""",
    bad="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")  # AMP217
batches = [(torch.randn(32, 16), torch.randn(32, 1)) for _ in range(8)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    good=_SETUP
    + """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    fix='Run it under `emulate_cuda()` or with `--amp-device emulate`, or construct `GradScaler("cpu")` on a CPU.',
    sources=(
        f"{_SCALER_SOURCE}: enabled, but CUDA is not available",
        "measured: what a disabled scaler returns, and update sizes with it and without it",
    ),
    silent=(
        (
            "switched off by the program itself, which knows that there is no CUDA",
            _STEP_SETUP
            + """\
scaler = torch.amp.GradScaler("cuda", enabled=torch.cuda.is_available())
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
""",
        ),
        (
            "switched off for good",
            _STEP_SETUP
            + """\
scaler = torch.amp.GradScaler("cuda", enabled=False)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
""",
        ),
        (
            "a scaler for the device that is there",
            _STEP_SETUP
            + """\
scaler = torch.amp.GradScaler("cuda" if torch.cuda.is_available() else "cpu")
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
""",
        ),
    ),
)

GRADS_INVALIDATED = Rule(
    "AMP218",
    "grads-invalidated-after-unscale",
    ERROR,
    "Values that are not finite appear in gradients after unscale_(), where the scaler looks for them no more.",
    faults={
        "grads:invalid": Fault(
            "Gradients of `{optimizer}` become NaN or infinite after `{scaler}.unscale_({optimizer})` has checked them,"
            " so `{scaler}.step({optimizer})` applies them: keep what is done to them there finite"
        ),
    },
    on={GRAD_INVALID: _invalidated},
    readers=RUNTIME,
    why="""\
The scaler looks for infinities once, in `unscale_()`. `step()` trusts that answer. A division by a norm that is zero,
a clip of gradients that another rank has made infinite, noise with a wrong sign under a root: whatever becomes NaN or
infinite between the two calls goes straight into the parameters, and from there into everything.
""",
    harm="""\
A value that became NaN between `unscale_()` and `step()` left NaN in the parameters after that one step, while the loss
scale did not move. Every loss after it was NaN.
""",
    bad="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
nn.init.zeros_(model[2].weight)  # a head that starts at zero, so that no gradient reaches the layers below it
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
batches = [(torch.randn(32, 16), torch.randn(32, 1)) for _ in range(4)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        p.grad.div_(p.grad.norm())  # AMP218
    scaler.step(optimizer)
    scaler.update()
""",
    good="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
nn.init.zeros_(model[2].weight)  # a head that starts at zero, so that no gradient reaches the layers below it
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
batches = [(torch.randn(32, 16), torch.randn(32, 1)) for _ in range(4)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        p.grad.div_(p.grad.norm().clamp_(min=1e-6))
    scaler.step(optimizer)
    scaler.update()
""",
    fix="Keep edits between unscale_ and step finite (clamp a divisor), or check again and leave the step out.",
    sources=(
        f"{_SCALER_SOURCE}: step() uses the found_inf that unscale_() recorded",
        "PyTorch's own test: test_params_invalidated_with_grads_invalidated_between_unscale_and_step",
        "measured: parameters and scale after a NaN between unscale_ and step",
    ),
    silent=(
        (
            "an overflow that unscale_() has seen is skipped, whatever is done to its gradients later",
            _STEP_SETUP
            + """\
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
scaler.scale(loss * float("inf")).backward()
scaler.unscale_(optimizer)
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()
""",
        ),
        (
            "gradients that are not finite are looked for again, and the step is left out",
            _STEP_SETUP
            + """\
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
model.weight.grad.div_(0.0)
if torch.isfinite(model.weight.grad).all():
    scaler.step(optimizer)
optimizer.zero_grad()
scaler.update()
""",
        ),
        (
            "values that are not finite are put right before the step",
            _STEP_SETUP
            + """\
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
model.weight.grad.div_(0.0).nan_to_num_(0.0, 0.0, 0.0)
scaler.step(optimizer)
scaler.update()
""",
        ),
    ),
)

RULES: tuple[Rule, ...] = (
    CLIP_BEFORE_UNSCALE,
    SCALED_GRAD_TOUCHED,
    BACKWARD_ON_UNSCALED_LOSS,
    SCALER_STEP_BYPASSED,
    LOSS_SCALED_UNEVENLY,
    MISSING_SCALER_UPDATE,
    UPDATE_BEFORE_ALL_STEPS,
    SCALER_RECREATED_IN_LOOP,
    UNSCALE_OUT_OF_ORDER,
    DOUBLE_UNSCALE,
    CLOSURE_WITH_SCALER,
    CLIP_INCLUDES_SCALED_PARAMS,
    NONFINITE_ERROR_IN_CLIP,
    PENALTY_ON_SCALED_GRADS,
    ZERO_GRAD_MISPLACED,
    SCALER_MISCONFIGURED,
    SCALER_DISABLED,
    GRADS_INVALIDATED,
)
