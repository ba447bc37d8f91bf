"""Tensor parallel blocks within groups of ranks, sharded data parallel across them.

torchrun … tensor.py --tensor 4
"""

from __future__ import annotations

import argparse
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from lab.jobs import inputs, loop
from lab.jobs.device import PLACE, Compute, Device


class Block(nn.Module):
    """Two products with their weights split by columns and by rows, and a layer's device time."""

    def __init__(self, device: Device, index: int, width: int, seconds: float) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.compute = Compute(device, index, seconds)
        self.down = nn.Linear(2 * width, width)

    def forward(self, activations: Tensor) -> Tensor:
        result: Tensor = self.down(self.compute(self.up(activations)))
        return result


def parallel(device: Device, arguments: argparse.Namespace, mesh: Any) -> nn.Module:
    seconds = arguments.layer_ms / 1000
    width = arguments.width // 2
    blocks = [Block(device, i, width, seconds) for i in range(arguments.layers)]
    model = nn.Sequential(*blocks).to(PLACE)
    for block in model:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, mesh["tp"], plan)
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return model


def train(arguments: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    condition, device = loop.prepared(arguments, rank)
    shape = (world // arguments.tensor, arguments.tensor)
    mesh = init_device_mesh(PLACE.type, shape, mesh_dim_names=("dp", "tp"))
    model = parallel(device, arguments, mesh)
    optimizer = loop.optimizer_of(model, device, arguments)
    habits = loop.Habits(arguments, condition)
    replica = mesh["dp"].get_local_rank()
    batches = inputs.batches(arguments, condition, replica)
    for step in loop.Steps(condition, arguments.steps, arguments.ahead):
        rows = habits.before_forward(next(batches))[:, : arguments.width // 2]
        rows = rows.repeat(arguments.sequences, 1)
        loss = model(rows).square().mean()
        habits.before_backward(loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        habits.after_step(step, loss, model)


def main() -> None:
    parser = loop.options(__doc__)
    parser.add_argument("--tensor", type=int, default=2, help="ranks that share each block")
    parser.add_argument("--sequences", type=int, default=1, help="of one batch")
    loop.run(train, parser.parse_args())


if __name__ == "__main__":
    main()
