"""A launcher that imports torch and then forks its two ranks, as notebooks do.

Run as `python -m tests.collect.forked_job FOLDER`, with a recorder's socket in the environment.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from stepscope.collect import startup

RANKS, ROUNDS = 2, 3


def rank_main(rank: int, folder: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    for _ in range(ROUNDS):
        dist.all_reduce(torch.ones(2))
    if rank == 1:
        raise ValueError("record 7 is corrupt")


if __name__ == "__main__":
    startup.after_torch_import()
    mp.start_processes(rank_main, (sys.argv[1],), nprocs=RANKS, start_method="fork")
