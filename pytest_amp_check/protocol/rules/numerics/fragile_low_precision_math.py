"""AMP507 fragile-low-precision-math."""

from __future__ import annotations

from ...event_graph import Program
from ...events import CANCELLATIONS, FragileMath
from ...fix import SAFE
from ...rule import INFO, STATIC, WARNING, Labels, Rule, ViolationKind
from ...source_text import find_expm1_call

#: Expressions that bfloat16 rounds as well.
_ROUNDED = frozenset("loss distance gradient-norm probabilities draws softmax statistics island exponent".split())


def _check_fragile_math(event: FragileMath, program: Program) -> Labels:
    how, dtype = event.how, event.dtype
    # bfloat16 does not overflow, but still cancels and rounds.
    always = how in CANCELLATIONS or how in _ROUNDED
    if dtype != "bfloat16" or always:
        doubt = event.guessed or (dtype == "half" and not always)
        values = {"of_each": "yes"} if event.of_each else {}
        if how == "exp-complement":
            written = find_expm1_call(str(event.names.get("call") or ""))
            values["expm1"] = written or "it with `torch.expm1(x)`, which is `torch.exp(x) - 1`"
        yield f"fragile:{how}", {**values, "severity": INFO} if doubt else values


RULE = Rule(
    "AMP507",
    "fragile-low-precision-math",
    WARNING,
    "An expression overflows or cancels in the low precision of its operands.",
    effect=(
        "confident predictions give an infinite loss: a GradScaler skips the step, without one the weights become NaN"
    ),
    detected_by=STATIC,
    applicability=SAFE,
    event_checks={FragileMath: _check_fragile_math},
    prescan_words=("autocast", "low-precision math", "low-precision weights", "float16 MixedPrecision param_dtype"),
    violations={
        "fragile:log-softmax": ViolationKind(
            "`{call}` becomes -inf where the softmax rounds to 0 in low precision: use `log_softmax`"
        ),
        "fragile:log-sigmoid": ViolationKind(
            "`{call}` takes the logarithm of a sigmoid that rounds to 0 in low precision below -17: use `logsigmoid`"
        ),
        "fragile:log-complement": ViolationKind(
            "`{call}` takes the logarithm of one minus a probability that rounds to 1 in low precision: use"
            " `logsigmoid` of the negated logits, or compute it on `.float()`"
        ),
        "fragile:exp-complement": ViolationKind(
            "`{call}` cancels in low precision for exponents near 0: write {expm1}",
            effect="a result of 0.001 is 0 in bfloat16, and one of 0.01 is 18 % off; no error",
        ),
        "fragile:logsumexp": ViolationKind(
            "`{call}` takes the logarithm of a sum of exponentials, which overflow float16 from 11.1 on: use"
            " `torch.logsumexp`",
            effect=(
                "inputs above 11 give an infinite result: a GradScaler skips the step, without one the "
                "weights become NaN"
            ),
        ),
        "fragile:squares": ViolationKind(
            "`{call}` averages squares, which overflow float16 from 256 on: square `{operand}.float()` "
            "in place of `{operand}`",
            effect=(
                "values from 256 on make the mean infinite: a GradScaler skips the step, without one the "
                "weights become NaN"
            ),
            effect_cases={
                "of_each=yes": (
                    "once a value reaches 256, the float16 mean is infinite, and the normalized vector "
                    "is zero; no error"
                ),
            },
        ),
        "fragile:moments": ViolationKind(
            "`{call}` subtracts the squared mean from the mean of squares in low precision, so the "
            "variance may be negative: take both means of `.float()` values",
            effect="small variances are rounding errors, and the root of a negative one is NaN; no error",
        ),
        "fragile:log-ratio": ViolationKind(
            "`{call}` subtracts low-precision log-probabilities, whose rounding errors exceed the "
            "difference: where both are computed, take `log_softmax` of `logits.float()`",
            effect="the difference is mostly noise (146 % off in bfloat16, 27 % in float16); no error",
        ),
        "fragile:loss": ViolationKind(
            "`{call}` computes log-probabilities from low-precision logits, and no autocast makes it "
            "float32: pass `{operand}.float()` in its place, at twice the memory of the logits",
            effect="losses of single tokens are about 3 % off, gradients 2 % (bfloat16, 32,000 classes); no error",
        ),
        "fragile:distance": ViolationKind(
            "`{call}` takes twice a low-precision product from squared norms, so small distances are rounding errors: "
            "use `torch.cdist`, or compute it on `.float()`",
            INFO,
            effect="small distances are far off (47 % in the median in bfloat16); no error",
        ),
        "fragile:gradient-norm": ViolationKind(
            "`{call}` keeps a norm in the gradients' dtype, where float16 overflows and sums of norms are inexact: "
            "pass `dtype=torch.float32`",
            effect=(
                "the norm is inexact; in float16 it is infinite above 65504, and clipped gradients are then zero or NaN"
            ),
        ),
        "fragile:ranking": ViolationKind(
            "`{call}` ranks values after their cast to low precision, where close ones are equal: rank them before the "
            "cast",
            effect="other entries are chosen now and then (1 % of the vectors in bfloat16); no error",
        ),
        "fragile:schedule": ViolationKind(
            "`{call}` subtracts a noise level that was cast to low precision from 1, where levels close to 1 are "
            "equal: keep the levels in float32",
            effect="the first signal-to-noise ratios are infinite or 2 % off (bfloat16); no error",
        ),
        "fragile:area": ViolationKind(
            "`{call}` is an area in float16, which overflows from 256 by 256 pixels on: call `.float()` on the boxes",
            INFO,
            effect="areas of large boxes are infinite, so ratios of areas are 0 or NaN; no error",
        ),
        "fragile:probabilities": ViolationKind(
            "`{call}` rounds probabilities to low precision, also under autocast, which computes them in float32 "
            "otherwise: pass `dtype=torch.float32`",
            INFO,
            effect="probabilities are slightly off (0.14 % in bfloat16, 0.04 % in float16); no error",
        ),
        "fragile:softmax": ViolationKind(
            "`{call}` computes probabilities of low-precision values, and no autocast makes it float32 here: pass"
            " `dtype=torch.float32`",
            INFO,
            effect="probabilities are slightly off (0.14 % in bfloat16, 0.04 % in float16); no error",
        ),
        "fragile:island": ViolationKind(
            "`{call}` keeps the low precision of its inputs, because switching autocast off casts nothing: cast them "
            "with `.float()`",
            INFO,
            effect="sums and exponentials overflow, and probabilities are rounded, as if no region were here; no error",
        ),
        "fragile:statistics": ViolationKind(
            "`{call}` computes the divisor of a normalization in low precision: call `.float()` on the values first",
            INFO,
            effect="all values of a vector are off by a common factor (0.15 % in bfloat16); no error",
        ),
        "fragile:exponent": ViolationKind(
            "`{call}` takes the exponential of a parameter in low precision, so its rounding becomes a relative error: "
            "call `.float()` on the parameter first",
            INFO,
            effect="rates are off by up to 0.7 % in bfloat16, 0.1 % in float16 (exponents up to 2.8); no error",
        ),
        "fragile:draws": ViolationKind(
            "`{call}` compares random numbers that were drawn in bfloat16, which are often 0 and whose shares are "
            "inexact: draw them in float32",
            INFO,
            effect="shares are slightly off: 0.2 % of the numbers are 0, and 1.19 % are below 0.01; no error",
        ),
        "fragile:narrowed": ViolationKind(
            "`{call}` stores bfloat16 values in float16, which ends at 65504: use the dtype of the values",
            INFO,
            effect="values above 65504 become infinite, and small ones 0; no error",
        ),
        "fragile:variance": ViolationKind(
            "`{call}` computes a variance in float16, which overflows from a deviation of 256 on: compute it on "
            "`.float()`",
            INFO,
            effect="an infinite variance makes what it normalizes zero or NaN; no error",
        ),
    },
    rationale="""\
Autocast runs a list of ops in float32, and all other unlisted ops in the dtype of their inputs. A product, a mean, a
variance and a sigmoid are on no list, so they run in float16 on the output of a linear layer. There float16 ends at
65504, the square of 256, and has 11 bits: a probability close to 1 is 1. CUDA's list holds exp, log, pow, sum, norm and
softmax. The CPU's list holds none of these, so they run in float16 there too. The ops behind them then see an infinity
or a zero. A variance as the difference of two moments, and the difference of two log-probabilities, consist of rounding
errors. `torch.rand_like` draws in the dtype of its argument, so a dropout by `rand_like(x) > 0` drops values.
Probabilities that are cast before the largest are chosen tie. A softmax behind the region of its logits keeps their low
dtype. FSDP2's policy and models whose weights are cast install no autocast, so the losses that it computes in float32
keep the dtype of their logits there. A region that switches autocast off casts nothing: what it receives stays low.

The users of a library choose its dtype, for example by `torch_dtype`, and no region is then around its modules. If the
project shows such a choice, means of squares that normalize, and the two differences, are notes. A package that
computes log-probabilities in float32 has no note about their difference. The option `assume-precision` reports all
expressions of modules and functions for inputs and weights of the given dtype.
""",
    harm="""\
In float16, `log(softmax)` of logits 20 apart was -inf (`log_softmax`: -20), and the logarithm of `sigmoid(-20)` -inf
(`logsigmoid`: -20). `log(1 - sigmoid(10))` was -inf (-10), in bfloat16 as well. `exp(12)` is infinite. The mean of
squares of values of 300 was infinite (90000 in float32), and so was the variance of 0 to 999 (83417). The variance of
values of 1 with a deviation of 0.02, as a difference of moments, was negative for 19 % of the vectors in bfloat16. For
two distributions that differ by 0.008 per log-probability, the difference was wrong by 146 % in bfloat16, and by 27 %
in float16. The levels of a noise schedule (`cumprod` of 0.99915 to 0.988, 1000 steps), cast to bfloat16, gave an
infinite signal-to-noise ratio for 2 steps, and one that was 2 % off in the median of the first 100. The two largest of
64 probabilities in bfloat16 were others than in float32 for 1 % of the vectors. The `cross_entropy` of confident
predictions among 32,000 classes, on bfloat16 logits, gave gradients that were 2 % off, losses of single tokens that
were 3 % off in the median, and a loss of exactly 0 for 1.4 % of the tokens. Vectors of 64 numbers were compared with
copies with a tenth of noise: their squared distances, from squared norms and a product, were 47 % off in the median in
bfloat16. If only the product was bfloat16, they were 26 % off, and in float16 5 %. Softmax probabilities of 4096 logits
were 0.14 % off in the median in bfloat16, and 0.04 % in float16. Of a million numbers that `torch.rand` drew in
bfloat16, 0.2 % were 0, and 1.19 % were below 0.01. Vectors of 1024 numbers that a written-out norm divided by the root
of their mean square in bfloat16 were all off by a factor of their own: 0.16 % in the median, 0.5 % at most. With a mean
of 30 deviations, a written-out layer norm was off by 2 % of a deviation (float16: 0.4 %). `1 - exp(-x)` for x from
0.005 to 0.02 was 10 % off in the median in bfloat16, 33 % at most (float16: 1 and 5 %).
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4)
x = torch.randn(16, 8) * 200

with torch.autocast("cpu", dtype=torch.float16):
    y = model(x)
    likelihood = torch.log(torch.softmax(y, dim=-1))  # AMP507
    energy = (y * y).mean()  # AMP507
print("finite:", likelihood.isfinite().all().item(), energy.isfinite().item())
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4)
x = torch.randn(16, 8) * 200

with torch.autocast("cpu", dtype=torch.float16):
    y = model(x)
    likelihood = torch.log_softmax(y, dim=-1)
    energy = (y.float() * y.float()).mean()
print("finite:", likelihood.isfinite().all().item(), energy.isfinite().item())
""",
    fix_advice="Use the stable function (`log_softmax`, `logsigmoid`, `logsumexp`, `mse_loss`), or compute the "
    "expression"
    " on `.float()`.",
    sources=(
        "PyTorch documentation: Autocast Op Reference, docs.pytorch.org/docs/stable/amp.html#autocast-op-reference",
        "PyTorch source: ATen/autocast_mode.h",
        "measured with torch 2.13 on the CPU",
    ),
)
