"""The job of `triggers.py`: DDP over gloo with checkpoints and evaluation, which may become slower.

    triggers_train.py --steps 500 --slow-from 300 --kind function --seconds 0.05 [--rank 1]

The faults are real Python code: a function that computes, a file that is read again and again, a
lock that a thread holds. Writes one line of JSON per rank: when the first slow step began.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

BATCH, WIDTH = 8, 64
KINDS = ("none", "function", "file", "lock")
LOCK = threading.Lock()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--slow-from", type=int, default=300)
    parser.add_argument("--kind", choices=KINDS, default="function")
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--pause", type=float, default=0.04, help="of every step, on all ranks")
    parser.add_argument("--rank", type=int, help="the slow rank; default: all")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    began_ns = train(arguments)
    sys.stdout.write(json.dumps({"rank": dist.get_rank(), "began_ns": began_ns}) + "\n")
    sys.stdout.flush()
    dist.destroy_process_group()


def train(arguments: argparse.Namespace) -> int:
    """Trains; returns when the first slow step began, 0 if there was none."""
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rows = TensorDataset(torch.randn(arguments.steps * BATCH, WIDTH))
    held_out = DataLoader(TensorDataset(torch.randn(20 * BATCH, WIDTH)), BATCH)
    mine = arguments.rank in (None, dist.get_rank())
    began_ns = 0
    with tempfile.TemporaryDirectory() as folder:
        for step, (batch,) in enumerate(DataLoader(rows, BATCH)):
            if step >= arguments.slow_from and arguments.kind != "none":
                began_ns = began_ns or time.time_ns()
                if mine:
                    be_slow(arguments.kind, arguments.seconds, Path(folder))
            time.sleep(arguments.pause)
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            if step % 50 == 49:
                save(model, Path(folder))
            if step % 100 == 99:
                evaluate(model, held_out)
    return began_ns


def save(model: nn.Module, folder: Path) -> None:
    """Rank 0 writes a checkpoint, and the others wait for it."""
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), folder / "model.pt")
        time.sleep(0.5)
    dist.barrier()


def evaluate(model: nn.Module, batches: DataLoader[tuple[Tensor, ...]]) -> None:
    with torch.no_grad():
        for (batch,) in batches:
            model(batch)
            time.sleep(0.02)


def be_slow(kind: str, seconds: float, folder: Path) -> None:
    {"function": preprocess, "file": read_again, "lock": wait_for_helper}[kind](seconds, folder)


def preprocess(seconds: float, _folder: Path) -> int:
    """Pure Python, on every batch."""
    until, total = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        for number in range(2000):
            total = (total * 31 + number) % 1_000_003
    return total


def read_again(seconds: float, folder: Path) -> int:
    """Reads a file from the start, as often as the time allows."""
    path = folder / "samples"
    if not path.exists():
        path.write_bytes(b"x" * (1 << 20))
    until, total = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        total += len(path.read_bytes())
    return total


def wait_for_helper(seconds: float, _folder: Path) -> None:
    """A thread holds the lock that this one needs."""
    held = threading.Event()
    threading.Thread(target=hold, args=(seconds, held), daemon=True).start()
    held.wait()
    with LOCK:
        return


def hold(seconds: float, held: threading.Event) -> None:
    with LOCK:
        held.set()
        time.sleep(seconds)


if __name__ == "__main__":
    main()
