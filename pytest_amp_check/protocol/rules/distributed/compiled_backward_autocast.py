"""AMP601 compiled-backward-autocast."""

from __future__ import annotations

from ...events import COMPILED, Event, Program
from ...rule import STATIC, WARNING, Labels, Rule, ViolationKind


def _check_compiled(event: Event, program: Program) -> Labels:
    yield "compiled@region", {}


RULE = Rule(
    "AMP601",
    "compiled-backward-autocast",
    WARNING,
    "The backward of a compiled module with float32 islands runs under the autocast of its forward.",
    detected_by=STATIC,
    event_checks={COMPILED: _check_compiled},
    prescan_words=("autocast",),
    violations={
        "compiled@region": ViolationKind(
            "`{module}` is compiled and called under autocast, so the backward of the part of it that switches autocast"
            " off runs in low precision too: enter autocast inside the compiled module, or set"
            ' `torch._functorch.config.backward_pass_autocast` to `"off"`'
        )
    },
    rationale="""\
`torch.compile` traces the backward of a module together with its forward, and takes for granted that backward runs
under the autocast in which forward was called. In a plain module the loss runs backward outside of the region, so a
part that switches autocast off, or has it compute in float32, keeps its float32 in both directions. Compiled, the
matmuls of that part's backward are cast to the low precision of the region, which is what the part was meant to avoid.
""",
    harm="""\
A Linear layer in `torch.autocast("cpu", enabled=False)` between two that autocast casts, compiled with `aot_eager`,
float16: the gradient of its weight differs by 2.0e-4 from that of the plain module, and is bit-equal with
`backward_pass_autocast = "off"`. With a loss multiplied by 6.6e6, 67 of its 256 elements are not finite where the
plain module has none.
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
    fix_advice="Enter autocast inside the module that is compiled, or have the compiled backward run without autocast.",
    sources=(
        (
            "PyTorch documentation: torch.compile and the autocast of backward, "
            "docs.pytorch.org/docs/stable/torch.compiler_backward.html"
        ),
        "pytorch issue 153044",
        "measured with torch 2.13 on the CPU",
    ),
)
