"""Pipeline and data parallel training with PyTorch's own 1F1B schedule.

torchrun … pipeline.py --stages 4 --microbatches 8
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from lab.jobs import inputs, loop, stages
from lab.jobs.device import PLACE


def train(arguments: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    condition, device = loop.prepared(arguments, rank)
    shape = (arguments.stages, world // arguments.stages)
    mesh = init_device_mesh(PLACE.type, shape, mesh_dim_names=("pp", "dp"))
    index, replica = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    module = stages.stage_module(device, index, arguments)
    stage = PipelineStage(module, index, arguments.stages, PLACE, group=mesh["pp"].get_group())
    schedule = Schedule1F1B(stage, arguments.microbatches, loss_fn=stages.loss_of)
    optimizer = loop.optimizer_of(module, device, arguments)
    habits = loop.Habits(arguments, condition)
    batches = inputs.batches(arguments, condition, replica, width=arguments.stream)
    for step in loop.Steps(condition, arguments.steps, arguments.ahead):
        losses: list[torch.Tensor] = []
        if index == 0:
            schedule.step(habits.before_forward(next(batches)))
        elif index == arguments.stages - 1:
            target = torch.zeros(inputs.TOKENS, arguments.stream, device=PLACE)
            schedule.step(target=target, losses=losses)
        else:
            schedule.step()
        stages.average_gradients(module, mesh["dp"].get_group())
        stages.clip_gradients(module)
        optimizer.step()
        optimizer.zero_grad()
        loss = torch.stack(losses).mean() if losses else torch.zeros(())
        habits.after_step(step, loss, module)


def main() -> None:
    loop.run(train, stages.options(__doc__).parse_args())


if __name__ == "__main__":
    main()
