"""An accelerator that is not there: layers take its time asleep, beside a small real product.

So eight ranks fit two processors, and computing takes the same time however busy these are.
"""

from __future__ import annotations

import random
import time
from typing import Any

import torch
from torch import Tensor, nn

from lab.jobs.conditions import Conditions

NOISE = 0.02
"""Kernels of one shape differ by about this much from run to run."""


class Device:
    """Takes time, and more of it where conditions say so."""

    def __init__(self, conditions: Conditions, seed: int) -> None:
        self.conditions = conditions
        self.load = 1.0
        self._random = random.Random(seed)

    def run(self, seconds: float) -> None:
        """One piece of work; `seconds` is what it takes on a healthy device."""
        slower = self.conditions.factor("device")
        if self.conditions.holds("jitter") and self._random.random() < 0.3:
            slower *= 1 + self._random.expovariate(1 / self.conditions.seconds("jitter"))
        time.sleep(seconds * slower * self._random.uniform(1 - NOISE, 1 + NOISE))

    def run_layer(self, index: int, direction: str, seconds: float) -> None:
        slower = self.conditions.factor("layer", index) * self.conditions.factor(direction, index)
        self.run(seconds * slower * self.load)


class _OnDevice(torch.autograd.Function):
    """Passes activations and gradients on once the device is done with them."""

    @staticmethod
    def forward(ctx: Any, activations: Tensor, layer: Layer) -> Tensor:
        ctx.layer = layer
        layer.compute_forward()
        return activations.view_as(activations)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.layer.compute_backward()
        return gradient, None


class Layer(nn.Module):
    """A linear layer whose two passes take device time. Backward takes it before the gradients of
    the weights are there, as on a device."""

    def __init__(self, device: Device, index: int, width: int, seconds: float) -> None:
        super().__init__()
        self.device = device
        self.index = index
        self.seconds = seconds
        self.weights = nn.Linear(width, width)

    def forward(self, activations: Tensor) -> Tensor:
        product = torch.relu(self.weights(activations))
        result: Tensor = _OnDevice.apply(product, self)
        return result

    def compute_forward(self) -> None:
        self.device.run_layer(self.index, "forward", self.seconds)

    def compute_backward(self) -> None:
        self.device.run_layer(self.index, "backward", 2 * self.seconds)


class Stem(nn.Module):
    """What lies before the first weights. Its backward pass comes after the last gradient of a
    weight: nothing is left to hide it behind."""

    def __init__(self, device: Device, seconds: float) -> None:
        super().__init__()
        self.device = device
        self.seconds = seconds

    def forward(self, rows: Tensor) -> Tensor:
        result: Tensor = _OnDevice.apply(rows.requires_grad_(), self)
        return result

    def compute_forward(self) -> None:
        self.device.run_layer(-1, "forward", self.seconds)

    def compute_backward(self) -> None:
        self.device.run_layer(-1, "backward", self.seconds)
