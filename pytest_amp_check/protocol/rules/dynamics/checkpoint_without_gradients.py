"""AMP803 checkpoint-without-gradients."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Event, Recomputation
from ...rule import ERROR, RUNTIME, Labels, Rule, ViolationKind


def _check_recomputation(event: Event, program: Program) -> Labels:
    yield "recomputation:no-gradients", {}


RULE = Rule(
    "AMP803",
    "checkpoint-without-gradients",
    ERROR,
    "A reentrant checkpoint gets no input that requires a gradient, so the parameters inside it are not trained.",
    effect="the parameters inside keep their initial values; torch only warns",
    detected_by=RUNTIME,
    event_checks={Recomputation: _check_recomputation},
    violations={
        "recomputation:no-gradients": ViolationKind(
            "`{call}` is a reentrant checkpoint, and none of its inputs requires a gradient, so the parameters inside "
            "it get none: pass `use_reentrant=False`, or call `.requires_grad_()` on its input"
        ),
    },
    rationale="""\
`torch.utils.checkpoint.checkpoint(..., use_reentrant=True)` runs the function without gradients and computes them later
in a second pass. autograd plans this second pass only if an input tensor requires a gradient. The parameters of a
module are no inputs. The first block of a network gets the batch, which requires none, so the block is never trained.
torch only warns. If the other parameters belong to another optimizer, a scaler raises `No inf checks were recorded`.
The non-reentrant form has no such condition.
""",
    harm="""\
Two linear layers were trained for 100 steps of Adam, the first of them in a checkpoint of the batch. In the reentrant
form its weights did not move at all, and the loss ended at 1.68. With `use_reentrant=False` they moved by 0.061 on
average, and the loss ended at 1.40.
""",
    bad_example="""\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
body, head = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = checkpoint(body, torch.randn(4, 8), use_reentrant=True)  # AMP803
        loss = head(hidden).float().square().mean()
    loss.backward()
    optimizer.step()
""",
    good_example="""\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
body, head = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = checkpoint(body, torch.randn(4, 8), use_reentrant=False)
        loss = head(hidden).float().square().mean()
    loss.backward()
    optimizer.step()
""",
    fix_advice="Pass `use_reentrant=False`, or make the input of the first checkpoint require a gradient.",
    sources=(
        "torch/utils/checkpoint.py: check_backward_validity(), and the notes on use_reentrant in checkpoint()",
        "measured: weights of a checkpointed layer after 100 steps, reentrant and not",
    ),
)
