"""AMP606 autocast-not-in-thread."""

from __future__ import annotations

from ...events import AutocastEnter
from ...rule import WARNING, Rule, ViolationKind

RULE = Rule(
    "AMP606",
    "autocast-not-in-thread",
    WARNING,
    "A model runs in a thread that does not inherit the surrounding autocast region.",
    effect="the model runs in float32: correct, but slow and memory-hungry; no error",
    prescan_words=("autocast",),
    violations={
        "thread@region": ViolationKind(
            "`{call}` runs a model in another thread, where this region is not active, so the model runs in float32: "
            "enter the region in the function that the thread runs",
            trace_kinds=(AutocastEnter,),
        ),
        "replicas@region": ViolationKind(
            "`{module}` runs replicas in threads without the dtype of this region, so they run in float16 instead of "
            "bfloat16: enter autocast in the forward of the wrapped model",
            effect=(
                "values above 65504 overflow in the replicas: a GradScaler skips the step, without one the "
                "weights become NaN"
            ),
            trace_kinds=(AutocastEnter,),
        ),
    },
    rationale="""\
The autocast state, on or off and its dtype, belongs to the thread that has entered the region. A thread that is started
in a region, or a pool that gets work there, begins with autocast off. DataParallel passes on only that autocast is on.
Its replicas run in the default dtype of the device, which is float16 on CUDA. In a region of bfloat16 they therefore
overflow unexpectedly.
""",
    harm="""\
In a region of bfloat16 a Linear layer gives bfloat16. In a thread that is started there, or in a pool that gets the
same call, it gives float32. DataParallel enters `torch.amp.autocast("cuda", enabled=...)` in each replica's thread,
without a dtype.
""",
    bad_example="""\
import threading

import torch
from torch import nn

model = nn.Linear(8, 2)
outputs = []


def predict(x):
    outputs.append(model(x))


with torch.autocast("cpu", dtype=torch.bfloat16):
    worker = threading.Thread(target=predict, args=(torch.randn(4, 8),))
    worker.start()  # AMP606
    worker.join()
print(outputs[0].dtype)
""",
    good_example="""\
import threading

import torch
from torch import nn

model = nn.Linear(8, 2)
outputs = []


def predict(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs.append(model(x))


worker = threading.Thread(target=predict, args=(torch.randn(4, 8),))
worker.start()
worker.join()
print(outputs[0].dtype)
""",
    fix_advice="Enter autocast in the function that the thread runs, or in the forward of the model.",
    sources=(
        (
            "PyTorch documentation: torch.autocast, docs.pytorch.org/docs/stable/amp.html: the autocast state is "
            "thread-local"
        ),
        (
            "PyTorch documentation: Automatic Mixed Precision examples, "
            "docs.pytorch.org/docs/stable/notes/amp_examples.html, section DataParallel in a single process"
        ),
        "PyTorch source: torch/nn/parallel/parallel_apply.py",
        "measured with torch 2.13 on the CPU",
    ),
)
