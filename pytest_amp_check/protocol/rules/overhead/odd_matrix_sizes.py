"""AMP702 odd-matrix-sizes."""

from __future__ import annotations

from ...event_graph import Program
from ...events import OddSize
from ...rule import BOTH, INFO, Labels, Rule, ViolationKind


def _check_odd_size(event: OddSize, program: Program) -> Labels:
    yield f"size:{event.how}", {}


RULE = Rule(
    "AMP702",
    "odd-matrix-sizes",
    INFO,
    "Matrices are multiplied in low precision with sizes that are not multiples of 8.",
    effect="same result, but slower matrix products on Tensor Cores",
    detected_by=BOTH,
    on_by_default=False,
    event_checks={OddSize: _check_odd_size},
    prescan_words=("autocast",),
    violations={
        "size:weight": ViolationKind(
            "`{call}` multiplies by a low-precision matrix with a side of {sizes}, slower on Tensor Cores than "
            "multiples of 8: pad it to {better}"
        ),
        "size:rows": ViolationKind(
            "`{call}` runs backward through low-precision products of {sizes} rows, slower on Tensor Cores than "
            "multiples of 8: use batches that give {better}"
        ),
    },
    rationale="""\
Tensor Cores take matrices of float16 and bfloat16 in blocks, and rows of them as 16 bytes: 8 numbers. Before cuBLAS 11
and cuDNN 7.6.3, a product with a side that is not a multiple of 8 did not use Tensor Cores at all. Later versions use
them, but with slower kernels that read smaller pieces. On an A100 multiples of 64 are best. Usual cases are a
vocabulary of 50257 words, or 1001 classes: pad the size to the next multiple, and never use the added words. Products
with a side below 128 are left out, because memory limits their speed, and so are grouped convolutions. Source analysis
reports literal sizes of layers that run in a region. A run reports all products behind a backward, and their rows.
""",
    harm="""\
No result changes, only time. NVIDIA measured the last layer of a Transformer on a V100, with 1024 inputs and 5120 rows.
A vocabulary that is a multiple of 8 makes it substantially faster, with cuBLAS 10.1 and with cuBLAS 11.0. This project
has not measured it, for want of a GPU.
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Embedding(1001, 128),
    nn.Linear(128, 1001),  # AMP702
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
words = torch.randint(1001, (4, 32))
for _ in range(2):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten())
    loss.backward()
    optimizer.step()
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Embedding(1008, 128),
    nn.Linear(128, 1008),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
words = torch.randint(1001, (4, 32))
for _ in range(2):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten())
    loss.backward()
    optimizer.step()
""",
    fix_advice="Pad vocabularies and channels to a multiple of 8, and use batches of a multiple of 8.",
    sources=(
        "NVIDIA: Matrix Multiplication Background User's Guide, requirements to use Tensor Cores",
        "NVIDIA: Linear/Fully-Connected Layers User's Guide, quick-start checklist and vocabulary size",
    ),
)
