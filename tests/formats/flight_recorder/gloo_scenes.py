"""Real jobs of four ranks over gloo, each with one fault, that dump their flight recorders.

    python -m tests.formats.flight_recorder.gloo_scenes FOLDER

All scenes run at once, forked from one process: importing torch is what takes long. Every rank
dumps three seconds after the last of its job began, whatever it is doing then, as a pickle and as
JSON, and goes when all have dumped: what it left would fail in the recorders of the others. A rank
that gets more than it expects is killed by gloo and leaves no dump.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORLD = 4
CULPRIT = 2
STEPS = 10
DUMPS_AFTER_SECONDS = 3.0
LIVE_SECONDS = 0.02
WAITS_SECONDS = 10.0  # for ranks that gloo may have killed


def healthy(dist: Any, torch: Any, rank: int) -> None:
    steps(dist, torch, rank)


def sleeps(dist: Any, torch: Any, rank: int) -> None:
    steps(dist, torch, rank)
    if rank == CULPRIT:
        time.sleep(60)
    steps(dist, torch, rank)


def other_operator(dist: Any, torch: Any, rank: int) -> None:
    steps(dist, torch, rank)
    if rank == CULPRIT:
        dist.all_gather([torch.ones(8) for _ in range(WORLD)], torch.ones(8))
    steps(dist, torch, rank)


def other_size(dist: Any, torch: Any, rank: int) -> None:
    steps(dist, torch, rank)
    dist.all_reduce(torch.ones(9 if rank == CULPRIT else 8))
    steps(dist, torch, rank)


def never_sends(dist: Any, torch: Any, rank: int) -> None:
    """The culprit waits for nobody, its neighbour for a message, the others for that one."""
    steps(dist, torch, rank)
    if rank == CULPRIT:
        time.sleep(60)
    if rank == CULPRIT + 1:
        dist.recv(torch.ones(8), CULPRIT)
    steps(dist, torch, rank)


def grid(dist: Any, torch: Any, rank: int) -> None:
    """Tensor groups (0, 1) and (2, 3), data groups (0, 2) and (1, 3): 2 stops in both."""
    tensor = [dist.new_group(ranks, group_desc="tp") for ranks in ([0, 1], [2, 3])][rank // 2]
    data = [dist.new_group(ranks, group_desc="dp") for ranks in ([0, 2], [1, 3])][rank % 2]
    for step in range(STEPS):
        if rank == CULPRIT and step == STEPS - 1:
            time.sleep(60)
        dist.all_reduce(torch.ones(8), group=tensor)
        dist.all_reduce(torch.ones(8), group=data)


def live(dist: Any, torch: Any, rank: int) -> None:
    while True:
        steps(dist, torch, rank)


def steps(dist: Any, torch: Any, rank: int) -> None:
    for _ in range(STEPS):
        time.sleep(LIVE_SECONDS)
        dist.all_reduce(torch.ones(8))


SCENES: dict[str, Callable[[Any, Any, int], None]] = {
    "healthy": healthy, "sleeps": sleeps, "other_operator": other_operator,
    "other_size": other_size, "never_sends": never_sends, "grid": grid, "live": live,
}  # fmt: skip


def run(name: str, rank: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / name}.store", rank=rank, world_size=WORLD
    )
    dumper = threading.Thread(target=dump_later, args=(folder / name, rank))
    dumper.start()
    try:
        SCENES[name](dist, torch, rank)
    except RuntimeError as error:
        print(name, rank, str(error)[:100], flush=True)  # the fault, as torch reports it
    dumper.join()


def dump_later(folder: Path, rank: int) -> None:
    import torch

    c10d: Any = torch._C._distributed_c10d
    all_have_said("begun", folder, rank)
    time.sleep(DUMPS_AFTER_SECONDS)
    pickled, written = c10d._dump_fr_trace(), c10d._dump_fr_trace_json()
    (folder / "pickle" / f"comm_lib_trace_rank_{rank}").write_bytes(pickled)
    (folder / "json" / f"nccl_trace_rank_host-17_{rank}.json").write_bytes(written)
    all_have_said("dumped", folder, rank)
    os._exit(0)  # what hangs would never return


def all_have_said(what: str, folder: Path, rank: int) -> None:
    (folder / f"{what}-{rank}").touch()
    until = time.monotonic() + WAITS_SECONDS
    while len(list(folder.glob(f"{what}-*"))) < WORLD and time.monotonic() < until:
        time.sleep(0.01)


def main(folder: Path) -> None:
    import torch.distributed  # noqa: F401 - before the fork, once for all
    from torch.utils._traceback import CapturedTraceback

    CapturedTraceback.extract(script=True).format()  # torch reads its own symbols for two seconds
    children = []
    for name in SCENES:
        for form in ("pickle", "json"):
            (folder / name / form).mkdir(parents=True)
        for rank in range(WORLD):
            child = os.fork()
            if child == 0:
                run(name, rank, folder)
                os._exit(1)
            children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
