"""A small DDP job over gloo with faults, or none: an ordinary script without stepscope.

    train.py --scenes sleep-forward:100,slow-loader:80

The faults are real: they sleep, burn CPU, allocate, or stop the process. A scene has so many steps,
and its fault begins in the middle of them.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH = 8


@dataclass(frozen=True)
class Scene:
    """Steps of one fault, or of `none`."""

    fault: str
    start: int
    onset: int
    end: int


def scenes_of(text: str) -> list[Scene]:
    """Reads `sleep-forward:100,slow-loader:80`."""
    scenes: list[Scene] = []
    for word in text.split(","):
        fault, _, steps = word.partition(":")
        start = scenes[-1].end if scenes else 0
        scenes.append(Scene(fault, start, start + int(steps) // 2, start + int(steps)))
    return scenes


class Numbers(Dataset[Tensor]):
    """Random rows; reading those of some steps takes longer."""

    def __init__(self, steps: int, slow: Callable[[int], bool], seconds: float) -> None:
        self.rows = torch.randn(steps * BATCH, 128)
        self.slow = slow
        self.seconds = seconds

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        if self.slow(index // BATCH):
            time.sleep(self.seconds / BATCH)
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


def keep_to_own_core(mine: bool) -> None:
    """For good: this rank has one core for itself, the others have the rest, as on a real host."""
    cores = os.sched_getaffinity(0)
    last = {max(cores)}
    os.sched_setaffinity(0, last if mine or len(cores) == 1 else cores - last)


def share_core_with(processes: int) -> None:
    """Starts busy processes on this rank's core."""
    for _ in range(processes):
        multiprocessing.get_context("fork").Process(target=keep_core_busy, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scenes", default="none:100", help="FAULT:STEPS, with commas between")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.06)
    parser.add_argument("--pause", type=float, default=0.0, help="sleep in every step, all ranks")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(arguments)
    # The model is gone before its group: torch's reducer, if it holds the group last, ends it with
    # the GIL held, for which a thread of the group may wait (one in twenty short jobs hung).
    dist.destroy_process_group()


def train(arguments: argparse.Namespace) -> None:
    torch.manual_seed(dist.get_rank())
    scenes = scenes_of(arguments.scenes)
    mine = dist.get_rank() == arguments.rank
    step = 0

    def begun(fault: str, step: int) -> bool:
        return any(s.fault == fault and s.onset <= step < s.end for s in scenes)

    def during_forward() -> None:
        time.sleep(arguments.pause)
        if mine and begun("sleep-forward", step):
            time.sleep(arguments.seconds)
        if begun("slow-function", step):
            tokenize_slowly(arguments.seconds)
        if mine and begun("gc-storm", step):
            gc.collect()

    def during_backward(_gradient: Tensor) -> None:
        if mine and begun("burn-backward", step):
            burn_cpu(arguments.seconds)

    model = Model(during_forward)
    model.layers[4].weight.register_hook(during_backward)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    dataset = Numbers(
        scenes[-1].end, lambda step: mine and begun("slow-loader", step), arguments.seconds
    )
    garbage: list[list[int]] = []
    for step, rows in enumerate(DataLoader(dataset, batch_size=BATCH)):
        if mine and begun("gc-storm", step) != bool(garbage):
            garbage = [] if garbage else [[i] for i in range(600_000)]
        if step in [scene.start for scene in scenes if scene.fault == "busy-core"]:
            keep_to_own_core(mine)
        if mine and step in [scene.onset for scene in scenes if scene.fault == "busy-core"]:
            share_core_with(3)
        if mine and step in [scene.onset for scene in scenes if scene.fault == "stop"]:
            os.kill(os.getpid(), signal.SIGSTOP)
        loss = wrapped(rows).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
