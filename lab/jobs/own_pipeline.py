"""Pipeline and data parallel training with a 1F1B schedule written by hand.

torchrun … own_pipeline.py --stages 4 --microbatches 8
"""

from __future__ import annotations

import argparse
from collections import deque
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from lab.jobs import inputs, loop, stages
from lab.jobs.conditions import Conditions
from lab.jobs.device import PLACE


class Pipeline:
    """One stage: its neighbours, and the micro-batches that are under way."""

    def __init__(
        self, module: nn.Module, group: Any, arguments: argparse.Namespace, condition: Conditions
    ) -> None:
        ranks = dist.get_process_group_ranks(group)
        self.module = module
        self.group = group
        self.stage = ranks.index(dist.get_rank())
        self.before = ranks[self.stage - 1] if self.stage else None
        self.after = ranks[self.stage + 1] if self.stage + 1 < len(ranks) else None
        self.warm_up = min(len(ranks) - 1 - self.stage, arguments.microbatches)
        self.microbatches = arguments.microbatches
        self.shape = (inputs.TOKENS // arguments.microbatches, arguments.stream)
        self.condition = condition
        self.under_way: deque[tuple[Tensor, Tensor]] = deque()
        self.sending: list[Any] = []
        self.last = torch.zeros(self.shape, device=PLACE)

    def step(self, rows: Tensor | None) -> Tensor:
        """Forward and backward passes of all micro-batches; gives the loss of the last one."""
        parts = deque(rows.chunk(self.microbatches)) if rows is not None else deque()
        loss = torch.zeros(())
        for _ in range(self.warm_up):
            self.run_forward(parts)
        for _ in range(self.microbatches - self.warm_up):
            self.run_forward(parts)
            loss = self.run_backward()
        for _ in range(self.warm_up):
            loss = self.run_backward()
        self.finish_sending()
        return loss

    def run_forward(self, parts: deque[Tensor]) -> None:
        given = parts.popleft() if self.before is None else self.receive_activations()
        given.requires_grad_()
        output = self.module(given)
        self.under_way.append((given, output))
        if self.after is not None:
            self.send(output.detach(), self.after)

    def run_backward(self) -> Tensor:
        given, output = self.under_way.popleft()
        if self.after is None:
            loss = output.square().mean()
            loss.backward()
        else:
            loss = torch.zeros(())
            output.backward(self.receive(self.after))
        if self.before is not None:
            assert given.grad is not None
            self.send(given.grad, self.before)
        return loss

    def receive_activations(self) -> Tensor:
        """From the stage before, or again the last ones where a cache says that they are there."""
        if self.condition.holds("skip-receive") and len(self.under_way) == self.warm_up:
            return self.last.clone()
        assert self.before is not None
        self.last = self.receive(self.before)
        return self.last.clone()

    def receive(self, peer: int) -> Tensor:
        tensor = torch.empty(self.shape, device=PLACE)
        dist.recv(tensor, peer, group=self.group)
        return tensor

    def send(self, tensor: Tensor, peer: int) -> None:
        """Does not wait for the receiver; keeps what is sent until it is gone."""
        self.sending.append((dist.isend(tensor, peer, group=self.group), tensor))

    def finish_sending(self) -> None:
        for work, _tensor in self.sending:
            work.wait()
        self.sending.clear()


def train(arguments: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    condition, device = loop.prepared(arguments, rank)
    shape = (arguments.stages, world // arguments.stages)
    mesh = init_device_mesh(PLACE.type, shape, mesh_dim_names=("pp", "dp"))
    index, replica = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    module = stages.stage_module(device, index, arguments)
    pipeline = Pipeline(module, mesh["pp"].get_group(), arguments, condition)
    optimizer = loop.optimizer_of(module, device, arguments)
    habits = loop.Habits(arguments, condition)
    batches = inputs.batches(arguments, condition, replica, width=arguments.stream)
    for step in loop.Steps(condition, arguments.steps, arguments.ahead):
        rows = habits.before_forward(next(batches)) if index == 0 else None
        loss = pipeline.step(rows)
        stages.average_gradients(module, mesh["dp"].get_group())
        stages.clip_gradients(module)
        optimizer.step()
        optimizer.zero_grad()
        habits.after_step(step, loss, module)


def main() -> None:
    loop.run(train, stages.options(__doc__).parse_args())


if __name__ == "__main__":
    main()
