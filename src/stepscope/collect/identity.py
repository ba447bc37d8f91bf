"""The rank and the job of this process, from the variables that launchers set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.trace.host import host_name

SOCKET_VARIABLE = "STEPSCOPE_SOCKET"
JOB_VARIABLE = "STEPSCOPE_JOB"
STORE_VARIABLE = "STEPSCOPE_STORE"
OWNER_VARIABLE = "STEPSCOPE_OWNER"
"""Pid of the process that records the rank. Children inherit the variables, but must not record."""

# torchrun and torch.distributed.run; Slurm; Open MPI; MPICH and Intel MPI; MVAPICH
_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
_WORLD = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
_LOCAL = (
    "LOCAL_RANK",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
)


@dataclass(frozen=True)
class Identity:
    """One rank of one job, according to the launcher's environment."""

    job: str
    store: str
    host: str
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    attempt: int = 0


def from_environment(env: Mapping[str, str] = os.environ) -> Identity:
    """Reads the launcher's variables; a plain `python train.py` is rank 0 of 1."""
    rank = _first(env, _RANK, 0)
    return Identity(
        job=env.get(JOB_VARIABLE, "job"),
        store=env.get(STORE_VARIABLE, ""),
        host=host_name(env),
        rank=rank,
        world_size=max(_first(env, _WORLD, 1), rank + 1),
        local_rank=_first(env, _LOCAL, rank),
        attempt=_first(env, ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"), 0),
    )


def _first(env: Mapping[str, str], keys: tuple[str, ...], default: int) -> int:
    for key in keys:
        value = env.get(key, "")
        if value.isdecimal():
            return int(value)
    return default
