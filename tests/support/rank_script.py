"""A script that trains on ranks started by torchrun or by the script itself. Arguments: NAME [spawn], or by_itself."""

from __future__ import annotations

import os
import sys
import tempfile

import rank_programs
import torch.distributed as dist
import torch.multiprocessing as mp


def main(rank: int, size: int, name: str, store: str) -> None:
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    dist.barrier()
    getattr(rank_programs, name)(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if sys.argv[2:] == ["spawn"]:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(main, (2, sys.argv[1], f"file://{folder}/store"), nprocs=2)  # type: ignore[attr-defined, no-untyped-call]
    elif sys.argv[1] == "by_itself":
        rank_programs.train(rank_programs.net())
    else:
        main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1], "env://")
