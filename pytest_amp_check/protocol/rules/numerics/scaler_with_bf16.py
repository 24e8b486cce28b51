"""AMP503 scaler-with-bf16."""

from __future__ import annotations

from ...event_graph import Program
from ...events import AutocastEnter, Scale, ScalerNew
from ...rule import BOTH, INFO, Labels, Rule, TraceContext, Verdicts, ViolationKind
from ...torch_api import BFLOAT16_OR_FLOAT32


def _check_scaled_bf16(event: Scale, program: Program) -> Labels:
    dtypes = frozenset(event.dtypes or ())
    if not dtypes or not dtypes <= {"bfloat16", BFLOAT16_OR_FLOAT32}:
        return
    # enabled=(dtype == torch.float16) is how to share one code path between both dtypes.
    scaler = None if event.subject is None else program.objects[event.subject]
    if scaler is None or scaler.attributes.enabled is True or _is_enabled_with_bf16(event, program):
        yield "scale:bf16", {}


def _is_enabled_with_bf16(event: Scale, program: Program) -> bool:
    """Return True if the flags that enable a scaler also enable the bfloat16 regions of the program."""
    scaler = None if event.subject is None else program.objects[event.subject]
    enabling = frozenset[int]() if scaler is None else scaler.attributes.enabling or frozenset[int]()
    regions = [each for each in program.iter_events() if isinstance(each, AutocastEnter) and each.enabled]
    return (
        bool(enabling)
        and bool(regions)
        and all(
            each.dtype == "bfloat16" and enabling <= {key for key, truth in each.guards if truth} for each in regions
        )
    )


def _check_made_for_bf16(program: Program) -> Verdicts:
    for event in program.iter_events():
        if isinstance(event, ScalerNew) and event.bf16_condition and event.arguments.get("enabled") is not False:
            yield "scaler:made-for-bf16", event, {"test": event.bf16_condition}, ()


RULE = Rule(
    "AMP503",
    "scaler-with-bf16",
    INFO,
    "A GradScaler has nothing to do in a bfloat16 training.",
    effect="same result, but slower: one more pass over the gradients and a wait for the device in each step",
    detected_by=BOTH,
    event_checks={Scale: _check_scaled_bf16},
    program_checks={ScalerNew: _check_made_for_bf16},
    prescan_words=("scaler",),
    violations={
        "scale:bf16": ViolationKind(
            "`{scaler}` scales a bfloat16 loss, which needs no scaling: drop the scaler, or construct it with"
            " `enabled=(dtype == torch.float16)`",
            trace_context=TraceContext(region_before=True, shows_scaler=True),
        ),
        "scaler:made-for-bf16": ViolationKind(
            "`{call}` is constructed if `{test}`, but bfloat16 needs no scaling: construct the scaler for float16 only"
        ),
    },
    rationale="""\
bfloat16 has the exponent of float32. Gradients that survive in float32 survive in bfloat16, so scaling gains nothing.
It does no harm either: a scale of 65536 does not make bfloat16 overflow, whose largest number is 3.39e38. The cost is a
pass over all gradients and a wait for the device at every step.
""",
    harm="""\
Twenty steps in bfloat16 were bit-identical with and without the scaler. With the scaler, each step pays one more pass
over the gradients and one `.item()`, which makes the CPU wait for the GPU.
""",
    bad_example="""\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()  # AMP503
    scaler.step(optimizer)
    scaler.update()
""",
    good_example="""\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
    fix_advice="Call `loss.backward()` and `optimizer.step()`, or enable the scaler for float16 only.",
    sources=(
        "PyTorch documentation: torch.autocast and GradScaler, docs.pytorch.org/docs/stable/amp.html",
        "karpathy/nanoGPT, train.py: the scaler is enabled for float16 only",
        "measured with torch 2.13 on the CPU",
    ),
)
