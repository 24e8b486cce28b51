"""AMP601 compiled-backward-autocast."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Compiled
from ...rule import STATIC, WARNING, Labels, Rule, ViolationKind


def _check_compiled(event: Compiled, program: Program) -> Labels:
    yield "compiled@region", {}


RULE = Rule(
    "AMP601",
    "compiled-backward-autocast",
    WARNING,
    "The backward of a compiled module with float32 islands runs under the autocast of its forward.",
    effect="gradients of the float32 part are inexact and overflow earlier than without compilation; no error",
    detected_by=STATIC,
    event_checks={Compiled: _check_compiled},
    prescan_words=("autocast",),
    violations={
        "compiled@region": ViolationKind(
            "`{module}` is compiled and called under autocast, so the backward of its float32 island also runs in low "
            "precision: enter autocast inside the compiled module, or set "
            '`torch._functorch.config.backward_pass_autocast` to `"off"`'
        )
    },
    rationale="""\
`torch.compile` traces the backward of a module together with its forward. It assumes that backward runs under the
autocast of the forward call. In a plain module the backward runs outside the region. A part of the module that disables
autocast, or computes in float32 under it, then stays in float32 in both directions. Compiled, the matmuls of that
part's backward are cast to the low precision of the region, which the part was meant to avoid.
""",
    harm="""\
A Linear layer in `torch.autocast("cpu", enabled=False)` between two layers under autocast, compiled with `aot_eager`,
float16. The gradient of its weight differs by 2.0e-4 from the gradient of the plain module, and is bit-equal with
`backward_pass_autocast = "off"`. With a loss multiplied by 6.6e6, 67 of its 256 elements are not finite; in the plain
module all are finite.
""",
    bad_example="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.precise = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        x = torch.relu(self.body(x))
        with torch.autocast("cpu", enabled=False):
            return self.precise(x.float())


net = Net()
model = torch.compile(net, backend="aot_eager")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in torch.randn(8, 8).split(4):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)  # AMP601
        loss = nn.functional.mse_loss(out, torch.zeros(4, 4))
    loss.backward()
    optimizer.step()
""",
    good_example="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.precise = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = torch.relu(self.body(x))
            with torch.autocast("cpu", enabled=False):
                return self.precise(x.float())


net = Net()
model = torch.compile(net, backend="aot_eager")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in torch.randn(8, 8).split(4):
    optimizer.zero_grad()
    out = model(x)
    loss = nn.functional.mse_loss(out, torch.zeros(4, 4))
    loss.backward()
    optimizer.step()
""",
    fix_advice="Enter autocast inside the compiled module, or let the compiled backward run without autocast.",
    sources=(
        (
            "PyTorch documentation: torch.compile and the autocast of backward, "
            "docs.pytorch.org/docs/stable/torch.compiler_backward.html"
        ),
        "pytorch issue 153044",
        "measured with torch 2.13 on the CPU",
    ),
)
