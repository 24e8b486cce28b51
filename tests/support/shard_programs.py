"""Programs that ranks run in tests of sharded models. The other rank programs do not need their import."""

from __future__ import annotations

import torch
from rank_programs import batches, net, train
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel


def sharded(rank: int) -> None:
    train(FullyShardedDataParallel(net(), device_id=torch.device("cpu")), overflows_at=1 if rank == 1 else -1)


def clipped_shards(rank: int) -> None:
    model = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in batches():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


def fully_sharded(rank: int) -> list[float]:
    from torch.distributed.fsdp import fully_shard

    model = net()
    fully_shard(model)
    return train(
        model, overflows_at=1 if rank == 1 else -1, clip=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    )
