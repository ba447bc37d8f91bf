"""Ranks that always have sends and receives under way, also when they profile their steps.

in_flight.py    (with the environment of torchrun)
"""

from __future__ import annotations

import os
import signal
import time

import torch
import torch.distributed as dist

STEPS, PROFILED, EACH = 60, 20, 4


def main() -> None:
    dist.init_process_group("gloo")
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    peer, under_way = 1 - dist.get_rank(), list[dist.Work]()
    for step in range(STEPS):
        wait(under_way)
        buffers = [torch.zeros(64) for _ in range(2 * EACH)]
        posted = [dist.irecv(one, peer) for one in buffers[:EACH]]
        posted += [dist.isend(one, peer) for one in buffers[EACH:]]
        under_way = [one for one in posted if one is not None]
        model(torch.randn(4, 8)).sum().backward()
        time.sleep(0.02)
        if step == PROFILED:
            os.kill(os.getpid(), signal.SIGUSR2)
        optimizer.step()
        optimizer.zero_grad()
    wait(under_way)
    used_again = [torch.randn(1000) for _ in range(2000)]
    dist.barrier()
    # one write: both ranks write to one pipe, and unbuffered prints write piece by piece
    print(f"done {dist.get_rank()} {len(used_again)}\n", end="")


def wait(works: list[dist.Work]) -> None:
    for one in works:
        one.wait()


if __name__ == "__main__":
    main()
