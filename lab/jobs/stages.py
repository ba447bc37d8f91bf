"""What both pipeline scripts have in common: a stage's layers, and the end of a step."""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lab.jobs import loop
from lab.jobs.device import PLACE, Device, Layer, Wide


def options(description: str | None) -> argparse.ArgumentParser:
    parser = loop.options(description)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--stream", type=int, default=256, help="columns of what stages pass on")
    parser.add_argument("--heavy-stage", type=int, default=-1, help="has more layers than others")
    parser.add_argument("--heavy-layers", type=int, default=0, help="how many more")
    return parser


def layers_of(stage: int, arguments: argparse.Namespace) -> range:
    """Layers are spread evenly, but for what the stage at the end of the model has in addition."""
    each = arguments.layers // arguments.stages
    more = arguments.heavy_layers if stage == arguments.heavy_stage else 0
    return range(stage * each, (stage + 1) * each + more)


def stage_module(device: Device, stage: int, arguments: argparse.Namespace) -> nn.Module:
    seconds = arguments.layer_ms / 1000 / arguments.microbatches
    indices = layers_of(stage, arguments)
    width = arguments.width
    layers = [Wide(Layer(device, i, width, seconds), width) for i in indices]
    return nn.Sequential(*layers).to(PLACE)


def average_gradients(module: nn.Module, group: Any) -> None:
    """Between the replicas of a stage, in one piece."""
    replicas = dist.get_world_size(group)
    if replicas == 1:
        return
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    together = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(together, group=group)
    for gradient, part in zip(
        gradients, together.split([g.numel() for g in gradients]), strict=True
    ):
        gradient.copy_(part.view_as(gradient) / replicas)


def clip_gradients(module: nn.Module, limit: float = 1.0) -> None:
    """By the norm over all ranks."""
    norms = [p.grad.square().sum() for p in module.parameters() if p.grad is not None]
    total = torch.stack(norms).sum()
    dist.all_reduce(total)
    scale = min(1.0, limit / (float(total.sqrt()) + 1e-6))
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(scale)


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()
