"""Time of a training step under emulation divided by the time of the same step in float32, for five kinds of models.

Each ratio is the median of paired steps of CPU time on one thread, with all instructions of the processor and once more
without AVX512.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the name that all of torch's users know
from gpu.models import Attention, Block, Recurrent, UNet
from paired import machine
from torch import Tensor, nn

from pytest_amp_check.runtime.emulate.cuda import emulate_cuda

WITHOUT_AVX512 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
DTYPES = (torch.float16, torch.bfloat16)


class Residual(nn.Module):
    """Two convolutions with batch normalization and a shortcut, over (batch, channels, height, width)."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(inner, outer, 3, stride, 1), nn.Conv2d(outer, outer, 3, 1, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outer) for _ in range(2))
        self.shortcut = nn.Conv2d(inner, outer, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.shortcut(x))


class Denoiser(nn.Module):
    """A diffusion model: convolutions under a time embedding around self-attention at half the resolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.stem, self.head = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down, self.up = nn.Conv2d(width, width, 4, 2, 1), nn.ConvTranspose2d(width, width, 4, 2, 1)
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in range(2))
        self.attention = Attention(width, 4)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        width = self.stem.out_channels
        angles = t[:, None] * torch.exp(-torch.arange(width // 2, device=x.device) * 0.1)
        skip = self.stem(x) + self.time(torch.cat((angles.sin(), angles.cos()), 1))[..., None, None]
        x = self.down(F.silu(self.norms[0](skip)))
        batch, _, height, across = x.shape
        mixed = x + self.attention(x.flatten(2).transpose(1, 2)).transpose(1, 2).view(batch, width, height, across)
        return self.head(F.silu(self.norms[1](self.up(mixed) + skip)))  # type: ignore[no-any-return]


class Model(NamedTuple):
    module: nn.Module
    loss: Callable[[nn.Module], Tensor]


def _classifier(module: nn.Module, *shape: int) -> Model:
    batch, targets = torch.randn(shape), torch.randint(10, shape[:1])
    return Model(module, lambda model: F.cross_entropy(model(batch), targets))


def resnet() -> Model:
    blocks = (Residual(inner, outer, stride) for inner, outer, stride in ((32, 32, 1), (32, 64, 2), (64, 128, 2)))
    ends = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    return _classifier(nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.MaxPool2d(2), *blocks, *ends), 16, 3, 96, 96)


def unet() -> Model:
    batch = torch.randn(4, 3, 64, 64)
    return Model(UNet(32), lambda model: F.mse_loss(model(batch), batch))


def transformer() -> Model:
    words = torch.randint(1000, (8, 128))
    blocks = (Block(256, 8, causal=True) for _ in range(4))
    model = nn.Sequential(nn.Embedding(1000, 256), *blocks, nn.LayerNorm(256), nn.Linear(256, 1000))
    return Model(model, lambda model: F.cross_entropy(model(words).flatten(0, 1), words.flatten()))


def lstm() -> Model:
    return _classifier(Recurrent(nn.LSTM, 256, 10), 16, 64, 256)


def diffusion() -> Model:
    images, noise, t = torch.randn(8, 3, 32, 32), torch.randn(8, 3, 32, 32), torch.rand(8) * 1000
    return Model(Denoiser(64), lambda model: F.mse_loss(model(images + noise, t), noise))


MODELS = {"ResNet": resnet, "U-Net": unet, "transformer": transformer, "LSTM": lstm, "diffusion model": diffusion}


def step_seconds(model: Model, dtype: torch.dtype | None) -> float:
    """Return the CPU seconds of one training step: in float32, or under emulation with autocast to ``dtype``."""
    optimizer = torch.optim.SGD(model.module.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16)
    start = time.process_time()
    with torch.autocast("cuda", dtype, enabled=dtype is not None):
        loss = model.loss(model.module)
    scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return time.process_time() - start


def ratio(model: Model, dtype: torch.dtype, pairs: int) -> tuple[float, float]:
    """Return the median seconds of a float32 step, and the median ratio of paired steps."""
    plain, ratios = [], []
    for pair in range(pairs + 1):
        plain.append(step_seconds(model, None))
        with emulate_cuda():
            ratios.append(step_seconds(model, dtype) / plain[-1])
        if pair == 0:  # a first step builds what later ones reuse
            plain.clear()
            ratios.clear()
    return statistics.median(plain), statistics.median(ratios)


def measure(pairs: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name, build in MODELS.items():
        model = build()
        results = [ratio(model, dtype, pairs) for dtype in DTYPES]
        shown = "".join(f"{result[1]:10.2f}" for result in results)
        print(f"{name:18}{results[0][0] * 1000:12.0f} ms{shown}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9, help="paired steps for each model and dtype")
    parser.add_argument("--here", action="store_true", help="measure once, with the instructions of this process")
    arguments = parser.parse_args()
    if arguments.here:
        measure(arguments.pairs)
        return
    print(f"{machine()}, torch {torch.__version__}")
    for title, added in (("all instructions", {}), ("without AVX512", WITHOUT_AVX512)):
        print(f"\n{title:18}{'float32':>15}{'float16':>10}{'bfloat16':>10}", flush=True)
        command = [sys.executable, __file__, "--here", "--pairs", str(arguments.pairs)]
        subprocess.run(command, env={**os.environ, **added}, check=True)


if __name__ == "__main__":
    main()
