"""Data parallel training, with gradient accumulation and sequences of different lengths if asked.

torchrun … ddp.py --steps 150 --accumulate 4 --length-spread 0.1
"""

from __future__ import annotations

import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lab.jobs import inputs, loop
from lab.jobs.device import PLACE, Device, Layer, Stem


def network(device: Device, arguments: argparse.Namespace) -> nn.Module:
    seconds = arguments.layer_ms / 1000 / arguments.accumulate
    layers = [Layer(device, i, arguments.width, seconds) for i in range(arguments.layers)]
    return nn.Sequential(Stem(device, seconds / 3), *layers)


def train(arguments: argparse.Namespace) -> None:
    rank = dist.get_rank()
    condition, device = loop.prepared(arguments, rank)
    model = DistributedDataParallel(network(device, arguments).to(PLACE), bucket_cap_mb=0.5)
    optimizer = loop.optimizer_of(model, device, arguments)
    habits = loop.Habits(arguments, condition)
    batches = inputs.batches(arguments, condition, rank, arguments.accumulate)
    for step in loop.Steps(condition, arguments.steps, arguments.ahead):
        loss = torch.zeros(())
        for micro in range(arguments.accumulate):
            rows = habits.before_forward(next(batches))
            device.load = len(rows) / inputs.TOKENS
            last = micro == arguments.accumulate - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = model(rows).square().mean()
                habits.before_backward(loss)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        habits.after_step(step, loss, model)
        if arguments.evaluate_every and step % arguments.evaluate_every == 0:
            evaluate(model.module, arguments)


def evaluate(model: nn.Module, arguments: argparse.Namespace) -> Tensor:
    total = torch.zeros(1, device=PLACE)
    with torch.no_grad():
        for _ in range(3):
            rows = torch.randn(inputs.TOKENS, arguments.width, device=PLACE)
            total += model(rows).square().mean()
    dist.all_reduce(total)
    return total


def main() -> None:
    loop.run(train, loop.options(__doc__).parse_args())


if __name__ == "__main__":
    main()
