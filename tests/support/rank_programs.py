"""Programs that ranks run in tests. Each program is a module-level function, so that a process can import it."""

from __future__ import annotations

import multiprocessing.util
import os
import signal
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
    overflows_at: int = -1,
    clip: Callable[[], object] | None = None,
    leaves_out: int = -1,
    fails: int = -1,
) -> list[float]:
    """Train on four batches and return the scale after each batch.

    ``overflows_at`` is the index of a batch with an infinite loss, ``leaves_out`` of a skipped batch, and ``fails`` of
    a batch that raises OSError; -1 means none.
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
        if number == overflows_at:
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
    """Train with an overflowing loss on one rank: the average is infinite everywhere, and all ranks skip."""
    return train(DistributedDataParallel(net()), overflows_at=1 if rank == 1 else -1)


def compressed(rank: int) -> None:
    model = DistributedDataParallel(net())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(model, 2.0**16)


def by_hand(rank: int) -> None:
    """Average the gradients after unscaling: each scaler has only checked the gradients of its own rank."""
    model = net()

    def average() -> None:
        for p in model.parameters():
            assert p.grad is not None
            dist.all_reduce(p.grad.nan_to_num_(posinf=0.0, neginf=0.0))

    train(model, overflows_at=1 if rank == 1 else -1, clip=average)


def leaves_out(rank: int) -> None:
    train(DistributedDataParallel(net()), leaves_out=2 if rank == 1 else -1)


def leaves_out_and_waits(rank: int) -> None:
    """Skip a batch on one rank, which reaches the barrier while the other rank waits in its last backward pass."""
    leaves_out(rank)
    dist.barrier()


def dies_last(rank: int) -> None:
    """Kill the last rank once all ranks have made two steps. The others fail while waiting for the last rank."""
    model = DistributedDataParallel(net())
    model.register_forward_hook(_third_call_waits(is_last=rank == dist.get_world_size() - 1))
    train(model)


def _third_call_waits(*, is_last: bool) -> Callable[..., None]:
    calls = []

    def wait(*given: object) -> None:
        calls.append(given)
        if len(calls) == 3:
            wait_and_die() if is_last else dist.barrier()

    return wait


def wait_and_die() -> None:
    """Wait for all ranks in a barrier, then end this process.

    A launcher that has seen the first rank die must not end the next one in another way.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        # The others may be gone already.
        dist.barrier()
    finally:
        os._exit(3)


def joined(rank: int) -> None:
    """Train ranks with different numbers of batches under DDP's join()."""
    model = DistributedDataParallel(nn.Linear(8, 2))
    with model.join():
        for x in batches(3 + rank):
            model(x).square().mean().backward()


def joined_with_scaler(rank: int, interval: int, synchronized: bool = False) -> float:
    """Train ranks with different numbers of batches under join(), each with a scaler that counts its own steps."""
    model = DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaling = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=interval)
    for _ in range(2):
        with model.join():
            for x in batches(3 + rank):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = model(x).float().square().mean()
                scaling.scale(loss).backward()
                scaling.step(optimizer)
                scaling.update()
        if synchronized:
            states = [scaling.state_dict()]
            dist.broadcast_object_list(states, src=0)
            scaling.load_state_dict(states[0])
    return scaling.get_scale()


def fails(rank: int) -> None:
    """End one rank in the middle of training, while the other rank waits in the next backward pass."""
    train(DistributedDataParallel(net()), fails=2 if rank == 1 else -1)


def fails_and_takes_its_time(rank: int) -> None:
    """Fail like ``fails``, with some seconds of cleanup at the exit of the failed rank, as loggers may need."""
    if rank == 1:
        multiprocessing.util.Finalize(None, time.sleep, (6,), exitpriority=0)
    fails(rank)


def dies(rank: int) -> None:
    """End all ranks but the first before the first step."""
    if rank > 0:
        wait_and_die()
    dist.barrier()
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
    """Train a separate model on each rank, without a process group."""
    train(net(), overflows_at=rank)
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
    """Return the number of the only line of a file, or of a function in the file, with exactly this code."""
    found, within = [], ""
    with open(file, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            within = line.removeprefix("def ").partition("(")[0] if line.startswith("def ") else within
            if line.partition("  # ")[0].strip() == text and function in ("", within):
                found.append(number)
    (number,) = found
    return number
