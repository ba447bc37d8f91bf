"""Four ranks over gloo that call every operator: plain, recorded by kernels in Python or in C++,
and with a fault of ours.

Run as `python -m tests.collect.gloo_job FOLDER SOCKET`; writes the results of each rank and mode.
Torch is imported once, the ranks are forked from there.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import stepscope
from stepscope.collect import startup
from stepscope.collect.hooks.python_operators import PythonWatch
from stepscope.collect.native.build import NATIVE_VARIABLE
from tests.collect.gloo_modes import MODES, WORLD
from tests.collect.gloo_scenes import SCENES


def digest(value: Any) -> Any:
    """Bit for bit what a scene gave."""
    if isinstance(value, torch.Tensor):
        data = value.detach().contiguous().numpy().tobytes()
        return [str(value.dtype), list(value.shape), hashlib.sha256(data).hexdigest()]
    if isinstance(value, list | tuple):
        return [digest(item) for item in value]
    return value


def attempt(scene: Any) -> Any:
    """What a scene gives, or raises."""
    try:
        return digest(scene())
    except Exception as error:  # noqa: BLE001 - compared among the modes, whatever it is
        return [type(error).__name__, str(error).splitlines()[0]]


def fail(*_arguments: Any) -> None:
    raise RuntimeError("a fault of ours")


def rank_main(mode: str, rank: int, folder: Path, socket: str) -> None:
    os.dup2(os.open(folder / f"{mode}-{rank}.err", os.O_WRONLY | os.O_CREAT), 2)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    if mode != "plain":
        os.environ.update(STEPSCOPE_SOCKET=socket, STEPSCOPE_JOB=mode)
        os.environ[NATIVE_VARIABLE] = str(int(mode == "native"))
        startup.after_torch_import()
    if mode == "faulty":
        PythonWatch.started = fail  # type: ignore[method-assign,assignment]
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/{mode}.store", rank=rank, world_size=WORLD
    )
    torch.manual_seed(rank)
    results = {}
    for name, scene in SCENES.items():
        with stepscope.phase(f"scene {name}"):
            results[name] = attempt(scene)
    (folder / f"{mode}-{rank}.json").write_text(json.dumps(results))
    if startup.session is not None:
        startup.session.close()


def main(folder: Path, socket: str) -> None:
    warnings.simplefilter("ignore")
    context = multiprocessing.get_context("fork")
    for mode in MODES:
        ranks = [
            context.Process(target=rank_main, args=(mode, rank, folder, socket))
            for rank in range(WORLD)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
