"""AMP902 unused-suppression."""

from __future__ import annotations

from ...fix import SAFE
from ...rule import STATIC, WARNING, Rule, ViolationKind

RULE = Rule(
    "AMP902",
    "unused-suppression",
    WARNING,
    "A suppression comment silences nothing.",
    effect="the next mistake on this line would be hidden",
    detected_by=STATIC,
    applicability=SAFE,
    prescan_words=("suppression",),
    violations={
        "suppression:unused": ViolationKind("This suppression silences nothing ({reason}): remove it"),
        "suppression:malformed": ViolationKind(
            "This comment silences nothing: write {remedy}", effect="what it should silence is still reported"
        ),
        "suppression:ambiguous": ViolationKind(
            "Other linters take this comment for a suppression of every rule: write {remedy}",
            effect="flake8 and ruff report nothing on this line",
        ),
    },
    rationale="""\
A suppression comment states that somebody checked a finding and decided to keep the code. When the finding is gone, the
comment is wrong, and it would silently suppress the next finding on this line. A comment in the form of another linter,
such as `# amp: ignore(AMP201)`, suppresses nothing.
""",
    harm="""\
None today. If somebody later removes the `unscale_` above an old `# amp: ignore[AMP201]`, nothing is reported: clipping
still-scaled gradients then shrinks SGD's updates 43,000-fold and raises nothing.
""",
    bad_example="""\
import torch
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # amp: ignore[AMP201]  # AMP902
    scaler.step(optimizer)
    scaler.update()
""",
    good_example="""\
import torch
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    fix_advice="Remove the comment, or the codes in its brackets that match no finding on this line.",
    sources=(
        "ruff documentation: unused-noqa, docs.astral.sh/ruff/rules/unused-noqa",
        "measured with torch 2.13 on the CPU",
    ),
)
