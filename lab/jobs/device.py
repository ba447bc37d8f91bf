"""An accelerator that is not there: layers take its time asleep, beside a small real product.

So eight ranks fit two processors, and computing takes the same time however busy these are. With
`LAB_DEVICE=cuda` there is one, which all ranks share: a kernel waits there until its time is over,
so that it takes as long however many ranks take turns on the GPU.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

import torch
from torch import Tensor, nn

from lab.jobs.conditions import Conditions

PLACE = torch.device(os.environ.get("LAB_DEVICE", "cpu"))
"""Where models and batches are."""
CYCLES_PER_SECOND = 1.98e9
"""Of an H200's multiprocessors while they compute. Others only make all ranks slower or faster."""


class Device:
    """Takes time, and more of it where conditions say so."""

    def __init__(self, conditions: Conditions, seed: int, noise: float) -> None:
        self.conditions = conditions
        self.load = 1.0
        self.noise = noise
        self._random = random.Random(seed)

    def run(self, seconds: float) -> None:
        """One piece of work; `seconds` is what it takes on a healthy device."""
        slower = self.conditions.factor("device")
        if self.conditions.holds("jitter") and self._random.random() < 0.3:
            slower *= 1 + self._random.expovariate(1 / self.conditions.seconds("jitter"))
        self._take(seconds * slower * self._random.uniform(1 - self.noise, 1 + self.noise))

    def _take(self, seconds: float) -> None:
        if PLACE.type == "cuda":
            torch.cuda._sleep(round(seconds * CYCLES_PER_SECOND))
        else:
            time.sleep(seconds)

    def step_optimizer(self, seconds: float) -> None:
        self.run(seconds * self.conditions.factor("optimizer"))

    def run_layer(self, index: int, direction: str, seconds: float) -> None:
        slower = self.conditions.factor("layer", index) * self.conditions.factor(direction, index)
        self.run(seconds * slower * self.load)


class _OnDevice(torch.autograd.Function):
    """Passes activations and gradients on once the device is done with them."""

    @staticmethod
    def forward(ctx: Any, activations: Tensor, module: Compute) -> Tensor:
        ctx.module = module
        ctx.load = module.device.load
        module.compute_forward()
        return activations.view_as(activations)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.module.device.load = ctx.load
        ctx.module.compute_backward()
        return gradient, None


class Compute(nn.Module):
    """Takes device time in both passes, twice as much in backward."""

    def __init__(self, device: Device, index: int, seconds: float) -> None:
        super().__init__()
        self.device = device
        self.index = index
        self.seconds = seconds

    def forward(self, activations: Tensor) -> Tensor:
        result: Tensor = _OnDevice.apply(activations, self)
        return result

    def compute_forward(self) -> None:
        self.device.run_layer(self.index, "forward", self.seconds)

    def compute_backward(self) -> None:
        self.device.run_layer(self.index, "backward", 2 * self.seconds)


class Layer(nn.Module):
    """A linear layer. Backward takes its time before the gradients of the weights are there, as on
    a device."""

    def __init__(self, device: Device, index: int, width: int, seconds: float) -> None:
        super().__init__()
        self.weights = nn.Linear(width, width)
        self.compute = Compute(device, index, seconds)

    def forward(self, activations: Tensor) -> Tensor:
        result: Tensor = self.compute(torch.relu(self.weights(activations)))
        return result


class Wide(nn.Module):
    """A layer that changes the first columns of its input: what is passed on is large, the product
    is small."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer = layer
        self.width = width

    def forward(self, rows: Tensor) -> Tensor:
        changed = self.layer(rows[:, : self.width])
        return torch.cat([changed, rows[:, self.width :]], dim=1)


STEM = -1
"""The index of what lies before the first layer."""


class Stem(nn.Module):
    """What lies before the first weights. Its backward pass comes after the last gradient of a
    weight: nothing is left to hide it behind."""

    def __init__(self, device: Device, seconds: float) -> None:
        super().__init__()
        self.compute = Compute(device, STEM, seconds)

    def forward(self, rows: Tensor) -> Tensor:
        result: Tensor = self.compute(rows.requires_grad_())
        return result
