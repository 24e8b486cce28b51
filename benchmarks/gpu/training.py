"""Small models trained on CUDA and under emulation, compared in findings, dtypes, skipped steps and losses."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from gpu.models import KINDS, Kind, optimizer
from gpu.places import measured_place, on
from gpu.results import Row
from pytest_amp_check import record

#: Steps, and steps in a dry run.
STEPS, FEW = 200, 8
#: The step in which the loss is multiplied by OVERFLOW, so that no float16 gradient stays finite.
PLANTED = 3
OVERFLOW = 1e30
#: Expected findings of the planted overflow, and of a compiled model, whose code is not replayed.
FOUND, UNSEEN = ["AMP802"], list[str]()
#: Largest differences of the first losses, and of the mean losses over the last tenth, as shares of the first loss.
#: Where the last losses are near zero, two trainings on CUDA from nearly the same weights differ by a factor of ten.
FIRST, LAST = 0.01, 0.01


class Trained(NamedTuple):
    """Results of one training: finding codes, dtypes by owner, skipped steps, and the loss of each step."""

    findings: list[str]
    dtypes: dict[str, Any]
    skipped: list[int]
    losses: list[float]


class _Adversaries(nn.Module):
    """A generator and its discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 16))
        self.discriminator = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))


def train(kind: Kind, place: str, steps: int) -> Trained:
    """Train one of the models in the usual order: zero, forward, scale, unscale, clip, step, update."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = kind.model()
    batches = [kind.batch(generator) for _ in range(8)]
    with on(place):
        model = model.to("cuda")
        moved = [batch.to("cuda") for batch in batches]
        called = model
        if kind.compiled:
            backend = "inductor" if place == "cuda" else "aot_eager"
            called = cast("nn.Module", torch.compile(model, backend=backend))
        chosen = optimizer(kind.optimizer, model.parameters(), 1e-2)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
        losses: list[Tensor] = []
        with record(model, dtypes=True) as run:
            for number in range(steps):
                chosen.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = kind.loss(called, moved[number % len(moved)])
                losses.append(loss.detach())
                if number == PLANTED:
                    loss = loss * OVERFLOW
                torch.autograd.backward(scaler.scale(loss))
                scaler.unscale_(chosen)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(chosen)
                scaler.update()
        skipped = [step.index for step in run.steps if step.skipped]
        return _trained(run, skipped, losses)


def train_adversaries(place: str, steps: int) -> Trained:
    """Train two optimizers with one scaler, each stepped once before the update. The generator's loss overflows."""
    torch.manual_seed(0)
    both = _Adversaries()
    noise = torch.Generator().manual_seed(0)
    batches = [(torch.randn(16, 8, generator=noise), torch.randn(16, 16, generator=noise)) for _ in range(8)]
    with on(place):
        both = both.to("cuda")
        moved = [(z.to("cuda"), real.to("cuda")) for z, real in batches]
        generator, discriminator = both.generator, both.discriminator
        of_generator = optimizer("AdamW foreach", generator.parameters(), 1e-3)
        of_discriminator = optimizer("AdamW fused", discriminator.parameters(), 1e-3)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
        criterion = nn.BCEWithLogitsLoss()
        losses: list[Tensor] = []
        with record(both, dtypes=True) as run:
            for number in range(steps):
                z, real = moved[number % len(moved)]
                of_discriminator.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    fake = generator(z)
                    of_real, of_fake = discriminator(real), discriminator(fake.detach())
                    loss = criterion(of_real, torch.ones_like(of_real)) + criterion(of_fake, torch.zeros_like(of_fake))
                torch.autograd.backward(scaler.scale(loss))
                scaler.step(of_discriminator)
                of_generator.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    forged = discriminator(fake)
                    loss = criterion(forged, torch.ones_like(forged))
                losses.append(loss.detach())
                torch.autograd.backward(scaler.scale(loss * OVERFLOW if number == PLANTED else loss))
                scaler.step(of_generator)
                scaler.update()
        # Two steps in each iteration; the generator's step is the second.
        skipped = [step.index // 2 for step in run.steps if step.skipped and step.index % 2]
        skipped += [-1 for step in run.steps if step.skipped and not step.index % 2]
        return _trained(run, skipped, losses)


def _trained(run: Any, skipped: list[int], losses: list[Tensor]) -> Trained:
    assert run.dtypes is not None
    codes = sorted({finding.code for finding in run.findings})
    return Trained(codes, copy.deepcopy(run.dtypes.as_dict()), skipped, [float(loss) for loss in losses])


def rows(*, dry: bool) -> Iterator[Row]:
    steps = FEW if dry else STEPS
    for name in [*KINDS, "GAN"]:
        pair = []
        for place in (measured_place(dry=dry), "emulated"):
            kind = KINDS.get(name)
            pair.append(train_adversaries(place, steps) if kind is None else train(kind, place, steps))
        yield from _compared(name, *pair, compiled=name in KINDS and KINDS[name].compiled)


def _compared(name: str, real: Trained, emulated: Trained, *, compiled: bool) -> Iterator[Row]:
    both = f"{', '.join(real.findings) or 'none'}; emulated {', '.join(emulated.findings) or 'none'}"
    # The training is correct except for the planted loss, which is too large at any scale.
    agrees = real.findings == emulated.findings == (UNSEEN if compiled else FOUND)
    yield {"kind": "findings", "what": name, "agrees": agrees, "seen": both}
    differ = _differences(real.dtypes, emulated.dtypes, compiled=compiled)
    yield {"kind": "dtypes", "what": name, "agrees": not differ, "seen": "; ".join(differ) or "the same"}
    planted = real.skipped == emulated.skipped == [PLANTED]
    shown = f"{real.skipped}; emulated {emulated.skipped}"
    yield {"kind": "skips", "what": name, "agrees": planted, "seen": shown}
    tail = max(1, len(real.losses) // 10)
    (first, last), (first_emulated, last_emulated) = (
        (each.losses[0], sum(each.losses[-tail:]) / tail) for each in (real, emulated)
    )
    alike = abs(first - first_emulated) <= FIRST * first and abs(last - last_emulated) <= LAST * first
    seen = f"{first:.4g} to {last:.4g}; emulated {first_emulated:.4g} to {last_emulated:.4g}"
    yield {"kind": "losses", "what": name, "agrees": alike, "seen": seen}


def _differences(real: dict[str, Any], emulated: dict[str, Any], *, compiled: bool) -> list[str]:
    # A compiled model calls no modules, and the modules that are seen depend on the compiler.
    left_out = {"ops", "modules"} if compiled else {"ops"}
    one, other = (
        _flat({key: value for key, value in each.items() if key not in left_out}) for each in (real, emulated)
    )
    return [
        f"{key} {one.get(key)}, emulated {other.get(key)}" for key in {**one, **other} if one.get(key) != other.get(key)
    ]


def _flat(tree: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {path: tree}
    return {key: value for name, inner in tree.items() for key, value in _flat(inner, f"{path} {name}".strip()).items()}
