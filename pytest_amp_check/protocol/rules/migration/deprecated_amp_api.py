"""AMP901 deprecated-amp-api."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Deprecated
from ...fix import SAFE
from ...rule import INFO, STATIC, Labels, Rule, ViolationKind
from ...torch_api import find_entry


def _check_deprecated(event: Deprecated, program: Program) -> Labels:
    old: str = event.old
    entry = find_entry(old)
    # Only the constructors change their parameters; every other entry point keeps them.
    role = "" if entry is None or entry.role not in ("autocast", "scaler") else f":{entry.role}"
    yield f"deprecated{role}", {"old": old, "new": event.new}


RULE = Rule(
    "AMP901",
    "deprecated-amp-api",
    INFO,
    "A deprecated AMP entry point is used.",
    effect="a FutureWarning at each call today, and an error once torch removes it",
    detected_by=STATIC,
    applicability=SAFE,
    grouped_message="Deprecated AMP entry points are used in {places}: use those of `torch.amp`",
    event_checks={Deprecated: _check_deprecated},
    prescan_words=("autocast", "scaler", "custom_fwd", "custom_bwd", "clip_grad_norm"),
    violations={
        "deprecated": ViolationKind("`{old}` is deprecated: use `{new}`"),
        "deprecated:autocast": ViolationKind(
            "`{old}` is deprecated: use `{new}` and pass the other arguments by name, because the second positional "
            "argument is now the dtype and no longer `enabled`"
        ),
        "deprecated:scaler": ViolationKind(
            "`{old}` is deprecated: use `{new}`, which takes the device before the initial scale"
        ),
    },
    rationale="""\
From torch 2.4 on, the entry points of `torch.cuda.amp` and `torch.cpu.amp` and the per-device getters and setters warn
that they are deprecated. Their replacement is `torch.amp`, which takes the device as its first argument. The new
autocast is not the old one with one more argument. Its second positional parameter is `dtype`; the first parameter of
the old autocast was `enabled`. Without a dtype, `torch.cuda.amp.autocast` always meant float16. The new autocast
inherits the dtype of an enclosing CUDA region: write `dtype=torch.float16` if regions nest.
The new GradScaler came with torch 2.3 and the new `custom_fwd` with 2.4. A project whose requirements allow an older
torch is not reported.
""",
    harm="""\
Every construction emits a FutureWarning (the getters a DeprecationWarning), which fails a test run with `-W error`. A
search-and-replace migration that leaves the arguments in place breaks calls. `autocast(True)` becomes a ValueError, and
`autocast("cuda", True)` a TypeError when the region is entered. `GradScaler(1024.0)` becomes a scaler whose device is
1024.0 and whose initial scale silently is 65536.
""",
    bad_example="""\
import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast

use_amp = torch.cuda.is_available()
device = "cuda" if use_amp else "cpu"
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = GradScaler(1024.0, enabled=use_amp)  # AMP901
x, y = torch.randn(64, 8, device=device), torch.randint(2, (64,), device=device)

for _ in range(3):
    optimizer.zero_grad()
    with autocast(use_amp):  # AMP901
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    good_example="""\
import torch
from torch import nn
from torch.amp import GradScaler, autocast

use_amp = torch.cuda.is_available()
device = "cuda" if use_amp else "cpu"
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = GradScaler("cuda", 1024.0, enabled=use_amp)
x, y = torch.randn(64, 8, device=device), torch.randint(2, (64,), device=device)

for _ in range(3):
    optimizer.zero_grad()
    with autocast("cuda", dtype=torch.float16, enabled=use_amp):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    fix_advice=(
        "Import from `torch.amp`, pass the device type first and every other argument of autocast by name. The "
        "replacement of `GradScaler` came with torch 2.3: its fix is opt-in unless the project requires such a torch."
    ),
    sources=(
        "PyTorch source: torch/cuda/amp/autocast_mode.py, torch/cuda/amp/grad_scaler.py",
        "pytorch/pytorch issue 126527: the deprecation of torch.cuda.amp",
        "measured with torch 2.4 and 2.13 on the CPU",
    ),
)
