"""AMP108 dtype-clash-at-boundary."""

from __future__ import annotations

from ...event_graph import Program
from ...events import DtypeClash
from ...rule import STATIC, WARNING, Labels, Rule, ViolationKind


def _check_dtype_clash(event: DtypeClash, program: Program) -> Labels:
    # The output of an unanalyzed model may be float32.
    if not event.guessed:
        dtype = event.dtype
        yield f"clash:{event.how}", {"dtype": "low-precision" if dtype == "half" else dtype}


RULE = Rule(
    "AMP108",
    "dtype-clash-at-boundary",
    WARNING,
    "A low-precision tensor from autocast meets float32 code that does not promote.",
    effect="the program ends with an exception the first time this line runs; a test without autocast passes",
    detected_by=STATIC,
    event_checks={DtypeClash: _check_dtype_clash},
    prescan_words=("autocast",),
    violations={
        "clash:module": ViolationKind(
            "`{call}` has float32 weights and is given a {dtype} tensor outside autocast, which raises RuntimeError: "
            "cast the tensor with `.float()` first"
        ),
        "clash:matmul": ViolationKind(
            "`{call}` multiplies a {dtype} tensor by a float32 tensor outside autocast, which raises RuntimeError: "
            "cast with `.float()` first"
        ),
        "clash:write": ViolationKind(
            "`{target}` writes a {dtype} tensor into a float32 tensor by index, which raises RuntimeError: cast the "
            "written tensor with `.to(buffer.dtype)`"
        ),
        "clash:write-wide": ViolationKind(
            "`{target}` writes a float32 tensor into a {dtype} tensor by index, which raises RuntimeError: cast the "
            "written tensor with `.to(buffer.dtype)`"
        ),
        "clash:out": ViolationKind(
            "`{call}` computes a {dtype} product for a float32 `out=`, which raises RuntimeError: remove `out=`, or "
            "pass a tensor of that dtype"
        ),
        "clash:in-place": ViolationKind(
            "`{call}` adds a product of {dtype} tensors to a float32 tensor in place, which raises RuntimeError: "
            "cast the factors with `.float()`, or add the result of `@`"
        ),
        "clash:attention": ViolationKind(
            "`{call}` is given {dtype} and float32 tensors as query, key and value, which raises: cast the float32 "
            "outputs of norms back with `.to(value.dtype)`"
        ),
        "clash:mixed": ViolationKind(
            "`{call}` joins float16 and bfloat16 tensors under autocast, which raises RuntimeError: cast one of them"
        ),
        "clash:numpy": ViolationKind(
            "`{call}` is called on a bfloat16 tensor, which raises TypeError because NumPy has no bfloat16: call "
            "`.float()` first"
        ),
    },
    rationale="""\
Autocast casts the inputs of its listed ops, and only inside its regions. A tensor that leaves a region, or enters a
disabled region, keeps its dtype. There a matmul or a convolution refuses a low-precision input with float32 weights.
In-place writes by index are not on the lists either. `index_add_`, `scatter_`, `index_put_` and `buffer[mask] = x`
refuse a source of another dtype, even inside a region. So do `addmm_` and matmuls with `out=`. Additions, `where`,
`cat` and slices promote or cast. Attention of other packages (xformers, flash-attn) does not, and under the CPU's
autocast neither does a `cat` of float16 and bfloat16.
""",
    harm="""\
A linear layer after the region: `RuntimeError: mat1 and mat2 must have the same dtype, but got BFloat16 and Float`. A
write by index: `Index put requires the source and destination dtypes match, got Float for the destination and BFloat16
for the source`, and similar errors from `index_add_`, `scatter_` and `masked_scatter_`. A product with `out=`:
`RuntimeError: Expected out tensor to have dtype c10::BFloat16, but got float instead`; `addmm_`: `RuntimeError: self
and mat2 must have the same dtype, but got Float and BFloat16`. NumPy: `TypeError: Got unsupported ScalarType BFloat16`.
A test without autocast passes.
""",
    bad_example="""\
import torch
from torch import nn

body, head = nn.Linear(8, 8), nn.Linear(8, 2)
index = torch.tensor([1, 3])


def predict(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = body(x)
    return head(features)  # AMP108


def remember(x):
    memory = torch.zeros(10, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        memory.index_add_(0, index, body(x).detach())  # AMP108


for act in (predict, remember):
    try:
        act(torch.randn(2, 8))
        print(act.__name__, "ran")
    except RuntimeError as error:
        print(act.__name__, error)
""",
    good_example="""\
import torch
from torch import nn

body, head = nn.Linear(8, 8), nn.Linear(8, 2)
index = torch.tensor([1, 3])


def predict(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = body(x)
    return head(features.float())


def remember(x):
    memory = torch.zeros(10, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        memory.index_add_(0, index, body(x).detach().to(memory.dtype))


for act in (predict, remember):
    act(torch.randn(2, 8))
    print(act.__name__, "ran")
""",
    fix_advice="Cast with `.float()` where a tensor leaves the region, or with `.to(buffer.dtype)` where it is "
    "written.",
    sources=(
        "PyTorch documentation: torch.autocast, docs.pytorch.org/docs/stable/amp.html",
        "PyTorch source: ATen/autocast_mode.h",
        "measured with torch 2.13 on the CPU",
    ),
)
