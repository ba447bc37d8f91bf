"""A mixture of experts: tokens go to the ranks of their experts and back, in every layer.

torchrun … experts.py --layers 4
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.parallel import DistributedDataParallel

from lab.jobs import inputs, loop
from lab.jobs.conditions import Conditions
from lab.jobs.device import PLACE, Compute, Device, Layer, Wide


class Router:
    """Chooses an expert for each token: evenly up to chance, unless one expert draws more."""

    def __init__(self, experts: int, condition: Conditions, seed: int) -> None:
        self.experts = experts
        self.condition = condition
        self.generator = torch.Generator(PLACE).manual_seed(seed)

    def choose(self, tokens: int) -> Tensor:
        chances = torch.ones(self.experts, device=PLACE)
        for expert in range(self.experts):
            chances[expert] = self.condition.factor("popular-expert", expert)
        return torch.multinomial(chances, tokens, replacement=True, generator=self.generator)


class Expert(nn.Module):
    """One rank's expert; its device time is that of the tokens which it got."""

    def __init__(self, device: Device, index: int, width: int, seconds: float) -> None:
        super().__init__()
        self.device = device
        self.weights = nn.Linear(width, width)
        self.compute = Compute(device, index, seconds)

    def forward(self, tokens: Tensor) -> Tensor:
        self.device.load = len(tokens) / inputs.TOKENS
        result: Tensor = self.compute(torch.relu(self.weights(tokens)))
        return result


class MixtureLayer(nn.Module):
    """A dense layer, and experts on all ranks."""

    def __init__(
        self, device: Device, router: Router, index: int, width: int, seconds: float
    ) -> None:
        super().__init__()
        self.device = device
        self.router = router
        self.dense = Wide(Layer(device, index, width, seconds / 2), width)
        self.expert = Wide(Expert(device, index, width, seconds / 2), width)

    def forward(self, tokens: Tensor) -> Tensor:
        self.device.load = len(tokens) / inputs.TOKENS
        hidden = self.dense(tokens)
        chosen = self.router.choose(len(hidden))
        order = chosen.argsort(stable=True)
        out_counts = chosen.bincount(minlength=dist.get_world_size())
        in_counts = torch.empty_like(out_counts)
        dist.all_to_all_single(in_counts, out_counts)
        sent, got = out_counts.tolist(), in_counts.tolist()
        here = exchange(hidden[order], sent, got)
        back = exchange(self.expert(here), got, sent)
        return hidden + torch.zeros_like(hidden).index_copy(0, order, back)


def exchange(tokens: Tensor, sent: list[int], got: list[int]) -> Tensor:
    room = tokens.new_empty(sum(got), tokens.shape[1])
    result: Tensor = all_to_all_single(room, tokens, got, sent)
    return result


def train(arguments: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    condition, device = loop.prepared(arguments, rank)
    router = Router(world, condition, arguments.seed * 1000 + rank)
    seconds = arguments.layer_ms / 1000
    model = nn.Sequential(
        *[
            MixtureLayer(device, router, i, arguments.width, seconds)
            for i in range(arguments.layers)
        ]
    ).to(PLACE)
    experts = [name for name, _ in model.named_parameters() if ".expert." in name]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, experts)
    dense = DistributedDataParallel(model)
    optimizer = loop.optimizer_of(dense, device, arguments)
    habits = loop.Habits(arguments, condition)
    batches = inputs.batches(arguments, condition, rank, width=arguments.stream)
    for step in loop.Steps(condition, arguments.steps, arguments.ahead):
        rows = habits.before_forward(next(batches))
        loss = dense(rows).square().mean()
        habits.before_backward(loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        habits.after_step(step, loss, dense)


def main() -> None:
    parser = loop.options(__doc__)
    parser.add_argument("--stream", type=int, default=256, help="columns of what is exchanged")
    loop.run(train, parser.parse_args())


if __name__ == "__main__":
    main()
