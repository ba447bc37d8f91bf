"""Real two-rank gloo jobs that record themselves: one marks its steps, the other does not.

    python record.py FOLDER

Both run at once, forked from one process: importing torch is what takes long.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

RANKS, STEPS, FEATURES, GATHERED = 2, 4, 32, 5


def record(folder: Path, rank: int, marked: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=RANKS
    )
    train(folder, rank, marked)
    dist.barrier()
    dist.destroy_process_group()  # after the model is gone, see demo/train.py


def train(folder: Path, rank: int, marked: bool) -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(FEATURES, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader([torch.randn(FEATURES) for _ in range(24)], batch_size=4)
    plan = schedule(wait=1, warmup=1, active=STEPS, repeat=1) if marked else None
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, record_shapes=True,
                 with_stack=marked) as profiler:  # fmt: skip
        for batch in loader:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            gathered = [torch.zeros(GATHERED) for _ in range(RANKS)]
            dist.all_gather(gathered, torch.ones(GATHERED))
            if rank == 0:
                dist.send(torch.ones(3), 1)
            elif rank == 1:
                dist.recv(torch.ones(3), 0)
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"host12_{4711 + rank}.json"))


def main(folder: Path) -> int:
    """Records both jobs; 0 if all ranks ended well."""
    torch.optim.SGD([torch.zeros(1)])  # imports what takes two seconds, once for all
    children = []
    for name in ("marked", "unmarked"):
        (folder / name).mkdir()
        for rank in range(RANKS):
            child = os.fork()
            if child == 0:
                record(folder / name, rank, name == "marked")
                os._exit(0)
            children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
