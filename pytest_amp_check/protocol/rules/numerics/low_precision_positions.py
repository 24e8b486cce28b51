"""AMP509 low-precision-positions."""

from __future__ import annotations

from ...event_graph import Program
from ...events import LowPositions
from ...rule import BOTH, INFO, WARNING, Certainty, Labels, Rule, ViolationKind
from ...source_text import find_wide_call


def _check_low_positions(event: LowPositions, program: Program) -> Labels:
    doubt = event.how == "buffer" or (event.how == "scaled" and event.dtype != "bfloat16")
    values = (
        {"wide": find_wide_call(str(event.names.get("call") or "")) or "it on `.float()` operands"}
        if event.how == "angles"
        else {}
    )
    yield f"positions:{event.how}", {**values, **({"severity": INFO} if doubt else {})}


RULE = Rule(
    "AMP509",
    "low-precision-positions",
    WARNING,
    "Positions or the angles of a rotary embedding are computed in low precision.",
    effect="distant positions get wrong angles, so long sequences train worse; no error",
    detected_by=BOTH,
    event_checks={LowPositions: _check_low_positions},
    prescan_words=("autocast", "low-precision math"),
    violations={
        "positions:angles": ViolationKind(
            "`{call}` computes angles in low precision, so they are off by radians: compute {wide} in "
            '`with torch.autocast("{region}", enabled=False):`'
        ),
        "positions:cast": ViolationKind(
            "`{call}` rounds positions to low precision before their sine or cosine: make it float32 "
            "here (`dtype=torch.float32` or `.float()`), with `.float()` on what multiplies it, and cast only sine "
            "and cosine"
        ),
        "positions:rotation": ViolationKind(
            "`{call}` holds angles in low precision, of which both sine and cosine are taken: take `.float()` of "
            "what it is computed from, and cast only its sine and cosine"
        ),
        "positions:rounded": ViolationKind(
            "`{call}` rounds angles to low precision before their sine and cosine: leave out this cast, "
            "and cast the sine and cosine in its place"
        ),
        "positions:frequencies": ViolationKind(
            "`{call}` computes the frequencies of positions in low precision: take `.float()` of the exponent"
        ),
        "positions:buffer": ViolationKind(
            "`{call}` makes the frequencies a buffer, which a cast of the model rounds to low precision: compute them "
            "in `forward`, or keep them in a plain attribute"
        ),
        "positions:timesteps": ViolationKind(
            "`{call}` rounds timesteps to low precision, where neighbouring steps become the same: leave out this cast",
            INFO,
            effect="neighbouring timesteps look the same to the model (bfloat16 keeps 507 of 1000); no error",
        ),
        "positions:numbers": ViolationKind(
            "`{call}` holds consecutive integers in low precision, where neighbours become the same: make them in an "
            "integer dtype or in float32, and keep them there",
            INFO,
            effect="integers above 256 (bfloat16) or 2048 (float16) are rounded, so labels and positions collide; no "
            "error",
        ),
        "positions:grid": ViolationKind(
            "`{call}` samples at coordinates that were cast to low precision, which holds no fractions of a pixel in a "
            "large image: leave out this cast",
            effect="samples are up to 1.8 pixels off in bfloat16, 0.2 in float16 (1920 pixels); no error",
        ),
        "positions:radians": ViolationKind(
            "`{call}` gets angles up to {largest} in {dtype}, whose neighbours are half a radian or more apart: "
            "compute the angles in float32, and cast their sine and cosine"
        ),
        "positions:product": ViolationKind(
            "Autocast rounds `{call}`, also of float32 operands, and `{use}` needs its digits: put this "
            'statement into `with torch.autocast("{region}", enabled=False):`',
            INFO,
            effect=(
                "the product has only 3 digits (2 in bfloat16): angles are up to 0.03 radians off, pixels 1.3; no error"
            ),
            certainty=Certainty(is_possible=True),
        ),
        "positions:chain": ViolationKind(
            "Autocast rounds each product of `{call}`, also of float32 operands, and the errors add up: "
            'put this statement into `with torch.autocast("{region}", enabled=False):`',
            INFO,
            effect="the matrix has only 2 to 3 digits, so a rotation also stretches, and positions drift; no error",
            certainty=Certainty(is_possible=True),
        ),
        "positions:scaled": ViolationKind(
            "`{call}` scales a number after its cast to low precision, so neighbouring steps become the same: take "
            "`.float()` of the number before the factor, and keep the result in float32",
            effect="neighbouring timesteps look the same to the model (bfloat16 keeps 507 of 1000); no error",
        ),
        "positions:integers": ViolationKind(
            "`{call}` makes integers of numbers that were computed in low precision, which does not have them all: "
            "write `.float()` before the factor",
            INFO,
            effect="some integers are off, and the largest may wrap around (32768 as int16 is -32768); no error",
        ),
        "positions:table": ViolationKind(
            "`{call}` replaces a table of the object by its copy in low precision, for all later calls: keep the "
            "table, and cast what is taken from it",
            INFO,
            effect="numbers close to each other become the same, also for code that computes in float32; no error",
        ),
        "positions:index": ViolationKind(
            "`{call}` rounds indexes to low precision, which cannot represent all of them: keep them as integers",
            effect="indexes above 256 (bfloat16) or 2048 (float16) point to neighbours; no error",
        ),
    },
    rationale="""\
float16 has every integer up to 2048, and bfloat16 up to 256. Beyond that, neighbouring positions become the same
number, and an angle of some hundred radians is off by about a radian. Autocast runs `einsum` and `matmul` in low
precision even on float32 tensors, and rotary embeddings use them to multiply positions by frequencies. The sine and
cosine then run on rounded angles. An elementwise product of positions and frequencies stays in float32. A cast of the
model casts its buffer of frequencies, and positions that take the dtype of the buffer are rounded. The same holds for a
noise level between 0 and 1 that is cast to bfloat16 and then multiplied by 1000, and for samples of sound that are
multiplied by 32767 before they become integers.

Labels and indexes that are made in the dtype of an image or a model collide in the same way.

Products of points, cameras and rotations lose their digits as well, also with `.float()` on the operands. Source
analysis notes a product of data that becomes an angle, a pixel (divided by its own depth), a cell, a coordinate of
`grid_sample`, a distance between points or an inverse. The code must be reachable from a `forward` in a project with an
autocast region. Products of what layers compute are left out.
""",
    harm="""\
The angles of 4096 positions and 32 frequencies came from a matmul under autocast. They were wrong by up to 2.2 radians
in float16 and 14.4 in bfloat16, and their cosines by up to 2.0. Of 5000 positions, 3299 were distinct in float16 and
797 in bfloat16. Of 1000 noise levels between 0 and 1, bfloat16 kept 507. Float32 angles that were cast before their
cosine were wrong by up to 8 radians in bfloat16 and 1 in float16. A buffer of frequencies that was cast with the model,
and then multiplied in float32, gave angles that were wrong by up to 1.8 radians in bfloat16 and 0.65 in float16. Of the
timesteps 0 to 999, bfloat16 kept 507. The coordinates of 1920 pixels between -1 and 1 were off by up to 1.8 pixels in
bfloat16 and 0.2 in float16. A sample of 1, multiplied by 32767 in bfloat16 or float16, was 32768, which is -32768 as
`int16`. Of the 1000 indexes of a quantizer with 8, 5, 5 and 5 levels, computed in bfloat16, 494 were wrong. Points up
to 10 m away were projected on an image of 1920 pixels by a product of float32 tensors under autocast. They were off by
0.2 pixels in the median and up to 1.3 in float16, and by 1.8 and up to 11 in bfloat16. The angle of a rotated unit
vector, by `acos`, was wrong by up to 0.03 radians in float16 and 0.08 in bfloat16. Of the numbers 1 to 4096, one for
each pixel of 64 by 64, bfloat16 kept 768 and float16 3072.
""",
    bad_example="""\
import torch

inverse = 10000.0 ** -(torch.arange(0, 64, 2).float() / 64)

with torch.autocast("cpu", dtype=torch.bfloat16):
    positions = torch.arange(4096).float()
    angles = positions[:, None] @ inverse[None, :]  # AMP509
    cosine = angles.cos()
exact = (torch.arange(4096).float()[:, None] * inverse[None, :]).cos()
print("largest error:", (cosine - exact).abs().max().item())
""",
    good_example="""\
import torch

inverse = 10000.0 ** -(torch.arange(0, 64, 2).float() / 64)

with torch.autocast("cpu", dtype=torch.bfloat16):
    positions = torch.arange(4096).float()
    with torch.autocast("cpu", enabled=False):
        angles = positions[:, None] @ inverse[None, :]
        cosine = angles.cos()
exact = (torch.arange(4096).float()[:, None] * inverse[None, :]).cos()
print("largest error:", (cosine - exact).abs().max().item())
""",
    fix_advice="Compute angles in a `torch.autocast(..., enabled=False)` region, or by an elementwise product, and cast"
    " their sine and cosine.",
    sources=(
        "PyTorch documentation: Autocast Op Reference, docs.pytorch.org/docs/stable/amp.html#autocast-op-reference",
        "huggingface/diffusers issue 13920 and huggingface/transformers issue 29285",
        "measured with torch 2.13 on the CPU",
    ),
)
