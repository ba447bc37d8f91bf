"""The job of `benchmarks/chaos.py`: deterministic DDP over gloo, which prints every loss exactly.

    chaos_train.py STOP_FILE [--steps 20000] [--pause 0.05] [--forks 0] [--status 7]

It ends after so many steps, or as soon as STOP_FILE exists, with an exit status of its own. All
runs print the same losses, however long they take.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH = 8


class Rows(Dataset[Tensor]):
    """Every row follows from its number."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(index * dist.get_world_size() + dist.get_rank())
        return torch.randn(32, generator=generator)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("stop", type=Path)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds of sleep in every step")
    parser.add_argument("--forks", type=int, default=0, help="processes started in every step")
    parser.add_argument("--status", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(arguments)
    dist.destroy_process_group()  # after the model is gone, see demo/train.py
    return int(arguments.status)


def train(arguments: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in DataLoader(Rows(arguments.steps * BATCH), batch_size=BATCH):
        loss = (model(batch) - batch.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        fork(arguments.forks)
        time.sleep(arguments.pause)
        if ends(loss, arguments.stop):
            return


def ends(loss: Tensor, stop: Path) -> bool:
    """Prints the loss of all ranks; whether rank 0 has seen the file. All ranks agree."""
    shared = torch.tensor([loss.item(), float(dist.get_rank() == 0 and stop.exists())])
    dist.all_reduce(shared)
    if dist.get_rank() == 0:
        print(repr(shared[0].item()), flush=True)
    return bool(shared[1])


def fork(count: int) -> None:
    """Children of both kinds: bare copies of this process, and other programs."""
    children = [subprocess.Popen(["true"]) for _ in range(count // 2)]
    for _ in range(count - count // 2):
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
    for program in children:
        program.wait()


if __name__ == "__main__":
    sys.exit(main())
