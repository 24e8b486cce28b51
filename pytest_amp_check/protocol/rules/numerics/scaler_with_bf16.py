"""AMP503 scaler-with-bf16."""

from __future__ import annotations

from ...event_graph import Program
from ...events import AutocastEnter, Backward, Scale, ScalerNew
from ...guards import decided_guards
from ...rule import BOTH, INFO, Certainty, Edit, Labels, Rule, TraceContext, Verdicts, ViolationKind
from ...torch_api import BFLOAT16_OR_FLOAT32


def _check_scaled_bf16(event: Scale, program: Program) -> Labels:
    dtypes = frozenset(event.dtypes or ())
    if not dtypes <= {"bfloat16", BFLOAT16_OR_FLOAT32}:
        return
    # A loss from outside of the regions is another mistake.
    if not dtypes and (event.autocast == "out" or event.bare or not _enters_only_bfloat16(program)):
        return
    # enabled=(dtype == torch.float16) is how to share one code path between both dtypes.
    scaler = None if event.subject is None else program.objects[event.subject]
    if scaler is None or scaler.attributes.enabled is True or _is_enabled_with_bf16(event, program):
        yield "scale:bf16" if dtypes else "scale:bf16-regions", {}


def _enters_only_bfloat16(program: Program) -> bool:
    """Return True if a program trains in bfloat16 regions, and nothing in it computes in float16."""
    events = [*program.iter_events()]
    regions = [each for each in events if isinstance(each, AutocastEnter) and each.enabled and not each.null]
    losses = (each for each in events if isinstance(each, Scale))
    return (
        any(not each.without_gradients for each in regions)
        and all(each.dtype == "bfloat16" for each in regions)
        and all(frozenset(each.dtypes or ()) <= {"bfloat16", BFLOAT16_OR_FLOAT32} for each in losses)
        and not any(each.attributes.dtypes.casts for each in program.objects if each.role == "module")
    )


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
    yield from _check_choice(program)


def _check_choice(program: Program) -> Verdicts:
    """Yield the scalers that stay enabled where the code chooses bfloat16 instead of float16 for the regions."""
    events = list(program.iter_events())
    regions = [
        each
        for each in events
        if isinstance(each, AutocastEnter) and each.enabled and not each.null and not each.without_gradients
    ]
    if not regions or not all(each.low_choice for each in regions):
        return
    # What enables the regions says nothing about their dtype.
    unrelated = frozenset.intersection(
        *(frozenset(key for key, truth in decided_guards(each) if truth) for each in regions)
    )
    uses_of: dict[int | None, list[Scale]] = {}
    for each in events:
        if isinstance(each, Scale):
            uses_of.setdefault(each.subject, []).append(each)
    unscaled = [each for each in events if isinstance(each, Backward) and each.subject is None]
    for event in events:
        if not isinstance(event, ScalerNew) or event.subject is None or event.bf16_condition:
            continue
        uses = uses_of.get(event.subject, [])
        attributes = program.objects[event.subject].attributes
        enabling = attributes.enabling or frozenset()
        disabled = {(key, not truth) for each in uses for key, truth in each.guards if key in enabling | unrelated}
        # The other losses of a program that scales some may be those in bfloat16.
        is_one_of_two = any(disabled.isdisjoint(each.guards) for each in unscaled)
        made_if = {key for key, _ in event.guards}
        deciding = {key for use in uses for key, _ in use.guards if is_one_of_two or key in made_if}
        deciding |= {key for key in enabling if not _asks_for_none(program, key)}
        if uses and attributes.enabled is not False and deciding <= unrelated:
            chosen = regions[0].low_choice
            is_given = "enabled" in event.arguments
            template = "let `enabled` also require `{}`" if is_given else "pass `enabled=({})`"
            advice = template.format(f"{chosen} == torch.float16")
            yield "scaler:any-dtype", event, {"dtype": chosen, "advice": advice}, (regions[0],)


def _asks_for_none(program: Program, key: int) -> bool:
    """Return True if a predicate asks for None: a setting that is absent chooses no dtype."""
    return str(program.graphs[0].predicates[key].text).endswith(" is None")


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
            "`{scaler}` scales a bfloat16 loss, which needs no scaling: construct it with "
            "`enabled=False`, which disables all its calls",
            trace_context=TraceContext(
                region_before=True,
                shows_scaler=True,
                edits=(Edit("pass `enabled=False` in this call", search="scaler"),),
            ),
        ),
        "scale:bf16-regions": ViolationKind(
            "`{scaler}` scales a loss where all regions are in bfloat16, which needs no scaling: construct it with "
            "`enabled=False`, which disables all its calls",
            certainty=Certainty(is_possible=True, assumption="nothing else computes the loss in float16"),
            trace_context=TraceContext(
                region_before=True,
                shows_scaler=True,
                edits=(Edit("pass `enabled=False` in this call", search="scaler"),),
            ),
        ),
        "scaler:made-for-bf16": ViolationKind(
            "`{call}` is constructed if `{test}`, but bfloat16 needs no scaling: pass `enabled=False` in this call"
        ),
        "scaler:any-dtype": ViolationKind(
            "`{call}` stays enabled if `{dtype}` is bfloat16, which needs no scaling: {advice}",
            certainty=Certainty(always_possible=True),
        ),
    },
    rationale="""\
bfloat16 has the exponent of float32. Gradients that survive in float32 survive in bfloat16, so scaling gains nothing.
It does no harm either: a scale of 65536 does not make bfloat16 overflow, whose largest number is 3.39e38. The cost is a
pass over all gradients and a wait for the device at every step. Code that chooses between the two dtypes needs the
scaler for float16 only.
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
