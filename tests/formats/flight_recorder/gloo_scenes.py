"""Real gloo jobs of four or eight ranks, each with one fault, that dump their flight recorders.

    python -m tests.formats.flight_recorder.gloo_scenes FOLDER

All scenes run at once, forked from one process: importing torch is what takes long. Every rank
dumps six seconds after the last of its job began, whatever it is doing then, as a pickle and as
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
FAULTY_STEP = 5
STEPS = 10
DUMPS_AFTER_SECONDS = 6.0  # 72 processes start, and a wait must be a second old
LIVE_SECONDS = 0.02
WAITS_SECONDS = 20.0  # for ranks that gloo may have killed


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
    tensor, data = pairs(dist, rank)
    for step in range(STEPS):
        if rank == CULPRIT and step == STEPS - 1:
            time.sleep(60)
        dist.all_reduce(torch.ones(8), group=tensor)
        dist.all_reduce(torch.ones(8), group=data)


def skips(dist: Any, torch: Any, rank: int) -> None:
    """All calls look alike, so what one rank left out shows at the end only."""
    for step in range(STEPS):
        if not (rank == CULPRIT and step == FAULTY_STEP):
            dist.all_reduce(torch.ones(8))


def once_more(dist: Any, torch: Any, rank: int) -> None:
    for step in range(STEPS):
        dist.all_reduce(torch.ones(8))
        if rank == CULPRIT and step == FAULTY_STEP:
            dist.all_reduce(torch.ones(8))


def pair_skips(dist: Any, torch: Any, rank: int) -> None:
    tensor, data = pairs(dist, rank)
    for step in range(STEPS):
        if not (rank == CULPRIT and step == FAULTY_STEP):
            dist.all_reduce(torch.ones(8), group=tensor)
        dist.all_reduce(torch.ones(8), group=data)


def pair_once_more(dist: Any, torch: Any, rank: int) -> None:
    """The culprit waits for its partner, which made as many calls as the other pair."""
    tensor, data = pairs(dist, rank)
    for step in range(STEPS):
        dist.all_reduce(torch.ones(8), group=tensor)
        if rank == CULPRIT and step == FAULTY_STEP:
            dist.all_reduce(torch.ones(8), group=tensor)
        dist.all_reduce(torch.ones(8), group=data)


def pair_order(dist: Any, torch: Any, rank: int) -> None:
    """The culprit enters the world's operator before its pair's: two ranks wait in a circle."""
    tensor, _ = pairs(dist, rank)
    for step in range(STEPS):
        early = rank == CULPRIT and step == FAULTY_STEP
        for group in (None, tensor) if early else (tensor, None):
            dist.all_reduce(torch.ones(8), group=group)


def pair_other_operator(dist: Any, torch: Any, rank: int) -> None:
    tensor, data = pairs(dist, rank)
    for step in range(STEPS):
        if rank == CULPRIT and step == FAULTY_STEP:
            dist.barrier(group=tensor)
        dist.all_reduce(torch.ones(8), group=tensor)
        dist.all_reduce(torch.ones(8), group=data)


def pair_other_size(dist: Any, torch: Any, rank: int) -> None:
    tensor, data = pairs(dist, rank)
    for step in range(STEPS):
        size = 9 if rank == CULPRIT and step == FAULTY_STEP else 8
        dist.all_reduce(torch.ones(size), group=tensor)
        dist.all_reduce(torch.ones(8), group=data)


def wrapped(dist: Any, torch: Any, rank: int) -> None:
    """The rings forget the first calls, and that of the culprit its data group."""
    tensor, data = pairs(dist, rank)
    for step in range(STEPS):
        dist.all_reduce(torch.ones(8), group=data)
        for _ in range(SMALL_RING + 2 if rank >= CULPRIT else 2):
            if rank == CULPRIT and step == STEPS - 1:
                time.sleep(60)
            dist.all_reduce(torch.ones(8), group=tensor)


def blocks(dist: Any, torch: Any, rank: int) -> None:
    """2 replicas of 2 stages of 2 tensor ranks: the culprit stops within a forward pass.

    Gloo records no sends, so its whole pipeline is absent from the data groups; only its tensor
    partner waits for it and for nobody else.
    """
    model_parallel(dist, torch, rank, stops=True)


def wrong_peer(dist: Any, torch: Any, rank: int) -> None:
    """As `blocks`, but the culprit receives from a rank that never sends to it."""
    model_parallel(dist, torch, rank, stops=False)


def model_parallel(dist: Any, torch: Any, rank: int, stops: bool) -> None:
    """Ranks in order of tensor, stage and replica."""
    tensor = groups(dist, rank, [[first, first + 1] for first in range(0, 8, 2)], "tp")
    data = groups(dist, rank, [[first, first + 4] for first in range(4)], "dp")
    last = rank % 4 >= 2
    peer = rank - 2 if last else rank + 2
    for step in range(STEPS):
        if rank == CULPRIT and step == FAULTY_STEP:
            time.sleep(60) if stops else dist.recv(torch.ones(8), 7)
        for _ in range(3):
            if last:
                dist.recv(torch.ones(8), peer)
            dist.all_reduce(torch.ones(8), group=tensor)
            dist.send(torch.ones(8), peer)
            if not last:
                dist.recv(torch.ones(8), peer)
        dist.all_reduce(torch.ones(8), group=data)


def pairs(dist: Any, rank: int) -> tuple[Any, Any]:
    """The tensor group and the data group of a rank of four."""
    return (
        groups(dist, rank, [[0, 1], [2, 3]], "tp"),
        groups(dist, rank, [[0, 2], [1, 3]], "dp"),
    )


def groups(dist: Any, rank: int, members: list[list[int]], desc: str) -> Any:
    """Creates groups of these ranks, and returns the one that a rank is in."""
    made = [dist.new_group(ranks, group_desc=desc) for ranks in members]
    return next(group for group, ranks in zip(made, members, strict=True) if rank in ranks)


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
    "skips": skips, "once_more": once_more, "pair_skips": pair_skips,
    "pair_once_more": pair_once_more, "pair_order": pair_order,
    "pair_other_operator": pair_other_operator, "pair_other_size": pair_other_size,
    "wrapped": wrapped, "blocks": blocks, "wrong_peer": wrong_peer,
}  # fmt: skip
LARGE = {"blocks": 8, "wrong_peer": 8}
"""Scenes of more than four ranks."""
SMALL_RING = 12
RINGS = {"wrapped": SMALL_RING}
"""Scenes whose recorders keep fewer entries."""


def world_of(scene: str) -> int:
    return LARGE.get(scene, WORLD)


def run(name: str, rank: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    if name in RINGS:  # read when the first group is made
        os.environ["TORCH_FR_BUFFER_SIZE"] = str(RINGS[name])

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / name}.store", rank=rank, world_size=world_of(name)
    )
    dumper = threading.Thread(target=dump_later, args=(folder / name, rank, world_of(name)))
    dumper.start()
    try:
        SCENES[name](dist, torch, rank)
    except RuntimeError as error:
        print(name, rank, str(error)[:100], flush=True)  # the fault, as torch reports it
    dumper.join()


def dump_later(folder: Path, rank: int, world: int) -> None:
    import torch

    c10d: Any = torch._C._distributed_c10d
    all_have_said("begun", folder, rank, world)
    time.sleep(DUMPS_AFTER_SECONDS)
    pickled, written = c10d._dump_fr_trace(), c10d._dump_fr_trace_json()
    (folder / "pickle" / f"comm_lib_trace_rank_{rank}").write_bytes(pickled)
    (folder / "json" / f"nccl_trace_rank_host-17_{rank}.json").write_bytes(written)
    all_have_said("dumped", folder, rank, world)
    os._exit(0)  # what hangs would never return


def all_have_said(what: str, folder: Path, rank: int, world: int) -> None:
    (folder / f"{what}-{rank}").touch()
    until = time.monotonic() + WAITS_SECONDS
    while len(list(folder.glob(f"{what}-*"))) < world and time.monotonic() < until:
        time.sleep(0.01)


def main(folder: Path) -> None:
    import torch.distributed  # noqa: F401 - before the fork, once for all
    from torch.utils._traceback import CapturedTraceback

    CapturedTraceback.extract(script=True).format()  # torch reads its own symbols for two seconds
    children = []
    for name in SCENES:
        for form in ("pickle", "json"):
            (folder / name / form).mkdir(parents=True)
        for rank in range(world_of(name)):
            child = os.fork()
            if child == 0:
                run(name, rank, folder)
                os._exit(1)
            children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
