"""Training data: read from a disk that takes its time, in sequences of different lengths."""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lab.jobs.conditions import Conditions
from lab.jobs.device import PLACE


class Shards(Dataset[Tensor]):
    """One item is the batch of one micro-batch of this replica."""

    def __init__(
        self, conditions: Conditions, batches: int, per_step: int, width: int, seconds: float,
        rank: int, spread: float = 0.0,
    ) -> None:  # fmt: skip
        self.conditions = conditions
        self.batches = batches
        self.per_step = per_step
        self.width = width
        self.seconds = seconds
        self.spread = spread
        self.rank = rank

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> Tensor:
        step = index // self.per_step
        self.read_shard(step)
        return torch.randn(self.tokens(index, step), self.width)

    def read_shard(self, step: int) -> None:
        if self.conditions.holds("stuck-loader", step):
            wait_for_storage()
        extra = self.conditions.seconds("loader", step)
        time.sleep((self.seconds + extra) / self.per_step)

    def tokens(self, index: int, step: int) -> int:
        """Lengths are balanced up to `spread`, but for ranks that got the long sequences."""
        draw = random.Random(index * 65_537 + self.rank)
        typical = TOKENS * draw.uniform(1 - self.spread, 1 + self.spread)
        if self.conditions.holds("uneven-lengths", step):
            typical *= draw.lognormvariate(0.0, self.conditions.seconds("uneven-lengths", step))
        typical *= self.conditions.factor("long-sequences", step=step)
        return max(4, round(typical))


TOKENS = 64
"""Rows of a typical batch: few, because the products are real."""


def wait_for_storage() -> None:
    """The server does not answer."""
    threading.Event().wait()


def loader(shards: Shards, workers: int) -> DataLoader[Tensor]:
    if workers == 0:
        return DataLoader(shards, batch_size=None)
    return DataLoader(shards, batch_size=None, num_workers=workers, multiprocessing_context="fork")


def batches(
    arguments: argparse.Namespace,
    conditions: Conditions,
    replica: int,
    per_step: int = 1,
    width: int | None = None,
) -> Iterator[Tensor]:
    """This replica's batches, `per_step` of them for each step."""
    shards = Shards(
        conditions, arguments.steps * per_step, per_step, width or arguments.width,
        arguments.loader_ms / 1000, replica, arguments.length_spread,
    )  # fmt: skip
    return map(placed, loader(shards, arguments.workers))


def placed(rows: Tensor) -> Tensor:
    return rows.to(PLACE)
