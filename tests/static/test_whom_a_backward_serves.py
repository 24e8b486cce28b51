"""A backward of an unknown model serves the optimizer whose next step finds its gradients.

Both optimizers come from elsewhere, so their parameters are unknown. The clears between a backward and the steps decide
which of them uses the gradients.
"""

from __future__ import annotations

import textwrap

import pytest

from pytest_amp_check import check_source

HEAD = """\
import torch

def train(maker, judge, {optimizers}scaler, batches, criterion, other):
    {before}
    for x in batches:
"""
#: The losses, in a region.
MADE = """\
        with torch.autocast("cuda", dtype=torch.float16):
            made = maker(x)
            loss = criterion(judge(made))
"""
REAL = """\
        with torch.autocast("cuda", dtype=torch.float16):
            real = criterion(judge(x))
            fake = criterion(judge(made.detach()))
"""
MAKE = (
    MADE
    + """\
        maker_opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(maker_opt)
"""
)
BOTH = "maker_opt, judge_opt, "

#: The name of a program: its optimizers, what comes before the loop, and the loop.
WRONG = {
    "the second loss of an optimizer": (
        BOTH,
        "pass",
        MAKE
        + REAL
        + """\
        judge_opt.zero_grad()
        scaler.scale(real).backward()
        fake.backward()  # AMP203
        scaler.step(judge_opt)
        scaler.update()
""",
    ),
    "the first loss of an optimizer": (
        BOTH,
        "pass",
        MAKE
        + REAL
        + """\
        judge_opt.zero_grad()
        real.backward()  # AMP203
        scaler.scale(fake).backward()
        scaler.step(judge_opt)
        scaler.update()
""",
    ),
    "optimizers that a helper may have replaced": (
        "",
        """\
maker_opt = torch.optim.Adam(maker.parameters())
    judge_opt = torch.optim.Adam(judge.parameters())
    if other.path:
        judge, judge_opt = other.load(judge, judge_opt)""",
        MAKE
        + REAL
        + """\
        judge_opt.zero_grad()
        scaler.scale(real).backward()
        fake.backward()  # AMP203
        scaler.step(judge_opt)
        scaler.update()
""",
    ),
    "a direct step of the only loss's gradients after an update": (
        BOTH,
        "pass",
        MADE
        + """\
        maker_opt.zero_grad()
        judge_opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(maker_opt)
        scaler.update()
        if other.trains_judge:
            judge_opt.step()  # AMP204
""",
    ),
}
RIGHT = {
    "all losses are scaled": (
        BOTH,
        "pass",
        MAKE
        + REAL
        + """\
        judge_opt.zero_grad()
        scaler.scale(real).backward()
        scaler.scale(fake).backward()
        scaler.step(judge_opt)
        scaler.update()
""",
    ),
    "one optimizer trains in float32": (
        BOTH,
        "pass",
        """\
        maker_opt.zero_grad()
        judge_opt.zero_grad()
        criterion(judge(x)).backward()
        judge_opt.step()
"""
        + MADE
        + """\
        scaler.scale(loss).backward()
        scaler.step(maker_opt)
        scaler.update()
""",
    ),
    "a loss in float32 after the update": (
        BOTH,
        "pass",
        MAKE
        + """\
        scaler.update()
        criterion(judge(x)).backward()
        judge_opt.step()
        judge_opt.zero_grad()
""",
    ),
    "unanalyzed code computes the gradients of the other optimizer": (
        BOTH,
        "pass",
        MAKE
        + """\
        scaler.update()
        other.backward_of_judge(judge_opt, x)
        judge_opt.step()
        judge_opt.zero_grad()
""",
    ),
}


def _make(parts: tuple[str, str, str]) -> str:
    optimizers, before, loop = parts
    return HEAD.format(optimizers=optimizers, before=before) + textwrap.indent(textwrap.dedent(loop), " " * 8)


@pytest.mark.parametrize("parts", WRONG.values(), ids=WRONG)
def test_a_mistake_is_found_and_is_only_possible(parts: tuple[str, str, str]) -> None:
    source = _make(parts)
    expected = [
        (number, line.partition("# ")[2]) for number, line in enumerate(source.splitlines(), 1) if "# AMP" in line
    ]
    findings = check_source(source)
    assert [(each.line, each.code) for each in findings] == expected
    assert not findings[0].certain


@pytest.mark.parametrize("parts", RIGHT.values(), ids=RIGHT)
def test_a_right_program_is_silent(parts: tuple[str, str, str]) -> None:
    assert check_source(_make(parts)) == []
