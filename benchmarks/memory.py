"""Accuracy of memory figures, compared with the bytes of real storages and with the peak of CUDA's allocator.

python benchmarks/memory.py [--pairs 15]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from pytest_amp_check.protocol.byte_sizes import format_size
from pytest_amp_check.runtime.measure.estimate import estimate_memory
from pytest_amp_check.runtime.measure.memory import measure_memory

PRECISIONS = ("float32", "bfloat16", "float16")


class Trained(NamedTuple):
    """The trained objects of one program, and the shape of its batch."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    shape: tuple[int, ...]


def mlp() -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)), (64, 512)


def cnn() -> tuple[nn.Module, tuple[int, ...]]:
    layers: list[nn.Module] = []
    for inner, outer in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 4 * 4, 10)), (16, 3, 32, 32)


def transformer() -> tuple[nn.Module, tuple[int, ...]]:
    layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), (8, 64, 256)


PROGRAMS: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]] = {
    "mlp": mlp,
    "cnn": cnn,
    "transformer": transformer,
}


def build(program: str, device: str, precision: str) -> Trained:
    torch.manual_seed(0)
    model, shape = PROGRAMS[program]()
    model = model.to(device)
    scaler = torch.amp.GradScaler(device, enabled=precision == "float16")
    return Trained(model, torch.optim.AdamW(model.parameters()), scaler, shape)


def step(trained: Trained, device: str, precision: str) -> None:
    """Run one training step of any program."""
    trained.optimizer.zero_grad()
    x = torch.randn(trained.shape, device=device)
    with torch.autocast(device, getattr(torch, precision), enabled=precision != "float32"):
        loss = trained.model(x).float().square().mean()
    trained.scaler.scale(loss).backward()
    trained.scaler.step(trained.optimizer)
    trained.scaler.update()


def storage_bytes(tensors: list[torch.Tensor]) -> int:
    """Return the total bytes of the storages, each counted once."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def against_storages() -> None:
    """Compare measured categories with sums over the storages of the same tensors."""
    print("On the CPU: measured bytes minus those of the storages")
    for program in PROGRAMS:
        trained = build(program, "cpu", "float32")
        with measure_memory(trained.model, trained.optimizer) as memory:
            for _ in range(2):
                step(trained, "cpu", "float32")
        parameters = list(trained.model.parameters())
        real = {
            "parameters": storage_bytes(list(parameters)),
            "gradients": storage_bytes([p.grad for p in parameters if p.grad is not None]),
            "optimizer state": storage_bytes(
                [value for state in trained.optimizer.state.values() for value in state.values()]
            ),
        }
        gaps = ", ".join(f"{name} {memory.highest[name] - size:+d} of {size:,}" for name, size in real.items())
        print(f"  {program:<12} {gaps}; peak {format_size(memory.peak)}")


def cost(pairs: int) -> None:
    """Print the time of a step with and without memory measurement."""
    print("Cost of measuring: milliseconds of a step without and with, medians of pairs that alternate")
    for program in PROGRAMS:
        trained = build(program, "cpu", "float32")

        def timed(trained: Trained = trained) -> float:
            start = time.perf_counter()
            step(trained, "cpu", "float32")
            return (time.perf_counter() - start) * 1000

        timed()
        plain, watched = [], []
        for _ in range(pairs):
            plain.append(timed())
            with measure_memory(trained.model, trained.optimizer):
                watched.append(timed())
        ratio = statistics.median(b / a for a, b in zip(plain, watched, strict=True))
        print(f"  {program:<12} {statistics.median(plain):8.1f} {statistics.median(watched):8.1f}   x {ratio:.2f}")


def estimate() -> None:
    """Print the time to estimate the memory of a model of 21 billion parameters."""
    start = time.perf_counter()
    with estimate_memory() as memory:
        width = 8192
        blocks = [nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(40)]
        model = nn.Sequential(*blocks).cuda()
        trained = Trained(model, torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cuda"), (16, 1024, width))
        entered = time.perf_counter()
        for _ in range(2):
            step(trained, "cuda", "float16")
    done = time.perf_counter()
    count = sum(p.numel() for p in model.parameters())
    print(f"Estimate of {count:,} parameters, two steps: {done - start:.1f} s, of which steps {done - entered:.1f} s")
    print("  " + ", ".join(f"{name} {format_size(size)}" for name, size in memory.at_peak.items()))
    print(f"  peak {format_size(memory.peak)}")


def against_cuda() -> None:
    """Compare estimates made without a GPU, and measurements on the GPU, with the allocator's own peak."""
    if not torch.cuda.is_available():
        print("No CUDA device: estimates are not compared with its allocator")
        return
    print(f"On {torch.cuda.get_device_name()}: the allocator's peak, and the errors of measurement and estimate")
    for program in PROGRAMS:
        for precision in PRECISIONS:
            before = torch.cuda.memory_allocated()
            trained = build(program, "cuda", precision)
            step(trained, "cuda", precision)
            torch.cuda.reset_peak_memory_stats()
            step(trained, "cuda", precision)
            real = torch.cuda.max_memory_allocated() - before
            with measure_memory(trained.model, trained.optimizer) as memory:
                step(trained, "cuda", precision)
            measured = memory.peak - before
            del trained
            with estimate_memory() as estimated:
                trained = build(program, "cuda", precision)
                for _ in range(2):
                    step(trained, "cuda", precision)
            del trained
            print(
                f"  {program:<12} {precision:<9} {format_size(real):>12}"
                f"  measured {measured / real - 1:+.1%}  estimated {estimated.peak / real - 1:+.1%}"
                f"  (not of tensors: {format_size(memory.at_peak.get('workspace', 0))})"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15, help="how many times each step is timed (default: 15)")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    against_storages()
    cost(options.pairs)
    estimate()
    against_cuda()


if __name__ == "__main__":
    main()
