"""AMP512 float8-misused."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Float8
from ...rule import STATIC, WARNING, Certainty, Labels, Rule, ViolationKind


def _check_float8(event: Float8, program: Program) -> Labels:
    yield f"float8:{event.how}", {}


RULE = Rule(
    "AMP512",
    "float8-misused",
    WARNING,
    "A model is converted to float8 too late, or uses a format or scales that do not fit.",
    effect="training is no faster than before, because the old layers are still the ones in use; no error",
    detected_by=STATIC,
    event_checks={Float8: _check_float8},
    prescan_words=(
        "convert_to_float8_training",
        "precompute_float8_dynamic_scale_for_fsdp",
        "MXFP8BlockScaling",
        "is_first_microbatch",
    ),
    violations={
        "float8:late-compile": ViolationKind(
            "`{call}` replaces layers of `{model}` after `{early}`, which has taken the old ones: convert the model "
            "first",
        ),
        "float8:late-shard": ViolationKind(
            "`{call}` replaces layers of `{model}` after `{early}` has sharded the old ones: convert the model first",
        ),
        "float8:late-optimizer": ViolationKind(
            "`{call}` may replace parameters of `{model}` after `{early}` has taken the old ones: convert the model "
            "first",
            effect="the optimizer may update weights that the model no longer uses, so nothing is trained; no error",
            certainty=Certainty(is_possible=True),
        ),
        "float8:scales-early": ViolationKind(
            "`{call}` computes scales before the optimizer changes the weights, so the next forward uses old scales: "
            "call it after the step",
            effect="each forward rounds the weights with scales of the step before, so it is less accurate; no error",
        ),
        "float8:format": ViolationKind(
            "`{call}` with `Format.HYBRID` rounds gradients to two mantissa bits, although each block has a scale: "
            "use `Format.E4M3`",
            effect="gradients are twice as inexact (5.3 % off, not 2.7 %), and training may diverge; no error",
        ),
        "float8:old-weights": ViolationKind(
            "`{call}` always gets `is_first_microbatch=False`, so its float8 weights are never cast again: pass True "
            "in the first micro-batch after each step",
            effect="forwards keep the first weights while the optimizer moves the real ones: the loss stops falling",
            certainty=Certainty(is_possible=True),
        ),
        "float8:first-once": ViolationKind(
            "`{call}` gets `is_first_microbatch={first}`, which is true once, so its float8 weights are not cast again "
            "after a step: pass True in the first micro-batch of each window",
            effect="forwards keep the first weights while the optimizer moves the real ones: the loss stops falling",
            certainty=Certainty(is_possible=True),
        ),
    },
    rationale="""\
`convert_to_float8_training` of torchao replaces each linear layer. What `torch.compile`, FSDP or an optimizer has taken
before is the old layer, or its parameter. With float8 all-gather the new layers also have new parameters, so an
optimizer that was made before updates weights that nobody uses. `precompute_float8_dynamic_scale_for_fsdp` computes the
scales of the weights for the next forward, so it follows the step.

TransformerEngine casts weights to float8 in the first micro-batch of a window and keeps the result, if
`is_first_microbatch` says so. False in every call keeps the first cast for the whole training. E5M2 has two mantissa
bits and a large range, for tensors with a single scale. In MXFP8 each block of 32 values has a scale, so the format of
gradients is E4M3 as well.
""",
    harm="""\
Blocks of 32 normal values, each with a scale of its own, were 5.3 % off in E5M2 and 2.7 % in E4M3. Trainings with MXFP8
and `HYBRID` were reported to diverge. Without float8 layers the training is as slow as before.
""",
    bad_example="""\
import torch
from torch import nn
from torchao.float8 import convert_to_float8_training

model = nn.Sequential(nn.Linear(2048, 4096), nn.Linear(4096, 2048)).cuda()
model = torch.compile(model)
convert_to_float8_training(model)  # AMP512
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
""",
    good_example="""\
import torch
from torch import nn
from torchao.float8 import convert_to_float8_training

model = nn.Sequential(nn.Linear(2048, 4096), nn.Linear(4096, 2048)).cuda()
convert_to_float8_training(model)
model = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
""",
    fix_advice="Convert the model before it is compiled, sharded or given to an optimizer, and compute scales after "
    "the step.",
    sources=(
        "torchao documentation: torchao.float8, docs.pytorch.org/ao/stable/workflows/training.html",
        "torchao 0.13, float8/fsdp_utils.py: precompute_float8_dynamic_scale_for_fsdp runs after the optimizer step",
        "TransformerEngine documentation, MXFP8BlockScaling: docs.nvidia.com/deeplearning/transformer-engine",
    ),
)
