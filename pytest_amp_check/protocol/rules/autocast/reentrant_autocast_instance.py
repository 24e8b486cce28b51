"""AMP102 reentrant-autocast-instance."""

from __future__ import annotations

from ...fix import SAFE
from ...rule import BOTH, ERROR, Rule, ViolationKind

RULE = Rule(
    "AMP102",
    "reentrant-autocast-instance",
    ERROR,
    "One autocast object is entered twice, so autocast stays enabled after it exits.",
    effect="all later code, with losses and evaluation, runs in low precision; no error",
    detected_by=BOTH,
    applicability=SAFE,
    prescan_words=("autocast",),
    violations={
        "enter@entered": ViolationKind(
            "`{context}` is entered while it is already open, so autocast stays enabled after both exits: create a"
            " new autocast object for the inner region"
        ),
    },
    rationale="""\
An autocast object stores the state to restore **on itself** when it is entered. A second entry before the exit
overwrites this state with the state inside the region. The last exit then restores "enabled", and the rest of the
program runs under autocast. A decorator is one such object, shared by all calls of the function. A decorated function
that calls itself enters it twice. So does a decorated `forward` of a class that contains instances of itself. Using one
object several times in sequence is fine.
""",
    harm="""\
After `with ctx: with ctx: ...` both regions have closed, but `torch.is_autocast_enabled()` is still true. Every later
matmul of the thread runs in low precision, including losses and evaluation, and nothing raises. PyTorch's own
`enable_grad` once had the same class of bug.
""",
    bad_example="""\
import torch
from torch import nn

encoder, head = nn.Linear(8, 8), nn.Linear(8, 2)
ctx = torch.autocast("cpu", dtype=torch.bfloat16)


def predict(x):
    with ctx:
        hidden = encoder(x)
        with ctx:  # AMP102
            return head(hidden)


with torch.no_grad():
    predict(torch.randn(4, 8))
    print("autocast after the region:", torch.is_autocast_enabled("cpu"), head(torch.randn(4, 8)).dtype)
""",
    good_example="""\
import torch
from torch import nn

encoder, head = nn.Linear(8, 8), nn.Linear(8, 2)


def predict(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = encoder(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return head(hidden)


with torch.no_grad():
    predict(torch.randn(4, 8))
    print("autocast after the region:", torch.is_autocast_enabled("cpu"), head(torch.randn(4, 8)).dtype)
""",
    fix_advice=(
        "Construct each autocast object where it is entered, with `with torch.autocast(...):` in the body, and do not "
        "share objects."
    ),
    sources=(
        "PyTorch source: torch/amp/autocast_mode.py",
        "pytorch/pytorch issue 44531: the same mistake in enable_grad",
        "measured with torch 2.4 and 2.13 on the CPU",
    ),
)
