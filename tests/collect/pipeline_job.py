"""Four ranks over gloo that train with torch's pipeline schedules, one step of each.

Run as `python -m tests.collect.pipeline_job FOLDER SOCKET`. Torch is imported once, the ranks are
forked from there.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import pipelining

import stepscope
from stepscope.collect import startup
from stepscope.collect.native.build import NATIVE_VARIABLE
from tests.collect.pipeline_schedules import MICROBATCHES, SCHEDULES, WORLD

WIDTH = 4


def a_schedule(name: str, chunks: int, rank: int, device: torch.device) -> Any:
    torch.manual_seed(0)
    stages = [
        pipelining.PipelineStage(
            torch.nn.Linear(WIDTH, WIDTH), rank + chunk * WORLD, WORLD * chunks, device
        )
        for chunk in range(chunks)
    ]
    kind = getattr(pipelining, name)
    return kind(stages if chunks > 1 else stages[0], MICROBATCHES,
                loss_fn=lambda out, target: (out - target).square().mean())  # fmt: skip


def rank_main(rank: int, folder: Path, socket: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_RANK=str(rank))
    os.environ.update({"STEPSCOPE_SOCKET": socket, "STEPSCOPE_JOB": "pipeline"})
    os.environ[NATIVE_VARIABLE] = "0"
    torch.set_num_threads(1)
    startup.after_torch_import()
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD
    )
    batch, device = torch.ones(2 * MICROBATCHES, WIDTH), torch.device("cpu")
    for name, chunks in SCHEDULES.items():
        schedule = a_schedule(name, chunks, rank, device)
        with stepscope.phase(f"scene {name}"):
            inputs = (batch,) if rank == 0 else ()
            schedule.step(*inputs, target=batch) if rank == WORLD - 1 else schedule.step(*inputs)
    dist.barrier()
    assert startup.session is not None
    startup.session.close()


def main(folder: Path, socket: str) -> None:
    warnings.simplefilter("ignore")
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=rank_main, args=(rank, folder, socket))
             for rank in range(WORLD)]  # fmt: skip
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in ranks))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
