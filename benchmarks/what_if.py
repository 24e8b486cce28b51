"""Accuracy of what-if answers from one recorded step, compared with recordings of the changed model.

python benchmarks/what_if.py [--model NAME]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pytest_amp_check.protocol.byte_sizes import format_size
from pytest_amp_check.runtime.measure.memory import Memory, measure_memory
from pytest_amp_check.runtime.measure.what_if import WhatIf


class Mlp(nn.Module):
    """Blocks of two layers with a residual."""

    def __init__(self, width: int = 128, depth: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)  # type: ignore[no-any-return]


class Residual(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.down = nn.Sequential()
        if stride > 1:
            self.down = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        return functional.relu(self.bn2(self.conv2(out)) + self.down(x), inplace=True)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        sizes = [(16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)]
        self.layers = nn.ModuleList(Residual(*size) for size in sizes)
        self.fc = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.fc(functional.adaptive_avg_pool2d(x, 1).flatten(1))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Token ids to logits, with learned positions."""

    def __init__(self, words: int = 500, width: int = 64, length: int = 48, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.zeros(1, length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places
        return self.head(self.encoder(x).mean(1))  # type: ignore[no-any-return]


def convs(inner: int, outer: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, padding=1),
        nn.GroupNorm(4, outer),
        nn.SiLU(),
        nn.Conv2d(outer, outer, 3, padding=1),
        nn.GroupNorm(4, outer),
        nn.SiLU(),
    )


class UNet(nn.Module):
    """An image to one row of logits, or with ``dense`` to values for each of its pixels."""

    def __init__(self, *, dense: bool = False) -> None:
        super().__init__()
        self.dense = dense
        self.down = nn.ModuleList([convs(3, 16), convs(16, 32)])
        self.middle = convs(32, 64)
        self.ups = nn.ModuleList([nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)])
        self.up = nn.ModuleList([convs(64, 32), convs(32, 16)])
        self.head = nn.Conv2d(16, 10, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.middle(x)
        for widen, block in zip(self.ups, self.up, strict=True):
            x = block(torch.cat([widen(x), kept.pop()], 1))
        x = self.head(x)
        return x if self.dense else x.mean((2, 3))


class Recurrent(nn.Module):
    def __init__(self, layer: Callable[..., nn.Module] = nn.LSTM, words: int = 300, width: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(layer(width, width, batch_first=True) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.head = nn.Sequential(nn.Linear(width, 4 * width), nn.Tanh(), nn.Linear(4 * width, 10))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(layer(x)[0] + x)
        return self.head(x).mean(1)  # type: ignore[no-any-return]


class Experts(nn.Module):
    """Mixture of experts: every expert computes every token, weighted by a router. No shape depends on a value."""

    def __init__(self, width: int = 64, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)) for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.router(x).softmax(-1)
        parts = torch.stack([expert(x) for expert in self.experts], -1)
        return x + (parts * weights.unsqueeze(-2)).sum(-1)  # type: ignore[no-any-return]


class Moe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Experts() for _ in range(3))
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]


class Program(NamedTuple):
    """A model, its batch, and the rows of modules that can be recomputed."""

    make: Callable[[], nn.Module]
    batch: Callable[[int], torch.Tensor]
    size: int
    rows: tuple[str, ...]
    target: Callable[[int], torch.Tensor] = lambda size: torch.randint(10, (size,))


PROGRAMS = {
    "mlp": Program(Mlp, lambda size: torch.randn(size, 128), 512, ("blocks",)),
    # Weights and optimizer state are nearly all of the memory, so that the peak is in the optimizer's step.
    "weights": Program(Mlp, lambda size: torch.randn(size, 128), 8, ("blocks",)),
    "resnet": Program(ResNet, lambda size: torch.randn(size, 3, 32, 32), 16, ("layers",)),
    "transformer": Program(Transformer, lambda size: torch.randint(500, (size, 48)), 16, ("encoder.layers",)),
    "dropout": Program(
        lambda: Transformer(dropout=0.1), lambda size: torch.randint(500, (size, 48)), 16, ("encoder.layers",)
    ),
    "unet": Program(UNet, lambda size: torch.randn(size, 3, 32, 32), 8, ("down", "up")),
    "pixels": Program(
        lambda: UNet(dense=True),
        lambda size: torch.randn(size, 3, 32, 32),
        8,
        ("down", "up"),
        lambda size: torch.randn(size, 10, 32, 32),
    ),
    "lstm": Program(Recurrent, lambda size: torch.randint(300, (size, 24)), 32, ("head",)),
    # On the CPU, a GRU consists of other ops, each called for every position of a sequence.
    "gru": Program(lambda: Recurrent(nn.GRU), lambda size: torch.randint(300, (size, 24)), 32, ("head",)),
    "moe": Program(Moe, lambda size: torch.randn(size, 64), 256, ("layers",)),
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW": torch.optim.AdamW,
    "SGD": lambda p, **k: torch.optim.SGD(p, 0.01, momentum=0.9, weight_decay=0.01, **k),
}


class Recipe(NamedTuple):
    """A program, and its training options."""

    program: str
    optimizer: str = "AdamW"
    autocast: bool = False
    #: Modules that are recomputed.
    recomputed: tuple[str, ...] = ()
    low: bool = False
    settings: tuple[tuple[str, bool], ...] = ()
    #: Divisor of the batch size.
    part: int = 1
    #: Number of such micro-batches before the optimizer steps.
    parts: int = 1
    steps: int = 3


def recompute(module: nn.Module) -> None:
    """Recompute the activations of a module in the backward pass, as the what-if answer assumes."""
    forward = module.forward

    def again(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    module.forward = again


def record_memory(recipe: Recipe) -> Memory:
    """Record the memory of real steps."""
    program = PROGRAMS[recipe.program]
    torch.manual_seed(0)
    model = program.make()
    for name in recipe.recomputed:
        recompute(model.get_submodule(name))
    if recipe.low:
        model.to(torch.bfloat16)
    optimizer = OPTIMIZERS[recipe.optimizer](model.parameters(), **dict(recipe.settings))
    with measure_memory(model, optimizer) as memory:
        for _ in range(recipe.steps):
            for _ in range(recipe.parts):
                train_on(model, program.batch(program.size // recipe.part), recipe)
            optimizer.step()
            optimizer.zero_grad()
    return memory


def train_on(model: nn.Module, batch: torch.Tensor, recipe: Recipe) -> None:
    """Run a forward and a backward pass."""
    target = PROGRAMS[recipe.program].target(len(batch))
    if recipe.low and not recipe.autocast:
        # A loss rejects targets of another dtype, too.
        batch, target = (each.bfloat16() if each.is_floating_point() else each for each in (batch, target))
    with torch.autocast("cpu") if recipe.autocast else nullcontext():
        out = model(batch)
        loss = (functional.mse_loss if target.is_floating_point() else functional.cross_entropy)(out, target)
    loss.backward()  # type: ignore[no-untyped-call]


class Compared(NamedTuple):
    """A what-if answer, and the peak in bytes of the model with the real change."""

    recipe: Recipe
    answer: WhatIf
    real: int

    @property
    def error(self) -> float | None:
        return None if self.answer.peak is None else self.answer.peak / self.real - 1


def compared(recipe: Recipe) -> Iterator[Compared]:
    """Yield every what-if change of a recipe, each answered and then really made."""
    memory = record_memory(recipe)
    answers = memory.what_if()
    reported = {answer.change: answer for answer in answers}
    inner = [name for name, _ in PROGRAMS[recipe.program].make().named_modules()]
    for row in PROGRAMS[recipe.program].rows:
        names = [name for name in inner if name.rpartition(".")[0] == row]
        choices = {tuple(names), tuple(names[::2]), tuple(names[:1]), tuple(names[-1:])}
        if row == "head":
            choices = {("head",), ("head.1",)}
        for chosen in sorted(choices):
            answer = memory.what_if(checkpoint=chosen)[0]
            yield Compared(recipe, answer, record_memory(recipe._replace(recomputed=chosen)).peak)
    changes: dict[str, Recipe] = {
        "weights in bfloat16": recipe._replace(low=True),
        "fused optimizer": recipe._replace(settings=(("fused", True),)),
        "foreach optimizer": recipe._replace(settings=(("foreach", True),)),
        "for-loop optimizer": recipe._replace(settings=(("foreach", False),)),
        "1/2 of the batch": recipe._replace(part=2),
        "1/4 of the batch": recipe._replace(part=4),
        "2 micro-batches, accumulated": recipe._replace(part=2, parts=2),
        "4 micro-batches, accumulated": recipe._replace(part=4, parts=4),
    }
    for change, otherwise in changes.items():
        if change not in reported:
            continue
        try:
            real = record_memory(otherwise).peak
        except RuntimeError as error:
            print(f"  {change}: does not run here ({str(error).splitlines()[0]})")
            continue
        yield Compared(recipe, reported[change], real)


def recipes(names: list[str]) -> Iterator[Recipe]:
    """Yield recipes of every model: in float32, under autocast, and with optimizers of other implementations."""
    for name in names:
        yield Recipe(name)
        yield Recipe(name, autocast=True)
        yield Recipe(name, optimizer="SGD", settings=(("foreach", True),))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=PROGRAMS, help="one model alone")
    options: Any = parser.parse_args()
    worst = 0.0
    count = unanswered = 0
    with ExitStack() as stack:
        stack.callback(lambda: print(f"{count} answers, {unanswered} not given, the worst {worst:.2%} off"))
        for recipe in recipes([options.model] if options.model else list(PROGRAMS)):
            precision = "bfloat16 autocast" if recipe.autocast else "float32"
            settings = ", ".join(f"{key}={value}" for key, value in recipe.settings)
            print(f"{recipe.program}, {precision}, {recipe.optimizer}({settings})")
            for each in compared(recipe):
                real = format_size(each.real)
                if each.error is None:
                    unanswered += 1
                    print(f"  {each.answer.change:<50} {'?':>12} {real:>12}  {each.answer.reason}")
                    continue
                count += 1
                worst = max(worst, abs(each.error))
                print(
                    f"  {each.answer.change:<50} {format_size(each.answer.peak or 0):>12} {real:>12} {each.error:+.2%}"
                )


if __name__ == "__main__":
    main()
