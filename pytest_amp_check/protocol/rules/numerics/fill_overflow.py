"""AMP506 fill-overflow."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Fill
from ...fix import SAFE
from ...rule import ERROR, STATIC, WARNING, Certainty, Labels, Rule, ViolationKind
from ...torch_api import BFLOAT16_MAX, FLOAT16_MAX

#: Functions that write -inf for -1e9 into float16, as an assignment to ``x[mask]`` does. Others raise.
_WRITING = frozenset(("where", "full", "new_full"))


#: The end of the label for a tensor of a dtype.
_OF_DTYPE = {"float16": "overflow", "bfloat16": "bfloat16"}


def _check_fill(event: Fill, program: Program) -> Labels:
    value = event.value
    # Infinities are values of float16, and NaN compares false.
    if event.eligible and FLOAT16_MAX < abs(value) < float("inf"):
        if event.dtype == "bfloat16" and abs(value) <= BFLOAT16_MAX:
            return
        label = "fill:bound" if event.bound else "fill:cast" if event.cast else f"fill:{_OF_DTYPE[event.dtype]}"
        # A guess assumes that a caller enters autocast, but no code calls a test.
        guessed = event.guessed
        if guessed and event.site.is_in_test():
            return
        severity = WARNING if guessed or event.cast else ERROR
        values = {"value": f"{value:g}", "limit": "min" if value < 0 else "max", "severity": severity}
        yield label, {**values, "way": _find_way(str(event.names.get("call", "")))}


def _find_way(call: str) -> str:
    """Return ``writes`` for a fill that gives an infinity since torch 2.11, ``raises`` for one that always raises."""
    name = call.partition("(")[0].rpartition(".")[2]
    return "writes" if name in _WRITING or call.endswith("]") else "raises"


RULE = Rule(
    "AMP506",
    "fill-overflow",
    ERROR,
    "A constant beyond the range of float16 is written into a tensor that may be float16.",
    effect="in float16 the number becomes infinite or raises; tests in float32 do not show it",
    effect_cases={
        "way=raises": (
            "torch raises RuntimeError on the first float16 batch, which ends the run; float32 tests do not show it"
        ),
        "way=writes": (
            "float16 gets an infinity (torch before 2.11 raises): a row with nothing else is NaN after its softmax"
        ),
    },
    detected_by=STATIC,
    applicability=SAFE,
    event_checks={Fill: _check_fill},
    prescan_words=("large fill",),
    violations={
        "fill:overflow": ViolationKind(
            "`{call}` writes {value} into a tensor that may be float16, which ends at 65504: write"
            " `torch.finfo({tensor}.dtype).{limit}` instead",
            certainty=Certainty(assumption="`{tensor}` is float16, as in a float16 autocast region of the caller"),
        ),
        "fill:bfloat16": ViolationKind(
            "`{call}` writes {value}, a limit of float32, into a tensor that may be bfloat16, which ends at 3.39e38: "
            "write `torch.finfo({tensor}.dtype).{limit}` instead",
            effect_cases={
                "way=raises": (
                    "torch raises RuntimeError on the first bfloat16 batch, which ends the run; float32 tests do not "
                    "show it"
                ),
                "way=writes": (
                    "bfloat16 gets an infinity (torch before 2.11 raises): a row with nothing else is NaN after its "
                    "softmax"
                ),
            },
            certainty=Certainty(assumption="`{tensor}` is bfloat16, as in a bfloat16 autocast region of the caller"),
        ),
        "fill:cast": ViolationKind(
            "`{call}` casts a tensor that holds {value} to float16, which ends at 65504, so {value} becomes infinite: "
            "write `torch.finfo(torch.float16).{limit}` instead",
            effect="the infinity makes the softmax of a fully masked row NaN, and then the weights; no error",
        ),
        "fill:bound": ViolationKind(
            "`{call}` bounds a float16 tensor by {value}, which float16 cannot represent, and raises: use "
            "`torch.finfo({tensor}.dtype).{limit}` as the bound, or remove the bound",
            effect=(
                "torch raises RuntimeError on the first float16 batch, which ends the run; float32 tests do not show it"
            ),
            certainty=Certainty(assumption="`{tensor}` is float16, as in a float16 autocast region of the caller"),
        ),
    },
    rationale="""\
float16 ends at 65504. `-1e9`, the usual attention mask, does not fit: depending on the function and the version, torch
raises, or writes -inf. A softmax over a fully masked row is then NaN, and the NaN reaches every parameter. Attention
scores are float16 under autocast for any dtype of the inputs, because autocast runs their matmul in low precision.
With `assume-precision = "float16"` the tensors that a function receives count as float16 as well.
""",
    harm="""\
`masked_fill`, `fill_`, `index_fill`, `full_like`, `clamp` and `pad` with 1e9 raise `RuntimeError: value cannot be
converted to type c10::Half without overflow`. They raise on the first float16 batch, but not in a float32 test.
`torch.where`, `full`, `new_full`, `x[mask] = c` and `x[i, j] = c` silently wrote -inf from torch 2.11 on, and raised in
2.4. The softmax of a fully masked row was NaN with -inf, and uniform with `torch.finfo(dtype).min`.
""",
    bad_example="""\
import torch

torch.manual_seed(0)
query, key, value = (torch.randn(2, 4, 8) for _ in range(3))
padding = torch.tensor([[False, False, True, True], [True, True, True, True]])[:, None, :]


def attend_where():
    with torch.autocast("cpu", dtype=torch.float16):
        scores = torch.matmul(query, key.transpose(1, 2))
        scores = torch.where(padding.logical_not(), scores, -1e9)  # AMP506
        return torch.matmul(scores.softmax(-1), value)


def attend_masked_fill():
    with torch.autocast("cpu", dtype=torch.float16):
        scores = torch.matmul(query, key.transpose(1, 2))
        scores = scores.masked_fill(padding, -1e9)  # AMP506
        return torch.matmul(scores.softmax(-1), value)


for attend in (attend_where, attend_masked_fill):
    try:
        print(attend.__name__, "finite:", attend().isfinite().all().item())
    except RuntimeError as error:
        print(attend.__name__, error)
""",
    good_example="""\
import torch

torch.manual_seed(0)
query, key, value = (torch.randn(2, 4, 8) for _ in range(3))
padding = torch.tensor([[False, False, True, True], [True, True, True, True]])[:, None, :]


def attend_where():
    with torch.autocast("cpu", dtype=torch.float16):
        scores = torch.matmul(query, key.transpose(1, 2))
        scores = torch.where(padding.logical_not(), scores, torch.finfo(scores.dtype).min)
        return torch.matmul(scores.softmax(-1), value)


def attend_masked_fill():
    with torch.autocast("cpu", dtype=torch.float16):
        scores = torch.matmul(query, key.transpose(1, 2))
        scores = scores.masked_fill(padding, torch.finfo(scores.dtype).min)
        return torch.matmul(scores.softmax(-1), value)


for attend in (attend_where, attend_masked_fill):
    print(attend.__name__, "finite:", attend().isfinite().all().item())
""",
    fix_advice='Write `torch.finfo(x.dtype).min`, or `float("-inf")` if no row is fully masked.',
    sources=(
        "PyTorch documentation: torch.finfo, docs.pytorch.org/docs/stable/type_info.html",
        "measured with torch 2.4 and 2.13 on the CPU",
    ),
)
