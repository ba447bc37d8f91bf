"""Small DDP jobs over gloo under `torch.profiler`, each with one fault; no stepscope in them.

    python -m tests.real.profiled FOLDER FAULT…

Four ranks, forked from one process: importing torch is what takes long. One job after the other
writes `<fault>/rank<N>.json.gz` of each rank, six steps after three of warm-up. The faults are of
rank 2: `burn-backward`, `slow-loader`, `sleep-forward`; `none` is none. What every rank does is
little beside a fault, so that ranks that share a processor do not look alike slow.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

WORLD, CULPRIT = 4, 2
WARM_UP, ACTIVE = 3, 6
PRODUCTS, BURNT = 60, 960
"""Of matrices in each backward pass: some 6 and 90 ms on a fast processor, where four ranks on two
cores differ by as much as 2 ms without any fault."""
SLEEP_S, LOAD_S = 0.2, 0.02
"""In each forward pass, and for each row."""


class Numbers(Dataset[Tensor]):
    """Random rows; reading them may take longer."""

    def __init__(self, count: int, seconds: float) -> None:
        self.rows = torch.randn(count, 128)
        self.seconds = seconds

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        if self.seconds:
            time.sleep(self.seconds)
        return self.rows[index]


class Burn(torch.autograd.Function):
    """Nothing in forward; in backward as many matrix products as it is told."""

    @staticmethod
    def forward(context: object, rows: Tensor, products: int) -> Tensor:
        context.products = products  # type: ignore[attr-defined]
        return rows.clone()

    @staticmethod
    def backward(context: object, *gradients: Tensor) -> tuple[Tensor, None]:
        matrix = torch.randn(192, 192)
        for _ in range(context.products):  # type: ignore[attr-defined]
            matrix = torch.tanh(matrix @ matrix)
        return gradients[0], None


class Model(nn.Module):
    def __init__(self, products: int, pause: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(128, 384), nn.ReLU(), nn.Linear(384, 128))
        self.products, self.pause = products, pause

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.layers(rows)
        time.sleep(self.pause)
        return Burn.apply(hidden, self.products)


def record(folder: Path, fault: str) -> None:
    """One job from a fresh model to its trace; the process group is the only thing it shares."""
    batch, steps = 8, WARM_UP + ACTIVE
    data = Numbers(batch * (steps + 1), LOAD_S if fault == "slow-loader" else 0.0)
    products = BURNT if fault == "burn-backward" else PRODUCTS
    model = DistributedDataParallel(Model(products, SLEEP_S if fault == "sleep-forward" else 0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    file = folder / f"rank{dist.get_rank()}.json.gz"
    plan = schedule(wait=0, warmup=WARM_UP, active=ACTIVE, repeat=1)

    def export(trace: profile) -> None:
        dist.barrier()  # writing takes a core, and the last step of others would take longer
        trace.export_chrome_trace(str(file))

    with profile(
        activities=[ProfilerActivity.CPU], schedule=plan,
        on_trace_ready=export,
    ) as profiler:  # fmt: skip
        for _, rows in zip(range(steps), DataLoader(data, batch_size=batch), strict=False):
            loss = model(rows).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            profiler.step()


def run(folder: Path, faults: Sequence[str], rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=WORLD
    )
    for fault in faults:
        (folder / fault).mkdir(parents=True, exist_ok=True)
        record(folder / fault, fault if rank == CULPRIT else "none")
        dist.barrier()
    dist.destroy_process_group()


def main(folder: Path, faults: Sequence[str]) -> int:
    """Runs all jobs; 0 if all ranks ended well."""
    torch.optim.SGD([torch.zeros(1)])  # imports what takes two seconds, once for all
    children = []
    for rank in range(WORLD):
        child = os.fork()
        if child == 0:
            run(folder, faults, rank)
            os._exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
