"""The job of `functions.py`: DDP over gloo, with one slow piece of user code, from a step on.

    functions_train.py --kind quadratic --since 0 [--rank 1] [--steps 140] [--seconds 0.03]

`--seconds` is about how long the piece takes in every step. Everything computes for real.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH, WIDTH = 32, 384
KINDS = ("none", "file", "quadratic", "lock", "starved", "thread", "metrics")
FILE_BYTES = 1 << 20
LOCK = threading.Lock()


class Slow:
    """How long the slow piece takes now: nothing before its first step."""

    def __init__(self, kind: str, since: int, seconds: float) -> None:
        self.kind, self.since, self.seconds, self.step = kind, since, seconds, -1

    def is_now(self, kind: str, step: int | None = None) -> bool:
        return self.kind == kind and (self.step if step is None else step) >= self.since


class Samples(Dataset[Tensor]):  # type: ignore[misc, unused-ignore]
    """Rows of numbers; each may be read from a file, or be long to decode."""

    def __init__(self, count: int, slow: Slow, path: Path) -> None:
        self.rows, self.slow, self.path = torch.randn(count, WIDTH), slow, path

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        step = index // BATCH
        if self.slow.is_now("file", step):
            read_sample(self.path, self.slow.seconds / BATCH)
        if self.slow.is_now("starved", step):
            decode_image(self.slow.seconds / BATCH)
        return self.rows[index]


def read_sample(path: Path, seconds: float) -> int:
    """Reads a whole file for one row."""
    until, total = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        total += len(path.read_bytes())
    return total


def decode_image(seconds: float) -> int:
    """Pure Python, in the loader's only worker."""
    until, total = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        total += sum(range(100))
    return total


def drop_duplicates(seconds: float) -> list[int]:
    """Compares every token with every other one."""
    kept: list[int] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        kept = [token for token in range(60) if all(token != other for other in kept)]
    return kept


def update_metrics() -> None:
    """Needs the lock that the flusher holds for too long."""
    with LOCK:
        return


def flush_metrics(seconds: float, held: threading.Event) -> None:
    with LOCK:
        held.set()
        time.sleep(seconds)


def compress_history(stop: Callable[[], bool]) -> None:
    """A helper thread that computes in Python, and so holds the GIL."""
    while not stop():
        sum(range(20000))


def confusion_matrix(seconds: float) -> int:
    """Counts pair by pair."""
    until, total = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        total += sum(1 for one in range(100) if one % 7 == 3)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--kind", choices=KINDS, default="none")
    parser.add_argument("--since", type=int, default=0)
    parser.add_argument("--rank", type=int, help="the slow rank; default: all")
    parser.add_argument("--steps", type=int, default=140)
    parser.add_argument("--seconds", type=float, default=0.03)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mine = arguments.rank in (None, dist.get_rank())
    slow = Slow(arguments.kind if mine else "none", arguments.since, arguments.seconds)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples"
        path.write_bytes(b"x" * FILE_BYTES)
        train(arguments.steps, slow, Samples(arguments.steps * BATCH, slow, path))
    dist.destroy_process_group()


def train(steps: int, slow: Slow, samples: Samples) -> None:
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    workers = 1 if slow.kind == "starved" else 0
    loader = DataLoader(samples, BATCH, num_workers=workers)
    for step, batch in _numbered(loader, slow):
        prepare(slow)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        if slow.is_now("metrics"):
            confusion_matrix(slow.seconds)
        if step == steps - 1:
            break


def _numbered(loader: DataLoader[Tensor], slow: Slow) -> Iterator[tuple[int, Tensor]]:
    done = threading.Event()
    for step, batch in enumerate(loader):
        slow.step = step
        if slow.is_now("thread") and step == max(slow.since, 1):
            threading.Thread(target=compress_history, args=(done.is_set,), daemon=True).start()
        yield step, batch
    done.set()


def prepare(slow: Slow) -> None:
    """What the script does with a batch before the model gets it."""
    if slow.is_now("quadratic"):
        drop_duplicates(slow.seconds)
    if slow.is_now("lock"):
        held = threading.Event()
        threading.Thread(target=flush_metrics, args=(slow.seconds, held), daemon=True).start()
        held.wait()
        update_metrics()


if __name__ == "__main__":
    main()
