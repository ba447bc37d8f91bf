"""Fully sharded data parallel training (FSDP2): every layer is gathered before it computes.

torchrun … fsdp.py --steps 120
"""

from __future__ import annotations

import argparse

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from lab.jobs import inputs, loop
from lab.jobs.device import PLACE, Device, Layer


def sharded(device: Device, arguments: argparse.Namespace) -> nn.Module:
    mesh = init_device_mesh(PLACE.type, (dist.get_world_size(),), mesh_dim_names=("dp",))
    seconds = arguments.layer_ms / 1000
    model = nn.Sequential(
        *[Layer(device, i, arguments.width, seconds) for i in range(arguments.layers)]
    ).to(PLACE)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def train(arguments: argparse.Namespace) -> None:
    rank = dist.get_rank()
    condition, device = loop.prepared(arguments, rank)
    model = sharded(device, arguments)
    optimizer = loop.optimizer_of(model, device, arguments)
    habits = loop.Habits(arguments, condition)
    batches = inputs.batches(arguments, condition, rank)
    for step in loop.Steps(condition, arguments.steps, arguments.ahead):
        rows = habits.before_forward(next(batches))
        device.load = len(rows) / inputs.TOKENS
        loss = model(rows).square().mean()
        habits.before_backward(loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        habits.after_step(step, loss, model)


def main() -> None:
    loop.run(train, loop.options(__doc__).parse_args())


if __name__ == "__main__":
    main()
