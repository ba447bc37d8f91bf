"""A real job whose own code is slow, recorded by torch.profiler; it measures itself, too.

    python record.py FOLDER

Writes `trace.json.gz` and `measured.json`: nanoseconds in each slow part of the profiled steps.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

STEPS, BATCH, FEATURES = 6, 4, 1024
FILE_BYTES = 24 << 20
spent = {"sleep": 0, "pairs": 0, "read": 0}


class Samples(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, at: int) -> torch.Tensor:
        began = time.perf_counter_ns()
        time.sleep(0.01)
        spent["sleep"] += time.perf_counter_ns() - began
        return torch.randn(FEATURES)


def pairs(size: int) -> int:
    """Quadratic preprocessing."""
    began, made = time.perf_counter_ns(), list[int]()
    add = made.append
    for one in range(size):
        for other in range(size):
            add(one * other)
    spent["pairs"] += time.perf_counter_ns() - began
    return len(made)


def lookup(path: Path) -> bytes:
    """Reads a file while the training waits."""
    with path.open("rb", buffering=0) as file:
        began = time.perf_counter_ns()
        data = file.read()
        spent["read"] += time.perf_counter_ns() - began
    return data


def train(path: Path) -> None:
    model = torch.nn.Linear(FEATURES, FEATURES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.utils.data.DataLoader(Samples(), batch_size=BATCH):
        pairs(180)
        lookup(path)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    path = folder / "table.bin"
    path.write_bytes(bytes(FILE_BYTES))
    torch.optim.SGD([torch.zeros(1)])  # imports what takes two seconds
    train(path)
    spent.update(dict.fromkeys(spent, 0))
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as profiler:
        train(path)
    profiler.export_chrome_trace(str(folder / "trace.json.gz"))
    (folder / "measured.json").write_text(json.dumps(spent))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
