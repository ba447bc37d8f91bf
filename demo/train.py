"""A small transformer trained with DDP over gloo: an ordinary script that does not use stepscope.

`--slow-rank 2` makes that rank burn CPU in its backward pass from the middle of the run on, like a
failing machine or a forgotten debug hook.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

VOCABULARY = 256
CONTEXT = 64


class Sentences(Dataset[Tensor]):
    """Random token sequences, the same ones on every run."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.tokens = torch.randint(VOCABULARY, (count, CONTEXT + 1), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Tensor:
        return self.tokens[index]


class TinyTransformer(nn.Module):
    """A model of two layers, enough for a forward and a backward pass."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(tokens)))


def burn_cpu(seconds: float) -> None:
    """Does real work instead of sleeping, so that it looks like a slow rank from outside."""
    matrix = torch.randn(64, 64)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        matrix = torch.tanh(matrix @ matrix)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--slow-rank", type=int, default=-1, help="-1: no slow rank")
    parser.add_argument("--slow-seconds", type=float, default=0.15)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    train(arguments, rank)
    # The model is already deleted here. If its reducer held the last reference to the group, it
    # would destroy the group while holding the GIL, for which a thread of the group may wait.
    dist.destroy_process_group()
    if rank == 0:
        print(f"done: {arguments.steps} steps on {os.environ['WORLD_SIZE']} ranks", flush=True)


def train(arguments: argparse.Namespace, rank: int) -> None:
    model = TinyTransformer()
    step = 0

    def slow_down(_gradient: Tensor) -> None:
        if rank == arguments.slow_rank and step >= arguments.steps // 2:
            burn_cpu(arguments.slow_seconds)

    model.head.weight.register_hook(slow_down)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=3e-4)
    loss_of = nn.CrossEntropyLoss()
    loader = DataLoader(Sentences(arguments.batch * arguments.steps), batch_size=arguments.batch)
    for step, tokens in enumerate(loader):
        logits = wrapped(tokens[:, :-1])
        loss = loss_of(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 40 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
