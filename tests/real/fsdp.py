"""FSDP on CPU, one generation after the other: an ordinary script."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.utils.data import DataLoader, TensorDataset


def train(generation: int, steps: int) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
    if generation == 1:
        sharded: nn.Module = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    else:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        sharded = fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(sharded.parameters(), lr=0.01)
    rows = torch.randn(steps * 8, 64, generator=torch.Generator().manual_seed(2))
    for (batch,) in DataLoader(TensorDataset(rows), batch_size=8):
        loss = sharded(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"loss {total.item():.9f}", flush=True)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for generation in (1, 2):
        train(generation, steps=30)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
