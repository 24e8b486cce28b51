"""AMP605 capture-with-cast-cache."""

from __future__ import annotations

from ...events import AutocastEnter, Forward
from ...fix import SAFE
from ...rule import ERROR, Rule, ViolationKind

RULE = Rule(
    "AMP605",
    "capture-with-cast-cache",
    ERROR,
    "A model is traced or captured in an autocast region that caches cast weights.",
    effect="torch raises here, which ends the run",
    applicability=SAFE,
    prescan_words=("autocast",),
    violations={
        "trace@cached-region": ViolationKind(
            "`{call}` raises in an autocast region with a cache, because cached weights count as constants: enter the "
            "region with `cache_enabled=False`",
            trace_kinds=(AutocastEnter,),
        ),
        "graphed@cached-region": ViolationKind(
            "`{call}` refuses an autocast region with a cache, because a graph must cast the weights at each replay: "
            "enter the region with `cache_enabled=False`",
            trace_kinds=(AutocastEnter,),
        ),
        "graph@cached-region": ViolationKind(
            "`{call}` captures a graph in an autocast region with cached weights, so every replay uses these old "
            "weights: enter the region with `cache_enabled=False`, or inside the capture",
            effect="every replay computes with the weights of the capture, as if nothing were trained; no error",
            trace_kinds=(AutocastEnter, Forward),
        ),
    },
    rationale="""\
A region keeps the low-precision copy of each weight for the next use. A trace or capture of a model records only the
ops that run at that time. If a copy comes from the cache, no cast is recorded. `torch.jit.trace` runs the model twice
and finds the copies of the first run in the second. It cannot make constants of tensors that need gradients. A CUDA
graph that is captured after a warm-up in the same region replays with the weights of that time.
""",
    harm="""\
In a region of bfloat16, `torch.jit.trace` of two Linear layers raises `RuntimeError: Cannot insert a Tensor that
requires grad as a constant`, with and without `no_grad`; with `cache_enabled=False`, or frozen weights, it traces.
`torch.cuda.make_graphed_callables` raises `RuntimeError: make_graphed_callables does not support the autocast
caching`.
""",
    bad_example="""\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).eval()
x = torch.randn(4, 8)
try:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        traced = torch.jit.trace(model, x)  # AMP605
    print(traced(x).dtype)
except RuntimeError as error:
    print(error)
""",
    good_example="""\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).eval()
x = torch.randn(4, 8)
try:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        traced = torch.jit.trace(model, x)
    print(traced(x).dtype)
except RuntimeError as error:
    print(error)
""",
    fix_advice="Enter the region around the capture with `cache_enabled=False`.",
    sources=(
        "PyTorch documentation: torch.cuda.make_graphed_callables",
        (
            "PyTorch documentation: torch.autocast, docs.pytorch.org/docs/stable/amp.html: the example with "
            "torch.jit.trace"
        ),
        "pytorch issue 63552",
        "measured with torch 2.13 on the CPU",
    ),
)
