"""A backward of an unknown model serves the optimizer whose next step finds its gradients.

Both optimizers come from elsewhere, so their parameters are unknown. The clears between a backward and the steps decide
which of them uses the gradients.
"""

from __future__ import annotations

import pytest

from pytest_amp_check import check_source

BOTH_RECEIVED = """\
import torch

def train(generator, critic, generator_opt, critic_opt, scaler, batches, criterion, other):
    for x in batches:
"""
BOTH_PERHAPS_REPLACED = """\
import torch

def train(generator, critic, scaler, batches, criterion, other):
    generator_opt = torch.optim.Adam(generator.parameters())
    critic_opt = torch.optim.Adam(critic.parameters())
    if other.path:
        critic, critic_opt = other.load(critic, critic_opt)
    for x in batches:
"""
#: The loss of the generator in a region, and its training.
GENERATED = """\
        with torch.autocast("cuda", dtype=torch.float16):
            made = generator(x)
            loss = criterion(critic(made))
"""
GENERATOR = (
    GENERATED
    + """\
        generator_opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(generator_opt)
"""
)
#: The training of the critic by two losses.
CRITIC = """\
        with torch.autocast("cuda", dtype=torch.float16):
            real = criterion(critic(x))
            fake = criterion(critic(made.detach()))
        critic_opt.zero_grad()
        {}
        {}
        scaler.step(critic_opt)
        scaler.update()
"""
SCALED = "scaler.scale(real).backward()", "scaler.scale(fake).backward()"

WRONG = {
    "the second loss of an optimizer": BOTH_RECEIVED
    + GENERATOR
    + CRITIC.format(SCALED[0], "fake.backward()  # AMP203"),
    "the first loss of an optimizer": BOTH_RECEIVED + GENERATOR + CRITIC.format("real.backward()  # AMP203", SCALED[1]),
    "optimizers that a helper may have replaced": BOTH_PERHAPS_REPLACED
    + GENERATOR
    + CRITIC.format(SCALED[0], "fake.backward()  # AMP203"),
    "a direct step of the only loss's gradients after an update": BOTH_RECEIVED
    + GENERATED
    + """\
        generator_opt.zero_grad()
        critic_opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(generator_opt)
        scaler.update()
        if other.trains_critic:
            critic_opt.step()  # AMP204
""",
}
RIGHT = {
    "all losses are scaled": BOTH_RECEIVED + GENERATOR + CRITIC.format(*SCALED),
    "all losses of optimizers that a helper may have replaced are scaled": BOTH_PERHAPS_REPLACED
    + GENERATOR
    + CRITIC.format(*SCALED),
    "one optimizer trains in float32": BOTH_RECEIVED
    + """\
        generator_opt.zero_grad()
        critic_opt.zero_grad()
        criterion(critic(x)).backward()
        critic_opt.step()
"""
    + GENERATED
    + """\
        scaler.scale(loss).backward()
        scaler.step(generator_opt)
        scaler.update()
""",
    "a loss in float32 after the update": BOTH_RECEIVED
    + GENERATOR
    + """\
        scaler.update()
        criterion(critic(x)).backward()
        critic_opt.step()
        critic_opt.zero_grad()
""",
    "unanalyzed code computes the gradients of the other optimizer": BOTH_RECEIVED
    + GENERATOR
    + """\
        scaler.update()
        other.backward_of_critic(critic_opt, x)
        critic_opt.step()
        critic_opt.zero_grad()
""",
    "unanalyzed code computes them before the backward": BOTH_RECEIVED
    + """\
        with torch.autocast("cuda", dtype=torch.float16):
            features = generator(x)
        grad = other.forward_backward(features.detach(), critic_opt)
        features.backward(scaler.scale(grad))
        scaler.step(generator_opt)
        scaler.update()
        critic_opt.step()
        generator_opt.zero_grad()
        critic_opt.zero_grad()
""",
}


@pytest.mark.parametrize("source", WRONG.values(), ids=WRONG)
def test_a_mistake_is_found_and_is_only_possible(source: str) -> None:
    lines = enumerate(source.splitlines(), 1)
    expected = [(number, line.partition("# ")[2]) for number, line in lines if "# AMP" in line]
    findings = check_source(source)
    assert [(each.line, each.code) for each in findings] == expected
    assert not findings[0].certain


@pytest.mark.parametrize("source", RIGHT.values(), ids=RIGHT)
def test_a_right_program_is_silent(source: str) -> None:
    assert check_source(source) == []
