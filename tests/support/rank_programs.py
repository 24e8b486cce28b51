"""What ranks run in tests: each a function at the top of a module, where a process finds it."""

from __future__ import annotations

import multiprocessing.util
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel


def batches(number: int = 4) -> list[torch.Tensor]:
    return list(torch.randn(number * 8, 8, generator=torch.Generator().manual_seed(1)).split(8))  # type: ignore[no-untyped-call]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def train(
    model: nn.Module,
    scale: float = 256.0,
    *,
    spoilt: int = -1,
    clip: Callable[[], object] | None = None,
    leaves_out: int = -1,
    fails: int = -1,
) -> list[float]:
    """Trains four batches, and gives the scale after each; the loss of one may be infinite, or one be left out.

    One may be a batch that cannot be read.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    scales = []
    for number, x in enumerate(batches()):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), torch.zeros(8, 2))
        if number == leaves_out:
            continue
        if number == fails:
            raise OSError("the batch cannot be read")
        if number == spoilt:
            loss = loss * float("inf")
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        if clip is not None:
            scaler.unscale_(optimizer)
            clip()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def replicas(rank: int) -> list[float]:
    """The loss of one rank overflows: the average is infinite everywhere, and all skip."""
    return train(DistributedDataParallel(net()), spoilt=1 if rank == 1 else -1)


def compressed(rank: int) -> None:
    model = DistributedDataParallel(net())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(model, 2.0**16)


def by_hand(rank: int) -> None:
    """The gradients are averaged after they were unscaled, when each scaler has looked at its own alone."""
    model = net()

    def average() -> None:
        for p in model.parameters():
            assert p.grad is not None
            dist.all_reduce(p.grad.nan_to_num_(posinf=0.0, neginf=0.0))

    train(model, spoilt=1 if rank == 1 else -1, clip=average)


def leaves_out(rank: int) -> None:
    train(DistributedDataParallel(net()), leaves_out=2 if rank == 1 else -1)


def leaves_out_and_waits(rank: int) -> None:
    """One rank leaves a batch out, and comes to the barrier while the other waits for it in its last backward pass."""
    leaves_out(rank)
    dist.barrier()


def dies_last(rank: int) -> None:
    """The last rank dies in its last step, and the others fail where they wait for it."""
    model = DistributedDataParallel(net())
    if rank == dist.get_world_size() - 1:
        model.register_forward_hook(_third_call_dies())
    train(model)


def _third_call_dies() -> Callable[..., None]:
    calls = []

    def dies(*given: object) -> None:
        calls.append(given)
        if len(calls) == 3:
            os._exit(3)

    return dies


def joined(rank: int) -> None:
    """Ranks with different numbers of batches, as join() of DDP has them."""
    model = DistributedDataParallel(nn.Linear(8, 2))
    with model.join():
        for x in batches(3 + rank):
            model(x).square().mean().backward()


def fails(rank: int) -> None:
    """One rank ends in the middle of its training, and the other waits for it in its next backward pass."""
    train(DistributedDataParallel(net()), fails=2 if rank == 1 else -1)


def fails_and_takes_its_time(rank: int) -> None:
    """As ``fails``; what the process of that rank leaves behind takes some seconds to end, as loggers may."""
    if rank == 1:
        multiprocessing.util.Finalize(None, time.sleep, (6,), exitpriority=0)
    fails(rank)


def dies(rank: int) -> None:
    if rank == 1:
        os._exit(3)
    dist.barrier()


def raises(rank: int) -> None:
    sys.stdout.write(f"rank {rank} was here\n")
    if rank == 1:
        raise KeyError("the data set has no such item")
    dist.barrier()


def hangs(rank: int) -> None:
    if rank == 1:
        time.sleep(600)


def alone(rank: int) -> tuple[int, str]:
    """Each rank trains a model of its own, and no group is made."""
    train(net(), spoilt=rank)
    return rank, os.environ["WORLD_SIZE"]


def returns_a_function(rank: int) -> object:
    return lambda: rank


def nothing(rank: int) -> None:
    pass


def numbered(rank: int, word: str) -> tuple[str, int, int]:
    return word, dist.get_rank(), dist.get_world_size()


def draws(rank: int) -> float:
    return float(torch.rand(()))


def source_line(text: str, function: str = "", file: str = __file__) -> int:
    """The number of the one line of a file, or of a function in it, that holds this code and no more."""
    found, within = [], ""
    with open(file, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            within = line.removeprefix("def ").partition("(")[0] if line.startswith("def ") else within
            if line.partition("  # ")[0].strip() == text and function in ("", within):
                found.append(number)
    (number,) = found
    return number
