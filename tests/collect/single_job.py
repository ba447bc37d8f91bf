"""What one process without torch.distributed does to us: an ordinary script, scene by scene.

Prints what the script itself sees, for comparison with a run that nobody records.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import stepscope

SCENES: dict[str, Callable[[], Any]] = {}


def scene(function: Callable[[], Any]) -> Callable[[], Any]:
    SCENES[function.__name__] = function
    return function


def loader(batches: int, **options: Any) -> DataLoader[tuple[Tensor, ...]]:
    rows = torch.arange(batches * 8.0).reshape(batches * 2, 4)
    return DataLoader(TensorDataset(rows), batch_size=2, **options)


def network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Linear(4, 4)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
    loss: Tensor = model(rows).square().mean()
    return loss


@scene
def loop() -> float:
    model = network()
    optimizer = optimizer_of(model)
    for (rows,) in loader(3):
        loss = loss_of(model, rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss)


@scene
def accumulation() -> None:
    model = network()
    optimizer = optimizer_of(model)
    for number, (rows,) in enumerate(loader(4)):
        loss_of(model, rows).backward()
        if number % 2:
            optimizer.step()


@scene
def exhausted_loader() -> list[str]:
    batches = iter(loader(2))
    out = [str(next(batches)) for _ in range(2)]
    try:
        next(batches)
    except StopIteration:
        out.append("exhausted")
    return out


@scene
def workers() -> float:
    """Forked: they share our memory, and load with the same classes."""
    return sum(float(rows.sum()) for (rows,) in loader(4, num_workers=2))


@scene
def background_loader() -> int:
    """A prefetcher's pace is not the training's."""
    batches: list[Any] = []
    thread = threading.Thread(target=lambda: batches.extend(loader(3)))
    thread.start()
    thread.join()
    return len(batches)


class Endless(IterableDataset[Tensor]):
    def __len__(self) -> int:
        raise TypeError("nobody knows")

    def __iter__(self) -> Iterator[Tensor]:
        return iter([torch.ones(1)] * 2)


@scene
def dataset_without_length() -> int:
    return sum(1 for _ in DataLoader(Endless(), batch_size=None))


@scene
def reentrant_checkpoint() -> list[float]:
    model = network()
    rows = torch.ones(2, 4, requires_grad=True)
    out = checkpoint(model, checkpoint(model, rows, use_reentrant=True), use_reentrant=True)
    out.sum().backward()
    assert rows.grad is not None
    return [float(value) for value in rows.grad.flatten()]


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, tensor: Tensor) -> Tensor:
        return tensor.clone()

    @staticmethod
    def backward(_context: Any, *_gradient: Tensor) -> Tensor:
        raise ValueError("backward of the script")


@scene
def failing_backward() -> str:
    """Recording goes on with the next one."""
    try:
        Failing.apply(torch.ones(1, requires_grad=True)).backward()
    except ValueError as error:
        loss_of(network(), torch.ones(1, 4)).backward()
        return str(error)
    return "nothing raised"


@scene
def two_optimizers() -> None:
    model = network()
    optimizers = [optimizer_of(model), torch.optim.Adam(model.parameters())]
    for (rows,) in loader(2):
        loss_of(model, rows).backward()
        for optimizer in optimizers:
            optimizer.step()


@scene
def lbfgs() -> float:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, torch.ones(2, 4))
        loss.backward()
        return loss

    for _ in range(2):
        loss = optimizer.step(closure)
    return float(loss)


class Outer(torch.optim.SGD):
    """Steps another one inside its own step, as mixed-precision wrappers do."""

    def step(self, closure: Any = None) -> Any:
        torch.optim.Adam(self.param_groups[0]["params"]).step()
        return super().step(closure)


@scene
def nested_optimizers() -> None:
    model = network()
    loss_of(model, torch.ones(1, 4)).backward()
    Outer(model.parameters(), lr=0.1).step()


@scene
def failing_step() -> str:
    """Out of memory, say, and the script skips that batch."""
    model = network()
    optimizer = optimizer_of(model)

    def closure() -> float:
        raise MemoryError("the script's")

    try:
        optimizer.step(closure)
    except MemoryError as error:
        for other in (optimizer_of(model), optimizer):
            other.step()
        return str(error)
    return "nothing raised"


def main() -> None:
    print("compiler", sorted(name for name in sys.modules if "_dynamo" in name))
    torch.set_num_threads(1)
    for name, function in SCENES.items():
        with stepscope.phase(f"scene {name}"):
            print(name, function())


if __name__ == "__main__":
    main()
