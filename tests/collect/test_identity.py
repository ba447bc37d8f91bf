"""Who a process is, as its launcher says."""

from __future__ import annotations

import socket

import pytest

from stepscope.collect.identity import Identity, from_environment

_OURS = {"STEPSCOPE_JOB": "llama", "STEPSCOPE_STORE": "s3://runs", "STEPSCOPE_HOST": "node-7"}


@pytest.mark.parametrize(
    ("environment", "want"),
    [
        pytest.param(
            {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "2"},
            (9, 16, 1, 2),
            id="torchrun",
        ),
        pytest.param(
            {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"},
            (5, 8, 1, 0),
            id="slurm",
        ),
        pytest.param(
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            },
            (3, 4, 1, 0),
            id="open-mpi",
        ),
        pytest.param(
            {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"}, (2, 4, 0, 0), id="mpich"
        ),
        pytest.param(
            {
                "MV2_COMM_WORLD_RANK": "6",
                "MV2_COMM_WORLD_SIZE": "8",
                "MV2_COMM_WORLD_LOCAL_RANK": "2",
            },
            (6, 8, 2, 0),
            id="mvapich",
        ),
        pytest.param({}, (0, 1, 0, 0), id="plain"),
        pytest.param(
            {"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
            (1, 2, 1, 0),
            id="torchrun-inside-slurm",
        ),
        pytest.param({"RANK": "", "WORLD_SIZE": "two", "LOCAL_RANK": "²"}, (0, 1, 0, 0), id="odd"),
        pytest.param({"RANK": "3"}, (3, 4, 3, 0), id="a-world-has-room-for-its-rank"),
    ],
)
def test_launchers(environment: dict[str, str], want: tuple[int, int, int, int]) -> None:
    rank, world, local, attempt = want

    assert from_environment({**_OURS, **environment}) == Identity(
        "llama", "s3://runs", "node-7", rank, world, local, attempt
    )


def test_a_host_is_called_what_its_scheduler_calls_it() -> None:
    assert from_environment({"NODE_NAME": "pod-node"}).host == "pod-node"
    assert from_environment({"SLURMD_NODENAME": "n12"}).host == "n12"
    assert from_environment({}).host == socket.gethostname()
