"""A small DDP job over gloo with one fault, or none: an ordinary script without stepscope.

The faults are real: they sleep, burn CPU, allocate, or stop the process.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset[Tensor]):
    """Random rows; from some index on, reading them may take longer."""

    def __init__(self, count: int, slow_from: int, seconds: float) -> None:
        self.rows = torch.randn(count, 128)
        self.slow_from = slow_from
        self.seconds = seconds

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        if index >= self.slow_from:
            time.sleep(self.seconds)
        return self.rows[index]


class Model(nn.Module):
    """A few layers, and a place in forward where something may happen."""

    def __init__(self, during_forward: Callable[[], None]) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128)
        )
        self.during_forward = during_forward

    def forward(self, rows: Tensor) -> Tensor:
        self.during_forward()
        return self.layers(rows)


def burn_cpu(seconds: float) -> None:
    matrix = torch.randn(64, 64)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        matrix = torch.tanh(matrix @ matrix)


def tokenize_slowly(seconds: float) -> int:
    """Pure Python, as a slow user function is."""
    until = time.perf_counter() + seconds
    total = 0
    while time.perf_counter() < until:
        total += sum(range(100))
    return total


def keep_core_busy() -> None:
    while True:
        sum(range(1000))


def share_core_with(processes: int) -> None:
    """Pins this rank to one core together with busy processes of its own."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for _ in range(processes):
        multiprocessing.get_context("fork").Process(target=keep_core_busy, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=0.06)
    parser.add_argument("--pause", type=float, default=0.0, help="sleep in every step, all ranks")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    onset = arguments.steps // 2
    mine = dist.get_rank() == arguments.rank
    step = 0

    def fault(name: str, everywhere: bool = False) -> bool:
        return arguments.fault == name and step >= onset and (mine or everywhere)

    def during_forward() -> None:
        time.sleep(arguments.pause)
        if fault("sleep-forward"):
            time.sleep(arguments.seconds)
        if fault("slow-function", everywhere=True):
            tokenize_slowly(arguments.seconds)
        if fault("gc-storm"):
            gc.collect()

    def during_backward(_gradient: Tensor) -> None:
        if fault("burn-backward"):
            burn_cpu(arguments.seconds)

    batch = 8
    slow = mine and arguments.fault == "slow-loader"
    dataset = Numbers(batch * arguments.steps, batch * onset if slow else 1 << 60,
                      arguments.seconds / batch)  # fmt: skip
    garbage = [[i] for i in range(150_000)] if arguments.fault == "gc-storm" and mine else []

    model = Model(during_forward)
    model.layers[4].weight.register_hook(during_backward)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    for step, rows in enumerate(DataLoader(dataset, batch_size=batch)):
        if step == onset and mine and arguments.fault == "busy-core":
            share_core_with(3)
        if step == onset and mine and arguments.fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        loss = wrapped(rows).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    del garbage
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
