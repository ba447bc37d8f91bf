"""Healthy jobs of different shapes: what must not confuse step detection nor raise a verdict."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def loader(count: int, batch: int) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(torch.randn(count * batch, 128)), batch_size=batch)


def network() -> DistributedDataParallel:
    layers = [nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128)]
    return DistributedDataParallel(nn.Sequential(*layers))


def accumulate(steps: int) -> None:
    """Gradient accumulation over four micro-batches, evaluation, and rank 0's checkpoints."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    evaluation = loader(10, 16)
    with tempfile.TemporaryDirectory() as folder:
        for number, (rows,) in enumerate(loader(4 * steps, 8), 1):
            if number % 4:
                with model.no_sync():
                    model(rows).square().mean().backward()
                continue
            model(rows).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if number % 160 == 0:
                with torch.no_grad():
                    for (held_out,) in evaluation:
                        model.module(held_out)
                if dist.get_rank() == 0:
                    torch.save(model.state_dict(), Path(folder) / "checkpoint.pt")


def adversarial(steps: int) -> None:
    """Two models, two optimizers and two loaders in every step, as in a GAN."""
    first, second = network(), network()
    optimizers = [torch.optim.Adam(net.parameters(), lr=1e-4) for net in (first, second)]
    for (rows,), (noise,) in zip(loader(steps, 8), loader(steps, 12), strict=True):
        for net, batch, optimizer in zip((first, second), (rows, noise), optimizers, strict=True):
            optimizer.zero_grad()
            net(batch).square().mean().backward()
            optimizer.step()


def plain(steps: int) -> None:
    """No DataLoader at all, and rank 0 logs the loss of every step."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(32, 128)).square().mean()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(step, loss.item())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", choices=["accumulate", "adversarial", "plain"])
    parser.add_argument("--steps", type=int, default=120)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    shapes = {"accumulate": accumulate, "adversarial": adversarial, "plain": plain}
    shapes[arguments.shape](arguments.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
