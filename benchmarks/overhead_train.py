"""The job for the overhead benchmark: DDP over gloo, a fixed amount of work per step.

After each step it times a piece of work outside the recorded step, the forward pass of a copy of
the model. Rank 0 prints one JSON line: mean times of a step and of that piece in ns, after warm-up.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warm-up", type=int, default=30)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--pin", action="store_true", help="pin rank N to core N")
    arguments = parser.parse_args()
    if arguments.pin:
        os.sched_setaffinity(0, {int(os.environ["LOCAL_RANK"])})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(arguments)
    dist.destroy_process_group()  # after the model is gone, see demo/train.py


def train(arguments: argparse.Namespace) -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.ReLU())]
    yardstick = nn.Sequential(*copy.deepcopy(layers))
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    total = arguments.steps + arguments.warm_up
    rows = TensorDataset(torch.randn(total * arguments.batch, 512))
    steps: list[int] = []
    pieces: list[int] = []
    before = time.perf_counter_ns()
    for (batch,) in DataLoader(rows, batch_size=arguments.batch):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps.append(time.perf_counter_ns() - before)
        begun = time.thread_time_ns()  # not affected by other threads
        with torch.no_grad():
            yardstick(batch)
        pieces.append(time.thread_time_ns() - begun)
        before = time.perf_counter_ns()
    if dist.get_rank() == 0:
        kept = slice(arguments.warm_up, None)
        step_ns, piece_ns = statistics.fmean(steps[kept]), statistics.fmean(pieces[kept])
        print(json.dumps({"step_ns": step_ns, "piece_ns": piece_ns}), flush=True)


if __name__ == "__main__":
    main()
