"""A DDP job over gloo that prints a digest of its losses to the last bit, rank by rank.

    windowed.py STEPS [--profile]

With `--profile` it uses a profiler of its own in the middle.
"""

from __future__ import annotations

import hashlib
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sys.stdout.write(f"rank {dist.get_rank()} {train(int(sys.argv[1]))}\n")  # not in two parts
    sys.stdout.flush()
    dist.destroy_process_group()


def train(steps: int) -> str:
    torch.manual_seed(7)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses: list[str] = []
    for step, (rows,) in enumerate(DataLoader(TensorDataset(torch.randn(steps * 4, 16)), 4)):
        if "--profile" in sys.argv and step == steps // 2:
            with torch.profiler.profile() as own:
                one_step(model, optimizer, rows)
            losses.append(str(any(e.key == "aten::addmm" for e in own.key_averages())))
        losses.append(one_step(model, optimizer, rows))
    digest = hashlib.sha256(" ".join(losses).encode()).hexdigest()
    return f"{'True' in losses} {losses[-1]} {digest}"


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, rows: Tensor) -> str:
    prepare(rows)
    loss = model(rows).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss).hex()


def prepare(rows: Tensor) -> None:
    """What a trace should name."""
    time.sleep(0.02)
    sorted(str(value) for value in rows.flatten().tolist())


if __name__ == "__main__":
    main()
