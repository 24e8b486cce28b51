"""Rules on what has moved on: deprecated entry points, suppressions without a finding, sources that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..events import DEPRECATED, Event, Program
from ..fix import SAFE
from ..rule import ERROR, STATIC, WARNING, Fault, Rule
from ..surface import lookup


def _deprecated(event: Event, program: Program) -> Iterator[tuple[str, Mapping[str, str]]]:
    old: str = event.facts["old"]
    entry = lookup(old)
    # Only the constructors bind their arguments anew; every other entry point keeps them.
    role = "" if entry is None or entry.role not in ("autocast", "scaler") else f":{entry.role}"
    yield f"deprecated{role}", {"old": old, "new": event.facts["new"]}


RULES: tuple[Rule, ...] = (
    Rule(
        "AMP901",
        "deprecated-amp-api",
        WARNING,
        "A deprecated AMP entry point is used.",
        faults={
            "deprecated": Fault("`{old}` is deprecated: use `{new}`"),
            "deprecated:autocast": Fault(
                "`{old}` is deprecated: use `{new}` and pass the other arguments by name, since the second positional"
                " one is the dtype and no longer `enabled`"
            ),
            "deprecated:scaler": Fault(
                "`{old}` is deprecated: use `{new}`, where the device goes before the initial scale"
            ),
        },
        why="""\
From torch 2.4 on, the entry points of `torch.cuda.amp` and `torch.cpu.amp` and the getters and setters of one device
warn that they are deprecated in favour of `torch.amp`, which takes the device as its first argument. The new autocast
is not the old one with one more argument: its second positional parameter is `dtype`, where the old one's first was
`enabled`. And without a dtype `torch.cuda.amp.autocast` meant float16 whatever surrounded it, while the new one
inherits the dtype of an enclosing CUDA region: write `dtype=torch.float16` where regions nest.
The new GradScaler came with torch 2.3 and the new `custom_fwd` with 2.4: a project whose requirements allow an older
torch is left alone.
""",
        harm="""\
Every construction emits a FutureWarning (the getters a DeprecationWarning), which fails a test run with `-W error`. A
migration by search and replace that leaves the arguments in place turns `autocast(True)` into a ValueError,
`autocast("cuda", True)` into a TypeError when the region is entered, and `GradScaler(1024.0)` into a scaler whose
device is 1024.0 and whose initial scale silently is 65536.
""",
        bad="""\
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
        good="""\
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
        applicability=SAFE,
        fix="Import from `torch.amp`, pass the device type first and every other argument of autocast by name.",
        silent=(
            (
                "a shim for old versions of torch",
                """\
try:
    from torch.amp import GradScaler
except ImportError:
    from torch.cuda.amp import GradScaler

scaler = GradScaler()
""",
            ),
            (
                "a version guard",
                """\
if hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"):
    scaler = torch.amp.GradScaler("cuda")
else:
    scaler = torch.cuda.amp.GradScaler()
""",
            ),
            (
                "a version guard in an expression",
                """\
scaler = torch.amp.GradScaler("cuda") if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler()
""",
            ),
            (
                "a guard that compares the version",
                """\
from packaging.version import Version

if Version(torch.__version__) >= Version("2.4"):
    custom_fwd = torch.amp.custom_fwd(device_type="cuda")
else:
    custom_fwd = torch.cuda.amp.custom_fwd
""",
            ),
            (
                "a subclass, whose base others rely on",
                """\
class NativeScaler(torch.cuda.amp.GradScaler):
    state_dict_key = "amp_scaler"
""",
            ),
            (
                "the new entry points",
                """\
scaler = torch.amp.GradScaler("cuda", 1024.0)
with torch.amp.autocast("cuda", dtype=torch.float16, enabled=use_amp):
    dtype = torch.get_autocast_dtype("cuda")
""",
            ),
            (
                "a function of the project that has the old name",
                """\
from project.precision import autocast

with autocast(enabled=True):
    output = model(inputs)
""",
            ),
        ),
        sources=(
            "PyTorch source: torch/cuda/amp/autocast_mode.py, torch/cuda/amp/grad_scaler.py",
            "pytorch/pytorch issue 126527: the deprecation of torch.cuda.amp",
            "measured with torch 2.4 and 2.13 on the CPU",
        ),
        readers=STATIC,
        on={DEPRECATED: _deprecated},
    ),
    Rule(
        "AMP902",
        "unused-suppression",
        WARNING,
        "A suppression comment silences nothing.",
        faults={"suppression:unused": Fault("This suppression silences nothing ({reason}): remove it")},
        why="""\
A suppression says that somebody looked at a finding and decided to keep the code. When the finding is gone, the
comment claims a mistake that is not there, and it would silence the next one on this line unseen.
""",
        harm="""\
Nothing today. The day somebody removes the `unscale_` above an old `# amp: ignore[AMP201]`, nobody is told: clipping
still-scaled gradients then shrinks SGD's updates 43,000-fold and raises nothing.
""",
        bad="""\
import torch
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # amp: ignore[AMP201]  # AMP902
    scaler.step(optimizer)
    scaler.update()
""",
        good="""\
import torch
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
        applicability=SAFE,
        fix="Remove the comment, or the code in its brackets that is not found on this line.",
        silent=(
            (
                "a suppression that silences a finding",
                """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    clip_grad_norm_(model.parameters(), 1.0)  # amp: ignore[AMP201] the threshold was tuned like this
    scaler.step(optimizer)
    scaler.update()
""",
            ),
            (
                "a noqa of another tool",
                """\
from torch.amp import GradScaler, autocast  # noqa: F401
""",
            ),
            (
                "the words inside a string",
                """\
print("write # amp: ignore[AMP201] at the end of the line")
""",
            ),
        ),
        sources=(
            "ruff documentation: unused-noqa, docs.astral.sh/ruff/rules/unused-noqa",
            "measured with torch 2.13 on the CPU",
        ),
        readers=STATIC,
    ),
    Rule(
        "AMP903",
        "unreadable-source",
        ERROR,
        "A file, or a function in it, could not be read, so nothing in it was checked.",
        faults={
            "source:unreadable": Fault(
                "This source could not be read ({reason}), so nothing in it was checked: repair it, or exclude it"
            ),
            "source:too-long": Fault(
                "This file takes too long to follow, and `{function}` and what comes after it was not read: "
                "split the file",
                WARNING,
            ),
            "source:too-many-paths": Fault(
                "`{function}` has too many paths through it to be judged, so some of its mistakes may go unseen: "
                "split it into functions",
                WARNING,
            ),
        },
        why="""\
Silence must mean that the code was read and is clean. A file that does not parse, has bytes that are not text, or is
written for a newer Python than the one that runs the check was not read, and an exit code of 0 would claim that it
was.
""",
        harm="""\
One conflict marker left in a file switches off every rule for all of it, and the mistakes inside stay unseen.
""",
        bad="""\
import torch

model = torch.nn.Linear(8, 2)
scaler = torch.amp.GradScaler("cpu")
<<<<<<< HEAD  # AMP903
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
=======
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
>>>>>>> feature
""",
        good="""\
import torch

model = torch.nn.Linear(8, 2)
scaler = torch.amp.GradScaler("cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
""",
        fix=(
            "Repair the syntax, run the check with the Python version the file is written for, or list the file under"
            " `exclude` in `[tool.amp-check]`."
        ),
        silent=(
            (
                "unusual but valid: an encoding declaration, a form feed, a semicolon",
                "# -*- coding: utf-8 -*-\nimport torch; scaler = torch.amp.GradScaler('cuda')\n\x0c\nprint(scaler)\n",
            ),
            ("an empty file", "\n"),
            (
                "a file that mentions no AMP at all",
                """\
def add(a, b, /, *, c=0):
    return a + b + c
""",
            ),
        ),
        sources=("Python documentation: the ast module, docs.python.org/3/library/ast.html",),
        readers=STATIC,
    ),
)
