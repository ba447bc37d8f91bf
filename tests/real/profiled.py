"""A small DDP job over gloo under `torch.profiler`, with one fault or none; no stepscope in it.

Writes `<fault>/rank<N>.json.gz` of each rank, six steps after three of warm-up, fault by fault.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

WARM_UP, ACTIVE = 3, 6


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
        time.sleep(self.pause)
        return Burn.apply(self.layers(rows), self.products)


def record(folder: Path, fault: str, stacks: bool) -> None:
    """One job from a fresh model to its trace; the process group is the only thing it shares."""
    batch, steps = 8, WARM_UP + ACTIVE
    data = Numbers(batch * (steps + 1), 0.005 if fault == "slow-loader" else 0.0)
    model = DistributedDataParallel(
        Model(260 if fault == "burn-backward" else 60, 0.05 if fault == "sleep-forward" else 0.0)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    file = folder / f"rank{dist.get_rank()}.json.gz"
    plan = schedule(wait=0, warmup=WARM_UP, active=ACTIVE, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=plan, with_stack=stacks,
        on_trace_ready=lambda trace: trace.export_chrome_trace(str(file)),
    ) as profiler:  # fmt: skip
        for _, rows in zip(range(steps), DataLoader(data, batch_size=batch), strict=False):
            loss = model(rows).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            profiler.step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fault", nargs="+", default=["none"])
    parser.add_argument("--rank", type=int, default=2)
    parser.add_argument("--stacks", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for fault in arguments.fault:
        folder = arguments.folder / fault
        folder.mkdir(parents=True, exist_ok=True)
        record(folder, fault if dist.get_rank() == arguments.rank else "none", arguments.stacks)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
