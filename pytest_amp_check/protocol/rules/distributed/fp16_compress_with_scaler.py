"""AMP604 fp16-compress-with-scaler."""

from __future__ import annotations

from ...event_graph import Program
from ...events import CommHook, ScalerNew
from ...rule import WARNING, Rule, Verdicts, ViolationKind
from ...scaled_steps import find_scaled_step, name_scaler

#: Largest initial scale at which gradients of usual size fit in float16.
_SMALL_SCALE = 1024.0


def _check_compressed_hooks(program: Program) -> Verdicts:
    """Yield float16 compression hooks on gradients that a scaler with a large scale has multiplied."""
    events = list(program.iter_events())
    hooks = [event for event in events if isinstance(event, CommHook)]
    small = {event.subject for event in events if isinstance(event, ScalerNew) and _has_small_scale(event)}
    for hook in hooks:
        step = find_scaled_step(program, hook, exempt=small)
        if step is not None:
            yield "hook@scaled", hook, {"scaler": name_scaler(program, step)}, (step,)


def _has_small_scale(event: ScalerNew) -> bool:
    scale = event.arguments.get("init_scale")
    return isinstance(scale, (int, float)) and scale <= _SMALL_SCALE


RULE = Rule(
    "AMP604",
    "fp16-compress-with-scaler",
    WARNING,
    "Gradients that are multiplied by the loss scale are cast to float16 before they are averaged.",
    effect="gradients above 1 overflow at a scale of 65536: steps are skipped, then small gradients become zero",
    program_checks={CommHook: _check_compressed_hooks},
    prescan_words=("scaler",),
    violations={
        "hook@scaled": ViolationKind(
            "`{call}` casts scaled gradients to float16, so those above 65504 / scale become infinite: use "
            "`bf16_compress_hook`, or a small `init_scale`"
        )
    },
    rationale="""\
`fp16_compress_hook` casts the gradients of DistributedDataParallel to float16 before it averages them. At that point
they are multiplied by the loss scale, 65536 at first, and float16 ends at 65504: every gradient above one becomes
infinite. The scaler skips these steps and halves its scale until the largest gradient of the model fits. The small
gradients then underflow as they would without a scaler.
""",
    harm="""\
One gloo process, a stack of two Linear layers whose loss gives gradients of about 10: 52 elements are infinite in the
first iteration. Of 30 steps 4 are skipped, and the scale falls from 65536 to 4096. Without the hook no step is skipped
and the scale stays.
""",
    bad_example="""\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel


def train():
    model = DistributedDataParallel(nn.Linear(8, 2))
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)  # AMP604
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    for x in torch.randn(16, 8).split(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), torch.zeros(8, 2))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
train()
dist.destroy_process_group()
""",
    good_example="""\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train():
    model = DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    for x in torch.randn(16, 8).split(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), torch.zeros(8, 2))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
train()
dist.destroy_process_group()
""",
    fix_advice="Compress with `bf16_compress_hook`, whose range is that of float32, or average float32 gradients.",
    sources=(
        "PyTorch source: torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py",
        "measured with torch 2.13 on the CPU",
    ),
)
