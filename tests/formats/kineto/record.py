"""A real two-rank gloo job that records itself with torch.profiler.

python record.py FOLDER RANK RANKS PORT {marked,unmarked}
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

STEPS, FEATURES, GATHERED = 4, 32, 5


def main(folder: Path, rank: int, ranks: int, port: str, marked: bool) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
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
            gathered = [torch.zeros(GATHERED) for _ in range(ranks)]
            dist.all_gather(gathered, torch.ones(GATHERED))
            if rank == 0:
                dist.send(torch.ones(3), 1)
            elif rank == 1:
                dist.recv(torch.ones(3), 0)
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"host12_{4711 + rank}.json"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(
        Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5] == "marked"
    )
