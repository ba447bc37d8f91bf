"""What every training loop here does beside training: logging, checkpoints, and its bad habits."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from lab.jobs import conditions
from lab.jobs.conditions import Conditions
from lab.jobs.device import PLACE, Device


def options(description: str | None) -> argparse.ArgumentParser:
    """The options that all scripts share."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layer-ms", type=float, default=6.0, help="forward; backward is twice it")
    parser.add_argument("--loader-ms", type=float, default=6.0)
    parser.add_argument("--optimizer-ms", type=float, default=6.0)
    parser.add_argument("--noise", type=float, default=0.02, help="of device times, as a share")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--length-spread", type=float, default=0.0)
    parser.add_argument("--checkpoint-every", type=int, default=0)
    parser.add_argument("--evaluate-every", type=int, default=0)
    parser.add_argument("--reduce-loss", type=int, default=0, help="1: every step")
    parser.add_argument("--log-every", type=int, default=0)
    parser.add_argument("--ahead", type=int, default=1, help="steps the host runs ahead of a GPU")
    return parser


def run(train: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> None:
    """Trains in a process group over gloo, or over NCCL where there is a GPU."""
    torch.set_num_threads(1)
    if PLACE.type == "cuda":
        # NCCL refuses two ranks of one host on one GPU
        os.environ["NCCL_HOSTID"] = f"host-of-{os.environ['RANK']}"
    seconds = float(os.environ.get("LAB_TIMEOUT_SECONDS", "600"))
    dist.init_process_group(
        "nccl" if PLACE.type == "cuda" else "gloo", timeout=timedelta(seconds=seconds)
    )
    train(arguments)
    dist.destroy_process_group()


def prepared(arguments: argparse.Namespace, rank: int) -> tuple[Conditions, Device]:
    """What is wrong with this rank, and its device; seeds what is drawn at random."""
    torch.manual_seed(arguments.seed)
    condition = conditions.read(rank)
    return condition, Device(condition, arguments.seed * 1000 + rank, arguments.noise)


def optimizer_of(model: nn.Module, device: Device, arguments: argparse.Namespace) -> Optimizer:
    """AdamW that takes device time."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seconds = arguments.optimizer_ms / 1000
    optimizer.register_step_pre_hook(lambda *_: device.step_optimizer(seconds))
    return optimizer


class Steps:
    """Counts steps; rank 0 writes when each began and ended to the file `LAB_STEPS`."""

    def __init__(self, conditions: Conditions, count: int, ahead: int = 1) -> None:
        """
        Args:
            ahead: after so many steps the host waits for its device, as for a loss to log.
        """
        self.conditions = conditions
        self.count = count
        self.ahead = ahead
        path = os.environ.get("LAB_STEPS")
        writes = path and dist.get_rank() == 0
        self._log = Path(path) if path and writes else None

    def __iter__(self) -> Iterator[int]:
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(self._log.open("w", buffering=1)) if self._log else None
            profiler = stack.enter_context(_profiler())
            for step in range(self.count):
                self.conditions.step = step
                began = time.perf_counter_ns()
                yield step
                self._follow_device(step)
                profiler.step()
                if log is not None:
                    log.write(f"{step},{began},{time.perf_counter_ns()}\n")

    def _follow_device(self, step: int) -> None:
        if PLACE.type == "cuda" and step % self.ahead == self.ahead - 1:
            torch.cuda.synchronize()


def _profiler() -> Any:
    """Four steps of torch.profiler from step `LAB_TRACE_STEP` on, to the folder `LAB_TRACES`."""
    folder = os.environ.get("LAB_TRACES")
    if not folder:
        return contextlib.nullcontext(_NoProfiler())
    path = str(Path(folder) / f"rank{dist.get_rank()}.json.gz")
    wait = int(os.environ["LAB_TRACE_STEP"]) - 2
    return torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=wait, warmup=2, active=4, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(path),
    )


class _NoProfiler:
    def step(self) -> None:
        """Nothing is recorded."""


class Habits:
    """What users do in a step beside training, in the order in which they do it."""

    def __init__(self, arguments: argparse.Namespace, conditions: Conditions) -> None:
        self.arguments = arguments
        self.conditions = conditions
        self.history: list[list[int]] = []
        self.metrics = dist.new_group() if arguments.reduce_loss else None

    def before_forward(self, rows: Tensor) -> Tensor:
        """The input pipeline's last part, which runs in the main process."""
        if self.conditions.holds("function"):
            rows = augment(rows, self.conditions.seconds("function"))
        if self.conditions.holds("host-work"):
            build_attention_mask(self.conditions.seconds("host-work"))
        return rows

    def before_backward(self, loss: Tensor) -> None:
        """Where the loss is not averaged, except by mistake."""
        if self.conditions.holds("wrong-order"):
            self.average(loss)

    def average(self, loss: Tensor) -> None:
        """The mean loss of all ranks, for the log."""
        if self.metrics is not None:
            dist.all_reduce(loss.detach().clone().to(PLACE), group=self.metrics)

    def after_step(self, step: int, loss: Tensor, model: Any) -> None:
        if not self.conditions.holds("wrong-order"):
            self.average(loss)
        if self.conditions.holds("sync"):
            log_gradient_norms(self.conditions.seconds("sync"))
        if self.conditions.holds("gc"):
            self.remember_samples()
            gc.collect()
        if self.conditions.holds("stall"):
            flush_write_cache(self.conditions.seconds("stall"))
        self._log(step, loss)
        self._checkpoint(step, model)

    def remember_samples(self) -> None:
        """A list that grows, of objects that the collector has to walk through."""
        wanted = int(self.conditions.seconds("gc") * OBJECTS_PER_SECOND)
        if len(self.history) < wanted:
            self.history = [[number] for number in range(wanted)]

    def _log(self, step: int, loss: Tensor) -> None:
        every = self.arguments.log_every
        if every and step % every == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

    def _checkpoint(self, step: int, model: Any) -> None:
        every = self.arguments.checkpoint_every
        if not every or step % every != every - 1:
            return
        if dist.get_rank() == 0:
            with tempfile.TemporaryDirectory() as folder:
                torch.save(model.state_dict(), Path(folder) / "checkpoint.pt")
                time.sleep(0.2)  # a disk slower than the one here
        dist.barrier()


OBJECTS_PER_SECOND = 6_000_000
"""That the collector walks through, about, on the machine where this was written."""


def augment(rows: Tensor, seconds: float) -> Tensor:
    """Pure Python over every token, as a slow user function is."""
    until = time.perf_counter() + seconds
    total = 0
    while time.perf_counter() < until:
        total += sum(range(50))
        time.sleep(0.0005)  # eight ranks share two processors here; they would not elsewhere
    return rows


def build_attention_mask(seconds: float) -> int:
    """Pure Python on one rank, as augment() on all."""
    until = time.perf_counter() + seconds
    total = 0
    while time.perf_counter() < until:
        total += sum(range(100))
    return total


def log_gradient_norms(seconds: float) -> None:
    """Waits until the device has nothing left to do, for a number that nobody reads."""
    synchronize(seconds)


def synchronize(seconds: float) -> None:
    time.sleep(seconds)


def flush_write_cache(seconds: float) -> None:
    time.sleep(seconds)
